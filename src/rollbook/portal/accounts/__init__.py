"""Pages about people: sign in and out, password, API keys, members and invitations, devices, organisations.

What they do lives in `server.accounts`, beside the JSON routes; here are the forms.
"""

"""People, organisations, API keys, roles, sessions, sign-in, device login, invitations and the audit log. `callers`
finds out who sends a request, and the route modules of the other sub-rooms use it. Nothing here imports episodes, evals
or webhooks."""

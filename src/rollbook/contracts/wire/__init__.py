"""Every message of the HTTP API, declared once: request bodies and answers, as msgspec Structs.

The server decodes the bodies and encodes the answers. `client/`, `evals/` and `cli/` encode the bodies and decode the
answers. Nobody else declares what crosses HTTP. These modules import only the root modules of `contracts/`.

Keys that a Struct does not declare are ignored, so that a newer client can talk to an older server and the reverse.
"""

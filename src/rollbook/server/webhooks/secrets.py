"""Secrets of webhooks. None is stored: each is derived from the server's secret and a salt in its row, so a reader of
the database can sign nothing. A server with another secret notices that it cannot sign."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

PREFIX = "whsec_"
SIGNATURE_HEADER = "Rollbook-Signature"


def new_salt() -> str:
    return secrets.token_hex(16)


def secret_of(server_secret: bytes, webhook_id: str, salt: str) -> str:
    derived = hmac.new(server_secret, f"webhook\0{webhook_id}\0{salt}".encode(), hashlib.sha256)
    return PREFIX + base64.urlsafe_b64encode(derived.digest()).decode().rstrip("=")


def hash_of(secret: str) -> str:
    """A fingerprint to recognise the secret by."""
    return hashlib.sha256(secret.encode()).hexdigest()


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """`t=<unix>,v1=<hex of HMAC-SHA256 over "t.body">`. A receiver that refuses an old `t` is safe against replays."""
    signed = hmac.new(secret.encode(), b"%d.%b" % (timestamp, body), hashlib.sha256)
    return f"t={timestamp},v1={signed.hexdigest()}"

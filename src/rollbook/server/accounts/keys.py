"""API keys: create, parse and compare them. The form is `rt_<id>_<secret>`; the id is public, the secret is shown once.

The prefix says what a key may do. It is part of the hashed text, so the holder of a read-only key cannot turn it into
another kind.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Mapping
from types import MappingProxyType

from rollbook.contracts.wire.keys import KeyScope

KEY_SCOPES: Mapping[str, KeyScope] = MappingProxyType(
    {"rt": "write", "rb": "write", "ri": "ingest", "rv": "read", "ra": "admin"}
)
"""`rt` is the prefix of the public client, `rb` is ours for the same scope."""
PREFIX_OF_SCOPE: Mapping[KeyScope, str] = MappingProxyType(
    {"ingest": "ri", "read": "rv", "write": "rb", "admin": "ra"}
)
SCOPE_OF_ROLE: Mapping[str, KeyScope] = MappingProxyType({"member": "write", "viewer": "read"})
"""Before there were scopes, a key had one of these roles. The API still takes and shows them."""

_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 10
_SECRET_BYTES = 32
# the secret may contain underscores, the id never does
_KEY = re.compile(r"(?:rt|rb|ri|rv|ra)_([0-9A-Za-z]{10})_[0-9A-Za-z_-]{43}", re.ASCII)
_OF_NOTHING = "0" * 64


def new_api_key(prefix: str = "rt") -> tuple[str, str, str]:
    """The key, its id, and the hash that is stored."""
    if prefix not in KEY_SCOPES:
        raise ValueError(f"no key begins with {prefix!r}; expected one of {', '.join(KEY_SCOPES)}")
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    full = f"{prefix}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return full, key_id, hash_of(full)


def parse_api_key(text: str) -> tuple[str, str] | None:
    """The id and the whole key; None when the text is not a key."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1], text)


def hash_of(secret: str) -> str:
    """The hash of a key or a token. 32 random bytes cannot be guessed, so a plain fast hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matches(full: str, secret_hash: str | None) -> bool:
    """Takes the same time for every difference, and when there is no stored hash."""
    same = hmac.compare_digest(hash_of(full), secret_hash or _OF_NOTHING)
    return same and secret_hash is not None


def scope_of_key(prefix: str) -> KeyScope:
    """The scope of a stored key. An unknown prefix only reads."""
    return KEY_SCOPES.get(prefix, "read")


def role_of_scope(scope: KeyScope) -> str:
    return "viewer" if scope == "read" else "member"


def shown_prefix(prefix: str, key_id: str) -> str:
    """The part of a key that may be displayed. It identifies the key and cannot be used."""
    return f"{prefix}_{key_id}"

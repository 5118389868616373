"""API keys: how one is made, recognised and compared. `rt_<id>_<secret>`: the id is public, the secret is shown once.

The first letters say what a key may do, and are part of what is hashed: whoever holds a read-only key cannot write
itself another.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string

KEY_ROLES = {"rt": "member", "rb": "member", "rv": "viewer"}
"""`rt` is what the public client calls its keys, `rb` is ours for the same, `rv` only reads."""
PREFIX_OF_ROLE = {"member": "rb", "viewer": "rv"}

_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 10
_SECRET_BYTES = 32
# the secret may hold underscores of its own, the id never does
_KEY = re.compile(r"(?:rt|rb|rv)_([0-9A-Za-z]{10})_[0-9A-Za-z_-]{43}", re.ASCII)
_OF_NOTHING = "0" * 64


def new_api_key(prefix: str = "rt") -> tuple[str, str, str]:
    """The key itself, its id, and the hash that is stored instead of it."""
    if prefix not in KEY_ROLES:
        raise ValueError(f"no key begins with {prefix!r}; expected one of {', '.join(KEY_ROLES)}")
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    full = f"{prefix}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return full, key_id, hash_of(full)


def parse_api_key(text: str) -> tuple[str, str] | None:
    """The id and the whole key; None for what cannot be one."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1], text)


def hash_of(secret: str) -> str:
    """Of a key or a token: 32 random bytes cannot be guessed, so a plain hash is enough and takes a microsecond."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matches(full: str, secret_hash: str | None) -> bool:
    """In the same time whatever differs, and when there is nothing to compare with."""
    same = hmac.compare_digest(hash_of(full), secret_hash or _OF_NOTHING)
    return same and secret_hash is not None


def role_of_key(prefix: str) -> str:
    """What a stored key may do; one that we do not know may do the least."""
    return KEY_ROLES.get(prefix, "viewer")


def shown_prefix(prefix: str, key_id: str) -> str:
    """What may be shown of a key: enough to find it, nothing to use it with."""
    return f"{prefix}_{key_id}"

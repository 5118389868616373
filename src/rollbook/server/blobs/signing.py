"""Signed URLs of local blobs. A token says what is allowed and until when; only the server's secret can make one.

A token is `<grant>.<signature>`, both URL-safe base64. The signature is HMAC-SHA256 of the grant's text and is compared
as text, so a valid token has exactly one spelling. Nothing is decoded before the signature was checked.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Literal

import msgspec

_PURPOSE = b"rollbook blob url v1"
_LONGEST = 4096
Clock = Callable[[], float]


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """One complete permission: nothing else in the request decides which blob it touches."""

    method: Literal["GET", "PUT"]
    """GET allows HEAD as well."""
    key: str
    expires_at: int
    """Seconds since 1970 by the server's clock; the client's clock does not matter."""
    content_type: str | None
    """PUT: the content type that must be sent (None: any). GET: the content type of the answer."""
    most: int | None = None
    filename: str | None = None
    upload: str | None = None
    part: int | None = None


class TokenRefused(Exception):
    """Why a token is refused."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class UrlSigner:
    def __init__(self, secret: bytes, clock: Clock = time.time) -> None:
        # a derived key: the secret signs other things too, and no signature may serve for another purpose
        self._key = hmac.digest(secret, _PURPOSE, "sha256")
        self._clock = clock

    def expiry(self, ttl_s: int) -> int:
        return int(self._clock()) + ttl_s

    def url(self, base_url: str, grant: Grant) -> str:
        return f"{base_url.rstrip('/')}/blobs/{self.token(grant)}"

    def token(self, grant: Grant) -> str:
        text = _text(msgspec.json.encode(grant))
        return f"{text}.{self._signature(text)}"

    def opened(self, token: str, method: str) -> Grant:
        """The grant of the token. TokenRefused when it is not ours, has expired or is for another method."""
        text, _, signature = token.partition(".")
        genuine = (
            len(token) <= _LONGEST
            and token.isascii()
            and hmac.compare_digest(signature, self._signature(text))
        )
        if not genuine:
            raise TokenRefused(
                "signature_invalid",
                "this URL was not signed by this server, or was changed; ask for a new one",
            )
        grant = msgspec.json.decode(_bytes(text), type=Grant)
        if self._clock() >= grant.expires_at:
            raise TokenRefused("url_expired", "this URL has expired; ask for a new one")
        if method != grant.method and (method, grant.method) != ("HEAD", "GET"):
            raise TokenRefused("method_mismatch", f"this URL is for {grant.method}, not {method}")
        return grant

    def _signature(self, text: str) -> str:
        return _text(hmac.digest(self._key, text.encode(), "sha256"))


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))

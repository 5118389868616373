"""AWS Signature Version 4 for S3: presigned URLs and signed headers, at a fraction of what boto3 takes.

The payload is never part of the signature (`UNSIGNED-PAYLOAD`): a presigned URL is made before there is one, and ours
is checked by its SHA-256 when an episode is finalized.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    """Of temporary credentials. What is signed with them ends with them."""


def presigned_url(
    method: str,
    url: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    *,
    credentials: Credentials,
    region: str,
    at: datetime,
    ttl_s: int,
) -> str:
    """A URL anybody can use until it expires. Whoever uses it has to send exactly these `headers`."""
    stamp = f"{at:%Y%m%dT%H%M%SZ}"
    signed = _lowered(url, headers)
    own = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{_scope(stamp, region)}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(ttl_s),
        "X-Amz-SignedHeaders": ";".join(sorted(signed)),
    }
    if credentials.token is not None:
        own["X-Amz-Security-Token"] = credentials.token
    pairs = [*_pairs(query), *_pairs(own)]
    signature = _signature(method, url, pairs, signed, credentials.secret_key, region, stamp)
    return f"{url}?{_joined(pairs)}&X-Amz-Signature={signature}"


def signed_headers(
    method: str,
    url: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    *,
    credentials: Credentials,
    region: str,
    at: datetime,
) -> dict[str, str]:
    """What to send with a request of our own: unlike a presigned URL, the address gives nothing away in a log."""
    stamp = f"{at:%Y%m%dT%H%M%SZ}"
    sent = {**headers, "X-Amz-Date": stamp, "X-Amz-Content-SHA256": _UNSIGNED}
    if credentials.token is not None:
        sent["X-Amz-Security-Token"] = credentials.token
    signed = _lowered(url, sent)
    pairs = _pairs(query)
    signature = _signature(method, url, pairs, signed, credentials.secret_key, region, stamp)
    credential = f"{credentials.access_key}/{_scope(stamp, region)}"
    names = ";".join(sorted(signed))
    authorization = (
        f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return {**sent, "Authorization": authorization}


def _signature(
    method: str,
    url: str,
    pairs: Sequence[tuple[str, str]],
    headers: Mapping[str, str],
    secret_key: str,
    region: str,
    stamp: str,
) -> str:
    names = sorted(headers)
    canonical = "\n".join(
        [
            method,
            urlsplit(url).path or "/",
            _joined(sorted(pairs)),
            *(f"{name}:{headers[name]}" for name in names),
            "",
            ";".join(names),
            _UNSIGNED,
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([_ALGORITHM, stamp, _scope(stamp, region), digest])
    return _hmac(_signing_key(secret_key, stamp[:8], region), text).hex()


@lru_cache(maxsize=16)
def _signing_key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for step in (day, region, "s3", "aws4_request"):
        key = _hmac(key, step)
    return key


def _scope(stamp: str, region: str) -> str:
    return f"{stamp[:8]}/{region}/s3/aws4_request"


def _lowered(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    split = urlsplit(url)
    usual_port = {"http": ":80", "https": ":443"}[split.scheme]  # which nobody sends
    return {**lowered, "host": split.netloc.removesuffix(usual_port)}


def query_text(query: Mapping[str, str]) -> str:
    """Spelled as it was signed."""
    return _joined(_pairs(query))


def _pairs(query: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items()]


def _joined(pairs: Sequence[tuple[str, str]]) -> str:
    return "&".join(f"{name}={value}" for name, value in pairs)


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")

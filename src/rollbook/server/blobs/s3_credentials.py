"""Where a bucket is and how we are known there, from the environment variables every S3 tool reads."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from rollbook.errors import ConfigurationError
from rollbook.server.blobs.sigv4 import Credentials

_FRESH_S = 60.0


class CredentialSource:
    """Fixed ones, or ones that somebody renews: a role of the machine, a profile."""

    def __init__(self, fetch: Callable[[], Credentials], *, renewed: bool) -> None:
        self._fetch = fetch
        self._renewed = renewed
        self._current = fetch()
        self._fetched_at = time.monotonic()

    async def current(self) -> Credentials:
        if self._renewed and time.monotonic() - self._fetched_at > _FRESH_S:
            self._current = await asyncio.to_thread(self._fetch)  # may ask another machine
            self._fetched_at = time.monotonic()
        return self._current


@dataclass(frozen=True)
class S3Place:
    bucket: str
    bucket_url: str
    """Without a slash at its end; a key follows after one."""
    region: str
    credentials: CredentialSource

    @classmethod
    def from_environment(
        cls, bucket: str, endpoint: str | None = None, environment: Mapping[str, str] = os.environ
    ) -> S3Place:
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        endpoint = (
            endpoint
            or environment.get("AWS_ENDPOINT_URL_S3")
            or environment.get("AWS_ENDPOINT_URL")
        )
        region = region or "us-east-1"
        return cls(bucket, _bucket_url(bucket, endpoint, region), region, _source(environment))

    def url(self, key: str = "") -> str:
        return f"{self.bucket_url}/{quote(key, safe='/-_.~')}"


def _bucket_url(bucket: str, endpoint: str | None, region: str) -> str:
    """The bucket is part of the path, save on AWS, where it is part of the host unless a dot would break TLS."""
    if endpoint is not None:
        if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
            message = f"blobs: S3 endpoint {endpoint!r} is not a URL; expected for example https://s3.example.com"
            raise ConfigurationError(message=message)
        return f"{endpoint.rstrip('/')}/{bucket}"
    if "." in bucket:
        return f"https://s3.{region}.amazonaws.com/{bucket}"
    return f"https://{bucket}.s3.{region}.amazonaws.com"


def _source(environment: Mapping[str, str]) -> CredentialSource:
    access_key = environment.get("AWS_ACCESS_KEY_ID")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if access_key and secret_key:
        fixed = Credentials(access_key, secret_key, environment.get("AWS_SESSION_TOKEN"))
        return CredentialSource(lambda: fixed, renewed=False)
    found = _found_by_botocore()
    if found is None:
        message = (
            "blobs: no S3 credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or pip install boto3 to use a profile or the role of this machine"
        )
        raise ConfigurationError(message=message)

    def fetch() -> Credentials:
        frozen = found.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    return CredentialSource(fetch, renewed=True)


def _found_by_botocore() -> Any:
    try:
        session = importlib.import_module("botocore.session")
    except ImportError:
        return None
    return session.get_session().get_credentials()

"""Makes the boto3 client of one S3 bucket, which does not take half an error message for a whole one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from urllib3.exceptions import HTTPError

from rollbook.errors import ConfigurationError
from rollbook.server.settings import is_http_url

REQUESTS_AT_ONCE = 32
ATTEMPTS = 4
"""How often boto3 sends a request that meets a passing fault."""
READ_S = 10.0
"""Until the next bytes of an answer: a thread is free again after four times this, and the pauses between."""


class _ShortBody(Exception):
    """The message of an error has fewer bytes than its header says."""


BROKEN_OFF = (HTTPError, ResponseParserError, _ShortBody)
"""An answer that breaks off in the middle of an error message, where boto3 does not ask again."""


def _refuse_short_body(response_dict: Mapping[str, Any], **_: Any) -> None:
    """boto3 takes what it got of an error for the whole, and would call a lost bucket or upload a lost object."""
    said = response_dict["headers"].get("content-length", "")
    body = response_dict["body"]
    if response_dict["status_code"] < 300 or not said.isdecimal() or not isinstance(body, bytes):
        return
    if response_dict["context"]["operation_name"].startswith("Head"):
        return  # an answer to HEAD has no body
    if len(body) < int(said):
        raise _ShortBody(f"{len(body)} of {said} bytes")


@cache
def _loader(data_path: str | None) -> Any:
    """The description of S3 that boto3 reads: reading it takes far longer than the rest of making a client."""
    return create_loader(data_path)


def s3_client(
    bucket: str,
    endpoint: str | None,
    environment: Mapping[str, str] = os.environ,
    *,
    read_timeout_s: float = READ_S,
) -> Any:
    """Credentials and region come from the usual `AWS_*` variables, from a profile or from the role of this machine.

    The bucket is part of the path, except on AWS, where it is part of the host unless a dot would break TLS.
    """
    endpoint = (
        endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    )
    if endpoint is not None:
        if not is_http_url(endpoint):
            message = f"blobs: S3 endpoint {endpoint!r} is not a URL; expected for example https://s3.example.com"
            raise ConfigurationError(message=message)
        endpoint = endpoint.rstrip("/")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    config = Config(
        signature_version="s3v4",
        connect_timeout=3,
        read_timeout=read_timeout_s,
        max_pool_connections=REQUESTS_AT_ONCE,
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        s3={
            "addressing_style": "virtual" if endpoint is None and "." not in bucket else "path",
            "us_east_1_regional_endpoint": "regional",
        },
        # not every server knows these headers; the bytes are checked by their SHA-256 when an episode is finalized
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        core = get_session()
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        session = boto3.Session(region_name=region, botocore_session=core)
        client = session.client("s3", endpoint_url=endpoint, config=config)
        client.meta.events.register("before-parse.s3", _refuse_short_body)
        credentials = session.get_credentials()
    except (BotoCoreError, ValueError) as error:
        message = f"blobs: S3 cannot be used: {error}; check the AWS_* variables and the AWS configuration files"
        raise ConfigurationError(message=message) from error
    if credentials is None:
        message = (
            "blobs: no S3 credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or give this machine a profile or a role"
        )
        raise ConfigurationError(message=message)
    return client

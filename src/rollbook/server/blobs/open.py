"""Opening a blob store by its URL. The code of a store that is not used is not loaded."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rollbook.errors import ConfigurationError
from rollbook.server.blobs.interface import KEY, BlobStore

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_blobs(url: str, *, secret: bytes, s3_endpoint: str | None = None) -> BlobStore:
    """`file:///folder`, whose URLs are signed with `secret`, or `s3://bucket/prefix`.

    S3 takes its credentials, region and endpoint from the usual `AWS_*` variables, and from where boto3 looks.
    """
    split = urlsplit(url)
    if split.scheme == "file" and split.netloc in ("", "localhost") and split.path:
        from rollbook.server.blobs.local import LocalBlobs

        return LocalBlobs(Path(unquote(split.path)), secret)
    if split.scheme == "s3":
        return _open_s3(split.netloc, split.path.strip("/"), s3_endpoint)
    message = f"blobs: {url.split('://', 1)[0]!r} is not supported; expected file:///folder or s3://bucket/prefix"
    raise ConfigurationError(message=message)


def _open_s3(bucket: str, prefix: str, endpoint: str | None) -> BlobStore:
    if not _BUCKET.fullmatch(bucket):
        message = f"blobs: {bucket!r} is not the name of a bucket; expected s3://bucket/prefix"
        raise ConfigurationError(message=message)
    if prefix and not KEY.fullmatch(prefix):
        message = (
            f"blobs: prefix {prefix!r} may have letters, digits, '.', '_' and '-' between slashes"
        )
        raise ConfigurationError(message=message)
    try:
        from rollbook.server.blobs.s3 import S3Blobs
    except ImportError as missing:
        message = "blobs: S3 needs boto3, which is not installed: pip install 'rollbook[server]'"
        raise ConfigurationError(message=message) from missing
    return S3Blobs(bucket, prefix, endpoint)

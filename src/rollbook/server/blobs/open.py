"""Opening a blob store by its URL. The scheme names the module: `s3://…` is opened by `s3_blobs.py`.

Such a module has a function `open_url`, which takes the same arguments as `open_blobs`. The module of a store that is
not used is not loaded.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from rollbook.errors import ConfigurationError
from rollbook.server import blobs
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.metrics import NO_METRICS, Metrics
from rollbook.server.settings import Settings


def open_blobs(
    url: str,
    *,
    secret: bytes,
    s3_endpoint: str | None = None,
    s3_public_endpoint: str | None = None,
    metrics: Metrics = NO_METRICS,
) -> BlobStore:
    """`file:///folder`, whose URLs are signed with `secret`, or `s3://bucket/prefix`.

    S3 takes its credentials, region and endpoint from the usual `AWS_*` variables, and from where boto3 looks. Signed
    URLs lead to `s3_public_endpoint`, if clients reach S3 at another address than this server does.
    """
    scheme = url.split("://", 1)[0]
    if scheme not in _schemes():
        expected = ", ".join(f"{known}://" for known in _schemes())
        message = (
            f"blobs: {scheme!r} is not supported; expected a URL that begins with one of {expected}"
        )
        raise ConfigurationError(message=message)
    try:
        module = import_module(f"rollbook.server.blobs.{scheme}_blobs")
    except ModuleNotFoundError as missing:
        message = (
            f"blobs: {scheme}:// needs {missing.name}, which is not installed: "
            "pip install 'rollbook[server]'"
        )
        raise ConfigurationError(message=message) from missing
    opened = module.open_url(
        url,
        secret=secret,
        s3_endpoint=s3_endpoint,
        s3_public_endpoint=s3_public_endpoint,
        metrics=metrics,
    )
    return cast("BlobStore", opened)


def open_blobs_of(settings: Settings, metrics: Metrics = NO_METRICS) -> BlobStore:
    return open_blobs(
        settings.blobs_url,
        secret=settings.secret,
        s3_endpoint=settings.s3_endpoint,
        s3_public_endpoint=settings.s3_public_endpoint,
        metrics=metrics,
    )


def _schemes() -> list[str]:
    names = [module.name for module in iter_modules(blobs.__path__)]
    return [name.removesuffix("_blobs") for name in names if name.endswith("_blobs")]

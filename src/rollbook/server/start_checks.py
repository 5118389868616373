"""What `rollbook serve` checks before it creates anything. The first start prints its API key only once, so what cannot
work is refused before there is a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

from rollbook.errors import (
    BlobError,
    BlobStoreUnavailable,
    ConfigurationError,
    DatabaseUnavailable,
)
from rollbook.server.blobs.open import open_blobs_of
from rollbook.server.db.checks import examine_role
from rollbook.server.db.open import open_database
from rollbook.server.metrics import check_address
from rollbook.server.settings import Settings
from rollbook.server.store_files.root_checks import examine_roots

_LONGEST_CHECK_S = 5.0


def check_settings(settings: Settings, warn: Callable[[str], None]) -> None:
    """Raises ConfigurationError for a setting that is wrong, and DatabaseUnavailable without a database.

    A blob store that refuses us is a wrong setting. One that does not answer is a warning: it may start after this
    server, most requests do not need it, and `/readyz` waits for it.
    """
    if settings.metrics_address is not None:
        check_address(settings.metrics_address, taken=(settings.host, settings.port))
    for finding in examine_roots(settings):
        if not finding.passed:
            warn(f"{finding.subject}: {finding.detail}")
    try:
        asyncio.run(_check_blobs(settings))
    except (TimeoutError, BlobStoreUnavailable) as error:
        if isinstance(error, BlobStoreUnavailable) and error.is_refusal:
            raise ConfigurationError(message=f"blobs: {error}") from error
        detail = str(error) or f"{settings.blobs_url} does not answer"
        warn(f"blobs: {detail}; the server starts, and is ready when the store answers")
    except BlobError as error:
        raise ConfigurationError(message=f"blobs: {error}") from error
    if settings.database_url.startswith("postgres"):
        _check_role(settings.database_url)


async def _check_blobs(settings: Settings) -> None:
    blobs = open_blobs_of(settings)
    try:
        async with asyncio.timeout(_LONGEST_CHECK_S):
            await blobs.check()
    finally:
        await blobs.close()


def _check_role(database_url: str) -> None:
    """Before the migration, because the role that migrates owns the tables."""
    try:
        with closing(open_database(database_url)) as database:
            role = examine_role(database)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(detail=f"{error.detail} ({_reason(error)})") from error
    if not role.passed:
        raise ConfigurationError(message=f"database: {role.detail}")


def _reason(error: DatabaseUnavailable) -> str:
    """What the driver says, for the operator alone. It names the host and the role, and never a password."""
    lines = str(getattr(error.__cause__, "orig", error.__cause__)).splitlines()
    return next((line for line in lines if "FATAL" in line), lines[0]).strip()

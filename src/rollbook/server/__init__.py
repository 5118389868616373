"""The ingest API: episodes, artifacts, eval runs, keys and organisations over HTTP. It runs on SQLite or PostgreSQL,
and keeps blobs on local disk or in S3.

The root holds what every sub-room shares (settings, logs, metrics, context) and what operators run (bootstrap, backup,
doctor). The order in which sub-rooms import each other is a contract in pyproject.toml. The server never imports
`client`, `evals` or `adapters`.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.server.backup import (
        Backup as Backup,
        read_backup as read_backup,
        restore as restore,
    )
    from rollbook.server.blobs.open import open_blobs as open_blobs
    from rollbook.server.bootstrap import Bootstrapped as Bootstrapped, first_start as first_start
    from rollbook.server.db.migrate import migrate as migrate
    from rollbook.server.db.open import open_database as open_database
    from rollbook.server.doctor import examine as examine
    from rollbook.server.settings import Settings as Settings
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.server.backup": ("Backup", "read_backup", "restore"),
            "rollbook.server.blobs.open": ("open_blobs",),
            "rollbook.server.bootstrap": ("Bootstrapped", "first_start"),
            "rollbook.server.db.migrate": ("migrate",),
            "rollbook.server.db.open": ("open_database",),
            "rollbook.server.doctor": ("examine",),
            "rollbook.server.settings": ("Settings",),
        },
        extra="server",
    )

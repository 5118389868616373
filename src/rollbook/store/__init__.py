"""One rollout store is one folder on disk: a Zarr hierarchy of tables that is written in one step and mapped to read.

The modules here write, read, publish and repack stores; `schema.py` declares every table and column. `checks/`
validates a store and `audit/` shows one to people. The order of imports is: audit, reader and writer, checks, tables.
The store never imports generation, training or the server. A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.store.audit.export import (
        export_table as export_table,
    )
    from rollbook.store.checks.validate import (
        RolloutZarrValidationResult as RolloutZarrValidationResult,
        validate_rollout_zarr_store as validate_rollout_zarr_store,
    )
    from rollbook.store.checks.violation import (
        Violation as Violation,
    )
    from rollbook.store.collection import (
        RolloutCollection as RolloutCollection,
    )
    from rollbook.store.config import (
        RolloutZarrStoreConfig as RolloutZarrStoreConfig,
        RolloutZarrWriteResult as RolloutZarrWriteResult,
    )
    from rollbook.store.manifest import (
        RolloutStoreInvocation as RolloutStoreInvocation,
        RolloutStoreManifestContext as RolloutStoreManifestContext,
    )
    from rollbook.store.reader import (
        RolloutZarrStoreReader as RolloutZarrStoreReader,
    )
    from rollbook.store.records import (
        CandidateSamplingResult as CandidateSamplingResult,
        CounterfactualRolloutResult as CounterfactualRolloutResult,
        RolloutChain as RolloutChain,
        RolloutStep as RolloutStep,
        RolloutZarrRecord as RolloutZarrRecord,
        SelectedDepth as SelectedDepth,
        TargetEvalCrop as TargetEvalCrop,
    )
    from rollbook.store.repack import (
        repack_store as repack_store,
    )
    from rollbook.store.shards.collection_file import (
        open_collection as open_collection,
    )
    from rollbook.store.stored_tables import (
        StoredTables as StoredTables,
        migrate_store as migrate_store,
    )
    from rollbook.store.urls.remote import (
        PublishedStore as PublishedStore,
        open_store as open_store,
        publish_store as publish_store,
    )
    from rollbook.store.views.frames import (
        arrow_table as arrow_table,
        duckdb_columns as duckdb_columns,
        duckdb_relation as duckdb_relation,
        pandas_frame as pandas_frame,
        polars_frame as polars_frame,
    )
    from rollbook.store.writer import (
        RolloutStoreWriter as RolloutStoreWriter,
        write_rollout_zarr_store as write_rollout_zarr_store,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.store.audit.export": ("export_table",),
            "rollbook.store.checks.validate": (
                "RolloutZarrValidationResult",
                "validate_rollout_zarr_store",
            ),
            "rollbook.store.checks.violation": ("Violation",),
            "rollbook.store.collection": ("RolloutCollection",),
            "rollbook.store.config": (
                "RolloutZarrStoreConfig",
                "RolloutZarrWriteResult",
            ),
            "rollbook.store.views.frames": (
                "arrow_table",
                "duckdb_columns",
                "duckdb_relation",
                "pandas_frame",
                "polars_frame",
            ),
            "rollbook.store.manifest": (
                "RolloutStoreInvocation",
                "RolloutStoreManifestContext",
            ),
            "rollbook.store.reader": ("RolloutZarrStoreReader",),
            "rollbook.store.records": (
                "CandidateSamplingResult",
                "CounterfactualRolloutResult",
                "RolloutChain",
                "RolloutStep",
                "RolloutZarrRecord",
                "SelectedDepth",
                "TargetEvalCrop",
            ),
            "rollbook.store.urls.remote": (
                "PublishedStore",
                "open_store",
                "publish_store",
            ),
            "rollbook.store.repack": ("repack_store",),
            "rollbook.store.shards.collection_file": ("open_collection",),
            "rollbook.store.stored_tables": (
                "StoredTables",
                "migrate_store",
            ),
            "rollbook.store.writer": (
                "RolloutStoreWriter",
                "write_rollout_zarr_store",
            ),
        },
        extra="store",
    )

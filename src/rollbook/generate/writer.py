"""RolloutDatasetWriter: generates rollouts from source rows and writes them into a validated store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from importlib import metadata
from typing import Any

from rollbook import __version__
from rollbook.engines import run_in_order
from rollbook.errors import (
    ConfigurationError,
    GenerationFailed,
    NoRollouts,
    ShardDrift,
    StorageError,
)
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.finished_rows import FinishedRows, Unfinished
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.row_rollouts import RolloutDatasetWriterStats, RowOutcome, RowRoller
from rollbook.generate.sources.reader import SourceStore
from rollbook.notebook import Progress, shown_progress
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.config import RolloutZarrStoreConfig, RolloutZarrWriteResult
from rollbook.store.manifest import (
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    collect_runtime_provenance,
)
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.writer import RolloutStoreWriter

_PACKAGES = ("numba", "llvmlite", "embreex")

OnRow = Callable[[int, int, RolloutDatasetWriterStats], None]
"""Called after every source row with the number of finished rows, the number of all rows, and the counters."""


class RolloutDatasetWriter:
    """Generates rollouts from source rows and writes them into a new store."""

    def __init__(
        self,
        config: RolloutDatasetWriterConfig,
        *,
        stated_config: RolloutDatasetWriterConfig | None = None,
    ) -> None:
        """`stated_config` is the config in the manifest, where a store is first written to another folder than the
        config names: the folder of an attempt would make every manifest another one."""
        self.config = config
        self._stated_config = stated_config or config
        self.stats = RolloutDatasetWriterStats()
        self.finished = FinishedRows(config.store.store_dir)
        self.rows_resumed = 0
        """Rows that the last run took from a run before it."""

    def rows(self, *, one_split: bool = True) -> tuple[SourceStore, tuple[int, ...]]:
        """The source and the rows that the config selects. Refuses a config that could not be written at the end.

        A store holds one split. Without `one_split`, for what writes no store, `all` selects the rows of all splits.
        """
        config, source = self.config, self._source()
        unknown = sorted(set(config.source.scenes) - set(source.scenes))
        if unknown:
            raise ConfigurationError(
                message=f"source.scenes: there is no scene {unknown[0]!r} in {config.source.store_dir}"
            )
        entries = [
            entry
            for entry in source.index
            if config.source.split in ("all", entry.split)
            and (not config.source.scenes or entry.scene_id in config.source.scenes)
        ]
        splits = sorted({entry.split for entry in entries})
        if one_split and len(splits) > 1:
            raise ConfigurationError(
                message=f"source.split is 'all', but the rows are of {', '.join(splits)}: a rollout store "
                "holds one split, so name one"
            )
        if not entries:
            have = ", ".join(sorted({entry.split for entry in source.index}))
            raise ConfigurationError(
                message=f"source.split is {config.source.split!r}, which has no row; there are rows of {have}"
            )
        chosen = entries[: config.max_samples]
        return source, tuple(entry.sample_index for entry in chosen)

    def shard_rows(self, shard_entry: RolloutShardEntry) -> tuple[SourceStore, tuple[int, ...]]:
        """The source and the rows of a planned shard. Raises ShardDrift unless all is as it was planned."""
        shard_entry.validate()
        source = self._source()
        compared = {
            "writer_config_hash": self.config.config_hash,
            "source_manifest_hash": source.manifest_digest,
            "source_cache_version": source.version,
        }
        for name, now in compared.items():
            planned = getattr(shard_entry, name)
            if planned != now:
                detail = f"{name} was planned as {planned[:16]!r} and is {now[:16]!r}"
                raise self._drift(shard_entry, detail)
        for row in shard_entry.rows:
            if row.sample_index >= len(source):
                detail = f"rows[{row.order}]: the source has no row {row.sample_index}"
                raise self._drift(shard_entry, detail)
            difference = row.difference_from(source.index[row.sample_index])
            if difference is not None:
                raise self._drift(shard_entry, f"rows[{row.order}].{difference}")
        return source, tuple(row.sample_index for row in shard_entry.rows)

    def _source(self) -> SourceStore:
        for recipe in self.config.recipes:
            recipe.loaded_scorer()  # a wrong name fails here, not after an hour
        return SourceStore.open(self.config.source.store_dir)

    def _drift(self, shard_entry: RolloutShardEntry, detail: str) -> ShardDrift:
        path = str(self.config.source.store_dir)
        advice = "use the config and the source of the plan, or plan again"
        return ShardDrift(path=path, detail=f"{shard_entry.shard_id}: {detail}; {advice}")

    def run(
        self,
        *,
        invocation: RolloutStoreInvocation | None = None,
        on_row: OnRow | None = None,
        unfinished: Unfinished = "refuse",
        shard_entry: RolloutShardEntry | None = None,
    ) -> RolloutZarrWriteResult:
        """Writes the store. Rows and targets that cannot be used are counted. The store appears when it is complete.

        If the run ends early, however it ends, the finished rows stay in a hidden folder beside the store. The next run
        refuses to begin unless `unfinished` says whether to "resume" with these rows or to "discard" them.

        With a `shard_entry` the rows are those of the entry, in its order, whatever split and number the config says.
        """
        self.stats = RolloutDatasetWriterStats()
        source, rows = self.rows() if shard_entry is None else self.shard_rows(shard_entry)
        context = RolloutStoreManifestContext(
            writer_config=self._stated_config.to_jsonable()
            | {"actor_feature_names": list(FEATURES)},
            invocation=invocation or RolloutStoreInvocation.programmatic(),
            runtime=_runtime(),
            shard=None if shard_entry is None else shard_entry.to_jsonable(),
        )
        with (
            RolloutStoreWriter(self._store_config(source), manifest_context=context) as store,
            self.finished as finished,
        ):
            finished.prepare(self._made_with(source, context.runtime), unfinished)
            with (
                closing(self._outcomes(source, rows)) as outcomes,
                shown_progress("generating rollouts", self._told(on_row)) as progress,
            ):
                for done, outcome in enumerate(outcomes, start=1):
                    for record in outcome.records:
                        store.append(record)
                    self.stats.add(outcome.stats)
                    progress(done, len(rows))
            if not self.stats.rollouts_written:
                finished.remove()
                reasons = self.stats.listed_reasons()
                raise NoRollouts(samples_seen=self.stats.samples_seen, reasons=reasons)
            result = store.finish()
        if shard_entry is None:  # whoever runs a shard validates its store before promoting it
            _refuse_violations(result)
        return result

    def _told(self, on_row: OnRow | None) -> Progress | None:
        if on_row is None:
            return None
        return lambda done, total: on_row(done, total, self.stats)

    def _made_with(self, source: SourceStore, runtime: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that determines the rows. Rows of runs that differ in it are not mixed in one store."""
        recipes = self.config.recipes
        return {
            "rollbook": __version__,
            "packages": runtime["packages"],
            "renderer": SceneGeometry.resolved_backend(self.config.renderer),
            "source": source.manifest_digest,
            "config": self.config.decisive_values(),
            "checkpoint": {each.name: each.loaded_scorer().checkpoint for each in recipes},
        }

    def _store_config(self, source: SourceStore) -> RolloutZarrStoreConfig:
        config = self.config
        depth, scorer = config.selected_depth, config.target_scorer
        return dataclasses.replace(
            config.store,
            target_protocol_version=config.target_protocol,
            source_offline_store_version=source.version,
            split_manifest_hash=source.split_manifest_hash,
            selected_depth_enabled=depth.enabled,
            selected_depth_width_px=depth.width_px,
            selected_depth_height_px=depth.height_px,
            selected_depth_chunk_steps=depth.chunk_steps,
            selected_depth_renderer=SceneGeometry.resolved_backend(config.renderer),
            selected_depth_znear_m=scorer.near_m,
            selected_depth_zfar_m=scorer.far_m,
        )

    def _outcomes(
        self, source: SourceStore, rows: Sequence[int]
    ) -> Generator[RowOutcome, None, None]:
        """Yields the outcomes in the order of the rows. Only rows that are not finished yet are rolled out."""
        kept = self.finished.numbers()
        self.rows_resumed = len(kept.intersection(rows))
        rolled_out = run_in_order(
            partial(_row_worker, self.config, self.finished, source),
            [row for row in rows if row not in kept],
            workers=self.config.workers,
            failed=lambda row, failure: GenerationFailed(
                sample_index=row, sample_key=source.index[row].sample_key, detail=str(failure)
            ),
        )
        with closing(rolled_out):
            for row in rows:
                if row not in kept:
                    next(rolled_out)
                yield self.finished.load(row)
            next(rolled_out, None)  # lets the workers end by themselves


def _row_worker(
    config: RolloutDatasetWriterConfig, finished: FinishedRows, source: SourceStore
) -> Callable[[int], None]:
    roller = RowRoller(config, source)
    return lambda row: finished.save(row, roller.roll_out(row))


def _runtime() -> dict[str, Any]:
    """The runtime of the store, plus the packages that compute images and distances."""
    runtime = collect_runtime_provenance()
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            runtime["packages"][name] = metadata.version(name)
    return runtime


def _refuse_violations(result: RolloutZarrWriteResult) -> None:
    """Raises if the written store is not valid, which would be an error of this program."""
    checked = validate_rollout_zarr_store(result.store_dir)
    if not checked.ok:
        detail = "; ".join(str(error) for error in checked.errors[:5])
        raise StorageError(path=str(result.store_dir), detail=f"written, but not valid: {detail}")

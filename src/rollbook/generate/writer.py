"""RolloutDatasetWriter: from source rows to a finished, validated store."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

from rollbook.errors import (
    ConfigurationError,
    GenerationFailed,
    NoRollouts,
    RollbookError,
    StorageError,
)
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.features import FEATURES
from rollbook.generate.raycast import SceneGeometry
from rollbook.generate.row_rollouts import RolloutDatasetWriterStats, RowOutcome, RowRoller
from rollbook.generate.scorers import scorer_named
from rollbook.generate.sources import SourceStore
from rollbook.store.config import RolloutZarrStoreConfig, RolloutZarrWriteResult
from rollbook.store.manifest import (
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    collect_runtime_provenance,
)
from rollbook.store.validate import validate_rollout_zarr_store
from rollbook.store.writer import RolloutStoreWriter

OnRow = Callable[[int, int, RolloutDatasetWriterStats], None]
"""Called after every source row with how many are done, how many there are, and the counters so far."""


class RolloutDatasetWriter:
    """Generates rollouts from source rows and writes them into a store of their own."""

    def __init__(self, config: RolloutDatasetWriterConfig) -> None:
        self.config = config
        self.stats = RolloutDatasetWriterStats()

    def rows(self) -> tuple[SourceStore, tuple[int, ...]]:
        """The source, and the rows of it that the config asks for. Refuses what could not be written in the end."""
        config = self.config
        source = SourceStore.open(config.source.store_dir)
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
        if len(splits) > 1:
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

    def run(
        self,
        *,
        invocation: RolloutStoreInvocation | None = None,
        on_row: OnRow | None = None,
    ) -> RolloutZarrWriteResult:
        """Writes the store. A row or target that cannot be used is counted; the store appears only when all is done."""
        self.stats = RolloutDatasetWriterStats()
        for recipe in self.config.recipes:
            scorer_named(recipe.scorer_name)  # a wrong name is found now, not after an hour
        source, rows = self.rows()
        context = RolloutStoreManifestContext(
            writer_config=self.config.to_jsonable() | {"actor_feature_names": list(FEATURES)},
            invocation=invocation or RolloutStoreInvocation.programmatic(),
            runtime=collect_runtime_provenance(),
        )
        with RolloutStoreWriter(self._store_config(source), manifest_context=context) as store:
            for done, outcome in enumerate(self._outcomes(source, rows), start=1):
                for record in outcome.records:
                    store.append(record)
                self.stats.add(outcome.stats)
                if on_row is not None:
                    on_row(done, len(rows), self.stats)
            if not self.stats.rollouts_written:
                raise NoRollouts(samples_seen=self.stats.samples_seen, reasons=_listed(self.stats))
            result = store.finish()
        _refuse_violations(result)
        return result

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

    # ---------------------------------------------------------------------------------------- rows

    def _outcomes(self, source: SourceStore, rows: Sequence[int]) -> Iterator[RowOutcome]:
        """In the order of the rows, whoever worked on them."""
        if self.config.workers == 1:
            roller = RowRoller(self.config, source)
            return (_rolled_out(roller, row) for row in rows)
        return self._by_workers(rows)

    def _by_workers(self, rows: Sequence[int]) -> Iterator[RowOutcome]:
        pool = ProcessPoolExecutor(
            self.config.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(self.config,),
        )
        waiting: deque[Future[RowOutcome]] = deque()
        try:
            for row in rows:
                waiting.append(pool.submit(_work, row))
                if (
                    len(waiting) > 2 * self.config.workers
                ):  # what is done and not yet written waits in memory
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


_worker: list[RowRoller] = []
"""The roller of this process, when it is a worker."""


def _start_worker(config: RolloutDatasetWriterConfig) -> None:
    _worker[:] = [RowRoller(config, SourceStore.open(config.source.store_dir))]


def _work(row: int) -> RowOutcome:
    return _rolled_out(_worker[0], row)


def _rolled_out(roller: RowRoller, row: int) -> RowOutcome:
    try:
        return roller.roll_out(row)
    except GenerationFailed:
        raise
    except Exception as error:
        entry = roller.source.index[row]
        name = "" if isinstance(error, RollbookError) else f"{type(error).__name__}: "
        raise GenerationFailed(
            sample_index=row, sample_key=entry.sample_key, detail=f"{name}{error}"
        ) from error


def _listed(stats: RolloutDatasetWriterStats) -> str:
    reasons = sorted(stats.skipped_reasons.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{count} {reason}" for reason, count in reasons) or "nothing"


def _refuse_violations(result: RolloutZarrWriteResult) -> None:
    """A store of ours that does not hold together is a mistake of ours: never handed on in silence."""
    checked = validate_rollout_zarr_store(result.store_dir)
    if not checked.ok:
        detail = "; ".join(str(error) for error in checked.errors[:5])
        raise StorageError(path=str(result.store_dir), detail=f"written, but not valid: {detail}")

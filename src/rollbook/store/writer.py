"""RolloutStoreWriter: writes records into a store. The store appears complete, or not at all.

Everything is written to a hidden folder beside the final one. Candidates, steps and diagnostics are written while
records arrive, so memory does not grow with them. Small tables and the derived views follow at the end, the manifest
last. Then the folder is synced and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.read_only import read_only
from rollbook.contracts.reasons import INVALID_REASON_VERSION
from rollbook.errors import InvalidValue, StorageError
from rollbook.store.candidate_columns import AddedRecord
from rollbook.store.config import RolloutZarrStoreConfig, RolloutZarrWriteResult
from rollbook.store.derived_views import write_derived_views
from rollbook.store.description import StoreDescription
from rollbook.store.growing_columns import GrowingColumns
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    RolloutStoreManifestContext,
    json_bytes,
)
from rollbook.store.rasters import FrameWriter, stored_depth
from rollbook.store.record_checks import check_crops, checked_depth, named_steps
from rollbook.store.records import RolloutStep, RolloutZarrRecord, SelectedDepth
from rollbook.store.schema import DEFAULT_RETURN_SEMANTICS, TABLES
from rollbook.store.staging import StagedStore
from rollbook.store.tables import StoreTables

Array = NDArray[Any]
_LARGE = ("steps", "candidates", "candidate_diagnostics")
_BLOCK_ROWS = 1 << 16
"""Number of candidates that are collected before they are written."""
_BLOCK_BYTES = 64 << 20
"""Bytes of images and points that collected records may keep in memory."""
_CLOSED = {
    "new": "the writer is not open: use it in a `with` block",
    "failed": "writing failed before, so nothing can be added or finished; start again",
    "finished": "the writer is already closed",
}


def write_rollout_zarr_store(
    store_dir: str | os.PathLike[str],
    records: Iterable[RolloutZarrRecord],
    *,
    manifest_context: RolloutStoreManifestContext | None = None,
    return_semantics: str = DEFAULT_RETURN_SEMANTICS,
    discount_gamma: float = 1.0,
    target_protocol_version: str = "v1_observed",
    reason_code_version: str = INVALID_REASON_VERSION,
    field_retention_policy: str = "compact",
    source_offline_store_version: str = "unknown-source-version",
    split_manifest_hash: str = "unknown-split-manifest",
    selected_depth_enabled: bool = True,
    selected_depth_width_px: int = 240,
    selected_depth_height_px: int = 240,
    selected_depth_chunk_steps: int = 64,
    selected_depth_renderer: str = "unknown-renderer",
    selected_depth_znear_m: float | None = 1e-3,
    selected_depth_zfar_m: float | None = 20.0,
    selected_depth_source_resolution: str = "exact_output_size",
    q_h_chunk_states: int = 64,
    target_eval_crop_max_points: int = 50_000,
    target_eval_crops_enabled: bool = False,
    replace: bool = False,
) -> RolloutZarrWriteResult:
    """Write records into a new store. The options are described in RolloutZarrStoreConfig."""
    config = RolloutZarrStoreConfig(
        store_dir=store_dir,
        return_semantics=return_semantics,
        discount_gamma=discount_gamma,
        target_protocol_version=target_protocol_version,
        reason_code_version=reason_code_version,
        field_retention_policy=field_retention_policy,
        source_offline_store_version=source_offline_store_version,
        split_manifest_hash=split_manifest_hash,
        selected_depth_enabled=selected_depth_enabled,
        selected_depth_width_px=selected_depth_width_px,
        selected_depth_height_px=selected_depth_height_px,
        selected_depth_chunk_steps=selected_depth_chunk_steps,
        selected_depth_renderer=selected_depth_renderer,
        selected_depth_znear_m=selected_depth_znear_m,
        selected_depth_zfar_m=selected_depth_zfar_m,
        selected_depth_source_resolution=selected_depth_source_resolution,
        q_h_chunk_states=q_h_chunk_states,
        target_eval_crop_max_points=target_eval_crop_max_points,
        target_eval_crops_enabled=target_eval_crops_enabled,
        replace=replace,
    )
    with RolloutStoreWriter(config, manifest_context=manifest_context) as writer:
        for record in records:
            writer.append(record)
        return writer.finish()


class RolloutStoreWriter:
    """Appends records with bounded memory. `finish` creates the store; without it nothing is left on disk."""

    def __init__(
        self,
        config: RolloutZarrStoreConfig,
        *,
        manifest_context: RolloutStoreManifestContext | None = None,
    ) -> None:
        self.config = config
        self._context = manifest_context or RolloutStoreManifestContext.programmatic()
        self._staged = StagedStore(Path(config.store_dir), replace=config.replace)
        self._stage = self._staged.folder
        self._tables = StoreTables()
        self._columns = GrowingColumns(self._stage)
        self._frames: dict[str, FrameWriter] = {}
        self._pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="frames")
        self._files: dict[str, tuple[int, str]] = {}
        self._crop_rows = self._depth_rows = self._pending_bytes = 0
        self._state: Literal["new", "open", "failed", "finished"] = "new"
        json_bytes(
            self._context.to_jsonable(), "the manifest context"
        )  # fails now, not after hours of work

    def __enter__(self) -> RolloutStoreWriter:
        if self._state != "new":
            raise StorageError(path=str(self._staged.final), detail=_CLOSED["finished"])
        self._staged.__enter__()
        self._state = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state == "open":
            self._state = "finished"
        self._pool.shutdown(cancel_futures=True)
        self._staged.__exit__(kind, error, traceback)

    # ---------------------------------------------------------------------------------- appending

    def append(self, record: RolloutZarrRecord) -> None:
        """Add one record. A refused record changes nothing, so the caller can continue with the next one."""
        self._check_open()
        depths = self._checked_depths(record)
        if self.config.target_eval_crops_enabled:
            for name, step in named_steps(record):
                check_crops(name, step)
        added = self._tables.add(record)
        with self._all_or_nothing():
            self._append_depths(added, depths)
            if self.config.target_eval_crops_enabled:
                self._append_crops(added)
            self._pending_bytes += _payload_bytes(added.steps)
            if (
                self._tables.pending_candidates >= _BLOCK_ROWS
                or self._pending_bytes >= _BLOCK_BYTES
            ):
                self._flush()

    def _check_open(self) -> None:
        if self._state != "open":
            raise StorageError(path=str(self._staged.final), detail=_CLOSED[self._state])

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A failure in this block (such as a full disk) leaves columns of different lengths. The writer then stops."""
        self._state = "failed"
        yield
        self._state = "open"

    def _checked_depths(self, record: RolloutZarrRecord) -> list[SelectedDepth]:
        if not self.config.selected_depth_enabled:
            return []
        shape = (self.config.selected_depth_height_px, self.config.selected_depth_width_px)
        return [checked_depth(name, step, shape) for name, step in named_steps(record)]

    def _append_depths(self, added: AddedRecord, depths: Sequence[SelectedDepth]) -> None:
        if not depths:
            return
        for depth in depths:
            # the pool encodes them later, when the caller may have drawn the next image into the same memory
            image, mask = read_only(depth.depth_m), read_only(depth.valid_mask)
            self._depth_column("depth_m").append(partial(stored_depth, image, mask))
            self._depth_column("valid_mask").append(partial(np.asarray, mask))
        selected = [step.selected_shell_index for step in added.steps]
        rows = {
            "step_row_id": added.first_step + np.arange(len(depths)),
            "candidate_row_id": added.offsets + selected,
            "focal_px": [depth.focal_px for depth in depths],
            "principal_point_px": [depth.principal_point_px for depth in depths],
            "image_size_hw": [depth.depth_m.shape for depth in depths],
        }
        self._append_rows("selected_depth", rows)
        self._depth_rows += len(depths)

    def _depth_column(self, name: str) -> FrameWriter:
        if name not in self._frames:
            column = TABLES["selected_depth"].columns[name]
            shape = (self.config.selected_depth_height_px, self.config.selected_depth_width_px)
            self._frames[name] = FrameWriter(
                self._stage / "selected_depth" / name,
                column.numpy,
                shape,
                column.fill,
                self.config.selected_depth_chunk_steps,
                self._pool,
            )
        return self._frames[name]

    def _append_crops(self, added: AddedRecord) -> None:
        limit = self.config.target_eval_crop_max_points
        for number, step in enumerate(added.steps):
            for crop in step.target_eval_crops:
                owner = crop.shell_index
                points = crop.points_world[np.isfinite(crop.points_world).all(axis=1)][:limit]
                padded = np.zeros((1, limit, 3), np.float32)
                padded[0, : len(points)] = points
                self._append_rows(
                    "target_eval_crops",
                    {
                        "crop_row_id": [self._crop_rows],
                        "step_row_id": [added.first_step + number],
                        "candidate_row_id": [
                            -1 if owner is None else int(added.offsets[number]) + owner
                        ],
                        "source_role_id": [0 if owner is None else 1],
                        "crop_policy_id": [self._tables.words["config"].code(step.crop_policy)],
                        "voxel_size_m": [
                            np.nan if step.crop_voxel_size_m is None else step.crop_voxel_size_m
                        ],
                        "max_points": [limit],
                        "lengths": [len(points)],
                        "points_world": padded,
                        "mask": np.arange(limit)[None] < len(points),
                    },
                    sizes={"P": limit},
                )
                self._crop_rows += 1

    def _append_rows(
        self, table: str, rows: Mapping[str, Any], sizes: Mapping[str, int] | None = None
    ) -> None:
        for name, values in rows.items():
            column = TABLES[table].columns[name]
            shape = tuple((sizes or {})[s] if isinstance(s, str) else s for s in column.shape)
            writer = self._columns.writer(table, name, shape)
            writer.append(np.asarray(values, column.numpy).reshape(len(values), *writer.row_shape))

    def _start_optional_tables(self) -> None:
        """An optional payload that is enabled gets its columns even if no record has a step."""
        if self.config.selected_depth_enabled:
            for name in ("depth_m", "valid_mask"):
                self._depth_column(name)
            small = [name for name in TABLES["selected_depth"].columns if name not in self._frames]
            self._append_rows("selected_depth", dict.fromkeys(small, ()))
        if self.config.target_eval_crops_enabled:
            sizes = {"P": self.config.target_eval_crop_max_points}
            self._append_rows(
                "target_eval_crops", dict.fromkeys(TABLES["target_eval_crops"].columns, ()), sizes
            )

    def _flush(self) -> None:
        block = self._tables.flush()
        self._pending_bytes = 0
        for table in _LARGE:
            self._append_columns(table, block[table])

    def _append_columns(self, table: str, columns: dict[str, Array]) -> None:
        for array, names in TABLES[table].packed().items():
            columns[array] = np.stack([columns.pop(name) for name in names], axis=1)
        for name, values in columns.items():
            self._columns.append(table, name, values)

    # ---------------------------------------------------------------------------------- finishing

    def finish(self) -> RolloutZarrWriteResult:
        """Complete the store and rename it to its final name."""
        self._check_open()
        if not self._tables.num_rollouts:
            raise InvalidValue(
                record=f"store {self._staged.final.name!r}",
                field="records",
                value="none",
                expected="at least one record",
            )
        with self._all_or_nothing():
            result = self._finish()
        self._state = "finished"
        return result

    def _finish(self) -> RolloutZarrWriteResult:
        if self._tables.has_pending:
            self._flush()
        self._start_optional_tables()
        for table in ("sources", "rollouts", "lineage", "targets"):
            self._append_columns(table, self._tables.small(table))
        self._files |= self._columns.close()
        for name, frames in self._frames.items():
            self._record_files(f"selected_depth/{name}", frames.close())
        self._files |= write_derived_views(self._stage, self._tables, self.config)
        description = StoreDescription(self.config, self._tables, self._depth_rows, self._crop_rows)
        self._files |= self._staged.write_groups(description.groups())
        manifest = self._staged.finish(description.manifest(self._context), self._files)
        return RolloutZarrWriteResult(
            store_dir=self._staged.final,
            num_rollouts=self._tables.num_rollouts,
            num_steps=self._tables.num_steps,
            num_candidates=self._tables.num_candidates,
            manifest_path=self._staged.final / ROLLOUT_MANIFEST_FILENAME,
            manifest_sha256=manifest["manifest_sha256"],
            content_sha256=manifest["content_sha256"],
        )

    def _record_files(self, path: str, files: Mapping[str, tuple[int, str]]) -> None:
        self._files |= {f"{path}/{name}": sums for name, sums in files.items()}


def _payload_bytes(steps: Sequence[RolloutStep]) -> int:
    """Bytes that a record keeps in memory besides its candidates."""
    depths = [step.selected_depth for step in steps]
    images = sum(d.depth_m.nbytes + d.valid_mask.nbytes for d in depths if d is not None)
    return images + sum(crop.points_world.nbytes for s in steps for crop in s.target_eval_crops)

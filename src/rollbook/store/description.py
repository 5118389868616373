"""StoreDescription: the metadata of a store: group attributes, root attributes and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    INVALID_REASON_VERSION,
    POSITION_NAMES,
    STRATEGY_NAMES,
    TARGET_INVALID_REASON_CODES,
    TARGET_REASON_VERSION,
)
from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    ROLLOUT_MANIFEST_VERSION,
    STORE_KIND,
    RolloutStoreManifestContext,
    created_timestamp,
)
from rollbook.store.rasters import CODEC_LABEL
from rollbook.store.schema import (
    DICTIONARIES,
    REWARD_METRIC,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    TABLES,
    TD_SEMANTICS,
)
from rollbook.store.tables import Words

_CROP_ROLES = ("current_eval", "candidate_eval")


class DescribedTables(Protocol):
    """What a description needs of the rows of a store. StoreTables has it while records are added."""

    @property
    def words(self) -> Mapping[str, Words]: ...
    @property
    def policy_revisions(self) -> Mapping[str, PolicyRevision]: ...
    @property
    def stated_revisions(self) -> Sequence[PolicyRevision]: ...
    @property
    def num_rollouts(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_candidates(self) -> int: ...
    @property
    def horizon(self) -> int: ...
    @property
    def widest(self) -> int: ...
    @property
    def feature_count(self) -> int | None: ...

    def count(self, table: str) -> int: ...
    def small(self, table: str) -> Mapping[str, NDArray[Any]]: ...


class StoreDescription:
    """The metadata for the rows of a writer and its config."""

    def __init__(
        self,
        config: RolloutZarrStoreConfig,
        tables: DescribedTables,
        depth_rows: int,
        crop_rows: int,
    ) -> None:
        self._config = config
        self._tables = tables
        self._depth_rows = depth_rows
        self._crop_rows = crop_rows

    def manifest(self, context: RolloutStoreManifestContext) -> dict[str, Any]:
        """The manifest without the list of files."""
        created = created_timestamp()
        return {
            "manifest_version": ROLLOUT_MANIFEST_VERSION,
            "schema_id": ROLLOUT_ZARR_SCHEMA_ID,
            "schema_version": ROLLOUT_ZARR_SCHEMA_VERSION,
            "created_at_utc": created,
            "store_kind": STORE_KIND,
            "root_attrs": self._root_attrs(created),
            "counts": self._counts(),
            "source_coverage": self._source_coverage(),
            "config_hashes": self._config_hashes(),
            "dictionary_sizes": {
                name: len(self._tables.words[name].codes) for name in DICTIONARIES
            },
            "generation": context.to_jsonable(),
        }

    def groups(self) -> dict[str, dict[str, Any]]:
        """The attributes of every group."""
        config = self._config
        described: dict[str, dict[str, Any]] = {
            name: {"doc": table.doc} for name, table in TABLES.items()
        }
        described["dictionaries"] = {
            "words": {name: list(self._tables.words[name].codes) for name in DICTIONARIES}
        }
        described["metadata"] = {
            "reason_codes": dict(INVALID_REASON_CODES),
            "reason_code_version": INVALID_REASON_VERSION,
            "target_reason_codes": dict(TARGET_INVALID_REASON_CODES),
            "target_reason_code_version": TARGET_REASON_VERSION,
            "strategies": list(STRATEGY_NAMES),
            "positions": list(POSITION_NAMES),
            "field_retention_policy": config.field_retention_policy,
        }
        if self._tables.policy_revisions:
            revisions = sorted(self._tables.policy_revisions.items())
            described["metadata"]["policy_revisions"] = [
                msgspec.to_builtins(each) for _, each in revisions
            ]
            described["metadata"]["stated_policy_revisions"] = [
                msgspec.to_builtins(each) for each in self._tables.stated_revisions
            ]
        described["q_h"] |= self._q_h_attrs()
        described["returns"] |= {
            "view_role": "training_core_derived_cache",
            "discount_gamma": config.discount_gamma,
            "horizon": self._tables.horizon,
            "reward_metric": REWARD_METRIC,
        }
        described["selected_depth"] |= self._depth_attrs()
        described["target_eval_crops"] |= {
            "enabled": config.target_eval_crops_enabled,
            "role": "oracle_eval_only",
            "coordinate_frame": "world",
            "max_points": config.target_eval_crop_max_points,
            "source_roles": list(_CROP_ROLES),
            "retention": "sampled_audit"
            if config.target_eval_crops_enabled
            else "disabled_training_core",
        }
        return described

    def _q_h_attrs(self) -> dict[str, Any]:
        return {
            "view_role": "training_core_derived_cache",
            "source_tables": "steps,candidates,rollouts,targets",
            "td_semantics": TD_SEMANTICS,
            "reward_metric": REWARD_METRIC,
            "return_semantics": self._config.return_semantics,
            "td_reward_target_rri_role": "diagnostic_state_relative_rri",
            "state_count": self._tables.num_steps,
            "max_candidates": self._tables.widest,
            "horizon": self._tables.horizon,
            "discount_gamma": self._config.discount_gamma,
            "chunk_states": self._config.q_h_chunk_states,
            "actor_feature_count": self._tables.feature_count or 0,
        }

    def _depth_attrs(self) -> dict[str, Any]:
        config = self._config
        return {
            "enabled": config.selected_depth_enabled,
            "width_px": config.selected_depth_width_px,
            "height_px": config.selected_depth_height_px,
            "depth_dtype": "float16",
            "valid_mask_dtype": "bool",
            "units": "m",
            "invalid_fill_value": 0.0,
            "codec": CODEC_LABEL,
            "chunk_steps": config.selected_depth_chunk_steps,
            "role": "selected_successor_state_history",
            "renderer": config.selected_depth_renderer,
            "znear_m": config.selected_depth_znear_m,
            "zfar_m": config.selected_depth_zfar_m,
            "source_resolution": config.selected_depth_source_resolution,
        }

    def _root_attrs(self, created: str) -> dict[str, Any]:
        config, counts = self._config, self._counts()
        return {
            "schema_id": ROLLOUT_ZARR_SCHEMA_ID,
            "schema_version": ROLLOUT_ZARR_SCHEMA_VERSION,
            "zarr_format": 3,
            "created_at_utc": created,
            "profile": "local",
            "manifest_path": ROLLOUT_MANIFEST_FILENAME,
            "manifest_version": ROLLOUT_MANIFEST_VERSION,
            "source_offline_store_version": config.source_offline_store_version,
            "split_manifest_hash": config.split_manifest_hash,
            "source_split": self._source_split(),
            "reason_code_version": config.reason_code_version,
            "target_protocol_version": config.target_protocol_version,
            "return_semantics": config.return_semantics,
            "discount_gamma": config.discount_gamma,
            "field_retention_policy": config.field_retention_policy,
            **{f"selected_depth_{name}": value for name, value in self._depth_attrs().items()},
            "q_h_view_persisted": True,
            **{
                f"q_h_{name}": value
                for name, value in self._q_h_attrs().items()
                if name
                in ("view_role", "source_tables", "reward_metric", "return_semantics", "horizon")
            },
            "q_h_state_count": self._tables.num_steps,
            "q_h_max_candidates": self._tables.widest,
            "candidate_diagnostics_enabled": True,
            "candidate_diagnostics_role": "audit_rerun_only",
            "target_eval_crops_enabled": config.target_eval_crops_enabled,
            "target_eval_crops_max_points": config.target_eval_crop_max_points,
            **{
                f"num_{name}": count
                for name, count in counts.items()
                if name != "q_h_max_candidates"
            },
        }

    def _source_split(self) -> str:
        codes = np.unique(self._tables.small("sources")["split_id"]).tolist()
        if len(codes) != 1:
            return "mixed"
        return "unknown" if codes[0] < 0 else list(self._tables.words["split"].codes)[codes[0]]

    def _counts(self) -> dict[str, int]:
        tables = self._tables
        return {
            "sources": tables.count("sources"),
            "targets": tables.count("targets"),
            "rollouts": tables.num_rollouts,
            "steps": tables.num_steps,
            "candidates": tables.num_candidates,
            "candidate_diagnostics": tables.num_candidates,
            "selected_depths": self._depth_rows,
            "target_eval_crops": self._crop_rows,
            "q_h_states": tables.num_steps,
            "q_h_max_candidates": tables.widest,
        }

    def _source_coverage(self) -> dict[str, Any]:
        sources = self._tables.small("sources")
        columns: dict[str, list[Any]] = {
            "source_row_id": sources["source_row_id"].tolist(),
            "source_sample_index": sources["sample_index"].tolist(),
            "source_sample_key": self._decoded("source_key", sources["sample_key_id"]),
            "scene_id": self._decoded("scene", sources["scene_id"]),
            "snippet_id": self._decoded("snippet", sources["snippet_id"]),
            "split": self._decoded("split", sources["split_id"]),
            "source_shard_id": self._decoded("source_shard", sources["source_shard_id"]),
            "source_shard_row": sources["source_shard_row"].tolist(),
        }
        return {
            "num_source_rows": len(columns["source_row_id"]),
            "scene_counts": _counted(columns["scene_id"]),
            "split_counts": _counted(columns["split"]),
            "source_shard_counts": _counted(columns["source_shard_id"]),
            "sources": [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ],
        }

    def _decoded(self, dictionary: str, codes: NDArray[np.int32]) -> list[str | None]:
        words = [*self._tables.words[dictionary].codes, None]
        return [words[code] for code in codes.tolist()]

    def _config_hashes(self) -> dict[str, list[str]]:
        lineage, sources = self._tables.small("lineage"), self._tables.small("sources")
        columns = {
            "candidate": lineage["candidate_config_id"],
            "oracle": lineage["oracle_config_id"],
            "rollout": lineage["rollout_config_id"],
            "model_checkpoint": lineage["model_checkpoint_id"],
            "source_manifest": sources["source_offline_store_manifest_hash_id"],
            "split_manifest": sources["split_manifest_hash_id"],
            "target_crop_policy": lineage["target_crop_policy_id"],
            "target_protocol": lineage["target_protocol_version_id"],
        }
        words = list(self._tables.words["config"].codes)
        return {
            name: sorted(words[code] for code in np.unique(codes).tolist() if code >= 0)
            for name, codes in columns.items()
        }


def _counted(words: list[str | None]) -> dict[str, int]:
    return dict(Counter(map(str, words)))

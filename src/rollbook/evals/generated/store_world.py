"""StoreWorld: the generator of a rollout store, made again from the config in its manifest and its source store."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from rollbook.errors import ConfigurationError, StorageError, TargetInvalid
from rollbook.evals.store_baselines import StoreBaselines, env_version
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.prepared_scene import PreparedScene
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.rollout.nodes import NodeEvaluator, RolloutTask
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.sources.reader import SourceStore

_SHORT = 12


@dataclass(frozen=True, slots=True, eq=False)
class ChainRoot:
    """The place from which a stored chain starts, in the generator of now."""

    changed: tuple[str, ...]
    """What differs from the generator that made the chain, as words; empty for nothing."""
    evaluator: NodeEvaluator | None = None
    """None if there is no such place any more."""
    horizon: int = 0
    """Most steps of a rollout."""
    env_version: str | None = None
    """Of the generator of now, as chains have it."""


class StoreWorld:
    """Roots of the chains of one store. It keeps the last scene, because neighbouring chains share it.

    One thread uses it at a time.
    """

    def __init__(self, chains: StoreBaselines, source: str | os.PathLike[str]) -> None:
        """Raises ConfigurationError if it is not the source of these chains, or cannot be read."""
        self._chains = chains
        self._config = config_of(chains)
        # crops are for audits of a store; what is rolled out here is not stored
        store = dataclasses.replace(self._config.store, target_eval_crops_enabled=False)
        self._rolled_out = dataclasses.replace(self._config, store=store)
        try:
            self._source = SourceStore.open(source)
        except (StorageError, OSError) as error:
            message = f"the source cannot be rolled out from: {error}"
            raise ConfigurationError(message=message) from error
        check_source(chains, self._source)
        self._recipes = {recipe.name: recipe for recipe in self._config.recipes}
        self._renderer = SceneGeometry.resolved_backend(self._config.renderer)
        self._env_parts = {
            "candidate_config": self._config.candidate_config_hash,
            "oracle_config": self._config.oracle_config_hash,
        }
        self._scene: tuple[str, PreparedScene] | None = None
        self._evaluator: tuple[Any, NodeEvaluator] | None = None

    def root(self, row: int) -> ChainRoot:
        """Raises ConfigurationError if the source row cannot be read: the candidate is not the reason."""
        about = self._chains.provenance(row)
        recipe = self._recipes.get(about["recipe"])
        if recipe is None:
            return ChainRoot(("config",))
        changed = self._changes(about, recipe)
        horizon = int(self._chains.reader.array("rollouts/horizon")[row])
        try:
            task = self._task(about)
        except (StorageError, OSError) as error:
            message = f"source row {about['source_row_id']} cannot be rolled out from: {error}"
            raise ConfigurationError(message=message) from error
        if task is None:
            return ChainRoot((*changed, "target"))
        mesh = task.geometry.mesh.sha256
        if mesh != about["mesh_version"]:
            changed = (*changed, "mesh")
        return ChainRoot(
            changed,
            self._shared_evaluator(task, recipe.seed, horizon),
            horizon,
            env_version({**self._env_parts, "mesh_version": mesh}),
        )

    def _changes(self, about: dict[str, Any], recipe: RolloutRecipeConfig) -> tuple[str, ...]:
        """What the generator of now says otherwise about itself."""
        config, stored = self._config, self._chains.reader.attrs["selected_depth_renderer"]
        compared = (
            ("config", about["rollout_config"], config.rollout_config_hash(recipe)),
            ("renderer", stored, self._renderer),
        )
        return tuple(word for word, recorded, now in compared if recorded != now)

    def _task(self, about: dict[str, Any]) -> RolloutTask | None:
        """None if the row has no such target any more."""
        index, scene_id = about["source_row_id"], about["scene"]
        if self._scene is None or self._scene[0] != scene_id:
            self._scene = (scene_id, PreparedScene(self._rolled_out, self._source))
        scene = self._scene[1]
        prepared = scene.row(index)
        for target in prepared.targets:
            if target.target_id == about["target_id"]:
                try:
                    return scene.task(prepared, target)
                except TargetInvalid:
                    return None
        return None

    def _shared_evaluator(self, task: RolloutTask, seed: int | None, horizon: int) -> NodeEvaluator:
        """Chains from one root share what was evaluated there."""
        key = (task.sample_key, task.target.target_id, seed, horizon)
        if self._evaluator is None or self._evaluator[0] != key:
            self._evaluator = (key, NodeEvaluator(task, seed, horizon))
        return self._evaluator[1]


def config_of(chains: StoreBaselines) -> RolloutDatasetWriterConfig:
    """The config that generated the store."""
    return RolloutDatasetWriterConfig.of_generation(
        chains.reader.store_manifest.payload, name=f"{chains.reader.store_dir}"
    )


def check_source(chains: StoreBaselines, source: SourceStore) -> None:
    """Refuses a source store from which these chains do not start."""
    column = "source_offline_store_manifest_hash_id"
    stated = {word or "" for word in chains.reader.decoded("sources", column)}
    others = sorted(stated - {source.manifest_digest})
    if others:
        message = (
            f"the chains of {chains.reader.store_dir} start from the source store {others[0][:_SHORT] or 'unknown'}…, "
            f"and this source is {source.manifest_digest[:_SHORT]}…: give the source store that the rollouts were "
            "generated from"
        )
        raise ConfigurationError(message=message)

"""RowRoller: rolls out one source row: selects its targets and runs every recipe for each. Failures are counted."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage
from rollbook.errors import (
    ConfigurationError,
    GenerationFailed,
    RollbookError,
    StorageError,
    TargetInvalid,
)
from rollbook.generate.actor.actor import ActorState
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.geometry.poses import centres
from rollbook.generate.oracle.oracle import Oracle, OracleState
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.rollout.loop import RolloutEngine
from rollbook.generate.rollout.nodes import RolloutTask
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.rollout.seeds import node_generator, rng_state_digest
from rollbook.generate.sources.reader import OracleView, SourceRow, SourceStore
from rollbook.generate.targets.config import RolloutTargetSource
from rollbook.generate.targets.selection import (
    ActorVisibleTargetSelector,
    SelectedTarget,
    TargetSelection,
)
from rollbook.generate.targets.tasks import OracleTargetTaskSampler
from rollbook.store.records import RolloutZarrRecord

NOTHING_SCORED = "no_candidate_scored"
"""The recipe's scorer has no score for any valid candidate at the root, for example at the end of a recording."""


@dataclass(slots=True)
class RolloutDatasetWriterStats:
    """Counters of one run."""

    samples_seen: int = 0
    samples_without_snippet_or_mesh: int = 0
    targets_selected: int = 0
    targets_label_invalid: int = 0
    target_invalid_skips: int = 0
    rollout_invalid_skips: int = 0
    rollouts_written: int = 0
    candidates_scored: int = 0
    skipped_reasons: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str, count: int = 1) -> None:
        self.skipped_reasons[reason] = self.skipped_reasons.get(reason, 0) + count

    def listed_reasons(self) -> str:
        """The reasons for skips with their counts, most frequent first."""
        reasons = sorted(self.skipped_reasons.items(), key=lambda each: (-each[1], each[0]))
        return ", ".join(f"{count} {reason}" for reason, count in reasons) or "nothing"

    def add(self, other: RolloutDatasetWriterStats) -> None:
        for each in dataclasses.fields(self):
            if each.name != "skipped_reasons":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        for reason, count in other.skipped_reasons.items():
            self.skip(reason, count)


@dataclass(frozen=True, slots=True, eq=False)
class RowOutcome:
    records: tuple[RolloutZarrRecord, ...]
    stats: RolloutDatasetWriterStats


@dataclass(slots=True, eq=False)
class _KnownRow:
    """What the targets of one row share, measured for the first target."""

    sample_key: str
    points: NDArray[np.float32]
    """All known points at the root."""
    oracle: Oracle | None
    """The oracle of another target of the scene, of this row or of an earlier one."""
    state: OracleState | None = None


class RowRoller:
    """Rolls out source rows one at a time. It keeps the last scene, because neighbouring rows share it."""

    def __init__(self, config: RolloutDatasetWriterConfig, source: SourceStore) -> None:
        self.config = config
        self.source = source
        self._geometry: SceneGeometry | None = None
        self._known: _KnownRow | None = None

    def roll_out(self, index: int) -> RowOutcome:
        """All records of a row. An unexpected error becomes a GenerationFailed that names the row."""
        try:
            return self._roll_out(index)
        except (Exception, SystemExit) as error:  # a user's policy may raise anything
            raise GenerationFailed(
                sample_index=index,
                sample_key=self.source.index[index].sample_key,
                detail=_describe(error),
            ) from error

    def _roll_out(self, index: int) -> RowOutcome:
        stats = RolloutDatasetWriterStats(samples_seen=1)
        try:
            row, oracle = self._loaded(index)
        except StorageError as error:
            stats.samples_without_snippet_or_mesh += 1
            stats.skip(f"missing_snippet_or_mesh:{error.code}")
            return RowOutcome((), stats)
        actor = ActorState.from_view(row.actor)
        selection, rng_state = self.select(row, oracle, actor)
        if selection.skip_reason is not None:
            stats.skip(selection.skip_reason)
        stats.targets_selected += len(selection.targets)
        records: list[RolloutZarrRecord] = []
        done = 0
        for target in selection.targets:
            if done == self.config.max_targets_per_sample:
                stats.skip("max_targets_per_sample")
                continue
            found = list(self._of_target(row, oracle, actor, target, rng_state, stats))
            done += bool(found)
            records += found
        stats.rollouts_written = sum(len(record.result.chains) for record in records)
        return RowOutcome(tuple(records), stats)

    def tasks(self, index: int) -> Iterator[RolloutTask]:
        """Every usable target of a row, prepared for rollouts. Unusable targets are skipped silently."""
        row, oracle = self._loaded(index)
        actor = ActorState.from_view(row.actor)
        selection, _ = self.select(row, oracle, actor)
        for target in selection.targets:
            if target.label_valid:
                with suppress(TargetInvalid):
                    yield self.task(row, oracle, actor, target)

    def _loaded(self, index: int) -> tuple[SourceRow, OracleView]:
        """The row with its mesh, which is read here and may be missing."""
        row = self.source.row(index)
        if row.oracle is None:
            message = "generation needs the oracle's side: open the source without actor_only"
            raise ConfigurationError(message=message)
        self.geometry_of(row.oracle)
        return row, row.oracle

    # ------------------------------------------------------------------------------------- targets

    def select(
        self, row: SourceRow, oracle: OracleView, actor: ActorState
    ) -> tuple[TargetSelection, str]:
        """The row's targets, and a digest of the generator's state they were drawn from."""
        rng = node_generator(
            campaign_seed=self.config.seed,
            sample_key=row.sample_key,
            target_id="",
            recipe=None,
            seed=None,
            path=(),
            purpose="targets",
        )
        state, config = rng_state_digest(rng).hex(), self.config
        if config.target_source is RolloutTargetSource.ORACLE_TARGET_TASK_SAMPLER:
            sampler = OracleTargetTaskSampler(config.oracle_target_task_sampler)
            tasks = sampler.select(
                row.actor, oracle.boxes, scene_id=row.scene_id, snippet_id=row.snippet_id, rng=rng
            )
            return tasks, state
        chosen = ActorVisibleTargetSelector(config.target_selector).select(
            row.actor,
            oracle.boxes,
            scene_id=row.scene_id,
            snippet_id=row.snippet_id,
            rng=rng,
            observed_voxels=actor.map.occupied_centres(),
        )
        return chosen, state

    def _of_target(
        self,
        row: SourceRow,
        oracle: OracleView,
        actor: ActorState,
        target: SelectedTarget,
        rng_state: str,
        stats: RolloutDatasetWriterStats,
    ) -> Iterator[RolloutZarrRecord]:
        if not target.label_valid:
            stats.targets_label_invalid += 1
            if self.config.require_label_valid or target.gt_box_row < 0:
                stats.skip(str(target.lineage_fields()["gt_match_status"]))
                return
        try:
            task = self.task(row, oracle, actor, target)
        except TargetInvalid as error:
            stats.target_invalid_skips += 1
            stats.skip(f"target_scorer:{error.reason}")
            return
        engine = RolloutEngine(task)
        for recipe in self.config.recipes:
            record = self._record(row, rng_state, engine, recipe, stats)
            if record is not None:
                yield record
        stats.candidates_scored += engine.candidates_scored

    def task(
        self, row: SourceRow, oracle: OracleView, actor: ActorState, target: SelectedTarget
    ) -> RolloutTask:
        """A target prepared for rollouts. Raises TargetInvalid if it cannot be measured."""
        config = self.config
        geometry = self.geometry_of(oracle)
        known = self._known_of(row, geometry)
        scorer = Oracle(
            geometry,
            oracle.boxes,
            target.gt_box_row,
            config.target_scorer,
            target_id=target.target_id,
            beside=known.oracle,
        )
        state = scorer.root(known.points, beside=known.state)
        known.oracle, known.state = scorer, state
        points, root_pose = known.points, row.actor.poses[-1].astype(np.float64)
        kept = config.store.target_eval_crops_enabled
        camera = config.target_scorer.camera
        depth = config.selected_depth
        path = np.concatenate([row.actor.poses, oracle.continuation])
        return RolloutTask(
            sample_key=row.sample_key,
            target=target,
            geometry=geometry.widened(centres(path)),
            oracle=scorer,
            oracle_root=state,
            actor_root=actor,
            root_pose=root_pose,
            mixture=config.candidate_mixture,
            rules=config.candidate_rules,
            camera=camera,
            depth_camera=depth.renderer_config(camera) if depth.enabled else None,
            campaign_seed=config.seed,
            recorded=at_pace(
                oracle.continuation.astype(np.float64),
                root_pose,
                config.candidate_mixture.shortest_move_m,
            ),
            root_target_points=points[scorer.in_target(points)] if kept else None,
        )

    def geometry_of(self, oracle: OracleView) -> SceneGeometry:
        """The geometry of the row's scene. That of the last scene is kept."""
        if self._geometry is None or self._geometry.mesh.sha256 != oracle.mesh.sha256:
            self._geometry = SceneGeometry(
                oracle.mesh, backend=self.config.renderer, threads=self.config.threads
            )
        return self._geometry

    def _known_of(self, row: SourceRow, geometry: SceneGeometry) -> _KnownRow:
        last = self._known
        if last is None or last.sample_key != row.sample_key:
            same = last is not None and last.oracle is not None and last.oracle.geometry is geometry
            beside = last.oracle if last is not None and same else None
            last = self._known = _KnownRow(row.sample_key, self._root_points(row, geometry), beside)
        return last

    def _root_points(self, row: SourceRow, geometry: SceneGeometry) -> NDArray[np.float32]:
        if self.config.target_scorer.root_points == "semidense":
            return row.actor.points
        camera = self.config.target_scorer.camera
        depth = geometry.depth(row.actor.poses, camera)
        points = np.concatenate(
            [
                camera.points(image, pose).reshape(-1, 3)
                for image, pose in zip(depth, row.actor.poses, strict=True)
            ]
        )
        return np.asarray(points[np.isfinite(points[:, 0])])

    # ------------------------------------------------------------------------------------- records

    def _record(
        self,
        row: SourceRow,
        rng_state: str,
        engine: RolloutEngine,
        recipe: RolloutRecipeConfig,
        stats: RolloutDatasetWriterStats,
    ) -> RolloutZarrRecord | None:
        least = self.config.min_valid_root_candidates
        try:
            valid = engine.root_valid(recipe)
            if valid < least:
                stats.rollout_invalid_skips += 1
                stats.skip(f"{recipe.name}:low_valid_root_candidates:{valid}<{least}")
                return None
            result = engine.run(recipe)
        except TargetInvalid as error:
            stats.rollout_invalid_skips += 1
            stats.skip(f"{recipe.name}:{error.reason}")
            return None
        if not any(chain.steps for chain in result.chains):
            stats.rollout_invalid_skips += 1
            stats.skip(f"{recipe.name}:{NOTHING_SCORED}")
            return None
        frame = len(row.actor.poses) - 1
        return RolloutZarrRecord(
            result=dataclasses.replace(
                result,
                root_time_ns=int(row.actor.t_ns[-1]),
                root_trajectory_index=frame,
                root_frame_index=frame,
            ),
            lineage=self._lineage(row, rng_state, engine.task, recipe),
            rollout_id_prefix=f"{row.sample_index:08d}-target-{engine.task.target.rank:02d}-{recipe.name}",
        )

    def _lineage(
        self, row: SourceRow, rng_state: str, task: RolloutTask, recipe: RolloutRecipeConfig
    ) -> RolloutLineage:
        config, source = self.config, self.source
        scorer = recipe.loaded_scorer()
        return RolloutLineage(
            scene_id=row.scene_id,
            snippet_id=row.snippet_id,
            mesh_version=task.geometry.mesh.sha256,
            candidate_config_hash=config.candidate_config_hash,
            oracle_config_hash=config.oracle_config_hash,
            rollout_config_hash=config.rollout_config_hash(recipe),
            model_checkpoint_hash=scorer.checkpoint,
            policy_revision=scorer.policy_revision,
            random_seed=recipe.seed,
            source_cache_version=source.version,
            split=row.split,
            source_offline_store_manifest_hash=source.manifest_digest,
            source_row_id=row.sample_index,
            source_sample_index=row.sample_index,
            source_sample_key=row.sample_key,
            split_manifest_hash=source.split_manifest_hash,
            source_shard_id=row.shard_id,
            source_shard_row=row.shard_row,
            branch_schedule_id=recipe.name,
            target_protocol_version=config.target_protocol,
            target_crop_policy=task.oracle.crop_policy,
            selection_rng_state_hash=rng_state,
            **task.target.lineage_fields(),
        )


def _describe(error: BaseException) -> str:
    """The message of an error; for errors from elsewhere also their class and place."""
    if isinstance(error, RollbookError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def at_pace(
    recorded: NDArray[np.float64], root_pose: NDArray[np.float64], step_m: float
) -> NDArray[np.float64]:
    """Of the recorded poses [K, 12] after the root, those nearest to every `step_m` of the way, [k, 12].

    Frames of a recording are centimetres apart, and moves of a rollout are much longer. A chain that took frame after
    frame would fall behind the recording it follows. A recording that does not move gives no pose.
    """
    places = np.concatenate([centres(root_pose)[None], centres(recorded)])
    walked = np.cumsum(np.linalg.norm(np.diff(places, axis=0), axis=1))
    if not len(walked):
        return recorded
    goals = step_m * (1 + np.arange(int(walked[-1] / step_m + 0.5)))
    nearest = np.abs(walked - goals[:, None]).argmin(axis=1)
    return np.asarray(recorded[np.unique(nearest)])

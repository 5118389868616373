"""CounterfactualEnv: next-best-view as a gymnasium environment, on the same nodes as stored rollouts.

An action is an index into the offered shell of candidates. The reward is the share of the target's error at the root
that the chosen view removes, so the rewards of an episode add up to its final gain.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import INVALID_REASON_CODES
from rollbook.contracts.row_numbers import row_numbers
from rollbook.errors import ConfigurationError, InvalidNumber, InvalidValue, TargetInvalid
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.config_checks import expect
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.geometry.poses import centres
from rollbook.generate.kept_scenes import SCENES
from rollbook.generate.prepared_scene import PreparedRow, PreparedScene
from rollbook.generate.rollout.nodes import (
    EvaluatedNode,
    Labels,
    Node,
    NodeEvaluator,
    OfferedNode,
)
from rollbook.generate.targets.selection import SelectedTarget
from rollbook.lazy import needs

with needs("the environment"):
    import gymnasium
    from gymnasium import spaces

Observation = dict[str, Any]
"""Arrays by name."""
Info = dict[str, Any]

ENVIRONMENT_ID = "rollbook/NextBestView-v0"
_FARTHEST_M = 1e5
_LARGEST_FEATURE = 1e6
"""Finite bounds of the spaces, far larger than any real value."""
_REMAINING = FEATURES.index("remaining")
_OPTIONS = ("row", "target", "candidate_seed")


def register() -> None:
    """Makes `gymnasium.make(ENVIRONMENT_ID, config=...)` work. Calling it again changes nothing."""
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(
            id=ENVIRONMENT_ID,
            entry_point="rollbook.generate.environment:CounterfactualEnv",
        )


@dataclass(slots=True, eq=False)
class _Episode:
    row: int
    target: SelectedTarget
    sample_key: str
    candidate_seed: int
    evaluator: NodeEvaluator
    node: Node
    """The node whose shell is offered; after the last step the one before it."""
    pose: NDArray[np.float64]
    """Where the camera is."""
    visited: NDArray[np.float64]
    """[moves + 1, 3]: visited camera centres, the root first."""
    offered: OfferedNode | EvaluatedNode | None
    """None after the last step."""
    steps: int = 0
    """Number of actions, invalid ones included."""
    target_gain: float = 0.0
    scene_gain: float | None = 0.0
    ended: str | None = None


class CounterfactualEnv(gymnasium.Env[Observation, np.int64]):
    """One episode is one target of one source row: `horizon` moves from its root.

    A learner may use `candidate_features`: the columns of FEATURES for every candidate, which hold only what the actor
    knows. The other entries of an observation are for inspection. An observation never holds data of the oracle. `info`
    holds the gains so far and must not be used for learning.

    Only the chosen candidate is rendered and scored, which gives the same rewards and observations as scoring them all.
    With `score="all"` every valid candidate is scored, and `info["candidate_gains"]` [A] holds the reward of each
    offered action, NaN where it is not valid: for baselines and inspection. `info["scored"]` is "chosen" or "all".

    An invalid action gives `invalid_reward`, uses one step, and the same shell is offered again; with `invalid_ends` it
    ends the episode. An episode is `terminated` after `horizon` steps or when no candidate is valid. It is never
    `truncated`: the number of steps is part of the task, and `step_fraction` and the feature `remaining` tell how many
    are left.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012 - as gymnasium declares it

    def __init__(
        self,
        config: RolloutDatasetWriterConfig | str | os.PathLike[str],
        rows: Iterable[int] | None = None,
        *,
        horizon: int | None = None,
        invalid_reward: float = -0.01,
        invalid_ends: bool = False,
        max_rows_tried: int = 64,
        score: Literal["chosen", "all"] = "chosen",
        scene_budget_bytes: int | None = None,
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        """`config` may be a TOML file. `rows` are numbers within the rows that it selects; None for all rows.

        The default `horizon` is the longest of the config's recipes, which are not used otherwise. A reset tries at
        most `max_rows_tried` rows to find a usable target.

        All environments of a process share the scenes that stay prepared. `scene_budget_bytes` sets the memory of all
        of them together; None leaves it as it is, which is 2 GiB at first.

        With `render_mode="rgb_array"`, `render` draws the scene from above and what the camera sees.
        """
        if not isinstance(config, RolloutDatasetWriterConfig):
            config = RolloutDatasetWriterConfig.from_toml(config)
        # only stores need the oracle's points
        store = dataclasses.replace(config.store, target_eval_crops_enabled=False)
        self.config = dataclasses.replace(config, store=store)
        longest = max(recipe.horizon for recipe in config.recipes)
        self.horizon = longest if horizon is None else horizon
        self.max_rows_tried, self.score = max_rows_tried, score
        self.invalid_reward, self.invalid_ends = float(invalid_reward), invalid_ends
        self.render_mode = render_mode
        for name, holds, expected in (
            ("horizon", self.horizon >= 1, "at least 1"),
            ("max_rows_tried", max_rows_tried >= 1, "at least 1"),
            ("invalid_reward", bool(np.isfinite(self.invalid_reward)), "a finite number"),
            ("score", score in ("chosen", "all"), "chosen or all"),
            ("render_mode", render_mode in (None, "rgb_array"), "rgb_array or None"),
        ):
            expect(self, name, holds, expected, section="environment")
        if scene_budget_bytes is not None:
            SCENES.budget_bytes = scene_budget_bytes
        self._source, self._indices = self.config.setup_target().rows()
        self.rows = _checked_rows(rows, len(self._indices))
        self._episode: _Episode | None = None
        self.num_candidates = config.candidate_mixture.total_count
        self.action_space = spaces.Discrete(self.num_candidates)
        self._spaces = _spaces(self.num_candidates, self.horizon)
        self.observation_space = spaces.Dict({**self._spaces})

    # ----------------------------------------------------------------------------------- gymnasium

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begins an episode. The same seed gives exactly the same episode.

        Row, target and the seed of the shells are drawn unless `options` give them: `row` as in `rows`, `target` as a
        rank, `candidate_seed` as the seed of a recipe whose candidates are wanted. Unusable rows and targets are
        skipped; `info["skipped"]` counts the reasons.
        """
        super().reset(seed=seed)
        wanted = _checked_options(options, self.rows)
        skipped: dict[str, int] = {}
        rows = [wanted["row"]] if "row" in wanted else self._drawn_rows()
        for row in rows:
            self._episode = self._start_episode(row, wanted, skipped)
            if self._episode is not None:
                return self._observation(), self._info() | {"skipped": skipped}
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        message = f"no usable target in {len(rows)} of {len(self.rows)} rows: {reasons}"
        raise ConfigurationError(message=message)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, Info]:
        """Moves to a candidate, fuses its view into what is known, and offers a new shell."""
        episode = self._running()
        shell = self._shell()
        if not self.action_space.contains(action):
            expected = f"0 to {self.num_candidates - 1}"
            raise InvalidValue(record="step", field="action", value=str(action), expected=expected)
        index = int(action)
        episode.steps += 1
        if shell.candidates.mask_valid[index]:
            reward = self._move(episode, shell, index)
        else:
            reward = self.invalid_reward
            episode.ended = "invalid_action" if self.invalid_ends else None
        self._offer_shell(episode)
        info = self._info() | {"reasons": _reasons(shell, index)}
        return self._observation(), reward, episode.ended is not None, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """[A]: which actions are valid now. Learners with action masks expect this name."""
        offered = self._running(also_ended=True).offered
        if offered is None:
            return np.zeros(self.num_candidates, np.bool_)
        return offered.candidates.mask_valid.copy()

    def render(self) -> NDArray[np.uint8] | None:
        """[540, 960, 3]: the episode as it stands now, as an RGB image; None without a render mode."""
        if self.render_mode is None:
            return None
        from rollbook.generate.episode_picture import ShownEpisode, episode_picture

        episode = self._running(also_ended=True)
        return episode_picture(
            ShownEpisode(
                task=episode.evaluator.task,
                visited=episode.visited,
                pose=episode.pose,
                offered=None if episode.offered is None else episode.offered.candidates,
                steps=episode.steps,
                horizon=self.horizon,
                gain=episode.target_gain,
            )
        )

    @property
    def labels(self) -> Labels:
        """The oracle's labels of the offered shell: for baselines and tests, never for a learner.

        Without `score="all"` reading them scores all candidates, which takes several times as long as a step.
        """
        evaluated = self._running().evaluator.evaluate(self._shell().node)
        return {name: values.copy() for name, values in evaluated.labels.items()}

    # ------------------------------------------------------------------------------------- episodes

    def _drawn_rows(self) -> list[int]:
        order = self.np_random.permutation(len(self.rows))
        return [self.rows[at] for at in order[: self.max_rows_tried].tolist()]

    def _scene(self, row: int) -> PreparedScene:
        scene_id = self._source.entry(self._indices[row]).scene_id
        return SCENES.scene(
            PreparedScene.key(self.config, self._source, scene_id),
            lambda: PreparedScene(self.config, self._source),
        )

    def _start_episode(
        self, row: int, wanted: Mapping[str, int], skipped: dict[str, int]
    ) -> _Episode | None:
        """An episode from a usable target of the row. None if there is none; `skipped` then counts the reasons."""
        scene = self._scene(row)
        prepared = scene.row(self._indices[row])
        ranks = self.np_random.permutation(len(prepared.targets)).tolist()
        seed = wanted.get("candidate_seed", int(self.np_random.integers(2**31)))
        if "target" in wanted:
            ranks = [rank for rank in ranks if rank == wanted["target"]]
        if not ranks:
            _count(skipped, prepared.skip_reason or f"no_target_of_rank_{wanted['target']}")
        for rank in ranks:
            try:
                return self._at_root(row, scene, prepared, prepared.targets[rank], seed)
            except TargetInvalid as error:
                _count(skipped, error.reason)
            finally:
                SCENES.fit()
        return None

    def _at_root(
        self,
        row: int,
        scene: PreparedScene,
        prepared: PreparedRow,
        target: SelectedTarget,
        seed: int,
    ) -> _Episode:
        if self.config.require_label_valid and not target.label_valid:
            raise TargetInvalid(
                target_id=target.target_id,
                reason=target.gt_match_status,
                detail="its labels could not be learned from",
            )
        evaluator = NodeEvaluator(scene.task(prepared, target), seed, self.horizon)
        root = evaluator.root()
        least, valid = max(self.config.min_valid_root_candidates, 1), evaluator.num_valid(root)
        if valid < least:
            detail = f"{valid} candidates valid at the root, expected {least}"
            raise TargetInvalid(
                target_id=target.target_id, reason="low_valid_root_candidates", detail=detail
            )
        return _Episode(
            row,
            target,
            prepared.row.sample_key,
            seed,
            evaluator,
            root,
            root.pose,
            root.centres,
            self._offered(evaluator, root),
            scene_gain=0.0 if self.config.target_scorer.include_scene else None,
        )

    def _offered(self, evaluator: NodeEvaluator, node: Node) -> OfferedNode | EvaluatedNode:
        return evaluator.evaluate(node) if self.score == "all" else evaluator.offer(node)

    def _move(self, episode: _Episode, shell: OfferedNode | EvaluatedNode, index: int) -> float:
        """Moves to a valid candidate and returns the reward."""
        evaluator, last = episode.evaluator, episode.steps == self.horizon
        episode.pose = shell.candidates.shell_poses[index].astype(np.float64)
        episode.visited = np.concatenate([episode.visited, centres(episode.pose)[None]])
        # after the last step nothing is offered, so what the actor would know then is not computed
        if isinstance(shell, EvaluatedNode):
            labels = {name: float(values[index]) for name, values in shell.labels.items()}
            episode.node = episode.node if last else evaluator.child(shell, index)
        else:
            taken = evaluator.take(shell, index)
            labels = taken.labels
            episode.node = episode.node if last else evaluator.child_of(taken)
        episode.target_gain += labels["target_root_gain"]
        if episode.scene_gain is not None:
            episode.scene_gain += labels["scene_root_gain"]
        return labels["target_root_gain"]

    def _offer_shell(self, episode: _Episode) -> None:
        """Offers the shell of the current node, unless the episode is over."""
        if episode.ended is None and episode.steps == self.horizon:
            episode.ended = "horizon"
        if episode.ended is not None:
            episode.offered = None
            return
        episode.offered = self._offered(episode.evaluator, episode.node)
        if not episode.offered.num_valid:
            episode.ended = "no_valid_candidate"

    def _running(self, *, also_ended: bool = False) -> _Episode:
        if self._episode is None or (self._episode.ended is not None and not also_ended):
            raise gymnasium.error.ResetNeeded("no episode is running: call reset first")
        return self._episode

    def _shell(self) -> OfferedNode | EvaluatedNode:
        offered = self._running().offered
        assert offered is not None  # as long as an episode runs, something is offered
        return offered

    # --------------------------------------------------------------------------------- observations

    def _observation(self) -> Observation:
        episode = self._running(also_ended=True)
        visited, box = episode.visited, episode.target.box
        observation: Observation = {
            name: np.zeros(space.shape, space.dtype) for name, space in self._spaces.items()
        }
        observation["step_fraction"][0] = episode.steps / self.horizon
        observation["current_position"][:] = visited[-1]
        observation["history_positions"][: len(visited)] = visited
        observation["history_mask"][: len(visited)] = 1
        observation["target_box"][:] = np.concatenate([box.centres[0], box.extents[0]])
        if episode.offered is not None:
            shell = episode.offered.candidates
            assert shell.actor_features is not None  # nodes.py gives every shell its features
            observation["candidate_positions"][:] = centres(shell.shell_poses)
            observation["candidate_valid_mask"][:] = shell.mask_valid
            observation["candidate_features"][:] = shell.actor_features
            # invalid actions also used up steps
            observation["candidate_features"][:, _REMAINING] = self.horizon - episode.steps
        return observation

    def _info(self) -> Info:
        episode = self._running(also_ended=True)
        told: Info = {
            "action_mask": self.action_masks().astype(np.int8),
            "target_gain": episode.target_gain,
            "scene_gain": episode.scene_gain,
            "step": episode.steps,
            "moves": len(episode.visited) - 1,
            "row": episode.row,
            "sample_key": episode.sample_key,
            "target": episode.target.rank,
            "target_id": episode.target.target_id,
            "candidate_seed": episode.candidate_seed,
            "ended": episode.ended,
            "reasons": (),
            "scored": self.score,
        }
        if self.score == "all":
            told["candidate_gains"] = np.full(self.num_candidates, np.nan, np.float32)
            if isinstance(episode.offered, EvaluatedNode):
                told["candidate_gains"][:] = episode.offered.labels["target_root_gain"]
        return told


def _spaces(candidates: int, horizon: int) -> dict[str, spaces.Box | spaces.MultiBinary]:
    def places(*shape: int) -> spaces.Box:
        return spaces.Box(-_FARTHEST_M, _FARTHEST_M, (*shape, 3), np.float32)

    return {
        "step_fraction": spaces.Box(0, 1, (1,), np.float32),
        "current_position": places(),
        "history_positions": places(horizon + 1),
        "history_mask": spaces.MultiBinary(horizon + 1),
        "candidate_positions": places(candidates),
        "candidate_valid_mask": spaces.MultiBinary(candidates),
        "candidate_features": spaces.Box(
            -_LARGEST_FEATURE, _LARGEST_FEATURE, (candidates, len(FEATURES)), np.float32
        ),
        "target_box": spaces.Box(-_FARTHEST_M, _FARTHEST_M, (6,), np.float32),
    }


def _reasons(shell: OfferedNode | EvaluatedNode, index: int) -> tuple[str, ...]:
    """The reasons against a candidate; empty if it is valid."""
    bitset = shell.candidates.invalid_reason_bitset
    assert bitset is not None  # nodes.py gives every shell its reasons
    if shell.candidates.mask_valid[index]:
        return ()
    return tuple(
        name for name, bit in INVALID_REASON_CODES.items() if int(bitset[index]) >> bit & 1
    )


def _count(skipped: dict[str, int], reason: str) -> None:
    skipped[reason] = skipped.get(reason, 0) + 1


def _checked_rows(rows: Iterable[int] | None, count: int) -> tuple[int, ...]:
    given = range(count) if rows is None else list(rows)
    try:
        chosen = row_numbers(given, count, "environment")
    except InvalidNumber as error:
        raise ConfigurationError(message=str(error)) from error
    if not len(chosen):
        message = f"environment.rows: empty, expected rows from 0 to {count - 1}"
        raise ConfigurationError(message=message)
    return tuple(chosen.tolist())


def _checked_options(options: Mapping[str, Any] | None, rows: Sequence[int]) -> dict[str, int]:
    given = dict(options or {})
    for name, value in given.items():
        if name not in _OPTIONS:
            message = f"options: unknown key {name!r}; known: {', '.join(_OPTIONS)}"
            raise ConfigurationError(message=message)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            message = f"options: {name} is {value!r}, expected a whole number from 0 up"
            raise ConfigurationError(message=message)
    if "row" in given and given["row"] not in rows:
        message = f"options: row is {given['row']}, expected one of {list(rows)}"
        raise ConfigurationError(message=message)
    return {name: int(value) for name, value in given.items()}

"""Synthetic records that behave like real ones: a camera in a room, targets on its floor, shells of candidates.

What a generator's records promise holds here too: poses are rigid, errors telescope along a chain, gains follow from
errors, reasons follow from geometry, and what was taken follows from the policy. `make_records` is lazy and
deterministic; `spec_fixture_records` is a small record set whose numbers are known in advance.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.reasons import (
    POSITION_NAMES,
    TARGET_INVALID_REASON_CODES,
    TARGET_REASON_VERSION,
    VALID_BITSET,
    reason_mask,
)
from rollbook.store.records import (
    CandidateSamplingResult,
    CounterfactualRolloutResult,
    RolloutChain,
    RolloutStep,
    RolloutZarrRecord,
    SelectedDepth,
    TargetEvalCrop,
)

Array = NDArray[Any]
Generator = np.random.Generator

TARGET_PROTOCOL = "v1_observed"
CROP_POLICY = "gt_obb_oriented_any_vertex_v1"
SPLIT = "train"
POLICIES = ("oracle_greedy", "random_valid", "temperature_softmax")
TEMPERATURE = 0.8

METRICS = (
    "target_pm_dist_before",
    "target_pm_dist_after",
    "target_rri",
    "target_root_gain",
    "target_log_error_gain",
    "scene_pm_dist_before",
    "scene_pm_dist_after",
    "scene_rri",
    "scene_root_gain",
    "scene_log_error_gain",
    "target_current_support",
    "target_candidate_support",
)
"""In the order in which `_metrics` stacks them."""

_ROOM = np.array([[-4.0, -3.0, 0.0], [4.0, 3.0, 2.8]])
_MARGIN = 0.2
_BLOCK = 16
"""Records made together; a record is the same however many are asked for."""
_CLASSES = ("chair", "table", "sofa", "lamp", "shelf", "plant")

_OUT_OF_EXTENT = np.uint32(reason_mask("POSE_OUT_OF_EXTENT"))
_CLEARANCE = np.uint32(reason_mask("CLEARANCE_TOO_SMALL"))
_PATH = np.uint32(reason_mask("PATH_SEGMENT_COLLISION"))
_FRUSTUM = np.uint32(reason_mask("FRUSTUM_OUT_OF_BOUNDS"))
_SPARSE = np.uint32(reason_mask("DEPTH_TOO_SPARSE"))
_RULE = np.uint32(reason_mask("SAMPLER_RULE_REJECTED"))
_REASONS = (
    (_OUT_OF_EXTENT, 0.25),
    (_CLEARANCE, 0.35),
    (_PATH, 0.4),
    (_FRUSTUM, 0.1),
    (_SPARSE, 0.15),
)
"""Reasons against an invalid candidate, and how often each applies; they come together."""

_COMPONENTS = np.array(
    [(1, 0, 0.3), (2, 3, 0.25), (3, 3, 0.15), (4, 3, 0.1), (5, 2, 0.1), (0, 1, 0.1)]
)
"""A mixture: position family, view direction, weight."""
_SPREAD = np.array([math.pi, 0.5, 0.35, 0.4, math.pi, 0.5])
"""Of the direction of a move, by position family."""
_REACH = np.array([(0.3, 1.0), (0.3, 0.9), (0.3, 0.9), (0.3, 0.8), (0.05, 0.25), (0.2, 0.5)])
"""Least and greatest length of a move, by position family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What records should look like."""

    seed: int = 0
    horizon: int = 5
    candidates: int | tuple[int, int] = 60
    """Of every shell, or from least to greatest."""
    valid_fraction: float = 0.6
    unlabelled_fraction: float = 0.0
    """Of valid candidates: the oracle failed, so their metrics are NaN. Never of those that were taken."""
    early_fraction: float = 0.0
    """Of chains that end before the horizon."""
    unmatched_fraction: float = 0.0
    """Of targets without ground truth: their labels may not be trained on."""
    targets_per_source: int = 2
    policies: tuple[str, ...] = POLICIES
    """Built-in ones, or any other name for a learned one, which samples and has a checkpoint."""
    branching: bool = False
    """Four chains per record instead of one: two actions kept at each of the first two steps."""
    depth: tuple[int, int] | None = None
    """Height and width."""
    features: int = 0
    crops: bool = False

    @property
    def most_candidates(self) -> int:
        return self.candidates if isinstance(self.candidates, int) else self.candidates[1]

    @property
    def least_candidates(self) -> int:
        return self.candidates if isinstance(self.candidates, int) else self.candidates[0]

    def branches(self, step: int) -> int:
        return 2 if self.branching and step < 2 else 1


def make_records(count: int, *, seed: int = 0, **options: Any) -> Iterator[RolloutZarrRecord]:
    """`count` records, one per source row, target and policy, in that order. Options are the fields of `Plan`."""
    plan = Plan(seed=seed, **options)
    for first in range(0, count, _BLOCK):
        yield from _block(plan, first)[: count - first]


# ------------------------------------------------------------------------------------ the whole block


@dataclass(slots=True, kw_only=True, eq=False)
class _Task:
    """One record to be."""

    number: int
    policy: str
    lineage: RolloutLineage
    root_pose: Array
    root_yaw: float
    target_center: Array
    target_extents: Array
    root_error: tuple[np.float32, np.float32]
    """Of the target and of the scene."""
    support: float
    source: int
    chains: list[_Chain] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Chain:
    task: _Task
    number: int
    steps: list[RolloutStep] = field(default_factory=list)
    parent: int | None = None
    fork: int | None = None


@dataclass(slots=True, eq=False)
class _Frontier:
    """The last states of all chains of a block, a row each."""

    chains: list[_Chain]
    position: Array
    yaw: Array
    error: Array
    """[K, 2]: of the target and of the scene."""
    support: Array

    def __len__(self) -> int:
        return len(self.chains)

    def of_tasks(self, name: str) -> Array:
        return np.array([getattr(chain.task, name) for chain in self.chains])


def _block(plan: Plan, first: int) -> list[RolloutZarrRecord]:
    rng = np.random.default_rng([plan.seed, first])
    tasks = [_task(plan, number) for number in range(first, first + _BLOCK)]
    for task in tasks:
        task.chains.append(_Chain(task, 0))
    frontier = _Frontier(
        [task.chains[0] for task in tasks],
        np.array([task.root_pose[9:] for task in tasks], np.float64),
        np.array([task.root_yaw for task in tasks]),
        np.array([task.root_error for task in tasks], np.float32),
        np.array([task.support for task in tasks]),
    )
    for step in range(plan.horizon):
        frontier = _advance(plan, rng, frontier, step)
    ends = rng.random((_BLOCK, 4))
    return [_record(plan, task, ends[row]) for row, task in enumerate(tasks)]


def _record(plan: Plan, task: _Task, ends: Array) -> RolloutZarrRecord:
    chains = tuple(_ended(plan, chain, ends[chain.number % 4]) for chain in task.chains)
    result = CounterfactualRolloutResult(
        root_pose_world=task.root_pose,
        chains=chains,
        policy=task.policy,
        horizon=plan.horizon,
        branch_factor=plan.branches(0),
        beam_width=4 if plan.branching else None,
        root_time_ns=1_000_000_000 + 50_000_000 * task.source,
        root_trajectory_index=20 + task.source % 40,
        root_frame_index=2 * (20 + task.source % 40),
    )
    rank = task.lineage.target_selection_rank
    prefix = f"{task.source:08d}-target-{rank:02d}-{task.policy}"
    return RolloutZarrRecord(result=result, lineage=task.lineage, rollout_id_prefix=prefix)


def _ended(plan: Plan, chain: _Chain, luck: float) -> RolloutChain:
    """Chains that end early keep the steps in which they fork."""
    least = 2 if plan.branching else 1
    early = luck < plan.early_fraction and plan.horizon > least
    last = least + int(luck * 1e6) % (plan.horizon - least) if early else plan.horizon
    return RolloutChain(
        steps=tuple(chain.steps[:last]),
        terminated_early=early,
        parent_chain=chain.parent,
        fork_step_index=chain.fork,
    )


# ------------------------------------------------------------------------------------------ one step


def _advance(plan: Plan, rng: Generator, at: _Frontier, step: int) -> _Frontier:
    """Draws a shell for every state, takes actions, and returns the states they lead to."""
    shells = _shells(plan, rng, at)
    metrics, improvement = _metrics(rng, at, shells)
    choice = _Choice(rng, plan, at, shells, metrics[:, METRICS.index("target_root_gain")])
    features = _features(rng, plan, improvement)
    compact = rng.random(len(at)) < 0.5
    tables = [_shell_table(shells, row, features) for row in range(len(at))]
    chains: list[_Chain] = []
    rows: list[int] = []
    taken: list[int] = []
    for branch in range(plan.branches(step)):
        drawn = choice.branch(branch)
        for row in np.flatnonzero(choice.exists(branch)).tolist():
            chain = _continued(at.chains[row], step, branch)
            selected = int(choice.order[row, branch])
            vectors = _vectors(tables[row], metrics[row], drawn[:, row], bool(compact[row]))
            chain.steps.append(_step(plan, chain, step, tables[row], selected, vectors))
            chains.append(chain)
            rows.append(row)
            taken.append(selected)
    k, n = np.array(rows), np.array(taken)
    after = [METRICS.index("target_pm_dist_after"), METRICS.index("scene_pm_dist_after")]
    return _Frontier(
        chains,
        shells.position[k, n],
        shells.yaw[k, n],
        metrics[k[:, None], after, n[:, None]],
        at.support[k] + metrics[k, METRICS.index("target_candidate_support"), n],
    )


def _continued(chain: _Chain, step: int, branch: int) -> _Chain:
    """The chain itself for its first branch, a fork with the same steps so far for any other."""
    if branch == 0:
        return chain
    task = chain.task
    fork = _Chain(task, len(task.chains), chain.steps[:step], chain.number, step)
    task.chains.append(fork)
    return fork


def _step(
    plan: Plan,
    chain: _Chain,
    step: int,
    table: CandidateSamplingResult,
    selected: int,
    vectors: dict[str, Array],
) -> RolloutStep:
    task = chain.task
    place = struct.pack("<5q", plan.seed, task.number, chain.number, step, selected)
    distribution = {name: vectors.pop(name) for name in _DISTRIBUTION}
    return RolloutStep(
        candidates=table,
        selected_shell_index=selected,
        metric_vectors=vectors,
        score_label="uniform" if task.policy == "random_valid" else "target_root_gain",
        temperature=None if task.policy in ("oracle_greedy", "random_valid") else TEMPERATURE,
        rng_state_digest=hashlib.sha256(place).digest(),
        selected_depth=_rendered(place, plan.depth, table.shell_poses[selected]),
        target_eval_crops=_crops(place, task, table) if plan.crops else (),
        crop_policy=CROP_POLICY if plan.crops else None,
        crop_voxel_size_m=0.02 if plan.crops else None,
        **distribution,
    )


_DISTRIBUTION = ("selection_logits", "selection_probabilities", "selection_log_probabilities")


def _vectors(
    table: CandidateSamplingResult, metrics: Array, distribution: Array, compact: bool
) -> dict[str, Array]:
    """Metric and selection vectors of one step, over its shell or over the valid part of it."""
    kept: Any = table.mask_valid if compact else slice(None)
    metrics = metrics[:, : len(table)][:, kept]
    distribution = distribution[:, : len(table)][:, kept]
    return {
        **dict(zip(METRICS, metrics, strict=True)),
        **dict(zip(_DISTRIBUTION, distribution, strict=True)),
    }


# -------------------------------------------------------------------------------------------- shells


@dataclass(slots=True, kw_only=True, eq=False)
class _Shells:
    """Shells of K states, padded to the widest: [K, N, ...]."""

    counts: Array
    valid: Array
    labelled: Array
    bits: Array
    mixture: Array
    strategy: Array
    family: Array
    probability: Array
    position: Array
    yaw: Array
    poses: Array
    diagnostics: dict[str, Array]


def _shells(plan: Plan, rng: Generator, at: _Frontier) -> _Shells:
    states, width = len(at), plan.most_candidates
    counts = rng.integers(plan.least_candidates, width, states, endpoint=True)
    inside = np.arange(width) < counts[:, None]
    valid, labelled, bits = _validity(plan, rng, inside)
    mixture = rng.choice(len(_COMPONENTS), (states, width), p=_COMPONENTS[:, 2])
    family = _COMPONENTS[mixture, 0].astype(np.int32)
    strategy = _COMPONENTS[mixture, 1].astype(np.int32)
    weight = np.where(inside, _COMPONENTS[mixture, 2], 0)
    target = at.of_tasks("target_center")[:, None]
    offset = _moves(rng, at, family, target)
    position = np.clip(at.position[:, None] + offset, _ROOM[0] + _MARGIN, _ROOM[1] - _MARGIN)
    outside = (bits & _OUT_OF_EXTENT) != 0
    position[outside, 0] += np.sign(position[outside, 0]) * (_ROOM[1, 0] + _MARGIN)
    offset = position - at.position[:, None]
    yaw, pitch = _directions(rng, at.yaw[:, None], offset, target - position, strategy)
    return _Shells(
        counts=counts,
        valid=valid,
        labelled=labelled,
        bits=bits,
        mixture=mixture.astype(np.int32),
        strategy=strategy,
        family=family,
        probability=(weight / weight.sum(1, keepdims=True)).astype(np.float32),
        position=position,
        yaw=yaw,
        poses=_poses(position, yaw, pitch, rng.normal(0, 0.02, yaw.shape)),
        diagnostics=_diagnostics(rng, at, bits, position, offset, yaw, target),
    )


def _validity(plan: Plan, rng: Generator, inside: Array) -> tuple[Array, Array, Array]:
    """Who is valid, who has labels, and reasons. A state always has something that can be taken."""
    luck = rng.random(inside.shape)
    luck[:, : min(2, plan.least_candidates)] *= plan.valid_fraction  # so that these are valid
    order = rng.permuted(
        np.broadcast_to(np.arange(plan.least_candidates), (len(luck), plan.least_candidates)),
        axis=1,
    )
    luck[:, : plan.least_candidates] = np.take_along_axis(luck, order, 1)
    valid = inside & (luck < plan.valid_fraction)
    labelled = valid & (rng.random(inside.shape) >= plan.unlabelled_fraction)
    labelled |= valid & (np.cumsum(valid, 1) <= 2)
    bits = np.zeros(inside.shape, np.uint32)
    for bit, share in _REASONS:
        bits |= np.where(rng.random(inside.shape) < share, bit, np.uint32(0))
    bits[bits == 0] = _RULE
    bits[valid] = VALID_BITSET
    return valid, labelled, bits


def _moves(rng: Generator, at: _Frontier, family: Array, target: Array) -> Array:
    """Moves from the current position, by position family; metres."""
    ahead = np.broadcast_to(at.yaw[:, None], family.shape)
    towards = target - at.position[:, None]
    bearing = np.arctan2(towards[..., 1], towards[..., 0])
    side = np.where(rng.random(family.shape) < 0.5, math.pi / 2, -math.pi / 2)
    base = np.select(
        [family == 2, family == 3, family == 5], [bearing, bearing + side, ahead + math.pi], ahead
    )
    angle = base + _SPREAD[family] * rng.uniform(-1, 1, family.shape)
    low, high = _REACH[family, 0], _REACH[family, 1]
    length = low + (high - low) * rng.random(family.shape)
    rise = 0.25 * length * rng.uniform(-1, 1, family.shape)
    return np.stack([length * np.cos(angle), length * np.sin(angle), rise], axis=-1)


def _directions(
    rng: Generator, current: Array, offset: Array, towards: Array, strategy: Array
) -> tuple[Array, Array]:
    """Yaw and pitch of every candidate, by view direction."""
    moving = np.arctan2(offset[..., 1], offset[..., 0])
    seen = np.arctan2(towards[..., 1], towards[..., 0])
    yaw = np.select([strategy == 1, strategy == 2, strategy == 3], [moving, moving + math.pi, seen])
    yaw = np.where(strategy == 0, current, yaw) + rng.normal(0, 0.05, strategy.shape)
    level = np.arctan2(towards[..., 2], np.hypot(towards[..., 0], towards[..., 1]))
    pitch = np.where(strategy == 3, level, -0.15) + rng.normal(0, 0.03, strategy.shape)
    return yaw, np.clip(pitch, -1.2, 1.2)


def _poses(position: Array, yaw: Array, pitch: Array, roll: Array) -> Array:
    """World from camera, [..., 12]: axes right, down and forward, row-major, then the position."""
    cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    cr, sr = np.cos(roll), np.sin(roll)
    right = np.stack([sy, -cy, np.zeros_like(cy)], -1)
    down = np.stack([cy * sp, sy * sp, -cp], -1)
    forward = np.stack([cy * cp, sy * cp, sp], -1)
    turned = cr[..., None] * right + sr[..., None] * down
    lowered = cr[..., None] * down - sr[..., None] * right
    pose = np.empty((*yaw.shape, 12), np.float32)
    pose[..., 0:9:3] = turned
    pose[..., 1:9:3] = lowered
    pose[..., 2:9:3] = forward
    pose[..., 9:] = position
    return pose


def _diagnostics(
    rng: Generator,
    at: _Frontier,
    bits: Array,
    position: Array,
    offset: Array,
    yaw: Array,
    target: Array,
) -> dict[str, Array]:
    heading = np.stack([np.cos(at.yaw), np.sin(at.yaw)], -1)[:, None]
    margin = np.minimum(position - _ROOM[0], _ROOM[1] - position).min(-1)
    near, blocked = (bits & _CLEARANCE) != 0, (bits & _PATH) != 0
    free = rng.uniform(0.1, 0.6, bits.shape)
    towards = target - at.position[:, None]
    bearing = np.arctan2(towards[..., 1], towards[..., 0]) - at.yaw[:, None]
    values = {
        "mesh_distance_m": np.where(near, free * 0.15, free),
        "path_min_clearance_m": np.where(blocked, 0.0, np.where(near, free * 0.15, free)),
        "free_space_margin_m": margin,
        "motion_step_length_m": np.linalg.norm(offset, axis=-1),
        "motion_height_delta_m": offset[..., 2],
        "motion_backward_step_m": np.maximum(0, -(offset[..., :2] * heading).sum(-1)),
        "motion_yaw_delta_deg": np.degrees(_wrapped(yaw - at.yaw[:, None])),
        "target_distance_m": np.linalg.norm(target - position, axis=-1),
        "target_bearing_yaw_deg": np.broadcast_to(np.degrees(_wrapped(bearing)), bits.shape),
    }
    return {**{k: v.astype(np.float32) for k, v in values.items()}, "path_collision_mask": blocked}


def _wrapped(angle: Array) -> Array:
    wrapped: Array = (angle + math.pi) % (2 * math.pi) - math.pi
    return wrapped


def _shell_table(shells: _Shells, row: int, features: Array | None) -> CandidateSamplingResult:
    n = int(shells.counts[row])
    return CandidateSamplingResult(
        shell_poses=shells.poses[row, :n],
        mask_valid=shells.valid[row, :n],
        invalid_reason_bitset=shells.bits[row, :n],
        strategy_id=shells.strategy[row, :n],
        position_id=shells.family[row, :n],
        mixture_id=shells.mixture[row, :n],
        sampler_probability=shells.probability[row, :n],
        extras={name: values[row, :n] for name, values in shells.diagnostics.items()},
        actor_features=None if features is None else features[row, :n],
    )


# ------------------------------------------------------------------------------ what they are worth


def _metrics(rng: Generator, at: _Frontier, shells: _Shells) -> tuple[Array, Array]:
    """[K, M, N] in the order of METRICS, NaN without a label; and the share of the error each candidate removes."""
    distance = shells.diagnostics["target_distance_m"]
    worth = rng.beta(1.5, 8, distance.shape) * np.exp(-0.15 * distance)
    worth[shells.strategy == 3] *= 1.6
    removed = np.minimum(worth, 0.9) - 0.02  # a view can also make things a little worse
    removed_of_scene = 0.25 * removed + rng.normal(0, 0.01, removed.shape)
    root = at.of_tasks("root_error").astype(np.float64)
    target = _errors(at.error[:, :1], removed, root[:, :1])
    scene = _errors(at.error[:, 1:], removed_of_scene, root[:, 1:])
    support = np.broadcast_to(at.support[:, None], removed.shape)
    added = rng.poisson(40 * np.exp(-0.3 * distance))
    stacked = np.stack([*target, *scene, support, added], 1).astype(np.float32)
    stacked[np.broadcast_to(~shells.labelled[:, None], stacked.shape)] = np.nan
    return stacked, removed


def _errors(before: Array, removed: Array, root: Array) -> list[Array]:
    """Before, after, and the gains of going from one to the other, from values as they are stored."""
    after = (before * (1 - removed)).astype(np.float32).astype(np.float64)
    before = np.broadcast_to(before.astype(np.float64), after.shape)
    drop = before - after
    return [before, after, drop / before, drop / root, np.log(before) - np.log(after)]


def _features(rng: Generator, plan: Plan, improvement: Array) -> Array | None:
    """What an actor could know: the first one hints at the label, the others are noise."""
    if not plan.features:
        return None
    features = rng.standard_normal((*improvement.shape, plan.features), np.float32)
    features[..., 0] = features[..., 0] * 0.1 + improvement * 5
    return features


class _Choice:
    """Which candidates the policies take, and with what distribution.

    Adding Gumbel noise to logits and taking the k greatest draws k times without replacement.
    """

    def __init__(
        self, rng: Generator, plan: Plan, at: _Frontier, shells: _Shells, scores: Array
    ) -> None:
        policies = [chain.task.policy for chain in at.chains]
        self.greedy = np.array([policy == "oracle_greedy" for policy in policies])[:, None]
        uniform = np.array([policy == "random_valid" for policy in policies])[:, None]
        self.valid, self.eligible = shells.valid, shells.labelled
        scores = np.where(self.eligible, scores.astype(np.float64), np.nan)
        logits = np.where(uniform, 0.0, np.where(self.greedy, scores, _tempered(scores)))
        self.logits = np.where(self.eligible, logits, -np.inf)
        noise = np.where(self.greedy, 0, rng.gumbel(size=scores.shape))
        self.order = np.argsort(-(self.logits + noise), axis=1, kind="stable")[:, :2]

    def exists(self, branch: int) -> Array:
        exists: Array = self.eligible.sum(1) > branch
        return exists

    def branch(self, branch: int) -> Array:
        """Logits, probabilities and log-probabilities of one draw: [3, K, N]."""
        logits = self.logits.copy()
        rows = np.arange(len(logits))
        for earlier in range(branch):
            gone = np.where(self.greedy[:, 0], logits[rows, self.order[:, earlier]], -np.inf)
            logits[rows, self.order[:, earlier]] = gone
        with np.errstate(invalid="ignore"):
            shifted = logits - logits.max(1, keepdims=True)
        log_total = np.log(np.exp(shifted).sum(1, keepdims=True))
        one_hot = np.full_like(logits, -np.inf)
        one_hot[rows, self.order[:, min(branch, self.order.shape[1] - 1)]] = 0
        log_probability = np.where(self.greedy, one_hot, shifted - log_total)
        logits[~self.valid] = np.nan
        return np.stack([logits, np.exp(log_probability), log_probability]).astype(np.float32)


def _tempered(scores: Array) -> Array:
    """Scores, centred on their median and scaled by how much they differ."""
    ordered = np.sort(scores, axis=1)  # NaN last
    last = np.isfinite(scores).sum(1, keepdims=True) - 1
    low, middle, high = (np.take_along_axis(ordered, last * q // 4, 1) for q in (1, 2, 3))
    tempered: Array = (scores - middle) / (np.maximum(high - low, 1e-6) * TEMPERATURE)
    return tempered


# -------------------------------------------------------------------------------- images and points


def _rendered(place: bytes, size: tuple[int, int] | None, pose: Array) -> SelectedDepth | None:
    """Depth of an empty room with two boxes in it, seen from a pose; pieces are planar, and there are holes."""
    if size is None:
        return None
    height, width = size
    rng = np.random.default_rng(list(place))
    focal = width / 2
    x = ((np.arange(width) + 0.5 - width / 2) / focal).astype(np.float32)
    y = ((np.arange(height) + 0.5 - height / 2) / focal).astype(np.float32)
    axes = pose[:9].reshape(3, 3)
    rays = axes[:, :1, None] * x + axes[:, 1:2, None] * y[:, None] + axes[:, 2:, None]
    rays[rays == 0] = 1e-9
    low, high = _ROOM.astype(np.float32)[:, :, None, None]
    start = np.clip(pose[9:, None, None], low + 0.01, high - 0.01)
    walls = np.where(rays > 0, high, low)
    depth = ((walls - start) / rays).min(0)
    for _ in range(2):
        corner = rng.uniform(_ROOM[0], _ROOM[1] - 1)
        corner[2] = 0
        box = np.stack([corner, corner + rng.uniform(0.4, 1.2, 3)]).astype(np.float32)
        near, far = _slabs(start, rays, *box)
        depth = np.where((near < far) & (near > 0.1) & (near < depth), near, depth)
    valid = np.ones(size, bool)
    for _ in range(3):
        top, left = int(rng.integers(0, height)), int(rng.integers(0, width))
        valid[top : top + height // 8 + 1, left : left + width // 10 + 1] = False
    return SelectedDepth(
        depth_m=np.where(valid, depth, 0).astype(np.float32),
        valid_mask=valid,
        focal_px=(focal, focal),
        principal_point_px=(width / 2, height / 2),
    )


def _slabs(start: Array, rays: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Where rays enter and leave a box."""
    one = (low[:, None, None] - start) / rays
    two = (high[:, None, None] - start) / rays
    return np.minimum(one, two).max(0), np.maximum(one, two).min(0)


def _crops(place: bytes, task: _Task, table: CandidateSamplingResult) -> tuple[TargetEvalCrop, ...]:
    """Points on the target before the step, then those that each valid candidate adds."""
    rng = np.random.default_rng(list(place))
    owners = [None, *np.flatnonzero(table.mask_valid).tolist()]
    counts = rng.integers(4, 40, len(owners))
    points = rng.uniform(-0.5, 0.5, (int(counts.sum()), 3)) * task.target_extents
    points = (points + task.target_center).astype(np.float32)
    parts: list[Array] = np.split(points, np.cumsum(counts)[:-1])
    return tuple(
        TargetEvalCrop(points_world=part, shell_index=owner)
        for owner, part in zip(owners, parts, strict=True)
    )


# ----------------------------------------------------------------------------- where they come from


def _task(plan: Plan, number: int) -> _Task:
    target_number, at = divmod(number, len(plan.policies))
    source, rank = divmod(target_number, plan.targets_per_source)
    policy = plan.policies[at]
    rng = np.random.default_rng([plan.seed, 1, source])
    yaw = float(rng.uniform(-math.pi, math.pi))
    position = rng.uniform(_ROOM[0] + 1, _ROOM[1] - 1)
    root = _poses(position, np.array(yaw), np.array(-0.1), np.array(0.0))
    rng = np.random.default_rng([plan.seed, 2, source, rank])
    extents = rng.uniform(0.3, 1.2, 3)
    center = np.array([*rng.uniform(_ROOM[0, :2] + 1, _ROOM[1, :2] - 1), extents[2] / 2])
    return _Task(
        number=number,
        policy=policy,
        lineage=_lineage(plan, rng, source, rank, policy, root, center, extents),
        root_pose=root,
        root_yaw=yaw,
        target_center=center,
        target_extents=extents,
        root_error=(np.float32(rng.uniform(0.02, 0.4)), np.float32(rng.uniform(0.05, 0.6))),
        support=float(rng.integers(3, 120)),
        source=source,
    )


def _lineage(
    plan: Plan,
    rng: Generator,
    source: int,
    rank: int,
    policy: str,
    root: Array,
    center: Array,
    extents: Array,
) -> RolloutLineage:
    scene, snippet = f"scene_{source // 8:05d}", f"snippet_{source % 8:03d}"
    kind, instance = int(rng.integers(len(_CLASSES))), int(rng.integers(1000))
    name = f"{scene}:{snippet}:detected_obbs:sem={kind}:inst={instance}:idx={rank}"
    pose = _poses(center, *(np.array(angle) for angle in (rng.uniform(-3, 3), 0.0, 0.0)))
    semidense, voxels = int(rng.integers(3, 200)), int(rng.integers(0, 60))
    area = float(rng.uniform(64, 9000))
    return RolloutLineage(
        scene_id=scene,
        snippet_id=snippet,
        mesh_version=_hex("mesh", plan.seed, scene),
        candidate_config_hash=_hex("candidates", plan.candidates),
        oracle_config_hash=_hex("oracle", plan.seed),
        model_checkpoint_hash=None if policy in POLICIES else _hex("checkpoint", policy),
        random_seed=plan.seed,
        rollout_policy=policy,
        source_cache_version="7",
        split=SPLIT,
        source_offline_store_manifest_hash=_hex("sources", plan.seed),
        source_row_id=source,
        source_sample_index=source,
        source_sample_key=f"{scene}/{snippet}",
        split_manifest_hash=_hex("split", plan.seed, SPLIT),
        source_shard_id=f"vin-shard-{source // 64:06d}",
        source_shard_row=source % 64,
        rollout_config_hash=_hex("rollout", policy, plan.horizon, plan.branching),
        branch_schedule_id=f"{policy}_b{plan.branches(0)}",
        target_row_id=rank,
        target_id=name,
        target_protocol_version=TARGET_PROTOCOL,
        target_crop_policy=CROP_POLICY,
        selection_rng_state_hash=_hex("target selection", plan.seed, source),
        target_selection_policy="temperature_softmax_top_k",
        target_selection_rank=rank,
        target_selection_score=float(rng.uniform(0.05, 0.9)),
        target_selection_probability=float(rng.uniform(0.05, 1)),
        target_selection_temperature=1.0,
        target_source="detected_obbs",
        target_source_index=rank,
        target_sem_id=kind,
        target_inst_id=instance,
        target_class_name=_CLASSES[kind],
        target_confidence=float(rng.uniform(0.2, 1)),
        target_projected_area_pixels=area,
        target_projected_area_fraction=area / (240 * 240),
        target_semidense_support_count=semidense,
        target_evl_support_count=voxels,
        target_effective_support_count=float(semidense + voxels),
        target_visibility_score=float(rng.uniform(0.35, 1)),
        target_support_score=min(1.0, semidense / 128),
        target_deficit_score=1 - min(1.0, semidense / 128),
        target_center_world=tuple(center.tolist()),
        target_extents=tuple(extents.tolist()),
        target_pose_world_object=tuple(pose.tolist()),
        target_relative_pose_reference_object=tuple(_relative(root, pose).tolist()),
        **_match(rng, plan, name, 100 + plan.targets_per_source * source + rank),
    )


def _match(rng: Generator, plan: Plan, name: str, row: int) -> dict[str, Any]:
    """The ground truth of a target, if it has any."""
    overlap = float(rng.uniform(0.3, 0.95))
    if rng.random() >= plan.unmatched_fraction:
        return {
            "target_invalid_reason_bitset": VALID_BITSET,
            "target_primary_invalid_reason": 0,
            "target_reason_code_version": TARGET_REASON_VERSION,
            "matched_gt_target_row_id": row,
            "matched_gt_target_id": name.replace("detected_obbs", "gt_obbs"),
            "gt_match_iou": overlap,
            "gt_match_score": overlap,
            "gt_match_status": "matched",
        }
    unmatched = TARGET_INVALID_REASON_CODES["TARGET_GT_UNMATCHED"]
    return {
        "target_invalid_reason_bitset": 1 << unmatched,
        "target_primary_invalid_reason": unmatched,
        "target_reason_code_version": TARGET_REASON_VERSION,
        "gt_match_status": "unmatched_gt",
    }


def _relative(reference: Array, pose: Array) -> Array:
    """A pose, seen from a reference."""
    turn = reference[:9].reshape(3, 3).T
    rotation = turn @ pose[:9].reshape(3, 3)
    return np.concatenate([rotation.ravel(), turn @ (pose[9:] - reference[9:])])


def _hex(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# --------------------------------------------------------------------------------- the fixed fixture


def spec_fixture_records(
    horizon: int = 2, num_samples: int = 4, *, seed: int = 0, depth: bool = True, crops: bool = True
) -> list[RolloutZarrRecord]:
    """Three records, one per policy, with 2 * num_samples candidates per shell, all valid, and known numbers."""
    return [_fixture_record(row, horizon, 2 * num_samples, seed, depth, crops) for row in range(3)]


def _fixture_record(
    row: int, horizon: int, size: int, seed: int, depth: bool, crops: bool
) -> RolloutZarrRecord:
    rng = np.random.default_rng([seed, row])
    root = _poses(np.zeros(3), np.array(0.0), np.array(0.0), np.array(0.0))
    position, steps = np.zeros(3), []
    for step in range(horizon):
        angle = 2 * math.pi * np.arange(size) / size
        around = np.stack([np.cos(angle), np.sin(angle), np.zeros(size)], -1)
        poses = _poses(position + 0.5 * around, angle, np.zeros(size), np.zeros(size))
        taken = _fixture_step(rng, step, POLICIES[row], poses, depth, crops)
        steps.append(taken)
        position = poses[taken.selected_shell_index, 9:].astype(np.float64)
    result = CounterfactualRolloutResult(
        root_pose_world=root,
        chains=(RolloutChain(steps=tuple(steps)),),
        policy=POLICIES[row],
        horizon=horizon,
        root_time_ns=1_000 * row,
        root_trajectory_index=row,
        root_frame_index=row,
    )
    prefix = f"{row:08d}-target-00-{POLICIES[row]}"
    return RolloutZarrRecord(
        result=result, lineage=_fixture_lineage(row, seed), rollout_id_prefix=prefix
    )


def _fixture_step(
    rng: Generator, step: int, policy: str, poses: Array, depth: bool, crops: bool
) -> RolloutStep:
    size = len(poses)
    rri = (np.linspace(0.1, 0.1 * size, size) + step).astype(np.float32)
    scores = {"oracle_greedy": rri + 10, "random_valid": 0 * rri, "temperature_softmax": rri}[
        policy
    ]
    weights = np.exp(scores - scores.max())
    selected = size - 1
    if policy == "oracle_greedy":
        probabilities = np.eye(size, dtype=np.float32)[selected]
    else:
        probabilities = (weights / weights.sum()).astype(np.float32)
        selected = int(np.argmax(scores + rng.gumbel(size=size)))
    with np.errstate(divide="ignore"):
        log_probabilities = np.log(probabilities)
    return RolloutStep(
        candidates=CandidateSamplingResult(
            shell_poses=poses,
            mask_valid=np.ones(size, bool),
            strategy_id=np.arange(size, dtype=np.int32) % 4,
            position_id=np.full(size, POSITION_NAMES.index("forward_local"), np.int32),
            mixture_id=np.arange(size, dtype=np.int32) % 2,
            sampler_probability=np.full(size, 1 / size, np.float32),
            extras={"motion_step_length_m": np.full(size, 0.5, np.float32)},
        ),
        selected_shell_index=selected,
        metric_vectors=_fixture_metrics(rri),
        score_label="target_root_gain",
        temperature=1.0 if policy == "temperature_softmax" else None,
        selection_logits=scores,
        selection_probabilities=probabilities,
        selection_log_probabilities=log_probabilities,
        rng_state_digest=hashlib.sha256(repr(rng.bit_generator.state).encode()).digest(),
        selected_depth=_fixture_depth(step) if depth else None,
        target_eval_crops=_fixture_crops(size) if crops else (),
        crop_policy=CROP_POLICY if crops else None,
        crop_voxel_size_m=0.01 if crops else None,
    )


def _fixture_metrics(rri: Array) -> dict[str, Array]:
    gain = rri + 10
    return {
        "target_rri": rri,
        "target_root_gain": gain,
        "scene_root_gain": gain / 2,
        "target_log_error_gain": rri / 2,
        "scene_log_error_gain": rri / 3,
        "target_pm_dist_before": rri + 2,
        "target_pm_dist_after": rri + 1,
        "scene_pm_dist_before": rri + 1,
        "scene_pm_dist_after": rri + np.float32(0.5),
        "target_current_support": np.full_like(rri, 3),
        "target_candidate_support": np.full_like(rri, 2),
    }


def _fixture_depth(step: int) -> SelectedDepth:
    return SelectedDepth(
        depth_m=np.full((240, 240), 1 + step, np.float32),
        valid_mask=np.ones((240, 240), bool),
        focal_px=(120.0, 120.0),
        principal_point_px=(120.0, 120.0),
    )


def _fixture_crops(size: int) -> tuple[TargetEvalCrop, ...]:
    current = TargetEvalCrop(points_world=np.full((3, 3), 0.25, np.float32))
    added = (
        TargetEvalCrop(points_world=np.full((2, 3), at, np.float32), shell_index=at)
        for at in range(size)
    )
    return (current, *added)


def _fixture_lineage(row: int, seed: int) -> RolloutLineage:
    return RolloutLineage(
        scene_id="fixture_box",
        snippet_id="smoke",
        mesh_version=_hex("fixture box"),
        candidate_config_hash=_hex("fixture candidates"),
        oracle_config_hash=_hex("fixture oracle"),
        random_seed=seed,
        rollout_policy=POLICIES[row],
        source_cache_version="7",
        split=SPLIT,
        source_offline_store_manifest_hash=_hex("fixture sources"),
        source_row_id=row,
        source_sample_index=row,
        source_sample_key=f"fixture_box/smoke/{row}",
        split_manifest_hash=_hex("fixture split"),
        source_shard_id="vin-shard-000000",
        source_shard_row=row,
        rollout_config_hash=_hex("fixture rollout", POLICIES[row]),
        branch_schedule_id=POLICIES[row],
        target_row_id=row,
        target_id=f"fixture_box:smoke:detected_obbs:sem=1:inst={row}:idx={row}",
        target_protocol_version=TARGET_PROTOCOL,
        target_crop_policy=CROP_POLICY,
        selection_rng_state_hash=_hex("fixture selection", seed),
        target_selection_policy="greedy_top_k",
        target_selection_rank=0,
        target_selection_score=0.5,
        target_selection_probability=1.0,
        target_source="detected_obbs",
        target_source_index=row,
        target_sem_id=1,
        target_inst_id=row,
        target_class_name="box",
        target_confidence=0.9,
        target_effective_support_count=12.0,
        target_visibility_score=0.8,
        target_center_world=(0.0, 0.0, 0.0),
        target_extents=(1.0, 1.0, 1.0),
        target_invalid_reason_bitset=VALID_BITSET,
        target_primary_invalid_reason=0,
        target_reason_code_version=TARGET_REASON_VERSION,
        matched_gt_target_row_id=100 + row,
        matched_gt_target_id=f"fixture_box:smoke:gt_obbs:sem=1:inst={row}:idx={row}",
        gt_match_iou=0.9,
        gt_match_score=0.9,
        gt_match_status="matched",
    )

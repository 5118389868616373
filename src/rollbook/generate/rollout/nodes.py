"""Nodes of a rollout: a pose, everything seen on the path to it, and a fully labelled shell of candidates.

The path of candidates that leads to a node identifies it. Its own candidates depend only on that path and on a seed.
Recipes that take the same path therefore share a node, which is evaluated once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import VALID_BITSET, Bitset
from rollbook.generate.actor.actor import ActorState
from rollbook.generate.actor.features import candidate_features
from rollbook.generate.candidates.families import CandidateMixtureConfig, Proposal, sample_shell
from rollbook.generate.candidates.rules import (
    RuleConfig,
    ShellCheck,
    Surroundings,
    check_depth,
    check_shell,
    guard_order,
    mark,
    proven_by_sparse_depth,
    sparse_step,
)
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres
from rollbook.generate.oracle.oracle import Oracle, OracleState
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.rollout.seeds import node_generator
from rollbook.generate.targets.selection import SelectedTarget
from rollbook.store.records import CandidateSamplingResult, SelectedDepth, TargetEvalCrop

Labels = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutTask:
    """One target of one source row, with everything that determines the rollouts from there."""

    sample_key: str
    target: SelectedTarget
    geometry: SceneGeometry
    oracle: Oracle
    oracle_root: OracleState
    actor_root: ActorState
    root_pose: NDArray[np.float64]
    mixture: CandidateMixtureConfig
    rules: RuleConfig
    camera: Camera
    """The camera with which candidates are rendered and scored."""
    depth_camera: Camera | None
    """The camera of the stored image of each taken candidate; None stores no image."""
    campaign_seed: int
    recorded: NDArray[np.float64]
    """[K, 12]: the recorded poses after the root, about one move of a shell apart."""
    root_target_points: NDArray[np.float32] | None = None
    """Points in the target box at the root; given only if the oracle's points are stored."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    path: tuple[int, ...]
    """The shell index taken at every step."""
    pose: NDArray[np.float64]
    centres: NDArray[np.float64]
    """[len(path) + 1, 3]: visited camera centres, the root first."""
    oracle: OracleState
    actor: ActorState
    target_points: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False)
class OfferedNode:
    """A node whose candidates have verdicts and features, but no images and no labels."""

    node: Node
    candidates: CandidateSamplingResult
    """Its `extras` hold no diagnostics of distances."""

    @property
    def num_valid(self) -> int:
        return int(np.count_nonzero(self.candidates.mask_valid))


@dataclass(frozen=True, slots=True, eq=False)
class TakenCandidate:
    """A candidate of an offered node that was rendered and scored."""

    parent: Node
    shell_index: int
    pose: NDArray[np.float64]
    depth: NDArray[np.float32]
    oracle: OracleState
    """The state with its image fused."""
    labels: dict[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedNode:
    node: Node
    candidates: CandidateSamplingResult
    labels: Labels
    """[N] each; NaN where a candidate is not valid."""
    rendered: NDArray[np.intp]
    """Shell indices that have an image, ascending."""
    depth: NDArray[np.float32]
    """[len(rendered), H, W]"""
    crops: tuple[TargetEvalCrop, ...]

    @property
    def num_valid(self) -> int:
        return int(np.count_nonzero(self.candidates.mask_valid))

    def image(self, shell_index: int) -> NDArray[np.float32]:
        return np.asarray(self.depth[np.searchsorted(self.rendered, shell_index)])


@dataclass(slots=True, eq=False)
class NodeEvaluator:
    """Evaluates the nodes of one task for one seed and horizon, each node once."""

    task: RolloutTask
    seed: int | None
    horizon: int
    nodes_evaluated: int = 0
    candidates_scored: int = 0
    _verdicts: dict[tuple[int, ...], tuple[Proposal, Bitset]] = field(default_factory=dict)
    _offered: dict[tuple[int, ...], OfferedNode] = field(default_factory=dict)
    _evaluated: dict[tuple[int, ...], EvaluatedNode] = field(default_factory=dict)
    _nodes: dict[tuple[int, ...], Node] = field(default_factory=dict)
    _images: dict[tuple[int, ...], SelectedDepth] = field(default_factory=dict)

    def root(self) -> Node:
        if () not in self._nodes:
            task = self.task
            place = centres(task.root_pose)[None]
            self._nodes[()] = Node(
                (),
                task.root_pose,
                place,
                task.oracle_root,
                task.actor_root,
                task.root_target_points,
            )
        return self._nodes[()]

    def child(self, parent: EvaluatedNode, shell_index: int) -> Node:
        """The node after taking a candidate, with the candidate's image fused into what is known."""
        path = (*parent.node.path, shell_index)
        if path not in self._nodes:
            pose = parent.candidates.shell_poses[shell_index].astype(np.float64)
            depth = parent.image(shell_index)
            after = self.task.oracle.fuse(parent.node.oracle, depth, pose, self.task.camera)
            self._nodes[path] = self._fused(parent.node, path, pose, depth, after)
        return self._nodes[path]

    def _fused(
        self,
        node: Node,
        path: tuple[int, ...],
        pose: NDArray[np.float64],
        depth: NDArray[np.float32],
        oracle: OracleState,
    ) -> Node:
        return Node(
            path,
            pose,
            np.concatenate([node.centres, centres(pose)[None]]),
            oracle,
            node.actor.advanced(pose, depth, self.task.camera),
            None
            if node.target_points is None
            else np.concatenate([node.target_points, self._points_on_target(depth, pose)]),
        )

    def selected_depth(
        self, path: tuple[int, ...], pose: NDArray[np.float32]
    ) -> SelectedDepth | None:
        """The stored image of the candidate at the end of a path."""
        camera = self.task.depth_camera
        if camera is None:
            return None
        if path not in self._images:
            depth = self.task.geometry.depth(pose[None], camera)[0]
            self._images[path] = SelectedDepth(
                depth_m=depth,
                valid_mask=depth > 0,
                focal_px=(camera.fx, camera.fy),
                principal_point_px=(camera.cx, camera.cy),
            )
        return self._images[path]

    # ----------------------------------------------------------------- one candidate instead of all

    def num_valid(self, node: Node) -> int:
        """Number of valid candidates, without their features."""
        return int(np.count_nonzero(self._judged(node)[1] == VALID_BITSET))

    def offer(self, node: Node) -> OfferedNode:
        """The candidates of a node with the verdicts and features that `evaluate` gives, and without labels."""
        if node.path not in self._offered:
            self._offered[node.path] = self._offer(node)
        return self._offered[node.path]

    def take(self, offered: OfferedNode, shell_index: int) -> TakenCandidate:
        """Renders and scores one valid candidate. Its labels are those that `evaluate` gives it."""
        task, before = self.task, offered.node.oracle
        pose = offered.candidates.shell_poses[shell_index].astype(np.float64)
        depth = task.geometry.depth(pose[None], task.camera)[0]
        after = task.oracle.fuse(before, depth, pose, task.camera)
        labels = {
            name: float(np.float32(values[0]))
            for name, values in task.oracle.score_taken(before, after).items()
        }
        return TakenCandidate(offered.node, shell_index, pose, depth, after, labels)

    def child_of(self, taken: TakenCandidate) -> Node:
        """The node after a taken candidate, as `child` makes it."""
        path = (*taken.parent.path, taken.shell_index)
        return self._fused(taken.parent, path, taken.pose, taken.depth, taken.oracle)

    def _offer(self, node: Node) -> OfferedNode:
        proposal, bitset = self._judged(node)
        return OfferedNode(node, self._shell(node, proposal, bitset, {}))

    def _judged(self, node: Node) -> tuple[Proposal, Bitset]:
        """The candidates of a node, and the reasons against each."""
        if node.path not in self._verdicts:
            self._verdicts[node.path] = self._judge(node)
        return self._verdicts[node.path]

    def _judge(self, node: Node) -> tuple[Proposal, Bitset]:
        task, proposal = self.task, self._propose(node)
        if not task.oracle.labels_are_finite(node.oracle):
            # a candidate without a finite label is not valid, and only its image shows whether it has one
            bitset = self.evaluate(node).candidates.invalid_reason_bitset
            assert bitset is not None  # every shell has its reasons
            return proposal, bitset
        rules = task.rules
        bitset = self._checked(node, proposal, task.geometry, rules.for_verdicts()).bitset
        rows, every = np.flatnonzero(bitset == VALID_BITSET), sparse_step(rules)
        proven = proven_by_sparse_depth(
            task.geometry.depth(proposal.poses[rows], task.camera, every=every),
            rules,
            poses=proposal.poses[rows],
            camera=task.camera,
            every=every,
            bounds=task.geometry.bounds,
            target_box=task.target.box,
        )
        unproven = rows[~proven]
        bitset[unproven] = self._checked_images(
            bitset[unproven],
            proposal.poses[unproven],
            task.geometry.depth(proposal.poses[unproven], task.camera),
        )
        return proposal, bitset

    # --------------------------------------------------------------------------------- evaluating

    def evaluate(self, node: Node) -> EvaluatedNode:
        if node.path not in self._evaluated:
            self._evaluated[node.path] = self._evaluate(node)
        return self._evaluated[node.path]

    def _evaluate(self, node: Node) -> EvaluatedNode:
        task = self.task
        proposal = self._propose(node)
        checked = self._checked(node, proposal, task.geometry, task.rules)
        rows = np.flatnonzero(checked.valid)
        depth = task.geometry.depth(proposal.poses[rows], task.camera)
        bitset = guard_order(checked.bitset, rows, depth, task.camera)
        bitset = self._checked_images(bitset, proposal.poses[rows], depth)
        kept = bitset[rows] == VALID_BITSET
        rows, depth = rows[kept], depth[kept]
        labels = self._labels(node, proposal, rows, depth)
        failed = rows[~_all_finite(labels, rows)]
        bitset = mark(bitset, failed, "ORACLE_DISTANCE_FAILED")
        for values in labels.values():
            values[failed] = np.nan  # a candidate has all labels or none
        self.nodes_evaluated += 1
        self.candidates_scored += len(rows)
        return EvaluatedNode(
            node,
            self._shell(node, proposal, bitset, checked.diagnostics),
            labels,
            rows,
            depth,
            self._crops(node, proposal, rows, depth),
        )

    def _checked_images(
        self, bitset: Bitset, poses: NDArray[np.float64], depth: NDArray[np.float32]
    ) -> Bitset:
        return check_depth(
            bitset,
            depth,
            self.task.rules,
            poses=poses,
            camera=self.task.camera,
            bounds=self.task.geometry.bounds,
            target_box=self.task.target.box,
        )

    def _checked(
        self, node: Node, proposal: Proposal, world: Surroundings, rules: RuleConfig
    ) -> ShellCheck:
        return check_shell(
            proposal,
            node.pose,
            world,
            rules,
            target_box=self.task.target.box,
            camera=self.task.camera,
            points=node.actor.points,
            observed=node.actor.map.occupied_centres() if rules.require_target_evidence else None,
        )

    def _propose(self, node: Node) -> Proposal:
        task = self.task
        rng = node_generator(
            campaign_seed=task.campaign_seed,
            sample_key=task.sample_key,
            target_id=task.target.target_id,
            recipe=None,
            seed=self.seed,
            path=node.path,
            purpose="candidates",
        )
        drawn = sample_shell(task.mixture, node.pose, task.target.box.centres[0], node.centres, rng)
        # rounded to float32 as in the store: a candidate is judged by exactly the pose that is stored
        with np.errstate(over="ignore"):
            kept = drawn.poses.astype(np.float32).astype(np.float64)
        return replace(drawn, poses=kept)

    def _labels(
        self,
        node: Node,
        proposal: Proposal,
        rows: NDArray[np.intp],
        depth: NDArray[np.float32],
    ) -> Labels:
        scored = self.task.oracle.score(node.oracle, depth, proposal.poses[rows], self.task.camera)
        labels = {}
        for name, values in scored.items():
            labels[name] = np.full(len(proposal.poses), np.nan, np.float32)
            labels[name][rows] = values
        return labels

    def _shell(
        self,
        node: Node,
        proposal: Proposal,
        bitset: NDArray[np.uint32],
        diagnostics: dict[str, NDArray[Any]],
    ) -> CandidateSamplingResult:
        task = self.task
        # only the verdicts on the actor's own map are kept
        rules = task.rules.for_verdicts()
        valid_actor = self._checked(node, proposal, node.actor.map, rules).valid
        features = candidate_features(
            node.actor,
            proposal.poses,
            reference_pose=node.pose,
            target=task.target.box,
            camera=task.camera,
            strategy_id=proposal.strategy_id,
            mixture_id=proposal.mixture_id,
            density=proposal.density,
            valid_actor=valid_actor,
            step_index=len(node.path),
            horizon=self.horizon,
        )
        return CandidateSamplingResult(
            shell_poses=proposal.poses.astype(np.float32),
            mask_valid=bitset == VALID_BITSET,
            invalid_reason_bitset=bitset,
            strategy_id=proposal.strategy_id,
            position_id=proposal.position_id,
            mixture_id=proposal.mixture_id,
            sampler_probability=proposal.density.astype(np.float32),
            extras={**diagnostics, "valid_actor_mask": valid_actor},
            actor_features=features,
        )

    # ---------------------------------------------------------------------- the oracle's own points

    def _points_on_target(
        self, depth: NDArray[np.float32], pose: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        used = slice(None, None, self.task.oracle.config.backprojection_stride)
        points = self.task.camera.points(depth, pose)[used, used].reshape(-1, 3)
        return points[self.task.oracle.in_target(points)]

    def _crops(
        self,
        node: Node,
        proposal: Proposal,
        rows: NDArray[np.intp],
        depth: NDArray[np.float32],
    ) -> tuple[TargetEvalCrop, ...]:
        if node.target_points is None:
            return ()
        return (
            TargetEvalCrop(points_world=node.target_points),
            *(
                TargetEvalCrop(
                    points_world=self._points_on_target(depth[at], proposal.poses[row]),
                    shell_index=int(row),
                )
                for at, row in enumerate(rows)
            ),
        )


def _all_finite(labels: Labels, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    finite = np.ones(len(rows), np.bool_)
    for values in labels.values():
        finite &= np.isfinite(values[rows])
    return finite

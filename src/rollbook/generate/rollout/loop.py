"""RolloutEngine: the loop that expands one recipe from one root into the chains that are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import decode_invalid_reason, primary_reasons
from rollbook.errors import TargetInvalid
from rollbook.generate.rollout.branching import beam
from rollbook.generate.rollout.guards import GuardView
from rollbook.generate.rollout.nodes import EvaluatedNode, Node, NodeEvaluator, RolloutTask
from rollbook.generate.rollout.policies import (
    CounterfactualSelectionPolicy,
    Selection,
    select_branches,
)
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.rollout.scorers import Scorer, ShellView
from rollbook.generate.rollout.seeds import node_generator, rng_state_digest
from rollbook.store.records import CounterfactualRolloutResult, RolloutChain, RolloutStep


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    node: Node
    steps: tuple[RolloutStep, ...] = ()
    score: float = 0.0
    tie_break: float = 0.0
    """Decides between chains of equal score: the gain of the scene, if the scorer may know it."""
    ended: bool = False
    """No candidate of its last node could be taken. The chain is kept but not expanded again."""


class RolloutEngine:
    """Runs recipes over one task. Recipes that share a seed and a horizon share their nodes."""

    def __init__(self, task: RolloutTask) -> None:
        self.task = task
        self._evaluators: dict[tuple[int | None, int], NodeEvaluator] = {}

    def evaluator(self, recipe: RolloutRecipeConfig) -> NodeEvaluator:
        key = (recipe.seed, recipe.horizon)
        if key not in self._evaluators:
            self._evaluators[key] = NodeEvaluator(self.task, *key)
        return self._evaluators[key]

    @property
    def candidates_scored(self) -> int:
        return sum(each.candidates_scored for each in self._evaluators.values())

    def root_valid(self, recipe: RolloutRecipeConfig) -> int:
        """Number of valid candidates at the root. Raises TargetInvalid with the reasons if there is none."""
        evaluator = self.evaluator(recipe)
        root = evaluator.evaluate(evaluator.root())
        if not root.num_valid:
            raise _nothing_valid(self.task.target.target_id, root)
        return root.num_valid

    def run(self, recipe: RolloutRecipeConfig) -> CounterfactualRolloutResult:
        """Expands every chain step by step and keeps the best `beam_width` chains after each step."""
        self.root_valid(recipe)
        evaluator = self.evaluator(recipe)
        scorer = recipe.loaded_scorer()
        frontier = [_Chain(evaluator.root())]
        for step in range(recipe.horizon):
            expanded: list[_Chain] = []
            for chain in frontier:
                ended = chain.ended
                expanded += [chain] if ended else self._expand(chain, recipe, evaluator, scorer)
            kept = beam(
                [chain.score for chain in expanded],
                recipe.beam_width,
                self._rng(recipe, (), f"beam after step {step}"),
                [chain.tie_break for chain in expanded],
            )
            frontier = [expanded[index] for index in kept]
            if all(chain.ended for chain in frontier):
                break
            if step + 1 < recipe.horizon:
                frontier = [_at_next_node(chain, evaluator) for chain in frontier]
        task = self.task
        return CounterfactualRolloutResult(
            root_pose_world=task.root_pose.astype(np.float32),
            chains=_with_parents([_with_images(chain, evaluator) for chain in frontier]),
            policy=policy_name(recipe),
            horizon=recipe.horizon,
            branch_factor=recipe.branch_factor,
            beam_width=recipe.beam_width,
        )

    def _expand(
        self,
        chain: _Chain,
        recipe: RolloutRecipeConfig,
        evaluator: NodeEvaluator,
        scorer: Scorer,
    ) -> list[_Chain]:
        """Copies of the chain with one more step, one for every selected action."""
        evaluated = evaluator.evaluate(chain.node)
        rng = self._rng(recipe, chain.node.path, "selection")
        state = rng_state_digest(rng)
        scores = scorer(self._view(evaluated))
        # labels must not break ties of a scorer that does not read labels
        ties = evaluated.labels.get("scene_root_gain") if scorer.reads_labels else None
        selections = select_branches(
            recipe.selection_policy,
            scores,
            evaluated.candidates.mask_valid,
            recipe.branches.count(len(chain.node.path), rng),
            rng,
            tie_break=ties,
            temperature=recipe.selection_temperature,
            epsilon=recipe.epsilon,
            guards=recipe.guards,
            shell=_guard_view(evaluated),
        )
        if not selections:
            return [replace(chain, ended=True)]
        return [
            replace(
                chain,
                steps=(
                    *chain.steps,
                    self._step(evaluated, each, recipe, state),
                ),
                score=chain.score + float(scores[each.shell_index]),
                tie_break=chain.tie_break
                + (0.0 if ties is None else float(ties[each.shell_index])),
            )
            for each in selections
        ]

    def _rng(
        self, recipe: RolloutRecipeConfig, path: tuple[int, ...], purpose: str
    ) -> np.random.Generator:
        return node_generator(
            campaign_seed=self.task.campaign_seed,
            sample_key=self.task.sample_key,
            target_id=self.task.target.target_id,
            recipe=recipe.name,
            seed=recipe.seed,
            path=path,
            purpose=purpose,
        )

    def _view(self, evaluated: EvaluatedNode) -> ShellView:
        step = len(evaluated.node.path)
        recorded = self.task.recorded
        return ShellView(
            features=_features(evaluated),
            labels=evaluated.labels,
            poses=evaluated.candidates.shell_poses.astype(np.float64),
            valid=evaluated.candidates.mask_valid,
            reference_pose=evaluated.node.pose,
            visited=evaluated.node.centres,
            next_recorded=recorded[step] if step < len(recorded) else None,
        )

    def _step(
        self,
        evaluated: EvaluatedNode,
        selection: Selection,
        recipe: RolloutRecipeConfig,
        rng_state: bytes,
    ) -> RolloutStep:
        soft = recipe.selection_policy is CounterfactualSelectionPolicy.TEMPERATURE_SOFTMAX
        return RolloutStep(
            candidates=evaluated.candidates,
            selected_shell_index=selection.shell_index,
            metric_vectors=evaluated.labels,
            score_label=recipe.stored_scorer_name,
            temperature=recipe.selection_temperature if soft else None,
            selection_logits=selection.logits,
            selection_probabilities=selection.probabilities,
            selection_log_probabilities=selection.log_probabilities,
            rng_state_digest=rng_state,
            target_eval_crops=evaluated.crops,
            crop_policy=self.task.oracle.crop_policy if evaluated.crops else None,
        )


def policy_name(recipe: RolloutRecipeConfig) -> str:
    """The stored policy name: the selection policy, and the scorer if it is not the policy's default."""
    policy = recipe.selection_policy.value
    return policy if recipe.scorer is None else f"{policy}:{recipe.stored_scorer_name}"


def _features(evaluated: EvaluatedNode) -> NDArray[np.float32]:
    features = evaluated.candidates.actor_features
    assert features is not None  # nodes.py gives every shell its features
    return features


def _guard_view(evaluated: EvaluatedNode) -> GuardView:
    shell = evaluated.candidates
    assert shell.strategy_id is not None
    return GuardView(
        poses=shell.shell_poses.astype(np.float64),
        strategy_id=shell.strategy_id,
        target_bearing_deg=shell.extras["target_bearing_yaw_deg"].astype(np.float64),
        history=evaluated.node.centres,
    )


def _at_next_node(chain: _Chain, evaluator: NodeEvaluator) -> _Chain:
    """The chain at the node to which its last step leads."""
    if chain.ended:
        return chain
    last = chain.steps[-1].selected_shell_index
    return replace(chain, node=evaluator.child(evaluator.evaluate(chain.node), last))


def _with_images(chain: _Chain, evaluator: NodeEvaluator) -> _Chain:
    """Renders the stored images, at the end: chains that the beam dropped need none."""
    taken = _selected_path(chain)
    steps = tuple(
        replace(
            step,
            selected_depth=evaluator.selected_depth(
                taken[: number + 1], step.candidates.shell_poses[step.selected_shell_index]
            ),
        )
        for number, step in enumerate(chain.steps)
    )
    return replace(chain, steps=steps)


def _selected_path(chain: _Chain) -> tuple[int, ...]:
    return tuple(step.selected_shell_index for step in chain.steps)


def _with_parents(chains: list[_Chain]) -> tuple[RolloutChain, ...]:
    """Links each chain to the earlier chain with which it shares the most steps."""
    taken = [_selected_path(chain) for chain in chains]
    linked: list[RolloutChain] = []
    for number, chain in enumerate(chains):
        shared = [_common(taken[earlier], taken[number]) for earlier in range(number)]
        parent = int(np.argmax(shared)) if shared else None
        linked.append(
            RolloutChain(
                steps=chain.steps,
                terminated_early=chain.ended,
                parent_chain=parent,
                fork_step_index=None if parent is None else shared[parent],
            )
        )
    return tuple(linked)


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


def _nothing_valid(target_id: str, root: EvaluatedNode) -> TargetInvalid:
    bitset = root.candidates.invalid_reason_bitset
    assert bitset is not None
    codes, counts = np.unique(primary_reasons(bitset), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    named = [f"{counts[at]} {decode_invalid_reason(int(codes[at]))}" for at in order]
    return TargetInvalid(
        target_id=target_id,
        reason=decode_invalid_reason(int(codes[order[0]])),
        detail=f"none of {len(bitset)} candidates at the root can be taken: {', '.join(named)}",
    )

"""Preview: computes one rollout and draws it. It uses the same nodes as a run, so it shows what a store would hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from rollbook.errors import ConfigurationError, TargetExists, TargetInvalid
from rollbook.files import write_bytes
from rollbook.generate.actor.actor import ActorState
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.rollout.loop import RolloutEngine
from rollbook.generate.rollout.nodes import EvaluatedNode, Node, NodeEvaluator
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.rollout_picture import Matplotlib, ShownRollout, picture_png
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.targets.selection import SelectedTarget, TargetSelection
from rollbook.store.records import CounterfactualRolloutResult, RolloutChain


def draw_preview(
    config: RolloutDatasetWriterConfig,
    *,
    row: int,
    target: int | None,
    recipe: str | None,
    out: Path,
    replace: bool,
) -> str:
    """Rolls out one recipe from one target of one row, draws it, and returns a summary of one line.

    `row` is a number within the rows that the config selects, `target` a rank. The default target is the first that can
    be rolled out, the default recipe the first of the config.
    """
    if os.path.lexists(out) and not replace:
        raise TargetExists(path=str(out), detail="the file exists")
    pictures = Matplotlib.loaded()
    shown = rolled_out(config, row, target, recipe)
    write_bytes(out, picture_png(pictures, shown), replace=replace)
    return shown.in_words()


def rolled_out(
    config: RolloutDatasetWriterConfig, row: int, target: int | None, recipe: str | None
) -> ShownRollout:
    chosen = _recipe_named(config, recipe)
    source, rows = config.setup_target().rows(one_split=False)
    if not 0 <= row < len(rows):
        message = f"row is {row}, the config chooses {len(rows)} rows, counted from 0"
        raise ConfigurationError(message=message)
    roller, opened = RowRoller(config, source), source.row(rows[row])
    assert opened.oracle is not None  # the writer opens sources whole
    actor = ActorState.from_view(opened.actor)
    selection, _ = roller.select(opened, opened.oracle, actor)
    for wanted in _targets_of_rank(selection, target, opened.sample_key):
        try:
            engine = RolloutEngine(roller.task(opened, opened.oracle, actor, wanted))
            result = engine.run(chosen)
            break
        except TargetInvalid:
            if wanted.rank in (target, len(selection.targets) - 1):
                raise
    nodes, taken, end = _nodes_along(engine.evaluator(chosen), _best_chain(result))
    return ShownRollout(
        row=opened,
        true_box=opened.oracle.boxes.take([wanted.gt_box_row]),
        target=wanted,
        recipe=chosen,
        task=engine.task,
        nodes=nodes,
        taken=taken,
        end=end,
        chains=len(result.chains),
    )


def _targets_of_rank(
    selection: TargetSelection, target: int | None, sample_key: str
) -> list[SelectedTarget]:
    """The target of that rank, or all targets if no rank is given."""
    if selection.targets and target is None:
        return selection.targets
    if target is None or not 0 <= target < len(selection.targets):
        have = [f"{each.rank} {each.target_class_name}" for each in selection.targets]
        asked = "" if target is None else f"target is {target}, "
        reason = f" ({selection.skip_reason})" if selection.skip_reason else ""
        message = f"{asked}{sample_key} has: {', '.join(have) or 'no target'}{reason}"
        raise ConfigurationError(message=message)
    return [selection.targets[target]]


def _recipe_named(config: RolloutDatasetWriterConfig, name: str | None) -> RolloutRecipeConfig:
    named = {each.name: each for each in config.recipes}
    if name is None:
        return config.recipes[0]
    if name not in named:
        message = f"recipe is {name!r}, the config has: {', '.join(named)}"
        raise ConfigurationError(message=message)
    return named[name]


def _best_chain(result: CounterfactualRolloutResult) -> RolloutChain:
    def gained(chain: RolloutChain) -> float:
        taken = [
            step.metric_vectors["target_root_gain"][step.selected_shell_index]
            for step in chain.steps
        ]
        return float(np.sum(taken, dtype=np.float64))

    return max(result.chains, key=gained)


def _nodes_along(
    evaluator: NodeEvaluator, chain: RolloutChain
) -> tuple[tuple[EvaluatedNode, ...], tuple[int, ...], Node]:
    """The evaluated nodes along a chain, the indices taken, and the final node, which is not evaluated."""
    taken = tuple(step.selected_shell_index for step in chain.steps)
    node, nodes = evaluator.root(), []
    for index in taken:
        nodes.append(evaluator.evaluate(node))
        node = evaluator.child(nodes[-1], index)
    return tuple(nodes) or (evaluator.evaluate(node),), taken, node

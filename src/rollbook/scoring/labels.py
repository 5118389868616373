"""Labels of a pair: the scene, task, robot and so on of its baseline. Clusters and slices are made of them.

They are read from the recorded baseline, never from a result: whoever sends results must not choose the clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rollbook.contracts.gate import FOUND_CLUSTERS, NO_CLUSTERS, Gate

Labels: TypeAlias = Mapping[str, tuple[str, ...]]
"""By name. An episode has several tags, and at most one value of everything else."""

SCENE, TASK = "scene", "task"
STANDARD_SLICES = (TASK, SCENE, "env_version", "robot", "tag")
_ALSO_CALLED = {
    SCENE: ("scene", "scene_id", "rollout.scene", "rollout.scene_id"),
    TASK: ("task", "task_id", "task_name", "task_index", "language_instruction", "group"),
}
_LONGEST = 200


def label_names(gate: Gate) -> tuple[str, ...]:
    """The labels that a decision by this gate uses, or shows."""
    named = [guard.by for guard in gate.guard_slices]
    if gate.cluster not in (FOUND_CLUSTERS, NO_CLUSTERS):
        named.append(gate.cluster)
    return tuple(dict.fromkeys([*STANDARD_SLICES, *named]))


def labels_of(
    names: Sequence[str],
    metadata: Mapping[str, Any],
    *,
    robot: str | None = None,
    env_version: str | None = None,
    tags: Sequence[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Those of the named labels that the baseline has. A name with dots is a path into the metadata."""
    columns = {"robot": robot, "env_version": env_version}
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name == "tag":
            values = tuple(dict.fromkeys(tags))
        elif columns.get(name) is not None:
            values = (str(columns[name]),)
        else:
            values = _first(metadata, _ALSO_CALLED.get(name, (name,)))
        if values:
            found[name] = values
    return found


def cluster_name(gate: Gate, labels: Sequence[Labels | None]) -> str | None:
    """The label that clusters are made of; None where every pair counts alone.

    With `auto`: the scene, else the task, where at least two pairs share one.
    """
    if gate.cluster != FOUND_CLUSTERS:
        return None if gate.cluster == NO_CLUSTERS else gate.cluster
    for name in (SCENE, TASK):
        values = [each[name] for each in labels if each and name in each]
        if len(set(values)) < len(values):
            return name
    return None


def _first(metadata: Mapping[str, Any], paths: Sequence[str]) -> tuple[str, ...]:
    for path in paths:
        value: Any = metadata.get(path)
        if value is None and "." in path:
            value = metadata
            for part in path.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str | bool | int | float):
            return (str(value)[:_LONGEST],)
    return ()

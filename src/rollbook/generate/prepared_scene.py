"""PreparedScene: one scene of a source store, ready for episodes, with the rows and targets that were used so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from rollbook.errors import TargetInvalid
from rollbook.generate.actor.actor import ActorState
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.rollout.nodes import RolloutTask
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.sources.reader import OracleView, SourceRow, SourceStore
from rollbook.generate.targets.selection import SelectedTarget

_OF_A_RUN = (
    *("source", "store", "recipes", "workers", "max_samples", "max_targets_per_sample"),
    *("min_valid_root_candidates", "require_label_valid"),
)
"""Settings that choose among prepared rows and targets and do not change them."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRow:
    row: SourceRow
    oracle: OracleView
    actor: ActorState
    targets: Sequence[SelectedTarget]
    skip_reason: str | None
    tasks: dict[int, RolloutTask | TargetInvalid] = field(default_factory=dict)
    """By the rank of their target: the prepared task, or why there is none."""


class PreparedScene:
    """Rows and tasks are prepared when they are first asked for, and then kept."""

    def __init__(self, config: RolloutDatasetWriterConfig, source: SourceStore) -> None:
        self._source = source
        self._roller = RowRoller(config, source)  # keeps the geometry of its last scene: this one
        self._rows: dict[int, PreparedRow] = {}
        self.nbytes = 0
        """Memory that its arrays use, and an estimate for Embree's."""

    @staticmethod
    def key(config: RolloutDatasetWriterConfig, source: SourceStore, scene_id: str) -> Hashable:
        """Equal for scenes that are prepared alike, also by different environments."""
        settings = [
            getattr(config, each.name)
            for each in dataclasses.fields(config)
            if each.name not in _OF_A_RUN
        ]
        return source.manifest_digest, scene_id, msgspec.json.encode(settings)

    def row(self, index: int) -> PreparedRow:
        """A row of the source store, which must be of this scene."""
        if index not in self._rows:
            opened = self._source.row(index)
            assert opened.oracle is not None  # the writer opens sources whole
            geometry = self._roller.geometry_of(opened.oracle)
            boxes, continuation = opened.oracle.boxes, opened.oracle.continuation
            # with the mesh of the geometry, so that the source need not read it again for every target
            oracle = OracleView(geometry.mesh, boxes, continuation, opened.oracle.continuation_t_ns)
            actor = ActorState.from_view(opened.actor)
            selection, _ = self._roller.select(opened, oracle, actor)
            self._rows[index] = PreparedRow(
                opened, oracle, actor, selection.targets, selection.skip_reason
            )
            self._weigh()
        return self._rows[index]

    def task(self, row: PreparedRow, target: SelectedTarget) -> RolloutTask:
        """A target prepared for rollouts. Raises TargetInvalid if it cannot be measured."""
        if target.rank not in row.tasks:
            try:
                row.tasks[target.rank] = self._roller.task(row.row, row.oracle, row.actor, target)
            except TargetInvalid as error:
                row.tasks[target.rank] = error
            self._weigh()
        found = row.tasks[target.rank]
        if isinstance(found, TargetInvalid):
            raise TargetInvalid(target_id=found.target_id, reason=found.reason, detail=found.detail)
        return found

    def _weigh(self) -> None:
        self.nbytes = held_bytes([self._roller, self._rows])


def held_bytes(*held: object) -> int:
    """Bytes of all arrays that these objects hold, each array once. The source store itself is not counted."""
    arrays: dict[int, int] = {}
    met: set[int] = set()
    waiting: list[object] = list(held)
    while waiting:
        each = waiting.pop()
        if id(each) in met:
            continue
        met.add(id(each))
        if isinstance(each, np.ndarray):
            owner = each
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            arrays[id(owner)] = owner.nbytes
        elif not isinstance(each, SourceStore):
            arrays[id(each)] = getattr(each, "nbytes_outside_arrays", 0)
            waiting += _parts(each)
    return sum(arrays.values())


def _parts(each: Any) -> Iterator[object]:
    """What a container or an object of our own holds; nothing of anything else."""
    if isinstance(each, dict):
        yield from each.values()
    elif isinstance(each, list | tuple):
        yield from each
    elif type(each).__module__.startswith("rollbook.generate."):
        yield from getattr(each, "__dict__", {}).values()
        for kind in type(each).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if name != "__weakref__" and hasattr(each, name):
                    yield getattr(each, name)

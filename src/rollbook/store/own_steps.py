"""Own copies of a record's arrays: a writer computes columns later, when the caller may have filled them anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from rollbook.contracts.read_only import read_only
from rollbook.store.records import CandidateSamplingResult, RolloutStep

_SELECTION = ("selection_logits", "selection_probabilities", "selection_log_probabilities")
_SHELL = ("strategy_id", "position_id", "mixture_id", "sampler_probability", "actor_features")


def own_steps(steps: Sequence[RolloutStep]) -> list[RolloutStep]:
    """The steps with columns that nobody else can change.

    Not among them are poses and reasons, which `joined_shells` has copied already, and images and points, which the
    writer handles at once.
    """
    return _OwnArrays().steps(steps)


class _OwnArrays:
    """Chains that fork share their shells and labels; each is copied once."""

    def __init__(self) -> None:
        self._shells: dict[int, CandidateSamplingResult] = {}
        self._vectors: dict[int, dict[str, NDArray[Any]]] = {}

    def steps(self, steps: Sequence[RolloutStep]) -> list[RolloutStep]:
        return [
            replace(
                step,
                candidates=self._shell(step.candidates),
                metric_vectors=self._mapping(step.metric_vectors),
                **_own(step, _SELECTION),
            )
            for step in steps
        ]

    def _shell(self, shell: CandidateSamplingResult) -> CandidateSamplingResult:
        if id(shell) not in self._shells:
            self._shells[id(shell)] = replace(
                shell,
                mask_valid=read_only(shell.mask_valid),
                extras=self._mapping(shell.extras),
                **_own(shell, _SHELL),
            )
        return self._shells[id(shell)]

    def _mapping(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if id(arrays) not in self._vectors:
            own = {name: read_only(values) for name, values in arrays.items()}
            self._vectors[id(arrays)] = own
        return self._vectors[id(arrays)]


def _own(record: object, names: Sequence[str]) -> dict[str, Any]:
    found = {name: getattr(record, name) for name in names}
    return {name: None if each is None else read_only(each) for name, each in found.items()}

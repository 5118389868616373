"""Result columns: the results of a run as arrays, sorted by baseline.

Any client may send results, and the server only checks that they are JSON. A value that is not a valid number is left
out and counted. It never becomes a zero, and it never stops a rollup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EVIDENCE, EVIDENCE_KEY, EvalResult
from rollbook.contracts.outcomes import OUTCOMES, Outcome

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MEASURING = EVIDENCE[: EVIDENCE.index("open_loop")]
"""Kinds of evidence that measure an outcome."""
_NOT_MEASURED = EVIDENCE.index("not_measured")
_ASSERTED = EVIDENCE.index("asserted")
_LARGEST = 1e300
_PLAIN = {float, int, bool, type(None)}


@dataclass(frozen=True)
class OutcomeColumn:
    """One outcome of both policies, per row. NaN where it is unknown."""

    baseline: Floats
    candidate: Floats
    evidence: NDArray[np.int8]
    """Positions in `EVIDENCE`."""
    unusable: int
    """Values that were sent and are not a valid outcome."""

    @property
    def known(self) -> Flags:
        return np.isfinite(self.baseline) & np.isfinite(self.candidate)

    @property
    def has_evidence(self) -> Flags:
        """Rows whose evidence is of a kind that measures an outcome."""
        return self.evidence < len(_MEASURING)


@dataclass(frozen=True)
class ResultColumns:
    """One row per baseline, sorted by its id, so that the order of the results does not matter."""

    ids: tuple[str, ...]
    complete: Flags
    failed: Flags
    outcomes: Mapping[Outcome, OutcomeColumn]
    env_mismatch: Flags
    nondeterministic: Flags
    metrics: tuple[Mapping[str, Any], ...]
    repeated: int
    """Results for a baseline that already had one."""
    situations: NDArray[np.intp] | None = None
    """Per row, the first row of the same situation. None where no two rows are known to share one."""

    @classmethod
    def of(cls, results: Sequence[EvalResult]) -> ResultColumns:
        rows, repeated = _one_per_baseline(results)
        metrics = tuple(_as_mapping(row.metrics) or {} for row in rows)
        complete = np.array([row.status == "complete" for row in rows], bool)
        stated = [_mapping(blob, EVIDENCE_KEY) for blob in metrics]
        repro = [_mapping(blob, "repro") or {} for blob in metrics]
        return cls(
            ids=tuple(row.baseline_episode_id for row in rows),
            complete=complete,
            failed=np.array([row.status == "failed" for row in rows], bool),
            outcomes=_outcomes(metrics, stated, complete),
            env_mismatch=np.array([_env_differs(each) for each in repro], bool),
            nondeterministic=np.array(
                [_is_not_true(each, "deterministic") for each in repro], bool
            ),
            metrics=metrics,
            repeated=repeated,
            situations=_situations(repro) if any(repro) else None,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def of_baselines(self) -> set[Outcome]:
        """The outcomes that at least one baseline has."""
        return {name for name, each in self.outcomes.items() if np.isfinite(each.baseline).any()}

    def numbers(self, *path: str) -> Floats:
        """Numbers of the complete rows under this path."""
        values: list[Any] = [
            blob for blob, done in zip(self.metrics, self.complete, strict=True) if done
        ]
        for key in path:
            values = [value.get(key) if isinstance(value, Mapping) else None for value in values]
        column, _ = numbers(values)
        return column[np.isfinite(column)]


def _one_per_baseline(results: Sequence[EvalResult]) -> tuple[list[EvalResult], int]:
    """Of several results for one baseline, only the least favourable one counts."""
    rows = sorted(results, key=lambda row: row.baseline_episode_id)
    ids = [row.baseline_episode_id for row in rows]
    if len(set(ids)) == len(ids):
        return rows, 0
    order = {"failed": 0, "complete": 1}
    rows.sort(
        key=lambda row: (
            row.baseline_episode_id,
            order.get(row.status, 2),
            json.dumps(row.metrics, sort_keys=True, default=str),
        )
    )
    kept = [
        row
        for place, row in enumerate(rows)
        if place == 0 or rows[place - 1].baseline_episode_id != row.baseline_episode_id
    ]
    return kept, len(rows) - len(kept)


def _situations(repro: Sequence[Mapping[str, Any]]) -> NDArray[np.intp] | None:
    """Rows that ran again in one environment version from one seed are one situation; so are rows to which the runner
    gave the same name. Every other row is a situation of its own: recordings often carry one seed for a whole day, and
    still differ."""
    first: dict[Hashable, int] = {}
    found = np.arange(len(repro))
    for row, stated in enumerate(repro):
        start = _situation_key(stated)
        if start is not None:
            found[row] = first.setdefault(start, row)
    return found if (found != np.arange(len(repro))).any() else None


def _situation_key(repro: Mapping[str, Any]) -> Hashable | None:
    named = repro.get("situation")
    if isinstance(named, str):
        return named
    version = (_mapping(repro, "env_version") or {}).get("baseline")
    seeds = _mapping(repro, "seed") or {}
    seed = seeds.get("baseline")
    if version is None or seed is None or seeds.get("candidate") is None:
        return None
    if isinstance(version, str) and isinstance(seed, (int, float, str)):
        return version, seed
    return json.dumps([version, seed], sort_keys=True, default=str)


def _outcomes(
    metrics: Sequence[Mapping[str, Any]],
    stated: Sequence[Mapping[str, Any] | None],
    complete: Flags,
) -> dict[Outcome, OutcomeColumn]:
    sides = {name: _sides(name, metrics) for name in OUTCOMES}
    foreign = np.array([each is None for each in stated], bool)
    given = foreign & complete
    if given.any():
        given &= np.any([_differs(*sides[name][:2]) for name in OUTCOMES], axis=0)
    columns = {}
    for name, (baseline, candidate, unusable) in sides.items():
        kinds = np.array([_kind(each, name) for each in stated], np.int8)
        kinds[given] = _ASSERTED
        columns[name] = OutcomeColumn(baseline, candidate, kinds, unusable)
    return columns


def _differs(baseline: Floats, candidate: Floats) -> Flags:
    """A client that states no evidence may have copied the baseline's outcomes. Its outcomes count as asserted only in
    rows in which one of them differs."""
    return np.asarray(np.isfinite(candidate) & (candidate != baseline))


def _sides(name: Outcome, metrics: Sequence[Mapping[str, Any]]) -> tuple[Floats, Floats, int]:
    """One outcome of both policies, and the number of values that are not valid."""
    kind = OUTCOMES[name]
    lowest = -_LARGEST if kind.lowest is None else kind.lowest
    sides = []
    unusable = 0
    for side in ("baseline", "candidate"):
        column, refused = numbers([blob.get(f"{name}_{side}") for blob in metrics])
        invalid = column < lowest
        if kind.type is bool:
            invalid = np.isfinite(column) & (column != 0) & (column != 1)
        column[invalid] = np.nan
        unusable += refused + int(invalid.sum())
        sides.append(column)
    return sides[0], sides[1], unusable


def _kind(stated: Mapping[str, Any] | None, name: str) -> int:
    if stated is None:
        return _NOT_MEASURED
    word = stated.get(name)
    return EVIDENCE.index(word) if word in EVIDENCE else _NOT_MEASURED


def _env_differs(repro: Mapping[str, Any]) -> bool:
    """Whether the candidate ran in another environment or from another seed than the baseline."""
    if _is_not_true(repro, "env_match"):
        return True
    seed = _mapping(repro, "seed") or {}
    seeds = (seed.get("baseline"), seed.get("candidate"))
    return None not in seeds and seeds[0] != seeds[1]


def _is_not_true(repro: Mapping[str, Any], name: str) -> bool:
    """Whether the value is anything but true. Null means that nobody checked."""
    return repro.get(name) not in (None, True)


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    return _as_mapping(values.get(key))


def _as_mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def numbers(values: Sequence[object]) -> tuple[Floats, int]:
    """Values as one column, NaN for null; and how many were neither null nor a usable number."""
    if {type(value) for value in values} <= _PLAIN:
        try:
            column = np.array(values, np.float64)
        except OverflowError:
            column = np.array([_number(value) for value in values], np.float64)
    else:
        column = np.array([_number(value) for value in values], np.float64)
    column = column.reshape(len(values))
    column[~(np.abs(column) <= _LARGEST)] = np.nan
    given = sum(value is not None for value in values)
    return column, given - int(np.isfinite(column).sum())


def _number(value: object) -> float:
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan

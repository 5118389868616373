"""Result columns: the results of a run as arrays, sorted by baseline.

Any client may send results, and the server only checks that they are JSON. A value that is not a valid number is left
out and counted. It never becomes a zero, and it never stops a rollup.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EVIDENCE, EVIDENCE_KEY, INFRASTRUCTURE, EvalResult
from rollbook.contracts.outcomes import OUTCOMES, Outcome

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MEASURING = EVIDENCE[: EVIDENCE.index("open_loop")]
"""Kinds of evidence that measure an outcome."""
_NOT_MEASURED = EVIDENCE.index("not_measured")
_ASSERTED = EVIDENCE.index("asserted")
_CLOSED_LOOP = EVIDENCE.index("closed_loop")
_LONGEST_WORD = 60
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

    @property
    def in_closed_loop(self) -> Flags:
        return np.asarray(self.evidence == _CLOSED_LOOP)

    def first(self, count: int) -> OutcomeColumn:
        cut = (self.baseline[:count], self.candidate[:count], self.evidence[:count])
        return OutcomeColumn(*cut, self.unusable)


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
    infrastructure: Flags | None = None
    """Failed rows in which the candidate is not the reason. None: there are none."""
    unverified: Flags | None = None
    """Rows of which nobody checked that the environment is the recorded one. None: there are none."""
    env_changes: Mapping[str, int] = field(default_factory=dict)
    """What differed between the recorded environment and today's, and in how many rows."""
    starts: tuple[str | None, ...] | None = None
    """Digest of the first observation of each row whose start is not known otherwise. None: no row has one."""
    trusted: int = 0
    """Rows whose policy was shown the whole record of the baseline, its seed and its outcome included."""

    @classmethod
    def of(cls, results: Sequence[EvalResult]) -> ResultColumns:
        rows, repeated = _one_per_baseline(results)
        metrics = tuple(_as_mapping(row.metrics) or {} for row in rows)
        complete = np.array([row.status == "complete" for row in rows], bool)
        failed = np.array([row.status == "failed" for row in rows], bool)
        lost = [(row.error or "").startswith(INFRASTRUCTURE) for row in rows]
        stated = [_mapping(blob, EVIDENCE_KEY) for blob in metrics]
        repro = [_mapping(blob, "repro") or {} for blob in metrics]
        return cls(
            ids=tuple(row.baseline_episode_id for row in rows),
            complete=complete,
            failed=failed,
            outcomes=_outcomes(metrics, stated, complete),
            env_mismatch=np.array([_env_differs(each) for each in repro], bool),
            nondeterministic=np.array(
                [_is_not_true(each, "deterministic") for each in repro], bool
            ),
            metrics=metrics,
            repeated=repeated,
            situations=_situations(repro) if any(repro) else None,
            infrastructure=failed & np.array(lost, bool),
            unverified=np.array(
                [not isinstance(each.get("verified"), bool) for each in repro], bool
            ),
            env_changes=Counter(word for each in repro for word in _env_changes(each)),
            starts=_starts(repro) if any(repro) else None,
            trusted=sum(each.get("trusted") is True for each in repro),
        )

    def first(self, count: int) -> ResultColumns:
        """The rows of the first baselines by id. Facts about the environment stay those of all rows."""
        situations, starts = self.situations, self.starts
        return replace(
            self,
            ids=self.ids[:count],
            complete=self.complete[:count],
            failed=self.failed[:count],
            outcomes={name: column.first(count) for name, column in self.outcomes.items()},
            env_mismatch=self.env_mismatch[:count],
            nondeterministic=self.nondeterministic[:count],
            metrics=self.metrics[:count],
            situations=None if situations is None else situations[:count],
            infrastructure=None if self.infrastructure is None else self.infrastructure[:count],
            unverified=None if self.unverified is None else self.unverified[:count],
            starts=None if starts is None else starts[:count],
        )

    @property
    def crashed(self) -> Flags:
        """Failed rows in which the candidate is the reason."""
        return self.failed if self.infrastructure is None else self.failed & ~self.infrastructure

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def of_baselines(self) -> set[Outcome]:
        """The outcomes that at least one baseline has."""
        return {name for name, each in self.outcomes.items() if np.isfinite(each.baseline).any()}

    def numbers(self, *path: str) -> Floats:
        """Numbers of the complete rows under this path."""
        column = self.column(*path)[self.complete]
        return column[np.isfinite(column)]

    def column(self, *path: str) -> Floats:
        """The number of each row under this path; NaN where there is none."""
        values: list[Any] = list(self.metrics)
        for key in path:
            values = [value.get(key) if isinstance(value, Mapping) else None for value in values]
        return numbers(values)[0]


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
    """Rows to which the runner gave the same name are one situation. A seed names none: recordings often carry one seed
    for a whole day, and an environment may ignore it."""
    first: dict[str, int] = {}
    found = np.arange(len(repro))
    for row, stated in enumerate(repro):
        named = stated.get("situation")
        if isinstance(named, str):
            found[row] = first.setdefault(named, row)
    return found if (found != np.arange(len(repro))).any() else None


def _starts(repro: Sequence[Mapping[str, Any]]) -> tuple[str | None, ...] | None:
    """First observations of the rows that were not run again; the others are known by their situation."""
    given = [stated.get("first_observation") for stated in repro]
    found = tuple(start if isinstance(start, str) else None for start in given)
    return found if any(found) else None


def _env_changes(repro: Mapping[str, Any]) -> set[str]:
    """Words for what differs from the recorded environment. A check that failed without a word is a change too."""
    changed = repro.get("env_changed")
    if changed is None or changed == []:
        unexplained = _is_not_true(repro, "verified") and not _is_not_true(repro, "deterministic")
        return {"replay"} if unexplained else set()
    words = changed if isinstance(changed, list) else [changed]
    return {str(word)[:_LONGEST_WORD] for word in words}


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

"""The pairs of an eval run: what came out on both sides, and what the address of the page asks to see of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlencode

import numpy as np
from starlette.datastructures import QueryParams

from rollbook.contracts.evals import INFRASTRUCTURE
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.result_columns import OutcomeColumn, ResultColumns
from rollbook.server.evals.runs import as_results
from rollbook.server.http.responses import Problem
from rollbook.server.queries import EvalResultRow

Show: TypeAlias = Literal["all", "lost", "won", "failed"]
Flip: TypeAlias = Literal["lost", "won"]
Sort: TypeAlias = Literal[
    "number", "label", "success", "baseline", "candidate", "change", "actions"
]
SHOWS: tuple[Show, ...] = get_args(Show)
SORTS: tuple[Sort, ...] = get_args(Sort)
_MOST_PAGES = 1_000_000
_PREFERRED: tuple[Outcome, ...] = ("reward_total", "time_to_goal_s", "collision_count", "success")
"""The outcome of the table and the picture, unless the address names one. Success stands in the table anyway."""
_LABELS = ("task", "scene")
_LONGEST_LINE = 160


@dataclass(frozen=True, slots=True)
class Pair:
    number: int
    """Its place among the baselines of the run, from 1."""
    baseline_id: str
    candidate_id: str | None
    status: str
    label: str
    """The task of the baseline, or its scene."""
    values: Mapping[Outcome, tuple[float | None, float | None]]
    """Both sides. A candidate's side that was not measured is None."""
    action_distance: float | None
    moments: Sequence[tuple[int, float | None, float]]
    """The steps at which the actions differ most: step, time in seconds if known, and distance."""
    error: str | None
    attempts: int
    retried: bool

    def gain(self, metric: Outcome) -> float | None:
        """Above zero is better."""
        before, after = self.values[metric]
        if before is None or after is None:
            return None
        return after - before if OUTCOMES[metric].higher_is_better else before - after

    def change(self, metric: Outcome) -> float | None:
        before, after = self.values[metric]
        return None if before is None or after is None else after - before

    @property
    def error_line(self) -> str | None:
        """The first line of the error."""
        if self.status != "failed":
            return None
        line = next(iter((self.error or "").strip().splitlines()), "") or "no reason was given"
        return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"


@dataclass(frozen=True)
class PairQuery:
    """What the address says about the pairs."""

    metric: Outcome
    show: Show = "all"
    sort: Sort = "change"
    is_reversed: bool = False
    page: int = 1

    def address(self, run_path: str, **changes: Any) -> str:
        """The same page of the run with these changes; another filter or order begins with its first page."""
        asked = replace(self, **({"page": 1} | changes))
        query = {
            "metric": asked.metric,
            "show": asked.show,
            "sort": f"{'-' if asked.is_reversed else ''}{asked.sort}",
            "page": asked.page,
        }
        return f"{run_path}?{urlencode(query)}"


def pair_query(params: QueryParams, pairs: Sequence[Pair]) -> PairQuery:
    metrics = measured_metrics(pairs) or recorded_metrics(pairs)
    named = params.get("metric") or (metrics[0] if metrics else "success")
    metric = next((each for each in OUTCOMES if each == named), None)
    if metric is None:
        raise _unknown("metric", OUTCOMES)
    show, sort = params.get("show") or "all", params.get("sort") or "change"
    if show not in SHOWS:
        raise _unknown("show", SHOWS)
    if sort.removeprefix("-") not in SORTS:
        raise _unknown("sort", [*SORTS, *(f"-{each}" for each in SORTS)])
    page = params.get("page") or "1"
    if not (page.isascii() and page.isdigit() and 1 <= int(page[:9]) <= _MOST_PAGES):
        raise Problem(400, "invalid_value", "page: expected a whole number from 1", where="page")
    return PairQuery(
        metric=metric,
        show=show,
        sort=sort.removeprefix("-"),  # type: ignore[arg-type]
        is_reversed=sort.startswith("-"),
        page=int(page[:9]),
    )


def _unknown(name: str, known: Any) -> Problem:
    text = f"{name}: expected one of {', '.join(known)}"
    return Problem(400, "invalid_value", text, where=name)


def pairs_of_run(rows: Sequence[EvalResultRow]) -> list[Pair]:
    """In the order of the baselines. Values that are not valid outcomes are missing, as in the decision."""
    columns = ResultColumns.of(as_results(rows))
    place = {each: number for number, each in enumerate(columns.ids)}
    values = {name: _values(column) for name, column in columns.outcomes.items()}
    return [_pair(row, place[row.baseline_episode_id], values) for row in rows]


def _values(column: OutcomeColumn) -> list[tuple[float | None, float | None]]:
    after = np.where(column.has_evidence, column.candidate, np.nan)
    return [
        (_known(one), _known(other))
        for one, other in zip(column.baseline.tolist(), after.tolist(), strict=True)
    ]


def _known(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _pair(
    row: EvalResultRow,
    place: int,
    values: Mapping[Outcome, Sequence[tuple[float | None, float | None]]],
) -> Pair:
    labels = row.labels or {}
    label = next((", ".join(labels[name]) for name in _LABELS if labels.get(name)), "")
    return Pair(
        number=row.position + 1,
        baseline_id=row.baseline_episode_id,
        candidate_id=row.candidate_episode_id,
        status=row.status,
        label=label,
        values={name: column[place] for name, column in values.items()},
        action_distance=_known(row.metrics.get("action_l2_distance")),
        moments=_moments(row.metrics.get("actions")),
        error=row.error,
        attempts=row.attempts,
        retried=row.retried,
    )


def _moments(actions: object) -> list[tuple[int, float | None, float]]:
    top = actions.get("top") if isinstance(actions, Mapping) else None
    found = []
    for each in top if isinstance(top, list) else ():
        if isinstance(each, Mapping) and isinstance(each.get("step"), int):
            distance, at_ns = _known(each.get("distance")), _known(each.get("t_ns"))
            if distance is not None:
                found.append((each["step"], None if at_ns is None else at_ns / 1e9, distance))
    return found


def measured_metrics(pairs: Sequence[Pair]) -> list[Outcome]:
    """Outcomes that at least one pair has on both sides, the most telling first."""
    return [name for name in _PREFERRED if any(each.gain(name) is not None for each in pairs)]


def recorded_metrics(pairs: Sequence[Pair]) -> list[Outcome]:
    """Outcomes that at least one baseline has."""
    return [name for name in _PREFERRED if any(each.values[name][0] is not None for each in pairs)]


def success_flip(pair: Pair) -> Flip | None:
    """Whether success was lost or won. A candidate that crashed has lost what the baseline had won; where the
    infrastructure failed, nobody knows."""
    before = pair.values["success"][0]
    if pair.status == "failed":
        has_crashed = not (pair.error or "").startswith(INFRASTRUCTURE)
        return "lost" if before and has_crashed else None
    return _sign(pair.gain("success"))


def flips(pairs: Sequence[Pair], metric: Outcome) -> dict[int, Flip | None]:
    """By number of the pair: whether success was lost or won; where no pair has a success, whether `metric` got worse
    or better."""
    if has_success(pairs):
        return {each.number: success_flip(each) for each in pairs}
    return {each.number: _sign(each.gain(metric)) for each in pairs}


def has_success(pairs: Sequence[Pair]) -> bool:
    return any(each.gain("success") is not None for each in pairs)


def _sign(gain: float | None) -> Flip | None:
    return None if not gain else "won" if gain > 0 else "lost"

"""The table of the pairs of a run: filtered, sorted, one page of it, each line with a link to its pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.portal.evals.eval_pairs import (
    SHOWS,
    Flip,
    Pair,
    PairQuery,
    Show,
    Sort,
    flips,
    has_success,
    measured_metrics,
    success_flip,
)
from rollbook.portal.formats import MISSING, number, signed
from rollbook.report.words import capital

ON_A_PAGE = 25
_WORDS: dict[Show, str] = {"all": "All", "lost": "Lost", "won": "Won", "failed": "Failed"}
_MARKS = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True)
class Column:
    title: str
    path: str
    """Sorts by it, or the other way round."""
    sorted: str | None
    """ascending or descending, for the column that is sorted by."""
    is_number: bool


@dataclass(frozen=True)
class Choice:
    """One of several ways to look at the pairs."""

    title: str
    path: str
    is_current: bool


@dataclass(frozen=True)
class PairLine:
    number: int
    path: str
    baseline_id: str
    label: str
    status: str
    before: str
    """Success of both sides: yes, no or unknown."""
    after: str
    flip: str | None
    baseline: str
    candidate: str
    change: str
    effect: str
    """better, worse or nothing."""
    bar_from: float
    bar_width: float
    """Of the change, in percent of its cell."""
    others: list[str]
    actions: str
    error_line: str | None
    error: str | None
    """The whole error, where it has more than its first line."""
    marks: list[str]


@dataclass(frozen=True)
class PairTable:
    number: Column
    columns: list[Column]
    actions: Column | None
    """None where no pair has a distance of actions."""
    has_success: bool
    others: list[str]
    """Titles of further outcomes."""
    metric: str
    lines: list[PairLine]
    filters: list[Choice]
    metrics: list[Choice]
    range: str
    previous: str | None
    following: str | None


def pair_table(pairs: Sequence[Pair], query: PairQuery, run_path: str) -> PairTable:
    flipped = flips(pairs, query.metric)
    kinds = {each.number: _kinds(each, flipped[each.number]) for each in pairs}
    counts = {show: sum(show in kinds[each.number] for each in pairs) for show in SHOWS}
    found = _sorted([each for each in pairs if query.show in kinds[each.number]], query)
    pages = max(1, -(-len(found) // ON_A_PAGE))
    page = min(query.page, pages)
    first = (page - 1) * ON_A_PAGE
    some = found[first : first + ON_A_PAGE]
    measured = measured_metrics(pairs)
    others = [each for each in measured if each not in (query.metric, "success")]
    largest = max((abs(each.change(query.metric) or 0.0) for each in pairs), default=0.0)
    label = OUTCOMES[query.metric].label
    words = _WORDS if has_success(pairs) else _WORDS | {"lost": "Worse", "won": "Better"}

    def at(number: int) -> str:
        return f"{query.address(run_path, page=number)}#pairs"

    titles = _titles(query.metric)
    with_success = has_success(pairs) or any(
        each.values["success"][0] is not None for each in pairs
    )
    has_actions = any(each.action_distance is not None for each in pairs)
    shown = [name for name in titles if name != "success" or with_success]
    columns = {name: _column(query, run_path, name, titles[name]) for name in shown}
    return PairTable(
        number=columns.pop("number"),
        actions=columns.pop("actions") if has_actions else None,
        columns=[each for name, each in columns.items() if name != "actions"],
        has_success=with_success,
        others=[_title(each) for each in others],
        metric=label,
        lines=[_line(each, query.metric, others, largest, run_path) for each in some],
        filters=[
            Choice(
                f"{words[show]} {counts[show]:,}",
                f"{query.address(run_path, show=show)}#pairs",
                show == query.show,
            )
            for show in SHOWS
        ],
        metrics=[
            Choice(
                capital(OUTCOMES[each].label),
                f"{query.address(run_path, metric=each, show=query.show)}#every-pair",
                each == query.metric,
            )
            for each in measured
        ],
        range=f"{first + 1:,} to {first + len(some):,} of {len(found):,}" if some else "0",
        previous=at(page - 1) if page > 1 else None,
        following=at(page + 1) if page < pages else None,
    )


def _titles(metric: Outcome) -> dict[Sort, str]:
    return {
        "number": "#",
        "label": "Task or scene",
        "success": "Success",
        "baseline": f"{_title(metric)}, baseline",
        "candidate": "candidate",
        "change": "Change",
        "actions": "Action distance",
    }


def _column(query: PairQuery, run_path: str, name: Sort, title: str) -> Column:
    is_sorted = name == query.sort
    turned = is_sorted and not query.is_reversed
    return Column(
        title=title,
        path=f"{query.address(run_path, sort=name, is_reversed=turned)}#pairs",
        sorted=("descending" if query.is_reversed else "ascending") if is_sorted else None,
        is_number=name not in ("label", "success"),
    )


def _line(
    pair: Pair, metric: Outcome, others: Sequence[Outcome], largest: float, run_path: str
) -> PairLine:
    change, gain, digits = pair.change(metric), pair.gain(metric) or 0.0, _digits(metric, largest)
    before, after = (None if each is None else bool(each) for each in pair.values["success"])
    width = 0.0 if change is None or not largest else 50 * abs(change) / largest
    error = (pair.error or "").strip()
    written = signed(change, digits)
    effect = "better" if gain > 0 else "worse" if gain < 0 else ""
    marks = [f"{pair.attempts} attempts"] if pair.attempts > 1 else []
    return PairLine(
        number=pair.number,
        path=f"{run_path}/pairs/{pair.baseline_id}",
        baseline_id=pair.baseline_id,
        label=pair.label or MISSING,
        status=pair.status,
        before=_MARKS[before],
        after=_MARKS[after],
        flip=success_flip(pair),
        baseline=number(pair.values[metric][0], digits),
        candidate=number(pair.values[metric][1], digits),
        change=written,
        effect=effect if written[0] in "+−" else "",
        bar_from=50.0 - width if (change or 0.0) < 0 else 50.0,
        bar_width=width,
        others=[
            " → ".join(number(side, _digits(each, 1.0)) for side in pair.values[each])
            for each in others
        ],
        actions=number(pair.action_distance, 3),
        error_line=pair.error_line,
        error=error if pair.status == "failed" and error != pair.error_line else None,
        marks=[*marks, *(["retried"] if pair.retried else [])],
    )


def _digits(metric: Outcome, largest: float) -> int:
    """Digits after the point, the same in every row: enough to tell the largest change to three digits."""
    if OUTCOMES[metric].type is not float:
        return 0
    return max(0, min(6, 2 - math.floor(math.log10(largest)))) if largest > 0 else 2


def _title(metric: Outcome) -> str:
    """With the unit, which then stands in no row."""
    kind = OUTCOMES[metric]
    unit = "" if kind.type is bool else kind.unit.strip()
    return f"{capital(kind.label)}, {unit}" if unit else capital(kind.label)


def _kinds(pair: Pair, flipped: Flip | None) -> tuple[Show, ...]:
    failed: tuple[Show, ...] = ("failed",) if pair.status == "failed" else ()
    return ("all", *failed, *((flipped,) if flipped else ()))


def _sorted(pairs: Sequence[Pair], query: PairQuery) -> list[Pair]:
    """Pairs without the value that is sorted by come last, in either direction."""
    keys = {each.number: _key(each, query) for each in pairs}
    known = [each for each in pairs if keys[each.number] is not None]
    missing = [each for each in pairs if keys[each.number] is None]
    known.sort(key=lambda each: keys[each.number] or (0, ""), reverse=query.is_reversed)
    return [*known, *missing]


def _key(pair: Pair, query: PairQuery) -> tuple[float, str] | None:
    if query.sort == "label":
        return (0.0, pair.label) if pair.label else None
    before, after = pair.values[query.metric]
    values: dict[Sort, float | None] = {
        "number": pair.number,
        "actions": pair.action_distance,
        "success": pair.gain("success"),
        "change": pair.gain(query.metric),
        "baseline": before,
        "candidate": after,
    }
    value = values[query.sort]
    return None if value is None else (value, "")

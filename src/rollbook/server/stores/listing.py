"""Rollouts and targets of a store, page by page. Filters and order are computed by column; only a page becomes rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import decode_target_invalid_reason
from rollbook.store.audit.rows import Coded, gather, plain, word_of
from rollbook.store.schema import TABLES
from rollbook.store.views.store_view import StoreView

Array = NDArray[Any]

ON_A_PAGE = 50
SORTS = ("row", "return", "-return", "steps", "-steps")
"""A minus sorts the largest first. Rows without a value come last."""
_MOST_CHOICES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """An empty text takes all."""

    policy: str = ""
    scene: str = ""
    target: str = ""
    """The class of the target."""
    split: str = ""
    sort: str = "row"
    page: int = 1

    @property
    def is_set(self) -> bool:
        return bool(self.policy or self.scene or self.target or self.split)


@dataclass(frozen=True, slots=True)
class ListedRollout:
    row: int
    scene: str | None
    target: str | None
    policy: str | None
    split: str | None
    steps: int
    gained: float | None
    """Its return: the sum of the root gains of what it took."""


@dataclass(frozen=True, slots=True)
class RolloutPage:
    rollouts: list[ListedRollout]
    matching: int
    total: int
    page: int
    pages: int
    choices: dict[str, tuple[str, ...]]
    """The words that each filter can take, as far as they are few."""
    greatest: float
    """The greatest return of the store, for bars."""


def rollout_page(
    reader: StoreView, wanted: RolloutFilter, on_a_page: int = ON_A_PAGE
) -> RolloutPage:
    """Blocks: call it in a thread."""
    words = {name: _words(reader, name) for name in ("policy", "scene", "target", "split")}
    codes = {name: _codes(reader, name) for name in words}
    rows = np.arange(reader.num_rollouts)
    for name, code in codes.items():
        chosen = getattr(wanted, name)
        if chosen:
            rows = rows[np.isin(code[rows], _code_of(words[name], chosen))]
    gained = reader.array("rollouts/final_cumulative_target_root_gain")
    rows = rows[_order(reader, gained, rows, wanted.sort)]
    page, pages, shown = _shown(wanted.page, len(rows), on_a_page)
    rows_shown = rows[shown]
    columns = {
        name: Coded(codes[name][rows_shown], word_of(words[name])).tolist() for name in words
    }
    listed = zip(
        rows_shown.tolist(),
        columns["scene"],
        columns["target"],
        columns["policy"],
        columns["split"],
        reader.array("rollouts/num_steps")[rows_shown].tolist(),
        plain(gained[rows_shown]),
        strict=True,
    )
    finite = gained[np.isfinite(gained)]
    return RolloutPage(
        [ListedRollout(*each) for each in listed],
        len(rows),
        reader.num_rollouts,
        page,
        pages,
        {name: _choices(reader, codes[name], words[name]) for name in words},
        float(finite.max(initial=0.0)),
    )


def _words(reader: StoreView, name: str) -> tuple[str, ...]:
    return reader.words("class_name" if name == "target" else name)


def _codes(reader: StoreView, name: str) -> Array:
    if name != "target":
        return reader.array(f"rollouts/{name}_id")
    classes = reader.array("targets/target_class_name_id")
    fill = TABLES["targets"].columns["target_class_name_id"].fill
    return gather(classes, reader.array("rollouts/target_row_id"), fill)


def _code_of(words: tuple[str, ...], chosen: str) -> list[int]:
    return [code for code, word in enumerate(words) if word == chosen]


def _choices(reader: StoreView, codes: Array, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words that occur, in order of the alphabet."""
    present = [words[code] for code in np.unique(codes).tolist() if 0 <= code < len(words)]
    return tuple(sorted(present)[:_MOST_CHOICES])


def _order(reader: StoreView, gained: Array, rows: Array, sort: str) -> Array:
    name = sort.removeprefix("-")
    if name not in ("return", "steps"):
        return np.arange(len(rows))
    values = (gained if name == "return" else reader.array("rollouts/num_steps"))[rows]
    values = values.astype(np.float64)
    # NaN comes last whichever way: numpy sorts it to the end
    return np.argsort(-values if sort.startswith("-") else values, kind="stable")


def _shown(page: int, count: int, on_a_page: int) -> tuple[int, int, slice]:
    pages = max(1, -(-count // on_a_page))
    page = min(max(page, 1), pages)
    return page, pages, slice((page - 1) * on_a_page, page * on_a_page)


# ------------------------------------------------------------------------------------------- targets


@dataclass(frozen=True, slots=True)
class ListedTarget:
    row: int
    target_class: str | None
    confidence: float | None
    iou: float | None
    """With its ground truth."""
    support: int | None
    """Points that the actor had seen of it."""
    rollouts: int
    problem: str | None
    """Why it is not valid."""


@dataclass(frozen=True, slots=True)
class TargetPage:
    targets: list[ListedTarget]
    total: int
    page: int
    pages: int


def target_page(reader: StoreView, page: int, on_a_page: int = ON_A_PAGE) -> TargetPage:
    """Blocks: call it in a thread."""
    total = reader.num_targets if reader.has("targets/target_row_id") else 0
    page, pages, shown = _shown(page, total, on_a_page)
    if not total:
        return TargetPage([], 0, page, pages)
    used = reader.array("rollouts/target_row_id")
    used = used[(used >= 0) & (used < total)]
    counts = np.bincount(used, minlength=total)[shown]

    def stored(column: str) -> Array:
        values: Array = reader.array(f"targets/{column}")[shown]
        return values

    reasons = Coded(stored("target_primary_invalid_reason"), decode_target_invalid_reason).tolist()
    valid = stored("target_valid_mask").tolist()
    support = stored("target_semidense_support_count").tolist()
    listed = zip(
        stored("target_row_id").tolist(),
        Coded(stored("target_class_name_id"), word_of(reader.words("class_name"))).tolist(),
        plain(stored("target_confidence")),
        plain(stored("gt_match_iou")),
        [each if each >= 0 else None for each in support],
        counts.tolist(),
        [None if ok else reason for ok, reason in zip(valid, reasons, strict=True)],
        strict=True,
    )
    return TargetPage([ListedTarget(*each) for each in listed], total, page, pages)

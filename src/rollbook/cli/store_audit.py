"""The output of `rollbook store audit`: candidates, groups of candidates, targets, or an audit page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.cli.output import (
    limit_or_none,
    print_done,
    print_limited,
    say,
    shown_bytes,
)
from rollbook.cli.progress import hint_at_replace

if TYPE_CHECKING:
    from rollbook.cli.store_collection import View


def write_page(reader: View, html: Path, step: int | None, replace: bool, as_json: bool) -> None:
    from rollbook.files import write_bytes
    from rollbook.store.audit.page import audit_page

    page = audit_page(reader, step_row_id=step).encode()
    with hint_at_replace(replace):
        write_bytes(html, page, replace=replace)
    shown = {"path": str(html), "size_bytes": len(page)}
    print_done(shown, f"{html}: {shown_bytes(len(page))}", as_json)


def print_groups(reader: View, group_by: str, limit: int, as_json: bool) -> None:
    from rollbook.store.audit import candidate_group_summary_rows

    rows = candidate_group_summary_rows(reader, group_by=group_by)
    print_limited(rows, {group_by: group_by, **_GROUPS}, limit, as_json)


_GROUPS = {
    "total": "total",
    "actor_valid": "valid",
    "actor_valid_fraction": "share",
    "q_train": "q-train",
    "selected": "taken",
    "mean_target_root_gain": "mean gain",
}


def print_targets(reader: View, limit: int, as_json: bool) -> None:
    from rollbook.store.audit import target_audit_rows

    print_limited(target_audit_rows(reader), _TARGETS, limit, as_json)


_TARGETS = {
    "target_row_id": "row",
    "class": "class",
    "source": "source",
    "selection_score": "score",
    "target_invalid_reason": "reason",
    "gt_match_status": "ground truth",
    "gt_match_iou": "iou",
}


def print_candidates(
    reader: View, rollout: int | None, step: int | None, limit: int, as_json: bool
) -> None:
    from rollbook.store.audit import candidate_audit_rows
    from rollbook.store.audit.rows import candidate_span, step_span

    rows = candidate_audit_rows(
        reader, rollout_row_id=rollout, step_row_id=step, limit=limit_or_none(limit)
    )
    span = candidate_span(reader, step_span(reader, rollout, step))
    if not as_json:
        rows = [{**row, "marks": _marks(row)} for row in rows]
    print_limited(rows, _CANDIDATES, limit, as_json, total=span.stop - span.start)
    if rows and not as_json:
        say("marks: a actor-valid, o oracle label, q q-train, * taken")


_CANDIDATES = {
    "candidate_row_id": "row",
    "step_row_id": "step",
    "marks": "marks",
    "position": "position",
    "target_root_gain": "gain",
    "invalid_reason": "reason",
}


def _marks(row: dict[str, Any]) -> str:
    marks = {"a": "actor_action", "o": "oracle_label", "q": "q_train", "*": "selected"}
    return "".join(mark if row[key] else "." for mark, key in marks.items())

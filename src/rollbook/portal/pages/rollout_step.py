"""One rollout of a store, step by step: the scene in 3D, the candidates of a step, and what each would have gained."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import ClassVar
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.reasons import INVALID_REASON_CODES, decode_invalid_reason
from rollbook.portal.charts.candidate_colours import (
    COLOUR_BY,
    CandidateColours,
    ColourBy,
    by_gain,
    by_group,
)
from rollbook.portal.charts.candidate_gains import MOST_BARS, candidate_gains
from rollbook.portal.formats import number
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.portal.store_words import reason_words
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EpisodeRow, StoreRow
from rollbook.server.stores.lineage import LineageStep, lineage_of
from rollbook.server.stores.opened import opened
from rollbook.server.stores.rollout_links import episodes_of_rollout
from rollbook.store.audit import rollout_step_objective_rows, selected_depth_summary_rows
from rollbook.store.audit.rows import Array, Row
from rollbook.store.audit.step_candidates import (
    StepCandidates,
    candidate_rows,
    step_candidates,
    target_of,
)
from rollbook.store.reader import RolloutZarrStoreReader

ROLLOUT = "/portal/stores/{store_id}/rollouts/{row}"
_SORTS = ("gain", "row", "family", "reason")
_FEW_ROWS = 12
_MOST_ROWS = 500
_MOST_STEPS = 40
"""Steps in the list, around the one that is shown."""
_MOST_DEPTHS = 64
"""Images that are looked at for the range of depths. Later steps of a longer rollout are listed without theirs."""
_NUMBER = r"-?\d{1,6}(\.\d{1,6})?"
_VIEW = re.compile(rf"{_NUMBER}(,{_NUMBER}){{5}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StepAddress:
    """What the address of the page says. Steps are counted from 1, as people do."""

    store_id: str
    row: int
    step: int = 1
    candidate: int | None = None
    """Its row in the table of candidates; None for the one that was taken."""
    colour: ColourBy = "gain"
    sort: str = "gain"
    is_long: bool = False
    """The table has all candidates, not only the first ones."""
    view: str | None = None
    """The camera of the 3D view."""

    @property
    def rollout(self) -> str:
        return ROLLOUT.format(store_id=self.store_id, row=self.row)

    def __str__(self) -> str:
        plain = StepAddress(self.store_id, self.row)
        query = {
            "step": self.step,
            "cand": self.candidate,
            "colour": None if self.colour == plain.colour else self.colour,
            "sort": None if self.sort == plain.sort else self.sort,
            "rows": "all" if self.is_long else None,
            "view": self.view,
        }
        given = {name: value for name, value in query.items() if value is not None}
        return f"{self.rollout}?{urlencode(given, safe=',')}"

    def at_step(self, step: int) -> StepAddress:
        return replace(self, step=step, candidate=None)

    def of_candidate(self, row: int) -> StepAddress:
        return replace(self, candidate=row)

    def coloured(self, colour: ColourBy) -> StepAddress:
        return replace(self, colour=colour)

    def sorted_by(self, sort: str) -> StepAddress:
        return replace(self, sort=sort)

    def with_all_rows(self, is_long: bool) -> StepAddress:
        return replace(self, is_long=is_long)


def step_address(request: Request) -> StepAddress:
    """Reads the address. The rollout is looked up later; a row that is no number is one that does not exist."""
    row = whole_number(request.path_params["row"])
    if row is None:
        raise not_found("rollout")
    given = request.query_params
    candidate = given.get("cand")
    colour = COLOUR_BY.get(given.get("colour", "gain"))
    sort = given.get("sort", "gain")
    view = given.get("view")
    if colour is None:
        raise _invalid("colour", f"expected one of {', '.join(COLOUR_BY)}")
    if sort not in _SORTS:
        raise _invalid("sort", f"expected one of {', '.join(_SORTS)}")
    step = whole_number(given.get("step", "1"))
    if step is None:
        raise _invalid("step", "expected the number of a step, counted from 1")
    number_of = None if candidate is None else whole_number(candidate)
    if candidate is not None and number_of is None:
        raise _invalid("cand", "expected the row of a candidate")
    return StepAddress(
        store_id=request.path_params["store_id"],
        row=row,
        step=step,
        candidate=number_of,
        colour=colour,
        sort=sort,
        is_long=given.get("rows") == "all",
        # a view that cannot be read is left out: the page then shows the whole scene
        view=view if view is not None and _VIEW.fullmatch(view) else None,
    )


def whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _invalid(name: str, expected: str) -> Problem:
    return Problem(400, "invalid_value", f"{name}: {expected}", where=name)


def step_rows(reader: RolloutZarrStoreReader, row: int) -> list[Row]:
    """The steps of a rollout, in order."""
    if not 0 <= row < reader.num_rollouts:
        raise not_found("rollout")
    return rollout_step_objective_rows(reader, rollout_row_id=row)


def chosen_step(steps: list[Row], step: int) -> Row:
    if not 1 <= step <= len(steps):
        text = f"there is no step {step}; the rollout has {len(steps)}, counted from 1"
        raise Problem(404, "not_found", text)
    return steps[step - 1]


def colours_of(found: StepCandidates, colour: ColourBy) -> CandidateColours:
    if colour == "gain":
        return by_gain(found.gain, found.labelled)
    if colour == "family":
        return by_group(found.family.tolist())
    return by_group([reason_words(str(name)) for name in found.reason.tolist()], plain="valid")


# ------------------------------------------------------------------------------------------- page


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step in the list of steps."""

    number: int
    gain: float | None
    cumulative: float | None
    family: str | None
    valid: int
    total: int
    depth: str | None
    """The path of its depth image."""
    no_depth: str | None
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class CandidateLine:
    """A candidate in the table."""

    row: int
    family: str
    gain: float | None
    valid: bool
    taken: bool
    reason: str
    fill: Markup


@dataclass(frozen=True, slots=True)
class CandidateCard:
    row: int
    taken: bool
    valid: bool
    reasons: list[str]
    facts: list[tuple[str, str, str]]
    """Name, value, and the class of the value."""


@dataclass(frozen=True, slots=True)
class CandidateTable:
    lines: list[CandidateLine]
    chart: Markup
    colours: CandidateColours
    total: int
    valid: int
    labelled: int
    random_gain: float | None
    is_cut: bool
    """There are more candidates than the longest table shows."""


@dataclass(frozen=True, kw_only=True)
class RolloutStepPage(Page):
    template: ClassVar[str] = "rollout_step.html"
    section: ClassVar[str] = "stores"
    modules: ClassVar[tuple[str, ...]] = ("step.js",)
    store: StoreRow
    address: StepAddress
    step_count: int
    steps: list[StepLine]
    """Some of a long rollout."""
    target: str | None
    policy: str | None
    scene: str | None
    returned: float | None
    depth_range: str | None
    candidate: CandidateCard | None
    table: CandidateTable
    lineage: list[LineageStep]
    episodes: list[EpisodeRow] = field(default_factory=list)
    """Logged from this rollout."""
    sorts: tuple[tuple[str, str, bool], ...] = (
        ("row", "Row", True),
        ("family", "Family", False),
        ("gain", "Gain", True),
        ("reason", "Note", False),
    )
    """Key, heading, and whether the column holds numbers."""
    colour_by: tuple[str, ...] = tuple(COLOUR_BY)


async def rollout_step(request: Request) -> Response:
    session = await page_session(request)
    address = step_address(request)
    context = context_of(request)
    store = await opened(context, session.caller, address.store_id)
    lineage = await lineage_of(context, session.caller.org_id, store, address.row)
    page = await store.run(lambda reader: _page(reader, store.row, address, lineage))
    content = store.store.content_sha256
    episodes = await context.read(
        session.caller, lambda scope: episodes_of_rollout(scope, content, address.row)
    )
    return render(request, replace(page, session=session, episodes=episodes))


def _page(
    reader: RolloutZarrStoreReader,
    store: StoreRow,
    address: StepAddress,
    lineage: list[LineageStep],
) -> RolloutStepPage:
    steps = step_rows(reader, address.row)
    if not steps:
        raise Problem(404, "not_found", f"rollout {address.row} has no steps")
    step = chosen_step(steps, address.step)
    found = step_candidates(reader, step["step_row_id"])
    target = target_of(reader, address.row)
    lines, depth_range = _step_lines(reader, steps, address)
    return RolloutStepPage(
        title=f"Rollout {address.row}, step {address.step}",
        store=store,
        address=address,
        step_count=len(steps),
        steps=lines,
        target=None if target is None else target.class_name or target.name,
        policy=step["policy"],
        scene=step["scene"],
        returned=steps[-1]["cumulative_target_root_gain"],
        depth_range=depth_range,
        candidate=_card(reader, found, address),
        table=_table(found, address),
        lineage=lineage,
    )


def _step_lines(
    reader: RolloutZarrStoreReader, steps: list[Row], address: StepAddress
) -> tuple[list[StepLine], str | None]:
    images = selected_depth_summary_rows(reader, rollout_row_id=address.row, limit=_MOST_DEPTHS)
    seen = [image for image in images if image["depth_max_m"] is not None]
    near = min((image["depth_min_m"] for image in seen), default=None)
    far = max((image["depth_max_m"] for image in seen), default=None)
    # all images of a rollout share one scale, so that their colours can be compared
    scale = "" if near is None else f"?near={near:.3f}&far={far:.3f}"
    warnings = {image["step_row_id"]: image["warning"] for image in images}
    first = max(0, min(address.step - 1 - _MOST_STEPS // 2, len(steps) - _MOST_STEPS))

    def line(place: int, step: Row) -> StepLine:
        own = step["step_row_id"]
        has_depth = own in warnings and warnings[own] is None
        return StepLine(
            number=place,
            gain=step["selected_target_root_gain"],
            cumulative=step["cumulative_target_root_gain"],
            family=step["selected_position"],
            valid=step["num_valid_candidates"],
            total=step["num_candidates"],
            depth=f"{address.rollout}/depth/{place}{scale}" if has_depth else None,
            no_depth=warnings.get(own),
        )

    shown = steps[first : first + _MOST_STEPS]
    lines = [line(place, step) for place, step in enumerate(shown, first + 1)]
    return lines, None if near is None else f"{number(near, 1)}–{number(far, 1)} m"


def _table(found: StepCandidates, address: StepAddress) -> CandidateTable:
    colours = colours_of(found, address.colour)
    best = found.best_first()
    order = _sorted(found, best, address.sort)
    shown = order[: _MOST_ROWS if address.is_long else _FEW_ROWS]
    families, reasons = found.family.tolist(), found.reason.tolist()
    lines = [
        CandidateLine(
            row=int(found.rows[at]),
            family=str(families[at]),
            gain=float(found.gain[at]) if found.labelled[at] else None,
            valid=bool(found.valid[at]),
            taken=bool(found.taken[at]),
            reason=reason_words(str(reasons[at])),
            fill=colours.fill(at),
        )
        for at in shown.tolist()
    ]
    return CandidateTable(
        lines=lines,
        chart=_chart(found, best, colours),
        colours=colours,
        total=len(found),
        valid=int(found.valid.sum()),
        labelled=int(found.labelled.sum()),
        random_gain=found.random_gain,
        is_cut=len(found) > _MOST_ROWS,
    )


def _sorted(found: StepCandidates, best: Array, sort: str) -> Array:
    """Among equals the best come first."""
    if sort == "gain":
        return best
    if sort == "row":
        return np.argsort(found.rows, kind="stable")
    names = (found.family if sort == "family" else found.reason).tolist()
    return best[np.argsort(np.array([str(name) for name in names])[best], kind="stable")]


def _chart(found: StepCandidates, best: Array, colours: CandidateColours) -> Markup:
    drawn = best
    if len(best) > MOST_BARS:
        drawn = best[np.linspace(0, len(best) - 1, MOST_BARS).round().astype(np.intp)]
    labelled, valid = found.labelled[drawn], found.valid[drawn]
    [taken] = np.nonzero(found.taken[drawn])
    bars = drawn[labelled].tolist()
    return candidate_gains(
        found.gain[bars].tolist(),
        [colours.fill(at) for at in bars],
        unlabelled=int((valid & ~labelled).sum()),
        invalid=int((~valid).sum()),
        taken=int(taken[0]) if len(taken) else None,
        title=f"Gain of {'every candidate' if len(drawn) == len(best) else f'{len(drawn)} of {len(best)} candidates'}",
    )


# ------------------------------------------------------------------------------------------- card


def _card(
    reader: RolloutZarrStoreReader, found: StepCandidates, address: StepAddress
) -> CandidateCard | None:
    """The candidate of the address, or the one that was taken."""
    if address.candidate is None:
        rows = found.rows[found.taken]
    else:
        rows = found.rows[found.rows == address.candidate]
        if not len(rows):
            text = f"step {address.step} has no candidate {address.candidate}"
            raise Problem(404, "not_found", text)
    if not len(rows):
        return None
    [row] = candidate_rows(reader, rows[:1])
    return CandidateCard(
        row=row["candidate_row_id"],
        taken=row["candidate_row_id"] in found.rows[found.taken],
        valid=row["actor_action"],
        reasons=_reasons(row["invalid_reason_bitset"]),
        facts=_facts(row),
    )


def _facts(row: Row) -> list[tuple[str, str, str]]:
    facts = [
        ("Root gain", number(row["target_root_gain"], 3), "strong"),
        ("Relative improvement", number(row["target_rri"], 3), ""),
        ("Family", row["position"], "mono"),
        ("Looks", row["strategy"], "mono"),
        ("Move", _move(row), ""),
        ("Distance to target", _metres(row["target_distance_m"]), ""),
        ("Clearance", _metres(row["path_min_clearance_m"]), ""),
        ("Policy probability", number(row["selection_probability"], 3), ""),
    ]
    return facts if row["actor_action"] else [facts[2], facts[3], *facts[4:7]]


def _move(row: Row) -> str:
    """A positive turn is to the left: seen from above, against the clock."""
    turn = row["motion_yaw_delta_deg"]
    length = _metres(row["motion_step_length_m"])
    if turn is None or round(abs(turn)) == 0:
        return length
    return f"{length}, {abs(turn):.0f}° {'left' if turn > 0 else 'right'}"


def _metres(value: float | None) -> str:
    return number(value, 2) + ("" if value is None else " m")


def _reasons(bitset: int) -> list[str]:
    """The reasons against a candidate, in the order of their bits."""
    valid = INVALID_REASON_CODES["VALID"]
    return [
        reason_words(decode_invalid_reason(bit))
        for bit in range(int(bitset).bit_length())
        if bitset >> bit & 1 and bit != valid
    ]


routes: tuple[LeanRoute, ...] = (page_route("GET", ROLLOUT, rollout_step),)

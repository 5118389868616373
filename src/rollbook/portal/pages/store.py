"""One rollout store: what it holds, how good it is, what is worth a second look, and every rollout and target of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.charts.bars import Bar, bar, bars
from rollbook.portal.charts.histogram import histogram, histogram_axis
from rollbook.portal.charts.step_lines import COLOURS, StepLine, step_lines
from rollbook.portal.formats import count, number
from rollbook.portal.page import (
    Page,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.portal.pages.stores import STORES
from rollbook.portal.store_words import (
    STAGES,
    SUSPICIONS,
    created_at_us,
    reason_words,
    without_codes,
)
from rollbook.report.words import capital
from rollbook.server.accounts.roles import may
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import StoreRow
from rollbook.server.stores.listing import (
    SORTS,
    RolloutFilter,
    RolloutPage,
    TargetPage,
    rollout_page,
    target_page,
)
from rollbook.server.stores.opened import OpenedStore, opened, seen
from rollbook.server.stores.summaries import summary
from rollbook.server.stores.summary import Family, StoreSummary, Suspicion
from rollbook.server.stores.verification import start_verification, state_of
from rollbook.store.reader import RolloutZarrStoreReader

_ROLLOUTS, _TARGETS = 12, 6
"""How many are on the first page of a store."""
_REFRESH_S = 2
_LONGEST_WORD = 300


@dataclass(frozen=True, kw_only=True)
class StorePage(Page):
    """What all pages of one store show."""

    section: ClassVar[str] = "stores"
    store: StoreRow
    path: str
    verified: str | None
    """See `verification.state_of`."""


@dataclass(frozen=True, kw_only=True)
class OverviewPage(StorePage):
    template: ClassVar[str] = "store.html"
    may_verify: bool
    may_remove: bool
    created_at_us: int | None
    facts: StoreFacts | None
    """None while they are computed, or when the store cannot be read."""


@dataclass(frozen=True)
class StoreFacts:
    summary: StoreSummary
    config: str | None
    source_manifest: str | None
    waterfall: Markup
    shell_note: str
    reasons: Markup
    families: list[FamilyLine]
    gain_axis: Markup
    returns: Markup
    colours: tuple[str, ...]
    """Of its lines."""
    rollouts: RolloutPage
    bar: Any
    targets: TargetPage
    suspicions: list[Suspicion]
    suspicious_rows: int
    words: Mapping[str, str]


@dataclass(frozen=True)
class FamilyLine:
    family: Family
    picture: Markup
    valid_share: float | None


# ------------------------------------------------------------------------------------------ overview


async def store(request: Request) -> Response:
    session = await page_session(request)
    context, caller = context_of(request), session.caller
    store_id: str = request.path_params["store_id"]
    row = await context.read(caller, lambda scope: scope.store(store_id))
    if row is None:
        raise not_found("store")
    found = await seen(context, caller.org_id, row)
    facts = None
    if isinstance(found, OpenedStore):
        row = found.row
        computed = await summary(context, caller.org_id, found)
        facts = None if computed is None else await _facts(found, computed)
    else:
        row = found
    verified = state_of(row, context.clock())
    page = OverviewPage(
        **_about(session, row, verified),
        may_verify=may(caller, "organise"),
        may_remove=may(caller, "manage_stores"),
        created_at_us=created_at_us(row),
        facts=facts,
    )
    waits = (facts is None and row.unreadable_at_us is None) or verified == "running"
    return render(request, page, headers={"Refresh": str(_REFRESH_S)} if waits else None)


def _about(session: Session, row: StoreRow, verified: str | None) -> dict[str, Any]:
    return {
        "title": row.name,
        "session": session,
        "store": row,
        "path": f"{STORES}/{row.id}",
        "verified": verified,
    }


async def _facts(found: OpenedStore, computed: StoreSummary) -> StoreFacts:
    best = RolloutFilter(sort="-return")
    rollouts, targets = await found.run(
        lambda reader: (rollout_page(reader, best, _ROLLOUTS), target_page(reader, 1, _TARGETS))
    )
    return StoreFacts(
        summary=computed,
        config=_config(found.reader),
        source_manifest=_source_manifest(found.reader),
        waterfall=_waterfall(computed),
        shell_note=_shell_note(found.row),
        reasons=_reasons(computed),
        families=[_family(each, computed) for each in computed.families],
        gain_axis=histogram_axis(computed.gain_low, computed.gain_high),
        returns=step_lines(
            [StepLine(each.name, each.means) for each in computed.policies],
            "Mean return after each step, by policy; the table below has the numbers",
        ),
        colours=COLOURS,
        rollouts=rollouts,
        bar=bar,
        targets=_in_words(targets),
        suspicions=[each for each in computed.suspicions if each.count],
        suspicious_rows=sum(each.count for each in computed.suspicions),
        words=SUSPICIONS,
    )


def _waterfall(computed: StoreSummary) -> Markup:
    whole = computed.stages[0].count
    rows = [
        Bar(
            STAGES.get(stage.name, stage.name),
            stage.count,
            stage.count / whole if whole else None,
            accent=stage.name == "selected",
        )
        for stage in computed.stages
    ]
    return bars(rows, whole=max(whole, 1), digits=1)


def _shell_note(row: StoreRow) -> str:
    counts = row.counts or {}
    steps, candidates = counts.get("steps") or 0, counts.get("candidates") or 0
    if not steps:
        return "The store has no steps."
    each = candidates / steps
    shells = count(round(each)) if each == round(each) else f"about {number(each, 1)}"
    return f"Share of the full shell: {shells} candidates at each of {count(steps)} steps."


def _reasons(computed: StoreSummary) -> Markup:
    rows = [
        Bar(
            capital(reason_words(each.name)),
            each.first,
            each.first / computed.invalid if computed.invalid else None,
            title=f"{each.name}: first reason of {count(each.first)}, among the reasons of {count(each.among)}",
        )
        for each in computed.reasons
        if each.first
    ]
    return bars(rows)


def _family(family: Family, computed: StoreSummary) -> FamilyLine:
    name = (
        f"Root gain of {count(family.labelled)} labelled candidates, mean {number(family.mean, 3)}"
    )
    picture = histogram(
        family.bins, computed.gain_low, computed.gain_high, family.mean, f"{family.name}: {name}"
    )
    return FamilyLine(family, picture, family.valid / family.total if family.total else None)


def _config(reader: RolloutZarrStoreReader) -> str | None:
    """The name of the config file; of a store that was made without one, how many recipes it holds."""
    generation = reader.store_manifest.payload.get("generation")
    invocation = generation.get("invocation") if isinstance(generation, dict) else None
    path = invocation.get("config_path") if isinstance(invocation, dict) else None
    if path:
        return str(path).rpartition("/")[2][:100]
    recipes = _config_hashes(reader, "rollout")
    if len(recipes) == 1:
        return recipes[0]
    return f"{len(recipes)} recipes" if recipes else None


def _source_manifest(reader: RolloutZarrStoreReader) -> str | None:
    named = _config_hashes(reader, "source_manifest")
    return named[0] if len(named) == 1 else None


def _config_hashes(reader: RolloutZarrStoreReader, name: str) -> list[str]:
    """The manifest can contain anything, so what is not a list of texts is left out."""
    hashes = reader.store_manifest.payload.get("config_hashes")
    found = hashes.get(name) if isinstance(hashes, dict) else None
    return [str(each)[:64] for each in found] if isinstance(found, list) else []


async def verify(request: Request) -> Response:
    session, _ = await signed_in_form(request, "organise")
    context, store_id = context_of(request), request.path_params["store_id"]
    found = await opened(context, session.caller, store_id)
    await start_verification(request, session.caller, found)
    return redirect(request, f"{STORES}/{store_id}")


# ---------------------------------------------------------------------------- rollouts, targets, rows


@dataclass(frozen=True, kw_only=True)
class RolloutsPage(StorePage):
    template: ClassVar[str] = "store_rollouts.html"
    wanted: RolloutFilter
    found: RolloutPage
    links: PageLinks
    bar: Any


@dataclass(frozen=True, kw_only=True)
class TargetsPage(StorePage):
    template: ClassVar[str] = "store_targets.html"
    found: TargetPage
    links: PageLinks


@dataclass(frozen=True, kw_only=True)
class SuspiciousPage(StorePage):
    template: ClassVar[str] = "store_suspicious.html"
    suspicions: list[Suspicion]
    chosen: str
    words: Mapping[str, str]


@dataclass(frozen=True)
class PageLinks:
    """Paths of the same list: another page, another order."""

    path: str
    wanted: RolloutFilter

    def page(self, page: int) -> str:
        return self._to(replace(self.wanted, page=page))

    def sort(self, name: str) -> str:
        """The largest first; the other way round if it is sorted so already."""
        other = name if self.wanted.sort == f"-{name}" else f"-{name}"
        return self._to(replace(self.wanted, sort=other, page=1))

    def aria(self, name: str) -> str | None:
        if self.wanted.sort.removeprefix("-") != name:
            return None
        return "descending" if self.wanted.sort.startswith("-") else "ascending"

    def _to(self, wanted: RolloutFilter) -> str:
        usual = asdict(RolloutFilter())
        given = {name: value for name, value in asdict(wanted).items() if value != usual[name]}
        return f"{self.path}?{urlencode(given)}" if given else self.path


async def rollouts(request: Request) -> Response:
    session, found = await _opened(request)
    wanted = _wanted(request)
    page = await found.run(lambda reader: rollout_page(reader, wanted))
    links = PageLinks(f"{STORES}/{found.row.id}/rollouts", wanted)
    about = _about(session, found.row, None)
    return render(request, RolloutsPage(**about, wanted=wanted, found=page, links=links, bar=bar))


async def targets(request: Request) -> Response:
    session, found = await _opened(request)
    asked = _page_number(request)
    page = await found.run(lambda reader: target_page(reader, asked))
    links = PageLinks(f"{STORES}/{found.row.id}/targets", RolloutFilter())
    about = _about(session, found.row, None)
    return render(request, TargetsPage(**about, found=_in_words(page), links=links))


def _in_words(page: TargetPage) -> TargetPage:
    targets = [
        each if each.problem is None else replace(each, problem=reason_words(each.problem))
        for each in page.targets
    ]
    return replace(page, targets=targets)


async def suspicious(request: Request) -> Response:
    session, found = await _opened(request)
    computed = await summary(context_of(request), session.caller.org_id, found)
    if computed is None:
        return redirect(request, f"{STORES}/{found.row.id}")  # it says that it is computing
    kind = request.query_params.get("kind", "")
    shown = [
        replace(each, rows=[replace(row, message=without_codes(row.message)) for row in each.rows])
        for each in computed.suspicions
        if each.count and kind in ("", each.kind)
    ]
    about = _about(session, found.row, None)
    return render(request, SuspiciousPage(**about, suspicions=shown, chosen=kind, words=SUSPICIONS))


async def _opened(request: Request) -> tuple[Session, OpenedStore]:
    session = await page_session(request)
    store_id: str = request.path_params["store_id"]
    return session, await opened(context_of(request), session.caller, store_id)


def _wanted(request: Request) -> RolloutFilter:
    query = request.query_params
    sort = query.get("sort", "row")
    if sort not in SORTS:
        raise Problem(
            400, "invalid_value", f"sort: expected one of {', '.join(SORTS)}", where="sort"
        )
    texts = {
        name: query.get(name, "")[:_LONGEST_WORD] for name in ("policy", "scene", "target", "split")
    }
    return RolloutFilter(**texts, sort=sort, page=_page_number(request))


def _page_number(request: Request) -> int:
    text = request.query_params.get("page", "1")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Problem(400, "invalid_value", "page: expected a whole number", where="page")
    return int(text)


_STORE = f"{STORES}/{{store_id}}"

routes: tuple[LeanRoute, ...] = (
    page_route("GET", _STORE, store),
    page_route("POST", f"{_STORE}/verify", verify),
    page_route("GET", f"{_STORE}/rollouts", rollouts),
    page_route("GET", f"{_STORE}/targets", targets),
    page_route("GET", f"{_STORE}/suspicious", suspicious),
)

"""Lineage: where a policy came from, which runs judged it, and what was decided. The list, and one policy.

A policy is a revision that somebody recorded, or only the text of a version that episodes and runs name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.wire.limits import LONGEST_INDEXED
from rollbook.portal.page import Page, page_route, page_session, redirect, render
from rollbook.portal.pages.lineage_drawing import draw_lineage
from rollbook.portal.policy_lineage import Lineage, lineage_of_revision, lineage_of_version
from rollbook.portal.prefix import local_url
from rollbook.server.context import context_of
from rollbook.server.http.listing import listing_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import not_found
from rollbook.server.queries import RevisionRow, Scope

LIST = "/portal/lineage"
_ON_A_PAGE = 50


@dataclass(frozen=True, kw_only=True)
class RevisionsPage(Page):
    template: ClassVar[str] = "lineage_list.html"
    section: ClassVar[str] = "lineage"
    title: str = "Lineage"
    rows: Sequence[RevisionRow]
    versions: Sequence[str]
    """Of the newest runs, which need no revision."""
    family: str
    cursor: str | None
    is_first: bool
    asked: str = ""
    """A revision id that several families have."""


@dataclass(frozen=True, kw_only=True)
class LineagePage(Page):
    template: ClassVar[str] = "lineage.html"
    section: ClassVar[str] = "lineage"
    lineage: Lineage
    graph: Markup
    as_list: bool
    address: str
    """Of this page, without its parameters."""
    verified: Sequence[str] | None
    """What is wrong with the digests of its batches. None: not asked."""


# --------------------------------------------------------------------------------------------- list


async def list_revisions(request: Request) -> Response:
    """`?version=` shows the policy of that version."""
    session = await page_session(request)
    asked = listing_of(
        request.query_params, known=("version", "family", "as"), limit=_ON_A_PAGE, most=_ON_A_PAGE
    )
    version = asked.filters.get("version", "").strip()
    if version:
        return await _show(request, version, is_version=True)
    family = asked.filters.get("family", "").strip()

    def read(scope: Scope) -> tuple[list[RevisionRow], str | None, list[str]]:
        found, following = scope.revision_rows(family or None, asked.cursor, asked.limit)
        return found, following, scope.newest_candidates()

    rows, following, versions = await context_of(request).read(session.caller, read)
    page = RevisionsPage(
        session=session,
        rows=rows,
        versions=versions,
        family=family,
        cursor=following,
        is_first=asked.cursor is None,
    )
    return render(request, page)


# ---------------------------------------------------------------------------------------- one policy


async def show_revision(request: Request) -> Response:
    """By the server's id, by the revision id, or by a version that has no revision."""
    return await _show(request, request.path_params["revision_id"], is_version=False)


async def _show(request: Request, name: str, *, is_version: bool) -> Response:
    session = await page_session(request)
    if len(name) > LONGEST_INDEXED:
        raise not_found("policy")
    context = context_of(request)

    def read(scope: Scope) -> Lineage | list[RevisionRow]:
        found = scope.revisions_named(name)
        if len(found) > 1:
            return found
        return lineage_of_revision(scope, found[0]) if found else lineage_of_version(scope, name)

    found = await context.read(session.caller, read)
    if isinstance(found, list):
        several = RevisionsPage(
            session=session,
            rows=found,
            versions=[],
            family="",
            cursor=None,
            is_first=True,
            asked=name,
        )
        return render(request, several)
    if found.row is not None and is_version:
        return redirect(request, f"{LIST}/{found.row.id}")
    if found.row is None and not found.runs and not found.episodes.count:
        raise not_found("policy")
    problems = await _digest_problems(request, found)
    page = LineagePage(
        session=session,
        title=found.version,
        lineage=found,
        graph=draw_lineage(found, lambda path: local_url(request, path)),
        as_list=request.query_params.get("as") == "list",
        address=f"{LIST}?version={quote(name, safe='')}"
        if found.row is None
        else f"{LIST}/{found.row.id}",
        verified=problems,
    )
    return render(request, page)


async def _digest_problems(request: Request, lineage: Lineage) -> list[str] | None:
    """`?verify=1`: computes the digests of all its batches again from the stored records."""
    row = lineage.row
    if row is None or request.query_params.get("verify") != "1":
        return None
    session = await page_session(request)
    records = await context_of(request).read(
        session.caller, lambda scope: scope.batch_records(row.id)
    )
    return await asyncio.to_thread(_checked, records)


def _checked(records: Sequence[Mapping[str, Any]]) -> list[str]:
    problems = []
    for record in records:
        try:
            found = msgspec.convert(dict(record), TrainerBatch).digest_problems()
        except msgspec.ValidationError as error:
            problems.append(f"a batch cannot be read: {error}")
        else:
            problems += [str(each) for each in found]
    return problems


routes: tuple[LeanRoute, ...] = (
    page_route("GET", LIST, list_revisions),
    page_route("GET", f"{LIST}/{{revision_id}}", show_revision),
)

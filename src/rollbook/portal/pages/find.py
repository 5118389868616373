"""Find: any id, the beginning of an id, or a name. A single hit is opened at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import Page, page_route, page_session, redirect, render
from rollbook.server.accounts.keys import shown_prefix
from rollbook.server.accounts.roles import may
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import Caller, context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem
from rollbook.server.queries import Found, Scope
from rollbook.server.queries.find import LEAST_OF_AN_ID, MOST_FOUND

_KEY = re.compile(r"[a-z]{2,3}_(?P<id>[A-Za-z0-9]{10})(?P<secret>_\S*)?")
_LONGEST = 200
_PATHS = {
    "episode": "/portal/episodes/{}",
    "rollout": "/portal/episodes/{}",
    "run": "/portal/evals/{}",
    "scenario": "/portal/scenarios/{}",
    "revision": "/portal/lineage/{}",
    "batch": "/portal/lineage/{}",
    "store": "/portal/stores/{}",
    "policy": "/portal/episodes?policy_version={}",
    "environment": "/portal/episodes?env_version={}",
    "robot": "/portal/episodes?robot={}",
}
_WORDS = {"run": "eval run", "policy": "episodes of the policy", "robot": "episodes of the robot"}
_WORDS |= {"batch": "trainer batch", "revision": "policy revision"}
_WORDS |= {"environment": "episodes in the environment", "rollout": "episode of the rollout"}


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str
    name: str
    detail: str | None
    id: str | None
    path: str


@dataclass(frozen=True, kw_only=True)
class FindPage(Page):
    template: ClassVar[str] = "find.html"
    title: str = "Find"
    session: Session
    text: str
    hits: list[Hit]
    more_named: bool
    """There may be more episodes with this name than are shown."""
    least: int = LEAST_OF_AN_ID


async def find(request: Request) -> Response:
    session = await page_session(request)
    text = request.query_params.get("q", "").strip()
    if len(text) > _LONGEST:
        raise Problem(400, "invalid_value", f"q: expected at most {_LONGEST} characters", where="q")
    caller = session.caller
    hits = await context_of(request).read(caller, lambda scope: _hits(scope, caller, text))
    if len(hits) == 1:
        return redirect(request, hits[0].path)
    page = FindPage(
        session=session,
        text=_without_secret(text),
        hits=hits,
        more_named=sum(each.kind == "episode" for each in hits) >= MOST_FOUND,
    )
    return render(request, page)


def _hits(scope: Scope, caller: Caller, text: str) -> list[Hit]:
    key = _KEY.fullmatch(text)
    found = [] if key is None else _key_hits(scope, caller, key["id"])
    return found or [_hit(each) for each in scope.find(_without_secret(text))]


def _without_secret(text: str) -> str:
    """Somebody may paste a whole key. Its secret is neither looked up nor shown again."""
    key = _KEY.fullmatch(text)
    return text if key is None or key["secret"] is None else text.removesuffix(key["secret"])


def _key_hits(scope: Scope, caller: Caller, key_id: str) -> list[Hit]:
    key = scope.key(key_id)
    if key is None or not (may(caller, "see_all_keys") or key.created_by == caller.user_id):
        return []
    name = shown_prefix(key.prefix, key.key_id)
    return [Hit("API key", name, key.label, None, "/portal/api-keys")]


def _hit(found: Found) -> Hit:
    # a run without a name is called as in the list of runs
    unnamed = f"{found.detail}, replayed" if found.kind == "run" else "without a name"
    return Hit(
        kind=_WORDS.get(found.kind, found.kind),
        name=found.name or unnamed,
        detail=found.detail,
        id=None if found.id == found.name else found.id,
        path=_PATHS[found.kind].format(quote(found.id, safe="")),
    )


routes: tuple[LeanRoute, ...] = (page_route("GET", "/portal/find", find),)

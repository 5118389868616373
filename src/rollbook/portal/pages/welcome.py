"""The first page of an organisation without episodes: three commands to type next, and the key to type them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook import __version__
from rollbook.portal.page import HOME, Page, page_route, render, signed_in_form
from rollbook.server.accounts.manage_keys import make_key
from rollbook.server.accounts.roles import MAY_GIVE
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import base_url_of, context_of
from rollbook.server.http.openapi import LeanRoute

FIRST_KEY = f"{HOME}/first-key"
_RECORD = """python - <<'END'
import gymnasium
from rollbook.adapters import gymnasium as recorder

recorder.record_many(
    lambda: gymnasium.make("CartPole-v1"),
    lambda observation: 0,
    seeds=range(30),
    policy_version="left-1",
)
END"""
_REPLAY = """cat > my_policies.py <<'END'
import gymnasium

def make_env():
    return gymnasium.make("CartPole-v1")

def balance(obs):
    _, _, angle, spin = obs["observation/value"]
    return {"action/value": int(angle + spin > 0)}
END
cat > gate.toml <<'END'
reward_range = [0, 500]  # of an episode of CartPole
[[rules]]
metric = "reward_total"
role = "primary"
END
rollbook replay run --policy my_policies:balance --candidate-version balance-2 \\
  --baseline-version left-1 --environment my_policies:make_env --gate-file gate.toml"""


@dataclass(frozen=True, kw_only=True)
class WelcomePage(Page):
    template: ClassVar[str] = "welcome.html"
    section: ClassVar[str] = "overview"
    modules: ClassVar[tuple[str, ...]] = ("welcome.js",)
    title: str = "Welcome"
    session: Session
    address: str
    new_key: str | None
    """Shown once: nobody can read it again."""
    may_record: bool
    data: str
    """Where this server keeps its data, in words."""
    connect: str
    """The first command; without a key it has an ellipsis."""
    version: str = __version__
    record: str = _RECORD
    replay: str = _REPLAY


async def welcome(request: Request, session: Session, new_key: str | None = None) -> Response:
    settings = context_of(request).settings
    database = "PostgreSQL" if settings.database_url.startswith("postgres") else "SQLite"
    blobs = "an object store" if settings.blobs_url.startswith("s3:") else "a folder"
    address = base_url_of(request)
    page = WelcomePage(
        session=session,
        address=address,
        connect=f"export ROLLBOOK_BASE_URL={address} \\\n       ROLLBOOK_API_KEY={new_key or '…'}",
        new_key=new_key,
        may_record=session.caller.role in MAY_GIVE["write"],
        data=f"{database} and {blobs}",
    )
    return render(request, page)


async def make_first_key(request: Request) -> Response:
    """The page itself shows the key: a redirect would have to carry it."""
    session, _ = await signed_in_form(request, "record")
    full, _ = await make_key(request, session.caller, "first key", "write")
    return await welcome(request, session, full)


routes: tuple[LeanRoute, ...] = (page_route("POST", FIRST_KEY, make_first_key),)

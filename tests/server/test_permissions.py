"""Every route and everybody who may call it: people of every role, keys of every scope, nobody, and another tenant.

The routes are those of the application itself, so a new one cannot be forgotten: it fails here until it is listed. The
ids in the paths are unknown. Whoever may call a route gets its own answer, mostly 404; whoever may not gets 403 before
anything is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from starlette.routing import Route

from rollbook.app import create_app
from rollbook.contracts.wire.keys import SCOPES
from rollbook.server.accounts.roles import ACTIONS, KEYS_MAY, MAY_GIVE, PEOPLE_MAY
from rollbook.server.queries import ROLES
from rollbook.server.settings import Settings
from tests.server.people import House, Person, join, sqlite_house, web
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation

__all__ = ["sqlite_house"]

_EVERYBODY = "owner admin member viewer"
_RECORDERS = "owner admin member"
_ADMINS = "owner admin"
_ANY_KEY = "ingest read write admin"
_NO_ONE = ""

_ID = "01890000-0000-7000-8000-000000000000"
_RESULT = {"baseline_episode_id": _ID, "status": "complete", "metrics": {}}
_HOOK = {"url": "https://hook.example", "events": ["eval_run.completed"]}
_REVISION = {
    "policy_family": "arm",
    "revision_id": "arm-1",
    "policy_digest": "weights",
    "produced_at_ms": 1,
}
_EMPTY_FORM = {"nothing": "else"}
_numbers = count()


@dataclass(frozen=True)
class Row:
    people: str
    keys: str
    status: int
    """The answer to those who may."""
    body: Any = None
    query: str = ""
    ends_session: bool = False
    """The caller of this test is not the one of the others."""


def _invite() -> dict[str, str]:
    return {"email": f"guest-{next(_numbers)}@example.com"}


_EPISODE, _INGEST = "/api/episodes/{episode_id}", "/api/ingest/episode/{episode_id}"
_ROLLOUT_PAGE = "/portal/stores/{store_id}/rollouts/{row}"
_EPISODE_PAGE = "/portal/episodes/{episode_id}"
_UPLOAD = f"{_INGEST}/upload/{{upload_id}}"
_RUN, _RUN_INGEST = "/api/eval-runs/{eval_run_id}", "/api/ingest/eval-run/{eval_run_id}"

EXPECTED: dict[tuple[str, str], Row] = {
    # recording
    ("POST", "/api/ingest/episode"): Row(_RECORDERS, "ingest write admin", 201, {}),
    ("POST", "/api/ingest/episodes"): Row(
        _RECORDERS, "ingest write admin", 201, {"episodes": [{}]}
    ),
    ("POST", f"{_INGEST}/finalize"): Row(
        _RECORDERS, "ingest write admin", 404, {"status": "ready"}
    ),
    ("POST", "/api/ingest/episodes/finalize"): Row(
        _RECORDERS,
        "ingest write admin",
        200,
        {"episodes": [{"episode_id": _ID, "status": "ready"}]},
    ),
    ("POST", f"{_INGEST}/upload-urls"): Row(_RECORDERS, "ingest write admin", 404, {}),
    ("POST", f"{_INGEST}/upload"): Row(
        _RECORDERS, "ingest write admin", 404, {"kind": "sensors", "size": 10}
    ),
    ("GET", _UPLOAD): Row(_RECORDERS, "ingest write admin", 404),
    ("POST", f"{_UPLOAD}/complete"): Row(_RECORDERS, "ingest write admin", 404, {}),
    ("DELETE", _UPLOAD): Row(_RECORDERS, "ingest write admin", 404),
    # reading, changing and deleting episodes
    ("GET", "/api/episodes"): Row(_EVERYBODY, "read write admin", 200),
    ("GET", _EPISODE): Row(_EVERYBODY, _ANY_KEY, 404),
    ("GET", f"{_EPISODE}/artifact/{{kind}}"): Row(_EVERYBODY, _ANY_KEY, 404),
    ("GET", f"{_EPISODE}/findings"): Row(_EVERYBODY, _ANY_KEY, 404),
    ("POST", "/api/episodes/lookup"): Row(_EVERYBODY, _ANY_KEY, 200, {"ids": [_ID]}),
    ("POST", "/api/episodes/artifacts"): Row(
        _EVERYBODY, _ANY_KEY, 200, {"artifacts": [{"episode_id": _ID, "kind": "sensors"}]}
    ),
    ("POST", f"{_EPISODE}/tags"): Row(_RECORDERS, "write admin", 404, {"add": ["a"]}),
    ("POST", f"{_EPISODE}/archive"): Row(_RECORDERS, "write admin", 404),
    ("POST", f"{_EPISODE}/restore"): Row(_RECORDERS, "write admin", 404),
    ("DELETE", _EPISODE): Row(_RECORDERS, "write admin", 404),
    # retention
    ("GET", "/api/usage"): Row(_EVERYBODY, "read write admin", 200),
    ("GET", "/api/holds"): Row(_ADMINS, "admin", 200),
    ("POST", f"{_EPISODE}/hold"): Row(_ADMINS, "admin", 404, {"reason": "a claim"}),
    ("DELETE", f"{_EPISODE}/hold"): Row(_ADMINS, "admin", 404),
    ("GET", "/api/retention"): Row(_ADMINS, "admin", 200),
    ("POST", "/api/retention"): Row(_ADMINS, "admin", 201, {"older_than_days": 36_500}),
    ("POST", "/api/retention/preview"): Row(_ADMINS, "admin", 200, {"older_than_days": 1}),
    ("DELETE", "/api/retention/{policy_id}"): Row(_ADMINS, "admin", 404),
    # eval runs
    ("POST", "/api/ingest/eval-run"): Row(
        _RECORDERS,
        "write admin",
        404,
        {"candidate_policy_version": "v2", "baseline_episode_ids": [_ID]},
    ),
    ("POST", f"{_RUN_INGEST}/result"): Row(_RECORDERS, "write admin", 404, _RESULT),
    ("POST", f"{_RUN_INGEST}/results"): Row(_RECORDERS, "write admin", 404, {"results": [_RESULT]}),
    ("POST", f"{_RUN_INGEST}/finalize"): Row(
        _RECORDERS, "write admin", 404, {"status": "completed"}
    ),
    ("POST", f"{_RUN}/cancel"): Row(_RECORDERS, "write admin", 404),
    ("DELETE", _RUN): Row(_RECORDERS, "write admin", 404),
    ("GET", "/api/eval-runs"): Row(_EVERYBODY, "read write admin", 200),
    ("GET", _RUN): Row(_EVERYBODY, "read write admin", 404),
    ("GET", f"{_RUN}/results"): Row(_EVERYBODY, "read write admin", 404),
    ("GET", f"{_RUN}/attempts"): Row(_EVERYBODY, "read write admin", 404),
    ("GET", f"{_RUN}/evidence"): Row(_EVERYBODY, "read write admin", 404),
    ("GET", "/api/episodes/{episode_id}/eval-runs"): Row(_EVERYBODY, "read write admin", 404),
    ("GET", "/api/policy-revisions/{revision_id}"): Row(_EVERYBODY, "read write admin", 404),
    ("GET", "/api/trainer-batches/{batch_id}"): Row(_EVERYBODY, "read write admin", 404),
    ("GET", "/api/trends"): Row(_EVERYBODY, "read write admin", 200, query="?metric=reward_mean"),
    ("GET", "/api/fresh-baselines"): Row(_EVERYBODY, "read write admin", 409, query="?count=9999"),
    # locked gates
    ("GET", "/api/gates"): Row(_EVERYBODY, "read write admin", 200),
    ("GET", "/api/gates/{gate_name}"): Row(_EVERYBODY, "read write admin", 404),
    ("PUT", "/api/gates/{gate_name}"): Row(_ADMINS, "admin", 400, {"gate": {"alpha": 2}}),
    ("DELETE", "/api/gates/{gate_name}"): Row(_ADMINS, "admin", 404),
    # rollout stores
    ("GET", "/api/stores"): Row(_EVERYBODY, "read write admin", 200),
    ("POST", "/api/stores"): Row(_ADMINS, "admin", 400, {"place": ""}),
    ("GET", "/api/stores/{store_id}"): Row(_EVERYBODY, "read write admin", 404),
    ("DELETE", "/api/stores/{store_id}"): Row(_ADMINS, "admin", 404),
    ("GET", "/portal/stores"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/portal/stores"): Row(_ADMINS, _NO_ONE, 400, {"place": ""}),
    ("GET", "/portal/stores/{store_id}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("POST", "/portal/stores/{store_id}/verify"): Row(_RECORDERS, _NO_ONE, 404, _EMPTY_FORM),
    ("GET", "/portal/stores/{store_id}/remove"): Row(_ADMINS, _NO_ONE, 404),
    ("POST", "/portal/stores/{store_id}/remove"): Row(_ADMINS, _NO_ONE, 404, _EMPTY_FORM),
    ("GET", "/portal/stores/{store_id}/rollouts"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/stores/{store_id}/targets"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/stores/{store_id}/suspicious"): Row(_EVERYBODY, _NO_ONE, 404),
    # the gate
    ("POST", "/api/policy-revisions"): Row(
        _RECORDERS,
        "write admin",
        404,
        {"revision": _REVISION, "episode_ids": [_ID]},
    ),
    ("POST", "/api/verify/promote"): Row(
        _RECORDERS, "write admin", 404, {"baseline_episode_id": _ID}
    ),
    ("POST", "/api/verify/check"): Row(
        _EVERYBODY, "read write admin", 200, {"candidate_policy_version": "v2"}
    ),
    ("POST", "/api/verify/result"): Row(
        _RECORDERS,
        "write admin",
        404,
        {"scenario_id": _ID, "candidate_policy_version": "v2", "metrics": {}},
    ),
    ("GET", "/api/scenarios"): Row(_EVERYBODY, "read write admin", 200),
    ("PATCH", "/api/scenarios/{scenario_id}"): Row(_RECORDERS, "admin", 404, {"active": False}),
    ("DELETE", "/api/scenarios/{scenario_id}"): Row(_RECORDERS, "admin", 404),
    # webhooks
    ("POST", "/api/webhooks"): Row(_ADMINS, "admin", 201, _HOOK),
    ("GET", "/api/webhooks"): Row(_ADMINS, "admin", 200),
    ("DELETE", "/api/webhooks/{webhook_id}"): Row(_ADMINS, "admin", 404),
    ("GET", "/api/webhooks/{webhook_id}/deliveries"): Row(_ADMINS, "admin", 404),
    ("POST", "/api/webhooks/{webhook_id}/test"): Row(_ADMINS, "admin", 404),
    ("POST", "/api/webhooks/{webhook_id}/pause"): Row(_ADMINS, "admin", 404),
    ("POST", "/api/webhooks/{webhook_id}/resume"): Row(_ADMINS, "admin", 404),
    # keys
    ("GET", "/api/keys"): Row(_EVERYBODY, "write admin", 200),
    ("POST", "/api/keys"): Row(_EVERYBODY, _NO_ONE, 201, {"scope": "read"}),
    ("DELETE", "/api/keys/{key_id}"): Row(_EVERYBODY, _ANY_KEY, 404),
    # people
    ("GET", "/api/whoami"): Row(_EVERYBODY, _ANY_KEY, 200),
    ("POST", "/api/sign-out"): Row(_EVERYBODY, _NO_ONE, 200, ends_session=True),
    ("POST", "/api/password"): Row(_EVERYBODY, _NO_ONE, 400, {"new_password": 7}),
    ("POST", "/api/organisation"): Row(_EVERYBODY, _NO_ONE, 404, {"org_id": _ID}),
    ("GET", "/api/members"): Row(_EVERYBODY, _NO_ONE, 200),
    ("PATCH", "/api/members/{user_id}"): Row(_ADMINS, _NO_ONE, 404, {"role": "viewer"}),
    ("DELETE", "/api/members/{user_id}"): Row(_ADMINS, _NO_ONE, 404),
    ("POST", "/api/invitations"): Row(_ADMINS, _NO_ONE, 201, _invite),
    ("GET", "/api/invitations"): Row(_ADMINS, _NO_ONE, 200),
    ("DELETE", "/api/invitations/{invitation_id}"): Row(_ADMINS, _NO_ONE, 404),
    ("GET", "/api/audit"): Row(_ADMINS, _NO_ONE, 200),
    # pages
    ("GET", "/keys"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/keys"): Row(_EVERYBODY, _NO_ONE, 200, {"scope": "read"}),
    ("GET", "/keys/{key_id}/revoke"): Row(_EVERYBODY, _NO_ONE, 404),
    ("POST", "/keys/{key_id}/revoke"): Row(_EVERYBODY, _NO_ONE, 404, _EMPTY_FORM),
    ("GET", "/members"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/members/{user_id}/role"): Row(_ADMINS, _NO_ONE, 404, {"role": "viewer"}),
    ("GET", "/members/{user_id}/remove"): Row(_ADMINS, _NO_ONE, 404),
    ("POST", "/members/{user_id}/remove"): Row(_ADMINS, _NO_ONE, 404, _EMPTY_FORM),
    ("POST", "/invitations"): Row(_ADMINS, _NO_ONE, 200, _invite),
    ("POST", "/invitations/{invitation_id}/withdraw"): Row(_ADMINS, _NO_ONE, 404, _EMPTY_FORM),
    ("GET", "/cli/auth"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/cli/auth"): Row(
        _EVERYBODY, _NO_ONE, 404, {"code": "BCDF-GHJK", "decision": "approve"}
    ),
    ("GET", "/password"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/password"): Row(_EVERYBODY, _NO_ONE, 403, {"current_password": "wrong"}),
    ("POST", "/sign-out"): Row(_EVERYBODY, _NO_ONE, 303, _EMPTY_FORM, ends_session=True),
    ("GET", "/portal/organisations"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/portal/organisations"): Row(_EVERYBODY, _NO_ONE, 404, {"org_id": _ID}),
    ("GET", "/portal/settings"): Row(_EVERYBODY, _NO_ONE, 303),
    ("GET", "/portal/settings/quotas"): Row(_EVERYBODY, _NO_ONE, 200),
    ("GET", "/portal/settings/gates"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/portal/settings/gates"): Row(_ADMINS, _NO_ONE, 303, {"name": "release"}),
    ("GET", "/portal/settings/gates/{gate_name}/unlock"): Row(_ADMINS, _NO_ONE, 404),
    ("POST", "/portal/settings/gates/{gate_name}/unlock"): Row(_ADMINS, _NO_ONE, 404, _EMPTY_FORM),
    ("GET", "/portal/settings/retention"): Row(_ADMINS, _NO_ONE, 200),
    ("POST", "/portal/settings/retention"): Row(
        _ADMINS, _NO_ONE, 303, {"older_than_days": "36500"}
    ),
    ("POST", "/portal/settings/retention/{policy_id}/delete"): Row(
        _ADMINS, _NO_ONE, 404, _EMPTY_FORM
    ),
    ("GET", "/portal/settings/webhooks"): Row(_ADMINS, _NO_ONE, 200),
    ("POST", "/portal/settings/webhooks"): Row(
        _ADMINS, _NO_ONE, 200, {"url": "https://hook.example", "events": "eval_run.failed"}
    ),
    ("GET", "/portal/settings/webhooks/{webhook_id}"): Row(_ADMINS, _NO_ONE, 404),
    ("POST", "/portal/settings/webhooks/{webhook_id}/test"): Row(
        _ADMINS, _NO_ONE, 404, _EMPTY_FORM
    ),
    ("POST", "/portal/settings/webhooks/{webhook_id}/pause"): Row(
        _ADMINS, _NO_ONE, 404, _EMPTY_FORM
    ),
    ("GET", "/portal/settings/webhooks/{webhook_id}/delete"): Row(_ADMINS, _NO_ONE, 404),
    ("POST", "/portal/settings/webhooks/{webhook_id}/delete"): Row(
        _ADMINS, _NO_ONE, 404, _EMPTY_FORM
    ),
    ("GET", "/portal/settings/audit"): Row(_ADMINS, _NO_ONE, 200),
    # the portal
    ("GET", "/portal"): Row(_EVERYBODY, _NO_ONE, 200),
    ("GET", "/portal/find"): Row(_EVERYBODY, _NO_ONE, 200, query="?q=nothing"),
    ("POST", "/portal/first-key"): Row(_RECORDERS, _NO_ONE, 200, _EMPTY_FORM),
    ("GET", "/portal/evals"): Row(_EVERYBODY, _NO_ONE, 200),
    ("GET", "/portal/evals/{eval_run_id}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/evals/{eval_run_id}/progress"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/evals/{eval_run_id}/export.csv"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/evals/{eval_run_id}/export.json"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/evals/{eval_run_id}/report"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/evals/{eval_run_id}/pairs/{baseline_id}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/evals/{eval_run_id}/pairs/{baseline_id}/tracks"): Row(
        _EVERYBODY, _NO_ONE, 404
    ),
    ("GET", "/portal/compare"): Row(_EVERYBODY, _NO_ONE, 404, query=f"?run={_ID}"),
    ("GET", "/portal/lineage"): Row(_EVERYBODY, _NO_ONE, 200),
    ("GET", "/portal/lineage/{revision_id}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/trends"): Row(_EVERYBODY, _NO_ONE, 200),
    ("GET", "/portal/scenarios"): Row(_EVERYBODY, _NO_ONE, 200),
    ("GET", "/portal/verify"): Row(_EVERYBODY, _NO_ONE, 303),
    ("GET", "/portal/gate"): Row(_EVERYBODY, _NO_ONE, 200, query="?candidate=v2"),
    ("GET", "/portal/scenarios/{scenario_id}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("POST", "/portal/scenarios/{scenario_id}"): Row(
        _RECORDERS, _NO_ONE, 404, {"severity": "info", "active": "false"}
    ),
    ("GET", "/portal/scenarios/{scenario_id}/remove"): Row(_RECORDERS, _NO_ONE, 404),
    ("POST", "/portal/scenarios/{scenario_id}/remove"): Row(
        _RECORDERS, _NO_ONE, 404, {"confirmation": "remove"}
    ),
    ("GET", "/portal/side-by-side"): Row(
        _EVERYBODY, _NO_ONE, 404, query=f"?episode={_ID}&episode=another"
    ),
    ("GET", "/portal/episodes/{episode_id}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/episodes/{episode_id}/video"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/episodes/{episode_id}/promote"): Row(_RECORDERS, _NO_ONE, 404),
    ("POST", "/portal/episodes/{episode_id}/promote"): Row(
        _RECORDERS, _NO_ONE, 404, {"severity": "critical"}
    ),
    ("GET", f"{_EPISODE_PAGE}/tracks"): Row(_EVERYBODY, _NO_ONE, 404),
    ("POST", f"{_EPISODE_PAGE}/analysis"): Row(_RECORDERS, _NO_ONE, 404, _EMPTY_FORM),
    ("GET", f"{_EPISODE_PAGE}/frames/{{array:path}}/{{index}}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", _ROLLOUT_PAGE): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", f"{_ROLLOUT_PAGE}/scene"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", f"{_ROLLOUT_PAGE}/steps/{{step}}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", f"{_ROLLOUT_PAGE}/depth/{{step}}"): Row(_EVERYBODY, _NO_ONE, 404),
    ("GET", "/portal/episodes"): Row(_EVERYBODY, _NO_ONE, 200),
    ("POST", "/portal/episodes/baselines"): Row(_EVERYBODY, _NO_ONE, 404, {"episode": _ID}),
    ("POST", "/portal/episodes/side-by-side"): Row(_EVERYBODY, _NO_ONE, 404, {"episode": _ID}),
    ("POST", "/portal/episodes/tag"): Row(_RECORDERS, _NO_ONE, 404, {"episode": _ID, "add": "a"}),
    ("POST", "/portal/episodes/archive"): Row(_RECORDERS, _NO_ONE, 404, {"episode": _ID}),
    ("POST", "/portal/episodes/restore"): Row(_RECORDERS, _NO_ONE, 404, {"episode": _ID}),
    ("POST", "/portal/episodes/delete"): Row(
        _RECORDERS, _NO_ONE, 404, {"episode": _ID, "confirm": "delete"}
    ),
}

BY_THE_KEY_ITSELF = {("POST", "/api/cli/auth/revoke")}
"""Every key may, and only a key can."""

OPEN_TO_ALL = {
    ("POST", "/api/cli/auth/start"),
    ("POST", "/api/cli/auth/poll"),
    ("POST", "/api/sign-in"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("POST", "/api/invitations/accept"),
    ("GET", "/invitation"),
    ("POST", "/invitation"),
    ("GET", "/"),
    ("GET", "/favicon.ico"),
    ("HEAD", "/favicon.ico"),
    ("GET", "/portal/api-keys"),
    ("GET", "/static/{digest}/{name}"),
    ("HEAD", "/static/{digest}/{name}"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/api/evidence-key"),
    ("GET", "/api/openapi.json"),
    ("GET", "/api/docs"),
}
"""They tell nothing about an organisation, or a secret in the request decides."""

BY_SIGNATURE = {"/blobs", "/blobs/{token:path}"}

UNSAFE = [route for route in EXPECTED if route[0] != "GET"]


def test_every_route_is_listed_here(tmp_path: Path) -> None:
    app = create_app(Settings.load(tmp_path))
    routes = {
        (method, each.path)
        for each in app.routes
        if isinstance(each, Route) and each.path not in BY_SIGNATURE
        for method in each.methods or ()
    }
    listed = {*EXPECTED, *BY_THE_KEY_ITSELF, *OPEN_TO_ALL}
    assert routes - listed == set(), "new routes: say who may call them"
    assert listed - routes == set(), "routes that are gone"


# ----------------------------------------------------------------------------------------- the callers


class Sends(Protocol):
    def send(self, method: str, path: str, body: Any) -> httpx.Response: ...


class Visitor:
    """Nobody, or whoever sends this key. Like a browser it says where a form comes from."""

    def __init__(self, server: RunningServer, key: str | None = None) -> None:
        headers = {"Origin": server.base_url}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self.http = web(server, **headers)

    def send(self, method: str, path: str, body: Any) -> httpx.Response:
        as_form = method == "POST" and not path.startswith("/api/")
        return self.http.request(method, path, **{"data" if as_form else "json": body})


class Member:
    def __init__(self, person: Person) -> None:
        self.person = person

    def send(self, method: str, path: str, body: Any) -> httpx.Response:
        if path.startswith("/api/") or method == "GET":
            return self.person.call(method, path, json=body)
        return self.person.submit(path, **body)


@dataclass
class Cast:
    server: RunningServer
    people: dict[str, Person]
    emails: dict[str, str]
    keys: dict[str, Visitor]
    nobody: Visitor
    another_tenant: Visitor
    ids: dict[str, str]
    """Of this organisation."""
    open: ExitStack

    def member(self, role: str, *, fresh: bool) -> Member:
        if fresh:
            person = Person(self.server).sign_in(self.emails[role])
            self.open.callback(person.close)
            return Member(person)
        return Member(self.people[role])

    def visitor(self, key: str | None) -> Visitor:
        made = Visitor(self.server, key)
        self.open.callback(made.http.close)
        return made


def new_key(person: Person, **body: Any) -> str:
    made = person.call("POST", "/api/keys", json=body)
    assert made.status_code == 201, made.text
    key: str = made.json()["api_key"]
    return key


@pytest.fixture(scope="module")
def cast(sqlite_house: House) -> Iterator[Cast]:
    server = sqlite_house.server
    access = new_organisation(server)
    owner = Person(server).sign_in_by_link(access)
    emails = {role: f"{role}-{next(_numbers)}@permissions.example" for role in ROLES}
    people = {role: join(server, owner, emails[role], role) for role in ROLES}
    keys = {scope: new_key(people["owner"], scope=scope) for scope in SCOPES}
    foreign = new_key(sqlite_house.other_owner, scope="admin")
    with ExitStack() as open_ones:
        for person in (owner, *people.values()):
            open_ones.callback(person.close)
        nobody, another = Visitor(server), Visitor(server, foreign)
        visitors = {str(scope): Visitor(server, key) for scope, key in keys.items()}
        for visitor in (nobody, another, *visitors.values()):
            open_ones.callback(visitor.http.close)
        ids = _one_of_everything(owner)
        yield Cast(server, people, emails, visitors, nobody, another, ids, open_ones)


def _one_of_everything(person: Person) -> dict[str, str]:
    wanted = {"request_uploads": ["sensors"]}
    episode = person.call("POST", "/api/ingest/episode", json=wanted).json()["episode_id"]
    upload = {"kind": "sensors", "size": 10}
    run = {"candidate_policy_version": "v2", "baseline_episode_ids": [episode]}
    promoted = {"baseline_episode_id": episode, "severity": "info"}
    made = {
        "upload_id": (f"/api/ingest/episode/{episode}/upload", upload, "upload_id"),
        "eval_run_id": ("/api/ingest/eval-run", run, "eval_run_id"),
        "scenario_id": ("/api/verify/promote", promoted, "scenario_id"),
        "webhook_id": ("/api/webhooks", _HOOK, "id"),
        "revision_id": ("/api/policy-revisions", {"revision": _REVISION}, "id"),
        "policy_id": ("/api/retention", {"older_than_days": 36_500}, "id"),
        "invitation_id": ("/api/invitations", _invite(), "id"),
    }
    ids = {
        name: person.call("POST", path, json=body).json()[field]
        for name, (path, body, field) in made.items()
    }
    user_id = person.get("/api/whoami").json()["user"]["id"]
    key_id = new_key(person, scope="read").split("_")[1]
    ids |= {"episode_id": episode, "baseline_id": episode, "user_id": user_id, "key_id": key_id}
    return {
        **ids,
        "store_id": _ID,
        "batch_id": "unknown",
        "gate_name": "release",
        "kind": "sensors",
    }


_UNKNOWN = {
    **dict.fromkeys(("episode_id", "upload_id", "eval_run_id", "scenario_id"), _ID),
    **dict.fromkeys(("webhook_id", "policy_id", "invitation_id", "user_id", "store_id"), _ID),
    **dict.fromkeys(("revision_id", "baseline_id"), _ID),
    **dict.fromkeys(("webhook_id", "policy_id", "invitation_id", "user_id"), _ID),
    "key_id": "Unknown000",
    "batch_id": "unknown",
    "gate_name": "unknown",
    "kind": "sensors",
    "array": "camera",
    "index": "0",
    "row": "0",
    "step": "1",
}


def filled(path: str, ids: dict[str, str]) -> str:
    """The path with these ids; a part that may hold slashes is written like any other."""
    return path.replace(":path}", "}").format(**{**_UNKNOWN, **ids})


# ------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize(("method", "path"), EXPECTED)
def test_only_those_in_the_table_may_call_a_route(cast: Cast, method: str, path: str) -> None:
    row = EXPECTED[method, path]
    at = filled(path, _UNKNOWN) + row.query
    is_page = not path.startswith("/api/")

    def answer_to(caller: Sends, at: str = at) -> int:
        body = row.body() if callable(row.body) else row.body
        return caller.send(method, at, body).status_code

    got, expected = {}, {}
    for role in ROLES:
        got[role] = answer_to(cast.member(role, fresh=row.ends_session))
        expected[role] = row.status if role in row.people.split() else 403
    for scope, visitor in cast.keys.items():
        got[f"key {scope}"] = answer_to(visitor)
        allowed = row.status if scope in row.keys.split() else 403
        expected[f"key {scope}"] = 303 if is_page else allowed  # pages ask people to sign in
    got["nobody"] = answer_to(cast.nobody)
    expected["nobody"] = 303 if is_page else 401
    got["another tenant"] = answer_to(cast.another_tenant, filled(path, cast.ids) + row.query)
    expected["another tenant"] = expected["key admin"]
    assert got == expected


def test_every_key_revokes_itself_and_nobody_else_can_that_way(cast: Cast) -> None:
    path = "/api/cli/auth/revoke"
    for scope in SCOPES:
        visitor = cast.visitor(new_key(cast.people["owner"], scope=scope))
        assert visitor.send("POST", path, None).status_code == 200
        assert visitor.send("GET", "/api/whoami", None).status_code == 401
    assert cast.nobody.send("POST", path, None).status_code == 401
    for person in cast.people.values():
        assert person.call("POST", path).status_code == 401


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("scope", SCOPES)
def test_nobody_gives_a_key_more_than_they_may_do(cast: Cast, role: str, scope: str) -> None:
    gives = {
        "owner": "ingest read write admin",
        "admin": "ingest read write admin",
        "member": "ingest read write",
        "viewer": "read",
    }
    made = cast.people[role].call("POST", "/api/keys", json={"scope": scope})
    by_form = cast.people[role].submit("/keys", scope=scope)
    may = scope in gives[role].split()
    assert (made.status_code, by_form.status_code) == ((201, 200) if may else (403, 403))


def test_the_table_of_the_server_names_every_action_once() -> None:
    assert set(PEOPLE_MAY) == set(KEYS_MAY) == set(ACTIONS)
    assert set(MAY_GIVE) == set(SCOPES)
    for action in ACTIONS:
        assert set(PEOPLE_MAY[action]) <= set(ROLES)
        assert set(KEYS_MAY[action]) <= set(SCOPES)


# ------------------------------------------------------------------------------------------------ CSRF


@pytest.mark.parametrize(("method", "path"), UNSAFE)
def test_a_cookie_alone_changes_nothing(cast: Cast, method: str, path: str) -> None:
    """Another site can make a browser send the cookie, but neither the token nor our Origin."""
    person, ours = cast.people["owner"], cast.server.base_url
    row = EXPECTED[method, path]
    body = row.body() if callable(row.body) else row.body
    at = filled(path, cast.ids)
    is_form = not path.startswith("/api/")

    def answer_to(headers: dict[str, str], token: str | None) -> int:
        sent: Any = body
        if is_form:
            sent = {**body, **({} if token is None else {"csrf_token": token})}
        elif token is not None:
            headers = {**headers, "X-CSRF-Token": token}
        options = {"data" if is_form else "json": sent}
        return person.http.request(method, at, headers=headers, **options).status_code

    right = person.csrf
    tried = {
        "no token": answer_to({"Origin": ours}, None),
        "empty token": answer_to({"Origin": ours}, ""),
        "token of another session": answer_to({"Origin": ours}, cast.people["admin"].csrf),
        "half a token": answer_to({"Origin": ours}, right[:-1]),
        "no origin": answer_to({}, right),
        "another origin": answer_to({"Origin": "https://evil.example"}, right),
        "origin null": answer_to({"Origin": "null"}, right),
    }
    assert tried == dict.fromkeys(tried, 403)


def test_nothing_was_changed_by_a_cookie_alone(cast: Cast) -> None:
    """Sends everything once more and looks: the order of tests must not matter."""
    person, ids = cast.people["owner"], cast.ids
    for method, path in UNSAFE:
        row = EXPECTED[method, path]
        body = row.body() if callable(row.body) else row.body
        kind = "json" if path.startswith("/api/") else "data"
        headers = {"Origin": cast.server.base_url}
        person.http.request(method, filled(path, ids), headers=headers, **{kind: body})
    assert person.get("/api/whoami").status_code == 200
    episode = person.get(f"/api/episodes/{ids['episode_id']}").json()
    assert (episode["status"], episode["tags"]) == ("recording", [])
    assert person.get(f"/api/eval-runs/{ids['eval_run_id']}").json()["status"] == "pending"
    [scenario] = person.get("/api/scenarios").json()["scenarios"]
    assert (scenario["scenario_id"], scenario["active"]) == (ids["scenario_id"], True)
    keys = {each["key_id"]: each for each in person.get("/api/keys").json()["keys"]}
    assert keys[ids["key_id"]]["revoked_at"] is None
    members = {
        each["user_id"]: each["role"] for each in person.get("/api/members").json()["members"]
    }
    assert members[ids["user_id"]] == "owner"
    hooks = {each["id"] for each in person.get("/api/webhooks").json()["webhooks"]}
    assert ids["webhook_id"] in hooks
    policies = {each["id"] for each in person.get("/api/retention").json()["policies"]}
    assert ids["policy_id"] in policies
    assert person.get("/api/holds").json()["holds"] == []

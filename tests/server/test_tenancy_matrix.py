"""Every route with every id of somebody else: the answer is the same as for an id that does not exist.

The routes are those of the application itself, so a new one cannot be forgotten: it fails here until it is listed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from rollbook.app import create_app
from rollbook.contracts.policy import PolicyRevision
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import Scope
from rollbook.server.settings import Settings
from tests.portal.pairs_world import trainer_batch
from tests.server.people import House, Person, house, web
from tests.server.running import Access, RunningServer

__all__ = ["house"]

Send = Callable[[str, str, dict[str, Any]], httpx.Response]

_RESULT = {"baseline_episode_id": "any", "status": "complete", "metrics": {}}

BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/api/ingest/episode/{episode_id}/finalize"): {"status": "ready"},
    ("GET", "/api/episodes/{episode_id}"): None,
    ("DELETE", "/api/episodes/{episode_id}"): None,
    ("POST", "/api/episodes/{episode_id}/archive"): None,
    ("POST", "/api/episodes/{episode_id}/restore"): None,
    ("POST", "/api/episodes/{episode_id}/tags"): {"add": ["mine"]},
    ("GET", "/api/episodes/{episode_id}/artifact/{kind}"): None,
    ("POST", "/api/ingest/episode/{episode_id}/upload-urls"): {"request_uploads": ["sensors"]},
    ("POST", "/api/ingest/episode/{episode_id}/upload"): {"kind": "sensors", "size": 10},
    ("GET", "/api/ingest/episode/{episode_id}/upload/{upload_id}"): None,
    ("POST", "/api/ingest/episode/{episode_id}/upload/{upload_id}/complete"): {},
    ("DELETE", "/api/ingest/episode/{episode_id}/upload/{upload_id}"): None,
    ("DELETE", "/api/keys/{key_id}"): None,
    ("GET", "/keys/{key_id}/revoke"): None,
    ("POST", "/keys/{key_id}/revoke"): {},
    ("PATCH", "/api/members/{user_id}"): {"role": "viewer"},
    ("DELETE", "/api/members/{user_id}"): None,
    ("POST", "/members/{user_id}/role"): {"role": "viewer"},
    ("GET", "/members/{user_id}/remove"): None,
    ("POST", "/members/{user_id}/remove"): {},
    ("DELETE", "/api/invitations/{invitation_id}"): None,
    ("POST", "/invitations/{invitation_id}/withdraw"): {},
    ("POST", "/api/ingest/eval-run/{eval_run_id}/result"): _RESULT,
    ("POST", "/api/ingest/eval-run/{eval_run_id}/results"): {"results": [_RESULT]},
    ("POST", "/api/ingest/eval-run/{eval_run_id}/finalize"): {"status": "completed"},
    ("GET", "/api/eval-runs/{eval_run_id}"): None,
    ("GET", "/api/eval-runs/{eval_run_id}/results"): None,
    ("GET", "/api/eval-runs/{eval_run_id}/attempts"): None,
    ("GET", "/api/eval-runs/{eval_run_id}/evidence"): None,
    ("GET", "/api/episodes/{episode_id}/eval-runs"): None,
    ("GET", "/api/policy-revisions/{revision_id}"): None,
    ("GET", "/api/trainer-batches/{batch_id}"): None,
    ("POST", "/api/eval-runs/{eval_run_id}/cancel"): None,
    ("GET", "/portal/evals/{eval_run_id}"): None,
    ("GET", "/portal/evals/{eval_run_id}/progress"): None,
    ("GET", "/portal/evals/{eval_run_id}/export.csv"): None,
    ("GET", "/portal/evals/{eval_run_id}/export.json"): None,
    ("GET", "/portal/evals/{eval_run_id}/report"): None,
    ("DELETE", "/api/eval-runs/{eval_run_id}"): None,
    ("PATCH", "/api/scenarios/{scenario_id}"): {"active": False},
    ("DELETE", "/api/scenarios/{scenario_id}"): None,
    ("DELETE", "/api/webhooks/{webhook_id}"): None,
    ("GET", "/api/webhooks/{webhook_id}/deliveries"): None,
    ("POST", "/api/webhooks/{webhook_id}/test"): None,
    ("POST", "/api/webhooks/{webhook_id}/pause"): None,
    ("POST", "/api/webhooks/{webhook_id}/resume"): None,
    ("DELETE", "/api/retention/{policy_id}"): None,
    ("GET", "/api/gates/{gate_name}"): None,
    ("DELETE", "/api/gates/{gate_name}"): None,
    ("GET", "/api/stores/{store_id}"): None,
    ("DELETE", "/api/stores/{store_id}"): None,
    ("GET", "/portal/stores/{store_id}"): None,
    ("POST", "/portal/stores/{store_id}/verify"): {},
    ("GET", "/portal/stores/{store_id}/remove"): None,
    ("POST", "/portal/stores/{store_id}/remove"): {},
    ("GET", "/portal/stores/{store_id}/rollouts"): None,
    ("GET", "/portal/stores/{store_id}/targets"): None,
    ("GET", "/portal/stores/{store_id}/suspicious"): None,
    ("POST", "/api/episodes/{episode_id}/hold"): {"reason": "mine"},
    ("GET", "/portal/settings/gates/{gate_name}/unlock"): None,
    ("POST", "/portal/settings/gates/{gate_name}/unlock"): {},
    ("POST", "/portal/settings/retention/{policy_id}/delete"): {},
    ("GET", "/portal/settings/webhooks/{webhook_id}"): None,
    ("POST", "/portal/settings/webhooks/{webhook_id}/test"): {},
    ("POST", "/portal/settings/webhooks/{webhook_id}/pause"): {},
    ("GET", "/portal/settings/webhooks/{webhook_id}/delete"): None,
    ("POST", "/portal/settings/webhooks/{webhook_id}/delete"): {},
    ("DELETE", "/api/episodes/{episode_id}/hold"): None,
    ("GET", "/portal/evals/{eval_run_id}/pairs/{baseline_id}"): None,
    ("GET", "/portal/evals/{eval_run_id}/pairs/{baseline_id}/tracks"): None,
    ("GET", "/portal/lineage/{revision_id}"): None,
    ("GET", "/portal/scenarios/{scenario_id}"): None,
    ("POST", "/portal/scenarios/{scenario_id}"): {"severity": "info", "active": "false"},
    ("GET", "/portal/scenarios/{scenario_id}/remove"): None,
    ("POST", "/portal/scenarios/{scenario_id}/remove"): {"confirmation": "remove"},
    ("GET", "/portal/episodes/{episode_id}"): None,
    ("GET", "/portal/episodes/{episode_id}/video"): None,
    ("GET", "/portal/episodes/{episode_id}/promote"): None,
    ("POST", "/portal/episodes/{episode_id}/promote"): {"severity": "critical"},
    ("GET", "/portal/episodes/{episode_id}/tracks"): None,
    ("GET", "/api/episodes/{episode_id}/findings"): None,
    ("POST", "/portal/episodes/{episode_id}/analysis"): {},
    ("GET", "/portal/episodes/{episode_id}/frames/{array:path}/{index}"): None,
    ("GET", "/portal/stores/{store_id}/rollouts/{row}"): None,
    ("GET", "/portal/stores/{store_id}/rollouts/{row}/scene"): None,
    ("GET", "/portal/stores/{store_id}/rollouts/{row}/steps/{step}"): None,
    ("GET", "/portal/stores/{store_id}/rollouts/{row}/depth/{step}"): None,
}
"""Routes with ids in their path, and what is sent to them: everything about it is right but the id."""

IDS_IN_BODIES: dict[tuple[str, str], Callable[[dict[str, str]], Any]] = {
    ("POST", "/api/ingest/episodes/finalize"): lambda ids: {
        "episodes": [{"episode_id": ids["episode_id"], "status": "ready"}]
    },
    ("POST", "/api/episodes/lookup"): lambda ids: {"ids": [ids["episode_id"]]},
    ("GET", "/portal/side-by-side"): lambda ids: {"episode": [ids["episode_id"], ids["org_id"]]},
    ("POST", "/api/episodes/artifacts"): lambda ids: {
        "artifacts": [{"episode_id": ids["episode_id"], "kind": "sensors"}]
    },
    ("POST", "/api/ingest/eval-run"): lambda ids: {
        "candidate_policy_version": "v2",
        "baseline_episode_ids": [ids["episode_id"]],
    },
    ("POST", "/api/policy-revisions"): lambda ids: {
        "revision": _revision("of nobody"),
        "episode_ids": [ids["episode_id"]],
    },
    ("POST", "/api/verify/promote"): lambda ids: {"baseline_episode_id": ids["episode_id"]},
    ("POST", "/api/verify/result"): lambda ids: {
        "scenario_id": ids["scenario_id"],
        "candidate_policy_version": "v2",
        "metrics": {},
    },
    ("POST", "/api/organisation"): lambda ids: {"org_id": ids["org_id"]},
    ("POST", "/portal/organisations"): lambda ids: {"org_id": ids["org_id"]},
    ("POST", "/cli/auth"): lambda ids: {
        "code": "BCDF-GHJK",
        "decision": "approve",
        "org_id": ids["org_id"],
    },
    **{
        ("POST", f"/portal/episodes/{action}"): lambda ids: {
            "episode": ids["episode_id"],
            "add": "mine",
            "confirm": "delete",
        }
        for action in ("baselines", "side-by-side", "tag", "archive", "restore", "delete")
    },
}

WITHOUT_IDS = {
    ("POST", "/api/ingest/episode"),
    ("GET", "/api/episodes"),
    ("POST", "/api/keys"),
    ("GET", "/api/keys"),
    ("GET", "/keys"),
    ("POST", "/keys"),
    ("POST", "/api/cli/auth/start"),
    ("POST", "/api/cli/auth/poll"),
    ("POST", "/api/cli/auth/revoke"),
    ("GET", "/cli/auth"),
    ("POST", "/api/sign-in"),
    ("POST", "/api/sign-out"),
    ("POST", "/api/password"),
    ("GET", "/api/whoami"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
    ("GET", "/password"),
    ("POST", "/password"),
    ("GET", "/api/members"),
    ("GET", "/members"),
    ("POST", "/api/invitations"),
    ("GET", "/api/invitations"),
    ("POST", "/api/invitations/accept"),
    ("POST", "/invitations"),
    ("GET", "/invitation"),
    ("POST", "/invitation"),
    ("GET", "/api/audit"),
    ("POST", "/api/ingest/episodes"),
    ("GET", "/api/eval-runs"),
    ("GET", "/api/trends"),
    ("GET", "/api/scenarios"),
    ("POST", "/api/verify/check"),
    ("GET", "/api/webhooks"),
    ("POST", "/api/webhooks"),
    ("GET", "/api/gates"),
    ("GET", "/api/stores"),
    ("POST", "/api/stores"),
    ("GET", "/portal/stores"),
    ("POST", "/portal/stores"),
    ("GET", "/api/fresh-baselines"),
    ("GET", "/api/retention"),
    ("POST", "/api/retention"),
    ("POST", "/api/retention/preview"),
    ("GET", "/api/holds"),
    ("GET", "/api/usage"),
    ("GET", "/"),
    ("GET", "/favicon.ico"),
    ("HEAD", "/favicon.ico"),
    ("GET", "/portal/api-keys"),
    ("GET", "/portal/organisations"),
    ("GET", "/portal/settings"),
    ("GET", "/portal/settings/quotas"),
    ("GET", "/portal/settings/gates"),
    ("POST", "/portal/settings/gates"),
    ("GET", "/portal/settings/retention"),
    ("POST", "/portal/settings/retention"),
    ("GET", "/portal/settings/webhooks"),
    ("POST", "/portal/settings/webhooks"),
    ("GET", "/portal/settings/audit"),
    ("GET", "/portal"),
    ("GET", "/portal/find"),
    ("POST", "/portal/first-key"),
    ("GET", "/portal/evals"),
    ("GET", "/portal/trends"),
    ("GET", "/portal/lineage"),
    ("GET", "/portal/compare"),
    ("GET", "/portal/scenarios"),
    ("GET", "/portal/verify"),
    ("GET", "/portal/gate"),
    ("GET", "/portal/episodes"),
    ("GET", "/api/evidence-key"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/api/openapi.json"),
    ("GET", "/api/docs"),
}
"""They act on whoever asks, or on the holder of a secret. Lists are looked at below."""

BY_OWN_NAME = {
    ("PUT", "/api/gates/{gate_name}"),
    ("GET", "/static/{digest}/{name}"),
    ("HEAD", "/static/{digest}/{name}"),
}
"""The caller chooses the name: a name that another organisation uses is as free as any other. Static files belong to
nobody."""

BY_SIGNATURE = {"/blobs", "/blobs/{token:path}"}
"""A signed token decides alone; the tests of blobs alter it."""


def test_every_route_is_listed_here(tmp_path: Path) -> None:
    app = create_app(Settings.load(tmp_path))
    routes = {
        (method, each.path)
        for each in app.routes
        if isinstance(each, APIRoute | Route) and each.path not in BY_SIGNATURE
        for method in each.methods or ()
    }
    listed = {*BODIES, *IDS_IN_BODIES, *WITHOUT_IDS, *BY_OWN_NAME}
    assert routes - listed == set(), (
        "new routes: list them, so that they are tried with foreign ids"
    )
    assert listed - routes == set(), "routes that are gone"
    with_ids = {route for route in routes if "{" in route[1]}
    assert with_ids == set(BODIES) | BY_OWN_NAME


# -------------------------------------------------------------------------------------- two tenants


@dataclass
class Tenants:
    server: RunningServer
    first: Person
    second: Person
    admin_key: Access
    """Of the first organisation: what it may not do, no key may."""
    mine: dict[str, str]
    foreign: dict[str, str]


UNKNOWN = {
    "episode_id": "01890000-0000-7000-8000-000000000000",
    "upload_id": "01890000-0000-7000-8000-000000000001",
    "user_id": "01890000-0000-7000-8000-000000000002",
    "invitation_id": "01890000-0000-7000-8000-000000000003",
    "org_id": "01890000-0000-7000-8000-000000000004",
    "eval_run_id": "01890000-0000-7000-8000-000000000005",
    "scenario_id": "01890000-0000-7000-8000-000000000006",
    "webhook_id": "01890000-0000-7000-8000-000000000007",
    "policy_id": "01890000-0000-7000-8000-000000000008",
    "revision_id": "01890000-0000-7000-8000-000000000009",
    "baseline_id": "01890000-0000-7000-8000-000000000000",
    "key_id": "Unknown000",
    "store_id": "01890000-0000-7000-8000-000000000009",
    "batch_id": "unknown",
    "gate_name": "unknown",
    "kind": "sensors",
    "array": "camera",
    "index": "0",
    "row": "0",
    "step": "1",
}
NOT_IDS = ("kind", "array", "index", "row", "step")


@pytest.fixture(scope="module")
def tenants(house: House) -> Tenants:
    first, second = house.owner, house.other_owner
    key = house.server.new_key("admin")
    mine, foreign = _things_of(first), _things_of(second)
    for things in (mine, foreign):
        things["store_id"] = _store_of(house.server, things["org_id"])
    return Tenants(house.server, first, second, key, mine, foreign)


def _store_of(server: RunningServer, org_id: str) -> str:
    """Written beside the server: this one has no folder from which stores could be registered."""
    settings = Settings.load(server.data_dir, **server.overrides)
    seen = {"manifest_sha256": None, "content_sha256": None, "counts": None}
    with closing(open_database(settings.database_url)) as database:
        made = database.write_now(
            Tenant(org_id=org_id),
            lambda connection: Scope(connection, org_id).add_store(
                f"of {org_id}", f"/stores/{new_id()}", "test", seen
            ),
        )
    assert made is not None
    return made.id


def _things_of(person: Person) -> dict[str, str]:
    """One of everything that has an id."""
    who = person.get("/api/whoami").json()
    wanted = {"request_uploads": ["sensors"], "name": f"of {who['organisation']['name']}"}
    episode = person.call("POST", "/api/ingest/episode", json=wanted).json()
    path = f"/api/ingest/episode/{episode['episode_id']}/upload"
    upload = person.call("POST", path, json={"kind": "sensors", "size": 10})
    assert upload.status_code in (200, 201), upload.text
    invited = person.call(
        "POST", "/api/invitations", json={"email": f"guest@{who['organisation']['id']}.example"}
    )
    return {
        "episode_id": episode["episode_id"],
        "upload_id": upload.json()["upload_id"],
        "user_id": who["user"]["id"],
        "invitation_id": invited.json()["id"],
        "org_id": who["organisation"]["id"],
        "policy_id": person.call("POST", "/api/retention", json={"older_than_days": 9}).json()[
            "id"
        ],
        "key_id": person.call("POST", "/api/keys", json={}).json()["key"]["key_id"],
        "gate_name": _locked_gate_of(person, f"of-{who['organisation']['id']}"),
        "kind": "sensors",
        **_evals_of(person, episode["episode_id"]),
    }


def _locked_gate_of(person: Person, name: str) -> str:
    locked = person.call("PUT", f"/api/gates/{name}", json={"gate": {}})
    assert locked.json()["name"] == name
    return name


def _evals_of(person: Person, episode_id: str) -> dict[str, str]:
    wanted = {"candidate_policy_version": "of this one", "baseline_episode_ids": [episode_id]}
    run = person.call("POST", "/api/ingest/eval-run", json=wanted)
    scenario = person.call("POST", "/api/verify/promote", json={"baseline_episode_id": episode_id})
    hook = {"url": "https://hook.example", "events": ["eval_run.completed"]}
    webhook = person.call("POST", "/api/webhooks", json=hook)
    revision = msgspec.convert(_revision(f"of {episode_id}"), PolicyRevision)
    batch = trainer_batch(f"batch of {episode_id}", revision, revision, 2)
    told = {"revision": _revision(f"of {episode_id}"), "batches": [msgspec.to_builtins(batch)]}
    recorded = person.call("POST", "/api/policy-revisions", json=told)
    return {
        "eval_run_id": run.json()["eval_run_id"],
        "scenario_id": scenario.json()["scenario_id"],
        "webhook_id": webhook.json()["id"],
        "revision_id": recorded.json()["id"],
        "batch_id": batch.batch_id,
        "baseline_id": episode_id,
    }


def _revision(name: str) -> dict[str, Any]:
    return {
        "policy_family": name,
        "revision_id": name,
        "policy_digest": "weights",
        "produced_at_ms": 1,
    }


def _by_session(tenants: Tenants) -> Send:
    def send(method: str, path: str, body: Any) -> httpx.Response:
        if method == "GET" and body is not None:
            return tenants.first.get(path, params=body)
        if path.startswith("/api/") or method == "GET":
            return tenants.first.call(method, path, json=body)
        return tenants.first.submit(path, **body)

    return send


def _by_key(tenants: Tenants) -> Send:
    def send(method: str, path: str, body: Any) -> httpx.Response:
        with web(tenants.server, **tenants.admin_key.headers) as client:
            return client.request(method, path, json=body)

    return send


def _told(answer: httpx.Response) -> tuple[int, bytes, set[str]]:
    return answer.status_code, answer.content, set(answer.headers)


def _paths(tenants: Tenants, path: str) -> tuple[list[str], str]:
    """The path with each of its ids foreign, also beside an id of one's own; and with all of them unknown."""
    path = path.replace(":path}", "}")
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    ids = [name for name in names if name not in NOT_IDS]
    mixed = []
    for choice in product(("mine", "foreign"), repeat=len(ids)):
        if "foreign" in choice:
            chosen = {
                name: getattr(tenants, whose)[name] for name, whose in zip(ids, choice, strict=True)
            }
            mixed.append(path.format(**{**UNKNOWN, **chosen}))
    return mixed, path.format(**UNKNOWN)


@pytest.mark.parametrize(("method", "path"), BODIES)
def test_a_foreign_id_is_an_unknown_id(tenants: Tenants, method: str, path: str) -> None:
    foreign, unknown = _paths(tenants, path)
    send = _by_session(tenants)
    body = BODIES[method, path]
    expected = _told(send(method, unknown, body))
    assert expected[0] == 404
    for each in foreign:
        answer = send(method, each, body)
        assert _told(answer) == expected, each
        assert tenants.foreign["org_id"] not in answer.text
        assert "of Second" not in answer.text


@pytest.mark.parametrize(
    ("method", "path"), [route for route in BODIES if route[1].startswith("/api/")]
)
def test_a_foreign_id_is_an_unknown_id_to_a_key(tenants: Tenants, method: str, path: str) -> None:
    foreign, unknown = _paths(tenants, path)
    send = _by_key(tenants)
    body = BODIES[method, path]
    expected = _told(send(method, unknown, body))
    people = ("/api/members", "/api/invitations")
    assert expected[0] == (403 if path.startswith(people) else 404)
    for each in foreign:
        assert _told(send(method, each, body)) == expected, each


def test_a_gate_locked_under_the_name_of_a_foreign_one_is_another_gate(tenants: Tenants) -> None:
    path = "/api/gates/release"
    before = tenants.second.call("PUT", path, json={"gate": {}}).json()
    stricter = {"gate": {"n_min": 777}}
    assert tenants.first.call("PUT", path, json=stricter).json()["gate"]["n_min"] == 777
    assert tenants.second.get(path).json() == before
    assert tenants.first.call("DELETE", path).status_code == 200
    assert tenants.second.get(path).json() == before
    assert tenants.second.call("DELETE", path).status_code == 200


@pytest.mark.parametrize(("method", "path"), IDS_IN_BODIES)
def test_a_foreign_id_in_a_body_is_an_unknown_id(tenants: Tenants, method: str, path: str) -> None:
    send, body_of = _by_session(tenants), IDS_IN_BODIES[method, path]
    foreign = send(method, path, body_of(tenants.foreign))
    unknown = send(method, path, body_of(UNKNOWN))
    assert foreign.status_code == unknown.status_code
    texts = [
        answer.text.replace(ids["episode_id"], "ID").replace(ids["org_id"], "ID")
        for answer, ids in ((foreign, tenants.foreign), (unknown, UNKNOWN))
    ]
    assert texts[0] == texts[1]
    assert '"status":"ready"' not in texts[0]
    if path == "/api/ingest/episodes/finalize":
        assert [each["status_code"] for each in foreign.json()["results"]] == [404]
    elif path == "/api/episodes/lookup":
        assert foreign.json() == {"episodes": [], "missing": [tenants.foreign["episode_id"]]}
    elif path == "/api/episodes/artifacts":
        [told] = foreign.json()["artifacts"]
        assert (told["data"], told["url"]) == (None, None)
    else:
        assert foreign.status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/api/episodes",
        "/api/keys",
        "/api/members",
        "/api/invitations",
        "/api/audit",
        "/api/eval-runs",
        "/api/scenarios",
        "/api/webhooks",
        "/api/gates",
        "/api/stores",
    ],
)
def test_a_list_holds_nothing_of_others(tenants: Tenants, path: str) -> None:
    mine, theirs = tenants.first.get(path).text, tenants.second.get(path).text
    ids = [name for name in tenants.mine if name != "kind"]
    assert any(tenants.mine[name] in mine for name in ids)
    assert any(tenants.foreign[name] in theirs for name in ids)
    for name in ids:
        assert tenants.foreign[name] not in mine
        assert tenants.mine[name] not in theirs


@pytest.mark.parametrize("path", ["/keys", "/members"])
def test_a_page_holds_nothing_of_others(tenants: Tenants, path: str) -> None:
    page = tenants.first.get(path).text
    for name in ("key_id", "user_id", "invitation_id", "org_id"):
        assert tenants.foreign[name] not in page


def test_a_search_for_what_others_have_finds_nothing(tenants: Tenants) -> None:
    for query in ({"name": "of Second"}, {"cursor": "x"}):
        answer = tenants.first.get("/api/episodes", params=query)
        assert "of Second" not in answer.text
    mine = tenants.first.get("/api/episodes", params={"name": "of First"}).json()["episodes"]
    assert [each["id"] for each in mine] == [tenants.mine["episode_id"]]


def test_the_same_idempotency_key_is_another_one_to_others(tenants: Tenants) -> None:
    headers = {"Idempotency-Key": "the same"}
    answers = [
        person.call("POST", "/api/ingest/episode", json={"name": "twice"}, headers=headers)
        for person in (tenants.first, tenants.second, tenants.first)
    ]
    ids = [each.json()["episode_id"] for each in answers]
    assert ids[0] == ids[2]
    assert ids[0] != ids[1]


def test_whatever_was_tried_nothing_of_others_has_changed(tenants: Tenants) -> None:
    """Runs everything again and then looks: the order of tests must not matter."""
    for method, path in BODIES:
        for each in _paths(tenants, path)[0]:
            _by_session(tenants)(method, each, BODIES[method, path])
    second, ids = tenants.second, tenants.foreign
    episode = second.get(f"/api/episodes/{ids['episode_id']}").json()
    assert (episode["status"], episode["tags"]) == ("recording", [])
    upload = f"/api/ingest/episode/{ids['episode_id']}/upload/{ids['upload_id']}"
    assert second.get(upload).status_code == 200
    keys = {each["key_id"]: each for each in second.get("/api/keys").json()["keys"]}
    assert keys[ids["key_id"]]["revoked_at"] is None
    members = {each["user_id"]: each for each in second.get("/api/members").json()["members"]}
    assert members[ids["user_id"]]["role"] == "owner"
    open_ones = second.get("/api/invitations").json()["invitations"]
    assert ids["invitation_id"] in {each["id"] for each in open_ones}
    run = second.get(f"/api/eval-runs/{ids['eval_run_id']}").json()
    assert (run["status"], run["episodes_completed"]) == ("pending", 0)
    [scenario] = second.get("/api/scenarios").json()["scenarios"]
    assert (scenario["scenario_id"], scenario["active"]) == (ids["scenario_id"], True)
    log = second.get(f"/api/webhooks/{ids['webhook_id']}/deliveries").json()
    assert log["deliveries"] == []


@pytest.mark.slow
def test_a_foreign_id_takes_as_long_as_an_unknown_one(tenants: Tenants) -> None:
    """The quickest tenth of each, taken in turn: a busy machine delays requests, and speeds none up."""
    paths = {
        "foreign": f"/api/episodes/{tenants.foreign['episode_id']}",
        "unknown": f"/api/episodes/{UNKNOWN['episode_id']}",
    }
    times: dict[str, list[float]] = {name: [] for name in paths}
    with tenants.server.client() as client:
        for turn in range(200):
            for name in sorted(paths, reverse=bool(turn % 2)):
                began = time.perf_counter()
                client.get(paths[name])
                times[name].append(time.perf_counter() - began)
    quick = {name: statistics.quantiles(each, n=10)[0] for name, each in times.items()}
    assert max(quick.values()) / min(quick.values()) < 1.5, json.dumps(quick)

"""The settings of an organisation, changed by forms and shown in words."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from itertools import cycle

import pytest

from tests.portal.hostile_text import HOSTILE, assert_harmless
from tests.server.people import House, Person, join
from tests.server.shared_server import new_organisation

SETTINGS = "/portal/settings"


@pytest.fixture(scope="module")
def owner(sqlite_house: House) -> Iterator[Person]:
    """Of an organisation of their own, so that its lists are short."""
    access = new_organisation(sqlite_house.server, quota_episodes=4, quota_bytes=1000)
    person = Person(sqlite_house.server).sign_in_by_link(access)
    yield person
    person.close()


@pytest.fixture(scope="module")
def viewer(sqlite_house: House, owner: Person) -> Iterator[Person]:
    person = join(sqlite_house.server, owner, "viewer@settings.example", "viewer")
    yield person
    person.close()


def text_of(page: str) -> str:
    """What a reader sees, on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_the_settings_begin_with_what_everybody_may_see(owner: Person, viewer: Person) -> None:
    for person in (owner, viewer):
        answer = person.get(SETTINGS, follow_redirects=True)
        assert answer.url.path == f"{SETTINGS}/quotas"
    assert "Audit log" in owner.get(f"{SETTINGS}/gates").text
    assert "Audit log" not in viewer.get(f"{SETTINGS}/gates").text


def test_usage_stands_beside_its_quota(owner: Person) -> None:
    owner.call("POST", "/api/ingest/episode", json={"name": "one of four"})
    text = text_of(owner.get(f"{SETTINGS}/quotas").text)
    assert "Episodes 1 of 4" in text
    assert "25 % used" in text
    assert "Artifacts 0 B of 1.0 kB" in text


# ---------------------------------------------------------------------------------------- locked gates


def test_a_gate_is_locked_shown_in_words_and_unlocked_after_a_question(owner: Person) -> None:
    path = f"{SETTINGS}/gates"
    assert "No gate is locked" in owner.get(path).text
    sent = owner.submit(path, name="release", gate='{"n_min": 77}')
    assert (sent.status_code, sent.headers["location"]) == (303, path)
    shown = owner.get(path).text
    assert "At least 77 pairs" in text_of(shown)
    assert owner.get("/api/gates/release").json()["gate"]["n_min"] == 77
    asked = owner.get(f"{path}/release/unlock")
    assert "Unlock the gate release?" in asked.text
    assert owner.get("/api/gates/release").status_code == 200, "asking changes nothing"
    assert owner.submit(f"{path}/release/unlock").status_code == 303
    assert owner.get("/api/gates/release").status_code == 404


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("[1]", "not a JSON object"),
        ('{"n_min":', "not a JSON object"),
        ('{"n_min": -1}', "n_min"),
        ('{"nonsense": 1}', "nonsense"),
        ('{"a":' * 2_000, "not a JSON object"),
    ],
)
def test_a_gate_that_is_none_is_refused_and_stays_in_the_form(
    owner: Person, gate: str, says: str
) -> None:
    answer = owner.submit(f"{SETTINGS}/gates", name="release", gate=gate)
    assert answer.status_code == 400
    assert says in text_of(answer.text)
    assert html.escape(gate, quote=False) in answer.text.replace("&#34;", '"')


def test_whoever_may_not_lock_gates_reads_them(owner: Person, viewer: Person) -> None:
    owner.call("PUT", "/api/gates/shared", json={"gate": {}})
    page = viewer.get(f"{SETTINGS}/gates").text
    assert "shared" in page
    assert "Lock a gate" not in page
    assert "Unlock" not in page


# ------------------------------------------------------------------------------------------- retention


def test_a_policy_is_made_after_its_preview(owner: Person) -> None:
    path = f"{SETTINGS}/retention"
    before = len(owner.get("/api/retention").json()["policies"])
    preview = owner.get(path, params={"older_than_days": "30", "tags": "scratch, tmp"})
    assert preview.status_code == 200
    assert "Delete episodes older than 30 days with all tags scratch tmp" in text_of(preview.text)
    assert "0 episodes with 0 B of artifacts" in text_of(preview.text)
    assert len(owner.get("/api/retention").json()["policies"]) == before, "a preview makes nothing"
    owner.submit(path, older_than_days="30", source="", tags="scratch, tmp")
    [policy] = owner.get("/api/retention").json()["policies"][before:]
    assert (policy["older_than_days"], policy["source"]) == (30, None)
    assert policy["tags"] == ["scratch", "tmp"]
    assert owner.submit(f"{path}/{policy['id']}/delete").status_code == 303
    assert len(owner.get("/api/retention").json()["policies"]) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"older_than_days": ""},
        {"older_than_days": "0"},
        {"older_than_days": "1e9"},
        {"older_than_days": "abc"},
        {"older_than_days": "36501"},
        {"older_than_days": "9", "source": "moon"},
        {"older_than_days": "9", "tags": "x" * 201},
        {"older_than_days": "9" * 400},
    ],
)
def test_a_policy_that_is_none_is_refused_in_words(owner: Person, wrong: dict[str, str]) -> None:
    path = f"{SETTINGS}/retention"
    previewed, sent = owner.get(path, params=wrong), owner.submit(path, **wrong)
    assert (previewed.status_code, sent.status_code) == (400, 400)
    assert 'role="alert"' in previewed.text


def test_legal_holds_are_listed(owner: Person) -> None:
    episode = owner.call("POST", "/api/ingest/episode", json={}).json()["episode_id"]
    owner.call("POST", f"/api/episodes/{episode}/hold", json={"reason": HOSTILE[0]})
    assert_harmless(owner.get(f"{SETTINGS}/retention").text, HOSTILE[0], episode)
    owner.call("DELETE", f"/api/episodes/{episode}/hold")


# -------------------------------------------------------------------------------------------- webhooks


def test_a_webhook_is_made_tested_and_deleted_after_a_question(owner: Person) -> None:
    path = f"{SETTINGS}/webhooks"
    sent = {"url": "https://hook.example/a", "description": HOSTILE[1]}
    made = owner.http.post(
        path,
        data={
            **sent,
            "events": ["eval_run.failed", "eval_run.completed"],
            "csrf_token": owner.csrf,
        },
        headers={"Origin": owner.base_url},
    )
    assert made.status_code == 200
    assert_harmless(made.text, HOSTILE[1])
    [webhook] = owner.get("/api/webhooks").json()["webhooks"]
    assert webhook["events"] == ["eval_run.failed", "eval_run.completed"]
    secret = made.text.split("<pre>")[1].split("</pre>")[0]
    assert secret.startswith("whsec_")
    assert secret not in owner.get(path).text, "shown once"

    log = f"{path}/{webhook['id']}"
    assert "Nothing was sent yet" in owner.get(log).text
    assert owner.submit(f"{log}/test").headers["location"] == log
    assert "webhook.test" in owner.get(log).text

    asked = owner.get(f"{log}/delete")
    assert "https://hook.example/a" in asked.text
    assert len(owner.get("/api/webhooks").json()["webhooks"]) == 1
    assert owner.submit(f"{log}/delete").status_code == 303
    assert owner.get("/api/webhooks").json()["webhooks"] == []
    assert owner.get(log).status_code == 404


def test_a_paused_webhook_gets_no_new_events(owner: Person) -> None:
    hook = {"url": "https://hook.example", "events": ["eval_run.cancelled"]}
    made = owner.call("POST", "/api/webhooks", json=hook).json()["id"]
    path = f"{SETTINGS}/webhooks"

    def events_after_a_run() -> int:
        episode = owner.call("POST", "/api/ingest/episode", json={}).json()["episode_id"]
        owner.call("POST", f"/api/ingest/episode/{episode}/finalize", json={"status": "ready"})
        run = {"candidate_policy_version": "v2", "baseline_episode_ids": [episode]}
        run_id = owner.call("POST", "/api/ingest/eval-run", json=run).json()["eval_run_id"]
        assert owner.call("POST", f"/api/eval-runs/{run_id}/cancel").status_code == 200
        owner.call("DELETE", f"/api/eval-runs/{run_id}")
        owner.call("DELETE", f"/api/episodes/{episode}")
        return len(owner.get(f"/api/webhooks/{made}/deliveries").json()["deliveries"])

    assert owner.submit(f"{path}/{made}/pause", paused="yes").status_code == 303
    assert "paused" in text_of(owner.get(path).text)
    assert owner.get("/api/webhooks").json()["webhooks"][0]["paused_at"] is not None
    assert events_after_a_run() == 0
    assert owner.submit(f"{path}/{made}/pause", paused="no").status_code == 303
    assert owner.get("/api/webhooks").json()["webhooks"][0]["paused_at"] is None
    assert events_after_a_run() == 1
    again = owner.call("POST", f"/api/webhooks/{made}/pause").json()
    assert owner.call("POST", f"/api/webhooks/{made}/pause").json() == again
    owner.call("DELETE", f"/api/webhooks/{made}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "", "events": "eval_run.failed"},
        {"url": "ftp://hook.example", "events": "eval_run.failed"},
        {"url": "http://127.0.0.1/", "events": "eval_run.failed"},
        {"url": "https://hook.example", "events": "eval_run.never"},
        {"url": "https://hook.example"},
        {"url": "https://hook.example", "events": "eval_run.failed", "description": "x" * 501},
    ],
)
def test_a_webhook_that_is_none_is_refused_in_words(owner: Person, wrong: dict[str, str]) -> None:
    answer = owner.submit(f"{SETTINGS}/webhooks", **wrong)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert owner.get("/api/webhooks").json()["webhooks"] == []


def test_a_cursor_that_is_none_is_refused(owner: Person) -> None:
    hook = {"url": "https://hook.example", "events": ["eval_run.failed"]}
    made = owner.call("POST", "/api/webhooks", json=hook).json()["id"]
    for wrong in ("x", "%00", HOSTILE[0]):
        answer = owner.get(f"{SETTINGS}/webhooks/{made}", params={"cursor": wrong})
        assert answer.status_code == 400
        assert_harmless(answer.text)
    owner.call("DELETE", f"/api/webhooks/{made}")


# ------------------------------------------------------------------------------------------- audit log


def test_the_audit_log_names_people_and_keys_and_is_filtered(owner: Person) -> None:
    label = HOSTILE[3]
    key_id = owner.call("POST", "/api/keys", json={"label": label}).json()["key"]["key_id"]
    owner.call("DELETE", f"/api/keys/{key_id}")
    path = f"{SETTINGS}/audit"
    assert_harmless(owner.get(path).text, label)
    of_keys = text_of(owner.get(path, params={"event": "key"}).text)
    assert "key.created" in of_keys
    assert "key.revoked" in of_keys
    assert "sign_in.ok" not in of_keys
    exact = text_of(owner.get(path, params={"event": "key.revoked"}).text)
    assert "key.created" not in exact
    for about in (f"key:{key_id}", label):
        found = text_of(owner.get(path, params={"about": about}).text)
        assert "key.created" in found
        assert "invitation.created" not in found
    by_api = owner.get("/api/audit", params={"event": "key", "about": f"key:{key_id}"}).json()
    assert {each["event"] for each in by_api["events"]} == {"key.created", "key.revoked"}
    nothing = owner.get(path, params={"event": "%", "about": "\x00"})
    assert "Nothing matches" in nothing.text


def test_the_audit_log_names_what_the_command_line_did(owner: Person) -> None:
    found = text_of(owner.get(f"{SETTINGS}/audit", params={"event": "organisation"}).text)
    me = owner.get("/api/whoami").json()
    assert "organisation.created" in found
    assert me["organisation"]["name"] in found
    assert me["organisation"]["id"] not in found
    assert me["user"]["id"] not in found


def test_the_audit_log_has_pages_that_keep_the_filter(owner: Person) -> None:
    for number in range(101):
        owner.call("PUT", f"/api/gates/page-{number % 3}", json={"gate": {}})
    path = f"{SETTINGS}/audit"
    first = owner.get(path, params={"event": "gate"})
    assert first.text.count("<tr>") == 101
    [older] = re.findall(r'href="([^"]*before=[^"]*)"', first.text)
    second = owner.get(html.unescape(older))
    assert "gate.locked" in second.text
    assert "sign_in" not in re.sub(r"<select.*?</select>", "", second.text, flags=re.DOTALL)
    for wrong in ("-1", "x", "9" * 30):
        assert owner.get(path, params={"before": wrong}).status_code == 400


# -------------------------------------------------------------------------------------------- all pages


@pytest.mark.parametrize("tab", ["quotas", "gates", "retention", "webhooks", "audit"])
def test_parameters_of_strangers_do_no_harm(owner: Person, tab: str) -> None:
    names = ("cursor", "before", "event", "about", "older_than_days", "source", "tags", "x")
    for name, hostile in zip(names, cycle(HOSTILE), strict=False):
        answer = owner.get(f"{SETTINGS}/{tab}", params={name: hostile})
        assert answer.status_code in (200, 400), (name, hostile)
        assert_harmless(answer.text)


def test_answers_of_forms_are_not_json(owner: Person) -> None:
    answer = owner.submit(f"{SETTINGS}/webhooks/unknown/test")
    assert answer.status_code == 404
    with pytest.raises(json.JSONDecodeError):
        answer.json()

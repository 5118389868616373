"""The script of the wire: every route that a client uses, and the ways in which it refuses, always in this order."""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

import httpx

from tests.promises.inner import (
    BODY_LIMIT,
    Access,
    Person,
    Receiver,
    RunningServer,
    new_organisation,
)
from tests.promises.transcripts import Transcript

PASSWORD = "four unrelated words here"
JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}
NOBODY = "00000000-0000-7000-8000-000000000000"
SENSORS = b"sensors of a robot, as they came\n" * 3
PART = 5 << 20
LARGE = bytes(range(256)) * (PART // 256) + b"the rest"


def wire_transcript(server: RunningServer) -> str:
    told = Transcript(server.base_url)
    for access in (server.first_org, server.second_org):
        told.placeholders.name(access.sign_in_token, "sign-in token")
        told.placeholders.name(access.email, "email of an owner")
    script = Script(server, told, server.first_org)
    try:
        script.health()
        script.refusals()
        episode = script.episodes()
        script.parts(episode)
        script.many(episode)
        script.runs()
        script.scenarios()
        script.quota()
        owner = script.people()
        script.device(owner)
        script.webhooks(owner)
        script.gates(owner)
        script.stores(owner)
        script.audit(owner)
        script.revisions()
        script.retention()
    finally:
        told.close()
    return told.text


class Script:
    def __init__(self, server: RunningServer, told: Transcript, access: Access) -> None:
        self.server, self.told, self.access = server, told, access

    def key(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return self.told.call(method, path, body, key=self.access.api_key, **options)

    # -------------------------------------------------------------------------------- no key needed

    def health(self) -> None:
        self.told.title("Health")
        for path in ("/healthz", "/readyz", "/nowhere", "/api/nowhere"):
            self.told.call("GET", path)
        self.told.call("POST", "/healthz")

    def refusals(self) -> None:
        told, path = self.told, "/api/ingest/episode"
        told.title("Requests that are refused")
        told.call("GET", "/api/episodes")
        told.call("GET", "/api/episodes", key="rt_unknown")
        told.call("POST", path, {}, headers={"X-Rollbook-Key": "rt_0123456789_" + "a" * 43})
        self.key("POST", path, content=b"{}", headers={"Content-Type": "text/plain"})
        self.key("POST", path, content=b"", headers=JSON)
        self.key("POST", path, content=b"[1]", headers=JSON)
        self.key("POST", path, content=b'{"name":', headers=JSON)
        self.key("POST", path, content=b'{"fps":NaN}', headers=JSON)
        self.key("POST", path, content=b'{"name":"\xff"}', headers=JSON)
        self.key("POST", path, content=b'"' + b"x" * BODY_LIMIT + b'"', headers=JSON)
        self.key("POST", path, {"seed": "one"})
        self.key("POST", path, {"source": "dream"})
        self.key("POST", path, {"name": "n" * 201})
        self.key("POST", path, {"fps": -1})
        self.key("POST", path, {"request_uploads": ["smell"]})
        typed = {"__type": "robotrace.Battery", "percent": 120}
        self.key("POST", path, {"metadata": {"power": typed}})
        self.key("GET", f"/api/episodes/{NOBODY}")
        self.key("GET", "/api/episodes/not-an-id")
        self.key("GET", "/api/episodes?colour=red")
        self.key("GET", "/api/episodes?limit=0")
        self.key("GET", "/api/episodes?cursor=abc")
        self.key("GET", "/api/episodes?created_after=yesterday")
        self.key("PUT", "/api/episodes")
        asked = {"request_uploads": ["sensors"]}
        self.key("POST", path, asked, headers={"Host": "elsewhere.example"})
        self.key("GET", "/api/whoami")

    # ------------------------------------------------------------------------------------- episodes

    def episodes(self) -> str:
        told = self.told
        told.title("An episode, from the first call to the last")
        body = {
            "name": "pick 12 – grün",
            "source": "sim",
            "robot": "arm-3",
            "policy_version": "v4",
            "env_version": "bench-2",
            "git_sha": "0123abc",
            "seed": 12345678901234567890123,
            "fps": 30,
            "metadata": {
                "outcome": {"__type": "robotrace.EpisodeOutcome", "success": True},
                "small": 1e-7,
                "large": 1e22,
                "half": 0.5,
                "whole": 3.0,
                "nothing": None,
                "nested": {"b": [1, 2.5, "x"], "a": False},
            },
            "tags": ["night", "bench"],
            "request_uploads": ["video", "sensors", "actions"],
            "otel": {
                "trace_id": "0af7651916cd43dd8448eb211c80319c",
                "span_id": "b7ad6b7169203331",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            },
            "a_name_from_the_future": 1,
        }
        once = {"Idempotency-Key": "promise-1"}
        made = self.key("POST", "/api/ingest/episode", body, headers=once)
        self.key("POST", "/api/ingest/episode", body, headers=once)
        self.key("POST", "/api/ingest/episode", {**body, "seed": 1}, headers=once)
        episode: str = made["episode_id"]
        urls = {each["kind"]: each["url"] for each in made["upload_urls"]}
        for kind in ("sensors", "actions"):
            told.call("PUT", urls[kind], content=SENSORS, headers=BYTES)
        told.call("PUT", urls["video"], content=b"no video", headers=BYTES)
        told.call("PUT", urls["video"][:-4] + "AAAA", content=b"no", headers=BYTES)
        at = f"/api/ingest/episode/{episode}"
        self.key("POST", f"{at}/upload-urls", {"request_uploads": ["actions"]})
        self.key("POST", f"{at}/upload-urls", {})
        self.key("GET", f"/api/episodes/{episode}")
        digest = hashlib.sha256(SENSORS).hexdigest()
        wrong = {"sensors": {"sha256": "0" * 64, "size": len(SENSORS)}}
        self.key("POST", f"{at}/finalize", {"status": "ready", "artifacts": wrong})
        self.key("POST", f"{at}/finalize", {"status": "done"})
        right = {"sensors": {"sha256": digest, "size": len(SENSORS)}}
        told.call("PUT", urls["sensors"], content=SENSORS, headers=BYTES)
        ended = {
            "status": "ready",
            "duration_s": 12.25,
            "fps": 29.97,
            "bytes_total": 198,
            "metadata": {"more": [1]},
            "tags": ["night", "kept"],
            "artifacts": right,
        }
        self.key("POST", f"{at}/finalize", ended)
        self.key("GET", f"/api/episodes/{episode}")
        self.key("POST", f"{at}/finalize", {"status": "failed", "failure_time_s": 1})
        self.key("GET", f"/api/episodes/{episode}/artifact/sensors")
        self.key("GET", f"/api/episodes/{episode}/artifact/video")
        self.key("GET", f"/api/episodes/{episode}/artifact/sensors?rendition=playable")
        there = self.told.http.get(
            f"/api/episodes/{episode}/artifact/sensors", headers=self.access.headers
        ).headers["location"]
        told.call("GET", there)
        told.call("GET", there, headers={"Range": "bytes=0-6"})
        told.call("GET", there, headers={"Range": "bytes=9999-"})
        told.call("HEAD", there)
        told.call("GET", there[:-4] + "AAAA")
        self.key("POST", f"/api/episodes/{episode}/tags", {"add": ["seen"], "remove": ["kept"]})
        self.key("GET", f"/api/episodes/{episode}/findings")

        told.title("One that failed, and looking for episodes")
        other = self.key("POST", "/api/ingest/episode", {"name": "drop 1", "policy_version": "v4"})
        failed = {"status": "failed", "failure": {"time_s": 2.5, "reason": "it fell"}}
        self.key("POST", f"/api/ingest/episode/{other['episode_id']}/finalize", failed)
        self.key("GET", f"/api/episodes/{other['episode_id']}/findings")
        self.key("GET", f"/api/episodes/{NOBODY}/findings")
        self.key("GET", "/api/episodes?policy_version=v4")
        page = self.key("GET", "/api/episodes?policy_version=v4&limit=1")
        self.key("GET", f"/api/episodes?policy_version=v4&limit=1&cursor={page['next_cursor']}")
        for query in (
            "name=drop",
            "status=failed",
            "source=sim&tag=night&tag=seen",
            "metadata.nested.a=false",
            "created_after=2020-01-01T00:00:00Z&robot=arm-3",
            "git_sha=nothing",
        ):
            self.key("GET", f"/api/episodes?{query}")

        told.title("Archived, restored, deleted")
        at = f"/api/episodes/{other['episode_id']}"
        self.key("POST", f"{at}/archive")
        self.key("POST", f"{at}/archive")
        self.key("GET", "/api/episodes?name=drop")
        self.key("GET", "/api/episodes?name=drop&with_archived=true")
        self.key("POST", f"/api/ingest/episode/{other['episode_id']}/finalize", failed)
        self.key("POST", f"{at}/tags", {"add": ["late"]})
        self.key("POST", f"{at}/restore")
        self.key("DELETE", at)
        self.key("DELETE", at)
        self.told.call("GET", f"/api/episodes/{episode}", key=self.server.second_org.api_key)
        return episode

    def parts(self, episode: str) -> None:
        told = self.told
        told.title("A large file, in parts")
        made = self.key("POST", "/api/ingest/episode", {"name": "large"})["episode_id"]
        at = f"/api/ingest/episode/{made}/upload"
        asked = {
            "kind": "sensors",
            "size": len(LARGE),
            "sha256": hashlib.sha256(LARGE).hexdigest(),
            "part_size": PART,
        }
        self.key("POST", at, {**asked, "size": 0})
        self.key("POST", at, {**asked, "part_size": 1000})
        begun = self.key("POST", at, asked)
        one = f"{at}/{begun['upload_id']}"
        urls = {each["number"]: each["url"] for each in begun["parts"]}
        told.call("PUT", urls[1], content=LARGE[:PART])
        self.key("GET", one)
        self.key("POST", f"{one}/complete", {})
        told.call("PUT", urls[2], content=LARGE[PART:])
        self.key("GET", one)
        parts = [{"number": 1}, {"number": 2, "sha256": hashlib.sha256(LARGE[PART:]).hexdigest()}]
        self.key("POST", f"{one}/complete", {"parts": parts, "sha256": asked["sha256"]})
        self.key("POST", f"{one}/complete", {})
        self.key("GET", one)
        self.key("POST", f"/api/ingest/episode/{made}/finalize", {"status": "ready"})
        self.key("POST", f"/api/ingest/episode/{episode}/upload", {**asked, "kind": "actions"})
        another = self.key("POST", at, {"kind": "actions", "size": 10})
        self.key("DELETE", f"{at}/{another['upload_id']}")
        self.key("DELETE", f"{at}/{another['upload_id']}")
        self.key("GET", f"{at}/unknown")

    def many(self, episode: str) -> None:
        self.told.title("Many at once")
        bodies = [{"name": "b0", "request_uploads": ["actions"]}, {"name": "b1", "seed": 7}]
        made = self.key("POST", "/api/ingest/episodes", {"episodes": bodies})
        ids = [each["episode_id"] for each in made["episodes"]]
        self.key("POST", "/api/ingest/episodes", {"episodes": [{"name": "x"}, {"seed": "no"}]})
        self.key("POST", "/api/ingest/episodes", {"episodes": []})
        self.key("POST", "/api/ingest/episodes", {"episodes": [{}] * 1001})
        ended = [
            {"episode_id": ids[0], "status": "ready", "duration_s": 1},
            {"episode_id": NOBODY, "status": "ready"},
            {"episode_id": ids[1], "status": "failed"},
        ]
        self.key("POST", "/api/ingest/episodes/finalize", {"episodes": ended})
        self.key("POST", "/api/episodes/lookup", {"ids": [episode, NOBODY]})
        self.key("POST", "/api/episodes/lookup", {"ids": [ids[1]], "urls": False})
        wanted = [
            {"episode_id": episode, "kind": "sensors"},
            {"episode_id": episode, "kind": "video"},
            {"episode_id": NOBODY, "kind": "actions"},
        ]
        self.key("POST", "/api/episodes/artifacts", {"artifacts": wanted})

    # ------------------------------------------------------------------------------------ eval runs

    def baselines(self, count: int) -> list[str]:
        made = []
        for place in range(count):
            body = {"name": f"baseline {place}", "metadata": {"success": place == 0}}
            answer = self.told.http.post(
                "/api/ingest/episode", json=body, headers=self.access.headers
            )
            made.append(answer.json()["episode_id"])
        return made

    def runs(self) -> None:
        self.told.title("Eval runs")
        first, second, third = self.baselines(3)
        body = {
            "candidate_policy_version": "v5",
            "baseline_policy_version": "v4",
            "baseline_episode_ids": [first, second, third, first],
            "name": "nightly",
            "metadata": {"why": "because"},
            "gate": {"n_min": 2, "alpha": 0.1},
        }
        path = "/api/ingest/eval-run"
        self.key("POST", path, {**body, "baseline_episode_ids": [first, NOBODY]})
        self.key("POST", path, {**body, "baseline_episode_ids": []})
        self.key("POST", path, {**body, "candidate_policy_version": " "})
        self.key("POST", path, {**body, "gate": {"alpha": 2}})
        self.key("POST", path, {**body, "gate": {"colour": "red"}})
        once = {"Idempotency-Key": "promise-run"}
        run = self.key("POST", path, body, headers=once)["eval_run_id"]
        self.key("POST", path, body, headers=once)
        self.key("POST", path, {**body, "name": "another"}, headers=once)
        self.key("GET", f"/api/eval-runs/{run}")
        metrics = {
            "success_candidate": True,
            "reward_total_baseline": 1.5,
            "reward_total_candidate": 2,
            "evidence": {"success": "closed_loop", "reward_total": "closed_loop"},
        }
        one = {"baseline_episode_id": first, "status": "complete", "metrics": metrics}
        self.key("POST", f"{path}/{run}/result", one)
        self.key("POST", f"{path}/{run}/result", one)
        self.key("POST", f"{path}/{run}/result", {**one, "baseline_episode_id": NOBODY})
        self.key("POST", f"{path}/{run}/result", {**one, "candidate_episode_id": NOBODY})
        self.key("POST", f"{path}/{run}/result", {**one, "status": "pending"})
        self.key("POST", f"{path}/{run}/result", {**one, "metrics": None})
        self.key("POST", f"{path}/{NOBODY}/result", one)
        failed = {
            "baseline_episode_id": third,
            "status": "failed",
            "metrics": {},
            "error": "ValueError: no",
        }
        many = [
            {**one, "baseline_episode_id": second, "candidate_episode_id": first},
            {**one, "baseline_episode_id": NOBODY},
            failed,
        ]
        self.key("POST", f"{path}/{run}/results", {"results": many})
        self.key("GET", f"/api/eval-runs/{run}/results")
        page = self.key("GET", f"/api/eval-runs/{run}/results?status=complete&limit=1")
        self.key("GET", f"/api/eval-runs/{run}/results?limit=1&cursor={page['next_cursor']}")
        ended = {"status": "completed", "metadata": {"took_s": 1.0}}
        self.key("POST", f"{path}/{run}/finalize", ended)
        self.key("POST", f"{path}/{run}/result", one)
        self.key("POST", f"/api/eval-runs/{run}/cancel")
        self.key("GET", f"/api/eval-runs/{run}")
        for metric in ("success_rate", "reward_mean", "collision_rate", "time_to_goal_s"):
            self.key("GET", f"/api/trends?metric={metric}")
        self.key("GET", "/api/trends?metric=beauty")
        self.key("GET", "/api/trends?metric=reward_mean&candidate_prefix=w&limit=5")

        self.told.title("Runs that end otherwise")
        plain = {"candidate_policy_version": "v6", "baseline_episode_ids": [second]}
        cancelled = self.key("POST", path, plain)["eval_run_id"]
        self.key("POST", f"/api/eval-runs/{cancelled}/cancel")
        self.key("POST", f"{path}/{cancelled}/finalize", {})
        broken = self.key("POST", path, {**plain, "runner_kind": "hosted"})["eval_run_id"]
        self.key("POST", f"{path}/{broken}/finalize", {"status": "failed"})
        self.key("POST", f"{path}/{broken}/finalize", {"status": "great"})
        page = self.key("GET", "/api/eval-runs?limit=2")
        self.key("GET", f"/api/eval-runs?limit=2&cursor={page['next_cursor']}")
        self.key("GET", "/api/eval-runs?status=cancelled&candidate_policy_version=v6")
        self.key("GET", "/api/eval-runs?colour=red")
        self.key("DELETE", f"/api/eval-runs/{broken}")
        self.key("GET", f"/api/eval-runs/{broken}")
        self.key("GET", f"/api/eval-runs/{broken}/results")

    def retention(self) -> None:
        told, key = self.told, self.server.new_key("admin").api_key
        told.title("Retention, holds, usage and attempts")
        told.placeholders.name(key.split("_")[1], "admin key")
        policy = {"older_than_days": 30, "tags": ["scratch"]}
        told.call("POST", "/api/retention/preview", policy, key=key)
        made = told.call("POST", "/api/retention", policy, key=key)
        told.call("POST", "/api/retention", {"older_than_days": 0}, key=key)
        told.call("GET", "/api/retention", key=key)
        told.call("DELETE", f"/api/retention/{made['id']}", key=key)
        [episode] = self.baselines(1)
        told.call("POST", f"/api/episodes/{episode}/hold", {"reason": "audit"}, key=key)
        told.call("GET", "/api/holds", key=key)
        told.call("DELETE", f"/api/episodes/{episode}/hold", key=key)
        # of an organisation of its own: other tests record in the first one
        told.call("GET", "/api/usage", key=new_organisation(self.server).api_key)
        body = {"candidate_policy_version": "v9", "baseline_episode_ids": [episode]}
        run = told.call("POST", "/api/ingest/eval-run", body, key=key)["eval_run_id"]
        told.call("GET", f"/api/eval-runs/{run}/attempts", key=key)

    def revisions(self) -> None:
        self.told.title("Policy revisions and what they were trained on")
        revision = {
            "policy_family": "arm",
            "revision_id": "arm-7",
            "policy_digest": "weights of arm-7",
            "produced_at_ms": 1_700_000_000_000,
            "revision_number": 7,
        }
        rows = {"store_digest": "0f" * 32, "rows": [3, 4], "name": "flats"}
        path, [episode] = "/api/policy-revisions", self.baselines(1)
        body = {"revision": revision, "stores": [rows], "episode_ids": [episode]}
        self.key("POST", path, body)
        self.key("POST", path, body)
        self.key("POST", path, {"revision": {**revision, "policy_digest": "other weights"}})
        self.key("POST", path, {"revision": revision, "episode_ids": [NOBODY]})
        self.key(
            "POST", path, {"revision": revision, "stores": [{**rows, "store_digest": "short"}]}
        )
        self.key("POST", path, {"revision": {**revision, "revision_id": ""}})
        self.key("POST", path, {"revision": revision, "batches": [{"batch_id": "b"}]})
        self.key("POST", path, {})
        self.key("POST", path, {"revision": {**revision, "revision_id": "arm-8"}, "stores": [rows]})
        self.key("GET", f"{path}/arm-8")
        self.key("GET", f"{path}/unknown")
        self.key("GET", "/api/trainer-batches/unknown")
        self.key("GET", f"/api/episodes/{episode}/eval-runs")
        self.key("GET", f"/api/episodes/{NOBODY}/eval-runs")
        self.key("GET", f"/api/eval-runs/{NOBODY}/evidence")
        self.key("GET", "/api/evidence-key")

    def scenarios(self) -> None:
        told = self.told
        told.title("Scenarios and the gate")
        first, second = self.baselines(2)
        self.key("POST", "/api/verify/check", {"candidate_policy_version": "v7"})
        body = {
            "baseline_episode_id": first,
            "severity": "critical",
            "name": "glass door",
            "description": "It ran into it.",
        }
        scenario = self.key("POST", "/api/verify/promote", body)["scenario_id"]
        self.key("POST", "/api/verify/promote", {"baseline_episode_id": first})
        other = self.key("POST", "/api/verify/promote", {"baseline_episode_id": second})
        self.key("POST", "/api/verify/promote", {"baseline_episode_id": NOBODY})
        self.key("POST", "/api/verify/promote", {**body, "severity": "mild"})
        self.key("POST", "/api/verify/check", {"candidate_policy_version": "v7"})
        result = {"scenario_id": scenario, "candidate_policy_version": "v7"}
        self.key("POST", "/api/verify/result", {**result, "error": "no answer"})
        self.key("POST", "/api/verify/check", {"candidate_policy_version": "v7"})
        self.key("POST", "/api/verify/result", {**result, "metrics": {"success_candidate": True}})
        self.key("POST", "/api/verify/result", {**result, "scenario_id": NOBODY})
        self.key("POST", "/api/verify/check", {"candidate_policy_version": "v7"})
        self.key("POST", "/api/verify/check", {})
        self.key("GET", "/api/scenarios")
        page = self.key("GET", "/api/scenarios?limit=1")
        self.key("GET", f"/api/scenarios?limit=1&cursor={page['next_cursor']}")
        at = f"/api/scenarios/{other['scenario_id']}"
        changes = {"name": "stairs", "severity": "info", "active": False}
        self.key("PATCH", at, changes)
        admin = self.server.new_key("admin", self.access).api_key
        self.told.call("PATCH", at, changes, key=admin)
        self.key("GET", "/api/scenarios?active=false")
        self.told.call("PATCH", f"/api/scenarios/{NOBODY}", {"active": True}, key=admin)
        self.told.call("DELETE", at, key=admin)
        self.told.call("DELETE", at, key=admin)
        told.title("A run whose baselines are scenarios decides them")
        run = {"candidate_policy_version": "v8", "baseline_episode_ids": [first]}
        made = self.key("POST", "/api/ingest/eval-run", run)["eval_run_id"]
        metrics = {"success_candidate": False, "evidence": {"success": "closed_loop"}}
        sent = {"baseline_episode_id": first, "status": "complete", "metrics": metrics}
        self.key("POST", f"/api/ingest/eval-run/{made}/result", sent)
        self.key("POST", f"/api/ingest/eval-run/{made}/finalize", {})
        self.key("POST", "/api/verify/check", {"candidate_policy_version": "v8"})

    def quota(self) -> None:
        self.told.title("Quota")
        access = new_organisation(self.server, quota_episodes=1, quota_bytes=10)
        first = self.told.call(
            "POST",
            "/api/ingest/episode",
            {"request_uploads": ["sensors"]},
            key=access.api_key,
        )
        self.told.call("POST", "/api/ingest/episode", {}, key=access.api_key)
        self.told.call("PUT", first["upload_urls"][0]["url"], content=SENSORS, headers=BYTES)
        ended = {"status": "ready"}
        path = f"/api/ingest/episode/{first['episode_id']}/finalize"
        self.told.call("POST", path, ended, key=access.api_key)

    # --------------------------------------------------------------------------------------- people

    def person(self, person: Person, method: str, path: str, body: Any = None) -> Any:
        headers = {"Origin": self.server.base_url, "X-CSRF-Token": person.csrf}
        said = self.told.call(method, path, body, headers=headers, http=person.http)
        if isinstance(said, dict):
            person.csrf = said.get("csrf_token", person.csrf)
        return said

    def people(self) -> Person:
        told = self.told
        told.title("Signing in")
        told.call("POST", "/api/sign-in", {"email": "nobody@example.com", "password": PASSWORD})
        told.call("POST", "/api/sign-in", {"token": "x" * 43})
        told.call("POST", "/api/sign-in", {})
        owner = Person(self.server)
        self.person(owner, "POST", "/api/sign-in", {"token": self.access.sign_in_token})
        self.person(owner, "GET", "/api/whoami")
        self.key("GET", "/api/whoami")
        told.call("POST", "/api/keys", {"label": "x"}, http=owner.http)
        self.person(owner, "POST", "/api/password", {"new_password": "short"})
        self.person(owner, "POST", "/api/password", {"new_password": PASSWORD})
        self.person(owner, "POST", "/api/organisation", {"org_id": self.server.second_org.org_id})
        self.person(owner, "POST", "/api/organisation", {"org_id": self.access.org_id})

        told.title("Keys")
        self.person(owner, "GET", "/api/keys")
        made = self.person(owner, "POST", "/api/keys", {"label": "robot", "role": "viewer"})
        told.call("GET", "/api/whoami", key=made["api_key"])
        told.call("POST", "/api/ingest/episode", {}, key=made["api_key"])
        self.key("POST", "/api/keys", {"role": "owner"})
        at = f"/api/keys/{made['key']['key_id']}"
        self.person(owner, "DELETE", at)
        self.person(owner, "DELETE", at)
        self.person(owner, "DELETE", f"/api/keys/{NOBODY}")
        told.call("GET", "/api/whoami", key=made["api_key"])

        told.title("Invitations and members")
        self.person(owner, "POST", "/api/invitations", {"email": "no address"})
        asked = {"email": "robin@example.com", "role": "viewer"}
        invited = self.person(owner, "POST", "/api/invitations", asked)
        self.key("POST", "/api/invitations", asked)
        self.person(owner, "GET", "/api/invitations")
        token = invited["url"].partition("token=")[2]
        robin = Person(self.server)
        body = {"token": token, "password": PASSWORD, "name": "Robin"}
        self.person(robin, "POST", "/api/invitations/accept", body)
        told.call("POST", "/api/invitations/accept", body)
        withdrawn = self.person(owner, "POST", "/api/invitations", {"email": "kim@example.com"})
        self.person(owner, "DELETE", f"/api/invitations/{withdrawn['id']}")
        self.person(owner, "DELETE", f"/api/invitations/{withdrawn['id']}")
        members = self.person(owner, "GET", "/api/members")["members"]
        user = next(each["user_id"] for each in members if each["name"] == "Robin")
        self.person(robin, "GET", "/api/members")
        self.person(robin, "POST", "/api/webhooks", {"url": "http://x", "events": []})
        self.person(owner, "PATCH", f"/api/members/{user}", {"role": "member"})
        self.person(owner, "PATCH", f"/api/members/{user}", {"role": "king"})
        self.person(owner, "PATCH", f"/api/members/{self.access.user_id}", {"role": "viewer"})
        self.person(owner, "DELETE", f"/api/members/{user}")
        self.person(owner, "DELETE", f"/api/members/{user}")
        self.person(robin, "GET", "/api/whoami")
        robin.close()
        return owner

    def device(self, owner: Person) -> None:
        told = self.told
        told.title("Device login")
        about = {"user_agent": "robotrace-python/0.3.0", "hostname": "robot-7"}
        login = told.call("POST", "/api/cli/auth/start", about)
        code = {"device_code": login["device_code"]}
        told.call("POST", "/api/cli/auth/poll", code)
        told.call("POST", "/api/cli/auth/poll", {"device_code": "unknown"})
        told.call("POST", "/api/cli/auth/poll", {})
        owner.submit("/cli/auth", code=login["user_code"], decision="approve")
        got = told.call("POST", "/api/cli/auth/poll", code)
        told.call("POST", "/api/cli/auth/poll", code)
        told.call("GET", "/api/whoami", key=got["api_key"])
        told.call("POST", "/api/cli/auth/revoke", key=got["api_key"])
        told.call("POST", "/api/cli/auth/revoke", key=got["api_key"])
        login = told.call("POST", "/api/cli/auth/start", {}, shown=False)
        owner.submit("/cli/auth", code=login["user_code"], decision="deny")
        told.call("POST", "/api/cli/auth/poll", {"device_code": login["device_code"]})

    # ------------------------------------------------------------------------------------- webhooks

    def stores(self, owner: Person) -> None:
        self.told.title("Rollout stores")
        self.key("GET", "/api/stores")
        self.key("POST", "/api/stores", {"place": "/data/rollouts.zarr"})
        self.person(owner, "POST", "/api/stores", {"place": "/data/rollouts.zarr"})
        self.person(owner, "POST", "/api/stores", {"place": ""})
        self.key("GET", "/api/stores/00000000-0000-7000-8000-000000000000")
        self.person(owner, "DELETE", "/api/stores/00000000-0000-7000-8000-000000000000")

    def gates(self, owner: Person) -> None:
        self.told.title("Locked gates and fresh baselines")
        at = "/api/gates/release"
        self.key("PUT", at, {"gate": {}})
        self.person(owner, "PUT", at, {"gate": {"alpha": 2}})
        self.person(owner, "PUT", "/api/gates/not%20a%20name", {"gate": {}})
        self.person(owner, "PUT", at, {"gate": {"n_min": 30}})
        self.person(owner, "PUT", at, {"gate": {"n_min": 40}})
        self.key("GET", "/api/gates")
        self.key("GET", at)
        self.key("GET", "/api/gates/unknown")
        [baseline] = self.baselines(1)
        body = {"candidate_policy_version": "v10", "baseline_episode_ids": [baseline]}
        path = "/api/ingest/eval-run"
        self.key("POST", path, {**body, "gate": {"n_min": 25, "missing": "ignore"}})
        self.key("POST", path, {**body, "gate_name": "unknown"})
        run = self.key("POST", path, {**body, "gate_name": "release"})["eval_run_id"]
        self.key("POST", path, {**body, "gate": {"n_min": 50}})
        self.key("GET", f"/api/eval-runs/{run}")
        self.person(owner, "PUT", "/api/gates/quick", {"gate": {}})
        self.key("POST", path, body)
        for name in ("release", "quick", "quick"):
            self.person(owner, "DELETE", f"/api/gates/{name}")
        finished = [self.finished_episode(place) for place in range(3)]
        fresh = "/api/fresh-baselines"
        self.key("GET", f"{fresh}?count=2&draw_seed=5&tag=fresh")
        used = self.key("POST", path, {**body, "baseline_episode_ids": finished[:2]})
        self.key("GET", f"{fresh}?count=1&tag=fresh")
        self.key("GET", f"{fresh}?count=2&tag=fresh")
        self.key("GET", f"{fresh}?count=0")
        self.key("GET", f"{fresh}?count=1&limit=2")
        self.key("GET", f"{fresh}?count=1&colour=red")
        self.key("DELETE", f"/api/eval-runs/{used['eval_run_id']}")

    def finished_episode(self, place: int) -> str:
        """Not in the transcript."""
        http, headers = self.told.http, self.access.headers
        body = {"name": f"fresh {place}", "tags": ["fresh"]}
        made = http.post("/api/ingest/episode", json=body, headers=headers).json()
        path = f"/api/ingest/episode/{made['episode_id']}/finalize"
        assert http.post(path, json={"status": "ready"}, headers=headers).status_code == 200
        return str(made["episode_id"])

    def webhooks(self, owner: Person) -> None:
        told = self.told
        told.title("Webhooks")
        receiver = Receiver()
        told.placeholders.name(receiver.url, "receiver")
        try:
            self._webhooks(owner, receiver)
        finally:
            receiver.close()

    def _webhooks(self, owner: Person, receiver: Receiver) -> None:
        told = self.told
        asked = {
            "url": f"{receiver.url}/hook",
            "events": ["eval_run.completed", "eval_run.cancelled"],
            "description": "to chat",
        }
        self.key("POST", "/api/webhooks", asked)
        self.person(owner, "POST", "/api/webhooks", {**asked, "url": "ftp://x"})
        self.person(owner, "POST", "/api/webhooks", {**asked, "events": ["rain"]})
        made = self.person(owner, "POST", "/api/webhooks", asked)
        self.person(owner, "GET", "/api/webhooks")
        at = f"/api/webhooks/{made['id']}"
        self.person(owner, "POST", f"{at}/test")
        receiver.wait_for(1)
        [baseline] = self.baselines(1)
        body = {
            "candidate_policy_version": "v9",
            "baseline_policy_version": "v4",
            "baseline_episode_ids": [baseline],
            "name": "told",
        }
        run = self.key("POST", "/api/ingest/eval-run", body)["eval_run_id"]
        self.key("POST", f"/api/ingest/eval-run/{run}/finalize", {})
        receiver.wait_for(2)
        self._delivered(owner, at)
        said = self.person(owner, "GET", f"{at}/deliveries?limit=2")
        assert len(said["deliveries"]) == 2
        told.lines[-1] = re.sub(r'"took_ms":\d+', '"took_ms":<number>', told.lines[-1])
        for received in receiver.wait_for(2):
            told.note(f"\nReceived: POST {received.path}")
            signed = re.sub(r"[0-9a-f]{64}|\d{10}", "<…>", received.headers["rollbook-signature"])
            told.note(f"  {' '.join(sorted(received.headers))}")
            told.note(f"  content-type: {received.headers['content-type']}")
            told.note(f"  user-agent: {received.headers['user-agent']}")
            told.note(f"  rollbook-event: {received.headers.get('rollbook-event')}")
            told.note(f"  rollbook-signature: {signed}")
            told.note(received.body.decode())
            assert received.is_signed_with(made["secret"])
        self.person(owner, "POST", f"{at}/pause")
        self.person(owner, "POST", f"{at}/resume")
        self.person(owner, "DELETE", at)
        self.person(owner, "GET", f"{at}/deliveries")

    def _delivered(self, owner: Person, at: str) -> None:
        """Waits until the log of deliveries says what the receiver knows already."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            answer: httpx.Response = owner.get(f"{at}/deliveries")
            if all(each["status"] == "delivered" for each in answer.json()["deliveries"]):
                return
            time.sleep(0.02)

    def audit(self, owner: Person) -> None:
        told = self.told
        told.title("Audit, and the end of the session")
        self.person(owner, "GET", "/api/audit?limit=4")
        # numbered over all organisations of a server
        told.lines[-1] = re.sub(r'"(id|next_before)":\d+', r'"\1":<number>', told.lines[-1])
        self.key("GET", "/api/audit")
        self.person(owner, "POST", "/api/sign-out")
        self.person(owner, "GET", "/api/whoami")
        owner.close()

"""Campaigns for tests: an organisation with episodes to be baselines, and the calls of a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.people import Person
from tests.server.running import Access, RunningServer
from tests.server.shared_server import new_organisation


@dataclass
class Campaigner:
    """Speaks with a key of an organisation of its own, which may do everything that a key may."""

    server: RunningServer
    access: Access
    http: httpx.Client

    def episodes(self, *metadata: dict[str, Any]) -> list[str]:
        body = {"episodes": [{"metadata": each} for each in metadata]}
        return [each["episode_id"] for each in self.post("/api/ingest/episodes", body)["episodes"]]

    def baselines(self, count: int, **metadata: Any) -> list[str]:
        return self.episodes(*(metadata for _ in range(count)))

    def run(self, baselines: Sequence[str], candidate: str = "v2", **more: Any) -> str:
        body = {"candidate_policy_version": candidate, "baseline_episode_ids": list(baselines)}
        run_id: str = self.post("/api/ingest/eval-run", {**body, **more})["eval_run_id"]
        return run_id

    def result(self, run_id: str, baseline: str, success: bool | None = True, **more: Any) -> Any:
        metrics = {} if success is None else {"success_candidate": success}
        body = {"baseline_episode_id": baseline, "status": "complete", "metrics": metrics, **more}
        return self.post(f"/api/ingest/eval-run/{run_id}/result", body)

    def finalize(self, run_id: str, **more: Any) -> Any:
        return self.post(f"/api/ingest/eval-run/{run_id}/finalize", {"status": "completed", **more})

    def results(self, run_id: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/api/eval-runs/{run_id}/results", **params)[
            "results"
        ]
        return found

    def check(self, candidate: str = "v2") -> tuple[int, dict[str, Any]]:
        answer = self.http.post("/api/verify/check", json={"candidate_policy_version": candidate})
        return answer.status_code, answer.json()

    def post(self, path: str, body: Any = None) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(path, params=params)
        assert answer.is_success, answer.text
        return answer.json()

    def refused(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, str]:
        answer = self.http.request(method, path, json=body)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, answer.json()["code"]

    def owner(self) -> Person:
        return Person(self.server).sign_in_by_link(self.access)

    def audited(self) -> list[dict[str, Any]]:
        owner = self.owner()
        events: list[dict[str, Any]] = owner.get("/api/audit").json()["events"]
        owner.close()
        return events


def campaigner(server: RunningServer, access: Access | None = None) -> Campaigner:
    access = access or new_organisation(server)
    access = server.new_key("admin", access)
    return Campaigner(server, access, server.client(access))

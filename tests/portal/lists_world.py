"""Episodes, an open and a finished eval run, and scenarios, for the pages that list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.server.people import Person

_NAMES = (
    *("Mug to bin, slot 3", "Bottle to rack", "Cube stack, 4 high", "Cable in clip", "Lid on jar"),
    *("Cloth fold, half", "Mug to bin, slot 1", "Two bottles touching", "Cube stack, 3 high"),
    *("Mug over the bin edge", "Bottle to rack, wet", "Lid on jar, tight", "Mug to bin, slot 2"),
)
POLICIES = ("pick-act-v3", "pick-act-v4", "cable-diff-v2")


@dataclass(frozen=True)
class ListsWorld:
    episodes: list[str]
    """In the order of their recording. Every seventh failed, the last one still records."""
    open_run: str
    """Its baselines are the first two episodes."""
    done_run: str
    """Its baselines are the episodes three to five."""
    scenario: str
    """Of episode three."""


def seed_lists(person: Person, count: int = 60) -> ListsWorld:
    made = _sent(
        person, "/api/ingest/episodes", {"episodes": [_episode(number) for number in range(count)]}
    )
    ids = [each["episode_id"] for each in made["episodes"]]
    endings = [_ending(number, each) for number, each in enumerate(ids[:-1])]
    _sent(person, "/api/ingest/episodes/finalize", {"episodes": endings})
    open_run = _run(person, "Cable task, wide seeds", "pick-act-v4", ids[:2])
    done_run = _run(person, "Nightly, bins and racks", "pick-act-v4", ids[2:5])
    results = [_result(number, each) for number, each in enumerate(ids[2:5])]
    _sent(person, f"/api/ingest/eval-run/{done_run}/results", {"results": results})
    _sent(person, f"/api/ingest/eval-run/{done_run}/finalize", {"status": "completed"})
    promoted = {"baseline_episode_id": ids[2], "severity": "critical", "name": "Cube on the edge"}
    scenario = _sent(person, "/api/verify/promote", promoted)["scenario_id"]
    failed = {"scenario_id": scenario, "candidate_policy_version": "pick-act-v4"}
    _sent(person, "/api/verify/result", {**failed, "metrics": {}, "status": "fail"})
    return ListsWorld(ids, open_run, done_run, scenario)


def _episode(number: int) -> dict[str, Any]:
    return {
        "name": _NAMES[number % len(_NAMES)],
        "source": ("sim", "sim", "real", "replay")[number % 4],
        "robot": "ur5e-02" if number % 4 == 2 else None,
        "policy_version": POLICIES[number % len(POLICIES)],
        "env_version": "tabletop-bins@2.3.1",
        "seed": number,
        "tags": [["nightly"], ["nightly", "drop"], []][number % 3],
        "metadata": {
            "reward_total": round(2 + number % 8 * 0.97, 2),
            "task": {"name": f"t{number % 5}"},
        },
    }


def _ending(number: int, episode_id: str) -> dict[str, Any]:
    failed = number % 7 == 0
    ending: dict[str, Any] = {"episode_id": episode_id, "duration_s": 8.7 + number % 11 * 0.9}
    return {**ending, "status": "failed" if failed else "ready"}


def _run(person: Person, name: str, candidate: str, baselines: list[str]) -> str:
    body = {
        "name": name,
        "candidate_policy_version": candidate,
        "baseline_policy_version": "pick-act-v3",
        "baseline_episode_ids": baselines,
    }
    run_id: str = _sent(person, "/api/ingest/eval-run", body)["eval_run_id"]
    return run_id


def _result(number: int, baseline: str) -> dict[str, Any]:
    evidence = {"success": "closed_loop", "reward_total": "closed_loop"}
    outcomes = {"success_baseline": False, "success_candidate": True}
    metrics = {**outcomes, "evidence": evidence, "reward_total_baseline": 1.0 + number}
    return {"baseline_episode_id": baseline, "status": "complete", "metrics": metrics}


def _sent(person: Person, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = person.call("POST", path, json=body)
    assert answer.status_code in (200, 201), answer.text
    sent: dict[str, Any] = answer.json()
    return sent

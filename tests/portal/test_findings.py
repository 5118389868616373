"""What went wrong in an episode: on its page and over HTTP, made at the first look, kept, and made again."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from rollbook.scoring.failures.analyse import ANALYZER_VERSION
from tests.server.people import House, Person, join
from tests.server.recordings.stored_recording import npz_bytes, stored_episode

HOSTILE = "\"'><svg onload=alert(1)>"
START_NS = 10**18


def recording(**changed: Any) -> bytes:
    random = np.random.default_rng(0)
    times = START_NS + np.arange(1000) * 10**7
    force = random.normal(size=(1000, 3))
    force[580:840] = force[580]
    arrays = {
        "/wrench/force": force,
        "/wrench/_t_ns": times,
        "/joint_states/position": random.normal(size=(1000, 2)).cumsum(0),
        "/joint_states/_t_ns": times,
        **changed,
    }
    return npz_bytes(arrays)


def failed_episode(person: Person, content: bytes | None = None, **final: Any) -> str:
    files = {"sensors": recording() if content is None else content}
    about = {"failure": {"time_s": 5.64, "reason": "object dropped"}, "duration_s": 10, **final}
    outcome = {"metadata": {"success": False}}
    return stored_episode(person, files, status="failed", create=outcome, **about)


def findings(person: Person, episode_id: str) -> dict[str, Any]:
    answer = person.get(f"/api/episodes/{episode_id}/findings")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_findings_are_ranked_with_evidence_and_the_moment_to_look_at(sqlite_house: House) -> None:
    found = findings(sqlite_house.owner, failed_episode(sqlite_house.owner))
    assert found["analyzer_version"] == ANALYZER_VERSION
    assert found["is_current"] is True
    codes = [each["code"] for each in found["findings"]]
    assert codes[:3] == ["outcome", "failure_reason", "sensor_flatline"]
    flat = found["findings"][2]
    assert (flat["channel"], flat["at_s"], flat["until_s"]) == ("/wrench/force", 5.8, 8.39)
    assert found["findings"][1]["evidence"] == "The recorder wrote: “object dropped”."


def test_the_page_links_each_finding_to_its_moment_without_script(sqlite_house: House) -> None:
    episode = failed_episode(sqlite_house.owner)
    page = sqlite_house.owner.get(f"/portal/episodes/{episode}").text
    assert "What went wrong" in page
    assert re.findall(r'href="\?t=(\d+)ms"', page)[:3] == ["5640", "5640", "5800"]
    assert "high confidence" in page
    assert "&#34;channel&#34;: &#34;/wrench/force&#34;" in page, "the timeline marks it"


def test_every_text_of_a_finding_is_escaped(sqlite_house: House) -> None:
    times = START_NS + np.arange(1000) * 10**7
    values = np.random.default_rng(1).normal(size=1000)
    values[500] = np.inf
    name = f"/{HOSTILE}/x".replace("/svg", "svg")
    content = recording(**{name: values, f"/{HOSTILE}/_t_ns": times})
    failure = {"time_s": 1, "reason": HOSTILE}
    episode = failed_episode(sqlite_house.owner, content, failure=failure)
    page = sqlite_house.owner.get(f"/portal/episodes/{episode}").text
    assert "<svg onload" not in page
    assert page.count("&lt;svg onload=alert(1)&gt;") >= 2


def test_an_analysis_is_kept_and_made_again_only_when_something_changed(
    sqlite_house: House,
) -> None:
    owner = sqlite_house.owner
    episode = failed_episode(owner)
    first = findings(owner, episode)
    assert findings(owner, episode)["made_at"] == first["made_at"]
    more = {"status": "failed", "metadata": {"failure_reason": "the gripper slipped"}}
    owner.call("POST", f"/api/ingest/episode/{episode}/finalize", json=more)
    second = findings(owner, episode)
    assert second["made_at"] != first["made_at"]
    assert "the gripper slipped" in second["findings"][1]["evidence"]


def test_running_again_makes_it_again_and_returns_to_the_page(sqlite_house: House) -> None:
    owner = sqlite_house.owner
    episode = failed_episode(owner)
    before = findings(owner, episode)
    answer = owner.submit(f"/portal/episodes/{episode}/analysis")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/portal/episodes/{episode}#findings"
    after = findings(owner, episode)
    assert after["made_at"] != before["made_at"]
    assert after["findings"] == before["findings"]


def test_findings_of_an_older_analyzer_stay_until_somebody_asks_for_newer_ones(
    sqlite_house: House,
) -> None:
    owner = sqlite_house.owner
    episode = failed_episode(owner)
    made = findings(owner, episode)["made_at"]
    with (
        closing(sqlite3.connect(sqlite_house.server.data_dir / "rollbook.db")) as database,
        database,
    ):
        of_it = "UPDATE episode_analyses SET analyzer_version = '0.9' WHERE episode_id = ?"
        assert database.execute(of_it, (episode,)).rowcount == 1
    old = findings(owner, episode)
    assert (old["is_current"], old["made_at"]) == (False, made)
    newer = f"A newer analyzer is there, version {ANALYZER_VERSION}."
    assert newer in owner.get(f"/portal/episodes/{episode}").text
    owner.submit(f"/portal/episodes/{episode}/analysis")
    assert newer not in owner.get(f"/portal/episodes/{episode}").text


def test_a_viewer_sees_the_findings_and_no_button(sqlite_house: House) -> None:
    episode = failed_episode(sqlite_house.owner)
    viewer = join(sqlite_house.server, sqlite_house.owner, "findings@example.com", "viewer")
    page = viewer.get(f"/portal/episodes/{episode}").text
    assert "Sensor flat for" in page
    assert "Run again" not in page
    viewer.close()


def test_an_episode_that_did_not_fail_says_so(sqlite_house: House) -> None:
    episode = stored_episode(sqlite_house.owner, {}, status="ready")
    page = sqlite_house.owner.get(f"/portal/episodes/{episode}").text
    assert "the episode did not fail, and no rule found anything unusual" in page
    assert findings(sqlite_house.owner, episode)["findings"] == []


def test_an_episode_that_is_being_recorded_is_not_analysed_yet(sqlite_house: House) -> None:
    made = sqlite_house.owner.call("POST", "/api/ingest/episode", json={}).json()
    page = sqlite_house.owner.get(f"/portal/episodes/{made['episode_id']}").text
    assert "The episode is still being recorded." in page


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no", recording()[:-100]])
def test_files_that_cannot_be_read_are_said_and_the_rest_is_found(
    sqlite_house: House, content: bytes
) -> None:
    found = findings(sqlite_house.owner, failed_episode(sqlite_house.owner, content))
    assert [each["code"] for each in found["findings"]] == ["outcome", "failure_reason"]
    assert found["left_out"][0].startswith("sensors.npz: ")


def test_limits_and_batteries_of_the_metadata_are_used(sqlite_house: House) -> None:
    owner = sqlite_house.owner
    metadata = {
        "joint_limits": {"lower": [-1e6, -1e6], "upper": [1e6, -999]},
        "power": {"__type": "robotrace.Battery", "percent": 2},
    }
    files = {"sensors": recording()}
    episode = stored_episode(owner, files, create={"metadata": metadata})
    titles = [each["title"] for each in findings(owner, episode)["findings"]]
    assert "Joint beyond its limit" in titles
    assert "Battery at 2 %" in titles


def test_a_replay_that_lost_and_fails_a_scenario_says_both(sqlite_house: House) -> None:
    owner = sqlite_house.owner
    baseline = stored_episode(owner, {}, create={"metadata": {"success": True}})
    replay = stored_episode(owner, {}, create={"metadata": {"success": False}})
    promoted = {"baseline_episode_id": baseline, "severity": "critical", "name": "Mug <b>"}
    scenario = owner.call("POST", "/api/verify/promote", json=promoted).json()["scenario_id"]
    wanted = {"candidate_policy_version": "v9", "baseline_episode_ids": [baseline], "name": "night"}
    run = owner.call("POST", "/api/ingest/eval-run", json=wanted).json()["eval_run_id"]
    metrics = {
        "success_baseline": True,
        "success_candidate": False,
        "evidence": {"success": "closed_loop"},
    }
    result = {
        "baseline_episode_id": baseline,
        "candidate_episode_id": replay,
        "status": "complete",
        "metrics": metrics,
    }
    sent = owner.call("POST", f"/api/ingest/eval-run/{run}/result", json=result)
    assert sent.status_code == 200, sent.text
    judged = {
        "scenario_id": scenario,
        "candidate_policy_version": "v9",
        "candidate_episode_id": replay,
        "metrics": metrics,
    }
    assert owner.call("POST", "/api/verify/result", json=judged).status_code in (200, 201)
    by_code = {each["code"]: each for each in findings(owner, replay)["findings"]}
    assert by_code["replay_regression"]["confidence"] == "high"
    assert "In eval run night the baseline succeeded" in by_code["replay_regression"]["evidence"]
    assert by_code["failing_scenario"]["title"] == "Fails the scenario Mug <b>"

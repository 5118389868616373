"""`rollbook gates`, and baselines that no run has used: on the command line, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook import evals
from rollbook.cli.replays.replay_arguments import episode_query, fresh_count
from rollbook.client import Client
from rollbook.contracts.gate import Gate
from rollbook.errors import ConfigurationError
from rollbook.evals.store_episodes import log_chains
from tests.command import Ended, rollbook
from tests.evals.small_stores import small_store
from tests.server.fixtures import StartServer, running_server
from tests.server.running import Access, RunningServer
from tests.server.shared_server import new_organisation, shared_server

__all__ = ["running_server"]

POLICY = "tests.cli.replay_policies:Winning"


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def access(server: RunningServer) -> Access:
    return server.new_key("admin", new_organisation(server))


@pytest.fixture(autouse=True)
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RunningServer, access: Access
) -> None:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLBOOK_API_KEY", access.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", server.base_url)


@pytest.fixture
def client(server: RunningServer, access: Access) -> Iterator[Client]:
    with Client(api_key=access.api_key, base_url=server.base_url, verbose=False) as made:
        yield made


def recorded(client: Client, count: int, **more: str) -> list[str]:
    return [
        str(client.log_episode(name=f"recorded {number}", policy_version="v3", **more).id)  # type: ignore[arg-type]
        for number in range(count)
    ]


def replay(*options: object) -> Ended:
    run = ("replay", "run", "--policy", POLICY, "--candidate-version", "v4")
    return rollbook(*run, *options)


def gate_file(folder: Path, **changes: object) -> Path:
    path = folder / "gate.json"
    path.write_text(json.dumps({**Gate().as_dict(), **changes}))
    return path


def test_a_gate_is_locked_shown_and_unlocked(tmp_path: Path) -> None:
    file = gate_file(tmp_path, n_min=40, guard_slices=[{"by": "task", "margin": 0.1}])
    locked = rollbook("gates", "lock", "release", "--gate-file", file)
    assert locked.returncode == 0, locked.stderr
    [listed] = json.loads(rollbook("gates", "list", "--json").stdout)
    assert (listed["name"], listed["gate"]["n_min"]) == ("release", 40)
    shown = tmp_path / "shown.toml"
    shown.write_text(rollbook("gates", "show", "release").stdout)
    again = rollbook("gates", "lock", "release", "--gate-file", shown, "--json")
    assert json.loads(again.stdout)["gate_digest"] == listed["gate_digest"]
    assert rollbook("gates", "unlock", "release").stdout == "unlocked release\n"
    assert "no such locked gate" in rollbook("gates", "show", "release").stderr


def test_a_run_says_which_locked_gate_judges_and_a_weaker_file_is_wrong_usage(
    tmp_path: Path, client: Client
) -> None:
    ids = ",".join(recorded(client, 2))
    rollbook("gates", "lock", "release", "--gate-file", gate_file(tmp_path, n_min=40))
    done = replay("--baseline-episodes", ids, "--gate-name", "release")
    assert "not weaker than 'release', which your organisation locked" in done.stdout
    weaker = gate_file(tmp_path, n_min=5, missing="ignore")
    refused = replay("--baseline-episodes", ids, "--gate-file", weaker, "--gate")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "in n_min, missing" in refused.stderr


def test_fresh_baselines_are_drawn_once_and_the_draw_is_stored(client: Client) -> None:
    ids = set(recorded(client, 5)) | set(recorded(client, 1, robot="arm-2"))
    replay("--baselines", "fresh:3", "--draw-seed", "7", "--query", "policy_version=v3")
    first = replay("--baselines", "fresh:2", "--baseline-version", "v3", "--json")
    used = {each["baseline_episode_id"] for each in json.loads(first.stdout)["results"]}
    assert len(used) == 2
    assert used < ids
    [newest, oldest] = json.loads(rollbook("replay", "list", "--json").stdout)
    assert [newest["episode_count"], oldest["episode_count"]] == [2, 3]
    drawn = json.loads(rollbook("replay", "show", oldest["id"], "--json").stdout)["metadata"]
    assert drawn == {"fresh_baselines": {"draw_seed": 7, "available": 6}}
    none_left = replay("--baselines", "fresh:2", "--baseline-version", "v3")
    assert none_left.returncode != 0
    assert "1 episodes match and were never used by a run, and 2 are asked for" in none_left.stderr


def test_a_query_is_columns_tags_and_paths_into_the_metadata() -> None:
    found = episode_query(["robot=arm-2", "tag=night", "tag=rain", "task.name=pick=place"])
    assert found == {
        "robot": "arm-2",
        "tag": ["night", "rain"],
        "metadata": {"task.name": "pick=place"},
    }
    for wrong in ("robot", "=x", "robot="):
        with pytest.raises(ConfigurationError, match="expected KEY=VALUE"):
            episode_query([wrong])
    with pytest.raises(ConfigurationError, match="robot twice"):
        episode_query(["robot=a", "robot=b"])


def test_only_fresh_baselines_are_drawn_by_number() -> None:
    assert fresh_count("fresh:20") == 20
    assert fresh_count(None) is None
    for wrong in ("20", "fresh", "fresh:0", "fresh:x", "stale:3"):
        with pytest.raises(ConfigurationError, match="expected fresh:N"):
            fresh_count(wrong)


def test_fresh_baselines_do_not_go_together_with_ids(client: Client) -> None:
    done = replay("--baselines", "fresh:2", "--baseline-episodes", "x")
    assert done.returncode == 2
    assert "cannot be given with episode ids" in done.stderr


def test_runs_on_a_server_are_compared_on_the_baselines_that_both_have(client: Client) -> None:
    ids = recorded(client, 3)
    runs = [completed(client, some) for some in (ids[:2], ids)]
    compared = rollbook("replay", "compare", *runs, "--json")
    assert compared.returncode == 0, compared.stderr
    found = json.loads(compared.stdout)
    assert (found["metric"], found["baselines"], found["left_out"]) == ("success", 2, 1)
    assert [each["recommend"] for each in found["candidates"]] == ["hold", "hold"]
    assert "None ships." in rollbook("replay", "compare", *runs).stdout
    assert rollbook("replay", "compare", runs[0], "unknown").returncode != 0


def completed(client: Client, baselines: list[str]) -> str:
    run = evals.create_run(
        candidate_policy_version="v4", baseline_episode_ids=baselines, client=client
    )
    metrics = {
        "success_baseline": False,
        "success_candidate": True,
        "evidence": {"success": "closed_loop"},
    }
    results = [
        {"baseline_episode_id": each, "status": "complete", "metrics": metrics}
        for each in baselines
    ]
    path = f"/api/ingest/eval-run/{run.id}/results"
    client.call("send results", "POST", path, body={"results": results})
    evals.complete_run(run)
    return run.id


def test_a_locked_gate_judges_episodes_of_a_store_too(client: Client, tmp_path: Path) -> None:
    ids = log_chains(client, small_store(), limit=3)
    file = gate_file(tmp_path, n_min=31, rules=[{"metric": "reward_total", "role": "primary"}])
    locked = rollbook("gates", "lock", "stores", "--gate-file", file)
    assert locked.returncode == 0, locked.stderr
    done = rollbook(
        *("replay", "run", "--policy", "tests.cli.replay_policies:first_valid"),
        *("--candidate-version", "v4", "--baseline-episodes", ",".join(ids)),
        *("--store", small_store(), "--json"),
    )
    decision = json.loads(done.stdout)["summary"]["decision"]
    assert (decision["gate_name"], decision["gate"]["n_min"]) == ("stores", 31)

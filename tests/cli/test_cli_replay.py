"""`rollbook replay` and `rollbook verify`, against a real server: what they print, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from rollbook import evals
from rollbook.adapters.gymnasium import record
from rollbook.cli.replays.replay_arguments import episode_ids
from rollbook.cli.replays.replay_report import (
    episode_line,
    junit,
    markdown,
    summary_lines,
    workflow_commands,
)
from rollbook.cli.replays.replay_run import _exit_codes
from rollbook.client import Client
from rollbook.client.credentials import Profile, write_profile
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.gate_presets import gate_preset
from rollbook.contracts.npz import write_npz
from rollbook.errors import ConfigurationError
from rollbook.evals.store_episodes import log_chains
from rollbook.report.run_report import RunReport
from rollbook.scoring import rollup
from tests.command import Ended, rollbook
from tests.evals.faulty_proxy import Fault, FaultyProxy
from tests.evals.recorded_runs import SlidingEnv, away
from tests.evals.small_stores import small_store
from tests.server.fixtures import StartServer, running_server
from tests.server.running import Access, RunningServer
from tests.server.shared_server import new_organisation, shared_server

__all__ = ["running_server"]

POLICIES = "tests.cli.replay_policies"
Logged = Callable[..., list[str]]


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture(scope="module")
def access(server: RunningServer) -> Access:
    return new_organisation(server)


@pytest.fixture(autouse=True)
def home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: RunningServer, access: Access
) -> None:
    """Signed in by the environment, as CI is."""
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLBOOK_API_KEY", access.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", server.base_url)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def client(server: RunningServer, access: Access) -> Iterator[Client]:
    with Client(api_key=access.api_key, base_url=server.base_url, verbose=False) as made:
        yield made


@pytest.fixture(scope="module")
def log(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """Episodes of six steps; a wish for trouble is written where policies can sense it."""

    def logged(count: int, *, success: bool = False, troubled: tuple[int, ...] = ()) -> list[str]:
        folder = tmp_path_factory.mktemp("recorded")
        ids = []
        for number in range(count):
            times = np.arange(6) * 100_000_000
            sensed = np.random.default_rng(number).normal(size=(6, 2))
            trouble = np.full(6, float(number in troubled))
            sensors = {"arm/state": sensed, "arm/_t_ns": times, "arm/trouble": trouble}
            write_npz(folder / "sensors.npz", sensors)
            write_npz(folder / "actions.npz", {"arm/value": sensed, "arm/_t_ns": times})
            episode = client.log_episode(
                name=f"recorded {number}",
                source="sim",
                policy_version="v3",
                sensors=folder / "sensors.npz",
                actions=folder / "actions.npz",
                metadata={"outcome": {"success": success, "reward_total": 1.0}},
            )
            ids.append(str(episode.id))
        return ids

    return logged


@pytest.fixture(scope="module")
def three(log: Logged) -> list[str]:
    return log(3, troubled=(1,))


@pytest.fixture(scope="module")
def twelve(log: Logged) -> list[str]:
    return log(12)


ASSERTED = Gate(evidence=("asserted",), n_min=10)


def asserting_gate(folder: Path) -> Path:
    path = folder / "gate.json"
    path.write_text(json.dumps(ASSERTED.as_dict()))
    return path


def replay(
    policy: str,
    ids: list[str],
    *options: object,
    version: str = "v4",
    isolation: str = "thread",
) -> Ended:
    """In a thread, which starts sooner, where the test is not about the process of the policy."""
    return rollbook(
        *("replay", "run", "--policy", f"{POLICIES}:{policy}", "--candidate-version", version),
        *("--isolation", isolation),
        *("--baseline-episodes", ",".join(ids), *options),
    )


def command_line(ids: list[str], policy: str) -> list[str]:
    """The same for a process of its own."""
    return [
        *(sys.executable, "-uc", "from rollbook.cli.main import main; main()"),
        *("replay", "run", "--candidate-version", "v9", "--policy", f"{POLICIES}:{policy}"),
        *("--baseline-episodes", ",".join(ids)),
    ]


def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rollbook("replay", "list", "--json", "--limit", 200).json
    return found


# ------------------------------------------------------------------------------------- what it prints


def test_a_run_prints_its_episodes_its_numbers_and_the_decision(
    three: list[str], server: RunningServer
) -> None:
    done = replay("follow", three, "--baseline-version", "v3", "--name", "nightly")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Replay run: candidate=v4 baseline=v3 episodes=3"
    run_id = lines[1].removeprefix("✓ Eval run created: ")
    assert lines[2] == "  Gate: success or reward has to be better; collisions must not be worse"
    assert lines[3].startswith("  This is the default; --gate-file sets another")
    assert lines[4] == f"  Portal: {server.base_url}/portal/evals/{run_id}"
    for number, (line, episode) in enumerate(zip(lines[5:8], three, strict=True), 1):
        assert line.startswith(f"  ✓ [{number}/3] {episode} → ")
    assert "Summary:" in lines
    success = next(place for place, line in enumerate(lines) if " success_rate " in line)
    assert "baseline    0.0 %  candidate        -  Δ        -" in lines[success]
    assert re.match(" +n 0/3 (not_measured|open_loop), primary", lines[success + 1])
    assert any("neither better nor worse" in line for line in lines)
    assert "Recommend: " not in done.stdout, "a vote beside the decision would confuse"
    assert any(line.startswith("Decision: Hold: ") for line in lines)
    assert any(line.startswith("  - not_measured") for line in lines)
    assert lines[-1] == f"{server.base_url}/portal/evals/{run_id}"
    shown = rollbook("replay", "show", run_id)
    assert shown.stdout.splitlines()[0] == lines[0]
    assert next(line for line in lines if line.startswith("Decision")) in shown.stdout
    assert rollbook("replay", "show", run_id, "--json").json["name"] == "nightly"


def test_a_failing_policy_is_a_failed_line_and_the_others_go_on(three: list[str]) -> None:
    done = replay("troubled", three)
    assert done.returncode == 1
    assert "  ✓ [1/3]" in done.stdout
    assert "  ✗ [2/3]" in done.stdout
    assert "ValueError: trouble ahead" in done.stdout
    assert done.stderr == "", "one line says it; the traceback is for --verbose and --json"
    assert "in troubled" in replay("troubled", three, "--dry-run", "-v").stderr
    assert "of 3 pairs: 2 complete, 1 failed, 0 without a result" in done.stdout
    failures = rollbook("replay", "show", runs()[0]["id"], "--failures", "--json").json["failures"]
    assert failures == [{"baseline_episode_id": three[1], "error": "ValueError: trouble ahead"}]


def test_json_is_all_there_is_on_standard_output(three: list[str]) -> None:
    done = replay("follow", three, "--json", "--workers", 2)
    assert done.returncode == 0
    assert [row["baseline_episode_id"] for row in done.json["results"]] == three
    assert all(row["status"] == "complete" for row in done.json["results"])
    assert done.json["results"][0]["metrics"]["evidence"]["actions"] == "open_loop"
    assert done.json["summary"]["decision"]["recommend"] == "hold"
    assert done.json["eval_run_id"] == runs()[0]["id"]


def test_a_dry_run_decides_and_leaves_nothing_on_the_server(
    three: list[str], client: Client
) -> None:
    before = runs(), len(list(client.episodes(source="replay")))
    done = replay("follow", three, "--dry-run")
    assert done.returncode == 0
    assert "Dry run: nothing is created on the server" in done.stdout
    assert "Eval run created" not in done.stdout
    assert "Dry-run complete: 3 complete, 0 failed." in done.stdout
    assert "Decision: Hold: " in done.stdout
    assert "portal/evals" not in done.stdout
    assert (runs(), len(list(client.episodes(source="replay")))) == before


# --------------------------------------------------------------------------------- how it is told ids


def test_ids_come_in_comma_lists_files_and_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "ids.txt"
    listed.write_text("\ufeff# nightly\nep-1\n\n  ep-2  # the hard one\nep-3,ep-4\n", "utf-8")
    assert episode_ids(["ep-1, ep-2,", "ep-3"]) == ["ep-1", "ep-2", "ep-3"]
    assert episode_ids([f"@{listed}", "ep-1", "ep-9"]) == ["ep-1", "ep-2", "ep-3", "ep-4", "ep-9"]
    assert episode_ids([]) == []
    listed.write_text("# none today\n")
    with pytest.raises(ConfigurationError, match="contains no episode id"):
        episode_ids([f"@{listed}"])
    with pytest.raises(ConfigurationError, match=r"missing\.txt cannot be read"):
        episode_ids([f"@{tmp_path / 'missing.txt'}"])


def test_the_ids_of_a_file_are_replayed(three: list[str], tmp_path: Path) -> None:
    listed = tmp_path / "ids.txt"
    listed.write_text("# two of them\n" + "\n".join(three[:2]))
    done = rollbook(
        *("replay", "run", "--policy", f"{POLICIES}:follow", "--candidate-version", "v4"),
        *("--dry-run", "--json", "--baseline-episodes", f"@{listed}", three[2]),
    )
    assert [row["baseline_episode_id"] for row in done.json["results"]] == three


# ------------------------------------------------------------------------------------------- the gate


def test_the_gate_ends_with_0_when_the_candidate_ships(twelve: list[str], tmp_path: Path) -> None:
    gate_file = asserting_gate(tmp_path)
    done = replay("winning", twelve, "--gate", "--gate-file", gate_file, version="v5")
    assert done.returncode == 0, done.stdout
    assert "Decision: Ship: " in done.stdout
    success = next(line for line in done.stdout.splitlines() if " success_rate " in line)
    assert success.startswith("  ✓")
    assert "n 12/12 asserted, primary" in done.stdout
    assert "90 % interval +" in done.stdout
    assert "p better <0.001" in done.stdout
    assert f"gate {ASSERTED.digest[:12]}" in done.stdout
    shown = runs()[0]
    assert (shown["candidate_policy_version"], shown["decision"]) == ("v5", "ship")
    assert shown["gate_digest"] == ASSERTED.digest


def test_the_gate_ends_with_1_when_it_holds(three: list[str], twelve: list[str]) -> None:
    assert replay("follow", three, "--gate").returncode == 1
    asserted_where_it_must_be_measured = replay("winning", twelve, "--gate", "--dry-run")
    assert asserted_where_it_must_be_measured.returncode == 1
    assert "success is asserted, the gate takes" in asserted_where_it_must_be_measured.stdout


def test_a_sequential_gate_stops_early_and_says_so(log: Logged, tmp_path: Path) -> None:
    gate_file = tmp_path / "gate.json"
    sequential = Gate(design="sequential", evidence=("asserted",), n_min=5)
    gate_file.write_text(json.dumps(sequential.as_dict()))
    ids = log(13)
    done = replay("winning", ids, "--gate", "--gate-file", gate_file)
    assert done.returncode == 0, done.stdout
    assert "stopped early after 10 of 13: the results are enough to ship" in done.stdout
    told = replay("winning", ids, "--gate-file", gate_file, "--json", "--dry-run")
    assert told.returncode == 0
    assert told.json["stopped_early"] is True
    assert len(told.json["results"]) == 10


def test_a_plan_takes_its_numbers_from_an_earlier_run(twelve: list[str], tmp_path: Path) -> None:
    run = replay("winning", twelve, "--gate-file", asserting_gate(tmp_path), "--json").json
    told = rollbook(
        *("replay", "plan", "--effect", "10points", "--from-run", run["eval_run_id"], "--json")
    )
    assert told.returncode == 0, told.stderr
    assert told.json["differ"] == 1.0, "the candidate won every pair"
    assert told.json["seconds_per_pair"] > 0
    assert all(row["hours"] > 0 for row in told.json["plans"])
    none = rollbook("replay", "plan", "--effect", "10points", "--from-run", "no-such-run")
    assert none.returncode == 1
    assert "no such eval run" in none.stderr


def test_a_preset_is_the_gate_of_the_run(three: list[str]) -> None:
    replay("follow", three, "--gate-preset", "quick")
    assert runs()[0]["gate_digest"] == gate_preset("quick").digest
    unknown = replay("follow", three, "--gate-preset", "lax")
    assert unknown.returncode == 2
    assert "the presets are quick, default, strict" in unknown.stderr


def test_baselines_that_do_not_come_are_no_verdict_on_the_candidate(
    log: Logged, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = log(2)
    with FaultyProxy(server.base_url) as proxy:
        monkeypatch.setenv("ROLLBOOK_BASE_URL", proxy.base_url)
        proxy.faults += [Fault("GET /blobs", 401), Fault("/api/episodes/artifacts", 401)]
        done = replay("follow", ids, "--gate")
        assert done.returncode == 3, done.stderr
        assert "2 of 2 baselines could not be replayed" in done.stderr
        assert ids[0] in done.stderr
        run_id = runs()[0]["id"]
        assert f"--resume {run_id}" in done.stderr
        proxy.faults.clear()
        taken_up = rollbook(
            *("replay", "run", "--policy", f"{POLICIES}:follow", "--resume", run_id, "--gate")
        )
        assert taken_up.returncode == 1, taken_up.stderr
        assert "Decision: Hold: " in taken_up.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "no_such_module:x", "--candidate-version", "v4"], "no_such_module"),
        (["--policy", f"{POLICIES}:nothing", "--candidate-version", "v4"], "nothing"),
        (["--policy", f"{POLICIES}:follow"], "--candidate-version"),
        (
            ["--policy", f"{POLICIES}:follow", "--candidate-version", "v", "--environment", "no:x"],
            "--environment",
        ),
        (
            ["--policy", "tests.cli.broken_policies:x", "--candidate-version", "v4"],
            "ZeroDivisionError",
        ),
        (
            [
                *("--policy", f"{POLICIES}:follow", "--candidate-version", "v4"),
                *("--environment", f"{POLICIES}:Unborn"),
            ],
            "the environment cannot be made: SystemExit",
        ),
        (
            ["--policy", f"{POLICIES}:follow", "--resume", "x", "--candidate-version", "v"],
            "--resume",
        ),
        (
            ["--policy", f"{POLICIES}:follow", "--candidate-version", "v4", "--limit", "3"],
            "--store",
        ),
        (
            ["--policy", f"{POLICIES}:follow", "--candidate-version", "v4", "--engine", "rey"],
            "'local' or 'ray'",
        ),
        (
            [
                *("--policy", f"{POLICIES}:follow", "--candidate-version", "v4", "--store", "s"),
                *("--environment", f"{POLICIES}:follow"),
            ],
            "both determine the outcome",
        ),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_created(
    options: list[str], said: str, three: list[str]
) -> None:
    before = runs()
    done = rollbook("replay", "run", *options, "--gate", "--baseline-episodes", three[0])
    assert done.returncode == 2
    assert said in done.stderr
    assert runs() == before


def test_no_ids_unknown_ids_and_a_gate_that_is_none_are_usage_too(
    three: list[str], tmp_path: Path
) -> None:
    assert replay("follow", [], "--gate").returncode == 2
    unknown = "00000000-0000-4000-8000-000000000000"
    assert replay("follow", [three[0], unknown], "--gate").returncode == 2
    wrong = tmp_path / "gate.toml"
    wrong.write_text("alpha = 3.0\n")
    done = replay("follow", three, "--gate", "--gate-file", wrong)
    assert done.returncode == 2
    assert "gate.alpha" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gate.toml", "alpha = 0.01\n[gate]\nalpha = 0.4\n", "alpha beside a section called gate"),
        ("gate.json", '{"n_min": 90, "n_min": 2}', "n_min is given twice"),
        ("gate.toml", "alhpa = 0.01\n", "alhpa"),
        ("gate.json", '{"alpha": NaN}', "gate.alpha is nan"),
        ("gate.json", '{"reward_range": [0, Infinity]}', "gate.reward_range"),
        ("gate.json", "null", "the gate is not right"),
    ],
)
def test_a_gate_that_is_misspelt_or_contradicts_itself_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    done = rollbook("replay", "gate", tmp_path / name)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("policy", ["leaving", "ending", "Unborn", "LeavesAtTheEnd"])
def test_a_policy_that_calls_exit_has_not_decided_to_ship(policy: str, three: list[str]) -> None:
    done = replay(policy, three[:1], "--gate", isolation="process")
    assert done.returncode == (2 if policy == "Unborn" else 1), done.stderr


def test_an_environment_that_calls_exit_has_not_decided_to_ship(three: list[str]) -> None:
    """The system keeps the last eight bits of an exit status, so 256 is 0."""
    done = replay("follow", three[:1], "--gate", "--environment", f"{POLICIES}:LeavingEnv")
    assert done.returncode == 2, done.stderr
    assert "the environment cannot be closed: SystemExit: 256" in done.stderr


@pytest.mark.parametrize("code", [None, 0, 1, 256, "text"])
def test_whoever_calls_exit_before_there_is_a_decision_is_no_verdict(code: Any) -> None:
    with pytest.raises(SystemExit) as ended, _exit_codes(True):
        sys.exit(code)
    assert ended.value.code == 3
    with pytest.raises(SystemExit) as ended, _exit_codes(True):
        sys.exit(130)
    assert ended.value.code == 130, "Ctrl-C"


def test_a_policy_that_is_not_apart_from_the_runner_is_warned_of(three: list[str]) -> None:
    """The runner imports the module of the environment, and with it what the author of the policy wrote there."""
    apart, both = "tests.evals.recorded_runs:SlidingEnv", f"{POLICIES}:LeavingEnv"
    for environment, isolation, said in (
        (apart, "process", None),
        (both, "process", "warning: policy and environment are both in tests.cli.replay_policies"),
        (apart, "thread", "warning: --isolation thread runs the policy inside the runner"),
    ):
        options = ("--gate", "--environment", environment)
        done = replay("follow", three[:1], *options, isolation=isolation)
        assert ("warning" in done.stderr, done.returncode != 0) == (said is not None, True)
        assert (said or "") in done.stderr


def test_a_run_that_a_stranger_replays_again_agrees_where_it_is_the_same(three: list[str]) -> None:
    replay("winning", three)
    run_id = runs()[0]["id"]
    audit = ("replay", "audit", run_id, "--sample", 2, "--seed", 3)
    same = rollbook(*audit, "--policy", f"{POLICIES}:winning", "--json")
    assert (same.returncode, same.json["agrees"], len(same.json["pairs"])) == (0, True, 2)
    other = rollbook(*audit, "--policy", f"{POLICIES}:follow")
    assert other.returncode == 1
    assert "success: True → None; reward_total: 2.0 → None" in other.stdout
    assert "0 of 2 pairs agree (--seed 3 chooses the same pairs)." in other.stdout


@pytest.mark.parametrize(
    ("how", "said"), [("sys.exit", "sys.exit(0)"), ("os._exit", "ended with exit status 0")]
)
def test_a_policy_whose_module_calls_exit_is_usage(
    three: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    (tmp_path / "module_that_exits.py").write_text(f"import os, sys\n{how}(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--policy", "module_that_exits:x"]
    done = rollbook(
        *("replay", "run", *options, "--candidate-version", "v4", "--gate"),
        *("--baseline-episodes", three[0]),
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_a_store_that_is_none_is_no_verdict_on_the_candidate(
    three: list[str], tmp_path: Path
) -> None:
    done = replay("follow", three, "--gate", "--dry-run", "--store", tmp_path)
    assert done.returncode == 2
    assert "not a rollout store" in done.stderr


@pytest.mark.slow
def test_a_server_that_is_not_there_ends_with_3(
    three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_BASE_URL", "http://127.0.0.1:9")
    assert replay("follow", three, "--gate").returncode == 3
    assert replay("follow", three).returncode == 1


def test_a_wrong_key_is_no_verdict_on_the_candidate(
    three: list[str], monkeypatch: pytest.MonkeyPatch, access: Access
) -> None:
    monkeypatch.setenv("ROLLBOOK_API_KEY", access.api_key[:-3] + "AAA")
    done = replay("follow", three, "--gate", "--json")
    assert done.returncode == 3
    assert json.loads(done.stderr)["code"] == "auth"


# --------------------------------------------------------------------------------------- for machines


def test_github_gets_annotations_a_summary_and_outputs(
    twelve: list[str], three: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    monkeypatch.setenv("GITHUB_SHA", "abc123")
    held = replay("troubled", three, "--github", "--gate")
    assert "::error title=Replay%3A hold::Hold: " in held.stdout
    assert "::error title=Replay failed%3A " in held.stdout
    gate_file = asserting_gate(tmp_path)
    shipped = replay("winning", twelve, "--github", "--gate", "--gate-file", gate_file)
    assert "::notice title=Replay%3A ship::Ship: " in shipped.stdout
    text = summary.read_text()
    assert "## Replay of `v4`: ✋ hold" in text
    assert "## Replay of `v4`: 🚀 ship" in text
    assert "| `success_rate` | 0.0 % | 100.0 % | +100.0 points | +" in text
    assert "ValueError: trouble ahead" in text
    assert output.read_text().splitlines()[2] == "decision=ship"
    newest = rollbook("replay", "show", runs()[0]["id"], "--json").json
    assert newest["metadata"]["ci"]["sha"] == "abc123"


def test_a_test_report_has_every_baseline_and_the_decision(
    three: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "replay.xml"
    replay("troubled", three, "--junit", path, "--gate")
    suite = ElementTree.parse(path).getroot()[0]
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("4", "1", "1")
    failing = {case.get("name") for case in suite if case.find("error") is not None}
    assert failing == {three[1]}
    decision = suite[-1].find("failure")
    assert decision is not None
    assert str(decision.get("message")).startswith("Hold: ")
    replay("follow", three, "--junit", path)
    suite = ElementTree.parse(path).getroot()[0]
    assert suite.get("failures") == "0"


# --------------------------------------------------------------------------------- runs that are there


def test_a_run_is_taken_up_with_what_it_has_left(three: list[str], client: Client) -> None:
    run = evals.create_run(candidate_policy_version="v6", baseline_episode_ids=three, client=client)
    evals.run_against(run, policy_callable=f"{POLICIES}:troubled")
    resume = ("replay", "run", "--policy", f"{POLICIES}:follow", "--resume", run.id)
    done = rollbook(*resume, "--retry-failed")
    assert done.returncode == 0, done.stderr
    assert f"✓ Eval run resumed: {run.id} (2 of 3 complete)" in done.stdout
    assert f"  ✓ [1/1] {three[1]}" in done.stdout
    assert rollbook("replay", "show", run.id, "--json").json["status"] == "completed"


def test_a_completed_run_is_no_verdict_on_another_policy(three: list[str]) -> None:
    """Nothing is left to replay, so the exit status would be the one of an earlier candidate."""
    assert replay("follow", three).returncode == 0
    resumed = ("replay", "run", "--resume", runs()[0]["id"], "--policy", f"{POLICIES}:troubled")
    done = rollbook(*resumed, "--gate")
    assert done.returncode == 2
    assert "is completed, and says nothing about the policy that is given now" in done.stderr
    assert rollbook(*resumed).returncode == 0, "without --gate it is shown again"


def test_a_report_that_cannot_be_written_is_noticed_before_anything_is_replayed(
    three: list[str], tmp_path: Path
) -> None:
    before = runs()
    done = replay("follow", three, "--gate", "--junit", tmp_path / "missing" / "replay.xml")
    assert (done.returncode, "there is no folder" in done.stderr) == (2, True), done.stderr
    assert runs() == before


def test_runs_are_listed_and_cancelled(three: list[str], client: Client) -> None:
    run = evals.create_run(candidate_policy_version="v7", baseline_episode_ids=three, client=client)
    listed = rollbook("replay", "list", "--candidate-version", "v7")
    assert run.id in listed.stdout
    assert rollbook("replay", "cancel", run.id).stdout == f"cancelled {run.id}\n"
    left = rollbook("replay", "list", "--candidate-version", "v7", "--status", "pending", "--json")
    assert left.json == []
    assert "cancelled: 0 complete, 0 failed" in rollbook("replay", "show", run.id).stdout
    assert rollbook("replay", "show", "nobody").returncode == 1


def test_a_profile_works_as_well_as_the_environment(
    server: RunningServer, access: Access, monkeypatch: pytest.MonkeyPatch, three: list[str]
) -> None:
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL"):
        monkeypatch.delenv(name)
    assert replay("follow", three, "--dry-run").returncode == 2
    write_profile(Profile(api_key=access.api_key, base_url=server.base_url), "ci")
    assert replay("follow", three, "--dry-run", "--profile", "ci").returncode == 0


def test_a_gate_is_printed_to_be_changed_and_given_back(tmp_path: Path) -> None:
    printed = rollbook("replay", "gate")
    assert gate_from(printed.json) == Gate()
    assert printed.stderr == f"gate {Gate().digest}\n"
    as_toml = rollbook("replay", "gate", "--reward", "--toml")
    assert gate_from(tomllib.loads(as_toml.stdout)) == Gate.for_reward()
    kept = tmp_path / "gate.toml"
    kept.write_text("[gate]\nmode = 'non_inferiority'\nn_min = 50\n")
    assert rollbook("replay", "gate", kept).json["n_min"] == 50
    assert rollbook("replay", "gate", tmp_path / "none.toml").returncode == 2


# ---------------------------------------------------------------------------------------- from a store


def test_a_store_is_enough_and_no_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_BASE_URL", "http://127.0.0.1:9")
    command = ("replay", "run", "--candidate-version", "first", "--store", small_store())
    done = rollbook(*command, "--policy", f"{POLICIES}:first_valid")
    assert done.returncode == 0, done.stderr
    assert "Chains of " in done.stdout
    assert "Replay of the store complete: " in done.stdout
    assert "counterfactual, primary" in done.stdout
    assert " below the best choice\n" in done.stdout
    assert "Decision: " in done.stdout
    asked = rollbook(
        *command, "--policy", f"{POLICIES}:first_valid", "--json", "--limit", 3, "--workers", 2
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.json["episodes"] == 3
    gate = asked.json["summary"]["decision"]["gate"]
    assert gate["reward_range"] is not None, (
        "the labels of the store say which rewards there can be"
    )
    assert gate == {**Gate.for_reward().as_dict(), "reward_range": gate["reward_range"]}
    wrong = rollbook(*command, "--policy", f"{POLICIES}:first_valid", "--store-policy", "nobody")
    assert wrong.returncode == 2
    mixed = rollbook(
        *command, "--policy", f"{POLICIES}:first_valid", "--baseline-version", "random-1"
    )
    assert mixed.returncode == 2
    assert "Choose one policy with --store-policy" in mixed.stderr


def test_episodes_of_a_store_are_judged_by_its_rewards(client: Client) -> None:
    ids = log_chains(client, small_store(), limit=3)
    done = replay("first_valid", ids, "--store", small_store(), "--json")
    assert done.returncode == 0, done.stderr
    reward = done.json["summary"]["reward_mean"]
    measured = reward["n_pairs"] + reward["n_repeats"]
    assert (reward["evidence"], measured) == ("counterfactual", 3)
    assert done.json["summary"]["regret"]["n_pairs"] == 3
    assert done.json["eval_run_id"] == runs()[0]["id"]
    judged_by = done.json["summary"]["decision"]["gate"]
    alone = rollbook(
        *("replay", "run", "--store", small_store(), "--policy", f"{POLICIES}:first_valid"),
        *("--candidate-version", "v4", "--json"),
    )
    assert judged_by == alone.json["summary"]["decision"]["gate"], "with a server and without"
    assert judged_by["reward_range"] is not None
    dry = replay("first_valid", ids, "--store", small_store(), "--json", "--dry-run")
    assert dry.json["summary"]["decision"]["gate"] == judged_by


def test_a_store_that_is_not_the_one_of_the_baselines_ends_with_2_before_a_run_is_made(
    client: Client, tmp_path: Path
) -> None:
    """Missing, damaged, or another store: the candidate is not the reason."""
    ids = log_chains(client, small_store(), limit=3)
    before = runs()
    damaged, lost = tmp_path / "damaged.zarr", tmp_path / "lost.zarr"
    for copy in (damaged, lost):
        shutil.copytree(small_store(), copy)
    (damaged / "manifest.json").unlink()
    shutil.rmtree(lost / "q_h" / "valid_action_mask" / "c")
    for wrong, said in (
        (tmp_path / "missing.zarr", "there is nothing at"),
        (damaged, "there is no manifest.json"),
        (lost, "the file is missing"),
        (small_store(6, seed=5), "was logged from the store"),
    ):
        for gate in ((), ("--gate",)):
            done = replay("first_valid", ids, "--store", wrong, *gate)
            assert done.returncode == 2, done.stderr
            assert said in done.stderr
            assert "Traceback" not in done.stderr
    assert runs() == before


# --------------------------------------------------------------------------------- in an environment


def test_an_environment_measures_what_the_candidate_comes_to(client: Client) -> None:
    ids = []
    for seed in (1, 2):
        made = record(SlidingEnv(), away, seed=seed, client=client, env_version="sliding-1")
        assert made.episode is not None
        ids.append(str(made.episode.id))
    done = replay(
        *("push_towards", ids, "--json", "--dry-run"),
        *("--environment", "tests.evals.recorded_runs:SlidingEnv"),
    )
    assert done.returncode == 0, done.stderr
    success = done.json["summary"]["success_rate"]
    assert (success["evidence"], success["candidate"]) == ("closed_loop", 1.0)
    assert done.json["results"][0]["metrics"]["repro"]["env_match"] is True
    assert done.json["results"][0]["metrics"]["repro"]["verified"] is True
    done = replay(
        *("push_towards", ids, "--json", "--dry-run", "--no-world-check"),
        *("--environment", "tests.evals.recorded_runs:SlidingEnv"),
    )
    assert done.json["results"][0]["metrics"]["repro"]["verified"] is None
    assert "unverified_environment" in done.json["summary"]["decision"]["reasons"]


# -------------------------------------------------------------------------- on a terminal, interrupted


@pytest.mark.slow
def test_on_a_terminal_the_lines_stand_above_the_bar(three: list[str]) -> None:
    terminal, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    started = subprocess.Popen(
        command_line(three, "slow"), stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(terminal, 65536):
            written += piece
    os.close(terminal)
    assert started.wait(60) == 0
    assert "replaying" in written.decode()
    shown = [re.split(r"\x1b\[2K", line)[-1] for line in written.decode().split("\r\n")]
    landed = [line for line in shown if "✓ [" in line]
    assert len(landed) == 3
    assert all(line.startswith("  ✓ [") for line in landed)


@pytest.mark.slow
def test_a_run_that_is_interrupted_says_how_to_go_on(three: list[str]) -> None:
    started = subprocess.Popen(
        command_line(three, "slow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
    )
    try:
        assert started.stdout is not None
        lines = [started.stdout.readline() for _ in range(3)]
        run_id = lines[1].removeprefix("✓ Eval run created: ").strip()
        time.sleep(1)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 130
    assert f"rollbook replay run --resume {run_id}" in said
    done = rollbook("replay", "run", "--policy", f"{POLICIES}:follow", "--resume", run_id)
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------------------- awkward characters


def test_nothing_in_an_error_can_break_out_of_a_report() -> None:
    wild = "50% <b>|x|\x00\n::error::`boom`"
    report = RunReport(
        candidate="pap_v4`<b>`",
        baseline=None,
        total=1,
        summary=rollup([]).to_wire(),
        results=[EvalResult("a|b", None, "failed", {}, wild)],
    )
    (said,) = [line for line in workflow_commands(report) if "failed" in line]
    assert "\n" not in said
    assert "50%25" in said
    assert "\x1b" not in episode_line(1, 1, EvalResult("a", None, "failed", {}, "\x1b[2Jgone\nx"))
    row = next(line for line in markdown(report).splitlines() if line.startswith("- `a"))
    assert "\\|x\\|" in row
    assert "\\<b\\>" in row
    assert markdown(report).startswith("## Replay of `pap_v4<b>`: ")
    error = ElementTree.fromstring(junit(report)).find(".//error")
    assert error is not None
    assert "\x00" not in str(error.text)
    assert "<b>|x|" in str(error.text)


def crashed_once() -> RunReport:
    metrics = {"success_baseline": False, "success_candidate": True}
    stated = {**metrics, "evidence": {"success": "asserted"}}
    rows = [EvalResult(f"ep-{place}", None, "complete", stated) for place in range(9)]
    rows.append(EvalResult("ep-9", None, "failed", {}, "x"))
    return RunReport("v4", "v3", 10, rollup(rows).to_wire(), rows)


def test_terminal_and_markdown_show_the_difference_that_is_tested_crashes_included() -> None:
    report = crashed_once()
    assert report.rollup is not None
    (line,) = [each for each in summary_lines(report.rollup) if "success_rate" in each]
    assert line.endswith("Δ +80.0 points")
    (row,) = [each for each in markdown(report).splitlines() if "`success_rate`" in each]
    assert row.split(" | ")[3] == "+80.0 points"


def test_a_report_fits_into_80_columns() -> None:
    report = crashed_once()
    assert report.rollup is not None
    assert max(map(len, summary_lines(report.rollup))) <= 80


# ---------------------------------------------------------------------------------------- report pages


def test_a_run_of_the_server_becomes_a_page(twelve: list[str], tmp_path: Path) -> None:
    replay("winning", twelve, "--gate-file", asserting_gate(tmp_path), version="paged")
    run_id, page = runs()[0]["id"], tmp_path / "report.html"
    written = rollbook("replay", "report", run_id, "--html", page)
    assert written.returncode == 0, written.stderr
    assert written.stdout.endswith(f"wrote {page}\n")
    text = page.read_text("utf-8")
    assert "Replay of paged" in text
    assert f"rollbook replay audit {run_id} --sample 10" in text
    refused = rollbook("replay", "report", run_id, "--html", page)
    assert refused.returncode != 0
    assert "--replace" in refused.stderr
    assert rollbook("replay", "report", run_id, "--html", page, "--replace", "--json").json == {
        "path": str(page),
        "bytes": page.stat().st_size,
        "decision": runs()[0]["decision"],
    }


def test_a_printed_store_replay_becomes_a_page_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_BASE_URL", "http://127.0.0.1:9")
    printed = rollbook(
        *("replay", "run", "--candidate-version", "first", "--store", small_store(), "--json"),
        *("--policy", f"{POLICIES}:first_valid"),
    )
    file, page = tmp_path / "run.json", tmp_path / "report.html"
    file.write_text(printed.stdout)
    written = rollbook("replay", "report", "--results", file, "--html", page)
    assert written.returncode == 0, written.stderr
    assert "Every pair: reward" in page.read_text("utf-8")
    assert printed.json["labels"].keys() == {
        row["baseline_episode_id"] for row in printed.json["results"]
    }


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert rollbook("replay", "report", "--html", page).returncode == 2
    missing = rollbook("replay", "report", "--html", page, "--results", tmp_path / "none.json")
    assert missing.returncode == 2
    assert "none.json cannot be read" in missing.stderr
    assert not page.exists()


# ------------------------------------------------------------------------------------------- scenarios


def test_a_critical_scenario_blocks_until_the_candidate_passes_it(client: Client) -> None:
    logged = record(SlidingEnv(), away, seed=1, client=client, env_version="sliding-1")
    assert logged.episode is not None
    episode = str(logged.episode.id)
    made = rollbook(
        *("verify", "promote", episode, "--severity", "critical", "--name", "the corner"),
    )
    assert made.stdout.startswith(f"promoted {episode}: scenario ")
    assert "already is scenario" in rollbook("verify", "promote", episode).stdout
    assert episode in rollbook("verify", "list").stdout
    blocked = rollbook("verify", "check", "--candidate", "v8")
    assert blocked.returncode == 1
    assert "Verify gate: candidate=v8" in blocked.stdout
    assert "✗ BLOCKED: 0/1 critical scenarios pass (0 failed, 1 pending)" in blocked.stdout
    asked = ("verify", "check", "--candidate", "v8", "--policy", f"{POLICIES}:push_towards")
    environment = ("--environment", "tests.evals.recorded_runs:SlidingEnv")
    dry = rollbook(*asked, *environment, "--dry-run").stdout
    assert "✗ BLOCKED" in dry, "nothing was recorded"
    assert f"Dry run, not recorded: {episode} pass (success closed_loop)" in dry
    tried = rollbook(*asked)
    assert tried.returncode == 1
    assert "(1 failed, 0 pending)" in tried.stdout
    passed = rollbook(*asked, *environment)
    assert passed.returncode == 0, passed.stdout
    assert "✓ PASS: 1/1 critical scenarios pass" in passed.stdout
    assert rollbook("verify", "check", "--candidate", "v8", "--json").json["passed"] is True

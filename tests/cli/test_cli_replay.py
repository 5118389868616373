"""`rollbook replay` and `rollbook verify`, against a real server: what they print, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
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
from rollbook.cli.replay_arguments import episode_ids
from rollbook.cli.replay_report import (
    RunReport,
    episode_line,
    junit,
    markdown,
    summary_lines,
    workflow_commands,
)
from rollbook.client import Client
from rollbook.client.credentials import Profile, write_profile
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.npz import write_npz
from rollbook.errors import ConfigurationError
from rollbook.evals.store_episodes import log_chains
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


def replay(policy: str, ids: list[str], *options: object, version: str = "v4") -> Ended:
    return rollbook(
        *("replay", "run", "--policy", f"{POLICIES}:{policy}", "--candidate-version", version),
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
    success = next(line for line in lines if " success_rate " in line)
    assert "baseline    0.000  candidate        -  Δ        -" in success
    assert "not_measured" in success or "open_loop" in success
    assert "n 0/3" in success
    assert any("neither better nor worse" in line for line in lines)
    assert "Recommend: hold  (0/0 metrics better)" in lines
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
    assert "Traceback" in done.stderr
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
    assert "asserted, primary" in success
    assert "n 12/12" in success
    assert "Δ from +" in done.stdout
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
            ["--policy", f"{POLICIES}:follow", "--candidate-version", "v4", "--engine", "ray"],
            "rollbook[ray]",
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


@pytest.mark.parametrize("policy", ["leaving", "Unborn", "LeavesAtTheEnd"])
def test_a_policy_that_calls_exit_has_not_decided_to_ship(policy: str, three: list[str]) -> None:
    done = replay(policy, three[:1], "--gate")
    assert done.returncode == (2 if policy == "Unborn" else 1), done.stderr


def test_a_policy_whose_module_calls_exit_is_usage(
    three: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_exits.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--policy", "module_that_exits:x"]
    done = rollbook(
        *("replay", "run", *options, "--candidate-version", "v4", "--gate"),
        *("--baseline-episodes", three[0]),
    )
    assert done.returncode == 2
    assert "sys.exit(0)" in done.stderr


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
    assert "| `success_rate` | 0.000 | 1.000 | +1.000 |" in text
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
    done = rollbook("replay", "run", "--policy", f"{POLICIES}:follow", "--resume", run.id)
    assert done.returncode == 0, done.stderr
    assert f"✓ Eval run resumed: {run.id} (2 of 3 complete)" in done.stdout
    assert f"  ✓ [1/1] {three[1]}" in done.stdout
    assert rollbook("replay", "show", run.id, "--json").json["status"] == "completed"


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
    reward = next(line for line in done.stdout.splitlines() if " reward_mean " in line)
    assert "counterfactual, primary" in reward
    assert " below the best choice " in done.stdout
    assert "Decision: " in done.stdout
    asked = rollbook(
        *command, "--policy", f"{POLICIES}:first_valid", "--json", "--limit", 3, "--workers", 2
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.json["episodes"] == 3
    assert asked.json["summary"]["decision"]["gate_digest"] == Gate.for_reward().digest
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


def test_a_delta_that_crashes_are_not_in_stands_beside_the_one_with_them() -> None:
    rows = [
        EvalResult(
            *(f"ep-{place}", None, "complete"),
            {
                "success_baseline": False,
                "success_candidate": True,
                "evidence": {"success": "asserted"},
            },
        )
        for place in range(9)
    ]
    (line,) = [
        each
        for each in summary_lines(rollup([*rows, EvalResult("ep-9", None, "failed", {}, "x")]))
        if "95 %" in each
    ]
    assert "Δ +0.800 with crashes, from" in line


# ------------------------------------------------------------------------------------------- scenarios


def test_a_critical_scenario_blocks_until_the_candidate_passes_it(log: Logged) -> None:
    (episode,) = log(1)
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
    tried = rollbook("verify", "check", "--candidate", "v8", "--policy", f"{POLICIES}:follow")
    assert tried.returncode == 1
    assert "(1 failed, 0 pending)" in tried.stdout
    winning = ("verify", "check", "--candidate", "v8", "--policy", f"{POLICIES}:winning")
    dry = rollbook(*winning, "--dry-run").stdout
    assert "✗ BLOCKED" in dry, "nothing was recorded"
    assert f"Dry run, not recorded: {episode} pass" in dry
    passed = rollbook(*winning)
    assert passed.returncode == 0
    assert "✓ PASS: 1/1 critical scenarios pass" in passed.stdout
    assert rollbook("verify", "check", "--candidate", "v8", "--json").json["passed"] is True

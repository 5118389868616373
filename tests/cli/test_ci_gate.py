"""The gate of a CI job is one command of the installed package: it finds the recordings, replays them and decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rollbook.adapters.gymnasium import record_many
from rollbook.client import Client
from rollbook.contracts.gate import Gate
from tests.command import Ended, rollbook
from tests.evals.recorded_runs import SlidingEnv, away
from tests.server.fixtures import StartServer, running_server
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation, shared_server

pytestmark = pytest.mark.slow

__all__ = ["running_server"]

HERE = "tests.cli.test_ci_gate"


def cart_pole() -> gymnasium.Env[Any, Any]:
    """An environment as most are: it has rewards and says nothing about success."""
    return gymnasium.make("CartPole-v1", max_episode_steps=80)


def push_left(observation: Any) -> int:
    return 0


def balance(obs: dict[str, Any]) -> dict[str, Any]:
    _, _, angle, spin = obs["observation/value"]
    return {"action/value": int(angle + spin > 0)}


def still_left(obs: dict[str, Any]) -> dict[str, Any]:
    return {"action/value": 0}


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture(scope="module", autouse=True)
def home(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Signed in by the environment, as CI is, with 26 recordings of each policy in production."""
    access = new_organisation(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLBOOK_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("ROLLBOOK_API_KEY", access.api_key)
        patch.setenv("ROLLBOOK_BASE_URL", server.base_url)
        with Client(verbose=False) as client:
            for make, policy, version, tags in (
                (cart_pole, push_left, "left-1", ["nightly"]),
                (SlidingEnv, away, "away-1", []),
            ):
                done = record_many(
                    make,
                    policy,
                    seeds=range(26),
                    client=client,
                    policy_version=version,
                    env_version="sliding-1" if make is SlidingEnv else "CartPole-v1",
                    tags=tags,
                )
                assert all(each.error is None for each in done)
        yield


def ci_gate(policy: str, *options: object) -> Ended:
    return rollbook(
        *("replay", "run", "--gate", "--policy", policy, "--candidate-version", "v4", *options)
    )


CART_POLE = ("--baseline-version", "left-1", "--environment", f"{HERE}:cart_pole")


def test_a_better_reward_ships_where_the_recordings_have_no_success(tmp_path: Path) -> None:
    report, options = tmp_path / "replay.xml", (*CART_POLE, "--baseline-tag", "nightly")
    done = ci_gate(f"{HERE}:balance", *options)
    assert done.returncode == 1, "what a pair can lose is not declared"
    assert "  Gate: reward has to be better (no baseline has a success)\n" in done.stdout
    assert "undeclared_range" in done.stdout
    done = ci_gate(
        *(f"{HERE}:balance", *options, "--junit", report, "--gate-file", gate_in(tmp_path))
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "candidate=v4 baseline=left-1 episodes=26" in done.stdout
    assert "better on reward" in done.stdout
    assert "by the gate: reward has to be better" in done.stdout
    assert "<testsuite" in report.read_text()


def gate_in(folder: Path) -> Path:
    """The default for rewards, which says that an episode has 1 to 80 steps of reward 1."""
    file = folder / "gate.json"
    file.write_text(json.dumps({**Gate.for_reward().as_dict(), "reward_range": [1, 80]}))
    return file


def test_a_dry_run_decides_by_the_same_gate() -> None:
    done = ci_gate(f"{HERE}:balance", *CART_POLE, "--dry-run", "--json")
    assert done.returncode == 1, done.stderr
    assert done.json["summary"]["decision"]["gate"] == Gate.for_reward().as_dict()


def test_a_candidate_that_is_not_better_fails_the_job() -> None:
    done = ci_gate(f"{HERE}:still_left", *CART_POLE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not_better" in done.stdout


def test_a_success_that_was_recorded_has_to_be_better() -> None:
    done = ci_gate(
        *("tests.evals.recorded_runs:push_towards", "--baseline-version", "away-1"),
        *("--environment", "tests.evals.recorded_runs:sliding", "--limit", 25),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "episodes=25" in done.stdout
    assert (
        "  Gate: success or reward has to be better; collisions must not be worse\n" in done.stdout
    )
    assert "no baseline has a success" not in done.stdout


def test_replays_of_earlier_jobs_are_no_recordings() -> None:
    ci_gate(f"{HERE}:balance", *CART_POLE, "--limit", 2)
    done = ci_gate(f"{HERE}:balance", "--baseline-version", "v4", *CART_POLE[2:])
    assert done.returncode == 2
    assert "there are no finished episodes of v4" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((*CART_POLE, "--baseline-tag", "of-nobody"), "of left-1 with the tag 'of-nobody'"),
        (("--environment", f"{HERE}:cart_pole"), "give --baseline-version"),
        (("--baseline-episodes", "x", "--baseline-tag", "nightly"), "--baseline-tag"),
        (("--baseline-episodes", "x", "--limit", 3), "--limit"),
    ],
)
def test_a_wrong_call_is_no_decision(options: tuple[str, ...], said: str) -> None:
    done = ci_gate(f"{HERE}:balance", *options)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr

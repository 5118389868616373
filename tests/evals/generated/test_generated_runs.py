"""A closed loop on a store as a run of a server: killed, resumed, completed, audited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.client import Client
from rollbook.evals import (
    StoreBaselines,
    audit_run,
    complete_run,
    create_run,
    log_chains,
    run_against,
)
from tests.evals.generated.generated_stores import SOURCE, Widest, generated_store
from tests.server.running import RunningServer

pytestmark = pytest.mark.slow

_RUNNER = """
import sys, time
from rollbook.client import Client
from rollbook.evals import open_run, run_against
from tests.evals.generated.generated_stores import Widest

class HangsInTheThird(Widest):
    met = set()

    def reset(self, episode):
        self.met.add(episode.id)
        if len(self.met) == 3:
            sys.stderr.write("here\\n")
            time.sleep(600)

client = Client(api_key=sys.argv[1], base_url=sys.argv[2])
run_against(open_run(sys.argv[3], client), policy_callable=HangsInTheThird, store=sys.argv[4], source=sys.argv[5])
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "server").mkdir()
    with RunningServer(tmp_path / "server") as running:
        yield running


def test_a_killed_run_is_resumed_and_its_decision_rests_on_measured_returns(
    server: RunningServer, tmp_path: Path
) -> None:
    chains = StoreBaselines(generated_store())
    with Client(api_key=server.api_key, base_url=server.base_url, cache=tmp_path / "c") as client:
        ids = log_chains(client, generated_store())
        run = create_run(
            candidate_policy_version="widest",
            baseline_episode_ids=ids,
            gate=chains.gate(closed_loop=True),
            client=client,
        )
        words = (server.api_key, server.base_url, run.id, str(generated_store()), str(SOURCE()))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-c", _RUNNER, *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as runner:
            assert runner.stderr is not None
            assert runner.stderr.readline() == b"here\n"
            runner.send_signal(signal.SIGKILL)
        world: dict[str, Any] = {"store": generated_store(), "source": SOURCE()}
        results = run_against(run, policy_callable=Widest, resume=True, **world)
        assert [each.status for each in results] == ["complete"] * 4
        assert all(each.metrics["repro"]["verified"] for each in results)

        summary = complete_run(run)["summary"]
        assert summary["reward_mean"]["evidence"] == "closed_loop"
        assert summary["counterfactual_relation"]["n_pairs"] == 4
        assert "retried" in summary["decision"]["reasons"]
        assert not [each for each in summary["decision"]["reasons"] if "env" in each]

        assert audit_run(run, sample=4, policy_callable=Widest, **world).agrees

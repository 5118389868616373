"""Imported Minari episodes are run again: in closed loop, with a world that is verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rollbook import client as sdk
from rollbook.adapters.importing import ImportServer, import_recording
from rollbook.adapters.minari import MinariImporter
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.evals import create_run, run_against
from rollbook.evals.baselines import Baseline
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.worlds.closed_loop import run_closed_loop
from rollbook.scoring.outcomes import outcome_of
from tests.adapters.encoded_files import Imported, import_all
from tests.adapters.minari_datasets import balance, cart_pole, write_cart_pole
from tests.server.running import RunningServer


def balanced(obs: dict[str, Any]) -> dict[str, Any]:
    return {"action/value": balance(obs["observation/value"])}


def cart_pole_of_50() -> gymnasium.Env[Any, Any]:
    return cart_pole(max_episode_steps=50)


def baseline_of(found: Imported) -> Baseline:
    """As it would come from a server."""
    encoded = found.encoded
    record = EpisodeRecord(
        id="episode",
        status="ready",
        env_version=encoded.env_version,
        seed=encoded.seed,
        fps=encoded.fps,
        metadata=found.metadata,
    )
    outcome = {k: v for k, v in outcome_of(found.metadata).items() if v is not None}
    return Baseline(
        id="episode",
        record=record,
        sensors=found.sensors,
        actions=found.actions,
        outcome=outcome,
    )


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_the_world_of_an_imported_episode_is_verified(data_format: str, tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", data_format=data_format)
    for found in import_all(MinariImporter(), path, tmp_path):
        run = run_closed_loop(cart_pole_of_50, baseline_of(found), as_policy(balanced))
        assert run.repro["deterministic"] is True
        assert run.repro["verified"] is True
        assert run.repro["env_changed"] == []
        assert run.repro["env_match"] is True
        assert run.evidence["reward_total"] == run.evidence["actions"] == "closed_loop"
        assert run.outcome["reward_total"] == 50
        assert run.baseline_outcome["reward_total"] == found.metadata["total_reward"]


def test_a_changed_environment_is_seen(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    (found,) = import_all(MinariImporter(), path, tmp_path)
    longer = run_closed_loop(cart_pole, baseline_of(found), as_policy(balanced))
    assert longer.repro["env_changed"] == ["max_steps"]

    def heavy() -> gymnasium.Env[Any, Any]:
        env: Any = cart_pole_of_50()
        env.unwrapped.masspole = 0.2
        env.unwrapped.total_mass = 1.2
        return env  # type: ignore[no-any-return]

    other = run_closed_loop(heavy, baseline_of(found), as_policy(balanced))
    assert other.repro["deterministic"] is False
    assert "observations" in other.repro["env_changed"]


@pytest.mark.slow
def test_an_imported_set_is_a_baseline_on_a_server(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(4, 6, 8))
    (tmp_path / "server").mkdir()
    with (
        RunningServer(tmp_path / "server") as server,
        sdk.Client(api_key=server.api_key, base_url=server.base_url) as client,
    ):
        done = import_recording(MinariImporter(), path, ImportServer(client))
        assert [each.outcome for each in done] == ["imported"] * 3
        ids = [str(each.place) for each in done]
        run = create_run(
            baseline_episode_ids=ids,
            client=client,
            candidate_policy_version="balance",
            baseline_policy_version="left",
        )
        results = run_against(run, policy_callable=balanced, environment=cart_pole_of_50)
    assert len(results) == 3
    for result in results:
        assert result.status == "complete"
        assert result.metrics["evidence"]["reward_total"] == "closed_loop"
        assert result.metrics["repro"]["deterministic"] is True
        assert result.metrics["repro"]["verified"] is True

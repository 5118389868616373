"""Chains as episodes: logged once, whole, and with the way back to the row they came from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client import Client
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.evals import store_episodes
from rollbook.evals.baselines import Baseline
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.runs import complete_run, create_run, run_against
from rollbook.evals.store_baselines import StoreBaselines
from rollbook.evals.store_episodes import log_chains
from rollbook.evals.store_replay import replay_store
from rollbook.scoring.outcomes import outcome_of
from rollbook.store.reader import RolloutZarrStoreReader
from tests.evals.small_stores import small_store
from tests.server.running import RunningServer


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals of runs go there."""
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("chains-server")) as running:
        yield running


@pytest.fixture
def client(server: RunningServer, tmp_path: Path) -> Iterator[Client]:
    with Client(api_key=server.api_key, base_url=server.base_url, cache=tmp_path / "cache") as made:
        yield made


GREEDY = "oracle_greedy"


@pytest.fixture(scope="module")
def store() -> Path:
    return small_store(9, early_fraction=0.3)


def fetched(client: Client, episode_id: str) -> Baseline:
    """As the runner gets it."""
    episode = client.episode(episode_id)
    known = {name: each for name, each in outcome_of(episode.metadata).items() if each is not None}
    return Baseline(
        id=episode.id,
        record=episode.record,
        sensors=episode.sensors(),
        actions=episode.actions(),
        outcome=known,
    )


def test_chains_of_several_policies_are_not_given_one_version(client: Client, store: Path) -> None:
    with pytest.raises(ConfigurationError, match="oracle_greedy, random_valid, temp") as caught:
        log_chains(client, store, policy_version="random-1")
    assert "with policy=, or leave policy_version out" in str(caught.value)
    assert not list(client.episodes(policy_version="random-1"))
    ids = log_chains(client, store, policy="random_valid", policy_version="random-1")
    chosen = {client.episode(each).metadata["rollout"]["policy"] for each in ids}
    assert chosen == {"random_valid"}


def test_without_a_version_each_chain_has_the_name_of_its_own_policy(
    client: Client, store: Path
) -> None:
    logged = [client.episode(each) for each in log_chains(client, store, tags=["own"])]
    names = [(each.policy_version, each.metadata["rollout"]["policy"]) for each in logged]
    assert len({version for version, _ in names}) == 3
    assert all(version == policy for version, policy in names)


def test_an_episode_holds_what_the_chain_holds(client: Client, store: Path) -> None:
    chains = StoreBaselines(store, policy=GREEDY, limit=3)
    ids = log_chains(client, store, policy=GREEDY, policy_version="explorer-1", limit=3)
    assert len(set(ids)) == 3
    for place, episode_id in enumerate(ids):
        episode, chain = fetched(client, episode_id), chains[place]
        for kind in ("sensors", "actions"):
            logged, stored = getattr(episode, kind), getattr(chain, kind)
            assert logged.keys() == stored.keys()
            for key, values in stored.items():
                np.testing.assert_array_equal(logged[key], values, err_msg=key)
        assert episode.outcome == pytest.approx(chain.outcome)


def test_an_episode_can_be_walked_back_to_its_source_row(client: Client, store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    (episode_id,) = log_chains(client, store, policy_version="explorer-2", rows=[4])
    record = client.episode(episode_id).record
    about = record.metadata["rollout"]
    assert about["store_content_sha256"] == reader.store_manifest.payload["content_sha256"]
    assert about["rollout_row_id"] == 4
    assert about["rollout_id"] == reader.decoded("rollouts", "rollout_id")[4]
    assert about["source_row_id"] == reader.array("rollouts/source_row_id")[4]
    place = reader.array("sources/source_row_id").tolist().index(about["source_row_id"])
    assert about["source_key"] == reader.decoded("sources", "sample_key_id")[place]
    target = reader.array("rollouts/target_row_id")[4]
    assert about["target_id"] == reader.decoded("targets", "target_id")[target]
    assert about["lineage_digest"] == bytes(reader.array("lineage/lineage_digest")[4]).hex()
    assert (record.policy_version, record.seed) == (
        "explorer-2",
        reader.array("rollouts/random_seed")[4],
    )
    mesh = reader.decoded("lineage", "mesh_version_id")[4]
    assert (record.env_version or "").endswith((mesh or "")[:12])


def test_a_chain_is_logged_once(client: Client, store: Path) -> None:
    first = log_chains(client, store, policy=GREEDY, policy_version="explorer-3", limit=2)
    again = log_chains(client, store, policy=GREEDY, policy_version="explorer-3")
    assert again[:2] == first
    assert log_chains(client, store, policy=GREEDY, policy_version="explorer-3") == again
    assert sum(1 for _ in client.episodes(policy_version="explorer-3")) == len(again) == 3
    other = log_chains(client, store, policy_version="explorer-4", limit=1)
    assert other[0] not in again


def test_many_chains_come_in_batches_and_in_their_order(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_episodes, "CHAINS_AT_ONCE", 4)
    path = small_store(10, seed=3)
    some = log_chains(client, path, rows=[7, 2])
    told: list[tuple[int, int]] = []
    ids = log_chains(
        client,
        path,
        on_logged=lambda done, total: told.append((done, total)),
    )
    assert told == [(4, 10), (8, 10), (10, 10)]
    assert [ids[7], ids[2]] == some
    rows = [client.episode(each).metadata["rollout"]["rollout_row_id"] for each in ids]
    assert rows == list(range(10))


def test_an_episode_that_was_left_half_way_is_logged_again(client: Client, store: Path) -> None:
    record = StoreBaselines(store).record(0, "explorer-5")
    client.start_episode(
        source="sim", policy_version="explorer-5", metadata=record.metadata, artifacts=["sensors"]
    )
    (whole,) = log_chains(client, store, policy_version="explorer-5", limit=1)
    assert client.episode(whole).status == "ready"
    assert log_chains(client, store, policy_version="explorer-5", limit=1) == [whole]


def test_progress_is_told_and_chains_of_one_policy_can_be_chosen(
    client: Client, store: Path
) -> None:
    told: list[tuple[int, int]] = []
    ids = log_chains(
        client,
        store,
        policy="random_valid",
        policy_version="nightly-1",
        tags=["nightly"],
        on_logged=lambda done, total: told.append((done, total)),
    )
    assert told == [(3, 3)]
    logged = [client.episode(each) for each in ids]
    assert {each.policy_version for each in logged} == {"nightly-1"}
    assert all(each.tags == ["nightly"] for each in logged)


def test_rewards_of_an_episode_are_read_from_its_own_store(client: Client, store: Path) -> None:
    ids = log_chains(client, store, limit=4)

    def last(obs: dict[str, Any]) -> dict[str, Any]:
        return {"/choice/index": int(np.flatnonzero(obs["/candidates/valid"])[-1])}

    baselines = StoreBaselines(store, limit=4)
    direct = replay_store(baselines, last, policy_version="last-1")
    run = create_run(
        candidate_policy_version="last-1",
        baseline_episode_ids=ids,
        client=client,
    )
    assert run.gate == Gate.for_reward().as_dict(), "chains have rewards, and no success"
    results = run_against(run, policy_callable=last, store=store)
    assert [each.baseline_episode_id for each in results] == ids
    for result, expected in zip(results, direct, strict=True):
        assert result.metrics == expected.metrics
        assert result.candidate_episode_id is not None
    summary = complete_run(run)["summary"]
    assert summary["reward_mean"]["evidence"] == "counterfactual"
    reward = summary["reward_mean"]
    assert reward["n_pairs"] + reward["n_repeats"] == 4, (
        "chains of one source row and target are one"
    )
    assert "insufficient_n" in summary["decision"]["reasons"]

    rows = client.call("read results", "GET", f"/api/eval-runs/{run.id}/results")["results"]
    named = {baselines.row_of(fetched(client, each["baseline_episode_id"])) for each in rows}
    assert named == {0, 1, 2, 3}


def test_a_dry_run_takes_the_ids_of_episodes_and_those_of_chains(
    client: Client, store: Path
) -> None:
    chains = StoreBaselines(store, policy=GREEDY, limit=2)
    direct = replay_store(chains, _first, policy_version="first-1")
    logged = log_chains(client, store, policy=GREEDY, policy_version="explorer-8", limit=2)
    for ids, speaking in ((logged, client), (chains.ids, None)):
        run = create_run(
            candidate_policy_version="first-1",
            baseline_episode_ids=ids,
            client=speaking,
            dry_run=True,
        )
        results = run_against(run, policy_callable=_first, store=store)
        assert [each.metrics for each in results] == [each.metrics for each in direct]


def _first(obs: dict[str, Any]) -> dict[str, Any]:
    return {"/choice/index": int(np.flatnonzero(obs["/candidates/valid"])[0])}


def test_an_episode_of_another_store_is_refused(client: Client, store: Path) -> None:
    (episode_id,) = log_chains(client, store, policy_version="explorer-7", limit=1)
    other = StoreBaselines(small_store(6, seed=5))
    with pytest.raises(ConfigurationError, match="was logged from the store"):
        other.row_of(fetched(client, episode_id))


def test_a_run_with_another_store_is_refused_before_the_policy_is_called(
    client: Client, store: Path, tmp_path: Path
) -> None:
    other = small_store(6, seed=5)

    def never(obs: object) -> dict[str, object]:
        raise AssertionError("nothing is replayed")

    logged = log_chains(client, store, policy_version="explorer-7", limit=1)
    for ids, given, said in (
        (logged, other, "was logged from the store"),
        (StoreBaselines(store, limit=1).ids, other, "has no chain"),
        (logged, tmp_path / "missing.zarr", "cannot be replayed against"),
    ):
        run = create_run(
            candidate_policy_version="c",
            baseline_episode_ids=ids,
            client=client,
            dry_run=True,
        )
        with pytest.raises(ConfigurationError, match=said):
            run_against(run, policy_callable=never, store=given)


def test_a_copy_of_the_store_is_the_same_store(client: Client, store: Path, tmp_path: Path) -> None:
    (episode_id,) = log_chains(client, store, policy_version="explorer-8", rows=[2])
    shutil.copytree(store, tmp_path / "elsewhere.zarr")
    moved = StoreBaselines(tmp_path / "elsewhere.zarr")
    assert moved.row_of(fetched(client, episode_id)) == 2
    assert log_chains(client, moved.reader.store_dir, policy_version="explorer-8", rows=[2]) == [
        episode_id
    ]


def test_an_episode_that_names_no_rollout_is_refused(client: Client, store: Path) -> None:
    with pytest.raises(ConfigurationError, match="names no rollout"):
        StoreBaselines(store).row_of(Baseline(id="e-1"))


def test_as_many_choices_as_states_are_asked_for(store: Path) -> None:
    chains = StoreBaselines(store)
    with pytest.raises(InvalidValue, match="steps is 1, expected 3"):
        chains.judge(0, [{"/choice/index": 0}])
    with pytest.raises(InvalidValue, match="of shape"):
        chains.judge(0, {"/choice/index": np.zeros(2, np.int64)})


def test_outcomes_that_a_store_does_not_know_are_left_unknown(store: Path) -> None:
    (result, *_) = replay_store(StoreBaselines(store), as_policy(lambda obs: {"/choice/index": 0}))
    for name in OUTCOMES:
        if name != "reward_total":
            assert result.metrics[f"{name}_candidate"] is None
            assert result.metrics["evidence"][name] == "not_measured"

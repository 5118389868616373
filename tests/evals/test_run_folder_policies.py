"""The run folder of a training is a policy for every replay, and says itself which revision it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollbook.client import Client
from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConfigurationError
from rollbook.evals import (
    EvalRun,
    StoreBaselines,
    create_run,
    load_policy,
    log_chains,
    replay_store,
    run_against,
)
from rollbook.evals.policies.run_folders import record_training
from rollbook.learned import LearnedPolicy, load_learned_policy, open_training_run
from tests.evals.generated.generated_stores import SOURCE, generated_store
from tests.learned.small_runs import small_run
from tests.lineage.small_chain import small_chain
from tests.server.fixtures import StartServer, running_server
from tests.server.running import new_key_beside
from tests.server.shared_server import new_organisation, shared_server

__all__ = ["running_server"]

NAMES = ("obb_area_frac", "target_unknown_per_ray", "remaining")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "first", NAMES)


@pytest.fixture(scope="module")
def chains() -> StoreBaselines:
    return StoreBaselines(generated_store())


def revision(folder: Path) -> PolicyRevision:
    return open_training_run(folder).revision


def test_a_text_and_a_path_name_the_policy_that_the_folder_holds(
    chains: StoreBaselines, folder: Path
) -> None:
    own = load_learned_policy(folder)
    version = revision(folder).policy_digest
    expected = replay_store(chains, own, policy_version=version, isolation="thread")
    for given in (str(folder), folder):
        assert isinstance(load_policy(given), LearnedPolicy)
        found = replay_store(chains, given, isolation="thread")
        assert [each.metrics for each in found] == [each.metrics for each in expected]


def test_in_a_process_of_its_own_it_chooses_the_same(chains: StoreBaselines, folder: Path) -> None:
    inside = replay_store(chains, folder, isolation="thread")
    apart = replay_store(chains, folder)
    totals = [each.metrics["reward_total_candidate"] for each in inside]
    assert [each.metrics["reward_total_candidate"] for each in apart] == totals


def test_it_is_rolled_out_in_the_generator(chains: StoreBaselines, folder: Path) -> None:
    results = replay_store(chains, folder, source=SOURCE(), isolation="thread")
    assert {each.status for each in results} == {"complete"}
    assert {each.metrics["evidence"]["reward_total"] for each in results} == {"closed_loop"}


def test_one_changed_byte_is_refused_before_anything_is_replayed(
    chains: StoreBaselines, tmp_path: Path
) -> None:
    folder = small_run(tmp_path / "run", NAMES)
    file = folder / "checkpoint" / "head-02.txt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for source in (None, SOURCE()):
        with pytest.raises(
            ConfigurationError, match=r"was changed after it was written: checkpoint/head-02\.txt"
        ):
            replay_store(chains, folder, source=source)
    with pytest.raises(ConfigurationError, match="head-02"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "it has no run.json"),
        (
            {"training.json": "{}"},
            "the training has not finished",
        ),
        ({"run.json": "{"}, "is not a finished training run"),
    ],
)
def test_a_folder_that_is_no_finished_run_is_refused(
    files: dict[str, str], told: str, chains: StoreBaselines, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        replay_store(chains, str(tmp_path))


def test_a_text_that_is_neither_a_folder_nor_a_module_says_so(chains: StoreBaselines) -> None:
    with pytest.raises(ConfigurationError, match=r"neither like package\.module:name nor the run"):
        replay_store(chains, "runs/frist")


def test_a_run_of_another_revision_is_refused(chains: StoreBaselines, folder: Path) -> None:
    other = msgspec.structs.replace(revision(folder), policy_digest="f" * 64)
    run = EvalRun("dry", "v1", None, chains.ids, dry=True, candidate_policy_revision=other)
    with pytest.raises(ConfigurationError, match=r"is of the policy revision .* \(ffffffffffff…\)"):
        run_against(run, policy_callable=folder, store=generated_store())


def test_the_version_of_a_run_is_by_default_that_of_its_revision(folder: Path) -> None:
    run = create_run(
        baseline_episode_ids=["a"], candidate_policy_revision=revision(folder), dry_run=True
    )
    assert run.candidate_policy_version == revision(folder).revision_id
    with pytest.raises(ConfigurationError, match="candidate_policy_version is None"):
        create_run(baseline_episode_ids=["a"], dry_run=True)


def test_a_replay_tells_the_server_what_the_policy_was_trained_on(
    running_server: StartServer,
) -> None:
    chain = small_chain()
    server = shared_server(running_server)
    access = new_organisation(server)
    with Client(api_key=access.api_key, base_url=server.base_url, verbose=False) as client:
        run = create_run(
            baseline_episode_ids=log_chains(client, chain.store),
            candidate_policy_revision=chain.revision,
            client=client,
        )
        for _ in range(2):  # the same again changes nothing
            results = run_against(run, policy_callable=chain.run, store=chain.store)
        assert {each.status for each in results} == {"complete"}
    with server.client(access) as http:
        [known] = http.get("/api/policy-revisions/small-r1").json()["revisions"]
    batch, store = known["sources"]
    assert (batch["kind"], batch["source_id"]) == ("batch", "batch-000001")
    assert (store["detail"]["store_digest"], store["detail"]["batch_id"]) == (
        chain.digest,
        "batch-000001",
    )
    assert store["detail"]["rows"] == list(range(chain.reader.num_rollouts))


def test_a_server_that_refuses_what_a_policy_was_trained_on_does_not_stop_the_replay(
    running_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    chain = small_chain()
    server = shared_server(running_server)
    access = new_organisation(server)
    key = new_key_beside(server.data_dir, access.org_id, "read")
    with Client(api_key=key, base_url=server.base_url, verbose=False) as client:
        record_training(client, chain.run)
    assert "was trained on could not be recorded" in caplog.text

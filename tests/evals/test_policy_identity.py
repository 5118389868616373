"""One policy identity from the SDK on: episode, run, replay, chain of a store, and the decision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.client import AsyncClient
from rollbook.client.ingest import warn_of_lost_revisions
from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConfigurationError, ConflictError
from rollbook.evals import complete_run, create_run, open_run, run_against
from rollbook.evals.store_episodes import log_chains
from rollbook.store.writer import write_rollout_zarr_store
from tests.evals.campaigns import Campaign
from tests.evals.replay_policies import shifted
from tests.server.running import RunningServer
from tests.store.synthetic import make_records


def revision(family: str, number: int = 7, **facts: Any) -> PolicyRevision:
    """Tests share one organisation, so each has a family of its own."""
    known = {"policy_family": family, "revision_id": f"rev-{number}", "produced_at_ms": 5}
    return msgspec.convert({**known, "policy_digest": f"d{number}", **facts}, PolicyRevision)


@pytest.fixture(autouse=True)
def _no_revision_is_lost(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    warn_of_lost_revisions.cache_clear()
    yield
    assert "policy revisions" not in caplog.text


def test_an_episode_is_logged_and_read_with_its_revision(campaign: Campaign) -> None:
    client, mine = campaign.client, revision("logged", revision_number=7)
    logged = client.log_episode(policy_revision=mine)
    with client.start_episode(policy_version="v4", policy_revision=mine) as started:
        pass
    for each, version in ((logged, "rev-7"), (started, "v4")):
        found = client.episode(str(each.id))
        assert (found.policy_revision, found.record.policy_revision) == (mine, mine)
        assert found.policy_version == version
    assert [each.policy_revision for each in client.episodes(policy_version="rev-7")] == [mine]
    without = client.episode(campaign.ids[0])
    assert without.policy_revision is None


def test_the_async_client_takes_it_too(campaign_server: RunningServer, tmp_path: Path) -> None:
    mine = revision("async")

    async def log() -> PolicyRevision | None:
        async with AsyncClient(
            api_key=campaign_server.api_key, base_url=campaign_server.base_url, cache=tmp_path
        ) as client:
            made = await client.log_episode(policy_revision=mine)
            return (await client.episode(str(made.id))).policy_revision

    assert asyncio.run(log()) == mine


def test_a_contradiction_reaches_the_caller(campaign: Campaign) -> None:
    campaign.client.log_episode(policy_revision=revision("contradicted"))
    other = revision("contradicted", policy_digest="another")
    with pytest.raises(ConflictError, match="policy_digest"):
        campaign.client.log_episode(policy_revision=other)
    with pytest.raises(ConfigurationError, match="PolicyRevision"):
        campaign.client.log_episode(policy_revision="rev-7")  # type: ignore[arg-type]


def test_replays_are_recorded_with_the_revision_of_the_run(campaign: Campaign) -> None:
    candidate, baseline = revision("replayed", 8), revision("replayed", 7)
    run = campaign.run(
        ids=campaign.ids[:2],
        candidate_policy_revision=candidate,
        baseline_policy_revision=baseline,
    )
    results = run_against(run, policy_callable=shifted)
    for each in results:
        replay = campaign.client.episode(str(each.candidate_episode_id))
        assert (replay.policy_revision, replay.policy_version) == (candidate, "v4")
    complete_run(run)
    opened = open_run(run.id, campaign.client)
    assert opened.candidate_policy_revision == candidate
    assert opened.baseline_policy_revision == baseline
    assert open_run(campaign.run().id, campaign.client).candidate_policy_revision is None
    other = revision("replayed", 8, policy_digest="another")
    with pytest.raises(ConflictError):
        campaign.run(candidate_policy_revision=other)


def test_a_dry_run_knows_its_candidate(campaign: Campaign) -> None:
    mine = revision("dry")
    dry = create_run(
        candidate_policy_version="v4",
        baseline_episode_ids=campaign.ids,
        dry_run=True,
        candidate_policy_revision=mine,
    )
    assert dry.candidate_policy_revision == mine


def test_chains_of_a_store_become_episodes_of_their_revision(
    campaign: Campaign, tmp_path: Path
) -> None:
    mine = revision("chains")
    records = [
        replace(each, lineage=msgspec.structs.replace(each.lineage, policy_revision=mine))
        for each in make_records(2, seed=1)
        if each.lineage.model_checkpoint_hash is None
    ]
    write_rollout_zarr_store(tmp_path / "store", records, selected_depth_enabled=False)
    ids = log_chains(campaign.client, tmp_path / "store")
    assert ids
    for each in ids:
        assert campaign.client.episode(each).policy_revision == mine

"""A campaign whose source and shards are on S3, from the plan to batches of the merged collection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from rollbook.generate.campaigns.campaign_folder import CampaignFolder
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.generate.campaigns.run_campaign import CampaignRun, run_campaign
from rollbook.generate.sources.remote_source import publish_source_store
from rollbook.store.shards.campaign_status import summarize_rollout_shard_campaign
from rollbook.store.shards.collection_file import open_collection
from rollbook.store.shards.merge import merge_shards, shards_at
from tests.generate.tiny_source import tiny_config, tiny_source
from tests.store.s3_server import Server, server

__all__ = ["server"]


@pytest.fixture
def s3(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, as workers find it."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield server
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def merged(folder: Path, source: str, final_root: str | None, workers: int) -> Path:
    """Plans, runs and merges a campaign. Returns its collection file."""
    config = tiny_config(folder / "store", source={"store_dir": source, "split": "train"})
    entries = plan_rollout_shards(config, rows_per_shard=1)
    campaign = CampaignFolder.create(folder, config, entries, final_root=final_root)

    def run(workers: int) -> CampaignRun:
        return run_campaign(
            campaign.config,
            campaign.entries,
            final_root=campaign.final_root,
            work_root=campaign.work_root,
            workers=workers,
        )

    assert run(workers).complete
    assert not campaign.work_root.exists()
    told = summarize_rollout_shard_campaign(campaign.manifest_path, final_root=campaign.final_root)
    assert told.is_complete
    assert len(run(1).skipped) == len(entries) == 2
    merge_shards(campaign.entries, shards_at(campaign.final_root), folder / "collection.json")
    return folder / "collection.json"


@pytest.mark.slow  # generates four shards
def test_a_campaign_on_s3_gives_the_collection_of_one_on_disk(s3: Server, tmp_path: Path) -> None:
    publish_source_store(tiny_source(), "s3://bucket/source")
    s3.requests.clear()
    at_url = merged(tmp_path / "one", "s3://bucket/source", "s3://bucket/shards", 2)
    rows = [path for method, path in s3.requests if path.startswith("bucket/source/actor")]
    assert len(rows) == len(set(rows)), "both workers use what one of them fetched"
    on_disk = merged(tmp_path / "two", str(tiny_source()), None, 1)
    many, plain = open_collection(at_url), open_collection(on_disk)
    assert many.provenance()[0]["path"].startswith("s3://bucket/shards/shard-000000/")
    for one, other in zip(many.batches(8, seed=1), plain.batches(8, seed=1), strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            assert values.tobytes() == other[name].tobytes(), name

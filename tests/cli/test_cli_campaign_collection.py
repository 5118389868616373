"""A generated campaign on the command line: merged, compacted, published, and read by `rollbook store` like a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollbook.generate.campaigns.campaign_folder import CampaignFolder
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.generate.campaigns.run_shard import run_rollout_shard
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.writer import RolloutDatasetWriter
from rollbook.store.shards.collection_file import open_collection
from tests.command import rollbook
from tests.generate.tiny_source import tiny_config


def small(out: Path) -> RolloutDatasetWriterConfig:
    recipes = [{"name": "random", "selection_policy": "random_valid", "horizon": 1}]
    return tiny_config(out, recipes=recipes)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, finished and not merged."""
    folder = tmp_path_factory.mktemp("campaign") / "campaign"
    config = small(folder / "never-written")
    planned = CampaignFolder.create(folder, config, plan_rollout_shards(config, rows_per_shard=1))
    for entry in planned.entries:
        tmp, final = planned.shard_paths(entry.shard_id)
        run_rollout_shard(planned.config, shard_entry=entry, output_tmp=tmp, output_final=final)
    return folder


@pytest.fixture(scope="module")
def merged(campaign: Path) -> Path:
    assert rollbook("campaign", "merge", campaign).returncode == 0
    return campaign


def test_merge_says_what_the_collection_holds(campaign: Path) -> None:
    said = rollbook("campaign", "merge", campaign, "--verify", "--json").json
    many = open_collection(campaign)
    assert said["collection"] == str(campaign / "collection.json")
    assert said["verified"] is True
    assert said["totals"]["shards"] == 2
    assert said["totals"]["candidates"] == many.num_candidates > 0
    assert said["splits"] == ["train"]
    shown = rollbook("campaign", "merge", campaign).stdout
    assert f"2 shards, {many.num_rollouts} rollouts, " in shown
    assert said["collection_sha256"] in shown


def test_a_compacted_campaign_is_the_store_that_one_run_writes(
    merged: Path, tmp_path: Path
) -> None:
    whole = RolloutDatasetWriter(small(tmp_path / "whole")).run()
    merge = ("campaign", "merge", merged, "--compact", tmp_path / "compact", "--json")
    said = rollbook(*merge).json["compact"]
    assert said["path"] == str(tmp_path / "compact")
    assert said["content_sha256"] == whole.content_sha256
    assert rollbook("store", "validate", tmp_path / "compact", "--deep").returncode == 0
    refused = rollbook(*merge[:-1])
    assert refused.returncode == 1
    assert "--replace replaces it" in refused.stderr
    assert rollbook(*merge, "--replace").returncode == 0


def test_a_campaign_that_is_not_finished_is_not_merged(campaign: Path, tmp_path: Path) -> None:
    for name in ("campaign.json", "shards.jsonl"):
        shutil.copy(campaign / name, tmp_path)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "shard-000000").symlink_to(campaign / "shards" / "shard-000000")
    refused = rollbook("campaign", "merge", tmp_path)
    assert refused.returncode == 1
    assert "1 of 2 shards are not finished: shard-000001" in refused.stderr
    assert not (tmp_path / "collection.json").exists()
    for command in ("info", "validate", "audit"):
        unmerged = rollbook("store", command, tmp_path)
        assert unmerged.returncode == 2
        assert "is a campaign that was not merged: rollbook campaign merge" in unmerged.stderr


def test_a_split_without_a_store_to_write_is_wrong_usage(merged: Path) -> None:
    refused = rollbook("campaign", "merge", merged, "--split", "train")
    assert refused.returncode == 2
    assert "--compact" in refused.stderr


def test_a_compacted_store_does_not_go_into_a_folder_that_is_named_like_a_url(
    merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = rollbook("campaign", "merge", merged, "--compact", "s3://bucket/whole")
    assert refused.returncode == 2
    assert "--compact is a URL" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_commands_for_stores_read_a_collection(merged: Path, tmp_path: Path) -> None:
    path, many = merged, open_collection(merged)
    info = rollbook("store", "info", path / "collection.json", "--json").json
    assert info["counts"]["rollouts"] == many.num_rollouts
    assert info["shards"] == 2
    assert "digest" in rollbook("store", "info", path).stdout
    checked = rollbook("store", "validate", path, "--deep")
    assert checked.returncode == 0
    assert f"checked 2 stores with {many.num_rollouts} rollouts" in checked.stdout
    last = many.num_steps - 1
    rows = rollbook("store", "audit", path, "--step", last, "--limit", 0, "--json").json
    assert {row["step_row_id"] for row in rows} == {last}
    stages = rollbook("store", "waterfall", path, "--json").json
    assert stages[0]["count"] == many.num_candidates
    for command in (("tree",), ("suspicious",), ("depth", "--step", last), ("audit", "--targets")):
        assert rollbook("store", command[0], path, *command[1:], "--json").returncode == 0, command
    exported = rollbook("store", "export", path, tmp_path / "rows.csv", "--table", "rollouts")
    assert exported.returncode == 0
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == many.num_rollouts + 1
    image = ("depth", path, "--step", last, "--output", tmp_path / "depth.png")
    assert rollbook("store", *image).returncode == 0
    assert rollbook("store", "audit", path, "--html", tmp_path / "page.html").returncode == 0


def test_a_replay_reads_one_store_and_says_how_a_collection_becomes_one(merged: Path) -> None:
    words = ("replay", "run", "--policy", "os:getcwd", "--candidate-version", "v2", "--store")
    ended = rollbook(*words, merged)
    assert ended.returncode == 2
    assert "--compact FOLDER" in ended.stderr


def test_a_damaged_shard_is_named_by_validate(merged: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(merged, damaged)
    chunk = next((damaged / "shards" / "shard-000001" / "candidates").glob("*/c/0"))
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    found = rollbook("store", "validate", damaged, "--deep")
    assert found.returncode == 1
    assert "shard-000001: " in found.stdout
    assert "shard-000000: " not in found.stdout
    listed = rollbook("store", "validate", damaged, "--deep", "--json").json
    assert {each["shard_id"] for each in listed["violations"]} == {"shard-000001"}


def test_a_published_campaign_is_read_from_its_url(merged: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/published"
    said = rollbook("campaign", "publish", merged, url, "--json").json
    assert said["url"] == url
    assert (said["stores"], said["uploaded_stores"]) == (2, 2)
    assert rollbook("campaign", "publish", merged, url, "--json").json["uploaded_stores"] == 0
    assert rollbook("store", "validate", url, "--deep").returncode == 0
    there, here = open_collection(url), open_collection(merged)
    assert there.num_candidates == here.num_candidates
    assert {each.name for each in (tmp_path / "published").iterdir()} == {
        "collection.json",
        "shard-000000",
        "shard-000001",
    }
    assert not (tmp_path / "published" / "shard-000000" / "_owner.json").exists()


def test_what_was_not_merged_is_not_published(campaign: Path, tmp_path: Path) -> None:
    refused = rollbook("campaign", "publish", campaign / "shards", f"file://{tmp_path}/published")
    assert refused.returncode == 1
    assert "`rollbook campaign merge` writes it" in refused.stderr
    wrong = rollbook("campaign", "publish", campaign, tmp_path / "published")
    assert wrong.returncode == 2
    assert "is not a URL" in wrong.stderr

"""`rollbook campaign run` and `run-shard`, as typed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import pytest

from rollbook.cli.campaigns.campaign_run import shards_at_once
from rollbook.generate.campaigns.campaign_folder import CampaignFolder
from rollbook.store.manifest import read_manifest
from rollbook.store.shards.build_shard import build_shard
from tests.cli.test_cli_campaign import SMOKE, plan
from tests.command import rollbook
from tests.generate.campaigns.scripted_shards import CONFIG
from tests.generate.tiny_source import tiny_source
from tests.store.s3_server import memory
from tests.store.shards.shard_plans import empty_store

__all__ = ["memory"]


def content(campaign: Path) -> list[str]:
    """The digests of all finished shards."""
    return [
        str(read_manifest(shard).payload["content_sha256"])
        for shard in sorted((campaign / "shards").glob("shard-*"))
    ]


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of two shards, of which the first was built by `run-shard`."""
    campaign = tmp_path_factory.mktemp("campaigns") / "one shard"
    plan(campaign)
    built = rollbook("campaign", "run-shard", campaign, 0)
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("shard-000000: built in ")
    return campaign


def test_a_finished_shard_is_skipped_by_its_number_or_id(one_shard: Path) -> None:
    shown = rollbook("campaign", "run-shard", one_shard, "shard-000000", "--json").json
    assert (shown["shard_id"], shown["skipped"], shown["rows"]) == ("shard-000000", True, 1)
    assert shown["content_sha256"] == content(one_shard)[0]


def test_a_run_of_finished_shards_starts_nothing(one_shard: Path) -> None:
    ended = rollbook("campaign", "run", one_shard, "--shards", "0")
    assert ended.returncode == 0
    assert "shards: 1 finished before or elsewhere" in ended.stdout
    assert f"next: rollbook campaign status '{one_shard}'" in ended.stdout


def test_retry_runs_no_shard_that_nobody_has_begun(one_shard: Path) -> None:
    ended = rollbook("campaign", "retry", one_shard)
    assert ended.returncode == 0
    assert "shards: none" in ended.stdout


def test_clean_shows_and_then_removes_what_a_killed_worker_left(one_shard: Path) -> None:
    left = one_shard / "shards" / ".shard-000000.000007-01234567.incoming"
    left.mkdir()
    shown = rollbook("campaign", "clean", one_shard, "--dry-run")
    assert shown.stdout == f"copy  {left}\nwould remove: 1 x copy\n"
    assert left.is_dir()
    assert rollbook("campaign", "clean", one_shard).stdout == "removed: 1 x copy\n"
    assert not left.exists()
    assert rollbook("campaign", "clean", one_shard, "--json").json == {
        "removed": True,
        "leftovers": [],
    }


def test_a_shard_can_be_named_by_files_and_folders(tmp_path: Path, one_shard: Path) -> None:
    campaign = CampaignFolder.open(one_shard)
    places = {
        "--config": SMOKE,
        "--shard-manifest": campaign.manifest_path,
        "--shard-id": 0,
        "--output-tmp": tmp_path / "tmp",
        "--output-final": one_shard / "shards" / "shard-000000",
    }
    words = [word for pair in places.items() for word in pair]
    assert rollbook("campaign", "run-shard", *words, "--json").json["skipped"]
    for given in (words[:-2], [*words, one_shard, 0][2:], [one_shard], [one_shard, 0, *words]):
        refused = rollbook("campaign", "run-shard", *given)
        assert refused.returncode == 2
        assert "CAMPAIGN and SHARD, or all of --config" in refused.stderr


def test_a_shard_that_is_named_by_files_can_go_to_a_url(
    tmp_path: Path, one_shard: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign, final = CampaignFolder.open(one_shard), f"{memory}/shard-000000"
    build_shard(campaign.entry(0), empty_store, output_tmp=tmp_path / "tmp", output_final=final)
    words = ("campaign", "run-shard", "--config", SMOKE, "--shard-id", 0, "--shard-manifest")
    places = (campaign.manifest_path, "--output-final", final, "--output-tmp")
    shown = rollbook(*words, *places, tmp_path / "tmp", "--json").json
    assert (shown["place"], shown["skipped"], shown["rollouts"]) == (final, True, 0)
    refused = rollbook(*words, *places, "s3://bucket/tmp")
    assert refused.returncode == 2
    assert "--output-tmp is a URL" in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shard", "says"),
    [
        ("2", "there is no shard-000002; the shards are 0 to 1"),
        ("shard-000099", "there is no shard-000099; the shards are 0 to 1"),
        ("first", "SHARD is 'first', expected a number or an id"),
        ("../shard-000000", "expected a number or an id"),
    ],
)
def test_a_shard_that_was_not_planned_is_wrong_usage(
    one_shard: Path, shard: str, says: str
) -> None:
    refused = rollbook("campaign", "run-shard", one_shard, shard)
    assert refused.returncode == 2, "a task of a job array is not tried again"
    assert says in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shards", "0-2"], "the shards are 0 to 1"),
        (["--shards", "1-0"], "the shards are 0 to 1"),
        (["--shards", "first"], "expected numbers such as 0-99,120"),
        (["--engine", "abacus"], "expected 'local' or 'ray'"),
        (["--address", "127.0.0.1:6379"], "has no cluster"),
    ],
)
def test_wrong_options_are_refused(one_shard: Path, words: list[str], says: str) -> None:
    refused = rollbook("campaign", "run", one_shard, *words)
    assert refused.returncode == 2
    assert says in refused.stderr


def test_a_config_that_is_not_the_one_of_the_plan_is_refused(
    tmp_path: Path, one_shard: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("seed = 7\n" + SMOKE.read_text("utf-8"))
    refused = rollbook("campaign", "run", one_shard, "--config", other)
    assert refused.returncode == 1
    assert "[shard_drift]" in refused.stderr
    assert rollbook("campaign", "run", one_shard, "--config", SMOKE, "--shards", 0).returncode == 0


def test_as_many_shards_run_at_once_as_there_are_cores_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    campaign = msgspec.structs.replace(CONFIG.campaign, cpus_per_shard=2.0)
    assert shards_at_once(CONFIG) == 6
    assert shards_at_once(dataclasses.replace(CONFIG, campaign=campaign)) == 3
    assert shards_at_once(dataclasses.replace(CONFIG, threads=9)) == 1
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert shards_at_once(CONFIG) == 4


@pytest.mark.slow
def test_one_worker_two_workers_and_ray_build_the_same_shards(
    tmp_path: Path, ray_address: str
) -> None:
    tiny_source()
    ways: dict[str, list[str]] = {
        "one": ["--workers", "1"],
        "two": ["--workers", "2"],
        "ray": ["--workers", "2", "--engine", "ray", "--address", ray_address],
    }
    for name, options in ways.items():
        plan(tmp_path / name)
        ended = rollbook("campaign", "run", tmp_path / name, *options)
        assert ended.returncode == 0, ended.stderr
        assert "shards: 2 built" in ended.stdout
    assert len(content(tmp_path / "one")) == 2
    assert content(tmp_path / "one") == content(tmp_path / "two") == content(tmp_path / "ray")


@pytest.mark.slow
def test_retry_builds_the_shards_that_failed(tmp_path: Path) -> None:
    plan(tmp_path / "c")
    at_once = ("--timeout", "0.001", "--max-retries", 0, "--shards", 1)
    failed = rollbook("campaign", "run", tmp_path / "c", *at_once)
    assert failed.returncode == 1
    assert "shard-000001 failed: TimeoutError: not done after 0.001 s" in failed.stderr
    assert "failed shard-000001: TimeoutError" in failed.stdout
    again = rollbook("campaign", "retry", tmp_path / "c", "--json").json
    assert (again["complete"], again["succeeded"]) == (True, ["shard-000001"])
    assert {each.name for each in (tmp_path / "c" / "shards").iterdir()} == {"shard-000001"}

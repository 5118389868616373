"""`rollbook campaign plan`, as typed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rollbook.generate.campaigns.campaign_folder import CampaignFolder
from tests.command import Ended, rollbook
from tests.generate.tiny_source import tiny_source

SMOKE = Path(__file__).parents[2] / "examples" / "generate" / "smoke.toml"


def plan(out: Path, *words: object) -> Ended:
    return rollbook(
        *("campaign", "plan", "--config", SMOKE, "--source", tiny_source(), "--out", out),
        *("--max-samples", 2, "--rows-per-shard", 1, *words),
    )


def test_a_plan_says_what_will_be_made_and_what_to_do_next(tmp_path: Path) -> None:
    out = tmp_path / "my campaign"
    first = plan(out)
    assert first.returncode == 0, first.stderr
    said = " ".join(first.stdout.split())
    assert "source rows 2 shards 2 of up to 1 rows (train 2)" in said
    assert "the plan is written" in said
    assert said.endswith(f"next: rollbook campaign run '{out}'")
    campaign = CampaignFolder.open(out)
    assert campaign.num_shards == 2
    assert campaign.invocation.raw_toml_text == SMOKE.read_text("utf-8")
    assert campaign.config.campaign.rows_per_shard == 1
    assert "nothing has changed" in plan(out).stdout


def test_a_plan_as_json(tmp_path: Path) -> None:
    shown = plan(tmp_path / "c", "--final-root", "s3://bucket/x", "--json").json
    campaign = CampaignFolder.open(tmp_path / "c")
    assert shown == {
        "shards": 2,
        "rows": 2,
        "rows_per_shard": 1,
        "shards_by_split": {"train": 2},
        "recipes": ["random_valid", "oracle_greedy"],
        "config_hash": campaign.config.config_hash,
        "source_manifest_hash": campaign.entries[0].source_manifest_hash,
        "campaign": str(tmp_path / "c"),
        "final_root": "s3://bucket/x",
        "work_root": str(tmp_path / "c" / "work"),
        "change": "planned",
    }


def test_a_folder_with_another_plan_is_refused(tmp_path: Path) -> None:
    plan(tmp_path / "c")
    refused = plan(tmp_path / "c", "--rows-per-shard", 2)
    assert refused.returncode == 1
    assert "a campaign of 2 shards, not of 1; choose another folder" in refused.stderr


def test_a_campaign_is_not_planned_into_a_folder_that_is_named_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards can be at a URL, the campaign itself cannot. `s3://$BUCKET` with an empty variable names no place."""
    monkeypatch.chdir(tmp_path)
    for words, says in (
        (["--out", "s3://bucket/c"], "--out is a URL (s3:/bucket/c), expected a folder"),
        (["--final-root", "s3://"], "final_root is 's3://', expected a folder or a URL"),
    ):
        refused = plan(tmp_path / "c", *words)
        assert refused.returncode == 2
        assert says in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_the_campaign_would_cost_and_writes_nothing(tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).iterdir())
    shown = plan(tmp_path / "c", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    said = " ".join(shown.stdout.split())
    assert "measured here 2 rows" in said
    assert "compilation is not counted" in said
    assert "workers wall time" in said
    assert "nothing was written" in said
    estimate = plan(tmp_path / "c", "--dry-run", "--no-measure", "--json").json
    assert (estimate["shards"], estimate["estimate"]) == (2, None)
    assert not list(tmp_path.iterdir())
    after = {each for each in Path(tempfile.gettempdir()).iterdir() if "estimate" in each.name}
    assert after <= before

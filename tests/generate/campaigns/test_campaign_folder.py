"""The folder of a campaign: planned once, opened everywhere, and never another plan under the same name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    MalformedJson,
    RollbookError,
    ShardDrift,
    StorageError,
    TargetExists,
    UnsupportedVersion,
)
from rollbook.generate.campaigns.campaign_folder import CampaignFolder
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.store.manifest import RolloutStoreInvocation
from tests.generate.tiny_source import tiny_config, tiny_source, tiny_table
from tests.watched_files import WatchedFiles


def created(folder: Path, rows_per_shard: int = 1, **changes: Any) -> CampaignFolder:
    """A campaign of the two rows of the tiny source."""
    roots = {name: changes.pop(name) for name in ("final_root", "work_root") if name in changes}
    config = tiny_config(Path("/unused"), **changes)
    entries = plan_rollout_shards(config, rows_per_shard=rows_per_shard)
    return CampaignFolder.create(folder, config, entries, **roots)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def test_what_was_planned_is_what_is_opened(tmp_path: Path) -> None:
    toml = tmp_path / "config.toml"
    toml.write_text("# ü\n", "utf-8")
    invocation = RolloutStoreInvocation.from_cli(argv=["campaign", "plan"], config_path=toml)
    config = tiny_config(Path("/unused"), seed=5)
    entries = plan_rollout_shards(config, rows_per_shard=1)
    campaign = CampaignFolder.create(tmp_path / "c", config, entries, invocation=invocation)
    assert campaign.change == "planned"
    opened = CampaignFolder.open(tmp_path / "c")
    assert opened.change == "none"
    assert opened.config.to_jsonable() == campaign.config.to_jsonable()
    assert opened.config.config_hash == config.config_hash
    assert list(opened.entries) == entries
    assert [opened.entry(each.shard_id) for each in entries] == entries
    assert (opened.num_shards, opened.num_rows) == (2, 2)
    assert opened.invocation == invocation
    assert opened.manifest_path == tmp_path / "c" / "shards.jsonl"
    assert opened.shard_paths("shard-000001") == (
        tmp_path / "c" / "work" / "shard-000001",
        tmp_path / "c" / "shards" / "shard-000001",
    )
    assert {each.name for each in (tmp_path / "c").iterdir()} == {"campaign.json", "shards.jsonl"}


def test_a_config_with_relative_paths_is_opened_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_source().parent)
    table = tiny_table(tmp_path, source={"store_dir": tiny_source().name, "split": "train"})
    config = RolloutDatasetWriterConfig.from_table(table, folder=Path())
    assert not Path(config.source.store_dir).is_absolute()
    entries = plan_rollout_shards(config, rows_per_shard=1)
    campaign = CampaignFolder.create(tmp_path / "c", config, entries)
    monkeypatch.chdir(tmp_path)
    opened = CampaignFolder.open("c")
    assert opened.config.source.store_dir == str(tiny_source())
    assert opened.config.setup_target().shard_rows(campaign.entries[1])[1] == (1,)


def test_a_folder_that_moves_takes_its_own_places_with_it(tmp_path: Path) -> None:
    created(tmp_path / "c", final_root=tmp_path / "c" / "done", work_root=tmp_path / "scratch")
    shutil.move(tmp_path / "c", tmp_path / "moved")
    moved = CampaignFolder.open(tmp_path / "moved")
    assert moved.final_root == tmp_path / "moved" / "done"
    assert moved.work_root == tmp_path / "scratch"


def test_finished_shards_can_go_to_a_url(tmp_path: Path) -> None:
    created(tmp_path / "c", final_root="s3://bucket/prefix/")
    opened = CampaignFolder.open(tmp_path / "c")
    assert opened.shard_paths("shard-000000")[1] == "s3://bucket/prefix/shard-000000"


# ------------------------------------------------------------------------------------ planning again


def test_the_same_plan_again_changes_no_byte(tmp_path: Path) -> None:
    created(tmp_path)
    before = bytes_of(tmp_path)
    assert created(tmp_path).change == "none"
    assert bytes_of(tmp_path) == before


def test_settings_that_do_not_change_the_rollouts_can_be_planned_again(tmp_path: Path) -> None:
    created(tmp_path)
    plan = (tmp_path / "shards.jsonl").read_bytes()
    again = created(tmp_path, threads=2, campaign={"timeout_s": 9.0, "rows_per_shard": 1})
    assert again.change == "settings"
    opened = CampaignFolder.open(tmp_path)
    assert (opened.config.threads, opened.config.campaign.timeout_s) == (2, 9.0)
    assert (tmp_path / "shards.jsonl").read_bytes() == plan


def test_a_source_that_moved_is_still_the_source_of_the_plan(tmp_path: Path) -> None:
    created(tmp_path / "c")
    plan = (tmp_path / "c" / "shards.jsonl").read_bytes()
    shutil.copytree(tiny_source(), tmp_path / "moved")
    place = {"store_dir": str(tmp_path / "moved"), "split": "train"}
    assert created(tmp_path / "c", source=place).change == "settings"
    opened = CampaignFolder.open(tmp_path / "c")
    assert opened.config.source.store_dir == str(tmp_path / "moved")
    assert opened.manifest_path.read_bytes() == plan
    assert opened.config.setup_target().shard_rows(opened.entries[0])[1] == (0,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows_per_shard": 2}, "a campaign of 2 shards, not of 1"),
        ({"seed": 1}, "shard-000000 has another writer_config_hash"),
        ({"final_root": "/elsewhere"}, "whose final_root is 'shards', not '/elsewhere'"),
        ({"work_root": "/elsewhere"}, "whose work_root is 'work', not '/elsewhere'"),
    ],
)
def test_another_plan_is_refused_and_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    created(tmp_path)
    before = bytes_of(tmp_path)
    with pytest.raises(TargetExists, match=f"{said}; choose another folder"):
        created(tmp_path, **changes)
    assert bytes_of(tmp_path) == before


def test_of_two_plans_at_once_one_wins_whole(tmp_path: Path) -> None:
    def plan(seed: int) -> CampaignFolder | RollbookError:
        try:
            return created(tmp_path / "c", seed=seed % 2)
        except RollbookError as error:
            return error

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(plan, range(16)))
    opened = CampaignFolder.open(tmp_path / "c")
    won = opened.config.seed
    assert len(opened.entries) == 2
    assert all(isinstance(each, CampaignFolder) for each in results[won::2])
    assert all(isinstance(each, TargetExists) for each in results[1 - won :: 2])
    assert sum(getattr(each, "change", "") == "planned" for each in results) == 1


def test_a_plan_that_was_killed_before_its_end_is_planned_again(tmp_path: Path) -> None:
    created(tmp_path)
    (tmp_path / "campaign.json").unlink()
    with pytest.raises(StorageError, match=r"no campaign\.json in it; `rollbook campaign plan`"):
        CampaignFolder.open(tmp_path)
    with pytest.raises(TargetExists, match=r"another plan, without campaign\.json; remove it"):
        created(tmp_path, seed=1)
    assert created(tmp_path).change == "planned"


def test_a_lost_plan_is_restored_by_planning_again(tmp_path: Path) -> None:
    created(tmp_path)
    before = bytes_of(tmp_path)
    (tmp_path / "shards.jsonl").unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        created(tmp_path, seed=1)
    assert created(tmp_path).change == "none"
    assert bytes_of(tmp_path) == before


def test_a_power_cut_leaves_no_campaign_without_its_plan(tmp_path: Path) -> None:
    with WatchedFiles(tmp_path) as watched:
        created(tmp_path)
    assert watched.named_before_sync == []
    for name in ("shards.jsonl", "campaign.json"):
        assert watched.after_power_cut(tmp_path / name) == (tmp_path / name).read_bytes()


# -------------------------------------------------------------------------------------- wrong places


@pytest.mark.parametrize(
    ("roots", "said"),
    [
        ({"final_root": "/a", "work_root": "/a"}, "neither may lie in the other"),
        ({"final_root": "/a", "work_root": "/a/b"}, "neither may lie in the other"),
        ({"work_root": "s3://bucket/work"}, "expected a folder of this machine"),
        ({"final_root": ""}, "final_root is empty"),
        ({"work_root": ""}, "work_root is empty"),
    ],
)
def test_places_that_cannot_work_are_refused(
    tmp_path: Path, roots: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        created(tmp_path / "c", **roots)
    assert not (tmp_path / "c").exists()


def test_shards_of_another_config_are_no_plan(tmp_path: Path) -> None:
    entries = plan_rollout_shards(tiny_config(tmp_path, seed=1), rows_per_shard=1)
    for wrong, said in (
        (entries, "shard-000000 was planned with another config"),
        ([], "no shard"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            CampaignFolder.create(tmp_path / "c", tiny_config(tmp_path), wrong)


# ------------------------------------------------------------------------------------- edited files


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "campaign.json"
        values = json.loads(file.read_bytes())
        change(values)
        file.write_text(json.dumps(values))

    return edit


def other_plan(folder: Path) -> None:
    file = folder / "shards.jsonl"
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (lambda folder: (folder / "campaign.json").write_text("{"), MalformedJson, "campaign.json"),
        (
            lambda folder: (folder / "campaign.json").write_bytes(b'{"a": "\xfc"}'),
            MalformedJson,
            "campaign.json",
        ),
        (edited(lambda file: file.update(final_root="a\0b")), ConfigurationError, "final_root"),
        (
            edited(lambda file: file.update(work_root="x/../shards")),
            ConfigurationError,
            "work_root",
        ),
        (edited(lambda file: file.pop("final_root")), MalformedJson, "final_root"),
        (edited(lambda file: file.update(more=1)), MalformedJson, "more"),
        (
            edited(lambda file: file.update(campaign_version="rollbook-campaign-v2")),
            UnsupportedVersion,
            "rollbook-campaign-v2",
        ),
        (
            edited(lambda file: file["writer_config"].update(seed=9)),
            ShardDrift,
            "writer_config was planned as .* the file was edited",
        ),
        (
            edited(lambda file: file["writer_config"].update(wrong=1)),
            ConfigurationError,
            "writer_config: unknown key 'wrong'",
        ),
        (
            edited(lambda file: file["invocation"].update(raw_toml_text="x")),
            ChecksumMismatch,
            "raw_toml_text",
        ),
        (
            other_plan,
            ChecksumMismatch,
            r"shards\.jsonl .* not the plan of campaign\.json; remove it and plan again",
        ),
        (lambda folder: (folder / "shards.jsonl").unlink(), StorageError, "cannot be read"),
    ],
)
def test_an_edited_or_lost_file_is_named(
    tmp_path: Path, damage: Callable[[Path], None], kind: type[RollbookError], said: str
) -> None:
    created(tmp_path)
    damage(tmp_path)
    with pytest.raises(kind, match=said):
        _ = CampaignFolder.open(tmp_path).entries
    with pytest.raises(kind, match=said):
        CampaignFolder.open(tmp_path).entry(0)


def test_a_shard_that_is_not_planned_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no shard-000002; the plan has 2 shards"):
        created(tmp_path / "c").entry(2)
    with pytest.raises(StorageError, match="the campaign does not exist"):
        CampaignFolder.open(tmp_path / "none")


def test_an_id_inside_a_key_is_not_the_shard(tmp_path: Path) -> None:
    """A source may name its rows as it likes."""
    config = tiny_config(Path("/unused"))
    entries = plan_rollout_shards(config, rows_per_shard=1)
    assert [entry.rows[0].source_shard_id for entry in entries] == ["shard-000000"] * 2
    campaign = CampaignFolder.create(tmp_path, config, entries)
    assert campaign.entry(0).shard_id == "shard-000000"
    assert msgspec.json.encode(campaign.entry(1)) == msgspec.json.encode(entries[1])


def test_a_damaged_campaign_file_is_restored_by_planning_again(tmp_path: Path) -> None:
    created(tmp_path / "c")
    file = tmp_path / "c" / "campaign.json"
    whole = json.loads(file.read_bytes())
    file.write_bytes(b"")
    for use in (CampaignFolder.open, created):
        with pytest.raises(MalformedJson, match="remove the file and plan again"):
            use(tmp_path / "c")
    file.unlink()
    assert created(tmp_path / "c").change == "planned"
    assert json.loads(file.read_bytes()) == whole

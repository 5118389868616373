"""`rollbook import` and `rollbook export`, typed by a person and by a script."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook import client as sdk
from rollbook.adapters.exports.chosen_episodes import filters_of
from rollbook.adapters.formats import detect
from rollbook.contracts.source_file import SOURCE_FILE_KEY, SourceFile
from rollbook.errors import ConfigurationError, StorageError
from rollbook.lineage.imported_files import ImportedFiles
from rollbook.lineage.record_ref import recording
from rollbook.lineage.shelf import Shelf
from tests.adapters.lerobot_datasets import Plan, write_v2, write_v3
from tests.command import rollbook
from tests.server.running import RunningServer


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_v3(tmp_path / "pusht", Plan(lengths=(3, 4)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("recordings-server")) as running:
        yield running


@pytest.fixture
def online(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[sdk.Client]:
    monkeypatch.setenv("ROLLBOOK_API_KEY", server.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", server.base_url)
    with sdk.Client() as client:
        for each in client.episodes(with_archived=True):
            each.delete()
        yield client


# ------------------------------------------------------------------------------------------- import


def test_a_path_is_told_its_format(dataset: Path, tmp_path: Path) -> None:
    told = rollbook("import", "--detect", dataset)
    assert told.returncode == 0
    assert "lerobot (meta/info.json has a codebase_version)" in told.stdout
    found = rollbook("import", "--detect", dataset, "--json").json
    assert [each["format"] for each in found["formats"]] == ["lerobot"]
    (tmp_path / "empty").mkdir()
    unknown = rollbook("import", "--detect", tmp_path / "empty")
    assert unknown.returncode == 1
    assert "no known format" in unknown.stdout
    missing = rollbook("import", "--detect", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "there is nothing at" in missing.stderr


def test_devices_and_pipes_are_refused_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/null"), pipe):  # the first one fails where the second one would wait
        for arguments in (("--detect", path), ("hdf5", path, "--dry-run")):
            refused = rollbook("import", *arguments)
            assert refused.returncode == 2
            assert "a pipe or a device" in refused.stderr
        with pytest.raises(StorageError, match="neither a file nor a folder"):
            detect(path)


def test_a_dry_run_shows_streams_and_episodes_and_writes_nothing(dataset: Path) -> None:
    before = sorted(Path().rglob("*"))
    shown = rollbook("import", "lerobot", dataset, "--dry-run")
    assert shown.returncode == 0
    for word in ("2 episodes, 7 rows", "observation.state", "episode_1", "nothing was imported"):
        assert word in shown.stdout
    plan = rollbook("import", "lerobot", dataset, "--dry-run", "--json").json
    assert [each["rows"] for each in plan["episodes"]] == [3, 4]
    assert sorted(Path().rglob("*")) == before


def test_an_import_says_what_it_did_and_the_second_that_it_is_done(dataset: Path) -> None:
    first = rollbook("import", "lerobot", dataset, "--out", "episodes")
    assert "2 of 2 episodes imported to episodes" in first.stdout
    again = rollbook("import", "lerobot", dataset, "--out", "episodes")
    assert "0 of 2 episodes imported to episodes; 2 were there already" in again.stdout


def test_where_the_episodes_go_has_to_be_said(dataset: Path) -> None:
    for options in ([], ["--to-server", "--out", "episodes"]):
        refused = rollbook("import", "lerobot", dataset, *options)
        assert refused.returncode == 2
        assert "either --to-server or --out FOLDER" in refused.stderr


def test_options_of_a_format_are_options_of_its_command(dataset: Path) -> None:
    done = rollbook(
        *("import", "lerobot", dataset, "--out", "episodes", "--camera", "none", "--episode", "1"),
        *("--policy-version", "teleop", "--tag", "night", "--name", "push {episode_index}"),
        "--json",
    ).json
    [episode] = done["episodes"]
    assert episode["source_file"]["options"] == {"cameras": []}
    record = json.loads((Path(episode["place"]) / "episode.json").read_text())
    assert record["policy_version"] == "teleop"
    assert record["tags"] == ["night"]
    assert [each["kind"] for each in record["artifacts"]] == ["sensors", "actions"]


def test_an_episode_that_cannot_be_imported_is_named_and_the_exit_status_is_1(
    dataset: Path,
) -> None:
    video = next(dataset.glob("videos/**/*.mp4"))
    video.write_bytes(video.read_bytes()[:200])
    failed = rollbook("import", "lerobot", dataset, "--out", "episodes")
    assert failed.returncode == 1
    assert "2 failed" in failed.stdout
    assert "episode_0" in failed.stderr
    assert video.name in failed.stderr
    assert not list(Path("episodes").glob("*"))


def test_notes_in_an_episode_folder_that_mean_something_else_are_ignored(dataset: Path) -> None:
    assert rollbook("import", "lerobot", dataset, "--out", "there", "--episode", 0).returncode == 0
    [file] = Path("there").rglob("episode.json")
    record = json.loads(file.read_text())
    for number, odd in enumerate((5, "text", [5], {"a": 1})):
        record["metadata"] |= {"skipped": odd, "losses": odd, "damage": odd}
        file.write_text(json.dumps(record))
        done = rollbook("import", "episodes", "there", "--out", f"copy{number}")
        assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused = rollbook("import", "lerobot", tmp_path / "empty", "--out", "episodes")
    assert refused.returncode == 1
    assert "is not a recording of the expected format" in refused.stderr


def test_episodes_are_logged_on_the_server_once(online: sdk.Client, dataset: Path) -> None:
    for _ in range(2):
        done = rollbook("import", "lerobot", dataset, "--to-server", "--policy-version", "teleop")
        assert done.returncode == 0, done.stderr
    assert [each.record.policy_version for each in online.episodes()] == ["teleop"] * 2


# ------------------------------------------------------------------------------------------- export


def test_an_imported_episode_is_shown_without_what_it_does_not_have(
    online: sdk.Client, dataset: Path
) -> None:
    rollbook("import", "lerobot", dataset, "--to-server", "--episode", 0)
    shown = rollbook("episodes", "show", next(iter(online.episodes())).id)
    assert "pusht #0" in shown.stdout
    assert "UNSET" not in shown.stdout


def test_folders_and_episodes_of_the_server_are_exported_alike(
    online: sdk.Client, dataset: Path
) -> None:
    rollbook("import", "lerobot", dataset, "--out", "episodes", "--camera", "none")
    rollbook("import", "episodes", "episodes", "--to-server", "--policy-version", "teleop")
    local = rollbook("export", "parquet", "--episodes", "episodes", "--out", "local", "--json")
    assert local.returncode == 0, local.stderr
    remote = rollbook(
        *("export", "parquet", "--query", "policy_version=teleop status=ready"),
        *("--out", "remote", "--json"),
    )
    assert remote.returncode == 0, remote.stderr
    assert (local.json["episodes"], local.json["rows"]) == (2, remote.json["rows"])
    [first, _] = online.episodes()
    one = rollbook("export", "parquet", "--episodes", first.id, "--out", "one", "--json")
    assert one.json["episodes"] == 1
    assert not list(Path().glob(".rollbook-export-*"))


def test_an_export_never_replaces_what_is_there(dataset: Path, tmp_path: Path) -> None:
    rollbook("import", "lerobot", dataset, "--out", "episodes", "--camera", "none")
    (tmp_path / "taken").write_text("mine")
    refused = rollbook("export", "parquet", "--episodes", "episodes", "--out", "taken")
    assert refused.returncode == 1
    assert "already exists" in refused.stderr
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_named_before_anything_is_fetched(
    online: sdk.Client, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollbook("import", "lerobot", dataset, "--to-server")

    def read_only(**_: Any) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    refused = rollbook("export", "mcap", "--query", "", "--out", "x")
    assert (refused.returncode, "Read-only" in refused.stderr) == (1, True)


def test_an_export_lists_its_losses_first_and_exact_refuses_them(dataset: Path) -> None:
    rollbook("import", "lerobot", dataset, "--out", "episodes")
    planned = rollbook("export", "hdf5", "--episodes", "episodes", "--out", "x", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "changed: " in planned.stderr
    refused = rollbook("export", "hdf5", "--episodes", "episodes", "--out", "x", "--exact")
    assert refused.returncode == 2
    assert "would not be exact" in refused.stderr
    assert not Path("x").exists()


def test_an_export_says_that_a_run_failed_and_that_tags_are_left_out(dataset: Path) -> None:
    rollbook("import", "lerobot", dataset, "--out", "there", "--episode", 0, "--tag", "night")
    [file] = Path("there").rglob("episode.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "status": "failed"}))
    plan = ("export", "mcap", "--episodes", "there", "--out", "x", "--dry-run", "--json")
    lost = {each["what"]: each["reason"] for each in rollbook(*plan).json["losses"]}
    assert "The run failed" in lost["status"]
    assert "night" in lost["tags"]


def test_which_episodes_has_to_be_said() -> None:
    for options, words in (
        ([], "say which episodes"),
        (["--episodes", "no/where"], "there is nothing at no/where"),
        (["--query", "color=red"], "no filter 'color'"),
        (["--query", "seed=x"], "expected a whole number"),
    ):
        refused = rollbook("export", "parquet", "--out", "x", *options)
        assert refused.returncode in (1, 2)
        assert words in refused.stderr


def test_a_query_is_the_filters_of_the_list() -> None:
    query = "policy_version=v4 tag=a tag='b c' seed=7 metadata.task.name=pick"
    assert filters_of(query) == {
        "policy_version": "v4",
        "tag": ["a", "b c"],
        "seed": 7,
        "metadata": {"task.name": "pick"},
    }
    with pytest.raises(ConfigurationError, match="is not a filter"):
        filters_of("v4")


# ------------------------------------------------------------------------------------------ lineage


def test_lineage_walks_from_an_episode_to_the_file_and_names_a_changed_one(
    online: sdk.Client, dataset: Path, tmp_path: Path
) -> None:
    rollbook("import", "lerobot", dataset, "--to-server")
    episode = next(iter(online.episodes())).id
    whole = rollbook("lineage", "show", episode, "--recording", dataset, "--json").json
    assert whole["state"] == "verified"
    assert "recording" in {each["kind"] for each in whole["nodes"]}
    found = rollbook("lineage", "show", episode, "--in", tmp_path, "--json").json
    assert found["state"] == "verified"
    back = rollbook("lineage", "show", dataset, "--json").json
    assert {"recording", "episodes"} <= {each["kind"] for each in back["nodes"]}
    (tmp_path / "empty").mkdir()
    gone = rollbook("lineage", "show", episode, "--json", "--in", tmp_path / "empty").json
    assert (gone["state"], gone["missing"]) == ("missing", 1)
    renamed = dataset.rename(tmp_path / "empty" / "other")
    again = rollbook("lineage", "show", episode, "--recording", renamed, "--json").json
    assert again["state"] == "verified"
    renamed.rename(dataset)
    table = next(dataset.glob("data/**/*.parquet"))
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    broken = rollbook("lineage", "show", episode, "--recording", dataset)
    assert broken.returncode == 1
    assert "BROKEN" in broken.stdout
    assert "pusht" in broken.stdout


def test_a_folder_with_a_digest_for_each_episode_is_walked_by_digest(
    online: sdk.Client, tmp_path: Path
) -> None:
    """The refusal of its path names the digests; each of them has to lead somewhere."""
    dataset = write_v2(tmp_path / "pusht", Plan(lengths=(3, 4)))
    rollbook("import", "lerobot", dataset, "--to-server")
    digests = {each.metadata["source_file"]["digest"] for each in online.episodes()}
    assert len(digests) == 2
    refused = rollbook("lineage", "show", dataset)
    assert "name one by its digest" in refused.stderr
    for digest in digests:
        shown = rollbook("lineage", "show", digest, "--recording", dataset, "--json").json
        assert shown["state"] == "verified"
        assert {each["kind"] for each in shown["nodes"]} == {"recording", "episodes"}


@pytest.mark.parametrize(
    "told",
    [
        {"name": "../secret"},
        {"name": "/etc/passwd"},
        {"name": ""},
        {"name": "."},
        {"name": "ü" * 200},
        {"digest": "../x"},
        {"names": ["a\0b", "b"]},
    ],
)
def test_lineage_does_not_follow_an_episode_to_files_elsewhere(told: dict[str, Any]) -> None:
    """Metadata may come from anybody: a name that leads out of the searched folders is not a name of a file."""
    source = SourceFile(
        format="hdf5", name="a.hdf5", digest="e" * 64, size=1, files=1, episode="0", options={}
    ).to_json()
    assert SourceFile.recorded_in({SOURCE_FILE_KEY: source}) is not None
    assert SourceFile.recorded_in({SOURCE_FILE_KEY: {**source, **told}}) is None


def test_lineage_does_not_wait_for_a_pipe_with_the_name_of_a_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.hdf5")
    shelf = Shelf()
    shelf.recordings.append(tmp_path / "a.hdf5")
    [check] = ImportedFiles(shelf).describe(recording("e" * 64, "a.hdf5", ())).checks
    assert (check.state, "not a file" in (check.detail or "")) == ("broken", True)

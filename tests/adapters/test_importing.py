"""An import is repeated, interrupted, damaged and run twice at once: every episode is there once, and whole."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook import client as sdk
from rollbook.adapters.destination import EpisodeAbout
from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.episode_folder import EPISODE_FILE, read_episode_file
from rollbook.adapters.folder_importer import EpisodeFolderImporter
from rollbook.adapters.importing import ImportFolder, ImportServer, import_recording
from rollbook.adapters.lerobot import LeRobotImporter
from rollbook.adapters.rlds import RldsImporter
from rollbook.client.recording import Recording
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.source_file import SourceFile
from rollbook.contracts.wire.keys import KeyScope
from rollbook.errors import (
    APIError,
    ChecksumMismatch,
    ConfigurationError,
    DamagedRecording,
    StorageError,
    TransportError,
    TruncatedFile,
)
from tests.adapters import rlds_datasets
from tests.adapters.lerobot_datasets import Plan, write_v2
from tests.server.running import RunningServer

IMPORTER = LeRobotImporter(cameras=())


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_v2(tmp_path / "pusht", Plan(lengths=(3, 4)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("import-server")) as running:
        yield running


@pytest.fixture
def online(server: RunningServer) -> Iterator[sdk.Client]:
    with sdk.Client(api_key=server.api_key, base_url=server.base_url) as client:
        for each in client.episodes(with_archived=True):
            each.delete()
        yield client


def outcomes(done: list[Any]) -> list[str]:
    return [each.outcome for each in done]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ------------------------------------------------------------------------------------- into folders


def test_an_episode_folder_names_its_source_file_and_the_digests_of_its_files(
    dataset: Path, tmp_path: Path
) -> None:
    done = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    assert outcomes(done) == ["imported", "imported"]
    for each in done:
        record = read_episode_file(Path(str(each.place)))
        assert SourceFile.recorded_in(record.metadata) == each.source
        assert {artifact.kind for artifact in record.artifacts} == {"sensors", "actions"}


def test_a_second_import_changes_nothing(dataset: Path, tmp_path: Path) -> None:
    import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    before = contents(tmp_path / "out")
    again = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    assert outcomes(again) == ["there already", "there already"]
    assert contents(tmp_path / "out") == before


def test_a_copy_elsewhere_is_the_same_recording_and_a_changed_file_is_not(
    dataset: Path, tmp_path: Path
) -> None:
    target = ImportFolder(tmp_path / "out")
    import_recording(IMPORTER, dataset, target, episodes=[0])
    (tmp_path / "moved").mkdir()
    moved = dataset.rename(tmp_path / "moved" / "pusht")
    assert outcomes(import_recording(IMPORTER, moved, target, episodes=[0])) == ["there already"]
    (moved / "meta" / "tasks.jsonl").write_text(
        "".join(
            json.dumps({"task_index": index, "task": f"other {index}"}) + "\n" for index in (0, 1)
        )
    )
    assert outcomes(import_recording(IMPORTER, moved, target, episodes=[0])) == ["imported"]


def test_other_options_make_another_episode(dataset: Path, tmp_path: Path) -> None:
    target = ImportFolder(tmp_path / "out")
    import_recording(IMPORTER, dataset, target)
    done = import_recording(LeRobotImporter(), dataset, target, episodes=[1])
    assert outcomes(done) == ["imported"]
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_an_episode_that_fails_does_not_stop_the_others_and_leaves_nothing(
    dataset: Path, tmp_path: Path
) -> None:
    table = next(dataset.glob("data/**/episode_000000.parquet"))
    table.write_bytes(table.read_bytes()[:100])
    done = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    assert outcomes(done) == ["failed", "imported"]
    assert isinstance(done[0].error, StorageError)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [Path(str(done[1].place)).name]
    with pytest.raises(StorageError, match="episode_000000"):
        import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "two"), stop_on_error=True)


def test_an_interrupted_import_leaves_whole_episodes_only_and_is_continued(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = LeRobotImporter.encode

    def interrupted(self: Any, recording: Any, index: int, folder: Path) -> Any:
        encoded = encode(self, recording, index, folder)
        if index == 1:
            raise KeyboardInterrupt
        return encoded

    monkeypatch.setattr(LeRobotImporter, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    assert len(list((tmp_path / "out").iterdir())) == 1
    monkeypatch.setattr(LeRobotImporter, "encode", encode)
    done = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    assert outcomes(done) == ["there already", "imported"]


def test_an_unknown_episode_is_refused_before_anything_is_written(
    dataset: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="no episode 7; it has 0 to 1"):
        import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"), episodes=[0, 7])
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_is_an_error_of_ours_and_leaves_nothing(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> EncodedEpisode:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LeRobotImporter, "encode", full)
    done = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    assert [type(each.error) for each in done] == [StorageError, StorageError]
    assert "No space left" in str(done[0].error)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_changes_while_it_is_imported_is_refused(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest in the episode would be that of other bytes than were read."""
    encode = LeRobotImporter.encode
    info = dataset / "meta/info.json"

    def with_recorder(self: Any, *arguments: Any) -> EncodedEpisode:
        encoded = encode(self, *arguments)
        info.write_text(info.read_text() + " ")
        return encoded

    monkeypatch.setattr(LeRobotImporter, "encode", with_recorder)
    [done] = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"), episodes=[0])
    assert "changed while it was imported" in str(done.error)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_import_left_is_ignored_and_removed_after_a_day(
    dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for name, age_s in (("old", 25 * 3600), ("running", 60)):
        folder = out / f".importing-{name}"
        folder.mkdir(parents=True)
        (folder / "sensors.npz").touch()
        for path in (folder / "sensors.npz", folder):
            os.utime(path, (time.time() - age_s,) * 2)
    done = import_recording(IMPORTER, dataset, ImportFolder(out))
    assert outcomes(done) == ["imported", "imported"]
    assert [each.name for each in out.glob(".*")] == [".importing-running"]


class _OvertakenFolder(ImportFolder):
    """Another process imports the same episode into the same folder while this one encodes it."""

    def keep(self, encoded: EncodedEpisode, folder: Path, source: SourceFile) -> str:
        other = ImportFolder(self.path)
        import_recording(IMPORTER, self.recording, other, episodes=[0], stop_on_error=True)
        return super().keep(encoded, folder, source)

    recording: Path


def test_an_import_into_a_folder_that_another_one_overtakes_finds_the_episode_there(
    dataset: Path, tmp_path: Path
) -> None:
    target = _OvertakenFolder(tmp_path / "out")
    target.recording = dataset
    [done] = import_recording(IMPORTER, dataset, target, episodes=[0])
    assert done.error is None
    assert [str(each) for each in (tmp_path / "out").iterdir()] == [done.place]


def test_a_folder_of_another_episode_under_the_same_name_is_not_replaced(
    dataset: Path, tmp_path: Path
) -> None:
    [done] = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "one"), episodes=[0])
    assert done.place is not None
    taken = tmp_path / "two" / Path(done.place).name
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    [refused] = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "two"), episodes=[0])
    assert "it holds another episode" in str(refused.error)
    assert [each.name for each in taken.iterdir()] == ["notes.txt"]


def test_a_recording_without_episodes_is_an_error_that_says_what_was_left_out(
    tmp_path: Path,
) -> None:
    cut = rlds_datasets.write(tmp_path / "cut", {"train": [[rlds_datasets.robot_episode(0, 3)]]})
    [shard] = cut.glob("*.tfrecord-*")
    shard.write_bytes(shard.read_bytes()[:20])
    with pytest.raises(
        StorageError, match=r"no episode in it \(robot-train.*1 of 1 episodes are lost"
    ):
        import_recording(RldsImporter(), cut, ImportFolder(tmp_path / "out"))
    empty = write_v2(tmp_path / "empty", Plan(lengths=()))
    with pytest.raises(StorageError, match="there is no episode in it"):
        import_recording(IMPORTER, empty, ImportFolder(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


class _Odd(LeRobotImporter):
    """Finds texts in the recording that no database can store."""

    def encode(self, recording: Any, index: int, folder: Path) -> EncodedEpisode:
        encoded = super().encode(recording, index, folder)
        odd = {"tasks": ["half \ud83d a pair", "nul \0"], "t" * 300: 1, "t" * 301: 2, "fine": "ü✓"}
        return replace(
            encoded, name="n\udcff" * 300, robot="r" * 300, metadata={**encoded.metadata, **odd}
        )


def test_texts_that_cannot_be_stored_are_changed_and_the_losses_say_so(
    online: sdk.Client, dataset: Path, tmp_path: Path
) -> None:
    for target in (ImportFolder(tmp_path / "out"), ImportServer(online)):
        [done] = import_recording(_Odd(cameras=()), dataset, target, episodes=[0])
        assert done.outcome == "imported", done.error
    [there] = online.episodes()
    folder = read_episode_file(next((tmp_path / "out").iterdir()))
    assert (there.name, there.robot) == (folder.name, folder.robot) == ("n\ufffd" * 100, "r" * 120)
    metadata = there.read_metadata()
    assert metadata == folder.metadata
    assert metadata["tasks"] == ["half \ufffd a pair", "nul \ufffd"]
    assert metadata["fine"] == "ü✓"
    assert sorted(metadata[key] for key in metadata if key.startswith("ttt")) == [1, 2]
    assert "cannot be stored" in metadata["losses"][-1]


def test_a_recording_whose_name_is_not_utf8_is_refused_by_name(
    dataset: Path, tmp_path: Path
) -> None:
    odd = dataset.rename(dataset.with_name("push\udcff"))
    with pytest.raises(StorageError, match="not UTF-8"):
        import_recording(IMPORTER, odd, ImportFolder(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------- folders as recordings


def test_episodes_in_folders_keep_the_file_that_they_came_from(
    dataset: Path, tmp_path: Path
) -> None:
    first = ImportFolder(tmp_path / "out", {"policy_version": "teleop", "tags": ["night"]})
    before = import_recording(IMPORTER, dataset, first)
    second = ImportFolder(tmp_path / "copy")
    after = import_recording(EpisodeFolderImporter(), tmp_path / "out", second)
    assert [each.source for each in after] == [each.source for each in before]
    for one, other in zip(before, after, strict=True):
        there, here = Path(str(one.place)), Path(str(other.place))
        assert (there / "sensors.npz").read_bytes() == (here / "sensors.npz").read_bytes()
        record = read_episode_file(here)
        assert (record.policy_version, record.tags) == ("teleop", ["night"])
        assert record == read_episode_file(there)


def downloaded(folder: Path, **facts: Any) -> Path:
    """An episode folder whose record says something else than its import did."""
    path = folder / EPISODE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    return folder


def test_a_failed_run_stays_failed_and_keeps_its_revision(
    online: sdk.Client, dataset: Path, tmp_path: Path
) -> None:
    """Otherwise a download and an import would make a good baseline of it."""
    revision = PolicyRevision(
        policy_family="arm", revision_id="r7", policy_digest="7" * 64, produced_at_ms=7
    )
    about = EpisodeAbout(policy_revision=revision)
    [done] = import_recording(
        IMPORTER, dataset, ImportFolder(tmp_path / "out", about), episodes=[0]
    )
    folder = downloaded(Path(str(done.place)), status="failed", failure_time_s=0.2, duration_s=None)
    [copied] = import_recording(EpisodeFolderImporter(), folder, ImportFolder(tmp_path / "copy"))
    assert read_episode_file(Path(str(copied.place))) == read_episode_file(folder)
    for outcome in ("imported", "there already"):
        [sent] = import_recording(EpisodeFolderImporter(), folder, ImportServer(online))
        assert sent.outcome == outcome
    [there] = online.episodes()
    assert (there.status, there.failure_time_s, there.duration_s) == ("failed", 0.2, None)
    assert there.policy_revision == revision


def test_an_episode_that_was_not_finished_is_refused(dataset: Path, tmp_path: Path) -> None:
    [done] = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"), episodes=[0])
    folder = downloaded(Path(str(done.place)), status="recording")
    [refused] = import_recording(EpisodeFolderImporter(), folder, ImportFolder(tmp_path / "copy"))
    assert refused.outcome == "failed"
    assert "not finished" in str(refused.error)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: data[:-1], TruncatedFile),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), ChecksumMismatch),
    ],
)
def test_a_changed_file_of_an_episode_folder_is_refused(
    dataset: Path, tmp_path: Path, damage: Any, error: type[Exception]
) -> None:
    [done] = import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"), episodes=[0])
    file = Path(str(done.place)) / "actions.npz"
    file.write_bytes(damage(file.read_bytes()))
    target = ImportFolder(tmp_path / "copy")
    with pytest.raises(error, match=r"actions\.npz"):
        import_recording(EpisodeFolderImporter(), tmp_path / "out", target, stop_on_error=True)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"id": 5}', '{"id": "", "status": "ready", "source": "moon"}']
)
def test_a_damaged_episode_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "episode.json").write_text(text)
    with pytest.raises(DamagedRecording, match=r"episode\.json"):
        EpisodeFolderImporter().scan(tmp_path)


# -------------------------------------------------------------------------------------- to a server


def test_a_second_import_to_a_server_finds_the_episodes(online: sdk.Client, dataset: Path) -> None:
    target = ImportServer(online, {"policy_version": "teleop"})
    first = import_recording(IMPORTER, dataset, target)
    again = import_recording(IMPORTER, dataset, target)
    assert outcomes(first) == ["imported", "imported"]
    assert outcomes(again) == ["there already", "there already"]
    assert [each.place for each in first] == [each.place for each in again]
    found = list(online.episodes())
    assert {each.id for each in found} == {each.place for each in first}
    for each in found:
        assert each.record.policy_version == "teleop"
        source = SourceFile.recorded_in(each.metadata)
        assert source is not None
        assert source.format == "lerobot"


def test_folders_and_files_are_the_same_episode_to_a_server(
    online: sdk.Client, dataset: Path, tmp_path: Path
) -> None:
    import_recording(IMPORTER, dataset, ImportFolder(tmp_path / "out"))
    sent = import_recording(EpisodeFolderImporter(), tmp_path / "out", ImportServer(online))
    assert outcomes(sent) == ["imported", "imported"]
    direct = import_recording(IMPORTER, dataset, ImportServer(online))
    assert outcomes(direct) == ["there already", "there already"]


def test_an_episode_that_was_deleted_is_imported_again(online: sdk.Client, dataset: Path) -> None:
    [first] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    online.episode(str(first.place)).delete()
    [again] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    assert again.outcome == "imported"
    assert [each.status for each in online.episodes()] == ["ready"]


def test_an_archived_episode_counts_as_there(online: sdk.Client, dataset: Path) -> None:
    [first] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    online.episode(str(first.place)).archive()
    [again] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    assert (again.outcome, again.place) == ("there already", first.place)


def test_an_import_that_died_while_it_uploaded_goes_on_in_the_same_episode(
    online: sdk.Client, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Recording.upload_file

    async def dies(self: Any, file: Any, on_progress: Any = None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recording, "upload_file", dies)
    with pytest.raises(KeyboardInterrupt):
        import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    [begun] = online.episodes()
    assert begun.status == "recording"
    monkeypatch.setattr(Recording, "upload_file", upload)
    [done] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    assert done.place == begun.id
    assert [(each.id, each.status) for each in online.episodes()] == [(begun.id, "ready")]


def test_an_upload_that_failed_is_begun_anew(
    online: sdk.Client, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Recording.upload_file

    async def fails(self: Any, file: Any, on_progress: Any = None) -> int:
        raise StorageError(path=str(file.path), detail="the disk is gone")

    monkeypatch.setattr(Recording, "upload_file", fails)
    [failed] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    assert failed.outcome == "failed"
    monkeypatch.setattr(Recording, "upload_file", upload)
    [done] = import_recording(IMPORTER, dataset, ImportServer(online), episodes=[0])
    assert done.outcome == "imported"
    assert sorted(each.status for each in online.episodes()) == ["failed", "ready"]


@pytest.mark.parametrize("scope", ["read", "ingest"])
def test_a_key_that_may_not_import_ends_the_import_and_the_scope_is_named(
    server: RunningServer, dataset: Path, scope: KeyScope
) -> None:
    key = server.new_key(scope).api_key
    with (
        sdk.Client(api_key=key, base_url=server.base_url) as client,
        pytest.raises(APIError, match=f"the scope {scope}, and this takes one of"),
    ):
        import_recording(IMPORTER, dataset, ImportServer(client))


def test_a_server_that_is_gone_ends_the_import(
    online: sdk.Client, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of a thousand episodes waits for all retries."""
    asked: list[SourceFile] = []

    def gone(self: Any, source: SourceFile, *status: Any) -> str | None:
        asked.append(source)
        raise TransportError(message="cannot list episodes: connection refused")

    monkeypatch.setattr(ImportServer, "find", gone)
    with pytest.raises(TransportError):
        import_recording(IMPORTER, dataset, ImportServer(online))
    assert len(asked) == 1


def test_two_imports_at_once_make_each_episode_once(
    online: sdk.Client, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look for the episode before either has begun it."""
    together = threading.Barrier(2, timeout=20)
    find = ImportServer.find
    looked: set[tuple[int, str]] = set()

    def both(self: Any, source: SourceFile, *status: Any) -> str | None:
        found = find(self, source, *status)
        mark = (threading.get_ident(), source.import_key)
        if mark not in looked:
            looked.add(mark)
            together.wait()
        return found

    monkeypatch.setattr(ImportServer, "find", both)
    done: list[list[Any]] = []

    def run() -> None:
        done.append(import_recording(IMPORTER, dataset, ImportServer(online)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[each.error for each in one] for one in done] == [[None, None], [None, None]]
    ready = [each for each in online.episodes() if each.status == "ready"]
    assert len(ready) == 2
    assert len(list(online.episodes())) == 2


def test_a_missing_library_ends_the_import_and_names_its_extra(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigurationError, match="pip install"):
        import_recording(LeRobotImporter(), dataset, ImportFolder(tmp_path / "out"))

"""What a power cut would leave of a spool: watched syncs, because a killed process cannot show a missing one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollbook.client import Client, Retries, Spool
from rollbook.client.artifact_files import ArtifactFiles
from rollbook.client.spool import SpoolDraft
from rollbook.errors import ServerError
from tests.scratch import another_file_system
from tests.watched_files import WatchedFiles

NOWHERE = "http://127.0.0.1:9"
ARRAYS = {"a": np.arange(3)}


def offline(spool: Path) -> Client:
    return Client(api_key="k", base_url=NOWHERE, spool=spool, retries=Retries(attempts=1))


def draft_in(spool: Path, files: ArtifactFiles) -> SpoolDraft:
    return Spool(spool).draft(
        base_url=NOWHERE, idempotency_key="key", create={}, files=files.by_kind.values()
    )


def named_before_sync(watched: WatchedFiles) -> list[str]:
    """Without progress.json, since a step that is repeated does no harm, and without hidden temporary names."""
    names = [each.name for each in watched.named_before_sync]
    return [name for name in names if name != "progress.json" and not name.startswith(".")]


@pytest.mark.parametrize("above", ["", "a/new/folder"])
def test_a_journal_is_on_disk_before_anything_is_sent(tmp_path: Path, above: str) -> None:
    """With the arrays that are nowhere else, and with every folder above it."""
    spool = tmp_path / above / "spool"
    with ArtifactFiles({"sensors": ARRAYS}, [0, 1, 2]) as files:
        with WatchedFiles(tmp_path) as watched:
            draft = draft_in(spool, files)
        for name in ("entry.json", "sensors.npz"):
            assert watched.is_durable(draft.folder / name), name
        assert named_before_sync(watched) == []
        draft.discard()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["linked", "copied"])
def test_our_own_file_is_on_disk_whether_it_is_linked_or_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Where a link is not possible, the file is copied: the folder of temporary files may be on another disk."""
    other = another_file_system(tmp_path) if elsewhere else tmp_path
    if other is None:
        pytest.skip("there is no second file system")
    monkeypatch.setattr("tempfile.tempdir", str(other))
    with ArtifactFiles({"sensors": ARRAYS}, [0, 1, 2]) as files:
        with WatchedFiles(tmp_path) as watched:
            draft = draft_in(tmp_path / "spool", files)
        kept, ours = draft.folder / "sensors.npz", files.by_kind["sensors"].path
        assert kept.samefile(ours) != elsewhere
        assert watched.is_durable(kept)
        draft.discard()


def test_an_episode_that_was_spooled_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    spool, video = tmp_path / "spool", tmp_path / "run.mp4"
    video.write_bytes(b"\0\0\0\x08ftyp" + b"frames" * 1000)
    with offline(spool) as client, WatchedFiles(tmp_path) as watched:
        assert client.log_episode(video=video, sensors=ARRAYS, t_ns=[0, 1, 2]).status == "spooled"
        [name] = Spool(spool).waiting()
        assert watched.is_durable(spool / name)
        assert watched.after_power_cut(spool / name / "video.mp4") == video.read_bytes()
        assert named_before_sync(watched) == []


def test_what_is_known_of_the_end_is_on_disk_before_the_server_is_told(tmp_path: Path) -> None:
    with WatchedFiles(tmp_path) as watched, ArtifactFiles({}, None) as files:
        draft = draft_in(tmp_path / "spool", files)
        draft.end({"status": "ready"})
        left = watched.after_power_cut(draft.folder / "entry.json")
    assert isinstance(left, bytes)
    assert b'"ready"' in left
    draft.discard()


def test_an_entry_never_has_two_places_or_none(tmp_path: Path) -> None:
    """While it is refused and taken back, it is in one of both folders after a power cut at any moment."""
    spool = Spool(tmp_path / "spool")
    with offline(spool.folder) as client:
        client.log_episode(name="moved")
    [name] = spool.waiting()

    def is_there(watched: WatchedFiles) -> None:
        places = (spool.folder / name, spool.folder / "refused" / name)
        assert any(watched.after_power_cut(place) is not None for place in places)

    with WatchedFiles(tmp_path, at_each_step=is_there) as watched:
        spool.refuse(name, ServerError(status_code=400, message="no"))
        assert watched.is_durable(spool.folder / "refused")
        assert name not in (watched.after_power_cut(spool.folder) or ())
        spool.take_back_refused()
        assert watched.is_durable(spool.folder / name)
        assert watched.after_power_cut(spool.folder / "refused") == set()
    assert spool.waiting() == [name]

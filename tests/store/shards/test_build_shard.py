"""A shard is built once into its final place, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollbook import files
from rollbook.errors import (
    GenerationFailed,
    LeaseHeld,
    LeaseLost,
    RollbookError,
    StorageError,
    UnfinishedRun,
)
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.shards.build_shard import BuiltStore, build_shard
from rollbook.store.shards.lease_files import LeaseFolder
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    LeaseWatch,
    Process,
    lease_path,
    mark_of,
    read_leases,
)
from rollbook.store.shards.sidecars import failures_of, read_failure, read_finished
from tests.scratch import another_file_system
from tests.store.shards.shard_plans import SmallBuilder, built, names, planned, unreadable

ENTRY = planned()
SHARD = ENTRY.shard_id


def failing(row: int) -> None:
    if row == 1:
        raise GenerationFailed(sample_index=1, sample_key="flat-0-1", detail="the policy raised")


def dead_watch(root: Path) -> LeaseWatch:
    """A watch for which every worker is dead."""
    return LeaseWatch(frozenset(map(mark_of, read_leases(root / "shards").values())))


def test_a_shard_is_promoted_with_both_sidecars_and_nothing_is_left_beside_it(
    tmp_path: Path,
) -> None:
    result = built(tmp_path, ENTRY)
    assert not result.skipped
    assert result.store_result is not None
    assert result.store_result.store_dir == result.final_dir == tmp_path / "shards" / SHARD
    assert result.success_path.is_file()
    assert result.owner_path.is_file()
    owner = read_finished(result.final_dir, ENTRY)
    assert owner.counts.rollouts == result.store_result.num_rollouts
    assert owner.content_sha256 == result.store_result.content_sha256
    assert owner.stats == {"skipped_reasons": {"no_target": 1}}
    assert owner.bytes == sum(
        each.stat().st_size
        for each in result.final_dir.rglob("*")
        if each.is_file() and each.name not in ("_owner.json", "_SUCCESS.json")
        if each != result.final_dir / "zarr.json"
    )
    assert validate_rollout_zarr_store(result.final_dir, deep=True).ok
    assert names(tmp_path) == {SHARD}
    assert not (tmp_path / "work" / SHARD).exists()


def test_a_finished_shard_is_skipped_without_building(tmp_path: Path) -> None:
    built(tmp_path, ENTRY)
    builder = SmallBuilder(ENTRY)
    result = built(tmp_path, ENTRY, builder)
    assert result.skipped
    assert builder.calls == 0


NOT_UTF_8 = '{"host": "Zürich"}'.encode("latin-1")


def edited(name: str, **changes: Any) -> Any:
    def edit(folder: Path) -> None:
        value = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps(value | changes))

    return edit


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (edited("_owner.json", shard_id="shard-000001"), "shard_id"),
        (edited("_owner.json", writer_config_hash="other"), "writer_config_hash"),
        (edited("_owner.json", seconds=0.5), "belongs to the owner file"),
        (edited("_SUCCESS.json", owner_sha256="0"), "belongs to the owner file"),
        (edited("manifest.json", store_kind="x"), "manifest.json is not the one"),
        (lambda folder: (folder / "_owner.json").unlink(), "there is no _owner.json"),
        (lambda folder: (folder / "_owner.json").write_bytes(b"{"), "cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), "there is no manifest.json"),
        (lambda folder: (folder / "_SUCCESS.json").write_bytes(b""), "cannot be read"),
        (lambda folder: (folder / "_SUCCESS.json").write_bytes(NOT_UTF_8), "cannot be read"),
    ],
)
def test_a_final_folder_that_is_not_as_it_was_finished_is_refused_and_stays(
    tmp_path: Path, damage: Any, says: str
) -> None:
    final = built(tmp_path, ENTRY).final_dir
    damage(final)
    builder = SmallBuilder(ENTRY)
    with pytest.raises(StorageError, match=says) as refused:
        built(tmp_path, ENTRY, builder, take_over=True)
    assert "remove the folder" in str(refused.value)
    assert builder.calls == 0
    assert final.is_dir()


def test_of_a_file_that_cannot_be_read_nobody_says_that_its_shard_is_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that is away for a moment, or the rights of another user."""
    built(tmp_path, ENTRY)
    with monkeypatch.context() as patch:
        unreadable(patch, "_owner.json")
        with pytest.raises(StorageError, match=r"_owner\.json: it cannot be read \(Stale") as error:
            built(tmp_path, ENTRY)
    assert "remove" not in str(error.value)
    assert isinstance(error.value.__cause__, OSError)
    assert built(tmp_path, ENTRY).skipped


def test_the_final_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards" / SHARD).mkdir(parents=True)
    (tmp_path / "shards" / SHARD / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"not complete: there is no _owner\.json"):
        built(tmp_path, ENTRY)
    assert (tmp_path / "shards" / SHARD / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_a_marker_that_a_later_success_replaces(tmp_path: Path) -> None:
    with pytest.raises(GenerationFailed):
        built(tmp_path, ENTRY, SmallBuilder(ENTRY, before_row=failing))
    (path,) = failures_of(tmp_path / "shards", SHARD)
    marker = read_failure(path)
    assert marker is not None
    assert (marker.sample_index, marker.sample_key) == (1, "flat-0-1")
    assert marker.error_type == "GenerationFailed"
    assert marker.process.host
    with pytest.raises(UnfinishedRun, match="--take-over"):
        built(tmp_path, ENTRY)
    result = built(tmp_path, ENTRY, take_over=True)
    assert names(tmp_path) == {SHARD}
    (kept,) = read_finished(result.final_dir, ENTRY).failures
    assert kept == marker.attempt


def test_a_work_folder_that_cannot_be_written_is_a_failure_of_the_shard(tmp_path: Path) -> None:
    """Otherwise a status would say that nobody has begun it."""
    (tmp_path / "work").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        built(tmp_path, ENTRY)
    (marker,) = failures_of(tmp_path / "shards", SHARD)
    failure = read_failure(marker)
    assert failure is not None
    assert failure.output_tmp in failure.error
    (tmp_path / "work").unlink()
    (attempt,) = read_finished(built(tmp_path, ENTRY).final_dir, ENTRY).failures
    assert attempt == failure.attempt


def test_the_next_attempt_gets_the_work_folder_of_the_one_before(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Keeping(SmallBuilder):
        def __call__(self, folder: Path, progress: Any) -> BuiltStore:
            seen.append(sorted(os.listdir(folder.parent)))
            (folder.parent / "row-0").write_text("finished")
            return super().__call__(folder, progress)

    with pytest.raises(GenerationFailed):
        built(tmp_path, ENTRY, Keeping(ENTRY, before_row=failing))
    built(tmp_path, ENTRY, Keeping(ENTRY), take_over=True)
    assert seen == [[], ["row-0"]]


def test_a_folder_that_a_killed_worker_was_removing_is_neither_used_nor_kept(
    tmp_path: Path,
) -> None:
    half = tmp_path / "work" / SHARD / ".000001-00000000.00000000.abandoned"
    (half / "rows").mkdir(parents=True)
    seen: list[list[str]] = []

    def builds(folder: Path, progress: Any) -> BuiltStore:
        seen.append(sorted(os.listdir(folder.parent)) + sorted(os.listdir(folder.parent.parent)))
        return SmallBuilder(ENTRY)(folder, progress)

    built(tmp_path, ENTRY, builds)
    assert len(seen[0]) == 1
    assert not seen[0][0].endswith("abandoned")


def test_a_worker_that_finds_the_shard_held_leaves_no_work_folder(tmp_path: Path) -> None:
    def second(row: int) -> None:
        with pytest.raises(LeaseHeld):
            build_shard(
                ENTRY,
                SmallBuilder(ENTRY),
                output_tmp=tmp_path / "elsewhere",
                output_final=tmp_path / "shards" / SHARD,
            )
        assert not (tmp_path / "elsewhere").exists()

    built(tmp_path, ENTRY, SmallBuilder(ENTRY, before_row=second))


def test_a_shard_whose_rows_gave_no_rollout_is_finished_without_a_store(tmp_path: Path) -> None:
    def nothing(folder: Path, progress: Any) -> BuiltStore:
        return BuiltStore(None, {"skipped_reasons": {"no_target": 2}})

    final = built(tmp_path, ENTRY, nothing).final_dir
    owner = read_finished(final, ENTRY)
    assert owner.counts.rollouts == 0
    assert owner.rollout_manifest_sha256 is None
    assert built(tmp_path, ENTRY, nothing).skipped


def flipped(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    path = next(each for each, (size, _) in manifest["files"].items() if size and "/c/" in each)
    (folder / path).write_bytes(b"")


def test_a_store_that_is_not_valid_is_never_promoted(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not valid"):
        built(tmp_path, ENTRY, SmallBuilder(ENTRY, after=flipped))
    assert not (tmp_path / "shards" / SHARD).exists()


def test_a_store_of_another_shard_is_never_promoted(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="another shard"):
        built(tmp_path, ENTRY, SmallBuilder(planned(1)))
    assert not (tmp_path / "shards" / SHARD).exists()


def test_a_worker_that_lost_its_shard_stops_without_a_failure(tmp_path: Path) -> None:
    def overtaken(row: int) -> None:
        if row == 1:
            watch = dead_watch(tmp_path)
            assert not built(tmp_path, ENTRY, take_over=True, watch=watch).skipped

    with pytest.raises(LeaseLost):
        built(tmp_path, ENTRY, SmallBuilder(ENTRY, before_row=overtaken))
    assert names(tmp_path) == {SHARD}
    assert built(tmp_path, ENTRY).skipped


def test_a_worker_that_lost_its_shard_at_the_last_moment_cannot_promote(tmp_path: Path) -> None:
    def overtaken(folder: Path) -> None:
        built(tmp_path, ENTRY, take_over=True, watch=dead_watch(tmp_path))
        first.append(read_finished(tmp_path / "shards" / SHARD, ENTRY).token)

    first: list[int] = []
    with pytest.raises(LeaseLost):
        built(tmp_path, ENTRY, SmallBuilder(ENTRY, after=overtaken))
    assert read_finished(tmp_path / "shards" / SHARD, ENTRY).token == first[0] == 2
    assert names(tmp_path) == {SHARD}


def test_a_live_worker_keeps_its_shard(tmp_path: Path) -> None:
    def second(row: int) -> None:
        with pytest.raises(LeaseHeld):
            built(tmp_path, ENTRY, take_over=True)

    assert not built(tmp_path, ENTRY, SmallBuilder(ENTRY, before_row=second)).skipped


@pytest.mark.parametrize("damaged", [False, True])
def test_a_rename_without_success_file_is_finished_after_a_close_look(
    tmp_path: Path, damaged: bool
) -> None:
    final = built(tmp_path, ENTRY).final_dir
    before = (final / "_SUCCESS.json").read_bytes()
    (final / "_SUCCESS.json").unlink()
    builder = SmallBuilder(ENTRY)
    if damaged:
        flipped(final)
        with pytest.raises(StorageError, match="not valid"):
            built(tmp_path, ENTRY, builder)
    else:
        assert built(tmp_path, ENTRY, builder).skipped
        assert (final / "_SUCCESS.json").read_bytes() == before
    assert builder.calls == 0


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    other = another_file_system(tmp_path)
    if other is None:
        pytest.skip("there is no second file system")
    folder = Path(tempfile.mkdtemp(dir=other))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_work_and_final_folder_can_be_on_different_file_systems(
    tmp_path: Path, other_file_system: Path
) -> None:
    (tmp_path / "work").symlink_to(other_file_system)
    result = built(tmp_path, ENTRY)
    assert validate_rollout_zarr_store(result.final_dir, deep=True).ok
    assert names(tmp_path) == {SHARD}
    assert not list(other_file_system.iterdir())


def test_a_copy_that_does_not_fit_on_the_disk_makes_room_for_the_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_file_system: Path
) -> None:
    (tmp_path / "work").symlink_to(other_file_system)

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageError, match="No space left"):
        built(tmp_path, ENTRY)
    (left,) = names(tmp_path)
    assert left.startswith("_FAILED.")
    monkeypatch.undo()
    again = SmallBuilder(ENTRY)
    assert built(tmp_path, ENTRY, again, take_over=True).store_result is not None
    assert again.calls == 0, "the finished store is used"
    assert names(tmp_path) == {SHARD}


def test_two_mounts_of_one_file_system_are_known_by_the_rename_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers have such mounts: both folders are on the same device, and a rename between them fails anyway."""
    rename = files._renameat2

    def between_mounts(source: Path, target: Path, flags: int) -> bool:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        return rename(source, target, flags)

    monkeypatch.setattr(files, "_renameat2", between_mounts)
    result = built(tmp_path, ENTRY)
    assert validate_rollout_zarr_store(result.final_dir, deep=True).ok
    assert names(tmp_path) == {SHARD}
    assert not (tmp_path / "work" / SHARD).exists()
    assert built(tmp_path, ENTRY).skipped


def test_a_worker_that_sleeps_while_its_token_is_given_again_promotes_no_other_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_file_system: Path
) -> None:
    """It wakes after another worker has taken over and failed, while a third one, with its token, copies its store."""
    (tmp_path / "work").symlink_to(other_file_system)
    copying, go_on = threading.Event(), threading.Event()
    create, copy = LeaseFolder.create, shutil.copyfile

    def fails(folder: Path, progress: Any) -> BuiltStore:
        raise RuntimeError

    def others_first(files: LeaseFolder, record: LeaseRecord) -> bool:
        if record.role == "promoting" and not copying.is_set():
            shutil.rmtree(other_file_system / SHARD)  # as if each had its own scratch disk
            with pytest.raises(RuntimeError):
                built(tmp_path, ENTRY, fails, take_over=True, watch=dead_watch(tmp_path))
            shutil.rmtree(other_file_system / SHARD)
            third.start()
            assert copying.wait(60)
        return create(files, record)

    def half(source: Path, target: Path) -> object:
        if threading.current_thread() is third:
            copying.set()
            assert go_on.wait(60)
        return copy(source, target)

    def build_third() -> None:
        with suppress(RollbookError):
            built(tmp_path, ENTRY)

    third = threading.Thread(target=build_third, daemon=True)
    monkeypatch.setattr(LeaseFolder, "create", others_first)
    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(RollbookError):
        built(tmp_path, ENTRY)
    assert not (tmp_path / "shards" / SHARD).exists()
    go_on.set()
    third.join()
    monkeypatch.undo()
    assert validate_rollout_zarr_store(built(tmp_path, ENTRY, take_over=True).final_dir).ok
    assert names(tmp_path) == {SHARD}


def test_what_a_worker_left_that_was_killed_after_its_success_is_removed(tmp_path: Path) -> None:
    final = built(tmp_path, ENTRY).final_dir
    (tmp_path / "work" / SHARD / "000001").mkdir(parents=True)
    (final.parent / f"_FAILED.{SHARD}.2026.json").write_text("{}")
    assert built(tmp_path, ENTRY).skipped
    assert names(tmp_path) == {SHARD}
    assert not (tmp_path / "work" / SHARD).exists()


def test_the_work_folder_must_not_contain_the_final_one(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="must not contain each other"):
        build_shard(
            ENTRY, SmallBuilder(ENTRY), output_tmp=tmp_path, output_final=tmp_path / "shards" / "a"
        )


def test_a_finished_shard_is_never_taken_for_its_work_folder(tmp_path: Path) -> None:
    """The work folder of a finished shard is removed, so it must not be the shard under another name."""
    final = built(tmp_path, ENTRY).final_dir
    (tmp_path / "alias").symlink_to(tmp_path / "shards")
    for same in (final, tmp_path / "alias" / SHARD, tmp_path / "work" / ".." / "shards" / SHARD):
        with pytest.raises(StorageError, match="must not contain each other"):
            build_shard(ENTRY, SmallBuilder(ENTRY), output_tmp=same, output_final=final)
    assert validate_rollout_zarr_store(final, deep=True).ok


def test_a_lease_file_that_was_edited_cannot_make_a_worker_touch_other_folders(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (tmp_path / "shards").mkdir()
    process = Process(host="node-7", pid=1, started="1", machine="another machine")
    record = LeaseRecord(
        shard_id=SHARD, token=1, nonce="n", process=process, lease_s=60.0, work_folder=str(mine)
    )
    lease_path(tmp_path / "shards", SHARD, 1).write_bytes(record.encode())
    built(tmp_path, ENTRY, take_over=True, watch=dead_watch(tmp_path))
    assert (mine / "thesis.txt").read_text() == "years of work"
    assert names(tmp_path) == {SHARD}

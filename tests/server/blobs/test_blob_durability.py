"""What a power cut would leave of blobs on disk: watched syncs, because a killed process cannot show a missing one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbook.errors import BlobExists
from rollbook.server.blobs.file_blobs import LocalBlobs
from tests.server.blobs.test_local_blobs import KEY, chunks, put
from tests.watched_files import WatchedFiles

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[LocalBlobs]:
    store = LocalBlobs(tmp_path / "blobs", b"secret")
    yield store
    await store.close()


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_a_blob_is_on_disk_when_it_is_acknowledged(
    blobs: LocalBlobs, tmp_path: Path, size: int
) -> None:
    with WatchedFiles(tmp_path) as watched:
        await put(blobs, bytes(size))
        assert watched.after_power_cut(blobs.objects.root / KEY) == bytes(size)
        await put(blobs, b"another")
        assert watched.after_power_cut(blobs.objects.root / KEY) == b"another"
    assert watched.named_before_sync == []


async def test_the_old_blob_or_the_new_one_is_there_at_every_moment(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    await put(blobs, b"old")
    seen = set()

    def look(watched: WatchedFiles) -> None:
        seen.add(watched.after_power_cut(blobs.objects.root / KEY))

    with WatchedFiles(tmp_path, at_each_step=look):
        await put(blobs, b"new")
    assert seen == {b"old", b"new"}


async def test_a_blob_that_must_not_replace_another_is_on_disk_too(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    with WatchedFiles(tmp_path) as watched:
        await blobs.put(KEY, chunks(b"first"), content_type="video/mp4", replace=False)
        assert watched.after_power_cut(blobs.objects.root / KEY) == b"first"
        with pytest.raises(BlobExists):
            await blobs.put(KEY, chunks(b"second"), content_type="video/mp4", replace=False)
    assert watched.named_before_sync == []


async def test_every_part_and_the_whole_are_on_disk_when_they_are_acknowledged(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    """The parts go only when the whole is on disk."""
    whole = blobs.objects.root / KEY

    def something_is_left(watched: WatchedFiles) -> None:
        folder = blobs.root / "uploads" / upload
        parts_are_there = all((folder / name).exists() for name in ("00001", "00002"))
        assert parts_are_there or watched.after_power_cut(whole) == b"onetwo"

    with WatchedFiles(tmp_path) as watched:
        upload = await blobs.start_multipart(KEY, content_type="video/mp4")
        folder = blobs.root / "uploads" / upload
        assert watched.after_power_cut(folder / "key") == KEY.encode()
        for number, data in ((1, b"one"), (2, b"two")):
            await blobs.put_part(KEY, upload, number, chunks(data))
            assert watched.after_power_cut(folder / f"0000{number}") == data
    assert watched.named_before_sync == []
    with WatchedFiles(tmp_path, at_each_step=something_is_left) as watched:
        await blobs.complete_multipart(KEY, upload, await blobs.parts(KEY, upload))
        assert watched.after_power_cut(whole) == b"onetwo"
    assert watched.named_before_sync == []


async def test_what_was_deleted_does_not_come_back(blobs: LocalBlobs, tmp_path: Path) -> None:
    await put(blobs, b"bytes")
    with WatchedFiles(tmp_path) as watched:
        await blobs.delete(KEY)
        assert watched.after_power_cut(blobs.objects.root / KEY) is None


async def test_the_folders_of_a_new_store_are_on_disk(tmp_path: Path) -> None:
    with WatchedFiles(tmp_path) as watched:
        store = LocalBlobs(tmp_path / "new" / "blobs", b"secret")
        names = watched.after_power_cut(tmp_path / "new" / "blobs")
    await store.close()
    assert names == {"objects", "uploads", "incoming"}

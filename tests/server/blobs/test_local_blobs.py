"""What only a disk can do wrong: links, full disks, folders that vanish, processes that are killed."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rollbook.errors import (
    BlobNotFound,
    BlobStoreUnavailable,
    ConfigurationError,
    InvalidBlobKey,
    UploadNotFound,
)
from rollbook.server import blobs as blobs_room
from rollbook.server.blobs import file_blobs
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.files import Incoming
from rollbook.server.blobs.open import open_blobs

pytestmark = pytest.mark.anyio
KEY = "episodes/org/ep/video.mp4"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[LocalBlobs]:
    store = LocalBlobs(tmp_path / "blobs", b"secret")
    yield store
    await store.close()


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def put(blobs: LocalBlobs, data: bytes, key: str = KEY) -> None:
    await blobs.put(key, chunks(data), content_type="video/mp4")


async def read(blobs: LocalBlobs, key: str = KEY) -> bytes:
    return b"".join([chunk async for chunk in await blobs.read(key)])


async def settled(blobs: LocalBlobs) -> list[str]:
    """What is still on its way, after everything has been cleaned up that is going to be."""
    await blobs.close()
    return os.listdir(blobs.root / "incoming")


# -------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_linked_folder_leads_nowhere(blobs: LocalBlobs, tmp_path: Path, depth: int) -> None:
    outside = tmp_path / "outside"
    parts = KEY.split("/")
    (outside / Path(*parts[depth:])).parent.mkdir(parents=True)
    (outside / Path(*parts[depth:])).write_bytes(b"outside")
    link = blobs.root / "objects" / Path(*parts[:depth])
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)

    assert await blobs.head(KEY) is None
    with pytest.raises(BlobNotFound):
        await blobs.read(KEY)
    with pytest.raises(InvalidBlobKey):
        await put(blobs, b"inside")
    await blobs.delete(KEY)
    assert [info.key async for info in blobs.list("")] == []
    assert (outside / Path(*parts[depth:])).read_bytes() == b"outside"


async def test_a_linked_file_is_not_read_and_a_put_replaces_the_link(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    outside = tmp_path / "passwd"
    outside.write_bytes(b"outside")
    place = blobs.root / "objects" / KEY
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    assert await blobs.head(KEY) is None
    for attempt in (blobs.read(KEY), blobs.sha256(KEY)):
        with pytest.raises(BlobNotFound):
            await attempt
    await put(blobs, b"inside")
    assert await read(blobs) == b"inside"
    assert outside.read_bytes() == b"outside"


async def test_a_pipe_is_no_blob_and_nobody_waits_for_it(blobs: LocalBlobs) -> None:
    place = blobs.root / "objects" / KEY
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    with pytest.raises(BlobNotFound):
        await asyncio.wait_for(blobs.read(KEY), 5)
    assert await blobs.head(KEY) is None


async def test_a_blob_lies_neither_above_nor_below_another(blobs: LocalBlobs) -> None:
    await put(blobs, b"x", "a/b")
    for key in ("a", "a/b/c"):
        with pytest.raises(InvalidBlobKey):
            await put(blobs, b"y", key)
    assert await read(blobs, "a/b") == b"x"
    assert await settled(blobs) == []


# ------------------------------------------------------------------------------------ what is left over


async def test_a_put_that_ends_in_any_way_leaves_no_file_behind(blobs: LocalBlobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield bytes(1 << 20)
        raise ConnectionResetError

    await put(blobs, b"kept")
    with pytest.raises(ConnectionResetError):
        await blobs.put(KEY, broken(), content_type="video/mp4")
    for _ in range(20):
        task = asyncio.create_task(blobs.put(KEY, _forever(), content_type="video/mp4"))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await read(blobs) == b"kept"
    assert await settled(blobs) == []


async def test_a_put_that_is_cancelled_while_its_file_is_made_leaves_no_file_behind(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    class SlowlyMade(Incoming):
        def __init__(self, folder: Path) -> None:
            begun.set()
            cancelled.wait()
            super().__init__(folder)

    monkeypatch.setattr(file_blobs, "Incoming", SlowlyMade)
    task = asyncio.create_task(blobs.put(KEY, _forever(), content_type="video/mp4"))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    assert await settled(blobs) == []


async def test_a_part_that_arrives_while_its_upload_is_aborted_leaves_no_folder_behind(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    remove, late = shutil.rmtree, iter([True])

    def removed(folder: Path, *, ignore_errors: bool) -> None:
        for entry in folder.iterdir():
            entry.unlink()
        if next(late, False):
            (folder / "1").write_bytes(b"late")  # after the folder was listed, before it is removed
        else:
            remove(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", removed)
    await blobs.abort_multipart(KEY, upload)
    assert os.listdir(blobs.root / "uploads") == []


async def _forever() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield bytes(1 << 18)


async def test_a_deleted_blob_takes_its_empty_folders_along(blobs: LocalBlobs) -> None:
    await put(blobs, b"x", "a/b/c/d")
    await put(blobs, b"x", "a/e")
    await blobs.delete("a/b/c/d")
    assert sorted(path.name for path in (blobs.root / "objects" / "a").iterdir()) == ["e"]
    await blobs.delete("a/e")
    assert list((blobs.root / "objects").iterdir()) == []


async def test_puts_and_deletes_in_one_folder_do_not_disturb_each_other(blobs: LocalBlobs) -> None:
    async def come_and_go(name: str) -> None:
        for _ in range(40):
            await put(blobs, name.encode(), f"a/b/{name}")
            assert await read(blobs, f"a/b/{name}") == name.encode()
            await blobs.delete(f"a/b/{name}")

    await asyncio.gather(*(come_and_go(f"n{number}") for number in range(4)))
    assert [info async for info in blobs.list("")] == []


async def test_a_sweep_removes_what_a_killed_process_left(blobs: LocalBlobs) -> None:
    left = blobs.root / "incoming" / "0123"
    left.write_bytes(b"half")
    assert await blobs.sweep(older_than_s=60) == 0
    os.utime(left, (0, 0))
    assert await blobs.sweep(older_than_s=60) == 1
    assert not left.exists()


async def test_an_upload_id_is_no_path(blobs: LocalBlobs, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY.encode())
    for upload in ("..", "../..", "", ".", "/" + "0" * 31, "0" * 32, "0" * 31 + "/"):
        with pytest.raises(UploadNotFound):
            await blobs.parts(KEY, upload)
        with pytest.raises(UploadNotFound):
            await blobs.put_part(KEY, upload, 1, chunks(b"x"))
        await blobs.abort_multipart(KEY, upload)
    assert (tmp_path / "key").exists()


async def test_a_killed_completion_can_be_repeated(blobs: LocalBlobs) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await blobs.put_part(KEY, upload, 1, chunks(b"one"))
    parts = await blobs.parts(KEY, upload)
    saved = blobs.root / "uploads" / upload
    os.rename(saved, blobs.root / "saved")
    os.mkdir(saved)
    for name in os.listdir(blobs.root / "saved"):
        os.link(blobs.root / "saved" / name, saved / name)
    await blobs.complete_multipart(KEY, upload, parts)
    # the blob is in place and the parts are still there: where a kill could have struck
    os.rename(blobs.root / "saved", saved)
    await blobs.complete_multipart(KEY, upload, parts)
    assert await read(blobs) == b"one"
    assert os.listdir(blobs.root / "uploads") == []


async def test_a_download_goes_on_after_the_blob_is_deleted(blobs: LocalBlobs) -> None:
    data = os.urandom(3 << 20)
    await put(blobs, data)
    stream = await blobs.read(KEY)
    got = [await anext(stream)]
    await blobs.delete(KEY)
    got += [chunk async for chunk in stream]
    assert b"".join(got) == data


# ------------------------------------------------------------------------------------------ the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_keeps_nothing_and_then_works_again(small_disk: Path) -> None:
    blobs = LocalBlobs(small_disk, b"secret")
    try:
        await put(blobs, b"old")
        with pytest.raises(BlobStoreUnavailable, match="full"):
            await put(blobs, bytes(4 << 20))
        assert await read(blobs) == b"old"
        upload = await blobs.start_multipart(KEY, content_type="video/mp4")
        for number in (1, 2):
            await blobs.put_part(KEY, upload, number, chunks(bytes(1 << 20)))
        parts = await blobs.parts(KEY, upload)
        with pytest.raises(BlobStoreUnavailable, match="full"):
            await blobs.complete_multipart(KEY, upload, parts)
        assert await read(blobs) == b"old"
        assert await blobs.parts(KEY, upload) == parts
        await blobs.abort_multipart(KEY, upload)
        await put(blobs, bytes(2 << 20))
        assert await settled(blobs) == []
    finally:
        await blobs.close()


async def test_a_file_the_system_does_not_let_grow_keeps_nothing(blobs: LocalBlobs) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    await put(blobs, b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(BlobStoreUnavailable, match="full"):
            await put(blobs, bytes(3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await read(blobs) == b"old"
    assert await settled(blobs) == []


async def test_a_store_whose_folder_is_gone_is_not_ready_and_not_empty(blobs: LocalBlobs) -> None:
    await put(blobs, b"x")
    os.rename(blobs.root, blobs.root.with_name("unmounted"))
    for attempt in (blobs.check(), blobs.head(KEY), blobs.sha256(KEY), put(blobs, b"y")):
        with pytest.raises(BlobStoreUnavailable, match="mounted"):
            await attempt
    os.rename(blobs.root.with_name("unmounted"), blobs.root)
    await blobs.check()
    assert await read(blobs) == b"x"


_KILLED = """
import asyncio, os, sys
from pathlib import Path
from rollbook.server.blobs import file_blobs
from rollbook.server.blobs.file_blobs import LocalBlobs

async def forever(value):
    for _ in range(40):
        await asyncio.sleep(0)
        yield bytes([value]) * (1 << 18)

async def main():
    blobs = LocalBlobs(Path(sys.argv[1]), b"secret")
    for value in range(1, 250):
        await blobs.put("a/b", forever(value), content_type="video/mp4")
        print(value, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_blob_is_whole_whenever_its_writer_is_killed(blobs: LocalBlobs) -> None:
    for turn in range(15):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(blobs.root)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        told = int(process.stdout.readline())
        killer = threading.Timer(0.013 * turn, process.kill)
        killer.start()
        told = max([told, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        data = await read(blobs, "a/b")
        assert len(data) == 40 << 18
        assert data == data[:1] * len(data)
        assert data[0] >= told, "what was acknowledged is there, or what came after it"
    assert await blobs.sweep(older_than_s=-5) >= 1


def test_a_file_url_names_the_folder_and_anything_else_is_explained(tmp_path: Path) -> None:
    store = open_blobs((tmp_path / "a b").as_uri(), secret=b"s")
    assert isinstance(store, LocalBlobs)
    assert store.root == tmp_path / "a b"
    for url in (
        "ftp://host/x",
        "file://host/x",
        "/plain/path",
        "s3://",
        "s3://UPPER/x",
        "s3://b/../x",
    ):
        with pytest.raises(ConfigurationError, match="blobs: "):
            open_blobs(url, secret=b"s")


def test_a_backend_is_one_module_named_for_its_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "def open_url(url, *, secret, s3_endpoint, **more):\n    return url, secret, s3_endpoint\n"
    )
    (tmp_path / "gs_blobs.py").write_text(code)
    (tmp_path / "az_blobs.py").write_text("import azure_is_not_installed\n")
    monkeypatch.setattr(blobs_room, "__path__", [*blobs_room.__path__, str(tmp_path)])
    opened: object = open_blobs("gs://bucket/x", secret=b"s")
    assert opened == ("gs://bucket/x", b"s", None)
    with pytest.raises(ConfigurationError, match="az:// needs azure_is_not_installed"):
        open_blobs("az://bucket", secret=b"s")
    with pytest.raises(ConfigurationError, match="one of file://, s3://, az://, gs://"):
        open_blobs("ftp://host", secret=b"s")


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        LocalBlobs(tmp_path / "file", b"secret")


def test_parts_are_joined_without_the_help_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "copy_file_range", refused)
    part = tmp_path / "part"
    part.write_bytes(os.urandom(3 << 20))
    whole = Incoming(tmp_path)
    for _ in range(2):
        with open(part, "rb", buffering=0) as file:
            whole.append(file)
    assert whole.path.read_bytes() == part.read_bytes() * 2
    whole.discard()

"""An S3 that is frozen (SIGSTOP) takes connections and answers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from rollbook.errors import BlobStoreUnavailable
from rollbook.server.blobs import s3_blobs
from rollbook.server.blobs.open import open_blobs
from rollbook.server.blobs.s3_blobs import S3Blobs
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    Served,
    frozen,
    rclone_server,
)

pytestmark = pytest.mark.anyio
_KEY = "episodes/org/ep/sensors.npz"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture
async def blobs(rclone: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Blobs]:
    """The limits are short, and there are two threads."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setattr(s3_blobs, "_REQUESTS_AT_ONCE", 2)
    monkeypatch.setattr(s3_blobs, "_READ_S", 0.5)
    monkeypatch.setattr(s3_blobs, "_LONGEST_CALL_S", 0.5)
    opened = open_blobs(f"s3://{BUCKET}", secret=b"", s3_endpoint=rclone.url)
    assert isinstance(opened, S3Blobs)
    await opened.put(_KEY, _chunks(b"stored"), content_type="application/octet-stream")
    yield opened
    await opened.close()


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_every_call_is_given_up_in_time_and_the_threads_are_free_again(
    blobs: S3Blobs, rclone: Served
) -> None:
    with frozen(rclone):
        more_than_threads = [blobs.check() for _ in range(4)]
        answers = await asyncio.gather(*more_than_threads, blobs.head(_KEY), return_exceptions=True)
        assert [type(each) for each in answers] == [BlobStoreUnavailable] * 5
        with pytest.raises(BlobStoreUnavailable):
            await blobs.put("a/b", _chunks(b"x" * 50_000), content_type="text/plain")
    await _until_ready(blobs)
    assert await blobs.head(_KEY) is not None


async def test_a_download_that_stops_in_the_middle_is_given_up(
    blobs: S3Blobs, rclone: Served
) -> None:
    size = 32 << 20
    pieces = (b"x" * (1 << 20) for _ in range(size >> 20))
    await blobs.put("large", _chunks(*pieces), content_type="application/octet-stream")
    body = await blobs.read("large")
    await anext(body)
    with frozen(rclone), pytest.raises(BlobStoreUnavailable):
        async for _ in body:
            pass
    await _until_ready(blobs)


async def _until_ready(blobs: S3Blobs) -> None:
    """Threads that wait for S3 end soon after it answers again."""
    for _ in range(50):
        try:
            return await blobs.check()
        except BlobStoreUnavailable:
            await asyncio.sleep(0.1)
    await blobs.check()

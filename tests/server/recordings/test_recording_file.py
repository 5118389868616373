"""A recording is read by range, on disk and in an object store: one channel costs a part of the file, and the second
look costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.interface import BlobInfo, BlobStore
from rollbook.server.kept_values import KeptValues
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.recording_file import RecordingFile
from rollbook.server.recordings.tracks import TracksQuery, tracks_of
from tests.server.recordings.stored_recording import npz_bytes, read_body

KEY = "episodes/org/episode/sensors.npz"
ROWS = 200_000
TOPICS = 10


class Elsewhere:
    """The blobs of a folder as an object store gives them: by ranges, which are counted."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs
        self.bytes = 0
        self.requests = 0

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        self.requests += 1
        chunks = await self._blobs.read(key, start, end)

        async def counted() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                self.bytes += len(chunk)
                yield chunk

        return counted()


def recording() -> bytes:
    times = np.arange(ROWS) * 10**6
    arrays: dict[str, Any] = {"/all/_t_ns": times}
    for topic in range(TOPICS):
        arrays[f"/all/q{topic}"] = np.sin(times / 1e9 + topic)
    return npz_bytes(arrays)


def episode() -> EpisodeRow:
    about = dict.fromkeys(EpisodeRow.__slots__)
    return EpisodeRow(**{**about, "metadata": {}, "artifacts": ()})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("blobs")

    async def put() -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield recording()

        blobs = LocalBlobs(made, b"secret")
        await blobs.put(KEY, chunks(), content_type="application/octet-stream")
        await blobs.close()

    asyncio.run(put())
    return made


def drawn(
    folder: Path, asked: TracksQuery, *, elsewhere: bool, kept: KeptValues | None = None
) -> tuple[bytes, BlobInfo, Elsewhere]:
    async def run() -> tuple[bytes, BlobInfo, Elsewhere]:
        local = LocalBlobs(folder, b"secret")
        remote = Elsewhere(local)
        info = await local.head(KEY)
        assert info is not None
        blobs = cast(BlobStore, remote) if elsewhere else local
        keeper = KeptValues(64 << 20) if kept is None else kept
        file = RecordingFile(blobs, keeper, asyncio.get_running_loop(), "sensors", info)
        body = await asyncio.to_thread(tracks_of, [file], {}, episode(), asked)
        file.close()
        await local.close()
        return body, info, remote

    return asyncio.run(run())


ONE = TracksQuery(columns=1200, names=("/all/q3",))


def test_an_object_store_and_a_folder_give_the_same_picture(folder: Path) -> None:
    here, _, _ = drawn(folder, ONE, elsewhere=False)
    there, _, _ = drawn(folder, ONE, elsewhere=True)
    assert here == there
    head, data = read_body(here)
    assert head["channels"][0]["samples"] == ROWS
    assert np.nanmax(data) == pytest.approx(1, abs=1e-6)


def test_one_channel_fetches_its_array_and_the_clock_and_nothing_else(folder: Path) -> None:
    _, info, store = drawn(folder, ONE, elsewhere=True)
    assert store.bytes < 0.3 * info.size, "the clock and one of ten arrays"
    assert store.requests < 30


def test_the_head_fetches_no_array(folder: Path) -> None:
    _, info, store = drawn(folder, TracksQuery(), elsewhere=True)
    assert store.bytes < 0.2 * info.size, "the clock and the headers"


def test_a_second_look_fetches_nothing(folder: Path) -> None:
    kept = KeptValues(64 << 20)
    first, _, _ = drawn(folder, ONE, elsewhere=True, kept=kept)
    second, _, store = drawn(folder, ONE, elsewhere=True, kept=kept)
    assert (second, store.requests) == (first, 0)


@pytest.mark.parametrize("most", [0, 1 << 20, 4 << 20])
def test_what_is_kept_never_exceeds_its_limit_and_changes_no_answer(
    folder: Path, most: int
) -> None:
    kept = KeptValues(most)
    asked = TracksQuery(columns=300)
    assert (
        drawn(folder, asked, elsewhere=False, kept=kept)[0]
        == (drawn(folder, asked, elsewhere=False)[0])
    )
    assert kept.bytes <= most


def test_an_array_that_is_too_large_to_keep_is_drawn_piece_by_piece(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Callable[[], bytes]] = [
        lambda: drawn(folder, TracksQuery(2.0, 7.0, 100, ("/all/q1",)), elsewhere=False)[0],
        lambda: drawn(folder, TracksQuery(columns=100, names=("/all/q1",)), elsewhere=True)[0],
    ]
    kept = [read_body(each()) for each in answers]
    monkeypatch.setattr("rollbook.server.recordings.tracks.MOST_KEPT_OF_ONE", 1000)
    streamed = [read_body(each()) for each in answers]
    for (_, one), (_, other) in zip(kept, streamed, strict=True):
        np.testing.assert_array_equal(one, other)
    assert streamed[1][0]["channels"] == kept[1][0]["channels"]

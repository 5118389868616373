"""BlobFile: a blob in S3 as a file that is read at any position, from a thread. Only the ranges that are read are
fetched."""

from __future__ import annotations

import asyncio
import io
import os
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rollbook.server.blobs.interface import BlobInfo, BlobStore

T = TypeVar("T")

_SMALL = 1 << 20
"""A blob up to this size is fetched whole."""
_TAIL = 64 << 10
"""The end of a larger blob is fetched first: a zip archive has its table of contents there."""
_HEAD = 6 << 10
"""Bytes that are fetched from a prepared position on."""
_GAP = 8 << 10
"""Ranges that are no farther apart are fetched as one."""
_REQUESTS_AT_ONCE = 8


class BlobFile(io.RawIOBase):
    """Keeps the end of the blob and what was prepared last, so that memory stays small for any blob."""

    def __init__(self, blobs: BlobStore, info: BlobInfo, loop: asyncio.AbstractEventLoop) -> None:
        self._blobs = blobs
        self._info = info
        self._loop = loop
        self._position = 0
        tail_at = 0 if info.size <= _SMALL else info.size - _TAIL
        self._tail = (tail_at, self._wait(self._range(tail_at, info.size)) if info.size else b"")
        self._pieces: list[tuple[int, bytes]] = []
        """Ordered by the position where each begins; they do not overlap."""

    def prepare(self, positions: Sequence[int]) -> None:
        """Fetches the bytes after each position with a few requests at a time, before they are read one by one."""
        wanted = [at for at in positions if at < self._tail[0]]
        self._pieces = self._wait(self._ranges(_merged(wanted)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.size}[whence]
        if base + offset < 0:
            raise OSError("a position before the beginning of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        end = self._info.size
        if size is not None and size >= 0:
            end = min(end, self._position + size)
        if end <= self._position:
            return b""
        data = self._kept(self._position, end)
        if data is None:
            data = self._wait(self._range(self._position, end))
        self._position += len(data)
        return data

    def _kept(self, start: int, end: int) -> bytes | None:
        at, piece = self._tail
        if start < at:
            number = bisect_right(self._pieces, start, key=lambda each: each[0])
            if number == 0:
                return None
            at, piece = self._pieces[number - 1]
        return piece[start - at : end - at] if end <= at + len(piece) else None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _range(self, start: int, end: int) -> bytes:
        chunks = await self._blobs.read(self._info.key, start, end)
        return b"".join([chunk async for chunk in chunks])

    async def _ranges(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
        gate = asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def one(start: int, end: int) -> tuple[int, bytes]:
            async with gate:
                return start, await self._range(start, end)

        return await asyncio.gather(*(one(start, end) for start, end in ranges))


def _merged(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges from each position on, in order; close ones become one."""
    ranges: list[tuple[int, int]] = []
    for at in sorted(positions):
        if ranges and at <= ranges[-1][1] + _GAP:
            ranges[-1] = ranges[-1][0], at + _HEAD
        else:
            ranges.append((at, at + _HEAD))
    return ranges

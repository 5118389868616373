"""FileSlice: a part of a file that is sent piece by piece; a watcher sees every piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollbook.errors import TruncatedFile

PIECE = 1 << 18


class Watcher(Protocol):
    """Sees each piece that is sent. An error that it raises ends the sending."""

    def begin(self) -> None:
        """Called before the first piece, and again when the slice is sent again from its start."""

    def check(self) -> None:
        """Called after a wait. Raises when nobody needs the slice any more."""

    def piece(self, piece: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    path: Path
    start: int
    length: int
    watcher: Watcher | None = None

    def pieces(self, size: int = PIECE) -> Iterator[bytes]:
        """Exactly `length` bytes, as announced. Raises TruncatedFile if the file has become shorter."""
        watcher = self.watcher
        if watcher is not None:
            watcher.begin()
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.start)
            left = self.length
            while left:
                piece = file.read(min(size, left))
                if not piece:
                    detail = f"it lost {left} bytes while it was being sent; send it again"
                    raise TruncatedFile(path=str(self.path), detail=detail)
                if watcher is not None:
                    watcher.piece(piece)
                yield piece
                left -= len(piece)


def sha256_of(path: Path, start: int = 0, length: int | None = None) -> str:
    hasher = hashlib.sha256()
    size = path.stat().st_size - start if length is None else length
    for piece in FileSlice(path, start, size).pieces():
        hasher.update(piece)
    return hasher.hexdigest()

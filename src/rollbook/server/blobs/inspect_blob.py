"""A look at many blobs: what lies there now, and its SHA-256 where that is asked for.

On a local disk a few threads do all of it, and what is hashed is what was measured: both come from one open file. S3
is asked what there is before its bytes are read and after, so that bytes which are replaced meanwhile do not pass.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rollbook.errors import BlobStoreUnavailable
from rollbook.server.blobs.confined_files import Rooted
from rollbook.server.blobs.files import disk_errors, info_of
from rollbook.server.blobs.interface import BlobInfo, BlobStore, check_key
from rollbook.server.blobs.local import LocalBlobs

_THREADS = 4
_AT_ONCE = 32
"""Of those in S3; the others wait."""
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Question:
    key: str
    is_hashed: Callable[[BlobInfo], bool]
    """Whether something like this is to be read and hashed. Called in a thread."""


@dataclass(frozen=True, slots=True)
class Look:
    info: BlobInfo
    sha256: str | None


Answer: TypeAlias = "Look | Exception | None"
"""None: there is nothing. An exception holds none of the others back."""


async def look_at_blobs(blobs: BlobStore, questions: Sequence[Question]) -> list[Answer]:
    """In the order of the questions."""
    if isinstance(blobs, LocalBlobs):
        return await _looked_at_on_disk(blobs, questions)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(question: Question) -> Answer:
        async with gate:
            try:
                return await _looked_at_from_afar(blobs, question)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                return error

    return await asyncio.gather(*map(one, questions))


# -------------------------------------------------------------------------------------- local disk


async def _looked_at_on_disk(blobs: LocalBlobs, questions: Sequence[Question]) -> list[Answer]:
    def look(some: Sequence[Question]) -> list[Answer]:
        return [_looked_at_file(blobs.objects, each) for each in some]

    answers: list[Answer] = [None] * len(questions)
    threads = min(_THREADS, len(questions))
    shares = (asyncio.to_thread(look, questions[at::threads]) for at in range(threads))
    for at, found in enumerate(await asyncio.gather(*shares)):
        answers[at::threads] = found
    return answers


def _looked_at_file(objects: Rooted, question: Question) -> Answer:
    """A blob is a new file whenever it is put, so an open one stays what it is."""
    try:
        with disk_errors(), objects.open(check_key(question.key).split("/")) as file:
            info = info_of(question.key, os.fstat(file.fileno()))
            if not question.is_hashed(info):
                return Look(info, None)
            return Look(info, hashlib.file_digest(file, "sha256").hexdigest())
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
        return error


# --------------------------------------------------------------------------------------------- S3


async def _looked_at_from_afar(blobs: BlobStore, question: Question) -> Answer:
    info = await blobs.head(question.key)
    for _ in range(_MOST_TRIES):
        if info is None or not question.is_hashed(info):
            return None if info is None else Look(info, None)
        sha256 = await blobs.sha256(question.key)
        before, info = info, await blobs.head(question.key)
        if info == before:
            return Look(info, sha256)
    name = question.key.rpartition("/")[2]
    raise BlobStoreUnavailable(
        detail=f"{name} is replaced again and again; finish the upload first"
    )

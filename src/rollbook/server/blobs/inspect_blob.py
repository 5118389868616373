"""Inspects many blobs: size, etag and time of each, and its SHA-256 and its arrays where the caller asks for them.

On local disk a few threads do all of it, and the hashed file is the measured file: both come from one descriptor. S3 is
asked before the bytes are read and after, so that bytes which are replaced in between do not pass. The arrays of an
NPZ archive are not unpacked: its table of contents and their headers are read, by ranges on S3.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias, cast

from rollbook.contracts.npz import NpzContent, inspect_npz
from rollbook.errors import BlobStoreUnavailable
from rollbook.server.blobs.blob_file import BlobFile
from rollbook.server.blobs.confined_files import ConfinedFiles
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.files import disk_errors, info_of
from rollbook.server.blobs.interface import BlobInfo, BlobStore, check_key

_THREADS = 4
_AT_ONCE = 32
"""Blobs in S3 that are inspected at once; the others wait."""
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Question:
    key: str
    is_hashed: Callable[[BlobInfo], bool]
    """Whether a blob with these properties is to be read and hashed. Called in a thread."""
    npz: str | None = None
    """The name, for messages, of the NPZ archive that a hashed blob should be. None: its content is not inspected."""


@dataclass(frozen=True, slots=True)
class Inspection:
    info: BlobInfo
    sha256: str | None
    content: NpzContent | None = None


Answer: TypeAlias = "Inspection | Exception | None"
"""None: the blob does not exist. An exception concerns only this blob."""


async def inspect_blobs(blobs: BlobStore, questions: Sequence[Question]) -> list[Answer]:
    """Results in the order of the questions."""
    if isinstance(blobs, LocalBlobs):
        return await _inspect_on_disk(blobs, questions)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(question: Question) -> Answer:
        async with gate:
            try:
                return await _inspect_on_s3(blobs, question)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                return error

    return await asyncio.gather(*map(one, questions))


# -------------------------------------------------------------------------------------- local disk


async def _inspect_on_disk(blobs: LocalBlobs, questions: Sequence[Question]) -> list[Answer]:
    def inspect_all(some: Sequence[Question]) -> list[Answer]:
        return [_inspect_file(blobs.objects, each) for each in some]

    answers: list[Answer] = [None] * len(questions)
    threads = min(_THREADS, len(questions))
    shares = (asyncio.to_thread(inspect_all, questions[at::threads]) for at in range(threads))
    for at, found in enumerate(await asyncio.gather(*shares)):
        answers[at::threads] = found
    return answers


def _inspect_file(objects: ConfinedFiles, question: Question) -> Answer:
    """Every put makes a new file, so an open file keeps its bytes."""
    try:
        with disk_errors(), objects.open(check_key(question.key).split("/")) as file:
            info = info_of(question.key, os.fstat(file.fileno()))
            if not question.is_hashed(info):
                return Inspection(info, None)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            named = question.npz
            return Inspection(
                info, sha256, None if named is None else inspect_npz(file, record=named)
            )
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
        return error


# --------------------------------------------------------------------------------------------- S3


async def _inspect_on_s3(blobs: BlobStore, question: Question) -> Answer:
    info = await blobs.head(question.key)
    for _ in range(_MOST_TRIES):
        if info is None or not question.is_hashed(info):
            return None if info is None else Inspection(info, None)
        sha256 = await blobs.sha256(question.key)
        content = await _npz_content(blobs, info, question.npz)
        before, info = info, await blobs.head(question.key)
        if info == before:
            return Inspection(info, sha256, content)
    name = question.key.rpartition("/")[2]
    raise BlobStoreUnavailable(
        detail=f"{name} is replaced again and again; finish the upload first"
    )


async def _npz_content(blobs: BlobStore, info: BlobInfo, named: str | None) -> NpzContent | None:
    if named is None:
        return None
    loop = asyncio.get_running_loop()

    def inspect() -> NpzContent:
        file = BlobFile(blobs, info, loop)
        return inspect_npz(cast(BinaryIO, file), record=named, prepare=file.prepare)

    return await asyncio.to_thread(inspect)

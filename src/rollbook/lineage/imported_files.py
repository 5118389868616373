"""Files and folders of other tools that episodes were imported from."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from rollbook.contracts.source_file import digest_of_files
from rollbook.digest import file_sha256
from rollbook.lineage.record_ref import RecordRef, counted, episodes, recording, short
from rollbook.lineage.records import Step, not_found
from rollbook.lineage.report import Check, Node, broken_by, compared
from rollbook.lineage.shelf import Shelf


class ImportedFiles:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def describe(self, ref: RecordRef) -> Node:
        name, *files = ref.ids
        found, check = self._compared(ref.home, name, files)
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=f"imported recording {name} ({short(ref.home)})",
            place=None if found is None else str(found),
            facts={"digest": ref.home, "files": str(max(1, len(files)))},
            checks=(check,),
        )

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        yield from ()

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        server = self._shelf.server
        ids = [] if server is None else server.episodes_of_file(ref.home)
        if ids:
            yield Step("imported as", episodes(ids), f"SHA-256 {short(ref.home)}")

    def _compared(self, digest: str, name: str, files: list[str]) -> tuple[Path | None, Check]:
        """The place of the recording, and what its digest is today."""
        what = f"SHA-256 of {name}"
        wrong: tuple[Path, Check] | None = None
        for path in dict.fromkeys(self._shelf.recordings_named(name)):
            if path.is_dir() and not files:
                detail = f"it was imported from too many files to list; import {path} again"
                return path, Check(what=what, state="missing", detail=detail, where=str(path))
            try:
                today = _digest(path, files)
            except OSError as error:
                wrong = wrong or (path, broken_by(what, error, str(path)))
                continue
            check = compared(what, digest, today, where=str(path))
            if check.state == "verified":
                detail = f"{counted(max(1, len(files)), 'file')} hashed again"
                return path, compared(what, digest, today, detail, str(path))
            wrong = wrong or (path, check)
        if wrong is not None:
            return wrong
        for path in self._shelf.recordings:  # one that was renamed is still the same file
            if _is_recording(path, files, digest):
                detail = f"{counted(max(1, len(files)), 'file')} hashed again; its name was {name}"
                return path, compared(what, digest, digest, detail, str(path))
        wanted = f"a recording named {name} with the digest {digest}"
        return None, not_found(self._shelf, wanted, ("recording",), "name it with --recording")


def _digest(path: Path, files: list[str]) -> str:
    """As an import computes it: of one file its SHA-256, of several the digest over names, sizes and SHA-256."""
    if not files:
        return _hashed(path)[1]
    if len(files) == 1:
        return _hashed(path / files[0])[1]
    return digest_of_files([(each, *_hashed(path / each)) for each in files])


def _hashed(path: Path) -> tuple[int, str]:
    """Size and SHA-256. A pipe would be waited for, and a device has no end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return file_sha256(path)


def imported_at(path: Path, shelf: Shelf) -> Iterator[RecordRef]:
    """The file or folder at a path, if the server has episodes that were imported from it."""
    server = shelf.server
    if server is None:
        return
    shelf.recordings.append(path)
    if path.is_file():
        digest = file_sha256(path)[1]
        if server.episodes_of_file(digest):
            yield recording(digest, path.resolve().name, ())
        return
    for source in server.sources_named(path.resolve().name):
        if source.names and _is_recording(path, list(source.names), source.digest):
            yield recording(source.digest, source.name, source.names)


def _is_recording(path: Path, files: list[str], digest: str) -> bool:
    try:
        return _digest(path, files) == digest
    except OSError:
        return False

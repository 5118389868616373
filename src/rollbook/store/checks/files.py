"""Checks of the files: exactly those in the manifest, in the right size. A deep check also compares their bytes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollbook.digest import checksum
from rollbook.store.checks.columns import NotUsable, StoreColumns
from rollbook.store.checks.violation import Violation
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    ROLLOUT_MANIFEST_VERSION,
    FileSums,
    content_sha256,
)

_SEALED = frozenset({ROLLOUT_MANIFEST_FILENAME, "zarr.json"})
"""These files are not in the list: the manifest cannot list itself, and opening the store compares the two."""
_LARGE = 1 << 20
_THREADS = 4
_MOST_LISTED = 20


def check_manifest_fields(columns: StoreColumns) -> Iterator[Violation]:
    manifest = columns.store.manifest()["manifest"]
    expected = {
        "manifest_version": ROLLOUT_MANIFEST_VERSION,
        "schema_id": columns.attrs.get("schema_id"),
        "schema_version": columns.attrs.get("schema_version"),
        "content_sha256": content_sha256(_manifest_files(columns)),
    }
    for name, value in expected.items():
        if manifest.get(name) != value:
            yield Violation(
                "manifest_field",
                "",
                f"the manifest's {name} is {manifest.get(name)!r}, not {value!r}",
            )


def check_files(columns: StoreColumns) -> Iterator[Violation]:
    """Names and sizes only. This finds incomplete copies and manual changes in the folder."""
    listed = _manifest_files(columns)
    found = dict(_files_below(columns.store.store_dir, ""))
    yield from _first_of(
        Violation("missing_file", _table(path), f"{path} is missing; copy the store again")
        for path in sorted(listed.keys() - found.keys())
    )
    yield from _first_of(
        Violation(
            "wrong_file_size",
            _table(path),
            f"{path} has {found[path]} bytes, the manifest says {listed[path][0]}; copy the store again",
        )
        for path in sorted(listed.keys() & found.keys())
        if found[path] != listed[path][0]
    )
    yield from _first_of(
        Violation("unlisted_file", _table(path), f"{path} is not in the manifest; remove it")
        for path in sorted(found.keys() - listed.keys() - _SEALED)
    )


def check_checksums(columns: StoreColumns) -> Iterator[Violation]:
    """Every byte of every listed file. This finds a single flipped bit."""
    if not columns.deep:
        return
    listed = _manifest_files(columns)
    sums = _checksums(f"{columns.store.store_dir}{os.sep}", listed)
    yield from _first_of(
        Violation(
            "checksum_mismatch",
            _table(path),
            f"the bytes of {path} are not those that were written; copy the store again",
        )
        for path in sorted(sums)
        if sums[path] not in (listed[path][1], None)
    )


def _manifest_files(columns: StoreColumns) -> FileSums:
    files = columns.store.manifest()["manifest"].get("files")
    try:
        return {path: (int(size), str(digest)) for path, (size, digest) in files.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise NotUsable(f"the manifest has no list of files: {error}") from error


def _files_below(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Every file with its size. A symbolic link counts as itself, not as its target."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(folder / entry.name, f"{name}/")
            else:
                yield name, entry.stat(follow_symlinks=False).st_size


def _checksums(folder: str, listed: FileSums) -> dict[str, str | None]:
    """Large files are read by several threads; for small files that would be slower."""
    large = [path for path, (size, _) in listed.items() if size >= _LARGE]
    small = [path for path, (size, _) in listed.items() if size < _LARGE]
    with ThreadPoolExecutor(_THREADS) as threads:
        actual = threads.map(lambda path: _checksum_of(folder + path), large)
        sums = dict(zip(large, actual, strict=True))
    return sums | {path: _checksum_of(folder + path) for path in small}


def _checksum_of(path: str) -> str | None:
    """The checksum of a file; None if the file is missing, which is another violation."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return "unreadable"
    try:
        return _checksum_of_open(descriptor, os.fstat(descriptor).st_size)
    except OSError:
        return "unreadable"
    finally:
        os.close(descriptor)


def _checksum_of_open(descriptor: int, size: int) -> str:
    if size < _LARGE:
        return checksum(os.read(descriptor, size))
    with (
        mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as pages,
        memoryview(pages) as data,
    ):
        return checksum(data)


def _table(path: str) -> str:
    return path.split("/")[0] if "/" in path else ""


def _first_of(violations: Iterator[Violation]) -> Iterator[Violation]:
    """The first violations, and a count of the others. A damaged store can have thousands."""
    for number, violation in enumerate(violations):
        if number == _MOST_LISTED:
            left = 1 + sum(1 for _ in violations)
            yield Violation(violation.code, "", f"and {left} more files")
            return
        yield violation

"""Checks of the files: exactly those in the manifest, in the right size. A deep check also compares their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rollbook.store.checks.columns import NotUsable, StoreColumns
from rollbook.store.checks.violation import Violation
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    ROLLOUT_MANIFEST_VERSION,
    SHARD_SIDECARS,
    FileSums,
    content_sha256,
)
from rollbook.store.stored_files import file_checksums

_SEALED = frozenset({ROLLOUT_MANIFEST_FILENAME, "zarr.json"})
"""These files are not in the list: the manifest cannot list itself, and opening the store compares the two."""
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
        for path in sorted(found.keys() - listed.keys() - _SEALED - SHARD_SIDECARS)
    )


def check_checksums(columns: StoreColumns) -> Iterator[Violation]:
    """Every byte of every listed file. This finds a single flipped bit."""
    if not columns.deep:
        return
    listed = _manifest_files(columns)
    sizes = {path: size for path, (size, _) in listed.items()}
    sums = file_checksums(columns.store.store_dir, sizes)
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

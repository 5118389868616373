"""Validation of a source store: a list of small checks, which all run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollbook.errors import NotASourceStore, RollbookError, StorageError, UnsupportedVersion
from rollbook.generate.sources.checks import (
    CheckedStore,
    Found,
    Progress,
    check_arrays,
    check_counts,
    check_files,
    check_index,
    check_offsets,
    check_rows,
    check_scenes,
    check_splits,
    path_notes,
    shared_mesh_notes,
)
from rollbook.generate.sources.documents import (
    SourceManifest,
    decoded,
    read_document,
    read_manifest,
)
from rollbook.generate.sources.layout import MANIFEST_FILE
from rollbook.generate.sources.row_checks import ROW_CODES
from rollbook.notebook import shown_progress
from rollbook.store.checks.violation import Violation

CODES = {
    "opening": (
        *("not_a_source_store", "unsupported_version", "manifest_mismatch"),
        *("document_missing", "document_mismatch", "document_unreadable"),
    ),
    "files": (
        *("missing_array", "unlisted_file", "linked_file", "oracle_in_actor"),
        *("unreadable_array", "wrong_array", "checksum_mismatch"),
    ),
    "splits": (
        *("scene_in_two_splits", "scene_without_split", "unknown_scene"),
        *("split_differs", "split_hash_mismatch"),
    ),
    "index": ("wrong_order", "wrong_place", "wrong_key", "wrong_digest", "wrong_count"),
    "content": ("wrong_offsets", "unreadable_row", *ROW_CODES),
    "meshes": ("mesh_mismatch", "wrong_scene_facts"),
}
"""All codes by topic. A code never changes its meaning; new codes may be added."""

_CHECKS: tuple[Callable[[CheckedStore], Found], ...] = (
    check_files,
    check_arrays,
    check_splits,
    check_index,
    check_counts,
    check_offsets,
    check_rows,
    check_scenes,
)


@dataclass(frozen=True, slots=True)
class SourceValidation:
    """The size of a store and all its violations."""

    path: Path
    rows: int
    scenes: int
    violations: tuple[Violation, ...]
    notes: tuple[str, ...] = ()
    """Facts that may surprise and are no violations: paths that pass through surfaces, a mesh in two splits."""

    @property
    def ok(self) -> bool:
        return not self.violations


def validate_source_store(
    path: str | os.PathLike[str], *, deep: bool = False, progress: Progress | None = None
) -> SourceValidation:
    """All violations of a store. `deep` also reads every array and compares it with its digest.

    A bad store raises nothing. A folder that is not a source store gives one violation and zero counts.
    """
    folder = Path(path).absolute()
    try:
        manifest, found = _lenient_manifest(folder)
    except RollbookError as error:
        code = "unsupported_version" if isinstance(error, UnsupportedVersion) else None
        violation = Violation(code or "not_a_source_store", "", str(error))
        return SourceValidation(folder, 0, 0, (violation,))
    with shown_progress("validating the source store", progress) as shown:
        checked = CheckedStore(folder, manifest, deep, shown)
        found += checked.reported
        for check in _CHECKS:
            found += check(checked)
    return SourceValidation(
        folder,
        len(checked.store.index),
        len(manifest.scenes),
        tuple(found),
        (*shared_mesh_notes(checked), *path_notes(checked)),
    )


def _lenient_manifest(folder: Path) -> tuple[SourceManifest, list[Violation]]:
    """The manifest, even if it was changed: the other checks still compare its values."""
    try:
        return read_manifest(folder), []
    except (NotASourceStore, UnsupportedVersion):
        raise
    except StorageError as error:
        data = read_document(folder, MANIFEST_FILE)
        manifest = decoded(SourceManifest, data, folder, MANIFEST_FILE)
        return manifest, [Violation("manifest_mismatch", "", str(error))]

"""Validation of a store: a list of small checks. All of them run; none stops the others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rollbook.errors import ChecksumMismatch, UnsupportedVersion
from rollbook.notebook import shown_progress
from rollbook.store.checks import (
    derived,
    files,
    labels,
    links,
    poses,
    provenance,
    rasters,
    selection,
    structure,
)
from rollbook.store.checks.columns import UNREADABLE, NotUsable, StoreColumns
from rollbook.store.checks.violation import Violation
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_ID, ROLLOUT_ZARR_SCHEMA_VERSION
from rollbook.store.stored_tables import StoredTables

Check: TypeAlias = Callable[[StoreColumns], Iterator[Violation]]


def _named(prefix: str) -> tuple[Check, ...]:
    return tuple(
        function
        for module in (
            *(files, structure, links, provenance, selection),
            *(labels, poses, derived, rasters),
        )
        for name, function in vars(module).items()
        if name.startswith(prefix)
    )


CHECKS = _named("check_")
"""Every function `check_*` of these modules, in the order of the modules and of their definitions."""
WARNINGS = _named("warn_")
"""Every function `warn_*`: what it finds is unusual, but the store is valid."""


@dataclass(frozen=True, slots=True)
class RolloutZarrValidationResult:
    """The size of a store, and everything that is wrong with it."""

    store_dir: Path
    num_rollouts: int
    num_steps: int
    num_candidates: int
    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...] = ()
    """What is unusual but breaks no rule. Looked for only in a store without violations."""

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def errors(self) -> list[str]:
        """The violations as sentences."""
        return [str(violation) for violation in self.violations]


@dataclass(frozen=True, slots=True)
class CollectionValidationResult:
    """What is wrong with each store of a collection."""

    stores: tuple[RolloutZarrValidationResult, ...]

    @property
    def ok(self) -> bool:
        return all(store.ok for store in self.stores)

    @property
    def errors(self) -> list[str]:
        """The violations of all stores as sentences, each with its store."""
        return [f"{store.store_dir}: {error}" for store in self.stores for error in store.errors]


def validate_rollout_zarr_store(
    store_dir: str | os.PathLike[str],
    *,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RolloutZarrValidationResult:
    """Find everything that is wrong with a store. `deep` also compares every file with its checksum. `progress` is
    called after each check with the number of checks done, and of all checks.

    A bad store never raises an exception. A folder that is not a store is a violation, with zero counts.
    """
    folder = Path(store_dir).resolve()
    try:
        store = StoredTables(folder)
    except UNREADABLE as error:
        return RolloutZarrValidationResult(folder, 0, 0, 0, tuple(_unopened(folder, error)))
    columns = StoreColumns(store, deep=deep)
    with np.errstate(all="ignore"):  # a bad store may hold any numbers
        found: list[Violation] = []
        with shown_progress("validating the store", progress) as shown:
            for done, check in enumerate(CHECKS, 1):
                found += _run(check, columns)
                shown(done, len(CHECKS))
        unusual = [each for check in WARNINGS for each in check(columns)] if not found else []
    return RolloutZarrValidationResult(
        folder,
        columns.rows("rollouts") or 0,
        columns.rows("steps") or 0,
        columns.rows("candidates") or 0,
        tuple(found),
        tuple(unusual),
    )


def _run(check: Check, columns: StoreColumns) -> Iterator[Violation]:
    try:
        yield from check(columns)
    except NotUsable as missing:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        yield Violation("not_checked", "", f"{name} could not be checked: {missing}")


# -------------------------------------------------------------------------- stores that do not open


def _unopened(folder: Path, error: Exception) -> Iterator[Violation]:
    """Why a store cannot be opened. A wrong schema version is always reported, also beside another problem."""
    attrs = _root_attributes(folder)
    if attrs is None:
        yield Violation("not_a_store", "", str(error))
        return
    yield from _schema_violations(attrs)
    if isinstance(error, UnsupportedVersion):
        return
    if isinstance(error, ChecksumMismatch):
        yield Violation("manifest_mismatch", "", f"{error}; copy the store again")
    elif not (folder / ROLLOUT_MANIFEST_FILENAME).is_file():
        yield Violation(
            "manifest_missing", "", f"{error}; the store was never finished, or lost it"
        )
    else:
        yield Violation("manifest_unreadable", "", str(error))


def _root_attributes(folder: Path) -> dict[str, Any] | None:
    """The root attributes; None if the folder does not look like a store."""
    try:
        attrs = json.loads((folder / "zarr.json").read_bytes())["attributes"]
    except UNREADABLE:
        return None
    claims = isinstance(attrs, dict) and ("schema_id" in attrs or "manifest_sha256" in attrs)
    return attrs if claims else None


def _schema_violations(attrs: dict[str, Any]) -> Iterator[Violation]:
    schema_id, version = attrs.get("schema_id"), attrs.get("schema_version")
    if schema_id != ROLLOUT_ZARR_SCHEMA_ID:
        yield Violation(
            "schema_id",
            "",
            f"its schema is {schema_id!r}, this release reads {ROLLOUT_ZARR_SCHEMA_ID!r}",
        )
    elif version != ROLLOUT_ZARR_SCHEMA_VERSION:
        yield Violation(
            "schema_version",
            "",
            f"its schema version is {version!r}, this release reads {ROLLOUT_ZARR_SCHEMA_VERSION!r}; "
            "`rollbook store migrate` brings older stores up to date",
        )

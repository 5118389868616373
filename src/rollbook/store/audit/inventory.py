"""Inventory of the stores below a folder. Every store is a row, also a damaged one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.errors import RollbookError
from rollbook.lazy import needs
from rollbook.store.audit.rows import Array, Coded, Row, Values, groups_of, word_of
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.mapped import MappedArray, is_raw
from rollbook.store.schema import (
    REQUIRED_GROUPS,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
)
from rollbook.store.stored_tables import StoredTables

AnyPath = str | os.PathLike[str]
_RANK = {"current": 2, "stale": 1, "unreadable": 0}


# --------------------------------------------------------------------------------------- search


def discover_rollout_store_paths(base_dir: AnyPath, *, pattern: str = "**/*.zarr") -> list[Path]:
    """Folders that look like stores, newest first. The inside of a store is not searched."""
    base = Path(base_dir).resolve()
    if not base.is_dir():
        return []
    dated = [(_mtime(path) or 0.0, path) for path in set(_matching(base, pattern))]
    return [path for _, path in sorted(dated, key=lambda each: (-each[0], str(each[1])))]


def _matching(base: Path, pattern: str) -> Iterator[Path]:
    anywhere, _, name = pattern.rpartition("/")
    if anywhere == "**":
        yield from _named_folders(base, name)
        return
    for path in base.glob(pattern):
        if path.is_dir():
            yield path.resolve()


def _named_folders(base: Path, name: str) -> Iterator[Path]:
    """Folders with this name. They are not searched themselves: no folder inside a store is a store."""
    for folder, below, _ in os.walk(base):
        found = [each for each in below if fnmatch(each, name)]
        below[:] = [each for each in below if each not in found]
        for each in found:
            yield Path(folder, each).resolve()


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


# ----------------------------------------------------------------------------------------- rows


def rollout_store_inventory_rows(paths: Iterable[AnyPath], *, validate: bool = False) -> list[Row]:
    """One row per store: schema, counts, lineage, size. `validate` also runs all checks, which takes longer."""
    rows = [_inventory_row(Path(path).resolve(), validate) for path in paths]
    return sorted(rows, key=_best_first, reverse=True)


def _best_first(row: Row) -> tuple[int, bool, float, str]:
    ok = row["validation_ok"] is True
    return _RANK[row["schema_status"]], ok, row["mtime_unix"] or 0.0, row["path"]


def _inventory_row(path: Path, validate: bool) -> Row:
    store = _Glance.at(path)
    checked = _checked(path) if validate else None
    missing = [name for name in REQUIRED_GROUPS if not (path / name / "zarr.json").is_file()]
    size, files = _size(path, store.manifest)
    return {
        "path": str(path),
        "name": path.name,
        "schema_status": store.status,
        "schema_version": store.attrs.get("schema_version"),
        "schema_id": store.attrs.get("schema_id"),
        "created_at": store.attrs.get("created_at_utc"),
        **_manifest_columns(store),
        **_validation_columns(store, checked),
        "required_groups_present": len(REQUIRED_GROUPS) - len(missing),
        "required_groups_missing": len(missing),
        "missing_required_groups": missing,
        **_observed_columns(store),
        **_validator_columns(checked),
        "mtime_unix": _mtime(path),
        "size_bytes": size,
        "file_count": files,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Glance:
    """What can be read of a folder. `reader` is None if the folder is not a readable store."""

    path: Path
    attrs: Mapping[str, Any]
    manifest: Mapping[str, Any]
    reader: StoredTables | None
    problem: str | None

    @classmethod
    def at(cls, path: Path) -> _Glance:
        attrs = _json(path / "zarr.json").get("attributes")
        known = attrs if isinstance(attrs, Mapping) else {}
        reader, problem = _opened(path)
        return cls(path, known, _json(path / ROLLOUT_MANIFEST_FILENAME), reader, problem)

    @property
    def status(self) -> str:
        if self.reader is not None:
            return "current"
        schema = self.attrs.get("schema_id"), self.attrs.get("schema_version")
        if None in schema or schema == (ROLLOUT_ZARR_SCHEMA_ID, ROLLOUT_ZARR_SCHEMA_VERSION):
            return "unreadable"
        return "stale"

    def array(self, name: str) -> Array | None:
        """A column, if possible also of a store that cannot be opened; None if it cannot be read."""
        folder = self.path / name
        try:
            if self.reader is not None:
                return self.reader.array(name)
            if self.status == "unreadable" or not (folder / "zarr.json").is_file():
                return None
            return MappedArray.open(folder).view() if is_raw(folder) else _read_with_zarr(folder)
        except (RollbookError, OSError, ValueError, KeyError, TypeError):
            return None


def _read_with_zarr(folder: Path) -> Array:
    with needs("a store of the archive profile"):
        import zarr
    return np.asarray(zarr.open_array(str(folder), mode="r")[...])


def _opened(path: Path) -> tuple[StoredTables | None, str | None]:
    try:
        return StoredTables(path), None
    except RollbookError as error:
        return None, str(error)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        # a manifest can match its digest and still have wrong content
        return None, f"{path}: its metadata cannot be understood ({error!r})"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _nested(found: Any, *keys: str) -> Any:
    """The value under these nested keys; None if a key is missing."""
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _manifest_columns(store: _Glance) -> Row:
    manifest = store.manifest
    config = _nested(manifest, "generation", "invocation", "config_path")
    return {
        "manifest_path": str(store.path / ROLLOUT_MANIFEST_FILENAME) if manifest else None,
        "manifest_version": manifest.get("manifest_version"),
        "manifest_schema_version": manifest.get("schema_version"),
        "manifest_profile": _nested(manifest, "root_attrs", "profile"),
        "manifest_config": Path(config).stem if isinstance(config, str) else None,
        "manifest_scene_count": _count(_nested(manifest, "source_coverage", "scene_counts")),
        "manifest_split_count": _count(_nested(manifest, "source_coverage", "split_counts")),
    }


def _count(found: Any) -> int | None:
    return len(found) if isinstance(found, Mapping) else None


def _size(path: Path, manifest: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Size and number of files, from the manifest. A folder without a manifest is searched."""
    listed = manifest.get("files")
    try:
        if isinstance(listed, Mapping):
            sizes = [int(size) for size, _ in listed.values()]
            own = [
                (path / name).stat().st_size for name in ("zarr.json", ROLLOUT_MANIFEST_FILENAME)
            ]
            return sum(sizes) + sum(own), len(sizes) + len(own)
        found = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
    except (OSError, TypeError, ValueError):
        return None, None
    return sum(found), len(found)


# ------------------------------------------------------------------------------------- contents


def _observed_columns(store: _Glance) -> Row:
    rollouts = store.array("rollouts/rollout_row_id")
    steps = store.array("steps/step_row_id")
    candidates = store.array("candidates/candidate_row_id")
    selected = store.array("candidates/selected_mask")
    return {
        "observed_rollouts": None if rollouts is None else len(rollouts),
        "observed_steps": None if steps is None else len(steps),
        "observed_candidates": None if candidates is None else len(candidates),
        "actor_action_fraction": _share(store.array("candidates/actor_action_mask")),
        "q_train_fraction": _share(store.array("candidates/q_train_mask")),
        "selected_count": None if selected is None else int(np.count_nonzero(selected)),
        "policy_summary": _summary(_policies(store)),
        "horizon_summary": _summary(store.array("rollouts/horizon")),
        "branch_factor_summary": _summary(store.array("rollouts/branch_factor")),
    }


def _share(mask: Array | None) -> float | None:
    return None if mask is None or not len(mask) else int(np.count_nonzero(mask)) / len(mask)


def _policies(store: _Glance) -> Coded | None:
    """The policies; None for a store that cannot be opened, because its words are not known."""
    if store.reader is None:
        return None
    codes = store.array("rollouts/policy_id")
    return None if codes is None else Coded(codes, word_of(store.reader.words("policy")))


def _summary(values: Values | None) -> str | None:
    """Distinct values with their counts: `oracle_greedy (12), random_valid (12)`."""
    if values is None:
        return None
    groups = groups_of(values)
    counted = zip(groups.keys, groups.counts(), strict=True)
    return ", ".join(f"{'unknown' if key is None else key} ({count})" for key, count in counted)


# ----------------------------------------------------------------------------------- validation


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of validation. The counts are zero if validation could not count."""

    errors: list[str]
    counts: tuple[int, int, int]


def _checked(path: Path) -> _Checked:
    try:
        result = validate_rollout_zarr_store(path)
    except RollbookError as error:
        return _Checked([str(error)], (0, 0, 0))
    counts = (result.num_rollouts, result.num_steps, result.num_candidates)
    return _Checked([str(each) for each in result.errors], counts)


def _validation_columns(store: _Glance, checked: _Checked | None) -> Row:
    if checked is None:
        return {
            "validation_ok": None,
            "validation_status": "unknown",
            "validation_error_count": None,
            "first_error": store.problem,
            "validation_errors": [],
        }
    errors = checked.errors
    return {
        "validation_ok": not errors,
        "validation_status": "failed" if errors else "ok",
        "validation_error_count": len(errors),
        "first_error": errors[0] if errors else None,
        "validation_errors": errors,
    }


def _validator_columns(checked: _Checked | None) -> Row:
    names = ("validator_rollouts", "validator_steps", "validator_candidates")
    return dict(zip(names, checked.counts, strict=True)) if checked else dict.fromkeys(names)

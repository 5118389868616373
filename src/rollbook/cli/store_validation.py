"""The output of `rollbook store validate`: what is wrong with a store, or with each store of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.output import limit_or_none, print_json, say
from rollbook.cli.progress import progress_bar

if TYPE_CHECKING:
    from rollbook.store.checks.validate import RolloutZarrValidationResult
    from rollbook.store.checks.violation import Violation
    from rollbook.store.shards.collection_file import FoundCollection

    Results = Mapping[str, RolloutZarrValidationResult]
    """What is wrong with each store, by its shard. A single store has an empty name."""


def validated(found: FoundCollection, deep: bool) -> Results:
    from rollbook.store.collection import RolloutCollection

    with progress_bar("validating") as progress:
        result = RolloutCollection(found.stores()).validate(deep=deep, on_store=progress)
    ids = [shard.shard_id for shard in found.file.stores]
    return dict(zip(ids, result.stores, strict=True))


def print_validation(
    path: str, results: Results, deep: bool, limit: int, as_json: bool
) -> NoReturn:
    """Print every violation. The exit code is 0 only if there are none."""
    found = [(name, each) for name, result in results.items() for each in result.violations]
    warnings = [(name, each) for name, result in results.items() for each in result.warnings]
    counts = {
        name: sum(getattr(result, f"num_{name}") for result in results.values())
        for name in ("rollouts", "steps", "candidates")
    }
    code = VIOLATIONS if found else OK
    if as_json:
        listed = {
            "violations": [_row(name, each) for name, each in found],
            "warnings": [_row(name, each) for name, each in warnings],
        }
        print_json({"ok": not found, "store": path, "deep": deep, **counts, **listed})
        raise typer.Exit(code)
    for name, each in found[: limit_or_none(limit)]:
        text = str(each).removesuffix(f" [{each.code}]")
        say(f"  {_prefix(name)}{text}", mark=each.code, colour="red")
    if limit and len(found) > limit:
        say(f"… {len(found) - limit} more; --limit 0 prints all")
    for name, each in warnings:
        say(f"  {_prefix(name)}{each}", mark="warning", colour="yellow")
    checked = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    stores = "" if "" in results else f"{len(results):,} stores with "
    plural = "violation" if len(found) == 1 else "violations"
    say(f"checked {stores}{checked}{', and every byte' if deep else '; --deep checks every byte'}")
    say(f"{len(found)} {plural}" if found else "all is well")
    raise typer.Exit(code)


def _prefix(shard_id: str) -> str:
    return f"{shard_id}: " if shard_id else ""


def _row(shard_id: str, violation: Violation) -> dict[str, Any]:
    return {**({"shard_id": shard_id} if shard_id else {}), **violation.as_dict()}

"""`rollbook store …`: inspect, check, export and repack rollout stores."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.opened_stores import existing_place, opened_store, opened_view
from rollbook.cli.output import (
    limit_or_none,
    print_done,
    print_json,
    print_limited,
    print_pairs,
    print_rows,
    say,
    shown_bytes,
)
from rollbook.cli.progress import hint_at_replace, progress_bar
from rollbook.cli.store_paths import folder_here
from rollbook.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from rollbook.cli.store_collection import View

app = typer.Typer(
    help="Inspect, check, export and repack rollout stores.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Store = Annotated[
    str, typer.Argument(help="The store: a folder, or a URL such as s3://bucket/prefix.")
]
Stores = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="A store, or a merged campaign: a folder, or a URL such as s3://bucket/prefix.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with every column, for scripts.")]
Limit = Annotated[int, typer.Option(min=0, help="Maximum number of rows to show; 0 shows all.")]
Rollout = Annotated[int | None, typer.Option(min=0, help="Show only this rollout row.")]
Step = Annotated[int | None, typer.Option(min=0, help="Show only this step row.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing output.")]
Rows = list[dict[str, Any]]


def _open_with_rows(place: str, rollout: int | None, step: int | None = None) -> View:
    """Open a store and check that it has these rows."""
    reader = opened_view(place)
    requested = (("rollout", rollout, reader.num_rollouts), ("step", step, reader.num_steps))
    for name, row, rows in requested:
        if row is not None and row >= rows:
            raise ConfigurationError(
                message=f"there is no {name} row {row}; the store has {rows}, counted from 0"
            )
    return reader


def _refuse_together(why: str, **options: object) -> None:
    given = [name for name, value in options.items() if value is not None and value is not False]
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError(message=f"{names} do not go together: {why}")


# ----------------------------------------------------------------------------------------- info


@app.command()
def info(
    path: Annotated[
        str, typer.Argument(help="A store, a merged campaign, or a folder that contains stores.")
    ],
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show what a store contains and where it comes from.

    For a folder that contains stores, list the stores.
    """
    from rollbook.cli.store_collection import print_collection
    from rollbook.store.shards.collection_file import find_collection
    from rollbook.store.urls.url_folder import is_url

    found = find_collection(existing_place(path))
    if found is not None:
        print_collection(path, found.file, as_json)
    elif is_url(path) or (Path(path) / "zarr.json").exists():
        _print_store(path, as_json)
    else:
        _print_inventory(Path(path), limit, as_json)


def _print_inventory(folder: Path, limit: int, as_json: bool) -> None:
    from rollbook.store.audit.inventory import (
        discover_rollout_store_paths,
        rollout_store_inventory_rows,
    )

    rows = rollout_store_inventory_rows(discover_rollout_store_paths(folder))
    if not rows:
        detail = "it is not a store, and it contains no folder named *.zarr"
        raise StorageError(path=str(folder), detail=detail)
    if as_json:
        print_json(rows[: limit_or_none(limit)])
        return
    base = folder.resolve()
    for row in rows:
        at = Path(row["path"])
        row["store"] = str(at.relative_to(base)) if at.is_relative_to(base) else str(at)
        row["size"] = shown_bytes(row["size_bytes"])
    print_limited(rows, _INVENTORY, limit, as_json)
    for row in rows:
        if row["first_error"]:
            say(f"{row['schema_status']}: {row['first_error']}")


_INVENTORY = {
    "store": "store",
    "schema_status": "schema",
    "observed_rollouts": "rollouts",
    "observed_steps": "steps",
    "observed_candidates": "candidates",
    "size": "size",
}


def _print_store(path: str, as_json: bool) -> None:
    from rollbook.store.audit.provenance import provenance

    reader = opened_store(path)
    manifest = reader.manifest()["manifest"]
    counts, files = dict(manifest["counts"]), manifest["files"]
    size = sum(each for each, _ in files.values())
    origin = provenance(reader)
    if as_json:
        held = {"counts": counts, "size_bytes": size, "file_count": len(files)}
        print_json({"path": path, **held, "provenance": origin, "root_attrs": dict(reader.attrs)})
        return
    say(f"{path}\n")
    print_pairs({heading: f"{counts[name]:,}" for name, heading in _COUNTS.items()})
    say("")
    print_pairs({**origin, "size": f"{shown_bytes(size)} in {len(files)} files"})


_COUNTS = {
    "rollouts": "rollouts",
    "steps": "steps",
    "candidates": "candidates",
    "q_h_max_candidates": "widest shell",
    "targets": "targets",
    "sources": "source rows",
    "selected_depths": "depth images",
    "target_eval_crops": "point crops",
}


# ------------------------------------------------------------------------------------- validate


@app.command()
def validate(
    path: Stores,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare every file with its checksum.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of violations to print; 0 prints all.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Check links, counts, labels and derived values.

    Print every violation with its code and rows. The exit code is 0 only if there are none; warnings do not count.
    """
    from rollbook.cli.store_validation import print_validation, validated
    from rollbook.store.checks.validate import validate_rollout_zarr_store
    from rollbook.store.shards.collection_file import find_collection
    from rollbook.store.urls.url_folder import is_url

    found = find_collection(existing_place(path))
    if found is not None:
        print_validation(path, validated(found, deep), deep, limit, as_json)
    # a folder that cannot be opened is a violation, a URL that cannot be opened is an error
    folder = opened_store(path).local("") if is_url(path) else path
    result = validate_rollout_zarr_store(folder, deep=deep)
    print_validation(path, {"": result}, deep, limit, as_json)


# ---------------------------------------------------------------------------------------- audit


@app.command()
def audit(
    path: Stores,
    rollout: Rollout = None,
    step: Step = None,
    group_by: Annotated[
        str | None,
        typer.Option(help="Summarise candidates by an audit column, such as position or scene."),
    ] = None,
    targets: Annotated[
        bool, typer.Option("--targets", help="List targets instead of candidates.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write one HTML page with plots. --step selects the decision that it shows."
        ),
    ] = None,
    limit: Limit = 20,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """List or summarise candidates, or write an audit page."""
    from rollbook.cli import store_audit

    whole = "each is about the whole store"
    _refuse_together(whole, rollout=rollout, group_by=group_by, targets=targets, html=html)
    _refuse_together(whole, step=step, group_by=group_by, targets=targets)
    reader = _open_with_rows(path, rollout, step)
    if html is not None:
        store_audit.write_page(reader, html, step, replace, as_json)
    elif group_by is not None:
        store_audit.print_groups(reader, group_by, limit, as_json)
    elif targets:
        store_audit.print_targets(reader, limit, as_json)
    else:
        store_audit.print_candidates(reader, rollout, step, limit, as_json)


@app.command()
def waterfall(path: Stores, as_json: AsJson = False) -> None:
    """Count candidates at each stage, from proposed to selected."""
    from rollbook.store.audit import validity_waterfall_rows

    rows = validity_waterfall_rows(opened_view(path))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["share"] = f"{row['fraction_of_full'] or 0:6.1%}"
        row[""] = "█" * round(40 * (row["fraction_of_full"] or 0))
    print_rows(rows, {"stage": "stage", "count": "count", "share": "share", "": ""})


# ----------------------------------------------------------------------------------- suspicious


@app.command()
def suspicious(
    path: Stores,
    min_valid_candidates: Annotated[
        int, typer.Option(help="Report steps with fewer valid candidates.")
    ] = 3,
    dominant_invalid_fraction: Annotated[
        float,
        typer.Option(
            help="Report steps where one reason has this share of the invalid candidates."
        ),
    ] = 0.8,
    high_target_score: Annotated[
        float, typer.Option(help="Report targets with this score and no ground truth.")
    ] = 0.5,
    max_step_distance_m: Annotated[
        float, typer.Option(help="Report moves longer than this.")
    ] = 1.25,
    max_height_delta_m: Annotated[
        float, typer.Option(help="Report changes of height above this.")
    ] = 0.6,
    max_backward_step_m: Annotated[
        float, typer.Option(help="Report backward moves longer than this.")
    ] = 0.35,
    max_yaw_delta_deg: Annotated[float, typer.Option(help="Report turns larger than this.")] = 85.0,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of rows of each kind; 0 shows all.")
    ] = 5,
    as_json: AsJson = False,
) -> None:
    """Find suspicious rollouts with heuristics.

    The exit code is 1 if a row breaks a rule, and 0 if rows are only unusual.
    """
    from rollbook.store.audit.suspicious import (
        RolloutSuspiciousQueryConfig,
        suspicious_counts,
        suspicious_rollout_rows,
    )

    config = RolloutSuspiciousQueryConfig(
        min_valid_candidates=min_valid_candidates,
        dominant_invalid_fraction=dominant_invalid_fraction,
        high_target_score=high_target_score,
        max_step_distance_m=max_step_distance_m,
        max_height_delta_m=max_height_delta_m,
        max_backward_step_m=max_backward_step_m,
        max_yaw_delta_deg=max_yaw_delta_deg,
    )
    reader = opened_view(path)
    counts = suspicious_counts(reader, config=config)
    rows = suspicious_rollout_rows(reader, config=config, limit=limit_or_none(limit))
    if as_json:
        print_json({"counts": counts, "rows": rows})
    else:
        _print_suspicious(counts, rows)
    errors = sum(row["count"] for row in counts if row["severity"] == "error")
    raise typer.Exit(VIOLATIONS if errors else OK)


def _print_suspicious(counts: Rows, rows: Rows) -> None:
    print_rows(counts)
    for kind, count in ((row["kind"], row["count"]) for row in counts if row["count"]):
        hits = [row for row in rows if row["kind"] == kind]
        ids = {f"{name}_row_id": name for name in ("rollout", "step", "candidate", "target")}
        about = {key: name for key, name in ids.items() if hits[0].get(key) is not None}
        say(f"\n{kind}")
        print_rows(hits, {**about, "message": "what"}, total=count)


# ----------------------------------------------------------------------------------------- tree


@app.command()
def tree(path: Stores, rollout: Rollout = None, limit: Limit = 30, as_json: AsJson = False) -> None:
    """Summarise what policies chose, by step and position family.

    With --rollout, list the steps of that rollout and the gain of each.
    """
    from rollbook.store.audit import rollout_step_objective_rows, rollout_tree_summary_rows

    reader = _open_with_rows(path, rollout)
    if rollout is None:
        print_limited(rollout_tree_summary_rows(reader), _TREE, limit, as_json)
        return
    rows = rollout_step_objective_rows(reader, rollout_row_id=rollout)
    for row in rows if not as_json else ():
        row["valid"] = f"{row['num_valid_candidates']}/{row['num_candidates']}"
    print_limited(rows, _STEPS, limit, as_json)


_TREE = {
    "policy": "policy",
    "step_index": "step",
    "selected_position": "position",
    "selected_steps": "taken",
    "mean_valid_fanout": "valid",
    "mean_selected_target_root_gain": "gain",
}
_STEPS = {
    "step_index": "step",
    "step_row_id": "row",
    "valid": "valid",
    "selected_position": "position",
    "selected_target_root_gain": "gain",
    "cumulative_target_root_gain": "sum",
    "selected_probability": "prob",
    "selected_entropy": "entropy",
}


# ---------------------------------------------------------------------------------------- depth


@app.command()
def depth(
    path: Stores,
    step: Step = None,
    rollout: Rollout = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the depth image of --step as a PNG file.")
    ] = None,
    limit: Limit = 20,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Summarise the depth images, or write one as a PNG file."""
    from rollbook.store.audit import selected_depth_summary_rows

    reader = _open_with_rows(path, rollout, step)
    if output is not None:
        _write_depth(reader, step, output, replace, as_json)
        return
    rows = selected_depth_summary_rows(
        reader, rollout_row_id=rollout, step_row_id=step, limit=limit_or_none(limit)
    )
    filtered = step is not None or rollout is not None
    total = None if filtered else reader.num_steps
    print_limited(rows, _DEPTHS, limit, as_json, total)
    for warning in dict.fromkeys(row["warning"] for row in rows if row["warning"] and not as_json):
        say(f"not available: {warning}")


_DEPTHS = {
    "step_row_id": "step",
    "rollout_row_id": "rollout",
    "available": "image",
    "valid_fraction": "valid",
    "depth_min_m": "min m",
    "depth_mean_m": "mean m",
    "depth_max_m": "max m",
    "selected_position": "position",
}


def _write_depth(
    reader: View, step: int | None, output: Path, replace: bool, as_json: bool
) -> None:
    from rollbook.files import write_bytes
    from rollbook.store.audit import selected_depth_preview
    from rollbook.store.audit.depth_png import depth_png

    if step is None:
        raise ConfigurationError(message="--output writes one image: say which with --step")
    longest = 1024
    preview = selected_depth_preview(reader, step_row_id=step, max_size=longest)
    if not preview["available"]:
        detail = f"no depth image of step {step}: {preview['warning']}"
        raise StorageError(path=reader.title, detail=detail)
    data = depth_png(preview["depth_m"], title=f"{reader.title}, step {step}")
    with hint_at_replace(replace):
        write_bytes(output, data, replace=replace)
    height, width = preview["image_size_hw"]
    text = f"{output}: step {step}, {width}x{height} pixels; bright is near, chequered unknown"
    shown = {"path": str(output), "step_row_id": step, "width": width, "height": height}
    print_done(shown, text, as_json)


# ---------------------------------------------------------------------- export, repack, migrate


@app.command()
def export(
    path: Stores,
    output: Annotated[Path, typer.Argument(help="Output file: .parquet, .csv or .jsonl.")],
    table: Annotated[str, typer.Option(help="The table to export.")] = "candidates",
    columns: Annotated[
        str | None, typer.Option(help="Only these columns, separated by commas.")
    ] = None,
    codes: Annotated[
        bool,
        typer.Option("--codes", help="Keep codes and NaN as stored instead of words and nulls."),
    ] = False,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Write a table as Parquet, CSV or JSON lines.

    Parquet needs an extra: pip install 'rollbook[frames]'.
    """
    from rollbook.store.audit.export import export_table

    chosen = None if columns is None else [each.strip() for each in columns.split(",")]
    with hint_at_replace(replace):
        rows = export_table(
            opened_view(path), table, output, columns=chosen, decode=not codes, replace=replace
        )
    size = output.stat().st_size
    print_done(
        {"path": str(output), "table": table, "rows": rows, "size_bytes": size},
        f"{output}: {rows:,} rows of {table}, {shown_bytes(size)}",
        as_json,
    )


class Profile(StrEnum):
    local = "local"
    archive = "archive"


@app.command()
def repack(
    path: Store,
    output: Annotated[Path, typer.Argument(help="Folder of the repacked store.")],
    profile: Annotated[
        Profile, typer.Option(help="local: fast to read. archive: compressed, smaller.")
    ],
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Write the same store in another profile. No information is lost."""
    from rollbook.store.repack import repack_store

    folder_here(output, "OUTPUT")
    with hint_at_replace(replace):
        written = repack_store(opened_store(path).local(""), output, profile.value, replace=replace)
    shown = {"path": str(written), "profile": profile.value}
    print_done(shown, f"{written}: repacked for {profile.value}", as_json)


@app.command()
def publish(
    path: Store,
    url: Annotated[str, typer.Argument(help="Target URL, such as s3://bucket/prefix.")],
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Upload a finished store to a URL.

    If an upload was interrupted, the same command continues it.
    """
    from rollbook.store.urls.remote import publish_store

    with progress_bar("publishing") as progress, hint_at_replace(replace):
        folder = opened_store(path).local("")
        done = publish_store(folder, url, replace=replace, progress=progress)
    shown = {"url": done.url, "files": done.files, "size_bytes": done.bytes}
    print_done(
        {**shown, "content_sha256": done.content_sha256},
        f"{done.url}: {done.files} files, {shown_bytes(done.bytes)}, content {done.content_sha256}",
        as_json,
    )


@app.command()
def migrate(path: Store, as_json: AsJson = False) -> None:
    """Convert an older store to the schema of this release."""
    from rollbook.store.stored_tables import migrate_store
    from rollbook.store.urls.url_folder import local_path

    folder = local_path(existing_place(path))
    if folder is None:
        message = f"{path} is a URL: convert the store in its folder, then publish it again"
        raise ConfigurationError(message=message)
    done = migrate_store(folder)
    print_done({"path": path, "result": done}, done, as_json)

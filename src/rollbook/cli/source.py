"""`rollbook source …`: what rollouts start from: made from a seed or imported, looked into and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.output import (
    OK,
    VIOLATIONS,
    most,
    print_json,
    print_rows,
    replace_hint,
    shown_bytes,
)
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.generate.sources.documents import SourceManifest
    from rollbook.generate.sources.import_config import ImportConfig
    from rollbook.generate.sources.reader import SourceStore

app = typer.Typer(
    help="Make, import and check source stores: the scenes and walks that rollouts start from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Store = Annotated[Path, typer.Argument(help="The folder of a source store.")]
Out = Annotated[Path, typer.Argument(help="Where the store goes: a folder that is not there yet.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing source store.")]
Progress = Callable[[int, int], None]


def _there(path: Path) -> Path:
    if not path.exists():
        raise ConfigurationError(message=f"there is nothing at {path}; name the folder of a store")
    return path


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    """A progress bar on standard error; gone when it is done."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _hint(replace: bool) -> Iterator[None]:
    """Names --replace where it would help: not where it was given and something else is in the way."""
    with nullcontext() if replace else replace_hint():
        yield


def _print_pairs(pairs: dict[str, str]) -> None:
    widest = max(map(len, pairs))
    for name, value in pairs.items():
        typer.echo(f"{name:{widest}}  {value}")


# ----------------------------------------------------------------------------------------- make


class Difficulty(StrEnum):
    easy = "easy"
    medium = "medium"
    hard = "hard"


@app.command()
def make(
    out: Out,
    scenes: Annotated[int | None, typer.Option(min=1, help="Scenes to make; else 20.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed makes the same store; else 0.")
    ] = None,
    rows_per_scene: Annotated[
        int | None, typer.Option(min=1, help="Walks through each scene, a row each; else 1.")
    ] = None,
    difficulty: Annotated[
        Difficulty,
        typer.Option(help="easy: one tidy room. hard: four crowded ones, badly scanned."),
    ] = Difficulty.medium,
    rooms: Annotated[int | None, typer.Option(min=1, help="Rooms in a scene.")] = None,
    max_edge: Annotated[
        float | None, typer.Option(help="Longest edge of a triangle, metres; finer is slower.")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(min=2, help="Frames of a walk up to its root.")
    ] = None,
    points_per_frame: Annotated[
        int | None, typer.Option(min=0, help="Semidense points in a frame.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="All of this and more as TOML; options given here win.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes; they change the time it takes, nothing else.")
    ] = 1,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Make furnished flats and walks through them, from a seed.

    Scenes go to train, val and test in turn, 8 : 1 : 1. Making more later moves none of them.
    """
    from rollbook.generate.sources.make_sources import make_source_store, sources_config

    asked = sources_config(
        config,
        difficulty=difficulty.value,
        top={"scenes": scenes, "seed": seed, "rows_per_scene": rows_per_scene},
        scene={"rooms": rooms, "max_edge_m": max_edge},
        walk={"frames": frames},
        sensing={"points_per_frame": points_per_frame},
    )
    with _bar("making scenes") as progress, _hint(replace):
        manifest = make_source_store(
            out, asked, workers=workers, replace=replace, progress=progress
        )
    _print_written(out, manifest, (), as_json)


def _print_written(
    out: Path, manifest: SourceManifest, messages: tuple[str, ...], as_json: bool
) -> None:
    splits = _by_split(manifest)
    if as_json:
        print_json(
            {
                "path": str(out),
                "manifest_digest": manifest.manifest_digest,
                "split_manifest_hash": manifest.split_manifest_hash,
                "counts": manifest.counts,
                "rows_by_split": splits,
                "messages": list(messages),
            }
        )
        return
    for message in messages:
        typer.echo(f"note: {message}")
    counts = manifest.counts
    shared = ", ".join(f"{count} {split}" for split, count in splits.items() if count)
    typer.echo(
        f"{out}: {counts['rows']:,} rows of {counts['scenes']:,} scenes ({shared}), "
        f"manifest {manifest.manifest_digest[:16]}…"
    )
    typer.echo(f"look at one with: rollbook source preview {out} --row 0 --out row.png")


def _by_split(manifest: SourceManifest) -> dict[str, int]:
    """Rows, not scenes."""
    names = ("train", "val", "test")
    return {
        name: sum(scene.rows for scene in manifest.scenes if scene.split == name) for name in names
    }


# --------------------------------------------------------------------------------------- import


class Up(StrEnum):
    y = "y"
    z = "z"


class Format(StrEnum):
    tum = "tum"
    aria = "aria"
    matrices = "matrices"
    nerf = "nerf"


class Split(StrEnum):
    train = "train"
    val = "val"
    test = "test"


@app.command("import")
def import_(
    context: typer.Context,
    out: Out,
    mesh: Annotated[
        Path | None, typer.Option(help="The scene: GLB, OBJ, STL or PLY, with triangles.")
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(help="Camera poses: TUM text, Aria closed_loop_trajectory.csv, or JSON."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Many scenes and recordings as TOML, instead of the options here."),
    ] = None,
    scene_id: Annotated[str | None, typer.Option(help="Else the name of the mesh file.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the recording; else its file's.")] = None,
    split: Annotated[Split, typer.Option(help="What the scene is for.")] = Split.train,
    up: Annotated[Up, typer.Option(help="The axis that points up in all files.")] = Up.z,
    mesh_up: Annotated[Up | None, typer.Option(help="In the mesh alone.")] = None,
    scale: Annotated[float, typer.Option(help="Metres in a unit of all files.")] = 1.0,
    mesh_scale: Annotated[float | None, typer.Option(help="In the mesh alone.")] = None,
    weld: Annotated[
        bool, typer.Option("--weld", help="Make vertices that lie on each other one.")
    ] = False,
    format: Annotated[
        Format | None, typer.Option(help="Of the trajectory; else told by its content.")
    ] = None,
    device_from_camera: Annotated[
        Path | None, typer.Option(help="JSON 4x4: where the camera sits on the tracked device.")
    ] = None,
    frame_rate: Annotated[float, typer.Option(help="Hz, for trajectories without times.")] = 10.0,
    every: Annotated[int, typer.Option(min=1, help="Keep one frame of so many.")] = 1,
    root_frame: Annotated[
        list[int] | None,
        typer.Option(
            help="Where the known way ends and rollouts start; repeat it for more rows. Else the middle."
        ),
    ] = None,
    prefix_frames: Annotated[
        int | None, typer.Option(min=1, help="Frames the robot remembers; else all.")
    ] = None,
    continuation_frames: Annotated[
        int | None, typer.Option(min=0, help="Frames kept after the root; else all.")
    ] = None,
    points: Annotated[
        Path | None, typer.Option(help="Aria semidense_points.csv.gz, or xyz as CSV, PLY, NPY.")
    ] = None,
    max_inv_dist_std: Annotated[
        float, typer.Option(help="Leave out points less certain than this, 1/m.")
    ] = 0.005,
    max_dist_std: Annotated[float, typer.Option(help="The same, m.")] = 0.05,
    detections: Annotated[Path | None, typer.Option(help="Boxes the robot detected, JSON.")] = None,
    boxes: Annotated[Path | None, typer.Option(help="True boxes, JSON.")] = None,
    camera: Annotated[
        Path | None, typer.Option(help="Pinhole as JSON: width, height, fx, fy, cx, cy.")
    ] = None,
    fov: Annotated[float, typer.Option(help="Without --camera: degrees across the width.")] = 90.0,
    size: Annotated[str, typer.Option(help="Without --camera: pixels, WIDTHxHEIGHT.")] = "240x240",
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Bring a mesh and a recorded trajectory of your own.

    Boxes are JSON: [{"T_world_object": 4x4, "extents": [x, y, z], "class": "chair"}]. Without points they are
    simulated; without boxes there are no targets. Every assumption made is printed.
    """
    from rollbook.generate.sources.import_source import import_source_store

    if config is not None:
        asked = _config_alone(config, context)
    else:
        if mesh is None or trajectory is None:
            message = "give --mesh and --trajectory, or a TOML file with --config"
            raise ConfigurationError(message=message)
        asked = _one_scene(
            {
                "mesh": mesh,
                "scene_id": scene_id,
                "split": split,
                "up": up,
                "mesh_up": mesh_up,
                "scale": scale,
                "mesh_scale": mesh_scale,
                "weld": weld,
                "boxes": boxes,
            },
            {
                "trajectory": trajectory,
                "name": name,
                "trajectory_format": format,
                "device_from_camera": device_from_camera,
                "frame_rate_hz": frame_rate,
                "every": every,
                "root_frames": root_frame or [],
                "prefix_frames": prefix_frames,
                "continuation_frames": continuation_frames,
                "points": points,
                "max_inv_dist_std": max_inv_dist_std,
                "max_dist_std": max_dist_std,
                "detections": detections,
                "camera": camera,
                "field_of_view_deg": fov,
                "size_px": _pixels(size),
            },
        )
    with _bar("importing") as progress, _hint(replace):
        report = import_source_store(out, asked, replace=replace, progress=progress)
    _print_written(out, report.manifest, report.messages, as_json)


def _config_alone(config: Path, context: typer.Context) -> ImportConfig:
    """Refuses options that the config would silently win over."""
    from rollbook.generate.sources.import_config import load_import_config

    for name in context.params.keys() - {"out", "config", "replace", "as_json"}:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            message = f"--config names everything: leave out --{name.replace('_', '-')}"
            raise ConfigurationError(message=message)
    return load_import_config(_there(config))


def _one_scene(scene: dict[str, Any], recording: dict[str, Any]) -> ImportConfig:
    import msgspec

    from rollbook.generate.sources.import_config import ImportConfig

    plain = {
        key: str(value) if isinstance(value, Path) else value for key, value in recording.items()
    }
    whole = {key: str(value) if isinstance(value, Path) else value for key, value in scene.items()}
    try:
        return msgspec.convert({"scenes": [{**whole, "recordings": [plain]}]}, ImportConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(message=str(error)) from error


def _pixels(size: str) -> list[int]:
    width, mark, height = size.partition("x")
    if not mark or not width.isdecimal() or not height.isdecimal():
        raise ConfigurationError(message=f"--size is {size!r}, expected such as 640x480")
    return [int(width), int(height)]


# ----------------------------------------------------------------------------------------- info


@app.command()
def info(
    store: Store,
    limit: Annotated[int, typer.Option(min=0, help="Scenes to list; 0 for all.")] = 10,
    as_json: AsJson = False,
) -> None:
    """What a source store holds and what it was made with."""
    from rollbook.generate.sources.reader import SourceStore

    opened = SourceStore.open(_there(store))
    manifest = opened.manifest
    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    if as_json:
        import msgspec

        said = msgspec.to_builtins(manifest)
        print_json({"path": str(store), "size_bytes": size, **said})
        return
    counts = manifest.counts
    typer.echo(f"{store}\n")
    _print_pairs(
        {
            "rows": f"{counts['rows']:,}",
            "scenes": f"{counts['scenes']:,}",
            "splits": ", ".join(f"{name} {count:,}" for name, count in _by_split(manifest).items()),
            "frames": f"{counts['frames']:,}",
            "points": f"{counts['points']:,}",
            "detections": f"{counts['detections']:,}",
            "true boxes": f"{counts['boxes']:,}",
            "shards": f"{len(manifest.shards):,} of up to {manifest.rows_per_shard} rows",
            "size": shown_bytes(size),
            "kind": f"{manifest.kind}, by {manifest.created_by}",
            "schema": f"{manifest.schema_id} {manifest.schema_version}",
            "config": manifest.config_sha256,
            "content": manifest.content_sha256,
            "split hash": manifest.split_manifest_hash,
            "manifest": manifest.manifest_digest,
        }
    )
    typer.echo("")
    rows = _scene_rows(opened)
    print_rows(rows[: most(limit)], total=len(rows))


def _scene_rows(opened: SourceStore) -> list[dict[str, Any]]:
    facts = opened.geometry_facts
    return [
        {
            "scene": scene.scene_id,
            "split": scene.split,
            "rows": scene.rows,
            "triangles": facts[scene.scene_id].faces,
            "notes": ", ".join(f"{key} {value}" for key, value in scene.notes.items()),
        }
        for scene in opened.manifest.scenes
    ]


# ------------------------------------------------------------------------------------- validate


@app.command()
def validate(
    store: Store,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read every array and compare it with its digest.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Violations to print; 0 for all.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Check files, splits, poses, points and boxes.

    Prints every violation with its code. Exit code 0 only if all is well.
    """
    from rollbook.generate.sources.validation import validate_source_store

    with _bar("checking") as progress:
        result = validate_source_store(_there(store), deep=deep, progress=progress)
    found = result.violations
    if as_json:
        counts = {"rows": result.rows, "scenes": result.scenes}
        listed = [each.as_dict() for each in found]
        print_json(
            {"ok": result.ok, "store": str(store), "deep": deep, **counts, "violations": listed}
        )
        raise typer.Exit(OK if result.ok else VIOLATIONS)
    for each in found[: most(limit)]:
        text = str(each).removesuffix(f" [{each.code}]")
        typer.echo(f"{typer.style(each.code, fg='red')}  {text}")
    if limit and len(found) > limit:
        typer.echo(f"… {len(found) - limit} more; --limit 0 prints all")
    depth = ", and every array" if deep else "; --deep checks every array"
    typer.echo(f"checked {result.rows:,} rows of {result.scenes:,} scenes{depth}")
    plural = "violation" if len(found) == 1 else "violations"
    typer.echo("all is well" if result.ok else f"{len(found)} {plural}")
    raise typer.Exit(OK if result.ok else VIOLATIONS)


# -------------------------------------------------------------------------------------- preview


@app.command()
def preview(
    store: Store,
    out: Annotated[Path, typer.Option(help="The PNG file to write.")],
    row: Annotated[int | None, typer.Option(min=0, help="By number, from 0.")] = None,
    key: Annotated[str | None, typer.Option(help="By key: SCENE/SNIPPET.")] = None,
    actor_only: Annotated[
        bool, typer.Option("--actor-only", help="Show only what the robot knows.")
    ] = False,
    replace: Replace = False,
) -> None:
    """Draw a row from above: scene, way, root, points, boxes."""
    from rollbook.files import write_bytes
    from rollbook.generate.source_picture import preview_png
    from rollbook.generate.sources.reader import SourceStore

    if row is not None and key is not None:
        raise ConfigurationError(message="--row and --key do not go together: both name the row")
    opened = SourceStore.open(_there(store), actor_only=actor_only)
    index = opened.find(key) if key is not None else row or 0
    shown = opened.row(index)
    with _hint(replace):
        write_bytes(out, preview_png(shown), replace=replace)
    typer.echo(f"{out}: row {index}, {shown.sample_key}")

"""`rollbook source …`: makes, imports, inspects and checks the source stores from which rollouts start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.options import with_options
from rollbook.cli.output import (
    AsJson,
    limit_or_none,
    print_done,
    print_json,
    print_pairs,
    print_rows,
    say,
    shown_bytes,
)
from rollbook.cli.progress import hint_at_replace, progress_bar
from rollbook.cli.store_paths import existing_path, folder_here
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.generate.sources.documents import SourceManifest
    from rollbook.generate.sources.import_config import ImportConfig
    from rollbook.generate.sources.reader import SourceStore

app = typer.Typer(
    help="Make, import and check source stores: the scenes and walks from which rollouts start.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Store = Annotated[str, typer.Argument(help="Folder of a source store, or its URL.")]
Out = Annotated[Path, typer.Argument(help="Folder of the new store; it must not exist yet.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing source store.")]


def _existing(store: str) -> str:
    from rollbook.store.urls.url_folder import is_url

    return store if is_url(store) else str(existing_path(Path(store)))


# ----------------------------------------------------------------------------------------- make


class Difficulty(StrEnum):
    easy = "easy"
    medium = "medium"
    hard = "hard"


@app.command()
def make(
    out: Out,
    scenes: Annotated[
        int | None, typer.Option(min=1, help="Number of scenes. Default: 20.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed; the same seed makes the same store. Default: 0.")
    ] = None,
    rows_per_scene: Annotated[
        int | None,
        typer.Option(min=1, help="Walks through each scene; each is one row. Default: 1."),
    ] = None,
    difficulty: Annotated[
        Difficulty,
        typer.Option(
            help="easy: one tidy room. medium: one to four rooms. hard: three to six crowded rooms with scan defects."
        ),
    ] = Difficulty.medium,
    uniform: Annotated[
        bool,
        typer.Option("--uniform", help="Give all flats about the same size, all walks one length."),
    ] = False,
    rooms: Annotated[
        int | None, typer.Option(min=1, help="Rooms of every scene, instead of a range.")
    ] = None,
    max_edge: Annotated[
        float | None,
        typer.Option(help="Longest edge of a triangle in metres; shorter edges take more time."),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(min=2, help="Frames of every walk up to its root, instead of a range."),
    ] = None,
    points_per_frame: Annotated[
        int | None, typer.Option(min=0, help="Semidense points per frame.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with these and more settings; options override it."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of processes. It does not change the result.")
    ] = 1,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Make furnished flats and walks through them from a seed.

    Scenes are assigned to train, val and test in turn, 8 : 1 : 1. A larger store keeps the assignment of its scenes.
    """
    from rollbook.generate.sources.make_sources import make_source_store, sources_config

    folder_here(out, "OUT")
    asked = sources_config(
        config,
        difficulty=difficulty.value,
        uniform=uniform,
        top={"scenes": scenes, "seed": seed, "rows_per_scene": rows_per_scene},
        scene={"rooms": rooms, "max_edge_m": max_edge},
        walk={"frames": frames},
        sensing={"points_per_frame": points_per_frame},
    )
    with progress_bar("making scenes", compiles=True) as progress, hint_at_replace(replace):
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
        say(f"note: {message}")
    counts = manifest.counts
    shared = ", ".join(f"{count} {split}" for split, count in splits.items() if count)
    say(
        f"{out}: {counts['rows']:,} rows of {counts['scenes']:,} scenes ({shared}), "
        f"manifest {manifest.manifest_digest[:16]}…"
    )
    say(f"look at one with: rollbook source preview {quote(str(out))} --row 0 --out row.png")


def _by_split(manifest: SourceManifest) -> dict[str, int]:
    """Number of rows per split."""
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


class Instances(StrEnum):
    nodes = "nodes"
    ids = "ids"
    components = "components"


class Split(StrEnum):
    train = "train"
    val = "val"
    test = "test"


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """One scene with one recording. A field has the name of the setting in ImportConfig to which it belongs."""

    mesh: Annotated[
        Path | None, typer.Option(help="Mesh of the scene: GLB, OBJ, STL or PLY, with triangles.")
    ] = None
    trajectory: Annotated[
        Path | None,
        typer.Option(help="Camera poses: TUM text, Aria closed_loop_trajectory.csv, or JSON."),
    ] = None
    scene_id: Annotated[
        str | None, typer.Option(help="Id of the scene. Default: name of the mesh file.")
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="Name of the recording. Default: name of the trajectory file."),
    ] = None
    split: Annotated[Split, typer.Option(help="Split of the scene.")] = Split.train
    up: Annotated[Up, typer.Option(help="Axis that points up in all files.")] = Up.z
    mesh_up: Annotated[
        Up | None, typer.Option(help="Axis that points up in the mesh, if it differs.")
    ] = None
    scale: Annotated[float, typer.Option(help="Metres per unit in all files.")] = 1.0
    mesh_scale: Annotated[
        float | None, typer.Option(help="Metres per unit in the mesh, if it differs.")
    ] = None
    weld: Annotated[bool, typer.Option("--weld", help="Merge vertices with equal coordinates.")] = (
        False
    )
    trajectory_format: Annotated[
        Format | None,
        typer.Option("--format", help="Format of the trajectory. Default: detected from the file."),
    ] = None
    device_from_camera: Annotated[
        Path | None, typer.Option(help="JSON 4x4 matrix: pose of the camera on the tracked device.")
    ] = None
    frame_rate_hz: Annotated[
        float, typer.Option("--frame-rate", help="Frames per second of a trajectory without times.")
    ] = 10.0
    every: Annotated[int, typer.Option(min=1, help="Keep every N-th frame.")] = 1
    root_frames: Annotated[
        list[int] | None,
        typer.Option(
            "--root-frame",
            help="Frame at which rollouts start; repeat the option for more rows. Default: the middle frame.",
        ),
    ] = None
    prefix_frames: Annotated[
        int | None, typer.Option(min=1, help="Frames that the robot remembers. Default: all.")
    ] = None
    continuation_frames: Annotated[
        int | None, typer.Option(min=0, help="Frames kept after the root. Default: all.")
    ] = None
    points: Annotated[
        Path | None, typer.Option(help="Aria semidense_points.csv.gz, or xyz as CSV, PLY or NPY.")
    ] = None
    max_inv_dist_std: Annotated[
        float, typer.Option(help="Leave out points with a larger uncertainty, 1/m.")
    ] = 0.005
    max_dist_std: Annotated[
        float, typer.Option(help="Leave out points with a larger uncertainty, m.")
    ] = 0.05
    detections: Annotated[Path | None, typer.Option(help="JSON boxes that the robot detected.")] = (
        None
    )
    boxes: Annotated[Path | None, typer.Option(help="JSON ground-truth boxes.")] = None
    instances: Annotated[
        Instances | None,
        typer.Option(
            help="Take targets from the mesh, instead of --boxes: nodes of a GLB file, ids of the faces or "
            "vertices of a PLY file, or connected components."
        ),
    ] = None
    least_object_m: Annotated[
        float,
        typer.Option("--least-object", help="Shortest instance in metres that is a target."),
    ] = 0.05
    most_object_share: Annotated[
        float,
        typer.Option(help="Longest instance that is a target, as a share of the mesh's length."),
    ] = 0.7
    outside_in: Annotated[
        bool,
        typer.Option(
            "--outside-in",
            help="Allow cameras outside the mesh that see it: scans of objects and table tops.",
        ),
    ] = False
    camera: Annotated[
        Path | None, typer.Option(help="JSON pinhole camera: width, height, fx, fy, cx, cy.")
    ] = None
    field_of_view_deg: Annotated[
        float, typer.Option("--fov", help="Degrees across the width, if there is no --camera.")
    ] = 90.0
    size_px: Annotated[
        str, typer.Option("--size", help="Pixels as WIDTHxHEIGHT, if there is no --camera.")
    ] = "240x240"

    def config(self) -> ImportConfig:
        import msgspec

        from rollbook.generate.sources.import_config import ImportConfig, SceneImport

        if self.mesh is None or self.trajectory is None:
            message = "give --mesh and --trajectory, or a TOML file with --config"
            raise ConfigurationError(message=message)
        plain = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
        }
        plain |= {"root_frames": self.root_frames or [], "size_px": _pixels(self.size_px)}
        scene = {name: plain.pop(name) for name in SceneImport.__struct_fields__ if name in plain}
        try:
            return msgspec.convert({"scenes": [{**scene, "recordings": [plain]}]}, ImportConfig)
        except msgspec.ValidationError as error:
            raise ConfigurationError(message=str(error)) from error


@app.command("import")
@with_options(ImportOptions)
def import_(
    context: typer.Context,
    out: Out,
    options: ImportOptions,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with scenes and recordings, instead of the other options."),
    ] = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Import a mesh and a recorded trajectory.

    \b
      import STORE --mesh room.glb --up y --trajectory way.txt --instances nodes
      import STORE --mesh room.ply --trajectory way.txt --instances ids
      import STORE --mesh cup.ply --trajectory orbit.json --instances components
             --outside-in

    Targets come from the mesh (--instances) or from a file of boxes (--boxes). Boxes are JSON:
    [{"T_world_object": 4x4, "extents": [x, y, z], "class": "chair"}]. Without either there are no targets. Missing
    points are simulated from depth; with --instances, missing detections are simulated too.

    Cameras must be inside the box around the mesh, as in a scan of a room. --outside-in allows cameras around an
    object or a table top. The command prints every assumption that it makes, and the frames between which the path
    passes through a surface.
    """
    from rollbook.generate.sources.import_source import import_source_store

    folder_here(out, "OUT")
    asked = options.config() if config is None else _config_alone(config, context)
    with progress_bar("importing", compiles=True) as progress, hint_at_replace(replace):
        report = import_source_store(out, asked, replace=replace, progress=progress)
    _print_written(out, report.manifest, report.messages, as_json)


def _config_alone(config: Path, context: typer.Context) -> ImportConfig:
    """Refuses options that the config file would silently override."""
    from rollbook.generate.sources.import_config import load_import_config

    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and each.name not in ("out", "config", "replace", "as_json"):
            message = f"--config replaces all other options: leave out {each.opts[0]}"
            raise ConfigurationError(message=message)
    return load_import_config(existing_path(config))


def _pixels(size: str) -> list[int]:
    width, mark, height = size.partition("x")
    if not mark or not width.isdecimal() or not height.isdecimal():
        raise ConfigurationError(message=f"--size is {size!r}, expected such as 640x480")
    return [int(width), int(height)]


# ----------------------------------------------------------------------------------------- info


@app.command()
def info(
    store: Store,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of scenes to list; 0 lists all.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the content of a source store and how it was made."""
    from rollbook.generate.sources.reader import SourceStore

    opened = SourceStore.open(_existing(store))
    manifest = opened.manifest
    size = opened.size_bytes()
    if as_json:
        import msgspec

        plain = msgspec.to_builtins(manifest)
        print_json({"path": str(store), "size_bytes": size, **plain})
        return
    counts = manifest.counts
    say(f"{store}\n")
    print_pairs(
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
    say("")
    rows = _scene_rows(opened)
    print_rows(rows[: limit_or_none(limit)], total=len(rows))


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
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of violations to print; 0 prints all.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Check files, splits, poses, points and boxes.

    Prints every violation with its code. The exit code is 0 only if the store is valid.
    """
    from rollbook.generate.sources.reader import SourceStore
    from rollbook.generate.sources.validation import validate_source_store
    from rollbook.store.urls.url_folder import is_url

    with progress_bar("checking", compiles=True) as progress:
        folder = SourceStore.open(store).local() if is_url(store) else existing_path(Path(store))
        result = validate_source_store(folder, deep=deep, progress=progress)
    found = result.violations
    if as_json:
        counts = {"rows": result.rows, "scenes": result.scenes}
        listed = [each.as_dict() for each in found]
        print_json(
            {
                "ok": result.ok,
                "store": str(store),
                "deep": deep,
                **counts,
                "violations": listed,
                "notes": list(result.notes),
            }
        )
        raise typer.Exit(OK if result.ok else VIOLATIONS)
    for each in found[: limit_or_none(limit)]:
        text = str(each).removesuffix(f" [{each.code}]")
        say(f"  {text}", mark=each.code, colour="red")
    if limit and len(found) > limit:
        say(f"… {len(found) - limit} more; --limit 0 prints all")
    for note in result.notes:
        say(f"note: {note}")
    depth = ", and every array" if deep else "; --deep checks every array"
    say(f"checked {result.rows:,} rows of {result.scenes:,} scenes{depth}")
    plural = "violation" if len(found) == 1 else "violations"
    say("all is well" if result.ok else f"{len(found)} {plural}")
    raise typer.Exit(OK if result.ok else VIOLATIONS)


# -------------------------------------------------------------------------------------- preview


@app.command()
def preview(
    store: Store,
    out: Annotated[Path, typer.Option(help="PNG file to write.")],
    row: Annotated[int | None, typer.Option(min=0, help="Number of the row, from 0.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the row: SCENE/SNIPPET.")] = None,
    actor_only: Annotated[
        bool, typer.Option("--actor-only", help="Show only what the robot knows.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw one row from above: scene, path, root, points and boxes."""
    from rollbook.files import write_bytes
    from rollbook.generate.source_picture import preview_png
    from rollbook.generate.sources.reader import SourceStore

    if row is not None and key is not None:
        raise ConfigurationError(message="--row and --key do not go together: both name the row")
    opened = SourceStore.open(_existing(store), actor_only=actor_only)
    index = opened.find(key) if key is not None else row or 0
    shown = opened.row(index)
    with hint_at_replace(replace):
        write_bytes(out, preview_png(shown), replace=replace)
    print_done(
        {"path": str(out), "row": index, "key": shown.sample_key},
        f"{out}: row {index}, {shown.sample_key}",
        as_json,
    )


# -------------------------------------------------------------------------------------- publish


@app.command()
def publish(
    store: Annotated[Path, typer.Argument(help="Folder of a source store.")],
    url: Annotated[str, typer.Argument(help="Target URL, such as s3://bucket/prefix.")],
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Upload a finished source store to a URL.

    `rollbook generate --source URL` reads it from there. If an upload was interrupted, the same command continues it.
    """
    from rollbook.generate.sources.remote_source import publish_source_store

    with progress_bar("publishing") as progress, hint_at_replace(replace):
        done = publish_source_store(existing_path(store), url, replace=replace, progress=progress)
    shown = {"url": done.url, "files": done.files, "size_bytes": done.bytes}
    print_done(
        {**shown, "manifest_digest": done.manifest_digest},
        f"{done.url}: {done.files} files, {shown_bytes(done.bytes)}, manifest {done.manifest_digest[:16]}…",
        as_json,
    )

"""`rollbook source` as a person or a script meets it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from rollbook.cli.source import app
from rollbook.generate.sources.reader import SourceStore
from tests.command import Ended, rollbook
from tests.generate.source_rows import room, write_store

COMMANDS = ("make", "import", "info", "validate", "preview", "publish")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "sources"
    write_store(path, scenes=7)
    return path


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "sources"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A room as a PLY file, and a way through it."""
    folder = tmp_path_factory.mktemp("files")
    write_room(folder / "my room.ply")
    write_way(folder / "way.json")
    pose = [1, 0, 0, 0, 1, 0, 0, 0, 1, 3.0, 1.5, 0.5]
    box = {"pose12": pose, "extents": [0.5, 0.5, 1.0], "class": "chair", "inst": 3}
    (folder / "boxes.json").write_text(json.dumps([box]))
    (folder / "camera.json").write_text(
        json.dumps({"width": 32, "height": 24, "fx": 16, "fy": 16, "cx": 16, "cy": 12})
    )
    return folder


def write_room(path: Path) -> None:
    mesh = room()
    header = (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {len(mesh.vertices)}\nproperty float x\n"
        f"property float y\nproperty float z\nelement face {len(mesh)}\n"
        "property list uchar int vertex_indices\nend_header\n"
    )
    faces = b"".join(struct.pack("<B3i", 3, *face) for face in mesh.faces.tolist())
    path.write_bytes(header.encode() + mesh.vertices.astype("<f4").tobytes() + faces)


def write_way(path: Path, *, lift: float = 0.0, frames: int = 9) -> None:
    """Along x at eye height, looking along x."""
    matrix = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
    matrices = []
    for x in np.linspace(0.5, 3, frames):
        matrix[:3, 3] = (x, 1.5, 1.5 + lift)
        matrices.append(matrix.tolist())
    path.write_text(json.dumps(matrices))


def said(result: Ended) -> Any:
    assert result.returncode == 0, result
    return json.loads(result.stdout)


def refused(result: Ended, code: int, *words: str) -> None:
    assert result.returncode == code, result
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


# ------------------------------------------------------------------------------------------- help


def test_help_lists_every_command_on_a_line_of_its_own() -> None:
    listed = rollbook("source", "--help").stdout.partition("Commands:\n")[2].splitlines()
    assert tuple(line.split()[0] for line in listed) == COMMANDS
    assert all(len(line) < 80 and not line.endswith("...") for line in listed)


def test_every_option_is_explained() -> None:
    group: Any = typer.main.get_command(app)
    assert tuple(group.commands) == COMMANDS
    for command in group.commands.values():
        assert [each.name for each in command.params if not getattr(each, "help", None)] == []


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['rollbook', 'source', 'make', '--help']\n"
        "from rollbook.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    loaded = {'numpy', 'numba', 'trimesh', 'matplotlib', 'rollbook.generate'} & set(sys.modules)\n"
        "    assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------- make


SMALL = (
    *("--difficulty", "easy", "--max-edge", "0.5"),
    *("--frames", "4", "--points-per-frame", "60"),
)


def test_make_gives_a_store_that_is_valid_and_the_same_every_time(tmp_path: Path) -> None:
    first, second = (
        said(
            rollbook(
                *("source", "make", tmp_path / name, "--scenes", 2, "--seed", 5),
                *("--rows-per-scene", 2, *SMALL, "--json"),
            )
        )
        for name in ("a", "b")
    )
    assert first["manifest_digest"] == second["manifest_digest"]
    assert first["counts"]["rows"] == 4
    assert first["counts"]["frames"] == 16
    checked = said(rollbook("source", "validate", tmp_path / "a", "--deep", "--json"))
    assert checked["ok"]
    one = rollbook("source", "make", tmp_path / "c", "--scenes", 1, "--seed", 5, *SMALL)
    assert one.returncode == 0
    assert "1 rows of 1 scenes (1 train)" in one.stdout
    assert "source preview" in one.stdout
    # a scene is the same however many there are
    whole, part = (SourceStore.open(tmp_path / name) for name in ("a", "c"))
    assert part.scenes[0] == whole.scenes[0]
    assert part.manifest.scenes[0].mesh_sha256 == whole.manifest.scenes[0].mesh_sha256
    assert part.index[0].row_sha256 == whole.index[0].row_sha256


def test_make_refuses_what_is_there_and_what_cannot_be(tmp_path: Path, store: Path) -> None:
    refused(rollbook("source", "make", store, "--scenes", 1, *SMALL), 1, "--replace replaces it")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    result = rollbook("source", "make", tmp_path / "mine", "--scenes", 1, *SMALL, "--replace")
    refused(result, 1, "not a source store, so it stays")
    assert rollbook("source", "make", tmp_path / "x", "--scenes", 0).returncode == 2
    refused(rollbook("source", "make", tmp_path / "x", "--max-edge", 99), 2, "max_edge_m")


def test_make_takes_a_config_and_options_win(tmp_path: Path) -> None:
    (tmp_path / "make.toml").write_text(
        "scenes = 3\nseed = 5\n[scene]\nmax_edge_m = 0.5\nrooms = 1\nsize_m = [5.0, 4.5]\n"
        "[walk]\nframes = 3\n[sensing]\npoints_per_frame = 10\nimage_px = 32\n"
    )
    made = said(
        rollbook(
            *("source", "make", tmp_path / "s", "--config", tmp_path / "make.toml"),
            *("--scenes", 1, "--json"),
        )
    )
    assert made["counts"]["rows"] == 1
    assert made["counts"]["frames"] == 3
    (tmp_path / "bad.toml").write_text("scene = 3\nsceens = 2\n")
    refused(
        rollbook("source", "make", tmp_path / "t", "--config", tmp_path / "bad.toml"), 2, "bad.toml"
    )


# ----------------------------------------------------------------------------------------- import


def test_import_brings_a_mesh_and_a_way(files: Path, tmp_path: Path) -> None:
    result = rollbook(
        *("source", "import", tmp_path / "s", "--mesh", files / "my room.ply"),
        *("--trajectory", files / "way.json", "--boxes", files / "boxes.json"),
        *("--root-frame", 4, "--root-frame", -2, "--size", "32x24", "--split", "val"),
    )
    assert result.returncode == 0, result
    for words in ("points: they are simulated", "no detections", "has no times"):
        assert words in result.stdout
    assert "2 rows of 1 scenes (2 val)" in result.stdout
    opened = SourceStore.open(tmp_path / "s")
    assert [entry.sample_key for entry in opened.index] == [
        "my-room/way-000004",
        "my-room/way-000007",
    ]
    row = opened.row(0)
    assert row.oracle is not None
    assert row.actor.poses.shape == (5, 12)
    assert row.actor.root_pose[9:].tolist() == pytest.approx([1.75, 1.5, 1.5])
    assert row.oracle.continuation.shape == (4, 12)
    assert row.oracle.boxes.class_name == ("chair",)
    assert row.oracle.boxes.inst_id.tolist() == [3]
    assert (row.actor.camera.width, row.actor.camera.height) == (32, 24)
    assert len(row.actor.points)
    assert np.abs(row.actor.points[:, 0] - 4).min() < 0.2  # on the wall ahead
    assert opened.manifest.scenes[0].notes["points"] == "simulated"
    assert "files" not in str(opened.manifest.config)  # names and digests, no places
    assert opened.manifest.config["scenes"][0]["mesh"]["name"] == "my room.ply"
    assert said(rollbook("source", "validate", tmp_path / "s", "--deep", "--json"))["ok"]


def test_import_counts_triangles_without_area(files: Path, tmp_path: Path) -> None:
    corners = [(0, 0, 0), (4, 0, 0), (4, 3, 0), (0, 3, 0), (0, 0, 2.5), (4, 0, 2.5), (4, 3, 2.5)]
    lines = [f"v {x} {y} {z}" for x, y, z in corners]
    lines += ["f 1 2 3", "f 1 3 4", "f 5 6 7", "f 1 1 2", "f 2 2 2"]
    (tmp_path / "room.obj").write_text("\n".join(lines))
    words = ("source", "import", tmp_path / "s", "--mesh", tmp_path / "room.obj")
    result = rollbook(*words, "--trajectory", files / "way.json", "--size", "32x24")
    assert result.returncode == 0, result
    assert "room.obj: 2 triangles without area are left out" in result.stdout


def test_import_is_the_same_wherever_the_files_lie(files: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(files, tmp_path / "elsewhere")
    digests = [
        said(
            rollbook(
                *("source", "import", tmp_path / name, "--mesh", folder / "my room.ply"),
                *(
                    "--trajectory",
                    folder / "way.json",
                    "--camera",
                    folder / "camera.json",
                    "--json",
                ),
            )
        )["manifest_digest"]
        for name, folder in (("a", files), ("b", moved))
    ]
    assert digests[0] == digests[1]


def test_import_keeps_only_points_that_were_in_sight_by_then(files: Path, tmp_path: Path) -> None:
    """One on the wall ahead, one on the wall behind, one behind the wall ahead."""
    np.save(tmp_path / "p.npy", [[3.98, 1.5, 1.5], [0.0, 1.5, 1.5], [5.0, 1.5, 1.5]])
    result = rollbook(
        *("source", "import", tmp_path / "s", "--mesh", files / "my room.ply"),
        *("--trajectory", files / "way.json", "--points", tmp_path / "p.npy", "--root-frame", 4),
    )
    assert "1 of 3 points were visible" in result.stdout
    row = SourceStore.open(tmp_path / "s").row(0)
    assert row.actor.points.tolist() == [pytest.approx([3.98, 1.5, 1.5])]
    assert row.actor.point_frame.tolist() == [4]  # the nearest
    assert np.isnan(row.actor.dist_std).all()


def test_import_of_many_scenes_by_a_config(files: Path, tmp_path: Path) -> None:
    here = shutil.copytree(files, tmp_path / "data")
    shutil.copy(here / "my room.ply", here / "other.ply")
    (here / "detections.json").write_text((here / "boxes.json").read_text())
    (here / "all.toml").write_text(
        '[[scenes]]\nmesh = "other.ply"\nscene_id = "b"\nsplit = "test"\n'
        '[[scenes.recordings]]\ntrajectory = "way.json"\nroot_frames = [3]\ncamera = "camera.json"\n'
        '[[scenes]]\nmesh = "my room.ply"\nscene_id = "a"\nboxes = "boxes.json"\n'
        '[[scenes.recordings]]\ntrajectory = "way.json"\nname = "second"\nroot_frames = [2]\n'
        '[[scenes.recordings]]\ntrajectory = "way.json"\nname = "first"\nroot_frames = [5, 1]\n'
        'prefix_frames = 2\ncontinuation_frames = 1\ndetections = "detections.json"\n'
    )
    made = said(
        rollbook("source", "import", tmp_path / "s", "--config", here / "all.toml", "--json")
    )
    assert any("inst of detections is ignored" in message for message in made["messages"])
    opened = SourceStore.open(tmp_path / "s")
    assert [entry.sample_key for entry in opened.index] == [
        *("a/first-000001", "a/first-000005", "a/second-000002", "b/way-000003")
    ]
    assert opened.manifest.counts["meshes"] == 1  # the same room twice
    assert opened.splits.given == ["b"]
    first = opened.row(1)
    assert first.oracle is not None
    assert len(first.actor.poses) == 2
    assert len(first.oracle.continuation) == 1
    assert len(first.actor.detections) == 1
    assert opened.row(3).actor.camera.fx == 16


BAD_IMPORTS: dict[str, tuple[tuple[object, ...], int, str]] = {
    "nothing": ((), 2, "--mesh and --trajectory"),
    "no such mesh": (("--mesh", "no.ply", "--trajectory", "way.json"), 2, "no file no.ply"),
    "a way through the roof": (
        ("--mesh", "my room.ply", "--trajectory", "high.json"),
        1,
        "100% of 9 frames lie outside the mesh (9)",
    ),
    "a way in the floor": (
        ("--mesh", "my room.ply", "--trajectory", "low.json"),
        1,
        "within 1 cm of a surface (9)",
    ),
    "a root frame that is not there": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--root-frame", 9),
        2,
        "has 9 frames",
    ),
    "a size that is none": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--size", "big"),
        2,
        "640x480",
    ),
    "another camera model": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--camera", "fisheye.json"),
        2,
        "resample the recording to a pinhole",
    ),
    "half a camera": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--camera", "half.json"),
        2,
        "expected width, height, fx, fy, cx, cy",
    ),
    "an id that leaves the store": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--scene-id", "../x"),
        1,
        "scene_id is '../x'",
    ),
    "the wrong axis up": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--mesh-up", "y"),
        1,
        "Do up and scale fit both files?",
    ),
    "the wrong unit": (
        ("--mesh", "my room.ply", "--trajectory", "way.json", "--mesh-scale", "1000"),
        1,
        "--scale 1 if it is in metres",
    ),
    "twins": (("--config", "twins.toml"), 2, "'a' is given twice"),
    "a config and more": (("--config", "twins.toml", "--up", "y"), 2, "leave out --up"),
    "a config with a slip": (("--config", "slip.toml"), 2, "trajektory"),
}


@pytest.mark.parametrize("bad", BAD_IMPORTS)
def test_bad_imports_say_what_to_do_and_write_nothing(
    bad: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, code, words = BAD_IMPORTS[bad]
    here = shutil.copytree(files, tmp_path / "data")
    monkeypatch.chdir(here)
    write_way(here / "high.json", lift=5)
    write_way(here / "low.json", lift=-1.495)
    (here / "fisheye.json").write_text('{"model": "fisheye624", "width": 9}')
    (here / "half.json").write_text('{"width": 9}')
    scene = '[[scenes]]\nmesh = "my room.ply"\nscene_id = "a"\n[[scenes.recordings]]\n'
    (here / "twins.toml").write_text(2 * f'{scene}trajectory = "way.json"\n')
    (here / "slip.toml").write_text(f'{scene}trajektory = "way.json"\n')
    refused(rollbook("source", "import", tmp_path / "s", *arguments), code, words)
    assert not (tmp_path / "s").exists()


# --------------------------------------------------------------------------- info, validate, preview


def test_info_says_what_is_in_a_store(good: Path) -> None:
    shown = rollbook("source", "info", good, "--limit", 3).stdout
    digest = SourceStore.open(good).manifest_digest
    for words in (
        "train 10, val 2, test 2",
        "scene-000",
        "4 more",
        digest,
        "rollbook.source_store 1",
    ):
        assert words in shown, shown
    counted = said(rollbook("source", "info", good, "--json"))
    assert counted["counts"]["rows"] == 14
    assert counted["manifest_digest"] == digest
    assert counted["size_bytes"] > 1000


def test_validate_ends_with_1_and_the_codes_when_something_is_wrong(store: Path) -> None:
    fine = rollbook("source", "validate", store)
    assert fine.returncode == 0
    assert "checked 14 rows of 7 scenes" in fine.stdout
    assert "all is well" in fine.stdout
    poses = store / "actor/shard-000000/frames/pose.npy"
    np.save(poses, -np.load(poses))
    (store / "splits.json").unlink()
    result = rollbook("source", "validate", store)
    assert result.returncode == 1
    assert "pose_not_rigid" in result.stdout
    assert "document_missing" in result.stdout
    found = json.loads(rollbook("source", "validate", store, "--json", "--deep").stdout)
    assert not found["ok"]
    assert {"checksum_mismatch", "wrong_digest"} <= {each["code"] for each in found["violations"]}


def test_a_place_without_a_store_is_a_plain_error(tmp_path: Path) -> None:
    for command in ("info", "validate"):
        refused(rollbook("source", command, tmp_path / "x"), 2, "there is nothing at")
    refused(rollbook("source", "info", tmp_path), 1, "not a source store")
    assert rollbook("source", "validate", tmp_path).returncode == 1


def test_preview_draws_a_row(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "row.png"
    result = rollbook("source", "preview", good, "--row", 1, "--out", out)
    assert result.stdout == f"{out}: row 1, scene-000/row-001\n"
    assert out.read_bytes().startswith(b"\x89PNG")
    whole = out.read_bytes()
    refused(rollbook("source", "preview", good, "--out", out), 1, "--replace replaces it")
    by_key = rollbook(
        *("source", "preview", good, "--key", "scene-000/row-001", "--out", out),
        *("--actor-only", "--replace"),
    )
    assert by_key.returncode == 0, by_key
    assert out.read_bytes() != whole
    refused(rollbook("source", "preview", good, "--row", 99, "--out", out), 1, "there is no row 99")
    both = rollbook("source", "preview", good, "--row", 1, "--key", "x", "--out", out)
    refused(both, 2, "do not go together")


# ---------------------------------------------------------------------------------------- publish


def test_publish_puts_a_source_at_a_url_once(good: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/published"
    done = said(rollbook("source", "publish", good, url, "--json"))
    assert done["url"] == url
    assert done["manifest_digest"] == SourceStore.open(url).manifest_digest
    assert said(rollbook("source", "validate", tmp_path / "published", "--deep", "--json"))["ok"]
    refused(rollbook("source", "publish", good, url), 1, "--replace replaces it")
    assert rollbook("source", "publish", good, url, "--replace").returncode == 0
    refused(rollbook("source", "publish", good, "nowhere"), 2, "s3://bucket/prefix")

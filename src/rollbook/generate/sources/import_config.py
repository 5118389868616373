"""ImportConfig: the scenes and recordings of an import, from TOML or from options of the command line."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.scenes.sensing import SensingConfig
from rollbook.generate.sources.import_instances import Instances
from rollbook.generate.sources.import_mesh import Up
from rollbook.generate.sources.import_text import Refuse, read_text
from rollbook.generate.sources.import_trajectory import TrajectoryFormat
from rollbook.generate.sources.splits import SplitConfig, SplitMethod
from rollbook.generate.sources.writer import ROWS_PER_SHARD

_SCENE_FILES = ("mesh", "boxes")
_RECORDING_FILES = ("trajectory", "device_from_camera", "points", "detections", "camera")


class RecordingImport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trajectory through a scene, and the data recorded along it."""

    trajectory: str
    """TUM text, Aria's closed_loop_trajectory.csv, or JSON matrices."""
    name: str | None = None
    """Part of the row names, with the root frame. None: the name of the trajectory's file."""
    trajectory_format: TrajectoryFormat | None = None
    """None: detected from the content."""
    device_from_camera: str | None = None
    """JSON with one 4x4 matrix: the pose of the camera on the tracked device. None: the camera was tracked."""
    frame_rate_hz: float = 10.0
    """Frame rate of files without times."""
    every: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Keep every so-many-th frame; device trajectories often have a thousand poses per second."""
    root_frames: tuple[int, ...] = ()
    """Kept frames at which rollouts start, one row each. Negative numbers count from the end. Empty: the middle
    frame."""
    prefix_frames: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of frames up to a root that the robot remembers; None for all."""
    continuation_frames: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Number of frames after a root that are kept for comparison; None for all."""
    most_bad_frames: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.02
    """Largest share of frames that may lie outside the mesh or in a surface."""
    points: str | None = None
    """Aria's semidense_points.csv(.gz), or xyz as CSV, PLY or NPY; None: simulated from rendered depth."""
    max_inv_dist_std: float = 0.005
    """1/m. Points with a larger uncertainty are left out."""
    max_dist_std: float = 0.05
    """m"""
    detections: str | None = None
    """JSON boxes that the robot detected."""
    camera: str | None = None
    """JSON pinhole: width, height, fx, fy, cx, cy. None: a camera of the two settings below."""
    field_of_view_deg: float = 90.0
    """Field of view across the width."""
    size_px: tuple[int, int] = (240, 240)
    """Width and height."""


class SceneImport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mesh and the recordings in it."""

    mesh: str
    """GLB, OBJ, STL or PLY."""
    recordings: tuple[RecordingImport, ...]
    scene_id: str | None = None
    """None: the name of the mesh file."""
    split: str | None = None
    """train, val or test; None: drawn by a hash of the id."""
    up: Up = "z"
    """The axis that points up in all files of the scene."""
    mesh_up: Up | None = None
    """The axis that points up in the mesh, if it differs."""
    scale: float = 1.0
    """Metres per unit in all files of the scene."""
    mesh_scale: float | None = None
    """Metres per unit in the mesh, if it differs."""
    weld: bool = False
    """Merge vertices of the mesh that have equal coordinates."""
    boxes: str | None = None
    """JSON ground-truth boxes."""
    instances: Instances | None = None
    """Take targets from the mesh instead of `boxes`: `nodes` of a GLB file, `ids` of the faces or vertices of a PLY
    file, or connected `components`. Recordings without detections then get simulated ones."""
    least_object_m: Annotated[float, msgspec.Meta(gt=0)] = 0.05
    """Instances whose longest side is shorter are no targets."""
    most_object_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7
    """Instances whose longest side is a larger share of the mesh's longest side are no targets: floors and walls."""
    outside_in: bool = False
    """Cameras may be outside the box around the mesh if they see it, as in scans of objects and table tops."""

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigurationError(message=f"import.scale is {self.scale}, expected above 0")
        if self.boxes is not None and self.instances is not None:
            message = "import.boxes and import.instances both name the targets: give one of them"
            raise ConfigurationError(message=message)
        if not self.recordings:
            message = f"import.recordings of {self.mesh} are none, expected at least one trajectory"
            raise ConfigurationError(message=message)


class ImportConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole store. In TOML, `[[scenes]]` for every scene and `[[scenes.recordings]]` below it."""

    scenes: tuple[SceneImport, ...]
    classes: tuple[str, ...] | None = None
    """Class names by semantic id; None: all names that occur, sorted."""
    sensing: SensingConfig = SensingConfig()
    """Settings for simulated points."""
    splits: SplitConfig = SplitConfig(method=SplitMethod.BY_HASH)
    seed: int = 0
    """Seed of simulated points."""
    rows_per_shard: int = ROWS_PER_SHARD

    def __post_init__(self) -> None:
        if not self.scenes:
            raise ConfigurationError(message="import.scenes is empty, expected at least one")

    def described(self) -> dict[str, Any]:
        """The config for the manifest, with name and digest of every file instead of its path."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        for scene in plain["scenes"]:
            _describe_files(scene, _SCENE_FILES)
            for recording in scene["recordings"]:
                _describe_files(recording, _RECORDING_FILES)
        return plain


def _describe_files(plain: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if plain[name] is not None:
            place = Path(plain[name])
            digest = hashlib.sha256(place.read_bytes()).hexdigest()
            plain[name] = {"name": place.name, "sha256": digest}


def load_import_config(path: str | os.PathLike[str]) -> ImportConfig:
    """Reads a TOML file. Relative paths count from its folder."""
    place = Path(path)
    refuse = _refusal(str(place))
    try:
        config = msgspec.toml.decode(read_text(place, refuse), type=ImportConfig)
    except msgspec.DecodeError as error:
        raise refuse(str(error)) from error
    scenes = tuple(
        _resolve_paths(
            msgspec.structs.replace(
                scene,
                recordings=tuple(
                    _resolve_paths(each, _RECORDING_FILES, place.parent)
                    for each in scene.recordings
                ),
            ),
            _SCENE_FILES,
            place.parent,
        )
        for scene in config.scenes
    )
    return msgspec.structs.replace(config, scenes=scenes)


def _resolve_paths(config: Any, names: tuple[str, ...], folder: Path) -> Any:
    given = {name: getattr(config, name) for name in names}
    placed = {name: str(folder / path) for name, path in given.items() if path is not None}
    return msgspec.structs.replace(config, **placed)


def refuse_missing_files(scene: SceneImport) -> None:
    """Refuses a config with missing files before any file is read."""
    named = [(name, getattr(scene, name)) for name in _SCENE_FILES]
    for recording in scene.recordings:
        named += [(name, getattr(recording, name)) for name in _RECORDING_FILES]
    for name, path in named:
        if path is not None and not Path(path).is_file():
            raise ConfigurationError(message=f"{name.replace('_', ' ')}: there is no file {path}")


def camera_of(config: RecordingImport, sensing: SensingConfig) -> Camera:
    """The recording's pinhole camera, from its file or from field of view and size."""
    if config.camera is None:
        width, height = config.size_px
        focal = Camera.square(max(width, 1), config.field_of_view_deg).fx
        return Camera(
            width=width,
            height=height,
            fx=focal,
            fy=focal,
            cx=width / 2,
            cy=height / 2,
            near_m=sensing.near_m,
            far_m=sensing.far_m,
        )
    refuse = _refusal(f"camera {Path(config.camera).name}")
    try:
        parsed = msgspec.json.decode(read_text(Path(config.camera), refuse))
        model = parsed.pop("model", "pinhole") if isinstance(parsed, dict) else "pinhole"
        if model != "pinhole":
            raise refuse(f"its model is {model!r}; resample the recording to a pinhole")
        return msgspec.convert(parsed, Camera)
    except msgspec.DecodeError as error:
        raise refuse(f"{error}; expected width, height, fx, fy, cx, cy") from error


def _refusal(about: str) -> Refuse:
    return lambda detail: ConfigurationError(message=f"{about}: {detail}")

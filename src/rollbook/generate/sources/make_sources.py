"""Procedural source rows: scenes made from a seed, walks through them, and simulated recordings of the walks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollbook.digest import digest_of
from rollbook.engines import run_in_order
from rollbook.errors import ConfigurationError, GenerationFailed
from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.scene import GENERATOR_VERSION, SceneConfig, make_scene
from rollbook.generate.scenes.sensing import Recording, SensingConfig, record
from rollbook.generate.scenes.variety import FlatVariety
from rollbook.generate.scenes.walk import WalkConfig
from rollbook.generate.sources.documents import SourceManifest
from rollbook.generate.sources.reader import ActorView
from rollbook.generate.sources.splits import SplitConfig
from rollbook.generate.sources.writer import ROWS_PER_SHARD, SourceStoreWriter
from rollbook.notebook import shown_progress

_SEED_DOMAIN = "rollbook.source_seed.v1"
_FAMILY_DOMAIN = "rollbook.scene_family.v1"

Progress = Callable[[int, int], None]
"""Called after every scene with the number of finished scenes and of all scenes."""


class MakeSourcesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that determines the content of a procedural store. The number of workers does not."""

    seed: int = 0
    scenes: int = 20
    rows_per_scene: int = 1
    """Walks through each scene; each ends at its own root."""
    scene: SceneConfig = SceneConfig()
    """Settings of all scenes; each scene has its own seed."""
    walk: WalkConfig = WalkConfig()
    variety: FlatVariety | None = None
    """Ranges for sizes of flats and lengths of walks. They replace the values of `scene` and `walk`; None keeps these.
    `sources_config` gives those of a difficulty."""
    sensing: SensingConfig = SensingConfig()
    splits: SplitConfig = SplitConfig()
    rows_per_shard: int = ROWS_PER_SHARD

    def __post_init__(self) -> None:
        for name in ("scenes", "rows_per_scene", "rows_per_shard"):
            expect(self, name, getattr(self, name) >= 1, "at least 1", section="make_sources")

    def scene_id(self, number: int) -> str:
        """An id that covers seed, generator version and settings: equal ids mean equal scenes."""
        covered = [GENERATOR_VERSION, self.seed, msgspec.structs.replace(self.scene, seed=0)]
        if self.variety is not None:
            covered.append(self.variety)
        family = digest_of(_FAMILY_DOMAIN, msgspec.to_builtins(covered))
        return f"flat-{family[:8]}-{number:06d}"

    def scene_config(self, number: int) -> SceneConfig:
        """The config of one scene. It does not depend on the number of scenes."""
        seed = int(digest_of(_SEED_DOMAIN, [self.seed, number])[:15], 16)
        own = msgspec.structs.replace(self.scene, seed=seed)
        if self.variety is None:
            return own
        return self.variety.scene(own, self._generator(number, "variety"))

    def walk_config(self, number: int, row: int) -> WalkConfig:
        """The config of one walk. It does not depend on the number of scenes or of rows."""
        if self.variety is None:
            return self.walk
        return self.variety.walk(self.walk, self._generator(number, row, "variety"))

    def walk_generator(self, number: int, row: int) -> np.random.Generator:
        return self._generator(number, row)

    def _generator(self, *purpose: int | str) -> np.random.Generator:
        digest = digest_of(_SEED_DOMAIN, [self.seed, *purpose])
        return np.random.default_rng(np.random.SeedSequence(int(digest, 16)))


def sources_config(
    path: Path | None = None,
    *,
    difficulty: str = "medium",
    uniform: bool = False,
    top: Mapping[str, Any] | None = None,
    scene: Mapping[str, Any] | None = None,
    walk: Mapping[str, Any] | None = None,
    sensing: Mapping[str, Any] | None = None,
) -> MakeSourcesConfig:
    """Combines a difficulty, a TOML file and single fields; the later wins. Fields of None are ignored.

    Flats differ in size and walks in length. A size or length that is given holds for all of them; `uniform` gives all
    of them the values of the difficulty.
    """
    plain: dict[str, Any] = {} if path is None else _toml(path)
    preset = msgspec.to_builtins(SceneConfig.of_difficulty(difficulty))
    given = {
        *_keys(plain.get("scene")),
        *_keys(plain.get("walk")),
        *_without_none(scene),
        *_without_none(walk),
    }
    ranges = plain.get("variety", {})
    if uniform:
        plain["variety"] = None
    elif isinstance(ranges, dict):
        plain["variety"] = {**_ranges(difficulty, given), **ranges}
    for name, first, last in (
        ("scene", preset, scene),
        ("walk", {}, walk),
        ("sensing", {}, sensing),
    ):
        section = plain.get(name, {})
        if isinstance(section, dict):  # other types are refused below, with the name of the section
            plain[name] = {**first, **section, **_without_none(last)}
    try:
        return msgspec.convert({**plain, **_without_none(top)}, MakeSourcesConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(message=f"{path or 'source make'}: {error}") from error


def _ranges(difficulty: str, given: set[str]) -> dict[str, Any]:
    """The ranges of a difficulty, without those whose value is given for all flats or walks."""
    ranges: dict[str, Any] = msgspec.to_builtins(FlatVariety.of_difficulty(difficulty))
    fixed = given & {"rooms", "ceiling_m", "frames"}
    if "size_m" in given:  # rooms that were drawn might not fit
        fixed |= {"rooms", "room_area_m2"}
    return ranges | dict.fromkeys(fixed)


def _keys(section: Any) -> tuple[str, ...]:
    return tuple(section) if isinstance(section, dict) else ()


def _without_none(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (fields or {}).items() if value is not None}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(message=f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class MadeScene:
    scene_id: str
    mesh: TriangleMesh
    boxes: Boxes
    recipe: dict[str, Any]
    notes: dict[str, str]
    recordings: tuple[Recording, ...]


def make_source_store(
    path: str | os.PathLike[str],
    config: MakeSourcesConfig,
    *,
    workers: int = 1,
    replace: bool = False,
    progress: Progress | None = None,
) -> SourceManifest:
    """Writes a store of procedural rows. The number of workers does not change the content."""
    if workers < 1:
        raise ConfigurationError(message=f"workers is {workers}, expected at least 1")
    with SourceStoreWriter(
        path,
        config=msgspec.to_builtins(config),
        kind="procedural",
        splits=config.splits,
        rows_per_shard=config.rows_per_shard,
        replace=replace,
    ) as writer:
        with (
            closing(_made_scenes(config, workers)) as scenes,
            shown_progress("making scenes", progress) as shown,
        ):
            for done, made in enumerate(scenes, 1):
                _add(writer, made)
                shown(done, config.scenes)
        return writer.finish()


def make_numbered_scene(config: MakeSourcesConfig, number: int) -> MadeScene:
    """One scene with its walks. It depends only on the config and the number."""
    scene_config = config.scene_config(number)
    scene = make_scene(scene_config)
    geometry = SceneGeometry(scene.mesh)
    recordings = tuple(
        record(
            scene,
            geometry,
            config.walk_generator(number, row),
            walk=config.walk_config(number, row),
            sensing=config.sensing,
        )
        for row in range(config.rows_per_scene)
    )
    return MadeScene(
        config.scene_id(number),
        scene.mesh,
        scene.boxes,
        scene_recipe(scene_config),
        {"points": "simulated", "detections": "simulated", "renderer": geometry.backend},
        recordings,
    )


def scene_recipe(config: SceneConfig) -> dict[str, Any]:
    return {"generator": GENERATOR_VERSION, "config": msgspec.to_builtins(config)}


def actor_view(recording: Recording) -> ActorView:
    """The part of a recording that the robot knows."""
    return ActorView(
        recording.poses,
        recording.t_ns,
        recording.camera,
        recording.points,
        recording.point_frame,
        recording.inv_dist_std,
        recording.dist_std,
        recording.detections,
    )


def _add(writer: SourceStoreWriter, made: MadeScene) -> None:
    writer.add_scene(made.scene_id, made.mesh, made.boxes, recipe=made.recipe, notes=made.notes)
    for row, recording in enumerate(made.recordings):
        writer.add_row(
            made.scene_id,
            f"walk-{row:03d}",
            actor_view(recording),
            recording.continuation,
            recording.continuation_t_ns,
        )


def _made_scenes(config: MakeSourcesConfig, workers: int) -> Generator[MadeScene, None, None]:
    """Yields the scenes in the order of their numbers."""
    return run_in_order(
        partial(partial, make_numbered_scene, config),
        range(config.scenes),
        workers=workers,
        failed=lambda number, failure: GenerationFailed(
            sample_index=number, sample_key=config.scene_id(number), detail=str(failure)
        ),
    )

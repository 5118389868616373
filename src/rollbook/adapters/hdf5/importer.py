"""Hdf5Importer: an HDF5 file, or a folder of them, as a recording that the import engine reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollbook.adapters.encoded import EncodedEpisode, files_in
from rollbook.adapters.hdf5 import facts
from rollbook.adapters.hdf5.attributes import Attributes
from rollbook.adapters.hdf5.cameras import ColourOrder
from rollbook.adapters.hdf5.episode import (
    EpisodePlan,
    WrittenEpisode,
    plan_episode,
    read_attributes,
    step_clock,
    stream_slot,
    tile_facts,
    write_episode,
)
from rollbook.adapters.hdf5.layouts import LAYOUTS, Layout, episode_places, find_layout
from rollbook.adapters.hdf5.masks import Masks, read_masks
from rollbook.adapters.recording import EpisodeInRecording, RecordedStream, Recording, Skipped
from rollbook.adapters.steps.h5_dataset import H5Dataset, described_dataset
from rollbook.adapters.steps.h5_file import (
    child,
    descendant,
    has_signature,
    is_dataset,
    is_group,
    natural_order,
    object_names,
    opened,
)
from rollbook.client.video import checked_rate
from rollbook.contracts.episode import LONGEST_NAME
from rollbook.digest import Plain
from rollbook.errors import ConfigurationError, CountMismatch, DamagedRecording, UnknownFormat

FORMAT = "hdf5"
_SUFFIXES = frozenset({".hdf5", ".h5"})
_MOST_FILES = 100_000


def looks_like(path: Path) -> str | None:
    if path.is_dir():
        files = _files_in(path)
        if not files or _is_minari(files[0]) or not has_signature(files[0]):
            return None
        return f"{files[0].name} begins as an HDF5 file"
    if _is_minari(path) or not has_signature(path):
        return None
    return "it begins as an HDF5 file"


def _is_minari(file: Path) -> bool:
    """A part of a Minari dataset, which is imported as that."""
    return file.name == "main_data.hdf5" and (file.parent / "metadata.json").is_file()


def _files_in(folder: Path) -> list[Path]:
    found = [each for each in folder.iterdir() if each.suffix.lower() in _SUFFIXES]
    files = [each for each in found if not each.name.startswith(".") and each.is_file()]
    return sorted(files, key=lambda each: natural_order(each.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an episode is."""

    file: Path
    group: str
    layout: Layout
    declared: int | None
    masks: tuple[str, ...]
    losses: tuple[str, ...]
    beside: list[Skipped]
    """What is left out of the file outside of its episodes. Complete when the whole file was scanned."""


@dataclass(slots=True)
class _Scan:
    episodes: list[EpisodeInRecording] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    streams: tuple[RecordedStream, ...] = ()
    skipped: list[Skipped] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Importer:
    layout: Literal["auto", "robomimic", "libero", "robosuite", "aloha", "droid"] = field(
        default="auto",
        metadata={"help": "Layout of the file; auto looks at the names of its groups."},
    )
    colour_order: ColourOrder = field(
        default="rgb",
        metadata={"help": "Order of the colours in pictures, which the file does not store."},
    )
    fps: float | None = field(
        default=None,
        metadata={
            "help": "Steps a second. Default: from the file, else the usual rate of its writer."
        },
    )
    cameras: tuple[str, ...] | None = field(
        default=None,
        metadata={"help": "Cameras in the video. Default: all, except those of next_obs."},
    )

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        return {
            "layout": self.layout,
            "colour_order": self.colour_order,
            "fps": self.fps,
            "cameras": None if self.cameras is None else list(self.cameras),
        }

    def scan(self, path: Path) -> Recording:
        self._check_options()
        files = self._files(path)
        found = _Scan()
        for file in files:
            with opened(file) as root:
                self._scan_file(root, file, len(files) > 1, found)
        if not found.episodes:
            raise UnknownFormat(path=str(path), detail="there is no episode with steps in it")
        rows = [each.rows for each in found.episodes if each.rows is not None]
        complete = len(rows) == len(found.episodes)
        streams = [
            RecordedStream(
                name=each.name,
                slot=each.slot,
                type=each.type,
                rows=sum(rows) if complete else None,
            )
            for each in found.streams
        ]
        return Recording(
            format=FORMAT,
            path=path,
            name=path.resolve().stem if path.is_file() else path.resolve().name,
            episodes=tuple(found.episodes),
            streams=tuple(streams),
            skipped=tuple(dict.fromkeys(found.skipped)),
            losses=tuple(dict.fromkeys(found.losses)),
            files=tuple(files),
            about=found.about,
            detail=tuple(found.places),
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        places: tuple[_Place, ...] = recording.detail
        if not 0 <= index < len(places):
            message = f"{recording.path} has no episode {index}; it has 0 to {len(places) - 1}"
            raise ConfigurationError(message=message)
        place = places[index]
        with opened(place.file) as root:
            plan = self._plan(root, place)
            attributes = read_attributes(root, plan)
            rate = facts.rate(place.layout, attributes, self.fps)
            clock = step_clock(plan, rate.fps, is_named=self.fps is not None)
            written = write_episode(plan, attributes, clock, self.colour_order, folder)
        key = recording.episodes[index].key
        kept = facts.provenance(attributes)
        metadata = self._metadata(place, plan, attributes, written, rate)
        if clock.stored is None:
            metadata["timestamps_assumed"] = True
            metadata["losses"].append(_rate_loss(rate))
        suffix = "" if key == recording.name else f" {key}"
        return EncodedEpisode(
            files=files_in(folder),
            name=kept.name or recording.name[: LONGEST_NAME - len(suffix)] + suffix[-LONGEST_NAME:],
            source=kept.source or facts.recorded_source(attributes),
            fps=rate.fps,
            duration_s=clock.duration_s(plan.steps),
            metadata=metadata,
            robot=kept.robot or facts.robot(attributes),
            env_version=kept.env_version or facts.environment(attributes),
            seed=kept.seed,
            policy_version=kept.policy_version,
            git_sha=kept.git_sha,
        )

    def _check_options(self) -> None:
        if self.fps is not None:
            checked_rate(self.fps)
        if self.layout != "auto" and self.layout not in LAYOUTS:
            known = ", ".join(("auto", *LAYOUTS))
            raise ConfigurationError(message=f"layout={self.layout!r}; it has to be one of {known}")
        if self.colour_order not in ("rgb", "bgr"):
            message = f"colour_order={self.colour_order!r}; it has to be rgb or bgr"
            raise ConfigurationError(message=message)

    def _files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            if _is_minari(path):
                detail = "it is a part of a Minari dataset: import the folder as minari"
                raise UnknownFormat(path=str(path), detail=detail)
            return [path]
        files = _files_in(path)
        if not files:
            raise UnknownFormat(path=str(path), detail="there is no .hdf5 or .h5 file in it")
        if _is_minari(files[0]):
            detail = "it is a part of a Minari dataset: import the folder as minari"
            raise UnknownFormat(path=str(path), detail=detail)
        if len(files) > _MOST_FILES:
            detail = f"there are {len(files)} files in it; at most {_MOST_FILES} are read"
            raise UnknownFormat(path=str(path), detail=detail)
        return files

    # --------------------------------------------------------------------------------- scanning

    def _scan_file(self, root: Any, file: Path, is_one_of_many: bool, found: _Scan) -> None:
        layout = find_layout(root, file, self.layout)
        if found.places and found.places[0].layout is not layout.layout:
            other = found.places[0]
            message = (
                f"{file} has the layout {layout.layout.name}, and {other.file.name} {other.layout.name}; "
                "import them one by one"
            )
            raise ConfigurationError(message=message)
        places = episode_places(root, layout.layout, file)
        demos = {group.removeprefix("data/") for group in places.groups}
        masks = read_masks(root, demos, file) if layout.layout.with_demos else Masks()
        beside = [*places.skipped, *masks.skipped]
        found.losses += masks.losses
        total = 0
        for group in places.groups:
            declared, rows = _declared_rows(root, group, layout.layout, file)
            total += declared if declared is not None else rows or 0
            if rows == 0 and not declared:
                beside.append(Skipped(group or file.name, "it has no steps"))
                continue
            demo = group.removeprefix("data/")
            place = _Place(
                file=file,
                group=group,
                layout=layout.layout,
                declared=declared,
                masks=tuple(masks.of_demo.get(demo, ())),
                losses=tuple(masks.losses),
                beside=beside,
            )
            key = demo or file.stem
            if demo and is_one_of_many:
                key = f"{file.stem}.{demo}"
            if not found.places:
                self._describe(root, place, layout.reason, found)
            fps = found.about.get("fps") or layout.layout.fps
            steps = rows if declared is None else declared
            found.places.append(place)
            found.episodes.append(
                EpisodeInRecording(
                    index=len(found.episodes),
                    key=key,
                    rows=steps,
                    duration_s=None if steps is None else steps / fps,
                    files=(file,),
                )
            )
        if layout.layout.with_demos:
            _check_totals(root, file, total, len(demos))
        if layout.layout.name == "droid":
            beside += _videos_beside(file)
        found.skipped += beside

    def _describe(self, root: Any, place: _Place, reason: str, found: _Scan) -> None:
        """Streams and losses, as those of the first episode."""
        plan = self._plan(root, place)
        attributes = read_attributes(root, plan)
        rate = facts.rate(place.layout, attributes, self.fps)
        found.streams = tuple(_streams(plan))
        found.skipped += [*plan.skipped, *attributes.skipped]
        found.losses += self._losses(plan)
        if step_clock(plan, rate.fps, is_named=self.fps is not None).stored is None:
            found.losses.append(_rate_loss(rate))
        found.about = {
            "layout": place.layout.name,
            "layout_reason": reason,
            "fps": rate.fps,
            "fps_from": rate.reason,
            "environment": facts.environment(attributes),
            "robot": facts.robot(attributes),
            "tasks": facts.tasks(attributes, {}),
        }

    def _plan(self, root: Any, place: _Place) -> EpisodePlan:
        group = descendant(root, place.group, place.file)
        if group is None:
            detail = f"{place.group} is no longer there"
            raise DamagedRecording(path=str(place.file), detail=detail)
        return plan_episode(group, place.file, place.layout, self.cameras, place.declared)

    def _losses(self, plan: EpisodePlan) -> list[str]:
        losses = list(plan.layout.losses)
        if plan.cameras:
            order = {"rgb": "red, green, blue", "bgr": "blue, green, red"}[self.colour_order]
            losses.append(
                f"Pictures become a video (H.264), which changes their pixels; colours are read as {order}, "
                "because the file does not store their order."
            )
        if len(plan.cameras) > 1:
            losses.append(f"{len(plan.cameras)} cameras are shown side by side in one video.")
        for name, shape in plan.not_per_step.items():
            losses.append(
                f"{name} of shape {shape} has no row for each step: its rows get times of their own."
            )
        return losses

    # --------------------------------------------------------------------------------- metadata

    def _metadata(
        self,
        place: _Place,
        plan: EpisodePlan,
        attributes: Attributes,
        written: WrittenEpisode,
        rate: facts.Rate,
    ) -> dict[str, Any]:
        cameras = [each for each, _ in plan.cameras.values()]
        read = {name: rows for name, rows in written.read.items() if name != "compress_len"}
        declared = {each.name: each.rows for each in (*plan.numbers, *plan.texts, *cameras)}
        skipped = [*plan.skipped, *attributes.skipped, *written.skipped, *place.beside]
        if "compress_len" in plan.internal:
            reason = (
                "it holds the lengths of the compressed pictures, which the video does not have"
            )
            skipped.append(Skipped("compress_len", reason))
        metadata: dict[str, Any] = {
            "adapter": FORMAT,
            "steps": plan.steps,
            "declared": {
                "steps": plan.steps if place.declared is None else place.declared,
                **{name: rows for name, rows in declared.items() if name in read},
            },
            "read": {"steps": plan.steps, **read},
            "skipped": [{"name": each.name, "reason": each.reason} for each in skipped],
            "losses": [*self._losses(plan), *place.losses],
            "tasks": facts.tasks(attributes, written.scalars),
            "outcome": facts.outcome(place.layout, attributes, written.reward_total),
            "video_cameras": tile_facts(written.layout),
            "hdf5_layout": place.layout.name,
            "hdf5_group": place.group,
            "hdf5_masks": list(place.masks),
            "hdf5_attributes": attributes.values,
            "hdf5_texts": written.scalars,
            "hdf5_not_per_step": plan.not_per_step,
            "hdf5_fps_from": rate.reason,
        }
        if plan.cameras:
            metadata["hdf5_colour_order"] = self.colour_order
        return metadata


def _rate_loss(rate: facts.Rate) -> str:
    return f"Rows have no times: they are taken to be 1/{rate.fps:g} s apart ({rate.reason})."


def _streams(plan: EpisodePlan) -> Iterator[RecordedStream]:
    for each, _ in plan.cameras.values():
        yield RecordedStream(name=each.name, slot="video", type=each.type)
    for each in (*plan.numbers, *plan.texts):
        yield RecordedStream(name=each.name, slot=stream_slot(each.name), type=each.type)


def _declared_rows(
    root: Any, group: str, layout: Layout, path: Path
) -> tuple[int | None, int | None]:
    """`num_samples` of a demonstration, and the rows of its actions; None where it has none.

    A recorder that was stopped leaves a group with nothing in it: an episode of 0 rows.
    """
    found = descendant(root, group, path)
    attributes = Attributes()
    if layout.with_demos:
        attributes.read("episode", found.id, path)
    stated = attributes.get("episode", "num_samples")
    actions = child(found, layout.actions, path)
    if is_group(actions):  # DROID: every dataset in it has one row for each step
        first = (child(actions, name, path) for name, _ in object_names(actions, path))
        actions = next((each for each in first if is_dataset(each)), None)
    rows = None if object_names(found, path) else 0
    if is_dataset(actions):
        described = described_dataset(actions.id, layout.actions, path)
        if isinstance(described, H5Dataset):
            rows = described.rows
        elif described.reason == "it has no values":
            rows = 0
    return _whole(stated), rows


def _check_totals(root: Any, path: Path, steps: int, demos: int) -> None:
    """`total` and `num_demos` of the file are what its demonstrations add up to."""
    attributes = Attributes()
    attributes.read("data", child(root, "data", path).id, path)
    for name, what, read in (("total", "steps", steps), ("num_demos", "demonstrations", demos)):
        declared = _whole(attributes.get("data", name))
        if declared is not None and declared != read:
            raise CountMismatch(
                path=str(path),
                what=what,
                declared=declared,
                read=read,
                detail=f"the attribute {name} of `data` is not what its groups add up to",
            )


def _whole(value: Any) -> int | None:
    """A count, which some writers store as a float or as a list of one number."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if type(value) is int or is_whole else None


def _videos_beside(file: Path) -> Iterator[Skipped]:
    """DROID keeps its videos in files beside the trajectory."""
    for video in sorted((file.parent / "recordings").glob("**/*.mp4")):
        name = video.relative_to(file.parent).as_posix()
        yield Skipped(name, "videos beside the file are not imported")

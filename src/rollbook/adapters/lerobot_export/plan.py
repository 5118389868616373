"""DatasetPlan: which streams of the episodes become which features, on which frames, and what is lost by that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.exports.stream_rows import clocked_streams, start_ns
from rollbook.adapters.lerobot_export.clock import (
    NS,
    ClockFit,
    FrameGrid,
    Resampling,
    StreamClock,
    fit_clock,
)
from rollbook.adapters.lerobot_export.features import (
    INTERNAL,
    StoredColumn,
    action_name,
    is_action_name,
    plain_name,
    read_renames,
    stored_column,
)
from rollbook.adapters.lerobot_export.losses import (
    clock_losses,
    fact_losses,
    frame_losses,
    text_losses,
)
from rollbook.adapters.lerobot_export.video import EpisodeVideo, is_whole, tiles_in
from rollbook.client.tiles import Tile
from rollbook.client.video import checked_rate
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import NpzArchive
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.errors import ConfigurationError, near_names

_MOST_FRAMES = 10_000_000
_LONGEST_FOLDER = 200
_ONLY_CAMERA = "observation.images.video"
_CAMERA_PREFIX = "observation.images."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    fps: float | None = None
    resampling: Resampling = "nearest"
    only: tuple[str, ...] | None = None
    rename: tuple[str, ...] = ()
    task: str | None = None


@dataclass(frozen=True, slots=True)
class CameraPlan:
    feature: str
    tile: Tile
    is_copied: bool
    """Its frames are copied as they are; otherwise they are cut out and encoded again."""
    height: int
    width: int
    """Of the stored video, whose lengths are even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    episode: ExportedEpisode
    grid: FrameGrid
    columns: tuple[StoredColumn, ...]
    fits: Mapping[tuple[ArtifactKind, str], ClockFit]
    cameras: tuple[CameraPlan, ...]
    video_start_ns: int
    tasks: tuple[str, ...]
    losses: tuple[Loss, ...]

    def fit(self, column: StoredColumn) -> ClockFit:
        return self.fits[(column.kind, column.namespace)]

    def channels(self, column: StoredColumn) -> list[str] | None:
        """Names of the entries of a vector, where the episode gives them."""
        stated = self.episode.metadata.get("channels")
        if not isinstance(stated, Mapping):
            return None
        names = stated.get(column.key, stated.get(column.namespace))
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            return None
        return list(names) or None


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    episodes: tuple[EpisodePlan, ...]
    fps: float
    tasks: tuple[str, ...]
    """By number."""

    @property
    def timestamp_type(self) -> str:
        return self.episodes[0].grid.timestamp_type

    @property
    def robot(self) -> str | None:
        """None where episodes are of several robots."""
        robots = {each.episode.robot for each in self.episodes}
        return robots.pop() if len(robots) == 1 else None

    @property
    def losses(self) -> list[Loss]:
        found = [loss for each in self.episodes for loss in each.losses]
        if len({each.episode.robot for each in self.episodes}) > 1:
            reason = "LeRobot names one robot for all episodes. Each is kept in rollbook/robot."
            found += [Loss(each.episode.name, "robot", reason) for each in self.episodes]
        return found

    def channels(self, feature: str) -> list[str] | None:
        for each in self.episodes:
            column = next(column for column in each.columns if column.feature == feature)
            names = each.channels(column)
            if names is not None:
                return names
        return None


def plan_dataset(episodes: Sequence[ExportedEpisode], options: PlanOptions) -> DatasetPlan:
    """Refuses episodes that cannot be one dataset, and says which and why."""
    if not episodes:
        raise ConfigurationError(message="there is no episode to export")
    fps = _common_rate(episodes, options)
    plans = _plans(episodes, fps, options, "float32")
    if plans is None:
        plans = _plans(episodes, fps, options, "float64")
        assert plans is not None
    for plan in plans[1:]:
        _check_same_features(plans[0], plan)
    tasks = tuple(dict.fromkeys(task for plan in plans for task in plan.tasks))
    return DatasetPlan(tuple(plans), fps, tasks)


def _plans(
    episodes: Sequence[ExportedEpisode], fps: float, options: PlanOptions, timestamp_type: str
) -> list[EpisodePlan] | None:
    """One episode after the other, so that only the plan of each is kept. None where an episode is too long for the
    type of its times."""
    plans: list[EpisodePlan] = []
    names: set[str] = set()
    empty: list[str] = []
    for episode in episodes:
        with _Draft.of(episode, options) as draft:
            names |= draft.names
            if draft.columns or draft.cameras:
                grid = draft.grid(fps, timestamp_type)
                if grid.needs_float64 and timestamp_type != "float64":
                    return None
                plans.append(draft.planned(grid, options))
            else:
                empty.append(episode.name)
    _check_names(names, options)
    if empty:
        raise ConfigurationError(message=f"{empty[0]}: none of its streams can be exported")
    return plans


# ------------------------------------------------------------------------------------- one episode


@dataclass(slots=True)
class _Draft:
    """One episode before its frames are known. Its files are open."""

    episode: ExportedEpisode
    archives: dict[ArtifactKind, NpzArchive]
    columns: list[StoredColumn]
    clocks: dict[tuple[ArtifactKind, str], StreamClock]
    video_end_ns: int
    """Time of its last frame, from the first one."""
    cameras: list[tuple[str, Tile]]
    """Feature and place in the picture."""
    names: set[str]
    """Every name that `only` may give."""
    losses: list[Loss]
    renamed: frozenset[str]
    """Features whose names were chosen by the caller."""

    @classmethod
    def of(cls, episode: ExportedEpisode, options: PlanOptions) -> _Draft:
        columns, names, losses, renamed = _columns(episode, options)
        video, cameras = _cameras(episode, options, names)
        archives: dict[ArtifactKind, NpzArchive] = {}
        with ExitStack() as opened:
            for kind in dict.fromkeys(column.kind for column in columns):
                archives[kind] = opened.enter_context(episode.open(kind))
            clocks = _clocks(episode, columns, archives)
            opened.pop_all()  # closed by __exit__
        return cls(
            episode=episode,
            archives=archives,
            columns=columns,
            clocks=clocks,
            video_end_ns=0 if video is None else int(video.times[-1]),
            cameras=cameras,
            names=names,
            losses=losses,
            renamed=renamed,
        )

    def __enter__(self) -> _Draft:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for archive in self.archives.values():
            archive.close()

    def leading(self) -> list[StreamClock]:
        """The clocks that say when frames begin and end: those of the actions, or of all streams."""
        actions = [clock for (kind, _), clock in self.clocks.items() if kind == "actions"]
        return actions or list(self.clocks.values())

    def rate(self) -> float | None:
        """Frames a second that the times of its leading stream show."""
        clocks = self.leading()
        if not clocks or clocks[0].rows < 2:
            return None
        clock = clocks[0]
        found = round((clock.rows - 1) * NS / (clock.last_ns - clock.first_ns), 3)
        kind = next(kind for (kind, _), each in self.clocks.items() if each is clock)
        if not 0 < found <= 1000:
            return None
        grid = FrameGrid(clock.first_ns, found, clock.rows)
        is_regular = fit_clock(self.archives[kind], clock, grid, "nearest").offset == 0
        return found if is_regular else None

    def grid(self, fps: float, timestamp_type: str) -> FrameGrid:
        clocks = self.leading()
        if clocks:
            first = min(clock.first_ns for clock in clocks)
            last = max(clock.last_ns for clock in clocks)
        else:
            first = start_ns(self.episode)
            last = first + self.video_end_ns
        count = round((last - first) * fps / NS) + 1
        if count > _MOST_FRAMES:
            message = f"{self.episode.name}: {count} frames at {fps:g} fps; at most {_MOST_FRAMES} are written"
            raise ConfigurationError(message=message)
        return FrameGrid(first, fps, count, timestamp_type)

    def planned(self, grid: FrameGrid, options: PlanOptions) -> EpisodePlan:
        fits = {
            (kind, namespace): fit_clock(self.archives[kind], clock, grid, options.resampling)
            for (kind, namespace), clock in self.clocks.items()
        }
        columns = [self._next_name(column, fits) for column in self.columns]
        begin = start_ns(self.episode) if self.cameras else 0
        cameras, about_video = self._camera_plans(grid, begin)
        _check_distinct(self.episode, columns, [camera.feature for camera in cameras])
        tasks, about_tasks = _tasks(self.episode, options)
        losses = [
            *self.losses,
            *(
                Loss(self.episode.name, column.stream, change)
                for column in columns
                for change in column.changes
            ),
            *clock_losses(self.episode, fits, grid, options.resampling),
            *text_losses(self.episode, columns),
            *about_video,
            *about_tasks,
            *fact_losses(self.episode),
        ]
        return EpisodePlan(
            episode=self.episode,
            grid=grid,
            columns=tuple(columns),
            fits=fits,
            cameras=tuple(cameras),
            video_start_ns=begin,
            tasks=tasks,
            losses=tuple(losses),
        )

    def _next_name(
        self, column: StoredColumn, fits: Mapping[tuple[ArtifactKind, str], ClockFit]
    ) -> StoredColumn:
        """LeRobot calls what follows a frame `next.`"""
        is_next = fits[column.kind, column.namespace].is_next and column.kind == "sensors"
        if not is_next or column.feature.startswith("next.") or column.feature in self.renamed:
            return column
        feature = f"next.{column.feature}"
        changes = [each for each in column.changes if not each.startswith("Its name becomes")]
        return replace(column, feature=feature, changes=(*changes, f"Its name becomes {feature}."))

    def _camera_plans(self, grid: FrameGrid, begin: int) -> tuple[list[CameraPlan], list[Loss]]:
        if not self.cameras:
            return [], []
        video, name = EpisodeVideo.of(self.episode.files["video"]), self.episode.name
        fits = video.has_frames_of(grid, begin)
        plans: list[CameraPlan] = []
        losses: list[Loss] = []
        for feature, tile in self.cameras:
            is_copied = fits and is_whole(tile, video)
            height, width = tile.height + tile.height % 2, tile.width + tile.width % 2
            plans.append(CameraPlan(feature, tile, is_copied, height, width))
            if feature != tile.camera:
                losses.append(Loss(name, f"video: {tile.camera}", f"Its name becomes {feature}."))
            if (height, width) != (tile.height, tile.width):
                reason = f"Videos have even lengths: {tile.width} x {tile.height} becomes {width} x {height}."
                losses.append(Loss(name, f"video: {tile.camera}", reason))
            if not is_copied:
                reason = "The camera is cut out of the picture and encoded again; pictures change a little."
                if is_whole(tile, video):
                    reason = "The video is encoded again; pictures change a little."
                losses.append(Loss(name, f"video: {tile.camera}", reason))
        losses += frame_losses(self.episode, video, grid, begin)
        return plans, losses


def _columns(
    episode: ExportedEpisode, options: PlanOptions
) -> tuple[list[StoredColumn], set[str], list[Loss], frozenset[str]]:
    streams, losses = clocked_streams(episode)
    renames = read_renames(options.rename)
    names: set[str] = set()
    columns: list[StoredColumn] = []
    renamed: set[str] = set()
    chosen = []
    for stream in streams:
        for field, facts in stream.fields.items():
            key, plain = f"{stream.namespace}/{field}", plain_name(stream.namespace, field)
            known = {key, stream.namespace, plain, renames.get(key, plain)}
            names |= known
            if options.only is not None and not known & set(options.only):
                reason = "It was not chosen by only. It is left out."
                losses.append(Loss(episode.name, f"{stream.kind}: {key}", reason))
            elif not stream.rows:
                reason = "It has no rows. It is left out."
                losses.append(Loss(episode.name, f"{stream.kind}: {key}", reason))
            else:
                chosen.append((stream.kind, stream.namespace, field, facts, plain))
    alone = sum(kind == "actions" for kind, *_ in chosen) == 1
    for kind, namespace, field, facts, plain in chosen:
        feature = renames.get(f"{namespace}/{field}", renames.get(plain))
        if feature is not None:
            renamed.add(feature)
        elif kind == "actions":
            feature = action_name(plain, alone)
        else:
            # a sensor of such a name would be read as an action, or as a column of LeRobot's own
            feature = f"sensor.{plain}" if plain in INTERNAL or is_action_name(plain) else plain
        column = stored_column(kind, namespace, field, facts, feature)
        if isinstance(column, str):
            losses.append(Loss(episode.name, f"{kind}: {namespace}/{field}", column))
        else:
            columns.append(column)
    return columns, names, losses, frozenset(renamed)


def _cameras(
    episode: ExportedEpisode, options: PlanOptions, names: set[str]
) -> tuple[EpisodeVideo | None, list[tuple[str, Tile]]]:
    """The cameras of the video. Their names are added to `names`."""
    if "video" not in episode.files:
        return None, []
    video = EpisodeVideo.of(episode.files["video"])
    tiles = tiles_in(episode.metadata, video)
    if tiles is None:
        whole = Tile("video", 0, 0, video.width, video.height)
        named = [(_ONLY_CAMERA, whole)]
    else:
        keeps = episode.metadata.get("adapter") == "lerobot"
        named = [(_camera_feature(tile.camera, keeps), tile) for tile in tiles]
    for feature, tile in named:
        _check_folder(episode, feature)
        names |= {feature, tile.camera}
    if options.only is None:
        return video, named
    wanted = set(options.only)
    return video, [(f, tile) for f, tile in named if {f, tile.camera} & wanted]


def _camera_feature(camera: str, keeps: bool) -> str:
    plain = camera.replace("/", ".")
    return plain if keeps or plain.startswith("observation.") else f"{_CAMERA_PREFIX}{plain}"


def _clocks(
    episode: ExportedEpisode,
    columns: Sequence[StoredColumn],
    archives: Mapping[ArtifactKind, NpzArchive],
) -> dict[tuple[ArtifactKind, str], StreamClock]:
    found: dict[tuple[ArtifactKind, str], StreamClock] = {}
    for column in columns:
        if (column.kind, column.namespace) not in found:
            record = f"{column.kind} of {episode.name}"
            key = f"{column.namespace}/{CLOCK_FIELD}"
            clock = StreamClock.of(archives[column.kind], key, column.facts.shape[0], record)
            found[column.kind, column.namespace] = clock
    return found


def _tasks(episode: ExportedEpisode, options: PlanOptions) -> tuple[tuple[str, ...], list[Loss]]:
    stated = episode.metadata.get("tasks")
    listed = stated if isinstance(stated, list | tuple) else ()
    tasks = tuple(dict.fromkeys(each for each in listed if isinstance(each, str)))
    if not tasks:
        task = options.task or ""
        reason = f"The episode names no task, and LeRobot needs one: {task!r} is written."
        return (task,), [Loss(episode.name, "tasks", reason)]
    if len(tasks) > 1:
        reason = f"It is not known which frames belong to which task: all are given {tasks[0]!r}."
        return tasks, [Loss(episode.name, "tasks", reason)]
    return tasks, []


# ------------------------------------------------------------------------------------------- checks


def _check_names(names: set[str], options: PlanOptions) -> None:
    for wanted in options.only or ():
        if wanted not in names:
            raise ConfigurationError(
                message=f"only={wanted!r}: {near_names(wanted, sorted(names))}"
            )
    for stream in read_renames(options.rename):
        if stream not in names:
            raise ConfigurationError(
                message=f"rename {stream!r}: {near_names(stream, sorted(names))}"
            )


def _common_rate(episodes: Sequence[ExportedEpisode], options: PlanOptions) -> float:
    if options.fps is not None:
        return checked_rate(options.fps)
    rates = [_rate(episode, options) for episode in episodes]
    for episode, rate in zip(episodes, rates, strict=True):
        if rate != rates[0]:
            message = (
                f"{episodes[0].name} has {rates[0]:g} fps, {episode.name} has {rate:g}; a LeRobot dataset has one "
                "frame rate: give fps, or export them apart"
            )
            raise ConfigurationError(message=message)
    return rates[0]


def _rate(episode: ExportedEpisode, options: PlanOptions) -> float:
    if episode.fps is not None:
        return checked_rate(episode.fps)
    with _Draft.of(episode, options) as draft:
        rate = draft.rate()
    if rate is None:
        message = f"{episode.name} has no frame rate, and the times of its rows show none: give fps"
        raise ConfigurationError(message=message)
    return rate


def _check_folder(episode: ExportedEpisode, feature: str) -> None:
    """The videos of a camera are in a folder of its name."""
    hostile = feature in (".", "..") or any(each in feature for each in "\\\0")
    if hostile or len(feature.encode("utf-8", "replace")) > _LONGEST_FOLDER:
        message = (
            f"{episode.name}: {feature!r} cannot be the name of a folder for the videos of a camera"
        )
        raise ConfigurationError(message=message)


def _check_distinct(
    episode: ExportedEpisode, columns: Sequence[StoredColumn], cameras: Sequence[str]
) -> None:
    taken: dict[str, str] = dict.fromkeys(cameras, "the video")
    if len(taken) < len(cameras):
        message = (
            f"{episode.name}: two cameras would have the same name in LeRobot: {', '.join(cameras)}"
        )
        raise ConfigurationError(message=message)
    for column in columns:
        other = taken.setdefault(column.feature, column.stream)
        if other != column.stream:
            message = (
                f"{episode.name}: {other} and {column.stream} would both be {column.feature}; rename one of them, or "
                "leave one out with only"
            )
            raise ConfigurationError(message=message)


def _check_same_features(first: EpisodePlan, other: EpisodePlan) -> None:
    ours, theirs = _features(first), _features(other)
    names = f"{first.episode.name} and {other.episode.name}"
    advice = "all episodes of a LeRobot dataset have the same features: choose streams with only, or export them apart"
    for feature in {**ours, **theirs}:
        if ours.get(feature) != theirs.get(feature):
            what = f"{ours.get(feature, 'missing')} and {theirs.get(feature, 'missing')}"
            raise ConfigurationError(message=f"{names} differ in {feature}: {what}; {advice}")
    for mine, column in zip(first.columns, _in_order(first, other), strict=True):
        named, renamed = first.channels(mine), other.channels(column)
        if named is not None and renamed is not None and named != renamed:
            what = f"{', '.join(named)} and {', '.join(renamed)}"
            raise ConfigurationError(
                message=f"{names} differ in the channels of {mine.feature}: {what}; {advice}"
            )


def _features(plan: EpisodePlan) -> dict[str, str]:
    found = {c.feature: f"{c.dtype} of shape {c.shape}" for c in plan.columns}
    return {**found, **{c.feature: f"video of {c.width} x {c.height}" for c in plan.cameras}}


def _in_order(first: EpisodePlan, other: EpisodePlan) -> list[StoredColumn]:
    """The columns of the other episode in the order of the first."""
    by_name: dict[str, Any] = {column.feature: column for column in other.columns}
    return [by_name[column.feature] for column in first.columns]

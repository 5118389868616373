"""DemoPlan: how one episode becomes a demonstration of robomimic, and what is lost on the way.

A demonstration has one clock, that of its actions. Every other stream has to fit it: one row for each action at the
time of the action, or one row more (the observation after the last action), or one row at the end of each step, as
rewards have. Any other stream is resampled if that was asked for, and refused if not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.exports.mcap_video import VideoPackets
from rollbook.adapters.hdf5.episode import STEP_TIMES
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import ArrayFacts
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD
from rollbook.errors import ConfigurationError

Fit: TypeAlias = Literal["same", "before", "after", "resampled", "whole"]
"""How rows of a stream become rows of a dataset. `before` and `after`: all but the last, or all but the first row, of a
stream with one row more than there are actions. `whole`: it has no row for each step."""

ATTRIBUTES = "hdf5_attributes/"
"""Namespaces of the attributes that an import of HDF5 kept as arrays."""
_DEMO_LAYOUTS = ("robomimic", "libero", "robosuite")
_MAIN_ACTIONS = ("actions", "action")
_KNOWN_NAMES = {
    **dict.fromkeys(("reward", "rewards", "next.reward"), "rewards"),
    **dict.fromkeys(("done", "dones", "next.done"), "dones"),
    "states": "states",
}
_RESTORED = frozenset(
    {
        *("adapter", "steps", "declared", "read", "skipped", "losses", "tasks", "outcome"),
        *("video_cameras", "channels", "timestamps_assumed", "source_file"),
        *("hdf5_layout", "hdf5_group", "hdf5_masks", "hdf5_attributes", "hdf5_texts"),
        *("hdf5_not_per_step", "hdf5_fps_from", "hdf5_colour_order"),
    }
)
"""Metadata that a later import makes again, or that belongs to the first import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStream:
    kind: ArtifactKind
    key: str
    target: str
    """Path of the dataset in the demonstration."""
    fit: Fit
    facts: ArrayFacts
    shape: tuple[int, ...]
    """Shape of the dataset."""
    rows: NDArray[np.int64] | None = None
    """Row of the stream for each step, where it is resampled; -1 before its first row."""


@dataclass(slots=True)
class DemoPlan:
    episode: ExportedEpisode
    steps: int
    t_ns: NDArray[np.int64]
    streams: list[PlannedStream] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    cameras: dict[str, tuple[int, int, int, int] | None] = field(default_factory=dict)
    """Dataset of each camera and its place in the video: x, y, width, height; None for the whole picture."""
    dones: bool | None = None
    """Value of the last row of `dones` where it is made from how the episode ended."""
    losses: list[Loss] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Streams that cannot be written without resampling."""

    def lose(self, what: str, reason: str) -> None:
        self.losses.append(Loss(self.episode.name, what, reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRules:
    """What was chosen for the export."""

    action: str | None
    resample: Literal["refuse", "previous"]
    next_obs: bool
    images: bool


def is_demo(episode: ExportedEpisode) -> bool:
    """Whether the episode was a demonstration before, so that its names are those of datasets."""
    layout = episode.metadata.get("hdf5_layout")
    return episode.metadata.get("adapter") == "hdf5" and layout in _DEMO_LAYOUTS


def plan_demo(episode: ExportedEpisode, rules: DemoRules) -> DemoPlan:
    kind, key, times = _actions(episode, rules)
    plan = DemoPlan(episode, len(times), times)
    whole = _mapping(episode.metadata.get("hdf5_not_per_step")) if is_demo(episode) else {}
    slots: tuple[ArtifactKind, ...] = ("actions", "sensors")
    for slot in slots:
        for namespace, fields in episode.streams(slot).items():
            if slot == "sensors" and namespace.startswith(ATTRIBUTES):
                continue
            if CLOCK_FIELD not in fields:
                plan.lose(namespace, "it has no clock, so that its rows belong to no step")
                continue
            for name, facts in fields.items():
                if name != CLOCK_FIELD:
                    is_main = (slot, f"{namespace}/{name}") == (kind, key)
                    _add(plan, rules, slot, namespace, name, facts, whole, is_main)
    _add_ending(plan)
    _add_cameras(plan, rules)
    _add_texts(plan)
    _check_targets(plan)
    _lose_metadata(plan)
    return plan


# ------------------------------------------------------------------------------------------ actions


def _actions(
    episode: ExportedEpisode, rules: DemoRules
) -> tuple[ArtifactKind, str, NDArray[np.int64]]:
    """The stream that becomes `actions`, and its times."""
    found = {
        f"{namespace}/{name}": facts
        for namespace, fields in episode.streams("actions").items()
        for name, facts in fields.items()
        if name != CLOCK_FIELD and CLOCK_FIELD in fields and facts.dtype.kind in "biuf"
        if 0 not in facts.shape[1:]
    }
    key = _chosen(episode, rules, found)
    namespace = key.rpartition("/")[0]
    with episode.open("actions") as archive:
        times = archive.read(f"{namespace}/{CLOCK_FIELD}")
    if not len(times):
        raise ConfigurationError(message=f"{episode.name} has no actions")
    return "actions", key, times


def _chosen(episode: ExportedEpisode, rules: DemoRules, found: Mapping[str, ArrayFacts]) -> str:
    if rules.action is not None:
        for key in (rules.action, f"{rules.action}/{ONLY_FIELD}"):
            if key in found:
                return key
    else:
        for name in _MAIN_ACTIONS:
            if f"{name}/{ONLY_FIELD}" in found:
                return f"{name}/{ONLY_FIELD}"
        if len(found) == 1:
            return next(iter(found))
    known = ", ".join(found) or "none"
    message = f"{episode.name}: name the stream that becomes `actions` with the option action; known: {known}"
    raise ConfigurationError(message=message)


# ------------------------------------------------------------------------------------------ streams


def _add(
    plan: DemoPlan,
    rules: DemoRules,
    kind: ArtifactKind,
    namespace: str,
    name: str,
    facts: ArrayFacts,
    whole: Mapping[str, Any],
    is_main: bool,
) -> None:
    key = f"{namespace}/{name}"
    target = _target(plan.episode, kind, namespace, name, is_main)
    if target != namespace or name != ONLY_FIELD:
        plan.lose(key, f"it comes back as {target}")
    _lose_type(plan, key, facts)
    if 0 in facts.shape:
        plan.lose(key, "it holds no values, and does not come back")
    row_shape = facts.shape[1:]
    if namespace in whole:
        shape = _shape(whole[namespace], facts)
        plan.streams.append(
            PlannedStream(kind=kind, key=key, target=target, fit="whole", facts=facts, shape=shape)
        )
        return
    if is_main and not row_shape:
        row_shape = (1,)  # robomimic expects a vector in each step
        plan.lose(key, f"its shape becomes {[plan.steps, 1]}")
    with plan.episode.open(kind) as archive:
        times = archive.read(f"{namespace}/{CLOCK_FIELD}")
    fit, rows = _fit(plan, rules, key, times)
    if rows is not None and rows[0] < 0 and facts.dtype.kind != "f":
        message = (
            f"{key} of {plan.episode.name} begins after the first action, and {facts.dtype} has no value that means "
            "missing"
        )
        raise ConfigurationError(message=message)
    if fit is None:
        plan.refused.append(key)
        return
    shape = (plan.steps, *row_shape)
    planned = PlannedStream(
        kind=kind, key=key, target=target, fit=fit, facts=facts, shape=shape, rows=rows
    )
    plan.streams.append(planned)
    _add_next(plan, rules, planned, len(times))


def inside(name: str) -> str:
    """The name as a path that stays in the group of the demonstration."""
    return "/".join(part for part in name.split("/") if part not in ("", ".", "..")) or "value"


def _shape(stated: Any, facts: ArrayFacts) -> tuple[int, ...]:
    """The shape that the dataset had, if it fits the values: metadata may come from anybody."""
    if isinstance(stated, list) and all(type(length) is int for length in stated):
        shape = tuple(stated)
        if min(shape, default=1) > 0 and math.prod(shape) == math.prod(facts.shape):
            return shape
    return facts.shape


def _target(
    episode: ExportedEpisode, kind: ArtifactKind, namespace: str, name: str, is_main: bool
) -> str:
    if is_main:
        return "actions"
    if is_demo(episode):
        return inside(namespace if name == ONLY_FIELD else f"{namespace}/{name}")
    if namespace in _KNOWN_NAMES and name == ONLY_FIELD:
        return _KNOWN_NAMES[namespace]
    group, prefixes = "obs", ("obs/", "observations/", "observation/")
    if kind == "actions":
        group, prefixes = "action_dict", ("action_dict/", "actions/", "action/")
    joined = namespace if name == ONLY_FIELD else f"{namespace}.{name}"
    for prefix in prefixes:
        joined = joined.removeprefix(prefix)
    return f"{group}/{joined.strip('/').replace('/', '.') or 'value'}"


def _fit(
    plan: DemoPlan, rules: DemoRules, key: str, times: NDArray[np.int64]
) -> tuple[Fit | None, NDArray[np.int64] | None]:
    steps, clock = plan.steps, plan.t_ns
    if len(times) == steps and np.array_equal(times, clock):
        return "same", None
    if len(times) == steps + 1 and np.array_equal(times[:-1], clock):
        return "before", None
    if len(times) == steps and (times >= clock).all() and (times[:-1] <= clock[1:]).all():
        plan.lose(key, "its times are those of the end of each step; they come back as the start")
        return "same", None
    if rules.resample == "refuse":
        reason = "its times are not those of the actions: it is written only with the option resample=previous"
        plan.lose(key, reason)
        return None, None
    rows = np.searchsorted(times, clock, side="right") - 1
    early = int((rows < 0).sum())
    missing = f"; {early} steps are before its first row and get NaN" if early else ""
    plan.lose(
        key,
        f"{len(times)} rows become {steps}: each step gets the last row at or before its time{missing}",
    )
    return "resampled", rows.astype(np.int64)


def _add_next(plan: DemoPlan, rules: DemoRules, planned: PlannedStream, rows: int) -> None:
    """The observation after each action, where the stream has it."""
    is_observation = planned.target.startswith("obs/")
    if planned.fit == "before":
        if rules.next_obs and is_observation:
            target = f"next_{planned.target}"
            values = {**_fields(planned), "target": target, "fit": "after"}
            plan.streams.append(PlannedStream(**values))
            reason = (
                f"its {rows} rows come back as {plan.steps} in {planned.target} and in {target}"
            )
        else:
            reason = f"its last row, after the last action, is left out; {rows - 1} rows come back"
        plan.lose(planned.key, reason)
    elif rules.next_obs and is_observation and not _has_next(plan.episode):
        plan.lose(
            planned.key, "next_obs is not written: the row after the last action is not known"
        )


def _fields(planned: PlannedStream) -> dict[str, Any]:
    names = ("kind", "key", "target", "fit", "facts", "shape", "rows")
    return {name: getattr(planned, name) for name in names}


def _has_next(episode: ExportedEpisode) -> bool:
    return any(namespace.startswith("next_obs/") for namespace in episode.streams("sensors"))


def _lose_type(plan: DemoPlan, key: str, facts: ArrayFacts) -> None:
    if facts.dtype.kind in "mM":
        plan.lose(key, f"{facts.dtype} comes back as int64")
    elif facts.dtype.kind == "S":
        plan.lose(key, "bytes come back as text")
    elif facts.dtype.kind == "c":
        plan.lose(
            key, "complex numbers are written, and do not come back: an import leaves them out"
        )


def _check_targets(plan: DemoPlan) -> None:
    """Two streams must not become one dataset, nor a dataset inside another."""
    made = ["dones"] if plan.dones is not None else []
    targets = [*(each.target for each in plan.streams), *plan.cameras, *plan.texts, *made]
    targets.append(STEP_TIMES)
    for target in targets:
        holds_another = any(other.startswith(f"{target}/") for other in targets)
        if targets.count(target) > 1 or holds_another:
            message = f"{plan.episode.name}: two streams would become the dataset {target}"
            raise ConfigurationError(message=message)


# ------------------------------------------------------------------------------------ everything else


def _add_ending(plan: DemoPlan) -> None:
    terminated = plan.episode.metadata.get("terminated")
    if isinstance(terminated, bool) and all(each.target != "dones" for each in plan.streams):
        plan.dones = terminated
        plan.lose("dones", "it is made from how the episode ended, and comes back as a stream")


def _add_cameras(plan: DemoPlan, rules: DemoRules) -> None:
    episode = plan.episode
    if "video" not in episode.files:
        return
    if not rules.images:
        plan.lose("video", "it is left out, because images=False")
        return
    if not episode.fps or not _follows_rate(plan.t_ns, episode.fps):
        plan.lose("video", "it is left out: its frames are not at the times of the actions")
        return
    frames = VideoPackets.of(episode.files["video"]).frames
    if frames < plan.steps:
        plan.lose(
            "video", f"it is left out: it has {frames} frames, and there are {plan.steps} actions"
        )
        return
    for target, tile in _camera_targets(episode):
        plan.cameras[target] = tile
    plan.lose(
        "video",
        "its frames are decoded into arrays, and encoded again when they come back; a frame after the last action is "
        "left out",
    )


def _follows_rate(times: NDArray[np.int64], fps: float) -> bool:
    expected = np.arange(len(times)) * 1e9 / fps
    return bool((np.abs(times - times[0] - expected) <= 0.5e9 / fps).all())


def _camera_targets(
    episode: ExportedEpisode,
) -> Iterator[tuple[str, tuple[int, int, int, int] | None]]:
    found = episode.metadata.get("video_cameras")
    if not isinstance(found, list) or not found:
        yield "obs/render_image", None
        return
    for each in found:
        values: list[Any] = [_mapping(each).get(name) for name in ("x", "y", "width", "height")]
        camera = _mapping(each).get("camera")
        if not isinstance(camera, str) or any(type(value) is not int for value in values):
            message = f"{episode.name}: video_cameras in its metadata is not a list of tiles"
            raise ConfigurationError(message=message)
        target = inside(camera) if is_demo(episode) else f"obs/{camera.rpartition('/')[2]}_image"
        x, y, width, height = values
        yield target, (x, y, width, height)


def _add_texts(plan: DemoPlan) -> None:
    texts = _mapping(plan.episode.metadata.get("hdf5_texts"))
    for name, text in texts.items():
        if is_demo(plan.episode) and isinstance(text, str):
            plan.texts[inside(str(name))] = text
        else:
            plan.lose(name, "this text is not written")


def _lose_metadata(plan: DemoPlan) -> None:
    episode = plan.episode
    if episode.metadata.get("adapter") == "hdf5" and not is_demo(episode):
        plan.lose("hdf5_layout", f"{episode.metadata.get('hdf5_layout')} comes back as robomimic")
    if episode.metadata.get("hdf5_layout") == "robosuite":
        plan.lose("hdf5_layout", "robosuite comes back as robomimic")
    if plan.cameras and episode.metadata.get("hdf5_colour_order") == "bgr":
        plan.lose("hdf5_colour_order", "pictures are written as red, green, blue: import them so")
    if episode.metadata.get("channels"):
        plan.lose("channels", "the names of the entries of vectors are not written")
    other = sorted(set(episode.metadata) - _RESTORED)
    if other:
        plan.lose("metadata", f"these are kept as text in an attribute only: {', '.join(other)}")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

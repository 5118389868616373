"""RrdExporter: episodes as Rerun recordings, one .rrd file for each episode.

Every field is an entity `/<sensors or actions>/<namespace>/<field>` on the timeline `log_time`. The Rerun SDK gives
every row a new id, so two exports of one episode hold the same values in different bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.entry_names import EntryNames, PoseColumns, pose_columns
from rollbook.adapters.exports.episode_files import write_episode_files
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, Loss, OnEpisode
from rollbook.adapters.exports.fact_records import fact_records
from rollbook.adapters.exports.mcap_video import VideoPackets
from rollbook.adapters.exports.stream_rows import (
    Block,
    StreamRows,
    clocked_streams,
    refuse_times_before_zero,
    start_ns,
)
from rollbook.contracts.npz import ArrayFacts
from rollbook.contracts.video_file import container_of
from rollbook.errors import StorageError
from rollbook.lazy import needs

FORMAT = "rrd"
TIMELINE = "log_time"
_MOST_SCALARS = 1024
"""Values of one row that are drawn as curves; a wider row is kept as one list."""
_EXACT_AS_FLOAT64 = frozenset(("f8", "f4", "f2", "i1", "i2", "i4", "u1", "u2", "u4", "b1"))
_COLOUR_MODELS = {1: "L", 3: "RGB", 4: "RGBA"}


def rerun_sdk() -> Any:
    with needs("the export as rrd", "rerun"):
        return import_module("rerun")


@dataclass(frozen=True, slots=True, kw_only=True)
class RrdExporter:
    application: str = field(
        default="rollbook",
        metadata={"help": "Application id. Rerun shows recordings of one application together."},
    )

    @property
    def format(self) -> str:
        return FORMAT

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        found: list[Loss] = []
        for episode in episodes:
            streams, left_out = clocked_streams(episode)
            refuse_times_before_zero(episode, streams)
            found += left_out
            for stream in streams:
                found += _changed_types(episode, stream)
            if "video" in episode.files and not _is_mp4(episode.files["video"]):
                reason = "Rerun shows MP4 only. It is left out."
                found.append(Loss(episode.name, "video", reason))
        return found

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        rerun_sdk()
        return write_episode_files(FORMAT, episodes, target, on_episode, self._write_file)

    def _write_file(self, episode: ExportedEpisode, stream: BinaryIO, path: Path) -> int:
        # the SDK writes to a path, so the file is written beside the target and then copied
        part = path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}.rrd")
        try:
            with _sdk_errors(path):
                rows = self._write_recording(episode, part)
            with open(part, "rb") as made:
                shutil.copyfileobj(made, stream, 1 << 20)
        finally:
            part.unlink(missing_ok=True)
        return rows

    def _write_recording(self, episode: ExportedEpisode, path: Path) -> int:
        rr = rerun_sdk()
        recording = rr.RecordingStream(
            self.application, recording_id=_recording_id(episode), send_properties=False
        )
        recording.save(path)
        try:
            recording.send_recording_name(episode.name)
            for name, record in fact_records(episode).items():
                recording.send_property(name, rr.DynamicArchetype(name, components=record))
            rows = _Streams(rr, recording, episode).write()
            rows += _write_video(rr, recording, episode)
            recording.flush()
        finally:
            recording.disconnect()
        return rows


def _recording_id(episode: ExportedEpisode) -> str:
    """The same for the same episode: Rerun then replaces a recording that it has opened before."""
    if episode.episode_id is not None:
        return episode.episode_id
    facts = [episode.name, *(f"{kind}={d}" for kind, d in sorted(episode.digests.items()))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


@contextmanager
def _sdk_errors(path: Path) -> Iterator[None]:
    """Rerun reports many mistakes as warnings, and the file is then incomplete."""
    rr = rerun_sdk()
    with warnings.catch_warnings():
        warnings.simplefilter("error", rr.error_utils.RerunWarning)
        try:
            yield
        except (rr.error_utils.RerunWarning, OSError, RuntimeError) as error:
            raise StorageError(path=str(path), detail=f"cannot be written: {error}") from error


# ----------------------------------------------------------------------------------------- streams


class _Streams:
    def __init__(self, rr: Any, recording: Any, episode: ExportedEpisode) -> None:
        self._rr = rr
        self._recording = recording
        self._episode = episode
        self._names = EntryNames.in_metadata(episode.metadata)
        self._taken: set[str] = set()

    def write(self) -> int:
        streams, _ = clocked_streams(self._episode)
        return sum(self._write_stream(stream) for stream in streams)

    def _write_stream(self, stream: StreamRows) -> int:
        paths = {name: self._path(stream, name) for name in stream.fields}
        pose = pose_columns(stream, self._names)
        at_pose = None if pose is None or pose.several else self._path(stream, None)
        for name, path in paths.items():
            self._describe(stream, name, path)
        with self._episode.open(stream.kind) as archive:
            for block in stream.blocks(archive):
                if pose is not None and at_pose is not None:
                    self._send(at_pose, block.t_ns, self._transforms(pose, block))
                for name, path in paths.items():
                    facts = stream.fields[name]
                    columns = self._columns(stream, name, facts, block.fields[name])
                    self._send(path, block.t_ns, columns)
        return stream.rows

    def _path(self, stream: StreamRows, name: str | None) -> str:
        """Entity of a field, or of the stream. Slashes at the ends vanish, so two names can give one entity: the second
        one gets a number."""
        last = [] if name is None else [name]
        parts = [str(stream.kind), *(each for each in stream.namespace.split("/") if each)]
        path, number = str(self._rr.new_entity_path([*parts, *last])), 1
        while path in self._taken:
            number += 1
            numbered = [*parts[:-1], f"{parts[-1]} ({number})", *last]
            path = str(self._rr.new_entity_path(numbered))
        self._taken.add(path)
        return path

    def _describe(self, stream: StreamRows, name: str, path: str) -> None:
        """What does not change: names of curves, size of pictures."""
        rr, facts = self._rr, stream.fields[name]
        names = list(self._names.of(stream, name))
        if _is_picture(facts):
            height, width, colours = facts.shape[1:]
            model = _COLOUR_MODELS[colours]
            form = rr.components.ImageFormat(
                width=width, height=height, color_model=model, channel_datatype="U8"
            )
            self._recording.log(path, rr.Image.from_fields(format=form), static=True, strict=True)
        elif _is_curves(facts) and facts.shape[1:] == (len(names),):
            self._recording.log(path, rr.SeriesLines(names=names), static=True, strict=True)

    def _columns(
        self, stream: StreamRows, name: str, facts: ArrayFacts, array: NDArray[Any]
    ) -> Any:
        rr, rows = self._rr, len(array)
        if _is_picture(facts):
            return rr.Image.columns(buffer=array.reshape(rows, -1))
        if _is_curves(facts):
            flat = np.ascontiguousarray(array.reshape(rows, -1).astype(np.float64))
            return rr.Scalars.columns(scalars=flat.reshape(-1)).partition([flat.shape[1]] * rows)
        if facts.dtype.kind == "U" and len(facts.shape) == 1:
            return rr.TextLog.columns(text=array.tolist())
        values = {"value": _arrow_rows(array)}
        return rr.DynamicArchetype.columns("rollbook", components=values)

    def _transforms(self, pose: PoseColumns, block: Block) -> Any:
        values = np.stack([block.fields[name][:, i] for name, i in pose.sources], axis=1)
        return self._rr.Transform3D.columns(translation=values[:, :3], quaternion=values[:, 3:])

    def _send(self, path: str, t_ns: NDArray[np.int64], columns: Any) -> None:
        time = self._rr.TimeColumn(TIMELINE, timestamp=t_ns.view("M8[ns]"))
        self._recording.send_columns(path, indexes=[time], columns=columns, strict=True)


def _is_picture(facts: ArrayFacts) -> bool:
    shape = facts.shape[1:]
    is_sized = len(shape) == 3 and shape[2] in _COLOUR_MODELS and 0 not in shape
    return facts.dtype == np.uint8 and is_sized


def _is_curves(facts: ArrayFacts) -> bool:
    shape = facts.shape[1:]
    is_narrow = len(shape) == 0 or (len(shape) == 1 and 0 < shape[0] <= _MOST_SCALARS)
    return facts.dtype.str[1:] in _EXACT_AS_FLOAT64 and is_narrow


def _arrow_rows(array: NDArray[Any]) -> Any:
    """One value for each row: a number or text, or a list of a fixed length."""
    arrow = import_module("pyarrow")
    flat = array.reshape(-1)
    if array.dtype.kind == "U":
        values = arrow.array(flat.tolist(), arrow.string())
    elif array.dtype.kind in "Sc" or array.dtype.itemsize > 8:  # Arrow has no such type
        size = array.dtype.itemsize
        data = arrow.py_buffer(np.ascontiguousarray(flat).tobytes())
        values = arrow.Array.from_buffers(arrow.binary(size), len(flat), [None, data])
    else:
        values = arrow.array(flat)
    if array.ndim == 1:
        return values
    width = int(np.prod(array.shape[1:]))
    return arrow.FixedSizeListArray.from_arrays(values, width)


def _changed_types(episode: ExportedEpisode, stream: StreamRows) -> Iterator[Loss]:
    for name, facts in stream.fields.items():
        what = f"{stream.kind}: {stream.namespace}/{name}"
        if _is_curves(facts) and facts.dtype.str[1:] != "f8":
            reason = f"{facts.dtype} becomes float64, with the same values."
            yield Loss(episode.name, what, reason)
        elif len(facts.shape) > 2 and not _is_picture(facts):
            reason = f"Rows of shape {facts.shape[1:]} become lists of one length."
            yield Loss(episode.name, what, reason)


# ------------------------------------------------------------------------------------------- video


def _is_mp4(path: Path) -> bool:
    with open(path, "rb") as file:
        return container_of(file) == "mp4"


def _write_video(rr: Any, recording: Any, episode: ExportedEpisode) -> int:
    """The file as it is, and a reference to each of its frames at the time of the frame."""
    if "video" not in episode.files or not _is_mp4(episode.files["video"]):
        return 0
    path = episode.files["video"]
    # not by the SDK: it does not return from some damaged videos
    offsets = np.array(VideoPackets.of(path).offsets_ns, np.int64)
    if not len(offsets):
        return 0
    video = rr.AssetVideo(path=path)
    recording.log("/video", video, static=True, strict=True)
    t_ns = start_ns(episode) + offsets
    time = rr.TimeColumn(TIMELINE, timestamp=t_ns.view("M8[ns]"))
    columns = rr.VideoFrameReference.columns_nanos(offsets)
    recording.send_columns("/video", indexes=[time], columns=columns, strict=True)
    return len(offsets)

"""Ros2Importer: a ROS 2 bag or an MCAP file as a recording of one episode; a folder of exported files has many."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.mcap_stream import McapStream
from rollbook.adapters.recording import (
    EpisodeInRecording,
    RecordedStream,
    Recording,
    Slot,
)
from rollbook.adapters.ros2.bag import FORMAT, Bag, exported_files, find_bag
from rollbook.adapters.ros2.cameras import (
    FIRST_TRIES,
    Camera,
    NoPicture,
    PictureReader,
    encode_video,
    is_camera,
    lead_camera,
    picture_rate,
)
from rollbook.adapters.ros2.definitions import Typestore
from rollbook.adapters.ros2.imported_bag import (
    ScannedBag,
    encoded_bag,
    expected_losses,
    facts_about,
    skipped_parts,
)
from rollbook.adapters.ros2.shape import ShapeProblem
from rollbook.adapters.ros2.storage import Channel, Damage, Storage, StorageContents
from rollbook.adapters.ros2.topic_reader import reader_for, standard_reader
from rollbook.adapters.ros2.topic_stream import TopicStream, full_first
from rollbook.adapters.storable_text import stream_name_problem
from rollbook.adapters.stream_files import StreamFiles
from rollbook.client.tiles import Tile
from rollbook.contracts.episode import FILE_NAMES
from rollbook.digest import Plain
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    StorageError,
    TruncatedFile,
    near_names,
)

_ACTION_NAMES = ("action", "actions", "cmd", "cmd_vel", "command", "commands", "joint_trajectory")
_ACTION_ENDINGS = ("_cmd", "_cmd_vel", "_command", "_commands", "_joint_trajectory")
_MOST_COLUMNS = 4000
"""Of all topics together. An artifact may have a few more arrays than this."""
_MOST_WAITING = 1 << 25
_LONGEST_TOPIC = 256


def is_action_topic(topic: str) -> bool:
    """By the convention of names: `/cmd_vel`, `/arm/command`, `/arm/joint_trajectory`, `/actions/gripper`."""
    parts = [part for part in topic.split("/") if part]
    if not parts:
        return False
    last = parts[-1]
    is_named = last in _ACTION_NAMES or last.endswith(_ACTION_ENDINGS)
    return is_named or parts[0] in ("action", "actions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ros2Importer:
    topics: tuple[str, ...] | None = field(
        default=None, metadata={"help": "Import only these topics; by default all of them."}
    )
    action_topics: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "help": "Topics that hold actions; by default those named like commands, such as cmd_vel."
        },
    )
    cameras: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "help": "Topics of pictures for the video; by default all; an empty list leaves the video out."
        },
    )
    typestore: Typestore = field(
        default="latest",
        metadata={
            "help": "ROS release that knows the standard messages, for files that do not describe types."
        },
    )

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        return {
            "topics": _listed(self.topics),
            "action_topics": _listed(self.action_topics),
            "cameras": _listed(self.cameras),
            "typestore": self.typestore,
        }

    def scan(self, path: Path) -> Recording:
        files = exported_files(path)
        if not files:
            return self._scan_bag(path)
        return _joined(path, [self._scan_bag(file) for file in files])

    def _scan_bag(self, path: Path) -> Recording:
        bag = find_bag(path)
        with bag.opened() as storages:
            contents = tuple(storage.contents() for storage in storages)
        streams = self._streams(bag, contents)
        _check_declared(bag, contents, streams.values())
        damages = [each.damage for each in contents if each.damage is not None]
        read = [stream for stream in streams.values() if stream.skipped is None]
        _refuse_nothing(bag, streams.values(), damages)
        counts = [stream.declared for stream in streams.values()]
        rows = None if None in counts else sum(count for count in counts if count is not None)
        return Recording(
            format=FORMAT,
            path=path,
            name=bag.name,
            episodes=(
                EpisodeInRecording(
                    index=0,
                    key="bag",
                    rows=rows,
                    duration_s=None if bag.duration_ns is None else bag.duration_ns / 1e9,
                ),
            ),
            streams=tuple(
                RecordedStream(
                    name=stream.name,
                    slot=stream.slot,
                    type=stream.channel.type or stream.channel.encoding,
                    rows=stream.declared,
                )
                for stream in read
            ),
            skipped=tuple(skipped_parts(contents, streams.values())),
            losses=tuple(expected_losses(self.typestore, bag, damages, read)),
            files=bag.all_files,
            about=facts_about(bag, contents, self.typestore),
            detail=ScannedBag(bag=bag, contents=contents),
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        if not 0 <= index < len(recording.episodes):
            last = len(recording.episodes) - 1
            message = f"{recording.path} has no episode {index}; it has 0 to {last}"
            raise ConfigurationError(message=message)
        if isinstance(recording.detail, tuple):
            return self._encode_bag(recording.detail[index], folder)
        return self._encode_bag(recording, folder)

    def _encode_bag(self, recording: Recording, folder: Path) -> EncodedEpisode:
        scanned: ScannedBag = recording.detail
        bag = scanned.bag
        streams = self._streams(bag, scanned.contents)
        with (
            bag.opened() as storages,
            tempfile.TemporaryDirectory(prefix=".ros2-", dir=folder) as scratch,
        ):
            damages = _survey(bag, storages, streams, scanned.contents)
            _check_counts(bag, streams.values(), damages)
            layout, fps = _encode_cameras(bag, storages, streams, folder)
            _plan(streams)
            _refuse_nothing(bag, streams.values(), damages)
            with StreamFiles(folder) as files:
                _write(storages, streams, files, Path(scratch))
                files.write()
        return encoded_bag(recording, self.typestore, streams, damages, layout, fps, folder)

    # --------------------------------------------------------------------------------------- streams

    def _streams(self, bag: Bag, contents: Sequence[StorageContents]) -> dict[Channel, TopicStream]:
        """One for each channel of all files together, with the reason where it is not imported."""
        declared: dict[Channel, int | None] = {}
        for each in contents:
            for channel, count in each.channels.items():
                before = declared.get(channel, 0)
                declared[channel] = None if count is None or before is None else before + count
        streams: dict[Channel, TopicStream] = {}
        names: set[tuple[Slot, str]] = set()
        for channel, count in declared.items():
            exported = McapStream.in_metadata(dict(channel.description))
            slot = self._slot(channel, exported)
            name = channel.topic if exported is None else exported.namespace
            if (slot, name) in names:
                name = f"{channel.topic}:{channel.type}"
            if (slot, name) in names:
                name = f"{channel.topic}:{channel.type}:{len(names)}"
            names.add((slot, name))
            stream = TopicStream(
                name=name,
                channel=channel,
                slot=slot,
                exported=exported,
                declared=count,
                is_packed=bag.compression == "message",
            )
            self._prepare(stream, bag)
            streams[channel] = stream
        self._check_names(declared)
        return streams

    def _slot(self, channel: Channel, exported: McapStream | None) -> Slot:
        if is_camera(channel):
            return "video"
        if exported is not None and self.action_topics is None:
            return exported.slot
        chosen = self.action_topics
        is_action = is_action_topic(channel.topic) if chosen is None else channel.topic in chosen
        return "actions" if is_action else "sensors"

    def _prepare(self, stream: TopicStream, bag: Bag) -> None:
        topic, encoding = stream.channel.topic, stream.channel.encoding
        declared = (bag.topics or {}).get(topic)
        if self.topics is not None and topic not in self.topics:
            stream.skip("this topic was not chosen")
        elif stream.slot == "video" and self.cameras is not None and topic not in self.cameras:
            stream.skip("this camera was not chosen")
        elif stream.declared == 0:
            stream.skip("it has no messages")
        elif not is_stream_name(stream.name):
            stream.skip("its name cannot be the name of a stream")
        elif declared is not None and declared.encoding != encoding:
            stream.skip(f"metadata.yaml says {declared.encoding!r}, its file says {encoding!r}")
        else:
            try:
                stream.reader = reader_for(stream.channel, self.typestore)
                if not stream.reader.uses_typestore:
                    stream.spare = standard_reader(stream.channel, self.typestore)
            except ShapeProblem as problem:
                stream.skip(str(problem))

    def _check_names(self, channels: Mapping[Channel, object]) -> None:
        known = sorted({channel.topic for channel in channels})
        cameras = sorted({channel.topic for channel in channels if is_camera(channel)})
        for names, there, what in (
            (self.topics, known, "topic"),
            (self.action_topics, known, "topic"),
            (self.cameras, cameras, "camera"),
        ):
            for name in names or ():
                if name not in there:
                    message = f"there is no {what} {name!r}; {near_names(name, there)}"
                    raise ConfigurationError(message=message)


def _joined(path: Path, recordings: Sequence[Recording]) -> Recording:
    """The recordings of single files as one. It keeps them in `detail`."""
    streams: dict[tuple[str, str], RecordedStream] = {}
    for each in recordings:
        for stream in each.streams:
            known = streams.setdefault((stream.slot, stream.name), stream)
            if known is not stream:
                both = (known.rows, stream.rows)
                rows = None if None in both else sum(row for row in both if row is not None)
                streams[stream.slot, stream.name] = replace(known, rows=rows)
    return Recording(
        format=FORMAT,
        path=path,
        name=path.resolve().name,
        episodes=tuple(
            replace(each.episodes[0], index=index, key=each.path.stem, files=each.files)
            for index, each in enumerate(recordings)
        ),
        streams=tuple(streams.values()),
        skipped=tuple(dict.fromkeys(skip for each in recordings for skip in each.skipped)),
        losses=tuple(dict.fromkeys(loss for each in recordings for loss in each.losses)),
        files=tuple(file for each in recordings for file in each.files),
        about={"files": len(recordings), "clock": "log time"},
        detail=tuple(recordings),
    )


def _listed(names: tuple[str, ...] | None) -> list[Plain] | None:
    return None if names is None else [*sorted(names)]


def is_stream_name(topic: str) -> bool:
    """Whether the messages of a topic can become a stream under its name."""
    has_end = bool(topic.strip("/")) and not topic.endswith("/")
    return has_end and len(topic) <= _LONGEST_TOPIC and stream_name_problem(topic) is None


# ------------------------------------------------------------------------------------------- counts


def _check_declared(
    bag: Bag, contents: Sequence[StorageContents], streams: Collection[TopicStream]
) -> None:
    """metadata.yaml against what the files declare themselves. Damaged files are compared when they are read."""
    if bag.topics is None or any(each.damage for each in contents):
        return
    found: Counter[str] = Counter()
    for stream in streams:
        if stream.declared is None:
            return
        found[stream.channel.topic] += stream.declared
    _compare(bag, found, is_damaged=False)


def _compare(bag: Bag, found: Mapping[str, int], *, is_damaged: bool) -> None:
    if bag.topics is None:
        return
    for topic in sorted(bag.topics.keys() | found.keys()):
        declared = bag.topics[topic].messages if topic in bag.topics else 0
        read = found.get(topic, 0)
        if read > declared or (read < declared and not is_damaged):
            raise CountMismatch(
                path=str(bag.path),
                what=f"messages of {topic}",
                declared=declared,
                read=read,
                detail="metadata.yaml is compared with the files",
            )


def _check_counts(bag: Bag, streams: Collection[TopicStream], damages: Sequence[Damage]) -> None:
    found: Counter[str] = Counter()
    for stream in streams:
        found[stream.channel.topic] += stream.read
        declared = stream.declared
        if declared is None or declared == stream.read or (damages and stream.read < declared):
            continue
        raise CountMismatch(
            path=str(bag.path),
            what=f"messages of {stream.name}",
            declared=declared,
            read=stream.read,
            detail="the file's own count is compared with its messages",
        )
    _compare(bag, found, is_damaged=bool(damages))


def _refuse_nothing(bag: Bag, streams: Collection[TopicStream], damages: Sequence[Damage]) -> None:
    """A recording of which nothing can be imported is an error, with the reasons of all topics."""
    reasons = [f"{stream.name}: {stream.skipped}" for stream in streams if stream.skipped]
    if any(stream.skipped is None for stream in streams):
        return
    if damages:
        detail = f"no message before the damage can be read; {damages[0].at}: {damages[0].detail}"
        raise TruncatedFile(path=str(bag.path), detail=detail)
    detail = f"no topic can be imported; {'; '.join(reasons) or 'there are none'}"
    raise StorageError(path=str(bag.path), detail=detail)


# ------------------------------------------------------------------------------------------- passes


def _survey(
    bag: Bag,
    storages: Sequence[Storage],
    streams: dict[Channel, TopicStream],
    contents: Sequence[StorageContents],
) -> list[Damage]:
    """First pass: count all messages, and find out lengths. Returns where the files are damaged."""
    damages = []
    tries: dict[Channel, _FirstPicture] = {
        channel: _FirstPicture(stream, bag.path)
        for channel, stream in streams.items()
        if stream.slot == "video" and stream.is_read
    }
    for storage, content in zip(storages, contents, strict=True):
        for batch in storage.batches(lambda channel: _is_read(streams, channel)):
            stream = streams.get(batch.channel)
            if stream is None:
                raise CountMismatch(
                    path=str(storage.path),
                    what=f"messages of {batch.channel.topic}",
                    declared=0,
                    read=len(batch.log_ns),
                    detail="the index of the file does not name this channel",
                )
            if batch.channel in tries:
                tries[batch.channel].look_at(batch.data)
            stream.look_at(batch)
            for full in full_first(streams, _MOST_WAITING):
                full.finish_look()
        damage = storage.damage or content.damage
        if damage is not None:
            damages.append(damage)
    for stream in streams.values():
        stream.finish_look()
        if stream.skipped is None and not stream.read:
            stream.skip("it has no messages before the damage")
    for first in tries.values():
        first.finish()
    return damages


def _is_read(streams: Mapping[Channel, TopicStream], channel: Channel) -> bool:
    stream = streams.get(channel)
    return stream is not None and stream.is_read


@dataclass(slots=True)
class _FirstPicture:
    """Finds the first picture of a camera, which gives its size."""

    stream: TopicStream
    path: Path
    tried: int = 0
    reason: str = "it has no pictures"
    _reader: PictureReader | None = None
    _found: Any = None

    def look_at(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if self._found is not None or self.tried >= FIRST_TRIES:
                return
            self.tried += 1
            assert self.stream.reader is not None
            if self._reader is None:
                self._reader = PictureReader(self.stream.channel, self.stream.reader, self.path)
            try:
                self._found = self._reader.picture(self.stream.unpacked(message))
            except (NoPicture, ValueError) as problem:
                self.reason = str(problem)

    def finish(self) -> None:
        if not self.stream.is_read:
            return
        if self._found is None:
            self.stream.skip(self.reason)
            return
        assert self.stream.reader is not None
        self.stream.camera = Camera(
            name=self.stream.name,
            pictures=PictureReader(self.stream.channel, self.stream.reader, self.path),
            rows=self.stream.read,
            first=self._found,
        )


def _encode_cameras(
    bag: Bag, storages: Sequence[Storage], streams: dict[Channel, TopicStream], folder: Path
) -> tuple[list[Tile], float | None]:
    shown = {
        channel: stream
        for channel, stream in streams.items()
        if stream.is_read and stream.camera is not None
    }
    if not shown:
        return [], None
    cameras = [stream.camera for stream in shown.values() if stream.camera is not None]
    lead = lead_camera(cameras)
    clock = next(s.clock for s in shown.values() if s.camera is lead)
    fps = picture_rate(clock.rows, clock.last_ns - clock.first_ns)

    def messages() -> Iterator[tuple[Camera, bytes]]:
        for storage in storages:
            for message in storage.messages(lambda channel: channel in shown):
                stream = shown[message.channel]
                assert stream.camera is not None
                try:
                    data = stream.unpacked(message.data)
                except ValueError:
                    data = b""
                yield stream.camera, data

    return encode_video(folder / FILE_NAMES["video"], cameras, messages(), fps), fps


def _plan(streams: Mapping[Channel, TopicStream]) -> None:
    """Decide the columns of every topic. Topics that do not fit into an artifact any more are left out by name."""
    total: Counter[str] = Counter()
    for stream in streams.values():
        if not stream.is_read:
            continue
        stream.make_plan()
        fits = total[stream.artifact] + stream.column_count <= _MOST_COLUMNS
        if stream.skipped is None and not fits:
            stream.skip(f"all topics together have more than {_MOST_COLUMNS} fields: choose topics")
        if stream.skipped is None:
            total[stream.artifact] += stream.column_count


def _write(
    storages: Sequence[Storage],
    streams: Mapping[Channel, TopicStream],
    files: StreamFiles,
    scratch: Path,
) -> None:
    for storage in storages:
        for batch in storage.batches(lambda channel: _is_read(streams, channel)):
            stream = streams[batch.channel]
            if stream.is_read:
                stream.write(batch, files, scratch)
                for full in full_first(streams, _MOST_WAITING):
                    full.finish_block(files, scratch)
    for stream in streams.values():
        if stream.is_read:
            stream.finish(files, scratch)

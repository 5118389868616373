"""McapExporter: episodes as MCAP files with Foxglove schemas, one file for each episode.

Every stream is a channel whose messages have the time of its clock. Facts, digests and metadata of the episode are
metadata records at the start of the file. The same episode always gives the same bytes.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from rollbook.adapters.exports.episode_files import write_episode_files
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, Loss, OnEpisode
from rollbook.adapters.exports.fact_records import fact_records
from rollbook.adapters.exports.mcap_channels import Channel, SchemaChoice, channels_of
from rollbook.adapters.exports.mcap_video import VideoPackets
from rollbook.adapters.exports.stream_rows import (
    refuse_times_before_zero,
    start_ns,
    text_width_loss,
)
from rollbook.adapters.extras import library
from rollbook.adapters.ros2.importer import is_stream_name
from rollbook.contracts.npz import NpzArchive
from rollbook.errors import ConfigurationError, InvalidValue

FORMAT = "mcap"
_LIBRARY = "rollbook"
"""Writer that the file names. No version: the bytes depend on the episode alone."""
_MOST_CHANNELS = 0xFFFF
_SEQUENCE = 0xFFFFFFFF

Timed: TypeAlias = "tuple[int, int, int, bytes]"
"""Time, channel, number on the channel, and message. At one time, messages are in the order of their channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McapExporter:
    schemas: Literal["foxglove", "exact"] = field(
        default="foxglove",
        metadata={
            "help": "foxglove: joint states, poses and texts in the schemas that viewers know. exact: every "
            "stream in a schema of its own, whose fields have the names of the stream."
        },
    )
    joints: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "help": "Streams to write as foxglove.JointStates. Without it: streams of float64 "
            "position, velocity, acceleration or effort whose joints have names."
        },
    )
    frame: str = field(
        default="world", metadata={"help": "Name of the frame that poses are measured in."}
    )

    @property
    def format(self) -> str:
        return FORMAT

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        found: list[Loss] = []
        for episode in episodes:
            channels, left_out = self._channels(episode)
            refuse_times_before_zero(episode, (channel.stream for channel in channels))
            found += left_out
            found += _stream_losses(episode, channels)
            found += _video_losses(episode)
        return found

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        return write_episode_files(FORMAT, episodes, target, on_episode, self._write_file)

    def _channels(self, episode: ExportedEpisode) -> tuple[list[Channel], list[Loss]]:
        is_foxglove = self.schemas == "foxglove"
        if self.joints and not is_foxglove:
            message = (
                "joint states are a schema of Foxglove: leave out `joints`, or `schemas=exact`"
            )
            raise ConfigurationError(message=message)
        choice = SchemaChoice(foxglove=is_foxglove, joints=self.joints, frame=self.frame)
        return channels_of(episode, choice)

    def _write_file(self, episode: ExportedEpisode, stream: BinaryIO, path: Path) -> int:
        """Number of messages."""
        channels, _ = self._channels(episode)
        if len(channels) >= _MOST_CHANNELS:
            raise InvalidValue(
                record=episode.name,
                field="streams",
                value=str(len(channels)),
                expected=f"fewer than {_MOST_CHANNELS}",
            )
        writer = library("mcap.writer").Writer(stream, enable_data_crcs=True)
        writer.start(profile="", library=_LIBRARY)
        for name, record in fact_records(episode).items():
            writer.add_metadata(name, record)
        count = 0
        with ExitStack() as stack:
            archives = {
                kind: stack.enter_context(episode.open(kind))
                for kind in dict.fromkeys(channel.stream.kind for channel in channels)
            }
            sources = [
                _stream_messages(
                    _registered(writer, channel), channel, archives[channel.stream.kind]
                )
                for channel in channels
            ]
            sources += _video_sources(writer, episode, channels, path, stack)
            add = writer.add_message
            for t_ns, channel_id, sequence, data in heapq.merge(*sources):
                add(channel_id, t_ns, data, t_ns, sequence & _SEQUENCE)
                count += 1
        writer.finish()
        return count


# ---------------------------------------------------------------------------------------- messages


def _registered(writer: Any, channel: Channel) -> int:
    messages = channel.messages
    schema = writer.register_schema(messages.schema_name, "protobuf", messages.schema())
    return int(writer.register_channel(channel.topic, "protobuf", schema, channel.metadata()))


def _stream_messages(channel_id: int, channel: Channel, archive: NpzArchive) -> Iterator[Timed]:
    for block in channel.stream.blocks(archive):
        encoded = channel.messages.encode(block)
        rows = range(block.first, block.first + len(encoded))
        for t_ns, row, data in zip(block.t_ns.tolist(), rows, encoded, strict=True):
            yield t_ns, channel_id, row, data


def _video_sources(
    writer: Any,
    episode: ExportedEpisode,
    channels: Sequence[Channel],
    path: Path,
    stack: ExitStack,
) -> list[Iterator[Timed]]:
    if "video" not in episode.files:
        return []
    video = VideoPackets.of(episode.files["video"])
    if not video.frames:
        return []
    if not video.can_be_copied:
        again = path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}.mp4")
        stack.callback(again.unlink, missing_ok=True)
        video = video.encoded_again(again)
    message_class = library("foxglove_schemas_protobuf.CompressedVideo_pb2").CompressedVideo
    schemas = library("mcap_protobuf.schema")
    schema = schemas.register_schema(writer, message_class)
    topic = _video_topic(episode, {channel.topic for channel in channels})
    facts = {"rollbook.slot": "video", "rollbook.cameras": json.dumps(_cameras(episode))}
    channel_id = int(writer.register_channel(topic, "protobuf", schema, facts))
    return [_video_messages(channel_id, video, message_class, topic, start_ns(episode))]


def _video_messages(
    channel_id: int, video: VideoPackets, message_class: Any, frame_id: str, start: int
) -> Iterator[Timed]:
    for row, (offset, data) in enumerate(video.packets()):
        message = message_class(frame_id=frame_id, data=data, format=video.format)
        message.timestamp.FromNanoseconds(start + offset)
        yield start + offset, channel_id, row, message.SerializeToString(deterministic=True)


def _cameras(episode: ExportedEpisode) -> list[Any]:
    cameras = episode.metadata.get("video_cameras")
    return list(cameras) if isinstance(cameras, list | tuple) else []


def _video_topic(episode: ExportedEpisode, taken: set[str]) -> str:
    """The name of the camera; `video` where there are several, or none is known."""
    cameras = _cameras(episode)
    topic = "video"
    if len(cameras) == 1 and isinstance(cameras[0], Mapping):
        topic = str(cameras[0].get("camera") or topic)
    while topic in taken:
        topic = f"video/{topic}"
    return topic


def _stream_losses(episode: ExportedEpisode, channels: Sequence[Channel]) -> Iterator[Loss]:
    """Names, types and shapes are described in the metadata of the channels, and come back."""
    for channel in channels:
        stream = channel.stream
        what = f"{stream.kind}: {stream.namespace}"
        if not stream.rows:
            yield Loss(episode.name, what, "It has no rows: the channel has no messages.")
            continue
        if not is_stream_name(stream.namespace):
            reason = "Its name is no topic that can be imported: it does not come back."
            yield Loss(episode.name, what, reason)
        for name, facts in stream.fields.items():
            if facts.dtype.kind == "U":
                with episode.open(stream.kind) as archive:
                    loss = text_width_loss(archive, stream.key(archive, name), facts)
                if loss is not None:
                    yield Loss(episode.name, f"{what}/{name}", loss)


def _video_losses(episode: ExportedEpisode) -> Iterator[Loss]:
    if "video" not in episode.files:
        return
    video = VideoPackets.of(episode.files["video"])
    if not video.frames:
        yield Loss(episode.name, "video", "It has no frames. It is left out.")
    elif not video.can_be_copied:
        why = (
            f"{video.codec} with reordered frames"
            if video.codec in ("h264", "hevc")
            else video.codec
        )
        reason = f"It is {why}, so it is encoded again as H.264; pictures change a little."
        yield Loss(episode.name, "video", reason)
    else:
        reason = "Its frames are copied as they are. A re-import encodes them again."
        yield Loss(episode.name, "video", reason)

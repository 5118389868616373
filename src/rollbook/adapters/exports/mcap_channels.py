"""Channel: one stream of an episode as a channel of an MCAP file, and the choice of its schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.adapters.exports.entry_names import EntryNames, pose_columns
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.exports.mcap_messages import (
    JOINT_FIELDS,
    JointStates,
    Logs,
    Messages,
    OwnSchema,
    Poses,
)
from rollbook.adapters.exports.stream_rows import StreamRows, clocked_streams
from rollbook.adapters.mcap_stream import McapField, McapStream
from rollbook.errors import ConfigurationError

_AXES = frozenset(("x", "y", "z", "w"))


@dataclass(frozen=True, slots=True)
class Channel:
    stream: StreamRows
    topic: str
    messages: Messages

    def metadata(self) -> dict[str, str]:
        """What an importer needs to give back the stream as it was."""
        paths = self.messages.paths()
        fields = tuple(
            McapField(name, facts.dtype, facts.shape[1:], paths[name])
            for name, facts in self.stream.fields.items()
        )
        return McapStream(self.stream.kind, self.stream.namespace, fields).to_metadata()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChoice:
    foxglove: bool
    """Whether streams may get schemas of Foxglove."""
    joints: tuple[str, ...] | None
    """Namespaces to be written as joint states; None looks at names and types."""
    frame: str
    """Frame of reference of poses."""


def channels_of(episode: ExportedEpisode, choice: SchemaChoice) -> tuple[list[Channel], list[Loss]]:
    """A channel for every stream, and the streams that are left out."""
    streams, left_out = clocked_streams(episode)
    names = EntryNames.in_metadata(episode.metadata)
    _check_joints(episode, streams, choice.joints)
    topics: set[str] = set()
    schemas: set[str] = set()
    found = []
    for stream in streams:
        messages = _of_foxglove(stream, names, choice) if choice.foxglove else None
        messages = messages or OwnSchema.of(stream, schemas)
        found.append(Channel(stream, _topic(stream, topics), messages))
    return found, left_out


def _of_foxglove(stream: StreamRows, names: EntryNames, choice: SchemaChoice) -> Messages | None:
    return (
        _joint_states(stream, names, choice.joints)
        or _poses(stream, names, choice.frame)
        or _logs(stream)
    )


def _topic(stream: StreamRows, taken: set[str]) -> str:
    """The namespace. Where sensors and actions have the same one, that of the actions gets `actions/` before it."""
    topic = stream.namespace
    while topic in taken:
        topic = f"{stream.kind}/{topic}"
    taken.add(topic)
    return topic


def _check_joints(
    episode: ExportedEpisode, streams: Sequence[StreamRows], joints: tuple[str, ...] | None
) -> None:
    known = {stream.namespace for stream in streams}
    for name in joints or ():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            message = (
                f"{episode.name} has no stream {name!r} to write as joint states; known: {listed}"
            )
            raise ConfigurationError(message=message)


def _joint_states(
    stream: StreamRows, names: EntryNames, chosen: tuple[str, ...] | None
) -> JointStates | None:
    """Streams that were chosen; or, without a choice, those whose fields say that they are joints."""
    is_chosen = stream.namespace in (chosen or ())
    if chosen is not None and not is_chosen:
        return None
    made = _as_joint_states(stream, names, is_chosen)
    if isinstance(made, JointStates):
        return made
    if is_chosen:
        message = f"{stream.namespace} cannot be written as joint states: {made}"
        raise ConfigurationError(message=message)
    return None


def _as_joint_states(stream: StreamRows, names: EntryNames, is_chosen: bool) -> JointStates | str:
    """Or the reason why the stream is not one of joints. A chosen stream may have narrower numbers, and one field of
    any name."""
    fields = list(stream.fields)
    roles = {name: name for name in fields if name in JOINT_FIELDS}
    if is_chosen and len(fields) == 1:
        roles = {"position": fields[0]}
    if not fields or len(roles) != len(fields):
        return f"its fields are {', '.join(fields) or 'none'}"
    joints = names.of(stream, fields[0])
    if not joints:
        return "no `channels` in the metadata name its joints"
    if not is_chosen and _AXES.issuperset(joints):
        return "its entries are axes"
    widths = ("f8", "f4", "f2") if is_chosen else ("f8",)
    for name, facts in stream.fields.items():
        if facts.shape[1:] != (len(joints),) or facts.dtype.str[1:] not in widths:
            return f"{name} is {facts.dtype}{list(facts.shape[1:])}, with {len(joints)} names"
    return JointStates(joints, roles)


def _poses(stream: StreamRows, names: EntryNames, frame: str) -> Poses | None:
    """Only numbers of 64 bits, which the schema keeps as they are."""
    found = pose_columns(stream, names)
    if found is None or any(facts.dtype.str[1:] != "f8" for facts in stream.fields.values()):
        return None
    return Poses(frame, found)


def _logs(stream: StreamRows) -> Logs | None:
    if len(stream.fields) != 1:
        return None
    [(field, facts)] = stream.fields.items()
    return Logs(stream, field) if facts.dtype.kind == "U" and len(facts.shape) == 1 else None

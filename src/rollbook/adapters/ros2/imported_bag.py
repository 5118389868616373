"""What an import of a bag tells: what was left out, what was changed, and the episode with its metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode, files_in
from rollbook.adapters.mcap_stream import facts_in_records
from rollbook.adapters.recording import Recording, Skipped
from rollbook.adapters.ros2.bag import FORMAT, Bag
from rollbook.adapters.ros2.storage import Channel, Damage, StorageContents
from rollbook.adapters.ros2.topic_stream import TopicStream
from rollbook.client.tiles import Tile
from rollbook.contracts.episode import LONGEST_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedBag:
    """What `scan` found, for `encode`."""

    bag: Bag
    contents: tuple[StorageContents, ...]


def skipped_parts(
    contents: Sequence[StorageContents], streams: Collection[TopicStream]
) -> Iterator[Skipped]:
    for each in contents:
        yield from each.skipped
    for stream in streams:
        if stream.skipped is not None:
            yield Skipped(stream.name, stream.skipped)
            continue
        for name, reason in stream.plan.skipped:
            yield Skipped(f"{stream.name} {name}", reason)


def expected_losses(
    typestore: str, bag: Bag, damages: Sequence[Damage], read: Sequence[TopicStream]
) -> Iterator[str]:
    yield from bag.losses
    for damage in damages:
        yield f"{damage.file} is damaged ({damage.at}: {damage.detail}): it is imported up to there."
    from_store = [s.name for s in read if s.reader is not None and s.reader.uses_typestore]
    if from_store:
        yield (
            f"The file does not describe the types of {', '.join(from_store)}, or not as its messages are: "
            f"they are taken from the typestore {typestore!r}."
        )
    if any(stream.slot == "video" for stream in read):
        yield (
            "Pictures are encoded again, as a video with a steady frame rate; "
            "their log times are in the streams of the cameras."
        )


def found_losses(streams: Sequence[TopicStream]) -> Iterator[str]:
    for stream in streams:
        if stream.clock.backward:
            yield (
                f"{stream.name}: {stream.clock.backward} of {stream.read} log times are before that of the message "
                "before them; the rows are ordered by log time."
            )
        if stream.moved:
            yield (
                f"{stream.name}: {stream.moved} of {stream.read} log times repeat the one before them and are moved by "
                "the nanoseconds that are needed; _log_t_ns has the recorded times."
            )
        if stream.reader is not None and stream.reader.replaced_texts:
            count = stream.reader.replaced_texts
            yield f"{stream.name}: {count} texts are not UTF-8; their wrong bytes are replaced."
        if stream.reader is not None and stream.reader.cut_texts:
            count = stream.reader.cut_texts
            yield f"{stream.name}: {count} texts end in NUL, which an array of text does not keep."
        camera = stream.camera
        if camera is not None and camera.failed:
            yield (
                f"{stream.name}: {camera.failed} of {stream.read} messages give no picture of its size; "
                "the video repeats the one before."
            )
        if camera is not None and camera.not_shown:
            yield (
                f"{stream.name}: {camera.not_shown} of {stream.read} pictures are not in the video, "
                "because another camera sets its frames."
            )


def facts_about(bag: Bag, contents: Sequence[StorageContents], typestore: str) -> dict[str, Any]:
    about: dict[str, Any] = {**bag.about, "clock": "log time", "typestore": typestore}
    about["compression"] = bag.compression
    about["rosbags_version"] = version("rosbags")
    for each in contents:
        for name, value in each.about.items():
            about.setdefault(name, value)
    return about


def encoded_bag(
    recording: Recording,
    typestore: str,
    streams: Mapping[Channel, TopicStream],
    damages: Sequence[Damage],
    layout: Sequence[Tile],
    fps: float | None,
    folder: Path,
) -> EncodedEpisode:
    scanned: ScannedBag = recording.detail
    imported = [stream for stream in streams.values() if stream.is_read]
    first = min(stream.clock.first_ns for stream in imported)
    last = max(stream.clock.last_ns for stream in imported)
    declared: Counter[str] = Counter()
    if scanned.bag.topics is not None:
        declared.update({name: each.messages for name, each in scanned.bag.topics.items()})
    else:
        for stream in streams.values():
            if stream.declared is not None:
                declared[stream.channel.topic] += stream.declared
    read: Counter[str] = Counter()
    for stream in streams.values():
        read[stream.channel.topic] += stream.read
    skipped = skipped_parts(scanned.contents, streams.values())
    losses = [*expected_losses(typestore, scanned.bag, damages, imported), *found_losses(imported)]
    metadata: dict[str, Any] = {
        "adapter": FORMAT,
        "declared": dict(declared),
        "read": dict(read),
        "skipped": [asdict(each) for each in skipped],
        "losses": losses,
        "tasks": [],
        "channels": {s.name: list(s.channel_names) for s in imported if s.channel_names},
        "video_cameras": [asdict(tile) for tile in layout],
        "ros2_types": {s.name: s.channel.type or s.channel.encoding for s in imported},
        "ros2_start_ns": first,
        "ros2_bag": dict(recording.about),
    }
    empty = {s.name: list(s.plan.empty) for s in imported if s.plan.empty}
    if empty:
        metadata["ros2_empty_fields"] = empty
    if damages:
        metadata["damage"] = damages[0].as_metadata()
        if len(damages) > 1:
            metadata["ros2_more_damage"] = [each.as_metadata() for each in damages[1:]]
    facts = facts_in_records(recording.about.get("metadata", {}))
    return EncodedEpisode(
        files=files_in(folder),
        name=(facts.name or recording.name)[:LONGEST_NAME],
        source=facts.source or "real",
        fps=fps,
        duration_s=(last - first) / 1e9,
        metadata={**facts.metadata, **metadata, **facts.kept},
        robot=facts.robot,
        env_version=facts.env_version,
        policy_version=facts.policy_version,
        git_sha=facts.git_sha,
        seed=facts.seed,
    )

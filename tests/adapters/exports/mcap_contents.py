"""What an exported MCAP file holds, read with the libraries of MCAP and protobuf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory
from numpy.typing import NDArray

from rollbook.adapters.mcap_stream import McapStream
from rollbook.contracts.streams import CLOCK_FIELD


@dataclass
class Contents:
    profile: str = ""
    order: list[int] = field(default_factory=list)
    """Log times in the order of the file."""
    times: dict[str, list[int]] = field(default_factory=dict)
    messages: dict[str, list[Any]] = field(default_factory=dict)
    """Decoded, by topic."""
    raw: dict[str, list[bytes]] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    channels: dict[str, dict[str, str]] = field(default_factory=dict)
    records: dict[str, dict[str, str]] = field(default_factory=dict)
    sequences: dict[str, list[int]] = field(default_factory=dict)

    def arrays(self, slot: str) -> dict[str, NDArray[Any]]:
        """The arrays of sensors or actions, as the metadata of the channels describes them."""
        found: dict[str, NDArray[Any]] = {}
        for topic, facts in self.channels.items():
            if facts["rollbook.slot"] != slot:
                continue
            namespace = facts["rollbook.namespace"]
            times = self.times.get(topic, [])
            found[f"{namespace}/{CLOCK_FIELD}"] = np.array(times, np.int64)
            for each in json.loads(facts["rollbook.fields"]):
                key = f"{namespace}/{each['name']}"
                found[key] = _array(self.messages.get(topic, []), each)
        return found


def read(path: Path) -> Contents:
    found = Contents()
    with open(path, "rb") as stream:
        reader = make_reader(stream, validate_crcs=True, decoder_factories=[DecoderFactory()])
        found.profile = reader.get_header().profile
        summary = reader.get_summary()
        assert summary is not None
        for channel in summary.channels.values():
            found.channels[channel.topic] = channel.metadata
            found.schemas[channel.topic] = summary.schemas[channel.schema_id].name
        for _, channel, message, decoded in reader.iter_decoded_messages(log_time_order=False):
            assert message.publish_time == message.log_time
            found.order.append(message.log_time)
            found.times.setdefault(channel.topic, []).append(message.log_time)
            found.messages.setdefault(channel.topic, []).append(decoded)
            found.raw.setdefault(channel.topic, []).append(message.data)
            found.sequences.setdefault(channel.topic, []).append(message.sequence)
        for record in reader.iter_metadata():
            found.records[record.name] = record.metadata
        statistics = summary.statistics
        assert statistics is not None
        assert statistics.message_count == len(found.order)
    return found


def columns_of(messages: list[Any], stream: McapStream) -> dict[str, NDArray[Any]]:
    """The values at the paths of the stream, one column for each, in the types that protobuf has. Empty lists are not
    there."""
    kinds = {"TYPE_FLOAT": np.float32, "TYPE_SFIXED32": np.int32, "TYPE_FIXED32": np.uint32}
    found: dict[str, NDArray[Any]] = {}
    for each in stream.fields:
        for path, name in zip(each.path.split(","), each.columns, strict=True):
            rows = [_at(message, path) for message in messages]
            if isinstance(rows[0], bytes):
                found[name] = np.array([np.frombuffer(row, np.uint8) for row in rows])
            elif "[]" in path:
                found[name] = np.array(rows)
            elif 0 not in each.shape:
                field = messages[0].DESCRIPTOR.fields_by_name.get(path)
                narrow = [
                    kinds[k] for k in kinds if field and field.type == getattr(type(field), k)
                ]
                found[name] = np.array(rows, narrow[0] if narrow else None)
    return found


def _array(messages: list[Any], facts: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
    paths = facts["path"].split(",")
    if len(paths) == 1:
        rows = [_at(message, paths[0]) for message in messages]
    else:
        columns = [[_at(message, path) for path in paths] for message in messages]
        rows = [np.stack([np.asarray(c) for c in each], axis=-1) for each in columns]
    if rows and isinstance(rows[0], bytes):
        return np.frombuffer(b"".join(rows), dtype).reshape(len(rows), *shape)
    plain = np.int64 if dtype.kind in "mM" else dtype
    array: NDArray[Any] = np.array(rows, plain).view(dtype)
    return array.reshape(len(rows), *shape)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        name = part.removesuffix("[]")
        several = isinstance(value, list)
        value = [getattr(each, name) for each in value] if several else getattr(value, name)
        if part.endswith("[]"):
            value = list(value)
    return value if isinstance(value, bytes | list) else _plain(value)


def _plain(value: Any) -> Any:
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else value

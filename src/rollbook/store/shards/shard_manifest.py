"""The shard manifest: the plan of a campaign, one JSON line per shard. It is written once and never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from rollbook.errors import InvalidValue, MalformedJson, StorageError
from rollbook.files import write_bytes
from rollbook.store.shards.entry import (
    RolloutShardEntry,
    StoredEntry,
    canonical_rollout_shard_id,
    malformed,
)

_LINE = msgspec.json.Decoder(StoredEntry)


def read_rollout_shard_manifest(path: str | os.PathLike[str]) -> tuple[RolloutShardEntry, ...]:
    """The shards of a plan, in order. Every entry and its digest are checked; blank lines are ignored."""
    return parsed_shard_manifest(read_shard_manifest_bytes(path), str(path))


def read_shard_manifest_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        detail = f"the shard manifest cannot be read ({error.strerror or error})"
        raise StorageError(path=str(path), detail=detail) from error


def parsed_shard_manifest(data: bytes, source: str) -> tuple[RolloutShardEntry, ...]:
    """The shards in the lines of a plan. `source` names the plan in errors."""
    entries = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                entries.append(_LINE.decode(line).entry())
            except msgspec.MsgspecError as error:
                raise malformed(source, error, f"line {number}") from error
            except UnicodeDecodeError as error:
                raise _invalid_line(source, number, "it is not UTF-8 text") from error
            except ValueError as error:
                raise _invalid_line(source, number, str(error)) from error
    _refuse_overlap(entries, source)
    return tuple(entries)


def write_rollout_shard_manifest(
    path: str | os.PathLike[str], entries: Iterable[RolloutShardEntry]
) -> None:
    """Writes the plan: sorted keys, ASCII. The file appears complete."""
    file = Path(path)
    write_bytes(file, shard_manifest_bytes(entries, str(file)))


def shard_manifest_bytes(entries: Iterable[RolloutShardEntry], source: str) -> bytes:
    """The lines of a plan. A plan that could not be read again is refused."""
    checked = list(entries)
    for entry in checked:
        entry.validate()
    _refuse_overlap(checked, source)
    lines = (json.dumps(entry.to_jsonable(), sort_keys=True) + "\n" for entry in checked)
    return "".join(lines).encode("ascii")


def load_rollout_shard_entry(
    path: str | os.PathLike[str], shard_id: int | str
) -> RolloutShardEntry:
    """One shard of a plan, by its id or its number."""
    wanted = canonical_rollout_shard_id(shard_id)
    entries = read_rollout_shard_manifest(path)
    for entry in entries:
        if entry.shard_id == wanted:
            return entry
    have = f"{entries[0].shard_id} to {entries[-1].shard_id}" if entries else "none"
    raise StorageError(path=str(path), detail=f"there is no {wanted}; the plan has {have}")


def _invalid_line(source: str, number: int, detail: str) -> MalformedJson:
    return MalformedJson(source=source, record_id=None, where=f"line {number}", detail=detail)


def _refuse_overlap(entries: Sequence[RolloutShardEntry], record: str) -> None:
    """Every shard is planned once, and every source row is in one shard."""
    ids = [entry.shard_id for entry in entries]
    if len(set(ids)) < len(ids):
        twice = next(each for at, each in enumerate(ids) if each in ids[:at])
        raise InvalidValue(
            record=record, field="shard_id", value=f"{twice} twice", expected="different ids"
        )
    rows = [[row.sample_index for row in entry.rows] for entry in entries]
    if len(set(chain.from_iterable(rows))) == sum(map(len, rows)):
        return
    owner: dict[int, str] = {}
    for entry, indices in zip(entries, rows, strict=True):
        for index in indices:
            if index in owner:
                raise InvalidValue(
                    record=record,
                    field="rows",
                    value=f"source row {index} in both {owner[index]} and {entry.shard_id}",
                    expected="every row in one shard",
                )
            owner[index] = entry.shard_id

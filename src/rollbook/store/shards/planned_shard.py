"""PlannedShard: a line of a plan without its rows, which are most of the line."""

from __future__ import annotations

import os

import msgspec

from rollbook.errors import InvalidText
from rollbook.store.shards.entry import ROLLOUT_SHARD_MANIFEST_VERSION, canonical_rollout_shard_id
from rollbook.store.shards.shard_manifest import parsed_shard_manifest, read_shard_manifest_bytes


class PlannedShard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the status of a shard depends on."""

    shard_id: str
    split: str
    num_rows: int
    writer_config_hash: str
    source_manifest_hash: str
    split_manifest_hash: str
    manifest_version: str


_LINES = msgspec.json.Decoder(PlannedShard)


def read_planned_shards(path: str | os.PathLike[str]) -> tuple[PlannedShard, ...]:
    """The shards of a plan, in order. That their digests are those of their rows is not checked: this takes longer."""
    return parsed_planned_shards(read_shard_manifest_bytes(path), str(path))


def parsed_planned_shards(data: bytes, source: str) -> tuple[PlannedShard, ...]:
    """The shards in the lines of a plan. `source` names the plan in errors."""
    try:
        shards = _LINES.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        shards = []
    ids = {each.shard_id for each in shards}
    if not shards or len(ids) < len(shards) or not all(map(_is_valid, shards)):
        parsed_shard_manifest(data, source)  # says which line is wrong, and how
    return tuple(shards)


def _is_valid(shard: PlannedShard) -> bool:
    if shard.manifest_version != ROLLOUT_SHARD_MANIFEST_VERSION or shard.num_rows < 1:
        return False
    try:
        return shard.shard_id == canonical_rollout_shard_id(shard.shard_id)
    except InvalidText:
        return False

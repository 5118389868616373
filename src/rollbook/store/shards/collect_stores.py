"""Collecting stores: a collection file over stores that are not the shards of one plan, such as rounds of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from rollbook.files import AnyPath
from rollbook.store.collection import check_rollout_ids
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.shards.alike_stores import (
    AlikeStores,
    file_reader,
    read_manifest,
    relative_place,
)
from rollbook.store.shards.collection_file import (
    CollectedShard,
    CollectionFile,
    write_collection_file,
)


def collect_stores(
    stores: Mapping[str, AnyPath],
    path: AnyPath,
    *,
    writer_config_hash: str,
    source_manifest_hash: str,
) -> CollectionFile:
    """Write the collection file `path` over these stores, by their names and in their order. Nothing is copied.

    Stores may have rollouts of the same source rows, but not the same rollouts, and their rows must mean the same. The
    two digests name what the stores have in common: the config that they started from, and their source.
    """
    file = Path(path).absolute()
    alike, shards, opened = AlikeStores(), [], []
    for name, place in stores.items():
        folder = Path(place).absolute()
        reader = RolloutZarrStoreReader(folder)
        read = file_reader(folder)
        manifest = read_manifest(str(folder), read)
        alike.add(str(folder), read, manifest)
        sizes = [
            msgspec.json.decode(each, type=tuple[int, str])[0] for each in manifest.files.values()
        ]
        opened.append(reader)
        shards.append(
            CollectedShard(
                shard_id=name,
                split=str(manifest.root_attrs.get("source_split", "")),
                source_rows=manifest.counts["sources"],
                path=relative_place(str(folder), file.parent),
                content_sha256=manifest.content_sha256,
                manifest_sha256=str(reader.attrs["manifest_sha256"]),
                counts=manifest.counts,
                bytes=sum(sizes),
            )
        )
    check_rollout_ids(opened)
    collection = alike.collection(
        shards, writer_config_hash=writer_config_hash, source_manifest_hash=source_manifest_hash
    )
    write_collection_file(file, collection)
    return collection

"""The output of `rollbook store info` for a collection of stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rollbook.cli.output import print_json, print_pairs, say, shown_bytes
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader

if TYPE_CHECKING:
    from rollbook.store.shards.collection_file import CollectionFile

View: TypeAlias = RolloutZarrStoreReader | RolloutCollection
"""What most commands of `rollbook store` read."""

_COUNTS = {
    "rollouts": "rollouts",
    "steps": "steps",
    "candidates": "candidates",
    "targets": "targets",
    "sources": "source rows",
    "selected_depths": "depth images",
    "target_eval_crops": "point crops",
}


def print_collection(path: str, file: CollectionFile, as_json: bool) -> None:
    """What a collection contains. No store is opened."""
    totals = file.totals
    digests = {
        "digest": file.collection_sha256,
        "config": file.writer_config_hash,
        "source manifest": file.source_manifest_hash,
    }
    if as_json:
        counts = {name: totals[name] for name in _COUNTS}
        held = {"shards": totals["shards"], "empty_shards": totals["empty_shards"]}
        facts = {"splits": list(file.splits), "store_attrs": file.store_attrs}
        sizes = {"size_bytes": totals["bytes"], "counts": counts}
        print_json({"path": path, **held, **sizes, **facts, "provenance": digests})
        return
    say(f"{path}\n")
    print_pairs({heading: f"{totals[name]:,}" for name, heading in _COUNTS.items()})
    say("")
    empty = f", {totals['empty_shards']:,} of them without rollouts" * bool(totals["empty_shards"])
    shards = f"{totals['shards']:,} with {totals['source_rows']:,} planned source rows{empty}"
    print_pairs(
        {
            "shards": shards,
            "splits": ", ".join(file.splits),
            "schema": f"{file.store_attrs['schema_id']} {file.store_attrs['schema_version']}",
            **digests,
            "size": shown_bytes(totals["bytes"]),
        }
    )

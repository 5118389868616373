"""`rollbook campaign merge` and `rollbook campaign publish`: the finished shards as one data set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.campaigns.opened_campaign import Campaign, opened_campaign
from rollbook.cli.output import AsJson, print_json, say, shown_bytes
from rollbook.cli.progress import hint_at_replace, progress_bar
from rollbook.cli.store_paths import existing_path, folder_here
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.store.shards.collection_file import CollectionFile

Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing output.")]


def merge(
    campaign: Campaign,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also validate every shard and compare every byte.")
    ] = False,
    compact: Annotated[
        Path | None, typer.Option(help="Also write all rows into one store in this folder.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split that --compact writes; a store holds one.")
    ] = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Check that all shards are finished and belong together, and list them in collection.json.

    Nothing is copied, unless --compact names a folder. The commands of `rollbook store` read the campaign from then on.
    """
    from rollbook.store.shards.collection_file import COLLECTION_FILENAME
    from rollbook.store.shards.merge import merge_shards, shards_at

    if split is not None and compact is None:
        raise ConfigurationError(message="--split chooses what --compact writes: give both")
    if compact is not None:
        folder_here(compact, "--compact")
    opened = opened_campaign(existing_path(campaign, "a campaign"))
    path = opened.folder / COLLECTION_FILENAME
    with progress_bar("merging") as progress:
        merged = merge_shards(
            opened.entries, shards_at(opened.final_root), path, verify=verify, on_shard=progress
        )
    shown: dict[str, Any] = {
        "collection": str(path),
        "collection_sha256": merged.collection_sha256,
        "verified": verify,
        "totals": merged.totals,
        "splits": list(merged.splits),
        "compact": None,
    }
    if not as_json:
        _print_merged(path, merged)
    if compact is not None:
        shown["compact"] = _compacted(path, compact, split, replace, as_json)
    if as_json:
        print_json(shown)


def _print_merged(path: Path, merged: CollectionFile) -> None:
    totals = merged.totals
    empty = f" ({totals['empty_shards']:,} without rollouts)" if totals["empty_shards"] else ""
    say(
        f"{path}: {totals['shards']:,} shards{empty}, {totals['rollouts']:,} rollouts, "
        f"{totals['candidates']:,} candidates, {shown_bytes(totals['bytes'])}, "
        f"digest {merged.collection_sha256}"
    )


def _compacted(
    collection: Path, folder: Path, split: str | None, replace: bool, as_json: bool
) -> dict[str, Any]:
    from rollbook.store.manifest import RolloutStoreInvocation
    from rollbook.store.shards.compact import compact_shards

    with progress_bar("compacting") as progress, hint_at_replace(replace):
        written = compact_shards(
            collection,
            folder,
            split=split,
            replace=replace,
            invocation=RolloutStoreInvocation("cli", tuple(sys.argv[1:])),
            on_store=progress,
        )
    if not as_json:
        say(
            f"{written.store_dir}: one store with {written.num_rollouts:,} rollouts, "
            f"{written.num_candidates:,} candidates, content {written.content_sha256}"
        )
    return {
        "path": str(written.store_dir),
        "content_sha256": written.content_sha256,
        "manifest_sha256": written.manifest_sha256,
        "rollouts": written.num_rollouts,
        "steps": written.num_steps,
        "candidates": written.num_candidates,
    }


def publish(
    collection: Annotated[
        str,
        typer.Argument(metavar="CAMPAIGN", help="A merged campaign, or a collection.json."),
    ],
    url: Annotated[str, typer.Argument(help="Target URL, such as s3://bucket/prefix.")],
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Upload a merged campaign to a URL, collection.json last.

    If an upload was interrupted, the same command continues it.
    """
    from rollbook.store.shards.publish_collection import publish_collection
    from rollbook.store.urls.url_folder import is_url

    if not is_url(collection):
        existing_path(Path(collection), "a merged campaign")
    with progress_bar("publishing") as progress, hint_at_replace(replace):
        done = publish_collection(collection, url, replace=replace, progress=progress)
    if as_json:
        print_json(
            {
                "url": done.url,
                "collection_sha256": done.collection_sha256,
                "stores": done.stores,
                "uploaded_stores": done.uploaded_stores,
                "size_bytes": done.bytes,
            }
        )
        return
    say(
        f"{done.url}: {done.stores:,} stores ({done.uploaded_stores:,} uploaded now), "
        f"{shown_bytes(done.bytes)}, digest {done.collection_sha256}"
    )

"""`rollbook campaign clean`: removes what killed workers left."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from rollbook.cli.campaigns.opened_campaign import Campaign, opened_campaign
from rollbook.cli.output import AsJson, print_json, say


def clean(
    campaign: Campaign,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what killed workers left: their leases, copies and unnamed files, and the work of finished shards.

    Nothing is removed that a worker may still use, and no finished shard or row. The lease of a worker on another
    machine stays: only time can tell whether that worker has ended, so `rollbook campaign run` takes its shard over.
    """
    from rollbook.store.shards.lease_record import LeaseWatch
    from rollbook.store.shards.leftovers import Leftovers
    from rollbook.store.shards.object_leftovers import ObjectLeftovers
    from rollbook.store.urls.url_folder import local_path

    opened = opened_campaign(campaign)
    entries, work, watch = opened.entries, opened.work_root, LeaseWatch()
    root, folder = str(opened.final_root), local_path(opened.final_root)
    left: Leftovers | ObjectLeftovers
    if folder is None:
        left = ObjectLeftovers(entries, final_root=root, work_root=work, watch=watch)
    else:
        left = Leftovers(entries, final_root=folder, work_root=work, watch=watch)
    found = left.found()
    if not dry_run:
        found = left.remove(found)
    if as_json:
        shown = [{**each._asdict(), "path": str(each.path)} for each in found]
        print_json({"removed": not dry_run, "leftovers": shown})
        return
    for each in found if dry_run else ():
        say(f"{each.what}  {each.path}")
    counts = Counter(each.what for each in found)
    text = ", ".join(f"{count:,} x {what}" for what, count in sorted(counts.items()))
    say(f"{'would remove' if dry_run else 'removed'}: {text or 'nothing'}")

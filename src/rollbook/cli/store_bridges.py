"""`rollbook store to-artifacts` and `rollbook store push`: chains leave a store, for a trainer or for a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.opened_stores import opened_view
from rollbook.cli.output import AsJson, print_done, shown_bytes
from rollbook.cli.progress import hint_at_replace, progress_bar
from rollbook.cli.store import Replace, Stores

Policy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only chains of this policy, by its name in the store."),
]
Family = Annotated[str, typer.Option(help="Policy family of the built-in policies of the store.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many chains, from the first.")]


def to_artifacts(
    path: Stores,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The table to write.")],
    policy: Policy = None,
    limit: Limit = None,
    family: Family = "next-best-view",
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Write chains as rollout artifacts for a trainer.

    \b
    rollbook store to-artifacts rollouts.zarr --out rollouts.table
    rollbook contracts check rollouts.table --store rollouts.zarr

    A chain becomes one artifact, a step one sample: the index of the chosen candidate, its log-probability, its
    reward, and the advantage, which is the stored return minus the mean label of the candidates. Every artifact
    names its store by content digest, and its row; the second command makes all of them again and compares them.
    Chains without a label are left out.

    If the command was stopped, the same command continues it. A file that has these rollouts already stays as it is.
    """
    from rollbook.train.saved_chains import chosen_chains, save_chains

    stores = opened_view(path)
    rows = chosen_chains(stores, policy=policy, limit=limit)
    with progress_bar("chains") as progress, hint_at_replace(replace):
        saved = save_chains(stores, out, rows, family=family, replace=replace, on_chains=progress)
    table, size = saved.table, out.stat().st_size
    shown = {
        "path": str(out),
        "written": saved.written,
        "rollouts": len(table),
        "samples": table.sample_count,
        "left_out": 0 if policy or limit else stores.num_rollouts - len(table),
        "reused": saved.reused,
        "revisions": [each.revision_id for each in table.columns.revisions],
        "root": table.root,
        "size_bytes": size,
    }
    left_out = f"; {shown['left_out']:,} chains without a label were left out" * bool(
        shown["left_out"]
    )
    known = "" if saved.written else "; it was there already"
    print_done(
        shown,
        f"{out}: {len(table):,} rollouts, {table.sample_count:,} samples, {shown_bytes(size)}{left_out}{known}\n"
        f"root {table.root}",
        as_json,
    )


def push(
    path: Stores,
    policy: Policy = None,
    limit: Limit = None,
    policy_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version of the episodes. Default: the name of their policy."
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Tag every episode. May be repeated."),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video/--no-video", help="Send the depth images, if there are any.")
    ] = True,
    family: Family = "next-best-view",
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Log chains as episodes on a server.

    \b
    rollbook store push rollouts.zarr --policy random_valid --tag baseline

    What the actor knew becomes the sensors of an episode, the chosen index its action, and the depth that was seen
    its video. Every episode names its policy revision, its store by content digest, and its row, so that it leads back
    to the source.

    A chain that is an episode already is not logged again. If the command was stopped, the same command continues it.
    """
    from rollbook.cli.replays.replay_run import client_of
    from rollbook.evals.store_baselines import check_one_policy
    from rollbook.evals.store_episodes import chosen_chains, push_chains

    stores = chosen_chains(opened_view(path).stores, policy=policy, limit=limit)
    check_one_policy(stores, policy_version, field="--policy-version", choose="--policy")
    with client_of(profile) as client, progress_bar("chains") as progress:
        done = push_chains(
            client,
            stores,
            policy_version=policy_version,
            tags=tags,
            on_logged=progress,
            video=video,
            family=family,
        )
        server = client.base_url
    count, there = len(done.ids), len(done.ids) - done.new
    shown = {
        "store": path,
        "server": server,
        "chains": count,
        "new": done.new,
        "already_there": there,
        "episode_ids": done.ids,
    }
    already = f"; {there:,} of them were there already" * bool(there)
    text = f"{path}: {count:,} chains are episodes of {server}{already}\nlook at them: {server}/portal/episodes"
    print_done(shown, text, as_json)

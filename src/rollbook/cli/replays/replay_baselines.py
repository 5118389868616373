"""The baselines of `rollbook replay run` when no ids are given: the newest episodes that match, or fresh ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.output import say
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.cli.replays.replay_arguments import ReplayArguments
    from rollbook.client import Client

EPISODES_FOUND = 200
"""Episodes that a run takes as baselines when neither ids nor a number are given."""

BaselineVersion = Annotated[
    str | None,
    typer.Option(
        help="Version name of the recorded policy. Without ids, its newest episodes are the baselines."
    ),
]
BaselineTag = Annotated[
    str | None, typer.Option(metavar="TAG", help="Only episodes with this tag are baselines.")
]
Query = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Only episodes with this value are baselines: policy_version, env_version, git_sha, robot, source, tag or "
        "a path into the metadata such as task.name=pick. Can be repeated.",
    ),
]
Baselines = Annotated[
    str | None,
    typer.Option(
        metavar="fresh:N",
        help="Draw N finished episodes at random that no run has used, so that this run is the first one on them.",
    ),
]
DrawSeed = Annotated[int, typer.Option(min=0, help="Seed of the draw of --baselines fresh:N.")]


def with_baselines(asked: ReplayArguments, client: Client) -> ReplayArguments:
    """The arguments with the ids of the episodes that were found."""
    filters = _filters(asked)
    if asked.fresh is not None:
        return _with_fresh(asked, asked.fresh, filters, client)
    found = client.episodes(**filters, status="ready")
    recorded = (each for each in found if each.source != "replay")
    ids = [each.id for each in islice(recorded, asked.limit or EPISODES_FOUND)]
    if not ids:
        raise ConfigurationError(message=_none_found(filters))
    return replace(asked, ids=ids)


def _filters(asked: ReplayArguments) -> dict[str, Any]:
    filters = dict(asked.query)
    if asked.tag is not None:
        filters["tag"] = [asked.tag, *filters.get("tag", ())]
    version = filters.setdefault("policy_version", asked.baseline)
    if asked.baseline not in (None, version):
        message = "--baseline-version and --query policy_version=… differ; give one of them"
        raise ConfigurationError(message=message)
    return filters


def _with_fresh(
    asked: ReplayArguments, count: int, filters: dict[str, Any], client: Client
) -> ReplayArguments:
    from rollbook import evals

    drawn = evals.fresh_baselines(count, **filters, draw_seed=asked.draw_seed, client=client)
    if not asked.quiet:
        say(
            f"Drew {count} of {drawn.available} episodes that no run has used (seed {drawn.draw_seed})."
        )
    about = {"draw_seed": drawn.draw_seed, "available": drawn.available}
    return replace(
        asked, ids=drawn.episode_ids, metadata={**asked.metadata, "fresh_baselines": about}
    )


def _none_found(filters: dict[str, Any]) -> str:
    of_tag = f" with the tag {', '.join(filters['tag'])!r}" if "tag" in filters else ""
    message = (
        f"there are no finished episodes of {filters['policy_version'] or 'any policy'}{of_tag}"
    )
    others = sorted(set(filters) - {"policy_version", "tag"})
    return f"{message} that match --query ({', '.join(others)})" if others else message

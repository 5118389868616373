"""`rollbook campaign run --engine slurm`: hands the shards to Slurm and does not wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.output import print_json, say
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.generate.campaigns.campaign_folder import CampaignFolder
    from rollbook.generate.campaigns.slurm_jobs import SlurmSubmission
    from rollbook.store.shards.entry import RolloutShardEntry

_DEFAULT_ARRAY = 1000


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The options that only this engine has."""

    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="With --engine slurm: option of sbatch, for example partition=gpu. Repeat it for more.",
        ),
    ] = None
    setup: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE",
            help="With --engine slurm: line of bash that every job runs first, for example to load a module.",
        ),
    ] = None
    max_array: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --engine slurm: most tasks of one job array. Default: 1000."
        ),
    ] = None
    no_submit: Annotated[
        bool,
        typer.Option("--no-submit", help="With --engine slurm: only write the scripts."),
    ] = False

    def refuse(self, engine: str) -> None:
        """For every other engine."""
        for each in fields(self):
            if getattr(self, each.name):
                name = each.name.replace("_", "-")
                raise ConfigurationError(message=f"--{name} is for --engine slurm, not {engine}")


def run_on_slurm(
    campaign: CampaignFolder,
    entries: Sequence[RolloutShardEntry],
    changes: Mapping[str, Any],
    workers: int | None,
    options: SlurmOptions,
    *,
    as_json: bool,
) -> None:
    """Submits a task for every shard that is not finished and not in the queue, and a job that merges at the end.

    `changes` replace settings of [campaign], unless they are None.
    """
    import msgspec

    from rollbook.generate.campaigns.slurm_jobs import start_on_slurm
    from rollbook.generate.campaigns.slurm_script import SlurmSettings
    from rollbook.store.shards.campaign_status import summarize_rollout_shard_campaign

    def unfinished() -> list[str]:
        status = summarize_rollout_shard_campaign(
            campaign.manifest_path, final_root=campaign.final_root
        )
        open_shards = {each.shard_id for each in status.shards if each.status != "succeeded"}
        return [entry.shard_id for entry in entries if entry.shard_id in open_shards]

    given = {name: value for name, value in changes.items() if value is not None}
    needs = msgspec.structs.replace(campaign.config.campaign, **given)
    settings = SlurmSettings(
        tasks_at_once=workers,
        max_array=options.max_array or _DEFAULT_ARRAY,
        setup=tuple(options.setup or ()),
        sbatch=tuple(options.sbatch or ()),
    )
    submission = start_on_slurm(
        campaign.folder, unfinished, needs, settings, submit=not options.no_submit
    )
    if as_json:
        print_json(_shown(submission))
    else:
        _print(submission, quote(str(campaign.folder)))


def _shown(submission: SlurmSubmission) -> dict[str, object]:
    import msgspec

    return {
        "jobs": msgspec.to_builtins(submission.jobs),
        "scripts": [str(each.path) for each in submission.scripts],
        "commands": submission.commands,
        "shards": sum(len(each.shard_ids) for each in submission.scripts),
        "in_queue": submission.in_queue,
    }


def _print(submission: SlurmSubmission, campaign: str) -> None:
    if submission.in_queue:
        say(f"in the queue already: {_shards(submission.in_queue)}")
    if not submission.scripts and not submission.in_queue:
        say(f"every shard is finished; next: rollbook campaign merge {campaign}")
        return
    for job in submission.jobs:
        does = _shards(len(job.shard_ids)) if job.shard_ids else "merges them at the end"
        say(f"submitted {job.script} as job {job.job_id}: {does}")
    if submission.commands:
        say("the scripts are written; these lines submit them:", err=True)
        say("\n".join(submission.commands))
    say(f"next: rollbook campaign status {campaign} --watch", err=True)


def _shards(count: int) -> str:
    return f"{count:,} shard{'' if count == 1 else 's'}"

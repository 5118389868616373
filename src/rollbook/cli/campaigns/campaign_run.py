"""`rollbook campaign run`, `retry` and `run-shard`: build the shards of a campaign."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rollbook.cli.campaigns.campaign_slurm import SlurmOptions, run_on_slurm
from rollbook.cli.campaigns.opened_campaign import Campaign, opened_campaign
from rollbook.cli.exit_codes import INTERRUPTED, VIOLATIONS
from rollbook.cli.generate import loaded_config, row_progress
from rollbook.cli.options import with_options
from rollbook.cli.output import AsJson, print_json, say, shown_duration
from rollbook.cli.progress import live_bar
from rollbook.cli.store_paths import folder_here
from rollbook.errors import ConfigurationError, InvalidText, LeaseHeld, ShardDrift

if TYPE_CHECKING:
    from rollbook.generate.campaigns.campaign_folder import CampaignFolder
    from rollbook.generate.campaigns.run_campaign import CampaignProgress, CampaignRun, ShardEvent
    from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
    from rollbook.store.shards.build_shard import RolloutShardRunResult
    from rollbook.store.shards.entry import RolloutShardEntry
    from rollbook.store.shards.sidecars import OwnerFile

_LINE_S = 30.0
"""Seconds between two lines about progress where there is no terminal."""
_MOST_NAMED = 20
_LEASE_LOOK_S = 1.0
"""Seconds between two looks at a shard that another worker has."""

Built = TypeVar("Built")

Shards = Annotated[
    str | None,
    typer.Option(metavar="NUMBERS", help="Only these shards, for example 0-99,120. Default: all."),
]
Engine = Annotated[str, typer.Option(help="What builds the shards: local or ray.")]
Address = Annotated[
    str | None, typer.Option(help="With --engine ray: address of a running cluster.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Shards to build at the same time. Default: as many as this machine has cores for; with --engine slurm, "
        "no limit.",
    ),
]
MaxRetries = Annotated[
    int | None,
    typer.Option(
        min=0, help="How often a failed shard is tried again, instead of campaign.max_retries."
    ),
]
FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="Begin no shard after one has failed for good.")
]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="Longest seconds of one attempt, instead of campaign.timeout_s."),
]


@with_options(SlurmOptions)
def run(
    campaign: Campaign,
    engine: Annotated[
        str, typer.Option(help="What builds the shards: local, ray or slurm.")
    ] = "local",
    address: Address = None,
    workers: Workers = None,
    max_retries: MaxRetries = None,
    fail_fast: FailFast = False,
    timeout: Timeout = None,
    shards: Shards = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Refuse to run unless this TOML file gives the rollouts of the plan."),
    ] = None,
    *,
    options: SlurmOptions,
    as_json: AsJson = False,
) -> None:
    """Build all shards that are not finished.

    The same command again goes on where the last one ended, however it ended. Several can run at the same time, also
    on several machines that share the folder: they divide the shards among themselves.

    Ctrl-C begins no more shards and finishes those in work. Ctrl-C a second time stops at once; finished rows are
    kept. Exits with 0 when every shard is finished, and with 1 when one failed.

    With --engine slurm the shards are handed to Slurm, and the command ends when their jobs are submitted.
    """
    opened = opened_campaign(campaign)
    if config is not None:
        _refuse_drift(opened, config)
    entries = selected(opened.entries, shards)
    if engine == "slurm":
        if address is not None or fail_fast:
            wrong = "--address" if address is not None else "--fail-fast"
            raise ConfigurationError(message=f"{wrong} has no meaning for --engine slurm")
        changes = {"max_retries": max_retries, "timeout_s": timeout}
        run_on_slurm(opened, entries, changes, workers, options, as_json=as_json)
        return
    options.refuse(engine)
    ended = _run_here(
        opened,
        entries,
        quiet=as_json,
        engine=engine,
        address=address,
        workers=workers,
        max_retries=max_retries,
        fail_fast=fail_fast,
        timeout_s=timeout,
    )
    is_whole = len(entries) == opened.num_shards
    _report(campaign, ended, is_whole=is_whole, as_json=as_json)


def retry(
    campaign: Campaign,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    max_retries: MaxRetries = None,
    fail_fast: FailFast = False,
    timeout: Timeout = None,
    shards: Shards = None,
    as_json: AsJson = False,
) -> None:
    """Build the shards again that failed or that a worker left, and no others.

    Their finished rows are used. The notes about failed attempts stay until the shard succeeds; its owner file then
    lists them. `rollbook campaign run` does the same and also builds the shards that nobody has begun.
    """
    from rollbook.store.shards.campaign_status import summarize_rollout_shard_campaign

    opened = opened_campaign(campaign)
    found = summarize_rollout_shard_campaign(
        opened.manifest_path, final_root=opened.final_root, work_root=opened.work_root
    )
    again = {each.shard_id for each in found.shards if each.status in ("failed", "incomplete")}
    ended = _run_here(
        opened,
        [entry for entry in selected(opened.entries, shards) if entry.shard_id in again],
        quiet=as_json,
        engine=engine,
        address=address,
        workers=workers,
        max_retries=max_retries,
        fail_fast=fail_fast,
        timeout_s=timeout,
    )
    _report(campaign, ended, is_whole=False, as_json=as_json)


def _refuse_drift(opened: CampaignFolder, file: Path) -> None:
    given = loaded_config(file, None, None).config_hash
    planned = opened.config.config_hash
    if given != planned:
        detail = (
            f"the campaign was planned with the config {planned[:16]}, and this one is {given[:16]}: "
            "plan it in a new folder"
        )
        raise ShardDrift(path=str(file), detail=detail)


def shards_at_once(config: RolloutDatasetWriterConfig) -> int:
    """As many shards as this machine has cores for."""
    # Linux alone knows the cores that this process may use
    usable = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if usable is None else len(usable(0))
    return max(1, int(cores / max(config.campaign.cpus_per_shard, config.workers, config.threads)))


def selected(
    entries: Sequence[RolloutShardEntry], shards: str | None
) -> Sequence[RolloutShardEntry]:
    """The shards that `--shards` names, in the order of the plan."""
    from rollbook.store.shards.entry import canonical_rollout_shard_id

    if shards is None:
        return entries
    wanted: set[str] = set()
    for part in shards.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            message = f"--shards is {shards!r}, expected numbers such as 0-99,120"
            raise ConfigurationError(message=message)
        low, high = int(first), int(last or first)
        if high >= len(entries) or low > high:
            message = f"--shards has {part.strip()!r}; the shards are 0 to {len(entries) - 1}"
            raise ConfigurationError(message=message)
        wanted.update(map(canonical_rollout_shard_id, range(low, high + 1)))
    return [entry for entry in entries if entry.shard_id in wanted]


# ---------------------------------------------------------------------------------------- the run


def _run_here(
    opened: CampaignFolder,
    entries: Sequence[RolloutShardEntry],
    *,
    quiet: bool,
    workers: int | None,
    **options: Any,
) -> CampaignRun:
    from rollbook.generate.campaigns.run_campaign import run_campaign

    with _progress_shown(quiet=quiet) as shown, _drained_by_ctrl_c(quiet=quiet) as stop:
        return run_campaign(
            opened.config,
            entries,
            final_root=opened.final_root,
            work_root=opened.work_root,
            invocation=opened.invocation,
            stop=stop,
            on_update=shown.update,
            on_event=shown.tell,
            workers=workers or shards_at_once(opened.config),
            **options,
        )


@contextmanager
def _drained_by_ctrl_c(*, quiet: bool) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was typed. The second Ctrl-C ends the command."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may set handlers
        return
    asked = told = False
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def stop() -> bool:
        nonlocal told
        if asked and not told:
            told = True
            if not quiet:
                say(
                    "no more shards are begun; those in work are finished. Ctrl-C again stops at once and keeps "
                    "their finished rows",
                    err=True,
                )
        return asked

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class _Shown:
    """Progress on standard error: a live line on a terminal, otherwise a line now and then."""

    def __init__(self, bar: Any, task: Any, *, quiet: bool) -> None:
        self._bar = bar
        self._task = task
        self._quiet = quiet
        self._next_line = time.monotonic() + _LINE_S

    def update(self, progress: CampaignProgress) -> None:
        if self._quiet:
            return
        text = _progress_text(progress)
        self._bar.update(self._task, completed=progress.rows_done, total=progress.rows, text=text)
        if self._bar.disable and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_S
            say(text, err=True)

    def tell(self, event: ShardEvent) -> None:
        if not self._quiet and event.what != "built":
            failed = "failed" if event.what == "failed" else "failed and is tried again"
            say(f"{event.shard_id} {failed}: {event.detail}", err=True)


@contextmanager
def _progress_shown(*, quiet: bool) -> Iterator[_Shown]:
    from rich.progress import BarColumn, TextColumn

    with live_bar(BarColumn(bar_width=10), TextColumn("{task.fields[text]}")) as bar:
        bar.disable = bar.disable or quiet
        yield _Shown(bar, bar.add_task("", total=None, text="starting"), quiet=quiet)


def _progress_text(progress: CampaignProgress) -> str:
    parts = [
        f"{progress.shards_done:,}/{progress.shards:,} shards",
        f"{progress.rows_done:,}/{progress.rows:,} rows",
    ]
    if progress.candidates_per_s is not None:
        parts.append(f"{progress.candidates_per_s:,.0f} candidates/s")
    if progress.shards_failed:
        parts.append(f"{progress.shards_failed:,} failed")
    if progress.eta_s is not None:
        parts.append(f"{shown_duration(progress.eta_s)} left")
    return ", ".join(parts)


def _report(campaign: Path, ended: CampaignRun, *, is_whole: bool, as_json: bool) -> None:
    """`is_whole`: whether the run was about all shards of the campaign."""
    if as_json:
        print_json({"complete": ended.complete} | dataclasses.asdict(ended))
    else:
        _print_report(campaign, ended, is_whole)
    if not ended.complete:
        raise typer.Exit(INTERRUPTED if ended.held or ended.left else VIOLATIONS)


def _print_report(campaign: Path, ended: CampaignRun, is_whole: bool) -> None:
    counts = {
        "built": len(ended.succeeded),
        "finished before or elsewhere": len(ended.skipped),
        "failed": len(ended.failed),
        "in work elsewhere": len(ended.held),
        "not begun": len(ended.left),
    }
    text = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    say(f"shards: {text or 'none'}; {ended.seconds:.1f} s, {ended.retries} retries")
    for shard_id, error in list(ended.failed.items())[:_MOST_NAMED]:
        say(f"failed {shard_id}: {error}")
    if len(ended.failed) > _MOST_NAMED:
        say(f"… {len(ended.failed) - _MOST_NAMED:,} more; `rollbook campaign status` shows all")
    step = "run" if not ended.complete else "merge" if is_whole else "status"
    say(f"next: rollbook campaign {step} {quote(str(campaign))}")


# -------------------------------------------------------------------------------------- one shard


def run_shard(
    campaign: Annotated[
        Path | None,
        typer.Argument(metavar="[CAMPAIGN]", help="Folder that `rollbook campaign plan` wrote."),
    ] = None,
    shard: Annotated[
        str | None, typer.Argument(metavar="[SHARD]", help="Number or id of the shard.")
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Go on with the work of a worker that has ended."),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="While another worker has the shard, wait for it to end."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Without CAMPAIGN: TOML file of the plan.")
    ] = None,
    shard_manifest: Annotated[
        Path | None, typer.Option(help="Without CAMPAIGN: file of the plan.")
    ] = None,
    shard_id: Annotated[
        str | None, typer.Option(help="Without CAMPAIGN: number or id of the shard.")
    ] = None,
    output_tmp: Annotated[
        Path | None, typer.Option(help="Without CAMPAIGN: work folder of the shard.")
    ] = None,
    output_final: Annotated[
        str | None, typer.Option(help="Without CAMPAIGN: folder or URL of the finished shard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build one shard in this process, or skip it if it is finished.

    The shard is one of a campaign, or the five options name everything. A failure leaves a marker beside the final
    folder; a shard on which another worker is at work is refused, unless --wait is given.
    """
    from rollbook.generate.campaigns.run_shard import run_rollout_shard
    from rollbook.store.manifest import RolloutStoreInvocation
    from rollbook.store.shards.build_shard import final_place
    from rollbook.store.shards.lease_record import LeaseWatch
    from rollbook.store.shards.shard_manifest import load_rollout_shard_entry

    named = (config, shard_manifest, shard_id, output_tmp, output_final)
    if campaign is not None and shard is not None and not any(named):
        opened = opened_campaign(campaign)
        settings, invocation = opened.config, opened.invocation
        entry = _planned_shard(opened, shard)
        tmp, final = opened.shard_paths(entry.shard_id)
    elif config and shard_manifest and shard_id and output_tmp and output_final and not campaign:
        settings = loaded_config(config, None, None)
        invocation = RolloutStoreInvocation.from_cli(argv=sys.argv[1:], config_path=config)
        entry = load_rollout_shard_entry(shard_manifest, shard_id)
        tmp, final = folder_here(output_tmp, "--output-tmp"), output_final
    else:
        message = (
            "expected CAMPAIGN and SHARD, or all of --config, --shard-manifest, --shard-id, --output-tmp and "
            "--output-final"
        )
        raise ConfigurationError(message=message)
    with row_progress(len(entry.rows), quiet=as_json) as on_row:
        build = partial(
            run_rollout_shard,
            settings,
            shard_entry=entry,
            output_tmp=tmp,
            output_final=final,
            invocation=invocation,
            take_over=take_over,
            watch=LeaseWatch(),
            on_row=on_row,
        )
        result = _when_free(build) if wait else build()
    _print_shard(final_place(entry, result.place).owner(), result, as_json)


def _planned_shard(opened: CampaignFolder, shard: str) -> RolloutShardEntry:
    """The shard of that number or id. A wrong one is a wrong command line, which no further attempt can mend."""
    from rollbook.store.shards.entry import canonical_rollout_shard_id

    try:
        wanted = canonical_rollout_shard_id(shard)
    except InvalidText as error:
        raise ConfigurationError(message=f"SHARD {error.detail}") from error
    if int(wanted.removeprefix("shard-")) >= opened.num_shards:
        message = f"there is no {wanted}; the shards are 0 to {opened.num_shards - 1}"
        raise ConfigurationError(message=message)
    return opened.entry(wanted)


def _print_shard(owner: OwnerFile, result: RolloutShardRunResult, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "shard_id": owner.shard_id,
                "place": result.place,
                "skipped": result.skipped,
                "rows": owner.num_source_rows,
                **{
                    name: getattr(owner.counts, name)
                    for name in ("rollouts", "steps", "candidates")
                },
                "content_sha256": owner.content_sha256,
                "seconds": owner.seconds,
            }
        )
        return
    did = "was finished before" if result.skipped else f"built in {owner.seconds:.1f} s"
    say(
        f"{owner.shard_id}: {did}; {owner.num_source_rows:,} rows, {owner.counts.rollouts:,} rollouts, "
        f"{owner.counts.candidates:,} candidates in {result.place}"
    )


def _when_free(build: Callable[[], Built]) -> Built:
    """Waits while another worker has the shard. Its lease ends when it has finished, or has been silent for long."""
    told = ""
    while True:
        try:
            return build()
        except LeaseHeld as error:
            if error.owner != told:
                told = error.owner
                say(f"waiting for {error.owner}, which has the shard", err=True)
            time.sleep(_LEASE_LOOK_S)

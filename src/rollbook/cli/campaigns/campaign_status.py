"""`rollbook campaign status`: how far a campaign is, who works on it, and what is wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.campaigns.opened_campaign import opened_campaign
from rollbook.cli.exit_codes import NOT_COMPLETE, OK
from rollbook.cli.output import AsJson, print_json, say, shown_bytes, shown_duration
from rollbook.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from rollbook.store.shards.campaign_status import CampaignWatch
    from rollbook.store.shards.shard_status import RolloutShardCampaignStatus, RolloutShardStatus

_MOST_LISTED = 20
_LONGEST_TEXT = 300
_BAR = 40
_RESTED = 4
"""Between two looks a watch rests this many times as long as it looked, so that it does not slow the workers down."""


def status(
    campaign: Annotated[
        Path | None,
        typer.Argument(metavar="CAMPAIGN", help="Folder that `rollbook campaign plan` wrote."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show changes until every shard has succeeded.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="With --watch: seconds between two looks.")
    ] = 2.0,
    require_complete: Annotated[
        bool,
        typer.Option(
            "--require-complete",
            help="Exit with 2 unless every shard has succeeded, and list the first that have not.",
        ),
    ] = False,
    manifest: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Instead of CAMPAIGN: the plan, a JSONL file. Needs --final-root.",
        ),
    ] = None,
    final_root: Annotated[
        str | None,
        typer.Option(help="Instead of CAMPAIGN: the folder or URL of the shards."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which shards have succeeded, are running, have failed, are incomplete or are missing.

    Finished shards are known from their small files and the digest of their manifest; `rollbook store validate --deep`
    reads their bytes. Running shards are shown with their host, their rows and their last sign of life.
    """
    looks = _opened(campaign, manifest, final_root)
    if watch:
        if as_json:
            raise ConfigurationError(message="--watch and --json exclude each other")
        found = _watched(looks, interval, require_complete)
    else:
        found = looks.look()
        if as_json:
            print_json(found.to_jsonable())
        else:
            for line in status_lines(found, _width(), require_complete):
                say(line)
    raise typer.Exit(NOT_COMPLETE if require_complete and not found.is_complete else OK)


def _opened(campaign: Path | None, manifest: Path | None, final_root: str | None) -> CampaignWatch:
    from rollbook.store.shards.campaign_status import CampaignWatch
    from rollbook.store.shards.planned_shard import read_planned_shards

    if campaign is not None and manifest is None and final_root is None:
        opened = opened_campaign(campaign)
        return CampaignWatch(
            opened.manifest_path,
            opened.planned_shards,
            final_root=opened.final_root,
            work_root=opened.work_root,
        )
    if campaign is None and manifest is not None and final_root is not None:
        return CampaignWatch(manifest, read_planned_shards(manifest), final_root=final_root)
    message = "name the folder of a campaign, or both --manifest and --final-root"
    raise ConfigurationError(message=message)


# -------------------------------------------------------------------------------------------- watch


def _watched(
    looks: CampaignWatch, interval: float, require_complete: bool
) -> RolloutShardCampaignStatus:
    """Looks until every shard has succeeded, or until Ctrl-C. A server that is away for a moment does not end it."""
    started = time.monotonic()
    found = looks.look()
    with suppress(KeyboardInterrupt), _shown(require_complete) as show:
        show(found)
        while not found.is_complete:
            looked_s = time.monotonic() - started
            time.sleep(max(interval, _RESTED * looked_s))
            started = time.monotonic()
            try:
                found = looks.look()
            except StorageError as error:
                show(found, f"the last look failed, this is what was seen before: {error}")
            else:
                show(found)
    return found


@contextmanager
def _shown(require_complete: bool) -> Iterator[Any]:
    """Redraws the status on a terminal. Elsewhere prints a line for every change."""
    if not sys.stdout.isatty():
        before = ""

        def line(found: RolloutShardCampaignStatus, trouble: str = "") -> None:
            nonlocal before
            change = trouble or f"{_shards_line(found)}, {_rows(found)}"
            if change != before:
                left = "" if trouble else _pace_line(found)
                say(f"{change}; {left}" if left else change)
                sys.stdout.flush()
            before = change

        yield line
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:

        def redraw(found: RolloutShardCampaignStatus, trouble: str = "") -> None:
            lines = status_lines(found, _width(), require_complete)
            lines += _wrapped(trouble, _width()) if trouble else []
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ignore"), refresh=True)

        yield redraw


# --------------------------------------------------------------------------------------------- text


def _width() -> int | None:
    from rollbook.cli.table import terminal_width

    return terminal_width()


def status_lines(
    status: RolloutShardCampaignStatus, width: int | None, every_problem: bool
) -> list[str]:
    """The status for people. `every_problem`: also list shards that nobody has begun."""
    lines = [_shards_line(status), *_progress_lines(status)]
    totals = status.totals
    if status.counts["succeeded"]:
        lines.append(
            f"{totals.rollouts:,} rollouts, {totals.steps:,} steps, {totals.candidates:,} candidates, "
            f"{shown_bytes(totals.bytes)}"
        )
    if totals.empty_shards:
        lines.append(f"{totals.empty_shards:,} shards have no rollout: all their rows were skipped")
    if status.skipped_reasons:
        reasons = (f"{count:,} {reason}" for reason, count in status.skipped_reasons.items())
        lines += _wrapped(f"skipped: {', '.join(reasons)}", width)
    if status.unplanned:
        names = ", ".join(status.unplanned[:_MOST_LISTED])
        lines += _wrapped(f"not in the plan: {names}", width)
    lines += _table("running", list(_running_rows(status)), width)
    problems = [each for each in status.problems() if every_problem or each.status != "missing"]
    return lines + _table("problems", [_problem_row(each) for each in problems], width)


def _shards_line(status: RolloutShardCampaignStatus) -> str:
    counts = status.counts
    others = [f"{count:,} {state}" for state, count in counts.items() if state != "succeeded"]
    shown = [f"{counts['succeeded']:,} of {len(status.shards):,} shards succeeded"]
    return ", ".join(shown + [each for each in others if not each.startswith("0 ")])


def _rows(status: RolloutShardCampaignStatus) -> str:
    return f"{status.rows_done:,} of {status.rows:,} rows"


def _progress_lines(status: RolloutShardCampaignStatus) -> list[str]:
    share = status.rows_done / status.rows if status.rows else 1.0
    filled = int(share * _BAR)
    bar = "█" * filled + "·" * (_BAR - filled)
    pace = _pace_line(status)
    return [f"{bar} {share:4.0%}  {_rows(status)}", *([pace] if pace else [])]


def _pace_line(status: RolloutShardCampaignStatus) -> str:
    pace = status.pace
    if pace.rows_per_s is None or pace.eta_s is None:
        return ""
    parts = [f"{pace.rows_per_s:.3g} rows/s"]
    if pace.candidates_per_s is not None:
        parts.append(f"{pace.candidates_per_s:,.0f} candidates/s")
    workers = "1 worker" if pace.workers == 1 else f"{pace.workers:,} workers"
    return f"{', '.join(parts)} with {workers}; about {shown_duration(pace.eta_s)} left"


def _running_rows(status: RolloutShardCampaignStatus) -> Iterator[dict[str, str]]:
    for shard in status.running:
        if (worker := shard.worker) is not None:
            yield {
                "shard": shard.shard_id,
                "rows": f"{worker.rows_done} of {worker.rows_total}",
                "heartbeat": f"{shown_duration(worker.silent_s)} ago",
                "host": f"{worker.host}, process {worker.pid}",
                "": "is being finished" if worker.role == "promoting" else _attempt(shard),
            }


def _attempt(shard: RolloutShardStatus) -> str:
    return f"attempt {len(shard.failures) + 1}" if shard.failures else ""


def _problem_row(shard: RolloutShardStatus) -> dict[str, str]:
    text = " ".join(" ".join(shard.errors).split())
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}… (--json prints all)"
    return {"shard": shard.shard_id, "status": shard.status, "what": text}


def _table(title: str, rows: Sequence[Mapping[str, str]], width: int | None) -> list[str]:
    from rollbook.cli.table import Column, table_text

    if not rows:
        return []
    shown = rows[:_MOST_LISTED]
    columns = [
        Column(name, [row[name] for row in shown])
        for name in rows[0]
        if any(row[name] for row in shown)
    ]
    table = table_text(columns, width, essential=2)
    more = len(rows) - len(shown)
    left = [f"… {more:,} more; --json prints all"] if more else []
    return ["", f"{title}:", table.heading, *table.lines, *left]


def _wrapped(text: str, width: int | None) -> list[str]:
    import textwrap

    from rollbook.cli.plain_text import visible

    plain = visible(text)
    return [plain] if width is None else textwrap.wrap(plain, width)

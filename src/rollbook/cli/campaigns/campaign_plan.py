"""`rollbook campaign plan`: divides source rows into shards, or says what the shards would cost."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.generate import Config, Source, Split, loaded_config
from rollbook.cli.output import (
    AsJson,
    print_json,
    print_pairs,
    print_rows,
    say,
    shown_bytes,
    shown_duration,
)
from rollbook.cli.progress import progress_bar
from rollbook.cli.store_paths import folder_here

if TYPE_CHECKING:
    from rollbook.generate.campaigns.cost_estimate import CostEstimate
    from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
    from rollbook.store.shards.entry import RolloutShardEntry

_CHANGES = {
    "planned": "the plan is written",
    "none": "this was planned before; nothing has changed",
    "settings": "this was planned before; the campaign has the new settings",
}


def plan(
    config: Config,
    out: Annotated[Path, typer.Option(help="Folder of the campaign.")],
    source: Source = None,
    split: Split = None,
    rows_per_shard: Annotated[
        int | None,
        typer.Option(min=1, help="Source rows of one shard, instead of campaign.rows_per_shard."),
    ] = None,
    max_samples: Annotated[int | None, typer.Option(min=1, help="Most source rows.")] = None,
    final_root: Annotated[
        str | None,
        typer.Option(help="Folder or URL of the finished shards. Default: shards in the campaign."),
    ] = None,
    work_root: Annotated[
        str | None,
        typer.Option(help="Folder of the shards in work. Default: work in the campaign."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and what it would cost; write nothing."),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="With --dry-run: roll out a few rows, to estimate time and disk space.",
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Divide the source rows into shards and write the plan.

    The same command again changes nothing. Settings that do not change the rollouts, such as threads or
    campaign.timeout_s, can be changed later by planning again; everything else needs a new folder.
    """
    from rollbook.generate.campaigns.campaign_folder import CampaignFolder
    from rollbook.generate.campaigns.planning import plan_rollout_shards
    from rollbook.store.manifest import RolloutStoreInvocation

    out = folder_here(out, "--out")
    loaded = loaded_config(config, source, split, max_samples=max_samples)
    loaded = _with_rows_per_shard(loaded, rows_per_shard)
    entries = plan_rollout_shards(loaded, rows_per_shard=loaded.campaign.rows_per_shard)
    if dry_run:
        _print_dry_run(loaded, entries, measure, as_json)
        return
    campaign = CampaignFolder.create(
        out,
        loaded,
        entries,
        final_root=final_root,
        work_root=work_root,
        invocation=RolloutStoreInvocation.from_cli(argv=sys.argv[1:], config_path=config),
    )
    shown = _shown_plan(loaded, entries) | {
        "campaign": str(campaign.folder),
        "final_root": str(campaign.final_root),
        "work_root": str(campaign.work_root),
        "change": campaign.change,
    }
    if as_json:
        print_json(shown)
        return
    _print_plan(shown)
    say(_CHANGES[campaign.change])
    say(f"next: rollbook campaign run {quote(str(out))}")


def _print_dry_run(
    config: RolloutDatasetWriterConfig,
    entries: list[RolloutShardEntry],
    measure: bool,
    as_json: bool,
) -> None:
    from rollbook.generate.campaigns.cost_estimate import estimate_cost, measure_rows

    shown = _shown_plan(config, entries)
    estimate: CostEstimate | None = None
    if not as_json:
        _print_plan(shown)
    if measure:
        bar = nullcontext() if as_json else progress_bar("measuring", compiles=True)
        with bar as on_row:
            estimate = estimate_cost(entries, measure_rows(config, entries, on_row=on_row))
    if as_json:
        print_json(shown | {"estimate": None if estimate is None else asdict(estimate)})
    elif estimate is not None:
        _print_estimate(estimate, config.threads)


def _print_estimate(estimate: CostEstimate, threads: int) -> None:
    low, high = estimate.least_seconds_per_row, estimate.most_seconds_per_row
    say("")
    print_pairs(
        {
            "measured here": f"{estimate.rows_measured} rows, each in {low:.1f} to {high:.1f} s with "
            f"threads = {threads}; compilation is not counted",
            "per row": f"{estimate.seconds_per_row:.2f} s",
            "per shard": f"{estimate.seconds_per_shard:.2f} s more, to write and validate it",
            "candidates": f"about {estimate.candidates:,}",
            "disk space": f"about {shown_bytes(estimate.bytes)} in {estimate.files:,} files",
            "work folder": f"about {shown_bytes(estimate.work_bytes_per_worker)} for every worker",
        }
    )
    rows = [
        {"workers": workers, "wall time": shown_duration(seconds)}
        for workers, seconds in estimate.wall_seconds.items()
    ]
    say("")
    print_rows(rows)
    say("if every worker has its own cores; nothing was written")


def _with_rows_per_shard(
    config: RolloutDatasetWriterConfig, rows_per_shard: int | None
) -> RolloutDatasetWriterConfig:
    import msgspec

    if rows_per_shard is None:
        return config
    return dataclasses.replace(
        config,
        campaign=msgspec.structs.replace(config.campaign, rows_per_shard=rows_per_shard),
    )


def _shown_plan(
    config: RolloutDatasetWriterConfig, entries: list[RolloutShardEntry]
) -> dict[str, Any]:
    return {
        "shards": len(entries),
        "rows": sum(len(entry.rows) for entry in entries),
        "rows_per_shard": config.campaign.rows_per_shard,
        "shards_by_split": dict(Counter(entry.split for entry in entries)),
        "recipes": [recipe.name for recipe in config.recipes],
        "config_hash": config.config_hash,
        "source_manifest_hash": entries[0].source_manifest_hash,
    }


def _print_plan(shown: dict[str, Any]) -> None:
    splits = ", ".join(f"{split} {count:,}" for split, count in shown["shards_by_split"].items())
    print_pairs(
        {
            "source rows": f"{shown['rows']:,}",
            "shards": f"{shown['shards']:,} of up to {shown['rows_per_shard']:,} rows ({splits})",
            "recipes": ", ".join(shown["recipes"]),
            "config": shown["config_hash"][:16],
            **{
                name: shown[key]
                for name, key in (("finished shards", "final_root"), ("work folder", "work_root"))
                if key in shown
            },
        }
    )

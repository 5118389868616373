"""`rollbook generate …`: makes rollouts from source rows, previews them and compares policies."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.output import AsJson, print_done, print_json, print_rows, say
from rollbook.cli.progress import compilation_shown, hint_at_replace, live_bar, progress_bar
from rollbook.cli.store_paths import folder_here
from rollbook.errors import ConfigurationError, UnfinishedRun

if TYPE_CHECKING:
    from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
    from rollbook.generate.row_rollouts import RolloutDatasetWriterStats
    from rollbook.generate.writer import RolloutDatasetWriter

app = typer.Typer(
    help="Make rollouts from a source store, preview them, and compare policies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Config = Annotated[
    Path, typer.Option("--config", help="TOML file; examples/generate has examples.")
]
Source = Annotated[
    str | None,
    typer.Option("--source", help="Source store or its URL, instead of source.store_dir."),
]
Split = Annotated[
    str | None, typer.Option(help="Split of the source rows, instead of source.split.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of threads for rendering and scoring. It does not change the result."
    ),
]


def loaded_config(
    path: Path, source: str | None, split: str | None, **changes: Any
) -> RolloutDatasetWriterConfig:
    """The config with the changes of the command line."""
    import msgspec

    from rollbook.generate.dataset_config import RolloutDatasetWriterConfig

    # a user's policy, module:attr, is often in this folder; last, so that a random.py here hides no module
    sys.path.append(str(Path.cwd()))
    config = RolloutDatasetWriterConfig.from_toml(path)
    place = {"store_dir": source, "split": split}
    given = {name: value for name, value in changes.items() if value is not None}
    given["source"] = msgspec.structs.replace(
        config.source, **{name: value for name, value in place.items() if value is not None}
    )
    return dataclasses.replace(config, **given)


# ------------------------------------------------------------------------------------------ run


@app.command()
def run(
    config: Config,
    source: Source = None,
    split: Split = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the config and the source without writing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new store, instead of store.store_dir.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing store.")] = False,
    max_samples: Annotated[int | None, typer.Option(min=1, help="Most source rows.")] = None,
    threads: Threads = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. It does not change the result.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the finished rows of a run that did not end."),
    ] = False,
    start_over: Annotated[
        bool,
        typer.Option("--start-over", help="Discard the finished rows of a run that did not end."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Generate rollouts and write them into a store.

    The store appears when it is complete and validated. Rows and targets that cannot be used are skipped and counted
    with their reasons.

    A run that is interrupted, killed or out of disk space keeps its finished rows. The same command with --resume
    goes on with them; the result is the same as without the interruption.
    """
    from rollbook.store.manifest import RolloutStoreInvocation

    if resume and start_over:
        message = "--resume keeps the finished rows and --start-over discards them: give one"
        raise ConfigurationError(message=message)
    loaded = loaded_config(
        config, source, split, threads=threads, workers=workers, max_samples=max_samples
    )
    changes: dict[str, Any] = {}
    if out is not None:
        changes["store_dir"] = folder_here(out, "--out")
    if replace:
        changes["replace"] = True
    loaded = dataclasses.replace(loaded, store=dataclasses.replace(loaded.store, **changes))
    writer = loaded.setup_target()
    _, rows = writer.rows()
    if dry_run:
        _print_plan(loaded, len(rows), as_json)
        return
    invocation = RolloutStoreInvocation.from_cli(argv=sys.argv[1:], config_path=config)
    started = time.monotonic()
    with (
        hint_at_replace(loaded.store.replace),
        _hint_at_resume(writer, len(rows), quiet=as_json),
        row_progress(len(rows), quiet=as_json) as on_row,
    ):
        result = writer.run(
            invocation=invocation,
            on_row=on_row,
            unfinished="resume" if resume else "discard" if start_over else "refuse",
        )
    seconds = time.monotonic() - started
    summary = {
        "store_dir": str(result.store_dir),
        "rollouts": result.num_rollouts,
        "steps": result.num_steps,
        "candidates": result.num_candidates,
        "seconds": round(seconds, 3),
        "rows_resumed": writer.rows_resumed,
        "content_sha256": result.content_sha256,
        "manifest_sha256": result.manifest_sha256,
        **dataclasses.asdict(writer.stats),
    }
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary, writer.stats, seconds)


def _print_plan(config: RolloutDatasetWriterConfig, rows: int, as_json: bool) -> None:
    plan: dict[str, Any] = {
        "source_rows": rows,
        "recipes": [recipe.name for recipe in config.recipes],
        "candidates_per_node": config.candidate_mixture.total_count,
        "target_source": config.target_source.value,
        "target_protocol": config.target_protocol,
        "store_dir": str(config.store.store_dir),
        "config_hash": config.config_hash,
    }
    if as_json:
        print_json(plan)
        return
    say(f"{rows} source rows, {len(config.recipes)} recipes: {', '.join(plan['recipes'])}")
    say(f"{plan['candidates_per_node']} candidates at every node")
    say(f"targets by {plan['target_source']}, protocol {plan['target_protocol']}")
    say(f"would write {plan['store_dir']}; config {config.config_hash[:16]}")


def _print_summary(
    summary: dict[str, Any], stats: RolloutDatasetWriterStats, seconds: float
) -> None:
    say(
        f"{summary['store_dir']}: {summary['rollouts']:,} rollouts, {summary['steps']:,} steps, "
        f"{summary['candidates']:,} candidates in {seconds:.1f} s "
        f"({stats.candidates_scored / max(seconds, 1e-9):,.0f} scored per second)"
    )
    if summary["rows_resumed"]:
        say(f"rows finished by the run before: {summary['rows_resumed']:,}")
    for reason, count in sorted(stats.skipped_reasons.items(), key=lambda each: -each[1]):
        say(f"skipped {count:>5}  {reason}")
    say(f"next: rollbook store audit {quote(summary['store_dir'])} --html audit.html")


@contextmanager
def _hint_at_resume(writer: RolloutDatasetWriter, total: int, *, quiet: bool) -> Iterator[None]:
    """Says after an interruption or an error how many rows are kept, and how to go on with them."""
    try:
        yield
    except BaseException as error:
        kept = len(writer.finished.numbers())
        if kept and not quiet and not isinstance(error, UnfinishedRun):
            say(f"{kept} of {total} rows are finished and kept; --resume goes on", err=True)
        raise


@contextmanager
def row_progress(
    total: int, *, quiet: bool
) -> Iterator[Callable[[int, int, RolloutDatasetWriterStats], None] | None]:
    """A live line on standard error: rows, chains, candidates per second, and the remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    if quiet:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("rows, {task.fields[chains]} chains, {task.fields[speed]} candidates/s"),
        TimeRemainingColumn(),
    )
    what = "rolling out"
    with live_bar(*columns) as shown:
        task = shown.add_task(what, total=total, chains=0, speed="-")
        started = time.monotonic()

        def on_row(done: int, _total: int, stats: RolloutDatasetWriterStats) -> None:
            rate = stats.candidates_scored / max(time.monotonic() - started, 1e-9)
            shown.update(task, completed=done, chains=stats.rollouts_written, speed=f"{rate:,.0f}")

        with compilation_shown(shown, task, what):
            yield on_row


# -------------------------------------------------------------------------------------- preview


@app.command()
def preview(
    config: Config,
    source: Source = None,
    split: Split = None,
    row: Annotated[int, typer.Option(min=0, help="Number of the source row.")] = 0,
    target: Annotated[
        int | None,
        typer.Option(min=0, help="Rank of the target. Default: the first usable target."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name of the recipe. Default: the first of the config.")
    ] = None,
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("preview.png"),
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw one rollout: the scene from above, candidates by their gain, the chain, and the target before and after."""
    from rollbook.generate.preview_rollout import draw_preview

    with hint_at_replace(replace), progress_bar("drawing", compiles=True):
        drawn = draw_preview(
            loaded_config(config, source, split),
            row=row,
            target=target,
            recipe=recipe,
            out=out,
            replace=replace,
        )
    print_done({"path": str(out), "drawn": str(drawn)}, f"{out}: {drawn}", as_json)


# -------------------------------------------------------------------------------------- compare


@app.command()
def compare(
    config: Config,
    source: Source = None,
    split: Split = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated list: random, greedy, lookahead, a scorer, the folder of a training run, "
            "or module:attr."
        ),
    ] = None,
    horizon: Annotated[int, typer.Option(min=1, help="Steps of every chain.")] = 3,
    max_samples: Annotated[int | None, typer.Option(min=1, help="Most source rows.")] = None,
    targets: Annotated[int, typer.Option(min=1, help="Most targets of every row.")] = 1,
    versus: Annotated[
        str | None,
        typer.Option(help="Reference policy of the comparison. Default: the first policy."),
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Run policies from the same roots and print the gain of each, with paired 95 % intervals.

    The recipes of the config are not used. Choose source rows on which no policy was trained; --split all takes the
    rows of every split. Every scene counts once, whatever its number of rows and targets.

    Example: rollbook generate compare --config free_shell.toml --split val --policies random,greedy,runs/first
    """
    from rollbook.cli.training.seen_scenes import warn_of_seen_scenes
    from rollbook.generate.compare import (
        DEFAULT_POLICIES,
        compare_policies,
        recipe_for,
        reference_of,
    )

    names = [each.strip() for each in policies.split(",")] if policies else list(DEFAULT_POLICIES)
    if len(set(names)) < len(names) or not all(names):
        raise ConfigurationError(message=f"--policies is {policies!r}, expected different names")
    reference = reference_of(names, versus)
    loaded = loaded_config(config, source, split, threads=threads, max_samples=max_samples)
    loaded = dataclasses.replace(
        loaded,
        recipes=tuple(recipe_for(name, horizon) for name in names),
        max_targets_per_sample=targets,
        selected_depth=type(loaded.selected_depth)(enabled=False),
    )
    opened, rows = loaded.setup_target().rows(one_split=False)
    warn_of_seen_scenes(names, (opened.index[row].scene_id for row in rows))
    with nullcontext() if as_json else progress_bar("comparing", compiles=True) as on_row:
        comparison = compare_policies(loaded, opened, rows, names, on_row=on_row)
    results = [dataclasses.asdict(each) for each in comparison.results(reference)]
    if as_json:
        skipped = comparison.stats.skipped_reasons
        print_json({"horizon": horizon, "policies": results, "skipped": skipped})
        return
    best = sorted(results, key=lambda each: -float(each["target_gain"]))
    shown = {
        "policy": "policy",
        "roots": "roots",
        "scenes": "scenes",
        "target_gain": "target gain",
        "scene_gain": "scene gain",
        "target_coverage": "coverage",
        "difference": f"minus {reference}",
        "low": "low",
        "high": "high",
        "wins": "wins",
    }
    print_rows(best, shown)

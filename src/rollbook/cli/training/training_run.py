"""`rollbook train run` and `rollbook train resume`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.output import AsJson, print_json, say
from rollbook.cli.progress import hint_at_replace, live_bar
from rollbook.cli.store_paths import existing_path, folder_here, refuse_unmerged
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.learned.run_folder import TrainingRunFolder

_REPORTS_IN_A_LOG = 5
"""Every fifth report is printed where standard error is not a terminal."""


def run(
    store: Annotated[
        list[Path],
        typer.Option(help="Store or collection to train on. Give it again for more stores."),
    ],
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    validation: Annotated[
        list[Path] | None,
        typer.Option(
            help="Store of other scenes that says when to stop. Default: every fifth scene of --store."
        ),
    ] = None,
    learner: Annotated[
        str, typer.Option(help="boosted (LightGBM), or attention (torch).")
    ] = "boosted",
    horizon: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Moves to look ahead. Default: 1 for boosted, the moves of the longest chain for attention.",
        ),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Most iterations of a head.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many iterations without a better validation."),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Step size of the learner.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where attention is trained: cpu, cuda or cuda:NUMBER. Default: cpu."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the learner.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the learner. Default: 1.")
    ] = None,
    family: Annotated[
        str, typer.Option(help="Policy family of the revision that is made.")
    ] = "next-best-view",
    parent: Annotated[
        Path | None, typer.Option(help="Run folder of the policy that this one improves on.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the run in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy on stored rollouts.

    It learns to rank the valid candidates of a state by the gain of a move, or with --horizon of a move and of the
    moves after it. The run folder holds the checkpoint, the metrics, the trainer batches with the digests of every
    chain, and the policy revision. `--policy RUN` replays it, and a recipe with `scorer = "RUN"` generates with it.

    The same stores, options, seed and threads give the same checkpoint. Ctrl-C keeps what is finished:
    `rollbook train resume RUN` goes on.

    \b
    Example:
      rollbook train run --store train.zarr --validation val.zarr --out runs/first
      rollbook train info runs/first
    """
    from rollbook.train.training import DEFAULT_THREADS, train_policy

    for place in (*store, *(validation or ())):
        refuse_unmerged(existing_path(place))
    if parent is not None:
        existing_path(parent, "a training run")
    folder_here(out, "--out")
    given = {
        "horizon": horizon,
        "iterations": iterations,
        "patience": patience,
        "learning_rate": learning_rate,
        "device": device,
    }
    with (
        hint_at_replace(replace),
        _hint_at_resume(out, quiet=as_json),
        _progress(quiet=as_json) as (on_stage, on_report),
    ):
        folder = train_policy(
            store,
            out,
            validation=validation or (),
            learner=learner,
            options={name: value for name, value in given.items() if value is not None},
            seed=seed,
            threads=threads or DEFAULT_THREADS,
            family=family,
            parent=parent,
            replace=replace,
            on_stage=on_stage,
            on_report=on_report,
        )
    _print_trained(folder, as_json)


def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that was interrupted.")],
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted training run.

    Finished heads are kept. The result is the same as without the interruption. A finished run stays as it is.

    \b
    Example:
      rollbook train resume runs/first
    """
    from rollbook.train.training import resume_training

    existing_path(path, "a training run")
    if not (path / "training.json").is_file():
        message = f"{path} is not the folder of a training run: it has no training.json"
        raise ConfigurationError(message=message)
    with (
        _hint_at_resume(path, quiet=as_json),
        _progress(quiet=as_json) as (on_stage, on_report),
    ):
        folder = resume_training(path, on_stage=on_stage, on_report=on_report)
    _print_trained(folder, as_json)


def _print_trained(folder: TrainingRunFolder, as_json: bool) -> None:
    from rollbook.cli.training.training_info import run_summary, validation_words

    if as_json:
        print_json(run_summary(folder))
        return
    run = folder.run
    chains, states = (
        sum(each.chains for each in run.data),
        sum(each.states for each in run.data),
    )
    heads = "1 head" if run.horizon == 1 else f"{run.horizon} heads"
    say(f"{folder.path}: {run.policy_revision.revision_id}, {heads}")
    say(f"trained on {chains:,} chains, {states:,} states")
    say(validation_words(run))
    say(f"next: rollbook train info {quote(str(folder.path))}")


@contextmanager
def _hint_at_resume(folder: Path, *, quiet: bool) -> Iterator[None]:
    """Says after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if not quiet and (folder / "training.json").is_file():
            say(f"what is finished is kept: rollbook train resume {quote(str(folder))}", err=True)
        raise


@contextmanager
def _progress(
    *, quiet: bool
) -> Iterator[tuple[Callable[[str], None] | None, Callable[[dict[str, Any]], None] | None]]:
    """A live line on a terminal; in a log file a line for every few reports."""
    if quiet:
        yield None, None
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with live_bar(*columns) as shown:
        task = shown.add_task("training", total=None)
        reports = 0

        def on_stage(words: str) -> None:
            shown.update(task, description=words)

        def on_report(report: dict[str, Any]) -> None:
            nonlocal reports
            words = (
                f"head {report['head']}, iteration {report['iteration']}: "
                f"loss {report['loss']:.4f}, validation regret {report['validation_regret']:.4f}"
            )
            shown.update(task, description=words)
            if shown.disable and reports % _REPORTS_IN_A_LOG == 0:
                say(words, err=True)
            reports += 1

        yield on_stage, on_report

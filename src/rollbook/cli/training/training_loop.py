"""`rollbook train loop`: rounds of generate, train, replay and promote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.generate import Config, Source, loaded_config
from rollbook.cli.output import AsJson, print_json, print_rows, say
from rollbook.cli.progress import compilation_shown, live_bar
from rollbook.cli.store_paths import existing_path, folder_here
from rollbook.errors import RollbookError

if TYPE_CHECKING:
    from rollbook.improve import LoopProgress, LoopRecord, LoopRound


def loop(
    config: Config,
    out: Annotated[
        Path, typer.Option(help="Folder of the loop. One that has rounds is continued.")
    ],
    source: Source = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that the folder has at the end.")] = 3,
    split: Annotated[str, typer.Option(help="Split of the source to train on.")] = "train",
    held_out: Annotated[
        str, typer.Option(help="Split on which policies are judged. It is never trained on.")
    ] = "val",
    max_samples: Annotated[
        int | None, typer.Option(min=1, help="Most source rows to train on.")
    ] = None,
    held_out_samples: Annotated[
        int | None, typer.Option(min=1, help="Most source rows to judge on.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of the choices left to chance. Default: 0.1."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Draw by the softmax of the scores instead, at this temperature."),
    ] = None,
    chains: Annotated[
        int, typer.Option(min=1, help="Chains of the current policy from every root.")
    ] = 2,
    learner: Annotated[
        str, typer.Option(help="boosted (LightGBM), or attention (torch).")
    ] = "boosted",
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Most iterations of a head.")
    ] = None,
    gate_file: Annotated[
        Path | None,
        typer.Option(
            help="Gate that a policy must pass, as `rollbook replay gate --reward --toml` prints one."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the learner.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the learner. Default: 1.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that generate and replay. They do not change the result."
        ),
    ] = None,
    family: Annotated[str, typer.Option(help="Policy family of the revisions.")] = "next-best-view",
    as_json: AsJson = False,
) -> None:
    """Improve a policy in rounds: generate with it, train on all data so far, and keep what is better.

    The first round generates with the recipes of the config. Each later round generates with the current policy and a
    little chance; the probability of every choice is stored. The new policy is rolled out from the same held-out
    roots as the current one (closed loop), and takes its place only if the gate ships it. Until one has shipped, the
    policy to beat is chance.

    Every round makes a policy revision with its parent. The same command continues a loop that was interrupted, even
    by a power cut; a larger --rounds adds rounds. FOLDER/loop.json says where it is.

    \b
    Example:
      rollbook source make flats --scenes 60
      rollbook train loop --config examples/generate/free_shell.toml --source flats --out loop --rounds 3
    """
    from rollbook.cli.replays.replay_arguments import gate_in
    from rollbook.improve import improve_policy
    from rollbook.train.training import DEFAULT_THREADS

    existing_path(config, "a config")
    folder_here(out, "--out")
    loaded = loaded_config(config, source, split, workers=workers, max_samples=max_samples)
    with _hint_at_resume(out, quiet=as_json), _shown(rounds, quiet=as_json) as progress:
        record = improve_policy(
            loaded,
            out,
            rounds=rounds,
            held_out=held_out,
            held_out_samples=held_out_samples,
            epsilon=epsilon,
            temperature=temperature,
            chains=chains,
            learner=learner,
            options={} if iterations is None else {"iterations": iterations},
            seed=seed,
            threads=threads or DEFAULT_THREADS,
            family=family,
            gate=None if gate_file is None else gate_in(gate_file),
            progress=progress,
        )
    if as_json:
        print_json(_summary(out, record))
    else:
        _print_rounds(out, record)


def _summary(out: Path, record: LoopRecord) -> dict[str, Any]:
    from msgspec import to_builtins

    current = record.current
    return {
        "loop_dir": str(out),
        "current": None if current is None else to_builtins(current),
        **to_builtins(record),
    }


def _print_rounds(out: Path, record: LoopRecord) -> None:
    columns = {
        "round": "round",
        "result": "result",
        "revision": "revision",
        "against": "against",
        "gain": "gain",
        "before": "before",
        "difference": "difference",
        "interval": "interval",
        "chains": "chains",
    }
    print_rows([_row(record, each) for each in record.rounds], columns, essential=3)
    current = record.current
    if current is None:
        say("no policy has shipped: chance is still to be beaten")
        return
    place = quote(str(out / current.place))
    say(f"current policy: {current.revision_id} in {place}")
    say(f"next: rollbook train info {place}")


def _row(record: LoopRecord, each: LoopRound) -> dict[str, Any]:
    verdict, before = each.verdict, record.current_before(each.number)
    row: dict[str, Any] = {
        "round": each.number,
        "chains": None if each.data is None else each.data.chains,
        "revision": None if each.run is None else each.run.revision_id,
        "against": "chance" if before is None else before.revision_id,
    }
    if verdict is None:
        return row
    bounds = (verdict.low, verdict.high)
    shown = ["" if each is None else f"{each:+.3f}" for each in bounds]
    return row | {
        "result": "ship" if verdict.ships else "hold",
        "gain": verdict.candidate_gain,
        "before": verdict.baseline_gain,
        "difference": verdict.difference,
        "interval": " to ".join(shown) if any(shown) else None,
    }


@contextmanager
def _hint_at_resume(out: Path, *, quiet: bool) -> Iterator[None]:
    """Says after an interruption or a failure that nothing is lost. Wrong input has its own advice."""
    try:
        yield
    except BaseException as error:
        if not quiet and (out / "loop.json").exists() and not isinstance(error, RollbookError):
            say(f"what is finished is kept in {out}; the same command goes on", err=True)
        raise


@contextmanager
def _shown(rounds: int, *, quiet: bool) -> Iterator[LoopProgress | None]:
    """A line for every stage on standard error, and on a terminal a bar below it."""
    if quiet:
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=10), TextColumn("{task.description}"), TimeElapsedColumn())
    with live_bar(*columns) as bar:
        shown = _Shown(bar, rounds)
        with compilation_shown(bar, shown.task, ""):
            yield shown


class _Shown:
    def __init__(self, bar: Any, rounds: int) -> None:
        self._bar, self._rounds = bar, rounds
        self.task = bar.add_task("", total=None)

    def stage(self, number: int, words: str) -> None:
        self._bar.console.print(
            f"round {number} of {self._rounds}: {words}", markup=False, highlight=False
        )
        self._bar.reset(self.task, total=None, description="")

    def done(self, count: int, total: int) -> None:
        self._bar.update(self.task, completed=count, total=total, description=f"{count} of {total}")

    def report(self, report: Mapping[str, Any]) -> None:
        regret = f"validation regret {report['validation_regret']:.4f}"
        words = f"head {report['head']}, iteration {report['iteration']}: {regret}"
        self._bar.update(self.task, description=words)

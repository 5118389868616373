"""`rollbook demo`: the command."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.demo.stage_lines import StageLines
from rollbook.cli.output import AsJson, print_json, say
from rollbook.lazy import needs

if TYPE_CHECKING:
    from rollbook.cli.demo.demo_folder import DemoFolder

_LIBRARIES = ("gymnasium", "httpx", "lightgbm", "numba", "starlette", "zarr")


def demo(
    folder: Annotated[
        Path, typer.Argument(help="Where everything is kept. A demo that is there is used again.")
    ] = Path("rollbook-demo"),
    serve: Annotated[
        bool | None,
        typer.Option(
            "--serve/--no-serve",
            help="End with the portal open, until Ctrl-C. The default in a terminal.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole loop once: record, store, train, replay, decide. Takes about two minutes.

    \b
    rollbook demo                       then open the link that it prints
    rollbook demo --no-serve --json     for scripts

    Furnished flats are made. In each, a camera has seen an object badly, and a policy chooses where the camera goes
    next. Two workers generate rollouts; every choice that a policy had is measured. A policy is trained on them,
    replayed against the recorded random policy in flats that it has never seen, and shipped or held.

    The same command again uses what is there, and goes on where a demo was stopped.
    """
    _check_libraries()
    from rollbook.cli.demo.demo_folder import DemoFolder

    began = time.monotonic()
    lines = StageLines(err=as_json)
    kept = DemoFolder(folder)
    with kept.own_home():
        _run(kept, lines, began, serve=_is_served(serve, as_json), as_json=as_json)


def _is_served(asked: bool | None, as_json: bool) -> bool:
    return (sys.stdout.isatty() and not as_json) if asked is None else asked


def _check_libraries() -> None:
    """Before anything is made: a demo that stops after a minute to ask for a library is no demo."""
    import importlib.util

    missing = [each for each in _LIBRARIES if importlib.util.find_spec(each) is None]
    if missing:
        with needs("the demo", "demo"):
            raise ModuleNotFoundError(name=missing[0])


def _run(
    folder: DemoFolder, lines: StageLines, began: float, *, serve: bool, as_json: bool
) -> None:
    from rollbook.cli.demo import judging
    from rollbook.cli.demo.demo_server import demo_server
    from rollbook.cli.demo.gym_episodes import record_episodes
    from rollbook.cli.demo.learning import train
    from rollbook.cli.demo.rollouts import STORES, make_sources, run_campaigns, validate_stores
    from rollbook.cli.demo.summary import Outcome

    make_sources(folder, lines)
    run_campaigns(folder, lines)
    validate_stores(folder, lines)
    trained = train(folder, lines)
    with demo_server(folder) as server:
        server.register([folder / name for name in STORES.values()])
        episodes = judging.record_baselines(folder, lines, server)
        record_episodes(folder, lines, server, trained)
        told = (folder, lines, server, trained, episodes)
        _, counterfactual = judging.replay(*told, closed_loop=False)
        run, closed_loop = judging.replay(*told, closed_loop=True)
        judging.walk_back(folder, lines, server, run, trained.path)
        outcome = Outcome(
            trained=trained,
            counterfactual=counterfactual,
            closed_loop=closed_loop,
            eval_run=run.id,
            rewards=judging.mean_rewards(folder),
            seconds=time.monotonic() - began,
            reused=lines.reused,
        )
        if as_json:
            print_json(outcome.plain(folder))
        else:
            outcome.print_summary(folder)
        if serve:
            _serve(server.sign_in_link() or f"{server.url}/portal")


def _serve(link: str) -> None:
    say(f"\nThe portal is open on what the demo recorded:\n\n  {link}\n")
    say("Ctrl-C ends it.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        say("")

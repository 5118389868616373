"""`rollbook train …`: a policy from stored rollouts."""

from __future__ import annotations

import typer

from rollbook.cli.training import training_info, training_loop, training_run

app = typer.Typer(
    help="Train a policy on stored rollouts, look at training runs and compare them, and improve a policy in rounds.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(training_run.run)
app.command()(training_run.resume)
app.command()(training_loop.loop)
app.command()(training_info.info)
app.command()(training_info.compare)

"""`rollbook campaign …`: a data set as many shards, on one machine or a cluster."""

from __future__ import annotations

import typer

from rollbook.cli.campaigns import (
    campaign_clean,
    campaign_collection,
    campaign_plan,
    campaign_run,
    campaign_status,
)

app = typer.Typer(
    help="Make a data set as many shards, on one machine or a cluster: plan, run, watch, merge, publish.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(campaign_plan.plan)
app.command()(campaign_run.run)
app.command("run-shard")(campaign_run.run_shard)
app.command()(campaign_run.retry)
app.command()(campaign_status.status)
app.command()(campaign_collection.merge)
app.command()(campaign_collection.publish)
app.command()(campaign_clean.clean)

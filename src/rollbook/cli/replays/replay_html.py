"""`rollbook replay report`: one run as one HTML page, to read, to send and to print."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_done, replace_hint
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.report.run_report import RunReport

Page = Annotated[Path, typer.Option("--html", help="HTML file to write.")]
RunId = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Id of an eval run.")]
Results = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Instead of a run of the server: a file with what `rollbook replay run --json` printed.",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace the file if it exists.")]


def report(
    html: Page,
    run_id: RunId = None,
    results: Results = None,
    open_page: Open = False,
    replace: Replace = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Write a page about one run: the decision, why, every number, and pictures of the pairs.

    \b
    rollbook replay report RUN --html report.html --open
    rollbook replay run --dry-run --json ... > run.json
    rollbook replay report --results run.json --html report.html

    The page is one file that loads nothing from elsewhere, for a screen and for A4 paper.
    """
    from rollbook.files import write_bytes
    from rollbook.report.page import report_page

    if (run_id is None) == (results is None):
        raise ConfigurationError(message="give the id of a run, or --results FILE")
    if results is not None:
        found = _printed_run(results)
    else:
        from rollbook.cli.replays.replay_run import client_of

        assert run_id is not None
        with client_of(profile) as client:
            found = _run_of_server(client, run_id)
    page = report_page(found).encode()
    with replace_hint():
        write_bytes(html, page, replace=replace)
    if open_page:
        webbrowser.open(html.resolve().as_uri())
    shown = {"path": str(html), "bytes": len(page), "decision": found.recommend}
    print_done(shown, f"{found.sentence}\nwrote {html}", as_json)


def _printed_run(file: Path) -> RunReport:
    from rollbook.report.run_report import RunReport

    try:
        data = file.read_bytes()
    except OSError as error:
        message = f"--results {file} cannot be read: {error.strerror or error}"
        raise ConfigurationError(message=message) from error
    return RunReport.from_json(data, str(file))


def _run_of_server(client: Client, run_id: str) -> RunReport:
    from rollbook.contracts.wire.eval_runs import EvalRunAnswer
    from rollbook.evals.server_calls import ask, result_rows, run_path
    from rollbook.report.run_report import RunReport

    run = ask(client, EvalRunAnswer, "read the eval run", "GET", run_path(run_id))
    if not run.summary:
        message = f"run {run.id} is {run.status} and has no summary; a report needs a completed run"
        raise ConfigurationError(message=message)
    rows = list(result_rows(client, run.id))
    return RunReport(
        candidate=run.candidate_policy_version,
        baseline=run.baseline_policy_version,
        total=run.episode_count,
        summary=run.summary,
        results=[each.result for each in rows],
        run_id=run.id,
        url=f"{client.base_url}/portal/evals/{run.id}",
        labels={each.result.baseline_episode_id: each.labels for each in rows if each.labels},
        several_attempts=sum(each.attempts > 1 for each in rows),
        retried=run.retried,
        altered=run.altered,
    )

"""`rollbook lineage …`: where a record came from, and what was made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, say
from rollbook.cli.progress import hint_at_replace, live_bar
from rollbook.cli.replays.replay_run import client_of
from rollbook.errors import APIError, ConfigurationError, TransportError

if TYPE_CHECKING:
    from rollbook.lineage.evidence import Evidence
    from rollbook.lineage.report import LineageReport, State
    from rollbook.lineage.server_records import ServerRecords

app = typer.Typer(
    help="Walk from any record to its origins and its uses, and check every link by digest.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COLOURS = {"verified": "green", "broken": "red", "missing": "yellow"}


class RecordKind(StrEnum):
    run = "run"
    episodes = "episodes"
    revision = "revision"
    training = "training"
    batch = "batch"
    artifacts = "artifacts"
    rollouts = "rollouts"
    store = "store"
    source_rows = "source_rows"
    source = "source"
    recording = "recording"


def _places(name: str, what: str) -> object:
    return typer.Option(f"--{name}", metavar="PATH", help=f"{what} Give it again for more.")


@app.command()
def show(
    record: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id, digest (8 digits or more) or path of a record: eval run, episode, revision, run folder, batch, "
            "artifact, table, store, row of a store (STORE:ROW), source, key of a source row, evidence file, imported "
            "file.",
        ),
    ],
    store: Annotated[list[Path] | None, _places("store", "Rollout store.")] = None,
    run_folder: Annotated[
        list[Path] | None, _places("run-folder", "Folder of a training run.")
    ] = None,
    table: Annotated[list[Path] | None, _places("table", "Saved rollout table.")] = None,
    batch: Annotated[list[Path] | None, _places("batch", "JSON file with a trainer batch.")] = None,
    source: Annotated[list[Path] | None, _places("source", "Source store.")] = None,
    recording: Annotated[
        list[Path] | None,
        _places("recording", "File or folder that episodes were imported from."),
    ] = None,
    search: Annotated[
        list[Path] | None,
        typer.Option(
            "--in",
            metavar="FOLDER",
            help="Folder in which all of these are looked for, three levels deep. Default: the working folder, unless "
            "another place is named.",
        ),
    ] = None,
    evidence: Annotated[
        list[Path] | None, _places("evidence", "Evidence file of `rollbook lineage export`.")
    ] = None,
    kind: Annotated[
        RecordKind | None, typer.Option(help="Kind of the record, where an id is not unique.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no server, even if a key is known.")
    ] = False,
    download_limit: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=0,
            help="Hash artifacts of episodes again only up to this size in all.",
        ),
    ] = 256,
    profile: ProfileName = "default",
    dot: Annotated[bool, typer.Option("--dot", help="Print a drawing for Graphviz.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every comparison and every fact.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a record was made from and what was made of it. Every digest is computed again.

    \b
    rollbook lineage show rollouts.zarr:7 --source flats --run-folder runs/first
    rollbook lineage show runs/first --dot | dot -Tsvg > lineage.svg
    rollbook lineage show 4f1c2d7e-... --store rollouts.zarr     (an eval run or an episode of your server)

    `ok`: the digest was computed again and is the recorded one. `BROKEN`: it is another one; the line below says which.
    `missing`: the record is named and was not found; the line below says where it was looked for. Exits with 1 if
    something is broken.
    """
    from rollbook.lineage import Places, Shelf, resolve, walk

    if dot and as_json:
        raise ConfigurationError(message="--dot and --json exclude each other")
    named = (store, run_folder, table, batch, source, recording, evidence)
    if search is None:
        search = [] if any(named) else [Path()]
    places = Places(
        stores=tuple(store or ()),
        run_folders=tuple(run_folder or ()),
        tables=tuple(table or ()),
        batches=tuple(batch or ()),
        sources=tuple(source or ()),
        recordings=tuple(recording or ()),
        evidence=tuple(evidence or ()),
        search=tuple(search),
    )
    with _server(profile, offline) as server, live_bar() as bar:
        task = bar.add_task("looking for records", total=None)
        shelf = Shelf.of(places, server)
        shelf.download_limit = download_limit * 10**6
        start = resolve(record, shelf, None if kind is None else kind.value)
        report = walk(
            start, shelf, on_node=lambda node: bar.update(task, description=f"checked {node.title}")
        )
    _print(report, dot=dot, as_json=as_json, verbose=verbose)
    raise typer.Exit(VIOLATIONS if report.state == "broken" else OK)


@contextmanager
def _server(profile: str, offline: bool) -> Iterator[ServerRecords | None]:
    """The server of the profile; None if no key is known and no profile was asked for."""
    from rollbook.client.credentials import DEFAULT_PROFILE

    if offline:
        yield None
        return
    from rollbook.lineage.server_records import ServerRecords

    try:
        client = client_of(profile)
    except ConfigurationError:
        if profile != DEFAULT_PROFILE:
            raise
        yield None
        return
    with client:
        try:
            yield ServerRecords(client)
        except (TransportError, APIError):
            say("--offline asks no server: it walks through the records of this machine", err=True)
            raise


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a completed eval run.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Zip file to write.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Write a signed zip file with everything that a decision rests on, to be checked without the server.

    \b
    rollbook lineage export 4f1c2d7e-... --out evidence.zip
    rollbook lineage verify evidence.zip

    It contains the decision, the gate, the results, the digests of episodes, the policy revisions and their trainer
    batches; no recordings and no rollouts. It is checked before it is written; damage on the server exits with 1 and
    the file is written all the same.
    """
    from rollbook.files import write_bytes
    from rollbook.lineage.evidence import open_evidence
    from rollbook.lineage.server_records import ServerRecords

    with client_of(profile) as client:
        server = ServerRecords(client)
        data = server.evidence_bytes(run)
        found = open_evidence(data, str(out), key=server.key())
    with hint_at_replace(replace):
        write_bytes(out, data, replace=replace)
    _print_evidence(found, as_json, is_trusted=True)


@app.command()
def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Zip file of `rollbook lineage export`.",
        ),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="PUBLIC",
            help="Public key of the server that you trust, as its route /api/evidence-key prints it. Without it the "
            "signature is checked, and you have to compare the printed key yourself.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check an evidence file: every digest, the signature, and the decision, computed again from the results.

    \b
    curl https://rollbook.example.com/api/evidence-key
    rollbook lineage verify evidence.zip --key 3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29

    It needs no server and no network. Exits with 1 if something is broken.
    """
    from rollbook.lineage.evidence import open_evidence

    found = open_evidence(path.read_bytes(), str(path), key=key)
    _print_evidence(found, as_json, is_trusted=key is not None)


def _print_evidence(found: Evidence, as_json: bool, *, is_trusted: bool) -> None:
    """`is_trusted`: the key that signed was compared with the one of the server."""
    import msgspec

    from rollbook.lineage.report import worst

    state = worst(each.state for each in found.checks)
    if as_json:
        shown = {
            "state": state,
            "path": found.place,
            "eval_run_id": found.run.id,
            "decision": found.run.decision,
            "public_key": found.public_key,
            "checks": msgspec.to_builtins(found.checks),
        }
        print_json(shown)
    else:
        for check in found.checks:
            _say_marked(check.state, f"{check.what}: {check.detail}")
        words = {
            "verified": "every check passed",
            "broken": "BROKEN, do not rely on it",
            "missing": "nothing is broken, but not everything could be checked",
        }
        decision = found.run.decision or "no decision"
        say(f"\n{found.place}: eval run {found.run.id} ({decision}): {words[state]}")
        if not is_trusted and found.public_key is not None:
            say(
                "anybody can sign: compare the key above with that of the server, or give it with --key"
            )
    raise typer.Exit(VIOLATIONS if state == "broken" else OK)


def _print(report: LineageReport, *, dot: bool, as_json: bool, verbose: bool) -> None:
    from rollbook.lineage.drawing import to_dot, tree_lines

    if as_json:
        print_json(report.plain())
    elif dot:
        say(to_dot(report).rstrip("\n"))
    else:
        for state, text in tree_lines(report):
            _say_marked(state, text)
        _print_checks(report, verbose)


def _say_marked(state: State, text: str) -> None:
    from rollbook.lineage.drawing import MARKS

    say(f" {text}", mark=f"{MARKS[state]:>7}", colour=_COLOURS[state])


def _print_checks(report: LineageReport, verbose: bool) -> None:
    from rollbook.lineage.record_ref import counted

    for node in report.nodes.values():
        shown = [each for each in node.checks if verbose or each.state != "verified"]
        if not shown:
            continue
        say(f"\n{node.title}" + (f" at {node.place}" if node.place else ""))
        for name, value in node.facts.items() if verbose else ():
            say(f"  {name}: {value}")
        for check in shown:
            where = f" ({check.where})" if check.where not in (None, node.place) else ""
            _say_marked(check.state, f"{check.what}: {check.detail}{where}")
    counts = f"{counted(len(report.nodes), 'record')}, {counted(len(report.links), 'link')}"
    verdict = "every link verified"
    if report.state != "verified":
        verdict = f"{len(report.broken)} broken, {len(report.missing)} missing"
    say(f"\n{counts}: {verdict}")

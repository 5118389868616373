"""`rollbook contracts …`: check, show and convert rollout artifacts and trainer batches."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_done, print_findings, print_json, print_rows, say
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.contracts.rl.batch import TrainerBatch
    from rollbook.contracts.rl.rollout import RolloutTable
    from rollbook.contracts.rl.rules import ContractRules

app = typer.Typer(
    help="Check, show and convert rollout artifacts and trainer batches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Compatible = Annotated[
    bool,
    typer.Option(
        "--compatible",
        help="Accept what the reference accepts: ids with separators in them, non-finite numbers, "
        "two descriptions of one revision.",
    ),
]
File = Annotated[
    Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="JSON (an artifact, a batch, a list of either, or an object with `artifacts` and "
        "`batches`), JSONL (.jsonl, .ndjson), or a saved table.",
    ),
]


def _rules(compatible: bool) -> ContractRules:
    from rollbook.contracts.rl.rules import COMPATIBLE, STRICT

    return COMPATIBLE if compatible else STRICT


@app.command()
def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            exists=True,
            dir_okay=False,
            help="Files to check: JSON, JSONL or saved tables. Without any, the reference loop runs.",
        ),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="Also fail if a rollout of a batch is in none of the files."
        ),
    ] = False,
    stores: Annotated[
        list[str] | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="A store or merged campaign: make its rollouts again and compare them. May be repeated.",
        ),
    ] = None,
    compatible: Compatible = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what failed or was not checked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every digest and rule of files, or the reference loop.

    Print one line per record or criterion, and every violation. The exit code is 0 only if all checks pass.
    A batch is assembled again from its rollouts, which may be in another of the files. Rollouts that are in
    none of them are counted as not checked, in the last line and in --json; with --complete they are a failure.
    Rollouts that `rollbook store to-artifacts` made are also made again from the stores given with --store.
    """
    from rollbook.contracts.rl.check import check_files
    from rollbook.contracts.rl.reference_loop import check_reference_loop

    if stores and not paths:
        raise ConfigurationError(message="--store proves the rollouts of a file: name the file too")
    findings = check_files(paths, rules=_rules(compatible)) if paths else check_reference_loop()
    # a proof says nothing about a file that is wrong by itself
    if stores and paths and all(each.passed for each in findings):
        from rollbook.cli.opened_stores import opened_view
        from rollbook.train.chain_proofs import proof_findings

        opened = [opened_view(each) for each in stores]
        for path in paths:
            findings += proof_findings(str(path), _read(path, compatible)[0], opened)
    print_findings(findings, as_json=as_json, complete=complete, quiet=quiet)


def _read(path: Path, compatible: bool) -> tuple[RolloutTable, list[TrainerBatch]]:
    """Everything in a file. The first record that is refused stops the command."""
    from rollbook.contracts.rl.batch import TrainerBatch
    from rollbook.contracts.rl.json_form import read_file
    from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
    from rollbook.contracts.rl.table_file import is_table_file, open_table

    if is_table_file(path):
        return open_table(path), []
    artifacts, batches = [], []
    for entry in read_file(path, rules=_rules(compatible)):
        if entry.problem is not None:
            raise entry.problem
        if isinstance(entry.record, RolloutArtifact):
            artifacts.append(entry.record)
        elif isinstance(entry.record, TrainerBatch):
            batches.append(entry.record)
    return RolloutTable.from_artifacts(artifacts), batches


@app.command()
def show(
    path: File,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of rollouts to list; 0 lists all.")
    ] = 20,
    compatible: Compatible = False,
    as_json: AsJson = False,
) -> None:
    """List the rollouts and batches in a file."""
    table, batches = _read(path, compatible)
    rows = [
        {
            "artifact": artifact.artifact_id,
            "revision": artifact.source_policy_revision.revision_id,
            "environment": artifact.environment.storage_key,
            "task": artifact.task_id,
            "samples": artifact.token_count,
            "reward": artifact.reward_sum,
            "termination": str(artifact.termination_reason),
            "artifact_digest": artifact.artifact_digest,
        }
        for artifact in (table[:limit] if limit else table)
    ]
    made = [
        {
            "batch": batch.batch_id,
            "target": batch.policy_lineage.target_revision.revision_id,
            "rollouts": batch.rollout_count,
            "tokens": batch.token_count,
            "reward": batch.reward_sum,
            "batch_digest": batch.batch_digest,
        }
        for batch in batches
    ]
    if as_json:
        summary = {"rollouts": len(table), "samples": table.sample_count, "root": table.root}
        print_json({**summary, "listed": rows, "batches": made})
        return
    say(f"{len(table)} rollouts, {table.sample_count} samples\nroot {table.root}\n")
    print_rows(_with_short_digests(rows))
    if len(rows) < len(table):
        say(f"… {len(table) - len(rows)} more; --limit 0 lists all")
    if made:
        say(f"\n{len(made)} batches\n")
        print_rows(_with_short_digests(made))


def _with_short_digests(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """For people; `--json` prints digests in full."""
    return [
        {
            name: str(value)[:12] if name.endswith("_digest") else value
            for name, value in row.items()
        }
        for row in rows
    ]


@app.command()
def convert(
    path: File,
    output: Annotated[
        Path,
        typer.Argument(help="Output file: `.json`, `.jsonl`, or any other suffix for a table."),
    ],
    reference_only: Annotated[
        bool,
        typer.Option(
            "--reference-only",
            help="Write only keys of the reference. Rollouts that need more are refused.",
        ),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing output.")] = False,
    compatible: Compatible = False,
    as_json: AsJson = False,
) -> None:
    """Convert JSON to a table file, or a table file to JSON.

    A table file can be memory-mapped. Digests are checked.
    """
    from rollbook.contracts.rl.json_form import write_file
    from rollbook.contracts.rl.table_file import save_table

    table, batches = _read(path, compatible)
    if output.suffix in (".json", ".jsonl", ".ndjson"):
        write_file(table, batches, output, reference_only=reference_only, replace=replace)
    else:
        _no_batches(batches)
        save_table(table, output, replace=replace)
    counts = {"rollouts": len(table), "batches": len(batches)}
    print_done(
        {"path": str(output), **counts, "root": table.root},
        f"{output}: {len(table)} rollouts, {len(batches)} batches, root {table.root}",
        as_json,
    )


def _no_batches(batches: list[TrainerBatch]) -> None:
    if batches:
        raise ConfigurationError(
            message=f"a table holds rollouts, not batches, and {len(batches)} would be lost; "
            "convert to .json or .jsonl, or take the batches out first"
        )


class GraphFormat(StrEnum):
    json = "json"
    dot = "dot"


@app.command()
def lineage(
    paths: Annotated[
        list[Path],
        typer.Argument(
            exists=True, dir_okay=False, help="Files with the rollouts and batches of the graph."
        ),
    ],
    output_format: Annotated[
        GraphFormat,
        typer.Option("--format", help="`dot` is for Graphviz: `… --format dot | dot -Tsvg`."),
    ] = GraphFormat.json,
    compatible: Compatible = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the lineage graph of files.

    It contains revisions, checkpoints, rollouts and batches.
    """
    from rollbook.contracts.rl.graph import LineageGraph

    if as_json and output_format is GraphFormat.dot:
        raise ConfigurationError(message="--json and --format dot do not go together")
    graph = LineageGraph()
    for path in paths:
        table, batches = _read(path, compatible)
        graph.add_table(table)
        for batch in batches:
            graph.add_batch(batch)
    if output_format is GraphFormat.dot:
        say(graph.to_dot())
    else:
        print_json(json.loads(graph.to_json()))


@app.command()
def send(
    paths: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help="Files with trainer batches."),
    ],
    compatible: Compatible = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Send the trainer batches of files to the server: what each policy revision was trained on.

    \b
    rollbook contracts send batches.jsonl

    The server computes every digest again. Sending a batch twice changes nothing. The rollouts stay where they are.
    """
    from rollbook.cli.replays.replay_run import client_of
    from rollbook.contracts.policy import revision_identity

    by_revision: dict[tuple[str, str], list[TrainerBatch]] = {}
    for path in paths:
        for batch in _read(path, compatible)[1]:
            target = revision_identity(batch.policy_lineage.target_revision)
            by_revision.setdefault(target, []).append(batch)
    if not by_revision:
        raise ConfigurationError(message="there is no trainer batch in these files")
    rows = []
    with client_of(profile) as client:
        for batches in by_revision.values():
            revision = batches[0].policy_lineage.target_revision
            done = client.record_revision(revision, batches=batches)
            rows.append(
                {
                    "policy_family": done.policy_family,
                    "revision_id": done.revision_id,
                    "batches": len(batches),
                    "added": done.added,
                    "url": f"{client.base_url}/portal/lineage/{done.id}",
                }
            )
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            say(f"{row['revision_id']}: {row['batches']} batches, {row['added']} new  {row['url']}")

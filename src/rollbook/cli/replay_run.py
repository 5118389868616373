"""`rollbook replay run`: replay recorded episodes with a candidate, and decide whether it ships."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, make_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import INFRASTRUCTURE, INTERRUPTED, OK, USAGE, VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.options import with_options
from rollbook.cli.output import AsJson, print_error, print_json, say
from rollbook.cli.plain_text import visible
from rollbook.cli.replay_arguments import (
    ReplayArguments,
    check,
    ci_facts,
    episode_ids,
    gate_in,
    metadata_pairs,
)
from rollbook.errors import (
    ConfigurationError,
    NotFoundError,
    RollbookError,
    TransportError,
    ValidationError,
)

if TYPE_CHECKING:
    from rollbook.cli.replay_report import RunReport
    from rollbook.client import Client
    from rollbook.contracts.evals import EvalResult
    from rollbook.contracts.gate import Gate
    from rollbook.evals import EvalRun

EPISODES_FOUND = 200
"""Episodes that a run takes as baselines when no ids are given."""
_MOST_NAMED = 5


def client_of(profile: str) -> Client:
    """A client with the same key as the SDK: from the environment, else from the profile."""
    from rollbook.client import Client
    from rollbook.client.credentials import DEFAULT_PROFILE

    return Client(profile=None if profile == DEFAULT_PROFILE else profile, verbose=False)


PolicyName = Annotated[
    str,
    typer.Option(
        metavar="MODULE:ATTR", help="The candidate: pkg.module:name, importable from here."
    ),
]
CandidateVersion = Annotated[
    str | None, typer.Option(help="Version name of the candidate, such as pap-v4.0.0-rc1.")
]
BaselineEpisodes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="IDS",
        help="Episode ids, separated by commas, or @FILE with one id a line. # starts a comment; @- is standard input.",
    ),
]
MoreIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="More episode ids.")]
BaselineVersion = Annotated[
    str | None,
    typer.Option(
        help="Version name of the recorded policy. Without ids, its newest episodes are the baselines."
    ),
]
RunName = Annotated[str | None, typer.Option(help="Name of the run, for people.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Fetch and compute, but create and send nothing."),
]
IsGated = Annotated[
    bool,
    typer.Option(
        "--gate", help="Exit with 0 for ship, 1 for hold, 2 for wrong usage, 3 for infrastructure."
    ),
]
GateFile = Annotated[
    Path | None,
    typer.Option(help="JSON or TOML file with a gate. `rollbook replay gate` prints one to edit."),
]
StorePath = Annotated[
    Path | None,
    typer.Option(
        help="Rollout store that knows the reward of every choice. Without ids, its own chains are the baselines, and "
        "no server is needed."
    ),
]
StorePolicy = Annotated[
    str | None, typer.Option(help="Only chains of the store that this policy chose.")
]
BaselineTag = Annotated[
    str | None, typer.Option(metavar="TAG", help="Only episodes with this tag are baselines.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of chains of the store (default: all), or of the newest episodes of --baseline-version "
        f"(default: {EPISODES_FOUND}).",
    ),
]
ResumedRun = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Resume this run. Complete baselines are not replayed again."),
]
Metadata = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE, stored with the run. Can be repeated.")
]
JunitFile = Annotated[Path | None, typer.Option("--junit", help="JUnit report to write, for CI.")]
ForGithub = Annotated[
    bool, typer.Option("--github", help="Write GitHub annotations and a job summary in Markdown.")
]


def _replay_flags() -> type[Any]:
    """A dataclass with an option for every field of ReplayOptions that has a CommandLine."""
    from rollbook.evals.options import ReplayOptions

    flags = []
    for each in fields(ReplayOptions):
        cli = each.metadata["cli"]
        if cli is not None:
            option = typer.Option(
                *(() if cli.flag is None else (cli.flag,)),
                help=cli.help or each.metadata["help"],
                metavar=cli.metavar,
                min=cli.least,
            )
            default = not each.default if cli.negated else each.default
            flags.append((each.name, Annotated[cli.kind, option], field(default=default)))
    return make_dataclass("ReplayFlags", flags)


def _keywords(flags: Any) -> dict[str, Any]:
    """The values of the flags, as keywords of `run_against`."""
    from rollbook.evals.options import ReplayOptions

    cli = {each.name: each.metadata["cli"] for each in fields(ReplayOptions)}
    return {name: not value if cli[name].negated else value for name, value in vars(flags).items()}


@with_options(_replay_flags())
def run(
    policy: PolicyName,
    candidate_version: CandidateVersion = None,
    baseline_episodes: BaselineEpisodes = None,
    more_ids: MoreIds = None,
    baseline_version: BaselineVersion = None,
    name: RunName = None,
    dry_run: DryRun = False,
    gate: IsGated = False,
    gate_file: GateFile = None,
    store: StorePath = None,
    store_policy: StorePolicy = None,
    baseline_tag: BaselineTag = None,
    limit: Limit = None,
    resume: ResumedRun = None,
    metadata: Metadata = None,
    junit_file: JunitFile = None,
    github: ForGithub = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
    *,
    options: Any,
) -> None:
    """Replay recorded episodes with a candidate policy, and decide whether it ships.

    \b
    rollbook replay run \\
        --policy my_pkg.policies:v4_rc1 \\
        --candidate-version pap-v4.0.0-rc1 \\
        --baseline-version pap-v3.2.1 --baseline-tag nightly \\
        --environment my_pkg.sim:make_env \\
        --workers 4 --gate --junit replay.xml

    The baselines are the newest finished episodes of --baseline-version, or those of --baseline-episodes.

    The policy is a function from an observation to an action, both dicts of arrays; or an object with
    act(obs, context) and optionally reset(episode) and close(); or a class of such objects.

    The evidence depends on how an outcome was measured. With --environment the candidate is run, and outcomes are
    measured. With --store the true reward of its choices is known. With neither, the candidate sees recorded
    observations only: the change of its actions is known, and an outcome only if the policy asserts it (_outcome).

    \b
    rollbook replay run --store rollouts.zarr --policy my_pkg:choose --candidate-version v4

    Exits with 0 when every episode is complete, and with 1 when one failed; with --gate, by the decision.
    """
    with _exit_codes(gate):
        asked = ReplayArguments(
            policy=policy,
            candidate=candidate_version,
            baseline=baseline_version,
            ids=episode_ids([*(baseline_episodes or ()), *(more_ids or ())]),
            name=name,
            metadata={**metadata_pairs(metadata or ()), **(ci_facts() if github else {})},
            gate=_gate(gate_file, store),
            store=store,
            store_policy=store_policy,
            tag=baseline_tag,
            limit=limit,
            resume=resume,
            dry_run=dry_run,
            quiet=as_json,
            replay=_keywords(options),
        )
        check(asked, gate_given=gate_file is not None)
        if asked.store_alone:
            report = _replay_store(asked)
        else:
            with client_of(profile) as client:
                report = _replay(asked, client, gated=gate)
        report = replace(report, gated=gate, extra={"dry_run": dry_run, **report.extra})
        _write_report(report, as_json=as_json, github=github, junit_file=junit_file)
    raise typer.Exit(_exit_code(report))


def _gate(gate_file: Path | None, store: Path | None) -> Gate | None:
    """The gate in the file. A store knows rewards and no success; otherwise the default depends on the baselines."""
    from rollbook.contracts.gate import Gate

    if gate_file is not None:
        return gate_in(gate_file)
    return None if store is None else Gate.for_reward()


# --------------------------------------------------------------------------------------- replaying


def _replay(asked: ReplayArguments, client: Client, *, gated: bool) -> RunReport:
    from rollbook import evals
    from rollbook.evals.environments import try_environment
    from rollbook.scoring import rollup

    environment = asked.replay["environment"]
    if environment is not None and asked.replay["engine"] == "local":
        try_environment(environment)  # before a run is created for which nothing could be measured
    if asked.resume is not None:
        run = evals.open_run(asked.resume, client=client)
    else:
        asked = (
            replace(asked, ids=_found_episodes(asked, client)) if asked.finds_episodes else asked
        )
        run = evals.create_run(
            candidate_policy_version=asked.candidate or "",
            baseline_episode_ids=asked.ids,
            baseline_policy_version=asked.baseline,
            name=asked.name,
            metadata=asked.metadata or None,
            client=client,
            gate=asked.gate,
            dry_run=asked.dry_run,
        )
    url = None if run.dry else f"{client.base_url}/portal/evals/{run.id}"
    _print_start(asked, run, url)
    results = _results(asked, run)
    total = len(run.baseline_episode_ids)
    report = _reported(run, total, results, url)
    with _resume_hint(run):
        if gated:
            _check_infrastructure(results)
        if run.dry:
            return replace(report, summary=rollup(results, asked.gate, total=total).to_wire())
        return replace(report, summary=evals.complete_run(run)["summary"])


def _found_episodes(asked: ReplayArguments, client: Client) -> list[str]:
    """The newest finished recordings. A replay is not a recording."""
    most = asked.limit or EPISODES_FOUND
    found = client.episodes(policy_version=asked.baseline, tag=asked.tag, status="ready")
    ids = [each.id for each in islice((each for each in found if each.source != "replay"), most)]
    if not ids:
        of_tag = "" if asked.tag is None else f" with the tag {asked.tag!r}"
        message = f"there are no finished episodes of {asked.baseline or 'any policy'}{of_tag}"
        raise ConfigurationError(message=message)
    return ids


def _check_infrastructure(results: Sequence[EvalResult]) -> None:
    """A failure of the infrastructure is no verdict on the candidate. The run stays open and can be resumed."""
    from rollbook.evals.workers import INFRASTRUCTURE

    lost = [each for each in results if (each.error or "").startswith(INFRASTRUCTURE)]
    if lost:
        named = ", ".join(each.baseline_episode_id for each in lost[:_MOST_NAMED])
        rest = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        message = (
            f"no decision: {len(lost)} of {len(results)} baselines could not be replayed, and the candidate is not "
            f"the reason: {named}{rest} ({lost[0].error})"
        )
        raise TransportError(message=message)


def _reported(
    run: EvalRun, total: int, results: Sequence[EvalResult], url: str | None
) -> RunReport:
    from rollbook.cli.replay_report import RunReport

    return RunReport(
        candidate=run.candidate_policy_version,
        baseline=run.baseline_policy_version,
        total=total,
        summary={},
        results=results,
        run_id=None if run.dry else run.id,
        url=url,
        extra={"stopped_early": True} if len(results) < total else {},
    )


def _results(asked: ReplayArguments, run: EvalRun) -> list[EvalResult]:
    from rollbook import evals

    left = len(run.baseline_episode_ids)
    if asked.resume is not None:
        left -= run.episodes_completed
    with _resume_hint(run), _progress(left, quiet=asked.quiet) as on_episode:
        return evals.run_against(
            run,
            policy_callable=asked.policy,
            on_episode=on_episode,
            resume=asked.resume is not None,
            store=asked.store,
            **asked.replay,
        )


def _replay_store(asked: ReplayArguments) -> RunReport:
    """The chains of the store are the baselines. No server is called."""
    from rollbook.evals import EvalRun
    from rollbook.evals.store_baselines import StoreBaselines
    from rollbook.evals.store_replay import replay_store
    from rollbook.scoring import rollup

    assert asked.store is not None
    chains = StoreBaselines(asked.store, policy=asked.store_policy, limit=asked.limit)
    if not len(chains):
        raise ConfigurationError(message=f"--store {asked.store} has no chains to replay against")
    chains.check_version(asked.baseline, field="--baseline-version", choose="--store-policy")
    baseline = asked.baseline or asked.store_policy
    run = EvalRun("dry", asked.candidate or "", baseline, chains.ids, asked.name, dry=True)
    _print_start(asked, run, None)
    alone = asked.replay["workers"] == 1 and asked.replay["step_timeout_s"] is None
    if alone and asked.replay["engine"] == "local":
        results = replay_store(chains, asked.policy)
    else:
        results = _results(asked, run)
    report = _reported(run, len(chains), results, None)
    summary = rollup(results, asked.gate, total=len(chains)).to_wire()
    return replace(report, summary=summary, extra={**report.extra, "store": str(asked.store)})


# ----------------------------------------------------------------------------------------- printing


def _print_start(asked: ReplayArguments, run: EvalRun, url: str | None) -> None:
    if asked.quiet:
        return
    say(
        f"Replay run: candidate={run.candidate_policy_version} "
        f"baseline={run.baseline_policy_version or 'mixed'} episodes={len(run.baseline_episode_ids)}"
    )
    if asked.store_alone:
        say(f"Chains of {asked.store}: no server is called, and nothing is sent.")
    elif run.dry:
        say("Dry run: nothing is created on the server, and nothing is sent.")
    elif asked.resume is not None:
        done = run.episodes_completed
        say(f"✓ Eval run resumed: {run.id} ({done} of {len(run.baseline_episode_ids)} complete)")
    else:
        say(f"✓ Eval run created: {run.id}")
        if asked.gate is None and run.gate is not None:
            _print_default_gate(run.gate)
    if url:
        say(f"  Portal: {url}")


def _print_default_gate(stored: dict[str, Any]) -> None:
    from rollbook.cli.replay_report import gate_words
    from rollbook.contracts.gate import gate_from

    gate = gate_from(stored)
    why = "" if gate.rule("success").role == "primary" else " (no baseline has a success)"
    say(f"  Gate: {gate_words(gate)}{why}")
    say("  This is the default; --gate-file sets another, `rollbook replay gate` prints one.")


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[EvalResult], None] | None]:
    """Prints a line for each finished episode, and on a terminal a progress bar below them."""
    from rich.console import Console
    from rich.progress import Progress

    from rollbook.cli.replay_report import episode_line

    if quiet:
        yield None
        return
    landed = 0
    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replaying", total=total)

        def on_episode(result: EvalResult) -> None:
            nonlocal landed
            landed += 1
            line = episode_line(landed, max(total, landed), result)
            if console.is_terminal:  # above the bar, not into it
                console.print(
                    visible(line), markup=False, highlight=False, emoji=False, soft_wrap=True
                )
            else:
                say(line)
            bar.update(task, completed=landed)

        yield on_episode


@contextmanager
def _resume_hint(run: EvalRun) -> Iterator[None]:
    """When a run is interrupted, prints the command that resumes it."""
    hint = f"rollbook replay run --resume {run.id} … resumes the run"
    try:
        yield
    except KeyboardInterrupt:
        if not run.dry:
            say(f"interrupted; {hint}", err=True)
        sys.exit(INTERRUPTED)
    except RollbookError:
        if not run.dry:
            say(hint, err=True)
        raise


def _write_report(
    report: RunReport, *, as_json: bool, github: bool, junit_file: Path | None
) -> None:
    from rollbook.cli.replay_report import junit
    from rollbook.files import atomic_write

    if junit_file is not None:
        with atomic_write(junit_file) as file:
            file.write(junit(report))
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if github:
        _write_for_github(report, to_stderr=as_json)


def _print_report(report: RunReport) -> None:
    from rollbook.cli.replay_report import episode_line, report_lines

    if report.results and report.run_id is None:
        failed = len(report.failed)
        complete = len(report.results) - failed
        what = "Replay of the store" if "store" in report.extra else "Dry-run"
        say(f"{what} complete: {complete} complete, {failed} failed.")
        if "store" in report.extra:
            for number, result in enumerate(report.failed, 1):
                say(episode_line(number, failed, result))
    if "stopped_early" in report.extra:
        landed = len(report.results)
        say(
            f"stopped early after {landed} of {report.total}: the results are enough to {report.recommend}"
        )
    say("")
    for line in report_lines(report.summary):
        say(line)
    if report.url:
        say(f"\n{report.url}")


def _write_for_github(report: RunReport, *, to_stderr: bool) -> None:
    """GitHub reads commands from both streams, so standard output can be left to JSON."""
    from rollbook.cli.replay_report import markdown, workflow_commands

    for line in workflow_commands(report):
        say(line, err=to_stderr)
    text = markdown(report)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        _append(target, text)
    else:
        say(text, err=to_stderr)
    if output := os.environ.get("GITHUB_OUTPUT"):
        _append(output, f"decision={report.recommend}\neval_run_id={report.run_id or ''}\n")


def _append(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def _exit_codes(gated: bool) -> Iterator[None]:
    """With `--gate`, 1 is a verdict on the candidate, so every other failure exits with another code."""
    try:
        yield
    except RollbookError as error:
        if not gated:
            raise
        print_error(error)
        usage = isinstance(error, ConfigurationError | ValidationError | NotFoundError)
        sys.exit(USAGE if usage else INFRASTRUCTURE)
    except SystemExit as ended:
        if not gated or ended.code not in (None, 0):
            raise
        # 0 means "ship", and no decision was made: a policy called sys.exit
        say("error: sys.exit was called before there was a decision", err=True)
        sys.exit(INFRASTRUCTURE)
    except Exception:
        if not gated:
            raise
        traceback.print_exc()
        sys.exit(INFRASTRUCTURE)


def _exit_code(report: RunReport) -> int:
    from rollbook.contracts.decision import Rollup

    if report.gated:
        return OK if report.ships else VIOLATIONS
    if not isinstance(report.rollup, Rollup):
        return VIOLATIONS if report.failed else OK
    counts = report.rollup.counts
    left_out = counts.pending if "stopped_early" in report.extra else 0
    return OK if counts.complete + left_out == counts.total else VIOLATIONS

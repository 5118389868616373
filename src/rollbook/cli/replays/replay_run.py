"""`rollbook replay run`: replay recorded episodes with a candidate, and decide whether it ships."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import INFRASTRUCTURE, INTERRUPTED, OK, USAGE, VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.options import with_options
from rollbook.cli.output import AsJson, print_error, say
from rollbook.cli.plain_text import visible
from rollbook.cli.replays.replay_arguments import (
    ReplayArguments,
    check,
    ci_facts,
    episode_ids,
    episode_query,
    fresh_count,
    gate_in,
    metadata_pairs,
    not_apart,
    recorded_source,
    tried_policy,
    with_revision,
)
from rollbook.cli.replays.replay_baselines import (
    EPISODES_FOUND,
    Baselines,
    BaselineTag,
    BaselineVersion,
    DrawSeed,
    Query,
    with_baselines,
)
from rollbook.cli.replays.replay_output import print_start, write_report
from rollbook.cli.training.seen_scenes import scenes_of_store, warn_of_seen_scenes
from rollbook.errors import (
    ConfigurationError,
    ConflictError,
    NotFoundError,
    RollbookError,
    TransportError,
    ValidationError,
)

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.contracts.evals import EvalResult
    from rollbook.contracts.gate import Gate
    from rollbook.evals import EvalRun
    from rollbook.report.run_report import RunReport

_MOST_NAMED = 5


def client_of(profile: str) -> Client:
    """A client with the same key as the SDK: from the environment, else from the profile."""
    from rollbook.client import Client
    from rollbook.client.credentials import DEFAULT_PROFILE

    return Client(profile=None if profile == DEFAULT_PROFILE else profile, verbose=False)


PolicyName = Annotated[
    str,
    typer.Option(
        metavar="MODULE:ATTR|RUN",
        help="The candidate: pkg.module:name, importable from here, or the run folder of a training.",
    ),
]
CandidateVersion = Annotated[
    str | None,
    typer.Option(
        help="Version name of the candidate, such as pap-v4.0.0-rc1. Default for a run folder: its policy revision."
    ),
]
BaselineEpisodes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="IDS",
        help="Episode ids, separated by commas, or @FILE with one id a line. # starts a comment; @- is standard input.",
    ),
]
MoreIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="More episode ids.")]
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
GatePresetName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Gate by name instead of a file: quick, default or strict."),
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
SourcePath = Annotated[
    str | None,
    typer.Option(
        help="For --closed-loop: the source store, or its URL, that --store was generated from. Default: the place "
        "where it was then."
    ),
]
IsClosedLoop = Annotated[
    bool,
    typer.Option(
        "--closed-loop",
        help="Roll the candidate out in the generator of --store, from the roots of its chains, and measure returns.",
    ),
]
GateName = Annotated[
    str | None,
    typer.Option(
        help="Locked gate of your organisation. Default: the one called default, or the only one."
    ),
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
                *(each for each in (cli.flag, cli.short) if each is not None),
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
    gate_preset: GatePresetName = None,
    store: StorePath = None,
    store_policy: StorePolicy = None,
    source: SourcePath = None,
    closed_loop: IsClosedLoop = False,
    baseline_tag: BaselineTag = None,
    query: Query = None,
    baselines: Baselines = None,
    draw_seed: DrawSeed = 0,
    gate_name: GateName = None,
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
    rollbook replay run --store rollouts.zarr --source sources --closed-loop --policy runs/first

    With --closed-loop the candidate is rolled out from the roots of the stored chains, and its returns are measured.
    First each chain is rolled out again as it was recorded; where a reward differs in one bit, the run holds.

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
            gate=_gate(gate_file, gate_preset, store),
            store=store,
            store_policy=store_policy,
            source=_source(store, source, closed_loop),
            tag=baseline_tag,
            query=episode_query(query or ()),
            fresh=fresh_count(baselines),
            draw_seed=draw_seed,
            gate_name=gate_name,
            limit=limit,
            resume=resume,
            dry_run=dry_run,
            quiet=as_json,
            replay=_keywords(options),
        )
        gate_given = gate_file is not None or gate_preset is not None
        asked = with_revision(asked)
        if junit_file is not None and not junit_file.parent.is_dir():
            message = f"--junit {junit_file}: there is no folder {junit_file.parent}"
            raise ConfigurationError(message=message)
        if gate and not as_json and (warning := not_apart(asked)):
            say(f"warning: {warning}", err=True)
        check(asked, gate_given=gate_given)
        if store is not None:
            warn_of_seen_scenes([policy], scenes_of_store(store))
        if not (gate_given or asked.store_alone or dry_run):
            asked = replace(asked, gate=None)  # the server knows the baselines, and locked gates
        with tried_policy(asked) as tried:
            if asked.store_alone:
                report = _replay_store(tried)
            else:
                with client_of(profile) as client:
                    report = _replay(tried, client, gated=gate)
        report = replace(report, gated=gate, extra={"dry_run": dry_run, **report.extra})
        write_report(report, as_json=as_json, github=github, junit_file=junit_file)
    raise typer.Exit(_exit_code(report))


def _gate(gate_file: Path | None, preset: str | None, store: Path | None) -> Gate | None:
    """The gate in the file, or of the preset. A store knows rewards and no success; otherwise the default depends on
    the baselines."""
    from rollbook.contracts import gate_presets
    from rollbook.contracts.gate import Gate

    if gate_file is not None and preset is not None:
        raise ConfigurationError(message="--gate-file and --gate-preset do not go together")
    if preset is not None:
        return gate_presets.gate_preset(preset, reward=store is not None)
    if gate_file is not None:
        return gate_in(gate_file)
    return None if store is None else Gate.for_reward()


def _source(store: Path | None, source: str | None, closed_loop: bool) -> str | None:
    """The source store of a closed loop on a store; None for every other replay."""
    if source is not None and not closed_loop:
        raise ConfigurationError(message="--source is for --closed-loop; give both or neither")
    if not closed_loop:
        return None
    if store is None:
        message = "--closed-loop rolls out from the chains of a --store; with an environment it is --environment"
        raise ConfigurationError(message=message)
    return source or recorded_source(store)


# --------------------------------------------------------------------------------------- replaying


def _replay(asked: ReplayArguments, client: Client, *, gated: bool) -> RunReport:
    from rollbook import evals
    from rollbook.contracts.gate import Gate
    from rollbook.evals.baseline_labels import episode_labels
    from rollbook.evals.store_check import check_logged_from, opened_store
    from rollbook.evals.worlds.environments import try_environment
    from rollbook.scoring import rollup

    environment = asked.replay["environment"]
    if environment is not None and asked.replay["engine"] == "local":
        try_environment(environment)  # before a run is created for which nothing could be measured
    if asked.resume is not None:
        run = evals.open_run(asked.resume, client=client)
        if gated and run.status == "completed":
            # nothing would be replayed, and the exit status would be about whatever was replayed before
            raise ConfigurationError(
                message=f"the run {run.id} is completed, and says nothing about the policy that is given now; "
                f"`rollbook replay show {run.id}` prints its decision"
            )
    else:
        asked = with_baselines(asked, client) if asked.finds_episodes else asked
        if asked.store is not None:
            check_logged_from(opened_store(asked.store), asked.ids, client)
            asked = replace(asked, gate=_gate_of_store(asked, client))
        run = evals.create_run(
            candidate_policy_version=asked.candidate or "",
            baseline_episode_ids=asked.ids,
            baseline_policy_version=asked.baseline,
            name=asked.name,
            metadata=asked.metadata or None,
            client=client,
            gate=asked.gate,
            dry_run=asked.dry_run,
            gate_name=asked.gate_name,
            candidate_policy_revision=asked.revision,
        )
    url = None if run.dry else f"{client.base_url}/portal/evals/{run.id}"
    print_start(asked, run, url)
    results = _results(asked, run)
    total = len(run.baseline_episode_ids)
    report = _reported(run, total, results, url)
    with _resume_hint(run):
        if gated:
            _check_infrastructure(results)
        if run.dry:
            labels = episode_labels(client, run.baseline_episode_ids, asked.gate or Gate())
            summary = rollup(results, asked.gate, total=total, labels=labels)
            return replace(report, summary=summary.to_wire(), labels=labels)
        return replace(report, summary=evals.complete_run(run)["summary"])


def _gate_of_store(asked: ReplayArguments, client: Client) -> Gate | None:
    """The default gate knows which rewards are possible in the store, as where the store is replayed without a server.
    None where the organisation has locked a gate, which then judges."""
    from rollbook.contracts.wire.gates import LockedGateList
    from rollbook.evals.server_calls import ask
    from rollbook.evals.store_baselines import StoreBaselines

    assert asked.store is not None
    if not asked.dry_run:
        if asked.gate is not None or asked.gate_name is not None:
            return asked.gate
        if ask(client, LockedGateList, "list locked gates", "GET", "/api/gates").gates:
            return None
    return StoreBaselines(asked.store).gate(asked.gate, closed_loop=asked.source is not None)


def _check_infrastructure(results: Sequence[EvalResult]) -> None:
    """A failure of the infrastructure is no verdict on the candidate. The run stays open and can be resumed."""
    from rollbook.contracts.evals import INFRASTRUCTURE

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
    from rollbook.report.run_report import RunReport

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
        if not asked.replay["retry_failed"]:
            left -= run.episodes_failed
    with _resume_hint(run), _progress(left, quiet=asked.quiet) as on_episode:
        return evals.run_against(
            run,
            policy_callable=asked.policy,
            on_episode=on_episode,
            resume=asked.resume is not None,
            store=asked.store,
            source=asked.source,
            **asked.replay,
        )


def _replay_store(asked: ReplayArguments) -> RunReport:
    """The chains of the store are the baselines. No server is called."""
    from rollbook.evals import EvalRun
    from rollbook.evals.baseline_labels import chain_labels
    from rollbook.evals.store_baselines import StoreBaselines
    from rollbook.evals.store_replay import replay_store, rollup_store

    assert asked.store is not None
    chains = StoreBaselines(asked.store, policy=asked.store_policy, limit=asked.limit)
    if not len(chains):
        raise ConfigurationError(message=f"--store {asked.store} has no chains to replay against")
    chains.check_version(asked.baseline, field="--baseline-version", choose="--store-policy")
    baseline = asked.baseline or asked.store_policy
    run = EvalRun(
        "dry",
        asked.candidate or "",
        baseline,
        chains.ids,
        asked.name,
        dry=True,
        candidate_policy_revision=asked.revision,
    )
    print_start(asked, run, None)
    alone = asked.replay["workers"] == 1 and asked.replay["step_timeout_s"] is None
    if alone and asked.source is None and asked.replay["engine"] == "local":
        results = replay_store(
            chains,
            asked.policy,
            policy_version=asked.candidate or "",
            isolation=asked.replay["isolation"],
            trusted=asked.replay["trusted"],
            verbose=asked.replay["verbose"],
        )
    else:
        results = _results(asked, run)
    report = _reported(run, len(chains), results, None)
    summary = rollup_store(chains, results, asked.gate)
    labels = chain_labels(chains, summary.decision.gate)
    extra = {**report.extra, "store": str(asked.store)}
    if asked.source is not None:
        extra["source"] = str(asked.source)
    return replace(report, summary=summary.to_wire(), extra=extra, labels=labels)


# ----------------------------------------------------------------------------------------- printing


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[EvalResult], None] | None]:
    """Prints a line for each finished episode, and on a terminal a progress bar below them."""
    from rich.console import Console
    from rich.progress import Progress

    from rollbook.cli.replays.replay_report import episode_line

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
    except RollbookError as error:
        # somebody else completed or cancelled it; what it then decides is not by the results of this runner
        closed_meanwhile = isinstance(error, ConflictError)
        if not (run.dry or closed_meanwhile):
            say(hint, err=True)
        raise


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
        if not gated or ended.code == INTERRUPTED:
            raise
        # no decision was made: a policy or an environment called sys.exit. 0 would mean "ship", and so would 256,
        # of which the system keeps the last eight bits; 1 would mean "hold"
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

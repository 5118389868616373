"""The runner: replays every baseline of a run and delivers the results.

Baselines are fetched ahead, replayed by workers, and delivered in batches, all at the same time. A baseline that fails
gives a failed result, and the others go on. Results are on disk before they are sent, so a run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import INFRASTRUCTURE, INTERRUPTED, EvalResult
from rollbook.engines import Done, TaskFailure, run_tasks
from rollbook.errors import ConfigurationError, RollbookError, TransportError
from rollbook.evals.baselines import (
    Baseline,
    Fetched,
    Ticket,
    fetch_ahead,
    look_up,
)
from rollbook.evals.delivery import ResultDelivery, call_user
from rollbook.evals.early_stop import EarlyStop
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.failures import (
    failed_result,
    interrupted_result,
    print_failure,
    print_lost_journal,
)
from rollbook.evals.journal import AbandonedJournals, FinishedReplay, Journal
from rollbook.evals.options import ReplayOptions
from rollbook.evals.pair_evidence import PairEvidence
from rollbook.evals.policies.process import PolicySource
from rollbook.evals.server_calls import results_of
from rollbook.evals.workers import WorkerPlan
from rollbook.notebook import Progress, show_nothing, shown_progress
from rollbook.scoring.reference import ActionReference

if TYPE_CHECKING:
    from rollbook.client import Client

REFERENCE_EPISODES = 32
"""Number of baselines, spread evenly, whose recorded actions define "out of distribution"."""
_FETCHED_AHEAD = 8

OnEpisode = Callable[[EvalResult], object]
Item = Ticket | Fetched | Baseline


@dataclass(slots=True)
class _Results:
    """Results so far. Each is passed to the caller's `on_episode`."""

    on_episode: OnEpisode | None
    total: int
    progress: Progress
    by_id: dict[str, EvalResult] = field(default_factory=dict)

    def take(self, result: EvalResult) -> None:
        self.by_id[result.baseline_episode_id] = result
        self.progress(len(self.by_id), self.total)
        if self.on_episode is not None:
            self.on_episode(result)


def replay_all(run: EvalRun, client: Client | None, options: ReplayOptions) -> list[EvalResult]:
    """In the order of the baselines. Baselines that were left out by an early stop have no result."""
    # a caller who is told of every result shows the progress himself
    unshown = None if options.on_episode is None else show_nothing
    with (
        _opened_policy(run, options) as policy,
        shown_progress("replaying episodes", unshown) as progress,
    ):
        results = _Results(options.on_episode, len(run.baseline_episode_ids), progress)
        plan = WorkerPlan(replace(options, on_episode=None), policy, PairEvidence.of(run, options))
        if options.dry_run:
            stop = EarlyStop(run, client, options)
            for row in _replay_until(stop, run.baseline_episode_ids, client, plan):
                _report_failure(row.result, options)
                call_user(results.take, row.result)
        else:
            assert client is not None
            _replay_and_deliver(run, client, options, plan, results)
    return [results.by_id[each] for each in run.baseline_episode_ids if each in results.by_id]


@contextmanager
def _opened_policy(run: EvalRun, options: ReplayOptions) -> Iterator[PolicySource]:
    """Before anything is fetched, because a live policy is forked from this process, which has no threads yet. Workers
    in other processes open it there."""
    policy = replace(options.policy, salt=run.id)
    if options.in_other_processes:
        yield policy
        return
    with policy.opened() as opened:
        yield opened


def _report_failure(result: EvalResult, options: ReplayOptions) -> None:
    """A caller who is told of every result prints failures in his own way."""
    if result.status == "failed" and (options.on_episode is None or options.verbose):
        print_failure(result, verbose=options.verbose)


# ---------------------------------------------------------------------------------- with a server


def _replay_and_deliver(
    run: EvalRun, client: Client, options: ReplayOptions, plan: WorkerPlan, results: _Results
) -> None:
    folder = options.journal_path or journal_folder(run.id)
    abandoned = AbandonedJournals(folder) if options.resume else None
    journal = Journal(folder)
    delivery = ResultDelivery(client, run, journal, results.take)
    stop = EarlyStop(run, client, options)
    try:
        todo, interrupted = list(run.baseline_episode_ids), frozenset[str]()
        if abandoned is not None:
            todo, interrupted = _resume(
                run, client, abandoned, delivery, results, stop, options.retry_failed
            )
        stop.check()
        if todo and not stop.reached:
            _check_open(run)
            again = sorted(interrupted.intersection(todo))
            delivery.keep_attempts([interrupted_result(each) for each in again])
        for row in _replay_until(stop, todo, client, plan, journal.started):
            _report_failure(row.result, options)
            delivery.add(row)
        delivery.finish()
    except BaseException:
        delivery.abort()
        raise
    finally:
        journal.close()
        if abandoned is not None:
            abandoned.close()
    if delivery.undelivered:
        raise _undelivered(delivery, folder)
    if abandoned is not None:
        abandoned.remove()


def _resume(
    run: EvalRun,
    client: Client,
    abandoned: AbandonedJournals,
    delivery: ResultDelivery,
    results: _Results,
    stop: EarlyStop,
    retry_failed: bool,
) -> tuple[list[str], frozenset[str]]:
    """Delivers what earlier runners left in their journals. Returns the baselines that are still to be replayed: those
    without a result, and those that failed by the infrastructure or were interrupted. A failure of the
    policy is a result like any other, unless it is to be tried again: otherwise a candidate would be resumed until it
    is lucky.

    The second answer are baselines whose replay began and never ended. Where results were delivered and no journal is
    here that says so, all that have no result count as such: a policy can remove the journal, too.
    """
    rows = list(results_of(client, run.id))
    known = {each.baseline_episode_id: each for each in rows if _counts(each, retry_failed)}
    results.by_id.update(known)
    waiting = [
        row for row in abandoned.rows if row.id not in known and _counts(row.result, retry_failed)
    ]
    for row in waiting:
        delivery.add(row)
    for result in (*known.values(), *(row.result for row in waiting)):
        stop.take(result)
    done = known.keys() | {row.id for row in waiting}
    interrupted = abandoned.interrupted
    unanswered = [each.baseline_episode_id for each in rows if each.status == "pending"]
    if not abandoned.any_found and 0 < len(unanswered) < len(rows):
        print_lost_journal(len(unanswered))
        interrupted = frozenset(unanswered)
    return [each for each in run.baseline_episode_ids if each not in done], interrupted


def _counts(result: EvalResult, retry_failed: bool) -> bool:
    """Whether the baseline need not be replayed again."""
    if result.status != "failed":
        return result.status == "complete"
    return not retry_failed and not (result.error or "").startswith((INFRASTRUCTURE, INTERRUPTED))


def _check_open(run: EvalRun) -> None:
    """Refuses before anything is replayed what the server would refuse afterwards."""
    if run.status in ("completed", "cancelled"):
        raise ConfigurationError(
            message=f"the run {run.id} is {run.status} and takes no more results: more pairs are a new run on fresh "
            "baselines"
        )


def _undelivered(delivery: ResultDelivery, folder: Path) -> RollbookError:
    problem = delivery.last_problem
    message = (
        f"{len(delivery.undelivered)} results could not be delivered and wait in {folder}; "
        f"run_against(run, …, resume=True) delivers them ({problem})"
    )
    error = TransportError(message=message)
    error.__cause__ = problem
    return error


def journal_folder(run_id: str) -> Path:
    from rollbook.client.credentials import home

    return home() / "runs" / run_id


# --------------------------------------------------------------------------------------- replaying


def _no_note(baseline_id: str) -> None:
    """A dry run cannot be resumed, so it notes nothing."""


def _replay_until(
    stop: EarlyStop,
    ids: list[str],
    client: Client | None,
    plan: WorkerPlan,
    on_start: Callable[[str], object] = _no_note,
) -> Iterator[FinishedReplay]:
    """Replays until the early stop. Baselines that were already started then count as well. `on_start` is called with
    each baseline before it is replayed.

    If their results make the decision uncertain again, the remaining baselines are replayed too.
    """
    left = stop.ordered(ids)
    stop.check()
    while left and not stop.reached:
        done = set()
        for row in _replay(stop, left, client, plan, on_start):
            done.add(row.id)
            stop.take(row.result)
            yield row
        stop.check()
        left = [each for each in left if each not in done]


def _replay(
    stop: EarlyStop,
    ids: list[str],
    client: Client | None,
    plan: WorkerPlan,
    on_start: Callable[[str], object],
) -> Iterator[FinishedReplay]:
    """As they finish. Every baseline that is started gives one finished replay, also when it fails."""
    options = plan.options
    items = _items(ids, client, options)
    # the first baseline is being fetched while the reference is computed
    started = chain(list(islice(items, 1)), items)
    results = run_tasks(
        replace(
            plan,
            reference=_reference(ids, client, options),
            client=client if options.in_other_processes else None,
        ),
        _started_until(stop, started, len(ids), on_start),
        engine=options.engine,
        parallel=options.worker_kind,
        workers=options.workers,
    )
    for done in results:
        yield _finished(done, options.step_timeout_s)


def _finished(done: Done[Item, FinishedReplay], step_timeout_s: float | None) -> FinishedReplay:
    if done.failure is None:
        assert done.value is not None
        return done.value
    failure = done.failure
    if failure.reason == "timed_out" and step_timeout_s is not None:
        late = f"a step of the policy took longer than step_timeout_s={step_timeout_s:g}"
        failure = TaskFailure("TimeoutError", late)
    return FinishedReplay(
        failed_result(done.item.id, failure.kind, failure.message, failure.traceback)
    )


def _started_until(
    stop: EarlyStop, items: Iterator[Item], count: int, on_start: Callable[[str], object]
) -> Iterator[Item]:
    """Takes at most `count` items: at its end the source cancels downloads that workers still wait for."""
    for item in islice(items, count):
        if stop.reached:
            return
        on_start(item.id)
        yield item


def _items(ids: list[str], client: Client | None, options: ReplayOptions) -> Iterator[Item]:
    if client is None:
        assert options.store_path is not None
        yield from _chains(ids, options.store_path)
        return
    tickets = look_up(client, ids, () if options.in_other_processes else options.kinds)
    if options.in_other_processes:
        yield from tickets
    else:
        ahead = _FETCHED_AHEAD + 2 * options.workers
        yield from fetch_ahead(client, tickets, options.kinds, ahead)


def _chains(ids: list[str], store: str) -> Iterator[Baseline]:
    """Chains of the store as baselines, without a server."""
    from rollbook.evals.store_baselines import StoreBaselines

    chains = StoreBaselines(store)
    rows: Mapping[str, int] = {each: place for place, each in enumerate(chains.ids)}
    for each in ids:
        yield chains[rows[each]] if each in rows else Baseline(each)


def _reference(
    ids: list[str], client: Client | None, options: ReplayOptions
) -> ActionReference | None:
    """The actions of all baselines. None where actions are not compared, or where there are too few baselines."""
    measured = options.store is not None or options.environment is not None
    if client is None or measured or len(ids) < 2:
        return None
    reference = action_reference(client, ids)
    return reference if reference.episodes > 1 else None


def action_reference(client: Client, ids: list[str]) -> ActionReference:
    """A run always uses the same baselines, on every machine. A baseline that cannot be read is left out."""
    chosen = ids[:: max(1, len(ids) // REFERENCE_EPISODES)][:REFERENCE_EPISODES]
    tickets = (each for each in look_up(client, chosen, ("actions",)) if each.record is not None)
    return ActionReference.of(_recorded_actions(client, tickets))


def _recorded_actions(client: Client, tickets: Iterator[Ticket]) -> Iterator[Any]:
    for each in fetch_ahead(client, tickets, ("actions",), REFERENCE_EPISODES):
        try:
            actions = each.baseline().actions
        except RollbookError:
            continue
        if actions:
            yield actions

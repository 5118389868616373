"""The runner: replays every baseline of a run and delivers the results.

Baselines are fetched ahead, replayed by workers, and delivered in batches, all at the same time. A baseline that fails
gives a failed result, and the others go on. Results are on disk before they are sent, so a run can be resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import LONGEST_ERROR, EvalResult
from rollbook.contracts.gate import gate_from
from rollbook.engines import Done, TaskFailure, run_tasks
from rollbook.errors import RollbookError, TransportError
from rollbook.evals.baselines import (
    Baseline,
    Fetched,
    Ticket,
    fetch_ahead,
    look_up,
)
from rollbook.evals.delivery import ResultDelivery, call_user
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.journal import AbandonedJournals, FinishedReplay, Journal
from rollbook.evals.options import ReplayOptions
from rollbook.evals.server_calls import critical_scenarios, results_of
from rollbook.evals.workers import INFRASTRUCTURE, WorkerPlan
from rollbook.scoring.reference import ActionReference
from rollbook.scoring.run_rollup import rollup

if TYPE_CHECKING:
    from rollbook.client import Client

REFERENCE_EPISODES = 32
"""Number of baselines, spread evenly, whose recorded actions define "out of distribution"."""
_FETCHED_AHEAD = 8
_CHECK_EVERY = 10
"""Results between two checks of a sequential gate."""

OnEpisode = Callable[[EvalResult], object]
Item = Ticket | Fetched | Baseline


@dataclass(slots=True)
class _Results:
    """Results so far. Each is passed to the caller's `on_episode`."""

    on_episode: OnEpisode | None
    by_id: dict[str, EvalResult] = field(default_factory=dict)

    def take(self, result: EvalResult) -> None:
        self.by_id[result.baseline_episode_id] = result
        if self.on_episode is not None:
            self.on_episode(result)


class _EarlyStop:
    """Asks a sequential gate, while results arrive, whether the rest is needed. Other gates never stop a run."""

    def __init__(self, run: EvalRun, client: Client | None) -> None:
        gate = None if run.gate is None else gate_from(run.gate)
        self._gate = gate if gate is not None and gate.design == "sequential" else None
        self._total = len(run.baseline_episode_ids)
        self._critical: Mapping[str, str] = {}
        if self._gate is not None and client is not None:
            self._critical = critical_scenarios(client, run.baseline_episode_ids)
        self._results: list[EvalResult] = []
        self._checked = 0
        self.reached = False
        """Whether the remaining baselines can be left out."""

    def take(self, result: EvalResult) -> None:
        if self._gate is None or (result.error or "").startswith(INFRASTRUCTURE):
            return
        self._results.append(result)
        if len(self._results) >= self._checked + _CHECK_EVERY:
            self.check()

    def check(self) -> None:
        if self._gate is not None and len(self._results) > self._checked:
            self._checked = len(self._results)
            missing = self._critical.keys() - {each.baseline_episode_id for each in self._results}
            pending = [EvalResult(each, None, "pending", {}) for each in missing]
            known = [*self._results, *pending]
            summary = rollup(known, self._gate, total=self._total, critical=self._critical)
            self.reached = summary.decision.early_stop is not None


def replay_all(run: EvalRun, client: Client | None, options: ReplayOptions) -> list[EvalResult]:
    """In the order of the baselines. Baselines that a sequential gate left out have no result."""
    results = _Results(options.on_episode)
    if options.dry_run:
        stop = _EarlyStop(run, client)
        for row in _replay_until(stop, run.baseline_episode_ids, client, options):
            call_user(results.take, row.result)
    else:
        assert client is not None
        _replay_and_deliver(run, client, options, results)
    return [results.by_id[each] for each in run.baseline_episode_ids if each in results.by_id]


# ---------------------------------------------------------------------------------- with a server


def _replay_and_deliver(
    run: EvalRun, client: Client, options: ReplayOptions, results: _Results
) -> None:
    folder = options.journal_path or journal_folder(run.id)
    abandoned = AbandonedJournals(folder) if options.resume else None
    journal = Journal(folder)
    delivery = ResultDelivery(client, run, journal, results.take)
    stop = _EarlyStop(run, client)
    try:
        todo = list(run.baseline_episode_ids)
        if abandoned is not None:
            todo = _resume(run, client, abandoned, delivery, results, stop)
        for row in _replay_until(stop, todo, client, options):
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
    stop: _EarlyStop,
) -> list[str]:
    """Delivers what earlier runners left in their journals. Returns the baselines that are still to be replayed."""
    complete = {each.baseline_episode_id: each for each in results_of(client, run.id, "complete")}
    results.by_id.update(complete)
    waiting = [row for row in abandoned.rows if row.id not in complete]
    for row in waiting:
        delivery.add(row)
    for result in (*complete.values(), *(row.result for row in waiting)):
        stop.take(result)
    done = complete.keys() | {row.id for row in waiting}
    return [each for each in run.baseline_episode_ids if each not in done]


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


def _replay_until(
    stop: _EarlyStop, ids: list[str], client: Client | None, options: ReplayOptions
) -> Iterator[FinishedReplay]:
    """Replays until the early stop. Baselines that were already started then count as well.

    If their results make the decision uncertain again, the remaining baselines are replayed too.
    """
    left = ids
    stop.check()
    while left and not stop.reached:
        done = set()
        for row in _replay(stop, left, client, options):
            done.add(row.id)
            stop.take(row.result)
            yield row
        stop.check()
        left = [each for each in left if each not in done]


def _replay(
    stop: _EarlyStop, ids: list[str], client: Client | None, options: ReplayOptions
) -> Iterator[FinishedReplay]:
    """As they finish. Every baseline that is started gives one finished replay, also when it fails."""
    items = _items(ids, client, options)
    # the first baseline is being fetched while the reference is computed
    started = chain(list(islice(items, 1)), items)
    plan = WorkerPlan(
        replace(options, on_episode=None),
        _reference(ids, client, options),
        client if options.in_other_processes else None,
    )
    results = run_tasks(
        plan,
        _started_until(stop, started, len(ids)),
        engine=options.engine,
        parallel=options.worker_kind,
        workers=options.workers,
    )
    for done in results:
        yield _finished(done, options.step_timeout_s)


def _finished(done: Done[Item, FinishedReplay], step_timeout_s: float | None) -> FinishedReplay:
    if done.failure is None:
        row = done.value
        assert row is not None
        if row.result.error is not None:
            sys.stderr.write(f"{row.id}: {row.result.error}\n")
        return row
    failure = done.failure
    if failure.reason == "timed_out" and step_timeout_s is not None:
        late = f"a step of the policy took longer than step_timeout_s={step_timeout_s:g}"
        failure = TaskFailure("TimeoutError", late)
    sys.stderr.write(failure.traceback or f"{failure}\n")
    reason = str(failure)[:LONGEST_ERROR]
    return FinishedReplay(EvalResult(done.item.id, None, "failed", {}, reason))


def _started_until(stop: _EarlyStop, items: Iterator[Item], count: int) -> Iterator[Item]:
    """Takes at most `count` items: at its end the source cancels downloads that workers still wait for."""
    for item in islice(items, count):
        if stop.reached:
            return
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

"""The runner: every baseline of a run through the policy, by as many workers as asked for, and the results home.

Baselines are fetched ahead, replayed, and delivered in batches, all three at the same time. One that fails is a failed
row, and the others go on. What was found out is on disk before it is sent, so a run can be taken up again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.evals import LONGEST_ERROR, EvalResult, EvalRun
from rollbook.contracts.gate import gate_from
from rollbook.engines import Done, Engine, Parallel, TaskFailure, run_tasks
from rollbook.errors import ConfigurationError, RollbookError, TransportError
from rollbook.evals.baselines import (
    Baseline,
    Fetched,
    Ticket,
    fetch_ahead,
    look_up,
)
from rollbook.evals.frames import frame_key
from rollbook.evals.journal import Journal, LeftBehind, Row
from rollbook.evals.policies import PolicySource
from rollbook.evals.replay import ReplayOptions
from rollbook.evals.server_runs import complete_results
from rollbook.evals.uploads import Uploads, as_result, tell
from rollbook.evals.workers import INFRASTRUCTURE, WorkerPlan
from rollbook.scoring.observations import ALIGNMENTS
from rollbook.scoring.reference import ActionReference
from rollbook.scoring.run_rollup import rollup

if TYPE_CHECKING:
    from rollbook.client import Client

REFERENCE_EPISODES = 32
"""Baselines, evenly from all of them, whose recorded actions are the yardstick of "out of distribution"."""
_FETCHED_AHEAD = 8
_LOOK_EVERY = 10
"""Results between two questions to a sequential gate."""

OnEpisode = Callable[[EvalResult], object]
Item = Ticket | Fetched | Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    policy: PolicySource
    options: ReplayOptions
    on_episode: OnEpisode | None = None
    dry_run: bool = False
    workers: int = 1
    engine: Engine = "local"
    parallel: Parallel = "thread"
    resume: bool = False
    journal: Path | None = None
    upload_actions: bool = True
    environment: Any = None
    store: str | None = None

    @property
    def kinds(self) -> tuple[ArtifactKind, ...]:
        """What has to be here before a baseline can be replayed."""
        if self.store is not None:
            return ()
        wants_video = frame_key(self.options.frames) is not None
        return ("sensors", "actions", "video") if wants_video else ("sensors", "actions")

    @property
    def elsewhere(self) -> bool:
        return self.engine == "ray" or self.parallel == "process"

    @property
    def how(self) -> Parallel:
        """One worker that nobody has to watch is the caller's own thread, where debuggers work."""
        alone = self.workers == 1 and self.policy.step_timeout_s is None
        return "inline" if self.parallel == "thread" and alone else self.parallel


@dataclass(slots=True)
class _Found:
    """Results so far, and who is to hear of them."""

    on_episode: OnEpisode | None
    by_id: dict[str, EvalResult] = field(default_factory=dict)

    def take(self, result: EvalResult) -> None:
        self.by_id[result.baseline_episode_id] = result
        if self.on_episode is not None:
            self.on_episode(result)


class _Looks:
    """What a sequential gate says while results come in. Any other is never asked, and never has enough."""

    def __init__(self, run: EvalRun, client: Client | None) -> None:
        gate = None if run.gate is None else gate_from(run.gate)
        self._gate = gate if gate is not None and gate.design == "sequential" else None
        self._total = len(run.baseline_episode_ids)
        self._critical: Mapping[str, str] = {}
        if self._gate is not None and client is not None:
            self._critical = _critical_scenarios(client, run.baseline_episode_ids)
        self._results: list[EvalResult] = []
        self._looked_at = 0
        self.enough = False
        """Whether the baselines that are left can be spared."""

    def take(self, result: EvalResult) -> None:
        if self._gate is None or (result.error or "").startswith(INFRASTRUCTURE):
            return
        self._results.append(result)
        if len(self._results) >= self._looked_at + _LOOK_EVERY:
            self.look()

    def look(self) -> None:
        if self._gate is not None and len(self._results) > self._looked_at:
            self._looked_at = len(self._results)
            missing = self._critical.keys() - {each.baseline_episode_id for each in self._results}
            pending = [EvalResult(each, None, "pending", {}) for each in missing]
            known = [*self._results, *pending]
            summary = rollup(known, self._gate, total=self._total, critical=self._critical)
            self.enough = summary.decision.early_stop is not None


def _critical_scenarios(client: Client, ids: list[str]) -> dict[str, str]:
    """By baseline. Nothing ships before the candidate has passed these."""
    asked, found = set(ids), {}
    path = cursor = "/api/scenarios?active=true&limit=1000"
    while cursor:
        answer = client.call("read the scenarios", "GET", cursor)
        for each in answer["scenarios"]:
            if each["severity"] == "critical" and each["baseline_episode_id"] in asked:
                found[each["baseline_episode_id"]] = each["scenario_id"]
        following = answer.get("next_cursor")
        cursor = f"{path}&cursor={quote(following, safe='')}" if following else ""
    return found


def run(run: EvalRun, client: Client | None, asked: RunnerOptions) -> list[EvalResult]:
    """In the order of the baselines. Those that a sequential gate could do without have no result."""
    _check(asked)
    found = _Found(asked.on_episode)
    if asked.dry_run:
        for row in _rows_until_enough(run.baseline_episode_ids, client, asked, _Looks(run, client)):
            tell(found.take, as_result(row))
    else:
        assert client is not None
        _recorded(run, client, asked, found)
    return [found.by_id[each] for each in run.baseline_episode_ids if each in found.by_id]


def _check(asked: RunnerOptions) -> None:
    if asked.environment is not None and asked.store is not None:
        message = "environment= and store= are two ways to know the outcome; give one of them"
        raise ConfigurationError(message=message)
    frame_key(asked.options.frames)
    if asked.options.align not in ALIGNMENTS:
        message = f"align is {asked.options.align!r}, expected {', '.join(ALIGNMENTS)}"
        raise ConfigurationError(message=message)
    source = asked.policy
    if asked.elsewhere:
        return
    if source.keeps_state and asked.workers > 1:
        message = "the policy keeps a state, which workers cannot share; pass its class, or a function that makes one"
        raise ConfigurationError(message=message)
    if source.keeps_state and source.step_timeout_s is not None:
        message = (
            "step_timeout_s needs a policy that can be made anew, as one that hangs is given up; pass its class, a "
            "function that makes one, or parallel='process'"
        )
        raise ConfigurationError(message=message)


# ---------------------------------------------------------------------------------- with a server


def _recorded(run: EvalRun, client: Client, asked: RunnerOptions, found: _Found) -> None:
    folder = asked.journal or journal_folder(run.id)
    left = LeftBehind(folder) if asked.resume else None
    journal = Journal(folder)
    uploads = Uploads(client, run, journal, found.take)
    looks = _Looks(run, client)
    try:
        todo = list(run.baseline_episode_ids)
        if left is not None:
            todo = _taken_up(run, client, left, uploads, found, looks)
        for row in _rows_until_enough(todo, client, asked, looks):
            uploads.add(row)
        uploads.finish()
    except BaseException:
        uploads.abort()
        raise
    finally:
        journal.close()
        if left is not None:
            left.close()
    if uploads.undelivered:
        raise _undelivered(uploads, folder)
    if left is not None:
        left.remove()


def _taken_up(
    run: EvalRun,
    client: Client,
    left: LeftBehind,
    uploads: Uploads,
    found: _Found,
    looks: _Looks,
) -> list[str]:
    """Sends what others left behind; gives the baselines that nobody has done yet."""
    there = complete_results(client, run.id)
    found.by_id.update(there)
    waiting = [row for row in left.rows if row.baseline_episode_id not in there]
    for row in waiting:
        uploads.add(row)
    for result in (*there.values(), *map(as_result, waiting)):
        looks.take(result)
    done = there.keys() | {row.baseline_episode_id for row in waiting}
    return [each for each in run.baseline_episode_ids if each not in done]


def _undelivered(uploads: Uploads, folder: Path) -> RollbookError:
    problem = uploads.last_problem
    message = (
        f"{len(uploads.undelivered)} results could not be delivered and wait in {folder}; "
        f"run_against(run, …, resume=True) delivers them ({problem})"
    )
    error = TransportError(message=message)
    error.__cause__ = problem
    return error


def journal_folder(run_id: str) -> Path:
    from rollbook.client.credentials import home

    return home() / "runs" / run_id


# --------------------------------------------------------------------------------------- replaying


def _rows_until_enough(
    ids: list[str], client: Client | None, asked: RunnerOptions, looks: _Looks
) -> Iterator[Row]:
    """What was under way when there was enough counts as well. Where it makes a doubt of it again, the rest is done."""
    left = ids
    looks.look()
    while left and not looks.enough:
        done = set()
        for row in _rows(left, client, asked, looks):
            done.add(row.baseline_episode_id)
            looks.take(as_result(row))
            yield row
        looks.look()
        left = [each for each in left if each not in done]


def _rows(
    ids: list[str], client: Client | None, asked: RunnerOptions, looks: _Looks
) -> Iterator[Row]:
    """As they are done. Every id that is begun gives one row, whatever happens to it."""
    items = _begun(_items(ids, client, asked))
    plan = WorkerPlan(
        asked.policy,
        _with_reference(asked.options, ids, client, asked),
        asked.kinds,
        client if asked.elsewhere else None,
        asked.environment,
        asked.store,
        asked.upload_actions and not asked.dry_run,
    )
    results = run_tasks(
        plan,
        _begun_until_enough(items, len(ids), looks),
        engine=asked.engine,
        parallel=asked.how,
        workers=asked.workers,
    )
    for done in results:
        yield _row(done, asked.policy.step_timeout_s)


def _row(done: Done[Item, Row], step_timeout_s: float | None) -> Row:
    if done.failure is None:
        row = done.value
        assert row is not None
        if row.error is not None:
            sys.stderr.write(f"{row.baseline_episode_id}: {row.error}\n")
        return row
    failure = done.failure
    if failure.reason == "timed_out" and step_timeout_s is not None:
        late = f"a step of the policy took longer than step_timeout_s={step_timeout_s:g}"
        failure = TaskFailure("TimeoutError", late)
    sys.stderr.write(failure.traceback or f"{failure}\n")
    return Row(done.item.id, "failed", {}, str(failure)[:LONGEST_ERROR])


def _begun_until_enough(items: Iterator[Item], count: int, looks: _Looks) -> Iterator[Item]:
    """Never asks for more than there are: at its end the source gives up downloads that workers still wait for."""
    for item in islice(items, count):
        if looks.enough:
            return
        yield item


def _begun(items: Iterator[Item]) -> Iterator[Item]:
    """The first ones are on their way before anybody waits for them."""
    first = list(islice(items, 1))
    return chain(first, items)


def _items(ids: list[str], client: Client | None, asked: RunnerOptions) -> Iterator[Item]:
    if client is None:
        assert asked.store is not None
        yield from _chains(ids, asked.store)
        return
    tickets = look_up(client, ids, () if asked.elsewhere else asked.kinds)
    if asked.elsewhere:
        yield from tickets
    else:
        yield from fetch_ahead(client, tickets, asked.kinds, _FETCHED_AHEAD + 2 * asked.workers)


def _chains(ids: list[str], store: str) -> Iterator[Baseline]:
    """Chains of the store itself, which no server has to know."""
    from rollbook.evals.store_baselines import StoreBaselines

    chains = StoreBaselines(store)
    rows: Mapping[str, int] = {each: place for place, each in enumerate(chains.ids)}
    for each in ids:
        yield chains[rows[each]] if each in rows else Baseline(each)


def _with_reference(
    options: ReplayOptions, ids: list[str], client: Client | None, asked: RunnerOptions
) -> ReplayOptions:
    if client is None or asked.store is not None or asked.environment is not None or len(ids) < 2:
        return options
    reference = action_reference(client, ids)
    return ReplayOptions(
        align=options.align,
        clock=options.clock,
        frames=options.frames,
        batch=options.batch,
        reference=reference if reference.episodes > 1 else None,
    )


def action_reference(client: Client, ids: list[str]) -> ActionReference:
    """The same baselines for the same run, whoever runs it. One that cannot be read is left out."""
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

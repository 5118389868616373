"""The ledger: every run on baselines that were used before is counted, whatever is deleted meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from rollbook.contracts.gate import Gate
from rollbook.server.db import tables
from rollbook.server.db.engine import Database
from rollbook.server.evals.results import put_results
from rollbook.server.queries import EpisodeFilter, NewResult, Scope
from tests.server.tenants import Organisation, new_organisation

NEW = {
    "candidate_policy_version": "v2",
    "runner_kind": "client",
    "metadata": {},
    "gate": Gate().as_dict(),
    "gate_digest": Gate().digest,
}


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def recorded(org: Organisation, count: int, **values: object) -> list[str]:
    """Finished episodes."""

    def record(scope: Scope) -> list[str]:
        made = [each.id for each in scope.create_episodes([(dict(values), ())] * count)]
        for each in made:
            scope.finalize_episode(each, {"status": "ready"})
        return made

    return org.write(record)


def created(org: Organisation, baselines: Sequence[str]) -> str:
    return org.write(lambda scope: scope.create_eval_run(NEW, baselines).id)


def put(org: Organisation, run_id: str, baseline: str) -> None:
    org.write(lambda scope: put_results(scope, run_id, [NewResult(baseline, "complete", {})]))


def used(org: Organisation, baselines: Sequence[str]) -> str:
    """A run that has one result."""
    run_id = created(org, baselines)
    put(org, run_id, baselines[0])
    return run_id


def earlier(org: Organisation, run_id: str) -> int:
    return org.read(lambda scope: scope.earlier_runs(run_id))


def test_a_run_counts_the_earlier_runs_that_share_a_baseline(org: Organisation) -> None:
    a, b, c, d = recorded(org, 4)
    runs = [used(org, each) for each in ([a, b], [b, a], [b, c], [d], [c, d])]
    assert [earlier(org, each) for each in runs] == [0, 1, 2, 0, 2]


def test_a_run_without_results_is_not_counted_and_does_not_count(org: Organisation) -> None:
    [baseline] = recorded(org, 1)
    empty = created(org, [baseline])
    assert earlier(org, used(org, [baseline])) == 0
    assert earlier(org, empty) == 0


def test_runs_are_numbered_by_their_first_result_so_that_none_can_be_kept_in_advance(
    org: Organisation,
) -> None:
    [baseline] = recorded(org, 1)
    runs = [created(org, [baseline]) for _ in range(3)]
    for each in reversed(runs):
        put(org, each, baseline)
    assert [earlier(org, each) for each in runs] == [2, 1, 0]
    put(org, runs[0], baseline)
    assert earlier(org, runs[0]) == 2, "a further result does not enter it again"


def test_deleted_runs_and_deleted_baselines_go_on_counting(org: Organisation) -> None:
    a, b = recorded(org, 2)
    first = used(org, [a, b])
    second = used(org, [a])
    assert org.write(lambda scope: scope.delete_eval_run(first))
    third = used(org, [b])
    assert [earlier(org, each) for each in (second, third)] == [1, 1]
    assert org.write(lambda scope: scope.change_eval_run(third, {"status": "completed"}))
    assert org.write(lambda scope: scope.delete_episode(b)) is not None
    assert earlier(org, third) == 1


def test_two_first_results_at_once_have_two_numbers(org: Organisation) -> None:
    [baseline] = recorded(org, 1)
    runs = [created(org, [baseline]) for _ in range(6)]
    threads = [threading.Thread(target=put, args=(org, each, baseline)) for each in runs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(earlier(org, each) for each in runs) == [0, 1, 2, 3, 4, 5]


def test_baselines_that_many_runs_share_are_kept_once(org: Organisation) -> None:
    baselines = recorded(org, 5)
    for _ in range(3):
        used(org, baselines)
    kept = sa.select(sa.func.count()).where(tables.ledger_baselines.c.org_id == org.org_id)
    assert org.read(lambda scope: scope._connection.scalar(kept)) == 5


# ------------------------------------------------------------------------------------ fresh baselines


def test_fresh_baselines_are_finished_recordings_that_no_run_has(org: Organisation) -> None:
    free, entered, waiting, deleted = recorded(org, 4, robot="arm")
    [other_robot] = recorded(org, 1)
    recorded(org, 1, source="replay", robot="arm")
    org.episode(robot="arm")  # still being recorded
    used(org, [entered])
    created(org, [waiting])
    gone = used(org, [deleted])
    org.write(lambda scope: scope.delete_eval_run(gone))

    def drawn(filters: EpisodeFilter, count: int) -> tuple[list[str], int]:
        return org.read(lambda scope: scope.fresh_baselines(filters, count, seed=1))

    assert drawn(EpisodeFilter(robot="arm"), 9) == ([free], 1)
    found, available = drawn(EpisodeFilter(), 9)
    assert (sorted(found), available) == (sorted([free, other_robot]), 2)


def test_a_seed_draws_the_same_baselines_and_another_seed_others(org: Organisation) -> None:
    recorded(org, 40)

    def drawn(seed: int) -> list[str]:
        return org.read(lambda scope: scope.fresh_baselines(EpisodeFilter(), 10, seed)[0])

    assert drawn(1) == drawn(1)
    assert len(set(drawn(1))) == 10
    assert set(drawn(1)) != set(drawn(2))

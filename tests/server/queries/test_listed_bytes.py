"""Answers about many rows end where they have enough bytes, on both databases, and the next page goes on from there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from rollbook.contracts.wire.limits import (
    MOST_IN_AN_ANSWER,
    MOST_LISTED_METADATA,
)
from rollbook.server.db.engine import Database
from rollbook.server.queries import EpisodeFilter, EpisodeRow, EvalResultRow, NewResult, Scope
from tests.server.tenants import Organisation, new_organisation


@pytest.fixture
def org(database: Database) -> Organisation:
    return new_organisation(database)


def metadata_of(size: int) -> dict[str, str]:
    """Of so many bytes as JSON."""
    return {} if size == len("{}") else {"a": "x" * (size - len('{"a":""}'))}


def recorded(org: Organisation, *sizes: int) -> list[str]:
    def create(scope: Scope) -> list[str]:
        values = [({"metadata": metadata_of(size)}, ()) for size in sizes]
        return [each.id for each in scope.create_episodes(values)]

    return org.write(create)


def pages(org: Organisation, limit: int) -> list[list[EpisodeRow]]:
    found: list[list[EpisodeRow]] = []
    cursor: str | None = None
    while not found or cursor is not None:
        page = org.read(lambda scope: scope.episodes(EpisodeFilter(), cursor, limit))  # noqa: B023
        found.append(page.episodes)
        cursor = page.next_cursor
    return found


def test_metadata_is_listed_up_to_the_bound_and_not_beyond(org: Organisation) -> None:
    sizes = (2 * MOST_LISTED_METADATA, MOST_LISTED_METADATA, MOST_LISTED_METADATA + 1, 10)
    ids = recorded(org, *sizes)
    [listed] = pages(org, 50)
    looked_up = org.read(lambda scope: scope.episodes_of(ids))
    for episodes in (listed, looked_up):
        found = {each.id: each for each in episodes}
        assert [found[each].metadata_truncated for each in ids] == [True, UNSET, True, UNSET]
        assert found[ids[1]].metadata == metadata_of(sizes[1])
        assert found[ids[0]].metadata == {}
    whole = org.read(lambda scope: scope.episode(ids[0]))
    assert whole is not None
    assert (whole.metadata, whole.metadata_truncated) == (metadata_of(sizes[0]), UNSET)


def test_the_bound_counts_bytes_and_not_characters(org: Organisation) -> None:
    text = "\u00fc" * (MOST_LISTED_METADATA // 2)
    org.write(lambda scope: scope.create_episode({"metadata": {"a": text}}))
    [[listed]] = pages(org, 50)
    assert listed.metadata_truncated


def test_a_page_ends_where_it_has_enough_metadata_and_the_next_goes_on(org: Organisation) -> None:
    ids = recorded(org, *[MOST_LISTED_METADATA] * 150)
    found = pages(org, 200)
    assert sorted(each.id for page in found for each in page) == sorted(ids)
    assert all(each.metadata_truncated is UNSET for page in found for each in page)
    sizes = [MOST_LISTED_METADATA * len(page) for page in found]
    assert max(sizes) < 2 * MOST_IN_AN_ANSWER
    assert len(found) == 3


def test_a_lookup_names_all_and_leaves_out_metadata_after_the_first(org: Organisation) -> None:
    ids = recorded(org, *[MOST_LISTED_METADATA] * 130, len("{}"))
    found = org.read(lambda scope: scope.episodes_of(ids))
    assert [each.id for each in found] == ids
    whole = [each.metadata_truncated is UNSET for each in found]
    assert whole == [True] * 64 + [False] * 66 + [True]


def test_a_page_of_results_ends_where_it_has_enough_metrics(org: Organisation) -> None:
    ids = recorded(org, *[10] * 150)
    values: dict[str, Any] = {
        "candidate_policy_version": "v2",
        "runner_kind": "client",
        "metadata": {},
        "gate": {},
        "gate_digest": "d",
    }

    def create(scope: Scope) -> str:
        run = scope.create_eval_run(values, ids)
        metrics = metadata_of(64 << 10)
        scope.write_eval_results(run.id, [NewResult(each, "complete", metrics) for each in ids])
        return run.id

    run_id = org.write(create)
    found: list[EvalResultRow] = []
    lengths: list[int] = []
    cursor: str | None = None
    while not lengths or cursor is not None:
        page, cursor = org.read(lambda scope: scope.eval_results(run_id, None, cursor, 1000))  # noqa: B023
        found += page
        lengths.append(len(page))
    assert [each.baseline_episode_id for each in found] == ids
    assert lengths == [64, 64, 22]

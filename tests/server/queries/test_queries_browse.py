"""Pages of the list of episodes: every order, forwards and backwards, and the values that a filter offers."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.errors import InvalidValue
from rollbook.server.db.engine import Database
from rollbook.server.queries import EpisodeFilter, EpisodeOrder, EpisodePage, Scope, browse
from tests.server.tenants import Organisation, new_organisation

START_US = 1_700_000_000_000_000


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def add(org: Organisation, name: str, at: int, duration_s: float | None = None, **of: Any) -> str:
    def make(scope: Scope) -> str:
        made = scope.create_episode({"name": name, **of})
        if duration_s is not None:
            scope.finalize_episode(made.id, {"status": "ready", "duration_s": duration_s})
        return made.id

    return org.at(START_US + at, make)


def page(org: Organisation, order: EpisodeOrder = "newest", **asked: Any) -> EpisodePage:
    filters = EpisodeFilter(**asked.pop("wanted", {}))
    return org.read(lambda scope: scope.browse_episodes(filters, order, **asked))


def names(found: EpisodePage) -> str:
    return "".join(each.name or "-" for each in found.episodes)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("newest", "edcba"),
        ("oldest", "abcde"),
        ("longest", "bdaec"),
        ("shortest", "adbec"),
        ("a-z", "abcde"),
        ("z-a", "edcba"),
    ],
)
@pytest.mark.parametrize("most_counted", [1000, 2])
def test_every_order_is_walked_page_by_page_there_and_back(
    org: Organisation,
    order: EpisodeOrder,
    expected: str,
    most_counted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if order in ("newest", "oldest"):  # the index is walked where there are more
        monkeypatch.setattr(browse, "MOST_COUNTED", most_counted)
    for at, (name, duration_s) in enumerate(
        {"a": 1.0, "b": 30.0, "c": None, "d": 2.5, "e": None}.items()
    ):
        add(org, name, at, duration_s)
    first = page(org, order, limit=2)
    second = page(org, order, limit=2, after=first.after)
    third = page(org, order, limit=2, after=second.after)
    assert names(first) + names(second) + names(third) == expected
    assert (first.before, third.after) == (None, None)
    assert names(page(org, order, limit=2, before=third.before)) == names(second)
    back = page(org, order, limit=2, before=second.before)
    assert names(back) == names(first)
    assert back.before is None
    assert names(page(org, order, limit=2, after=back.after)) == names(second)


def test_filters_hold_in_every_order_and_on_every_page(org: Organisation) -> None:
    for at, name in enumerate("abcd"):
        add(org, name, at, tags=["even"] if at % 2 == 0 else [], metadata={"n": at})
    for order in ("newest", "oldest", "a-z"):
        found = page(org, order, wanted={"tags": ("even",)}, limit=1)
        assert found.matching == 2
        more = page(org, order, wanted={"tags": ("even",)}, limit=1, after=found.after)
        assert set(names(found) + names(more)) == {"a", "c"}


def test_a_value_with_two_readings_is_walked_from_the_oldest_on_too(org: Organisation) -> None:
    for at, value in enumerate([3, "3", 3, "3"]):
        add(org, "abcd"[at], at, metadata={"n": value})
    first = page(org, "oldest", wanted={"metadata": {"n": "3"}}, limit=3)
    assert names(first) == "abc"
    rest = page(org, "oldest", wanted={"metadata": {"n": "3"}}, limit=3, after=first.after)
    assert names(rest) == "d"


def test_two_common_filters_are_walked_from_the_oldest_on_too(
    org: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = {"sqlite": 1, "postgresql": 1}
    monkeypatch.setattr("rollbook.server.queries.search._ENOUGH_TO_MERGE", enough)
    for at, name in enumerate("abc"):
        add(org, name, at, robot="arm", policy_version="v1")
    assert names(page(org, "oldest", wanted={"robot": "arm", "policy_version": "v1"})) == "abc"


def test_too_many_to_sort_are_shown_newest_first(
    org: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "MOST_COUNTED", 2)
    for at, name in enumerate("bca"):
        add(org, name, at)
    found = page(org, "a-z")
    assert (found.order, names(found), found.matching) == ("newest", "acb", 3)


def test_a_cursor_is_only_good_for_its_own_list(org: Organisation) -> None:
    for at, name in enumerate("abc"):
        add(org, name, at)
    cursor = page(org, limit=1).after
    for asked in ({"order": "oldest"}, {"wanted": {"name": "a"}}, {"order": "a-z"}):
        with pytest.raises(InvalidValue, match="cursor"):
            page(org, **asked, after=cursor)
    with pytest.raises(InvalidValue, match="cursor"):
        page(org, after="<script>")


def test_a_page_goes_on_when_the_episode_at_its_edge_was_deleted(org: Organisation) -> None:
    ids = {name: add(org, name, at) for at, name in enumerate("abcd")}
    by_name, by_time = page(org, "a-z", limit=2), page(org, "oldest", limit=2)
    org.write(lambda scope: scope.delete_episode(ids["b"]))
    assert names(page(org, "oldest", limit=2, after=by_time.after)) == "cd"
    assert names(page(org, "a-z", limit=2, after=by_name.after)) == "cd"


def test_filters_offer_the_values_that_episodes_have(org: Organisation) -> None:
    other = new_organisation(org.database)
    add(other, "x", 0, robot="theirs", policy_version="theirs", tags=["theirs"])
    assert org.read(lambda scope: scope.offered_values()).policy_version == []
    for at, robot in enumerate(["ur5", None, "arm", "ur5", "x" * 81]):
        add(org, "e", at, robot=robot, policy_version=f"v{at % 2}", tags=[f"t{at}", "all"])
    offered = org.read(lambda scope: scope.offered_values())
    assert offered.robot == ["arm", "ur5"]
    assert offered.policy_version == ["v0", "v1"]
    assert offered.env_version == []
    assert offered.tag == ["all", "t0", "t1", "t2", "t3", "t4"]


def test_a_page_says_the_reward_that_was_recorded(org: Organisation) -> None:
    add(org, "a", 0, metadata={"reward_total": 2.5})
    add(org, "b", 1, metadata={"reward_total": "much"})
    add(org, "c", 2, metadata={"reward_total": 1.0, "more": "x" * 20_000})
    assert [each.reward for each in page(org, "oldest").episodes] == [2.5, None, None]

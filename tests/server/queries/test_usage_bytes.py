"""Usage: the counted bytes are the sum of the artifacts after every kind of change, on both databases."""

from __future__ import annotations

import pytest

from rollbook.server.db.engine import Database
from rollbook.server.queries import Finalization, Scope
from tests.server.tenants import Organisation, new_organisation


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def counted(org: Organisation) -> tuple[int, int]:
    """Episodes and bytes as they are counted with every change; they must be what is there."""
    usage = org.read(lambda scope: scope.quota_usage())
    there = org.write(lambda scope: scope.recount_usage())
    assert (usage.episodes, usage.bytes) == (there.episodes, there.bytes)
    return usage.episodes, usage.bytes


def recorded(org: Organisation, name: str) -> str:
    kinds = ("actions", "sensors", "video")
    slots = [(kind, f"{org.org_id}/{name}/{kind}", "application/octet-stream") for kind in kinds]
    return org.write(lambda scope: scope.create_episode({"name": name}, slots)).id


def set_size(org: Organisation, episode_id: str, kind: str, size: int | None) -> None:
    org.write(lambda scope: scope.set_artifact(episode_id, kind, size=size))


def finalize(org: Organisation, *changes: tuple[str, str, int | None]) -> None:
    each = [
        Finalization(episode_id, {"status": "ready"}, {kind: {"size": size}})
        for episode_id, kind, size in changes
    ]
    org.write(lambda scope: scope.finalize_episodes(each, lambda more: None))


def test_a_new_size_replaces_the_old_one(org: Organisation) -> None:
    episode = recorded(org, "a")
    assert counted(org) == (1, 0)
    for size, expected in ((100, 100), (70, 70), (250, 250), (0, 0), (30, 30)):
        set_size(org, episode, "sensors", size)
        assert counted(org) == (1, expected)


def test_an_artifact_that_loses_its_size_is_counted_no_more(org: Organisation) -> None:
    episode = recorded(org, "a")
    set_size(org, episode, "sensors", 100)
    set_size(org, episode, "video", 1000)
    set_size(org, episode, "sensors", None)
    assert counted(org) == (1, 1000)
    set_size(org, episode, "sensors", None)
    assert counted(org) == (1, 1000)
    finalize(org, (episode, "video", None))
    assert counted(org) == (1, 0)


def test_a_change_of_anything_else_counts_nothing(org: Organisation) -> None:
    episode = recorded(org, "a")
    set_size(org, episode, "actions", 100)

    def change(scope: Scope) -> None:
        scope.set_artifact(episode, "actions", status="refused", detail="other bytes")
        scope.set_artifact(episode, "video", status="stored", playable=True)
        scope.set_artifact("nobody", "video", size=5)
        scope.set_artifact(episode, "actions")

    org.write(change)
    assert counted(org) == (1, 100)


def test_a_finalize_counts_the_difference_of_each_episode_also_of_one_that_comes_twice(
    org: Organisation,
) -> None:
    one, other = recorded(org, "a"), recorded(org, "b")
    set_size(org, one, "sensors", 100)
    finalize(org, (one, "sensors", 40), (other, "sensors", 7), (one, "sensors", 60))
    assert counted(org) == (2, 67)
    finalize(org, (one, "sensors", 60), (other, "sensors", None))
    assert counted(org) == (2, 60)


def test_a_finalize_that_is_refused_counts_nothing(org: Organisation) -> None:
    one, archived = recorded(org, "a"), recorded(org, "b")
    set_size(org, archived, "sensors", 5)
    org.write(lambda scope: scope.archive_episode(archived))
    finalize(org, (archived, "sensors", 500), (one, "sensors", 10), ("nobody", "sensors", 1))
    assert counted(org) == (2, 15)


def test_a_deleted_episode_takes_its_bytes_along_and_no_others(org: Organisation) -> None:
    one, other = recorded(org, "a"), recorded(org, "b")
    for kind, size in (("actions", 1), ("sensors", 20), ("video", 300)):
        set_size(org, one, kind, size)
    set_size(org, other, "video", 4000)
    set_size(org, one, "sensors", None)
    org.write(lambda scope: scope.delete_episode(one))
    assert counted(org) == (1, 4000)
    org.write(lambda scope: scope.delete_episode(one))
    assert counted(org) == (1, 4000)
    org.write(lambda scope: scope.delete_episode(other))
    assert counted(org) == (0, 0)


def test_archiving_and_other_tenants_change_nothing(
    org: Organisation, shared_database: Database
) -> None:
    episode = recorded(org, "a")
    set_size(org, episode, "video", 9)
    stranger = new_organisation(shared_database)
    set_size(stranger, episode, "video", 1_000)
    stranger.write(lambda scope: scope.delete_episode(episode))
    org.write(lambda scope: scope.archive_episode(episode))
    org.write(lambda scope: scope.restore_episode(episode))
    assert counted(org) == (1, 9)
    assert counted(stranger) == (0, 0)


def test_what_a_transaction_undoes_is_not_counted(org: Organisation) -> None:
    episode = recorded(org, "a")

    def fail(scope: Scope) -> None:
        scope.set_artifact(episode, "video", size=50)
        assert scope.quota_usage().bytes == 50
        raise RuntimeError("undone")

    with pytest.raises(RuntimeError, match="undone"):
        org.write(fail)
    assert counted(org) == (1, 0)

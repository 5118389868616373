"""Upkeep, a day later: what nobody finished has failed with what arrived of it, and what nobody needs is gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rollbook.server.blobs.open import open_blobs
from rollbook.server.context import ServerContext
from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.engine import Database
from rollbook.server.episodes.upkeep import UpkeepDone, do_upkeep, keep_up
from rollbook.server.episodes.uploads import slot
from rollbook.server.metrics import NoMetrics
from rollbook.server.queries import EpisodeRow
from rollbook.server.settings import Settings
from tests.server.tenants import Organisation, new_organisation

T = TypeVar("T")
DAY_US = 86_400_000_000


class Silence:
    """A log that nobody reads."""

    def _not_heard(self, event: str, **values: Any) -> None:
        pass

    debug = info = warning = error = _not_heard


class Server:
    """Without HTTP, and with a clock that can be turned."""

    def __init__(self, database: Database, data_dir: Path) -> None:
        self.database = database
        self.settings = Settings.load(data_dir / "data")
        self.later_us = 0

    def run(self, work: Callable[[ServerContext], Awaitable[T]]) -> T:
        async def with_context() -> T:
            blobs = open_blobs(self.settings.blobs_url, secret=self.settings.secret)
            context = ServerContext(
                settings=self.settings,
                db=self.database,
                blobs=blobs,
                log=Silence(),
                metrics=NoMetrics(),
                clock=lambda: now_us() + self.later_us,
            )
            try:
                return await work(context)
            finally:
                await blobs.close()

        return asyncio.run(with_context())

    def do_upkeep(self, *, find_orphans: bool = True) -> UpkeepDone:
        return self.run(lambda context: do_upkeep(context, find_orphans=find_orphans))

    def put(self, key: str, content: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        def put(context: ServerContext) -> Awaitable[Any]:
            return context.blobs.put(key, chunks(), content_type="application/octet-stream")

        self.run(put)

    def keys(self) -> list[str]:
        async def listed(context: ServerContext) -> list[str]:
            return [info.key async for info in context.blobs.list("episodes/")]

        return self.run(listed)


@pytest.fixture
def server(database: Database, tmp_path: Path) -> Server:
    """On an empty database: upkeep goes through every organisation there is."""
    return Server(database, tmp_path)


@pytest.fixture
def org(database: Database) -> Organisation:
    return new_organisation(database)


def recording(org: Organisation, *kinds: Any) -> EpisodeRow:
    episode_id = new_id()
    slots = [slot(org.org_id, episode_id, kind) for kind in kinds]
    return org.write(lambda scope: scope.create_episode({"id": episode_id}, slots))


def read(org: Organisation, episode: EpisodeRow) -> EpisodeRow:
    found = org.read(lambda scope: scope.episode(episode.id))
    assert found is not None
    return found


def test_a_recording_that_nobody_finished_has_failed_a_day_later(
    server: Server, org: Organisation
) -> None:
    forgotten, finished = recording(org, "sensors", "actions"), recording(org)
    org.write(lambda scope: scope.finalize_episode(finished.id, {"status": "ready"}))
    server.put(forgotten.artifacts[1].object_key, b"the last minutes")
    server.do_upkeep()
    assert read(org, forgotten).status == "recording", "a day has not passed"
    server.later_us = 2 * DAY_US
    server.do_upkeep()
    episode = read(org, forgotten)
    assert episode.status == "failed"
    assert episode.abandoned_at_us is not None
    assert {each.kind: each.status for each in episode.artifacts} == {
        "actions": "requested",
        "sensors": "stored",
    }
    assert read(org, finished).status == "ready"
    revived = org.write(lambda scope: scope.finalize_episode(forgotten.id, {"status": "ready"}))
    assert revived is not None
    assert revived.status == "ready", "its owner came back after all"


def test_an_eval_run_that_nobody_touched_for_a_week_has_failed_and_is_told(
    server: Server, org: Organisation
) -> None:
    hook = {
        "url": "https://x.example",
        "events": ["eval_run.failed"],
        "salt": "",
        "secret_hash": "",
    }
    org.write(lambda scope: scope.create_webhook({**hook, "id": new_id()}))
    new = {
        "candidate_policy_version": "v2",
        "runner_kind": "client",
        "metadata": {},
        "gate": {},
        "gate_digest": "",
    }
    baseline = recording(org).id
    forgotten, busy, done = (
        org.write(lambda scope: scope.create_eval_run(new, [baseline])).id for _ in range(3)
    )
    org.write(lambda scope: scope.change_eval_run(done, {"status": "completed"}))
    server.later_us = 6 * DAY_US
    assert server.do_upkeep().eval_runs == 0
    server.later_us = 8 * DAY_US
    org.at(now_us() + 7 * DAY_US, lambda scope: scope.recount_eval_run(busy, "running"))
    upkeep = server.do_upkeep()
    found = [
        org.read(lambda scope, run=run: scope.eval_run(run))  # type: ignore[misc]
        for run in (forgotten, busy, done)
    ]
    assert [run and run.status for run in found] == ["failed", "running", "completed"]
    assert upkeep.eval_runs >= 1
    assert org.read(lambda scope: scope.next_delivery_at_us()) is not None
    assert server.do_upkeep().eval_runs == 0


def test_what_webhooks_were_told_is_forgotten_after_a_month(
    server: Server, org: Organisation
) -> None:
    hook = {"url": "https://x.example", "events": ["e"], "salt": "", "secret_hash": ""}
    made = org.write(lambda scope: scope.create_webhook({**hook, "id": new_id()}))
    for _ in range(2):
        org.write(lambda scope: scope.announce("e", lambda _: "{}"))
    [taken] = org.write(lambda scope: scope.take_deliveries(10**15, 1))
    org.write(lambda scope: scope.note_attempt(taken, {}, status="delivered", next_attempt_at_us=1))
    server.later_us = 31 * DAY_US
    server.do_upkeep()
    kept, _ = org.read(lambda scope: scope.deliveries(made.id))
    assert [each.status for each in kept] == ["pending"]


def test_a_blob_that_no_row_speaks_of_is_removed_when_it_is_old(
    server: Server, org: Organisation
) -> None:
    kept = recording(org, "sensors").artifacts[0].object_key
    gone = recording(org, "sensors")
    orphans = [gone.artifacts[0].object_key, f"episodes/{os.urandom(8).hex()}/nobody/video.mp4"]
    for key in (kept, *orphans):
        server.put(key, b"x")
    org.write(lambda scope: scope.delete_episode(gone.id))
    org.write(lambda scope: scope.forget_objects(scope.doomed_objects()))
    server.do_upkeep()
    assert server.keys() == sorted([kept, *orphans]), "too young to be called an orphan"
    server.later_us = 2 * DAY_US
    server.do_upkeep(find_orphans=False)
    assert server.keys() == sorted([kept, *orphans]), "nobody looked"
    assert server.do_upkeep().orphans == 2
    assert server.keys() == [kept]


def test_what_could_not_be_removed_at_once_is_removed_later(
    server: Server, org: Organisation
) -> None:
    episode = recording(org, "sensors")
    server.put(episode.artifacts[0].object_key, b"x")
    org.write(lambda scope: scope.delete_episode(episode.id))
    assert server.keys() == [episode.artifacts[0].object_key]
    assert server.do_upkeep(find_orphans=False).blobs >= 1
    assert server.keys() == []
    assert org.read(lambda scope: scope.doomed_objects()) == []


def test_an_upload_in_parts_that_nobody_went_on_with_is_given_up(
    server: Server, org: Organisation
) -> None:
    episode = recording(org, "sensors")
    key = episode.artifacts[0].object_key
    store_id = server.run(
        lambda context: context.blobs.start_multipart(key, content_type="application/octet-stream")
    )
    upload = org.write(
        lambda scope: scope.create_upload(
            episode.id, "sensors", size=10, part_size=10, store_id=store_id
        )
    )
    assert upload is not None
    server.do_upkeep()
    assert org.read(lambda scope: scope.upload(upload.id)) is not None
    server.later_us = 2 * DAY_US
    server.do_upkeep()
    assert org.read(lambda scope: scope.upload(upload.id)) is None
    assert org.read(lambda scope: scope.doomed_objects()) == []


def test_idempotency_keys_are_forgotten_after_a_season(server: Server, org: Organisation) -> None:
    def create() -> EpisodeRow:
        return org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))

    first = create()
    server.later_us = 89 * DAY_US
    server.do_upkeep()
    assert create().id == first.id
    server.later_us = 91 * DAY_US
    server.do_upkeep()
    assert create().id != first.id


def test_of_two_processes_only_one_takes_the_trouble(
    server: Server, org: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    async def counted(context: ServerContext, *, find_orphans: bool = False) -> UpkeepDone:
        turns.append("begun")
        await asyncio.sleep(0.2)
        return UpkeepDone()

    monkeypatch.setattr("rollbook.server.episodes.upkeep.do_upkeep", counted)

    async def both(context: ServerContext) -> None:
        tasks = [asyncio.create_task(keep_up(context)) for _ in range(2)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.run(both)
    assert turns == ["begun"]
    server.run(both)
    assert turns == ["begun"] * 2, "and whoever comes after it can"

"""Upkeep, a day later: what nobody finished has failed with what arrived of it, and what nobody needs is gone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from rollbook.server.context import ServerContext
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.engine import NOBODY, Database
from rollbook.server.episodes import upkeep_lease
from rollbook.server.episodes.upkeep import TURN, keep_up
from rollbook.server.episodes.upkeep_lease import once_in
from rollbook.server.episodes.uploads import slot
from rollbook.server.queries import DoomedObject, EpisodeRow
from rollbook.server.queries.accounts import name_row
from tests.server.blob_servers import ACCESS_KEY, BUCKET, SECRET_KEY, Served, rclone_server
from tests.server.episodes.server_without_http import Server as Server
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.tenants import Organisation, new_organisation

T = TypeVar("T")
DAY_US = 86_400_000_000


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
    assert server.do_upkeep()["eval_runs"] == 0
    server.later_us = 8 * DAY_US
    org.at(now_us() + 7 * DAY_US, lambda scope: scope.recount_eval_run(busy, "running"))
    upkeep = server.do_upkeep()
    found = [
        org.read(lambda scope, run=run: scope.eval_run(run))  # type: ignore[misc]
        for run in (forgotten, busy, done)
    ]
    assert [run and run.status for run in found] == ["failed", "running", "completed"]
    assert upkeep["eval_runs"] >= 1
    assert org.read(lambda scope: scope.next_delivery_at_us()) is not None
    assert server.do_upkeep()["eval_runs"] == 0


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
    server.do_upkeep(orphans=False)
    assert server.keys() == sorted([kept, *orphans]), "nobody looked"
    assert server.do_upkeep()["orphans"] == 2
    assert server.keys() == [kept]


def test_what_could_not_be_removed_at_once_is_removed_later(
    server: Server, org: Organisation
) -> None:
    episode = recording(org, "sensors")
    server.put(episode.artifacts[0].object_key, b"x")
    org.write(lambda scope: scope.delete_episode(episode.id))
    assert server.keys() == [episode.artifacts[0].object_key]
    assert server.do_upkeep(orphans=False)["blobs"] >= 1
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


# ----------------------------------------------------------------------------------- steps that fail


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It cannot list the uploads in parts of a bucket."""
    with rclone_server(tmp_path_factory.mktemp("rclone")) as served:
        yield served


@pytest.fixture
def on_s3(
    database: Database, tmp_path: Path, rclone: Served, monkeypatch: pytest.MonkeyPatch
) -> Server:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    url = f"s3://{BUCKET}/{new_id()}"
    return Server(database, tmp_path, blobs_url=url, s3_endpoint=rclone.url)


def test_orphans_are_removed_where_uploads_in_parts_cannot_be_listed(on_s3: Server) -> None:
    on_s3.put("episodes/nobody/nothing/video.mp4", b"x")
    on_s3.later_us = 2 * DAY_US
    done = on_s3.do_upkeep()
    assert (done["orphans"], done.failed) == (1, ["leftovers"])
    assert on_s3.keys() == []
    [told] = [each for each in on_s3.log.events if each["event"] == "upkeep_step_failed"]
    assert told["step"] == "leftovers"
    assert "NoSuchUpload" in told["error"]
    assert on_s3.counted("rollbook_upkeep_steps_total", step="leftovers", outcome="failed") == 1
    assert on_s3.counted("rollbook_upkeep_steps_total", step="orphans", outcome="done") == 1
    assert on_s3.counted("rollbook_upkeep_items_total", step="orphans") == 1


def test_a_step_that_fails_stops_neither_the_next_step_nor_the_next_organisation(
    server: Server, database: Database
) -> None:
    for org in [new_organisation(database) for _ in range(2)]:
        org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))
    # not one of our own errors, but a mistake: the schema lacks a table
    lose = sa.text("ALTER TABLE webhook_deliveries RENAME TO lost")
    database.write_now(NOBODY, lambda connection: connection.execute(lose))
    server.later_us = 100 * DAY_US
    done = server.do_upkeep()
    assert (done["abandoned"], done["idempotency_keys"]) == (2, 2)
    assert done.failed == ["deliveries"] * 2


def test_a_blob_that_can_never_be_deleted_delays_no_other(
    server: Server, org: Organisation
) -> None:
    """As when a bucket locks one of its objects."""
    stuck, free = recording(org, "sensors"), recording(org, "sensors")
    for episode in (stuck, free):
        server.put(episode.artifacts[0].object_key, b"x")
        org.write(lambda scope, episode=episode: scope.delete_episode(episode.id))  # type: ignore[misc]
    objects = Path(urlsplit(server.settings.blobs_url).path, "objects")
    blob = objects / stuck.artifacts[0].object_key
    blob.unlink()
    (blob / "in the way").mkdir(parents=True)
    done = server.do_upkeep(orphans=False)
    assert (done["blobs"], done.failed) == (1, ["blobs"])
    assert [each.object_key for each in org.read(lambda scope: scope.doomed_objects())] == [
        stuck.artifacts[0].object_key
    ]
    shutil.rmtree(blob)
    assert server.do_upkeep(orphans=False)["blobs"] == 1
    assert org.read(lambda scope: scope.doomed_objects()) == []


def test_what_could_not_be_deleted_goes_to_the_end_of_the_queue(org: Organisation) -> None:
    for number in range(3):
        key = f"episodes/{org.org_id}/x/{number}"
        org.at(number, lambda scope, key=key: scope._doom([DoomedObject(key)]))  # type: ignore[misc]
    [first] = org.read(lambda scope: scope.doomed_objects(1))
    org.at(10, lambda scope: scope.put_off_objects([first]))
    found = org.read(lambda scope: scope.doomed_objects())
    assert [each.object_key[-1] for each in found] == ["1", "2", "0"]


# ---------------------------------------------------------------------------------- one of all processes


def told_by(server: RunningServer, event: str) -> int:
    lines = server.log_path.read_text().splitlines()
    return sum(json.loads(line)["event"] == event for line in lines if line.startswith("{"))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def lease_of(name: str) -> Callable[[sa.Connection], tuple[str | None, int]]:
    def find(connection: sa.Connection) -> tuple[str | None, int]:
        name_row(connection, name)
        query = sa.select(tables.leases).where(tables.leases.c.name == name)
        row = connection.execute(query).one()
        return row.holder, row.until_us

    return find


def hold(name: str, holder: str, until_us: int) -> Callable[[sa.Connection], None]:
    def change(connection: sa.Connection) -> None:
        name_row(connection, name)
        connection.execute(sa.update(tables.leases).values(holder=holder, until_us=until_us))

    return change


def test_of_two_servers_on_one_database_one_does_the_upkeep_and_the_other_takes_over(
    database_url: str, database: Database, running_server: StartServer, tmp_path: Path
) -> None:
    """Two processes with data folders of their own, as on two machines."""
    shared = {"database_url": database_url, "blobs_url": (tmp_path / "blobs").as_uri()}
    one = running_server(**shared, reap_every_s=3600)
    other = running_server(**shared, reap_every_s=0.2, log_level="debug")
    one.start()
    wait_until(lambda: told_by(one, "upkeep") == 1)
    _, due_us = database.read_now(NOBODY, lease_of(TURN))
    assert due_us > now_us() + 3000e6
    other.start()
    wait_until(lambda: told_by(other, "upkeep_not_due") > 2)
    assert told_by(other, "upkeep") == 0
    # `one` begins another turn and dies in the middle of it
    one.kill()
    database.write_now(NOBODY, hold(TURN, "one", now_us() + 500_000))
    wait_until(lambda: told_by(other, "upkeep") > 0)
    assert told_by(other, "upkeep_not_due") > 2
    assert database.read_now(NOBODY, lease_of(TURN))[0] != "one"
    other.stop()


def test_a_turn_is_done_once_in_its_time_by_whoever_comes_first(
    server: Server, org: Organisation
) -> None:
    async def ask(context: ServerContext, seconds: float = 0.0) -> bool:
        begun = False

        async def work() -> bool:
            nonlocal begun
            begun = True
            await asyncio.sleep(seconds)
            return True

        await once_in(context, "work", 300, work)
        return begun

    async def both(context: ServerContext) -> list[bool]:
        first = asyncio.create_task(ask(context, 0.2))
        await asyncio.sleep(0.1)
        return [await ask(context), await first]

    assert server.run(both) == [False, True]
    assert server.run(ask) is False, "it is not due yet"
    server.later_us = 301_000_000
    assert server.run(ask) is True


def test_everybody_is_told_how_long_to_wait_before_asking_again(server: Server) -> None:
    """The holder until the work is due, others until then, or until the lease of the holder ends."""

    async def waits(context: ServerContext) -> tuple[float, float]:
        while_it_is_held = 0.0

        async def work() -> bool:
            nonlocal while_it_is_held
            while_it_is_held = await once_in(context, "work", 300, work)
            return True

        return await once_in(context, "work", 300, work), while_it_is_held

    due, held = server.run(waits)
    assert 200 < due <= 300
    assert 30 < held <= upkeep_lease.LEASE_S
    server.later_us = 100_000_000
    due, _ = server.run(waits)
    assert 100 < due <= 200
    server.later_us = 301_000_000
    due, _ = server.run(waits)
    assert 200 < due <= 300


def test_a_holder_keeps_its_lease_while_it_works(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_lease, "LEASE_S", 0.5)

    async def never() -> bool:
        raise AssertionError("somebody holds it")

    async def long_work(context: ServerContext) -> None:
        async def work() -> bool:
            for _ in range(10):
                await asyncio.sleep(0.1)
                await once_in(context, "work", 300, never)
            return True

        await once_in(context, "work", 300, work)

    server.run(long_work)


def test_a_turn_that_is_cancelled_when_its_work_is_done_ends(server: Server) -> None:
    """As when the server stops at that moment."""

    async def cancelled_at_the_end(context: ServerContext) -> bool:
        async def work() -> bool:
            asyncio.get_running_loop().call_soon(turn.cancel)
            return True

        turn = asyncio.create_task(once_in(context, "work", 300, work))
        await asyncio.wait({turn})
        return turn.cancelled()

    assert server.run(cancelled_at_the_end)


def test_a_turn_that_fails_may_be_begun_again_at_once(server: Server) -> None:
    async def fails() -> bool:
        return False

    async def breaks() -> bool:
        raise RuntimeError("a mistake")

    for _ in range(2):
        assert server.run(lambda context: once_in(context, "work", 300, fails)) == 300
    with pytest.raises(RuntimeError, match="a mistake"):
        server.run(lambda context: once_in(context, "work", 300, breaks))
    holder, until_us = server.database.read_now(NOBODY, lease_of("work"))
    assert holder is None
    assert until_us <= now_us()


def test_orphans_are_looked_for_once_in_their_own_time(server: Server, org: Organisation) -> None:
    server.later_us = 2 * DAY_US

    async def one_turn(context: ServerContext) -> dict[str, Any]:
        heard = server.log.events
        heard.clear()
        task = asyncio.create_task(keep_up(context))
        while not any(each["event"] == "upkeep" for each in heard):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return heard[-1]

    server.put("episodes/nobody/nothing/video.mp4", b"x")
    assert server.run(one_turn)["orphans"] == 1
    server.put("episodes/nobody/nothing/video.mp4", b"x")
    server.later_us += 400_000_000
    assert "orphans" not in server.run(one_turn), "upkeep is due, the search is not"
    server.later_us += DAY_US
    assert server.run(one_turn)["orphans"] == 1

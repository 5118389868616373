"""A server that is killed without a word, again and again: what it acknowledged is there, and nothing is half.

On SQLite and local disk, and on PostgreSQL and S3.
"""

from __future__ import annotations

import random
import time
from itertools import cycle, islice
from pathlib import Path

import pytest

from rollbook.server.db.migrate import HEAD, current_revision
from tests.journeys.conftest import Deploy
from tests.journeys.nursery import MortalServer, Nursery
from tests.journeys.recorders import CREATE, Ledger, audit, recording

pytestmark = pytest.mark.slow

STEPS = ("create", "begin parts", "upload", "part", "complete parts", "finalize")
TO_STORAGE = ("upload", "part")
"""These go past a server that keeps its blobs in S3."""
LONGEST_WAIT_S = 60.0

# ------------------------------------------------------------------------------ while it records


def kill_in_the_middle_of(server: MortalServer, ledger: Ledger, steps: tuple[str, ...]) -> int:
    """Each of them was waited for by somebody when the server died. How many kills that took."""
    chance, kills = random.Random(len(steps)), 0
    with recording(server, ledger):
        for step in steps:
            before = ledger.cut[step]
            while ledger.cut[step] == before:
                wait_until_under_way(ledger, step)
                time.sleep(chance.uniform(0, 0.01))
                server.kill()
                kills += 1
                assert kills < 4 * len(steps) + 20, f"no kill meets {step}"
                server.start()
    return kills


def wait_until_under_way(ledger: Ledger, step: str) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not ledger.under_way[step]:
        assert time.monotonic() < deadline, f"nobody comes to {step} any more"
        time.sleep(0.0005)


def steps_of(server: MortalServer) -> tuple[str, ...]:
    return tuple(s for s in STEPS if server.deployment.is_small or s not in TO_STORAGE)


def examine(server: MortalServer, ledger: Ledger) -> None:
    with server.client() as client:
        assert audit(client, ledger) >= len(ledger.finalized) > 0
    strange = [(each.status_code, each.text) for each in ledger.refused]
    assert strange == [], "it answers as it should, or not at all"
    server.kill()
    server.doctor()


def test_killed_in_the_middle_of_its_work_it_has_all_that_it_acknowledged(
    server: MortalServer,
) -> None:
    ledger = Ledger()
    kill_in_the_middle_of(server, ledger, steps_of(server)[-4:])
    examine(server, ledger)


def test_killed_sixty_times_and_more_it_has_all_that_it_acknowledged(server: MortalServer) -> None:
    ledger, steps = Ledger(), tuple(islice(cycle(steps_of(server)), 60))
    assert kill_in_the_middle_of(server, ledger, steps) >= 60
    examine(server, ledger)


# ---------------------------------------------------------------------------- while it sets itself up


def kill_while_it_migrates(server: MortalServer, first_s: float, growth: float) -> int:
    """Each time a little later, until the schema is there. How many kills came before."""
    url = server.deployment.database_url or f"sqlite:///{server.data_dir / 'rollbook.db'}"
    early, after_s = 0, 0.0
    while True:
        server.begin()
        time.sleep(after_s)
        server.kill()
        revision = current_revision(url)
        assert revision in (None, HEAD)
        if revision == HEAD:
            return early
        early, after_s = early + 1, after_s * growth + first_s
        assert after_s < LONGEST_WAIT_S, "it never comes to an end"


def goes_on(server: MortalServer) -> bool:
    with server, server.client() as client:
        assert client.get("/readyz").status_code == 200
        return client.post(CREATE, json={"name": "after"}).status_code == 201


def test_killed_while_it_migrates_it_starts_as_if_nothing_had_been(
    nursery: Nursery, deploy: Deploy, tmp_path: Path
) -> None:
    server = MortalServer(nursery, tmp_path / "data", deploy())
    assert kill_while_it_migrates(server, 0.05, 1.5) > 0, (
        "every kill came too late to prove anything"
    )
    assert goes_on(server)


def test_killed_at_every_moment_of_many_first_starts(
    nursery: Nursery, deploy: Deploy, tmp_path: Path
) -> None:
    early = 0
    for number in range(5):
        server = MortalServer(nursery, tmp_path / str(number), deploy())
        early += kill_while_it_migrates(server, 0.010 + number * 0.003, 1.15)
        assert goes_on(server)
    assert early > 20

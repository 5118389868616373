"""Killing the process that writes: whatever was acknowledged is there, and nothing is there by half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollbook.server.db.open import open_database
from rollbook.server.queries import EpisodeFilter, EpisodeRow
from tests.leash import tie
from tests.server.tenants import new_organisation

_NURSERY = """
import os, sys, threading
from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import Scope

def write_forever(url, org_id, out):
    database = open_database(url)
    telling = threading.Lock()

    def create(connection):
        scope = Scope(connection, org_id)
        values = {"name": "whole", "tags": ["t"], "metadata": {"a": 1}}
        made = scope.create_episode(values, [("video", os.urandom(8).hex(), "video/mp4")])
        scope.set_artifact(made.id, "video", size=10)
        return made.id

    def keep_writing():
        while True:
            acknowledged = database.write_now(Tenant(org_id=org_id), create)
            with telling:
                out.write(acknowledged + "\\n")
                out.flush()

    threads = [threading.Thread(target=keep_writing) for _ in range(4)]
    for thread in threads:
        thread.start()
    threads[0].join()

print("ready", flush=True)
for line in sys.stdin:
    url, org_id, told = line.split()
    child = os.fork()
    if not child:
        with open(told, "w") as out:
            write_forever(url, org_id, out)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""
"""A fork takes milliseconds, where a fresh interpreter takes seconds."""


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_no_acknowledged_episode_is_lost(database_url: str, tmp_path: Path, kills: int) -> None:
    nursery = subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    tie(nursery.pid)
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    assert nursery.stdout.readline() == "ready\n"
    chance = random.Random(11)
    acknowledged: set[str] = set()
    first = open_database(database_url)
    org = new_organisation(first)
    first.close()
    for number in range(kills):
        told = tmp_path / f"told-{number}"
        nursery.stdin.write(f"{database_url} {org.org_id} {told}\n")
        nursery.stdin.flush()
        child = int(nursery.stdout.readline())
        tie(child)
        deadline = time.monotonic() + 60
        while not (told.exists() and told.stat().st_size):
            assert time.monotonic() < deadline, "the writer never acknowledged an episode"
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        os.kill(child, signal.SIGKILL)
        assert nursery.stdout.readline() == "dead\n"
        lines = told.read_text().splitlines(keepends=True)
        acknowledged |= {line.strip() for line in lines if line.endswith("\n")}
    nursery.stdin.close()
    nursery.wait(10)
    nursery.stdout.close()

    database = open_database(database_url)
    org = type(org)(database, org.org_id, org.owner_id)
    found: dict[str, EpisodeRow] = {}
    cursor: str | None = None
    while True:
        page = org.read(
            lambda scope, cursor=cursor: scope.episodes(EpisodeFilter(tags=("t",)), cursor, 1000)  # type: ignore[misc]
        )
        found |= {episode.id: episode for episode in page.episodes}
        cursor = page.next_cursor
        if cursor is None:
            break
    assert acknowledged <= set(found)
    assert len(acknowledged) > 10
    assert {(len(each.artifacts), each.artifacts[0].size) for each in found.values()} == {(1, 10)}
    usage = org.read(lambda scope: scope.quota_usage())
    assert (usage.episodes, usage.bytes) == (len(found), 10 * len(found))
    assert org.write(lambda scope: scope.recount_usage()) == usage
    database.close()

"""Killed at any moment, started again: nothing that was acknowledged is lost, and no half artifact is served."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from rollbook.server.blobs.open import open_blobs
from rollbook.server.blobs.signing import UrlSigner
from rollbook.server.settings import Settings
from tests.server.fixtures import StartServer
from tests.server.postgres_cluster import PostgresCluster
from tests.server.running import RunningServer
from tests.server.shared_server import shared_server

_RECORDERS = 4
_OCTETS = {"Content-Type": "application/octet-stream"}


@dataclass
class Acknowledged:
    """What the server said yes to."""

    created: set[str] = field(default_factory=set)
    finalized: set[str] = field(default_factory=set)
    sent: dict[str, bytes] = field(default_factory=dict)
    """By episode: the only bytes that were ever put there."""
    refused: list[str] = field(default_factory=list)
    """Answers that are neither a yes nor a cut connection."""


class Recorder(threading.Thread):
    """Records one episode after the other until the connection breaks."""

    def __init__(self, server: RunningServer, known: Acknowledged, seed: int) -> None:
        super().__init__(daemon=True)
        self.server, self.known, self.random = server, known, random.Random(seed)

    def run(self) -> None:
        try:
            with self.server.client() as client, httpx.Client(timeout=30) as storage:
                while True:
                    self.record(client, storage)
        except httpx.TransportError:
            return
        except httpx.HTTPStatusError as error:
            self.known.refused.append(f"{error} {error.response.text}")

    def record(self, client: httpx.Client, storage: httpx.Client) -> None:
        kinds = self.random.choice([[], ["sensors"]])
        made = _yes(client.post("/api/ingest/episode", json={"request_uploads": kinds}))
        episode_id = made["episode_id"]
        self.known.created.add(episode_id)
        content = os.urandom(self.random.choice([10, 200_000, 1_500_000]))
        if kinds:
            self.known.sent[episode_id] = content
            url = made["upload_urls"][0]["url"]
            if self.random.random() < 0.5:
                _yes(storage.put(url, content=content, headers=_OCTETS))
            else:
                self.upload_in_parts(client, storage, episode_id, content)
        body: dict[str, Any] = {"status": "ready"}
        if kinds:
            sha256 = hashlib.sha256(content).hexdigest()
            body["artifacts"] = {"sensors": {"sha256": sha256, "size": len(content)}}
        _yes(client.post(f"/api/ingest/episode/{episode_id}/finalize", json=body))
        self.known.finalized.add(episode_id)

    def upload_in_parts(
        self, client: httpx.Client, storage: httpx.Client, episode_id: str, content: bytes
    ) -> None:
        path = f"/api/ingest/episode/{episode_id}/upload"
        begun = _yes(client.post(path, json={"kind": "sensors", "size": len(content)}))
        _yes(storage.put(begun["parts"][0]["url"], content=content))
        _yes(client.post(f"{path}/{begun['upload_id']}/complete", json={}))


def _yes(answer: httpx.Response) -> dict[str, Any]:
    answer.raise_for_status()
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("sqlite", 2),
        ("postgres", 2),
        pytest.param("sqlite", 25, marks=pytest.mark.slow),
        pytest.param("postgres", 25, marks=pytest.mark.slow),
    ],
)
def test_a_server_that_is_killed_again_and_again_loses_nothing_it_has_acknowledged(
    running_server: StartServer, request: pytest.FixtureRequest, kind: str, kills: int
) -> None:
    settings = {}
    if kind == "postgres":
        cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
        settings["database_url"] = cluster.new_database(migrated=True)
    known = Acknowledged()
    chance = random.Random(kills)
    with running_server(log_level="warning", **settings) as server:
        for turn in range(kills):
            recorders = [Recorder(server, known, turn * 100 + n) for n in range(_RECORDERS)]
            for each in recorders:
                each.start()
            time.sleep(chance.uniform(0.3, 1.2))
            server.kill()
            for each in recorders:
                each.join(30)
            server.start()
        assert known.refused == []
        assert known.finalized, "something has to have been acknowledged"
        check_all(server, known)


def check_all(server: RunningServer, known: Acknowledged) -> None:
    with server.client() as client:
        there = {each["id"]: each for each in _all(client)}
        assert known.created <= set(there)
        assert {each for each in known.finalized if there[each]["status"] != "ready"} == set()
        for episode in there.values():
            for artifact in episode["artifacts"]:
                path = f"/api/episodes/{episode['id']}/artifact/{artifact['kind']}"
                content = client.get(path, follow_redirects=True).content
                assert hashlib.sha256(content).hexdigest() == artifact["sha256"]
                assert content == known.sent[episode["id"]], "whole, or not there at all"
        served = {each["id"] for each in there.values() if each["artifacts"]}
        assert set(known.sent) & known.finalized <= served


def _all(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        params = {"limit": "200", **({"cursor": cursor} if cursor else {})}
        page = _yes(client.get("/api/episodes", params=params))
        found += page["episodes"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def test_an_upload_that_was_joined_but_not_noted_can_be_completed_again(
    running_server: StartServer,
) -> None:
    """As when the server dies between the blob store and the database."""
    server = shared_server(running_server)
    with server.client() as client, httpx.Client() as storage:
        episode_id = _yes(client.post("/api/ingest/episode", json={}))["episode_id"]
        path = f"/api/ingest/episode/{episode_id}/upload"
        begun = _yes(client.post(path, json={"kind": "sensors", "size": 5}))
        _yes(storage.put(begun["parts"][0]["url"], content=b"bytes"))
        _join_behind_its_back(server, begun["parts"][0]["url"])
        state = _yes(client.get(f"{path}/{begun['upload_id']}"))
        assert state["completed"] is False
        done = _yes(client.post(f"{path}/{begun['upload_id']}/complete", json={}))
        assert done["sha256"] == hashlib.sha256(b"bytes").hexdigest()
        assert _yes(client.get(f"{path}/{begun['upload_id']}"))["completed"] is True


def _join_behind_its_back(server: RunningServer, part_url: str) -> None:
    settings = Settings.load(server.data_dir)
    grant = UrlSigner(settings.secret).opened(part_url.rsplit("/", 1)[1], "PUT")
    assert grant.upload is not None
    upload = grant.upload

    async def join() -> None:
        blobs = open_blobs(settings.blobs_url, secret=settings.secret)
        await blobs.complete_multipart(grant.key, upload, await blobs.parts(grant.key, upload))
        await blobs.close()

    asyncio.run(join())

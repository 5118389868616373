"""Recorders that do not mind a dying server, and a ledger of what it acknowledged, against which it is held later.

What an episode holds follows from its name, so whatever is found of it can be compared byte by byte.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx

from tests.journeys.nursery import MortalServer, plain_client

CREATE = "/api/ingest/episode"
BYTES = {"Content-Type": "application/octet-stream"}
_PIECE = 32 << 10
_PAUSE_S = 0.02
_LARGEST = 600_000
_IN_PARTS = 5_400_000
"""Enough for two parts."""
_RECORDERS = 4


@lru_cache(256)
def content(name: str) -> bytes:
    """Of the sensors of the episode of that name: from nothing to many pieces; every fourth in parts."""
    chance = random.Random(name)
    size = _IN_PARTS if chance.random() < 0.25 else int(chance.random() ** 3 * _LARGEST)
    return hashlib.shake_128(name.encode()).digest(size)


def metadata(name: str) -> dict[str, Any]:
    return {"told": hashlib.sha256(name.encode()).hexdigest()}


@dataclass
class Ledger:
    """What the server has said yes to. Nothing is noted before its answer has come whole."""

    created: dict[str, str] = field(default_factory=dict)
    """Ids by name."""
    finalized: set[str] = field(default_factory=set)
    under_way: Counter[str] = field(default_factory=Counter)
    """At which step how many wait for an answer."""
    cut: Counter[str] = field(default_factory=Counter)
    """At which step an answer did not come."""
    refused: list[httpx.Response] = field(default_factory=list)
    """Answers that were not what was asked for."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.under_way[name] += 1
        try:
            yield
        except httpx.TransportError as error:
            self.cut[name] += 1
            raise Lost from error
        finally:
            self.under_way[name] -= 1


class Lost(Exception):
    """No answer, or not the one that was asked for: what came of it is not known."""

    def __init__(self, answer: httpx.Response | None = None) -> None:
        super().__init__("no answer" if answer is None else answer.text)
        self.answer = answer


class Recorder(threading.Thread):
    """Records one episode after the other. Where an answer does not come it asks again; sometimes it gives up."""

    def __init__(self, server: MortalServer, ledger: Ledger, number: int) -> None:
        super().__init__(daemon=True)
        self._http = server.client()
        self._storage = plain_client()
        self._ledger = ledger
        self._number = number
        self._chance = random.Random(number)
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def end(self) -> None:
        """After the episode it is at, which it may have to give up."""
        self._over.set()
        self.join(60)
        assert not self.is_alive(), "a recorder waits for an answer that never comes"
        self.close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._http.close()
        self._storage.close()

    def run(self) -> None:
        count = 0
        try:
            while not self._over.is_set():
                self._persist(f"r{self._number}-{count}")
                count += 1
        except BaseException as error:  # noqa: BLE001 - raised where the test waits
            self._failure = error

    def _persist(self, name: str) -> None:
        while True:
            try:
                self.record(name)
                return
            except Lost:
                if self._over.is_set() or self._chance.random() < 0.2:
                    return
                time.sleep(_PAUSE_S)

    def record(self, name: str) -> None:
        """One episode, from its creation to its end. The same name again goes on with the same episode."""
        body = {"name": name, "request_uploads": ["sensors"], "metadata": {"at": "start"}}
        made = self._asked("create", CREATE, body, {"Idempotency-Key": name})
        self._ledger.created[name] = made["episode_id"]
        path = f"{CREATE}/{made['episode_id']}"
        data = content(name)
        if len(data) == _IN_PARTS:
            self._send_in_parts(path, data)
        else:
            # a create that is repeated gives no URL for what is stored already
            for each in made["upload_urls"]:
                self._send("upload", each["url"], data, BYTES)
        claim = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        final = {"status": "ready", "metadata": metadata(name), "artifacts": {"sensors": claim}}
        self._asked("finalize", f"{path}/finalize", final)
        self._ledger.finalized.add(name)

    def _send_in_parts(self, path: str, data: bytes) -> None:
        asked = {"kind": "sensors", "size": len(data), "part_size": 5 << 20}
        begun = self._asked("begin parts", f"{path}/upload", asked)
        for part in begun["parts"]:
            start = (part["number"] - 1) * begun["part_size"]
            self._send("part", part["url"], data[start : start + begun["part_size"]], {})
        self._asked("complete parts", f"{path}/upload/{begun['upload_id']}/complete", {})

    def _asked(
        self, step: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Any:
        with self._ledger.step(step):
            answer = self._http.post(path, json=body, headers=headers)
        return self._accepted(answer).json()

    def _send(self, step: str, url: str, data: bytes, headers: dict[str, str]) -> None:
        length = {"Content-Length": str(len(data))}
        with self._ledger.step(step):
            answer = self._storage.put(url, content=_pieces(data), headers={**headers, **length})
        self._accepted(answer)

    def _accepted(self, answer: httpx.Response) -> httpx.Response:
        if not answer.is_success:
            self._ledger.refused.append(answer)
            raise Lost(answer)
        return answer


def _pieces(data: bytes) -> Iterator[bytes]:
    """So that there is a middle to be cut off in."""
    size = max(_PIECE, len(data) // 20)
    for start in range(0, len(data), size):
        yield data[start : start + size]
        time.sleep(0.002)


@contextmanager
def recording(server: MortalServer, ledger: Ledger) -> Iterator[None]:
    """Somebody records all the while. The names of a second time are not those of the first."""
    first = len(ledger.created)
    recorders = [Recorder(server, ledger, first + number) for number in range(_RECORDERS)]
    for each in recorders:
        each.start()
    try:
        yield
    finally:
        for each in recorders:
            each.end()


# -------------------------------------------------------------------------------------------- audit


def is_clean_fault(answer: httpx.Response) -> bool:
    """The one shape of errors, and when to come back."""
    assert answer.status_code == 503, answer.text
    body = answer.json()
    assert isinstance(body["error"], str)
    assert isinstance(body["code"], str)
    assert int(answer.headers["retry-after"]) > 0
    return True


def audit(client: httpx.Client, ledger: Ledger) -> int:
    """Nothing acknowledged is lost, nothing is there twice, and whatever is served is whole. How many were served."""
    episodes = _every_episode(client)
    by_name = {each["name"]: each for each in episodes}
    assert len(by_name) == len(episodes), "a request that was repeated made a second episode"
    for name, episode_id in ledger.created.items():
        assert by_name[name]["id"] == episode_id
    for name in ledger.finalized:
        episode = by_name[name]
        assert episode["status"] == "ready"
        assert episode["metadata"] == {"at": "start", **metadata(name)}
        assert [each["size"] for each in episode["artifacts"]] == [len(content(name))]
    with plain_client() as storage:
        served = {name for name, each in by_name.items() if _is_served_whole(client, storage, each)}
    assert ledger.finalized <= served
    return len(served)


def _every_episode(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        query = {"limit": 200} | ({} if cursor is None else {"cursor": cursor})
        page = client.get("/api/episodes", params=query).raise_for_status().json()
        found += page["episodes"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def _is_served_whole(client: httpx.Client, storage: httpx.Client, episode: dict[str, Any]) -> bool:
    answer = client.get(f"/api/episodes/{episode['id']}/artifact/sensors")
    if answer.status_code in (404, 409):
        assert episode["artifacts"] == []
        return False
    assert answer.status_code == 302, answer.text
    found = storage.get(answer.headers["location"]).raise_for_status().content
    name = episode["name"]
    assert found == content(name), f"{name} is served otherwise than it was sent"
    return True

"""Kill -9 at every step: what was acknowledged is delivered, once, and nothing half is ever seen."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.client import Client, Retries, Spool
from rollbook.contracts.npz import read_npz
from tests.client.faulty_server import FaultyServer, Seen
from tests.client.killed import Mortals

FRAMES = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def mortals() -> Iterator[Mortals]:
    with Mortals() as found:
        yield found


class Field:
    """A robot's disk and the server it talks to."""

    def __init__(self, wire: FaultyServer, folder: Path) -> None:
        self.wire = wire
        self.spool = folder / "spool"
        self.sensors = folder / "run.bin"
        self.sensors.write_bytes(FRAMES)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "api_key": self.wire.api_key,
            "base_url": self.wire.base_url,
            "spool": str(self.spool),
            "sensors": str(self.sensors),
        }

    def clear(self) -> None:
        self.wire.reset()
        shutil.rmtree(self.spool, ignore_errors=True)

    def spooled(self) -> None:
        """One episode waits."""
        self.clear()
        self.wire.fail("", "drop", times=1_000_000)
        with self.client() as client:
            client.log_episode(
                name="offline", sensors=self.sensors, actions={"a": [1, 2]}, t_ns=[0, 1]
            )
        self.wire.faults.clear()

    def client(self) -> Client:
        return Client(
            api_key=self.wire.api_key,
            base_url=self.wire.base_url,
            spool=Spool(self.spool, lease_s=0.2),
            retries=Retries(attempts=1),
        )

    def deliver(self) -> int:
        """How many were delivered, once a dead process holds the spool no longer."""
        threading.Event().wait(0.21)
        with self.client() as client:
            report = client.deliver()
        assert report.refused == {}
        assert report.waiting == []
        return len(report.delivered)

    def check_delivered_once(self) -> None:
        [episode] = self.wire.episodes.values()
        assert episode["status"] == "ready"
        assert self.wire.blobs[episode["id"], "sensors"].read_bytes() == FRAMES
        assert (episode["id"], "actions") in self.wire.blobs
        assert Spool(self.spool).waiting() == []
        assert Spool(self.spool).refused() == []


@pytest.fixture
def field(wire: FaultyServer, tmp_path: Path) -> Field:
    return Field(wire, tmp_path)


def _every(steps: int, *, at_most: int) -> list[int]:
    """All steps, or some that are spread over all of them."""
    stride = max(1, -(-steps // at_most))
    return list(range(1, steps + 1, stride))


def _die_while_delivering(field: Field, mortals: Mortals, at_most: int) -> None:
    field.spooled()
    steps = mortals.run("deliver", **field.options).steps
    field.check_delivered_once()
    assert steps > 20
    for step in _every(steps, at_most=at_most):
        field.spooled()
        assert mortals.run("deliver", die_at=step, **field.options).killed
        field.deliver()
        field.check_delivered_once()
        leftovers = [each.name for each in field.spool.iterdir() if each.is_dir()]
        assert leftovers == [], f"after dying at step {step}"


def _die_while_spooling(field: Field, mortals: Mortals, at_most: int) -> None:
    """The call never returned, so the episode may be there or not; but never in part, and never twice."""
    field.clear()
    field.wire.fail("", "drop", times=1_000_000)
    steps = mortals.run("log", **field.options).steps
    found = []
    for step in _every(steps, at_most=at_most):
        field.clear()
        field.wire.fail("", "drop", times=1_000_000)
        assert mortals.run("log", die_at=step, **field.options).killed
        field.wire.faults.clear()
        found.append(field.deliver())
        assert len(field.wire.episodes) == found[-1]
        if found[-1]:
            field.check_delivered_once()
    assert set(found) <= {0, 1}
    assert found[0] == 0


def test_a_delivery_may_die_at_some_steps(field: Field, mortals: Mortals) -> None:
    _die_while_delivering(field, mortals, at_most=3)


@pytest.mark.slow
def test_a_delivery_may_die_at_every_step(field: Field, mortals: Mortals) -> None:
    _die_while_delivering(field, mortals, at_most=10_000)


def test_spooling_may_die_at_some_steps(field: Field, mortals: Mortals) -> None:
    _die_while_spooling(field, mortals, at_most=3)


@pytest.mark.slow
def test_spooling_may_die_at_every_step(field: Field, mortals: Mortals) -> None:
    _die_while_spooling(field, mortals, at_most=10_000)


def _die_while_stepping(field: Field, mortals: Mortals, at_most: int, *, online: bool) -> list[str]:
    """A program that logs five steps and finalizes. What it logged is whole in the episode, however that ends."""

    def begin() -> None:
        field.clear()
        if not online:
            field.wire.fail("", "drop", times=1_000_000)

    begin()
    steps = mortals.run("steps", **field.options).steps
    ends: list[str] = []
    for step in _every(steps, at_most=at_most):
        begin()
        assert mortals.run("steps", die_at=step, **field.options).killed
        field.wire.faults.clear()
        field.deliver()
        found = list(field.wire.episodes.values())
        if not found:  # it died before the episode was noted
            assert not ends
            continue
        [episode] = found
        ends.append(episode["status"])
        logged = episode["metadata"].get("steps", 0)
        assert logged in (0, 5)
        if logged:
            sensors = read_npz(field.wire.blobs[episode["id"], "sensors"])
            assert sensors["observation/value"].tolist() == [0, 1, 2, 3, 4]
            actions = read_npz(field.wire.blobs[episode["id"], "actions"])
            assert actions["action/value"].tolist() == [[row, 1] for row in range(5)]
        else:
            assert episode["status"] == "failed"
        assert [each.name for each in field.spool.iterdir() if each.is_dir()] == []
    assert ends == sorted(ends), "once the program has said how it ends, it ends so"
    return ends


def test_a_program_that_logs_steps_may_die_at_some_steps(field: Field, mortals: Mortals) -> None:
    # whether one of so few deaths is early enough for "failed" depends on the files that libraries open
    assert "ready" in _die_while_stepping(field, mortals, at_most=4, online=True)


@pytest.mark.slow
@pytest.mark.parametrize("online", [True, False])
def test_a_program_that_logs_steps_may_die_at_many_steps(
    field: Field, mortals: Mortals, online: bool
) -> None:
    ends = _die_while_stepping(field, mortals, at_most=30, online=online)
    assert set(ends) == {"failed", "ready"}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "multipart_above", [1 << 30, pytest.param(1, marks=pytest.mark.slow)], ids=["whole", "parts"]
)
def test_a_delivery_may_die_at_every_request(
    field: Field, mortals: Mortals, when: str, multipart_above: int
) -> None:
    """`before` the server acts on it, or `after`, when the answer is about to leave."""
    field.spooled()
    mortals.run("deliver", multipart_above=multipart_above, **field.options)
    requests = len(field.wire.seen) - 1  # the first one found no network
    assert requests >= 4
    for number in range(1, requests + 1):
        field.spooled()
        field.wire.seen.clear()

        def kill(seen: Seen, number: int = number) -> None:
            if len(field.wire.seen) == number:
                os.kill(mortals.pid, signal.SIGKILL)

        setattr(field.wire, when, kill)
        mortals.begin("deliver", multipart_above=multipart_above, **field.options)
        assert mortals.end().killed
        setattr(field.wire, when, None)
        field.deliver()
        field.check_delivered_once()


def test_what_an_acknowledged_call_spooled_survives_the_death_of_its_process(
    field: Field, mortals: Mortals
) -> None:
    field.clear()
    field.wire.fail("", "drop", times=1_000_000)
    for _ in range(3):
        assert not mortals.run("log", **field.options).killed
    field.wire.faults.clear()
    assert field.deliver() == 3
    assert len(field.wire.episodes) == 3

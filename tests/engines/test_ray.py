"""Ray: the same rules as on this machine, on a real cluster. A lost worker or node costs one attempt of one item."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.engines import Cluster, Done, TaskFailure, expect, run_tasks
from rollbook.errors import ConfigurationError, RowOutOfRange, TransportError
from tests.engines.ray_cluster import CPUS, RayCluster
from tests.engines.test_in_order import alive, needs_proc, wait_until
from tests.engines.test_run_tasks import _CannotBeLoaded, _CannotBeSent

ROOT = Path(__file__).parents[2]


class Work:
    """Does what the item says. Every attempt leaves a file that names the item, and in it its process and its child."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, item: str) -> object:
        what, _, _ = item.partition(" ")
        earlier = len(attempts(self._folder, item))
        name = f"{item}.{earlier}"
        child = subprocess.Popen(["sleep", "600"]).pid if what == "parent" else 0
        (self._folder / f"{name}.new").write_text(f"{os.getpid()} {child}")
        (self._folder / f"{name}.new").rename(self._folder / name)
        first = earlier == 0
        if what == "raise" or (what == "flaky" and first):
            raise ValueError(f"not {item}")
        if what == "refuse":
            raise RowOutOfRange(path="store", detail="no row 3")
        if what == "exit":
            sys.exit(3)
        if what == "leave" or (what == "fragile" and first):
            os._exit(4)
        if what in ("hang", "parent") or (what == "hang-once" and first):
            time.sleep(600)
        if what == "overdue":
            expect(0.1)
            time.sleep(600)
        if what == "wait":
            wait_until((self._folder / "go").exists)
        return {"unsent": _CannotBeSent(), "unloaded": _CannotBeLoaded()}.get(what, item)

    def close(self) -> None:
        (self._folder / f"closed.{os.getpid()}").touch()


def attempts(folder: Path, item: str) -> list[Path]:
    return [each for each in folder.glob(f"{item}.*") if each.suffix != ".new"]


def process_of(folder: Path, item: str) -> int:
    """The worker of the first attempt."""
    wait_until((folder / f"{item}.0").exists)
    return int((folder / f"{item}.0").read_text().split()[0])


@pytest.fixture
def run(ray_address: str, tmp_path: Path) -> Callable[..., dict[str, Done[str, Any]]]:
    def run(*items: str, cpus: float = 1, **options: Any) -> dict[str, Done[str, Any]]:
        cluster = Cluster(address=ray_address, cpus=cpus)
        start = partial(Work, tmp_path)
        done = list(run_tasks(start, items, engine="ray", cluster=cluster, **options))
        assert sorted(each.item for each in done) == sorted(items)
        return {each.item: each for each in done}

    return run


Run = Callable[..., dict[str, Done[str, Any]]]


@needs_proc
@pytest.mark.slow
def test_every_item_comes_back_once_whatever_becomes_of_the_others(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, str]] = []

    def on_retry(item: str, failure: TaskFailure) -> None:
        told.append((item, failure.reason))

    plain = [f"item {number}" for number in range(5)]
    odd = ["raise", "flaky", "fragile", "leave", "exit", "refuse", "unsent", "unloaded"]
    found = run(*plain, *odd, workers=2, retries=1, on_retry=on_retry)
    assert [found[item].value for item in plain] == plain
    assert {item: (found[item].attempts, str(found[item].failure)) for item in odd} == {
        "raise": (2, "ValueError: not raise"),
        "flaky": (2, "None"),
        "fragile": (2, "None"),
        "leave": (2, str(found["leave"].failure)),
        "exit": (2, "SystemExit: 3"),
        "refuse": (2, "RowOutOfRange: store: no row 3"),
        "unsent": (2, "ValueError: this result cannot be sent"),
        "unloaded": (
            2,
            "ValueError: invalid literal for int() with base 10: 'this result cannot be loaded'",
        ),
    }
    lost = found["leave"].failure
    assert lost is not None
    assert lost.reason == "lost"
    assert f"the Ray worker was lost ({socket.gethostname()}, process " in lost.message
    assert [each.reason for each in found["fragile"].earlier_failures] == ["lost"]
    assert isinstance(found["refuse"].failure.error, RowOutOfRange)  # type: ignore[union-attr]
    assert "in __call__" in found["raise"].failure.traceback  # type: ignore[union-attr]
    assert sorted(told) == sorted(
        (item, "lost" if item in ("leave", "fragile") else "raised") for item in odd
    )
    assert list(tmp_path.glob("closed.*"))
    workers = {
        int(each.read_text().split()[0]) for item in odd for each in attempts(tmp_path, item)
    }
    wait_until(lambda: not any(map(alive, workers)))
    assert capfd.readouterr() == ("", "")


@needs_proc
@pytest.mark.slow
def test_a_worker_that_is_killed_costs_one_attempt(run: Run, tmp_path: Path) -> None:
    def kill() -> None:
        os.kill(process_of(tmp_path, "hang-once"), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = run("hang-once", "item", workers=2, lost_retries=1)
    killer.join()
    assert {item: done.attempts for item, done in found.items()} == {"hang-once": 2, "item": 1}


@needs_proc
@pytest.mark.slow
def test_late_tasks_are_ended_and_the_time_without_a_worker_does_not_count(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock says that hours have passed as long as the first task hangs. The others wait for its cores."""

    def clock() -> float:
        hangs = bool(attempts(tmp_path, "hang")) and alive(process_of(tmp_path, "hang"))
        return time.monotonic() + 10_000 * hangs

    monkeypatch.setattr("rollbook.engines.tasks.time", SimpleNamespace(monotonic=clock))
    found = run("hang", "item", "overdue", cpus=CPUS, workers=3, timeout_s=5_000)
    assert found["item"].failure is None
    assert str(found["hang"].failure) == "TimeoutError: not done after 5000 s"
    assert "the deadline that it had set itself" in str(found["overdue"].failure)
    assert {found[item].failure.reason for item in ("hang", "overdue")} == {"timed_out"}  # type: ignore[union-attr]
    wait_until(lambda: not alive(process_of(tmp_path, "overdue")))


@pytest.mark.slow
def test_workers_for_which_the_cluster_has_no_room_hold_back_no_item(run: Run) -> None:
    found = run(*(f"item {number}" for number in range(3 * CPUS)), workers=3 * CPUS)
    assert all(done.failure is None for done in found.values())


@needs_proc
@pytest.mark.slow
def test_no_item_begins_in_a_worker_that_is_to_be_renewed(run: Run, tmp_path: Path) -> None:
    """There is room for one worker, so that the next item already waits when the first one fails."""
    found = run("raise", "item", cpus=CPUS, workers=2, renew=lambda failure: True)
    assert found["item"].value == "item"
    assert process_of(tmp_path, "raise") != process_of(tmp_path, "item")


@pytest.mark.slow
def test_a_run_that_is_stopped_gives_back_what_no_worker_has_begun(
    ray_address: str, tmp_path: Path
) -> None:
    """Four items are taken; the cluster has room for one worker."""

    def stop() -> bool:
        if not attempts(tmp_path, "wait 0"):
            return False
        (tmp_path / "go").touch()
        return True

    cluster = Cluster(address=ray_address, cpus=CPUS)
    items = iter([f"wait {number}" for number in range(9)])
    start = partial(Work, tmp_path)
    done = list(
        run_tasks(start, items, engine="ray", cluster=cluster, workers=4, in_order=True, stop=stop)
    )
    assert [each.item for each in done] == ["wait 0"]
    assert next(items) == "wait 4"
    assert not attempts(tmp_path, "wait 1")


@pytest.mark.slow
def test_a_node_that_is_killed_costs_one_attempt(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """Only the other nodes have a GPU. One is killed while the item runs there, and then another one joins."""
    nodes = [ray_cluster.cluster.add_node(num_cpus=1, num_gpus=1)]

    def kill() -> None:
        process_of(tmp_path, "hang-once")
        ray_cluster.cluster.remove_node(nodes[0], allow_graceful=False)

    def add(item: str, failure: TaskFailure) -> None:
        nodes.append(ray_cluster.cluster.add_node(num_cpus=1, num_gpus=1))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        (done,) = run_tasks(
            partial(Work, tmp_path),
            ["hang-once"],
            engine="ray",
            cluster=Cluster(address=ray_cluster.address, gpus=1),
            lost_retries=1,
            on_retry=add,
        )
    finally:
        killer.join()
        for node in nodes[1:]:
            ray_cluster.cluster.remove_node(node)
    assert (done.value, done.attempts) == ("hang-once", 2)
    assert done.earlier_failures[0].reason == "lost"


@pytest.mark.slow
def test_a_node_that_nobody_has_is_waited_for_and_then_named(
    ray_address: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.engines.ray_engine._TELL_S", 0.0)
    cluster = Cluster(address=ray_address, gpus=2, memory_mb=100, node_wait_s=1)
    with pytest.raises(ConfigurationError, match="has 1 CPU and 2 GPU and 100 MB of memory, which"):
        list(run_tasks(partial(Work, Path("none")), ["item"], engine="ray", cluster=cluster))
    assert capfd.readouterr().err == (
        "waiting for a node of the Ray cluster with 1 CPU and 2 GPU and 100 MB of memory\n"
    )


def unstartable() -> Callable[[str], str]:
    raise FileNotFoundError("weights.pt")


@pytest.mark.slow
def test_workers_that_cannot_do_the_work_end_it_all(
    ray_address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(address=ray_address)
    with pytest.raises(ConfigurationError, match=r"cannot be started: FileNotFoundError: weights"):
        list(run_tasks(unstartable, ["item"], engine="ray", cluster=cluster, retries=9))
    assert capfd.readouterr().err.count("Traceback") == 1

    monkeypatch.setattr("rollbook.engines.ray_engine.__version__", "0.0.1")
    with pytest.raises(ConfigurationError, match=r"this process has 0\.0\.1; install the same"):
        list(run_tasks(partial(Work, Path("none")), ["item"], engine="ray", cluster=cluster))


@pytest.mark.slow
def test_a_connection_of_the_caller_is_used_and_stays(ray_address: str, tmp_path: Path) -> None:
    import ray

    ray.init(address=ray_address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        (done,) = run_tasks(partial(Work, tmp_path), ["item"], engine="ray")
        assert done.value == "item"
        assert ray.is_initialized()
        with pytest.raises(ConfigurationError, match=f"connected to the Ray cluster {ray_address}"):
            run_tasks(
                partial(Work, tmp_path), ["item"], engine="ray", cluster=Cluster(address="other:1")
            )
        unsendable = threading.Lock()
        with pytest.raises(ConfigurationError, match="cannot be sent to a Ray worker"):
            run_tasks(lambda: unsendable, ["item"], engine="ray")  # type: ignore[arg-type, return-value]
    finally:
        ray.shutdown()


_DRIVER = """
import signal, sys
from functools import partial
from pathlib import Path
from rollbook.engines import Cluster, run_tasks
from rollbook.errors import ConfigurationError
from tests.engines.test_ray import Work
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
work = partial(Work, Path(sys.argv[1]))
if "too much" in sys.argv:
    try:
        run_tasks(work, ["item"], engine="ray", cluster=Cluster(cpus=100_000))
    except ConfigurationError as error:
        print(error, flush=True)
    sys.argv.remove("too much")
try:
    for done in run_tasks(work, sys.argv[2:], engine="ray", workers=2):
        print(done.item, done.failure.reason if done.failure else "done", flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""


def driver(folder: Path, *items: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _DRIVER, str(folder), *items],
        env={**os.environ, **environment},
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_with(variable: str) -> Iterator[int]:
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (each / "environ").read_bytes() and alive(int(each.name)):
                yield int(each.name)
        except OSError:
            continue


@needs_proc
@pytest.mark.slow
def test_a_local_cluster_leaves_nothing_behind_when_it_is_interrupted(tmp_path: Path) -> None:
    """No process, no file, nothing printed. The process that a task has started ends too.

    It is the second local cluster of its process: the first one was too small, and was not waited for.
    """
    home = tmp_path / "home"
    home.mkdir()
    mark = f"ROLLBOOK_TEST={tmp_path}"
    items = ("too much", "leave", "parent")
    with driver(tmp_path, *items, HOME=str(home), ROLLBOOK_TEST=str(tmp_path)) as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith("no node of the Ray cluster has 100000 CPU, which")
        assert run.stdout.readline() == "leave lost\n"
        wait_until((tmp_path / "parent.0").exists)
        processes = set(processes_with(mark))
        said = b" ".join(Path(f"/proc/{each}/cmdline").read_bytes() for each in processes)
        (folder,) = set(re.findall(rb"/tmp/rollbook-ray-\w+", said))
        assert len(processes) > 5
        os.killpg(run.pid, signal.SIGINT)
        assert run.stdout.read() == "interrupted\n"
    assert run.returncode == 0
    wait_until(lambda: not list(processes_with(mark)))
    assert not Path(os.fsdecode(folder)).exists()
    assert list(home.iterdir()) == []


@needs_proc
@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_killed(ray_address: str, tmp_path: Path) -> None:
    with driver(tmp_path, "hang 1", "hang 2", RAY_ADDRESS=ray_address) as run:
        workers = [process_of(tmp_path, item) for item in ("hang 1", "hang 2")]
        run.kill()
    wait_until(lambda: not any(map(alive, workers)))


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        ("127.0.0.1:1", TransportError, r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start"),
        ("no.such.host.invalid:6379", TransportError, "no Ray cluster answers at no.such.host"),
        ("127.0.0.1", ConfigurationError, "expected HOST:PORT or 'auto'"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_named(
    address: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=said):
        run_tasks(unstartable, ["item"], engine="ray", cluster=Cluster(address=address))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(error, match=said):
        run_tasks(unstartable, ["item"], engine="ray")


@pytest.mark.parametrize(
    "wrong", [{"cpus": -1}, {"gpus": float("nan")}, {"memory_mb": 0}, {"node_wait_s": -1}]
)
def test_wrong_resources_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"{name} is .*, expected at least"):
        Cluster(**wrong)

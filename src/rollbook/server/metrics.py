"""Metrics for Prometheus, on an address of their own, apart from the public API.

With several worker processes each writes its numbers to a shared folder, and the parent process adds them up. Without
an address nothing is counted and nothing is loaded.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Stop = Callable[[], None]

_SHARED = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class Metrics(Protocol):
    def request(self, method: str, route: str, status: int, seconds: float) -> None: ...

    def episode(self, what: str) -> None:
        """`created`, `ready`, `failed`, `deleted`, `abandoned`."""
        ...

    def artifact(self, kind: str, size: int) -> None:
        """An artifact that passed its check."""
        ...

    def upkeep_step(self, step: str, outcome: str, count: int) -> None:
        """`done` or `failed`, and how many rows or blobs it changed."""
        ...

    def upkeep_turn(self, seconds: float) -> None: ...

    def s3_request(self, operation: str, outcome: str, seconds: float) -> None:
        """`ok`, `refused` (S3 answered with an error) or `unavailable`."""
        ...

    def webhook(self, outcome: str) -> None:
        """One attempt: `delivered`, `retried` or `failed`."""
        ...

    def database_pool(self, size: int) -> None:
        """How many transactions this process runs at once."""
        ...

    def database_began(self, waited_s: float) -> None:
        """A transaction got its turn."""
        ...

    def database_ended(self) -> None: ...


class NoMetrics:
    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        return

    def episode(self, what: str) -> None:
        return

    def artifact(self, kind: str, size: int) -> None:
        return

    def upkeep_step(self, step: str, outcome: str, count: int) -> None:
        return

    def upkeep_turn(self, seconds: float) -> None:
        return

    def s3_request(self, operation: str, outcome: str, seconds: float) -> None:
        return

    def webhook(self, outcome: str) -> None:
        return

    def database_pool(self, size: int) -> None:
        return

    def database_began(self, waited_s: float) -> None:
        return

    def database_ended(self) -> None:
        return


NO_METRICS = NoMetrics()


class PrometheusMetrics:
    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry = here = CollectorRegistry()
        ProcessCollector(registry=here)
        if _SHARED not in os.environ:
            here.register(_Processes())
        self._requests = Counter(
            "rollbook_requests", "Requests answered.", ("method", "route", "status"), registry=here
        )
        self._seconds = Histogram(
            "rollbook_request_seconds",
            "Time until a request was answered.",
            ("route",),
            buckets=_SECONDS,
            registry=here,
        )
        self._episodes = Counter(
            "rollbook_episodes", "What happened to episodes.", ("what",), registry=here
        )
        self._artifacts = Counter(
            "rollbook_artifact_bytes", "Bytes of checked artifacts.", ("kind",), registry=here
        )

        self._upkeep_steps = Counter(
            "rollbook_upkeep_steps", "Steps of upkeep.", ("step", "outcome"), registry=here
        )
        self._upkeep_items = Counter(
            "rollbook_upkeep_items", "Rows and blobs that upkeep changed.", ("step",), registry=here
        )
        self._upkeep_seconds = Histogram(
            "rollbook_upkeep_seconds", "Length of one turn of upkeep.", registry=here
        )
        self._upkeep_last = Gauge(
            "rollbook_upkeep_last_turn_timestamp_seconds",
            "When the last turn of upkeep ended.",
            multiprocess_mode="max",
            registry=here,
        )
        self._s3_requests = Counter(
            "rollbook_s3_requests", "Requests to S3.", ("operation", "outcome"), registry=here
        )
        self._s3_seconds = Histogram(
            "rollbook_s3_seconds",
            "Time of a request to S3, with its repetitions.",
            ("operation",),
            buckets=_SECONDS,
            registry=here,
        )
        self._webhooks = Counter(
            "rollbook_webhook_attempts",
            "Attempts to deliver a webhook.",
            ("outcome",),
            registry=here,
        )
        self._pool_size = Gauge(
            "rollbook_database_connections",
            "Transactions that can run at once.",
            multiprocess_mode="livesum",
            registry=here,
        )
        self._pool_busy = Gauge(
            "rollbook_database_connections_busy",
            "Transactions that run now.",
            multiprocess_mode="livesum",
            registry=here,
        )
        self._pool_wait = Histogram(
            "rollbook_database_wait_seconds",
            "Time that a transaction waited for its turn.",
            buckets=_SECONDS,
            registry=here,
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def episode(self, what: str) -> None:
        self._episodes.labels(what).inc()

    def artifact(self, kind: str, size: int) -> None:
        self._artifacts.labels(kind).inc(size)

    def upkeep_step(self, step: str, outcome: str, count: int) -> None:
        self._upkeep_steps.labels(step, outcome).inc()
        self._upkeep_items.labels(step).inc(count)

    def upkeep_turn(self, seconds: float) -> None:
        self._upkeep_seconds.observe(seconds)
        self._upkeep_last.set_to_current_time()

    def s3_request(self, operation: str, outcome: str, seconds: float) -> None:
        self._s3_requests.labels(operation, outcome).inc()
        self._s3_seconds.labels(operation).observe(seconds)

    def webhook(self, outcome: str) -> None:
        self._webhooks.labels(outcome).inc()

    def database_pool(self, size: int) -> None:
        self._pool_size.set(size)

    def database_began(self, waited_s: float) -> None:
        self._pool_busy.inc()
        self._pool_wait.observe(waited_s)

    def database_ended(self) -> None:
        self._pool_busy.dec()


def share_between_workers(folder: Path) -> None:
    """Called before anything is counted and before the workers start, because they inherit the setting."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.glob("*.db"):
        left.unlink()
    os.environ[_SHARED] = str(folder)


def of_all_workers() -> CollectorRegistry:
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    # first, because it forgets the gauges of workers that died
    registry.register(_Processes())
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


class _Processes:
    """This process and its workers, read from /proc when somebody asks. Elsewhere there is nothing to read."""

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        pids = [os.getpid(), *_children()]
        _forget_dead(pids)
        yield GaugeMetricFamily("rollbook_processes", "Processes of this server.", len(pids))
        resident = GaugeMetricFamily(
            "rollbook_process_resident_bytes", "Memory of one process.", labels=["pid"]
        )
        files = GaugeMetricFamily(
            "rollbook_process_open_files", "Open files of one process.", labels=["pid"]
        )
        cpu = CounterMetricFamily(
            "rollbook_process_cpu_seconds", "CPU time of one process.", labels=["pid"]
        )
        for pid in pids:
            try:
                at = Path("/proc", str(pid))
                pages = int((at / "statm").read_text().split()[1])
                times = (at / "stat").read_text().rpartition(")")[2].split()[11:13]
                opened = len(list((at / "fd").iterdir()))
            except OSError:
                continue  # it has ended
            resident.add_metric([str(pid)], pages * os.sysconf("SC_PAGE_SIZE"))
            files.add_metric([str(pid)], opened)
            cpu.add_metric([str(pid)], sum(map(int, times)) / os.sysconf("SC_CLK_TCK"))
        yield from (resident, files, cpu)


def _children() -> list[int]:
    """Workers, without the helper that Python starts beside them."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return [pid for pid in found if b"resource_tracker" not in _command_of(pid)]


def _command_of(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b"resource_tracker"  # it has ended


def _forget_dead(pids: Collection[int]) -> None:
    """The number of connections of a worker that died is not a number any more; what it counted stays."""
    folder = os.environ.get(_SHARED)
    for file in Path(folder).glob("gauge_live*_*.db") if folder else ():
        if int(file.stem.rpartition("_")[2]) not in pids:
            file.unlink(missing_ok=True)


def check_address(address: tuple[str, int], taken: tuple[str, int]) -> None:
    """Refuses an address that cannot be bound, or that is the `taken` one."""
    host, port = address
    everywhere = ("0.0.0.0", "::")
    if (
        port
        and port == taken[1]
        and (host == taken[0] or host in everywhere or taken[0] in everywhere)
    ):
        message = f"metrics: {host}:{port} is where the API is served; choose another --metrics"
        raise ConfigurationError(message=message)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise _unusable(address, error) from error


def _unusable(address: tuple[str, int], error: OSError) -> ConfigurationError:
    host, port = address
    message = f"metrics: {host}:{port} cannot be bound: {error.strerror}; choose another --metrics"
    return ConfigurationError(message=message)


def serve_metrics(address: tuple[str, int], registry: CollectorRegistry) -> Stop:
    """Answers scrapes in a thread until the returned function is called."""
    from prometheus_client import start_http_server

    host, port = address
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise _unusable(address, error) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop

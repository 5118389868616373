"""Metrics for Prometheus, on an address of their own, apart from the public API.

With several worker processes each writes its numbers to a shared folder, and the parent process adds them up. Without
an address nothing is counted and nothing is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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


class NoMetrics:
    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        return

    def episode(self, what: str) -> None:
        return

    def artifact(self, kind: str, size: int) -> None:
        return


class PrometheusMetrics:
    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

        self.registry = here = CollectorRegistry()
        ProcessCollector(registry=here)
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

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def episode(self, what: str) -> None:
        self._episodes.labels(what).inc()

    def artifact(self, kind: str, size: int) -> None:
        self._artifacts.labels(kind).inc(size)


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
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def serve_metrics(address: tuple[str, int], registry: CollectorRegistry) -> Stop:
    """Answers scrapes in a thread until the returned function is called."""
    from prometheus_client import start_http_server

    host, port = address
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        message = (
            f"metrics: {host}:{port} cannot be bound: {error.strerror}; choose another --metrics"
        )
        raise ConfigurationError(message=message) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop

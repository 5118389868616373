"""`rollbook serve` while PostgreSQL or S3 is frozen (SIGSTOP): answers come in time, also that to SIGTERM."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.journeys.deployments import S3_ACCESS, team
from tests.server.blob_servers import Served as ServedS3
from tests.server.blob_servers import frozen, rclone_server
from tests.server.postgres_cluster import PostgresCluster
from tests.server.serving import START_LIMIT_S, Served, serving

_AT_ONCE = 48
"""More than threads for the database (16) and for S3 (32)."""
_READY_S = 2.0
_REQUEST_S = 20.0
_GRACE_S = 4
_BUSY_S = 4.0
"""What a machine may add that runs other tests."""


@dataclass(frozen=True)
class Site:
    server: Served
    cluster: PostgresCluster
    s3: ServedS3

    def answers(self, method: str, path: str, limit_s: float) -> list[httpx.Response]:
        """To many requests at once, each within the limit."""

        def ask(_: int) -> httpx.Response:
            began = time.monotonic()
            answer = client.request(method, path, json={} if method == "POST" else None)
            assert time.monotonic() - began < limit_s + _BUSY_S
            return answer

        url, headers = self.server.base_url, self.server.headers
        with (
            httpx.Client(base_url=url, headers=headers, timeout=120) as client,
            ThreadPoolExecutor(_AT_ONCE) as pool,
        ):
            return list(pool.map(ask, range(_AT_ONCE)))

    def is_ready(self) -> bool:
        return httpx.get(f"{self.server.base_url}/readyz", timeout=30).status_code == 200

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.is_ready():
            assert time.monotonic() < deadline, "it does not come back by itself"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("frozen")
    with ExitStack() as stack:
        s3 = stack.enter_context(rclone_server(folder))
        cluster = PostgresCluster()
        stack.callback(cluster.close)
        options = (*team(cluster, s3).options, "--set", f"shutdown_grace_s={_GRACE_S}")
        server = stack.enter_context(serving(folder / "data", *options, environment=S3_ACCESS))
        yield Site(server, cluster, s3)


def test_readyz_says_within_two_seconds_what_does_not_answer(site: Site) -> None:
    with site.cluster.frozen(), frozen(site.s3):
        for answer in site.answers("GET", "/readyz", _READY_S):
            assert answer.status_code == 503
            checks = answer.json()["checks"]
            assert "answer" in checks["database"]
            assert "answer" in checks["blobs"]
        assert httpx.get(f"{site.server.base_url}/healthz").status_code == 200
    site.wait_until_ready()


@pytest.mark.slow
def test_requests_are_answered_503_and_then_it_goes_on_by_itself(site: Site) -> None:
    begin = "/api/ingest/episode"
    for _ in range(2):  # the second time no connection is left in the pool
        with site.cluster.frozen():
            for answer in site.answers("POST", begin, _REQUEST_S):
                assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
        site.wait_until_ready()
        assert {each.status_code for each in site.answers("POST", begin, _REQUEST_S)} == {201}


@pytest.mark.slow
def test_sigterm_ends_it_within_the_grace_period(site: Site) -> None:
    """The last test of this site."""
    with site.cluster.frozen(), frozen(site.s3), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(site.answers, "POST", "/api/ingest/episode", _REQUEST_S)
        time.sleep(0.5)
        began = time.monotonic()
        site.server.process.send_signal(signal.SIGTERM)
        site.server.process.wait(START_LIMIT_S)
        assert time.monotonic() - began < _GRACE_S + _BUSY_S
        assert {each.status_code for each in waiting.result()} == {503}

"""An S3 server inside the process of the tests, which notes every request; and a URL in memory."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import fsspec
import httpx
import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from rollbook.store.urls.url_folder import UrlFolder

REQUEST = re.compile(r"([A-Z]+) /([^ ?]*)(?:\?[^ ]*)? HTTP")


class Server:
    """An S3 server on this machine, the options to reach it, and every request it answered."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.options = options_for(*self._server.get_host_and_port())
        self.requests: list[tuple[str, str]] = []
        self.files: Any = fsspec.filesystem("s3", **self.options)
        # the buckets of all servers in a process are the same ones
        httpx.post(f"{self.environment['AWS_ENDPOINT_URL']}/moto-api/reset").raise_for_status()
        self.files.mkdir("bucket")

    def note(self, record: logging.LogRecord) -> bool:
        found = REQUEST.search(re.sub(r"\x1b\[\d+m", "", record.getMessage()))
        if found:
            self.requests.append((found[1], found[2]))
        return False

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process reaches the server without options."""
        return {
            "AWS_ACCESS_KEY_ID": self.options["key"],
            "AWS_SECRET_ACCESS_KEY": self.options["secret"],
            "AWS_ENDPOINT_URL": self.options["client_kwargs"]["endpoint_url"],
            "AWS_DEFAULT_REGION": self.options["client_kwargs"]["region_name"],
        }

    def stop(self) -> None:
        self._server.stop()


def options_for(host: str, port: int) -> dict[str, Any]:
    return {
        "key": "key",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "eu-west-1"},
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    log = logging.getLogger("werkzeug")
    level, log.level = log.level, logging.INFO
    running = Server()
    log.addFilter(running.note)
    put, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_object(self: S3Response) -> Any:
        """S3 decides about a condition and writes in one step. This server could answer two requests in between."""
        with one_at_a_time:
            return put(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_object)
        yield running
    running.stop()
    log.removeFilter(running.note)
    log.level = level


@pytest.fixture
def memory() -> Iterator[str]:
    """A URL that nothing else uses; the memory of a process is one filesystem."""
    yield "memory://bucket/store"
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def away(patch: pytest.MonkeyPatch) -> None:
    """Objects can be listed and not be read."""
    patch.setattr(
        UrlFolder, "_read", lambda self, paths, ends: dict.fromkeys(paths, ConnectionError("away"))
    )

"""A real browser: the system's Chromium, driven by Playwright. Without it these tests are skipped, except in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.server.fixtures import postgres_cluster, running_server
from tests.server.people import sqlite_house

__all__ = ["postgres_cluster", "running_server", "sqlite_house"]

FLAGS = (
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_path() -> str | None:
    return (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """Ended with its module: as long as it runs, this thread has an event loop, and nothing can use `asyncio.run`."""
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        text = "there is no Chromium; install it with: apt-get install chromium"
        if os.environ.get("ROLLBOOK_NEED_BROWSER"):
            pytest.fail(text)
        pytest.skip(text)
    started = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
    yield started
    started.close()

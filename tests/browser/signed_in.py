"""A browser window in which somebody is signed in, and that notes whatever goes wrong on its pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypedDict, Unpack
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

from tests.server.people import Person

Theme = Literal["light", "dark"]


@dataclass
class Window:
    page: Page
    base_url: str
    faults: list[str] = field(default_factory=list)
    """Console errors, failed requests and answers with an error status."""

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.base_url}{path}")
        return self.page


class Options(TypedDict, total=False):
    width: int
    height: int
    theme: Theme


@contextmanager
def window_of(
    browser: Browser, person: Person, *, prefix: str = "", **options: Unpack[Options]
) -> Iterator[Window]:
    """Signed in with the cookies of `person`."""
    with empty_window(browser, f"{person.base_url}{prefix}", **options) as window:
        host = urlsplit(person.base_url).hostname or ""
        window.page.context.add_cookies(
            [
                {"name": each.name, "value": each.value or "", "domain": host, "path": "/"}
                for each in person.http.cookies.jar
            ]
        )
        yield window


@contextmanager
def empty_window(
    browser: Browser, base_url: str, *, width: int = 1440, height: int = 900, theme: Theme = "light"
) -> Iterator[Window]:
    """Nobody is signed in. It fails at the end if anything went wrong on a page."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        has_touch=width < 600,
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="Europe/Berlin",
    )
    page = context.new_page()
    window = Window(page, base_url)
    page.on(
        "console",
        lambda said: (
            window.faults.append(f"console: {said.text} {said.location['url']}")
            if said.type == "error"
            else None
        ),
    )
    page.on("pageerror", lambda error: window.faults.append(f"script: {error}"))
    page.on(
        "requestfailed",
        # whoever leaves a page gives up what it was still loading
        lambda asked: (
            window.faults.append(f"failed: {asked.url} {asked.failure}")
            if asked.failure != "net::ERR_ABORTED"
            else None
        ),
    )
    page.on(
        "response",
        lambda answer: (
            window.faults.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None
        ),
    )
    try:
        yield window
        assert not window.faults, "\n".join(window.faults)
    finally:
        context.close()

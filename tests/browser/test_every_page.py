"""Every page that a link leads to opens without an error, fits a phone, and can be used with a screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.every_page import kind_of, pages_from
from tests.browser.signed_in import Theme, window_of
from tests.browser.whole_world import WholeWorld, whole_world
from tests.server.fixtures import StartServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WholeWorld]:
    made = whole_world(running_server, tmp_path_factory.mktemp("portal"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def addresses(browser: Browser, world: WholeWorld) -> list[str]:
    """Whatever is wrong with a page on the way fails all tests of this module."""
    with window_of(browser, world.owner) as window:
        return pages_from(window)


def test_the_walk_reaches_every_kind_of_page(addresses: list[str]) -> None:
    kinds = {kind_of(each).partition("?")[0] for each in addresses}
    assert {
        "/portal",
        "/portal/episodes",
        "/portal/episodes/*",
        "/portal/evals",
        "/portal/evals/*",
        "/portal/evals/*/pairs/*",
        "/portal/scenarios",
        "/portal/stores",
        "/portal/stores/*",
        "/portal/stores/*/rollouts/*",
        "/portal/lineage",
        "/portal/settings",
        "/portal/trends",
        "/keys",
        "/members",
        "/password",
    } <= kinds


@pytest.mark.parametrize("width", [1440, 768, 375])
def test_no_page_is_wider_than_the_window(
    browser: Browser, world: WholeWorld, addresses: list[str], width: int
) -> None:
    wide = {}
    with window_of(browser, world.owner, width=width) as window:
        for address in addresses:
            window.page.goto(address)
            reach: int = window.page.evaluate("document.documentElement.scrollWidth")
            if reach > width:
                wide[kind_of(address)] = reach
    assert not wide


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 375)])
def test_axe_finds_nothing_serious(
    browser: Browser, world: WholeWorld, addresses: list[str], theme: Theme, width: int
) -> None:
    axe, found = Axe(), {}
    with window_of(browser, world.owner, width=width, theme=theme) as window:
        for address in addresses:
            if address.endswith("/report"):  # a page on which no script runs, also not that of axe
                continue
            window.page.goto(address)
            violations = axe.run(window.page).response["violations"]
            serious = [each for each in violations if each["impact"] in ("serious", "critical")]
            if serious:
                found[kind_of(address)] = [
                    (each["id"], each["nodes"][0]["html"][:160]) for each in serious
                ]
    assert not found, "\n".join(f"{kind}: {what}" for kind, what in found.items())


def test_the_walk_below_a_path_reaches_the_same_kinds(
    browser: Browser, running_server: StartServer, tmp_path: Path
) -> None:
    """Every link, form and script address begins with the path."""
    world = whole_world(running_server, tmp_path, prefix="/below")
    try:
        with window_of(browser, world.owner, prefix="/below") as window:
            kinds = {kind_of(each) for each in pages_from(window, "/below/portal")}
        assert len(kinds) > 15
        assert all(each.startswith("/below/") for each in kinds)
    finally:
        world.close()

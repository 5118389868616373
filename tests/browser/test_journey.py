"""The walk of somebody who has to decide, from signing in to the source row behind a decision; with a mouse, on a
phone, and by keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.signed_in import Window, empty_window
from tests.browser.whole_world import WholeWorld, whole_world
from tests.server.fixtures import StartServer
from tests.server.people import join

pytestmark = pytest.mark.slow

MOST_TABS = 300


class Mouse:
    width = 1440

    def press(self, page: Page, what: Locator) -> None:
        what.click()

    def go(self, page: Page, section: str) -> None:
        self.press(
            page, page.get_by_role("navigation", name="Main").get_by_role("link", name=section)
        )


class Touch(Mouse):
    width = 375

    def press(self, page: Page, what: Locator) -> None:
        what.scroll_into_view_if_needed()
        what.tap()

    def go(self, page: Page, section: str) -> None:
        page.locator("details.account > summary").tap()
        self.press(page, page.locator(".drop").get_by_role("link", name=section, exact=True))


class Keyboard(Mouse):
    def press(self, page: Page, what: Locator) -> None:
        """Tab until it has the focus, then Enter."""
        expect(what).to_be_visible()
        for _ in range(MOST_TABS):
            if what.evaluate("each => each === document.activeElement"):
                page.keyboard.press("Enter")
                return
            page.keyboard.press("Tab")
        pytest.fail(f"{MOST_TABS} times Tab do not lead to {what}")


@pytest.fixture(scope="module")
def world(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WholeWorld]:
    made = whole_world(running_server, tmp_path_factory.mktemp("journey"))
    yield made
    made.close()


@pytest.mark.parametrize("hand", [Mouse(), Touch(), Keyboard()], ids=["mouse", "touch", "keyboard"])
def test_from_signing_in_to_the_source_row_behind_a_decision(
    browser: Browser, world: WholeWorld, hand: Mouse
) -> None:
    email = f"{type(hand).__name__.lower()}@example.com"
    join(world.server, world.owner, email, "member").close()
    with empty_window(browser, world.server.base_url, width=hand.width) as window:
        sign_in(window, hand, email)
        find_and_scrub(window, hand)
        drill_into_the_worst_pair(window, hand)
        promote_and_see_the_gate(window, hand)
        walk_back_to_the_source(window, hand)


def sign_in(window: Window, hand: Mouse, email: str) -> None:
    page = window.open("/")
    expect(page).to_have_title(re.compile("Sign in"))
    page.get_by_label("E-mail address").fill(email)
    page.get_by_label("Password").fill("four unrelated words here")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


def find_and_scrub(window: Window, hand: Mouse) -> None:
    page = window.page
    if hand.width > 960:
        page.keyboard.press("/")
        page.keyboard.type("Mug to bin")
        page.keyboard.press("Enter")
    else:
        hand.press(page, page.get_by_role("link", name="Find").first)
        page.get_by_role("textbox", name="Id or name").fill("Mug to bin")
        page.keyboard.press("Enter")
    hand.press(
        page, page.get_by_role("main").get_by_role("link", name=re.compile("Mug to bin")).first
    )
    ready(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(".")
    expect(page.locator("[data-now]")).to_have_text("2.040")
    expect(page).to_have_url(re.compile(r"t=2040ms"))
    shared = page.url
    page.goto(f"{window.base_url}/portal")
    page.goto(shared)
    ready(page)
    expect(page.locator("[data-now]")).to_have_text("2.040")


def ready(page: Page) -> None:
    expect(page.locator("[data-timeline][data-ready]")).to_be_visible()


def drill_into_the_worst_pair(window: Window, hand: Mouse) -> None:
    page = window.page
    hand.go(page, "Evals")
    hand.press(page, page.get_by_role("link", name="Recorded pairs", exact=True))
    expect(page.get_by_text("Hold", exact=True).first).to_be_visible()
    pairs = page.get_by_role("link", name="Compare", exact=True)
    hand.press(page, pairs.first)
    ready(page)
    assert "/pairs/" in urlsplit(page.url).path


def promote_and_see_the_gate(window: Window, hand: Mouse) -> None:
    page = window.page
    baseline = urlsplit(page.url).path.rpartition("/")[2]
    hand.press(page, page.locator(f'main a[href*="/portal/episodes/{baseline}"]').first)
    ready(page)
    promote = page.get_by_role("link", name="Promote to scenario")
    if promote.count():  # an earlier walk may have promoted it
        hand.press(page, promote)
        page.get_by_label("Severity").select_option("critical")
        hand.press(page, page.get_by_role("button", name="Promote", exact=True))
        expect(page).to_have_url(re.compile("/portal/scenarios/"))
    page.goto(f"{window.base_url}/portal/gate?candidate=pick-act-v9")
    expect(page.get_by_text("Blocks", exact=True)).to_be_visible()


def walk_back_to_the_source(window: Window, hand: Mouse) -> None:
    page = window.page
    hand.go(page, "Stores")
    hand.press(page, page.get_by_role("link", name="flats-nov.zarr").first)
    hand.press(page, page.get_by_role("link", name="scene_00000").first)
    expect(page.get_by_role("heading", name="Where it came from")).to_be_visible()
    expect(page.get_by_text(re.compile("Source row 1"))).to_be_visible()
    expect(page.get_by_text("scene_00000/snippet_001")).to_be_visible()

"""The list of episodes and the search box in a real browser: mouse, keyboard, a narrow screen, both themes."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.signed_in import Theme, window_of
from tests.portal.lists_world import ListsWorld, seed_lists
from tests.server.people import House, Person
from tests.server.shared_server import new_organisation


@pytest.fixture(scope="module")
def owner(sqlite_house: House) -> Iterator[Person]:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    yield person
    person.close()


@pytest.fixture(scope="module")
def world(owner: Person) -> ListsWorld:
    return seed_lists(owner)


def path_of(page: Page) -> str:
    parts = urlsplit(page.url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def test_episodes_are_filtered_chosen_and_archived_with_the_mouse(
    browser: Browser, owner: Person, world: ListsWorld
) -> None:
    with window_of(browser, owner) as window:
        page = window.open("/portal/episodes")
        expect(page.locator(".selbar")).to_be_hidden()
        page.get_by_text("Robot", exact=True).first.click()
        page.get_by_label("Robot, exactly").fill("ur5e-02")
        page.get_by_role("button", name="Apply").locator("visible=true").click()
        expect(page.get_by_role("link", name="Remove the filter Robot ur5e-02")).to_be_visible()
        assert path_of(page) == "/portal/episodes?robot=ur5e-02", "empty fields are not sent"
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(15)
        rows.nth(1).get_by_role("checkbox").click()
        rows.nth(4).get_by_role("checkbox").click(modifiers=["Shift"])
        expect(page.locator("[data-picked]")).to_have_text("4 selected")
        expect(page.locator("tr[aria-selected=true]")).to_have_count(4)
        page.get_by_role("button", name="Archive").click()
        expect(page.get_by_role("status")).to_contain_text("4 episodes archived.")
        assert path_of(page) == "/portal/episodes?robot=ur5e-02", "loading it again sends nothing"
        expect(rows).to_have_count(11)
        page.get_by_role("button", name="Undo").click()
        expect(page.get_by_role("status")).to_contain_text("4 episodes restored.")
        expect(rows).to_have_count(15)


def test_the_list_is_walked_by_keyboard_alone(
    browser: Browser, owner: Person, world: ListsWorld
) -> None:
    with window_of(browser, owner) as window:
        page = window.open("/portal/episodes?sort=oldest")
        for key in ("j", "j", "x", "j", "x", "k"):
            page.keyboard.press(key)
        expect(page.locator("[data-picked]")).to_have_text("2 selected")
        expect(page.locator("tbody tr").nth(1).get_by_role("link")).to_be_focused()
        page.keyboard.press("?")
        expect(page.locator("dialog.keymap")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("dialog.keymap")).to_be_hidden()
        menu = page.get_by_label("Menu and account")
        menu.press("Enter")
        expect(page.get_by_role("link", name="API keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(menu).to_be_focused()
        expect(page.locator("[data-picked]")).to_have_text("2 selected")
        page.locator("tbody tr").nth(1).get_by_role("link").focus()
        page.keyboard.press("Escape")
        expect(page.locator(".selbar")).to_be_hidden()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{window.base_url}/portal/episodes/{world.episodes[1]}")
        page.go_back()
        page.keyboard.press("/")
        page.keyboard.type(world.done_run[:-3])
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{window.base_url}/portal/evals/{world.done_run}")


@pytest.mark.parametrize(("width", "theme"), [(1440, "dark"), (375, "light")])
def test_no_list_page_scrolls_sideways_or_complains(
    browser: Browser, owner: Person, world: ListsWorld, width: int, theme: Theme
) -> None:
    with window_of(browser, owner, width=width, theme=theme) as window:
        for path in ("/portal", "/portal/episodes?tag=nightly", "/portal/find?q=slot"):
            page = window.open(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page = window.open("/portal/episodes")
        page.locator("tbody tr").first.get_by_role("checkbox").click()
        for name in ("Use as baselines", "Side by side", "Tag", "Archive", "Delete…"):
            button = page.get_by_role("button", name=name, exact=True)
            expect(button).to_be_in_viewport(ratio=1)
        button = page.get_by_role("button", name="Delete…")
        button.click()
        expect(page.get_by_role("heading", name="Delete 1 episode?")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_empty_page_notices_the_first_episode_and_keeps_the_key(
    browser: Browser, sqlite_house: House
) -> None:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    with window_of(browser, person) as window:
        page = window.open("/portal")
        page.get_by_role("button", name="Make a key and fill it in").click()
        expect(page.locator("pre").first).to_contain_text("ROLLBOOK_API_KEY=rb_")
        person.call("POST", "/api/ingest/episode", json={"name": "the first"})
        page.get_by_role("link", name="The first episode is here").click()
        expect(page.get_by_text("the first", exact=True)).to_be_visible()
    person.close()

"""The frame of the portal in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.signed_in import Theme, window_of
from tests.server.people import House, Person
from tests.server.shared_server import new_organisation


@pytest.mark.parametrize("width", [1440, 375])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_overview_opens_without_an_error(
    browser: Browser, sqlite_house: House, width: int, theme: Theme
) -> None:
    with window_of(browser, sqlite_house.owner, width=width, theme=theme) as window:
        page = window.open("/")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_slash_leads_to_the_search_box(browser: Browser, sqlite_house: House) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = window.open("/portal")
        page.keyboard.press("/")
        expect(page.get_by_role("textbox", name="Find any id or name")).to_be_focused()


def test_a_command_is_copied_also_where_scripts_have_no_clipboard(
    browser: Browser, sqlite_house: House
) -> None:
    """Browsers give it to pages over https and on the own machine only."""
    with window_of(browser, sqlite_house.owner) as window:
        window.page.add_init_script(
            "Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined })"
        )
        page = window.open("/portal/stores")
        command = page.locator(".cmd pre").inner_text()
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_focused()
        box = page.get_by_role("textbox", name="Find any id or name")
        box.press("Control+V")
        expect(box).to_have_value(command)


def test_paper_is_white_whatever_the_screen_is(browser: Browser, sqlite_house: House) -> None:
    ink = "getComputedStyle(document.body).color"
    with window_of(browser, sqlite_house.owner, theme="dark") as window:
        page = window.open("/portal")
        page.get_by_label("Menu and account").click()
        page.get_by_role("button", name="Light or dark").click()
        black = page.evaluate(ink)
        page.get_by_role("button", name="Light or dark").click()
        assert page.evaluate(ink) != black
        page.emulate_media(media="print")
        assert page.evaluate(ink) == black


def test_what_is_said_in_place_of_a_list_stays_in_its_box(
    browser: Browser, sqlite_house: House
) -> None:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    person.call("POST", "/api/ingest/episode", json={"name": "alone"})
    with window_of(browser, person, width=375) as window:
        for path in ("/portal", "/portal/evals", "/portal/scenarios", "/portal/lineage"):
            page = window.open(path)
            outside = page.eval_on_selector_all(
                ".emptystate",
                """all => all.flatMap((box) => [...box.children].filter((each) => {
                  const [inner, outer] = [each.getBoundingClientRect(), box.getBoundingClientRect()];
                  const card = box.closest('.card').getBoundingClientRect();
                  return inner.right > outer.right || inner.left < outer.left || outer.left < card.left + 8;
                })).map((each) => each.textContent)""",
            )
            assert page.locator(".emptystate").count() == 1, path
            assert outside == [], path
    person.close()

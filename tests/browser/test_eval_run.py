"""Eval runs in a real browser: from the list to the worst pair, by mouse and by keyboard, and live progress."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.signed_in import Theme, window_of
from tests.portal.runs_world import Plan, RunsWorld, baselines, results, running, runs_world, send
from tests.server.campaigns import campaigner
from tests.server.people import House, Person

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> RunsWorld:
    return runs_world(campaigner(sqlite_house.server), pairs=40)


@pytest.fixture(scope="module")
def owner(world: RunsWorld) -> Iterator[Person]:
    person = world.team.owner()
    yield person
    person.close()


def test_from_the_list_to_the_pair_that_got_worst(
    browser: Browser, world: RunsWorld, owner: Person
) -> None:
    with window_of(browser, owner) as window:
        page = window.open("/portal/evals")
        page.get_by_label("Decision").select_option("ship")
        page.get_by_role("button", name="Filter").click()
        page.get_by_role("link", name="Nightly, bins and racks").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Nightly, bins and racks")
        # the links of a picture can be reached by keyboard, and say what they are
        page.keyboard.press("n")
        worst = page.locator("[data-dots] a").first
        expect(worst).to_be_focused()
        expect(page.locator(".tip")).to_contain_text("→")
        page.keyboard.press("n")
        expect(page.locator("[data-dots] a").nth(1)).to_be_focused()
        page.keyboard.press("p")
        expect(worst).to_be_focused()
        assert page.locator('[data-dots] a[tabindex="0"]').count() == 1
        page.get_by_role("link", name=re.compile("^Change")).click()
        expect(page.get_by_role("columnheader", name="Change ↓")).to_have_attribute(
            "aria-sort", "descending"
        )
        page.get_by_role("link", name=re.compile(r"^Lost \d+$")).click()
        lost = page.locator("[data-rows] tbody tr")
        for number in range(lost.count()):
            expect(lost.nth(number)).to_contain_text("lost")
        lost.first.get_by_role("link", name="Compare").click()
        expect(page).to_have_url(re.compile(f"{world.path('ship')}/pairs/"))
        expect(page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_run_is_wider_than_a_telephone(
    browser: Browser, world: RunsWorld, owner: Person, theme: Theme
) -> None:
    with window_of(browser, owner, width=375, theme=theme) as window:
        for path in ("/portal/evals", *map(world.path, ("hostile", "crashes", "running"))):
            page = window.open(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


def test_results_that_arrive_move_the_progress_and_the_end_brings_the_decision(
    browser: Browser, world: RunsWorld, owner: Person
) -> None:
    ids = baselines(world.team, 12)
    run_id = running(world.team, ids, done=4)
    with window_of(browser, owner) as window:
        page = window.open(f"/portal/evals/{run_id}")
        expect(page.get_by_text("4 of 12 pairs measured")).to_be_visible()
        send(world.team, run_id, results(ids, Plan())[4:10])
        expect(page.get_by_text("10 of 12 pairs measured")).to_be_visible()
        send(world.team, run_id, results(ids, Plan())[10:])
        world.team.finalize(run_id)
        expect(page.get_by_role("heading", name="What the gate asked")).to_be_visible(
            timeout=30_000
        )
    world.team.http.delete(f"/api/eval-runs/{run_id}")

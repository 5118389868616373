"""A pair in a real browser: two videos and all tracks on one clock, where they differ most, and its neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.signed_in import window_of
from tests.portal.episodes_world import EpisodesWorld, seed_episodes
from tests.portal.pairs_world import metrics_of
from tests.server.campaigns import campaigner
from tests.server.people import House, Person

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Pairs:
    owner: Person
    run: str
    episodes: EpisodesWorld
    unkept: str

    def path(self, baseline: str) -> str:
        return f"/portal/evals/{self.run}/pairs/{baseline}"


@pytest.fixture(scope="module")
def pairs(sqlite_house: House) -> Iterator[Pairs]:
    team = campaigner(sqlite_house.server)
    seeded = seed_episodes(team.server, team.access)
    [unkept] = team.baselines(1, success=True)
    run = team.run([seeded.dropped, unkept], "pick-act-v4")
    won = metrics_of(False, True)
    team.result(run, seeded.dropped, metrics=won, candidate_episode_id=seeded.placed)
    team.result(run, unkept, metrics=metrics_of(True, False))
    owner = team.owner()
    yield Pairs(owner, run, seeded, unkept)
    owner.close()


def _ready(page: Page) -> None:
    expect(page.locator("[data-timeline][data-ready]")).to_be_visible()


@pytest.mark.parametrize("width", [1440, 375])
def test_both_sides_follow_one_clock(browser: Browser, pairs: Pairs, width: int) -> None:
    with window_of(browser, pairs.owner, width=width) as window:
        page = window.open(f"{pairs.path(pairs.episodes.dropped)}?t=2000ms")
        _ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(page.locator(".track").first).to_contain_text("Action difference")
        for well in page.locator(".well video").all():
            expect(well).to_have_attribute("data-ready", "true")
        page.keyboard.press(".")
        expect(page.locator("[data-now]")).to_have_text("2.040")
        for video in page.locator(".well video").all():
            expect(video).to_have_js_property("currentTime", 2.06)
        # both readings of a channel stand at its head: the baseline's first
        row = page.locator(".track", has_text="action/gripper").last
        expect(row.locator(".value")).to_have_text(["0.0", "0.0"])
        page.locator(".ruler .plot").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        expect(row.locator(".value")).to_have_text(["0.0", "90.0"])
        if width == 1440:
            first = page.locator("[data-peaks] button").first
            seconds = (first.text_content() or "").removesuffix(" s")
            first.click()
            expect(page.locator("[data-now]")).to_have_text(re.compile(f"^{re.escape(seconds)}"))


def test_keys_lead_to_the_worse_and_the_better_pair(browser: Browser, pairs: Pairs) -> None:
    with window_of(browser, pairs.owner) as window:
        page = window.open(pairs.path(pairs.episodes.dropped))
        _ready(page)
        page.keyboard.press("n")
        expect(page.get_by_text("This is the worst")).to_be_visible()
        expect(page.get_by_text("Nothing to play")).to_be_visible()
        page.keyboard.press("p")
        _ready(page)
        expect(page.get_by_text("This is the best")).to_be_visible()

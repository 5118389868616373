"""Scenarios, the gate, trends, comparisons and lineage in a real browser: an episode is promoted and blocks, and every
page fits its screen and can be read by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from rollbook.contracts.policy import PolicyRevision
from tests.browser.signed_in import Theme, window_of
from tests.portal.pairs_world import completed_run, scenario, trainer_batch
from tests.server.campaigns import campaigner
from tests.server.people import House, Person

pytestmark = pytest.mark.slow

LONG = "a-policy-with-a-name-that-is-longer-than-any-column-of-any-table"


@dataclass(frozen=True)
class World:
    owner: Person
    episode: str
    pages: tuple[str, ...]
    revision: str


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> Iterator[World]:
    team = campaigner(sqlite_house.server)
    baselines = team.baselines(40, success=False)
    parent, this = (
        PolicyRevision(
            policy_family="arm",
            revision_id=f"arm-{number}",
            policy_digest=f"weights {number}",
            produced_at_ms=1_700_000_000_000 + number,
            revision_number=number,
            parent_revision_id=f"arm-{number - 1}",
        )
        for number in (2, 3)
    )
    batch = trainer_batch("batch-3", this, parent)
    rows = {"store_digest": "0a" * 32, "rows": [1, 2], "name": LONG}
    body = {"revision": msgspec.to_builtins(this), "stores": [rows]}
    body["batches"] = [msgspec.to_builtins(batch)]
    recorded = team.post("/api/policy-revisions", body)["id"]
    made = scenario(team, baselines[0], name=LONG)
    outcomes = [(False, each > 5) for each in range(40)]
    exact = {"candidate_policy_revision": msgspec.to_builtins(this)}
    first = completed_run(team, baselines, "arm-3", outcomes, name="Nightly", **exact)
    second = completed_run(team, baselines, LONG, outcomes[::-1], name=LONG)
    owner = team.owner()
    pages = (
        "/portal/scenarios",
        f"/portal/scenarios/{made}",
        f"/portal/scenarios/{made}/remove",
        f"/portal/gate?candidate={LONG}",
        "/portal/trends",
        f"/portal/compare?run={first}&run={second}",
        f"/portal/evals/{first}/pairs/{baselines[0]}",
        "/portal/lineage",
        f"/portal/lineage/{recorded}",
        f"/portal/lineage?version={LONG}&as=list",
    )
    yield World(owner, baselines[1], pages, recorded)
    owner.close()


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1440, "dark"), (375, "light")])
def test_every_page_fits_and_has_no_serious_violation(
    browser: Browser, world: World, width: int, theme: Theme
) -> None:
    with window_of(browser, world.owner, width=width, theme=theme) as window:
        for path in world.pages:
            page = window.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            found = Axe().run(page).response["violations"]
            serious = [
                (one["id"], one["nodes"][0]["html"][:200])
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
            assert serious == [], path


def test_a_promoted_episode_blocks_and_lineage_leads_to_the_decision(
    browser: Browser, world: World
) -> None:
    with window_of(browser, world.owner) as window:
        page = window.open(f"/portal/episodes/{world.episode}/promote")
        page.get_by_label("Name", exact=True).fill("The cup tips over")
        page.get_by_label("Severity").select_option("critical")
        page.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("The cup tips over")
        page = window.open("/portal/scenarios")
        page.get_by_label("Version of the candidate").fill("arm-9")
        page.get_by_role("button", name="Check the gate").click()
        expect(page.get_by_text("Blocks", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="The cup tips over")).to_be_visible()
        page = window.open(f"/portal/lineage/{world.revision}")
        page.locator(".graph a", has_text="Nightly").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Nightly")

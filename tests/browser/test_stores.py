"""A store in a real browser: registered, looked at, verified and filtered, on a wide and a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.signed_in import Theme, window_of
from tests.portal.stores_world import StoresWorld, small_store, start_stores_world
from tests.server.fixtures import StartServer

pytestmark = pytest.mark.slow

LONG = "a_policy_with_a_name_that_is_longer_than_any_column"


@pytest.fixture(scope="module")
def world(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoresWorld]:
    made = start_stores_world(running_server, tmp_path_factory.mktemp("stores"))
    small_store(made.root / "flats.zarr", 60, policies=("oracle_greedy", "random_valid", LONG))
    yield made
    made.close()


def test_register_verify_and_filter(browser: Browser, world: StoresWorld) -> None:
    with window_of(browser, world.owner) as window:
        page = window.open("/portal/stores")
        expect(page.get_by_role("heading", name="No store is registered")).to_be_visible()
        page.get_by_label("Folder of the server, or S3 URL").fill(str(world.root / "flats.zarr"))
        page.get_by_role("button", name="Register").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("flats.zarr")
        expect(page.get_by_role("status")).to_have_text("not verified")
        page.get_by_role("button", name="Verify").click()
        expect(page.get_by_role("status")).to_contain_text("every byte checked", timeout=30_000)
        page.get_by_role("link", name="All 60").first.click()
        page.get_by_label("Policy").select_option("random_valid")
        page.get_by_role("button", name="Filter").click()
        expect(page.get_by_text("20 of 60 rollouts")).to_be_visible()
        page.get_by_role("link", name="Return").click()
        expect(page.get_by_role("columnheader", name="Return")).to_have_attribute(
            "aria-sort", "descending"
        )
        assert "policy=random_valid&sort=-return" in page.url


@pytest.mark.parametrize(("width", "theme"), [(1440, "dark"), (375, "light")])
def test_pages_of_a_store_are_accessible_and_fit(
    browser: Browser, world: StoresWorld, width: int, theme: Theme
) -> None:
    listed = world.owner.get("/api/stores").json()["stores"]
    made = listed[0] if listed else world.register(world.root / "flats.zarr")
    path = f"/portal/stores/{made['id']}"
    below = ("", "/rollouts", "/targets", "/suspicious", "/remove")
    with window_of(browser, world.owner, width=width, theme=theme) as window:
        for each in ("/portal/stores", *(f"{path}{more}" for more in below)):
            page = window.open(each)
            assert page.locator("html").evaluate("root => root.scrollWidth") <= width, each
            found = Axe().run(page).response["violations"]
            serious = [one["id"] for one in found if one["impact"] in ("serious", "critical")]
            assert serious == [], each


@pytest.mark.parametrize("width", [1440, 1000, 768, 375])
def test_words_of_a_store_can_be_read_at_every_width(
    browser: Browser, world: StoresWorld, width: int
) -> None:
    """A family is no column of letters, a line has its name inside of its card, and a filter shows its choice."""
    listed = world.owner.get("/api/stores").json()["stores"]
    made = listed[0] if listed else world.register(world.root / "flats.zarr")
    with window_of(browser, world.owner, width=width) as window:
        page = window.open(f"/portal/stores/{made['id']}")
        name = page.locator(".families .name:not(.hd)").first.bounding_box()
        assert name is not None
        assert name["height"] <= 44
        outside = page.eval_on_selector_all(
            "svg.c.lines text",
            """all => all.filter((each) => {
              const card = each.closest('.card').getBoundingClientRect();
              return each.getBoundingClientRect().right > card.right;
            }).map((each) => each.textContent)""",
        )
        assert outside == []
        page = window.open(f"/portal/stores/{made['id']}/rollouts")
        for each in page.locator(".storechoice select").all():
            box = each.bounding_box()
            assert box is not None
            assert box["width"] >= 56

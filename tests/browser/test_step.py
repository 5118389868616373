"""One rollout in a real browser: the 3D view, picking, links to the same view, keys, a phone, and no WebGL."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from rollbook.store.reader import RolloutZarrStoreReader
from tests.browser.signed_in import Theme, Window, window_of
from tests.portal.steps_world import rollouts_in, source_beside
from tests.portal.stores_world import StoresWorld, start_stores_world
from tests.server.fixtures import StartServer

pytestmark = pytest.mark.slow

READY = "#scene[data-ready]"


@dataclass(frozen=True)
class Rollout:
    world: StoresWorld
    reader: RolloutZarrStoreReader
    path: str

    def open(self, window: Window, query: str = "") -> Page:
        page = window.open(f"{self.path}{query}")
        page.wait_for_selector(READY)
        return page


@pytest.fixture(scope="module")
def rollout(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rollout]:
    world = start_stores_world(running_server, tmp_path_factory.mktemp("steps"))
    place = rollouts_in(world.root / "a.zarr", source_beside(world.root))
    store_id = world.register(place)["id"]
    yield Rollout(world, RolloutZarrStoreReader(place), f"/portal/stores/{store_id}/rollouts/1")
    world.close()


def picture(page: Page) -> np.ndarray:
    """The canvas as the reader sees it, without what lies above it."""
    png = page.locator("#scene canvas").screenshot()
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).mean())


def lonely_candidate(rollout: Rollout) -> tuple[int, list[float]]:
    """The row and the place of the candidate of the first step that is farthest from all others."""
    reader = rollout.reader
    shell = reader.candidates(int(reader.array("rollouts/step_offset")[1]))
    places = shell["pose_world_cam"][:, 9:].astype(float)
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 100 * np.eye(len(places))
    at = int(np.argmax(apart.min(axis=1) * ~shell["selected_mask"]))
    return int(shell["candidate_row_id"][at]), places[at].tolist()


def test_a_rollout_can_be_turned_picked_stepped_and_shared(
    browser: Browser, rollout: Rollout
) -> None:
    with window_of(browser, rollout.world.owner) as window:
        page = rollout.open(window, "?step=1")
        drawn = picture(page)
        assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 100, "the canvas shows a scene"
        expect(page.locator("[data-geometry]")).to_contain_text("triangles")

        # turning writes the camera into the address
        box = page.locator("#scene canvas").bounding_box()
        assert box is not None
        middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] + 120, middle[1] + 30, steps=4)
        page.mouse.up()
        page.wait_for_url("**view=*")
        assert distance(picture(page), drawn) > 2

        # picking a candidate changes the card and the address, and keeps the view
        row, place = lonely_candidate(rollout)
        view = ",".join(f"{each:.3f}" for each in (0.4, 0.9, 2.5, *place))
        page = rollout.open(window, f"?step=1&view={view}")
        page.mouse.click(*middle)  # the camera looks at the candidate
        expect(page.locator("#step-candidate h2")).to_have_text(f"Candidate {row}")
        assert f"cand={row}" in page.url
        assert f"view={view}" in page.url

        # the address opens the same picture
        shared = page.url
        before = picture(page)
        page.goto("about:blank")
        page.goto(shared)
        page.wait_for_selector(READY)
        expect(page.locator("#step-candidate h2")).to_have_text(f"Candidate {row}")
        assert distance(picture(page), before) < 1

        # steps by key; going back leads back
        page.keyboard.press(".")
        expect(page.get_by_role("heading", level=1)).to_contain_text("step 2 of 3")
        assert "view=" in page.url
        page.keyboard.press(",")
        expect(page.get_by_role("heading", level=1)).to_contain_text("step 1 of 3")
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_contain_text("step 2 of 3")

        # another colour is another picture of the same view
        plain = picture(page)
        family = page.get_by_role("group", name="Colour by").get_by_role("link", name="Family")
        family.click()
        expect(family).to_have_attribute("aria-current", "true")
        expect(family).to_be_focused()
        expect(page.locator("#step-legend")).to_contain_text("local")
        expect(page.locator("#scene")).to_have_attribute("data-shown", re.compile("colour=family"))
        assert distance(picture(page), plain) > 0.05


def test_the_view_is_used_by_keyboard_and_rests_when_nothing_changes(
    browser: Browser, rollout: Rollout
) -> None:
    with window_of(browser, rollout.world.owner) as window:
        page = rollout.open(window, "?step=2")
        page.locator("#scene canvas").focus()
        before = picture(page)
        for key in ("ArrowLeft", "ArrowUp", "+", "Shift+ArrowRight"):
            page.keyboard.press(key)
        page.wait_for_url("**view=*")
        assert distance(picture(page), before) > 2
        expect(page.get_by_role("heading", level=1)).to_contain_text("step 2 of 3")
        page.locator("#row-" + str(first_row(page))).focus()
        page.keyboard.press("j")
        expect(page.locator("tr[aria-selected=true]")).to_have_count(1)


def first_row(page: Page) -> int:
    return int(page.locator("[data-row]").first.inner_text())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone_and_has_no_serious_fault_for_a_screen_reader(
    browser: Browser, rollout: Rollout, theme: Theme
) -> None:
    with window_of(browser, rollout.world.owner, width=375, height=800, theme=theme) as window:
        page = rollout.open(window, "?step=2&rows=all")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        found = Axe().run(page)
        serious = [
            each
            for each in found.response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], [each["id"] for each in serious]


def test_without_webgl_the_page_says_so_and_still_works(browser: Browser, rollout: Rollout) -> None:
    with window_of(browser, rollout.world.owner) as window:
        window.page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
        page = window.open(f"{rollout.path}?step=1")
        expect(page.locator("[data-problem]")).to_contain_text("no WebGL2")
        page.keyboard.press(".")
        expect(page.get_by_role("heading", level=1)).to_contain_text("step 2 of 3")
        row = first_row(page)
        page.locator(f"#row-{row}").click()
        expect(page.locator("#step-candidate h2")).to_have_text(f"Candidate {row}")


def test_a_lost_graphics_card_comes_back(browser: Browser, rollout: Rollout) -> None:
    with window_of(browser, rollout.world.owner) as window:
        page = rollout.open(window, "?step=1")
        before = picture(page)
        page.evaluate(
            """() => new Promise((resolve) => {
              const canvas = document.querySelector('#scene canvas');
              const card = canvas.getContext('webgl2').getExtension('WEBGL_lose_context');
              const afterDrawing = () => requestAnimationFrame(() => requestAnimationFrame(resolve));
              canvas.addEventListener('webglcontextrestored', afterDrawing);
              canvas.addEventListener('webglcontextlost', () => setTimeout(() => card.restoreContext(), 0));
              card.loseContext();
            })"""
        )
        assert distance(picture(page), before) < 1

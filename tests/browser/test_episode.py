"""An episode in a real browser: every way to a time leads to the right frame, which the pixels of the video prove."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from rollbook.client import Client
from tests.browser.signed_in import Window, window_of
from tests.portal.episodes_world import (
    FAILED_AT_S,
    FPS,
    HOSTILE,
    EpisodesWorld,
    numbered_frames,
    seed_episodes,
    squares,
)
from tests.server.people import House
from tests.server.video.test_video import Clip

pytestmark = pytest.mark.slow

_FRAME = """([selector, places]) => {
  const shown = document.querySelector(selector);
  const canvas = document.createElement('canvas');
  canvas.width = shown.videoWidth || shown.width;
  canvas.height = shown.videoHeight || shown.height;
  const context = canvas.getContext('2d');
  context.drawImage(shown, 0, 0);
  return places.reduce((sum, x, bit) => sum + (context.getImageData(x, 8, 1, 1).data[0] > 128 ? 1 << bit : 0), 0);
}"""


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> EpisodesWorld:
    return seed_episodes(sqlite_house.server, sqlite_house.server.first_org)


def _opened(window: Window, episode_id: str, query: str = "") -> Page:
    page = window.open(f"/portal/episodes/{episode_id}{query}")
    expect(page.locator("[data-timeline][data-ready]")).to_be_visible()
    return page


def _painted(page: Page, selector: str = "video") -> int:
    """The number in the pixels of the frame that is shown."""
    frame: int = page.evaluate(_FRAME, [selector, squares()])
    return frame


def _expect_frame(page: Page, frame: int) -> None:
    """The page says so, and the picture is that frame."""
    expect(page.locator("[data-frame]")).to_have_text(re.compile(rf"^frame {frame} of \d+$"))
    video = page.locator("video[data-ready]")
    if frame:
        expect(video).to_have_attribute("data-number", str(frame))
    else:
        expect(video).not_to_have_attribute("data-number", re.compile("[1-9]"))
    # the browser may paint a frame a moment after it says that it has it; a wrong frame would stay wrong
    deadline = time.monotonic() + 5
    while _painted(page) != frame and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    assert _painted(page) == frame


def _box(page: Page) -> dict[str, float]:
    found: Any = page.locator(".ruler .plot").bounding_box()
    assert found is not None
    return {name: float(value) for name, value in found.items()}


def _query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_mouse_and_keys_lead_to_the_right_frame_and_the_link_opens_it_again(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, world.dropped)
        _expect_frame(page, 0)
        box = _box(page)
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.2, middle)
        page.mouse.down()
        for share in (0.3, 0.45, 0.4):
            page.mouse.move(box["x"] + box["width"] * share, middle)
        page.mouse.up()
        at = float(page.locator("[data-now]").inner_text())
        assert at == pytest.approx(4.8, abs=0.02)
        _expect_frame(page, int(at * FPS + 1e-6))
        for key, by in ((".", 1), (".", 1), (",", -1)):
            before = _painted(page)
            page.keyboard.press(key)
            _expect_frame(page, before + by)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Shift+ArrowRight")
        shown = int(page.locator("[data-frame]").inner_text().split()[1])
        _expect_frame(page, shown)
        assert shown == pytest.approx((4.8 + 6) * FPS, abs=2)
        page.keyboard.press("End")
        _expect_frame(page, 12 * FPS - 1)
        page.keyboard.press("Home")
        _expect_frame(page, 0)
        page.keyboard.press("]")
        expect(page.locator("[data-now]")).to_have_text(f"{FAILED_AT_S:.3f}")
        frame = int(FAILED_AT_S * FPS + 1e-6)
        _expect_frame(page, frame)
        page.locator("[data-link]").click()
        assert _query(page)["t"] == ["5640ms"]
        again = window.open(page.url.removeprefix(window.base_url))
        expect(again.locator("[data-timeline][data-ready]")).to_be_visible()
        _expect_frame(again, frame)


def test_the_way_back_leads_over_the_places_that_were_looked_at(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, world.dropped)
        box = _box(page)
        seen = ["0.000"]
        for share in (0.25, 0.75):
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + 10)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] * (share + 0.1), box["y"] + 10, steps=4)
            page.mouse.up()
            seen.append(page.locator("[data-now]").inner_text())
        assert len(set(seen)) == 3
        for at in reversed(seen[:-1]):
            page.go_back()
            expect(page.locator("[data-now]")).to_have_text(at)
            _expect_frame(page, int(float(at) * FPS + 1e-6))
        page.go_forward()
        expect(page.locator("[data-now]")).to_have_text(seen[1])


def test_a_link_to_any_frame_shows_that_frame(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        for frame in (1, 7, 145, 224):
            page = _opened(window, world.placed, f"?t={frame * 1000 // FPS}ms")
            _expect_frame(page, frame)


@pytest.mark.parametrize("declared", [None, 2.0])
def test_a_link_leads_to_its_moment_when_no_length_or_a_shorter_one_was_declared(
    browser: Browser, sqlite_house: House, declared: float | None
) -> None:
    t = np.arange(1000)
    server = sqlite_house.server
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        made = client.log_episode(
            sensors={"/a/x": np.sin(t / 50)}, t_ns=t * 10_000_000, duration_s=declared
        )
    with window_of(browser, sqlite_house.owner) as window:
        for query in ("t=5000ms", "t=5000ms&from=4000ms&to=6000ms", "from=4000ms&to=6000ms"):
            page = _opened(window, str(made.id), f"?{query}")
            expect(page.locator("[data-total]")).to_have_text("9.990")
            at = "5.000" if query.startswith("t=") else "0.000"
            expect(page.locator("[data-now]")).to_have_text(at)
            page.locator("[data-link]").click()
            assert urlsplit(page.url).query == query


def test_it_plays_at_the_chosen_rate_and_stops_on_a_frame(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, world.dropped)
        page.get_by_role("button", name="4×").click()
        page.locator("body").press("Space")
        expect(page.get_by_role("button", name="Pause (space)")).to_be_visible()
        expect(page.locator("[data-now]")).to_have_text(re.compile(r"^[2-9]\."))
        page.locator("[data-play]").click()
        expect(page.get_by_role("button", name="Play (space)")).to_be_visible()
        at = float(page.locator("[data-now]").inner_text())
        _expect_frame(page, int(at * FPS + 1e-6))
        assert page.evaluate("document.querySelector('video').playbackRate") == 4


def test_zoom_fetches_finer_columns_and_stands_in_the_address(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, world.dropped, "?t=6000ms")
        with page.expect_response(re.compile(r"/tracks\?.*from=")) as answer:
            for _ in range(3):
                page.keyboard.press("+")
        asked = parse_qs(urlsplit(answer.value.url).query)
        assert float(asked["to"][0]) - float(asked["from"][0]) == pytest.approx(1.5 * 1.2, abs=0.1)
        expect(page).to_have_url(re.compile(r"from=\d+ms&to=\d+ms"))
        page.reload()
        expect(page.locator("[data-timeline][data-ready]")).to_be_visible()
        expect(page.get_by_role("button", name="All", exact=True).first).to_be_visible()
        page.keyboard.press("0")
        expect(page).not_to_have_url(re.compile("from="))


def test_channels_are_chosen_by_topic_and_the_choice_stands_in_the_address(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, world.dropped)
        rows = page.locator(".track .topic")
        expect(rows).to_have_count(6)
        page.get_by_role("button", name="Choose", exact=True).click()
        page.get_by_role("searchbox", name="Filter channels").fill("wrench")
        expect(page.locator(".picker fieldset:visible")).to_have_count(1)
        page.get_by_role("button", name="None").click()
        expect(rows).to_have_count(0)
        page.locator(".picker fieldset:visible legend input").check()
        expect(rows).to_have_count(1)
        expect(page.locator("[data-shown]")).to_have_text("3 of 23 channels")
        expect(page).to_have_url(re.compile(r"ch=%2Fwrench%2Fforce"))
        page.reload()
        expect(page.locator("[data-timeline][data-ready]")).to_be_visible()
        expect(rows).to_have_count(1)
        rows.first.click()
        expect(rows.first).to_have_attribute("aria-expanded", "false")
        expect(page.locator(".track .plot").first).to_be_hidden()


def test_every_channel_of_a_recording_with_hundreds_can_be_chosen_and_linked(
    browser: Browser, sqlite_house: House
) -> None:
    t = np.arange(200)
    hands = {f"/hand{n}/force": np.sin(t / 9 + n)[:, None] * np.ones(30) for n in range(10)}
    server = sqlite_house.server
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        made = client.log_episode(name="Many", sensors=hands, t_ns=t * 10_000_000)
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, str(made.id))
        shown = page.locator("[data-shown]")
        expect(shown).to_have_text("128 of 300 channels")
        page.get_by_role("button", name="Choose", exact=True).click()
        page.get_by_role("button", name="None").click()
        expect(page).to_have_url(re.compile(r"\?ch=$"))
        page.get_by_role("searchbox", name="Filter channels").fill("hand9")
        page.locator(".picker fieldset:visible legend input").check()
        expect(shown).to_have_text("30 of 300 channels")
        page.keyboard.press("Escape")
        page.locator(".ruler .plot").click()
        value = page.locator(".track .value").first
        expect(value).to_have_text(re.compile(r"\d\.\d\d"))
        page.reload()
        expect(page.locator("[data-timeline][data-ready]")).to_be_visible()
        expect(shown).to_have_text("30 of 300 channels")
        expect(value).to_have_text(re.compile(r"\d\.\d\d"))
        page.get_by_role("button", name="Choose", exact=True).click()
        page.locator(".picker [data-all]").click()
        expect(shown).to_have_text("300 of 300 channels")
        expect(page).to_have_url(re.compile(r"ch=\*"))
        page.reload()
        expect(shown).to_have_text("300 of 300 channels")


def test_a_video_that_is_longer_than_what_was_declared_is_shown_whole(
    browser: Browser, sqlite_house: House
) -> None:
    server = sqlite_house.server
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        made = client.log_episode(
            video=numbered_frames(100, 208, 64),
            fps=FPS,
            duration_s=3.0,
            sensors={"observation.candidate_positions_in_the_room/value": np.ones((4, 8))},
            t_ns=np.arange(4) * 10**9,
        )
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, str(made.id))
        expect(page.locator("[data-total]")).to_have_text("4.000")
        expect(page.locator("[data-zoom-all]")).to_be_hidden()
        expect(page).not_to_have_url(re.compile("from="))
        # a topic with several rows says which of its channels each one has, however long its name is
        for row, channels in enumerate(("0–5", "6–7")):
            range_ = page.locator(".track .topic .u").nth(row)
            expect(range_).to_have_text(channels)
            label, words = (
                page.locator(".track .lab").nth(row).bounding_box(),
                range_.bounding_box(),
            )
            assert label is not None
            assert words is not None
            assert words["x"] + words["width"] <= label["x"] + label["width"]


def test_a_video_that_is_gone_says_so_in_its_place(browser: Browser, sqlite_house: House) -> None:
    server = sqlite_house.server
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        made = client.log_episode(video=numbered_frames(10, 208, 64), fps=FPS)
    [file] = [each for each in server.data_dir.rglob("video.mp4") if str(made.id) in str(each)]
    file.unlink()
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, str(made.id))
        words = page.get_by_text("its bytes are gone from the blob store")
        expect(words).to_be_visible()
        expect(page.locator("video")).to_be_hidden()
        # the browser names the video that the server does not have: that, and nothing else, went wrong
        assert window.faults
        assert all("/artifact/video" in each for each in window.faults)
        window.faults.clear()


@pytest.mark.parametrize("width", [1440, 375])
def test_menus_lie_over_the_page_and_close_again(
    browser: Browser, sqlite_house: House, world: EpisodesWorld, width: int
) -> None:
    with window_of(browser, sqlite_house.owner, width=width) as window:
        page = _opened(window, world.dropped)
        ruler = _box(page)
        more, delete = page.get_by_label("More", exact=True), page.get_by_text("Delete …")
        more.click()
        expect(delete).to_be_in_viewport(ratio=1)
        assert _box(page) == ruler, "nothing moves"
        page.keyboard.press("Escape")
        expect(delete).to_be_hidden()
        expect(more).to_be_focused()
        more.click()
        page.get_by_role("heading", level=1).click()
        expect(delete).to_be_hidden()
        page.get_by_text("Command to repeat it").click()
        expect(page.get_by_text("Put your policy and your environment in")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_text("Put your policy and your environment in")).to_be_hidden()


def test_a_finger_scrubs_at_375_pixels_and_nothing_leaves_the_screen(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner, width=375, height=740) as window:
        page = _opened(window, world.dropped)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        page.locator(".track .plot").nth(3).tap(position={"x": 187, "y": 10})
        expect(page.locator("[data-now]")).to_have_text(re.compile(r"^[56]\."))
        at = float(page.locator("[data-now]").inner_text())
        expect(page.locator("video")).to_have_attribute("data-number", str(int(at * FPS + 1e-6)))
        assert _painted(page) == int(at * FPS + 1e-6)
        _drag_finger(page, (0, -60))
        expect(page.locator("[data-now]")).to_have_text(f"{at:.3f}")
        _drag_finger(page, (100, 0))
        expect(page.locator("[data-now]")).to_have_text(re.compile(r"^9\."))


STILL = """() => new Promise((done) => {
  let [at, frames] = [scrollY, 0];
  const look = () => {
    [at, frames] = [scrollY, scrollY === at ? frames + 1 : 0];
    frames < 10 ? requestAnimationFrame(look) : done();
  };
  look();
})"""
"""Waits until ten frames have shown the page at the same place."""


def _drag_finger(page: Page, by: tuple[int, int]) -> None:
    """Touches as a screen sends them, in steps, from the middle of a track that nothing covers."""
    plot = page.locator(".track .plot").nth(3)
    page.evaluate(STILL)  # a page that was flung moves on after the finger has left it
    # in the middle of the screen: at the top it would lie under the video, which stays there
    plot.evaluate("each => each.scrollIntoView({block: 'center', behavior: 'instant'})")
    page.evaluate(STILL)
    box: Any = plot.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    assert plot.evaluate("(each, at) => each.contains(document.elementFromPoint(...at))", [x, y])
    session = page.context.new_cdp_session(page)
    steps = [{"x": x + by[0] * n / 10, "y": y + by[1] * n / 10} for n in range(11)]
    for number, place in enumerate(steps):
        kind = "touchMove" if number else "touchStart"
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.detach()


def test_image_arrays_show_as_frames(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, world.pictures, "?t=1200ms")
        canvas = page.locator(".well canvas")
        expect(canvas).to_have_attribute("data-number", "12")
        assert _painted(page, ".well canvas") == 12
        page.keyboard.press(".")
        expect(canvas).to_have_attribute("data-number", "13")
        assert _painted(page, ".well canvas") == 13


def test_a_video_that_browsers_cannot_play_appears_when_its_copy_is_made(
    browser: Browser, sqlite_house: House, tmp_path: Path
) -> None:
    clip = Clip("mpeg4", frames=40).write(tmp_path)
    server = sqlite_house.server
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        made = client.log_episode(name="From an old camera", video=clip, duration_s=2.0)
    with window_of(browser, sqlite_house.owner) as window:
        page = _opened(window, str(made.id))
        expect(page.locator("video[data-ready]")).to_be_visible(timeout=20_000)
        page.keyboard.press(".")
        expect(page.locator("[data-frame]")).to_have_text("frame 1 of 40")
        expect(page.locator("[data-waiting]")).to_have_count(0)


def test_two_episodes_share_a_clock_and_the_shorter_one_says_that_it_ended(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        pair = f"episode={world.placed}&episode={world.dropped}"
        page = window.open(f"/portal/side-by-side?{pair}&t=5840ms")
        expect(page.locator("[data-timeline][data-ready]")).to_be_visible()
        expect(page.locator("video[data-ready]")).to_have_count(2)
        for number in (0, 1):
            video = f".well[data-source='{number}'] video"
            expect(page.locator(video)).to_have_attribute("data-number", "146")
            assert _painted(page, video) == 146
        over = page.get_by_text("ended at 9.000 s")
        expect(over).to_be_hidden()
        page.keyboard.press("End")
        expect(page.locator("[data-now]")).to_have_text("12.000")
        expect(over).to_be_visible()


def test_hostile_names_are_drawn_as_text_and_run_nothing(
    browser: Browser, sqlite_house: House, world: EpisodesWorld
) -> None:
    with window_of(browser, sqlite_house.owner) as window:
        window.page.on("dialog", lambda dialog: window.faults.append(f"ran: {dialog.message}"))
        page = _opened(window, world.hostile)
        expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
        expect(page.locator(".track .topic").first).to_contain_text("<svg onload")
        page.get_by_role("button", name="Choose", exact=True).click()
        assert page.locator("svg[onload]").count() == 0
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        expect(page.locator(".cmd pre").first).to_contain_text("git checkout")

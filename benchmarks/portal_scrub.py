"""The page of an episode with 20 channels x 1e5 samples and a video, in a headless browser: when the first frame is
shown, and how many frames a second scrubbing reaches.

Both are times of the browser itself. The limit of scrubbing is how often the same page asks for a frame while nothing
happens. What the script takes of each frame does not depend on what else the machine does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.client import Client
from tests.browser.conftest import FLAGS, chromium_path
from tests.browser.signed_in import window_of
from tests.portal.episodes_world import numbered_frames
from tests.server.people import Person
from tests.server.running import RunningServer

_SAMPLES = 100_000
_CHANNELS = 20
_LENGTH_S = 12.0
_FPS = 30
_ROUNDS = 3
"""The best counts: others use the machine too."""
_FRAMES = 240
_FIRST_FRAME = "episode page until its first video frame, 20 channels x 1e5 samples"
_SCRUBBING = "scrubbing that page"
_SCRIPT = "script of one scrubbed frame"
_MARKS = """() => Object.fromEntries(
  performance.getEntriesByType('mark').map((each) => [each.name, each.startTime]))"""
_MEASURE = """
async (frames) => {
  const { stage } = await import(document.querySelector('script[src*="/episode.js"]').src);
  const rate = (step) => new Promise((resolve) => {
    let first = 0, count = 0, spent = 0;
    const frame = (now) => {
      first ||= now;
      if (count === frames) return resolve([1000 * frames / (now - first), spent / frames]);
      const began = performance.now();
      step(count++ / frames);
      spent += performance.now() - began;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  const empty = await rate(() => {});
  const place = (share) => stage.clock.duration * (0.5 - 0.5 * Math.cos(share * 6 * Math.PI));
  const scrubbed = await rate((share) => stage.clock.seek(place(share), false));
  const zoomed = await rate((share) => stage.timeline.window(place(share) / 2, place(share) / 2 + 3));
  return { empty, scrubbed, zoomed };
}
"""


def main(scale: float = 1.0) -> list[Claim]:
    found = _measured(max(20, int(_FRAMES * scale)), _ROUNDS if scale > 0.1 else 1)
    if found is None:
        print("  no Chromium: install it with apt-get install chromium; not measured")
        missing = ((_FIRST_FRAME, 1.0, "s", True), (_SCRUBBING, 50.0, "frames/s", False))
        return [Claim(name, None, bar, unit, most) for name, bar, unit, most in missing]
    print(f"episode page, {_CHANNELS} channels x {_SAMPLES:,} samples, {_LENGTH_S:g} s of video")
    for name in ("first-frame", "tracks"):
        print(f"  {name + ' after navigation':36} {min(found[name]) / 1000:8.2f} s")
    for name, words in (
        ("scrubbed", "scrubbing"),
        ("zoomed", "zooming: every track is drawn again"),
        ("empty", "limit: nothing happens"),
    ):
        rate, spent = found[name]
        print(f"  {words:36} {rate:8.1f} frames/s  {spent:6.2f} ms of script a frame")
    return [
        Claim(_FIRST_FRAME, min(found["first-frame"]) / 1000, 1.0, "s", at_most=True),
        Claim(_SCRUBBING, found["scrubbed"][0], 50.0, "frames/s"),
        Claim(_SCRIPT, found["scrubbed"][1], 4.0, "ms", at_most=True),
    ]


def _measured(frames: int, rounds: int) -> dict[str, Any] | None:
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        return None
    with scratch() as folder:
        server = RunningServer(Path(folder))
        server.prepare()
        server.start()
        try:
            episode_id = _recorded(server)
            owner = Person(server).sign_in_by_link(server.first_org)
            with sync_playwright() as started:
                browser = started.chromium.launch(executable_path=path, args=[*FLAGS])
                with window_of(browser, owner) as window:
                    seen: dict[str, Any] = {"first-frame": [], "tracks": []}
                    for _ in range(rounds):
                        page = window.open(f"/portal/episodes/{episode_id}")
                        page.locator("[data-timeline][data-ready]").wait_for()
                        page.locator("video[data-ready]").wait_for()
                        marks = page.evaluate(_MARKS)
                        for name in ("first-frame", "tracks"):
                            seen[name].append(marks[f"rollbook:{name}"])
                    found = [page.evaluate(_MEASURE, frames) for _ in range(rounds)]
                    seen |= {name: max(each[name] for each in found) for name in found[0]}
                browser.close()
            owner.close()
            return seen
        finally:
            server.close()


def _recorded(server: RunningServer) -> str:
    t = np.linspace(0, _LENGTH_S, _SAMPLES, endpoint=False)
    rng = np.random.default_rng(5)
    values = np.stack(
        [np.sin(t * (1 + 0.2 * each)) + rng.normal(0, 0.02, _SAMPLES) for each in range(_CHANNELS)],
        axis=1,
    ).astype(np.float32)
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        made = client.log_episode(
            name="Twenty channels",
            fps=_FPS,
            duration_s=_LENGTH_S,
            video=numbered_frames(round(_LENGTH_S * _FPS), 640, 480),
            sensors={
                f"/group_{each}/value": values[:, each * 5 : each * 5 + 5] for each in range(4)
            },
            t_ns=(t * 1e9).astype(np.int64),
        )
    assert made.id is not None
    return made.id

"""The 3D view of the portal in a headless browser without a graphics card: frames a second while somebody drags.

A frame counts when its pixels exist: one of them is read back before the next frame is asked for. The limit is how
often the same browser asks for a frame when nothing is drawn.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.timing import Claim
from rollbook.portal import static_files
from tests.browser.conftest import FLAGS, chromium_path

_TRIANGLES = 25_000
_FRUSTA = 60
_SIZE = (1016, 635)
_FRAMES = 150
_TARGET_FPS = 20
_CLAIM = "3D frames/s while dragging, 25,000 triangles and 60 frusta, no graphics card"
_PAGE = '<!doctype html><canvas width="300" height="150" id="view"></canvas>'
_MEASURE = """
async ({ frames, size, positions, corners, poses }) => {
  const { View3D, DISC } = await import('/view3d.js');
  const { frustum, centre } = await import('/shapes3d.js');
  const canvas = document.getElementById('view');
  canvas.style.width = `${size[0]}px`; canvas.style.height = `${size[1]}px`;
  const view = new View3D(canvas);
  view.showMesh(new Float32Array(positions), new Uint32Array(corners));
  view.showLines(poses.flatMap((pose) => frustum(pose, .2, [.4, .8, .7, 1], 1.25)));
  view.showMarks(poses.map((pose, id) => [centre(pose), [.4, .8, .7, 1], 9, DISC, id]));
  view.orbit.read('0.8,0.7,9,0,0,0.5');
  const pixel = new Uint8Array(4);
  const rate = (step) => new Promise((resolve) => {
    let first = 0, count = 0;
    const frame = () => {
      const now = performance.now();
      first ||= now;
      if (count++ === frames) return resolve(1000 * frames / (now - first));
      step();
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  const empty = await rate(() => {});
  const draw = view.draw.bind(view);
  view.draw = () => { draw(); view.gl.readPixels(0, 0, 1, 1, view.gl.RGBA, view.gl.UNSIGNED_BYTE, pixel); };
  const before = view.drawn;
  const dragged = await rate(() => { view.orbit.turn(4, 1); view.moved(); });
  const moving = [canvas.width, canvas.height];
  return { empty, dragged, frames, moving, drawn: view.drawn - before, card: view.gl.getParameter(view.gl.RENDERER) };
}
"""


def main(scale: float = 1.0) -> list[Claim]:
    found = measured(max(10, int(_FRAMES * scale)))
    if found is None:
        print("  no Chromium: install it with apt-get install chromium; not measured")
        return [Claim(_CLAIM, None, _TARGET_FPS, "frames/s")]
    print(
        f"3D view, {_SIZE[0]}x{_SIZE[1]}, drawn at {found['moving']} while moving, {found['card']}"
    )
    print(f"  {'dragging':36} {found['dragged']:8.1f} frames/s")
    print(f"  {'limit: nothing is drawn':36} {found['empty']:8.1f} frames/s")
    return [Claim(_CLAIM, found["dragged"], _TARGET_FPS, "frames/s")]


def measured(frames: int) -> dict[str, Any] | None:
    from playwright.sync_api import Route, sync_playwright

    path = chromium_path()
    if path is None:
        return None
    static = Path(static_files.__file__).with_name("static")

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.removeprefix("/")
        if name.endswith(".js"):
            route.fulfill(body=(static / name).read_text(), content_type="text/javascript")
        else:
            route.fulfill(body=_PAGE, content_type="text/html")

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=[*FLAGS])
        try:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.route("**/*", answer)
            page.goto("http://rollbook.test/")
            found: dict[str, Any] = page.evaluate(_MEASURE, _scene(frames))
        finally:
            browser.close()
    return found


def _scene(frames: int) -> dict[str, Any]:
    """Rolling ground with as many triangles as a page ever gets, and cameras around its middle."""
    vertices, faces = _ground(126, 101)
    assert len(faces) == _TRIANGLES
    angles = np.linspace(0, 2 * np.pi, _FRUSTA, endpoint=False)
    poses = [
        [*np.eye(3).ravel().tolist(), 1.5 * math.cos(angle), 1.5 * math.sin(angle), 1.0]
        for angle in angles.tolist()
    ]
    return {
        "frames": frames,
        "size": _SIZE,
        "positions": vertices.ravel().tolist(),
        "corners": faces.ravel().tolist(),
        "poses": poses,
    }


def _ground(long: int, wide: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, y = np.meshgrid(np.linspace(-4, 4, long), np.linspace(-4, 4, wide), indexing="ij")
    z = 0.3 * np.sin(3 * x) * np.cos(2 * y)
    at = (np.arange(long - 1)[:, None] * wide + np.arange(wide - 1)).ravel()
    corners = [at, at + 1, at + wide, at + 1, at + wide + 1, at + wide]
    vertices = np.stack([x, y, z], axis=-1).reshape(-1, 3)
    return vertices, np.stack(corners, axis=1).reshape(-1, 3)

"""Pictures of the main pages of the portal, in both themes, wide and narrow, on the data that `make demo` left.

    python -m scripts.screenshots .demo/loop docs/screenshots

Pictures have few colours and wide ones are made smaller, so that all of them together stay small.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.browser.conftest import FLAGS, chromium_path

Theme = Literal["light", "dark"]
SIZES = {"wide": (1440, 900), "narrow": (375, 812)}
THEMES: tuple[Theme, ...] = ("light", "dark")
WIDEST = 800
COLOURS = 96
_LINK = re.compile(r"(http://[\d.:]+)(/sign-in\?token=\S+)")
_ID = "[0-9a-f]{8}-[0-9a-f-]{27}"

# name, the page to begin with, and the link on it that leads to the picture
PAGES = (
    ("overview", "/portal", None),
    ("episodes", "/portal/episodes", None),
    ("episode", "/portal/episodes?tag=gymnasium", f"/portal/episodes/{_ID}$"),  # one with a video
    ("eval", "/portal/evals", f"/portal/evals/{_ID}$"),
    ("store", "/portal/stores", f"/portal/stores/{_ID}$"),
    ("rollout", "/portal/stores", f"/portal/stores/{_ID}$"),
)
ROLLOUT = "/rollouts/3?step=1"
READY = {"rollout": "#scene[data-ready]", "episode": "[data-timeline][data-ready]"}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("expected two folders: python -m scripts.screenshots .demo/loop docs/screenshots")
    demo, out = (Path(each) for each in sys.argv[1:])
    chromium = chromium_path()
    if not (demo / "server").is_dir():
        sys.exit(f"{demo} has no server: run `make demo ARGS=--no-serve` first")
    if chromium is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    out.mkdir(parents=True, exist_ok=True)
    with served(demo) as (url, link), sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=[*FLAGS])
        context = browser.new_context(locale="en-GB", timezone_id="Europe/Berlin")
        page = context.new_page()
        page.goto(f"{url}{link}")
        page.get_by_role("button").first.click()
        page.wait_for_url("**/portal**")
        for theme in THEMES:
            for size in SIZES:
                _take(context, url, size, theme, out)
        browser.close()
    total = sum(path.stat().st_size for path in out.glob("*.png"))
    print(f"{len(list(out.glob('*.png')))} pictures in {out}, {total / 1000:.0f} kB")


@contextmanager
def served(demo: Path) -> Iterator[tuple[str, str]]:
    """A server on the data of the demo: its URL, and the path of a link that signs in."""
    program = Path(sys.executable).with_name("rollbook")
    roots = [f"--store-root={demo / name}" for name in ("train.zarr", "held-out.zarr", "sources")]
    command = [str(program), "serve", "--data", str(demo / "server"), "--port", "0", *roots]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            found = next(filter(None, map(_LINK.search, process.stdout)), None)
            if found is None:
                sys.exit("the server printed no link to sign in: its owner has a password")
            yield found[1], found[2]
        finally:
            process.terminate()


def _take(context: BrowserContext, url: str, size: str, theme: Theme, out: Path) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": SIZES[size][0], "height": SIZES[size][1]})
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    for name, start, link in PAGES:
        _open(page, url, name, start, link)
        (out / f"{name}-{theme}-{size}.png").write_bytes(_small(page.screenshot()))
    page.close()


def _open(page: Page, url: str, name: str, start: str, link: str | None) -> None:
    page.goto(f"{url}{start}")
    if link is not None:
        links = page.eval_on_selector_all("main a[href]", "all => all.map(each => each.pathname)")
        place = next((each for each in links if re.search(link, each)), None)
        if place is None:
            sys.exit(f"{start} has no link like {link}: run `make demo ARGS=--no-serve` again")
        page.goto(f"{url}{place}{ROLLOUT if name == 'rollout' else ''}")
    if name in READY:
        page.wait_for_selector(READY[name])
    page.wait_for_load_state("networkidle")


def _small(png: bytes) -> bytes:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.width > WIDEST:
        image = image.resize(
            (WIDEST, image.height * WIDEST // image.width), Image.Resampling.LANCZOS
        )
    file = io.BytesIO()
    # refined by k-means, so that greys of a large surface do not take the place of small spots of colour
    few = image.quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    main()

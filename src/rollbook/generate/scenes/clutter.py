"""Clutter: small objects and objects on walls, one builder per class, with everyday sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rollbook.generate.scenes.pieces import Rng, Shape
from rollbook.generate.scenes.solids import Solid, box, cylinder, rounded_box, sphere, torus


def _lamp(rng: Rng, s: Shape) -> None:
    high = rng.uniform(0.32, 0.45)
    s.turned((0, 0), (0.075, 0), (0.075, 0.015), (0.02, 0.03), (0.035, 0.1), (0.012, high - 0.16))
    s.shade(rng.uniform(0.1, 0.14), 0.17, high - 0.17)


def _monitor(rng: Rng, s: Shape) -> None:
    _panel(s, rng.uniform(0.5, 0.64), rng.uniform(0.3, 0.37), 0.11)


def _tv(rng: Rng, s: Shape) -> None:
    _panel(s, rng.uniform(0.85, 1.1), rng.uniform(0.5, 0.6), 0.06)


def _laptop(rng: Rng, s: Shape) -> None:
    half, lean = rng.uniform(0.15, 0.18), rng.uniform(0.15, 0.4)
    s.box((-half, -0.12, 0), (half, 0.11, 0.018))
    lid = box((-half, -0.004, 0), (half, 0.004, 0.22), s.edge)
    tilt = np.array(
        [[1, 0, 0], [0, math.cos(lean), math.sin(lean)], [0, -math.sin(lean), math.cos(lean)]]
    )
    s.add(Solid(lid.vertices @ tilt.T, lid.faces), (0, 0.115, 0.012))


def _vase(rng: Rng, s: Shape) -> None:
    high, belly, neck = rng.uniform(0.18, 0.34), rng.uniform(0.055, 0.09), rng.uniform(0.02, 0.045)
    height = np.linspace(0, 1, 9)
    curve = neck + (belly - neck) * np.sin(np.pi * np.clip(height * 1.25, 0, 1)) ** 1.5
    outer = list(zip(curve.tolist(), (height * high).tolist(), strict=True))
    inner = [(max(r - 0.008, 0.004), z + 0.012 * (1 - z / high)) for r, z in reversed(outer)]
    s.turned((0, 0), *outer, *inner, (0, 0.012))


def _bowl(rng: Rng, s: Shape) -> None:
    radius, high = rng.uniform(0.07, 0.14), rng.uniform(0.05, 0.08)
    angles = np.radians(np.linspace(25, 90, 6))
    outer = [(radius * math.sin(a), high * (1 - math.cos(a))) for a in angles]
    inner = [(r - 0.008, z + 0.004) for r, z in reversed(outer)]
    base = outer[0][1]
    s.turned((0, 0), (outer[0][0], 0), *outer, *inner, (0, base + 0.006))


def _bottle(rng: Rng, s: Shape) -> None:
    radius, high = rng.uniform(0.03, 0.042), rng.uniform(0.22, 0.32)
    s.turned(
        (0, 0), (radius, 0), (radius, high * 0.6), (0.014, high * 0.78), (0.014, high), (0, high)
    )


def _mug(rng: Rng, s: Shape) -> None:
    radius, high = rng.uniform(0.035, 0.045), rng.uniform(0.08, 0.1)
    inner = radius - 0.005
    s.turned((0, 0), (radius, 0), (radius, high), (inner, high), (inner, 0.006), (0, 0.006))
    s.add(torus(0.025, 0.006, s.edge).laid(1), (radius + 0.018, 0, high / 2))


def _book(rng: Rng, s: Shape) -> None:
    """A stack of one to four books."""
    top = 0.0
    for _ in range(int(rng.integers(1, 5))):
        half, back, thick = rng.uniform(0.07, 0.1), rng.uniform(0.1, 0.13), rng.uniform(0.015, 0.04)
        turned = box((-half, -back, 0), (half, back, thick), s.edge).turned(rng.normal(0, 0.12))
        s.add(turned, (0, 0, top))
        top += thick


def _books(rng: Rng, s: Shape) -> None:
    """A row of upright books."""
    x, spines = 0.0, int(rng.integers(4, 10))
    for _ in range(spines):
        thick, deep, high = (
            rng.uniform(0.015, 0.045),
            rng.uniform(0.13, 0.19),
            rng.uniform(0.17, 0.25),
        )
        s.box((x, 0.1 - deep, 0), (x + thick, 0.1, high))
        x += thick
    s.parts = [part.moved((-x / 2, 0, 0)) for part in s.parts]


def _ball(rng: Rng, s: Shape) -> None:
    radius = rng.uniform(0.05, 0.13)
    s.add(sphere(radius, s.edge), (0, 0, radius))


def _carton(rng: Rng, s: Shape) -> None:
    half, back, high = rng.uniform(0.05, 0.13), rng.uniform(0.04, 0.1), rng.uniform(0.05, 0.2)
    s.box((-half, -back, 0), (half, back, high))


def _pillow(rng: Rng, s: Shape) -> None:
    half, back = rng.uniform(0.2, 0.3), rng.uniform(0.16, 0.2)
    pad = rounded_box((-half, -back, 0), (half, back, 0.13), 0.065, s.edge)
    # thinner towards its corners
    out = np.maximum(np.abs(pad.vertices[:, :2]) / (half, back) - 0.5, 0) * 2
    thin = 1 - 0.55 * out.prod(axis=1)
    s.add(Solid(np.column_stack([pad.vertices[:, :2], pad.vertices[:, 2] * thin]), pad.faces))


# ------------------------------------------------------------------------------------- on walls


def _picture(rng: Rng, s: Shape) -> None:
    half, high = rng.uniform(0.2, 0.5), rng.uniform(0.3, 0.7)
    s.box((-half, -0.005, 0), (half, 0.015, high))
    bar = 0.03
    for low, top in (((-half, 0.0), (half, bar)), ((-half, high - bar), (half, high))):
        s.box((low[0], -0.02, low[1]), (top[0], -0.005, top[1]))
    for x in (-half, half - bar):
        s.box((x, -0.02, bar), (x + bar, -0.005, high - bar))


def _clock(rng: Rng, s: Shape) -> None:
    radius = rng.uniform(0.12, 0.18)
    s.add(cylinder(radius, -0.015, 0.015, s.edge).laid(1), (0, 0, radius))
    s.add(torus(radius, 0.015, s.edge).laid(1), (0, -0.01, radius))


def _wall_shelf(rng: Rng, s: Shape) -> None:
    width, depth = rng.uniform(0.6, 1.0), rng.uniform(0.2, 0.26)
    half = width / 2
    s.box((-half, -depth / 2, 0.12), (half, depth / 2, 0.145))
    for x in (-half * 0.7, half * 0.7):
        s.box((x - 0.01, depth / 2 - 0.15, 0.0), (x + 0.01, depth / 2, 0.12))
    s.support(width, depth, 0.145, 0.6)


def _panel(s: Shape, width: float, high: float, lift: float) -> None:
    """A flat screen on a foot."""
    half = width / 2
    s.box((-0.13, -0.09, 0), (0.13, 0.09, 0.015))
    s.box((-0.03, 0.02, 0.015), (0.03, 0.05, lift + high / 2))
    s.box((-half, -0.02, lift), (half, 0.02, lift + high))


_BUILDERS: tuple[Callable[[Rng, Shape], None], ...] = (
    *(_lamp, _monitor, _tv, _laptop, _vase, _bowl, _bottle, _mug, _book, _books, _ball),
    *(_carton, _pillow, _picture, _clock, _wall_shelf),
)
CLUTTER = {build.__name__.removeprefix("_"): build for build in _BUILDERS}

"""The colours of the candidates of a step: by gain, by the reason why they are invalid, or by their family.

The 3D view is dark in both themes and gets the colours as numbers. Tables and charts lie on cards: a gain has the same
colour there, a group the class of its colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rollbook.portal.formats import number
from rollbook.store.audit.charts import colour_ramp

ColourBy = Literal["gain", "reason", "family"]
COLOUR_BY: dict[str, ColourBy] = {"gain": "gain", "reason": "reason", "family": "family"}

_RAMP = colour_ramp(64, 0.93, 0.45)[::-1]
"""From the least gain, dark, to the greatest, light."""
_GREY = (154, 163, 175)
"""Invalid, or without a label."""
_GROUPS = (
    (122, 165, 240),
    (192, 147, 238),
    (238, 140, 185),
    (179, 192, 74),
    (116, 201, 143),
    (167, 176, 188),
)
"""The dark theme's s1 to s6. The last is for all groups that have no colour of their own."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    label: str
    colour: str | None
    """None: the ramp of gains."""
    until: str = ""
    """The label at the other end of the ramp."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateColours:
    rgb: NDArray[np.uint8]
    """[N, 3]"""
    groups: NDArray[np.intp] | None
    """[N]: the class of each, k1 to k6, and 0 for grey; None where the colour is a gain."""
    legend: tuple[LegendEntry, ...]

    def fill(self, at: int) -> Markup:
        """The attribute of an SVG shape for one candidate."""
        if self.groups is not None:
            return Markup('class="k{}"').format(int(self.groups[at]))
        return Markup('fill="{}"').format(_hex(self.rgb[at].tolist()))


def by_gain(gain: NDArray[Any], labelled: NDArray[np.bool_]) -> CandidateColours:
    """Zero is dark, unless there are losses: then the greatest loss is."""
    known = gain[labelled]
    low = min(0.0, float(known.min())) if len(known) else 0.0
    high = max(0.0, float(known.max())) if len(known) else 0.0
    share = np.where(labelled, gain - low, 0.0) / (high - low if high > low else 1.0)
    rgb = _RAMP[np.round(share * (len(_RAMP) - 1)).astype(np.intp)].copy()
    rgb[~labelled] = _GREY
    scale = LegendEntry(f"gain {_bound(low)}", None, _bound(high))
    return CandidateColours(rgb, None, (scale,) if len(known) else ())


def by_group(names: Sequence[object], plain: object = None) -> CandidateColours:
    """The five largest groups have colours of their own. The group named `plain` is grey."""
    values, of_row, counts = np.unique(
        np.array([str(name) for name in names], np.str_), return_inverse=True, return_counts=True
    )
    classes = np.zeros(len(values), np.intp)
    legend = []
    coloured = [at for at in np.lexsort([values, -counts]).tolist() if values[at] != str(plain)]
    for place, at in enumerate(coloured):
        classes[at] = min(place + 1, len(_GROUPS))
        if place < len(_GROUPS) - 1:
            legend.append(LegendEntry(f"{values[at]} {counts[at]}", _hex(_GROUPS[place])))
    if len(coloured) >= len(_GROUPS):
        rest = int(counts[coloured[len(_GROUPS) - 1 :]].sum())
        legend.append(LegendEntry(f"others {rest}", _hex(_GROUPS[-1])))
    groups = classes[of_row]
    palette = np.array([_GREY, *_GROUPS], np.uint8)
    return CandidateColours(palette[groups], groups, tuple(legend))


def _bound(value: float) -> str:
    return "0" if value == 0 else number(value, 2 if abs(value) >= 0.01 else 3)


def _hex(rgb: Sequence[int]) -> str:
    return "#" + "".join(f"{each:02x}" for each in rgb)

"""Text of one step each, as an array. Arrays hold text of one width, so one long text makes every row long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BYTES_PER_CHARACTER = 4
_MOST_BYTES = 64 << 20
_MOST_GROWTH = 64
"""An array may be this many times larger than the text in it, beyond `_MOST_BYTES`."""


class UnstorableText(Exception):
    """The reason why a column of text is left out."""


def check_width(width: int, rows: int, characters: int) -> None:
    """Refuse a column that is almost only padding: a few bytes in a file must not fill the disk."""
    size = width * rows * _BYTES_PER_CHARACTER
    if size > max(_MOST_BYTES, _MOST_GROWTH * characters):
        raise UnstorableText(
            f"one text has {width} characters, which would make all {rows} rows as long"
        )


def text_array(texts: Sequence[str], width: int | None = None) -> NDArray[np.str_]:
    """`width` is the length of the longest text of all blocks; None where these are all texts."""
    if any(text.endswith("\0") for text in texts):
        raise UnstorableText("a text ends in NUL, which an array of text cannot keep")
    if width is None:
        width = max(map(len, texts), default=0)
        check_width(width, len(texts), sum(map(len, texts)))
    return np.array(texts, f"<U{max(1, width)}")

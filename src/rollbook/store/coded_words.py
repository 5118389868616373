"""Coded columns in words: from the dictionaries of a store, or from names that every store has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.store.schema import FIXED_WORDS, Column

Array = NDArray[Any]


class CodedWords(NamedTuple):
    """`words[code]` is the word of a row; a negative code means that there is none."""

    codes: Array
    words: Sequence[str]

    def tolist(self) -> list[str | None]:
        return [self.words[code] if code >= 0 else None for code in self.codes.tolist()]


def coded_words(
    column: Column, values: Array, words: Callable[[str], Sequence[str]]
) -> CodedWords | None:
    """The column in words; None for a column without any, and for vectors of codes. Codes are not copied if possible.

    A code that its dictionary does not have becomes -1. A code that a later release added is named by its number.
    """
    if values.ndim > 1 or column.words == column.fixed_words:  # both None
        return None
    if column.words is not None:
        found = words(column.words)
        missing = values >= len(found)
        return CodedWords(np.where(missing, -1, values) if missing.any() else values, found)
    assert column.fixed_words is not None
    known = FIXED_WORDS[column.fixed_words]
    later = np.unique(values[values >= len(known)])
    if not later.size:
        return CodedWords(values, known)
    codes = np.where(values < len(known), values, len(known) + np.searchsorted(later, values))
    return CodedWords(codes, [*known, *(f"{column.fixed_words}_{code}" for code in later.tolist())])

"""Sequential: evidence that may be looked at after every episode.

A test made for one look says "better" of equal policies far too often when it is asked again and again. An e-value
does not: it is what a fair bet against "not better" would have come to, so by chance it ever reaches 1/alpha in at most
alpha of all runs, however often one looks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, betaln

_LARGEST = 690.0
"""Of a logarithm whose power still is a number."""


def log_e_value(wins: ArrayLike, losses: ArrayLike) -> NDArray[np.float64]:
    """Logarithm of the e-value against "of the pairs that differ, the candidate wins at most half".

    The bet is spread evenly over all shares of wins above one half, which has a closed form. Swap the arguments for
    the bet that the candidate is worse.
    """
    won = np.asarray(wins, np.float64)
    lost = np.asarray(losses, np.float64)
    above = betaincc(won + 1, lost + 1, 0.5)
    with np.errstate(divide="ignore"):
        spread = np.log(above)
    return np.asarray(spread + betaln(won + 1, lost + 1) + (won + lost + 1) * math.log(2))


def e_value(wins: int, losses: int) -> float:
    """A number in any case: where it would be too large to write, the largest that is not."""
    return math.exp(min(_LARGEST, float(log_e_value(wins, losses))))

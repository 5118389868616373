"""Weighted sums of exponential variables: the probability that such a sum is not above zero, without random draws.

The sum is `w_1 E_1 + … + w_n E_n` with independent standard exponential variables E. Its probability is an integral
along a vertical line in the complex plane. The line is put where the integrand has its saddle, so that nothing cancels,
and the steps along it grow, so that few are needed whether the integrand falls like a bell or like a power.

With r_i = w_i / (1 - s w_i) at the saddle s, the integrand at s + iy is the product of 1 / (1 - i y r_i). Most r_i are
small if there are many of them. Their logarithms are then a power series in y with sums of powers of r_i, so that n
weights cost little more than one at each point of the line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.intervals import power_of_two

Floats = NDArray[np.float64]

_STEP = 0.1
_BLOCK = 32
"""The first block ends where a bell has fallen to e^-50."""
_MOST_BLOCKS = 20
_NEGLIGIBLE = 1e-14
_VANISHING = 1e-150
"""Weights that are smaller, relative to the largest one, change nothing, and their squares would be zero."""
_NEWTON_STEPS = 60
_CLOSE = 1e-6
"""The integral is the same on every line; it only has to be near the saddle."""
_MANY = 200
_SMALL = 0.35
_POWERS = 32
"""A series in numbers up to .35 that ends after this power is exact to 1e-13."""


def chance_not_above_zero(weights: Floats, counts: Floats | None = None) -> float:
    """P(sum of weight times exponential <= 0). `counts` says how often each weight occurs; None is once."""
    if not weights.any():
        return 1.0
    scaled = weights / power_of_two(weights)  # the probability does not depend on the scale
    kept = np.abs(scaled) > _VANISHING
    times = np.ones(int(kept.sum())) if counts is None else counts[kept]
    values = scaled[kept]
    if not (values > 0).any():
        return 1.0
    if not (values < 0).any():
        return 0.0
    if float((times * values).sum()) < 0:
        return 1 - _small_chance(-values, times)
    return _small_chance(values, times)


def _small_chance(values: Floats, times: Floats) -> float:
    """The same where the mean of the sum is above zero. Otherwise the pole at zero would be too near to the saddle."""
    at, curvature = _saddle(values, times)
    peak = float((times * np.log1p(-at * values)).sum())
    rates = values / (1 - at * values)
    scale = 1 / np.sqrt(curvature)
    total = 0.0
    for block in range(_MOST_BLOCKS):
        steps = _STEP * np.arange(block * _BLOCK, (block + 1) * _BLOCK)
        heights = scale * np.sinh(steps)
        logs = _log_product(heights, rates, times) - np.log1p(1j * heights / at)
        parts = np.exp(logs).real * np.cosh(steps)
        if block == 0:
            parts[0] /= 2
        total += float(parts.sum())
        if np.abs(parts[-1]) <= _NEGLIGIBLE * abs(total):
            break
    chance = np.exp(-peak) / -at * total * _STEP * scale / np.pi
    return float(min(1.0, max(0.0, chance)))


def _log_product(heights: Floats, rates: Floats, times: Floats) -> NDArray[np.complex128]:
    """Logarithm of the product of 1 / (1 - i y r), for every height y."""
    found = np.zeros(len(heights), complex)
    if len(rates) > _MANY:
        small = np.abs(rates) * heights[-1] <= _SMALL
        found += _series(heights, rates[small], times[small])
        rates, times = rates[~small], times[~small]
    turned = heights[:, None] * rates[None, :]
    found.real -= np.log1p(turned * turned) @ times / 2
    found.imag += np.arctan(turned) @ times
    return found


def _series(heights: Floats, rates: Floats, times: Floats) -> NDArray[np.complex128]:
    """The sum of (i y)^k / k times the sum of r^k."""
    largest = float(np.abs(rates).max(initial=0.0)) or 1.0
    unit, powers = rates / largest, times.copy()
    found = np.zeros(len(heights), complex)
    turned = 1j * heights * largest
    height = np.ones(len(heights), complex)
    for power in range(1, _POWERS + 1):
        powers *= unit
        height *= turned
        found += height * (float(powers.sum()) / power)
    return found


def _saddle(weights: Floats, times: Floats) -> tuple[float, float]:
    """Where the integrand is smallest on the real axis left of zero, and the curvature of its logarithm there."""
    low, high = 1 / float(weights.min()), 0.0
    # Sums of products and not `@`: that starts threads for long vectors, which cost more than they save here.
    at = max(low / 2, -1 / float(np.sqrt((times * weights * weights).sum())))
    for _ in range(_NEWTON_STEPS):
        rates = weights / (1 - at * weights)
        weighted = times * rates
        slope = float(weighted.sum()) - 1 / at
        curvature = float((weighted * rates).sum()) + 1 / (at * at)
        if slope < 0:
            low = at
        else:
            high = at
        step = slope / curvature
        if abs(step) <= _CLOSE * abs(at):
            break
        # A step may leave the interval where the weights are very different; then it is cut in half.
        at = at - step if low < at - step < high else (low + high) / 2
    return at, curvature

"""Columns of minimum and maximum equal what NumPy finds in the raw samples, for any zoom and in any pieces."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.server.recordings.columns import ColumnBounds, as_samples, column_starts


def plainly(
    seconds: NDArray[np.float64], samples: NDArray[np.float32], edges: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Column by column, as the definition says."""
    found = np.full((len(samples), len(edges) - 1, 2), np.nan, np.float32)
    for column in range(len(edges) - 1):
        inside = (seconds >= edges[column]) & (seconds < edges[column + 1])
        if column == len(edges) - 2:
            inside |= seconds == edges[-1]
        for channel, values in enumerate(samples[:, inside]):
            known = values[~np.isnan(values)]
            if known.size:
                found[channel, column] = known.min(), known.max()
    return found


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 300),
    columns=st.integers(1, 60),
    pieces=st.integers(1, 5),
    zoom=st.tuples(st.floats(-0.2, 1.2), st.floats(0.001, 1.2)),
)
def test_columns_are_the_minimum_and_maximum_of_the_samples(
    seed: int, rows: int, columns: int, pieces: int, zoom: tuple[float, float]
) -> None:
    random = np.random.default_rng(seed)
    steps = random.exponential(1.0, rows) * random.integers(0, 2, rows)  # some at the same time
    seconds = np.cumsum(steps)
    samples = random.normal(size=(3, rows)).astype(np.float32)
    samples[random.random((3, rows)) < 0.1] = np.nan
    samples[0, random.random(rows) < 0.05] = np.inf
    begin = zoom[0] * float(seconds[-1])
    end = begin + zoom[1] * max(float(seconds[-1]), 1.0)

    bounds = ColumnBounds(column_starts(seconds, begin, end, columns), 3)
    cuts = np.sort(random.integers(0, rows + 1, pieces - 1))
    row = 0
    for piece in np.split(samples, cuts, axis=1):
        bounds.add(row, piece)
        row += piece.shape[1]

    edges = np.linspace(begin, end, columns + 1)
    np.testing.assert_array_equal(bounds.pairs(), plainly(seconds, samples, edges))


def test_more_columns_than_samples_show_every_sample() -> None:
    samples = np.arange(10, dtype=np.float32)[None]
    bounds = ColumnBounds(column_starts(np.arange(10.0), 0, 9, 1000), 1)
    bounds.add(0, samples)
    low = bounds.low[0]
    assert low[~np.isnan(low)].tolist() == list(range(10))


def test_numbers_too_large_for_32_bits_become_infinite_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_samples(np.array([[1e300], [-1e300]])).tolist() == [[np.inf, -np.inf]]

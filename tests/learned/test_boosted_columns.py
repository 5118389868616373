"""The inputs of a boosted model: features of a candidate, and the same relative to the shell."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.learned.boosted import IN_SHELL, model_columns

NAMES = ("a", "b", "c")
COLUMNS = ("c", "a", f"a{IN_SHELL}", f"c{IN_SHELL}")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_columns_are_those_of_each_shell_alone(states: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(states, width, len(NAMES))).astype(np.float32)
    valid = rng.random((states, width)) < 0.6
    features[~valid] = np.nan  # what is not valid must not reach a mean
    found = model_columns(features, valid, NAMES, COLUMNS)
    expected = []
    for shell, mask in zip(features, valid, strict=True):
        for row in shell[mask]:
            mean = shell[mask].mean(axis=0)
            expected.append([row[2], row[0], row[0] - mean[0], row[2] - mean[2]])
    np.testing.assert_allclose(found, np.reshape(expected, (-1, len(COLUMNS))), atol=1e-5)
    for state in range(states):
        own = slice(state, state + 1)
        first = int(valid[:state].sum())
        np.testing.assert_array_equal(
            model_columns(features[own], valid[own], NAMES, COLUMNS),
            found[first : first + int(valid[state].sum())],
        )

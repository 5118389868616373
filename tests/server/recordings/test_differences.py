"""The difference between the actions of a baseline and of its replay, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from rollbook.server.recordings.differences import step_distance


def test_recordings_of_one_rate_are_paired_by_step() -> None:
    seconds = np.arange(5) / 10
    values = np.zeros((2, 5), np.float32)
    others = np.tile(np.array([[3.0], [4.0]], np.float32), 3)
    distance, pairing = step_distance(seconds, values, seconds[:3] + 100, others)
    assert pairing == "step"
    np.testing.assert_array_equal(distance, [5, 5, 5, np.nan, np.nan])


def test_recordings_of_other_rates_are_paired_by_time_until_one_ends() -> None:
    seconds = np.arange(11) / 10
    values = (np.arange(11)[None] / 10).astype(np.float32)
    other_seconds = np.array([0.0, 0.5])
    distance, pairing = step_distance(seconds, values, other_seconds, values[:, [0, 5]])
    assert pairing == "clock"
    assert distance == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0, 0.1, 0.2, 0.3, 0.4, 0.5], abs=1e-6)
    later, _ = step_distance(seconds + 1.26, values, other_seconds, values[:, [0, 5]])
    assert np.isnan(later).all()


def test_nan_and_one_sample_stay_what_they_are() -> None:
    one = np.zeros(1)
    distance, _ = step_distance(
        one, np.full((1, 1), np.nan, np.float32), one, np.ones((1, 1), np.float32)
    )
    assert np.isnan(distance).all()

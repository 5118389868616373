"""Looks: how many pairs each has, and which one a run has reached."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.scoring.looks import look_sizes, reached_look


@pytest.mark.parametrize(
    ("total", "looks", "sizes"),
    [(400, 4, (50, 100, 200, 400)), (400, 1, (400,)), (101, 3, (26, 51, 101)), (1, 2, (1, 1))],
)
def test_each_look_has_half_of_the_pairs_of_the_next(
    total: int, looks: int, sizes: tuple[int, ...]
) -> None:
    assert look_sizes(total, looks) == sizes


def test_a_look_is_reached_when_all_its_pairs_have_a_result() -> None:
    finished = np.zeros(40, bool)
    assert reached_look(finished, 40, 3) is None
    finished[:10] = True
    assert reached_look(finished, 40, 3) == (1, 10)
    finished[11:] = True
    assert reached_look(finished, 40, 3) == (1, 10), "pair 11 of look 2 has no result"
    finished[10] = True
    assert reached_look(finished, 40, 3) == (3, 40)


def test_pairs_that_are_not_listed_have_no_result() -> None:
    assert reached_look(np.ones(20, bool), 40, 2) == (1, 20)
    assert reached_look(np.ones(19, bool), 40, 2) is None
    assert reached_look(np.zeros(0, bool), 0, 2) is None


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_a_further_result_never_takes_a_look_back(finished: list[bool], looks: int) -> None:
    before = reached_look(np.array(finished, bool), 60, looks)
    for place in range(len(finished)):
        more = np.array(finished, bool)
        more[place] = True
        after = reached_look(more, 60, looks)
        assert (before.number if before else 0) <= (after.number if after else 0)

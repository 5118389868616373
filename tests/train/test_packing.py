import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError, InvalidNumber, SequenceOverBudget
from rollbook.train import balance, pack_to_budget

lengths_and_budget = st.integers(1, 60).flatmap(
    lambda budget: st.tuples(
        st.lists(st.integers(1, budget), min_size=1, max_size=80), st.just(budget)
    )
)


def names(lengths: list[int]) -> list[str]:
    return [f"rollout-{row}" for row in range(len(lengths))]


def packed(lengths: list[int], budget: int) -> list[list[int]]:
    return [rows.tolist() for rows in pack_to_budget(lengths, budget, names(lengths))]


def first_fit_decreasing(lengths: list[int], budget: int) -> list[list[int]]:
    """The plain way: try every open bin in turn."""
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        for rows in bins:
            if sum(lengths[r] for r in rows) + lengths[row] <= budget:
                rows.append(row)
                break
        else:
            bins.append([row])
    return [sorted(rows) for rows in bins]


@given(lengths_and_budget)
def test_packing_is_first_fit_decreasing(case: tuple[list[int], int]) -> None:
    assert packed(*case) == first_fit_decreasing(*case)


@given(lengths_and_budget)
def test_every_row_is_in_one_bin_within_the_budget(case: tuple[list[int], int]) -> None:
    lengths, budget = case
    bins = packed(lengths, budget)
    assert sorted(row for rows in bins for row in rows) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in rows) <= budget for rows in bins)
    assert all(rows == sorted(rows) for rows in bins)
    assert len(bins) <= 2 * -(-sum(lengths) // budget)


@given(lengths_and_budget)
def test_packing_the_same_lengths_again_gives_the_same_bins(case: tuple[list[int], int]) -> None:
    assert packed(*case) == packed(*case)


def test_equal_lengths_are_packed_in_row_order() -> None:
    assert packed([4, 4, 4, 4, 4], 8) == [[0, 1], [2, 3], [4]]


def test_a_hundred_thousand_rows_fill_their_bins() -> None:
    lengths = np.random.default_rng(5).integers(1, 8192, 100_000)
    bins = pack_to_budget(lengths, 16384, [""] * len(lengths))
    assert len(bins) == -(-int(lengths.sum()) // 16384)


def test_bins_are_row_indices_that_arrays_take() -> None:
    assert {rows.dtype for rows in pack_to_budget([3, 2], 4, ["a", "b"])} == {np.dtype(np.int64)}


def test_nothing_needs_no_bin() -> None:
    assert pack_to_budget([], 8, []) == []


def test_a_sequence_over_the_budget_is_refused_by_name() -> None:
    with pytest.raises(SequenceOverBudget) as refused:
        packed([3, 9, 12], 8)
    assert refused.value.fields == {"artifact_id": "rollout-1", "length": 9, "token_budget": 8}


def test_a_negative_length_is_refused_by_name() -> None:
    with pytest.raises(InvalidNumber, match="rollout-1"):
        packed([3, -1], 8)


@pytest.mark.parametrize("budget", [0, -4, True, 2.5])
def test_a_budget_below_one_token_is_refused(budget: int) -> None:
    with pytest.raises(ConfigurationError, match="token_budget"):
        packed([1], budget)


def test_lengths_without_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 lengths for 1 artifact ids"):
        pack_to_budget([1, 2], 8, ["only one"])


@given(lengths_and_budget, st.integers(1, 9))
def test_ranks_share_the_bins_evenly(case: tuple[list[int], int], workers: int) -> None:
    lengths, budget = case
    bins = packed(lengths, budget)
    shares = balance(bins, lengths, workers)
    loads = [sum(lengths[row] for index in share for row in bins[index]) for share in shares]
    counts = [len(share) for share in shares]
    assert len(shares) == workers
    assert sorted(index for share in shares for index in share) == list(range(len(bins)))
    assert max(counts) - min(counts) <= 1
    assert max(loads) - min(loads) <= max(sum(lengths[row] for row in rows) for rows in bins)
    assert shares == balance(bins, lengths, workers)


def test_the_heaviest_bin_goes_to_the_rank_with_the_least_work() -> None:
    assert balance([[0], [1], [2], [3], [4]], [9, 5, 4, 4, 1], 2) == [[0, 3], [1, 2, 4]]


def test_ranks_beyond_the_bins_get_none() -> None:
    assert balance([[0, 1]], [1, 1], 3) == [[0], [], []]


def test_no_workers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        balance([[0]], [1], 0)

"""Derived views are computed and checked in blocks of steps. A block never cuts a chain, whatever the horizon."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.store import derived_views
from rollbook.store.checks import derived
from rollbook.store.checks.columns import Segments
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.q_h import q_h_of
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.returns import returns_of
from tests.store.plain_q_h import plain_q_h
from tests.store.plain_rows import STORES, varied_records, written
from tests.store.synthetic import make_records
from tests.store.test_q_h import assert_same, plain_features
from tests.store.test_returns import plain_returns

Blocks = list[tuple[int, int]]


def assert_whole_chains(blocks: Blocks, lengths: list[int], size: int) -> None:
    ends = {0, *np.cumsum(lengths).tolist()}
    steps = sum(lengths)
    assert blocks[0][0] == 0
    assert blocks[-1][1] == steps
    for (_, end), (start, _) in pairwise(blocks):
        assert end == start
        assert end in ends
    for start, end in blocks:
        assert end - start < size + max(lengths)
        assert start < end or not steps


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 12))
def test_blocks_end_where_chains_end(lengths: list[int], size: int) -> None:
    counts = np.array(lengths)
    rollouts = {"num_steps": counts, "step_offset": np.cumsum(counts) - counts}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived_views, "_BLOCK_STEPS", size)
        patch.setattr(derived, "_BLOCK_STEPS", size)
        written_in = list(derived_views.chain_blocks(rollouts, int(counts.sum())))
        checked_in = [(each.start, each.stop) for each in derived._step_blocks(Segments(counts))]
    assert_whole_chains(written_in, lengths, size)
    if sum(lengths):
        assert_whole_chains(checked_in, lengths, size)


def assert_views_are_plain(reader: RolloutZarrStoreReader, gamma: float) -> None:
    assert_same(reader.q_h_view(), {**plain_q_h(reader, gamma), **plain_features(reader)})
    returns = plain_returns(reader, gamma)
    assert reader.returns_view().keys() == returns.keys()
    for name, values in reader.returns_view().items():
        np.testing.assert_allclose(values, returns[name], rtol=1e-6, atol=1e-9, err_msg=name)


@settings(STORES, max_examples=6)
@given(varied_records(), st.integers(1, 7), st.integers(1, 7))
def test_views_do_not_depend_on_the_size_of_a_block(
    records: list[RolloutZarrRecord], size: int, checked_size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived_views, "_BLOCK_STEPS", size)
        patch.setattr(derived, "_BLOCK_STEPS", checked_size)
        with written(records, discount_gamma=0.9) as reader:
            assert_views_are_plain(reader, 0.9)
            found = validate_rollout_zarr_store(reader.store_dir).violations
            assert {each.code for each in found}.isdisjoint({"q_h_differs", "returns_differs"})


def test_a_horizon_that_does_not_divide_the_block() -> None:
    """More than one block of the real size. The views of the whole store at once are the reference."""
    horizon = 7
    assert derived_views._BLOCK_STEPS % horizon
    count = derived_views._BLOCK_STEPS // horizon + 20
    records = list(make_records(count, seed=8, horizon=horizon, candidates=(2, 4)))
    with written(records, discount_gamma=0.9) as reader:
        assert reader.num_steps > derived_views._BLOCK_STEPS
        assert_same(reader.q_h_view(), q_h_of(reader, 0.9))
        assert_same(reader.returns_view(), returns_of(reader, 0.9))
        found = validate_rollout_zarr_store(reader.store_dir).violations
        assert {each.code for each in found}.isdisjoint({"q_h_differs", "returns_differs"})

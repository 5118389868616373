"""Packs sequences into bins of at most `token_budget` tokens, and assigns bins to data-parallel ranks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from rollbook.contracts.row_numbers import Rows
from rollbook.errors import ConfigurationError, InvalidNumber, SequenceOverBudget


def whole_option(name: str, value: SupportsIndex, lowest: int, highest: int | None = None) -> int:
    """An option as a plain int, so that recipes are equal for every integer type."""
    limits = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if (
        number is None
        or isinstance(value, bool)
        or number < lowest
        or (highest is not None and number > highest)
    ):
        raise ConfigurationError(message=f"{name} is {value!r}, expected a whole number {limits}")
    return number


def pack_to_budget(
    lengths: ArrayLike, token_budget: int, artifact_ids: Sequence[str]
) -> list[Rows]:
    """Rows per bin, by first fit, longest first; equal lengths in row order.

    It takes n log n time and gives the same result for the same lengths. It needs at most 11/9 of the smallest possible
    number of bins, plus one. Rows in a bin ascend; bins are in the order in which they were opened.
    """
    budget = whole_option("token_budget", token_budget, 1)
    sizes = np.asarray(lengths, np.int64)
    if len(sizes) != len(artifact_ids):
        raise ConfigurationError(
            message=f"{len(sizes)} lengths for {len(artifact_ids)} artifact ids"
        )
    _refuse_unpackable(sizes, budget, artifact_ids)
    if not len(sizes):
        return []
    longest_first = np.argsort(-sizes, kind="stable")
    bins = np.empty(len(sizes), np.int64)
    bins[longest_first] = _first_fit(sizes[longest_first].tolist(), budget)
    by_bin = np.argsort(bins, kind="stable")
    return np.split(by_bin, np.cumsum(np.bincount(bins))[:-1])


def _refuse_unpackable(sizes: Rows, budget: int, artifact_ids: Sequence[str]) -> None:
    for row in np.flatnonzero((sizes < 0) | (sizes > budget)).tolist():
        if sizes[row] > budget:
            raise SequenceOverBudget(
                artifact_id=artifact_ids[row], length=int(sizes[row]), token_budget=budget
            )
        raise InvalidNumber(
            record=f"artifact {artifact_ids[row]!r}",
            field="length",
            value=str(sizes[row]),
            expected="a whole number from 0",
        )


def _first_fit(lengths: list[int], budget: int) -> list[int]:
    """The bin of each length.

    `room` is a tree over as many bins as could ever be needed. A node has the largest free room of the bins below it,
    so the first bin with enough room is found by walking down, without trying every open bin.
    """
    leaves = 1 << (len(lengths) - 1).bit_length()
    room = [budget] * (2 * leaves)
    bins = []
    for length in lengths:
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        bins.append(node - leaves)
        room[node] -= length
        while node > 1:
            node //= 2
            most = max(room[2 * node], room[2 * node + 1])
            if room[node] == most:
                break
            room[node] = most
    return bins


def balance(bins: Sequence[ArrayLike], lengths: ArrayLike, workers: int) -> list[list[int]]:
    """Indices into `bins` for each of `workers` ranks, so that all have about the same work.

    Longest processing time, in rounds: each round gives one of the heaviest remaining bins to every rank, the heaviest
    to the rank with the least work so far (ties: lower bin, lower rank). Ranks therefore differ by at most one bin, and
    by no more tokens than the heaviest bin has; the k-th bins of all ranks have similar sizes. No empty bins are added:
    if the number of bins is not a multiple of `workers`, some ranks have one bin less.

    For bins that are already exported, each bin is its own row: `balance([[i] for i in range(len(parts))],
    [len(part.token_ids) for part in parts], workers)`.
    """
    ranks = whole_option("workers", workers, 1)
    sizes = np.asarray(lengths, np.int64)
    loads = [int(sizes[np.asarray(rows, np.int64)].sum()) for rows in bins]
    heaviest_first = sorted(range(len(bins)), key=lambda index: -loads[index])
    shares: list[list[int]] = [[] for _ in range(ranks)]
    carried = [0] * ranks
    for start in range(0, len(bins), ranks):
        least_first = sorted(range(ranks), key=carried.__getitem__)
        for rank, index in zip(least_first, heaviest_first[start : start + ranks], strict=False):
            shares[rank].append(index)
            carried[rank] += loads[index]
    return shares

"""Checks of the selection: ranks of valid candidates, the selected one, probabilities, proposals and reasons."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    VALID_BITSET,
    has_reason,
    primary_reasons,
)
from rollbook.store.checks.columns import StoreColumns
from rollbook.store.checks.violation import Violation, violations_at

_SUM_TOLERANCE = 1e-4
_LOG_TOLERANCE = 1e-4
_TINY = 1e-37
"""Probabilities below the smallest normal float32 have too few digits to compare."""
_KNOWN_BITS = np.uint32(sum(1 << bit for bit in INVALID_REASON_CODES.values()))


def check_valid_counts(columns: StoreColumns) -> Iterator[Violation]:
    counted = columns.shells.counted(columns["candidates/actor_action_mask"])
    yield from violations_at(
        "wrong_valid_count",
        "steps",
        columns["steps/num_valid_candidates"] != counted,
        "num_valid_candidates is not the number of candidates the actor could take",
    )


def check_compact_indices(columns: StoreColumns) -> Iterator[Violation]:
    valid, shells = columns["candidates/actor_action_mask"], columns.shells
    rank = np.cumsum(valid)
    rank -= valid  # number of valid candidates before each
    rank -= shells.spread(np.concatenate([rank, [0]])[shells.starts])
    rank[~valid] = -1
    yield from violations_at(
        "wrong_compact_index",
        "candidates",
        columns["candidates/compact_valid_index"] != rank,
        "compact_valid_index is not the rank among the valid candidates of the shell, -1 if invalid",
    )


def check_one_selected(columns: StoreColumns) -> Iterator[Violation]:
    selected = columns["candidates/selected_mask"]
    counted = columns.shells.counted(selected)
    yield from violations_at(
        "not_one_selected",
        "steps",
        counted != 1,
        "selected_mask does not mark exactly one candidate",
    )
    yield from violations_at(
        "selected_invalid",
        "candidates",
        selected & ~columns["candidates/actor_action_mask"],
        "a candidate was selected that the actor could not take",
    )


def check_selected_ids(columns: StoreColumns) -> Iterator[Violation]:
    taken = columns.taken
    expected = {
        "selected_candidate_row_id": taken,
        "selected_shell_index": taken - columns.shells.starts,
        "selected_compact_valid_index": columns["candidates/compact_valid_index"][taken],
    }
    for name, values in expected.items():
        yield from violations_at(
            "wrong_selected_id",
            "steps",
            columns[f"steps/{name}"] != values,
            f"{name} is not that of the candidate in selected_mask",
        )


# ----------------------------------------------------------------------------------- probabilities


def check_probabilities(columns: StoreColumns) -> Iterator[Violation]:
    valid = columns["candidates/actor_action_mask"]
    chance = columns["candidates/selection_probabilities"]
    yield from violations_at(
        "probability_out_of_range",
        "candidates",
        ~((chance >= 0) & (chance <= 1 + _SUM_TOLERANCE)),
        "selection_probabilities is not from 0 to 1",
    )
    yield from violations_at(
        "probability_on_invalid",
        "candidates",
        ~valid & (chance != 0),
        "selection_probabilities is not 0 for a candidate the actor could not take",
    )
    total = columns.shells.sums(np.where(valid, chance, 0))
    wrong = (total != 0) & ~(np.abs(total - 1) <= _SUM_TOLERANCE)
    yield from violations_at(
        "probability_sum", "steps", wrong, "selection_probabilities of the shell do not add up to 1"
    )


def check_log_probabilities(columns: StoreColumns) -> Iterator[Violation]:
    chance = columns["candidates/selection_probabilities"]
    logs = columns["candidates/selection_log_probabilities"]
    wrong = ~(np.abs(np.exp(logs) - chance) <= _LOG_TOLERANCE * chance + np.float32(_TINY))
    yield from violations_at(
        "log_probability_differs",
        "candidates",
        wrong,
        "selection_log_probabilities is not the logarithm of selection_probabilities, "
        "minus infinity where that is 0",
    )


def check_proposals(columns: StoreColumns) -> Iterator[Violation]:
    """Every candidate that the actor could take must have a proposal with a density."""
    valid = columns["candidates/actor_action_mask"]
    for name in ("strategy_id", "position_id", "mixture_id"):
        yield from violations_at(
            "missing_provenance",
            "candidates",
            valid & (columns[f"candidates/{name}"] < 0),
            f"{name} is missing for a candidate the actor could take",
        )
    density = columns["candidates/sampler_probability"]
    yield from violations_at(
        "missing_provenance",
        "candidates",
        valid & ~((density > 0) & (density < np.inf)),
        "sampler_probability is not a finite number above 0 for a candidate the actor could take",
    )


# ----------------------------------------------------------------------------------------- reasons


def check_reasons(columns: StoreColumns) -> Iterator[Violation]:
    valid = columns["candidates/actor_action_mask"]
    bits = columns["candidates/invalid_reason_bitset"]
    says_valid = (bits & np.uint32(VALID_BITSET)) != 0
    yield from violations_at(
        "unknown_reason_bit",
        "candidates",
        (bits & ~_KNOWN_BITS) != 0,
        "invalid_reason_bitset has bits that this version of the reasons does not name",
    )
    yield from violations_at(
        "reason_missing",
        "candidates",
        bits == 0,
        "invalid_reason_bitset is 0: neither VALID nor why not",
    )
    yield from violations_at(
        "reason_contradicts_mask",
        "candidates",
        says_valid != valid,
        "invalid_reason_bitset has VALID where actor_action_mask is false, or lacks it where it is true",
    )
    yield from violations_at(
        "valid_with_reasons",
        "candidates",
        says_valid & (bits != VALID_BITSET),
        "invalid_reason_bitset has VALID together with reasons against the candidate",
    )


def check_primary_reasons(columns: StoreColumns) -> Iterator[Violation]:
    bits = columns["candidates/invalid_reason_bitset"]
    if not bits.all():
        bits = np.where(bits == 0, np.uint32(VALID_BITSET), bits)  # these are `reason_missing`
    yield from violations_at(
        "wrong_primary_reason",
        "candidates",
        columns["candidates/primary_invalid_reason"] != primary_reasons(bits),
        "primary_invalid_reason is not the one that invalid_reason_bitset names first",
    )


def check_path_collisions(columns: StoreColumns) -> Iterator[Violation]:
    collides = columns["candidate_diagnostics/path_collision_mask"]
    yield from violations_at(
        "collision_valid",
        "candidates",
        collides & columns["candidates/actor_action_mask"],
        "the way to it collides, but actor_action_mask lets the actor take it",
    )
    named = has_reason(columns["candidates/invalid_reason_bitset"], "PATH_SEGMENT_COLLISION")
    yield from violations_at(
        "collision_without_reason",
        "candidates",
        collides & ~named,
        "the way to it collides, but invalid_reason_bitset lacks PATH_SEGMENT_COLLISION",
    )


def check_reason_codes(columns: StoreColumns) -> Iterator[Violation]:
    """The reason names in the store must be the first ones of this release: names are only ever appended."""
    attrs = columns.group_attrs("metadata")
    stored = attrs.get("reason_codes")
    known = dict(list(INVALID_REASON_CODES.items())[: len(stored)]) if stored else None
    if (
        not stored
        or stored != known
        or attrs.get("reason_code_version") != columns.attrs.get("reason_code_version")
    ):
        yield Violation(
            "reason_codes_differ",
            "metadata",
            f"reason_codes are not those of {columns.attrs.get('reason_code_version')!r} in this release",
        )

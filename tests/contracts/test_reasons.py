"""Reason codes: the tables, bitsets of them, which one is shown first, and what an unknown number is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    INVALID_REASON_VERSION,
    POSITION_NAMES,
    STRATEGY_NAMES,
    TARGET_INVALID_REASON_CODES,
    TARGET_REASON_VERSION,
    VALID_BITSET,
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    decode_target_invalid_reason,
    has_reason,
    primary_reasons,
    primary_target_reasons,
    reason_mask,
)
from rollbook.errors import InvalidValue

CANDIDATE = {
    "VALID": 0,
    "POSE_NONFINITE": 1,
    "POSE_OUT_OF_EXTENT": 2,
    "CAMERA_OUT_OF_EXTENT": 3,
    "COLLISION_MESH": 4,
    "CLEARANCE_TOO_SMALL": 5,
    "PATH_SEGMENT_COLLISION": 6,
    "FRUSTUM_OUT_OF_BOUNDS": 7,
    "DEPTH_NO_HIT": 8,
    "DEPTH_TOO_SPARSE": 9,
    "BACKPROJECT_EMPTY": 10,
    "CANDIDATE_DUPLICATE": 11,
    "SAMPLER_RULE_REJECTED": 12,
    "TARGET_NOT_ACTOR_VISIBLE": 13,
    "TARGET_GT_UNMATCHED": 14,
    "TARGET_CROP_EMPTY": 15,
    "TARGET_SUPPORT_TOO_LOW": 16,
    "TARGET_VISIBILITY_TOO_LOW": 17,
    "SEMIDENSE_SUPPORT_TOO_LOW": 18,
    "EVL_EVIDENCE_MISSING": 19,
    "MESH_REFERENCE_MISSING": 20,
    "ORACLE_DISTANCE_FAILED": 21,
    "CANDIDATE_ORDER_GUARD_FAILED": 22,
    "RUNTIME_ERROR": 23,
    "CARRIER_CANNOT_STAND": 24,
}
TARGET = {
    "VALID": 0,
    "NO_ACTOR_VISIBLE_SOURCE": 1,
    "GT_SOURCE_DISALLOWED": 2,
    "PADDED_OBB": 3,
    "OBB_NONFINITE": 4,
    "OBB_EXTENT_INVALID": 5,
    "CONFIDENCE_TOO_LOW": 6,
    "NO_PROJECTED_VISIBILITY": 7,
    "PROJECTED_AREA_TOO_SMALL": 8,
    "TARGET_SUPPORT_TOO_LOW": 9,
    "TARGET_GT_UNMATCHED": 10,
    "TARGET_GT_AMBIGUOUS": 11,
}
PRIORITY = [1, 6, 5, 2, 3, 7, 8, 9, 10, 16, 17, 12]
ARRAYS = st.lists(st.integers(1, 2**32 - 1) | st.sampled_from([1, 2, 64, 4096, 4160, 65])).map(
    lambda values: np.array(values, np.uint32)
)


def bitset(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def plain_primary(bits: int, priority: list[int]) -> int:
    """One row, as the rule says it."""
    present = [bit for bit in range(1, 32) if bits >> bit & 1]
    for bit in priority:
        if bit in present:
            return bit
    return present[0] if present else 0


def test_the_tables_and_their_versions() -> None:
    assert list(INVALID_REASON_CODES.items()) == list(CANDIDATE.items())
    assert list(TARGET_INVALID_REASON_CODES.items()) == list(TARGET.items())
    assert INVALID_REASON_VERSION == "rollout-invalidity-v1"
    assert TARGET_REASON_VERSION == "target-selection-invalidity-v1"
    assert STRATEGY_NAMES == ("forward_rig", "radial_away", "radial_towards", "target_point")
    assert POSITION_NAMES == (
        "upper_bound_free_shell",
        "forward_local",
        "target_bearing_local",
        "lateral_target_bypass",
        "local_refinement",
        "revisit_backtrack",
    )


@pytest.mark.parametrize("table", [INVALID_REASON_CODES, TARGET_INVALID_REASON_CODES])
def test_a_table_cannot_be_changed(table: Any) -> None:
    with pytest.raises(TypeError):
        table["VALID"] = 7


def test_masks_are_made_by_name() -> None:
    assert reason_mask() == 0
    assert reason_mask("VALID") == VALID_BITSET
    assert reason_mask("RUNTIME_ERROR", "POSE_NONFINITE", "RUNTIME_ERROR") == 2**23 + 2


@pytest.mark.parametrize(
    "ask", [lambda: reason_mask("VALID", "TOO_FAR"), lambda: has_reason(bitset(1), "TOO_FAR")]
)
def test_a_reason_that_does_not_exist_is_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue, match="TOO_FAR") as caught:
        ask()
    assert caught.value.field == "name"


@given(ARRAYS, st.sampled_from(sorted(CANDIDATE)))
def test_has_reason_row_by_row(bits: NDArray[np.uint32], name: str) -> None:
    found = has_reason(bits, name)
    assert found.dtype == np.bool_
    assert found.tolist() == [bool(value >> CANDIDATE[name] & 1) for value in bits.tolist()]


@pytest.mark.parametrize(
    ("names", "primary"),
    [
        (["VALID"], "VALID"),
        (["VALID", "PATH_SEGMENT_COLLISION"], "PATH_SEGMENT_COLLISION"),
        (["CLEARANCE_TOO_SMALL", "PATH_SEGMENT_COLLISION"], "PATH_SEGMENT_COLLISION"),
        (["POSE_NONFINITE", "PATH_SEGMENT_COLLISION"], "POSE_NONFINITE"),
        (["POSE_OUT_OF_EXTENT", "CLEARANCE_TOO_SMALL"], "CLEARANCE_TOO_SMALL"),
        (["SAMPLER_RULE_REJECTED", "TARGET_VISIBILITY_TOO_LOW"], "TARGET_VISIBILITY_TOO_LOW"),
        (["COLLISION_MESH", "SAMPLER_RULE_REJECTED"], "SAMPLER_RULE_REJECTED"),
        (["RUNTIME_ERROR", "COLLISION_MESH"], "COLLISION_MESH"),
    ],
)
def test_the_reason_that_is_shown(names: list[str], primary: str) -> None:
    shown = primary_reasons(bitset(reason_mask(*names)))
    assert shown.dtype == np.uint16
    assert [decode_invalid_reason(int(code)) for code in shown] == [primary]


@given(ARRAYS)
def test_primary_reasons_are_the_plain_rule_row_by_row(bits: NDArray[np.uint32]) -> None:
    rows = bits.tolist()
    assert primary_reasons(bits).tolist() == [plain_primary(row, PRIORITY) for row in rows]
    assert primary_target_reasons(bits).tolist() == [plain_primary(row, []) for row in rows]


def test_the_shape_is_kept_and_the_input_untouched() -> None:
    bits = np.array([[1, 2, 4096], [1, 1, 96]], np.uint32)
    bits.flags.writeable = False
    assert primary_reasons(bits).tolist() == [[0, 1, 12], [0, 0, 6]]
    assert primary_reasons(bits[:, ::2]).tolist() == [[0, 12], [0, 6]]
    assert primary_target_reasons(bits).tolist() == [[0, 1, 12], [0, 0, 5]]
    assert primary_reasons(bitset()).shape == (0,)


@pytest.mark.parametrize("primary", [primary_reasons, primary_target_reasons])
def test_a_row_without_any_bit_is_refused_by_number(primary: Callable[..., object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        primary(bitset(1, 2, 0, 0))
    assert caught.value.field == "bitset[2]"


@pytest.mark.parametrize(
    "ask", [primary_reasons, primary_target_reasons, lambda bits: has_reason(bits, "VALID")]
)
@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.float32, np.bool_])
def test_only_uint32_is_a_bitset(ask: Callable[..., object], kind: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        ask(np.ones(2, kind))
    assert caught.value.field == "bitset"
    assert caught.value.value == np.dtype(kind).name


@pytest.mark.parametrize(
    ("decode", "number", "name"),
    [
        *((decode_invalid_reason, code, name) for name, code in CANDIDATE.items()),
        (decode_invalid_reason, 25, "reason_25"),
        (decode_invalid_reason, -1, "reason_-1"),
        *((decode_target_invalid_reason, code, name) for name, code in TARGET.items()),
        (decode_target_invalid_reason, 12, "target_reason_12"),
        (decode_target_invalid_reason, -1, "target_reason_-1"),
        (decode_position_id, 0, "upper_bound_free_shell"),
        (decode_position_id, 5, "revisit_backtrack"),
        (decode_position_id, 6, "position_6"),
        (decode_position_id, -1, "unknown"),
        (decode_strategy_id, 0, "forward_rig"),
        (decode_strategy_id, 3, "target_point"),
        (decode_strategy_id, 4, "strategy_4"),
        (decode_strategy_id, -7, "unknown"),
    ],
)
def test_names_of_numbers(decode: Callable[[int], str], number: int, name: str) -> None:
    assert decode(number) == name
    assert decode(np.int32(number)) == name  # type: ignore[arg-type]

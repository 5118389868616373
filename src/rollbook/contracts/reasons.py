"""Reasons why a candidate or a target is invalid: versioned codes, bitsets of codes, and the primary reason.

A code is a bit position. New codes are appended only, so a bit keeps its meaning within a version. A bitset always has
at least one bit: VALID, or the reasons against. Zero has no meaning and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidValue

INVALID_REASON_VERSION = "rollout-invalidity-v1"
TARGET_REASON_VERSION = "target-selection-invalidity-v1"


def _codes(*names: str) -> Mapping[str, int]:
    return MappingProxyType({name: bit for bit, name in enumerate(names)})


INVALID_REASON_CODES = _codes(
    "VALID",
    "POSE_NONFINITE",
    "POSE_OUT_OF_EXTENT",
    "CAMERA_OUT_OF_EXTENT",
    "COLLISION_MESH",
    "CLEARANCE_TOO_SMALL",
    "PATH_SEGMENT_COLLISION",
    "FRUSTUM_OUT_OF_BOUNDS",
    "DEPTH_NO_HIT",
    "DEPTH_TOO_SPARSE",
    "BACKPROJECT_EMPTY",
    "CANDIDATE_DUPLICATE",
    "SAMPLER_RULE_REJECTED",
    "TARGET_NOT_ACTOR_VISIBLE",
    "TARGET_GT_UNMATCHED",
    "TARGET_CROP_EMPTY",
    "TARGET_SUPPORT_TOO_LOW",
    "TARGET_VISIBILITY_TOO_LOW",
    "SEMIDENSE_SUPPORT_TOO_LOW",
    "EVL_EVIDENCE_MISSING",
    "MESH_REFERENCE_MISSING",
    "ORACLE_DISTANCE_FAILED",
    "CANDIDATE_ORDER_GUARD_FAILED",
    "RUNTIME_ERROR",
    "CARRIER_CANNOT_STAND",
)
"""Reasons against a candidate, by name."""

TARGET_INVALID_REASON_CODES = _codes(
    "VALID",
    "NO_ACTOR_VISIBLE_SOURCE",
    "GT_SOURCE_DISALLOWED",
    "PADDED_OBB",
    "OBB_NONFINITE",
    "OBB_EXTENT_INVALID",
    "CONFIDENCE_TOO_LOW",
    "NO_PROJECTED_VISIBILITY",
    "PROJECTED_AREA_TOO_SMALL",
    "TARGET_SUPPORT_TOO_LOW",
    "TARGET_GT_UNMATCHED",
    "TARGET_GT_AMBIGUOUS",
)
"""Reasons against a target, by name. Their bits are not those of candidate reasons."""

VALID_BITSET = 1
"""The bitset of a valid candidate or target: only the bit VALID is set."""

STRATEGY_NAMES = ("forward_rig", "radial_away", "radial_towards", "target_point")
"""Direction in which a candidate looks, by strategy_id."""

POSITION_NAMES = (
    "upper_bound_free_shell",
    "forward_local",
    "target_bearing_local",
    "lateral_target_bypass",
    "local_refinement",
    "revisit_backtrack",
)
"""How the position of a candidate was sampled, by position_id."""

_SHOWN_FIRST = (
    "POSE_NONFINITE",
    "PATH_SEGMENT_COLLISION",
    "CLEARANCE_TOO_SMALL",
    "POSE_OUT_OF_EXTENT",
    "CAMERA_OUT_OF_EXTENT",
    "FRUSTUM_OUT_OF_BOUNDS",
    "DEPTH_NO_HIT",
    "DEPTH_TOO_SPARSE",
    "BACKPROJECT_EMPTY",
    "TARGET_SUPPORT_TOO_LOW",
    "TARGET_VISIBILITY_TOO_LOW",
    "SAMPLER_RULE_REJECTED",
)
_LOWEST_FIRST = tuple(range(1, 32))
# a dict keeps the first position of a bit that occurs twice
_CANDIDATE_ORDER = tuple(
    dict.fromkeys([*(INVALID_REASON_CODES[name] for name in _SHOWN_FIRST), *_LOWEST_FIRST])
)
_REASON_NAMES = tuple(INVALID_REASON_CODES)
_TARGET_REASON_NAMES = tuple(TARGET_INVALID_REASON_CODES)

Bitset = NDArray[np.uint32]


def reason_mask(*names: str) -> int:
    """The bitset in which exactly the named candidate reasons are set."""
    mask = 0
    for name in names:
        mask |= 1 << _code(name)
    return mask


def has_reason(bitset: Bitset, name: str) -> NDArray[np.bool_]:
    """Which rows have this candidate reason, alone or with other reasons."""
    bits = _checked(bitset, "candidate reasons")
    found: NDArray[np.bool_] = (bits & np.uint32(reason_mask(name))) != 0
    return found


def primary_reasons(bitset: Bitset) -> NDArray[np.uint16]:
    """The code to show for each candidate: 0 when only VALID is set, otherwise the most informative reason.

    A bit that has no name in this release comes last: a later version set it.
    """
    return _primary(bitset, _CANDIDATE_ORDER, "candidate reasons")


def primary_target_reasons(bitset: Bitset) -> NDArray[np.uint16]:
    """The code to show for each target: 0 when only VALID is set, otherwise the lowest reason."""
    return _primary(bitset, _LOWEST_FIRST, "target reasons")


def decode_invalid_reason(code: int) -> str:
    """The name of a candidate reason; `reason_<code>` for a code without a name."""
    return _name(_REASON_NAMES, code, "reason")


def decode_target_invalid_reason(code: int) -> str:
    """The name of a target reason; `target_reason_<code>` for a code without a name."""
    return _name(_TARGET_REASON_NAMES, code, "target_reason")


def decode_position_id(position_id: int) -> str:
    """The name of a position family; "unknown" for a negative id, which means "not recorded"."""
    return "unknown" if position_id < 0 else _name(POSITION_NAMES, position_id, "position")


def decode_strategy_id(strategy_id: int) -> str:
    """The name of a view direction; "unknown" for a negative id, which means "not recorded"."""
    return "unknown" if strategy_id < 0 else _name(STRATEGY_NAMES, strategy_id, "strategy")


def _name(names: tuple[str, ...], code: int, prefix: str) -> str:
    return names[code] if 0 <= code < len(names) else f"{prefix}_{code}"


def _code(name: str) -> int:
    if name not in INVALID_REASON_CODES:
        raise InvalidValue(
            record="candidate reasons",
            field="name",
            value=repr(name),
            expected=f"one of {', '.join(INVALID_REASON_CODES)}",
        )
    return INVALID_REASON_CODES[name]


def _checked(bitset: Bitset, record: str) -> Bitset:
    bits = np.asarray(bitset)
    if bits.dtype != np.uint32:
        raise InvalidValue(
            record=record, field="bitset", value=str(bits.dtype), expected="an array of uint32"
        )
    return bits


def _primary(bitset: Bitset, order: tuple[int, ...], record: str) -> NDArray[np.uint16]:
    bits = _checked(bitset, record)
    flat = bits.ravel()
    rows = np.flatnonzero(flat != VALID_BITSET)
    reasons = flat[rows]
    _refuse_empty(rows, reasons, record)
    present = int(np.bitwise_or.reduce(reasons))
    found = np.zeros(len(rows), np.uint16)
    # in reverse order, so that the most informative reason overwrites the others; bits set nowhere are skipped
    for bit in reversed(order):
        if present >> bit & 1:
            found[(reasons & np.uint32(1 << bit)) != 0] = bit
    primary = np.zeros(flat.shape, np.uint16)
    primary[rows] = found
    return primary.reshape(bits.shape)


def _refuse_empty(rows: NDArray[np.intp], reasons: Bitset, record: str) -> None:
    empty = rows[reasons == 0]
    if empty.size:
        raise InvalidValue(
            record=record,
            field=f"bitset[{empty[0]}]",
            value="0",
            expected="VALID or at least one reason against it",
        )

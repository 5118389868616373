"""What the page of a store shows: counts, reasons, gains and returns, computed once from its columns.

Everything is computed by column, never by row, so a store of a million candidates takes about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    decode_invalid_reason,
    decode_position_id,
)
from rollbook.store.audit.candidates import validity_waterfall_rows
from rollbook.store.audit.provenance import provenance
from rollbook.store.audit.rollouts import rollout_tree_summary_rows
from rollbook.store.audit.rows import Coded, gather, groups_of, word_of
from rollbook.store.audit.suspicious import suspicious_counts, suspicious_rollout_rows
from rollbook.store.views.store_view import StoreView

Array = NDArray[Any]

SUMMARY_VERSION = 2
"""Summaries of another version are computed again."""
BINS = 60
MOST_SUSPICIOUS = 200
_MOST_STEPS = 64
_MOST_TREE_ROWS = 200
_MOST_RESAMPLED = 5000
"""Source rows up to which an interval is also resampled."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Reason:
    name: str
    first: int
    """Candidates for which this reason is named first."""
    among: int
    """Candidates that have this reason, alone or among others."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    total: int
    valid: int
    labelled: int
    mean: float | None
    """Of the root gain of its labelled candidates."""
    bins: list[int]


@dataclass(frozen=True, slots=True)
class PolicyReturn:
    name: str
    chains: int
    sources: int
    """Source rows. Chains of one source row are not independent, so each source row counts once."""
    means: list[float | None]
    """Mean return after each step; a chain that ended keeps what it had."""
    lower: float | None
    """95 % interval of the last mean."""
    upper: float | None


@dataclass(frozen=True, slots=True)
class SuspiciousRow:
    message: str
    rollout: int | None
    step: int | None
    """The step of its rollout, counted from 1."""
    candidate: int | None
    """The row of the candidate."""
    target: int | None


@dataclass(frozen=True, slots=True)
class Suspicion:
    kind: str
    severity: str
    count: int
    rows: list[SuspiciousRow]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class TreeRow:
    policy: str | None
    step: int
    position: str | None
    strategy: str | None
    steps: int
    valid_fanout: float | None
    gain: float | None


@dataclass(frozen=True, slots=True)
class StoreSummary:
    version: int
    stages: list[Stage]
    reasons: list[Reason]
    invalid: int
    families: list[Family]
    gain_low: float
    gain_high: float
    """The range of the bins."""
    policies: list[PolicyReturn]
    suspicions: list[Suspicion]
    tree: list[TreeRow]
    tree_rows: int
    scenes: int
    provenance: dict[str, str]


def summary_of(reader: StoreView) -> StoreSummary:
    """Blocks: call it in a thread."""
    reasons, invalid = _reasons(reader)
    families, low, high = _families(reader)
    tree = rollout_tree_summary_rows(reader)
    return StoreSummary(
        version=SUMMARY_VERSION,
        stages=[Stage(row["stage"], row["count"]) for row in validity_waterfall_rows(reader)],
        reasons=reasons,
        invalid=invalid,
        families=families,
        gain_low=low,
        gain_high=high,
        policies=_policies(reader),
        suspicions=_suspicions(reader),
        tree=[_tree_row(row) for row in tree[:_MOST_TREE_ROWS]],
        tree_rows=len(tree),
        scenes=len(np.unique(reader.array("rollouts/scene_id"))),
        provenance=provenance(reader),
    )


def _reasons(reader: StoreView) -> tuple[list[Reason], int]:
    """All reasons that occur, the most frequent first; and the number of invalid candidates."""
    invalid = ~reader.array("candidates/actor_action_mask")
    first = np.bincount(reader.array("candidates/primary_invalid_reason")[invalid], minlength=32)
    bits = reader.array("candidates/invalid_reason_bitset")[invalid]
    among = [int(np.count_nonzero(bits & np.uint32(1 << code))) for code in range(32)]
    found = [
        Reason(decode_invalid_reason(code), int(first[code]), among[code])
        for code in range(32)
        if code != INVALID_REASON_CODES["VALID"] and (first[code] or among[code])
    ]
    return sorted(found, key=lambda each: (-each.first, -each.among)), int(
        np.count_nonzero(invalid)
    )


def _families(reader: StoreView) -> tuple[list[Family], float, float]:
    gains = reader.array("candidates/target_root_gain")
    groups = groups_of(Coded(reader.array("candidates/position_id"), decode_position_id))
    labelled = np.isfinite(gains) & reader.array("candidates/oracle_label_mask")
    values, owners = gains[labelled].astype(np.float64), groups.of_row[labelled]
    low = min(float(values.min(initial=0.0)), 0.0)
    high = max(float(values.max(initial=0.0)), low + 1e-6)
    places = np.minimum(((values - low) / (high - low) * BINS).astype(np.intp), BINS - 1)
    size = len(groups.keys)
    counts = np.bincount(owners * BINS + places, minlength=size * BINS).reshape(size, BINS)
    valid = groups.counts(reader.array("candidates/actor_action_mask"))
    means = groups.means(np.where(labelled, gains, np.nan))
    return (
        [
            Family(str(name), total, ok, int(bins.sum()), mean, bins.tolist())
            for name, total, ok, mean, bins in zip(
                groups.keys, groups.counts(), valid, means, counts, strict=True
            )
        ],
        low,
        high,
    )


# ---------------------------------------------------------------------------------- returns by policy


def _policies(reader: StoreView) -> list[PolicyReturn]:
    groups = groups_of(Coded(reader.array("rollouts/policy_id"), word_of(reader.words("policy"))))
    returns = _returns_by_step(reader)
    sources = reader.array("rollouts/source_row_id")
    found = [
        _policy_return(str(name or "unknown"), returns[mine], sources[mine])
        for at, name in enumerate(groups.keys)
        for mine in [groups.of_row == at]
    ]
    return sorted(found, key=lambda each: -_last(each.means))


def _last(means: Sequence[float | None]) -> float:
    return means[-1] if means and means[-1] is not None else -np.inf


def _returns_by_step(reader: StoreView) -> Array:
    """[rollouts, steps]: what each chain had gained after each step."""
    first, length = reader.array("rollouts/step_offset"), reader.array("rollouts/num_steps")
    steps = min(int(length.max(initial=0)), _MOST_STEPS)
    gained = reader.array("steps/cumulative_target_root_gain").astype(np.float64)
    place = np.minimum(np.arange(steps)[None, :], length[:, None] - 1)
    return np.where(
        place >= 0,
        gather(gained, (first[:, None] + place).ravel(), np.nan).reshape(place.shape),
        np.nan,
    )


def _policy_return(name: str, returns: Array, sources: Array) -> PolicyReturn:
    """`returns` [chains, steps]. Each source row counts once, with the mean of its chains."""
    _, owners = np.unique(sources, return_inverse=True)
    known = np.isfinite(returns)
    shape = (int(owners.max(initial=-1)) + 1, returns.shape[1])
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, owners, np.where(known, returns, 0.0))
    np.add.at(counts, owners, known)
    of_source = np.divide(sums, counts, out=np.full(shape, np.nan), where=counts > 0)
    means: list[float | None] = []
    for step in range(shape[1]):
        there = of_source[:, step][np.isfinite(of_source[:, step])]
        means.append(float(there.mean()) if len(there) else None)
    last = of_source[:, -1][np.isfinite(of_source[:, -1])] if shape[1] else np.empty(0)
    lower, upper = _interval(last)
    return PolicyReturn(name, len(returns), shape[0], means, lower, upper)


def _interval(values: NDArray[np.float64]) -> tuple[float | None, float | None]:
    from rollbook.scoring.intervals import mean_interval, student_interval  # loads scipy

    if len(values) > _MOST_RESAMPLED:
        return student_interval(float(values.mean()), float(values.std(ddof=1)), len(values))
    found = mean_interval(values).interval
    return (None, None) if found is None else found


# ---------------------------------------------------------------------------------------- other rows


def _suspicions(reader: StoreView) -> list[Suspicion]:
    rows: dict[str, list[SuspiciousRow]] = {}
    for row in suspicious_rollout_rows(reader, limit=MOST_SUSPICIOUS):
        rows.setdefault(row["kind"], []).append(_suspicious_row(reader, row))
    return [
        Suspicion(each["kind"], each["severity"], each["count"], rows.get(each["kind"], []))
        for each in suspicious_counts(reader)
    ]


def _suspicious_row(reader: StoreView, row: dict[str, Any]) -> SuspiciousRow:
    step = row["step_row_id"]
    indices = reader.array("steps/step_index")
    there = step is not None and 0 <= step < len(indices)
    return SuspiciousRow(
        message=row["message"],
        rollout=row["rollout_row_id"],
        step=int(indices[step]) + 1 if there else None,
        candidate=row["candidate_row_id"],
        target=row.get("target_row_id"),
    )


def _tree_row(row: dict[str, Any]) -> TreeRow:
    return TreeRow(
        policy=row["policy"],
        step=row["step_index"],
        position=row["selected_position"],
        strategy=row["selected_strategy"],
        steps=row["selected_steps"],
        valid_fanout=row["mean_valid_fanout"],
        gain=row["mean_selected_target_root_gain"],
    )

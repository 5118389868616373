"""RolloutAdmissionReceipt: the decision about one rollout and the signals behind it; counts of such decisions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from rollbook.contracts.record import (
    U64_MAX,
    Record,
    check_digest,
    checked_type,
    decode_fields,
    decode_json,
)
from rollbook.contracts.rl.f32_json import f32_from_json, json_f32
from rollbook.contracts.rl.provenance import RolloutTerminationReason
from rollbook.digest import sha256


class AdmissionSignalKind(StrEnum):
    """Kinds of signals, in the order in which a receipt lists them."""

    SOURCE_REVISION_AHEAD_OF_TARGET = "source_revision_ahead_of_target"
    SOURCE_POLICY_TIMESTAMP_AHEAD_OF_TARGET = "source_policy_timestamp_ahead_of_target"
    ROLLOUT_TIMESTAMP_AHEAD_OF_SUBMISSION = "rollout_timestamp_ahead_of_submission"
    REVISION_MISMATCH_UNBUDGETED = "revision_mismatch_unbudgeted"
    """The source is not the target revision, and no measure says how far away it is."""
    REVISION_DRIFT = "revision_drift"
    POLICY_AGE = "policy_age"
    ROLLOUT_AGE = "rollout_age"


class AdmissionBucket(IntEnum):
    """How bad a signal is. The worst signal of a rollout decides."""

    NOT_RAISED = -1
    WITHIN = 0
    QUARANTINE = 1
    DISCARD = 2


class AdmissionOutcome(StrEnum):
    ACCEPTED_EXACT = "accepted_exact"
    ACCEPTED_OFF_POLICY = "accepted_off_policy"
    QUARANTINED = "quarantined"
    DISCARDED = "discarded"


SIGNAL_KINDS = tuple(AdmissionSignalKind)
OUTCOMES = tuple(AdmissionOutcome)
"""Columns store the index into these tuples."""


class AdmissionSignal(Record, frozen=True, kw_only=True):
    """One measured reason for an outcome, with the bounds it was compared with."""

    kind: AdmissionSignalKind
    observed_value: int
    accepted_budget: int | None = None
    quarantine_budget: int | None = None

    def __post_init__(self) -> None:
        checked_type(self.kind, AdmissionSignalKind, "admission signal", "kind")
        budgets = ("accepted_budget", "quarantine_budget")
        self._check_ints(f"signal {self.kind}", "observed_value", optional=budgets)


class RolloutAdmissionReceipt(Record, frozen=True, kw_only=True):
    """The decision about one rollout and its reasons. `Admission.receipt` makes it."""

    receipt_id: str
    run_id: str
    stage_id: str
    window_id: str
    artifact_id: str
    artifact_digest: str
    worker_id: str
    environment_key: str
    target_policy_revision_id: str
    source_policy_revision_id: str
    source_policy_digest: str
    outcome: AdmissionOutcome
    revision_drift: int | None = None
    policy_age_ms: int | None = None
    rollout_age_ms: int
    signals: tuple[AdmissionSignal, ...]
    token_count: int
    reward_sum: float
    """binary32."""
    termination_reason: RolloutTerminationReason
    observed_at_ms: int
    receipt_digest: str
    """v1 recipe, byte-exact."""

    def __post_init__(self) -> None:
        record = f"receipt for {self.artifact_id!r}"
        self._check_texts(record, *_RECEIPT_TEXTS)
        counts = ("rollout_age_ms", "token_count", "observed_at_ms")
        self._check_ints(record, *counts, optional=("revision_drift", "policy_age_ms"))
        for field, kind in _RECEIPT_TYPES.items():
            checked_type(getattr(self, field), kind, record, field)

    def verify(self) -> None:
        """Raise DigestMismatch unless the id and the digest follow from the other fields."""
        expected_id = receipt_id(self.window_id, self.artifact_id)
        check_digest(self.receipt_id, "receipt_id", self.receipt_id, expected_id)
        check_digest(self.receipt_id, "receipt_digest", self.receipt_digest, receipt_digest(self))

    def to_json(self) -> bytes:
        fields = msgspec.to_builtins(self)
        fields["reward_sum"] = json_f32(self.reward_sum)
        return msgspec.json.encode(fields)

    @classmethod
    def from_json(cls, data: bytes | str, *, source: str = "JSON") -> RolloutAdmissionReceipt:
        """Read a receipt and compare its digest with its content."""
        fields = decode_json(data, dict[str, Any], source)
        if type(fields.get("reward_sum")) in (int, float, str):  # not bool
            name = f"receipt for {fields.get('artifact_id')!r}"
            fields["reward_sum"] = f32_from_json(fields["reward_sum"], name, "reward_sum")
        receipt = decode_fields(fields, cls, source)
        receipt.verify()
        return receipt


_RECEIPT_TEXTS = (
    "run_id",
    "stage_id",
    "window_id",
    "artifact_id",
    "artifact_digest",
    "worker_id",
    "target_policy_revision_id",
    "source_policy_revision_id",
    "source_policy_digest",
    "receipt_digest",
)
_RECEIPT_TYPES: dict[str, type | tuple[type, ...]] = {
    # each of these two joins two texts, so it may be longer than one text
    "receipt_id": str,
    "environment_key": str,
    "outcome": AdmissionOutcome,
    "signals": tuple,
    "reward_sum": (float, int),
    "termination_reason": RolloutTerminationReason,
}


def receipt_id(window_id: str, artifact_id: str) -> str:
    return f"{window_id}-rollout-receipt-{artifact_id}"


def receipt_digest(receipt: RolloutAdmissionReceipt) -> str:
    """v1 recipe, byte-exact, over the other fields."""
    r = receipt
    pieces = [
        f"psionic_training_rollout_receipt|{r.run_id}|{r.stage_id}|{r.window_id}|{r.artifact_id}",
        f"|{r.artifact_digest}|{r.worker_id}|{r.source_policy_revision_id}|{r.outcome}",
        _labelled("revision_drift", r.revision_drift),
        _labelled("policy_age_ms", r.policy_age_ms),
        f"|rollout_age_ms|{r.rollout_age_ms}|observed_at_ms|{r.observed_at_ms}",
    ]
    for signal in r.signals:
        pieces += [
            f"|signal|{signal.kind}|{signal.observed_value}",
            _labelled("accepted", signal.accepted_budget),
            _labelled("quarantine", signal.quarantine_budget),
        ]
    return sha256("".join(pieces).encode()).hexdigest()


def _labelled(label: str, value: int | None) -> str:
    return "" if value is None else f"|{label}|{value}"


class RolloutIngestionTelemetry(Record, frozen=True, kw_only=True):
    """Rollouts and tokens by the outcome on their receipt. A later release does not change these counts."""

    accepted_exact_rollout_count: int
    accepted_off_policy_rollout_count: int
    quarantined_rollout_count: int
    discarded_rollout_count: int
    accepted_token_count: int
    quarantined_token_count: int
    discarded_token_count: int

    def __post_init__(self) -> None:
        self._check_ints("rollout telemetry", *self.__struct_fields__)

    @classmethod
    def of(cls, rollouts: Sequence[int], tokens: Sequence[int]) -> RolloutIngestionTelemetry:
        """From counts per outcome, in the order of OUTCOMES. Counts stop at the largest u64, as in the reference."""
        exact, off_policy, quarantined, discarded = (min(each, U64_MAX) for each in rollouts)
        return cls(
            accepted_exact_rollout_count=exact,
            accepted_off_policy_rollout_count=off_policy,
            quarantined_rollout_count=quarantined,
            discarded_rollout_count=discarded,
            accepted_token_count=min(tokens[0] + tokens[1], U64_MAX),
            quarantined_token_count=min(tokens[2], U64_MAX),
            discarded_token_count=min(tokens[3], U64_MAX),
        )

    @property
    def stale_rollout_drop_rate_bps(self) -> int:
        """Share of discarded rollouts in basis points, rounded down. Quarantined rollouts do not count as discarded."""
        total = (
            self.accepted_exact_rollout_count
            + self.accepted_off_policy_rollout_count
            + self.quarantined_rollout_count
            + self.discarded_rollout_count
        )
        return self.discarded_rollout_count * 10_000 // total if total else 0

"""Admission: which rollouts are fresh enough to train on, decided for a whole table at once.

Measures that depend on the source revision alone are computed once per distinct revision. Receipts are made on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import (
    U64_MAX,
    Record,
    checked_int,
    checked_list,
    checked_text,
    checked_type,
)
from rollbook.contracts.rl.admission_receipt import (
    OUTCOMES,
    SIGNAL_KINDS,
    AdmissionBucket,
    AdmissionOutcome,
    AdmissionSignal,
    AdmissionSignalKind,
    RolloutAdmissionReceipt,
    RolloutIngestionTelemetry,
    receipt_digest,
    receipt_id,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules, checked_rules
from rollbook.contracts.rl.sample import as_array
from rollbook.contracts.row_numbers import Rows
from rollbook.errors import (
    AmbiguousId,
    ColumnLengthMismatch,
    ConflictingRevision,
    EmptyId,
    InvalidValue,
    PolicyFamilyMismatch,
)

U64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.int8]
AnyArray = TypeVar("AnyArray", bound=NDArray[Any])
Times = int | np.integer[Any] | Sequence[int] | NDArray[np.integer[Any]]
"""One time for all rollouts, or one for each."""

_ALWAYS_DISCARD = SIGNAL_KINDS[:4]


class OffPolicyBudget(Record, frozen=True, kw_only=True):
    """How stale a rollout may be: accepted up to `max_*`, quarantined up to `quarantine_*`, discarded above it.

    A measure without `max_*` is accepted up to its `quarantine_*`. A measure with neither is always accepted.
    """

    max_revision_drift: int | None = None
    quarantine_revision_drift: int | None = None
    max_policy_age_ms: int | None = None
    quarantine_policy_age_ms: int | None = None
    max_rollout_age_ms: int
    quarantine_rollout_age_ms: int | None = None

    def __post_init__(self) -> None:
        optional = tuple(name for name in self.__struct_fields__ if name != "max_rollout_age_ms")
        self._check_ints("off-policy budget", "max_rollout_age_ms", optional=optional)
        for measure in ("revision_drift", "policy_age_ms", "rollout_age_ms"):
            accepted = getattr(self, f"max_{measure}")
            quarantine = getattr(self, f"quarantine_{measure}")
            if None not in (accepted, quarantine) and quarantine < accepted:
                raise InvalidValue(
                    record="off-policy budget",
                    field=f"quarantine_{measure}",
                    value=str(quarantine),
                    expected=f"at least max_{measure}, {accepted}: nothing could be quarantined",
                )

    @classmethod
    def default(cls) -> OffPolicyBudget:
        return cls(
            max_revision_drift=3,
            quarantine_revision_drift=5,
            max_rollout_age_ms=30_000,
            quarantine_rollout_age_ms=60_000,
        )

    @property
    def limits_policy_age(self) -> bool:
        return self.max_policy_age_ms is not None or self.quarantine_policy_age_ms is not None

    def bounds(self, kind: AdmissionSignalKind) -> tuple[int | None, int | None]:
        """The bounds for a signal of this kind: (accepted, quarantine)."""
        if kind is AdmissionSignalKind.REVISION_DRIFT:
            return self.max_revision_drift, self.quarantine_revision_drift
        if kind is AdmissionSignalKind.POLICY_AGE:
            return self.max_policy_age_ms, self.quarantine_policy_age_ms
        if kind is AdmissionSignalKind.ROLLOUT_AGE:
            return self.max_rollout_age_ms, self.quarantine_rollout_age_ms
        if kind is AdmissionSignalKind.REVISION_MISMATCH_UNBUDGETED:
            return None, None
        return 0, 0


@dataclass(frozen=True, eq=False)
class Admission:
    """The outcome of every rollout of a table, as columns. A measure that is not known has the value 0."""

    table: RolloutTable
    target_revision: PolicyRevision
    budget: OffPolicyBudget
    run_id: str
    stage_id: str
    window_id: str
    observed_at_ms: U64s
    outcomes: Codes
    """Index into OUTCOMES."""
    revision_drift: U64s
    revision_drift_known: Bools
    policy_age_ms: U64s
    policy_age_known: Bools
    rollout_age_ms: U64s
    signal_values: U64s
    """One row per rollout, one column per kind in SIGNAL_KINDS."""
    signal_buckets: Codes
    """The AdmissionBucket of each of these values."""

    def __len__(self) -> int:
        return len(self.table)

    def rows(self, outcome: AdmissionOutcome) -> Rows:
        return np.flatnonzero(self.outcomes == OUTCOMES.index(outcome))

    @cached_property
    def counts(self) -> tuple[list[int], list[int]]:
        """Rollouts and tokens per outcome, in the order of OUTCOMES."""
        tokens = np.diff(self.table.offsets)
        taken = [self.rows(outcome) for outcome in OUTCOMES]
        return [len(rows) for rows in taken], [int(tokens[rows].sum()) for rows in taken]

    @property
    def telemetry(self) -> RolloutIngestionTelemetry:
        """Counts of this table alone. The telemetry of a window counts a resubmitted rollout once."""
        return RolloutIngestionTelemetry.of(*self.counts)

    @cached_property
    def reward_sums(self) -> NDArray[np.float32]:
        """The sum of the rewards of each rollout."""
        return self.table.reward_sums()

    def receipt(self, row: int) -> RolloutAdmissionReceipt:
        artifact = self.table[row]
        row = artifact.row
        source = artifact.source_policy_revision
        receipt = RolloutAdmissionReceipt(
            receipt_id=receipt_id(self.window_id, artifact.artifact_id),
            run_id=self.run_id,
            stage_id=self.stage_id,
            window_id=self.window_id,
            artifact_id=artifact.artifact_id,
            artifact_digest=artifact.artifact_digest,
            worker_id=artifact.worker_id,
            environment_key=artifact.environment.storage_key,
            target_policy_revision_id=self.target_revision.revision_id,
            source_policy_revision_id=source.revision_id,
            source_policy_digest=source.policy_digest,
            outcome=OUTCOMES[self.outcomes[row]],
            revision_drift=int(self.revision_drift[row])
            if self.revision_drift_known[row]
            else None,
            policy_age_ms=int(self.policy_age_ms[row]) if self.policy_age_known[row] else None,
            rollout_age_ms=int(self.rollout_age_ms[row]),
            signals=self._signals(row),
            token_count=artifact.token_count,
            reward_sum=float(self.reward_sums[row]),
            termination_reason=artifact.termination_reason,
            observed_at_ms=int(self.observed_at_ms[row]),
            receipt_digest="",
        )
        # the digest covers the other fields; the receipt is not visible to anybody yet
        msgspec.structs.force_setattr(receipt, "receipt_digest", receipt_digest(receipt))
        return receipt

    def receipts(self) -> tuple[RolloutAdmissionReceipt, ...]:
        return tuple(self.receipt(row) for row in range(len(self)))

    def _signals(self, row: int) -> tuple[AdmissionSignal, ...]:
        signals = []
        for column in np.flatnonzero(self.signal_buckets[row] >= 0).tolist():
            kind = SIGNAL_KINDS[column]
            accepted, quarantine = self.budget.bounds(kind)
            signals.append(
                AdmissionSignal(
                    kind=kind,
                    observed_value=int(self.signal_values[row, column]),
                    accepted_budget=accepted,
                    quarantine_budget=quarantine,
                )
            )
        return tuple(signals)


def admit(
    table: RolloutTable,
    target_revision: PolicyRevision,
    budget: OffPolicyBudget,
    *,
    run_id: str,
    stage_id: str,
    window_id: str,
    observed_at_ms: Times,
    rules: ContractRules = STRICT,
) -> Admission:
    """Compare every rollout with the target and the budget. `observed_at_ms` is one time, or one per rollout."""
    checked_type(table, RolloutTable, "admission", "table")
    checked_type(target_revision, PolicyRevision, "admission", "target_revision")
    checked_type(budget, OffPolicyBudget, "admission", "budget")
    check_names(rules, run_id=run_id, stage_id=stage_id, window_id=window_id)
    for problem in table.problems(rules):
        raise problem
    _refuse_sources(table, target_revision, window_id, rules)
    observed = observation_times(observed_at_ms, table)
    created = table.columns.created_at_ms
    age = _gap(observed, created)

    sources = _measure(table.columns.revisions, target_revision, budget)
    index = table.columns.revision_index
    signals = sources.signals.of_rows(index)
    kind = AdmissionSignalKind
    signals.raise_where(
        kind.ROLLOUT_TIMESTAMP_AHEAD_OF_SUBMISSION, created > observed, _gap(created, observed)
    )
    signals.raise_where(kind.ROLLOUT_AGE, np.ones(len(table), np.bool_), age)
    return Admission(
        table=table,
        target_revision=target_revision,
        budget=budget,
        run_id=run_id,
        stage_id=stage_id,
        window_id=window_id,
        observed_at_ms=_sealed(observed),
        outcomes=_sealed(_outcomes(signals.buckets, sources.exact[index])),
        revision_drift=_sealed(sources.drift[index]),
        revision_drift_known=_sealed(sources.drift_known[index]),
        policy_age_ms=_sealed(sources.policy_age[index]),
        policy_age_known=_sealed(sources.policy_age_known[index]),
        rollout_age_ms=_sealed(age),
        signal_values=_sealed(signals.values),
        signal_buckets=_sealed(signals.buckets),
    )


def _sealed(array: AnyArray) -> AnyArray:
    array.flags.writeable = False
    return array


def _gap(later: U64s, earlier: U64s) -> U64s:
    """later - earlier, or 0 where that would be negative. No step of the computation leaves u64."""
    return np.maximum(later, earlier) - earlier


@dataclass(frozen=True, slots=True, eq=False)
class _Signals:
    """Values and buckets of the seven kinds, one column each. Rows are rollouts, or their distinct revisions."""

    budget: OffPolicyBudget
    values: U64s
    buckets: Codes

    @classmethod
    def none(cls, rows: int, budget: OffPolicyBudget) -> _Signals:
        shape = rows, len(SIGNAL_KINDS)
        return cls(
            budget,
            np.zeros(shape, np.uint64),
            np.full(shape, AdmissionBucket.NOT_RAISED, np.int8),
        )

    def of_rows(self, index: NDArray[np.int32]) -> _Signals:
        return _Signals(self.budget, self.values[index], self.buckets[index])

    def raise_where(self, kind: AdmissionSignalKind, where: Bools, values: U64s) -> None:
        column = SIGNAL_KINDS.index(kind)
        self.values[where, column] = values[where]
        if kind in _ALWAYS_DISCARD:
            self.buckets[where, column] = AdmissionBucket.DISCARD
        else:
            self.buckets[where, column] = _buckets(values[where], *self.budget.bounds(kind))


def _buckets(values: U64s, accepted: int | None, quarantine: int | None) -> Codes:
    """A bound that is missing is replaced by the other one."""
    within = quarantine if accepted is None else accepted
    held = accepted if quarantine is None else quarantine
    if within is None or held is None:
        return np.full(len(values), AdmissionBucket.WITHIN, np.int8)
    # each bound that is exceeded makes the bucket one step worse
    return (values > np.uint64(within)).astype(np.int8) + (values > np.uint64(held))


def _outcomes(buckets: Codes, exact: Bools) -> Codes:
    worst = buckets.max(axis=1)
    accepted = np.where(exact, np.int8(0), np.int8(1))
    # above WITHIN, an outcome is always one more than its bucket
    return np.where(worst > AdmissionBucket.WITHIN, worst + np.int8(1), accepted)


@dataclass(frozen=True, slots=True, eq=False)
class _Sources:
    """The distinct revisions of a table, compared with the target."""

    exact: Bools
    drift: U64s
    drift_known: Bools
    policy_age: U64s
    policy_age_known: Bools
    signals: _Signals


def _measure(
    revisions: Sequence[PolicyRevision], target: PolicyRevision, budget: OffPolicyBudget
) -> _Sources:
    """Everything that depends on the revision alone, computed once for each distinct revision."""
    kind = AdmissionSignalKind
    exact = np.array([each.revision_id == target.revision_id for each in revisions], np.bool_)
    number, numbered = _numbers(revisions)
    target_number, target_numbered = _numbers([target])
    numbered &= target_numbered
    produced = np.array([each.produced_at_ms for each in revisions], np.uint64)
    target_produced = np.array([target.produced_at_ms], np.uint64)

    ahead = numbered & (number > target_number)
    drift_known = numbered & ~ahead
    drift = np.where(drift_known, _gap(target_number, number), np.uint64(0))
    age_known = produced <= target_produced
    age = _gap(target_produced, produced)
    unbudgeted = ~exact & ~drift_known & (not budget.limits_policy_age)

    signals = _Signals.none(len(revisions), budget)
    signals.raise_where(kind.SOURCE_REVISION_AHEAD_OF_TARGET, ahead, _gap(number, target_number))
    signals.raise_where(
        kind.SOURCE_POLICY_TIMESTAMP_AHEAD_OF_TARGET, ~age_known, _gap(produced, target_produced)
    )
    signals.raise_where(
        kind.REVISION_MISMATCH_UNBUDGETED, unbudgeted, np.ones(len(revisions), np.uint64)
    )
    signals.raise_where(kind.REVISION_DRIFT, drift_known, drift)
    signals.raise_where(kind.POLICY_AGE, age_known & (~exact | budget.limits_policy_age), age)
    return _Sources(exact, drift, drift_known, age, age_known, signals)


def _numbers(revisions: Sequence[PolicyRevision]) -> tuple[U64s, Bools]:
    numbers = [each.revision_number for each in revisions]
    return (
        np.array([number or 0 for number in numbers], np.uint64),
        np.array([number is not None for number in numbers], np.bool_),
    )


def check_names(rules: ContractRules, **names: str) -> None:
    """Strict rules refuse names that would let two receipts share a digest."""
    checked_rules(rules)
    for field, value in names.items():
        checked_text(value, "admission", field)
        if rules.strict and not value:
            raise EmptyId(record="admission", field=field)
        if rules.strict and "|" in value:
            raise AmbiguousId(record="admission", field=field, value=value, character="|")


def _refuse_sources(
    table: RolloutTable, target: PolicyRevision, window_id: str, rules: ContractRules
) -> None:
    for code, source in enumerate(table.columns.revisions):
        foreign = source.policy_family != target.policy_family
        forked = (
            source.revision_id == target.revision_id
            and source.policy_digest != target.policy_digest
        )
        if not foreign and not (forked and rules.strict):
            continue
        artifact_id = table[int(np.argmax(table.columns.revision_index == code))].artifact_id
        if foreign:
            raise PolicyFamilyMismatch(
                batch_id=window_id,
                artifact_id=artifact_id,
                expected_policy_family=target.policy_family,
                actual_policy_family=source.policy_family,
            )
        raise ConflictingRevision(
            record=f"window {window_id!r}",
            artifact_id=artifact_id,
            revision_id=target.revision_id,
            field="policy_digest",
            first=target.policy_digest,
            second=source.policy_digest,
        )


def observation_times(values: Times, table: RolloutTable) -> U64s:
    """One u64 per rollout, in a new array."""
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        one = int(values) if isinstance(values, np.integer) else values
        time = checked_int(one, "admission", "observed_at_ms", U64_MAX)
        return np.full(len(table), time, np.uint64)
    given: Any = values
    if hasattr(values, "__array__"):
        given = as_array("observed_at_ms", values, "iu", "whole numbers").tolist()
    checked_list(given, "admission", "observed_at_ms")
    if len(given) != len(table):
        raise ColumnLengthMismatch(
            artifact_id=table[len(given)].artifact_id if len(given) < len(table) else None,
            column="observed_at_ms",
            expected=len(table),
            actual=len(given),
        )
    # one by one: numpy would turn a list with numbers above 2**63 into floats
    times = [checked_int(time, "admission", "observed_at_ms", U64_MAX) for time in given]
    return np.array(times, np.uint64)

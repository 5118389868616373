"""AdmissionWindow: the ledger of one window: what was submitted, its current state, and who released what."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import Record, check_digest, checked_type, decode_json
from rollbook.contracts.rl.admission import (
    Admission,
    OffPolicyBudget,
    Times,
    U64s,
    admit,
    check_names,
    observation_times,
)
from rollbook.contracts.rl.admission_receipt import (
    OUTCOMES,
    AdmissionOutcome,
    RolloutAdmissionReceipt,
    RolloutIngestionTelemetry,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.rl.table_digests import digest_list
from rollbook.digest import digest_of
from rollbook.errors import (
    ColumnSetMismatch,
    DuplicateRolloutArtifact,
    EmptyId,
    InvalidValue,
    NotQuarantined,
    PayloadDropped,
    UnknownArtifact,
)

DECISION_DOMAIN = "rollbook.release_decision.v2"
_RELEASED = "released"
_DISCARDED = OUTCOMES.index(AdmissionOutcome.DISCARDED)


class ReleaseDecision(Record, frozen=True, kw_only=True):
    """Who released a quarantined rollout for training, and why."""

    run_id: str
    stage_id: str
    window_id: str
    artifact_id: str
    content_digest: str
    """Of the artifact. The digest of the receipt does not cover all of it."""
    receipt_digest: str
    decided_by: str
    reason: str
    decided_at_ms: int
    decision_digest: str
    """Covers every other field."""

    def __post_init__(self) -> None:
        record = f"release of {self.artifact_id!r}"
        texts = [name for name in self.__struct_fields__ if name != "decided_at_ms"]
        self._check_texts(record, *texts)
        self._check_ints(record, "decided_at_ms")
        if not self.decided_by:
            raise EmptyId(record=record, field="decided_by")
        if not self.reason.strip():
            raise InvalidValue(
                record=record, field="reason", value="empty", expected="a reason in words"
            )

    def verify(self) -> None:
        check_digest(
            self.artifact_id, "decision_digest", self.decision_digest, decision_digest(self)
        )

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str, *, source: str = "JSON") -> ReleaseDecision:
        """Read a decision and compare its digest with its content."""
        decision = decode_json(data, cls, source)
        decision.verify()
        return decision


def decision_digest(decision: ReleaseDecision) -> str:
    fields = decision.plain()
    del fields["decision_digest"]
    return digest_of(DECISION_DOMAIN, fields)


class StandingCounts(Record, frozen=True, kw_only=True):
    """`submitted` is the sum of the other counts: every rollout is counted in exactly one of them."""

    submitted: int
    accepted_exact: int
    accepted_off_policy: int
    released: int
    """Quarantined on their receipt, released later."""
    quarantined: int
    """Quarantined and not released."""
    discarded: int


class WindowAccounting(Record, frozen=True, kw_only=True):
    """The current state of everything that was submitted to a window."""

    rollouts: StandingCounts
    tokens: StandingCounts


@dataclass(slots=True, eq=False)
class _Entry:
    """What a window keeps of one artifact. Its receipt is made when it is read."""

    admission: Admission
    """The admission of its first submission, without payloads."""
    row: int
    outcome: AdmissionOutcome
    payload: int | None
    """The row of its payload among those kept; None when the payload was dropped."""
    released: bool = False

    @property
    def receipt(self) -> RolloutAdmissionReceipt:
        return self.admission.receipt(self.row)

    @property
    def content_digest(self) -> bytes:
        return bytes(self.admission.table.content_digests[self.row])

    @property
    def observed_at_ms(self) -> int:
        return int(self.admission.observed_at_ms[self.row])

    @property
    def token_count(self) -> int:
        return self.admission.table[self.row].token_count

    @property
    def standing(self) -> str:
        return _RELEASED if self.released else self.outcome


class AdmissionWindow:
    """The ledger of one window. Each artifact gets one decision, and every payload is accounted for.

    Payloads of discarded rollouts are dropped and only their receipts are kept, unless `retain_discarded` is set.
    """

    def __init__(
        self,
        *,
        run_id: str,
        stage_id: str,
        window_id: str,
        target_revision: PolicyRevision,
        budget: OffPolicyBudget,
        retain_discarded: bool = False,
        rules: ContractRules = STRICT,
    ) -> None:
        checked_type(target_revision, PolicyRevision, "admission window", "target_revision")
        checked_type(budget, OffPolicyBudget, "admission window", "budget")
        check_names(rules, run_id=run_id, stage_id=stage_id, window_id=window_id)
        self.run_id = run_id
        self.stage_id = stage_id
        self.window_id = window_id
        self.target_revision = target_revision
        self.budget = budget
        self.retain_discarded = retain_discarded
        self.rules = rules
        self._entries: dict[str, _Entry] = {}
        self._payloads: list[RolloutTable] = []
        self._kept = 0
        self._sample_names: tuple[str, ...] | None = None
        self._rollouts = [0] * len(OUTCOMES)
        self._tokens = [0] * len(OUTCOMES)
        self._decisions: list[ReleaseDecision] = []

    # ------------------------------------------------------------------------------- submitting

    def submit(self, table: RolloutTable, observed_at_ms: Times) -> Admission:
        """Decide about the rollouts and record the decisions. A refusal changes nothing.

        An artifact that was submitted before, with the same content, keeps its first receipt and is not counted again.
        """
        checked_type(table, RolloutTable, "submission", "table")
        self._refuse_other_columns(table)
        times = observation_times(observed_at_ms, table)
        new = self._new_rows(table, times)
        admission = admit(
            table,
            self.target_revision,
            self.budget,
            run_id=self.run_id,
            stage_id=self.stage_id,
            window_id=self.window_id,
            observed_at_ms=times,
            rules=self.rules,
        )
        self._record(admission, new)
        return admission

    def _refuse_other_columns(self, table: RolloutTable) -> None:
        """All payloads are read as one table later, so a table with other columns has to be refused now."""
        names = table.columns.sample_names
        if len(table) and self._sample_names not in (None, names):
            raise ColumnSetMismatch(
                artifact_id=table[0].artifact_id,
                expected=", ".join(self._sample_names or ()),
                actual=", ".join(names),
            )

    def _new_rows(self, table: RolloutTable, times: U64s) -> list[int]:
        """Rows of new artifacts. Other rows get the time of their first submission, and so their first receipt."""
        digests = digest_list(table.content_digests)
        first_rows: dict[str, int] = {}
        for row, artifact_id in enumerate(table.columns.artifact_id):
            entry = self._entries.get(artifact_id)
            if entry is not None:
                digest, time = entry.content_digest, entry.observed_at_ms
            else:
                first = first_rows.setdefault(artifact_id, row)
                if first == row:
                    continue
                digest, time = digests[first], int(times[first])
            if digest != digests[row]:
                raise DuplicateRolloutArtifact(batch_id=self.window_id, artifact_id=artifact_id)
            times[row] = time
        return list(first_rows.values())

    def _record(self, admission: Admission, new: list[int]) -> None:
        """Everything that can fail is done before the first change."""
        table = admission.table
        rows = np.array(new, np.int64)
        outcomes = admission.outcomes[rows]
        kept = rows if self.retain_discarded else rows[outcomes != _DISCARDED]
        whole = len(kept) == len(table)
        payloads = [table if whole else _copied(table.take(kept))] if len(kept) else []
        places = dict(zip(kept.tolist(), itertools.count(self._kept), strict=False))

        slim = _without_payloads(admission)
        ids = list(table.columns.artifact_id)
        entries = {
            ids[row]: _Entry(slim, row, OUTCOMES[outcome], places.get(row))
            for row, outcome in zip(new, outcomes.tolist(), strict=True)
        }
        tokens = np.diff(table.offsets)[rows]
        for code in range(len(OUTCOMES)):
            self._rollouts[code] += int(np.count_nonzero(outcomes == code))
            self._tokens[code] += int(tokens[outcomes == code].sum())
        self._entries.update(entries)
        if new:
            self._sample_names = table.columns.sample_names
        self._payloads += payloads
        self._kept += len(kept)

    # --------------------------------------------------------------------------------- deciding

    def release(
        self, artifact_id: str, *, decided_by: str, reason: str, decided_at_ms: int
    ) -> ReleaseDecision:
        """Move a quarantined rollout to the accepted ones. Its receipt does not change; the decision is recorded."""
        entry = self._entry(artifact_id)
        if entry.standing != AdmissionOutcome.QUARANTINED:
            raise NotQuarantined(artifact_id=artifact_id, outcome=entry.standing)
        undigested = ReleaseDecision(
            run_id=self.run_id,
            stage_id=self.stage_id,
            window_id=self.window_id,
            artifact_id=artifact_id,
            content_digest=entry.content_digest.hex(),
            receipt_digest=entry.receipt.receipt_digest,
            decided_by=decided_by,
            reason=reason,
            decided_at_ms=decided_at_ms,
            decision_digest="",
        )
        decision = msgspec.structs.replace(undigested, decision_digest=decision_digest(undigested))
        entry.released = True
        self._decisions.append(decision)
        return decision

    @property
    def decisions(self) -> tuple[ReleaseDecision, ...]:
        return tuple(self._decisions)

    # ---------------------------------------------------------------------------------- reading

    def receipt(self, artifact_id: str) -> RolloutAdmissionReceipt:
        return self._entry(artifact_id).receipt

    def receipts(self) -> tuple[RolloutAdmissionReceipt, ...]:
        """One per artifact, in the order of their first submission."""
        return tuple(entry.receipt for entry in self._entries.values())

    def accepted(self) -> RolloutTable:
        """Accepted and released rollouts, in the order of their first submission."""
        return self._standing(*OUTCOMES[:2], _RELEASED)

    def quarantined(self) -> RolloutTable:
        return self._standing(AdmissionOutcome.QUARANTINED)

    def discarded(self) -> RolloutTable:
        """The discarded rollouts. Raises PayloadDropped if there are any and the window did not retain them."""
        return self._standing(AdmissionOutcome.DISCARDED)

    @property
    def telemetry(self) -> RolloutIngestionTelemetry:
        return RolloutIngestionTelemetry.of(self._rollouts, self._tokens)

    def accounting(self) -> WindowAccounting:
        released = [self._entries[each.artifact_id] for each in self._decisions]
        return WindowAccounting(
            rollouts=_standing_counts(len(self._entries), self._rollouts, len(released)),
            tokens=_standing_counts(
                sum(self._tokens), self._tokens, sum(each.token_count for each in released)
            ),
        )

    def _entry(self, artifact_id: str) -> _Entry:
        entry = self._entries.get(artifact_id)
        if entry is None:
            raise UnknownArtifact(artifact_id=artifact_id, where=f"window {self.window_id!r}")
        return entry

    def _standing(self, *standings: str) -> RolloutTable:
        rows = []
        for artifact_id, entry in self._entries.items():
            if entry.standing in standings:
                if entry.payload is None:
                    raise PayloadDropped(artifact_id=artifact_id)
                rows.append(entry.payload)
        # kept as one table, so that the next call need not join them again
        self._payloads = [RolloutTable.concat(self._payloads)]
        return self._payloads[0].take(rows)


def _without_payloads(admission: Admission) -> Admission:
    """It makes the same receipts, and keeps no samples and prompts in memory."""
    table = admission.table
    columns = table.columns.without_payloads()
    slim = replace(
        admission, table=RolloutTable(columns, table.artifact_digests, table.content_digests)
    )
    # a cached property, computed while there are rewards
    vars(slim)["reward_sums"] = admission.reward_sums
    return slim


def _copied(table: RolloutTable) -> RolloutTable:
    """A copy. A view would keep the whole table it was taken from in memory."""
    samples = {name: column.copy() for name, column in table.samples.items()}
    columns = msgspec.structs.replace(table.columns, samples=samples).sealed()
    return RolloutTable(columns, table.artifact_digests, table.content_digests)


def _standing_counts(submitted: int, by_outcome: Sequence[int], released: int) -> StandingCounts:
    exact, off_policy, quarantined, discarded = by_outcome
    return StandingCounts(
        submitted=submitted,
        accepted_exact=exact,
        accepted_off_policy=off_policy,
        released=released,
        quarantined=quarantined - released,
        discarded=discarded,
    )

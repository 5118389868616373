"""Which rollouts are fresh enough, and the receipts that say so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import U64_MAX
from rollbook.contracts.rl.admission import Admission, OffPolicyBudget, Times, admit
from rollbook.contracts.rl.admission_receipt import (
    SIGNAL_KINDS,
    AdmissionBucket,
    AdmissionOutcome,
    AdmissionSignal,
    AdmissionSignalKind,
    RolloutAdmissionReceipt,
    RolloutIngestionTelemetry,
)
from rollbook.contracts.rl.admission_window import AdmissionWindow
from rollbook.contracts.rl.json_form import artifact_from_json
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, RolloutTerminationReason
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import COMPATIBLE, STRICT, ContractRules
from rollbook.errors import (
    AmbiguousId,
    ColumnLengthMismatch,
    ConflictingRevision,
    DigestMismatch,
    EmptyId,
    InvalidNumber,
    InvalidValue,
    MalformedJson,
    PolicyFamilyMismatch,
    WrongColumnType,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "contracts_protocol.json").read_text())
WINDOW: dict[str, Any] = GOLDEN["windows"][0]
RECEIPTS: list[dict[str, Any]] = [
    each["admission_receipt"] for each in GOLDEN["outcomes"] if "admission_receipt" in each
]
NAMES: dict[str, Any] = {"run_id": "run-1", "stage_id": "stage-rl", "window_id": "run-1-window-1"}


def revision(
    revision_id: str = "r7", number: int | None = 7, produced_at_ms: int = 1000, **fields: Any
) -> PolicyRevision:
    return PolicyRevision(
        policy_family=fields.get("policy_family", "family"),
        revision_id=revision_id,
        policy_digest=fields.get("policy_digest", f"digest of {revision_id}"),
        produced_at_ms=produced_at_ms,
        revision_number=number,
    )


TARGET = revision()


def rollouts(
    sources: Sequence[PolicyRevision], created: Sequence[int], tokens: Sequence[int] | None = None
) -> RolloutTable:
    counts = [1] * len(sources) if tokens is None else list(tokens)
    total = sum(counts)
    return RolloutTable.from_columns(
        artifact_id=[f"a{row}" for row in range(len(sources))],
        worker_id=[f"w{row % 2}" for row in range(len(sources))],
        environment=[EnvironmentPackageKey(environment_ref="env", version="1")] * len(sources),
        task_id=["task"] * len(sources),
        source_policy_revision=list(sources),
        offsets=np.cumsum([0, *counts]),
        samples={
            "token_id": np.arange(total),
            "logprob": -np.ones(total),
            "reward": np.full(total, 0.1),
            "advantage": np.zeros(total),
        },
        termination_reason=[RolloutTerminationReason.COMPLETED] * len(sources),
        created_at_ms=list(created),
    )


def admitted(
    table: RolloutTable,
    budget: OffPolicyBudget | None = None,
    *,
    target: PolicyRevision = TARGET,
    at: Times = 1000,
    rules: ContractRules = STRICT,
) -> Admission:
    chosen = OffPolicyBudget.default() if budget is None else budget
    return admit(table, target, chosen, observed_at_ms=at, rules=rules, **NAMES)


def receipt_of(
    source: PolicyRevision, created: int = 1000, at: int = 1000, **options: Any
) -> RolloutAdmissionReceipt:
    return admitted(rollouts([source], [created]), at=at, **options).receipt(0)


def kinds(receipt: RolloutAdmissionReceipt) -> list[str]:
    return [str(signal.kind) for signal in receipt.signals]


# ----------------------------------------------------------------------------------------- golden


def golden_artifacts() -> dict[str, RolloutArtifact]:
    """The reference drops the payload it discards; it differs from the quarantined one as its receipt says."""
    kept = WINDOW["accepted_rollouts"] + WINDOW["quarantined_rollouts"]
    described = {each["artifact"]["artifact_id"]: each["artifact"] for each in kept}
    lost = WINDOW["discarded_rollout_receipts"][0]
    described["a-disc"] = described["a-quar"] | {
        "artifact_id": "a-disc",
        "artifact_digest": lost["artifact_digest"],
        "task_id": "task-3",
        "proof_references": [
            {"kind": "execution_proof", "digest": "proof-a-disc", "reference": "exec://a-disc"}
        ],
        "source_policy_revision": {
            "policy_family": "train.decoder",
            "revision_id": "policy-rev-1",
            "policy_digest": "policy-digest-1",
            "produced_at_ms": 900,
            "revision_number": 1,
        },
    }
    return {name: artifact_from_json(json.dumps(each)) for name, each in described.items()}


def golden_target() -> PolicyRevision:
    lineage = GOLDEN["batch_record"]["batch"]["policy_lineage"]
    return msgspec.convert(lineage["target_revision"], PolicyRevision)


def as_golden(receipt: RolloutAdmissionReceipt) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(receipt)
    return fields | {"signals": list(fields["signals"])}


def test_every_receipt_of_the_recorded_run_is_reproduced_field_by_field() -> None:
    artifacts = golden_artifacts()
    table = RolloutTable.from_artifacts([artifacts[each["artifact_id"]] for each in RECEIPTS])
    times = [each["observed_at_ms"] for each in RECEIPTS]
    admission = admitted(table, target=golden_target(), at=times)
    assert [as_golden(receipt) for receipt in admission.receipts()] == RECEIPTS
    assert msgspec.to_builtins(admission.telemetry) == WINDOW["rollout_telemetry"]
    assert len(RECEIPTS) == 4


def test_the_receipts_a_window_keeps_are_those_of_the_recorded_run() -> None:
    window = AdmissionWindow(
        target_revision=golden_target(), budget=OffPolicyBudget.default(), **NAMES
    )
    artifacts = golden_artifacts()
    for each in RECEIPTS:
        table = RolloutTable.from_artifacts([artifacts[each["artifact_id"]]])
        window.submit(table, each["observed_at_ms"])
    recorded = [each["receipt"] for each in WINDOW["accepted_rollouts"]]
    recorded += [each["receipt"] for each in WINDOW["quarantined_rollouts"]]
    recorded += WINDOW["discarded_rollout_receipts"]
    assert {each["artifact_id"]: each for each in recorded} == {
        receipt.artifact_id: as_golden(receipt) for receipt in window.receipts()
    }
    assert list(window.accepted().columns.artifact_id) == ["a-off", "a-exact"]
    assert list(window.quarantined().columns.artifact_id) == ["a-quar"]
    assert msgspec.to_builtins(window.telemetry) == WINDOW["rollout_telemetry"]


# ------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize("recorded", RECEIPTS, ids=lambda each: str(each["artifact_id"]))
def test_a_receipt_survives_json_both_ways(recorded: dict[str, Any]) -> None:
    receipt = RolloutAdmissionReceipt.from_json(json.dumps(recorded))
    assert as_golden(receipt) == recorded
    assert RolloutAdmissionReceipt.from_json(receipt.to_json()) == receipt


def test_the_reward_sum_is_written_with_the_shortest_digits_and_read_back_to_the_same_bits() -> (
    None
):
    receipt = RolloutAdmissionReceipt.from_json(json.dumps(RECEIPTS[0]))
    assert b'"reward_sum":1.6,' in receipt.to_json()
    short = RolloutAdmissionReceipt.from_json(json.dumps(RECEIPTS[0] | {"reward_sum": 1.6}))
    assert short.reward_sum == receipt.reward_sum == float(np.float32(1.6))


@pytest.mark.parametrize("spelled", ["NaN", "Infinity", "-Infinity", "NaN:ffc00000"])
def test_a_non_finite_reward_sum_survives_json(spelled: str) -> None:
    receipt = RolloutAdmissionReceipt.from_json(json.dumps(RECEIPTS[0] | {"reward_sum": spelled}))
    assert not np.isfinite(receipt.reward_sum)
    assert json.loads(receipt.to_json())["reward_sum"] == spelled


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "accepted_exact"},
        {"rollout_age_ms": 11},
        {"policy_age_ms": None},
        {"signals": []},
        {"worker_id": "worker-c"},
        {"receipt_digest": "0" * 64},
        {"receipt_id": "another"},
    ],
)
def test_a_changed_receipt_is_refused_when_read(change: dict[str, Any]) -> None:
    with pytest.raises(DigestMismatch) as caught:
        RolloutAdmissionReceipt.from_json(json.dumps(RECEIPTS[0] | change))
    assert caught.value.field == ("receipt_id" if "receipt_id" in change else "receipt_digest")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "$"),
        ("[]", "$"),
        (json.dumps(RECEIPTS[0] | {"outcome": "lost"}), "$.outcome"),
        (json.dumps(RECEIPTS[0] | {"reward_sum": None}), "$.reward_sum"),
        (json.dumps(RECEIPTS[0] | {"reward_sum": True}), "$.reward_sum"),
        (json.dumps(RECEIPTS[0] | {"more": 1}), "$"),
        (json.dumps(RECEIPTS[0] | {"token_count": -1}), "$"),
        (json.dumps(RECEIPTS[0] | {"signals": [{"kind": "drift"}]}), "$.signals[0].kind"),
        (json.dumps({k: v for k, v in RECEIPTS[0].items() if k != "reward_sum"}), "$"),
    ],
)
def test_json_that_is_no_receipt_is_refused_by_path(text: str, where: str) -> None:
    with pytest.raises(MalformedJson) as caught:
        RolloutAdmissionReceipt.from_json(text, source="receipts.jsonl")
    assert (caught.value.where, caught.value.source) == (where, "receipts.jsonl")


def test_a_reward_sum_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidNumber):
        RolloutAdmissionReceipt.from_json(json.dumps(RECEIPTS[0] | {"reward_sum": "much"}))


def test_a_receipt_for_the_longest_ids_can_be_made_and_read() -> None:
    table = rollouts([TARGET], [0])
    admission = admit(
        table,
        TARGET,
        OffPolicyBudget.default(),
        run_id="r",
        stage_id="s",
        window_id="w" * 4096,
        observed_at_ms=0,
    )
    receipt = admission.receipt(0)
    assert RolloutAdmissionReceipt.from_json(receipt.to_json()) == receipt


# ----------------------------------------------------------------------------------------- budget


def test_the_default_budget_is_the_reference_one() -> None:
    assert msgspec.to_builtins(OffPolicyBudget.default()) == {
        "max_revision_drift": 3,
        "quarantine_revision_drift": 5,
        "max_rollout_age_ms": 30_000,
        "quarantine_rollout_age_ms": 60_000,
    }


@pytest.mark.parametrize("measure", ["revision_drift", "policy_age_ms", "rollout_age_ms"])
def test_a_quarantine_bound_below_the_accept_bound_is_refused(measure: str) -> None:
    bounds = {"max_rollout_age_ms": 10, f"max_{measure}": 10}
    OffPolicyBudget(**bounds, **{f"quarantine_{measure}": 10})
    with pytest.raises(InvalidValue) as caught:
        OffPolicyBudget(**bounds, **{f"quarantine_{measure}": 9})
    assert caught.value.field == f"quarantine_{measure}"


@pytest.mark.parametrize("value", [-1, U64_MAX + 1, 1.5, True, "3"])
def test_a_bound_that_is_no_u64_is_refused(value: Any) -> None:
    with pytest.raises(InvalidNumber):
        OffPolicyBudget(max_rollout_age_ms=1, max_revision_drift=value)
    with pytest.raises(InvalidNumber):
        OffPolicyBudget(max_rollout_age_ms=value)


BUCKET_RULE = [
    # accept, quarantine, observed, expected
    (None, None, 0, AdmissionBucket.WITHIN),
    (None, None, U64_MAX, AdmissionBucket.WITHIN),
    (5, None, 4, AdmissionBucket.WITHIN),
    (5, None, 5, AdmissionBucket.WITHIN),
    (5, None, 6, AdmissionBucket.DISCARD),
    (None, 5, 4, AdmissionBucket.WITHIN),
    (None, 5, 5, AdmissionBucket.WITHIN),
    (None, 5, 6, AdmissionBucket.DISCARD),
    (5, 8, 5, AdmissionBucket.WITHIN),
    (5, 8, 6, AdmissionBucket.QUARANTINE),
    (5, 8, 8, AdmissionBucket.QUARANTINE),
    (5, 8, 9, AdmissionBucket.DISCARD),
    (5, 5, 5, AdmissionBucket.WITHIN),
    (5, 5, 6, AdmissionBucket.DISCARD),
    (0, 0, 0, AdmissionBucket.WITHIN),
    (0, U64_MAX, U64_MAX, AdmissionBucket.QUARANTINE),
    (U64_MAX, U64_MAX, U64_MAX, AdmissionBucket.WITHIN),
]


@pytest.mark.parametrize(("accept", "quarantine", "observed", "expected"), BUCKET_RULE)
def test_a_value_falls_into_the_bucket_its_bounds_say(
    accept: int | None, quarantine: int | None, observed: int, expected: AdmissionBucket
) -> None:
    budget = OffPolicyBudget(
        max_revision_drift=accept, quarantine_revision_drift=quarantine, max_rollout_age_ms=0
    )
    target = revision("target", U64_MAX)
    table = rollouts([revision("source", U64_MAX - observed)], [1000])
    admission = admitted(table, budget, target=target)
    column = SIGNAL_KINDS.index(AdmissionSignalKind.REVISION_DRIFT)
    assert admission.signal_buckets[0, column] == expected
    assert admission.signal_values[0, column] == observed


# ---------------------------------------------------------------------------------------- signals


ANY_AGE = OffPolicyBudget(max_rollout_age_ms=U64_MAX, max_policy_age_ms=U64_MAX)


@pytest.mark.parametrize(
    ("source", "created", "budget", "expected"),
    [
        (revision("r9", 9), 1000, ANY_AGE, ("source_revision_ahead_of_target", 2, 0, 0)),
        (
            revision("r6", None, 1003),
            1000,
            ANY_AGE,
            ("source_policy_timestamp_ahead_of_target", 3, 0, 0),
        ),
        (revision(), 1004, ANY_AGE, ("rollout_timestamp_ahead_of_submission", 4, 0, 0)),
        (
            revision("r6", None),
            1000,
            OffPolicyBudget.default(),
            ("revision_mismatch_unbudgeted", 1, None, None),
        ),
        (revision("r1", 1), 1000, OffPolicyBudget.default(), ("revision_drift", 6, 3, 5)),
        (
            revision("r6", None, 900),
            1000,
            OffPolicyBudget(max_policy_age_ms=99, max_rollout_age_ms=0),
            ("policy_age", 100, 99, None),
        ),
        (
            revision(),
            990,
            OffPolicyBudget(max_rollout_age_ms=8, quarantine_rollout_age_ms=9),
            ("rollout_age", 10, 8, 9),
        ),
    ],
)
def test_each_signal_alone_discards(
    source: PolicyRevision, created: int, budget: OffPolicyBudget, expected: tuple[Any, ...]
) -> None:
    admission = admitted(rollouts([source], [created]), budget)
    receipt = admission.receipt(0)
    kind, value, accepted, quarantine = expected
    assert (
        AdmissionSignal(
            kind=AdmissionSignalKind(kind),
            observed_value=value,
            accepted_budget=accepted,
            quarantine_budget=quarantine,
        )
        in receipt.signals
    )
    worst = np.flatnonzero(admission.signal_buckets[0] == AdmissionBucket.DISCARD)
    assert [SIGNAL_KINDS[column] for column in worst] == [kind]
    assert receipt.outcome == "discarded"


def test_signals_stand_in_the_order_of_their_kinds() -> None:
    ahead = receipt_of(revision("r9", 9, 2000), created=1500)
    assert kinds(ahead) == [
        "source_revision_ahead_of_target",
        "source_policy_timestamp_ahead_of_target",
        "rollout_timestamp_ahead_of_submission",
        "revision_mismatch_unbudgeted",
        "rollout_age",
    ]
    behind = receipt_of(revision("r6", 6, 900), created=990)
    assert kinds(behind) == ["revision_drift", "policy_age", "rollout_age"]


def test_the_exact_revision_raises_policy_age_only_when_that_is_budgeted() -> None:
    assert kinds(receipt_of(revision())) == ["revision_drift", "rollout_age"]
    assert kinds(receipt_of(revision(), budget=ANY_AGE)) == [
        "revision_drift",
        "policy_age",
        "rollout_age",
    ]
    assert receipt_of(revision()).policy_age_ms == 0


def test_an_unnumbered_revision_is_admitted_by_its_age_when_that_is_budgeted() -> None:
    source = revision("r6", None, 950)
    assert receipt_of(source).outcome == "discarded"
    budget = OffPolicyBudget(quarantine_policy_age_ms=50, max_rollout_age_ms=0)
    receipt = receipt_of(source, budget=budget)
    assert receipt.outcome == "accepted_off_policy"
    assert receipt.revision_drift is None
    assert receipt.policy_age_ms == 50


def test_a_source_newer_than_the_target_is_discarded_without_negative_numbers() -> None:
    receipt = receipt_of(revision("r9", 9, 5000), created=0, at=0)
    assert receipt.outcome == "discarded"
    assert (receipt.revision_drift, receipt.policy_age_ms, receipt.rollout_age_ms) == (
        None,
        None,
        0,
    )
    assert [signal.observed_value for signal in receipt.signals] == [2, 4000, 1, 0]


@pytest.mark.parametrize(
    ("source", "created", "outcome"),
    [
        (revision(), 1000, "accepted_exact"),
        (revision("r6", 6), 1000, "accepted_off_policy"),
        (revision("r3", 3), 1000, "quarantined"),
        # one signal asks for quarantine, another for discarding
        (revision("r3", 3), 1001, "discarded"),
        (revision("r1", 1), 1000, "discarded"),
        # exact, and yet too old
        (revision(), 1000 - 30_001 + 100_000, "quarantined"),
        (revision(), 1000 - 60_001 + 100_000, "discarded"),
    ],
)
def test_the_worst_signal_decides_the_outcome(
    source: PolicyRevision, created: int, outcome: str
) -> None:
    at = 101_000 if created > 2000 else 1000
    assert receipt_of(source, created=created, at=at).outcome == outcome


def test_u64_extremes_neither_overflow_nor_lose_digits() -> None:
    target = revision("target", U64_MAX, U64_MAX)
    sources = [revision("old", 0, 0), revision("target", U64_MAX, U64_MAX)]
    admission = admitted(rollouts(sources, [0, U64_MAX]), target=target, at=[U64_MAX, 0])
    old, exact = admission.receipts()
    assert (old.revision_drift, old.policy_age_ms, old.rollout_age_ms) == (U64_MAX,) * 3
    assert (exact.revision_drift, exact.policy_age_ms, exact.rollout_age_ms) == (0, 0, 0)
    assert exact.signals[0].observed_value == U64_MAX
    assert exact.signals[0].kind == "rollout_timestamp_ahead_of_submission"
    ahead = admitted(rollouts([sources[1]], [0]), target=revision("zero", 0, 0), at=U64_MAX)
    assert [each.observed_value for each in ahead.receipt(0).signals][:2] == [U64_MAX, U64_MAX]


# ------------------------------------------------------------------------- plain, one at a time


def plain_bucket(value: int, accepted: int | None, quarantine: int | None) -> str:
    if accepted is not None:
        if value <= accepted:
            return "within"
        return "quarantine" if quarantine is not None and value <= quarantine else "discard"
    return "within" if quarantine is None or value <= quarantine else "discard"


def plain_receipt(
    artifact: RolloutArtifact, target: PolicyRevision, budget: OffPolicyBudget, at: int
) -> dict[str, Any]:
    """The rules for one artifact, spelled out with Python's own integers."""
    source = artifact.source_policy_revision
    exact = source.revision_id == target.revision_id
    drift = target.revision_drift_from(source)
    policy_age = target.produced_at_ms - source.produced_at_ms
    rollout_age = at - artifact.created_at_ms
    found: list[tuple[str, int, int | None, int | None]] = []
    buckets = []

    def discard(kind: str, value: int, bound: int | None) -> None:
        found.append((kind, value, bound, bound))
        buckets.append("discard")

    def judge(kind: str, value: int, accepted: int | None, quarantine: int | None) -> None:
        found.append((kind, value, accepted, quarantine))
        buckets.append(plain_bucket(value, accepted, quarantine))

    numbers = target.revision_number, source.revision_number
    if numbers[0] is not None and numbers[1] is not None and numbers[1] > numbers[0]:
        discard("source_revision_ahead_of_target", numbers[1] - numbers[0], 0)
    if policy_age < 0:
        discard("source_policy_timestamp_ahead_of_target", -policy_age, 0)
    if rollout_age < 0:
        discard("rollout_timestamp_ahead_of_submission", -rollout_age, 0)
    ages = budget.max_policy_age_ms, budget.quarantine_policy_age_ms
    if not exact and drift is None and ages == (None, None):
        discard("revision_mismatch_unbudgeted", 1, None)
    if drift is not None:
        judge("revision_drift", drift, budget.max_revision_drift, budget.quarantine_revision_drift)
    if policy_age >= 0 and (not exact or ages != (None, None)):
        judge("policy_age", policy_age, *ages)
    limits = budget.max_rollout_age_ms, budget.quarantine_rollout_age_ms
    judge("rollout_age", max(rollout_age, 0), *limits)
    outcome = "accepted_exact" if exact else "accepted_off_policy"
    if "discard" in buckets:
        outcome = "discarded"
    elif "quarantine" in buckets:
        outcome = "quarantined"
    measures = drift, policy_age if policy_age >= 0 else None, max(rollout_age, 0)
    return {
        "outcome": outcome,
        "measures": measures,
        "signals": found,
        "digest": plain_digest(artifact, outcome, measures, found, at),
    }


def plain_digest(
    artifact: RolloutArtifact,
    outcome: str,
    measures: tuple[int | None, int | None, int],
    signals: list[tuple[str, int, int | None, int | None]],
    at: int,
) -> str:
    words: list[object] = ["psionic_training_rollout_receipt", *NAMES.values()]
    words += [artifact.artifact_id, artifact.artifact_digest, artifact.worker_id]
    words += [artifact.source_policy_revision.revision_id, outcome]
    for label, value in zip(("revision_drift", "policy_age_ms"), measures[:2], strict=True):
        words += [] if value is None else [label, value]
    words += ["rollout_age_ms", measures[2], "observed_at_ms", at]
    for kind, value, accepted, quarantine in signals:
        words += ["signal", kind, value]
        words += [] if accepted is None else ["accepted", accepted]
        words += [] if quarantine is None else ["quarantine", quarantine]
    return hashlib.sha256("|".join(map(str, words)).encode()).hexdigest()


U64 = st.one_of(
    st.integers(0, 8),
    st.integers(2**53 - 4, 2**53 + 4),
    st.integers(2**63 - 4, 2**63 + 4),
    st.integers(U64_MAX - 8, U64_MAX),
    st.integers(0, U64_MAX),
)
MAYBE = st.one_of(st.none(), U64)


@st.composite
def budgets(draw: st.DrawFn) -> OffPolicyBudget:
    bounds: dict[str, int | None] = {}
    for measure in ("revision_drift", "policy_age_ms", "rollout_age_ms"):
        accept = draw(U64 if measure == "rollout_age_ms" else MAYBE)
        bounds[f"max_{measure}"] = accept
        wider = draw(MAYBE)
        bounds[f"quarantine_{measure}"] = wider if wider is None else max(wider, accept or 0)
    return msgspec.convert(bounds, OffPolicyBudget)


REVISIONS = st.builds(revision, st.sampled_from(["r1", "r2", "target"]), MAYBE, U64)
ROWS = st.lists(st.tuples(REVISIONS, U64, U64, st.integers(1, 5)), max_size=8)


@settings(deadline=None)
@given(rows=ROWS, number=MAYBE, produced=U64, budget=budgets())
def test_a_table_is_admitted_as_its_artifacts_would_be_one_by_one(
    rows: list[tuple[PolicyRevision, int, int, int]],
    number: int | None,
    produced: int,
    budget: OffPolicyBudget,
) -> None:
    target = revision("target", number, produced)
    sources, created, times, tokens = [list(each) for each in zip(*rows, strict=True)] or [[]] * 4
    table = rollouts(sources, created, tokens)
    admission = admitted(table, budget, target=target, at=times)
    for artifact, at, receipt in zip(table, times, admission.receipts(), strict=True):
        plain = plain_receipt(artifact, target, budget, at)
        assert receipt.outcome == plain["outcome"]
        measured = receipt.revision_drift, receipt.policy_age_ms, receipt.rollout_age_ms
        assert measured == plain["measures"]
        assert plain["signals"] == [
            (str(each.kind), each.observed_value, each.accepted_budget, each.quarantine_budget)
            for each in receipt.signals
        ]
        assert receipt.receipt_digest == plain["digest"]
        assert receipt.token_count == artifact.token_count
        assert receipt.reward_sum == artifact.reward_sum
        assert RolloutAdmissionReceipt.from_json(receipt.to_json()) == receipt
    for outcome in AdmissionOutcome:
        assert admission.rows(outcome).tolist() == [
            row for row, each in enumerate(admission.receipts()) if each.outcome == outcome
        ]


# -------------------------------------------------------------------------------------- telemetry


def test_telemetry_counts_rollouts_and_tokens_by_outcome() -> None:
    sources = [revision(), revision("r6", 6), revision("r3", 3), revision("r1", 1), revision()]
    telemetry = admitted(rollouts(sources, [1000] * 5, [1, 2, 3, 4, 5])).telemetry
    assert msgspec.to_builtins(telemetry) == {
        "accepted_exact_rollout_count": 2,
        "accepted_off_policy_rollout_count": 1,
        "quarantined_rollout_count": 1,
        "discarded_rollout_count": 1,
        "accepted_token_count": 8,
        "quarantined_token_count": 3,
        "discarded_token_count": 4,
    }
    assert telemetry.stale_rollout_drop_rate_bps == 2000


def test_telemetry_saturates() -> None:
    telemetry = RolloutIngestionTelemetry.of([1, 1, 1, 1], [U64_MAX, 1, U64_MAX + 1, 0])
    assert telemetry.accepted_token_count == U64_MAX
    assert telemetry.quarantined_token_count == U64_MAX


def test_the_drop_rate_is_rounded_down_and_zero_when_nothing_came() -> None:
    assert RolloutIngestionTelemetry.of([2, 0, 0, 1], [0] * 4).stale_rollout_drop_rate_bps == 3333
    assert RolloutIngestionTelemetry.of([0] * 4, [0] * 4).stale_rollout_drop_rate_bps == 0


def test_an_empty_table_is_admitted_as_nothing() -> None:
    admission = admitted(RolloutTable.empty())
    assert admission.receipts() == ()
    assert admission.telemetry == RolloutIngestionTelemetry.of([0] * 4, [0] * 4)


# --------------------------------------------------------------------------------------- refusals


def test_another_policy_family_is_refused_with_the_first_artifact_that_has_it() -> None:
    foreign = revision("r6", 6, policy_family="other")
    with pytest.raises(PolicyFamilyMismatch) as caught:
        admitted(rollouts([TARGET, foreign, foreign], [0, 0, 0]))
    assert caught.value.fields == {
        "batch_id": "run-1-window-1",
        "artifact_id": "a1",
        "expected_policy_family": "family",
        "actual_policy_family": "other",
    }


def test_the_target_id_with_another_digest_is_refused_by_strict_rules_and_exact_otherwise() -> None:
    table = rollouts([TARGET, revision(policy_digest="forked")], [1000, 1000])
    with pytest.raises(ConflictingRevision) as caught:
        admitted(table)
    assert (caught.value.artifact_id, caught.value.field) == ("a1", "policy_digest")
    assert (caught.value.first, caught.value.second) == ("digest of r7", "forked")
    assert admitted(table, rules=COMPATIBLE).receipt(1).outcome == "accepted_exact"


@pytest.mark.parametrize("name", ["run_id", "stage_id", "window_id"])
def test_strict_rules_refuse_names_that_receipt_digests_cannot_tell_apart(name: str) -> None:
    table = rollouts([TARGET], [0])
    budget = OffPolicyBudget.default()
    for value, refusal in (("", EmptyId), ("a|b", AmbiguousId)):
        names = NAMES | {name: value}
        with pytest.raises(refusal):
            admit(table, TARGET, budget, observed_at_ms=0, **names)
        admit(table, TARGET, budget, observed_at_ms=0, rules=COMPATIBLE, **names)


@pytest.mark.parametrize(
    ("times", "refusal"),
    [
        (-1, InvalidNumber),
        (U64_MAX + 1, InvalidNumber),
        (1.5, InvalidNumber),
        (True, InvalidNumber),
        ([0, -1], InvalidNumber),
        (np.array([0, -1]), InvalidNumber),
        ([0, 0.5], InvalidNumber),
        (np.array([0.0, 1.0]), WrongColumnType),
        ([0], ColumnLengthMismatch),
        ([0, 0, 0], ColumnLengthMismatch),
    ],
)
def test_times_that_are_no_u64_each_are_refused(times: Any, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        admitted(rollouts([TARGET, TARGET], [0, 0]), at=times)


@pytest.mark.parametrize(
    "times", [2**63, np.uint64(2**63), [2**63, 2**63], np.array([2**63] * 2, np.uint64)]
)
def test_times_may_be_one_number_a_list_or_an_array(times: Times) -> None:
    admission = admitted(rollouts([TARGET, TARGET], [1, 2]), at=times)
    assert admission.rollout_age_ms.tolist() == [2**63 - 1, 2**63 - 2]


def test_what_is_no_table_revision_or_budget_is_refused() -> None:
    table = rollouts([TARGET], [0])
    budget = OffPolicyBudget.default()
    calls: list[tuple[Any, Any, Any]] = [
        ([table[0]], TARGET, budget),
        (table, "r7", budget),
        (table, TARGET, None),
    ]
    for call in calls:
        with pytest.raises(InvalidValue):
            admit(*call, observed_at_ms=0, **NAMES)


def test_the_columns_of_an_admission_cannot_be_written_to() -> None:
    admission = admitted(rollouts([TARGET], [0]))
    for column in (admission.outcomes, admission.signal_buckets, admission.rollout_age_ms):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_a_measure_that_is_not_known_is_masked_and_zero() -> None:
    sources = [revision("r6", None, 2000), revision("r6", 6, 900)]
    admission = admitted(rollouts(sources, [0, 0]))
    assert admission.revision_drift_known.tolist() == [False, True]
    assert admission.revision_drift.tolist() == [0, 1]
    assert admission.policy_age_known.tolist() == [False, True]
    assert admission.policy_age_ms.tolist() == [0, 100]


def test_a_row_outside_the_table_has_no_receipt() -> None:
    admission = admitted(rollouts([TARGET, TARGET], [0, 1]))
    assert admission.receipt(-1) == admission.receipt(1)
    with pytest.raises(IndexError):
        admission.receipt(2)

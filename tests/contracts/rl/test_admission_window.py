"""The ledger of a window: once each, all or nothing, and every rollout accounted for."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.admission import Admission, OffPolicyBudget
from rollbook.contracts.rl.admission_receipt import RolloutAdmissionReceipt
from rollbook.contracts.rl.admission_window import AdmissionWindow, ReleaseDecision, StandingCounts
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, RolloutTerminationReason
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import COMPATIBLE
from rollbook.errors import (
    AmbiguousId,
    ColumnSetMismatch,
    ConflictingRevision,
    DigestMismatch,
    DuplicateRolloutArtifact,
    EmptyId,
    InvalidNumber,
    InvalidValue,
    MalformedJson,
    NotQuarantined,
    PayloadDropped,
    PolicyFamilyMismatch,
    Refusal,
    UnknownArtifact,
)

AT = 1000
OUTCOME_OF_NUMBER = {
    7: "accepted_exact",
    6: "accepted_off_policy",
    3: "quarantined",
    1: "discarded",
}


def revision(number: int, **fields: Any) -> PolicyRevision:
    return PolicyRevision(
        policy_family=fields.get("policy_family", "family"),
        revision_id=f"r{number}",
        policy_digest=fields.get("policy_digest", f"digest {number}"),
        produced_at_ms=fields.get("produced_at_ms", 0),
        revision_number=number,
    )


def rollouts(
    rows: Mapping[str, PolicyRevision | int], *, token: int = 0, columns: Sequence[str] = ()
) -> RolloutTable:
    """Artifacts by id, each of a revision; the number of tokens is the length of the id."""
    counts = [len(artifact_id) for artifact_id in rows]
    total = sum(counts)
    extra = {name: np.ones(total, np.int64) for name in columns}
    return RolloutTable.from_columns(
        artifact_id=list(rows),
        worker_id=["w"] * len(rows),
        environment=[EnvironmentPackageKey(environment_ref="env", version="1")] * len(rows),
        task_id=["task"] * len(rows),
        source_policy_revision=[
            revision(each) if isinstance(each, int) else each for each in rows.values()
        ],
        offsets=np.cumsum([0, *counts]),
        samples={
            "token_id": np.full(total, token),
            "logprob": np.zeros(total),
            "reward": np.zeros(total),
            "advantage": np.zeros(total),
            **extra,
        },
        termination_reason=[RolloutTerminationReason.COMPLETED] * len(rows),
        created_at_ms=[AT] * len(rows),
    )


def opened(**options: Any) -> AdmissionWindow:
    names = {"run_id": "run", "stage_id": "stage", "window_id": "window"}
    return AdmissionWindow(
        target_revision=revision(7), budget=OffPolicyBudget.default(), **(names | options)
    )


def ids(table: RolloutTable) -> list[str]:
    return list(table.columns.artifact_id)


def release(window: AdmissionWindow, artifact_id: str) -> ReleaseDecision:
    return window.release(artifact_id, decided_by="ada", reason="checked by hand", decided_at_ms=5)


ALL_FOUR = {"exact": 7, "off": 6, "held": 3, "lost": 1}


# ------------------------------------------------------------------------------------- submitting


def test_a_submission_makes_no_receipts_they_are_made_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    plain = Admission.receipt

    def counted(admission: Admission, row: int) -> RolloutAdmissionReceipt:
        made.append(row)
        return plain(admission, row)

    monkeypatch.setattr(Admission, "receipt", counted)
    window = opened()
    admission = window.submit(rollouts(ALL_FOUR), AT)
    window.submit(rollouts(ALL_FOUR), AT + 1)
    assert (window.accounting().rollouts.submitted, len(window.accepted()), made) == (4, 2, [])
    assert window.receipts() == admission.receipts()


def test_a_window_keeps_neither_samples_nor_prompts_of_discarded_rollouts() -> None:
    table = rollouts({"lost": 1})
    window = opened()
    window.submit(table, AT)
    held = [weakref.ref(column) for column in table.samples.values()]
    expected = window.receipt("lost")
    del table
    gc.collect()
    assert [column() for column in held] == [None] * len(held)
    assert window.receipt("lost") == expected


def test_rollouts_go_where_their_receipt_says() -> None:
    window = opened(retain_discarded=True)
    window.submit(rollouts(ALL_FOUR), AT)
    assert ids(window.accepted()) == ["exact", "off"]
    assert ids(window.quarantined()) == ["held"]
    assert ids(window.discarded()) == ["lost"]
    assert [receipt.outcome for receipt in window.receipts()] == list(OUTCOME_OF_NUMBER.values())
    window.accepted().verify()


def test_tables_are_in_the_order_of_submission_whatever_was_read_between() -> None:
    window = opened()
    window.submit(rollouts({"b": 7, "q": 3}), AT)
    assert ids(window.accepted()) == ["b"]
    window.submit(rollouts({"c": 6, "x": 1, "a": 7}), AT)
    release(window, "q")
    assert ids(window.accepted()) == ["b", "q", "c", "a"]
    window.accepted().verify()


def test_resubmitting_returns_the_first_receipt_and_counts_once() -> None:
    window = opened()
    first = window.submit(rollouts(ALL_FOUR), AT)
    before = window.accounting(), window.telemetry, window.receipts()
    again = window.submit(rollouts(ALL_FOUR), AT + 50_000)
    assert again.receipts() == first.receipts()
    assert (window.accounting(), window.telemetry, window.receipts()) == before
    assert ids(window.accepted()) == ["exact", "off"]


def test_old_and_new_artifacts_may_come_together() -> None:
    window = opened()
    window.submit(rollouts({"exact": 7}), AT)
    admission = window.submit(rollouts({"new": 7, "exact": 7}), [AT + 1, AT + 2])
    assert [receipt.observed_at_ms for receipt in admission.receipts()] == [AT + 1, AT]
    assert window.accounting().rollouts.submitted == 2
    assert window.receipt("exact") == admission.receipt(1)


def test_one_artifact_twice_in_a_submission_is_counted_once() -> None:
    window = opened()
    admission = window.submit(rollouts({"a": 7, "b": 7}).take([0, 1, 0]), [AT, AT + 1, AT + 2])
    assert admission.receipt(0) == admission.receipt(2)
    assert window.accounting().rollouts.submitted == 2


def test_a_released_artifact_keeps_its_receipt_and_place_when_resubmitted() -> None:
    window = opened()
    window.submit(rollouts({"held": 3}), AT)
    release(window, "held")
    assert window.submit(rollouts({"held": 3}), AT).receipt(0).outcome == "quarantined"
    assert window.accounting().rollouts.released == 1
    assert ids(window.accepted()) == ["held"]


def test_a_known_id_with_other_content_is_refused() -> None:
    window = opened()
    window.submit(rollouts({"exact": 7}), AT)
    with pytest.raises(DuplicateRolloutArtifact) as caught:
        window.submit(rollouts({"new": 7, "exact": 7}, token=9), AT)
    assert caught.value.fields == {"batch_id": "window", "artifact_id": "exact"}


def test_content_that_the_v1_digest_does_not_cover_counts_as_other_content() -> None:
    window = opened()
    first, second = (rollouts({"exact": revision(7, produced_at_ms=at)}, token=1) for at in (0, 1))
    assert first[0].artifact_digest == second[0].artifact_digest
    window.submit(first, AT)
    with pytest.raises(DuplicateRolloutArtifact):
        window.submit(second, AT)


BAD_SUBMISSIONS: list[tuple[RolloutTable, Any, type[Refusal]]] = [
    (rollouts({"new": 7, "exact": 6}), AT, DuplicateRolloutArtifact),
    (rollouts({"new": 7, "far": revision(6, policy_family="x")}), AT, PolicyFamilyMismatch),
    (rollouts({"new": 7, "fork": revision(7, policy_digest="x")}), AT, ConflictingRevision),
    (rollouts({"new": 7}, columns=["loss_mask"]), AT, ColumnSetMismatch),
    (rollouts({"new": 7}), -1, InvalidNumber),
]


@pytest.mark.parametrize(("table", "at", "refusal"), BAD_SUBMISSIONS)
def test_a_refused_submission_leaves_nothing_behind(
    table: RolloutTable, at: Any, refusal: type[Refusal]
) -> None:
    window = opened()
    window.submit(rollouts(ALL_FOUR), AT)
    before = window.accounting(), window.telemetry, window.receipts(), ids(window.accepted())
    with pytest.raises(refusal):
        window.submit(table, at)
    after = window.accounting(), window.telemetry, window.receipts(), ids(window.accepted())
    assert after == before
    with pytest.raises(UnknownArtifact):
        window.receipt("new")
    window.submit(rollouts({"new": 7}), AT)
    assert ids(window.accepted()) == ["exact", "off", "new"]


def test_a_refused_first_submission_does_not_fix_the_columns() -> None:
    window = opened()
    with pytest.raises(PolicyFamilyMismatch):
        window.submit(rollouts({"far": revision(6, policy_family="x")}), AT)
    window.submit(rollouts({"new": 7}, columns=["loss_mask"]), AT)
    assert "loss_mask" in window.accepted().samples


def test_compatible_rules_reach_the_admission() -> None:
    window = opened(rules=COMPATIBLE, window_id="a|b")
    window.submit(rollouts({"fork": revision(7, policy_digest="x")}), AT)
    assert window.receipt("fork").outcome == "accepted_exact"
    with pytest.raises(AmbiguousId):
        opened(window_id="a|b")


def test_a_window_checks_what_it_is_made_of() -> None:
    with pytest.raises(EmptyId):
        opened(run_id="")
    with pytest.raises(InvalidValue):
        opened().submit([rollouts({"a": 7})[0]], AT)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------- retention


def test_discarded_payloads_are_dropped_unless_retained() -> None:
    window = opened()
    assert len(window.discarded()) == 0
    window.submit(rollouts(ALL_FOUR), AT)
    with pytest.raises(PayloadDropped) as caught:
        window.discarded()
    assert caught.value.artifact_id == "lost"
    assert window.receipt("lost").outcome == "discarded"
    keeper = opened(retain_discarded=True)
    keeper.submit(rollouts(ALL_FOUR), AT)
    assert keeper.discarded()[0] == rollouts({"lost": 1})[0]


def test_a_window_without_discards_has_an_empty_table_of_them() -> None:
    window = opened()
    window.submit(rollouts({"exact": 7}), AT)
    assert len(window.discarded()) == len(window.quarantined()) == 0


def test_a_dropped_payload_is_not_kept_in_memory_by_its_neighbours() -> None:
    table = rollouts({"exact": 7, "lost": 1})
    window = opened()
    window.submit(table, AT)
    kept = window.accepted().samples["token_id"]
    assert not np.may_share_memory(kept, table.samples["token_id"])
    assert not kept.flags.writeable


# ---------------------------------------------------------------------------------------- release


def test_a_released_rollout_joins_the_accepted_and_the_decision_is_recorded() -> None:
    window = opened()
    window.submit(rollouts(ALL_FOUR), AT)
    decision = release(window, "held")
    assert ids(window.accepted()) == ["exact", "off", "held"]
    assert ids(window.quarantined()) == []
    assert window.decisions == (decision,)
    assert decision.receipt_digest == window.receipt("held").receipt_digest
    assert decision.content_digest == window.accepted().artifact("held").content_digest
    assert (decision.window_id, decision.decided_by, decision.decided_at_ms) == ("window", "ada", 5)


def test_telemetry_counts_by_receipt_whatever_is_released() -> None:
    window = opened()
    window.submit(rollouts(ALL_FOUR), AT)
    before = window.telemetry
    release(window, "held")
    assert window.telemetry == before
    assert before.quarantined_rollout_count == 1
    assert before.stale_rollout_drop_rate_bps == 2500


@pytest.mark.parametrize("artifact_id", ["exact", "off", "lost"])
def test_only_a_quarantined_rollout_can_be_released(artifact_id: str) -> None:
    window = opened(retain_discarded=True)
    window.submit(rollouts(ALL_FOUR), AT)
    with pytest.raises(NotQuarantined) as caught:
        release(window, artifact_id)
    assert caught.value.outcome == OUTCOME_OF_NUMBER[ALL_FOUR[artifact_id]]
    assert window.decisions == ()


def test_a_rollout_is_released_once() -> None:
    window = opened()
    window.submit(rollouts(ALL_FOUR), AT)
    release(window, "held")
    with pytest.raises(NotQuarantined) as caught:
        release(window, "held")
    assert caught.value.outcome == "released"


def test_an_unknown_rollout_cannot_be_released() -> None:
    with pytest.raises(UnknownArtifact) as caught:
        release(opened(), "nobody")
    assert (caught.value.artifact_id, caught.value.where) == ("nobody", "window 'window'")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"decided_by": ""}, EmptyId),
        ({"reason": " "}, InvalidValue),
        ({"decided_at_ms": -1}, InvalidNumber),
    ],
)
def test_a_decision_without_a_name_a_reason_or_a_time_releases_nothing(
    change: dict[str, Any], refusal: type[Refusal]
) -> None:
    window = opened()
    window.submit(rollouts(ALL_FOUR), AT)
    decision: dict[str, Any] = {"decided_by": "ada", "reason": "checked", "decided_at_ms": 1}
    with pytest.raises(refusal):
        window.release("held", **decision | change)
    assert window.decisions == ()
    assert ids(window.quarantined()) == ["held"]


def test_a_decision_survives_json_and_any_change_to_it_is_noticed() -> None:
    window = opened()
    window.submit(rollouts(ALL_FOUR), AT)
    decision = release(window, "held")
    assert ReleaseDecision.from_json(decision.to_json()) == decision
    fields = json.loads(decision.to_json())
    assert fields.keys() == set(decision.__struct_fields__)
    for name, value in fields.items():
        changed = fields | {name: value + 1 if isinstance(value, int) else value + "x"}
        with pytest.raises(DigestMismatch):
            ReleaseDecision.from_json(json.dumps(changed))
        with pytest.raises(MalformedJson):
            ReleaseDecision.from_json(json.dumps({k: v for k, v in fields.items() if k != name}))


# ------------------------------------------------------------------------------------- accounting


Step = tuple[str, dict[str, int]]
IDS = st.text("abc", min_size=1, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("submit"), st.dictionaries(IDS, st.sampled_from([7, 6, 3, 1]), max_size=5)),
    st.tuples(st.just("release"), st.dictionaries(IDS, st.just(0), max_size=4)),
)


def expected_counts(standing: dict[str, str], weigh: bool) -> StandingCounts:
    names = [name for name in StandingCounts.__struct_fields__ if name != "submitted"]
    weights = {each: len(each) if weigh else 1 for each in standing}
    found = {
        name: sum(weights[each] for each, where in standing.items() if where == name)
        for name in names
    }
    return msgspec.convert({"submitted": sum(weights.values()), **found}, StandingCounts)


def follow(window: AdmissionWindow, standing: dict[str, str], step: Step) -> None:
    """One step on the window and on the plain dict that says where each artifact should stand."""
    verb, rows = step
    if verb == "submit":
        conflicts = [
            each
            for each, number in rows.items()
            if each in standing and window.receipt(each).source_policy_revision_id != f"r{number}"
        ]
        if conflicts:
            with pytest.raises(DuplicateRolloutArtifact):
                window.submit(rollouts(rows), AT)
            return
        window.submit(rollouts(rows), AT)
        for each, number in rows.items():
            standing.setdefault(each, OUTCOME_OF_NUMBER[number])
        return
    for each in rows:
        if standing.get(each) == "quarantined":
            release(window, each)
            standing[each] = "released"
        else:
            with pytest.raises((NotQuarantined, UnknownArtifact)):
                release(window, each)


@settings(deadline=None)
@given(steps=st.lists(STEPS, max_size=12), retain=st.booleans())
def test_every_rollout_and_token_stands_in_exactly_one_place(
    steps: list[Step], retain: bool
) -> None:
    window = opened(retain_discarded=retain)
    standing: dict[str, str] = {}
    for step in steps:
        follow(window, standing, step)
        books = window.accounting()
        assert books.rollouts == expected_counts(standing, weigh=False)
        assert books.tokens == expected_counts(standing, weigh=True)
        for counts in (books.rollouts, books.tokens):
            submitted, *places = msgspec.structs.astuple(counts)
            assert sum(places) == submitted
        held = [each for each, where in standing.items() if where == "quarantined"]
        gone = [each for each, where in standing.items() if where == "discarded"]
        used = [each for each in standing if each not in held + gone]
        assert ids(window.accepted()) == used
        assert ids(window.quarantined()) == held
        if retain or not gone:
            assert ids(window.discarded()) == gone


@pytest.mark.parametrize("field", ["budget", "target_revision"])
def test_a_window_of_something_else_than_a_revision_and_a_budget_is_refused(field: str) -> None:
    given: dict[str, Any] = {"target_revision": revision(1), "budget": OffPolicyBudget.default()}
    with pytest.raises(InvalidValue, match=field):
        AdmissionWindow(run_id="r", stage_id="s", window_id="w", **{**given, field: 5})

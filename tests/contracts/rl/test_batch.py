"""Assembling a trainer batch: what it keeps, what changes its digests, what it refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook import errors
from rollbook.contracts import (
    COMPATIBLE,
    ContractRules,
    OffPolicyBudget,
    RolloutArtifact,
    RolloutProofKind,
    RolloutTable,
    TrainerBatch,
    admit,
    open_table,
    save_table,
)
from rollbook.contracts.rl.batch import with_digests
from tests.factories import artifact, checkpoint, proof, revision, samples, table


def assemble(rollouts: Any, **changes: Any) -> TrainerBatch:
    fields: dict[str, Any] = {
        "batch_id": "batch-1",
        "target_revision": revision(9),
        "rollouts": rollouts,
        "assembled_at_ms": 1300,
    }
    return TrainerBatch.assemble(**{**fields, **changes})


def test_a_batch_is_the_same_from_a_table_and_from_its_artifacts() -> None:
    some = table([3, 4, 5])
    assert (
        assemble(some)
        == assemble(list(some))
        == assemble([some.take([row])[0] for row in range(3)])
    )
    assert assemble(some).rollouts_root == some.root


def test_artifacts_with_different_columns_go_into_one_batch() -> None:
    batch = assemble([artifact("a"), artifact("b", samples=samples(value=[0, 0, 0]))])
    assert batch.rollout_count == 2


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.randoms())
def test_the_order_of_rollouts_changes_the_batch_digest_and_not_the_lineage(
    lengths: list[int], random: Any
) -> None:
    some = table(lengths)
    order = list(range(len(lengths)))
    random.shuffle(order)
    first, second = assemble(some), assemble(some.take(order))
    assert first.policy_lineage == second.policy_lineage
    same_order = order == sorted(order)
    assert (first.batch_digest == second.batch_digest) == same_order
    assert (first.content_digest == second.content_digest) == same_order


def test_sources_are_unique_and_ordered_by_id() -> None:
    batch = assemble(
        [
            artifact("a", source_policy_revision=revision(2)),
            artifact("b", source_policy_revision=revision(1)),
            artifact("c", source_policy_revision=revision(2)),
        ]
    )
    assert batch.policy_lineage.source_revisions == (revision(1), revision(2))


def test_descriptions_of_one_revision_that_do_not_contradict_are_joined() -> None:
    bare = revision(1, revision_number=None)
    full = revision(1, checkpoint=checkpoint(), parent_revision_id="policy-r0")
    rollouts = [
        artifact("a", source_policy_revision=bare),
        artifact("b", source_policy_revision=full),
        artifact("c", source_policy_revision=bare),
    ]
    durable = revision(1, checkpoint=checkpoint(durable_at_ms=7))
    whole = revision(1, checkpoint=checkpoint(durable_at_ms=7), parent_revision_id="policy-r0")
    late = artifact("d", source_policy_revision=durable)
    assert assemble([*rollouts, late]).policy_lineage.source_revisions == (whole,)
    for order in (rollouts, rollouts[::-1]):
        assert assemble(order).policy_lineage.source_revisions == (full,)


def test_the_compatible_rules_keep_the_last_revision_and_the_first_proof() -> None:
    rollouts = [
        artifact(
            "a", source_policy_revision=revision(1), proof_references=[proof("p", reference="1")]
        ),
        artifact(
            "b",
            source_policy_revision=revision(1, policy_digest="other"),
            proof_references=[proof("p", reference="2")],
        ),
    ]
    batch = assemble(rollouts, rules=COMPATIBLE)
    assert batch.policy_lineage.source_revisions[0].policy_digest == "other"
    assert batch.proof_references == (proof("p", reference="1"),)


def test_a_total_is_a_sum_of_sums_in_rollout_order() -> None:
    big, small = 2.0**25, 1.0
    rollouts = [
        artifact("a", samples=samples(2, reward=[big, small])),
        artifact("b", samples=samples(2, reward=[-big, small])),
    ]
    assert assemble(rollouts).reward_sum == 0.0  # 2**25 + 1 and -2**25 + 1 both lose the 1 or round
    assert np.float32(assemble(rollouts[:1]).reward_sum) == np.float32(big)


REFUSALS: list[tuple[str, Callable[[], Any], type[errors.Refusal], dict[str, Any]]] = [
    (
        "revision described twice",
        lambda: assemble(
            [
                artifact("a"),
                artifact("b", source_policy_revision=revision(policy_digest="other")),
            ]
        ),
        errors.ConflictingRevision,
        {
            "artifact_id": "b",
            "revision_id": "policy-r1",
            "field": "policy_digest",
            "first": "digest-r1",
        },
    ),
    (
        "checkpoint described twice",
        lambda: assemble(
            [
                artifact("a", source_policy_revision=revision(checkpoint=checkpoint(step=1))),
                artifact("b", source_policy_revision=revision(checkpoint=checkpoint(step=2))),
            ]
        ),
        errors.ConflictingRevision,
        {"artifact_id": "b", "field": "checkpoint.step", "first": "1", "second": "2"},
    ),
    (
        "source that contradicts the target",
        lambda: assemble([artifact("a", source_policy_revision=revision(9, policy_digest="x"))]),
        errors.ConflictingRevision,
        {"artifact_id": "a", "revision_id": "policy-r9", "field": "policy_digest"},
    ),
    (
        "proof described twice",
        lambda: assemble(
            [
                artifact("a", proof_references=[proof("p")]),
                artifact("b", proof_references=[proof("p", kind=RolloutProofKind.COMMITMENT)]),
            ]
        ),
        errors.ConflictingProof,
        {"batch_id": "batch-1", "artifact_id": "b", "digest": "p"},
    ),
    (
        "target with a lower number",
        lambda: assemble([artifact("a", source_policy_revision=revision(10))]),
        errors.TargetOlderThanSource,
        {
            "artifact_id": "a",
            "measure": "revision_number",
            "target_value": 9,
            "source_value": 10,
            "source_revision_id": "policy-r10",
        },
    ),
    (
        "target produced earlier",
        lambda: assemble(
            [
                artifact(
                    "a",
                    source_policy_revision=revision(1, revision_number=None, produced_at_ms=5000),
                )
            ]
        ),
        errors.TargetOlderThanSource,
        {"measure": "produced_at_ms", "target_value": 1009, "source_value": 5000},
    ),
    (
        "batch id with a separator",
        lambda: assemble([artifact("a")], batch_id="b|lineage|x"),
        errors.AmbiguousId,
        {"field": "batch_id", "character": "|"},
    ),
    (
        "empty batch id",
        lambda: assemble([artifact("a")], batch_id=""),
        errors.EmptyId,
        {"field": "batch_id"},
    ),
    (
        "negative time",
        lambda: assemble([artifact("a")], assembled_at_ms=-1),
        errors.InvalidNumber,
        {"record": "batch 'batch-1'", "field": "assembled_at_ms"},
    ),
    (
        "empty table",
        lambda: assemble(RolloutTable.empty()),
        errors.EmptyTrainerBatch,
        {"batch_id": "batch-1"},
    ),
    (
        "not artifacts",
        lambda: assemble(["rollout-a"]),
        errors.InvalidValue,
        {"field": "rollouts", "value": "str"},
    ),
    (
        "no target",
        lambda: assemble([artifact("a")], target_revision=None),
        errors.InvalidValue,
        {"field": "target_revision"},
    ),
]


@pytest.mark.parametrize(
    ("make", "expected", "fields"),
    [case[1:] for case in REFUSALS],
    ids=[case[0] for case in REFUSALS],
)
def test_refused(
    make: Callable[[], Any], expected: type[errors.Refusal], fields: dict[str, Any]
) -> None:
    with pytest.raises(errors.Refusal) as caught:
        make()
    assert type(caught.value) is expected
    assert {name: caught.value.fields[name] for name in fields} == fields


def test_a_report_collects_what_assembly_would_refuse() -> None:
    rollouts = [
        artifact("a"),
        artifact("b", source_policy_revision=revision(policy_family="other")),
        artifact(
            "b",
            source_policy_revision=revision(policy_digest="other"),
            proof_references=[proof("p")],
        ),
        artifact(
            "c", source_policy_revision=revision(12), proof_references=[proof("p", reference="x")]
        ),
    ]
    report = TrainerBatch.report(
        batch_id="batch-1", target_revision=revision(9), rollouts=rollouts, assembled_at_ms=1
    )
    assert [problem.code for problem in report] == [
        "policy_family_mismatch",
        "duplicate_rollout_artifact",
        "conflicting_revision",
        "target_older_than_source",
        "conflicting_proof",
    ]


FIELD_CHANGES: dict[str, Any] = {
    "batch_id": "other",
    "rollout_ids": ("x",),
    "rollout_digests": ("x",),
    "proof_references": (proof("q"),),
    "token_count": 99,
    "reward_sum": 99.0,
    "advantage_sum": 99.0,
    "assembled_at_ms": 99,
    "rollouts_root": "0" * 64,
    "rollout_count": 7,
    "batch_digest": "0" * 64,
    "content_digest": "0" * 64,
}


@pytest.mark.parametrize("field", FIELD_CHANGES)
def test_any_changed_field_is_found(field: str) -> None:
    batch = assemble([artifact("a", proof_references=[proof("p")])])
    batch.verify()
    changed = msgspec.structs.replace(batch, **{field: FIELD_CHANGES[field]})
    with pytest.raises(errors.DigestMismatch):
        changed.verify()


@pytest.mark.parametrize(
    "change",
    [
        {"revision_number": 7},
        {"parent_revision_id": "x"},
        {"checkpoint": checkpoint()},
        {"produced_at_ms": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_content_digest_covers_what_v1_leaves_out_of_a_revision(change: dict[str, Any]) -> None:
    batch = assemble([artifact("a")])
    other = assemble([artifact("a", source_policy_revision=revision(1, **change))])
    assert batch.batch_digest == other.batch_digest
    assert batch.content_digest != other.content_digest


def test_drift_is_defined_only_forward_within_a_family_and_between_numbers() -> None:
    assert revision(5).revision_drift_from(revision(2)) == 3
    assert revision(2).revision_drift_from(revision(2)) == 0
    assert revision(2).revision_drift_from(revision(5)) is None
    assert revision(5).revision_drift_from(revision(2, policy_family="x")) is None
    assert revision(5).revision_drift_from(revision(2, revision_number=None)) is None
    assert revision(5, revision_number=None).revision_drift_from(revision(2)) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"produced_at_ms": -1}, "produced_at_ms"),
        ({"produced_at_ms": 2**64}, "produced_at_ms"),
        ({"produced_at_ms": True}, "produced_at_ms"),
        ({"revision_number": 1.0}, "revision_number"),
        ({"policy_digest": None}, "policy_digest"),
        ({"revision_id": "x" * 5000}, "revision_id"),
        ({"checkpoint": {"step": 1}}, "checkpoint"),
    ],
)
def test_a_revision_checks_its_fields_when_made(change: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.Refusal) as caught:
        revision(**change)
    assert caught.value.fields["field"] == field


def test_records_are_frozen_and_hashable() -> None:
    made = revision(checkpoint=checkpoint())
    with pytest.raises(AttributeError):
        made.revision_id = "x"  # type: ignore[misc]
    assert {made, revision(checkpoint=checkpoint())} == {made}
    assert isinstance(artifact("a"), RolloutArtifact)


def test_a_batch_has_a_digest_for_every_rollout() -> None:
    """Also when every digest was computed again by someone who knows the recipe."""
    batch = assemble(table([3, 4]))
    fewer = msgspec.structs.replace(batch, rollout_digests=batch.rollout_digests[:1])
    with pytest.raises(errors.DigestMismatch) as caught:
        with_digests(fewer).verify()
    assert caught.value.field == "rollout_count"


# ------------------------------------------------------------- rollouts made under weaker rules

WEAKER: dict[str, tuple[dict[str, Any], str]] = {
    "a NaN reward": ({"samples": samples(reward=[0, np.nan, 0])}, "non_finite_value"),
    "a log-prob above 0": ({"samples": samples(logprob=[0, 0.5, 0])}, "positive_logprob"),
    "no sample in the loss": ({"samples": samples(loss_mask=[0, 0, 0])}, "all_samples_masked"),
    "an ambiguous id": ({"worker_id": "a|b"}, "ambiguous_id"),
    "an empty id": ({"artifact_id": ""}, "empty_id"),
}


@pytest.mark.parametrize("name", WEAKER)
@pytest.mark.parametrize("form", ["table", "artifacts", "taken", "pickled", "opened"])
def test_strict_assembly_refuses_rollouts_made_under_compatible_rules(
    name: str, form: str, tmp_path: Path
) -> None:
    changes, code = WEAKER[name]
    weak = artifact(**{"artifact_id": "weak", **changes}, rules=COMPATIBLE)
    some = RolloutTable.from_artifacts(
        [artifact("b", samples=weak.columns, rules=COMPATIBLE), weak]
    )
    if form == "opened":
        save_table(some, tmp_path / "table")
        some = open_table(tmp_path / "table")
    rollouts: Any = {
        "artifacts": list(some),
        "taken": some.take([1]),
        "pickled": pickle.loads(pickle.dumps(some.take([1]))),
    }.get(form, some)
    fields: dict[str, Any] = {
        "batch_id": "batch-1",
        "target_revision": revision(9),
        "rollouts": rollouts,
        "assembled_at_ms": 1300,
    }
    with pytest.raises(errors.Refusal) as caught:
        TrainerBatch.assemble(**fields)
    assert caught.value.code == code
    assert code in [problem.code for problem in TrainerBatch.report(**fields)]
    assert TrainerBatch.report(**fields, rules=COMPATIBLE) == []
    assert TrainerBatch.assemble(**fields, rules=COMPATIBLE).rollout_count == len(rollouts)


@pytest.mark.parametrize("name", WEAKER)
def test_strict_admission_refuses_rollouts_made_under_compatible_rules(name: str) -> None:
    changes, code = WEAKER[name]
    weak = artifact(**{"artifact_id": "weak", **changes}, rules=COMPATIBLE).table
    fields: dict[str, Any] = {
        "target_revision": revision(9),
        "budget": OffPolicyBudget(max_rollout_age_ms=1000),
        "run_id": "run",
        "stage_id": "stage",
        "window_id": "window",
        "observed_at_ms": 1200,
    }
    with pytest.raises(errors.Refusal) as caught:
        admit(weak, **fields)
    assert caught.value.code == code
    assert len(admit(weak, **fields, rules=COMPATIBLE).receipts()) == 1


def test_each_rule_of_a_batch_is_checked_on_its_own() -> None:
    with_nan = artifact("nan", samples=samples(reward=[0, np.nan, 0]), rules=COMPATIBLE)
    assert assemble([with_nan], rules=ContractRules(non_finite="allow")).rollout_count == 1
    with pytest.raises(errors.NonFiniteValue, match="nan"):
        assemble([with_nan], rules=ContractRules(strict=False))
    above = artifact("above", samples=samples(logprob=[0, 0.5, 0]), rules=COMPATIBLE)
    assert assemble([above], rules=ContractRules(strict=False)).rollout_count == 1
    with pytest.raises(errors.PositiveLogProb):
        assemble([above], rules=ContractRules(non_finite="allow"))


def test_one_weak_rollout_among_strict_ones_is_named() -> None:
    weak = artifact("weak", samples=samples(reward=[0, np.nan, 0]), rules=COMPATIBLE)
    joined = RolloutTable.concat([artifact("a").table, weak.table, artifact("b").table])
    with pytest.raises(errors.NonFiniteValue) as caught:
        assemble(joined)
    assert (caught.value.artifact_id, caught.value.sample_index) == ("weak", 1)
    assert assemble(joined.take([0, 2])).rollout_ids == ("a", "b")


RULES = [
    ContractRules(strict=True),
    ContractRules(strict=True, non_finite="allow"),
    ContractRules(strict=False),
    ContractRules(strict=False, non_finite="allow"),
]


@pytest.mark.parametrize("made_under", RULES, ids=str)
@pytest.mark.parametrize("asked", RULES, ids=str)
def test_rules_cover_others_exactly_when_they_refuse_at_least_as_much(
    made_under: ContractRules, asked: ContractRules
) -> None:
    refuses_as_much = made_under.strict >= asked.strict and (
        made_under.non_finite == asked.non_finite or made_under.non_finite == "refuse"
    )
    assert made_under.cover(asked) == refuses_as_much

"""RolloutLineage: its 58 flat fields, what each refuses, its digest, its JSON, and what a label needs."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import InvalidNumber, InvalidText, InvalidValue, MalformedJson, Refusal

DEFAULTS: dict[str, object] = {
    "rollout_id": "",
    "chain_id": 0,
    "scene_id": None,
    "snippet_id": None,
    "mesh_version": None,
    "candidate_config_hash": None,
    "oracle_config_hash": None,
    "model_checkpoint_hash": None,
    "random_seed": None,
    "rollout_policy": "unknown",
    "source_cache_version": None,
    "split": None,
    "source_offline_store_manifest_hash": None,
    "source_row_id": None,
    "source_sample_index": None,
    "source_sample_key": None,
    "split_manifest_hash": None,
    "source_shard_id": None,
    "source_shard_row": None,
    "rollout_config_hash": None,
    "branch_schedule_id": None,
    "target_row_id": None,
    "target_id": None,
    "target_protocol_version": None,
    "target_crop_policy": None,
    "reason_code_version": "rollout-invalidity-v1",
    "selection_rng_state_hash": None,
    "target_selection_policy": None,
    "target_selection_rank": None,
    "target_selection_score": None,
    "target_selection_probability": None,
    "target_selection_temperature": None,
    "target_source": None,
    "target_source_index": None,
    "target_sem_id": None,
    "target_inst_id": None,
    "target_class_name": None,
    "target_confidence": None,
    "target_projected_area_pixels": None,
    "target_projected_area_fraction": None,
    "target_semidense_support_count": None,
    "target_evl_support_count": None,
    "target_effective_support_count": None,
    "target_visibility_score": None,
    "target_support_score": None,
    "target_deficit_score": None,
    "target_center_world": None,
    "target_extents": None,
    "target_pose_world_object": None,
    "target_relative_pose_reference_object": None,
    "target_invalid_reason_bitset": None,
    "target_primary_invalid_reason": None,
    "target_reason_code_version": None,
    "matched_gt_target_row_id": None,
    "matched_gt_target_id": None,
    "gt_match_iou": None,
    "gt_match_score": None,
    "gt_match_status": None,
}
INTS = [
    "chain_id",
    "random_seed",
    "source_row_id",
    "source_sample_index",
    "source_shard_row",
    "target_row_id",
    "target_selection_rank",
    "target_source_index",
    "target_sem_id",
    "target_inst_id",
    "target_semidense_support_count",
    "target_evl_support_count",
    "target_invalid_reason_bitset",
    "target_primary_invalid_reason",
    "matched_gt_target_row_id",
]
FLOATS = [
    "target_selection_score",
    "target_selection_probability",
    "target_selection_temperature",
    "target_confidence",
    "target_projected_area_pixels",
    "target_projected_area_fraction",
    "target_effective_support_count",
    "target_visibility_score",
    "target_support_score",
    "target_deficit_score",
    "gt_match_iou",
    "gt_match_score",
]
VECTORS = {
    "target_center_world": 3,
    "target_extents": 3,
    "target_pose_world_object": 12,
    "target_relative_pose_reference_object": 12,
}
TEXTS = [name for name in DEFAULTS if name not in {*INTS, *FLOATS, *VECTORS}]
REQUIRED = [name for name, default in DEFAULTS.items() if default is not None]

IDENTITY = [
    "source_sample_index",
    "source_sample_key",
    "scene_id",
    "snippet_id",
    "split",
    "source_cache_version",
    "source_offline_store_manifest_hash",
    "split_manifest_hash",
    "source_shard_id",
    "source_shard_row",
]

EXAMPLE: dict[str, Any] = {
    "rollout_id": "00000007-target-00-greedy-000000",
    "scene_id": "scene-1",
    "source_row_id": 7,
    "source_sample_key": "scene-1/7",
    "target_extents": (0.5, 1.0, 2.0),
    "target_invalid_reason_bitset": 1,
    "target_primary_invalid_reason": 0,
    "matched_gt_target_row_id": 100,
    "gt_match_iou": 0.9,
    "gt_match_status": "matched",
}


def other_value(field: str) -> Any:
    """Something that field accepts in an otherwise empty lineage, and that is not its default."""
    if field in VECTORS:
        return tuple(0.25 * at for at in range(VECTORS[field]))
    if field in FLOATS:
        return 0.75
    return 3 if field in INTS else "other"


def refused(kind: type[Refusal], field: str, **fields: Any) -> Any:
    with pytest.raises(kind) as caught:
        RolloutLineage(**fields)
    assert type(caught.value) is kind
    assert caught.value.fields["field"] == field
    return caught.value


def test_the_58_flat_fields_and_their_defaults() -> None:
    assert len(DEFAULTS) == 58
    every = {**DEFAULTS, "policy_revision": None}
    assert list(msgspec.structs.asdict(RolloutLineage()).items()) == list(every.items())


def test_fields_are_given_by_name_only_and_stay() -> None:
    with pytest.raises(TypeError):
        RolloutLineage("r1")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        RolloutLineage(horizon=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        RolloutLineage().chain_id = 1  # type: ignore[misc]


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("value", [5, b"bytes", "\ud800", "x" * 4097])
def test_texts(field: str, value: object) -> None:
    refused(InvalidText, field, **{field: value})


@pytest.mark.parametrize("field", INTS)
@pytest.mark.parametrize("value", [True, 1.0, "1", 2**63, -(2**63) - 1, np.uint64(2**63)])
def test_ints(field: str, value: object) -> None:
    refused(InvalidNumber, field, **{field: value})


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "0.5", 10**400, [0.5]])
def test_floats(field: str, value: object) -> None:
    refused(InvalidNumber, field, **{field: value})


@pytest.mark.parametrize("field", VECTORS)
@pytest.mark.parametrize(
    "value", [(), (1.0, 2.0), [0.0] * 13, 1.0, "abc", b"abc", {1.0, 2.0, 3.0}, np.array(1.0)]
)
def test_vectors_have_a_length(field: str, value: object) -> None:
    refused(InvalidValue, field, **{field: value})


@pytest.mark.parametrize("field", VECTORS)
@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, True, [1.0]])
def test_vectors_are_of_finite_numbers(field: str, value: object) -> None:
    entries = [0.0] * (VECTORS[field] - 1)
    refused(InvalidNumber, f"{field}[1]", **{field: [*entries[:1], value, *entries[1:]]})


@pytest.mark.parametrize("field", REQUIRED)
def test_what_has_a_default_is_never_none(field: str) -> None:
    refused(InvalidNumber if field in INTS else InvalidText, field, **{field: None})


@pytest.mark.parametrize("field", [name for name in DEFAULTS if name not in REQUIRED])
def test_the_rest_may_be_missing(field: str) -> None:
    absent: dict[str, Any] = {field: None}
    assert RolloutLineage(**absent) == RolloutLineage()


def test_ranges() -> None:
    refused(InvalidNumber, "chain_id", chain_id=-1)
    for probability in (-0.001, 1.001):
        refused(
            InvalidNumber, "target_selection_probability", target_selection_probability=probability
        )
    for edge in (0.0, 1.0):
        RolloutLineage(target_selection_probability=edge)
    RolloutLineage(random_seed=-(2**63), source_row_id=2**63 - 1)


@pytest.mark.parametrize("bitset", [0, -1, 1 << 12, 1 | 1 << 31, 1 << 32])
def test_a_bitset_has_known_bits_and_at_least_one(bitset: int) -> None:
    refused(InvalidValue, "target_invalid_reason_bitset", target_invalid_reason_bitset=bitset)


@pytest.mark.parametrize("primary", [-1, 12, 2**16])
def test_a_primary_reason_is_a_known_one(primary: int) -> None:
    refused(InvalidValue, "target_primary_invalid_reason", target_primary_invalid_reason=primary)


@pytest.mark.parametrize(
    ("bitset", "right", "wrong"), [(1, 0, 1), (1 << 9, 9, 0), (0b110000, 4, 5), (0b11, 1, 0)]
)
def test_the_primary_reason_follows_from_the_bitset(bitset: int, right: int, wrong: int) -> None:
    reasons: dict[str, Any] = {"target_invalid_reason_bitset": bitset}
    RolloutLineage(**reasons, target_primary_invalid_reason=right)
    refused(
        InvalidValue,
        "target_primary_invalid_reason",
        **reasons,
        target_primary_invalid_reason=wrong,
    )


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        ({"rollout_id": "r1", "source_sample_key": "k1"}, "lineage of 'r1'"),
        ({"source_sample_key": "k1"}, "lineage of 'k1'"),
        ({}, "lineage of None"),
    ],
)
def test_a_refusal_names_the_rollout_or_else_its_source(ids: dict[str, str], name: str) -> None:
    assert refused(InvalidNumber, "chain_id", chain_id=-1, **ids).record == name


def test_numpy_values_are_kept_as_python_values() -> None:
    given: dict[str, Any] = {
        "source_row_id": np.int32(4),
        "gt_match_iou": np.float32(0.5),
        "target_confidence": 1,
        "target_center_world": np.array([1, 2, 3], np.float32),
        "target_extents": [1, 2.0, np.float64(3)],
        "target_pose_world_object": range(12),
    }
    lineage = RolloutLineage(**given)
    assert type(lineage.source_row_id) is int
    assert type(lineage.gt_match_iou) is type(lineage.target_confidence) is float
    assert lineage.target_center_world == lineage.target_extents == (1.0, 2.0, 3.0)
    for vector in (lineage.target_extents, lineage.target_pose_world_object):
        assert type(vector) is tuple
        assert {type(entry) for entry in vector} == {float}
    assert hash(lineage) == hash(RolloutLineage.from_json(lineage.to_json()))


# ------------------------------------------------------------------------------------------ digest


@pytest.mark.parametrize("field", DEFAULTS)
def test_the_digest_binds_every_field(field: str) -> None:
    changed = RolloutLineage(**{field: other_value(field)})
    assert changed.digest() != RolloutLineage().digest()


def test_no_two_fields_are_confused() -> None:
    digests = {RolloutLineage(**{field: other_value(field)}).digest() for field in DEFAULTS}
    assert len(digests) == 58


def test_digests_that_must_not_change() -> None:
    assert RolloutLineage().digest() == (
        "fdaa51f93f059ceec4b1a35f42c5b493c36b05b467539503714c6d8a2e6e8227"
    )
    assert RolloutLineage(**EXAMPLE).digest() == (
        "825877d296d6001e66d3da005fe8aa388d76aa839048bef05b7c0730c3535208"
    )


def test_equal_lineages_have_equal_digests() -> None:
    one = RolloutLineage(gt_match_score=-0.0, target_extents=(1.0, -0.0, 0.0))
    other = RolloutLineage(gt_match_score=0, target_extents=(1, 0, 0))
    assert one == other
    assert one.digest() == other.digest()


# -------------------------------------------------------------------------------------------- JSON

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INT64 = st.integers(-(2**63), 2**63 - 1)


def values_of(field: str) -> st.SearchStrategy[Any]:
    if field in VECTORS:
        return st.tuples(*[FINITE] * VECTORS[field])
    if field == "target_selection_probability":
        return st.floats(0, 1)
    if field in FLOATS:
        return FINITE
    if field == "chain_id":
        return st.integers(0, 2**63 - 1)
    if field == "target_invalid_reason_bitset":
        return st.integers(1, 2**12 - 1)
    return INT64 if field in INTS else TEXT


LINEAGES = st.fixed_dictionaries(
    {},
    optional={
        field: values_of(field) for field in DEFAULTS if field != "target_primary_invalid_reason"
    },
).map(lambda fields: RolloutLineage(**fields))


@given(LINEAGES)
def test_json_gives_the_same_lineage_back(lineage: RolloutLineage) -> None:
    again = RolloutLineage.from_json(lineage.to_json())
    assert again == lineage
    assert again.digest() == lineage.digest()


def test_json_leaves_out_what_is_missing_but_always_names_the_code_version() -> None:
    assert RolloutLineage(scene_id="s", target_extents=(1, 2, 3)).to_json() == (
        b'{"scene_id":"s","target_extents":[1.0,2.0,3.0],"reason_code_version":"rollout-invalidity-v1"}'
    )


@pytest.mark.parametrize(
    ("text", "where", "detail"),
    [
        ("{", "$", "truncated"),
        ('{"horizon": 3}', "$", "horizon"),
        ('{"chain_id": "0"}', "$.chain_id", "Expected `int`"),
        ('{"chain_id": -1}', "$", "chain_id is -1"),
        ('{"target_extents": [1, 2]}', "$.target_extents", "length"),
        ('{"target_extents": [1, null, 2]}', "$.target_extents[1]", "non-finite"),
        ('{"target_invalid_reason_bitset": 0}', "$", "target_invalid_reason_bitset is 0x0"),
    ],
)
def test_json_that_is_no_lineage(text: str, where: str, detail: str) -> None:
    with pytest.raises(MalformedJson) as caught:
        RolloutLineage.from_json(text, source="lineage.json")
    assert caught.value.source == "lineage.json"
    assert caught.value.where == where
    assert detail in caught.value.detail


# ----------------------------------------------------------------------------- chains, source, label


def test_a_chain_differs_in_three_fields() -> None:
    root = RolloutLineage(**{**EXAMPLE, "rollout_id": ""})
    chain = root.for_chain("r-000002", 2, "greedy")
    fields = {name: getattr(chain, name) for name in DEFAULTS}
    assert (chain.rollout_id, chain.chain_id, chain.rollout_policy) == ("r-000002", 2, "greedy")
    assert {name for name in DEFAULTS if fields[name] != getattr(root, name)} == {
        "rollout_id",
        "chain_id",
        "rollout_policy",
    }


def test_a_chain_is_checked_like_any_lineage() -> None:
    with pytest.raises(InvalidNumber) as caught:
        RolloutLineage().for_chain("r", -1, "greedy")
    assert caught.value.record == "lineage of 'r'"


@pytest.mark.parametrize("field", DEFAULTS)
def test_the_source_identity_is_ten_fields(field: str) -> None:
    changed = RolloutLineage(**{field: other_value(field)}).source_identity()
    assert (changed != RolloutLineage().source_identity()) == (field in IDENTITY)
    assert len(changed) == 10


def test_the_source_identity_is_in_order() -> None:
    given: dict[str, Any] = {field: other_value(field) for field in IDENTITY}
    assert RolloutLineage(**given).source_identity() == tuple(given.values())


def test_the_source_row_is_never_made_up() -> None:
    assert RolloutLineage(source_row_id=0, source_sample_index=5).resolved_source_row_id() == 0
    assert RolloutLineage(source_sample_index=5).resolved_source_row_id() == 5
    with pytest.raises(InvalidNumber) as caught:
        RolloutLineage(rollout_id="r1").resolved_source_row_id()
    assert caught.value.field == "source_row_id"
    assert caught.value.record == "lineage of 'r1'"


@pytest.mark.parametrize(
    ("bitset", "valid"), [(None, True), (1, True), (2, False), (3, False), (1 << 10, False)]
)
@pytest.mark.parametrize(
    ("status", "row", "labelled"),
    [
        ("matched", 0, True),
        ("v0_gt_input", 7, True),
        ("matched", None, False),
        ("matched", -1, False),
        ("unmatched_gt", 7, False),
        (None, 7, False),
        (None, None, False),
    ],
)
def test_a_label_needs_a_valid_target_and_a_match(
    bitset: int | None, valid: bool, status: str | None, row: int | None, labelled: bool
) -> None:
    lineage = RolloutLineage(
        target_invalid_reason_bitset=bitset, gt_match_status=status, matched_gt_target_row_id=row
    )
    assert lineage.target_valid is valid
    assert lineage.gt_label_valid is labelled
    assert lineage.label_valid is (valid and labelled)


REVISION = PolicyRevision(
    policy_family="grasp", revision_id="rev-7", policy_digest="d7", produced_at_ms=1
)


def test_a_policy_revision_gives_the_checkpoint_and_must_agree_with_it() -> None:
    assert RolloutLineage(policy_revision=REVISION).model_checkpoint_hash == "d7"
    assert RolloutLineage(policy_revision=REVISION, model_checkpoint_hash="d7").policy_revision
    with pytest.raises(InvalidValue) as caught:
        RolloutLineage(policy_revision=REVISION, model_checkpoint_hash="d8")
    assert caught.value.field == "model_checkpoint_hash"
    refused(InvalidValue, "policy_revision", policy_revision="rev-7")


def test_a_policy_revision_is_in_the_digest_and_in_the_json_only_when_there_is_one() -> None:
    without = RolloutLineage(model_checkpoint_hash="d7")
    assert set(without.plain()) == set(DEFAULTS)
    assert b"policy_revision" not in without.to_json()
    lineage = RolloutLineage(policy_revision=REVISION)
    assert lineage.digest() != without.digest()
    assert RolloutLineage.from_json(lineage.to_json()) == lineage
    assert lineage.for_chain("r1", 0, "learned").policy_revision == REVISION


@given(LINEAGES)
def test_fields_that_are_taken_out_make_the_same_lineage(lineage: RolloutLineage) -> None:
    again = RolloutLineage(**lineage.asdict())
    assert (again, again.digest()) == (lineage, lineage.digest())


@given(LINEAGES, LINEAGES)
def test_a_lineage_with_every_field_replaced_is_the_other_one(
    lineage: RolloutLineage, other: RolloutLineage
) -> None:
    assert lineage.replace() == lineage
    replaced = lineage.replace(**other.asdict())
    assert (replaced, replaced.digest()) == (other, other.digest())


def test_a_replaced_field_is_checked_and_changes_the_digest() -> None:
    lineage = RolloutLineage(**EXAMPLE)
    moved = lineage.replace(scene_id="scene-2")
    assert {**moved.asdict(), "scene_id": "scene-1"} == lineage.asdict()
    assert moved.digest() != lineage.digest()
    with pytest.raises(InvalidNumber, match="gt_match_iou"):
        lineage.replace(gt_match_iou=math.nan)
    with pytest.raises(TypeError, match="colour"):
        lineage.replace(colour="red")


def test_the_checkpoint_follows_a_replaced_policy_revision() -> None:
    lineage = RolloutLineage(policy_revision=REVISION)
    other = msgspec.structs.replace(REVISION, policy_digest="d8")
    assert lineage.replace(policy_revision=other).model_checkpoint_hash == "d8"
    assert lineage.replace(policy_revision=None).model_checkpoint_hash == "d7"
    with pytest.raises(InvalidValue, match="model_checkpoint_hash"):
        lineage.replace(policy_revision=other, model_checkpoint_hash="d7")

"""A table of rollouts: what it accepts, what it refuses and by what name, and how it is read."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
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
    LogprobDistribution,
    LogprobSemantics,
    RolloutArtifact,
    RolloutRole,
    RolloutSample,
    RolloutTable,
    verify_proof,
)
from rollbook.contracts.rl.sample import SAMPLE_DTYPES
from tests.factories import (
    ENVIRONMENT,
    artifact,
    proof,
    revision,
    same_columns,
    samples,
    table,
    table_fields,
    tables,
)


def test_an_artifact_gives_back_what_it_was_made_of() -> None:
    meaning = LogprobSemantics(distribution=LogprobDistribution.RAW, engine="engine 1")
    made = artifact(
        "a",
        samples=samples(
            2, loss_mask=[1, 0], role=[RolloutRole.POLICY, RolloutRole.TOOL], turn=[0, 1]
        ),
        proof_references=[proof("p1"), proof("p2")],
        prompt=[5, 6, 7],
        group_id="g",
        attempt=2,
        logprob_semantics=meaning,
    )
    assert (made.artifact_id, made.worker_id, made.task_id) == ("a", "worker-a", "task")
    assert (made.environment, made.source_policy_revision) == (ENVIRONMENT, revision())
    assert (made.group_id, made.attempt, made.logprob_semantics) == ("g", 2, meaning)
    assert made.proof_references == (proof("p1"), proof("p2"))
    assert made.prompt is not None
    assert made.prompt.tolist() == [5, 6, 7]
    assert made.columns["loss_mask"].tolist() == [1, 0]
    assert (made.created_at_ms, made.termination_reason, made.token_count) == (1100, "completed", 2)


def test_what_was_not_said_stays_missing() -> None:
    made = artifact()
    assert (made.prompt, made.group_id, made.attempt, made.logprob_semantics) == (None,) * 4
    assert list(made.columns) == ["token_id", "logprob", "reward", "advantage"]


def test_samples_are_objects_only_on_demand() -> None:
    given_samples = [
        RolloutSample(token_id=1, logprob=-0.5, reward=1.0, advantage=0.25),
        RolloutSample(token_id=2, logprob=-0.25, reward=0.0, advantage=-1.0),
    ]
    made = artifact(samples=given_samples)
    assert list(made.samples) == given_samples
    assert made.samples[-1] == given_samples[1]
    assert list(made.samples[1:]) == given_samples[1:]
    assert made == artifact(
        samples={
            "token_id": [1, 2],
            "logprob": [-0.5, -0.25],
            "reward": [1, 0],
            "advantage": [0.25, -1],
        }
    )


def test_an_artifact_cannot_be_changed() -> None:
    made = artifact()
    with pytest.raises(AttributeError):
        made.row = 3
    with pytest.raises(ValueError, match="read-only"):
        made.columns["reward"][0] = 9
    with pytest.raises(ValueError, match="read-only"):
        made.table.columns.created_at_ms[0] = 9


def test_changing_the_callers_arrays_afterwards_changes_nothing() -> None:
    columns = {name: np.array(values, SAMPLE_DTYPES[name]) for name, values in samples().items()}
    made = artifact(samples=columns)
    columns["reward"][0] = 99
    made.table.verify()
    assert made.columns["reward"][0] == 0


def test_read_only_columns_of_the_right_type_are_taken_as_they_are() -> None:
    fields = table_fields([4, 5])
    for name, values in fields["samples"].items():
        column = np.array(values, SAMPLE_DTYPES[name])
        column.flags.writeable = False
        fields["samples"][name] = column
    made = RolloutTable.from_columns(**fields)
    assert all(
        np.shares_memory(made.samples[name], fields["samples"][name]) for name in made.samples
    )


def test_changing_the_owner_of_read_only_columns_changes_nothing() -> None:
    owners = {name: np.array(values, SAMPLE_DTYPES[name]) for name, values in samples().items()}
    views = {name: owner[:] for name, owner in owners.items()}
    for view in views.values():
        view.flags.writeable = False
    made = artifact(samples=views)
    for owner in owners.values():
        owner[:] = 0
    made.table.verify()
    assert made.columns["token_id"].tolist() == [1, 8, 15]


def test_changing_the_data_frame_a_table_was_made_of_changes_nothing() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {name: np.array(values, SAMPLE_DTYPES[name]) for name, values in samples().items()}
    )
    made = artifact(samples={name: frame[name].to_numpy() for name in frame})
    frame.iloc[0, frame.columns.get_loc("reward")] = 99
    made.table.verify()
    assert made.columns["reward"][0] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda some: some,
        lambda some: some.take([1, 0]),
        lambda some: some.take([True, False, True]),
        lambda some: some[1:],
        lambda some: RolloutTable.concat([some[:1], some[2:]]),
        lambda some: RolloutTable.from_artifacts([some[2], some[0]]),
        lambda some: pickle.loads(pickle.dumps(some)),
        lambda some: copy.deepcopy(some),
        lambda some: pickle.loads(pickle.dumps(some[1])).table,
    ],
    ids=["made", "take", "mask", "slice", "concat", "join", "pickle", "deep copy", "one pickled"],
)
def test_columns_and_digests_stay_read_only(make: Callable[[RolloutTable], RolloutTable]) -> None:
    made = make(table([2, 3, 2], proof_references=[[proof("a")], [], [proof("b")]]))
    columns = made.columns
    arrays = [
        made.artifact_digests,
        made.content_digests,
        *columns.samples.values(),
        *(getattr(columns, name) for name in columns.__struct_fields__),
        *(getattr(columns, name).data for name in ("artifact_id", "worker_id", "task_id")),
        *(getattr(columns, name).offsets for name in ("artifact_id", "proof_digest")),
    ]
    for array in arrays:
        if isinstance(array, np.ndarray):
            assert not array.flags.writeable
    made.verify()


def test_digests_that_a_caller_passes_are_kept_apart_from_the_callers() -> None:
    some = table([2, 3])
    mine = some.artifact_digests.copy()
    mine_too = some.content_digests.copy()
    made = RolloutTable(some.columns, mine, mine_too)
    mine[:] = mine_too[:] = 0
    made.verify()


# ---------------------------------------------------------------------------------- choosing rows


def ids_of(some: RolloutTable) -> list[str]:
    return [each.artifact_id for each in some]


def test_a_mask_takes_the_rows_where_it_is_true() -> None:
    some = table([2, 2, 2, 2])
    mask = np.array([False, False, True, True])
    assert ids_of(some.take(mask)) == ["rollout-2", "rollout-3"]
    assert ids_of(some.take(mask.tolist())) == ["rollout-2", "rollout-3"]
    assert ids_of(some.take(some.reward_sums() > np.inf)) == []


@pytest.mark.parametrize("rows", [[True, False], [0.0], [0.9, 1.2], ["1"], [[0, 1]], 1], ids=repr)
def test_what_is_no_list_of_row_numbers_takes_nothing(rows: Any) -> None:
    with pytest.raises(errors.InvalidNumber, match="a mask of 3 rows"):
        table([2, 2, 2]).take(rows)


@given(st.integers(1, 6), st.data())
def test_negative_rows_count_from_the_end(count: int, data: st.DataObject) -> None:
    some = table([1] * count)
    rows = data.draw(st.lists(st.integers(-count, count - 1), unique_by=lambda row: row % count))
    taken = some.take(rows)
    assert ids_of(taken) == [some[row].artifact_id for row in rows]
    taken.verify()


@pytest.mark.parametrize("row", [3, -4, 100, -100])
def test_a_row_that_is_not_there_is_named_as_it_was_given(row: int) -> None:
    some = table([2, 2, 2])
    for call in (lambda: some[row], lambda: some.take([0, row]), lambda: some.prove(row)):
        with pytest.raises(errors.NoSuchRow, match=f"row is {row}, expected .* -3 to 2"):
            call()


@pytest.mark.parametrize("row", [1.0, True, "1", None], ids=repr)
def test_a_row_is_a_whole_number(row: Any) -> None:
    with pytest.raises(errors.InvalidNumber, match="a whole number"):
        table([2, 2, 2])[row]


def test_a_row_and_a_run_of_rows_share_memory_with_the_table() -> None:
    some = table([4, 5, 6])
    assert np.shares_memory(some[1].columns["reward"], some.samples["reward"])
    assert np.shares_memory(some[1:].samples["reward"], some.samples["reward"])


@given(tables(min_rows=1), st.data())
def test_taking_rows_keeps_each_rollout_and_its_digests(
    some: RolloutTable, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(some) - 1), unique=True))
    taken = some.take(rows)
    assert [each.content_digest for each in taken] == [some[row].content_digest for row in rows]
    taken.verify()


@given(tables())
def test_a_table_joined_from_its_artifacts_is_the_same_table(some: RolloutTable) -> None:
    alone = [some.take([row])[0] for row in range(len(some))]
    joined = RolloutTable.from_artifacts(alone)
    joined.verify()
    if len(some):
        assert same_columns(joined, some)
    assert same_columns(RolloutTable.concat([some[:1], some[1:]]), some) or not len(some)


def test_rows_are_found_by_position_and_by_id() -> None:
    some = table([2, 2, 2])
    assert some[-1].artifact_id == "rollout-2" == some.artifact("rollout-2").artifact_id
    assert [each.artifact_id for each in some[::2]] == ["rollout-0", "rollout-2"]
    with pytest.raises(errors.UnknownArtifact) as caught:
        some.artifact("nobody")
    assert caught.value.artifact_id == "nobody"
    with pytest.raises(IndexError):
        some[3]


def test_artifacts_travel_between_processes_alone() -> None:
    some = table([1000, 3])
    sent = pickle.dumps(some[1])
    assert len(sent) < 5000
    again = pickle.loads(sent)
    assert again == some[1]
    again.table.verify()


def test_equal_content_is_equal_wherever_it_lies() -> None:
    some = table([3, 4])
    assert some[1] == some.take([1])[0]
    assert len({some[1], some.take([1])[0], some[0]}) == 2


# ------------------------------------------------------------------------------------- refusals

REFUSALS: list[tuple[str, Callable[[], Any], type[errors.Refusal], dict[str, Any]]] = [
    (
        "missing base column",
        lambda: artifact(samples={"token_id": [1]}),
        errors.MissingColumn,
        {"column": "logprob"},
    ),
    (
        "unknown column",
        lambda: artifact(samples=samples(entropy=[0, 0, 0])),
        errors.UnknownColumn,
        {"column": "entropy"},
    ),
    (
        "column too short",
        lambda: artifact(samples=samples(value=[0.0])),
        errors.ColumnLengthMismatch,
        {"artifact_id": "a", "column": "value", "expected": 3, "actual": 1},
    ),
    (
        "column too long",
        lambda: artifact(samples=samples(value=np.zeros(4))),
        errors.ColumnLengthMismatch,
        {"artifact_id": None, "column": "value", "expected": 3, "actual": 4},
    ),
    (
        "fewer workers than rollouts",
        lambda: table([1, 1], worker_id=["w"]),
        errors.ColumnLengthMismatch,
        {"artifact_id": "rollout-1", "column": "worker_id", "expected": 2, "actual": 1},
    ),
    (
        "floats as token ids",
        lambda: artifact(samples=samples(token_id=[1.0, 2.0, 3.0])),
        errors.WrongColumnType,
        {"column": "token_id", "actual": "float64"},
    ),
    (
        "text as rewards",
        lambda: artifact(samples=samples(reward=["1", "2", "3"])),
        errors.WrongColumnType,
        {"column": "reward"},
    ),
    (
        "ragged nonsense",
        lambda: artifact(samples=samples(reward=[[1], [2, 3], 4])),
        errors.WrongColumnType,
        {"column": "reward"},
    ),
    (
        "two dimensions",
        lambda: artifact(samples=samples(reward=np.zeros((3, 1)))),
        errors.WrongColumnType,
        {"column": "reward", "actual": "2 dimensions"},
    ),
    (
        "None among rewards",
        lambda: artifact(samples=samples(reward=[0.0, None, 1.0])),
        errors.WrongColumnType,
        {"column": "reward"},
    ),
    (
        "token id over u32",
        lambda: artifact(samples=samples(token_id=[1, 2**32, 3])),
        errors.InvalidNumber,
        {"record": "artifact 'a', sample 1", "field": "token_id", "value": "4294967296"},
    ),
    (
        "negative token id",
        lambda: table([2, 2], samples=samples(4, token_id=[1, 2, 3, -4])),
        errors.InvalidNumber,
        {"record": "artifact 'rollout-1', sample 1", "field": "token_id", "value": "-4"},
    ),
    (
        "reward over f32",
        lambda: artifact(samples=samples(reward=[0.0, 1e39, 0.0])),
        errors.InvalidNumber,
        {"record": "artifact 'a', sample 1", "field": "reward"},
    ),
    (
        "unknown role",
        lambda: artifact(samples=samples(role=[0, 0, 9])),
        errors.InvalidValue,
        {"record": "artifact 'a', sample 2", "field": "role", "value": "9"},
    ),
    (
        "mask of twos",
        lambda: artifact(samples=samples(loss_mask=[0, 1, 2])),
        errors.InvalidValue,
        {"field": "loss_mask", "value": "2"},
    ),
    (
        "version below -1",
        lambda: artifact(samples=samples(policy_version=[0, -2, 1])),
        errors.InvalidValue,
        {"field": "policy_version", "value": "-2"},
    ),
    (
        "negative timestamp",
        lambda: artifact(created_at_ms=-1),
        errors.InvalidNumber,
        {"record": "artifact 'a'", "field": "created_at_ms", "value": "-1"},
    ),
    (
        "timestamp over u64",
        lambda: artifact(created_at_ms=2**64),
        errors.InvalidNumber,
        {"record": "artifact 'a'", "field": "created_at_ms"},
    ),
    (
        "fractional timestamp",
        lambda: artifact(created_at_ms=1.5),
        errors.InvalidNumber,
        {"field": "created_at_ms", "value": "1.5"},
    ),
    (
        "endless id",
        lambda: artifact(task_id="x" * 1_000_000),
        errors.InvalidText,
        {"record": "artifact 'a'", "field": "task_id"},
    ),
    (
        "endless artifact id",
        lambda: artifact("x" * 1_000_000),
        errors.InvalidText,
        {"record": "artifact at row 0", "field": "artifact_id"},
    ),
    (
        "id that is no text",
        lambda: artifact(worker_id=7),
        errors.InvalidText,
        {"record": "artifact 'a'", "field": "worker_id"},
    ),
    (
        "half a character",
        lambda: artifact(worker_id="\ud800"),
        errors.InvalidText,
        {"record": "artifact 'a'", "field": "worker_id"},
    ),
    (
        "unknown ending",
        lambda: artifact(termination_reason="tired"),
        errors.InvalidValue,
        {"record": "artifact 'a'", "field": "termination_reason", "value": "'tired'"},
    ),
    (
        "revision given by name",
        lambda: artifact(source_policy_revision="policy-r1"),
        errors.InvalidValue,
        {"record": "artifact 'a'", "field": "source_policy_revision", "value": "str"},
    ),
    (
        "empty prompt",
        lambda: artifact(prompt=[]),
        errors.InvalidValue,
        {"record": "artifact 'a'", "field": "prompt"},
    ),
    (
        "negative attempt",
        lambda: artifact(attempt=-3),
        errors.InvalidNumber,
        {"record": "artifact 'a'", "field": "attempt", "value": "-3"},
    ),
    (
        "offsets that go back",
        lambda: table([2, 2], offsets=[0, 3, 2]),
        errors.InvalidOffsets,
        {"column": "offsets"},
    ),
    (
        "offsets that start late",
        lambda: table([2, 2], offsets=[1, 2, 4]),
        errors.InvalidOffsets,
        {"column": "offsets"},
    ),
    (
        "too few offsets",
        lambda: table([2, 2], offsets=[0, 4]),
        errors.InvalidOffsets,
        {"column": "offsets"},
    ),
    (
        "NaN reward",
        lambda: artifact(samples=samples(reward=[0.0, np.nan, np.nan])),
        errors.NonFiniteValue,
        {"artifact_id": "a", "column": "reward", "sample_index": 1, "value": "nan"},
    ),
    (
        "infinite log-prob",
        lambda: artifact(samples=samples(logprob=[-0.1, -0.2, -np.inf])),
        errors.NonFiniteValue,
        {"artifact_id": "a", "column": "logprob", "sample_index": 2, "value": "-inf"},
    ),
    (
        "log-prob above 0",
        lambda: artifact(samples=samples(logprob=[-0.1, 0.25, 0.5])),
        errors.PositiveLogProb,
        {"artifact_id": "a", "column": "logprob", "sample_index": 1, "value": 0.25},
    ),
    (
        "reference log-prob above 0",
        lambda: artifact(samples=samples(reference_logprob=[0.0, 0.0, 0.5])),
        errors.PositiveLogProb,
        {"artifact_id": "a", "column": "reference_logprob", "sample_index": 2, "value": 0.5},
    ),
    (
        "nothing to learn from",
        lambda: table([2, 2], samples=samples(4, loss_mask=[0, 1, 0, 0])),
        errors.AllSamplesMasked,
        {"artifact_id": "rollout-1"},
    ),
    (
        "empty id",
        lambda: artifact(""),
        errors.EmptyId,
        {"record": "artifact at row 0", "field": "artifact_id"},
    ),
    (
        "empty revision id",
        lambda: artifact(source_policy_revision=revision(revision_id="")),
        errors.EmptyId,
        {"record": "artifact 'a'", "field": "revision_id"},
    ),
    (
        "one id twice",
        lambda: table([1, 1, 1], artifact_id=["x", "y", "x"]),
        errors.DuplicateArtifactId,
        {"artifact_id": "x", "first_row": 0, "row": 2},
    ),
    (
        "joined under one id",
        lambda: RolloutTable.concat([table([1]), table([2])]),
        errors.DuplicateArtifactId,
        {"artifact_id": "rollout-0", "first_row": 0, "row": 1},
    ),
    (
        "joined with other columns",
        lambda: RolloutTable.from_artifacts(
            [artifact("a"), artifact("b", samples=samples(value=[0, 0, 0]))]
        ),
        errors.ColumnSetMismatch,
        {"artifact_id": "b"},
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


AMBIGUOUS: dict[str, tuple[dict[str, Any], str]] = {
    "artifact_id": ({"artifact_id": "a|worker|b"}, "|"),
    "worker_id": ({"worker_id": "b|worker|c"}, "|"),
    "task_id": ({"task_id": "t|x"}, "|"),
    "environment_ref": (
        {"environment": type(ENVIRONMENT)(environment_ref="e@1", version="2")},
        "@",
    ),
    "version": ({"environment": type(ENVIRONMENT)(environment_ref="e", version="1|2")}, "|"),
    "policy_family": ({"source_policy_revision": revision(policy_family="f|g")}, "|"),
    "revision_id": ({"source_policy_revision": revision(revision_id="r|s")}, "|"),
    "policy_digest": ({"source_policy_revision": revision(policy_digest="d|e")}, "|"),
    "proof digest": ({"proof_references": [proof("p|q", reference="r")]}, "|"),
    "proof reference": ({"proof_references": [proof("p", reference="r|proof|x")]}, "|"),
}


@pytest.mark.parametrize("field", AMBIGUOUS)
def test_ids_that_v1_could_confuse_are_refused_by_strict_rules_only(field: str) -> None:
    changes, character = AMBIGUOUS[field]
    with pytest.raises(errors.AmbiguousId) as caught:
        artifact(**{"artifact_id": "a", **changes})
    assert (caught.value.field, caught.value.character) == (field, character)
    artifact(**{"artifact_id": "a", **changes}, rules=COMPATIBLE)


def test_the_confusion_strict_rules_prevent_is_real_and_v2_does_not_have_it() -> None:
    one = artifact("a|worker|b", worker_id="c", rules=COMPATIBLE)
    other = artifact("a", worker_id="b|worker|c", rules=COMPATIBLE)
    assert one.artifact_digest == other.artifact_digest
    assert one.content_digest != other.content_digest


def test_an_at_sign_in_the_version_is_not_ambiguous() -> None:
    artifact(environment=type(ENVIRONMENT)(environment_ref="e", version="1@2"))


def test_non_finite_values_can_be_allowed_under_strict_rules() -> None:
    rules = ContractRules(non_finite="allow")
    made = artifact(samples=samples(logprob=[-np.inf, -1, np.nan]), rules=rules)
    assert np.isnan(made.columns["logprob"][2])


def test_the_first_refusal_is_that_of_the_first_rollout() -> None:
    fields = table_fields([2, 1, 2])
    fields["samples"]["reward"][4] = np.nan
    fields["samples"]["logprob"][2] = 1.0
    fields["proof_references"] = [(), (), (proof("p"), proof("p"))]
    with pytest.raises(errors.PositiveLogProb) as caught:
        RolloutTable.from_columns(**fields)
    assert caught.value.artifact_id == "rollout-1"


def test_a_report_lists_every_problem_in_order() -> None:
    fields = table_fields([2, 1, 2])
    fields["samples"]["reward"][4] = np.nan
    fields["samples"]["logprob"][2] = 1.0
    fields["proof_references"] = [(), (), (proof("p"), proof("p"))]
    fields["task_id"] = ["fine", "a|b", "fine"]
    report = RolloutTable.report(**fields)
    assert [(problem.code, problem.fields.get("artifact_id")) for problem in report] == [
        ("ambiguous_id", None),
        ("positive_logprob", "rollout-1"),
        ("duplicate_proof_digest", "rollout-2"),
        ("non_finite_value", "rollout-2"),
    ]
    assert RolloutTable.report(**table_fields([2, 1])) == []


def test_a_rollout_without_samples_is_not_called_masked_as_well() -> None:
    fields = table_fields([0, 2])
    fields["samples"]["loss_mask"] = [0, 0]
    codes = [problem.code for problem in RolloutTable.report(**fields)]
    assert codes == ["empty_rollout_samples", "all_samples_masked"]


def test_a_report_on_columns_that_do_not_fit_says_so() -> None:
    report = RolloutTable.report(**table_fields([2, 1], worker_id=["w"]))
    assert [problem.code for problem in report] == ["column_length_mismatch"]


def test_an_empty_table_is_a_table() -> None:
    empty = RolloutTable.empty()
    assert (len(empty), empty.sample_count, list(empty)) == (0, 0, [])
    empty.verify()
    assert RolloutTable.from_artifacts([]).root == empty.root


# ------------------------------------------------------------------------------- digests, proofs


def _changes() -> list[dict[str, Any]]:
    """One change to every field an artifact has."""
    base = {
        "token_id": [1, 2, 3],
        "logprob": [-1, -2, -3],
        "reward": [1, 2, 3],
        "advantage": [1, 2, 3],
    }
    extra = {
        "loss_mask": [1, 1, 0],
        "role": [0, 1, 2],
        "turn": [0, 1, 2],
        "policy_version": [1, 1, 1],
        "temperature": [1, 1, 1],
        "reference_logprob": [-1, -1, -1],
        "value": [0, 0, 1],
    }
    changed_samples = [
        {"samples": {**samples(), name: values}} for name, values in {**base, **extra}.items()
    ]
    return [
        {"artifact_id": "b"},
        {"worker_id": "w2"},
        {"environment": type(ENVIRONMENT)(environment_ref="env.weather", version="2")},
        {"task_id": "other"},
        {"termination_reason": "cancelled"},
        {"created_at_ms": 1101},
        {"proof_references": [proof("p")]},
        {"proof_references": [proof("p", reference="elsewhere")]},
        {"prompt": [1]},
        {"group_id": "g"},
        {"group_id": ""},
        {"attempt": 0},
        {"logprob_semantics": LogprobSemantics(distribution=LogprobDistribution.RAW)},
        {"source_policy_revision": revision(2)},
        {"source_policy_revision": revision(revision_number=7)},
        {"source_policy_revision": revision(parent_revision_id="policy-r0")},
        {"source_policy_revision": revision(produced_at_ms=1)},
        *changed_samples,
    ]


def test_the_content_digest_covers_every_field() -> None:
    digests = {artifact(**{"artifact_id": "a", **change}).content_digest for change in _changes()}
    assert len(digests) == len(_changes())
    assert artifact("a").content_digest not in digests


@given(tables(min_rows=1, max_rows=5), st.data())
def test_one_rollout_is_proved_without_the_rest(some: RolloutTable, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(some) - 1))
    shown = some.prove(row)
    alone = some.take([row])[0]
    verify_proof(shown, alone, some.root)
    for other in range(len(some)):
        if other != row:
            with pytest.raises(errors.InvalidProof):
                verify_proof(shown, some[other], some.root)
    with pytest.raises(errors.InvalidProof, match="leads to root"):
        verify_proof(shown, alone, "0" * 64)


def test_a_forged_proof_is_refused() -> None:
    some = table([1, 2, 3, 4])
    shown = some.prove(2)
    forged = type(shown)(
        root=shown.root, index=1, count=4, content_digest=shown.content_digest, path=shown.path
    )
    with pytest.raises(errors.InvalidProof):
        verify_proof(forged, some[2], some.root)
    with pytest.raises(errors.InvalidProof, match="the proof is for"):
        verify_proof(shown, some[1], some.root)
    garbled = type(shown)(
        root=shown.root, index=2, count=4, content_digest=shown.content_digest, path=("zz",)
    )
    with pytest.raises(errors.InvalidProof, match="hexadecimal"):
        verify_proof(garbled, some[2], some.root)


def test_tampered_columns_fail_verification_by_artifact_and_field() -> None:
    some = table([3, 4, 5])
    reward = some.samples["reward"].copy()
    reward[4] += 1
    columns = dict(some.samples, reward=reward)
    tampered = RolloutTable(
        msgspec.structs.replace(some.columns, samples=columns),
        some.artifact_digests,
        some.content_digests,
    )
    problems = tampered.digest_problems()
    assert [(p.record_id, p.field) for p in problems] == [
        ("rollout-1", "artifact_digest"),
        ("rollout-1", "content_digest"),
    ]
    with pytest.raises(errors.DigestMismatch):
        tampered.verify()


def test_an_artifact_shows_itself_briefly() -> None:
    assert repr(artifact("a")).startswith("RolloutArtifact('a', 3 samples of 'policy-r1', ")
    assert repr(table([2, 3])) == "RolloutTable(2 rollouts, 5 samples)"
    assert isinstance(table([1])[0], RolloutArtifact)


def laid_out(values: list[Any], dtype: str, every: int) -> Any:
    """The values in another type and byte order, and with gaps between them in memory."""
    return np.repeat(np.array(values, dtype), every)[::every]


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=40),
    st.sampled_from(["<f8", ">f8", "longdouble"]),
    st.integers(1, 3),
)
def test_a_float_is_refused_exactly_where_it_is_finite_and_does_not_fit(
    values: list[float], dtype: str, every: int
) -> None:
    with np.errstate(over="ignore"):
        rounded = np.array(values).astype(np.float32)
    too_large = np.flatnonzero(np.isinf(rounded) & np.isfinite(values)).tolist()
    fields = samples(len(values), reward=laid_out(values, dtype, every))
    with np.errstate(all="raise"):  # what the caller set for numpy makes no difference
        if too_large:
            with pytest.raises(errors.InvalidNumber) as caught:
                artifact(samples=fields, rules=COMPATIBLE)
            assert caught.value.record == f"artifact 'a', sample {too_large[0]}"
        else:
            made = artifact(samples=fields, rules=COMPATIBLE)
            assert made.columns["reward"].tobytes() == rounded.tobytes()


@given(
    st.sampled_from(["token_id", "turn"]),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300), min_size=1, max_size=9),
    st.sampled_from(["<i8", ">i8", "i4", "i2", "i1", "<u8", ">u4", "u2", "u1"]),
    st.integers(1, 3),
)
def test_a_whole_number_is_kept_as_it_is_or_refused(
    name: str, values: list[int], dtype: str, every: int
) -> None:
    values = [min(max(value, np.iinfo(dtype).min), np.iinfo(dtype).max) for value in values]
    fits = np.iinfo(SAMPLE_DTYPES[name])
    outside = [at for at, value in enumerate(values) if not fits.min <= value <= fits.max]
    fields = samples(len(values), **{name: laid_out(values, dtype, every)})
    if outside:
        with pytest.raises(errors.InvalidNumber) as caught:
            artifact(samples=fields)
        assert caught.value.record == f"artifact 'a', sample {outside[0]}"
        assert caught.value.value == str(values[outside[0]])
    else:
        assert artifact(samples=fields).columns[name].tolist() == values

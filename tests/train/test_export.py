import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, RolloutTerminationReason
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.staleness import StalenessPolicy, TokenStaleness, token_staleness
from rollbook.errors import (
    ColumnLengthMismatch,
    ConfigurationError,
    EmptyTrainerBatch,
    InvalidNumber,
    RolloutsNotInBatch,
    SequenceOverBudget,
)
from rollbook.train import rollouts_of, to_jagged, to_packed, to_packed_bins, to_padded
from rollbook.train.export import TrainerArrays, packed_places

TARGET_VERSION = 5
OPTIONAL = ("role", "turn", "policy_version", "temperature", "reference_logprob", "value")
FILLERS = {"temperature": 1.0, "role": 255, "turn": 65535, "policy_version": -1}
MODES = ("drop", "mask", "down_weight")
PINNED_PACKED = "822d3869e2b95c12098b97f3c143a81d87f822b5c226488f939ba02bc859bedb"
PINNED_PADDED = "d261fd8fc6e68c52cdb133c7d594870cda3a8b2832b52dbfb391b162c01d9b8a"


def revision(number: int) -> PolicyRevision:
    return PolicyRevision(
        policy_family="policy",
        revision_id=f"r{number}",
        policy_digest=f"digest-{number}",
        produced_at_ms=number,
        revision_number=number,
    )


def sample_columns(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "token_id": random.integers(0, 2**31, count),
        "logprob": -random.random(count),
        "reward": random.random(count),
        "advantage": random.normal(size=count),
        "role": random.integers(0, 5, count),
        "turn": random.integers(0, 9, count),
        "policy_version": random.integers(-1, TARGET_VERSION + 2, count),
        "temperature": random.random(count),
        "reference_logprob": -random.random(count),
        "value": random.normal(size=count),
    }


def table_of(
    lengths: list[int], samples: dict[str, Any], prompts: list[list[int] | None] | None = None
) -> RolloutTable:
    rows = len(lengths)
    return RolloutTable.from_columns(
        artifact_id=[f"rollout-{row}" for row in range(rows)],
        worker_id=["worker"] * rows,
        environment=[EnvironmentPackageKey(environment_ref="rooms", version="1")] * rows,
        task_id=["task"] * rows,
        source_policy_revision=[revision(1)] * rows,
        offsets=np.cumsum([0, *lengths]),
        samples=samples,
        termination_reason=[RolloutTerminationReason.COMPLETED] * rows,
        created_at_ms=[3] * rows,
        prompt=prompts,
    )


def batch_of(table: RolloutTable) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id="batch",
        target_revision=revision(TARGET_VERSION),
        rollouts=table,
        assembled_at_ms=9,
    )


def aged(table: RolloutTable, mode: Any, max_age: int = 2) -> TokenStaleness:
    policy = StalenessPolicy(max_age=max_age, mode=mode)
    return token_staleness(table, TARGET_VERSION, policy)


@dataclass
class Case:
    table: RolloutTable
    staleness: TokenStaleness | None

    @property
    def batch(self) -> TrainerBatch:
        return batch_of(self.table)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    every = sample_columns(sum(lengths), draw(st.integers(0, 2**32)))
    kept = draw(st.sets(st.sampled_from(OPTIONAL)))
    samples = {name: column for name, column in every.items() if name not in set(OPTIONAL) - kept}
    if draw(st.booleans()):
        mask = np.array(draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths))))
        mask[np.cumsum(lengths) - 1] = True
        samples["loss_mask"] = mask
    prompt = st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4)
    prompts = draw(
        st.none() | st.lists(prompt, min_size=len(lengths), max_size=len(lengths)),
    )
    table = table_of(lengths, samples, prompts)
    mode = draw(st.sampled_from([None, *MODES])) if "policy_version" in kept else None
    staleness = None if mode is None else aged(table, mode, draw(st.integers(0, 5)))
    if staleness is not None and not staleness.keep.any():
        staleness = None
    return Case(table, staleness)


def plain_sequences(case: Case) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Row and columns of every sequence, put together token by token."""
    for row, artifact in enumerate(case.table):
        start = int(case.table.offsets[row])
        prompt = [] if artifact.prompt is None else artifact.prompt.tolist()
        columns: dict[str, list[Any]] = {
            "token_ids": list(prompt),
            "sample_mask": [False] * len(prompt),
            "loss_mask": [False] * len(prompt),
            "weights": [0.0] * len(prompt),
            "logprobs": [0.0] * len(prompt),
            "rewards": [0.0] * len(prompt),
            "advantages": [0.0] * len(prompt),
        }
        optional = [name for name in OPTIONAL if name in artifact.columns]
        columns |= {name: [FILLERS.get(name, 0.0)] * len(prompt) for name in optional}
        for index in range(artifact.token_count):
            weight = 1.0
            if case.staleness is not None:
                if not case.staleness.keep[start + index]:
                    continue
                weight = float(case.staleness.weight[start + index])
            if "loss_mask" in artifact.columns:
                weight *= float(artifact.columns["loss_mask"][index])
            elif "policy_version" in artifact.columns:
                weight *= float(artifact.columns["policy_version"][index] >= 0)
            columns["token_ids"].append(int(artifact.columns["token_id"][index]))
            columns["sample_mask"].append(True)
            columns["loss_mask"].append(weight > 0)
            columns["weights"].append(weight)
            for name in ("logprob", "reward", "advantage"):
                columns[f"{name}s"].append(artifact.columns[name][index].item())
            for name in optional:
                columns[name].append(artifact.columns[name][index].item())
        if any(columns["sample_mask"]):
            yield row, columns


def token_arrays(export: TrainerArrays) -> dict[str, Any]:
    """The arrays that every layout has, one entry per token."""
    shared = ("token_ids", "sample_mask", "loss_mask", "weights", "logprobs", "rewards")
    return {
        **{name: getattr(export, name) for name in (*shared, "advantages")},
        **export.columns,
    }


def joined(sequences: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    return {
        name: [value for sequence in sequences for value in sequence[name]] for name in sequences[0]
    }


def lists(arrays: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in arrays.items()}


# ----------------------------------------------------------------------- layouts against the plain


@given(cases())
def test_packed_is_what_the_plain_construction_gives(case: Case) -> None:
    packed = to_packed(case.batch, case.table, staleness=case.staleness)
    rows, sequences = zip(*plain_sequences(case), strict=True)
    lengths = [len(sequence["token_ids"]) for sequence in sequences]
    assert lists(token_arrays(packed)) == joined(list(sequences))
    assert packed.rows.tolist() == list(rows)
    assert sorted([*rows, *packed.dropped_rows]) == list(range(len(case.table)))
    assert packed.cu_seqlens.tolist() == np.cumsum([0, *lengths]).tolist()
    assert packed.position_ids.tolist() == [at for length in lengths for at in range(length)]
    assert packed.sequence_ids.tolist() == np.repeat(rows, lengths).tolist()


@given(cases(), st.sampled_from(["left", "right"]), st.integers(1, 5))
def test_padded_is_what_the_plain_construction_gives(
    case: Case, side: Any, multiple_of: int
) -> None:
    padded = to_padded(
        case.batch,
        case.table,
        side=side,
        multiple_of=multiple_of,
        pad_id=77,
        staleness=case.staleness,
    )
    rows, sequences = zip(*plain_sequences(case), strict=True)
    lengths = [len(sequence["token_ids"]) for sequence in sequences]
    width = padded.token_ids.shape[1]
    assert width % multiple_of == 0
    assert max(lengths) <= width < max(lengths) + multiple_of

    def row_of(values: list[Any], filler: Any) -> list[Any]:
        padding = [filler] * (width - len(values))
        return padding + values if side == "left" else values + padding

    fillers = {"token_ids": 77, **FILLERS}
    for name, array in token_arrays(padded).items():
        expected = [row_of(sequence[name], fillers.get(name, 0)) for sequence in sequences]
        assert array.tolist() == expected, name
    assert padded.rows.tolist() == list(rows)
    assert padded.lengths.tolist() == lengths
    assert padded.attention_mask.tolist() == [row_of([True] * each, False) for each in lengths]
    assert padded.position_ids.tolist() == [row_of(list(range(each)), 0) for each in lengths]


@given(cases())
def test_jagged_values_split_at_the_offsets_are_the_plain_sequences(case: Case) -> None:
    jagged = to_jagged(case.batch, case.table, staleness=case.staleness)
    assert jagged.offsets.dtype == np.int64
    split = {
        name: [part.tolist() for part in np.split(values, jagged.offsets[1:-1])]
        for name, values in token_arrays(jagged).items()
    }
    sequences = [sequence for _, sequence in plain_sequences(case)]
    assert split == {name: [each[name] for each in sequences] for name in sequences[0]}


@given(cases(), st.sampled_from(["left", "right"]))
def test_unpadding_the_padded_gives_back_the_packed(case: Case, side: Any) -> None:
    packed = to_packed(case.batch, case.table, staleness=case.staleness)
    padded = to_padded(case.batch, case.table, side=side, multiple_of=4, staleness=case.staleness)
    real = padded.attention_mask
    unpadded = {name: array[real] for name, array in token_arrays(padded).items()}
    assert lists(unpadded) == lists(token_arrays(packed))
    assert padded.position_ids[real].tolist() == packed.position_ids.tolist()


@given(cases(), st.integers(10, 30))
def test_bins_hold_every_sequence_once_within_the_budget(case: Case, budget: int) -> None:
    parts = to_packed_bins(case.batch, case.table, token_budget=budget, staleness=case.staleness)
    plain = dict(plain_sequences(case))
    whole = to_packed(case.batch, case.table, staleness=case.staleness)
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(plain)
    for part in parts:
        rows = part.rows.tolist()
        lengths = [len(plain[row]["token_ids"]) for row in rows]
        assert rows == sorted(rows)
        assert len(part.token_ids) == sum(lengths) <= budget
        assert lists(token_arrays(part)) == joined([plain[row] for row in rows])
        assert part.cu_seqlens.tolist() == np.cumsum([0, *lengths]).tolist()
        assert part.position_ids.tolist() == [at for each in lengths for at in range(each)]
        assert part.sequence_ids.tolist() == np.repeat(rows, lengths).tolist()
        assert part.dropped_rows == whole.dropped_rows


@given(cases())
def test_loss_counts_exactly_where_a_weight_is_and_only_at_samples(case: Case) -> None:
    packed = to_packed(case.batch, case.table, staleness=case.staleness)
    assert np.array_equal(packed.loss_mask, packed.weights > 0)
    assert not packed.loss_mask[~packed.sample_mask].any()


def test_dtypes_are_the_documented_ones() -> None:
    case = small_case()
    packed = to_packed(case.batch, case.table, token_dtype=np.int32)
    assert {name: str(array.dtype) for name, array in packed.arrays().items()} == {
        "rows": "int64",
        "token_ids": "int32",
        "sample_mask": "bool",
        "loss_mask": "bool",
        "weights": "float32",
        "logprobs": "float32",
        "rewards": "float32",
        "advantages": "float32",
        "sequence_rewards": "float32",
        "group_ids": "int64",
        "cu_seqlens": "int32",
        "position_ids": "int32",
        "sequence_ids": "int32",
        "role": "uint8",
        "turn": "uint16",
        "policy_version": "int32",
        "temperature": "float32",
        "reference_logprob": "float32",
        "value": "float32",
    }


# ------------------------------------------------------------------------------------- staleness


def small_case(prompts: bool = True) -> Case:
    lengths = [2, 3, 1, 4]
    given = [[7, 8], None, [9], [1, 2, 3]] if prompts else None
    return Case(table_of(lengths, sample_columns(10, 1), given), None)


def table_with_versions(lengths: list[int], versions: list[int], **columns: Any) -> RolloutTable:
    samples = sample_columns(sum(lengths), 2) | {"policy_version": versions} | columns
    return table_of(lengths, samples, [[4, 5]] * len(lengths))


def test_a_sequence_with_only_stale_samples_is_left_out_and_listed() -> None:
    table = table_with_versions([2, 1, 2], [5, 0, 0, 0, 5])
    packed = to_packed(batch_of(table), table, staleness=aged(table, "drop"))
    assert packed.dropped_rows == (1,)
    assert packed.rows.tolist() == [0, 2]
    assert packed.sequence_ids.tolist() == [0, 0, 0, 2, 2, 2]
    assert packed.position_ids.tolist() == [0, 1, 2, 0, 1, 2]


def test_masked_staleness_keeps_the_tokens_without_weight() -> None:
    table = table_with_versions([2, 1], [5, 0, 0])
    packed = to_packed(batch_of(table), table, staleness=aged(table, "mask"))
    assert packed.dropped_rows == ()
    assert packed.loss_mask.tolist() == [False, False, True, False, False, False, False]


def test_context_that_nobody_sampled_takes_no_part_in_the_loss() -> None:
    table = table_with_versions([3], [-1, 4, -1])
    assert to_packed(batch_of(table), table).loss_mask.tolist()[2:] == [False, True, False]
    masked = table_with_versions([3], [-1, 4, -1], loss_mask=[1, 1, 0])
    assert to_packed(batch_of(masked), masked).loss_mask.tolist()[2:] == [True, True, False]


def test_dropping_every_sample_is_refused() -> None:
    table = table_with_versions([2, 1], [0, 0, 0])
    for export in (to_packed, to_padded, to_jagged):
        with pytest.raises(EmptyTrainerBatch) as refused:
            export(batch_of(table), table, staleness=aged(table, "drop"))
        assert refused.value.batch_id == "batch"


def test_staleness_of_another_table_is_refused() -> None:
    table, other = table_with_versions([2, 1], [5, 5, 5]), table_with_versions([2], [5, 5])
    with pytest.raises(ColumnLengthMismatch, match="staleness weight"):
        to_packed(batch_of(table), table, staleness=aged(other, "mask"))


# ------------------------------------------------------------- which rollouts, and what was made


def retold(table: RolloutTable, **changes: Any) -> RolloutTable:
    """The same rollouts with some sample columns or prompts told otherwise."""
    prompts = changes.pop("prompts", [artifact.prompt for artifact in table])
    return table_of(np.diff(table.offsets).tolist(), {**table.samples, **changes}, prompts)


EXPORTS: dict[str, Callable[[TrainerBatch, RolloutTable], Any]] = {
    "packed": to_packed,
    "bins": lambda batch, table: to_packed_bins(batch, table, token_budget=64),
    "padded": to_padded,
    "jagged": to_jagged,
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=list(EXPORTS))
@pytest.mark.parametrize(
    ("other", "detail"),
    [
        (lambda table: table.take([1, 0, 2, 3]), "row 0 is artifact 'rollout-1'"),
        (lambda table: table.take([0, 1, 2]), "it has 3 rollouts, the batch 4"),
        (
            lambda table: retold(table, reward=table.samples["reward"] + 1),
            "'rollout-0' has another digest",
        ),
        (lambda table: retold(table, role=np.zeros(10, int)), "optional column"),
        (lambda table: retold(table, prompts=[[7, 8], None, [9], [1, 2, 4]]), "a prompt"),
    ],
    ids=["reordered", "missing", "other samples", "other optional column", "other prompt"],
)
def test_a_table_that_is_not_the_batchs_is_refused(
    export: Callable[[TrainerBatch, RolloutTable], Any],
    other: Callable[[RolloutTable], RolloutTable],
    detail: str,
) -> None:
    case = small_case()
    with pytest.raises(RolloutsNotInBatch, match=detail):
        export(case.batch, other(case.table))


def test_a_batch_that_records_fewer_digests_than_ids_is_refused() -> None:
    case = small_case()
    short = msgspec.structs.replace(case.batch, rollout_digests=case.batch.rollout_digests[:-1])
    with pytest.raises(RolloutsNotInBatch):
        to_packed(short, case.table)


def test_a_batch_without_a_root_is_held_to_the_v1_digests() -> None:
    case = small_case()
    foreign = msgspec.structs.replace(case.batch, rollouts_root=None)
    assert to_packed(foreign, case.table).rollouts_root == case.table.root
    with pytest.raises(RolloutsNotInBatch):
        to_packed(foreign, retold(case.table, reward=case.table.samples["reward"] + 1))


def test_the_rollouts_of_a_batch_are_found_in_a_bigger_table() -> None:
    table = small_case().table
    batch = batch_of(table.take([3, 1]))
    chosen = rollouts_of(batch, table)
    assert [artifact.artifact_id for artifact in chosen] == ["rollout-3", "rollout-1"]
    assert to_packed(batch, chosen).batch_digest == batch.batch_digest


def test_a_rollout_that_is_nowhere_in_the_table_is_named() -> None:
    table = small_case().table
    with pytest.raises(RolloutsNotInBatch, match=r"'rollout-3'"):
        rollouts_of(batch_of(table), table.take([0, 1, 2]))


def test_a_rollout_with_the_right_id_and_another_content_is_refused() -> None:
    table = small_case().table
    with pytest.raises(RolloutsNotInBatch, match="another digest"):
        rollouts_of(batch_of(table), retold(table, reward=table.samples["reward"] + 1))


def test_an_export_names_its_batch_and_its_rollouts() -> None:
    case = small_case()
    for export in EXPORTS.values():
        made = export(case.batch, case.table)
        for each in made if isinstance(made, list) else [made]:
            assert each.batch_digest == case.batch.batch_digest
            assert each.rollouts_root == case.table.root


def test_any_option_changes_the_recipe_digest() -> None:
    case = small_case()
    batch, table = case.batch, case.table
    kinds = [aged(table, mode, max_age) for mode in MODES for max_age in (4, 5)]
    recipes = [
        to_packed(batch, table),
        to_packed(batch, table, token_dtype=np.int32),
        *(to_packed(batch, table, staleness=each) for each in kinds),
        to_jagged(batch, table),
        to_jagged(batch, table, token_dtype=np.int32),
        to_jagged(batch, table, staleness=kinds[0]),
        to_padded(batch, table),
        to_padded(batch, table, side="left"),
        to_padded(batch, table, multiple_of=2),
        to_padded(batch, table, pad_id=1),
        to_padded(batch, table, token_dtype=np.int32),
        to_padded(batch, table, staleness=kinds[0]),
        *to_packed_bins(batch, table, token_budget=8),
        *to_packed_bins(batch, table, token_budget=9),
        *to_packed_bins(batch, table, token_budget=9, token_dtype=np.int32),
        *to_packed_bins(batch, table, token_budget=9, staleness=kinds[0]),
    ]
    digests = [each.recipe_digest for each in recipes]
    assert len(set(digests)) == len(digests)


def test_recipe_digests_are_the_same_in_every_run() -> None:
    case = small_case()
    assert to_packed(case.batch, case.table).recipe_digest == PINNED_PACKED
    staleness = aged(case.table, "mask")
    padded = to_padded(case.batch, case.table, multiple_of=8, staleness=staleness)
    assert padded.recipe_digest == PINNED_PADDED


def test_any_integer_type_gives_the_same_recipe() -> None:
    case = small_case()
    eight: Any = np.int16(8)
    numpy_eight = to_padded(case.batch, case.table, multiple_of=eight, pad_id=eight)
    plain_eight = to_padded(case.batch, case.table, multiple_of=8, pad_id=8)
    assert numpy_eight.recipe_digest == plain_eight.recipe_digest


def test_the_recipe_says_with_what_to_make_the_export_again() -> None:
    case = small_case()
    (part,) = to_packed_bins(case.batch, case.table, token_budget=32)
    assert part.recipe == {
        "kind": "packed_bins",
        "token_dtype": "int64",
        "staleness": None,
        "token_budget": 32,
        "bins": 1,
        "bin": 0,
    }


# --------------------------------------------------------------------------------------- refusals


def test_a_token_id_too_large_for_the_dtype_names_its_artifact() -> None:
    table = table_with_versions([2, 2], [5, 5, 5, 0], token_id=[1, 2, 3, 2**31])
    batch = batch_of(table)
    with pytest.raises(InvalidNumber, match=r"'rollout-1'.*2147483648"):
        to_packed(batch, table, token_dtype=np.int32)
    assert to_packed(batch, table).token_ids.max() == 2**31
    without = to_packed(batch, table, staleness=aged(table, "drop"), token_dtype=np.int32)
    assert without.token_ids.tolist() == [4, 5, 1, 2, 4, 5, 3]


def test_a_prompt_id_too_large_for_the_dtype_names_its_artifact() -> None:
    samples = sample_columns(3, 3)
    table = table_of([1, 1, 1], samples, [[1], None, [2, 2**32 - 1]])
    with pytest.raises(InvalidNumber, match=r"'rollout-2'.*4294967295"):
        to_padded(batch_of(table), table, token_dtype=np.int32)


@pytest.mark.parametrize("dtype", [np.uint32, np.int16, np.float32, ">i8"])
def test_token_dtypes_other_than_int32_and_int64_are_refused(dtype: Any) -> None:
    case = small_case()
    with pytest.raises(ConfigurationError, match="token_dtype"):
        to_packed(case.batch, case.table, token_dtype=dtype)


@pytest.mark.parametrize(
    "options",
    [
        {"side": "middle"},
        {"multiple_of": 0},
        {"multiple_of": True},
        {"pad_id": 2**31, "token_dtype": np.int32},
        {"pad_id": 0.5},
    ],
    ids=str,
)
def test_padding_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    case = small_case()
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        to_padded(case.batch, case.table, **options)


def test_a_pad_id_may_be_anything_the_dtype_holds() -> None:
    case = small_case()
    padded = to_padded(case.batch, case.table, pad_id=-1, token_dtype=np.int32)
    assert (padded.token_ids[~padded.attention_mask] == -1).all()


def test_more_tokens_than_32_bits_count_are_refused_before_anything_is_made() -> None:
    rows = np.array([0, 1])
    with pytest.raises(InvalidNumber, match=r"'big'.*cu_seqlens is 2147483648"):
        packed_places("big", rows, np.array([0, 5, 2**31]))


def test_a_sequence_over_the_budget_is_refused_with_its_prompt_counted() -> None:
    case = small_case()
    with pytest.raises(SequenceOverBudget) as refused:
        to_packed_bins(case.batch, case.table, token_budget=6)
    assert refused.value.fields == {"artifact_id": "rollout-3", "length": 7, "token_budget": 6}


# ------------------------------------------------------------------------------ memory and tensors


@pytest.mark.parametrize("export", EXPORTS.values(), ids=list(EXPORTS))
@pytest.mark.parametrize("prompts", [True, False], ids=["prompts", "no prompts"])
def test_arrays_are_writable_and_shared_with_nobody(
    export: Callable[[TrainerBatch, RolloutTable], Any], prompts: bool
) -> None:
    case = small_case(prompts)
    made = export(case.batch, case.table)
    arrays = [
        array
        for each in (made if isinstance(made, list) else [made])
        for array in each.arrays().values()
    ]
    for index, array in enumerate(arrays):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        others = [*arrays[:index], *case.table.samples.values()]
        assert not any(np.shares_memory(array, other) for other in others)


@pytest.mark.parametrize("export", EXPORTS.values(), ids=list(EXPORTS))
def test_tensors_share_memory_with_the_arrays(
    export: Callable[[TrainerBatch, RolloutTable], Any],
) -> None:
    case = small_case()
    made = export(case.batch, case.table)
    for each in made if isinstance(made, list) else [made]:
        tensors, arrays = each.to_torch(), each.arrays()
        assert list(tensors) == list(arrays)
        for name, tensor in tensors.items():
            assert tensor.data_ptr() == arrays[name].ctypes.data, name
            assert tuple(tensor.shape) == arrays[name].shape


def test_the_nested_tensor_holds_one_row_of_token_ids_per_sequence() -> None:
    case = small_case()
    jagged = to_jagged(case.batch, case.table)
    nested = jagged.nested()
    assert nested.layout == torch.jagged
    assert nested.values().data_ptr() == jagged.token_ids.ctypes.data
    expected = [sequence["token_ids"] for _, sequence in plain_sequences(case)]
    assert [row.tolist() for row in nested.unbind()] == expected


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    case = small_case()
    with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[torch\]'"):
        to_packed(case.batch, case.table).to_torch()
    with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[torch\]'"):
        to_jagged(case.batch, case.table).nested()

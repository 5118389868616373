"""Prompts and completions apart: where tokens and their values lie, compared with a plain loop, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts import (
    COMPATIBLE,
    RolloutTable,
    StalenessPolicy,
    TrainerBatch,
    token_staleness,
)
from rollbook.contracts.rl.sample import BASE_COLUMNS, SAMPLE_DTYPES
from rollbook.errors import ConfigurationError, InvalidNumber, InvalidValue, RolloutsNotInBatch
from rollbook.train import SplitBatch, to_split
from tests.factories import revision, same_columns, sample_columns, table_fields

FILLERS = {"temperature": 1.0, "role": 255, "turn": 65535, "policy_version": -1}


def batch_of(table: RolloutTable) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id="batch",
        target_revision=revision(9),
        rollouts=table,
        assembled_at_ms=9,
        rules=COMPATIBLE,
    )


def small_table(**changes: Any) -> RolloutTable:
    fields = table_fields([2, 1, 3], **{"prompt": [[7, 8, 9], [4], [5, 6]], **changes})
    fields["samples"] |= {"token_id": [10, 11, 20, 30, 31, 32], "advantage": [1, 1, 2, 3, 3, 3]}
    return RolloutTable.from_columns(**fields)


def split(table: RolloutTable, **options: Any) -> SplitBatch:
    return to_split(batch_of(table), table, **options)


@st.composite
def any_tables(draw: st.DrawFn) -> RolloutTable:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    rows = len(lengths)
    optional = draw(st.lists(st.sampled_from(list(SAMPLE_DTYPES)[4:]), unique=True))
    prompt = st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4)
    group = st.none() | st.text(max_size=3)
    fields = table_fields(
        lengths,
        samples=draw(sample_columns(sum(lengths), [*BASE_COLUMNS, *optional])),
        prompt=draw(st.lists(prompt, min_size=rows, max_size=rows)),
        group_id=draw(st.lists(group, min_size=rows, max_size=rows)),
    )
    return RolloutTable.from_columns(**fields, rules=COMPATIBLE)


options = st.fixed_dictionaries(
    {
        "prompt_side": st.sampled_from(["left", "right"]),
        "completion_side": st.sampled_from(["left", "right"]),
        "pad_id": st.integers(0, 99),
        "multiple_of": st.integers(1, 4),
        "mask_dtype": st.sampled_from([np.int64, np.float32, np.bool_]),
    }
)


def placed(values: list[Any], width: int, side: str, filler: Any) -> list[Any]:
    padding = [filler] * (width - len(values))
    return [*padding, *values] if side == "left" else [*values, *padding]


def in_loss(artifact: Any) -> list[bool]:
    columns = artifact.columns
    if "loss_mask" in columns:
        return [bool(each) for each in columns["loss_mask"]]
    if "policy_version" in columns:
        return [bool(each >= 0) for each in columns["policy_version"]]
    return [True] * artifact.token_count


def plain(
    table: RolloutTable, prompt_side: str, completion_side: str, **given: Any
) -> dict[str, Any]:
    """Every array as lists, put together rollout by rollout and token by token."""

    def width(longest: int) -> int:
        while longest % given["multiple_of"]:
            longest += 1
        return longest

    prompts = [[] if each.prompt is None else each.prompt.tolist() for each in table]
    prompt_width = width(max(map(len, prompts)))
    completion_width = width(max(each.token_count for each in table))
    rows: dict[str, list[Any]] = {}

    def add(name: str, row: list[Any]) -> None:
        rows.setdefault(name, []).append(row)

    for prompt, artifact in zip(prompts, table, strict=True):
        ones = [1] * artifact.token_count
        add("prompt_ids", placed(prompt, prompt_width, prompt_side, given["pad_id"]))
        add("prompt_mask", placed([1] * len(prompt), prompt_width, prompt_side, 0))
        ids = artifact.columns["token_id"].tolist()
        per_token = {
            "completion_ids": (ids, given["pad_id"]),
            "completion_mask": (ones, 0),
            "loss_mask": (list(map(int, in_loss(artifact))), 0),
            "weights": (list(map(float, in_loss(artifact))), 0.0),
        }
        for name in artifact.columns:
            if name not in ("token_id", "loss_mask"):
                short = f"{name}s" if name in BASE_COLUMNS else name
                per_token[short] = (artifact.columns[name].tolist(), FILLERS.get(name, 0))
        for name, (values, filler) in per_token.items():
            add(name, placed(values, completion_width, completion_side, filler))
    return rows


@settings(max_examples=80)
@given(any_tables(), options)
def test_split_is_what_the_plain_construction_gives(
    table: RolloutTable, given_options: dict[str, Any]
) -> None:
    export = split(table, **given_options)
    arrays = export.arrays()
    for name, rows in plain(table, **given_options).items():
        assert np.array_equal(arrays[name], np.array(rows, arrays[name].dtype), equal_nan=True), (
            name
        )
    for name in ("prompt_mask", "completion_mask", "loss_mask"):
        assert arrays[name].dtype == given_options["mask_dtype"]
    assert export.artifact_ids == tuple(each.artifact_id for each in table)
    assert export.model_versions.tolist() == [
        each.source_policy_revision.revision_number for each in table
    ]


def read_back(table: RolloutTable, export: SplitBatch) -> RolloutTable:
    arrays = export.arrays()
    both = {
        name: np.concatenate([arrays[f"prompt_{name}"], arrays[f"completion_{name}"]], axis=1)
        for name in ("ids", "mask")
    }
    return RolloutTable.from_padded(
        both["ids"],
        arrays["completion_mask"],
        arrays["logprobs"],
        rewards=arrays["rewards"],
        advantages=arrays["advantages"],
        attention_mask=both["mask"],
        columns={name: arrays[name] for name in table.samples if name not in BASE_COLUMNS},
        group_id=[None if code < 0 else export.groups[code] for code in export.group_ids],
        rules=COMPATIBLE,
        **{
            name: [getattr(artifact, name) for artifact in table]
            for name in (
                *("artifact_id", "worker_id", "task_id", "environment", "source_policy_revision"),
                *("created_at_ms", "termination_reason"),
            )
        },
    )


@settings(max_examples=60)
@given(any_tables(), options, st.booleans())
def test_a_table_comes_back_from_split_arrays_bit_for_bit(
    table: RolloutTable, given_options: dict[str, Any], shifted: bool
) -> None:
    """Shifted arrays too: they are one column narrower, and `from_padded` takes them for the last columns."""
    if shifted and all(each.prompt is not None for each in table):
        given_options |= {"prompt_side": "left", "completion_side": "right", "shifted": True}
    assert same_columns(read_back(table, split(table, **given_options)), table)


@given(any_tables())
def test_spans_of_versions_tile_every_completion(table: RolloutTable) -> None:
    export = split(table)
    found: dict[int, list[int]] = {row: [] for row in range(len(table))}
    for row, start, end, version in zip(
        export.span_rows.tolist(),
        export.span_starts.tolist(),
        export.span_ends.tolist(),
        export.span_versions.tolist(),
        strict=True,
    ):
        assert start == len(found[row]) < end
        found[row] += [version] * (end - start)
    for row, artifact in enumerate(table):
        own = artifact.columns.get("policy_version")
        number = artifact.source_policy_revision.revision_number
        assert found[row] == ([number] * artifact.token_count if own is None else own.tolist())
    if "policy_version" in table.samples:
        neighbours = zip(
            zip(export.span_rows, export.span_versions, strict=True),
            zip(export.span_rows[1:], export.span_versions[1:], strict=True),
            strict=False,
        )
        assert all(one != other for one, other in neighbours)


def test_a_shifted_export_has_values_where_the_model_predicts_the_token() -> None:
    table = small_table()
    plain_export, shifted = split(table), split(table, shifted=True)
    whole = np.concatenate([np.zeros((3, 3)), plain_export.logprobs], axis=1)
    assert shifted.logprobs.tolist() == whole[:, 1:].astype(np.float32).tolist()
    assert shifted.loss_mask.tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert shifted.completion_ids.tolist() == plain_export.completion_ids.tolist()


def test_rewards_groups_and_lengths_are_those_of_the_rollouts() -> None:
    table = small_table(group_id=["g", None, "g"])
    export = split(table, prompt_width=5, completion_width=4)
    assert export.sequence_rewards.tolist() == [each.reward_sum for each in table]
    assert (export.group_ids.tolist(), export.groups) == ([0, -1, 0], ("g",))
    assert export.prompt_lengths.tolist() == [3, 1, 2]
    assert export.completion_lengths.tolist() == [2, 1, 3]
    assert (export.prompt_ids.shape, export.completion_ids.shape) == ((3, 5), (3, 4))
    assert set(export.to_torch()) == set(export.arrays())


def test_one_advantage_per_rollout_is_taken_from_the_tokens_in_the_loss() -> None:
    table = small_table()
    assert split(table, advantages="sequence").advantages.tolist() == [1, 2, 3]
    masked = table_fields([2, 1, 3], prompt=[[1], [1], [1]])
    masked["samples"] |= {"advantage": [0, 1, 2, 3, 9, 3], "loss_mask": [0, 1, 1, 1, 0, 1]}
    table = RolloutTable.from_columns(**masked)
    assert split(table, advantages="sequence").advantages.tolist() == [1, 2, 3]


def test_advantages_that_differ_by_token_are_refused_where_one_is_wanted() -> None:
    fields = table_fields([2, 1, 3], prompt=[[1], [1], [1]])
    fields["samples"]["advantage"] = [1, 1, 2, 3, 3, 4]
    table = RolloutTable.from_columns(**fields)
    said = r"artifact 'rollout-2': advantage is 3.0 at sample 0 and 4.0 at sample 2, expected one value"
    with pytest.raises(InvalidValue, match=said):
        split(table, advantages="sequence")
    assert split(table).advantages.shape == (3, 3)


def test_dropped_tokens_are_left_out_of_completions() -> None:
    versions = {"policy_version": [5, 1, 5, 1, 5, 5]}
    fields = table_fields([2, 1, 3], prompt=[[1], [1], [1]])
    fields["samples"] |= versions
    table = RolloutTable.from_columns(**fields)
    aged = token_staleness(table, 5, StalenessPolicy(max_age=0, mode="drop"))
    export = split(table, staleness=aged)
    assert export.completion_lengths.tolist() == [1, 1, 2]
    assert export.span_versions.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompt_side": "up"}, "prompt_side is 'up', expected one of left, right"),
        ({"completion_side": None}, "completion_side is None"),
        ({"advantages": "rollout"}, "advantages is 'rollout', expected one of token, sequence"),
        ({"mask_dtype": np.int8}, "mask_dtype is .*int8.*, expected one of int64, float32, bool"),
        ({"mask_dtype": "no"}, "mask_dtype is 'no'"),
        ({"shifted": 1}, "shifted is 1, expected True or False"),
        ({"shifted": True, "completion_side": "left"}, "shifted needs prompt_side='left'"),
        ({"prompt_width": -1}, "prompt_width is -1"),
        ({"multiple_of": 0}, "multiple_of is 0"),
        ({"pad_id": 2**63}, "pad_id is"),
    ],
)
def test_options_that_do_not_fit_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        split(small_table(), **wrong)


def test_tokens_that_do_not_fit_are_refused_by_the_name_of_their_rollout() -> None:
    with pytest.raises(InvalidNumber, match="artifact 'rollout-0': prompt_width is 2, expected at"):
        split(small_table(), prompt_width=2)
    with pytest.raises(InvalidNumber, match="artifact 'rollout-2': completion_width is 2"):
        split(small_table(), completion_width=2)
    with pytest.raises(InvalidNumber, match="artifact 'rollout-1': token_id is 4294967295"):
        split(small_table(prompt=[[1], [2**32 - 1], [1]]), token_dtype=np.int32)
    with pytest.raises(InvalidValue, match="artifact 'rollout-1': prompt is missing"):
        split(small_table(prompt=[[1], None, [1]]), shifted=True)


def test_another_table_is_refused_and_every_option_changes_the_recipe() -> None:
    table = small_table()
    with pytest.raises(RolloutsNotInBatch):
        to_split(batch_of(table), small_table(prompt=[[7, 8, 9], [4], [5, 7]]))
    changes: list[dict[str, Any]] = [
        {},
        {"prompt_side": "right"},
        {"completion_side": "left"},
        {"shifted": True},
        {"advantages": "sequence"},
        {"pad_id": 1},
        {"prompt_width": 9},
        {"completion_width": 9},
        {"multiple_of": 8},
        {"mask_dtype": np.float32},
        {"token_dtype": np.int32},
    ]
    assert len({split(table, **change).recipe_digest for change in changes}) == len(changes)

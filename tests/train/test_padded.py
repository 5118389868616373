"""Padded exports: where prompts, responses and padding lie, what each sequence has, and the way back to a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts import COMPATIBLE, RolloutTable, TrainerBatch
from rollbook.contracts.rl.sample import BASE_COLUMNS, SAMPLE_DTYPES
from rollbook.errors import ConfigurationError, InvalidNumber
from rollbook.train import PaddedBatch, to_jagged, to_packed, to_packed_bins, to_padded
from tests.factories import revision, same_columns, sample_columns, table_fields

LAYOUTS = ("sequence", "left_prompt", "right_prompt")


def batch_of(table: RolloutTable) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id="batch",
        target_revision=revision(9),
        rollouts=table,
        assembled_at_ms=9,
        rules=COMPATIBLE,
    )


def small_table(**changes: Any) -> RolloutTable:
    fields = table_fields([2, 1, 3], prompt=[[7, 8, 9], None, [5]], **changes)
    fields["samples"]["token_id"] = [10, 11, 20, 30, 31, 32]
    return RolloutTable.from_columns(**fields)


def padded(table: RolloutTable, **options: Any) -> PaddedBatch:
    return to_padded(batch_of(table), table, **options)


def test_responses_begin_at_one_column_and_prompts_are_padded_on_their_side() -> None:
    left = padded(small_table(), layout="left_prompt", pad_id=-1)
    assert left.token_ids.tolist() == [
        [7, 8, 9, 10, 11, -1],
        [-1, -1, -1, 20, -1, -1],
        [-1, -1, 5, 30, 31, 32],
    ]
    assert left.position_ids.tolist() == [
        [0, 1, 2, 3, 4, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 2, 3],
    ]
    assert left.prompt_width == 3
    assert left.sample_mask[:, 3:].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    right = padded(small_table(), layout="right_prompt", pad_id=-1)
    assert right.token_ids.tolist()[2] == [5, -1, -1, 30, 31, 32]
    assert right.position_ids.tolist()[2] == [0, 0, 0, 1, 2, 3]
    assert padded(small_table()).prompt_width is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_width_makes_rows_of_that_width_and_refuses_longer_rollouts_by_name(
    layout: Any,
) -> None:
    assert padded(small_table(), layout=layout, width=16).token_ids.shape == (3, 16)
    with pytest.raises(
        InvalidNumber, match="artifact 'rollout-0': width is 4, expected at least 5"
    ):
        padded(small_table(), layout=layout, width=4)


def test_a_prompt_width_fixes_the_column_at_which_responses_begin() -> None:
    export = padded(small_table(), layout="left_prompt", prompt_width=8, width=12)
    assert (export.prompt_width, export.token_ids.shape) == (8, (3, 12))
    assert export.token_ids[:, 8].tolist() == [10, 20, 30]
    with pytest.raises(InvalidNumber, match="artifact 'rollout-0': prompt_width is 2"):
        padded(small_table(), layout="left_prompt", prompt_width=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layout": "middle"}, "layout is 'middle', expected one of sequence, left_prompt"),
        ({"layout": "left_prompt", "side": "left"}, "the layout left_prompt has no side"),
        ({"prompt_width": 3}, "prompt_width is for the layouts left_prompt and right_prompt"),
        ({"width": 5.5}, "width is 5.5"),
        ({"width": -1}, "width is -1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        padded(small_table(), **options)


def test_new_options_are_in_the_recipe_and_leave_the_digests_of_old_recipes_alone() -> None:
    old = padded(small_table())
    assert set(old.recipe) == {"kind", "token_dtype", "staleness", "side", "multiple_of", "pad_id"}
    digests = {
        padded(small_table(), **options).recipe_digest
        for options in ({}, {"width": 9}, {"layout": "left_prompt"}, {"layout": "right_prompt"})
    }
    assert len(digests) == 4


def test_every_export_says_reward_and_group_of_each_sequence() -> None:
    table = small_table(group_id=["g", None, "g"])
    batch = batch_of(table)
    whole = [to_packed(batch, table), to_jagged(batch, table), to_padded(batch, table)]
    for export in whole:
        assert export.sequence_rewards.tolist() == [each.reward_sum for each in table]
        assert (export.group_ids.tolist(), export.groups) == ([0, -1, 0], ("g",))
    parts = to_packed_bins(batch, table, token_budget=5)
    assert len(parts) > 1
    for part in parts:
        rows = part.rows.tolist()
        assert part.sequence_rewards.tolist() == [table[row].reward_sum for row in rows]
        assert part.group_ids.tolist() == [[0, -1, 0][row] for row in rows]


def test_tensors_are_made_on_the_device_that_is_asked_for() -> None:
    export = padded(small_table())
    for device in ("cpu", torch.device("meta")):
        tensors = export.to_torch(device=device)
        assert {tensor.device for tensor in tensors.values()} == {torch.device(device)}
        assert set(tensors) == set(export.arrays())
    wrong: list[Any] = ["nowhere", "cuda:99", 5.5]
    for place in wrong:
        with pytest.raises(ConfigurationError, match="device is"):
            export.to_torch(device=place)


@st.composite
def any_tables(draw: st.DrawFn) -> RolloutTable:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    rows = len(lengths)
    optional = draw(st.lists(st.sampled_from(list(SAMPLE_DTYPES)[4:]), unique=True))
    prompt = st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3)
    group = st.none() | st.text(max_size=3)
    fields = table_fields(
        lengths,
        samples=draw(sample_columns(sum(lengths), [*BASE_COLUMNS, *optional])),
        prompt=draw(st.lists(prompt, min_size=rows, max_size=rows)),
        group_id=draw(st.lists(group, min_size=rows, max_size=rows)),
    )
    return RolloutTable.from_columns(**fields, rules=COMPATIBLE)


def read_back(table: RolloutTable, export: PaddedBatch, arrays: dict[str, Any]) -> RolloutTable:
    columns = {name: arrays[name] for name in table.samples if name not in BASE_COLUMNS}
    return RolloutTable.from_padded(
        arrays["token_ids"],
        arrays["sample_mask"],
        arrays["logprobs"],
        rewards=arrays["rewards"],
        advantages=arrays["advantages"],
        attention_mask=arrays["attention_mask"],
        columns=columns,
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
@given(any_tables(), st.sampled_from(LAYOUTS), st.booleans(), st.integers(0, 3))
def test_a_table_comes_back_from_its_padded_arrays_and_tensors_bit_for_bit(
    table: RolloutTable, layout: Any, as_tensors: bool, wider: int
) -> None:
    """NaN, -0.0, every token id and every optional column; a token that equals the padding is still a token."""
    options: dict[str, Any] = {"layout": layout, "pad_id": int(table.samples["token_id"][0])}
    width = padded(table, **options).token_ids.shape[1] + wider
    export = padded(table, **options, width=width)
    again = read_back(table, export, export.to_torch() if as_tensors else export.arrays())
    assert same_columns(again, table)

"""Padded arrays and tensors become rollouts: prompt, response and padding are told apart, and nothing is guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts import COMPATIBLE, RolloutTable
from rollbook.errors import (
    DuplicateArtifactId,
    EmptyRolloutSamples,
    InvalidNumber,
    InvalidValue,
    NonFiniteValue,
    UnknownColumn,
    WrongColumnType,
)
from tests.factories import ENVIRONMENT, revision

IDS = [[0, 0, 5, 6, 7, 8, 9, 0], [0, 1, 2, 3, 4, 50, 60, 0]]
ATTENTION = [[0, 0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1, 0]]
RESPONSE = [[1, 1, 1, 0], [1, 0, 1, 0]]
"""Of the last four columns. Row 1 has the output of a tool in its response."""
LOGPROBS = [[-0.5, -0.25, -1, 0], [-2, 0, -3, 0]]


def arguments(**changes: Any) -> dict[str, Any]:
    given = {
        "input_ids": IDS,
        "response_mask": RESPONSE,
        "logprobs": LOGPROBS,
        "sequence_rewards": [1, 2],
        "attention_mask": ATTENTION,
        "source_policy_revision": revision(),
        "environment": ENVIRONMENT,
        "created_at_ms": 5,
    }
    return given | changes


def from_padded(**changes: Any) -> RolloutTable:
    return RolloutTable.from_padded(**arguments(**changes))


def samples(table: RolloutTable, row: int) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in table[row].columns.items()}


def prompts(table: RolloutTable) -> list[list[int] | None]:
    return [None if each.prompt is None else each.prompt.tolist() for each in table]


def test_left_padded_prompts_and_right_padded_responses() -> None:
    table = from_padded(advantages=[0.5, -0.5])
    assert prompts(table) == [[5, 6], [1, 2, 3]]
    assert samples(table, 0) == {
        "token_id": [7, 8, 9],
        "logprob": [-0.5, -0.25, -1],
        "reward": [0, 0, 1],
        "advantage": [0.5, 0.5, 0.5],
        "loss_mask": [1, 1, 1],
    }
    assert samples(table, 1) == {
        "token_id": [4, 50, 60],
        "logprob": [-2, 0, -3],
        "reward": [0, 0, 2],
        "advantage": [-0.5, 0, -0.5],
        "loss_mask": [1, 0, 1],
    }


def test_right_padded_prompts_and_whole_sequences_padded_on_the_right() -> None:
    ids = [[5, 6, 0, 7, 8], [1, 2, 3, 4, 0]]
    attention = [[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]]
    response = [[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]]
    table = from_padded(
        input_ids=ids,
        attention_mask=attention,
        response_mask=response,
        logprobs=np.full((2, 5), -1.0),
    )
    assert prompts(table) == [[5, 6], [1, 2, 3]]
    assert [samples(table, row)["token_id"] for row in (0, 1)] == [[7, 8], [4]]
    assert "loss_mask" not in table.samples


def test_without_an_attention_mask_no_prompt_is_guessed() -> None:
    with_prompts, without = from_padded(), from_padded(attention_mask=None)
    assert prompts(without) == [None, None]
    assert [samples(without, row) for row in (0, 1)] == [
        samples(with_prompts, row) for row in (0, 1)
    ]


def plain_rows(ids: Any, attention: Any, response: Any, values: Any) -> list[tuple[Any, ...]]:
    """What a loop over rows and columns gives: prompt, tokens, values, loss mask."""
    rows = []
    for row in range(len(ids)):
        prompt, tokens, numbers, mask = [], [], [], []
        begun = False
        for column in range(len(ids[row])):
            begun = begun or bool(response[row][column])
            if not attention[row][column]:
                continue
            if begun:
                tokens.append(int(ids[row][column]))
                numbers.append(float(values[row][column]))
                mask.append(int(response[row][column]))
            else:
                prompt.append(int(ids[row][column]))
        rows.append((prompt or None, tokens, numbers, mask))
    return rows


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_any_masks_give_what_a_plain_loop_gives(rows: int, width: int, data: st.DataObject) -> None:
    def grid(values: st.SearchStrategy[Any]) -> np.ndarray[Any, Any]:
        line = st.lists(values, min_size=width, max_size=width)
        return np.array(data.draw(st.lists(line, min_size=rows, max_size=rows)))

    attention = grid(st.booleans())
    response = grid(st.booleans()) & attention
    at = data.draw(st.integers(0, width - 1))
    attention[:, at] = response[:, at] = True
    ids, values = grid(st.integers(0, 300_000)), grid(st.floats(-9, 0, width=16))
    table = from_padded(
        input_ids=ids,
        attention_mask=attention,
        response_mask=response,
        logprobs=values,
        rewards=values,
        advantages=values,
        sequence_rewards=None,
    )
    expected = plain_rows(ids, attention, response, values)
    assert prompts(table) == [each[0] for each in expected]
    for row, (_, tokens, numbers, mask) in enumerate(expected):
        found = samples(table, row)
        assert found["token_id"] == tokens
        assert found["logprob"] == found["reward"] == found["advantage"] == numbers
        assert found.get("loss_mask", [1] * len(mask)) == mask


@pytest.mark.parametrize(
    "kind", ["int64", "float32", "float64", "bool", "uint8", "bfloat16", "float16"]
)
def test_masks_of_any_type_and_bfloat16_tensors_are_taken_exactly(kind: str) -> None:
    dtype = getattr(torch, kind)
    logprobs = torch.tensor(LOGPROBS, dtype=torch.bfloat16)
    table = from_padded(
        input_ids=torch.tensor(IDS),
        response_mask=torch.tensor(RESPONSE).to(dtype),
        attention_mask=torch.tensor(ATTENTION).to(dtype),
        logprobs=logprobs,
        sequence_rewards=torch.tensor([1, 2], dtype=torch.bfloat16),
    )
    assert table.root == from_padded(artifact_id=[each.artifact_id for each in table]).root


def test_one_value_for_all_rows_or_one_for_each() -> None:
    shared = from_padded(task_id="t", worker_id="w", attempt=3, termination_reason="max_tokens")
    each = from_padded(
        task_id=["t", "t"],
        worker_id=["w", "w"],
        attempt=np.array([3, 3]),
        termination_reason=["max_tokens", "max_tokens"],
        source_policy_revision=[revision(), revision()],
        environment=[ENVIRONMENT, ENVIRONMENT],
        created_at_ms=torch.tensor([5, 5]),
    )
    assert shared.root == each.root
    two = from_padded(source_policy_revision=[revision(1), revision(2)])
    assert [each.source_policy_revision for each in two] == [revision(1), revision(2)]


def test_what_is_not_given_has_the_documented_default() -> None:
    table = from_padded(created_at_ms=None)
    first = table[0]
    assert (first.worker_id, first.task_id, first.group_id, first.attempt) == ("", "", None, None)
    assert first.termination_reason == "completed"
    assert first.created_at_ms > revision().produced_at_ms
    assert not table.samples["advantage"].any()
    assert len({each.artifact_id for each in table}) == 2


def test_the_same_arrays_and_times_give_the_same_ids_and_others_do_not() -> None:
    first = from_padded()
    assert from_padded().root == first.root
    for changes in ({"created_at_ms": 6}, {"sequence_rewards": [1, 3]}, {"attention_mask": None}):
        other = from_padded(**changes)
        assert not {each.artifact_id for each in first} & {each.artifact_id for each in other}


def test_group_ids_are_texts_or_numbers() -> None:
    for ids in (["7", "7"], [7, 7], np.array([7, 7]), torch.tensor([7, 7])):
        assert [each.group_id for each in from_padded(group_id=ids)] == ["7", "7"]
    assert [each.group_id for each in from_padded(group_id=["a\0", None])] == ["a\0", None]


def test_optional_columns_are_per_token_per_row_or_one_value() -> None:
    table = from_padded(
        columns={
            "reference_logprob": LOGPROBS,
            "temperature": 0.5,
            "policy_version": [3, 4],
            "value": torch.zeros(2, 4, dtype=torch.bfloat16),
        }
    )
    assert samples(table, 1)["reference_logprob"] == [-2, 0, -3]
    assert samples(table, 1)["temperature"] == [0.5] * 3
    assert samples(table, 1)["policy_version"] == [4, -1, 4]  # no policy sampled the tool's output


def test_no_rows_are_an_empty_table() -> None:
    none = np.zeros((0, 3))
    table = from_padded(
        input_ids=none.astype(int),
        response_mask=none,
        attention_mask=none,
        logprobs=none,
        sequence_rewards=[],
    )
    assert len(table) == 0


def changed(grid: Any, row: int, column: int, value: float) -> np.ndarray[Any, Any]:
    array = np.array(grid, np.asarray(value).dtype)
    array[row, column] = value
    return array


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"response_mask": changed(RESPONSE, 1, 2, 0.5)}, InvalidNumber, "row 1, column 6: response_mask is 0.5"),
    ({"response_mask": changed(RESPONSE, 0, 0, 2)}, InvalidNumber, "row 0, column 4: response_mask is 2"),
    ({"attention_mask": changed(ATTENTION, 1, 3, -1)}, InvalidNumber, "row 1, column 3: attention_mask is -1"),
    ({"attention_mask": changed(ATTENTION, 1, 0, np.nan)}, InvalidNumber, "row 1, column 0: attention_mask is nan"),
    ({"attention_mask": changed(ATTENTION, 0, 5, 0)}, InvalidNumber, "row 0, column 5: attention_mask is 0"),
    ({"input_ids": changed(IDS, 1, 4, -100)}, InvalidNumber, "row 1, column 4: input_ids is -100"),
    ({"input_ids": changed(IDS, 1, 2, 2**32)}, InvalidNumber, "row 1, column 2: input_ids is 4294967296"),
    ({"input_ids": np.array(IDS, float)}, WrongColumnType, "'input_ids' holds float64"),
    ({"input_ids": [[1, 2], [3]]}, WrongColumnType, r"'input_ids' .*row 0: 2, row 1: 1"),
    ({"input_ids": IDS[0]}, WrongColumnType, "'input_ids' holds 1 dimensions"),
    ({"logprobs": LOGPROBS[:1]}, WrongColumnType, "'logprobs' holds 1 rows of 4 columns, expected 2 rows"),
    ({"logprobs": np.zeros((2, 9))}, WrongColumnType, "'logprobs' holds 2 rows of 9 columns"),
    ({"logprobs": np.zeros((2, 3))}, InvalidNumber, "row 0, column 4: logprobs is missing"),
    ({"logprobs": [0, 0]}, WrongColumnType, "'logprobs' holds 1 dimensions"),
    ({"logprobs": changed(LOGPROBS, 1, 2, np.nan)}, NonFiniteValue, r"-1.: logprob\[2\] is nan"),
    ({"logprobs": torch.zeros(2, 4, requires_grad=True)}, WrongColumnType, r"'logprobs' .*tensor.detach\(\)"),
    ({"logprobs": torch.zeros(2, 4, device="meta")}, WrongColumnType, r"'logprobs' .*meta.*tensor.cpu\(\)"),
    ({"rewards": LOGPROBS}, InvalidValue, "rewards is given twice"),
    ({"sequence_rewards": None}, InvalidValue, "rewards is missing"),
    ({"sequence_rewards": [1]}, WrongColumnType, "'sequence_rewards' holds 1 values, expected 2"),
    ({"rewards": [1, 2], "sequence_rewards": None}, WrongColumnType, "'rewards' holds 1 dimensions"),
    ({"response_mask": np.zeros((2, 4))}, EmptyRolloutSamples, "-0'"),
    ({"artifact_id": "one for both"}, DuplicateArtifactId, "one for both"),
    ({"columns": {"entropy": LOGPROBS}}, UnknownColumn, "entropy"),
    ({"columns": {"reward": LOGPROBS}}, InvalidValue, "reward has its own argument"),
    ({"columns": {"loss_mask": changed(RESPONSE, 0, 1, 7)}}, InvalidNumber, "row 0, column 5: loss_mask is 7"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "refusal", "said"), REFUSED)
def test_a_refusal_names_the_argument_and_the_place(
    changes: dict[str, Any], refusal: type[Exception], said: str
) -> None:
    with pytest.raises(refusal, match=said):
        from_padded(**changes)


def test_values_under_padding_may_be_anything() -> None:
    ids, logprobs = changed(IDS, 0, 7, -100), changed(LOGPROBS, 0, 3, np.inf)
    again = from_padded(input_ids=ids, logprobs=logprobs)
    assert again.root == from_padded().root


def test_rules_reach_the_table() -> None:
    positive = changed(LOGPROBS, 0, 0, 0.5)
    assert from_padded(logprobs=positive, rules=COMPATIBLE)[0].columns["logprob"][0] == 0.5

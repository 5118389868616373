"""Actions become columns, whatever a policy answers with; nothing is filled in and nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollbook.errors import InvalidValue
from rollbook.scoring.actions import stack_actions


@pytest.mark.parametrize(
    "answer",
    [
        np.array([1.0, 2.0], np.float32),
        [1.0, 2.0],
        (1, 2),
        np.array([[1], [2]], np.int16),
        np.arange(4.0)[1:3],
    ],
)
def test_arrays_lists_and_tuples_are_the_same_column(answer: Any) -> None:
    column = stack_actions([{"arm/value": answer}] * 3).columns["arm/value"]
    sized = column.of_size(2)
    assert sized is not None
    assert sized.rows.tolist() == [0, 1, 2]
    assert sized.values.tolist() == [[1.0, 2.0]] * 3


@pytest.mark.parametrize("answer", [2, 2.0, True, np.float32(2), np.array(2.0), np.int64(2)])
def test_a_scalar_is_a_column_of_one_channel(answer: Any) -> None:
    column = stack_actions([{"grip": answer}] * 4).columns["grip"]
    assert column.step_shape == ()
    assert set(column.by_size) == {1}


def test_the_type_of_whole_columns_is_kept() -> None:
    steps = [{"arm/value": np.ones(3, np.float32), "grip/value": np.ones((2, 2), np.uint8)}] * 2
    arrays = stack_actions(steps).arrays()
    shown = {key: (str(array.dtype), array.shape) for key, array in arrays.items()}
    assert shown == {"arm/value": ("float32", (2, 3)), "grip/value": ("uint8", (2, 2, 2))}


def test_steps_without_a_key_are_known_and_come_out_as_nan() -> None:
    steps: list[dict[str, Any]] = [{"arm": [1, 2]}, {}, {"arm": None}, {"arm": [3, 4]}]
    columns = stack_actions(steps)
    column = columns.columns["arm"]
    assert (column.rows.tolist(), column.named.tolist()) == ([0, 3], [0, 2, 3])
    np.testing.assert_array_equal(
        columns.arrays()["arm"], [[1, 2], [np.nan] * 2, [np.nan] * 2, [3, 4]]
    )


def test_values_of_different_sizes_are_kept_apart() -> None:
    steps = [{"arm": np.zeros(2)}, {"arm": np.ones(3)}, {"arm": np.full(2, 5.0)}]
    columns = stack_actions(steps)
    by_size = columns.columns["arm"].by_size
    assert {size: each.rows.tolist() for size, each in by_size.items()} == {2: [0, 2], 3: [1]}
    assert by_size[2].values.tolist() == [[0.0, 0.0], [5.0, 5.0]]
    assert columns.arrays() == {}


def test_one_size_in_two_shapes_is_one_group_without_a_shape() -> None:
    column = stack_actions([{"a": np.zeros((2, 2))}, {"a": np.zeros(4)}]).columns["a"]
    assert column.step_shape is None
    assert column.by_size[4].values.shape == (2, 4)


def test_arrays_of_no_width_have_steps_all_the_same() -> None:
    column = stack_actions([{"a": np.zeros(0)}] * 3).columns["a"]
    assert column.by_size[0].values.shape == (3, 0)


def test_the_outcome_is_no_action() -> None:
    assert not stack_actions([{"_outcome": {"success": True}}]).columns


def test_words_are_kept_for_the_file_and_are_no_numbers() -> None:
    columns = stack_actions([{"label": "left"}, {"label": "right"}])
    assert not columns.columns["label"].numeric
    assert columns.arrays()["label"].tolist() == ["left", "right"]


def test_objects_are_no_numbers_and_go_into_no_file() -> None:
    columns = stack_actions([{"thing": object()}, {"thing": 1.0}])
    assert not columns.columns["thing"].numeric
    assert columns.arrays() == {}


def test_dates_among_numbers_are_no_numbers() -> None:
    steps: list[dict[str, Any]] = [{"a": np.datetime64("2024-01-01")}, {"a": np.array([1.0])}]
    assert not stack_actions(steps).columns["a"].numeric


def test_an_action_that_is_no_mapping_is_named_by_its_step() -> None:
    answers: Any = [{"a": 1}, [1.0], None]
    with pytest.raises(InvalidValue, match=r"action of step 1.*list"):
        stack_actions(answers)


def test_a_ragged_list_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"arm.*numbers of one shape"):
        stack_actions([{"arm": [[1, 2], [3]]}])

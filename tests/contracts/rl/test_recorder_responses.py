"""Answers of OpenAI-compatible servers and of vLLM are read token by token, or refused with what to ask for."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts import ContractRules, ToolCall
from rollbook.contracts.rl.open_rollout import OpenRollout
from rollbook.contracts.rl.sampled_response import read_response
from rollbook.errors import (
    ColumnLengthMismatch,
    InvalidNumber,
    InvalidValue,
    NoSuchRow,
    PositiveLogProb,
    RollbookError,
    WrongColumnType,
)
from tests.contracts.rl.agent_responses import begin, chat, completion, recorder, request_output

LOGS = [-0.5, -0.25]


def as_object(value: Any) -> Any:
    """A dict as the object of a client library."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: as_object(each) for name, each in value.items()})
    return [as_object(each) for each in value] if isinstance(value, list) else value


@dataclass
class Dumped:
    """An object that only gives its content as a dict."""

    content: dict[str, Any]

    def model_dump(self) -> dict[str, Any]:
        return self.content


@dataclass
class Listed:
    content: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.content


def with_texts_as_ids() -> dict[str, Any]:
    """`return_tokens_as_token_ids`: the ids are in the place of the texts."""
    answer = chat([1], None, LOGS)
    for token, entry in zip((5, 6), answer["choices"][0]["logprobs"]["content"], strict=True):
        entry["token"] = f"token_id:{token}"
    return answer


def engine_as_json() -> Any:
    output = request_output([1], [5, 6], LOGS)
    plain = json.dumps(output, default=vars)
    return json.loads(plain)


SHAPES: dict[str, Callable[[], Any]] = {
    "chat": lambda: chat([1], [5, 6], LOGS),
    "chat object": lambda: as_object(chat([1], [5, 6], LOGS)),
    "model_dump": lambda: Dumped(chat([1], [5, 6], LOGS)),
    "to_dict": lambda: Listed(chat([1], [5, 6], LOGS)),
    "completion": lambda: completion([1], [5, 6], LOGS),
    "completion object": lambda: as_object(completion([1], [5, 6], LOGS)),
    "ids in the place of texts": with_texts_as_ids,
    "SGLang": lambda: chat([1], None, LOGS, response_token_ids=[5, 6]),
    "vLLM": lambda: request_output([1], [5, 6], LOGS),
    "vLLM as JSON": engine_as_json,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_tokens(tmp_path: Path, shape: str) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book)
        rollout.add_response(SHAPES[shape]())
        row = rollout.close(reward=1.0)[0]
    assert row.prompt is not None
    assert row.prompt.tolist() == [1]
    assert row.columns["token_id"].tolist() == [5, 6]
    assert row.columns["logprob"].tolist() == LOGS


def test_the_log_probability_is_that_of_the_sampled_token_not_of_the_likeliest() -> None:
    sampled = read_response(request_output([1], [5], [-3.0]), choice=None, record="r")
    assert sampled.logprobs.tolist() == [-3.0]


def test_tool_calls_are_read_in_every_form() -> None:
    calls = [
        {"id": "a", "function": {"name": "search", "arguments": '{"q": 1}'}},
        SimpleNamespace(id=None, function=SimpleNamespace(name="stop", arguments={"code": 0})),
        {"function": None},
    ]
    answer = chat([1], [5], message={"content": "\ud800", "tool_calls": calls})
    sampled = read_response(answer, choice=None, record="r")
    assert sampled.text == "?"
    assert sampled.tool_calls == (
        ToolCall(name="search", arguments='{"q": 1}', call_id="a"),
        ToolCall(name="stop", arguments='{"code":0}'),
        ToolCall(name="", arguments=""),
    )


def test_one_of_several_choices_has_to_be_named() -> None:
    answer = chat([1], [5])
    answer["choices"].insert(0, chat([1], [6], index=1)["choices"][0])
    with pytest.raises(InvalidValue, match="choice=0"):
        read_response(answer, choice=None, record="r")
    assert read_response(answer, choice=0, record="r").token_ids.tolist() == [5]
    assert read_response(answer, choice=1, record="r").token_ids.tolist() == [6]
    with pytest.raises(NoSuchRow):
        read_response(answer, choice=2, record="r")
    with pytest.raises(InvalidNumber):
        read_response(answer, choice="first", record="r")  # type: ignore[arg-type]


@pytest.fixture
def rollout(tmp_path: Path) -> Any:
    with recorder(tmp_path) as book:
        yield begin(book)


@pytest.mark.parametrize("made", [dict, as_object])
def test_a_piece_of_a_stream_is_not_taken_for_an_answer(
    rollout: OpenRollout, made: Callable[[Any], Any]
) -> None:
    """Its text and its tool calls are parts of those of the answer, and would be recorded as nothing."""
    calls = [{"index": 0, "id": "a", "function": {"name": "search", "arguments": '{"q'}}]
    delta = {"role": "assistant", "content": "he", "tool_calls": calls}
    piece = chat([1], [5], object="chat.completion.chunk")
    del piece["choices"][0]["message"]
    piece["choices"][0]["delta"] = delta
    for answer in (piece, {**piece, "object": None}):
        with pytest.raises(InvalidValue, match=r"a piece of a stream.*continues=True") as refused:
            rollout.add_response(made(answer))
        assert refused.value.field == "choices[0]"
    assert rollout.turns == ()
    rollout.add_context([1], "user")
    rollout.add_tokens([5], [-0.5])
    rollout.add_tokens([6], [-0.25], continues=True, finish_reason="stop")
    assert rollout.token_ids.tolist() == [1, 5, 6]


def test_missing_token_ids_are_never_made_from_text(rollout: OpenRollout) -> None:
    with pytest.raises(InvalidValue, match="return_token_ids") as refused:
        rollout.add_response(chat([1], None, LOGS))
    assert refused.value.field == "choices[0].token_ids"
    assert rollout.turns == ()


def test_missing_prompt_ids_are_refused_unless_the_caller_takes_the_risk(
    rollout: OpenRollout,
) -> None:
    with pytest.raises(InvalidValue, match="unchecked_prompt") as refused:
        rollout.add_response(chat(None, [5]))
    assert refused.value.field == "prompt_token_ids"
    rollout.add_context([1], "user")
    rollout.add_response(chat(None, [5]), unchecked_prompt=True)
    assert rollout.token_ids.tolist() == [1, 5]


@pytest.mark.parametrize(
    "answer",
    [
        chat([1], [5, 6], [-0.5, None]),
        chat([1], [5, 6], [-0.5, -9999.0]),
        chat([1], [5, 6], logprobs=None),
        chat([1], [5, 6], logprobs={"content": None}),
        completion([1], [5, 6], [-0.5, None]),
        SimpleNamespace(
            prompt_token_ids=[1],
            outputs=[SimpleNamespace(token_ids=[5, 6], logprobs=None, finish_reason="stop")],
        ),
        SimpleNamespace(
            prompt_token_ids=[1],
            outputs=[SimpleNamespace(token_ids=[5, 6], logprobs=[{5: -1.0}, {7: -1.0}])],
        ),
    ],
    ids=["null", "-9999", "none", "no content", "completion", "vLLM", "vLLM other token"],
)
def test_missing_log_probabilities_are_refused_or_nan_if_asked(tmp_path: Path, answer: Any) -> None:
    with recorder(tmp_path) as book:
        with pytest.raises(InvalidValue, match="logprobs=True"):
            begin(book).add_response(answer)
        with pytest.raises(InvalidValue, match="non_finite"):
            begin(book).add_response(answer, missing_logprobs="nan")
    with recorder(tmp_path, rules=ContractRules(non_finite="allow")) as book:
        rollout = begin(book)
        rollout.add_response(answer, missing_logprobs="nan")
        assert np.isnan(rollout.turns[-1].logprobs[-1])  # type: ignore[index]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, InvalidValue),
        ("text", InvalidValue),
        ({}, InvalidValue),
        ({"error": {"message": "overloaded"}}, InvalidValue),
        ({"choices": []}, InvalidValue),
        ({"choices": "stop"}, InvalidValue),
        ({"choices": [None]}, InvalidValue),
        ({"outputs": []}, InvalidValue),
        (chat([1], []), InvalidValue),
        (chat([1], [5, 6], [-0.5]), ColumnLengthMismatch),
        (chat([1], [5], ["low"]), InvalidNumber),  # type: ignore[list-item]
        (chat([1], [5], [10**400]), InvalidNumber),
        (chat([1], [5], [0.5]), PositiveLogProb),
        (chat([1], [5], token_ids="5"), InvalidValue),
        (chat([1], [5], token_ids=[-5]), InvalidNumber),
        (chat([1], [5], token_ids=[[5]]), InvalidValue),
        (chat([1], [5], token_ids=[5.5]), InvalidValue),
        (chat([1], [5], token_ids=[[5], [6, 7]]), WrongColumnType),
        (chat([1.5], [5]), InvalidValue),  # type: ignore[list-item]
        (completion([1], [5], ["x"]), InvalidNumber),  # type: ignore[list-item]
        (completion([1], [5], [None, -0.5]), ColumnLengthMismatch),
        (SimpleNamespace(prompt_token_ids=[1], outputs=[SimpleNamespace()]), InvalidValue),
        (
            SimpleNamespace(**vars(request_output([1], [5], [-1.0])) | {"finished": False}),
            InvalidValue,
        ),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused_by_name(
    rollout: OpenRollout, answer: Any, error: type[RollbookError]
) -> None:
    with pytest.raises(error) as refused:
        rollout.add_response(answer)
    assert rollout.artifact_id in str(refused.value)
    assert rollout.turns == ()


NAMES = """choices outputs logprobs content token_ids logprob token index message tool_calls function token_logprobs
    prompt_token_ids text"""
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(answer=plain, choices=plain, logs=plain)
def test_no_answer_raises_an_error_of_another_library(answer: Any, choices: Any, logs: Any) -> None:
    for one in (
        answer,
        {"choices": choices},
        {"choices": [choices]},
        {"choices": [{"token_ids": [1], "logprobs": logs, "message": choices}]},
        {"choices": [{"token_ids": choices, "logprobs": {"content": [logs]}}]},
        {"outputs": [choices]},
        {"outputs": [{"token_ids": [1], "logprobs": logs}]},
        {"outputs": [{"token_ids": [1], "logprobs": [logs]}]},
    ):
        with suppress(RollbookError):
            read_response(one, choice=None, record="r")

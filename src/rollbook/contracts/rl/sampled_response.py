"""SampledResponse: the tokens in the answer of an inference engine, read without its library.

Two shapes are known: the answer of an OpenAI-compatible server (`choices`), as a dict or as the object of a client
library; and the RequestOutput of vLLM (`outputs`), as an object or as a dict. Training needs the token ids that the
engine used. They are never made again from text: a tokenizer can split the same text in another way.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.record import U32_MAX
from rollbook.contracts.rl.given_array import given_array
from rollbook.contracts.rl.recorded_turn import FLOAT_DTYPE, TOKEN_DTYPE, ToolCall
from rollbook.contracts.row_numbers import row_number
from rollbook.errors import ColumnLengthMismatch, InvalidNumber, InvalidValue

UNKNOWN_LOGPROB = -9999.0
"""OpenAI-compatible servers write this number where they do not give the log-probability."""
_TOKEN_ID = re.compile(r"token_id:([0-9]{1,10})")
"""What vLLM writes in place of a token's text with `return_tokens_as_token_ids`."""
_ASK_IDS = 'ask the server: extra_body={"return_token_ids": True} (vLLM from 0.10.2, SGLang)'
_ASK_LOGPROBS = (
    "ask for them: logprobs=True (chat), logprobs=0 (completions, SamplingParams of vLLM); "
    "or record NaN with missing_logprobs='nan'"
)
_WHOLE = (
    "a whole answer: ask without stream=True, or add the prompt with add_context and the tokens of each piece with "
    "add_tokens(…, continues=True)"
)

TokenIds = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class SampledResponse:
    prompt_token_ids: TokenIds | None
    token_ids: TokenIds
    logprobs: NDArray[np.float32]
    """NaN where the answer has none."""
    finish_reason: str | None
    tool_calls: tuple[ToolCall, ...]
    text: str | None
    model: str | None
    response_id: str | None


def read_response(response: object, *, choice: int | None, record: str) -> SampledResponse:
    """One choice of an answer. `record` names the rollout in errors."""
    answer = _with_fields(response)
    if answer is None:
        _refuse(
            record,
            "response",
            type(response).__name__,
            "a chat completion, a completion (`choices`) or a vLLM RequestOutput (`outputs`)",
        )
    if _field(answer, "outputs") is not None:
        return _from_engine(answer, choice, record)
    return _from_server(answer, choice, record)


def _with_fields(response: object) -> object | None:
    """Something that has `choices` or `outputs`."""
    if _field(response, "choices") is not None or _field(response, "outputs") is not None:
        return response
    for name in ("model_dump", "to_dict"):
        dump = getattr(response, name, None)
        if callable(dump):
            plain = dump()
            known = _field(plain, "choices") is not None or _field(plain, "outputs") is not None
            return plain if known else None
    return None


def _field(value: object, name: str) -> Any:
    """A field of a dict or an object. None if it is absent."""
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def _refuse(record: str, field: str, value: str, expected: str) -> NoReturn:
    raise InvalidValue(record=record, field=field, value=value, expected=expected)


def _chosen(choices: object, choice: int | None, record: str, field: str) -> tuple[Any, str]:
    if isinstance(choices, str | bytes) or not isinstance(choices, Sequence) or not choices:
        _refuse(record, field, "empty" if choices == [] else repr(type(choices)), "a list")
    if choice is None:
        if len(choices) > 1:
            expected = "one; name the one to record: choice=0, and record each in its own rollout"
            _refuse(record, field, f"{len(choices)} answers", expected)
        choice = 0
    row_number(choice, len(choices), f"{record}: choice")
    for place, each in enumerate(choices):
        if _field(each, "index") == choice:
            return each, f"{field}[{place}]"
    return choices[choice], f"{field}[{choice}]"


# ----------------------------------------------------------------------- OpenAI-compatible servers


def _from_server(answer: object, choice: int | None, record: str) -> SampledResponse:
    chosen, place = _chosen(_field(answer, "choices"), choice, record, "choices")
    if _is_piece(answer, chosen):
        _refuse(record, place, "a piece of a stream", _WHOLE)
    logs = _field(chosen, "logprobs")
    ids = _field(chosen, "token_ids")
    if ids is None:
        ids = _field(chosen, "response_token_ids")  # SGLang's name
    if ids is None:
        ids = _ids_from_texts(_of_each_token(logs, "token", "tokens"))
    if ids is None:
        _refuse(record, f"{place}.token_ids", "missing", f"the ids of the tokens; {_ASK_IDS}")
    token_ids = token_array(ids, record, f"{place}.token_ids")
    values = _of_each_token(logs, "logprob", "token_logprobs")
    prompt = _field(chosen, "prompt_token_ids")  # completions have it here, chat completions above
    if prompt is None:
        prompt = _field(answer, "prompt_token_ids")
    message = _field(chosen, "message")
    return SampledResponse(
        prompt_token_ids=None
        if prompt is None
        else token_array(prompt, record, "prompt_token_ids"),
        token_ids=token_ids,
        logprobs=_logprob_array(values, len(token_ids), record, f"{place}.logprobs"),
        finish_reason=_text(_field(chosen, "finish_reason")),
        tool_calls=_tool_calls(_field(message, "tool_calls")),
        text=_text(_field(chosen, "text") if message is None else _field(message, "content")),
        model=_text(_field(answer, "model")),
        response_id=_text(_field(answer, "id")),
    )


def _is_piece(answer: object, chosen: object) -> bool:
    """Whether it is one chunk of a streamed answer: its text and its tool calls are parts, too."""
    name = _field(answer, "object")
    is_named = isinstance(name, str) and name.endswith(".chunk")
    return is_named or (_field(chosen, "delta") is not None and _field(chosen, "message") is None)


def _of_each_token(logs: object, in_chat: str, otherwise: str) -> Any:
    """What `logprobs` says of each token: chat has a list of objects, completions have a list for each field."""
    content = _field(logs, "content")
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        return _field(logs, otherwise)
    try:
        return list(map(itemgetter(in_chat), content))  # the usual case, several times faster
    except (TypeError, KeyError):
        return [_field(each, in_chat) for each in content]


def _ids_from_texts(tokens: object) -> list[int] | None:
    if not isinstance(tokens, Sequence) or not tokens:
        return None
    found = [_TOKEN_ID.fullmatch(each) if isinstance(each, str) else None for each in tokens]
    return [int(each[1]) for each in found if each] if all(found) else None


def _tool_calls(calls: object) -> tuple[ToolCall, ...]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        return ()
    made = []
    for call in calls:
        function = _field(call, "function")
        arguments = _field(function, "arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else _json(arguments)
        made.append(
            ToolCall(
                name=_text(_field(function, "name")) or "",
                arguments=_text(arguments) or "",
                call_id=_text(_field(call, "id")),
            )
        )
    return tuple(made)


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


# ---------------------------------------------------------------------------- vLLM without a server


def _from_engine(answer: object, choice: int | None, record: str) -> SampledResponse:
    if _field(answer, "finished") is False:
        _refuse(record, "finished", "False", "a finished RequestOutput: wait for the last one")
    output, place = _chosen(_field(answer, "outputs"), choice, record, "outputs")
    ids = _field(output, "token_ids")
    if ids is None:
        _refuse(record, f"{place}.token_ids", "missing", "the ids of the sampled tokens")
    token_ids = token_array(ids, record, f"{place}.token_ids")
    prompt = _field(answer, "prompt_token_ids")
    values = _engine_logprobs(_field(output, "logprobs"), token_ids)
    return SampledResponse(
        prompt_token_ids=None
        if prompt is None
        else token_array(prompt, record, "prompt_token_ids"),
        token_ids=token_ids,
        logprobs=_logprob_array(values, len(token_ids), record, f"{place}.logprobs"),
        finish_reason=_text(_field(output, "finish_reason")),
        tool_calls=(),
        text=_text(_field(output, "text")),
        model=None,
        response_id=_text(_field(answer, "request_id")),
    )


def _engine_logprobs(positions: Any, token_ids: TokenIds) -> Any:
    """At each position the entry of the sampled token, not that of the most likely one."""
    if not isinstance(positions, Sequence) or isinstance(positions, str | bytes):
        return positions  # None, or what the caller refuses
    entries: list[Any] = []
    for token, position in zip(token_ids.tolist(), positions, strict=False):
        entry = None
        if isinstance(position, Mapping):
            entry = position.get(token)
            if entry is None:
                entry = position.get(str(token))  # JSON has no other keys
        entries.append(entry if isinstance(entry, float | int) else _field(entry, "logprob"))
    entries += [None] * (len(positions) - len(entries))
    return entries


# ------------------------------------------------------------------------------------------- values


def token_array(values: Any, record: str, field: str) -> TokenIds:
    """Token ids in their stored type. `array` reads a list of ints several times faster than numpy."""
    if isinstance(values, list | tuple):
        try:
            return np.frombuffer(array("I", values), TOKEN_DTYPE)
        except (TypeError, OverflowError):
            pass  # read again below, where what is wrong gets its name
    ids = given_array(f"{field} of {record}", values, "token ids")
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        _refuse(record, field, f"{ids.dtype.name}{list(ids.shape)}", "a flat list of token ids")
    if ids.size and (ids.min() < 0 or ids.max() > U32_MAX):
        at = int(np.argmax((ids < 0) | (ids > U32_MAX)))
        raise InvalidNumber(
            record=record,
            field=f"{field}[{at}]",
            value=str(ids[at]),
            expected=f"a token id from 0 to {U32_MAX}",
        )
    return ids.astype(TOKEN_DTYPE, copy=False)


def _logprob_array(values: Any, count: int, record: str, field: str) -> NDArray[np.float32]:
    if values is None:
        return np.full(count, np.nan, FLOAT_DTYPE)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        _refuse(record, field, type(values).__name__, "one number for each token")
    if len(values) != count:
        raise ColumnLengthMismatch(
            artifact_id=record, column=field, expected=count, actual=len(values)
        )
    try:
        numbers = array("d", values)
    except (TypeError, OverflowError):
        numbers = array("d", [_number(each, record, field) for each in values])
    found = np.frombuffer(numbers, np.float64)
    if found.size and found.min() <= UNKNOWN_LOGPROB:
        found = np.where(found == UNKNOWN_LOGPROB, np.nan, found)
    with np.errstate(over="ignore"):
        return found.astype(FLOAT_DTYPE)


def _number(value: object, record: str, field: str) -> float:
    if value is None:
        return float("nan")
    with suppress(OverflowError):
        if isinstance(value, float | int):
            return float(value)
    raise InvalidNumber(record=record, field=field, value=repr(value), expected="a log-probability")


def refuse_missing_logprobs(logprobs: NDArray[np.float32], record: str) -> None:
    missing = np.isnan(logprobs)
    if np.count_nonzero(missing):
        _refuse(
            record,
            "log-probability",
            f"missing at {np.count_nonzero(missing)} of {len(logprobs)} tokens, "
            f"first at {int(np.argmax(missing))}",
            f"one for each sampled token; {_ASK_LOGPROBS}",
        )


def _text(value: object) -> str | None:
    """Text that can be stored. It is for people, so what is not valid Unicode in it is replaced."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def missing_prompt(record: str) -> InvalidValue:
    return InvalidValue(
        record=record,
        field="prompt_token_ids",
        value="missing",
        expected=f"the tokens that the engine saw, to compare them with the recorded ones; {_ASK_IDS}; "
        "or give unchecked_prompt=True",
    )

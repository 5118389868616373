"""Messages between the runner and the process of a policy: msgpack with a length before it, arrays as bytes.

A policy is a stranger. Nothing that it sends is unpickled; the runner checks the size of a message before it reads it,
its shape while it decodes it, and type and shape of every array.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.msgpack import Ext
from numpy.typing import NDArray

MOST_BYTES = 64 << 20
"""Of one answer of a policy."""
MOST_KEYS = 1_000
"""Of one action."""
_READ_AT_ONCE = 1 << 20
_LENGTH = struct.Struct(">Q")
_ARRAY, _SCALAR = 1, 2
_DIMENSIONS = 32
_ANSWER_KINDS = "biufSU"
"""Kinds of arrays that an answer may have. Objects are not among them: they would have to be unpickled."""

Values: TypeAlias = dict[str, Any]

# ---------------------------------------------------------------------------------------- requests


class Reset(Struct, tag="reset", array_like=True, frozen=True):
    """A new episode begins."""

    id: str
    step_count: int | None
    record: dict[str, Any] | None


class Act(Struct, tag="act", array_like=True, frozen=True):
    """One step; for a policy with `chunk`, the first of its steps."""

    observation: Values
    step: int
    is_first: bool
    is_last: bool
    t_ns: int | None


class ActBatch(Act, tag="act_batch", frozen=True):
    """Many steps for `act_batch`. The first axis of each array is the step."""


class ActSteps(Struct, tag="act_steps", array_like=True, frozen=True):
    """Recorded steps for a policy that answers one at a time: one message instead of one for each step."""

    observations: Values
    """The first axis of each array is the step."""
    first: int
    count: int
    last: int
    """The last step of the episode."""
    t_ns: list[int] | None


class Close(Struct, tag="close", array_like=True, frozen=True):
    pass


Request: TypeAlias = Reset | Act | ActBatch | ActSteps | Close

# ----------------------------------------------------------------------------------------- answers


class Loaded(Struct, tag="loaded", array_like=True, frozen=True):
    """The policy is there and can be asked."""

    batched: bool
    chunk: int | None


class Answer(Struct, tag="answer", array_like=True, frozen=True):
    """The actions of the next steps, one by one or as columns."""

    actions: list[Values] = []
    columns: Values | None = None
    count: int = 0
    """Steps in the columns."""


class Failure(Struct, tag="failure", array_like=True, frozen=True):
    """The policy raised an error."""

    kind: str
    message: str
    traceback: str


FromPolicy: TypeAlias = Loaded | Answer | Failure

# ---------------------------------------------------------------------------------------- encoding


def _encoded_array(value: Any) -> Ext:
    """Also for what an array library makes of it, such as a tensor."""
    array: NDArray[Any] = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names is not None:
        message = (
            f"a value of type {type(value).__name__} is neither a number, a text nor an array of "
            "these, so it cannot be sent between the runner and the policy"
        )
        raise TypeError(message)
    name = array.dtype.str.encode()
    head = struct.pack(f">BB{array.ndim}Q", len(name), array.ndim, *array.shape)
    code = _SCALAR if isinstance(value, np.generic) else _ARRAY
    return Ext(code, b"".join((head, name, array.tobytes())))


def _encode_foreign(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else _encoded_array(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_foreign)


def encode_request(request: Request) -> bytes:
    """The types of numpy's scalars survive: a policy sees in its process what it would see in a thread."""
    return _encoder.encode(request)


def encode_answer(answer: FromPolicy) -> bytes:
    data = _encoder.encode(answer)
    if len(data) > MOST_BYTES:
        message = f"the policy's answer has {len(data)} bytes, expected at most {MOST_BYTES}"
        raise ValueError(message)
    return data


def shown_values(observation: Mapping[str, Any]) -> Values:
    """With numpy's numbers as arrays, because msgpack would make Python numbers of them."""
    return {
        key: _encoded_array(value) if isinstance(value, np.generic) else value
        for key, value in observation.items()
    }


@lru_cache(maxsize=64)
def _named_type(name: bytes) -> np.dtype[Any]:
    return np.dtype(name.decode("ascii"))


def _decoded_array(code: int, data: memoryview, kinds: str | None) -> Any:
    """A copy, because policies and environments may change their arrays."""
    length, dimensions = data[0], data[1]
    start = 2 + 8 * dimensions
    dtype = _named_type(bytes(data[start : start + length]))
    if not dtype.itemsize or (kinds is not None and dtype.kind not in kinds):
        raise ValueError(f"an array of type {dtype}")
    shape = struct.unpack_from(f">{dimensions}Q", data, 2)
    body = data[start + length :]
    if (
        code not in (_ARRAY, _SCALAR)
        or dimensions > _DIMENSIONS
        or math.prod(shape) * dtype.itemsize != len(body)
    ):
        raise ValueError(f"an array of {len(body)} bytes with the shape {shape}")
    array = np.frombuffer(body, dtype).reshape(shape).copy()
    return array[()] if code == _SCALAR else array


_requests = msgspec.msgpack.Decoder(
    Request, ext_hook=lambda code, data: _decoded_array(code, data, None)
)
_answers = msgspec.msgpack.Decoder(
    FromPolicy, ext_hook=lambda code, data: _decoded_array(code, data, _ANSWER_KINDS)
)


def decode_request(data: bytes | bytearray) -> Request:
    request: Request = _requests.decode(data)
    return request


def decode_answer(data: bytes | bytearray) -> FromPolicy:
    """Raises ValueError for bytes that are no answer."""
    try:
        answer: FromPolicy = _answers.decode(data)
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:200]) from error
    if isinstance(answer, Answer):
        for action in (*answer.actions, answer.columns or {}):
            if len(action) > MOST_KEYS:
                raise ValueError(f"{len(action)} keys, expected at most {MOST_KEYS}")
    return answer


# ----------------------------------------------------------------------------------------- sending


class Channel:
    """One end of the socket between the runner and the process of a policy."""

    def __init__(self, end: socket.socket, *, ended: int | None = None, most: int | None = None):
        """`ended` is a descriptor that becomes readable when the other process ends: the socket alone does not tell,
        because a process that the other one started can hold it open. `most` is the size of the largest message."""
        self._socket = end
        self._most = most
        self._ended = ended
        self._arrived = bytearray()
        end.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(end, select.POLLIN)
        self._writable.register(end, select.POLLOUT)
        if ended is not None:
            self._readable.register(ended, select.POLLIN)

    @property
    def has_more(self) -> bool:
        """Whether something arrived that nobody asked for."""
        return bool(self._arrived)

    def send(self, message: bytes, timeout_s: float | None = None) -> None:
        """Raises TimeoutError, or an OSError when the other process has ended."""
        deadline = _deadline(timeout_s)
        for part in (_LENGTH.pack(len(message)) + message[:_READ_AT_ONCE], message[_READ_AT_ONCE:]):
            left = memoryview(part)
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    if not self._writable.poll(_milliseconds(deadline)):
                        raise TimeoutError from None

    def receive(self, timeout_s: float | None = None) -> bytearray:
        """Raises TimeoutError, EOFError when the other process has ended, and ValueError for a message that is too
        large."""
        deadline = _deadline(timeout_s)
        while (message := self._complete()) is None:
            ready = dict(self._readable.poll(_milliseconds(deadline)))
            if not ready:
                raise TimeoutError
            if self._socket.fileno() not in ready:
                raise EOFError
            arrived = self._socket.recv(_READ_AT_ONCE)
            if not arrived:
                raise EOFError
            self._arrived += arrived
        return message

    def _complete(self) -> bytearray | None:
        if len(self._arrived) < _LENGTH.size:
            return None
        size = _LENGTH.unpack_from(self._arrived)[0]
        if self._most is not None and size > self._most:
            raise ValueError(f"{size} bytes, expected at most {self._most}")
        end = _LENGTH.size + size
        if len(self._arrived) < end:
            return None
        message = self._arrived[_LENGTH.size : end]
        del self._arrived[:end]
        return message

    def close(self) -> None:
        self._socket.close()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _milliseconds(deadline: float | None) -> int | None:
    return None if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1e3))

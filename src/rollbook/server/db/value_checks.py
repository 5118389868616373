"""Checks of values that both databases can store. Each returns the value or refuses it, naming the field.

PostgreSQL cannot store NUL in a text, an index entry has a maximum size, and JSON has no NaN. Refused here, the sender
gets a message; refused later, it would be a failure of the server.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from rollbook.contracts.wire.limits import LONGEST_TEXT
from rollbook.errors import InvalidNumber, InvalidText, InvalidValue

MOST_VALUES = 5_000
"""Values of one metadata object, each of which can be searched for."""
_DEEPEST = 32
_LONGEST_NAME_IN_JSON = 200
_WIDEST_INTEGER_BITS = 1024
_GREATEST_BIGINT = 2**63 - 1


def is_storable(text: str) -> bool:
    """False for NUL and for half a surrogate pair. No stored text can equal such a text."""
    if "\x00" in text:
        return False
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def checked_text(record: str, field: str, value: object, longest: int = LONGEST_TEXT) -> str:
    if not isinstance(value, str):
        raise InvalidValue(
            record=record, field=field, value=type(value).__name__, expected="a text"
        )
    if not is_storable(value):
        detail = "holds a NUL character or half a surrogate pair, which cannot be stored; remove it"
        raise InvalidText(record=record, field=field, detail=detail)
    if len(value) > longest:
        detail = f"has {len(value)} characters; at most {longest} are allowed"
        raise InvalidText(record=record, field=field, detail=detail)
    return value


def checked_choice(record: str, field: str, value: object, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        expected = "one of " + ", ".join(choices)
        raise InvalidValue(record=record, field=field, value=_short(value), expected=expected)
    return value


def checked_real(record: str, field: str, value: object) -> float:
    """Finite and at least 0: durations and rates."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _not_a_number(record, field, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise _not_a_number(record, field, value, "a finite number, at least 0")
    return number


def checked_whole(
    record: str, field: str, value: object, *, least: int = 0, most: int = _GREATEST_BIGINT
) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _not_a_number(record, field, value, "a whole number")
    if not least <= value <= most:
        raise _not_a_number(record, field, value, f"a whole number from {least} to {most}")
    return value


def checked_object(record: str, field: str, value: object) -> dict[str, Any]:
    """JSON that can be stored unchanged: storable text, finite numbers, limited depth and number of values."""
    if not isinstance(value, Mapping):
        raise InvalidValue(
            record=record, field=field, value=type(value).__name__, expected="an object"
        )
    values = 0
    waiting: list[tuple[str, object, int, bool]] = [(field, value, 0, False)]
    while waiting:
        path, each, depth, in_array = waiting.pop()
        if isinstance(each, Mapping):
            for key, below in each.items():
                checked_text(record, f"a name in {path}", key, _LONGEST_NAME_IN_JSON)
                waiting.append(
                    (f"{path}.{key}"[:_LONGEST_NAME_IN_JSON], below, depth + 1, in_array)
                )
        elif isinstance(each, list | tuple):
            waiting.extend((path, below, depth + 1, True) for below in each)
        else:
            _check_scalar(record, path, each)
            values += not in_array
        if depth > _DEEPEST or values > MOST_VALUES:
            expected = f"at most {_DEEPEST} levels and {MOST_VALUES} values outside of arrays"
            raise InvalidValue(record=record, field=field, value="too large", expected=expected)
    return dict(value)


def _check_scalar(record: str, path: str, value: object) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        checked_text(record, path, value, longest=_LONGEST_IN_JSON)
    elif isinstance(value, int):
        if value.bit_length() > _WIDEST_INTEGER_BITS:
            raise _not_a_number(record, path, value, f"an integer of {_WIDEST_INTEGER_BITS} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _not_a_number(record, path, value, "a finite number")
    else:
        raise InvalidValue(
            record=record, field=path, value=type(value).__name__, expected="a JSON value"
        )


_LONGEST_IN_JSON = 10_000_000
"""Such a text is only searched by its digest. The limit on a request is enforced where it is read."""


def _not_a_number(record: str, field: str, value: object, expected: str) -> InvalidNumber:
    return InvalidNumber(record=record, field=field, value=_short(value), expected=expected)


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:100]

"""Checks of values that both databases can store. Each returns the value or refuses it, naming the field.

PostgreSQL cannot store NUL in a text, an index entry has a maximum size, and JSON has no NaN. Refused here, the sender
gets a message; refused later, it would be a failure of the server.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

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
    # iterators, not lists: an array of a million values takes no more memory here than one of ten
    levels: list[Iterator[_Within]] = [iter([(field, value, False)])]
    while levels:
        for path, each, in_array in levels[-1]:
            is_scalar = not isinstance(each, Mapping | list | tuple)
            values += is_scalar and not in_array
            if len(levels) - 1 > _DEEPEST or values > MOST_VALUES:
                expected = f"at most {_DEEPEST} levels and {MOST_VALUES} values outside of arrays"
                raise InvalidValue(record=record, field=field, value="too large", expected=expected)
            if isinstance(each, Mapping):
                levels.append(_members(record, path, each, in_array))
                break
            if isinstance(each, list | tuple):
                if _are_plain_numbers(each):
                    continue
                levels.append(_elements(path, each))
                break
            _check_scalar(record, path, each)
        else:
            levels.pop()
    return dict(value)


_Within: TypeAlias = "tuple[str, object, bool]"
"""A path, the value there, and whether it is inside an array."""


def _members(
    record: str, path: str, value: Mapping[str, object], in_array: bool
) -> Iterator[_Within]:
    for key, below in value.items():
        checked_text(record, f"a name in {path}", key, _LONGEST_NAME_IN_JSON)
        yield f"{path}.{key}"[:_LONGEST_NAME_IN_JSON], below, in_array


def _are_plain_numbers(values: Collection[object]) -> bool:
    """Most large arrays are: they are checked without a Python step for each value."""
    if not set(map(type, values)) <= {int, float, bool}:
        return False
    try:
        return all(map(math.isfinite, values))  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond every float: it may still be short enough
        return False


def _elements(path: str, value: Iterable[object]) -> Iterator[_Within]:
    for below in value:
        yield path, below, True


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

"""Terms: what an episode can be found by beyond its columns, as texts that are equal or not.

    tag=night                      a tag
    metadata.task.name="pick"      a value in the metadata, under the names that lead to it
    metadata.attempt=3             3 and 3.0 are one number; "3" in quotes is a text and another term

Values inside arrays have no term: an array is data, not a description.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from rollbook.digest import digest_of

Scalar: TypeAlias = "str | int | float | bool | None"

_LONGEST = 400
_EXACT_BELOW = 2**53
"""Greater floats do not represent one integer exactly."""


def terms_of(metadata: Mapping[str, Any], tags: Iterable[str]) -> set[str]:
    found = {tag_term(tag) for tag in tags}
    found.update(_of_values(metadata))
    return found


def tag_term(tag: str) -> str:
    return _short(f"tag={tag}")


def value_terms(path: str, value: Scalar) -> tuple[str, ...]:
    """The terms that match a wanted value. A text from a query string is also tried as the JSON value it spells: `true`
    matches the text and the boolean, `"3"` the text with and without quotes."""
    wanted: list[Scalar] = [value]
    if isinstance(value, str):
        try:
            spelled = json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError):
            spelled = []
        if not isinstance(spelled, list | dict):
            wanted.append(spelled)
    return tuple(dict.fromkeys(_value_term(path, each) for each in wanted))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _of_values(metadata: Mapping[str, Any]) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = list(metadata.items())
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend((f"{path}.{key}", below) for key, below in value.items())
        elif not isinstance(value, list | tuple):
            yield _value_term(path, value)


def _value_term(path: str, value: Scalar) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_BELOW:
        value = int(value)
    return _short(f"metadata.{path}={json.dumps(value, ensure_ascii=False)}")


def _short(term: str) -> str:
    """A long term is stored by its digest: an index entry has a maximum size."""
    if len(term) <= _LONGEST:
        return term
    return f"{term[:100]}…{digest_of('rollbook.episode-term', term)}"

"""The fields of an episode, checked one by one before they reach the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.episode import EPISODE_SOURCES, FINAL_STATUSES, LONGEST_NAME, LONGEST_ROBOT
from rollbook.contracts.wire.episodes import CreateEpisode, FinalizeEpisode
from rollbook.contracts.wire.limits import LONGEST_INDEXED, LONGEST_TAG, MOST_TAGS
from rollbook.errors import InvalidValue
from rollbook.server.db import tables
from rollbook.server.db.columns import WholeNumber, new_id
from rollbook.server.db.value_checks import (
    checked_choice,
    checked_object,
    checked_real,
    checked_text,
    checked_whole,
)

_LONGEST = {"name": LONGEST_NAME, "robot": LONGEST_ROBOT}
"""Characters; other texts of an episode may have LONGEST_INDEXED."""
_GREATEST_SEED = 10**40

_Check = Callable[[str, object], Any]


def _text(field: str, value: object) -> str:
    return checked_text("episode", field, value, _LONGEST.get(field, LONGEST_INDEXED))


def _real(field: str, value: object) -> float:
    return checked_real("episode", field, value)


def _size(field: str, value: object) -> int:
    return checked_whole("episode", field, value)


def _seed(field: str, value: object) -> int:
    return checked_whole("episode", field, value, least=-_GREATEST_SEED, most=_GREATEST_SEED)


def _object(field: str, value: object) -> dict[str, Any]:
    return checked_object("episode", field, value)


def _source(field: str, value: object) -> str:
    return checked_choice("episode", field, value, EPISODE_SOURCES)


def _final_status(field: str, value: object) -> str:
    return checked_choice("episode", field, value, FINAL_STATUSES)


def _tags(field: str, value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidValue(
            record="episode", field=field, value=type(value).__name__, expected="a list of texts"
        )
    tags = list(dict.fromkeys(checked_text("episode", "a tag", tag, LONGEST_TAG) for tag in value))
    if len(tags) > MOST_TAGS:
        expected = f"at most {MOST_TAGS}"
        raise InvalidValue(
            record="episode", field=field, value=f"{len(tags)} tags", expected=expected
        )
    return tags


_BY_TYPE: dict[type, _Check] = {
    sa.Text: _text,
    sa.Double: _real,
    sa.BigInteger: _size,
    WholeNumber: _seed,
    sa.JSON: _object,
}
_BY_NAME: dict[str, _Check] = {"source": _source, "status": _final_status, "tags": _tags}


def _checks(*names: str) -> dict[str, _Check]:
    """The check of every name that is a column: its own, or else the check of its type."""
    columns = tables.episodes.c
    return {
        name: _BY_NAME.get(name) or _BY_TYPE[type(columns[name].type)]
        for name in names
        if name in columns
    }


_WHEN_NEW = _checks("id", *CreateEpisode.__struct_fields__, "created_by")
_WHEN_FINAL = _checks(*FinalizeEpisode.__struct_fields__)


def checked_episode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every column of a new episode except its times. A field that is missing or None is unknown."""
    given = _checked(values, _WHEN_NEW)
    name = given.get("name")
    return {
        **dict.fromkeys(_WHEN_NEW),
        **dict.fromkeys(_WHEN_FINAL),
        "source": "real",
        "metadata": {},
        "tags": [],
        "status": "recording",
        **given,
        "id": given.get("id") or new_id(),
        "name_search": None if name is None else name.casefold(),
    }


def checked_final(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a finalize request; None is the same as missing."""
    return {"status": "ready", **_checked(changes, _WHEN_FINAL)}


def checked_tags(tags: Iterable[str]) -> list[str]:
    return _tags("tags", tags)


def merged_metadata(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merged by name; the new value counts. The result must stay within the limits, however often values are added."""
    return _object("metadata", {**old, **new}) if new else old


def failure_time_within(
    failure_time_s: float | None, duration_s: float | None, status: str
) -> float | None:
    """Limited to the recording, when its length is known. Only a failed episode has a failure time."""
    if failure_time_s is None or status != "failed":
        return None
    return failure_time_s if duration_s is None else min(failure_time_s, duration_s)


def _checked(values: Mapping[str, Any], checks: Mapping[str, _Check]) -> dict[str, Any]:
    unknown = sorted(set(values) - set(checks))
    if unknown:
        expected = "one of " + ", ".join(checks)
        raise InvalidValue(record="episode", field="field", value=unknown[0], expected=expected)
    return {name: checks[name](name, value) for name, value in values.items() if value is not None}

"""Searches: reads the query string of a list into a filter. An unknown name is refused, because a filter with a typing
error would otherwise match everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from rollbook.contracts.episode import EPISODE_SOURCES, EPISODE_STATUSES
from rollbook.server.http.openapi import query
from rollbook.server.http.requests import moment_us
from rollbook.server.http.responses import Problem
from rollbook.server.queries import EpisodeFilter

MOST_ON_A_PAGE = 200
_DEFAULT_ON_A_PAGE = 50
_METADATA = "metadata."
_LONGEST_NUMBER = 40


@dataclass(frozen=True, slots=True)
class Search:
    filters: EpisodeFilter
    cursor: str | None
    limit: int


def _whole(name: str, text: str) -> int:
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER):
        raise _invalid_value(name, "a whole number")
    return int(text)


def _limit(name: str, text: str) -> int:
    limit = _whole(name, text)
    if not 1 <= limit <= MOST_ON_A_PAGE:
        raise _invalid_value(name, f"a number from 1 to {MOST_ON_A_PAGE}")
    return limit


def _truth(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise _invalid_value(name, "true or false")
    return text == "true"


def _text(name: str, text: str) -> str:
    return text


_FILTERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "policy_version": ("policy_version", _text),
    "env_version": ("env_version", _text),
    "git_sha": ("git_sha", _text),
    "seed": ("seed", _whole),
    "status": ("status", _text),
    "source": ("source", _text),
    "robot": ("robot", _text),
    "name": ("name", _text),
    "created_after": ("created_after_us", moment_us),
    "created_before": ("created_before_us", moment_us),
    "with_archived": ("with_archived", _truth),
}
_OTHERS = ("limit", "cursor", "tag")


def search_of(params: QueryParams) -> Search:
    given: dict[str, Any] = {}
    tags: list[str] = []
    metadata: dict[str, str] = {}
    for name, text in params.multi_items():
        if name == "tag":
            tags.append(text)
        elif name.startswith(_METADATA) and len(name) > len(_METADATA):
            _set_once(metadata, name.removeprefix(_METADATA), text)
        elif name in _FILTERS:
            field, read = _FILTERS[name]
            _set_once(given, field, read(name, text))
        elif name not in _OTHERS:
            known = ", ".join((*_FILTERS, *_OTHERS, "metadata.<path>"))
            raise Problem(
                400, "unknown_filter", f"there is no filter {name[:100]!r}; known: {known}"
            )
    limit = _limit("limit", params["limit"]) if "limit" in params else _DEFAULT_ON_A_PAGE
    filters = EpisodeFilter(**given, tags=tuple(dict.fromkeys(tags)), metadata=metadata)
    return Search(filters, params.get("cursor") or None, limit)


def _set_once(values: dict[str, Any], name: str, value: object) -> None:
    if name in values:
        raise Problem(400, "invalid_value", f"{name} is given twice; only tag may be", where=name)
    values[name] = value


def _invalid_value(name: str, expected: str) -> Problem:
    return Problem(400, "invalid_value", f"{name}: expected {expected}", where=name)


_STRING = {"type": "string"}
_WHEN = {"type": "string", "format": "date-time"}

PARAMETERS = (
    query("policy_version", _STRING, "Only episodes of this policy version."),
    query("env_version", _STRING, "Only episodes of this environment version."),
    query("git_sha", _STRING, "Only episodes of this git commit."),
    query("seed", {"type": "integer"}, "Only episodes recorded with this seed."),
    query(
        "status",
        {"enum": list(EPISODE_STATUSES)},
        "Only this status. Archived episodes are left out by default.",
    ),
    query("source", {"enum": list(EPISODE_SOURCES)}, "Only this source."),
    query("robot", _STRING, "Only episodes of this robot."),
    query("name", _STRING, "Part of the name; upper and lower case are equal."),
    query(
        "tag", {"type": "array", "items": _STRING}, "Only episodes with this tag; may be repeated."
    ),
    query("created_after", _WHEN, "ISO 8601: created at this time or later."),
    query("created_before", _WHEN, "ISO 8601: created before this time."),
    query("with_archived", {"type": "boolean"}, "Include archived episodes."),
    query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MOST_ON_A_PAGE},
        "Maximum number of episodes on a page.",
    ),
    query("cursor", _STRING, "`next_cursor` of the previous page."),
    query(
        "metadata",
        {"type": "object", "additionalProperties": _STRING},
        "`metadata.<path>=value`: a value in the metadata, such as `metadata.task.name=pick`.",
    ),
)

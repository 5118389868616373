"""Lists over HTTP: filters, page size and cursor. An unknown name is refused, because a filter with a typing error
would otherwise match everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from rollbook.server.http.openapi import query
from rollbook.server.http.responses import Problem

_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Listing:
    filters: dict[str, str]
    cursor: str | None
    limit: int


def listing_of(
    params: QueryParams,
    *,
    known: tuple[str, ...] = (),
    limit: int,
    most: int,
    with_cursor: bool = True,
) -> Listing:
    """`limit` is the default page size, `most` the greatest."""
    others = ("limit", "cursor") if with_cursor else ("limit",)
    filters: dict[str, str] = {}
    for name, text in params.multi_items():
        if name in known and name not in filters:
            filters[name] = text
        elif name in known:
            raise Problem(400, "invalid_value", f"{name} is given twice", where=name)
        elif name not in others:
            listed = ", ".join((*known, *others))
            raise Problem(
                400, "unknown_filter", f"there is no filter {name[:100]!r}; known: {listed}"
            )
    return Listing(filters, params.get("cursor") or None, _limit(params.get("limit"), limit, most))


def _limit(text: str | None, otherwise: int, most: int) -> int:
    if text is None:
        return otherwise
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_number or not 1 <= int(text) <= most:
        raise Problem(
            400, "invalid_value", f"limit: expected a whole number from 1 to {most}", where="limit"
        )
    return int(text)


def truth_of(filters: Mapping[str, str], name: str) -> bool | None:
    text = filters.get(name)
    if text not in (None, "true", "false"):
        raise Problem(400, "invalid_value", f"{name}: expected true or false", where=name)
    return None if text is None else text == "true"


def page_parameters(most: int) -> tuple[dict[str, Any], ...]:
    """The parameters for OpenAPI."""
    return (
        query(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": most},
            "Maximum number of entries on a page.",
        ),
        query("cursor", {"type": "string"}, "`next_cursor` of the previous page."),
    )

"""Listing: the episodes that a search finds, fetched page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from rollbook.client.connection import Connection
from rollbook.client.recorded import RecordedCore
from rollbook.contracts.wire.episodes import EpisodePage, EpisodeRecord
from rollbook.errors import ConfigurationError

LARGEST_PAGE = 100


class Listing:
    def __init__(
        self,
        connection: Connection,
        recorded: Callable[[EpisodeRecord], RecordedCore],
        query: list[tuple[str, str]],
        limit: int | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ConfigurationError(message=f"limit={limit}; it has to be 0 or more")
        self._connection = connection
        self._recorded = recorded
        self._query = query
        self._left = limit
        self._cursor: str | None = None
        self._over = False

    async def more(self) -> list[RecordedCore]:
        """The next episodes; an empty list at the end."""
        found: list[RecordedCore] = []
        while not found and not self._over and self._left != 0:
            found = await self._page()
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        return found

    async def _page(self) -> list[RecordedCore]:
        size = LARGEST_PAGE if self._left is None else min(LARGEST_PAGE, self._left)
        query = [*self._query, ("limit", str(size))]
        if self._cursor is not None:
            query.append(("cursor", self._cursor))
        path = f"/api/episodes?{urlencode(query)}"
        page = await self._connection.call(
            "list episodes", "GET", path, answer=EpisodePage[EpisodeRecord]
        )
        self._over = page.next_cursor is None or page.next_cursor == self._cursor
        self._cursor = None if self._over else page.next_cursor
        return [self._recorded(record) for record in page.episodes]


def search_terms(
    tag: str | Iterable[str] | None,
    metadata: Mapping[str, Any] | None,
    since: datetime | str | None,
    until: datetime | str | None,
) -> list[tuple[str, str]]:
    """Names and values of a query string. A name can occur more than once."""
    terms = [("tag", each) for each in ([tag] if isinstance(tag, str) else tag or ())]
    terms += [(f"metadata.{path}", text) for path, text in _paths("", metadata or {})]
    if since is not None:
        terms.append(("created_after", _time("since", since)))
    if until is not None:
        terms.append(("created_before", _time("until", until)))
    return terms


def _time(argument: str, value: datetime | str) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            message = f"{argument}= has no time zone; use datetime.now(UTC) and the like"
            raise ConfigurationError(message=message)
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value


def _paths(path: str, values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """`{"task": {"name": "pick"}}` becomes `metadata.task.name=pick`. Numbers and booleans are written as in JSON."""
    for key, value in values.items():
        below = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _paths(below, value)
        elif isinstance(value, str):
            yield below, value
        elif value is None or isinstance(value, bool):
            yield below, {None: "null", True: "true", False: "false"}[value]
        elif isinstance(value, int | float):
            yield below, repr(value)
        else:
            message = (
                f"metadata={{{below!r}: …}} can be searched for text, numbers, true, false, None"
            )
            raise ConfigurationError(message=message)

"""The address of the list of episodes: its filters, its order and its page. Every state of the list is a link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import QueryParams

from rollbook.server.episodes.search import search_of
from rollbook.server.http.responses import Problem
from rollbook.server.queries import ORDERS, EpisodeFilter, EpisodeOrder

PATH = "/portal/episodes"
_METADATA = "metadata."
_PATH_FIELD, _VALUE_FIELD = "metadata_path", "metadata_value"
"""Two fields of a form that together become one filter, `metadata.<path>=<value>`."""
_OWN = ("sort", "after", "before")
_LABELS = {
    "policy_version": "Policy",
    "env_version": "Environment",
    "robot": "Robot",
    "source": "Source",
    "status": "Status",
    "tag": "Tag",
    "seed": "Seed",
    "git_sha": "Commit",
    "created_after": "Recorded since",
    "created_before": "Recorded before",
    "with_archived": "Archived",
}


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set."""

    label: str
    value: str
    without: str
    """The list without it."""


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    filters: EpisodeFilter = field(default_factory=EpisodeFilter)
    pairs: tuple[tuple[str, str], ...] = ()
    """The filters as they stand in the address."""
    order: EpisodeOrder = "newest"
    after: str | None = None
    before: str | None = None

    @classmethod
    def of(cls, params: QueryParams) -> EpisodeQuery:
        given = params.multi_items()
        pairs = tuple((name, text) for name, text in given if name not in _OWN)
        own: dict[str, str] = {}
        for name, text in given:
            if name in own:
                raise Problem(400, "invalid_value", f"{name} is given twice", where=name)
            if name in _OWN:
                own[name] = text
        if "after" in own and "before" in own:
            raise Problem(400, "invalid_value", "after and before cannot both be given")
        for name in ("limit", "cursor"):
            if name in params:
                raise Problem(400, "unknown_filter", f"there is no filter {name!r} on this page")
        filters = search_of(QueryParams(list(pairs))).filters
        order = _order(own.get("sort", "newest"))
        return cls(filters, pairs, order, own.get("after"), own.get("before"))

    @classmethod
    def of_text(cls, text: str) -> EpisodeQuery:
        return cls.of(QueryParams(parse_qsl(text, keep_blank_values=True)))

    @property
    def name(self) -> str:
        return self.filters.name or ""

    @property
    def is_filtered(self) -> bool:
        return bool(self.pairs)

    @property
    def kept(self) -> list[tuple[str, str]]:
        """What the form of the filters has to send again."""
        return [pair for pair in self.pairs if pair[0] != "name"]

    @property
    def chips(self) -> list[Chip]:
        return [
            Chip(
                label=_LABELS.get(name, name.removeprefix(_METADATA)),
                value="shown too" if name == "with_archived" else text,
                without=replace(
                    self.at_first_page, pairs=tuple(each for each in self.pairs if each != pair)
                ).text,
            )
            for pair in self.pairs
            for name, text in (pair,)
            if name != "name"
        ]

    def is_set(self, name: str) -> bool:
        return any(each == name for each, _ in self.pairs)

    @property
    def at_first_page(self) -> EpisodeQuery:
        return replace(self, after=None, before=None)

    def sorted(self, order: EpisodeOrder) -> str:
        return replace(self.at_first_page, order=order).text

    def page_after(self, cursor: str) -> str:
        return replace(self, after=cursor, before=None).text

    def page_before(self, cursor: str) -> str:
        return replace(self, after=None, before=cursor).text

    def since(self, date: str) -> str:
        others = tuple(each for each in self.pairs if each[0] != "created_after")
        return replace(self.at_first_page, pairs=(*others, ("created_after", date))).text

    @property
    def query(self) -> str:
        """Without the path."""
        sort = None if self.order == "newest" else self.order
        own = zip(_OWN, (sort, self.after, self.before), strict=True)
        return urlencode([*self.pairs, *((name, text) for name, text in own if text is not None)])

    @property
    def text(self) -> str:
        """The address, without the prefix of the server."""
        return f"{PATH}?{self.query}" if self.query else PATH


def tidied(given: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a form sent, without its empty fields, and with its two fields for metadata joined."""
    pairs, path, value = [], "", ""
    for name, text in given:
        if name == _PATH_FIELD:
            path = text.strip()
        elif name == _VALUE_FIELD:
            value = text
        elif text:
            pairs.append((name, text))
    return [*pairs, (f"{_METADATA}{path}", value)] if path else pairs


def _order(text: str) -> EpisodeOrder:
    for order in ORDERS:
        if order == text:
            return order
    raise Problem(400, "invalid_value", f"sort: expected one of {', '.join(ORDERS)}", where="sort")

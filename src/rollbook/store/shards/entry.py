"""RolloutShardEntry: one shard of a plan, with the source rows it is made of and the digests it was planned with."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec

from rollbook.digest import digest_of
from rollbook.errors import InvalidText, InvalidValue, MalformedJson

ROLLOUT_SHARD_MANIFEST_VERSION = "rollout-shard-manifest-v1"
_SPLIT_DOMAIN = "rollbook.rollout_shard_rows.v1"
_SHARD_ID = re.compile(r"(?:shard-)?0*([0-9]{1,12})", re.ASCII)
_LARGEST = 2**63 - 1
_IDENTITY = ("sample_index", "sample_key", "scene_id", "snippet_id", "split")
"""What a planned row and a record of the source index call by the same name."""

_NUMBERS = 3
_values = attrgetter(
    *("order", "sample_index", "source_shard_row"),
    *("sample_key", "scene_id", "snippet_id", "split", "source_shard_id"),
)
"""All values of a row: first the numbers, then the texts."""

T = TypeVar("T")


class SourceIndexRecord(Protocol):
    """A row in the index of a source: what a planned row is made of, and compared with."""

    @property
    def sample_index(self) -> int: ...
    @property
    def sample_key(self) -> str: ...
    @property
    def scene_id(self) -> str: ...
    @property
    def snippet_id(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def shard_id(self) -> str: ...
    @property
    def row(self) -> int: ...


class RolloutShardRow(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """One source row of a shard. `order` is its position in the shard, counted from 0."""

    order: int
    sample_index: int
    sample_key: str
    scene_id: str
    snippet_id: str
    split: str
    source_shard_id: str
    source_shard_row: int

    @classmethod
    def from_index_record(cls, record: SourceIndexRecord, *, order: int) -> RolloutShardRow:
        shared = {name: getattr(record, name) for name in _IDENTITY}
        return cls(
            order=order, **shared, source_shard_id=record.shard_id, source_shard_row=record.row
        )

    @classmethod
    def from_jsonable(cls, value: object) -> RolloutShardRow:
        return _converted(value, cls, "row of a shard")

    def to_jsonable(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)

    def hash_record(self) -> dict[str, Any]:
        """The values that the split hash of the shard covers: all of them."""
        return self.to_jsonable()

    def matches_record(self, record: SourceIndexRecord) -> bool:
        """Whether this is the row of the record. The position in the shard is not compared."""
        return self.difference_from(record) is None

    def difference_from(self, record: SourceIndexRecord) -> str | None:
        """The first field in which the record is another row, with both values."""
        found = self.from_index_record(record, order=self.order)
        for name in self.__struct_fields__:
            planned, now = getattr(self, name), getattr(found, name)
            if planned != now:
                return f"{name} was planned as {planned!r} and is {now!r}"
        return None


class RolloutShardEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a shard manifest."""

    shard_id: str
    split: str
    rows: tuple[RolloutShardRow, ...]
    writer_config_hash: str
    """Digest of all settings of generation that determine the result."""
    source_manifest_hash: str
    source_cache_version: str
    split_manifest_hash: str
    """Digest of the source, the split and the rows in their order."""
    source_store_dir: str
    """Where the source was when the shard was planned. It may have moved since; its digest has not changed."""
    manifest_version: str = ROLLOUT_SHARD_MANIFEST_VERSION

    def to_jsonable(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "num_rows": len(self.rows)}

    @classmethod
    def from_jsonable(cls, value: object) -> RolloutShardEntry:
        """Refuses what is not a valid entry."""
        return _converted(value, StoredEntry, "shard").entry()

    def validate(self) -> None:
        """Raises InvalidValue, which names the first wrong field."""
        rows = self.rows
        if self.manifest_version != ROLLOUT_SHARD_MANIFEST_VERSION:
            raise self._invalid(
                "manifest_version", self.manifest_version, ROLLOUT_SHARD_MANIFEST_VERSION
            )
        if self.shard_id != canonical_rollout_shard_id(self.shard_id):
            # the id becomes the name of a folder
            raise self._invalid(
                "shard_id", self.shard_id, canonical_rollout_shard_id(self.shard_id)
            )
        if not rows:
            raise self._invalid("rows", "empty", "at least one row")
        orders, indices, numbers, _, _, _, splits, places = zip(*map(_values, rows), strict=True)
        if orders != tuple(range(len(rows))):
            wrong = next(at for at, order in enumerate(orders) if order != at)
            raise self._invalid(f"rows[{wrong}].order", orders[wrong], str(wrong))
        if set(splits) != {self.split}:
            wrong = next(at for at, split in enumerate(splits) if split != self.split)
            raise self._invalid(f"rows[{wrong}].split", splits[wrong], repr(self.split))
        if not all(places):
            raise self._invalid(
                f"rows[{places.index('')}].source_shard_id", "", "the id of a source shard"
            )
        for name, values in (("source_shard_row", numbers), ("sample_index", indices)):
            if min(values) < 0 or max(values) > _LARGEST:
                wrong = next(at for at, value in enumerate(values) if not 0 <= value <= _LARGEST)
                raise self._invalid(f"rows[{wrong}].{name}", values[wrong], "a number from 0")
        if len(set(indices)) < len(rows) or len({*zip(places, numbers, strict=True)}) < len(rows):
            raise self._invalid("rows", "the same source row twice", "different source rows")
        expected = split_hash(self.source_manifest_hash, self.split, rows)
        if self.split_manifest_hash != expected:
            raise self._invalid(
                "split_manifest_hash",
                self.split_manifest_hash,
                f"{expected}, the digest of its rows",
            )

    def _invalid(self, field: str, value: object, expected: str) -> InvalidValue:
        shown = repr(value) if isinstance(value, str) else str(value)
        return InvalidValue(record=self.shard_id, field=field, value=shown, expected=expected)


class StoredEntry(RolloutShardEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line as it is in the file. The number of rows is for tools that read lines without their rows."""

    num_rows: int

    def entry(self) -> RolloutShardEntry:
        """The valid entry."""
        entry = RolloutShardEntry(
            **{name: getattr(self, name) for name in RolloutShardEntry.__struct_fields__}
        )
        entry.validate()
        if self.num_rows != len(entry.rows):
            raise self._invalid("num_rows", self.num_rows, str(len(entry.rows)))
        return entry


def canonical_rollout_shard_id(value: int | str) -> str:
    """`shard-000007` for 7, "7", "shard-7" and "shard-000007"."""
    found = None if isinstance(value, bool) else _SHARD_ID.fullmatch(str(value))
    if found is None:
        detail = f"is {value!r}, expected a number or an id such as shard-000007"
        raise InvalidText(record="shard", field="shard_id", detail=detail)
    return f"shard-{int(found[1]):06d}"


def split_hash(source_manifest_hash: str, split: str, rows: Sequence[RolloutShardRow]) -> str:
    """Digest of the rows of one shard, in their order. It covers every value of `hash_record`.

    Numbers and texts go into it as columns, so that the digests of a plan of 100,000 shards are computed in seconds.
    """
    columns = [*zip(*map(_values, rows), strict=True)]
    numbers = [*chain.from_iterable(columns[:_NUMBERS])]
    texts: list[str] = [*chain.from_iterable(columns[_NUMBERS:])]
    return digest_of(
        _SPLIT_DOMAIN,
        [
            source_manifest_hash,
            split,
            struct.pack(f"<{len(numbers)}q", *numbers),
            struct.pack(f"<{len(texts)}Q", *map(len, texts)),
            "".join(texts),
        ],
    )


def _converted(value: object, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise malformed(what, error) from error


def malformed(source: str, error: Exception, place: str = "") -> MalformedJson:
    """What msgspec found, with the place in the document. `place` is the place of the document in its file."""
    detail, _, inside = str(error).partition(" - at ")
    where = ", ".join(each for each in (place, inside.strip("`")) if each)
    return MalformedJson(source=source, record_id=None, where=where or "$", detail=detail)

"""Reading JSON into a declared shape: what does not fit is refused by source, record and path."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from rollbook.errors import DigestMismatch, MalformedJson, RollbookError

Shape = TypeVar("Shape")
_ID = re.compile(rb'"(?:artifact_id|batch_id)"\s*:\s*"((?:[^"\\]|\\.)*)"')


def decode(data: bytes | str, shape: type[Shape], source: str) -> Shape:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise malformed(data, error, source) from error


def convert(fields: dict[str, Any], shape: type[Shape], source: str) -> Shape:
    """The same for JSON that was decoded before, to be touched up."""
    try:
        return msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        raise malformed(msgspec.json.encode(fields), error, source) from error


def malformed(data: bytes | str, error: Exception, source: str) -> MalformedJson:
    detail, _, where = str(error).partition(" - at ")
    if "got `null`" in detail and "float" in detail:
        detail += "; a non-finite number was lost when this was written and cannot be recovered"
    cause = error.__cause__
    return MalformedJson(
        source=source,
        record_id=_record_id(data),
        where=where.strip("`") or "$",
        detail=str(cause) if isinstance(cause, RollbookError) else detail,
    )


def _record_id(data: bytes | str) -> str | None:
    """The id of a record that could not be read, found without reading it."""
    found = _ID.search(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    if found is None:
        return None
    try:
        return msgspec.json.decode(b'"' + found[1] + b'"', type=str)
    except msgspec.DecodeError:
        return None


def compare(record_id: str, field: str, recorded: str, computed: str) -> None:
    """A digest that was recorded must be the one its content gives."""
    if recorded != computed:
        raise DigestMismatch(record_id=record_id, field=field, recorded=recorded, computed=computed)

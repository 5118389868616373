"""Record: the base class of the small values in the contracts; the checks of its fields; reading it from JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from rollbook.digest import Plain
from rollbook.errors import (
    DigestMismatch,
    InvalidNumber,
    InvalidText,
    InvalidValue,
    MalformedJson,
    RollbookError,
)

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
LONGEST_TEXT = 4096
"""Limit of a text field in bytes of UTF-8. A longer id is a mistake, such as a payload passed as a name."""

Shape = TypeVar("Shape")
Item = TypeVar("Item")
_ID = re.compile(rb'"(?:artifact_id|batch_id)"\s*:\s*"((?:[^"\\]|\\.)*)"')


class Record(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An immutable value that is checked when it is made.

    Its JSON leaves out fields that are None. Reading JSON refuses unknown keys.
    """

    def plain(self) -> dict[str, Plain]:
        """Every field, absent ones as None. Content digests are computed from this."""
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        return {
            name: value.plain() if isinstance(value, Record) else value
            for name, value in fields.items()
        }

    def _check_texts(self, record: str, *required: str, optional: tuple[str, ...] = ()) -> None:
        for field in self._present(required, optional):
            checked_text(getattr(self, field), record, field)

    def _check_ints(
        self, record: str, *required: str, optional: tuple[str, ...] = (), highest: int = U64_MAX
    ) -> None:
        for field in self._present(required, optional):
            checked_int(getattr(self, field), record, field, highest)

    def _present(self, required: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
        return [*required, *(field for field in optional if getattr(self, field) is not None)]


# ------------------------------------------------------------------------------------ field checks


def checked_text(value: object, record: str, field: str) -> bytes:
    """The UTF-8 bytes of a text field. Raises InvalidText with the name of the field."""
    if not isinstance(value, str):
        raise InvalidText(
            record=record, field=field, detail=f"must be text, got {type(value).__name__}"
        )
    try:
        utf8 = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            record=record, field=field, detail=f"is not valid Unicode ({error.reason})"
        ) from error
    if len(utf8) > LONGEST_TEXT:
        raise InvalidText(
            record=record,
            field=field,
            detail=f"is {len(utf8)} bytes long, at most {LONGEST_TEXT} are allowed",
        )
    return utf8


def checked_int(value: object, record: str, field: str, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise InvalidNumber(
            record=record,
            field=field,
            value=repr(value),
            expected=f"a whole number from 0 to {highest}",
        )
    return value


def checked_type(value: object, expected: type | tuple[type, ...], record: str, field: str) -> None:
    if not isinstance(value, expected):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        raise InvalidValue(
            record=record,
            field=field,
            value=type(value).__name__,
            expected=" or ".join(kind.__name__ for kind in kinds),
        )


def checked_choice(value: object, known: tuple[str, ...], record: str, field: str) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidValue(record=record, field=field, value=repr(value), expected=", ".join(known))


def checked_list(value: Sequence[Item], record: str, field: str) -> Sequence[Item]:
    """A list or another sequence that is not one text."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        checked_type(value, (list, tuple), record, field)
    return value


def check_digest(record_id: str, field: str, recorded: str, computed: str) -> None:
    """Raise DigestMismatch when the recorded digest is not the digest of the content."""
    if recorded != computed:
        raise DigestMismatch(record_id=record_id, field=field, recorded=recorded, computed=computed)


# -------------------------------------------------------------------------------------------- JSON


def decode_json(data: bytes | str, shape: type[Shape], source: str) -> Shape:
    """Read JSON into a declared type. MalformedJson names the source, the record and the path of what is wrong."""
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise malformed_json(data, error, source) from error


def decode_fields(fields: dict[str, Any], shape: type[Shape], source: str) -> Shape:
    """`decode_json` for JSON that is already decoded into a dict."""
    try:
        return msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        raise malformed_json(msgspec.json.encode(fields), error, source) from error


def malformed_json(data: bytes | str, error: Exception, source: str) -> MalformedJson:
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
    """The id in a record that cannot be decoded, found by a text search."""
    found = _ID.search(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    if found is None:
        return None
    try:
        return msgspec.json.decode(b'"' + found[1] + b'"', type=str)
    except msgspec.DecodeError:
        return None

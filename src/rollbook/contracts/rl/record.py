"""Record: the base of every small value in the contracts, and the checks its fields pass when it is made."""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.contracts.rl.text import checked_text
from rollbook.digest import Plain
from rollbook.errors import InvalidNumber, InvalidValue

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


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


class Record(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Immutable, checked when made, JSON both ways with unknown keys refused, absent when None."""

    def plain(self) -> dict[str, Plain]:
        """Every field, absent ones as None: what content digests are made of."""
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        return {
            name: value.plain() if isinstance(value, Record) else value
            for name, value in fields.items()
        }

    def _check_texts(self, record: str, *required: str, optional: tuple[str, ...] = ()) -> None:
        for field in required:
            checked_text(getattr(self, field), record, field)
        for field in optional:
            if getattr(self, field) is not None:
                checked_text(getattr(self, field), record, field)

    def _check_ints(
        self, record: str, *required: str, optional: tuple[str, ...] = (), highest: int = U64_MAX
    ) -> None:
        for field in required:
            checked_int(getattr(self, field), record, field, highest)
        for field in optional:
            if getattr(self, field) is not None:
                checked_int(getattr(self, field), record, field, highest)

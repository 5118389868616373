"""Cursors: a position in a list, as a text that the client sends back. It is only valid for the list it came from."""

from __future__ import annotations

import base64
import binascii
import json

from rollbook.errors import InvalidValue
from rollbook.server.db.value_checks import is_storable

_LONGEST = 1024
_GREATEST = 2**63 - 1


def cursor_at(place: tuple[int, str], listed: str) -> str:
    """`listed` identifies the list, including its filters."""
    text = json.dumps([*place, listed])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str, listed: str) -> tuple[int, str]:
    try:
        if len(cursor) > _LONGEST:
            raise ValueError("too long")
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        number, name, of = json.loads(text)
        if isinstance(number, bool) or not isinstance(number, int) or abs(number) > _GREATEST:
            raise ValueError("not a place")
        if not isinstance(name, str) or not is_storable(name) or of != listed:
            raise ValueError("of another list")
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        expected = "the next_cursor of a page of this same list"
        raise InvalidValue(
            record="list", field="cursor", value="another text", expected=expected
        ) from error
    return number, name

"""A cursor is valid for the list it came from, and any other text is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import InvalidValue
from rollbook.server.http.cursors import cursor_at, place_of

GREATEST = 2**63 - 1
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def cursor(*content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


@given(st.integers(-GREATEST, GREATEST), NAMES, NAMES)
def test_a_cursor_leads_back_to_its_place(number: int, name: str, listed: str) -> None:
    assert place_of(cursor_at((number, name), listed), listed) == (number, name)


@pytest.mark.parametrize("number", [GREATEST, -GREATEST])
def test_the_farthest_places_are_places(number: int) -> None:
    assert place_of(cursor(number, "id", "list"), "list") == (number, "id")


@pytest.mark.parametrize(
    "text",
    [
        *("", "!", "A", "bm8", cursor(), cursor(1), cursor(1, "id"), cursor(1, "id", "list", 2)),
        *(cursor(True, "id", "list"), cursor(1.5, "id", "list"), cursor("1", "id", "list")),
        *(cursor(GREATEST + 1, "id", "list"), cursor(-GREATEST - 1, "id", "list")),
        *(cursor(1, 2, "list"), cursor(1, None, "list"), cursor(1, "a\0b", "list")),
        *(cursor(1, "\ud800", "list"), cursor(1, "id", "another list"), cursor(1, "id", None)),
        base64.urlsafe_b64encode(b"[" * 700).decode(),
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="next_cursor of a page of this same list"):
        place_of(text, "list")


def test_a_cursor_has_at_most_1024_characters() -> None:
    name = "x" * 753
    longest = cursor(1, name, "list")
    assert len(longest) == 1024
    assert place_of(longest, "list") == (1, name)
    with pytest.raises(InvalidValue, match="next_cursor"):
        place_of(cursor(1, name + "x", "list"), "list")

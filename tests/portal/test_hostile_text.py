"""The check of hostile text finds what it is for."""

from __future__ import annotations

import html

import pytest

from tests.portal.hostile_text import HOSTILE, assert_harmless

PLACES = (
    "<p>{}</p>",
    '<p title="{}">x</p>',
    "<svg><text>{}</text></svg>",
    "<title>{}</title>",
    '<a href="{}">x</a>',
    "<textarea>{}</textarea>",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_that_escapes_is_harmless(text: str) -> None:
    for place in PLACES:
        if "href" not in place:
            assert_harmless(place.format(html.escape(text)), text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_that_does_not_escape_is_found(text: str) -> None:
    found = 0
    for place in PLACES:
        try:
            assert_harmless(place.format(text), text)
        except AssertionError:
            found += 1
    assert found >= 1


def test_an_address_that_runs_code_is_found() -> None:
    with pytest.raises(AssertionError):
        assert_harmless('<a href="javascript:alert(1)">x</a>')


def test_a_text_that_is_not_on_the_page_is_missed() -> None:
    with pytest.raises(AssertionError, match="not on the page"):
        assert_harmless("<p></p>", "something")

"""Pages of docs/reference that are made from the code say what the code says."""

from __future__ import annotations

import pytest

from scripts.reference.pages import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run: make reference"

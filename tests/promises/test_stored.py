"""What lies on disk and what was digested is a promise: stores, tables, archives of arrays, and their digests."""

from __future__ import annotations

from pathlib import Path

from tests.promises.digests import digests
from tests.promises.fixed_stores import store_files
from tests.promises.recordings import assert_same, json_text, load_text


def test_a_store_of_fixed_numbers_has_the_recorded_files(tmp_path: Path) -> None:
    assert_same("stores.json", load_text("stores.json"), json_text(store_files(tmp_path)))


def test_fixed_data_have_the_recorded_digests(tmp_path: Path) -> None:
    assert_same("digests.json", load_text("digests.json"), json_text(digests(tmp_path)))

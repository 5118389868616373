"""What the result of a verification counts for, and how long."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.server.queries import StoreRow
from rollbook.server.stores.verification import is_running, state_of

NOW = 1_000_000_000_000


def row(**verification: Any) -> StoreRow:
    found = {"state": "passed", "manifest_sha256": "m", "noted_at_us": NOW, **verification}
    return StoreRow("id", "name", "/place", None, 1, "m", "c", None, None, None, found)


@pytest.mark.parametrize(
    ("verification", "state"),
    [
        ({}, "passed"),
        ({"state": "failed"}, "failed"),
        ({"manifest_sha256": "of another"}, "outdated"),
        ({"state": "running"}, "running"),
        ({"state": "running", "noted_at_us": NOW - 59_000_000}, "running"),
        ({"state": "running", "noted_at_us": NOW - 61_000_000}, "stopped"),
    ],
)
def test_the_state_of_a_verification(verification: dict[str, Any], state: str) -> None:
    """A process that ended in the middle leaves `running` behind; after a minute of silence it was stopped."""
    found = row(**verification)
    assert state_of(found, NOW) == state
    assert is_running(found, NOW) == (state == "running")


def test_a_store_that_was_never_verified_has_no_state() -> None:
    never = StoreRow("id", "name", "/place", None, 1, "m", "c", None, None, None, None)
    assert state_of(never, NOW) is None

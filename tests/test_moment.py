"""Records state the time, or the one that SOURCE_DATE_EPOCH fixes."""

from __future__ import annotations

import time

import pytest

from rollbook.errors import ConfigurationError
from rollbook.moment import now_ms


def test_it_is_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    before = time.time_ns() // 1_000_000
    assert before <= now_ms() <= time.time_ns() // 1_000_000


def test_it_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1760000000")
    assert now_ms() == 1_760_000_000_000


@pytest.mark.parametrize("stated", ["", "-1", "1.5", "soon", "²", "9" * 20])
def test_a_wrong_time_is_refused(monkeypatch: pytest.MonkeyPatch, stated: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", stated)
    with pytest.raises(ConfigurationError, match="SOURCE_DATE_EPOCH"):
        now_ms()

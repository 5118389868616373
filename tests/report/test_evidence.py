"""What a report says about how its pairs were measured."""

from __future__ import annotations

import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.report.evidence import RunEvidence


def results(versions: list[str]) -> list[EvalResult]:
    return [
        EvalResult(str(place), None, "complete", {"repro": {"env_version": {"candidate": version}}})
        for place, version in enumerate(versions)
    ]


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (["a"] * 3, "a (3 pairs)"),
        (["a", "b", "a"], "a (2 pairs), b (1 pair)"),
        ([*"abcdefg", "g"], "7 of them, such as g (2 pairs)"),
    ],
)
def test_versions_are_listed_or_counted_and_none_is_left_out_in_silence(
    versions: list[str], words: str
) -> None:
    assert dict(RunEvidence.of(results(versions)).facts)["versions"] == words

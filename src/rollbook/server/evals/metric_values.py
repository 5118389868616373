"""Metrics of one pair: checks their size and values, and adds the outcome of the baseline where the runner does not
know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollbook.contracts.evals import LONGEST_ERROR
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import InvalidValue
from rollbook.server.db.value_checks import checked_object, is_storable
from rollbook.server.http.responses import json_bytes

MOST_BYTES = 64 << 10
"""Bytes of the metrics of one pair, as JSON. Time series belong into an artifact."""
_BASELINES = {f"{name}_baseline": name for name in OUTCOMES}


def checked_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    kept = checked_object("result", "metrics", metrics)
    size = len(json_bytes(kept))
    if size > MOST_BYTES:
        expected = f"at most {MOST_BYTES} bytes of JSON; put columns into an artifact"
        raise InvalidValue(
            record="result", field="metrics", value=f"{size} bytes", expected=expected
        )
    return kept


def kept_error(error: str | None) -> str | None:
    """The error of a policy: cut to length, with characters that cannot be stored replaced. It is never refused."""
    if error is None:
        return None
    kept = error[:LONGEST_ERROR]
    if is_storable(kept):
        return kept
    return "".join(each if is_storable(each) else "\ufffd" for each in kept)


def lacks_baseline(metrics: Mapping[str, Any]) -> bool:
    """The outcome of the baseline is null or missing."""
    return any(metrics.get(name) is None for name in _BASELINES)


def with_baseline(metrics: dict[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded outcome of the episode fills in what is missing, and changes nothing else."""
    known = {
        key: outcome[name]
        for key, name in _BASELINES.items()
        if metrics.get(key) is None and outcome.get(name) is not None
    }
    return {**metrics, **known}

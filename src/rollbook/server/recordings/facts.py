"""What is known about an episode without its arrays, for the detectors of failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollbook.contracts.evals import EVIDENCE_KEY
from rollbook.contracts.typed_metadata import TYPE_KEY, Battery as TypedBattery
from rollbook.scoring.failures.recorded import (
    Battery,
    EpisodeFacts,
    FailedScenario,
    JointLimits,
    LostReplay,
)
from rollbook.scoring.outcomes import outcome_of
from rollbook.server.db.analysis_table import ReplayResult, ScenarioResult
from rollbook.server.queries import EpisodeRow

_DEEPEST = 3
_MOST_BATTERIES = 16
_LONGEST_REASON = 10_000


def facts_of(
    episode: EpisodeRow, replays: Sequence[ReplayResult], scenarios: Sequence[ScenarioResult]
) -> EpisodeFacts:
    outcome = outcome_of(episode.metadata)
    collisions = outcome["collision_count"]
    reason = episode.metadata.get("failure_reason")
    return EpisodeFacts(
        status=(episode.archived_from or "") if episode.status == "archived" else episode.status,
        success=None if outcome["success"] is None else bool(outcome["success"]),
        collisions=None if collisions is None else int(collisions),
        failure_reason=reason[:_LONGEST_REASON] if isinstance(reason, str) else None,
        failure_time_s=episode.failure_time_s,
        batteries=tuple(_batteries(episode.metadata)),
        joint_limits=joint_limits(episode.metadata.get("joint_limits")),
        lost_replays=tuple(lost for each in replays for lost in _losses(each)),
        failed_scenarios=tuple(
            FailedScenario(
                each.scenario_id, each.name or each.scenario_id[-8:], each.severity, each.error
            )
            for each in scenarios
        ),
    )


def _batteries(metadata: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[Battery]:
    if metadata.get(TYPE_KEY) == TypedBattery.wire_name:
        percent = _number(metadata.get("percent"))
        yield Battery(path, percent)
    for key, value in list(metadata.items())[: _MOST_BATTERIES if depth else None]:
        if isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _batteries(value, f"{path}.{key}" if path else key, depth + 1)


def joint_limits(given: Any) -> JointLimits | None:
    """`{"lower": [...], "upper": [...]}`, or one `[lower, upper]` for each joint. None for anything else."""
    pairs: list[Any]
    if isinstance(given, Mapping) and set(given) == {"lower", "upper"}:
        sides = (given["lower"], given["upper"])
        if not all(isinstance(each, list) for each in sides) or len(sides[0]) != len(sides[1]):
            return None
        pairs = [list(each) for each in zip(*sides, strict=True)]
    elif isinstance(given, Mapping):
        pairs = list(given.values())
    else:
        pairs = given if isinstance(given, list) else []
    limits = [
        (low, high)
        for each in pairs
        if isinstance(each, list) and len(each) == 2
        for low, high in [(_number(each[0]), _number(each[1]))]
        if low is not None and high is not None and low < high
    ]
    if not limits or len(limits) != len(pairs):
        return None
    return JointLimits([low for low, _ in limits], [high for _, high in limits])


def _losses(result: ReplayResult) -> Iterator[LostReplay]:
    metrics = result.metrics
    stated = metrics.get(EVIDENCE_KEY)
    kinds = stated if isinstance(stated, Mapping) else {}
    name = result.run_name or result.eval_run_id[-8:]
    if metrics.get("success_baseline") is True and metrics.get("success_candidate") is False:
        numbers = "the baseline succeeded and this replay did not"
        kind = str(kinds.get("success", "asserted"))
        yield LostReplay(result.eval_run_id, name, "success", kind, numbers)
    before, now = (
        _number(metrics.get(f"collision_count_{side}")) for side in ("baseline", "candidate")
    )
    if before is not None and now is not None and now > before:
        numbers = f"the baseline collided {before:g} times and this replay {now:g} times"
        kind = str(kinds.get("collision_count", "asserted"))
        yield LostReplay(result.eval_run_id, name, "collisions", kind, numbers)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) < 1e300 else math.nan
    return number if math.isfinite(number) else None

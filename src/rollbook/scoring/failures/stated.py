"""What the episode, its eval runs and its scenarios say themselves. No array is needed."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook.contracts.failures import Confidence, FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, Recording

_LONGEST_QUOTE = 200
_MEASURED: dict[str, Confidence] = {
    "closed_loop": "high",
    "counterfactual": "high",
    "asserted": "medium",
}
"""By how the outcome was measured. A replay that was not measured says nothing about success."""


def outcome(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    if facts.success is not False and facts.status != "failed":
        return
    said = "success = false" if facts.success is False else "its status is failed"
    hits = "" if not facts.collisions else f", with {_count(facts.collisions, 'collision')}"
    unknown = " Whether it succeeded is not recorded." if facts.success is None else ""
    yield FailureFinding(
        code="outcome",
        title="Outcome: not successful" if facts.success is False else "Recording ended as failed",
        evidence=f"The episode says so itself: {said}{hits}.{unknown}",
        confidence="high",
        next_step="Watch the seconds before this moment."
        if facts.failure_time_s is not None
        else "Record failure_time_s when the episode ends, so that this page can show the moment.",
        at_s=facts.failure_time_s,
    )


def failure_reason(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    lines = (facts.failure_reason or "").strip().splitlines()
    if not lines:
        return
    first = lines[0].strip()
    quote = first if len(first) <= _LONGEST_QUOTE else f"{first[:_LONGEST_QUOTE]}…"
    more = f" ({len(lines) - 1} more lines in the metadata)" if len(lines) > 1 else ""
    yield FailureFinding(
        code="failure_reason",
        title="A reason was recorded",
        evidence=f"The recorder wrote: “{quote}”{more}.",
        confidence="high",
        next_step="Read failure_reason in the metadata.",
        at_s=facts.failure_time_s,
    )


def replay_regression(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for each in facts.lost_replays:
        confidence = _MEASURED.get(each.evidence)
        if confidence is not None:
            yield FailureFinding(
                code="replay_regression",
                title=f"Worse than its baseline on {each.what}",
                evidence=f"In eval run {each.run_name} {each.numbers} ({each.evidence.replace('_', ' ')}).",
                confidence=confidence,
                next_step="Open the pair and look where the actions part.",
                at_s=facts.failure_time_s,
            )


def failing_scenario(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for each in facts.failed_scenarios:
        error = (
            f" Error: “{each.error.strip().splitlines()[0][:_LONGEST_QUOTE]}”."
            if each.error and each.error.strip()
            else ""
        )
        yield FailureFinding(
            code="failing_scenario",
            title=f"Fails the scenario {each.name}",
            evidence=f"This replay was judged by the scenario and did not pass. Severity: {each.severity}.{error}",
            confidence="high",
            next_step="The gate blocks this policy version until the scenario passes."
            if each.severity == "critical"
            else "Open the scenario and compare with its baseline.",
            at_s=facts.failure_time_s,
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

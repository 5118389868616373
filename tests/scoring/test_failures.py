"""Detectors of failures: how often they find a planted fault and how often they are wrong, and what each one says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import FEATURES_KEY, SCORE_KEY
from rollbook.contracts.failures import FailureFinding, FindingCode
from rollbook.scoring.failures.analyse import ANALYZER_VERSION, DETECTORS, analyse
from rollbook.scoring.failures.recorded import (
    Battery,
    EpisodeFacts,
    FailedScenario,
    JointLimits,
    LostReplay,
    PictureClock,
    RecordedArray,
    Recording,
)
from rollbook.scoring.failures.rules import RULES
from tests.scoring.failure_recordings import FAULTS, Case, without_fault

DOCUMENT = Path(__file__).parents[2] / "docs" / "explain" / "failure-analysis.md"
CASES_OF_EACH = 20
CASES_WITHOUT = 80

FLOORS: dict[FindingCode, tuple[float, float]] = {
    rule.code: (rule.precision, rule.recall)
    for rule in RULES
    if rule.precision is not None and rule.recall is not None
}
"""Precision and recall of each detector that looks at arrays, as docs/explain/failure-analysis.md states them."""


def measured(seed: int, of_each: int, without: int) -> dict[FindingCode, tuple[float, float]]:
    """Precision and recall, over recordings with one fault each and recordings with none."""
    random = np.random.default_rng(seed)
    found, missed, wrong = Counter[FindingCode](), Counter[FindingCode](), Counter[FindingCode]()
    makers = [without_fault] * without + [make for make in FAULTS.values() for _ in range(of_each)]
    for make in makers:
        case: Case = make(random)
        findings = analyse(case.facts, case.recording)
        right = [each for each in findings if case.is_found(each)]
        wrong.update(each.code for each in findings if each not in right)
        if case.fault is not None:
            (found if right else missed)[case.fault] += 1
    return {
        code: (
            found[code] / max(1, found[code] + wrong[code]),
            found[code] / max(1, found[code] + missed[code]),
        )
        for code in FLOORS
    }


def test_precision_and_recall_are_at_least_what_the_documentation_says() -> None:
    for code, (precision, recall) in measured(0, CASES_OF_EACH, CASES_WITHOUT).items():
        assert precision >= FLOORS[code][0], f"{code}: precision {precision:.3f}"
        assert recall >= FLOORS[code][1], f"{code}: recall {recall:.3f}"


def test_every_detector_has_a_rule_that_people_can_read() -> None:
    assert [rule.code for rule in RULES] == [each.__name__ for each in DETECTORS]


def test_the_documentation_states_the_floors_of_this_version() -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) % \| (\d+) % \|$", text, re.MULTILINE)
    stated = {code: (int(precision), int(recall)) for code, precision, recall in rows}
    assert stated == {
        code: (round(100 * precision), round(100 * recall))
        for code, (precision, recall) in FLOORS.items()
    }
    assert f"version {ANALYZER_VERSION}" in text


# --------------------------------------------------------------------------------- what is said


def only(facts: EpisodeFacts, *arrays: RecordedArray, **more: PictureClock) -> FailureFinding:
    [finding] = analyse(facts, Recording(arrays=arrays, pictures=tuple(more.values())))
    return finding


def channel(topic: str, values: object, rate: float = 100, kind: str = "sensor") -> RecordedArray:
    array = np.asarray(values, np.float64)
    seconds = np.arange(len(array)) / rate
    return RecordedArray(topic, kind, (topic,), seconds, array[:, None])  # type: ignore[arg-type]


def noise(rows: int = 1000, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=rows)


def test_an_episode_that_succeeded_with_nothing_odd_has_no_findings() -> None:
    assert analyse(EpisodeFacts(success=True), Recording(arrays=[channel("/a", noise())])) == []


def test_the_outcome_and_the_reason_come_first_with_the_moment_of_the_failure() -> None:
    facts = EpisodeFacts(
        status="failed",
        success=False,
        collisions=2,
        failure_time_s=5.64,
        failure_reason="object dropped\n  at step 564\n",
    )
    outcome, reason = analyse(facts, Recording())
    assert outcome.evidence == "The episode says so itself: success = false, with 2 collisions."
    assert outcome.at_s == reason.at_s == 5.64
    assert "“object dropped” (1 more lines" in reason.evidence


def test_a_failed_recording_whose_outcome_is_unknown_says_so() -> None:
    finding = only(EpisodeFacts(status="failed"))
    assert "Whether it succeeded is not recorded" in finding.evidence
    assert "failure_time_s" in finding.next_step


def test_a_replay_that_was_measured_worse_counts_and_one_that_was_not_measured_does_not() -> None:
    def facts(evidence: str) -> EpisodeFacts:
        lost = LostReplay("run", "nightly", "success", evidence, "the baseline succeeded")
        return EpisodeFacts(lost_replays=(lost,))

    assert only(facts("closed_loop")).confidence == "high"
    assert only(facts("asserted")).confidence == "medium"
    assert analyse(facts("open_loop"), Recording()) == []


def test_a_failing_critical_scenario_says_that_the_gate_blocks() -> None:
    failed = FailedScenario("id", "Mug to bin", "critical", "timeout\nmore")
    finding = only(EpisodeFacts(failed_scenarios=(failed,)))
    assert finding.title == "Fails the scenario Mug to bin"
    assert "“timeout”" in finding.evidence
    assert "gate blocks" in finding.next_step


def test_a_battery_in_the_metadata_or_in_a_channel_that_is_nearly_empty() -> None:
    assert only(EpisodeFacts(batteries=(Battery("battery", 3.0),))).title == "Battery at 3 %"
    assert analyse(EpisodeFacts(batteries=(Battery("battery", 60.0),)), Recording()) == []
    finding = only(EpisodeFacts(), channel("/battery/percentage", np.linspace(0.2, 0.02, 500)))
    assert finding.title == "Battery at 2 %"
    assert finding.at_s == pytest.approx(4.16, abs=0.02)


def test_a_slow_discharge_is_no_brownout() -> None:
    volts = channel("/battery/voltage", np.linspace(25, 18, 3000))
    assert analyse(EpisodeFacts(), Recording(arrays=[volts])) == []


def test_a_sensor_that_stops_while_everything_stops_is_not_reported() -> None:
    still = noise()
    still[300:600] = still[300]
    assert analyse(EpisodeFacts(), Recording(arrays=[channel("/a", still)])) == []
    finding = only(EpisodeFacts(), channel("/a", still), channel("/b", noise(seed=1)))
    assert finding.title == "Sensor flat for 3.0 s"
    assert (finding.at_s, finding.until_s) == (3.0, 5.99)


def test_an_action_that_is_nan_is_a_high_finding() -> None:
    values = noise()
    values[500:] = np.nan
    finding = only(EpisodeFacts(), channel("/act", values, kind="action"))
    assert (finding.confidence, finding.at_s) == ("high", 5.0)
    assert "to the end; 500 of 1,000" in finding.evidence


def test_a_score_that_is_nan_because_there_is_no_such_candidate_is_no_finding() -> None:
    scores = np.stack([noise(), noise(seed=1)], axis=1)
    scores[500:, 1] = np.nan
    seconds = np.arange(len(scores)) / 100

    def found(key: str) -> list[FailureFinding]:
        names = (f"{key}/0", f"{key}/1")
        array = RecordedArray("/choice", "action", names, seconds, scores)
        return analyse(EpisodeFacts(), Recording(arrays=[array]))

    assert found(SCORE_KEY) == found(FEATURES_KEY) == []
    assert [each.channel for each in found("/choice/score_of_all")] == ["/choice/score_of_all/1"]


def test_findings_are_ordered_by_confidence_and_then_by_nearness_to_the_failure() -> None:
    early, late = noise(), noise(seed=1)
    early[100:110], late[800:810] = np.nan, np.nan
    facts = EpisodeFacts(failure_time_s=8.2)
    arrays = [channel("/early", early), channel("/late", late)]
    assert [each.channel for each in analyse(facts, Recording(arrays=arrays))] == [
        "/late",
        "/early",
    ]
    nobody_knows = analyse(EpisodeFacts(), Recording(arrays=arrays))
    assert [each.channel for each in nobody_knows] == ["/early", "/late"]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 25])
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_no_detector_stumbles_over_short_empty_or_strange_recordings(
    rows: int, value: float
) -> None:
    topics = [
        "/joint_states/position",
        "/battery/voltage",
        "/gripper/effort",
        "/battery/percentage",
    ]
    arrays = [channel(each, np.full(rows, value)) for each in topics]
    arrays += [channel("/gripper/command", np.full(rows, value), kind="action")]
    arrays += [channel("/stands/still", np.full(rows, value), rate=np.inf)]
    pictures = [PictureClock("/camera", np.zeros(rows))]
    for detector in DETECTORS:
        list(detector(EpisodeFacts(), Recording(arrays=arrays, pictures=pictures)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 200), odd=st.floats(0, 1))
def test_no_numbers_and_no_clock_make_a_detector_fail(seed: int, rows: int, odd: float) -> None:
    """A detector that fails would take the page of the episode with it. Warnings are errors here."""
    random = np.random.default_rng(seed)
    every = np.array([0.0, 1e308, -1e308, 5e-324, np.nan, np.inf, -np.inf])
    strange = every[: random.integers(1, len(every) + 1)]
    topics = [
        "/joint_states/position",
        "/battery/voltage",
        "/gripper/effort",
        "/battery/percentage",
    ]
    arrays = []
    for topic, kind in [*((each, "sensor") for each in topics), ("/gripper/command", "action")]:
        values = random.normal(size=(rows, 2)).cumsum(0)
        replaced = random.random((rows, 2)) < odd
        values[replaced] = random.choice(strange, replaced.sum())
        seconds = np.sort(random.choice([0.0, 1e-9, 0.01, 1.0, 1e9], rows)).cumsum()
        names = (f"{topic}/0", f"{topic}/1")
        arrays.append(RecordedArray(topic, kind, names, seconds, values))  # type: ignore[arg-type]
    pictures = [PictureClock("/camera", arrays[0].seconds)]
    limits = JointLimits([-1.0, -1.0], [1.0, 1.0]) if odd < 0.5 else None
    facts = EpisodeFacts(joint_limits=limits, failure_time_s=1.0)
    for finding in analyse(facts, Recording(arrays=arrays, pictures=pictures)):
        assert finding.at_s is None or np.isfinite(finding.at_s)


def test_thousands_of_broken_channels_give_a_short_list() -> None:
    values = noise()
    values[500] = np.nan
    arrays = [channel(f"/c{number}", values) for number in range(1000)]
    assert len(analyse(EpisodeFacts(), Recording(arrays=arrays))) == 5

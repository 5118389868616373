"""Decision: ship or hold, and every reason for it. A gate asks, the measured outcomes answer.

A candidate ships when nothing speaks against it. Doubt holds: what was not measured, what was measured too rarely, what
lies on a threshold. Each reason is a code for machines and a sentence for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring.outcome_statistics import OutcomeStatistics
from rollbook.scoring.paired_tests import holm
from rollbook.scoring.sequential import log_e_value

EPSILON = 1e-9
"""Nothing that lies this close to a threshold ships."""

SHOWN = {
    "success": "success",
    "reward_total": "reward",
    "collision_count": "collisions",
    "time_to_goal_s": "time to goal",
}
_ORDER = (
    *("env_mismatch", "nondeterministic_baseline", "critical_scenario", "not_measured"),
    *("mixed_evidence", "missing_data", "regression", "insufficient_n", "not_better"),
)

Statistics = Mapping[str, OutcomeStatistics]


class Finding(NamedTuple):
    """One reason to hold."""

    reason: str
    text: str


@dataclass(frozen=True)
class RunFacts:
    """What a decision has to know about the run beside its outcomes."""

    total: int
    complete: int
    failed: int
    env_mismatches: int = 0
    nondeterministic: int = 0
    critical: tuple[tuple[str, str], ...] = ()
    """Critical scenarios that did not pass: id, and why."""

    @property
    def left(self) -> int:
        """Pairs that have no result yet."""
        return max(0, self.total - self.complete - self.failed)


@dataclass(frozen=True)
class Verdict:
    recommend: Literal["ship", "hold"]
    findings: tuple[Finding, ...]
    better: tuple[str, ...]
    """Primaries that were shown to be better."""
    left_out: tuple[str, ...]
    """Metrics the gate names, does not require, and that no pair has."""
    early_stop: Literal["ship", "hold"] | None = None

    @property
    def reasons(self) -> list[str]:
        return list(dict.fromkeys(finding.reason for finding in self.findings))


def judge(statistics: Statistics, gate: Gate, facts: RunFacts) -> Verdict:
    """By this gate and no other. The same outcomes give the same verdict, whatever order they came in."""
    findings = [*_run_findings(facts)]
    deciding = [rule for rule in gate.rules if rule.role != "info"]
    for rule in deciding:
        findings += _outcome_findings(statistics[rule.metric], rule, gate)
    better = _shown_better(statistics, gate)
    findings += _claim_findings(statistics, gate, better)
    findings = list(dict.fromkeys(findings))
    findings.sort(key=lambda finding: _ORDER.index(finding.reason.split(":")[0]))
    return Verdict(
        recommend="hold" if findings else "ship",
        findings=tuple(findings),
        better=better,
        left_out=tuple(
            rule.metric for rule in deciding if not (rule.required or statistics[rule.metric].n)
        ),
        early_stop=_early_stop(statistics, gate, facts, findings),
    )


def usable(statistics: OutcomeStatistics, gate: Gate) -> bool:
    """Measured in one way only, and in one that the gate takes."""
    kinds = statistics.pairs.kinds
    return len(kinds) == 1 and kinds[0] in gate.evidence


def has_crossed(wins: int, losses: int, alpha: float) -> bool:
    """Whether the bet on wins has paid 1/alpha."""
    return float(log_e_value(wins, losses)) >= -math.log(alpha) + EPSILON


def shown_worse(statistics: OutcomeStatistics, gate: Gate) -> bool:
    if statistics.p is None:
        return False
    if gate.design == "sequential" and statistics.pairs.metric == "success":
        return has_crossed(statistics.losses, statistics.wins, gate.alpha)
    return statistics.p.worse <= gate.alpha + EPSILON


def _run_findings(facts: RunFacts) -> list[Finding]:
    findings = []
    if facts.env_mismatches:
        text = f"another environment or seed than the baseline's in {facts.env_mismatches} of {facts.total} pairs"
        findings.append(Finding("env_mismatch", text))
    if facts.nondeterministic:
        text = (
            f"the baseline did not repeat itself in {facts.nondeterministic} of {facts.total} pairs"
        )
        findings.append(Finding("nondeterministic_baseline", text))
    for scenario, why in facts.critical:
        findings.append(
            Finding(f"critical_scenario:{scenario}", f"critical scenario {scenario}: {why}")
        )
    return findings


def _outcome_findings(statistics: OutcomeStatistics, rule: MetricRule, gate: Gate) -> list[Finding]:
    name = SHOWN[rule.metric]
    pairs = statistics.pairs
    if not statistics.n:
        if pairs.unusable:
            text = f"{name} was sent, and {pairs.unusable} values of it are no such outcome"
            return [Finding("not_measured", text)]
        if not rule.required:
            return []
        return [Finding("not_measured", f"{name} was not measured")]
    losses = _loss_findings(statistics, rule, gate)
    findings = [*_evidence_findings(statistics, gate)]
    if not pairs.kinds and any(each.reason.startswith("regression") for each in losses):
        findings = []  # it crashed where the baseline is known to have done well: that is an answer
    # a time to goal only comes beside success, which is asked for its own number of pairs
    if statistics.n < gate.n_min and rule.metric != "time_to_goal_s":
        has = f"{statistics.n} pair{'' if statistics.n == 1 else 's'}"
        text = f"{name} has {has}, the gate asks for {gate.n_min}"
        findings.append(Finding("insufficient_n", text))
    if pairs.used_share < gate.min_used_share:
        text = f"{name} is missing in {pairs.missing} of {pairs.total} pairs"
        findings.append(Finding("missing_data", text))
    return findings + losses


def _evidence_findings(statistics: OutcomeStatistics, gate: Gate) -> list[Finding]:
    name, kinds = SHOWN[statistics.pairs.metric], statistics.pairs.kinds
    if len(kinds) > 1:
        text = f"{name} is partly {' and partly '.join(kinds)}: these do not average"
        return [Finding("mixed_evidence", text)]
    if not kinds:
        return [Finding("not_measured", f"{name} has crashes only, and no measured pair")]
    if kinds[0] not in gate.evidence:
        text = f"{name} is {kinds[0]}, the gate takes {' or '.join(gate.evidence) or 'none'}"
        return [Finding("not_measured", text)]
    return []


def _loss_findings(statistics: OutcomeStatistics, rule: MetricRule, gate: Gate) -> list[Finding]:
    """A loss that was shown is a regression. One that merely cannot be ruled out yet asks for more pairs."""
    name = SHOWN[rule.metric]
    regression = f"regression:{rule.metric}"
    worse = shown_worse(statistics, gate)
    findings = []
    if worse and (rule.margin is None or rule.role == "guard"):
        findings.append(Finding(regression, f"{name} is worse"))
    if rule.margin is not None:
        bar = -rule.margin + EPSILON
        assert statistics.gain is not None
        if statistics.lower is None or (statistics.lower <= bar < statistics.gain and not worse):
            text = (
                f"{name} could be worse by more than {_borne(rule)}: there are too few pairs to say"
            )
            findings.append(Finding("insufficient_n", text))
        elif statistics.lower <= bar:
            how = "by more than" if statistics.gain <= bar else "perhaps by more than"
            findings.append(Finding(regression, f"{name} is worse, {how} {_borne(rule)}"))
    most, count = rule.most_catastrophes, len(statistics.catastrophic_rows or ())
    if most is not None and count > most:
        text = f"{name}: {count} catastrophes, the gate allows {most}"
        findings.append(Finding(regression, text))
    return findings


def _borne(rule: MetricRule) -> str:
    """The margin as people say it."""
    margin = rule.margin or 0.0
    return f"{100 * margin:g} points" if rule.metric == "success" else f"{margin:g}"


def _shown_better(statistics: Statistics, gate: Gate) -> tuple[str, ...]:
    """Corrected for having more than one chance. While one looks again and again, only the e-value counts."""
    primaries = [statistics[rule.metric] for rule in gate.rules if rule.role == "primary"]
    asked = {each.pairs.metric: each for each in primaries if each.n and usable(each, gate)}
    if gate.design == "sequential":
        success = asked.get("success")
        crossed = success and has_crossed(success.wins, success.losses, gate.alpha)
        return ("success",) if crossed else ()
    time = asked.get("time_to_goal_s")
    if time is not None and (time.n < gate.n_min or not statistics["success"].n):
        del asked["time_to_goal_s"]  # what few pairs have may spare it as a guard; it is no claim
    adjusted = holm({metric: each.p.better for metric, each in asked.items() if each.p})
    return tuple(metric for metric, p in adjusted.items() if p < gate.alpha - EPSILON)


def _claim_findings(statistics: Statistics, gate: Gate, better: tuple[str, ...]) -> list[Finding]:
    primaries = [rule for rule in gate.rules if rule.role == "primary"]
    if gate.mode == "non_inferiority":
        primaries = [rule for rule in primaries if rule.margin is not None]
    elif gate.design == "sequential":
        primaries = [rule for rule in primaries if rule.metric == "success"]
    names = " nor ".join(SHOWN[rule.metric] for rule in primaries)
    neither = f"neither {names} was" if len(primaries) > 1 else f"{names} was not"
    if not any(statistics[rule.metric].n for rule in primaries):
        return [Finding("not_measured", f"{neither} measured")]
    if gate.mode == "superiority" and not better:
        return [Finding("not_better", f"{neither} shown to be better")]
    return []


def _early_stop(
    statistics: Statistics, gate: Gate, facts: RunFacts, findings: list[Finding]
) -> Literal["ship", "hold"] | None:
    """Whether the pairs that are left can be spared. Where a margin is all that is asked, a small loss that was shown
    may still pass at the end."""
    if gate.design == "fixed" or not facts.left:
        return None
    success = statistics["success"]
    settled = gate.mode == "superiority" or any(
        finding.reason == "regression:success" for finding in findings
    )
    if settled and has_crossed(success.losses, success.wins, gate.alpha):
        return "hold"
    return "ship" if gate.mode == "superiority" and not findings else None

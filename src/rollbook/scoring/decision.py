"""Decision: ship or hold by the rules of a gate, with every reason to hold.

A candidate ships when there is no reason to hold. Doubt is a reason to hold: an outcome that was not measured, that has
too few pairs, or that lies on a threshold. Each reason is a code for programs and a text for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rollbook.contracts.decision import DecisionFinding, Recommendation
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.outcome_statistics import OutcomeStatistics
from rollbook.scoring.paired_tests import holm, log_e_value

EPSILON = 1e-9
"""A value this close to a threshold does not pass it."""
_ORDER = (
    *("env_mismatch", "nondeterministic_baseline", "critical_scenario", "not_measured"),
    *("mixed_evidence", "missing_data", "regression", "insufficient_n", "not_better"),
)

Statistics: TypeAlias = Mapping[Outcome, OutcomeStatistics]


@dataclass(frozen=True)
class RunFacts:
    """Facts about the run, beside its outcomes, that a decision needs."""

    total: int
    complete: int
    failed: int
    env_mismatches: int = 0
    nondeterministic: int = 0
    critical: tuple[tuple[str, str], ...] = ()
    """Critical scenarios that the candidate did not pass: id and reason."""

    @property
    def pending(self) -> int:
        """Pairs that have no result yet."""
        return max(0, self.total - self.complete - self.failed)


@dataclass(frozen=True)
class Verdict:
    """The fields of a `Decision` that decide."""

    recommend: Recommendation
    findings: tuple[DecisionFinding, ...]
    better: tuple[Outcome, ...]
    left_out: tuple[Outcome, ...]
    early_stop: Recommendation | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.reason for finding in self.findings))


def judge(statistics: Statistics, gate: Gate, facts: RunFacts) -> Verdict:
    """Judge the outcomes by this gate. The order of the results makes no difference."""
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
    """Whether all pairs have the same kind of evidence, and the gate accepts that kind."""
    kinds = statistics.pairs.kinds
    return len(kinds) == 1 and kinds[0] in gate.evidence


def has_crossed(wins: int, losses: int, alpha: float) -> bool:
    """Whether the e-value of "better" has reached 1/alpha."""
    return float(log_e_value(wins, losses)) >= -math.log(alpha) + EPSILON


def _is_shown_worse(statistics: OutcomeStatistics, gate: Gate) -> bool:
    if statistics.p is None:
        return False
    if gate.design == "sequential" and statistics.pairs.metric == "success":
        return has_crossed(statistics.losses, statistics.wins, gate.alpha)
    return statistics.p.worse <= gate.alpha + EPSILON


def _run_findings(facts: RunFacts) -> list[DecisionFinding]:
    findings = []
    if facts.env_mismatches:
        text = f"another environment or seed than the baseline's in {facts.env_mismatches} of {facts.total} pairs"
        findings.append(DecisionFinding("env_mismatch", text))
    if facts.nondeterministic:
        text = (
            f"the baseline did not repeat itself in {facts.nondeterministic} of {facts.total} pairs"
        )
        findings.append(DecisionFinding("nondeterministic_baseline", text))
    for scenario, why in facts.critical:
        findings.append(
            DecisionFinding(f"critical_scenario:{scenario}", f"critical scenario {scenario}: {why}")
        )
    return findings


def _outcome_findings(
    statistics: OutcomeStatistics, rule: MetricRule, gate: Gate
) -> list[DecisionFinding]:
    name = OUTCOMES[rule.metric].label
    pairs = statistics.pairs
    if not statistics.n:
        if pairs.unusable:
            text = f"{name} was sent, and {pairs.unusable} values of it are no such outcome"
            return [DecisionFinding("not_measured", text)]
        if not rule.required:
            return []
        return [DecisionFinding("not_measured", f"{name} was not measured")]
    losses = _loss_findings(statistics, rule, gate)
    findings = [*_evidence_findings(statistics, gate)]
    if not pairs.kinds and any(each.reason.startswith("regression") for each in losses):
        findings = []  # the candidate crashed where the baseline is known to have succeeded: that is measured
    # A time to goal exists only for successes, and success has its own minimum number of pairs.
    if statistics.n < gate.n_min and rule.metric != "time_to_goal_s":
        has = f"{statistics.n} pair{'' if statistics.n == 1 else 's'}"
        text = f"{name} has {has}, the gate asks for {gate.n_min}"
        findings.append(DecisionFinding("insufficient_n", text))
    if pairs.used_share < gate.min_used_share:
        text = f"{name} is missing in {pairs.missing} of {pairs.total} pairs"
        findings.append(DecisionFinding("missing_data", text))
    return findings + losses


def _evidence_findings(statistics: OutcomeStatistics, gate: Gate) -> list[DecisionFinding]:
    name, kinds = OUTCOMES[statistics.pairs.metric].label, statistics.pairs.kinds
    if len(kinds) > 1:
        text = f"{name} is partly {' and partly '.join(kinds)}: these do not average"
        return [DecisionFinding("mixed_evidence", text)]
    if not kinds:
        return [DecisionFinding("not_measured", f"{name} has crashes only, and no measured pair")]
    if kinds[0] not in gate.evidence:
        text = f"{name} is {kinds[0]}, the gate takes {' or '.join(gate.evidence) or 'none'}"
        return [DecisionFinding("not_measured", text)]
    return []


def _loss_findings(
    statistics: OutcomeStatistics, rule: MetricRule, gate: Gate
) -> list[DecisionFinding]:
    """A loss that was shown is a regression. A loss that cannot be ruled out yet needs more pairs."""
    name = OUTCOMES[rule.metric].label
    regression = f"regression:{rule.metric}"
    worse = _is_shown_worse(statistics, gate)
    findings = []
    if worse and (rule.margin is None or rule.role == "guard"):
        findings.append(DecisionFinding(regression, f"{name} is worse"))
    if rule.margin is not None:
        bar = -rule.margin + EPSILON
        in_points = rule.metric == "success"
        margin = f"{100 * rule.margin:g} points" if in_points else f"{rule.margin:g}"
        assert statistics.gain is not None
        if statistics.lower is None or (statistics.lower <= bar < statistics.gain and not worse):
            text = f"{name} could be worse by more than {margin}: there are too few pairs to say"
            findings.append(DecisionFinding("insufficient_n", text))
        elif statistics.lower <= bar:
            how = "by more than" if statistics.gain <= bar else "perhaps by more than"
            findings.append(DecisionFinding(regression, f"{name} is worse, {how} {margin}"))
    most, count = rule.most_catastrophes, len(statistics.catastrophic_rows or ())
    if most is not None and count > most:
        text = f"{name}: {count} catastrophes, the gate allows {most}"
        findings.append(DecisionFinding(regression, text))
    return findings


def _shown_better(statistics: Statistics, gate: Gate) -> tuple[Outcome, ...]:
    """Primary outcomes that are better, corrected for testing several. In a sequential run only the e-value counts."""
    primaries = [statistics[rule.metric] for rule in gate.rules if rule.role == "primary"]
    tested = {each.pairs.metric: each for each in primaries if each.n and usable(each, gate)}
    if gate.design == "sequential":
        success = tested.get("success")
        crossed = success and has_crossed(success.wins, success.losses, gate.alpha)
        return ("success",) if crossed else ()
    time = tested.get("time_to_goal_s")
    if time is not None and (time.n < gate.n_min or not statistics["success"].n):
        del tested["time_to_goal_s"]  # too few pairs to claim that it is better
    adjusted = holm({metric: each.p.better for metric, each in tested.items() if each.p})
    return tuple(metric for metric, p in adjusted.items() if p < gate.alpha - EPSILON)


def _claim_findings(
    statistics: Statistics, gate: Gate, better: tuple[Outcome, ...]
) -> list[DecisionFinding]:
    primaries = [rule for rule in gate.rules if rule.role == "primary"]
    if gate.mode == "non_inferiority":
        primaries = [rule for rule in primaries if rule.margin is not None]
    elif gate.design == "sequential":
        primaries = [rule for rule in primaries if rule.metric == "success"]
    names = " nor ".join(OUTCOMES[rule.metric].label for rule in primaries)
    neither = f"neither {names} was" if len(primaries) > 1 else f"{names} was not"
    if not any(statistics[rule.metric].n for rule in primaries):
        return [DecisionFinding("not_measured", f"{neither} measured")]
    if gate.mode == "superiority" and not better:
        return [DecisionFinding("not_better", f"{neither} shown to be better")]
    return []


def _early_stop(
    statistics: Statistics, gate: Gate, facts: RunFacts, findings: list[DecisionFinding]
) -> Recommendation | None:
    """Whether the pending pairs can be skipped. With a margin, a small loss that was shown may still pass at the
    end."""
    if gate.design == "fixed" or not facts.pending:
        return None
    success = statistics["success"]
    settled = gate.mode == "superiority" or any(
        finding.reason == "regression:success" for finding in findings
    )
    if settled and has_crossed(success.losses, success.wins, gate.alpha):
        return "hold"
    return "ship" if gate.mode == "superiority" and not findings else None

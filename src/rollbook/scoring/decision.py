"""Decision: ship or hold by the rules of a gate, with every reason to hold.

A candidate ships when there is no reason to hold. Doubt is a reason to hold: an outcome that was not measured, that has
too few pairs, or whose environment is not the recorded one. Each reason is a code for programs and a text for people.
A regression is claimed only when it was shown. A loss that could not be ruled out is another reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rollbook.contracts.decision import DecisionFinding, Recommendation
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.bounds.gain_bounds import is_below
from rollbook.scoring.outcome_statistics import LEAST_PAIRS_WITHOUT_RANGE, OutcomeStatistics
from rollbook.scoring.watched_bets import has_crossed, watched_metric

SEED_IGNORED = "seed_ignored"
"""The same seed leads to different first observations."""
_ORDER = (
    *("env_mismatch", "env_changed", "nondeterministic_baseline", "unverified_environment"),
    *("altered", "retried", "critical_scenario", "not_measured", "mixed_evidence"),
    *("outside_reward_range", "regression", "catastrophes", "slice", "missing_data"),
    *("insufficient_n", "insufficient_clusters", "undeclared_range", "could_be_worse"),
    "not_better",
)
"""From "the comparison is not valid" to "more pairs are needed"."""

Statistics: TypeAlias = Mapping[Outcome, OutcomeStatistics]


@dataclass(frozen=True)
class RunFacts:
    """Facts about the run, beside its outcomes, that a decision needs."""

    total: int
    complete: int
    failed: int
    crashed: int = 0
    """Failed pairs in which the candidate is the reason."""
    env_mismatches: int = 0
    nondeterministic: int = 0
    env_changes: Mapping[str, int] = field(default_factory=dict)
    """What differs between the recorded environment and today's, and in how many pairs."""
    unverified: int = 0
    """Pairs that ran in an environment that nobody compared with the recorded one."""
    deleted: int = 0
    """Pairs whose baseline was deleted, so that they can never have a result."""
    retried: int = 0
    """Pairs that were replayed again after the policy had failed in them."""
    trusted: int = 0
    """Pairs in which the policy was shown the whole record of the baseline."""
    critical: tuple[tuple[str, str], ...] = ()
    """Critical scenarios that the candidate did not pass: id and reason."""

    @property
    def pending(self) -> int:
        """Pairs that have no result."""
        return max(0, self.total - self.complete - self.failed)

    @property
    def waiting(self) -> int:
        """Pairs that have no result and can still have one."""
        return max(0, self.pending - self.deleted)


@dataclass(frozen=True)
class Verdict:
    """The fields of a `Decision` that decide."""

    recommend: Recommendation
    findings: tuple[DecisionFinding, ...]
    better: tuple[Outcome, ...]
    left_out: tuple[Outcome, ...]
    early_stop: Recommendation | None = None
    levels: Mapping[Outcome, float] = field(default_factory=dict)
    """The level at which each primary was tested to be better. It depends on the number of primaries (Holm)."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.reason for finding in self.findings))


def judge(
    statistics: Statistics,
    gate: Gate,
    facts: RunFacts,
    level: float | None = None,
    others: Sequence[DecisionFinding] = (),
) -> Verdict:
    """Judge the outcomes by this gate. The order of the results makes no difference. `level` replaces the level of the
    gate. `others` are further reasons to hold."""
    level = gate.look_level if level is None else level
    claim = _Claim.of(statistics, gate, level)
    findings = [*_run_findings(gate, facts), *others]
    deciding = [rule for rule in gate.rules if rule.role != "info"]
    for rule in deciding:
        findings += _outcome_findings(statistics[rule.metric], rule, gate, level, claim.better)
    findings += _claim_findings(statistics, gate, claim)
    findings = list(dict.fromkeys(findings))
    findings.sort(key=lambda finding: _ORDER.index(finding.reason.split(":")[0]))
    return Verdict(
        recommend="hold" if findings else "ship",
        findings=tuple(findings),
        better=claim.better,
        left_out=tuple(
            rule.metric for rule in deciding if not (rule.required or statistics[rule.metric].n)
        ),
        early_stop=_early_stop(statistics, gate, facts, findings, level),
        levels=claim.levels,
    )


def usable(statistics: OutcomeStatistics, gate: Gate) -> bool:
    """Whether all pairs have the same kind of evidence, and the gate accepts that kind."""
    kinds = statistics.pairs.kinds
    return len(kinds) == 1 and kinds[0] in gate.evidence


def missing_text(statistics: OutcomeStatistics) -> str:
    """Such as "3 pending, 2 deleted"."""
    return ", ".join(f"{count} {cause}" for cause, count in statistics.pairs.missing.items())


_CHANGES = {
    SEED_IGNORED: "the environment does not start as its seed says",
    "error": "the recorded actions cannot be played in today's environment",
    **{
        what: f"today's environment is not the recorded one: other {what}"
        for what in ("observations", "rewards", "wrappers")
    },
    "max_steps": "today's environment is not the recorded one: another limit of steps",
    "ended_at_step": "today's environment is not the recorded one: it ends at another step",
    "ended_by": "today's environment is not the recorded one: it ends in another way",
}
"""What a change of the environment is called. Words that are not here are shown as they are."""


# ----------------------------------------------------------------------------------------- the run


def _run_findings(gate: Gate, facts: RunFacts) -> list[DecisionFinding]:
    found = []
    of_pairs = f"of {facts.total} pairs"
    if facts.env_mismatches:
        text = (
            f"another environment or seed than the baseline's in {facts.env_mismatches} {of_pairs}"
        )
        found.append(DecisionFinding("env_mismatch", text))
    for what, count in sorted(facts.env_changes.items()):
        told = _CHANGES.get(what, f"today's environment is not the recorded one: another {what}")
        found.append(DecisionFinding(f"env_changed:{what}", f"{told} in {count} {of_pairs}"))
    if facts.nondeterministic:
        text = f"the baseline did not repeat itself in {facts.nondeterministic} {of_pairs}"
        found.append(DecisionFinding("nondeterministic_baseline", text))
    if facts.unverified and not gate.accept_unverified_environment:
        text = (
            "nobody checked that the environment is the recorded one "
            f"in {facts.unverified} {of_pairs}"
        )
        found.append(DecisionFinding("unverified_environment", text))
    if facts.retried and not gate.accept_retried:
        text = (
            f"{facts.retried} {of_pairs} were replayed again after the policy had failed or the runner had ended in "
            "them"
        )
        found.append(DecisionFinding("retried", text))
    for scenario, why in facts.critical:
        text = f"critical scenario {scenario}: {why}"
        found.append(DecisionFinding(f"critical_scenario:{scenario}", text))
    return found


# ------------------------------------------------------------------------------------- one outcome


def _outcome_findings(
    statistics: OutcomeStatistics,
    rule: MetricRule,
    gate: Gate,
    level: float,
    better: Sequence[Outcome],
) -> list[DecisionFinding]:
    kind = OUTCOMES[rule.metric]
    pairs = statistics.pairs
    if not statistics.n:
        if pairs.unusable:
            text = f"{kind.does('was')} sent, and {pairs.unusable} values of it are no such outcome"
            return [DecisionFinding("not_measured", text)]
        if not rule.required:
            return []
        return [DecisionFinding("not_measured", f"{kind.does('was')} not measured")]
    losses = _loss_findings(statistics, rule, gate, level, rule.metric in better)
    findings = [*_evidence_findings(statistics, gate)]
    if not pairs.kinds and any(each.reason.startswith("regression") for each in losses):
        findings = []  # the candidate crashed where the baseline is known to have succeeded: that is measured
    if statistics.outside_range is not None and gate.reward_range is not None:
        low, high = gate.reward_range
        text = f"a {kind.label} of {statistics.outside_range:g} is outside the declared range {low:g} to {high:g}"
        findings.append(DecisionFinding("outside_reward_range", text))
    # A time to goal exists only for successes, and success has its own minimum number of pairs.
    if statistics.n < gate.n_min and rule.metric != "time_to_goal_s":
        has = f"{statistics.n} pair{'' if statistics.n == 1 else 's'}"
        text = f"{kind.does('has')} {has}, the gate asks for {gate.n_min}"
        findings.append(DecisionFinding("insufficient_n", text))
    if gate.missing == "ignore" and pairs.used_share < gate.min_used_share:
        text = f"{kind.does('is')} missing in {pairs.missing_count} of {pairs.total} pairs"
        findings.append(DecisionFinding("missing_data", text))
    return [*findings, *_cluster_findings(statistics, gate), *losses]


def _evidence_findings(statistics: OutcomeStatistics, gate: Gate) -> list[DecisionFinding]:
    kind, kinds = OUTCOMES[statistics.pairs.metric], statistics.pairs.kinds
    if len(kinds) > 1:
        text = f"{kind.does('is')} partly {' and partly '.join(kinds)}: these do not average"
        return [DecisionFinding("mixed_evidence", text)]
    if not kinds:
        return [
            DecisionFinding(
                "not_measured", f"{kind.does('has')} crashes only, and no measured pair"
            )
        ]
    if kinds[0] not in gate.evidence:
        text = (
            f"{kind.does('is')} {kinds[0]}, the gate takes {' or '.join(gate.evidence) or 'none'}"
        )
        return [DecisionFinding("not_measured", text)]
    return []


def _cluster_findings(statistics: OutcomeStatistics, gate: Gate) -> list[DecisionFinding]:
    if not statistics.measured.has_clusters:
        return []
    by, count = statistics.pairs.cluster_by, len(statistics.measured.clusters)
    if count >= gate.least_clusters:
        return []
    text = f"the pairs are of {count} {cluster_word(by, count)}, the gate asks for {gate.least_clusters}"
    if without := statistics.pairs.unlabelled:  # perhaps the gate misspells its name
        text += f"; baselines of {without} have no {by!r} in their metadata, and count as one"
    return [DecisionFinding("insufficient_clusters", text)]


def cluster_word(by: str | None, count: int) -> str:
    """Such as "scenes", or "groups by operator"."""
    plural = "" if count == 1 else "s"
    return f"{by}{plural}" if by in ("scene", "task", "start") else f"group{plural} by {by}"


def _loss_findings(
    statistics: OutcomeStatistics,
    rule: MetricRule,
    gate: Gate,
    level: float,
    is_better: bool,
) -> list[DecisionFinding]:
    """A loss that was shown is a regression. A loss that cannot be ruled out may be none."""
    kind = OUTCOMES[rule.metric]
    # The ledger and looks ask for more before something is better. They must not ask for more before a loss holds: an
    # author could declare more looks to pass a guard.
    worse = _is_shown_worse(statistics, gate.alpha)
    found: list[DecisionFinding] = []
    if worse and (rule.margin is None or rule.role == "guard"):
        found.append(DecisionFinding(f"regression:{rule.metric}", f"{kind.does('is')} worse"))
    elif (
        rule.margin is None
        and statistics.pairs.lost
        and is_below(statistics.judged.p_worse, gate.alpha)
    ):
        found.append(_missing_finding(statistics, "it would be worse"))
    if rule.margin is not None and not is_better:
        claimed = _is_shown_worse(statistics, max(level, gate.look_level))
        found += _margin_findings(statistics, rule, level, claimed)
    most, count = rule.most_catastrophes, len(statistics.catastrophic_rows or ())
    if most is not None and count > most:
        text = f"{kind.label}: {count} catastrophes, the gate allows {most}"
        found.append(DecisionFinding(f"catastrophes:{rule.metric}", text))
    return found


def _margin_findings(
    statistics: OutcomeStatistics, rule: MetricRule, level: float, worse: bool
) -> list[DecisionFinding]:
    """What is shown to be better is not worse, so the margin is not looked at then."""
    kind = OUTCOMES[rule.metric]
    assert rule.margin is not None
    beyond = f"by more than {kind.amount_text(rule.margin)}"
    if not is_below(statistics.p_not_worse(rule.margin), level):
        if statistics.pairs.lost and is_below(statistics.p_not_worse_measured(rule.margin), level):
            return [_missing_finding(statistics, f"it could be worse {beyond}")]
        if worse:
            text = f"{kind.does('is')} worse, perhaps {beyond}"
            return [DecisionFinding(f"regression:{rule.metric}", text)]
        needs = statistics.least_clusters(rule.margin, level)
        has = statistics.judged.clusters.equal_clusters
        if statistics.judged.has_clusters and has < needs:
            by = statistics.pairs.cluster_by
            text = (
                f"{kind.label} could be worse {beyond}: to rule that out takes {needs} {cluster_word(by, needs)} "
                f"of one size, and these are worth {has:.0f}"
            )
            return [DecisionFinding("insufficient_clusters", text)]
        text = f"{kind.label} could be worse {beyond}: the pairs do not rule it out"
        return [DecisionFinding(f"could_be_worse:{rule.metric}", text)]
    return [] if statistics.has_known_range else [_range_finding(statistics)]


def _missing_finding(statistics: OutcomeStatistics, then: str) -> DecisionFinding:
    pairs = statistics.pairs
    text = (
        f"{OUTCOMES[pairs.metric].does('is')} missing in {pairs.missing_count} of {pairs.total} pairs "
        f"({missing_text(statistics)}); counted as lost, {then}"
    )
    return DecisionFinding("missing_data", text)


def _range_finding(statistics: OutcomeStatistics) -> DecisionFinding:
    text = (
        f"how much a pair can lose in {OUTCOMES[statistics.pairs.metric].label} is not declared: that takes "
        f"{LEAST_PAIRS_WITHOUT_RANGE} pairs, and there are {statistics.n}"
    )
    return DecisionFinding("undeclared_range", text)


def _is_shown_worse(statistics: OutcomeStatistics, level: float) -> bool:
    if statistics.bets is not None:
        return has_crossed(statistics.bets.worse, level)
    return is_below(statistics.measured.p_worse, level)


# ---------------------------------------------------------------------------------- what is better


@dataclass(frozen=True)
class _Claim:
    """Which primaries are better, with a correction for testing several (Holm)."""

    better: tuple[Outcome, ...]
    levels: Mapping[Outcome, float]
    without_missing: tuple[Outcome, ...] = ()
    """Those that would be better if missing pairs did not count as lost."""
    without_range: tuple[Outcome, ...] = ()
    """Those that would be better if the worst loss of a pair were declared."""

    @classmethod
    def of(cls, statistics: Statistics, gate: Gate, level: float) -> _Claim:
        tested = _tested_primaries(statistics, gate)
        if gate.design == "sequential":
            return cls._by_bets(tested, level)
        unknown = {name: each for name, each in tested.items() if not each.has_known_range}
        tested = {name: each for name, each in tested.items() if name not in unknown}
        better, levels = _holm({name: each.judged.p_better for name, each in tested.items()}, level)
        without_missing: tuple[Outcome, ...] = ()
        without_range: tuple[Outcome, ...] = ()
        if not better:
            if any(each.pairs.lost for each in tested.values()):
                measured = {name: each.measured.p_better for name, each in tested.items()}
                without_missing = _holm(measured, level)[0]
            tries = level / (len(tested) + len(unknown) or 1)
            without_range = tuple(
                name for name, each in unknown.items() if is_below(each.judged.p_better, tries)
            )
        return cls(better, levels, without_missing, without_range)

    @classmethod
    def _by_bets(cls, tested: Mapping[Outcome, OutcomeStatistics], level: float) -> _Claim:
        for name, each in tested.items():
            if each.bets is not None:
                better = has_crossed(each.bets.better, level)
                anyway = has_crossed(each.bets.better_measured, level)
                missing = (name,) if anyway and not better else ()
                return cls((name,) if better else (), {name: level}, missing)
        return cls((), {})


def _tested_primaries(statistics: Statistics, gate: Gate) -> dict[Outcome, OutcomeStatistics]:
    primaries = [statistics[rule.metric] for rule in gate.rules if rule.role == "primary"]
    tested = {each.pairs.metric: each for each in primaries if each.n and usable(each, gate)}
    time = tested.get("time_to_goal_s")
    if time is not None and (time.n < gate.n_min or not statistics["success"].n):
        del tested["time_to_goal_s"]  # too few pairs to claim that it is better
    return tested


def _holm(
    p_values: Mapping[Outcome, float], level: float
) -> tuple[tuple[Outcome, ...], dict[Outcome, float]]:
    """Those that pass, in the order given, and the level at which each was tested: the smallest p-value at
    level / number, the next one with one fewer, and after the first that does not pass no more."""
    levels: dict[Outcome, float] = {}
    passed: set[Outcome] = set()
    current = level
    for place, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        if len(passed) == place:
            current = level / (len(p_values) - place)
            if is_below(p_value, current):
                passed.add(name)
        levels[name] = current
    return tuple(name for name in p_values if name in passed), levels


def _claim_findings(statistics: Statistics, gate: Gate, claim: _Claim) -> list[DecisionFinding]:
    primaries = [rule for rule in gate.rules if rule.role == "primary"]
    if gate.mode == "non_inferiority":
        primaries = [rule for rule in primaries if rule.margin is not None]
    elif gate.design == "sequential":
        primaries = [rule for rule in primaries if rule.metric == watched_metric(gate)]
    names = " nor ".join(OUTCOMES[rule.metric].label for rule in primaries)
    neither = f"neither {names} was" if len(primaries) > 1 else f"{names} was not"
    if not any(statistics[rule.metric].n for rule in primaries):
        return [DecisionFinding("not_measured", f"{neither} measured")]
    if gate.mode == "non_inferiority" or claim.better:
        return []
    if claim.without_missing:
        lost = [statistics[name] for name in claim.without_missing]
        return [_missing_finding(each, "it was not shown to be better") for each in lost]
    if claim.without_range:
        return [_range_finding(statistics[name]) for name in claim.without_range]
    return [DecisionFinding("not_better", f"{neither} shown to be better")]


_LASTING = frozenset(
    {
        *("env_mismatch", "env_changed", "nondeterministic_baseline", "unverified_environment"),
        *("altered", "retried", "mixed_evidence", "outside_reward_range", "catastrophes"),
    }
)
"""Reasons to hold that no further pair can take away."""


def _early_stop(
    statistics: Statistics,
    gate: Gate,
    facts: RunFacts,
    findings: list[DecisionFinding],
    level: float,
) -> Recommendation | None:
    """Whether the pending pairs can be skipped. With a margin, a small loss that was shown may still pass at the
    end."""
    if not facts.waiting or (gate.design == "fixed" and gate.looks == 1):
        return None
    reasons = {finding.reason.split(":")[0] for finding in findings}
    if reasons & _LASTING:
        return "hold"
    if gate.design == "fixed":
        # Losses are looked for at every look. One ends the run only where it is shown at the level of a look.
        full, alarm = {finding.reason for finding in findings}, max(level, gate.look_level)
        if any(
            f"regression:{rule.metric}" in full and _is_shown_worse(statistics[rule.metric], alarm)
            for rule in gate.rules
        ):
            return "hold"
        return None if findings else "ship"
    bets = next((each.bets for each in statistics.values() if each.bets is not None), None)
    settled = gate.mode == "superiority" or any(
        finding.reason == f"regression:{watched_metric(gate)}" for finding in findings
    )
    if settled and bets is not None and has_crossed(bets.worse, level):
        return "hold"
    return "ship" if gate.mode == "superiority" and not findings else None

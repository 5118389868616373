"""What the gate asked of a run, one line each: met, failed or not shown, with what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollbook.contracts.decision import DecisionFinding, OutcomeSummary, Rollup
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.portal.formats import MISSING, p_value
from rollbook.report.run_report import outcome_summaries
from rollbook.report.words import as_sentence, capital, count

AskState: TypeAlias = Literal["failed", "open", "met", "unused"]
_ORDER: tuple[AskState, ...] = ("failed", "open", "met", "unused")
_OPEN = (
    *("not_better", "could_be_worse", "insufficient_n", "insufficient_clusters"),
    *("undeclared_range", "missing_data", "unverified_environment", "not_measured"),
)
"""Reasons that say that something was not shown; every other reason says that something is wrong."""


@dataclass(frozen=True)
class GateAsk:
    text: str
    got: str
    """What was measured."""
    state: AskState
    reasons: tuple[str, ...] = ()
    """Why it holds the candidate."""


class _Findings:
    """The reasons to hold, each of which belongs to one line."""

    def __init__(self, findings: Iterable[DecisionFinding]) -> None:
        self.left = list(findings)

    def ask(
        self,
        text: str,
        got: str,
        codes: Iterable[str],
        *,
        is_met: bool = True,
        unused: bool = False,
    ) -> GateAsk:
        """`codes` are reasons, or their part before the colon. Without a reason it is met, unless `is_met` says that
        another reason came first."""
        wanted = set(codes)
        mine = [
            each
            for each in self.left
            if each.reason in wanted or each.reason.split(":")[0] in wanted
        ]
        self.left = [each for each in self.left if each not in mine]
        state: AskState = "unused" if unused else "met" if is_met else "open"
        if mine:
            is_open = all(each.reason.split(":")[0] in _OPEN for each in mine)
            state = "open" if is_open else "failed"
        return GateAsk(capital(text), got, state, tuple(as_sentence(each.text) for each in mine))


def gate_lines(rollup: Rollup, critical: int) -> list[GateAsk]:
    """The failed ones first. `critical` is the number of critical scenarios among the baselines when it was decided."""
    findings = _Findings(rollup.decision.findings)
    lines = [
        *_claim(rollup, findings),
        *(line for rule in rollup.decision.gate.rules for line in _rule(rule, rollup, findings)),
        *_pairs(rollup, findings),
        *_conditions(rollup, findings, critical),
    ]
    lines += [findings.ask(each.text, "", {each.reason}) for each in list(findings.left)]
    return sorted(lines, key=lambda each: _ORDER.index(each.state))


def _claim(rollup: Rollup, findings: _Findings) -> Iterator[GateAsk]:
    decision = rollup.decision
    if decision.gate.mode == "non_inferiority":
        return
    primaries = [
        OUTCOMES[each.metric].label for each in decision.gate.rules if each.role == "primary"
    ]
    corrected = ", after correction" if len(primaries) > 1 else ""
    better = ", ".join(OUTCOMES[each].label for each in decision.better)
    text = f"{' or '.join(primaries)} better{corrected}"
    yield findings.ask(text, better or "not shown", {"not_better"}, is_met=bool(better))


def _rule(rule: MetricRule, rollup: Rollup, findings: _Findings) -> Iterator[GateAsk]:
    if rule.role == "info":
        return
    kind, summary = OUTCOMES[rule.metric], outcome_summaries(rollup)[rule.metric]
    is_measured = summary.n_pairs > 0
    losses = {f"regression:{rule.metric}", f"could_be_worse:{rule.metric}"}
    if rule.margin is not None:
        text = f"{kind.label} not more than {kind.amount_text(rule.margin)} worse"
        got = _bound(summary, kind.higher_is_better, rule) if is_measured else "not measured"
        yield findings.ask(text, got, losses, unused=not is_measured)
    elif rule.role == "guard" or any(each.reason in losses for each in findings.left):
        got = f"p(worse) {p_value(summary.p_worse)}" if is_measured else "not measured"
        yield findings.ask(f"{kind.label} not worse", got, losses, unused=not is_measured)
    if rule.most_catastrophes is not None:
        found = summary.catastrophes.count if summary.catastrophes else 0
        text = f"{kind.label}: at most {count(rule.most_catastrophes, 'catastrophe')}"
        yield findings.ask(text, f"{found:,}", {f"catastrophes:{rule.metric}"})


def _bound(summary: OutcomeSummary, higher_is_better: bool, rule: MetricRule) -> str:
    if summary.interval is None:
        return MISSING
    kind = OUTCOMES[rule.metric]
    side, bound = ("least", 0) if higher_is_better else ("most", 1)
    return f"at {side} {kind.change_text(summary.interval[bound]).removesuffix(kind.unit)}"


def _pairs(rollup: Rollup, findings: _Findings) -> Iterator[GateAsk]:
    gate, summaries = rollup.decision.gate, outcome_summaries(rollup)
    deciding = [summaries[rule.metric] for rule in gate.rules if rule.role != "info"]
    measured = [each for each in deciding if each.n_pairs]
    most = max((each.n_pairs for each in measured), default=0)
    evidence = " or ".join(gate.evidence).replace("_", " ")
    kinds = dict.fromkeys(each.evidence.replace("_", " ") for each in measured)
    yield findings.ask(
        f"measured, on {evidence} evidence",
        ", ".join(kinds) or "not measured",
        {"not_measured", "mixed_evidence"},
        is_met=bool(measured),
    )
    share = "" if gate.missing == "lost" else f", {100 * gate.min_used_share:g} % of them measured"
    yield findings.ask(
        f"at least {gate.n_min:,} pairs{share}",
        f"{most:,}",
        {"insufficient_n"},
        is_met=most >= gate.n_min,
    )
    missing = max((sum(each.missing.values()) for each in measured), default=0)
    if missing:
        counted = "as lost" if gate.missing == "lost" else "not at all"
        text = f"an outcome of every pair; missing ones count {counted}"
        yield findings.ask(text, f"{missing:,} missing", {"missing_data"})
    clustered = next((each.clusters for each in measured if each.clusters is not None), None)
    if clustered is not None:
        by = f"{clustered.by}s" if clustered.by.isalpha() else f"values of {clustered.by}"
        text = f"pairs of at least {gate.least_clusters:,} {by}"
        yield findings.ask(text, f"{clustered.count:,}", {"insufficient_clusters"})


def _conditions(rollup: Rollup, findings: _Findings, critical: int) -> Iterator[GateAsk]:
    gate = rollup.decision.gate
    evidence = {each.evidence for each in outcome_summaries(rollup).values() if each.n_pairs}
    environment = {
        *("env_mismatch", "env_changed", "nondeterministic_baseline", "unverified_environment"),
    }
    if evidence & {"closed_loop", "mixed"}:
        complete = rollup.counts.complete
        yield findings.ask(
            "the recorded environment and seed in every pair",
            f"{complete:,} of {complete:,}" if not _named(findings, environment) else "not all",
            environment,
        )
    yield findings.ask(
        "no baseline deleted, no failed pair replayed again"
        if not gate.accept_retried
        else "no baseline deleted",
        "none" if not _named(findings, {"altered", "retried"}) else "",
        {"altered", "retried"},
    )
    failed = len(_named(findings, {"critical_scenario"}))
    if critical or failed:
        total = max(critical, failed)
        got = f"{total - failed:,} of {total:,}"
        yield findings.ask("critical scenarios passed", got, {"critical_scenario"})
    yield from _ranges(gate, findings)
    for guard in gate.guard_slices:
        text = f"no {guard.by} shown to be worse on {OUTCOMES[guard.metric].label}"
        bad = [each for each in findings.left if each.reason.startswith(f"slice:{guard.by}=")]
        yield findings.ask(text, f"{len(bad):,} worse", {each.reason for each in bad})


def _ranges(gate: Gate, findings: _Findings) -> Iterator[GateAsk]:
    codes = {"undeclared_range", "outside_reward_range"}
    if gate.reward_range is not None:
        low, high = gate.reward_range
        yield findings.ask(f"every reward between {low:g} and {high:g}", "declared", codes)
    elif _named(findings, codes):
        yield findings.ask("the range of the reward is declared", "not declared", codes)


def _named(findings: _Findings, codes: set[str]) -> list[DecisionFinding]:
    return [each for each in findings.left if each.reason.split(":")[0] in codes]

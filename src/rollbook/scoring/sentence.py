"""Sentence: the decision in one line for people."""

from __future__ import annotations

from rollbook.contracts.decision import Interval
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.decision import RunFacts, Statistics, Verdict
from rollbook.scoring.outcome_statistics import OutcomeStatistics


def sentence(
    verdict: Verdict,
    lead: OutcomeStatistics | None,
    gate: Gate,
    facts: RunFacts,
    interval: Interval | None,
    needed: int | None,
) -> str:
    """`lead` is the outcome that the sentence is about, `interval` the interval of its delta."""
    parts = [_measured(lead, facts)]
    if lead is not None:
        parts.append(_effect(lead, interval))
    ships = verdict.recommend == "ship"
    parts.append(_why_ship(verdict, gate) if ships else _why_hold(verdict, needed))
    return f"{verdict.recommend.capitalize()}: {'; '.join(parts)}."


def leading_outcome(statistics: Statistics, gate: Gate) -> OutcomeStatistics | None:
    """The first primary that was measured, else the first guard."""
    for role in ("primary", "guard"):
        for rule in gate.rules:
            if rule.role == role and statistics[rule.metric].n:
                return statistics[rule.metric]
    return None


def _measured(lead: OutcomeStatistics | None, facts: RunFacts) -> str:
    n = 0 if lead is None else lead.n
    total = facts.total if lead is None else max(facts.total, lead.n)
    crashed = f" ({facts.failed} crashed)" if facts.failed else ""
    if lead is not None and lead.pairs.repeats:
        situations = f"{n} situation{'' if n == 1 else 's'}"
        return f"{_pairs(n + lead.pairs.repeats)} of {situations} measured{crashed}"
    if n < total:
        return f"{n} of {_pairs(total)} measured{crashed}"
    return f"{_pairs(n)} measured{crashed}"


def _effect(lead: OutcomeStatistics, interval: Interval | None) -> str:
    metric = lead.pairs.metric
    kind = OUTCOMES[metric]
    delta = (1 if kind.higher_is_better else -1) * (lead.gain or 0.0)
    text = f"{kind.label} {_number(metric, delta)}{' points' if metric == 'success' else ''}"
    if metric == "success" and lead.pairs.repeats:
        text += " (situations won less lost)"
    if interval is None:
        return text
    low, high = (_number(metric, bound) for bound in interval)
    return f"{text}, 95 % interval {low} to {high}"


def _why_ship(verdict: Verdict, gate: Gate) -> str:
    if gate.mode == "non_inferiority":
        return "not worse than the gate allows"
    return f"better on {' and '.join(OUTCOMES[metric].label for metric in verdict.better)}"


def _why_hold(verdict: Verdict, needed: int | None) -> str:
    others = len(verdict.findings) - 1
    first = verdict.findings[0].text
    if needed is not None:
        about = "1 more pair is" if needed == 1 else f"about {_rounded(needed)} more pairs are"
        return f"{first}; {about} needed"
    if others:
        first += f", and {others} more reason{'s' if others > 1 else ''}"
    if verdict.reasons == ("not_better",):
        first += "; nothing says that more pairs would show it"
    return first


def _number(metric: str, value: float) -> str:
    return f"{100 * value:+.1f}" if metric == "success" else f"{value:+.3g}"


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def _rounded(count: int) -> int:
    """Up to two digits: the estimate is not more precise."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit

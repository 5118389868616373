"""Sentence: the decision in one line for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollbook.contracts.decision import LedgerEntry, Look, SliceSummary
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.decision import RunFacts, Statistics, Verdict, cluster_word, missing_text
from rollbook.scoring.needed_pairs import NeededPairs
from rollbook.scoring.outcome_statistics import OutcomeStatistics


def sentence(
    verdict: Verdict,
    lead: OutcomeStatistics | None,
    gate: Gate,
    facts: RunFacts,
    needed: NeededPairs,
    level: float,
    look: Look | None = None,
    ledger: LedgerEntry | None = None,
    worst_slices: Sequence[SliceSummary] = (),
) -> str:
    """`lead` is the outcome that the sentence is about, `level` the one at which its bound is printed. `worst_slices`
    were shown to be worse."""
    parts = [_measured(lead, gate, facts)]
    if look is not None:
        parts.append(f"look {look.number} of {look.of}, after {look.pairs} pairs")
    if lead is not None:
        parts.append(_effect(lead, gate, level))
    ships = verdict.recommend == "ship"
    parts.append(_why_ship(verdict, gate) if ships else _why_hold(verdict, needed))
    if lead is not None and not lead.is_declared:
        kind = OUTCOMES[lead.pairs.metric]
        parts.append(f"a loss beyond {kind.amount_text(lead.worst_loss)} was not ruled out")
    if worst_slices:
        parts.append(f"worse in {', '.join(each.words for each in worst_slices)}")
    if ledger is not None:
        parts.append(_ledger(ledger))
    return f"{verdict.recommend.capitalize()}: {'; '.join(parts)}."


def leading_outcome(
    statistics: Statistics, gate: Gate, verdict: Verdict
) -> OutcomeStatistics | None:
    """The first primary that is better, else the first that was measured, else the first guard."""
    for metric in verdict.better:
        return statistics[metric]
    for role in ("primary", "guard"):
        for rule in gate.rules:
            if rule.role == role and statistics[rule.metric].n:
                return statistics[rule.metric]
    return None


def _measured(lead: OutcomeStatistics | None, gate: Gate, facts: RunFacts) -> str:
    notes = [f"{facts.crashed} crashed"] if facts.crashed else []
    # what the gate forgives is said: otherwise these hold, with a reason of their own
    if facts.unverified and gate.accept_unverified_environment:
        notes.append(f"{facts.unverified} in an environment that nobody checked, accepted")
    if facts.retried and gate.accept_retried:
        notes.append(f"{facts.retried} retried, accepted")
    if facts.trusted:
        notes.append(f"{facts.trusted} with --trusted: the policy saw seed and outcome")
    if lead is None:
        text = f"0 of {_pairs(facts.total)}" if facts.total else _pairs(0)
        return f"{text} measured{_in_brackets(notes)}"
    pairs, n = lead.pairs, lead.n
    known = "stated by the policy" if pairs.evidence == "asserted" else "measured"
    if pairs.missing:
        counted = "ignored" if gate.missing == "ignore" else "counted as lost"
        notes.append(f"missing: {missing_text(lead)}, {counted}")
    if pairs.repeats:
        situations = f"{n} situation{'' if n == 1 else 's'}"
        text = f"{_pairs(n + pairs.repeats)} of {situations} {known}"
    elif n < pairs.total:
        text = f"{n} of {_pairs(pairs.total)} {known}"
    elif lead.measured.has_clusters and known == "measured":
        text = _pairs(n)
    else:
        text = f"{_pairs(n)} {known}"
    if lead.measured.has_clusters:
        found = lead.measured.clusters
        text += f" in {len(found)} {cluster_word(pairs.cluster_by, len(found))}"
        text += f", worth about {found.effective_pairs:.0f}"
    return text + _in_brackets(notes)


def _effect(lead: OutcomeStatistics, gate: Gate, level: float) -> str:
    kind = OUTCOMES[lead.pairs.metric]
    sign = 1 if kind.higher_is_better else -1
    text = f"{kind.label} {kind.change_text(sign * (lead.gain or 0.0))}"
    if gate.design == "sequential":
        return text  # it may be looked at any time, and the bound holds for one look
    not_worse = gate.mode == "non_inferiority" and gate.rule(lead.pairs.metric).margin is not None
    bounds = lead.judged
    lower = bounds.lower_for_margin(level) if not_worse else bounds.lower(level)
    if not math.isfinite(lower):
        return text
    side = "at least" if kind.higher_is_better else "at most"
    return f"{text}, {side} {kind.change_text(sign * lower)}, {100 * (1 - level):.4g} % sure"


def _why_ship(verdict: Verdict, gate: Gate) -> str:
    if gate.mode == "non_inferiority":
        return "not worse than the gate allows"
    return f"better on {' and '.join(OUTCOMES[metric].label for metric in verdict.better)}"


def _why_hold(verdict: Verdict, needed: NeededPairs) -> str:
    others = len(verdict.findings) - 1
    first = verdict.findings[0].text
    if needed.pairs is not None:
        return f"{first}; {needed_text(needed)}"
    if others:
        first += f", and {others} more reason{'s' if others > 1 else ''}"
    if verdict.reasons == ("not_better",):
        first += "; nothing says that more pairs would show it"
    return first


def needed_text(needed: NeededPairs) -> str:
    """Such as "a new run on about 80 fresh pairs in 10 new scenes is needed to tell"."""
    assert needed.pairs is not None
    if not needed.is_new_run:
        return f"{_pairs(needed.pairs)} of this run {'has' if needed.pairs == 1 else 'have'} no result yet"
    inside = ""
    if needed.clusters is not None:
        count = rounded_up(needed.clusters)
        inside = f" in {count} new {cluster_word(needed.cluster_by, count)}"
    return f"a new run on about {rounded_up(needed.pairs)} fresh pairs{inside} is needed to tell"


def _ledger(ledger: LedgerEntry) -> str:
    level = f"{ledger.level:.4f}".rstrip("0").removeprefix("0")
    if ledger.level < 1e-4:
        level = "below .0001"
    text = f"{_ordinal(ledger.number)} run on these baselines"
    if ledger.decides:
        return f"{text}, judged at level {level}"
    return f"{text}; corrected level {level}: would {ledger.would}"


def _ordinal(number: int) -> str:
    tens = number % 100
    ending = "th" if 10 < tens < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _in_brackets(notes: list[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def rounded_up(count: int) -> int:
    """Up to two digits: the estimate is not more precise."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit

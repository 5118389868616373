"""Words of a report: the same numbers in the same words on a terminal, in Markdown and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from rollbook.contracts.decision import (
    ClusterSummary,
    CounterfactualRelation,
    Decision,
    LedgerEntry,
    Look,
    OutcomeSummary,
    Rollup,
    SliceSummary,
)
from rollbook.contracts.gate import FOUND_CLUSTERS, NO_CLUSTERS, Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES, Outcome

_MISSING = {
    "pending": "without a result",
    "deleted": "with a deleted baseline",
    "candidate": "without an outcome of the candidate",
    "baseline": "without an outcome of the baseline",
    "infrastructure": "broken by infrastructure",
    "crash": "crashed",
}
_TAILS = {
    "gaffke": "rare large losses are bounded by Gaffke's bound",
    "proven": "rare large losses are bounded by bets, which is proven",
    "scenes": "whole clusters may be lost",
}
MOST_SLICES = 3

Shown: TypeAlias = Literal["better", "worse", "not"]
"""What was shown. A difference has a colour or a mark only if it was."""


def interval_words(metric: Outcome, summary: OutcomeSummary) -> str | None:
    """Such as "+5.1 to +29.2 points"."""
    if summary.interval is None:
        return None
    return OUTCOMES[metric].range_text(*summary.interval)


def level_words(summary: OutcomeSummary) -> str:
    """Such as "90 % interval"."""
    return (
        "interval"
        if summary.interval_level is None
        else f"{percent(summary.interval_level)} interval"
    )


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def level_text(level: float) -> str:
    """A level or a p-value: two digits that count."""
    return "≤ 0.0001" if 0 <= level <= 1e-4 else f"{level:.2g}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cluster_words(pairs: int, clusters: ClusterSummary | None) -> str:
    """Such as "100 pairs in 10 scenes, worth about 28"."""
    if clusters is None:
        return count(pairs, "pair")
    named = (
        count(clusters.count, clusters.by)
        if clusters.by.isalpha()
        else f"{clusters.count} values of {clusters.by}"
    )
    return f"{count(pairs, 'pair')} in {named}, worth about {clusters.effective_pairs:.0f}"


def missing_words(missing: Mapping[str, int]) -> str | None:
    """Such as "2 crashed, 3 without a result"; None where nothing is missing."""
    parts = [
        f"{number:,} {_MISSING.get(cause, cause)}" for cause, number in missing.items() if number
    ]
    return ", ".join(parts) or None


def needed_words(decision: Decision) -> str | None:
    if not decision.needed_n:
        return None
    where = ""
    if decision.needed_clusters:
        where = f" in {count(decision.needed_clusters, 'new cluster')}"
    are = "is" if decision.needed_n == 1 else "are"
    return f"about {count(decision.needed_n, 'further pair')}{where} {are} needed to decide"


def ledger_words(ledger: LedgerEntry) -> str:
    """Such as "6th run on these baselines; corrected level 0.0012: would hold"."""
    effect = f"decided by it: {ledger.would}" if ledger.decides else f"would {ledger.would}"
    return f"{ordinal(ledger.number)} run on these baselines; corrected level {level_text(ledger.level)}: {effect}"


def relation_words(relation: CounterfactualRelation) -> str:
    """Such as "+0.45 in the recorded states of 86 pairs, 0.05 more than closed loop (95 % interval …)"."""
    kind, side = OUTCOMES["reward_total"], "more" if relation.excess >= 0 else "less"
    said = (
        f"{kind.change_text(relation.counterfactual_delta)} in the recorded states of "
        f"{count(relation.n_pairs, 'pair')}, {kind.value_text(abs(relation.excess))} {side} than closed loop"
    )
    if relation.excess_interval is not None:
        said += f" (95 % interval {kind.range_text(*relation.excess_interval)})"
    if relation.rank_correlation is not None:
        said += f"; rank correlation over pairs {relation.rank_correlation:.2f}"
    return f"{said}; the closed loop decides"


def look_words(look: Look) -> str:
    return f"look {look.number} of {look.of}, with {count(look.pairs, 'pair')}, at the level {level_text(look.level)}"


def ordinal(number: int) -> str:
    last = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{last}"


def level_of(decision: Decision) -> float:
    """The level at which the decision was made."""
    if decision.ledger is not None and decision.ledger.decides:
        return decision.ledger.level
    return decision.look.level if decision.look else decision.gate.look_level


def shown(metric: Outcome, summary: OutcomeSummary, decision: Decision) -> Shown:
    """What was shown about an outcome. A primary is better only if the decision says so."""
    level = level_of(decision)
    if summary.p_worse is not None and summary.p_worse <= level:
        return "worse"
    if summary.role == "primary" and decision.gate.mode == "superiority":
        return "better" if metric in decision.better else "not"
    return "better" if summary.p_value is not None and summary.p_value <= level else "not"


def has_shown_loss(decision: Decision) -> bool:
    """Whether the candidate is held because it is worse, and not because something is not known yet."""
    return any(
        reason.startswith(("regression", "slice:", "critical_scenario"))
        for reason in decision.reasons
    )


def without_verdict(sentence: str) -> str:
    """The sentence of a decision, for a place where "Ship" or "Hold" stands above it."""
    return capital(sentence.removeprefix("Ship: ").removeprefix("Hold: "))


def as_sentence(text: str) -> str:
    return capital(text) + ("" if text.endswith(".") else ".")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def bad_slices(rollup: Rollup) -> list[SliceSummary]:
    """The slices that were shown to be worse, at most three. Those that hold the candidate come first."""
    level = level_of(rollup.decision)
    bad = [each for each in rollup.slices if each.vetoes or each.p_worse <= level]
    bad.sort(key=lambda each: (not each.vetoes, _gain(each)))
    return bad[:MOST_SLICES]


def slice_line(each: SliceSummary) -> str:
    """Such as "task pick: success −25 points in 12 pairs, −40.0 to −8.1 points, p worse 0.004"."""
    kind = OUTCOMES[each.metric]
    low_high = ""
    if each.interval is not None:
        low_high = f", {kind.range_text(*each.interval)}"
    return f"{each.words}{low_high}, p worse {level_text(each.p_worse)}"


def _gain(each: SliceSummary) -> float:
    return each.delta if OUTCOMES[each.metric].higher_is_better else -each.delta


# --------------------------------------------------------------------------------------- the gate


def gate_words(gate: Gate) -> str:
    """What the gate asks for, such as "success or reward has to be better; collisions must not be worse"."""
    named = {
        role: [OUTCOMES[rule.metric].label for rule in gate.rules if rule.role == role]
        for role in ("primary", "guard")
    }
    asks = "must not be worse" if gate.mode == "non_inferiority" else "has to be better"
    words = f"{' or '.join(named['primary'])} {asks}"
    if named["guard"]:
        words += f"; {' and '.join(named['guard'])} must not be worse"
    return words


def gate_asks(gate: Gate) -> Iterator[str]:
    """Everything that the gate asks for, one statement each."""
    yield gate_words(gate).capitalize()
    for rule in gate.rules:
        yield from _rule_asks(rule)
    yield f"at least {gate.n_min} pairs, on {' or '.join(gate.evidence).replace('_', ' ')} evidence"
    yield _cluster_asks(gate)
    if gate.missing == "lost":
        yield "a missing outcome counts as the worst case"
    else:
        yield f"missing outcomes are ignored, up to {percent(1 - gate.min_used_share)} of the pairs"
    if gate.reward_range is None:
        yield "no reward range is declared: the range that was seen counts"
    else:
        yield "rewards lie between {:g} and {:g}".format(*gate.reward_range)
    yield _TAILS[gate.tails]
    if gate.accept_unverified_environment:
        yield "environments that nobody checked are accepted"
    if gate.accept_retried:
        yield "pairs that were replayed again after a failure of the policy are accepted"
    for guard in gate.guard_slices:
        beyond = (
            f" by more than {OUTCOMES[guard.metric].amount_text(guard.margin)}"
            if guard.margin
            else ""
        )
        yield (
            f"no {guard.by} with {guard.least_pairs} or more pairs may be shown to be worse"
            f"{beyond} on {OUTCOMES[guard.metric].label}"
        )


def _rule_asks(rule: MetricRule) -> Iterator[str]:
    kind = OUTCOMES[rule.metric]
    if rule.margin is not None:
        yield f"{kind.label} not more than {kind.amount_text(rule.margin)} worse"
    if rule.most_catastrophes is not None:
        yield f"{kind.label}: at most {count(rule.most_catastrophes, 'catastrophe')}"


def _cluster_asks(gate: Gate) -> str:
    if gate.cluster == NO_CLUSTERS:
        return "every pair counts alone"
    by = "scene or task" if gate.cluster == FOUND_CLUSTERS else gate.cluster
    return f"pairs of one {by} are tested together; at least {gate.least_clusters} of them"

"""What the page of a run says about its summary: the sentence, the gate, the outcomes, the slices, the behaviour."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from rollbook.contracts.decision import Rollup, SliceSummary, SuccessSummary
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.portal.charts.forest import forest
from rollbook.portal.charts.power_curve import power_curve
from rollbook.portal.evals.eval_cards import DiffCard, diff_cards
from rollbook.portal.evals.eval_gate import GateAsk, gate_lines
from rollbook.portal.evals.eval_pairs import Pair
from rollbook.report.confidence_sequence import confidence_sequence_chart
from rollbook.report.interval_forest import ForestRow
from rollbook.report.pictures import bounds_over_pairs, pairs_of, sequence_lead
from rollbook.report.run_report import RunReport, leading_outcome, outcome_summaries
from rollbook.report.words import (
    as_sentence,
    capital,
    count,
    level_of,
    look_words,
    needed_words,
    relation_words,
    without_verdict,
)

_MOST_MOMENTS = 3
_LEAST_CHANCE, _MOST_CHANCE = 0.6, 0.95
"""A curve that is outside of these at the size that is needed is not what decides about that size."""
_CHANGES = re.compile(r"(?<![\w.])[+−]\d[\d,.]*(?<![,.])(?: points)?")
"""Differences in a sentence, which are printed bold."""


@dataclass(frozen=True)
class Slices:
    """The slices by one label."""

    title: str
    picture: Markup
    """Empty where no slice has enough pairs for an interval."""
    count: int
    note: str
    can_hold: bool


@dataclass(frozen=True)
class Moment:
    """A step at which the actions of a pair differ much."""

    baseline_id: str
    path: str
    at: str
    distance: float


@dataclass(frozen=True)
class Behaviour:
    rows: list[tuple[str, float, str]]
    """Name, width of the bar in percent, and value."""
    moments: list[Moment]
    evidence: str


@dataclass(frozen=True)
class Judgement:
    sentence: Markup
    following: str | None
    """What would change the decision."""
    differing: str | None
    """How the pairs came out in which only one policy succeeded."""
    losses: int
    relation: str | None
    """What the counterfactual replay of the same pairs says."""
    asks: list[GateAsk]
    gate: str
    gate_digest: str
    facts: list[tuple[str, str]]
    cards: list[DiffCard]
    sequence: Markup
    sequence_lead: str
    command: str | None
    """What to type for more evidence."""
    power: Markup
    power_lead: str
    slices: list[Slices]
    thin_slices: list[str]
    """Labels by which no slice has enough pairs for an interval, in words."""
    behaviour: Behaviour | None


def judgement(
    report: RunReport, rollup: Rollup, pairs: Sequence[Pair], critical: int, run_path: str
) -> Judgement:
    decision = rollup.decision
    sequence, lead = _sequence(report, rollup)
    command = _command(rollup)
    power, power_lead = _power(report, rollup) if command else (Markup(""), "")
    following = None
    if decision.recommend == "hold":
        step = decision.next_step or needed_words(decision)
        following = as_sentence(step) if step else None
    slices = _slices(rollup)
    success = rollup.success_rate
    differ = success.wins + success.losses
    differing = None
    if differ:
        differing = (
            f"Of {count(differ, 'pair')} in which only one policy succeeded, the candidate won "
            f"{success.wins:,} and lost {success.losses:,}."
        )
    related = rollup.counterfactual_relation
    return Judgement(
        sentence=with_bold_changes(without_verdict(decision.sentence)),
        following=following,
        differing=differing,
        losses=success.losses,
        relation=f"Counterfactual: {relation_words(related)}." if related else None,
        asks=gate_lines(rollup, critical),
        gate=_gate_words(rollup),
        gate_digest=decision.gate_digest,
        facts=[*_facts(rollup)],
        cards=diff_cards(rollup),
        sequence=sequence,
        sequence_lead=lead,
        command=command,
        power=power,
        power_lead=power_lead,
        slices=[each for each in slices if each.picture],
        thin_slices=[
            f"{each.title}: {count(each.count, 'slice')}, none with enough pairs for an interval."
            for each in slices
            if not each.picture
        ],
        behaviour=_behaviour(rollup, pairs, run_path),
    )


def with_bold_changes(sentence: str) -> Markup:
    return Markup(_CHANGES.sub(lambda found: f"<b>{found[0]}</b>", str(escape(sentence))))


def _gate_words(rollup: Rollup) -> str:
    gate = rollup.decision.gate
    named = (
        f"locked gate {rollup.decision.gate_name}" if rollup.decision.gate_name else gate.version
    )
    return (
        f"{named} · {gate.mode.replace('_', '-')} · {gate.design} · stored before the first result"
    )


def _facts(rollup: Rollup) -> list[tuple[str, str]]:
    decision, counts = rollup.decision, rollup.counts
    facts = []
    if counts.failed or counts.pending:
        said = f"{counts.complete:,} complete, {counts.failed:,} failed, {counts.pending:,} without a result"
        facts.append(("Pairs", said))
    if decision.left_out:
        left_out = ", ".join(OUTCOMES[each].label for each in decision.left_out)
        facts.append(("Not measured", left_out))
    if decision.look is not None:
        facts.append(("Look", look_words(decision.look)))
    if rollup.sequential is not None:
        bets = rollup.sequential
        said = f"better {bets.e_better:.3g}, worse {bets.e_worse:.3g}; {bets.threshold:.3g} decides"
        facts.append(("E-values", said))
    return facts


# --------------------------------------------------------------------------------------- more evidence


def _sequence(report: RunReport, rollup: Rollup) -> tuple[Markup, str]:
    metric = leading_outcome(rollup)
    if metric is None:
        return Markup(""), ""
    bounds = bounds_over_pairs(pairs_of(report, rollup, metric), rollup)
    if bounds is None:
        return Markup(""), ""
    lead = f"{capital(OUTCOMES[metric].label)}: {sequence_lead(bounds)}"
    return Markup(confidence_sequence_chart(bounds)), lead


def _command(rollup: Rollup) -> str | None:
    """A new run on fresh baselines: a run that was judged gets no more pairs."""
    decision = rollup.decision
    if decision.recommend == "ship" or not decision.needed_n or rollup.counts.pending:
        return None
    if decision.gate.design != "fixed":
        return None
    from rollbook.scoring.sentence import rounded_up  # loads scipy

    named = "rollbook replay run --policy MODULE:NAME --environment MODULE:NAME"
    fresh = rounded_up(decision.needed_n)
    return f"{named} \\\n  --candidate-version NAME --baselines fresh:{fresh} --gate"


def _power(report: RunReport, rollup: Rollup) -> tuple[Markup, str]:
    """Of the primary that a new run is most likely to show. Where pairs are alike, the curve would be too steep."""
    from rollbook.scoring.power import POWER  # loads scipy
    from rollbook.scoring.sentence import rounded_up

    decision, summaries = rollup.decision, outcome_summaries(rollup)
    gate, needed = decision.gate, decision.needed_n or 0
    primaries = [rule.metric for rule in gate.rules if rule.role == "primary"]
    measured = [each for each in primaries if summaries[each].n_pairs]
    if gate.mode != "superiority" or any(summaries[each].clusters for each in measured):
        return Markup(""), ""
    level = level_of(decision) / max(len(measured), 1)
    chances = {each: _chance(report, rollup, each, level) for each in measured}
    best = max(measured, key=lambda each: chances[each](needed), default=None)
    if best is None or not _LEAST_CHANCE <= chances[best](needed) <= _MOST_CHANCE:
        return Markup(""), ""
    lead = (
        f"Chance that {OUTCOMES[best].label} is shown to be better, if further pairs go like these "
        f"{summaries[best].n_pairs:,}."
    )
    return power_curve(chances[best], rounded_up(needed), POWER), lead


def _chance(
    report: RunReport, rollup: Rollup, metric: Outcome, level: float
) -> Callable[[int], float]:
    """Zero where pairs counted that the numbers here do not have."""
    from rollbook.scoring.power import mean_power, superiority_power  # loads scipy

    summary = outcome_summaries(rollup)[metric]
    if summary.missing or (summary.crashes and metric != "success"):
        return lambda pairs: 0.0
    if isinstance(summary, SuccessSummary):
        win, loss = summary.wins / summary.n_pairs, summary.losses / summary.n_pairs
        return lambda pairs: superiority_power(pairs, win, loss, level)
    gains = pairs_of(report, rollup, metric).gains
    worst = summary.worst_loss or 0.0
    if len(gains) < 2 or not gains.mean() > 0 or not worst > 0:
        return lambda pairs: 0.0
    effect, spread = float(gains.mean()), float(gains.std(ddof=1))
    return lambda pairs: mean_power(max(pairs, 2), effect, spread, worst, level)


# ---------------------------------------------------------------------------------- slices, behaviour


def _slices(rollup: Rollup) -> list[Slices]:
    groups: dict[tuple[str, Outcome], list[SliceSummary]] = {}
    for each in rollup.slices:
        groups.setdefault((each.by, each.metric), []).append(each)
    return [_slice_group(rollup, *key, found) for key, found in groups.items()]


def _slice_group(rollup: Rollup, by: str, metric: Outcome, found: Sequence[SliceSummary]) -> Slices:
    kind, level = OUTCOMES[metric], level_of(rollup.decision)
    named = by.replace("_", " ")
    rows = [
        ForestRow(
            each.value,
            each.pairs,
            each.delta,
            each.interval,
            "worse" if each.vetoes or each.p_worse <= level else "not",
        )
        for each in found
    ]
    guards = [(each.by, each.metric) for each in rollup.decision.gate.guard_slices]
    can_hold = (by, metric) in guards
    total = max(found[0].slices, len(found))
    listed = f" The {len(found)} worst of {total} are listed." if total > len(found) else ""
    rule = (
        "A slice that is shown to be worse holds the candidate: the gate says so."
        if can_hold
        else "A slice by this label neither ships nor holds a candidate."
    )

    def write(value: float) -> str:
        return kind.change_text(value).removesuffix(kind.unit)

    picture = Markup("")
    if any(each.interval is not None for each in rows):
        picture = forest(rows, capital(named), kind.unit.strip() or "change", write)
    return Slices(
        title=f"{capital(kind.label)} by {named}",
        picture=picture,
        count=total,
        note=f"{rule} Intervals allow for the number of slices.{listed}",
        can_hold=can_hold,
    )


def _behaviour(rollup: Rollup, pairs: Sequence[Pair], run_path: str) -> Behaviour | None:
    change, plain = rollup.action_change, rollup.action_l2_distance
    distances = [("Mean action distance", plain.mean), ("95th percentile", plain.p95)]
    scaled = [
        ("Scaled by spread, mean", change.mean),
        ("Scaled, 95th percentile", change.p95),
    ]
    shares = [("Steps outside the recorded range", change.ood_share)]
    rows = []
    for group, is_share in ((distances, False), (scaled, False), (shares, True)):
        known = [(name, value) for name, value in group if value is not None]
        most = 1.0 if is_share else max((value for _, value in known), default=0.0) or 1.0
        for name, value in known:
            said = f"{100 * value:.1f} %" if is_share else f"{value:.3g}"
            rows.append((name, min(100.0, 100 * value / most), said))
    if not rows:
        return None
    moments = sorted(
        ((distance, each, step, at) for each in pairs for step, at, distance in each.moments[:1]),
        key=lambda found: -found[0],
    )
    return Behaviour(
        rows=rows,
        moments=[
            _moment(distance, each, step, at, run_path)
            for distance, each, step, at in moments[:_MOST_MOMENTS]
        ],
        evidence=change.evidence or "open_loop",
    )


def _moment(distance: float, pair: Pair, step: int, at: float | None, run_path: str) -> Moment:
    """Times count from the start of the recording where they are small; a clock of the day has no place on a track."""
    timed = at is not None and 0 <= at < 86_400
    link = f"?t={round(1000 * (at or 0))}ms" if timed else ""
    return Moment(
        baseline_id=pair.baseline_id,
        path=f"{run_path}/pairs/{pair.baseline_id}{link}",
        at=f"{at:.2f} s" if timed else f"step {step:,}",
        distance=distance,
    )

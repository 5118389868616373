"""Rollup of a run: the summary every client knows, its uncertainty, and the decision.

The function is pure: results and a gate in, a `Rollup` out. Runner and server call the same function, so their numbers
are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from rollbook.contracts.decision import (
    ActionChange,
    ActionDistance,
    ArmIntervals,
    ArmMeans,
    Catastrophes,
    ClusterSummary,
    Decision,
    Interval,
    LedgerEntry,
    Look,
    MetricMeans,
    OutcomeSummary,
    PairCounts,
    RegretSummary,
    Rollup,
    SequentialBets,
    SuccessSummary,
)
from rollbook.contracts.evals import EVIDENCE, EVIDENCE_KEY, MEASURED, EvalResult
from rollbook.contracts.gate import SUCCESS_MARGIN, Gate
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.counterfactual_relation import counterfactual_relation
from rollbook.scoring.decision import (
    RunFacts,
    Statistics,
    Verdict,
    judge,
    missing_text,
)
from rollbook.scoring.intervals import rate_upper_bound, wilson_interval
from rollbook.scoring.labels import Labels
from rollbook.scoring.looks import leading_pairs, reached_look
from rollbook.scoring.needed_pairs import needed_pairs
from rollbook.scoring.next_step import next_step
from rollbook.scoring.outcome_pairs import outcome_pairs
from rollbook.scoring.outcome_statistics import OutcomeStatistics, outcome_statistics
from rollbook.scoring.paired_tests import (
    interquartile_mean,
    mcnemar_mid_p,
    probability_of_improvement,
    success_belief,
)
from rollbook.scoring.result_columns import Floats, ResultColumns
from rollbook.scoring.row_clusters import row_clusters
from rollbook.scoring.sentence import leading_outcome, sentence
from rollbook.scoring.slices import SlicedPairs, SliceReport, slice_report
from rollbook.scoring.vote import mean, vote
from rollbook.scoring.watched_bets import e_value_of

_NO_SCENARIOS: Mapping[str, str] = MappingProxyType({})
_NO_LABELS: Mapping[str, Labels] = MappingProxyType({})


def rollup(
    results: Sequence[EvalResult],
    gate: Gate | None = None,
    *,
    total: int | None = None,
    deleted: int = 0,
    critical: Mapping[str, str] = _NO_SCENARIOS,
    labels: Mapping[str, Labels] = _NO_LABELS,
    retried: int = 0,
    earlier_runs: int = 0,
    gate_name: str | None = None,
) -> Rollup:
    """Summarise a run and decide by the gate.

    `total` is the number of pairs of the run, where some have no result yet. `deleted` is the number of them whose
    baseline was deleted, so that they can never have a result. `critical` maps the baselines of active critical
    scenarios to scenario ids. `labels` are those of the baselines, by id. `retried` is the number of pairs that were
    replayed again after the policy had failed in them. `earlier_runs` is the number of runs that used some of the same
    baselines before. `gate_name` is the name of the organisation's gate, where it is one. The order of the results
    makes no difference. Without a gate it is `Gate.for_baselines` of the outcomes that the baselines have.
    """
    columns = ResultColumns.of(results)
    gate = gate or Gate.for_baselines(columns.of_baselines)
    pairs = max(len(columns), total or 0)
    look = _look(columns, gate, pairs)
    number = earlier_runs + 1
    corrected = gate.look_level / (number * (number + 1))
    decides = gate.ledger == "decide"
    level = corrected if decides else gate.look_level
    facts, statistics = measured(
        columns,
        gate,
        total=pairs,
        deleted=deleted,
        critical=critical,
        labels=labels,
        retried=retried,
        judged=look.pairs if look else None,
        level=level,
    )
    slices = slice_report(_sliced(columns, statistics, labels), gate, level)
    verdict = judge(statistics, gate, facts, level, slices.findings)
    ledger = None
    if earlier_runs or decides:
        would = verdict
        if not decides:
            would = judge(statistics, gate, facts, corrected, slices.findings)
        ledger = LedgerEntry(number=number, level=corrected, would=would.recommend, decides=decides)
    judged = _Judged(gate, facts, statistics, verdict, slices, level, look, ledger)
    plain = vote(columns)
    others: dict[Outcome, OutcomeSummary] = {
        name: OutcomeSummary(**_shared_fields(judged, name, plain.means[name]))
        for name in OUTCOMES
        if name != "success"
    }
    return Rollup(
        success_rate=_success_summary(judged, plain.means["success"]),
        reward_mean=others["reward_total"],
        collision_rate=others["collision_count"],
        time_to_goal_s=others["time_to_goal_s"],
        ood_action_share=MetricMeans(candidate=mean(columns.numbers("ood_action_share"))),
        better_count=plain.better_count,
        metric_total=plain.metric_total,
        recommend=plain.recommend,
        action_l2_distance=ActionDistance(**_spread(columns.numbers("action_l2_distance"))),
        action_change=_action_change(columns),
        regret=_regret(columns),
        counterfactual_relation=counterfactual_relation(
            columns, row_clusters(columns, labels, gate)
        ),
        counts=PairCounts(
            total=facts.total,
            complete=facts.complete,
            failed=facts.failed,
            pending=facts.pending,
            repeated=columns.repeated,
        ),
        sequential=_bets(statistics, gate, level),
        slices=slices.slices,
        decision=_decision(judged, gate_name),
    )


def measured(
    columns: ResultColumns,
    gate: Gate,
    *,
    total: int | None = None,
    deleted: int = 0,
    critical: Mapping[str, str] = _NO_SCENARIOS,
    labels: Mapping[str, Labels] = _NO_LABELS,
    retried: int = 0,
    judged: int | None = None,
    level: float | None = None,
) -> tuple[RunFacts, Statistics]:
    """Everything that `judge` needs, without the numbers that are only shown. Only the first `judged` pairs by id count
    for the outcomes, if it is given."""
    pairs = max(len(columns), total or 0)
    rowless = pairs - len(columns) if judged is None else max(0, judged - len(columns))
    if gate.design == "sequential" and gate.mode == "superiority":
        # It may end early: pairs after the first one without a result are not missing, but deleted ones are. Pairs
        # that arrived before an earlier one must not count: a candidate could hang where it would fail.
        judged = leading_pairs(columns.complete | columns.failed)
        rowless = min(deleted, pairs - len(columns))
    clusters = row_clusters(columns, labels, gate)
    counted, unfinished = columns, None
    if judged is not None:
        counted = columns.first(judged)
        if clusters is not None:
            unfinished = np.unique(clusters.of_rows[judged:])
            clusters = clusters.first(judged)
    statistics = {
        name: outcome_statistics(
            outcome_pairs(
                counted,
                name,
                gate,
                clusters,
                rowless=rowless,
                deleted=deleted,
            ),
            gate,
            level,
            unfinished,
        )
        for name in OUTCOMES
    }
    facts = RunFacts(
        total=pairs,
        complete=int(columns.complete.sum()),
        failed=int(columns.failed.sum()),
        crashed=int(columns.crashed.sum()),
        env_mismatches=int(columns.env_mismatch.sum()),
        nondeterministic=int(columns.nondeterministic.sum()),
        env_changes=columns.env_changes,
        unverified=_unverified(columns, gate),
        deleted=deleted,
        retried=retried,
        trusted=columns.trusted,
        critical=_failed_scenarios(columns, statistics, gate, critical),
    )
    return facts, statistics


def _sliced(
    columns: ResultColumns, statistics: Statistics, labels: Mapping[str, Labels]
) -> dict[Outcome, SlicedPairs]:
    """The outcomes that pairs have, with the labels of their baselines."""
    if not labels:
        return {}
    of_rows = [labels.get(each) for each in columns.ids]
    return {
        name: SlicedPairs(
            name,
            each.measured,
            [of_rows[row] for row in each.pairs.places[each.pairs.has_outcome].tolist()],
        )
        for name, each in statistics.items()
        if each.n
    }


def _unverified(columns: ResultColumns, gate: Gate) -> int:
    """Pairs that decide by an environment that nobody compared with the recorded one."""
    if columns.unverified is None:
        return 0
    deciding = [rule.metric for rule in gate.rules if rule.role != "info"]
    in_closed_loop = np.any([columns.outcomes[name].in_closed_loop for name in deciding], axis=0)
    return int(np.count_nonzero(columns.complete & columns.unverified & in_closed_loop))


def _look(columns: ResultColumns, gate: Gate, total: int) -> Look | None:
    """The look that the results have reached. Before the first one all pairs are judged, and those without a result
    are missing."""
    if gate.looks == 1:
        return None
    reached = reached_look(columns.complete | columns.failed, total, gate.looks)
    number, pairs = reached or (gate.looks, total)
    return Look(number=number, of=gate.looks, pairs=pairs, level=gate.look_level)


@dataclass(frozen=True)
class _Judged:
    """A run after it was judged."""

    gate: Gate
    facts: RunFacts
    statistics: Statistics
    verdict: Verdict
    slices: SliceReport
    level: float
    look: Look | None
    ledger: LedgerEntry | None

    def level_of(self, metric: Outcome) -> float:
        """The level at which this outcome was tested, so that its printed bound is the tested one."""
        if self.gate.mode == "non_inferiority":
            return self.level
        return self.verdict.levels.get(metric, self.level)


def _decision(judged: _Judged, gate_name: str | None) -> Decision:
    gate, facts, statistics, verdict = judged.gate, judged.facts, judged.statistics, judged.verdict
    needed = needed_pairs(statistics, gate, facts, verdict, judged.level)
    lead = leading_outcome(statistics, gate, verdict)
    level = judged.level if lead is None else judged.level_of(lead.pairs.metric)
    return Decision(
        recommend=verdict.recommend,
        reasons=verdict.reasons,
        findings=verdict.findings,
        sentence=sentence(
            verdict,
            lead,
            gate,
            facts,
            needed,
            level,
            judged.look,
            judged.ledger,
            judged.slices.worst(judged.level),
        ),
        needed_n=needed.pairs,
        better=verdict.better,
        left_out=verdict.left_out,
        early_stop=verdict.early_stop,
        gate=gate,
        gate_digest=gate.digest,
        gate_name=gate_name,
        needed_clusters=needed.clusters,
        next_step=next_step(verdict, statistics, gate, facts, needed),
        look=judged.look,
        ledger=judged.ledger,
    )


# ------------------------------------------------------------------------------- critical scenarios


def _failed_scenarios(
    columns: ResultColumns, statistics: Statistics, gate: Gate, critical: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Critical scenarios of this run that the candidate did not pass: id and first reason, sorted by id."""
    failed: dict[str, str] = {}
    for row, baseline in enumerate(columns.ids if critical else ()):
        if baseline in critical:
            why = _scenario_failure(columns, statistics, gate, row)
            if why is not None:
                failed.setdefault(critical[baseline], why)
    return tuple(sorted(failed.items()))


def _scenario_failure(
    columns: ResultColumns, statistics: Statistics, gate: Gate, row: int
) -> str | None:
    if columns.failed[row]:
        return "the candidate crashed"
    if not columns.complete[row]:
        return "it has no result yet"
    success = columns.outcomes["success"]
    is_known = success.has_evidence[row] and np.isfinite(success.candidate[row])
    if is_known and success.candidate[row] == 0:
        return "the candidate failed"
    measured = is_known and EVIDENCE[success.evidence[row]] in MEASURED
    if not measured and gate.rule("success").role != "info":
        return "success was not measured"
    for rule in gate.rules:
        if rule.role != "info" and row in (statistics[rule.metric].catastrophic_rows or ()):
            return f"{OUTCOMES[rule.metric].label} got worse by more than is borne"
    return None


# -------------------------------------------------------------------------------------- one outcome


def _success_summary(judged: _Judged, means: MetricMeans) -> SuccessSummary:
    gate, outcome = judged.gate, judged.statistics["success"]
    wins, losses, n = outcome.wins, outcome.losses, outcome.n
    shared = _shared_fields(judged, "success", means)
    wilson, margin = ArmIntervals(), gate.rule("success").margin
    # What is shown for single pairs would be too sure of pairs that are alike.
    alone = bool(n) and not outcome.pairs.repeats and not outcome.measured.has_clusters
    if alone:
        hits = int(outcome.pairs.candidate.sum())
        wilson = ArmIntervals(
            baseline=wilson_interval(hits + losses - wins, n), candidate=wilson_interval(hits, n)
        )
    if margin is None:
        margin = SUCCESS_MARGIN
    return SuccessSummary(
        **shared,
        wins=wins,
        losses=losses,
        mid_p=mcnemar_mid_p(wins, losses) if alone else None,
        wilson=wilson,
        bayes=success_belief(wins, losses, n, margin) if alone else None,
    )


def _shared_fields(judged: _Judged, metric: Outcome, means: MetricMeans) -> dict[str, Any]:
    """Fields of an OutcomeSummary, which success has too."""
    gate, outcome, level = judged.gate, judged.statistics[metric], judged.level_of(metric)
    pairs, n = outcome.pairs, outcome.n
    sign = 1.0 if OUTCOMES[pairs.metric].higher_is_better else -1.0
    interval = _interval(outcome, gate, sign, level)
    delta = None if outcome.gain is None else sign * outcome.gain
    catastrophes = None
    if outcome.catastrophic_rows is not None and n:
        count = len(outcome.catastrophic_rows)
        # the bound is over situations, of which there may be fewer than catastrophic episodes
        upper = rate_upper_bound(min(count, n), n)
        catastrophes = Catastrophes(count=count, rate_upper95=upper)
    iqm = ArmMeans()
    if pairs.metric != "success" and len(pairs.baseline):
        iqm = ArmMeans(
            baseline=interquartile_mean(pairs.baseline),
            candidate=interquartile_mean(pairs.candidate),
        )
    return {
        **msgspec.structs.asdict(means),
        "n_pairs": n,
        "n_total": pairs.total,
        "n_repeats": pairs.repeats,
        "crashes": pairs.crashes,
        "unusable": pairs.unusable,
        "evidence": pairs.evidence,
        "role": gate.rule(pairs.metric).role,
        "paired_delta": delta if delta is not None and math.isfinite(delta) else None,
        "interval": interval,
        "interval_level": None if interval is None else 1 - 2 * level,
        **_tests(outcome, gate),
        "clusters": _clusters(outcome),
        "missing": dict(pairs.missing),
        "worst_loss": outcome.worst_loss if n else None,
        "worst_loss_declared": bool(n) and outcome.is_declared,
        "iqm": iqm,
        "probability_of_improvement": probability_of_improvement(pairs.gains) if n else None,
        "catastrophes": catastrophes,
        "note": "; ".join(_notes(outcome, gate)) or None,
    }


def _tests(outcome: OutcomeStatistics, gate: Gate) -> dict[str, Any]:
    """P-values, and the names of the bounds they belong to. Of a bet, 1/e-value."""
    if not outcome.n:
        return {"p_value": None, "p_worse": None, "method": None}
    if outcome.bets is not None:
        return {
            "p_value": 1 / max(1.0, e_value_of(outcome.bets.better)),
            "p_worse": 1 / max(1.0, e_value_of(outcome.bets.worse)),
            "method": "e_value",
        }
    return {
        "p_value": _steady(outcome.judged.p_better),
        "p_worse": _steady(outcome.measured.p_worse),
        "method": _method(outcome, gate),
    }


def _interval(outcome: OutcomeStatistics, gate: Gate, sign: float, level: float) -> Interval | None:
    """The two tested bounds of the delta. A sequential run has none: they hold for one look."""
    if not outcome.n or gate.design == "sequential":
        return None
    bounds = outcome.judged
    not_worse = (
        gate.mode == "non_inferiority" and gate.rule(outcome.pairs.metric).margin is not None
    )
    low = bounds.lower_for_margin(level) if not_worse else bounds.lower(level)
    high = outcome.measured.upper(level)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    low, high = _steady(low), _steady(high)
    return (low, high) if sign > 0 else (-high, -low)


def _steady(number: float) -> float:
    """Without the last digits, which an integral or a search may give differently on another machine."""
    return float(f"{number:.8g}")


def _method(outcome: OutcomeStatistics, gate: Gate) -> str:
    """Names of the bounds."""
    bounds = outcome.judged
    if bounds.is_exact:
        return "mcnemar_exact"
    flips = "cluster_sign_flip" if bounds.has_clusters else "sign_flip"
    tails = {"gaffke": "gaffke", "proven": "betting", "scenes": "gaffke_scenes"}[gate.tails]
    return f"{flips}+{tails}"


def _clusters(outcome: OutcomeStatistics) -> ClusterSummary | None:
    if not outcome.measured.has_clusters:
        return None
    found = outcome.measured.clusters
    return ClusterSummary(
        by=outcome.pairs.cluster_by or "",
        count=len(found),
        effective_pairs=found.effective_pairs,
        correlation=found.correlation,
    )


def _notes(outcome: OutcomeStatistics, gate: Gate) -> Iterator[str]:
    pairs, n = outcome.pairs, outcome.n
    if not n:
        if pairs.evidence == "open_loop":
            yield "open loop: actions changed or did not, which says nothing about the outcome"
        else:
            yield "not measured"
        return
    if pairs.repeats:
        yield f"{n + pairs.repeats} pairs of {n} situation{'' if n == 1 else 's'}"
    # Otherwise "57 % and 100 %, a difference of 8 points" looks wrong.
    without = ", but not in the mean of each policy" if len(pairs.baseline) else ""
    if pairs.crashes and pairs.metric == "success":
        yield f"{pairs.crashes} crashed, counted as losses{without}"
    elif pairs.crashes:
        yield f"{pairs.crashes} crashed, counted as the lowest reward{without}"
    if pairs.missing:
        counted = "ignored" if gate.missing == "ignore" else "counted as lost"
        yield f"missing: {missing_text(outcome)}, {counted}"
    if pairs.metric == "time_to_goal_s":
        yield "given both succeed"
    if pairs.metric == "success" and len(pairs.baseline) and not pairs.baseline.any():
        # chance alone then looks like a gain: whoever chose baselines by their outcome has to know
        yield "every baseline failed, so that no pair could be lost"
    if pairs.metric == "collision_count" and not (pairs.baseline.any() or pairs.candidate.any()):
        most = rate_upper_bound(0, n)
        yield f"0/{n} episodes with a collision on both sides: at most 3/{n} ({most:.1%})"
    if not outcome.is_declared and gate.rule(pairs.metric).role != "info":
        shown = OUTCOMES[pairs.metric].amount_text(outcome.worst_loss)
        yield f"a loss beyond {shown} was not ruled out"


def _bets(statistics: Statistics, gate: Gate, level: float) -> SequentialBets | None:
    """Of the outcome that a sequential run bets on."""
    for name, outcome in statistics.items():
        if outcome.bets is not None:
            return SequentialBets(
                metric=name,
                e_better=e_value_of(outcome.bets.better),
                e_worse=e_value_of(outcome.bets.worse),
                threshold=1 / level,
            )
    return None


# -------------------------------------------------------------------------------------- the actions


def _spread(values: Floats) -> dict[str, float | None]:
    """Mean and 95 % quantile over episodes."""
    p95 = float(np.quantile(values, 0.95)) if len(values) else None
    return {"mean": mean(values), "p95": p95}


def _action_change(columns: ResultColumns) -> ActionChange:
    scaled = columns.numbers("actions", "scaled_distance", "mean")
    stated = [
        blob.get(EVIDENCE_KEY)
        for blob, complete in zip(columns.metrics, columns.complete, strict=True)
        if complete
    ]
    words = [each.get("actions") for each in stated if isinstance(each, Mapping)]
    kinds = [kind for kind in EVIDENCE if kind != "not_measured" and kind in words]
    return ActionChange(
        **_spread(scaled),
        ood_share=mean(columns.numbers("actions", "ood_share")),
        n_pairs=len(scaled),
        evidence="mixed" if len(kinds) > 1 else kinds[0] if kinds else None,
    )


def _regret(columns: ResultColumns) -> RegretSummary | None:
    regrets = columns.numbers("counterfactual", "regret")
    if not len(regrets):
        return None
    others = ("best_total", "random_total", "chosen_total", "regret_share")
    means = {key: mean(columns.numbers("counterfactual", key)) for key in others}
    return RegretSummary(
        **means,
        regret=mean(regrets),
        n_pairs=len(regrets),
        invalid_choices=float(columns.numbers("counterfactual", "invalid_choices").sum()),
    )

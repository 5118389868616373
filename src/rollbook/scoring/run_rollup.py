"""Rollup of a run: the summary every client knows, its uncertainty, and the decision.

The function is pure: results and a gate in, a `Rollup` out. Runner and server call the same function, so their numbers
are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    Decision,
    Interval,
    MetricMeans,
    OutcomeSummary,
    PairCounts,
    RegretSummary,
    Rollup,
    SequentialBets,
    SuccessSummary,
)
from rollbook.contracts.evals import EVIDENCE, EVIDENCE_KEY, EvalResult
from rollbook.contracts.gate import SUCCESS_MARGIN, Gate
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.decision import RunFacts, Statistics, judge
from rollbook.scoring.intervals import (
    FEWEST_FOR_A_MEAN,
    mean_interval,
    rate_upper_bound,
    tango_interval,
    wilson_interval,
)
from rollbook.scoring.needed_pairs import needed_pairs
from rollbook.scoring.outcome_pairs import outcome_pairs
from rollbook.scoring.outcome_statistics import OutcomeStatistics, outcome_statistics
from rollbook.scoring.paired_tests import (
    e_value,
    interquartile_mean,
    mcnemar_mid_p,
    probability_of_improvement,
    success_belief,
)
from rollbook.scoring.result_columns import Floats, ResultColumns
from rollbook.scoring.sentence import leading_outcome, sentence
from rollbook.scoring.vote import mean, vote

_NO_SCENARIOS: Mapping[str, str] = MappingProxyType({})


def rollup(
    results: Sequence[EvalResult],
    gate: Gate | None = None,
    *,
    total: int | None = None,
    deleted: int = 0,
    critical: Mapping[str, str] = _NO_SCENARIOS,
) -> Rollup:
    """Summarise a run and decide by the gate.

    `total` is the number of pairs of the run, where some have no result yet. `deleted` is the number of them whose
    baseline was deleted, so that they can never have a result. `critical` maps the baselines of active critical
    scenarios to scenario ids. The order of the results makes no difference. Without a gate it is
    `Gate.for_baselines` of the outcomes that the baselines have.
    """
    columns = ResultColumns.of(results)
    gate = gate or Gate.for_baselines(columns.of_baselines)
    facts, statistics = measured(columns, gate, total=total, deleted=deleted, critical=critical)
    plain = vote(columns)
    success = _success_summary(statistics["success"], plain.means["success"], gate)
    others: dict[Outcome, OutcomeSummary] = {
        name: OutcomeSummary(**_shared_fields(statistics[name], plain.means[name], gate))
        for name in OUTCOMES
        if name != "success"
    }
    return Rollup(
        success_rate=success,
        **{OUTCOMES[name].summary_key: each for name, each in others.items()},
        ood_action_share=MetricMeans(candidate=mean(columns.numbers("ood_action_share"))),
        better_count=plain.better_count,
        metric_total=plain.metric_total,
        recommend=plain.recommend,
        action_l2_distance=ActionDistance(**_spread(columns.numbers("action_l2_distance"))),
        action_change=_action_change(columns),
        regret=_regret(columns),
        counts=PairCounts(
            total=facts.total,
            complete=facts.complete,
            failed=facts.failed,
            pending=facts.pending,
            repeated=columns.repeated,
        ),
        sequential=_bets(statistics["success"], gate) if gate.design == "sequential" else None,
        decision=_decision(statistics, gate, facts, {"success": success, **others}),
    )


def measured(
    columns: ResultColumns,
    gate: Gate,
    *,
    total: int | None = None,
    deleted: int = 0,
    critical: Mapping[str, str] = _NO_SCENARIOS,
) -> tuple[RunFacts, Statistics]:
    """Everything that `judge` needs, without the numbers that are only shown."""
    complete, failed = int(columns.complete.sum()), int(columns.failed.sum())
    pairs = max(len(columns), total or 0)
    # A sequential run may end early: pairs that it did not run are not missing, but deleted ones are.
    stops_early = gate.design == "sequential" and gate.mode == "superiority"
    expected = complete + failed + deleted if stops_early else pairs
    statistics = {
        name: outcome_statistics(outcome_pairs(columns, name, expected), gate) for name in OUTCOMES
    }
    facts = RunFacts(
        total=pairs,
        complete=complete,
        failed=failed,
        env_mismatches=int(columns.env_mismatch.sum()),
        nondeterministic=int(columns.nondeterministic.sum()),
        critical=_failed_scenarios(columns, statistics, gate, critical),
    )
    return facts, statistics


def _decision(
    statistics: Statistics,
    gate: Gate,
    facts: RunFacts,
    summaries: Mapping[Outcome, OutcomeSummary],
) -> Decision:
    verdict = judge(statistics, gate, facts)
    needed = needed_pairs(statistics, gate, facts, verdict)
    lead = leading_outcome(statistics, gate)
    interval = summaries[lead.pairs.metric].ci95 if lead else None
    return Decision(
        recommend=verdict.recommend,
        reasons=verdict.reasons,
        findings=verdict.findings,
        sentence=sentence(verdict, lead, gate, facts, interval, needed),
        needed_n=needed,
        better=verdict.better,
        left_out=verdict.left_out,
        early_stop=verdict.early_stop,
        gate=gate,
        gate_digest=gate.digest,
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
    if not is_known and gate.rule("success").role != "info":
        return "success was not measured"
    for rule in gate.rules:
        if rule.role != "info" and row in (statistics[rule.metric].catastrophic_rows or ()):
            return f"{OUTCOMES[rule.metric].label} got worse by more than is borne"
    return None


# -------------------------------------------------------------------------------------- one outcome


def _success_summary(outcome: OutcomeStatistics, means: MetricMeans, gate: Gate) -> SuccessSummary:
    wins, losses, n = outcome.wins, outcome.losses, outcome.n
    shared = _shared_fields(outcome, means, gate)
    if n and gate.design == "sequential":
        bets = _bets(outcome, gate)
        shared |= {
            "p_value": min(1.0, 1 / max(bets.e_better, 1e-300)),
            "p_worse": min(1.0, 1 / max(bets.e_worse, 1e-300)),
            "method": "e_value+tango",
        }
    wilson, margin = ArmIntervals(), gate.rule("success").margin
    if (
        n and not outcome.pairs.repeats
    ):  # a situation with several pairs is neither a hit nor a miss
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
        mid_p=mcnemar_mid_p(wins, losses) if n else None,
        wilson=wilson,
        bayes=success_belief(wins, losses, n, margin) if n else None,
    )


def _shared_fields(outcome: OutcomeStatistics, means: MetricMeans, gate: Gate) -> dict[str, Any]:
    """Fields of an OutcomeSummary, which success has too."""
    pairs, n = outcome.pairs, outcome.n
    sign = 1.0 if OUTCOMES[pairs.metric].higher_is_better else -1.0
    interval, method, notes = _interval(outcome, sign)
    if pairs.repeats:
        notes = [f"{n + pairs.repeats} pairs of {n} situation{'' if n == 1 else 's'}", *notes]
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
        "ci95": interval,
        "p_value": outcome.p.better if outcome.p else None,
        "p_worse": outcome.p.worse if outcome.p else None,
        "method": method,
        "iqm": iqm,
        "probability_of_improvement": probability_of_improvement(pairs.gains) if n else None,
        "catastrophes": catastrophes,
        "note": "; ".join(notes) or None,
    }


def _interval(
    outcome: OutcomeStatistics, sign: float
) -> tuple[Interval | None, str | None, list[str]]:
    """Interval of the delta, name of the method, and notes for the reader."""
    pairs, n = outcome.pairs, outcome.n
    if not n and pairs.evidence == "open_loop":
        text = "open loop: actions changed or did not, which says nothing about the outcome"
        return None, None, [text]
    if not n:
        return None, None, ["not measured"]
    crashed = f"{pairs.crashes} crashed, counted "
    if pairs.metric == "success":
        interval = tango_interval(outcome.wins, outcome.losses, n)
        return interval, "mcnemar_exact+tango", [f"{crashed}as losses"] if pairs.crashes else []
    notes = []
    if pairs.crashes:
        notes.append(f"{crashed}as a fall from the best reward of the run to the worst")
    if pairs.metric == "time_to_goal_s":
        notes.append("given both succeed")
    if pairs.metric == "collision_count" and not (pairs.baseline.any() or pairs.candidate.any()):
        most = rate_upper_bound(0, n)
        notes.append(f"0/{n} episodes with a collision on both sides: at most 3/{n} ({most:.1%})")
    found = mean_interval(sign * pairs.gains)
    if found.method == "no_variation":
        notes.append("no variation: every pair differs by the same amount")
    elif found.method == "too_few":
        notes.append(f"too few for an interval: {n} of at least {FEWEST_FOR_A_MEAN} pairs")
    if found.interval is None:
        return None, "sign_flip", notes
    finite = all(map(math.isfinite, found.interval))
    return found.interval if finite else None, f"sign_flip+{found.method}", notes


def _bets(success: OutcomeStatistics, gate: Gate) -> SequentialBets:
    return SequentialBets(
        e_better=e_value(success.wins, success.losses),
        e_worse=e_value(success.losses, success.wins),
        threshold=1 / gate.alpha,
    )


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

"""Rollup: what a run came to. The summary every client knows, how sure one may be of it, and the decision.

Pure: results and a gate in, plain JSON values out. The runner and the server call the same function, so nobody has to
ask whose number is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from rollbook.contracts.evals import (
    EVIDENCE,
    EVIDENCE_KEY,
    HIGHER_IS_BETTER,
    OUTCOMES,
    SUMMARY_KEYS,
    EvalResult,
)
from rollbook.contracts.gate import SUCCESS_MARGIN, Gate
from rollbook.scoring.belief import success_belief
from rollbook.scoring.critical_scenarios import failed_scenarios
from rollbook.scoring.decision import RunFacts, Statistics, Verdict, judge
from rollbook.scoring.intervals import (
    FEWEST_FOR_A_MEAN,
    Interval,
    mean_interval,
    rate_upper_bound,
    tango_interval,
    wilson_interval,
)
from rollbook.scoring.needed_pairs import needed_pairs
from rollbook.scoring.outcome_pairs import OutcomePairs, outcome_pairs
from rollbook.scoring.outcome_statistics import OutcomeStatistics, outcome_statistics
from rollbook.scoring.paired_tests import (
    interquartile_mean,
    mcnemar_mid_p,
    probability_of_improvement,
)
from rollbook.scoring.result_columns import Floats, ResultColumns
from rollbook.scoring.sentence import leading, sentence
from rollbook.scoring.sequential import e_value
from rollbook.scoring.vote import mean, vote

_NO_SCENARIOS: Mapping[str, str] = MappingProxyType({})
_REGRET = ("best_total", "random_total", "chosen_total", "regret", "regret_share")


def rollup(
    results: Sequence[EvalResult],
    gate: Gate | None = None,
    *,
    total: int | None = None,
    deleted: int = 0,
    critical: Mapping[str, str] = _NO_SCENARIOS,
) -> dict[str, Any]:
    """The summary of a run.

    `total` is the number of pairs there should be, where not all of them have a row yet; `deleted` are those of them
    that can have none any more. `critical` maps the baselines of active critical scenarios to the ids of these. The
    order of the results makes no difference.
    """
    gate = gate or Gate()
    columns = ResultColumns.of(results)
    facts, statistics = measured(columns, gate, total=total, deleted=deleted, critical=critical)
    summary = vote(columns)
    intervals: dict[str, Interval | None] = {}
    for name in OUTCOMES:
        described, intervals[name] = _described(statistics[name], gate)
        summary[SUMMARY_KEYS[name]] |= described
    summary |= _changes(columns)
    summary["counts"] = {
        "total": facts.total,
        "complete": facts.complete,
        "failed": facts.failed,
        "pending": facts.left,
        "repeated": columns.repeated,
    }
    if gate.design == "sequential":
        summary["sequential"] = _bets(statistics["success"], gate)
    verdict = judge(statistics, gate, facts)
    summary["decision"] = _decision(verdict, statistics, gate, facts, intervals)
    return summary


def measured(
    columns: ResultColumns,
    gate: Gate,
    *,
    total: int | None = None,
    deleted: int = 0,
    critical: Mapping[str, str] = _NO_SCENARIOS,
) -> tuple[RunFacts, Statistics]:
    """All that `judge` needs, and nothing that is only shown."""
    complete, failed = int(columns.complete.sum()), int(columns.failed.sum())
    pairs = max(len(columns), total or 0)
    # a sequential run may end before all pairs ran: what it did not get to is not missing, what was taken away is
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
        critical=failed_scenarios(columns, statistics, gate, critical) if critical else (),
    )
    return facts, statistics


def _decision(
    verdict: Verdict,
    statistics: Statistics,
    gate: Gate,
    facts: RunFacts,
    intervals: Mapping[str, Interval | None],
) -> dict[str, Any]:
    needed = needed_pairs(statistics, gate, facts, verdict)
    lead = leading(statistics, gate)
    interval = intervals[lead.pairs.metric] if lead else None
    return {
        "recommend": verdict.recommend,
        "reasons": verdict.reasons,
        "findings": [{"reason": each.reason, "text": each.text} for each in verdict.findings],
        "sentence": sentence(verdict, statistics, gate, facts, interval, needed),
        "needed_n": needed,
        "better": list(verdict.better),
        "left_out": list(verdict.left_out),
        "early_stop": verdict.early_stop,
        "gate": gate.as_dict(),
        "gate_digest": gate.digest,
    }


def _described(outcome: OutcomeStatistics, gate: Gate) -> tuple[dict[str, Any], Interval | None]:
    """One outcome as it is shown, and the interval of its delta."""
    pairs, n = outcome.pairs, outcome.n
    sign = 1.0 if HIGHER_IS_BETTER[pairs.metric] else -1.0
    interval, method, note = _interval(outcome, sign)
    note = "; ".join(filter(None, (_repeats(pairs), note))) or None
    catastrophes = None
    if outcome.catastrophic_rows is not None and n:
        count = len(outcome.catastrophic_rows)
        # of situations, of which there may be fewer than of episodes
        catastrophes = {"count": count, "rate_upper95": rate_upper_bound(min(count, n), n)}
    described: dict[str, Any] = {
        "n_pairs": n,
        "n_total": pairs.total,
        "n_repeats": pairs.repeats,
        "crashes": pairs.crashes,
        "unusable": pairs.unusable,
        "evidence": pairs.evidence,
        "role": gate.rule(pairs.metric).role,
        "paired_delta": None if outcome.gain is None else _finite(sign * outcome.gain),
        "ci95": None if interval is None else list(interval),
        "p_value": outcome.p.better if outcome.p else None,
        "p_worse": outcome.p.worse if outcome.p else None,
        "method": method,
        "iqm": {"baseline": None, "candidate": None},
        "probability_of_improvement": probability_of_improvement(pairs.gains) if n else None,
        "catastrophes": catastrophes,
        "note": note,
    }
    if pairs.metric == "success":
        described |= _success(outcome, gate)
    elif len(pairs.baseline):
        described["iqm"] = {
            "baseline": interquartile_mean(pairs.baseline),
            "candidate": interquartile_mean(pairs.candidate),
        }
    return described, interval


def _interval(
    outcome: OutcomeStatistics, sign: float
) -> tuple[Interval | None, str | None, str | None]:
    """The interval of the delta, how it was made, and what has to be said with it."""
    pairs, n = outcome.pairs, outcome.n
    if not n:
        return None, None, _without_pairs(pairs.evidence)
    if pairs.metric == "success":
        interval = tango_interval(outcome.wins, outcome.losses, n)
        return interval, "mcnemar_exact+tango", _crashes(pairs.crashes, "as losses")
    notes = [_crashes(pairs.crashes, "as a fall from the best reward of the run to the worst")]
    if pairs.metric == "time_to_goal_s":
        notes.append("given both succeed")
    if pairs.metric == "collision_count" and not (pairs.baseline.any() or pairs.candidate.any()):
        most = rate_upper_bound(0, n)
        notes.append(f"0/{n} episodes with a collision on both sides: at most 3/{n} ({most:.1%})")
    found = mean_interval(sign * pairs.gains)
    interval_of_delta = found.interval
    method = f"sign_flip+{found.method}"
    if found.method == "no_variation":
        notes.append("no variation: every pair differs by the same amount")
        method = "sign_flip"
    elif found.method == "too_few":
        notes.append(f"too few for an interval: {n} of at least {FEWEST_FOR_A_MEAN} pairs")
        method = "sign_flip"
    if interval_of_delta is not None and not all(map(math.isfinite, interval_of_delta)):
        interval_of_delta = None
    return interval_of_delta, method, "; ".join(filter(None, notes)) or None


def _without_pairs(evidence: str) -> str:
    if evidence == "open_loop":
        return "open loop: actions changed or did not, which says nothing about the outcome"
    return "not measured"


def _repeats(pairs: OutcomePairs) -> str | None:
    if not pairs.repeats:
        return None
    n = len(pairs)
    return f"{n + pairs.repeats} pairs of {n} situation{'' if n == 1 else 's'}"


def _crashes(crashes: int, counted: str) -> str | None:
    return f"{crashes} crashed, counted {counted}" if crashes else None


def _success(outcome: OutcomeStatistics, gate: Gate) -> dict[str, Any]:
    """What only a yes-or-no outcome has."""
    wins, losses, n = outcome.wins, outcome.losses, outcome.n
    described: dict[str, Any] = {
        "wins": wins,
        "losses": losses,
        "mid_p": None,
        "wilson": {"baseline": None, "candidate": None},
        "bayes": None,
    }
    if not n:
        return described
    margin = gate.rule("success").margin
    belief = success_belief(wins, losses, n, SUCCESS_MARGIN if margin is None else margin)
    described |= {
        "mid_p": mcnemar_mid_p(wins, losses),
        "bayes": {"p_better": belief.better, "p_not_worse": belief.not_worse},
    }
    if not outcome.pairs.repeats:  # a situation that was run often is neither a hit nor a miss
        hits = int(outcome.pairs.candidate.sum())
        described["wilson"] = {
            "baseline": list(wilson_interval(hits + losses - wins, n)),
            "candidate": list(wilson_interval(hits, n)),
        }
    if gate.design == "sequential":
        bets = _bets(outcome, gate)
        described |= {
            "p_value": min(1.0, 1 / max(bets["e_better"], 1e-300)),
            "p_worse": min(1.0, 1 / max(bets["e_worse"], 1e-300)),
            "method": "e_value+tango",
        }
    return described


def _bets(success: OutcomeStatistics, gate: Gate) -> dict[str, float]:
    return {
        "e_better": e_value(success.wins, success.losses),
        "e_worse": e_value(success.losses, success.wins),
        "threshold": 1 / gate.alpha,
    }


def _changes(columns: ResultColumns) -> dict[str, Any]:
    """How much the candidate's actions differ. Neither better nor worse: nobody knows the right direction."""
    scaled = columns.numbers("actions", "scaled_distance", "mean")
    changes: dict[str, Any] = {
        "action_l2_distance": _spread(columns.numbers("action_l2_distance")),
        "action_change": {
            **_spread(scaled),
            "ood_share": mean(columns.numbers("actions", "ood_share")),
            "n_pairs": len(scaled),
            "evidence": _evidence_of_actions(columns),
        },
    }
    regrets = {key: columns.numbers("counterfactual", key) for key in _REGRET}
    if len(regrets["regret"]):
        invalid = columns.numbers("counterfactual", "invalid_choices")
        changes["regret"] = {key: mean(values) for key, values in regrets.items()}
        changes["regret"] |= {
            "n_pairs": len(regrets["regret"]),
            "invalid_choices": float(invalid.sum()),
        }
    return changes


def _evidence_of_actions(columns: ResultColumns) -> str | None:
    """As the complete rows state it; None where none of them does."""
    stated = [
        blob.get(EVIDENCE_KEY)
        for blob, done in zip(columns.metrics, columns.complete, strict=True)
        if done
    ]
    words = [each.get("actions") for each in stated if isinstance(each, Mapping)]
    kinds = [kind for kind in EVIDENCE if kind != "not_measured" and kind in words]
    if len(kinds) > 1:
        return "mixed"
    return kinds[0] if kinds else None


def _spread(values: Floats) -> dict[str, float | None]:
    """Over episodes."""
    p95 = float(np.quantile(values, 0.95)) if len(values) else None
    return {"mean": mean(values), "p95": p95}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""Next step: the cheapest way from a hold to an answer, in one sentence."""

from __future__ import annotations

from rollbook.contracts.gate import Gate
from rollbook.scoring.decision import SEED_IGNORED, RunFacts, Statistics, Verdict
from rollbook.scoring.needed_pairs import NeededPairs
from rollbook.scoring.sentence import needed_text, rounded_up

_STEPS = {
    "env_mismatch": "Replay in the environment version and from the seeds that the baselines were recorded with.",
    "env_changed": "Replay in the recorded environment, or record the baselines again in today's.",
    "nondeterministic_baseline": "Make the environment repeat itself under its seed, and record the baselines again.",
    "unverified_environment": (
        "Record the baselines again with their actions, so that the environment can be checked; or set "
        "accept_unverified_environment in the gate of the next run."
    ),
    "altered": "Start a new run: baselines of this one were deleted.",
    "retried": "Start a new run on fresh baselines, in which no failed pair is replayed again.",
    "critical_scenario": "Improve the candidate on its critical scenarios; more pairs would not change this.",
    "not_measured": (
        "Measure the outcome: --environment runs the episodes in their environment, --store reads true rewards from a "
        "rollout store."
    ),
    "mixed_evidence": "Replay all pairs in the same way, in a new run.",
    "outside_reward_range": "Declare a reward_range that holds every reward, in the gate of a new run.",
    "regression": "Improve the candidate: it is worse, and more pairs would not change this.",
    "catastrophes": "Look at the episodes with a catastrophe; more pairs would not change this.",
    "slice": "Improve the candidate on the slice that got worse; more pairs would not change this.",
}


def next_step(
    verdict: Verdict, statistics: Statistics, gate: Gate, facts: RunFacts, needed: NeededPairs
) -> str | None:
    """None when the candidate ships."""
    if verdict.recommend == "ship":
        return None
    first = verdict.reasons[0].split(":")[0]
    if f"env_changed:{SEED_IGNORED}" in verdict.reasons:
        return _STEPS["nondeterministic_baseline"]
    if first == "not_measured" and facts.failed and not facts.complete:
        return "Find out why no replay came to its end: each failed pair has its error in the results of the run."
    if first in _STEPS:
        return _STEPS[first]
    causes = {cause for each in statistics.values() for cause in each.pairs.missing}
    if facts.waiting:
        return f"Finish the run: {facts.waiting} of {facts.total} pairs have no result yet."
    if "infrastructure" in causes:
        return "Replay the pairs again that the infrastructure broke, with --resume."
    if first == "missing_data":
        return "Start a new run in which every pair has its outcome on both sides."
    if "undeclared_range" in verdict.reasons:
        again = "in the gate of a new run on fresh pairs"
        return f"Declare reward_range, the lowest and highest reward of an episode, {again}."
    if first == "insufficient_n" and (alike := _alike(statistics, gate, needed)):
        return alike
    if first == "insufficient_clusters" and (alone := _one_cluster(statistics, gate)):
        return alone
    if needed.pairs is None:
        return (
            "Change the candidate: nothing says that more pairs would show a gain. If none is meant, use the mode "
            "non_inferiority."
        )
    design = ""
    if gate.design == "fixed" and gate.looks == 1 and needed.pairs > 2 * gate.n_min:
        design = f" Declare looks = 2 or more to stop at {rounded_up(-(-needed.pairs // 2))} pairs if those are enough."
    text = needed_text(needed)
    return f"{text[0].upper()}{text[1:]}.{design}"


def _alike(statistics: Statistics, gate: Gate, needed: NeededPairs) -> str | None:
    """More of the same would not help where there are enough pairs, and too many of them start alike."""
    if needed.clusters is not None:
        return None  # new scenes start in other ways
    for rule in gate.rules:
        outcome = statistics[rule.metric]
        count = outcome.n + outcome.pairs.repeats
        if rule.role != "info" and outcome.n < gate.n_min <= count:
            wanted = max(gate.n_min, needed.pairs or 0)
            return (
                f"Record baselines that start in about {rounded_up(wanted)} different ways, such as with other seeds: "
                f"the {count} pairs of this run start in {outcome.n}, and count as so many."
            )
    return None


def _one_cluster(statistics: Statistics, gate: Gate) -> str | None:
    """More of the same would not help where all pairs are of one cluster: the gate has to say what the run is about."""
    for rule in gate.rules:
        outcome = statistics[rule.metric]
        if rule.role == "info" or not outcome.n or len(outcome.measured.clusters) > 1:
            continue
        by = outcome.pairs.cluster_by
        if outcome.pairs.unlabelled:
            return f"Check cluster in the gate: no baseline has {by!r} in its metadata."
        if by in ("scene", "task"):
            return (
                f'Set cluster = "none" in the gate of a new run on fresh pairs, if the decision should be about this '
                f"{by} alone; else record baselines of at least {gate.least_clusters} {by}s."
            )
    return None

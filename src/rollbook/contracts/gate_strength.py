"""Gate strength: which fields of a gate make it easier to pass than another one.

An organisation locks a gate, and an author may bring another one that is at least as strict. Where it is not clear that
a different value is as strict, it counts as weaker: a gate without a weaker field ships only what the other one ships.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from rollbook.contracts.gate import NO_CLUSTERS, Gate, MetricRule, SliceGuard
from rollbook.contracts.outcomes import OUTCOMES

Comparison: TypeAlias = Callable[[Gate, Gate], bool]
"""Whether the first gate is weaker than the second in one field."""


def weaker_fields(gate: Gate, than: Gate) -> list[str]:
    """Names of the fields in which `gate` is weaker, such as `alpha` and `rules[success].margin`."""
    found = [name for name, is_weaker in COMPARISONS.items() if is_weaker(gate, than)]
    return [*found, *_weaker_rules(gate, than)]


def _differs(field: str) -> Comparison:
    return lambda gate, than: getattr(gate, field) != getattr(than, field)


def _lower(field: str) -> Comparison:
    return lambda gate, than: getattr(gate, field) < getattr(than, field)


def _accepts_more(field: str) -> Comparison:
    return lambda gate, than: getattr(gate, field) and not getattr(than, field)


def _never(gate: Gate, than: Gate) -> bool:
    return False


def _alpha(gate: Gate, than: Gate) -> bool:
    """A lower alpha asks for more before something is better, and also before something is worse. It is stricter only
    where nothing is held for being significantly worse."""
    return gate.alpha > than.alpha or (gate.alpha < than.alpha and _holds_by_significance(than))


def _holds_by_significance(gate: Gate) -> bool:
    primaries = [rule for rule in gate.rules if rule.role == "primary"]
    guards = any(rule.role == "guard" for rule in gate.rules)
    unbounded = any(rule.margin is None for rule in primaries)
    # a single primary that has to be better cannot be worse
    alone = len(primaries) == 1 and gate.mode == "superiority"
    return guards or bool(gate.guard_slices) or (unbounded and not alone)


def _cluster(gate: Gate, than: Gate) -> bool:
    """Pairs in clusters show less than pairs that count alone: less that is better, and less that is worse."""
    if gate.cluster == than.cluster:
        return False
    return than.cluster != NO_CLUSTERS or _holds_by_significance(than)


def _used_share(gate: Gate, than: Gate) -> bool:
    return gate.missing == "ignore" and gate.min_used_share < than.min_used_share


def _evidence(gate: Gate, than: Gate) -> bool:
    return not set(gate.evidence) <= set(than.evidence)


def _reward_range(gate: Gate, than: Gate) -> bool:
    """A range that only the author declares is weaker too: without one, 150 pairs have to show what was seen."""
    if gate.reward_range is None or than.reward_range is None:
        return gate.reward_range != than.reward_range
    (low, high), (least, most) = gate.reward_range, than.reward_range
    return low > least or high < most


def _tails(gate: Gate, than: Gate) -> bool:
    return gate.tails != than.tails and than.tails != "gaffke"


def _slices(gate: Gate, than: Gate) -> bool:
    """All slices of a gate are tested together, so an additional one makes each test weaker, and so does a copy."""
    if not than.guard_slices:
        return False
    ours, theirs = _by_key(gate.guard_slices), _by_key(than.guard_slices)
    return ours.keys() != theirs.keys() or any(
        len(ours[key]) != len(theirs[key]) or sorted(ours[key]) > sorted(theirs[key])
        for key in theirs
    )


def _by_key(guards: tuple[SliceGuard, ...]) -> dict[tuple[str, str, int], list[float]]:
    margins: dict[tuple[str, str, int], list[float]] = {}
    for each in guards:
        margins.setdefault((each.by, each.metric, each.least_pairs), []).append(each.margin)
    return margins


COMPARISONS: Mapping[str, Comparison] = MappingProxyType(
    {
        "version": _never,
        "mode": _differs("mode"),
        "design": _differs("design"),
        "alpha": _alpha,
        "n_min": _lower("n_min"),
        "cluster": _cluster,
        "least_clusters": _lower("least_clusters"),
        "missing": lambda gate, than: gate.missing == "ignore" != than.missing,
        "min_used_share": _used_share,
        "evidence": _evidence,
        "reward_range": _reward_range,
        "tails": _tails,
        "looks": _never,  # the levels of all looks together keep alpha
        "ledger": lambda gate, than: gate.ledger == "print" != than.ledger,
        "accept_unverified_environment": _accepts_more("accept_unverified_environment"),
        "accept_retried": _accepts_more("accept_retried"),
        "guard_slices": _slices,
        "seed": _differs("seed"),  # nobody may look for the seed with the best random sign flips
    }
)
"""By field of the gate. The field `rules` is compared rule by rule."""


def _weaker_rules(gate: Gate, than: Gate) -> Iterator[str]:
    # a sequential run has to show that the first of its primaries is better, so their order counts
    if than.design == "sequential" and _primaries(gate) != _primaries(than):
        yield "rules"
    for metric in OUTCOMES:
        ours, theirs = gate.rule(metric), than.rule(metric)
        for field, is_weaker in RULE_COMPARISONS.items():
            if is_weaker(ours, theirs):
                yield f"rules[{metric}].{field}"


def _primaries(gate: Gate) -> list[str]:
    return [rule.metric for rule in gate.rules if rule.role == "primary"]


def _role(ours: MetricRule, theirs: MetricRule) -> bool:
    """A further primary is one more way to ship; a further guard is one more reason to hold."""
    return ours.role != theirs.role and not (theirs.role == "info" and ours.role == "guard")


def _margin(ours: MetricRule, theirs: MetricRule) -> bool:
    """A margin lets a small loss pass that was shown. Without one, a large loss passes that was not shown."""
    if theirs.role == "info":
        return False
    if ours.margin is None or theirs.margin is None:
        return ours.margin != theirs.margin
    return ours.margin > theirs.margin


def _catastrophe(ours: MetricRule, theirs: MetricRule) -> bool:
    return _smallest_catastrophe(ours) > _smallest_catastrophe(theirs)


def _smallest_catastrophe(rule: MetricRule) -> float:
    limit = OUTCOMES[rule.metric].catastrophe if rule.catastrophe is None else rule.catastrophe
    return math.inf if limit is None else limit


def _most_catastrophes(ours: MetricRule, theirs: MetricRule) -> bool:
    if theirs.role == "info" or theirs.most_catastrophes is None:
        return False
    return ours.most_catastrophes is None or ours.most_catastrophes > theirs.most_catastrophes


def _required(ours: MetricRule, theirs: MetricRule) -> bool:
    return theirs.role != "info" and theirs.required and not ours.required


RULE_COMPARISONS: Mapping[str, Callable[[MetricRule, MetricRule], bool]] = MappingProxyType(
    {
        "role": _role,
        "margin": _margin,
        "catastrophe": _catastrophe,
        "most_catastrophes": _most_catastrophes,
        "required": _required,
    }
)
"""By field of a rule."""

"""Comparison: several candidates on the same baselines, ranked, with a correction for their number.

`evals.compare` makes it. docs/explain/statistics.md explains the numbers.
"""

from __future__ import annotations

from msgspec import Struct

from rollbook.contracts.decision import ClusterSummary, Recommendation
from rollbook.contracts.outcomes import Outcome


class ComparedCandidate(Struct, frozen=True, kw_only=True):
    rank: int
    """1 is the best mean."""
    candidate: str
    run: str
    """Id of the run, or the name of its file."""
    delta: float
    """Mean difference from the baseline over all pairs, missing ones included where they count as lost."""
    bound: float
    """How much better the candidate is at least, in the sign of `delta`. The bounds of all candidates hold together, at
    the level of the comparison. 0 where it is better, and by how much cannot be said together with all others."""
    p_value: float
    """Of "better than the baseline", corrected for the number of candidates."""
    letters: str
    """Candidates that share a letter are not told apart."""
    better: bool
    """Shown to be better after the correction."""
    own: Recommendation
    """The decision of the run alone, without the other candidates."""
    recommend: Recommendation
    reasons: tuple[str, ...]
    """Reasons to hold: those of the run, and `not_better_of_many` where the correction makes the difference."""
    missing: int
    """Pairs without an outcome."""
    crashes: int


class Comparison(Struct, frozen=True, kw_only=True):
    metric: Outcome
    level: float
    """The chance that at least one candidate that is not better is called better."""
    baselines: int
    """Baselines that every run has. Only these are compared."""
    left_out: int
    """Baselines that some runs have and others do not."""
    pairs: int
    """Those of one situation count once."""
    clusters: ClusterSummary | None
    gate_digest: str
    notes: tuple[str, ...]
    """What a reader has to know, such as differences between the gates of the runs."""
    candidates: tuple[ComparedCandidate, ...]
    """The best first."""

    @property
    def shipping(self) -> tuple[ComparedCandidate, ...]:
        return tuple(each for each in self.candidates if each.recommend == "ship")

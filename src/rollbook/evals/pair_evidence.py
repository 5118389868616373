"""PairEvidence: what the result of a pair says about how it was made, so that somebody else can make it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollbook import __version__
from rollbook.contracts.evals import Isolation
from rollbook.digest import digest_of
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.options import ReplayOptions
from rollbook.evals.policies.run_folders import checked_revision

_DOMAIN = "rollbook.pair"


@dataclass(frozen=True, slots=True)
class PairEvidence:
    """What all pairs of one replay have in common."""

    policy: str
    """The digest of the candidate's revision; its version where it has no revision."""
    isolation: Isolation = "process"
    trusted: bool = False

    @classmethod
    def of(cls, run: EvalRun, options: ReplayOptions) -> PairEvidence:
        revision = checked_revision(options.policy.given, run.candidate_policy_revision)
        policy = run.candidate_policy_version if revision is None else revision.policy_digest
        return cls(policy, options.isolation, options.trusted)

    def added_to(self, metrics: dict[str, Any], seed: int | None) -> dict[str, Any]:
        """The digest covers the version of Rollbook, the environment and the situation in it, the policy and the seed.
        Two replays with the same digest are expected to have the same outcome."""
        repro = dict(metrics.get("repro") or {})
        versions = repro.get("env_version") or {}
        made_of = {
            "rollbook": __version__,
            "environment": versions.get("candidate"),
            "situation": repro.get("situation"),
            "policy": self.policy,
            "seed": seed,
        }
        repro["digest"] = digest_of(_DOMAIN, made_of)
        repro["isolation"] = self.isolation
        repro["trusted"] = self.trusted
        return {**metrics, "repro": repro}

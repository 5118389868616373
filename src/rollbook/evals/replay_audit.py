"""ReplayAudit: pairs of a finished run, replayed again, to see whether somebody else gets the same outcomes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollbook.contracts.evals import INFRASTRUCTURE, EvalResult
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import ConfigurationError
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.runs import run_against
from rollbook.evals.server_calls import client_of, results_of

_SEEDS = 2**31
_OF_BASELINE = tuple(f"{name}_baseline" for name in OUTCOMES)
_CLOSE = 1e-9
"""Relative difference below which two numbers are the same: a sum can depend on the order of its parts."""


@dataclass(frozen=True, slots=True)
class AuditedPair:
    """One pair, as the run has it and as it was replayed again."""

    before: EvalResult
    again: EvalResult

    @property
    def differences(self) -> list[str]:
        """What differs: `status`, `digest`, `verified`, the name of an outcome, or that of the baseline's, such as
        `success_baseline`. The server fills in what it knows of a baseline, so that null is no difference there."""
        found = [] if self.before.status == self.again.status else ["status"]
        if self.before.status == self.again.status == "complete":
            known, now = self.before.metrics, self.again.metrics
            found += [] if _digest(known) == _digest(now) else ["digest"]
            names = (f"{name}_candidate" for name in OUTCOMES)
            found += [
                name.removesuffix("_candidate")
                for name in names
                if not _same(known.get(name), now.get(name))
            ]
            found += [
                name
                for name in _OF_BASELINE
                if None not in (known.get(name), now.get(name))
                and not _same(known[name], now[name])
            ]
            found += [] if _verified(known) == _verified(now) else ["verified"]
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "baseline_episode_id": self.before.baseline_episode_id,
            "agrees": not self.differences,
            "differences": self.differences,
            "before": _shown(self.before),
            "again": _shown(self.again),
        }


@dataclass(frozen=True, slots=True)
class ReplayAudit:
    run_id: str
    seed: int
    """It chose the pairs."""
    pairs: list[AuditedPair]

    @property
    def agrees(self) -> bool:
        return all(not pair.differences for pair in self.pairs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "eval_run_id": self.run_id,
            "seed": self.seed,
            "agrees": self.agrees,
            "pairs": [pair.as_dict() for pair in self.pairs],
        }


def audit_run(
    run: EvalRun, *, sample: int = 10, seed: int | None = None, **options: Any
) -> ReplayAudit:
    """Replays `sample` random pairs of the run again, and sends nothing. `options` are the keywords of `run_against`.

    Pairs that failed by the infrastructure are left out: they have no outcome that could be compared.
    """
    if sample < 1:
        raise ConfigurationError(message=f"sample is {sample}, expected 1 or more")
    known = {
        each.baseline_episode_id: each
        for each in results_of(client_of(run.client), run.id)
        if each.status != "pending" and not (each.error or "").startswith(INFRASTRUCTURE)
    }
    if not known:
        message = f"the run {run.id} has no results that could be compared"
        raise ConfigurationError(message=message)
    chosen_by = random.randrange(_SEEDS) if seed is None else seed
    ids = random.Random(chosen_by).sample(sorted(known), min(sample, len(known)))
    again = EvalRun(client=run.client, **_fields(run, ids))
    results = run_against(again, **{**options, "dry_run": True})
    pairs = [AuditedPair(known[each.baseline_episode_id], each) for each in results]
    return ReplayAudit(run.id, chosen_by, pairs)


def _fields(run: EvalRun, ids: list[str]) -> dict[str, Any]:
    """With the id of the run, so that the policy sees its episodes under the same ids; without its gate, which could
    stop the replay early."""
    record = replace(run.record, baseline_episode_ids=ids, gate=None, dry=True)
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _shown(result: EvalResult) -> dict[str, Any]:
    outcomes: dict[str, Any] = {name: result.metrics.get(f"{name}_candidate") for name in OUTCOMES}
    baseline = {name: result.metrics.get(name) for name in _OF_BASELINE}
    return {
        "status": result.status,
        "error": result.error,
        "digest": _digest(result.metrics),
        "verified": _verified(result.metrics),
        **outcomes,
        **baseline,
    }


def _digest(metrics: Mapping[str, Any]) -> str | None:
    found = _repro(metrics).get("digest")
    return found if isinstance(found, str) else None


def _verified(metrics: Mapping[str, Any]) -> Any:
    """Whether the environment was found to be the recorded one; None where nobody compared them."""
    return _repro(metrics).get("verified")


def _repro(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    found = metrics.get("repro")
    return found if isinstance(found, Mapping) else {}


def _same(one: Any, other: Any) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)

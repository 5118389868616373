"""Result rows: what a run would have sent, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring import rollup

Pair = tuple[Any, Any]


def rollup_json(
    results: Sequence[EvalResult], gate: Gate | None = None, **facts: Any
) -> dict[str, Any]:
    """The rollup as it crosses the wire."""
    return rollup(results, gate, **facts).to_wire()


def row(
    place: int,
    *,
    success: Pair = (None, None),
    reward: Pair = (None, None),
    collisions: Pair = (None, None),
    time: Pair = (None, None),
    evidence: str | dict[str, str] | None = "closed_loop",
    **extra: Any,
) -> EvalResult:
    """A complete result, in an environment that was checked. `evidence` None: from a client that states none."""
    metrics: dict[str, Any] = {"repro": {"verified": True}}
    for name, pair in zip(OUTCOMES, (success, reward, collisions, time), strict=True):
        metrics[f"{name}_baseline"], metrics[f"{name}_candidate"] = pair
    metrics |= {"action_l2_distance": None, "ood_action_share": None, "step_count": 1} | extra
    metrics["repro"] = {"verified": True} | metrics["repro"]
    if isinstance(evidence, str):
        evidence = {
            name: evidence if metrics[f"{name}_candidate"] is not None else "not_measured"
            for name in OUTCOMES
        }
    if evidence is not None:
        metrics["evidence"] = evidence
    return EvalResult(f"ep-{place:04}", f"re-{place:04}", "complete", metrics)


def at(result: EvalResult, situation: object) -> EvalResult:
    """The same, of a baseline whose start the runner recognised."""
    result.metrics["repro"] = {"verified": True, "situation": str(situation)}
    return result


def crash(place: int, **metrics: Any) -> EvalResult:
    return EvalResult(f"ep-{place:04}", None, "failed", metrics, "ValueError: no")


def pending(place: int) -> EvalResult:
    return EvalResult(f"ep-{place:04}", None, "pending", {})


def successes(wins: int, losses: int, both: int, neither: int = 0, **more: Any) -> list[EvalResult]:
    """One row per pair, of these four kinds."""
    kinds: Sequence[Pair] = (
        *((False, True),) * wins,
        *((True, False),) * losses,
        *((True, True),) * both,
        *((False, False),) * neither,
    )
    return [row(place, success=pair, **more) for place, pair in enumerate(kinds)]


def rewards(gains: Sequence[float], **more: Any) -> list[EvalResult]:
    return [row(place, reward=(1.0, 1.0 + gain), **more) for place, gain in enumerate(gains)]

"""What webhooks are told, and when: written into their queue in the transaction of what happened."""

from __future__ import annotations

from typing import Any

from rollbook.contracts.decision import Rollup, read_summary
from rollbook.contracts.wire.webhooks import EVENTS
from rollbook.server.db.engine import to_json
from rollbook.server.db.tables import now_us
from rollbook.server.http.responses import wire_time
from rollbook.server.queries import EvalRunRow, Scope
from rollbook.server.settings import Settings

TEST_EVENT = "webhook.test"
_MOST_REASONS = 20


def announce_run(scope: Scope, settings: Settings, run: EvalRunRow) -> bool:
    """That a run has come to its end. Whether anybody listens."""
    event = f"eval_run.{run.status}"
    if event not in EVENTS:
        return False
    data = {
        "eval_run_id": run.id,
        "name": run.name,
        "status": run.status,
        "candidate_policy_version": run.candidate_policy_version,
        "baseline_policy_version": run.baseline_policy_version,
        "episode_count": run.episode_count,
        "episodes_completed": run.episodes_completed,
        "episodes_failed": run.episodes_failed,
        "recommend": run.recommend,
        "decision": _decision(run),
        "gate_digest": run.gate_digest,
        "url": f"{settings.client_url}/portal/evals/{run.id}",
    }
    return scope.announce(event, lambda delivery: body_of(delivery, event, scope.org_id, data)) > 0


def _decision(run: EvalRunRow) -> dict[str, Any] | None:
    """What a message needs of it; the run has it all."""
    summary = read_summary(run.summary)
    if not isinstance(summary, Rollup):
        return None
    decision = summary.decision
    return {
        "recommend": decision.recommend,
        "sentence": decision.sentence,
        "needed_n": decision.needed_n,
        "gate_digest": decision.gate_digest,
        "reasons": decision.reasons[:_MOST_REASONS],
    }


def body_of(delivery_id: str, event: str, org_id: str, data: dict[str, Any]) -> str:
    """The same text at every attempt."""
    return to_json(
        {
            "id": delivery_id,
            "event": event,
            "organisation_id": org_id,
            "created_at": wire_time(now_us()),
            "data": data,
        }
    )

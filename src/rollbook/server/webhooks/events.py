"""Events: written into the queue of webhooks in the transaction of what happened."""

from __future__ import annotations

from typing import Any

import msgspec

from rollbook.contracts.decision import Rollup, read_summary
from rollbook.contracts.wire.webhooks import EVENTS, DecisionSummary, EvalRunEnded, WebhookMessage
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import to_json
from rollbook.server.http.responses import answer_from_row, wire_time
from rollbook.server.queries import EvalRunRow, Scope
from rollbook.server.settings import Settings

TEST_EVENT = "webhook.test"
_MOST_REASONS = 20


def announce_run(scope: Scope, settings: Settings, run: EvalRunRow) -> bool:
    """Queues the end of a run. True when a webhook listens."""
    event = f"eval_run.{run.status}"
    if event not in EVENTS:
        return False
    data = answer_from_row(
        EvalRunEnded,
        run,
        eval_run_id=run.id,
        decision=_decision(run),
        url=f"{settings.client_url}/portal/evals/{run.id}",
    )
    return scope.announce(event, lambda delivery: body_of(delivery, event, scope.org_id, data)) > 0


def _decision(run: EvalRunRow) -> DecisionSummary | None:
    summary = read_summary(run.summary)
    if not isinstance(summary, Rollup):
        return None
    decision = summary.decision
    return answer_from_row(DecisionSummary, decision, reasons=decision.reasons[:_MOST_REASONS])


def body_of(delivery_id: str, event: str, org_id: str, data: dict[str, Any] | EvalRunEnded) -> str:
    message = WebhookMessage(delivery_id, event, org_id, wire_time(now_us()), data)
    return to_json(msgspec.to_builtins(message))

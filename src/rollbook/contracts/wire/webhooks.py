"""Webhooks and the log of their deliveries."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from rollbook.contracts.decision import Recommendation
from rollbook.contracts.evals import RunStatus
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.limits import LONGEST_URL

Event: TypeAlias = Literal["eval_run.completed", "eval_run.failed", "eval_run.cancelled"]
EVENTS: tuple[Event, ...] = get_args(Event)


class DecisionSummary(Struct, frozen=True, kw_only=True):
    """The main fields of a decision; the run has all of it."""

    recommend: Recommendation
    sentence: str
    needed_n: int | None
    gate_digest: str
    reasons: tuple[str, ...]
    """At most 20."""


class EvalRunEnded(Struct, frozen=True, kw_only=True):
    """`data` of a message about an eval run."""

    eval_run_id: str
    name: str | None
    status: RunStatus
    candidate_policy_version: str
    baseline_policy_version: str | None
    episode_count: int
    episodes_completed: int
    episodes_failed: int
    recommend: str | None
    decision: DecisionSummary | None
    gate_digest: str
    url: str
    """The page of the run."""
    candidate_policy_revision: PolicyRevision | UnsetType = UNSET
    """The policy that the decision is about. Absent when the run was created without one."""


class WebhookMessage(Struct, frozen=True):
    """The body of a POST to the URL of a webhook. Every attempt sends the same text."""

    id: str
    """Id of the delivery. The same delivery may arrive more than once."""
    event: str
    organisation_id: str
    created_at: str
    data: dict[str, Any] | EvalRunEnded


class CreateWebhook(Struct, frozen=True, kw_only=True):
    url: Annotated[str, Meta(min_length=1, max_length=LONGEST_URL)]
    """`https` or `http`. Redirects are not followed."""
    events: Annotated[list[Event], Meta(min_length=1, max_length=10)]
    description: Annotated[str, Meta(max_length=500)] | None = None


class WebhookAnswer(Struct, frozen=True, kw_only=True):
    id: str
    url: str
    events: list[Event]
    description: str | None
    created_by: str | None
    created_at: str
    paused_at: str | None = None
    """Not null: it gets no new events. Deliveries that are under way go on."""


class WebhookCreated(WebhookAnswer, frozen=True, kw_only=True):
    secret: str
    """Shown once. `Rollbook-Signature: t=<unix>,v1=<hex>` is HMAC-SHA256 with it over `<t>.<body>`."""


class WebhookList(Struct, frozen=True):
    webhooks: list[WebhookAnswer]


class WebhookDeleted(Struct, frozen=True):
    id: str
    deleted: Literal[True] = True


class Attempt(Struct, frozen=True):
    at: str
    status_code: int | None
    """Null: the receiver did not answer."""
    error: str | None
    took_ms: int


class DeliveryAnswer(Struct, frozen=True, kw_only=True):
    id: str
    """Also in the header `Rollbook-Delivery`. The same delivery may arrive more than once."""
    event: str
    status: Literal["pending", "delivered", "failed"]
    attempts: list[Attempt]
    created_at: str
    next_attempt_at: str | None
    finished_at: str | None


class DeliveryList(Struct, frozen=True):
    deliveries: list[DeliveryAnswer]
    next_cursor: str | None


class DeliveryQueued(Struct, frozen=True):
    delivery_id: str
    webhook_id: str

"""EvalRun: an eval run that a client works on. `create_run` and `open_run` make it, the other verbs take it."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import EvalRunRecord, RunnerKind, RunStatus
from rollbook.contracts.policy import PolicyRevision

if TYPE_CHECKING:
    from rollbook.client import Client

_FIELDS = frozenset(field.name for field in fields(EvalRunRecord))


class EvalRun:
    """Has the attributes of its `record`, which is replaced when the server reports progress, and a `client`."""

    id: str
    candidate_policy_version: str
    baseline_policy_version: str | None
    baseline_episode_ids: list[str]
    name: str | None
    runner_kind: RunnerKind
    status: RunStatus
    episodes_completed: int
    episodes_failed: int
    gate: dict[str, Any] | None
    dry: bool
    candidate_policy_revision: PolicyRevision | None
    baseline_policy_revision: PolicyRevision | None
    gate_name: str | None

    def __init__(self, *args: Any, client: Client | None = None, **fields: Any) -> None:
        self.record = EvalRunRecord(*args, **fields)
        self.client = client

    def update(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)

    if not TYPE_CHECKING:  # type checkers see the attributes above, and no others

        def __getattr__(self, name: str) -> Any:
            if name not in _FIELDS:
                raise AttributeError(f"an eval run has no attribute {name!r}")
            return getattr(self.record, name)

    def __repr__(self) -> str:
        return repr(self.record).replace("EvalRunRecord(", "EvalRun(", 1)

    def _repr_html_(self) -> str:
        return self.record._repr_html_()

    __signature__ = inspect.Signature(
        sorted(
            [
                *inspect.signature(EvalRunRecord).parameters.values(),
                inspect.Parameter("client", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            ],
            key=lambda parameter: parameter.kind,  # those by keyword alone come last
        )
    )

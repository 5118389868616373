"""The ledger of eval runs, and the gates that an organisation locks: their tables, and their rows.

The ledger has no reference to runs and episodes: deleting those must not make the baselines fresh again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rollbook.server.db.columns import Json, metadata, org, text, time_column

ledger_runs = sa.Table(
    "ledger_runs",
    metadata,
    org(),
    text("eval_run_id", required=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    text("baseline_set", required=True),
    time_column("entered_at_us"),
    sa.PrimaryKeyConstraint("org_id", "eval_run_id"),
    sa.UniqueConstraint("org_id", "position"),
    sa.Index(None, "org_id", "baseline_set", "position"),
)
"""A run is entered with its first result. `position` counts the runs of the organisation in that order."""

ledger_baselines = sa.Table(
    "ledger_baselines",
    metadata,
    org(),
    text("baseline_set", required=True),
    text("episode_id", required=True),
    sa.PrimaryKeyConstraint("org_id", "baseline_set", "episode_id"),
    sa.Index(None, "org_id", "episode_id", "baseline_set"),
)
"""Each set of baselines once, however many runs used it. A set is named by the digest of its episode ids."""

locked_gates = sa.Table(
    "locked_gates",
    metadata,
    org(),
    text("name", required=True),
    sa.Column("gate", Json, nullable=False),
    text("gate_digest", required=True),
    text("locked_by"),
    time_column("locked_at_us"),
    sa.PrimaryKeyConstraint("org_id", "name"),
)


@dataclass(frozen=True, slots=True)
class LockedGateRow:
    name: str
    gate: dict[str, Any]
    gate_digest: str
    locked_by: str | None
    locked_at_us: int

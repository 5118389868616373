"""All routes of the portal."""

from __future__ import annotations

from rollbook.portal import static_files
from rollbook.portal.accounts.routes import account_routes
from rollbook.portal.evals import (
    compare,
    eval_export,
    eval_progress,
    eval_run,
    eval_runs,
    pair,
)
from rollbook.portal.pages import (
    episode,
    episode_actions,
    episodes,
    find,
    findings,
    gate,
    home,
    lineage,
    recordings,
    rollout_data,
    rollout_step,
    scenarios,
    side_by_side,
    store,
    stores,
    trends,
    welcome,
)
from rollbook.portal.settings.routes import settings_routes
from rollbook.server.http.openapi import LeanRoute

portal_routes: tuple[LeanRoute, ...] = (
    *static_files.routes,
    *account_routes,
    *settings_routes,
    *home.routes,
    *find.routes,
    *welcome.routes,
    *eval_runs.routes,
    *eval_progress.routes,
    *eval_export.routes,
    *eval_run.routes,
    *trends.routes,
    *scenarios.routes,
    *gate.routes,
    *recordings.routes,
    *findings.routes,
    *episodes.routes,
    *episode_actions.routes,
    *episode.routes,
    *stores.routes,
    *store.routes,
    *side_by_side.routes,
    *lineage.routes,
    *rollout_step.routes,
    *rollout_data.routes,
    *pair.routes,
    *compare.routes,
)

"""All SQL of the server, by noun. `Scope` is the one way to a tenant's rows; the functions are for what is looked up
before the tenant is known.

    await db.write(Tenant(org_id=org), lambda connection: Scope(connection, org).create_episode(...))

An id that is unknown and an id of somebody else give the same answer: None, False or nothing.
"""

from __future__ import annotations

from rollbook.server.db.account_tables import (
    AuditRow,
    DeviceLoginRow,
    InvitationRow,
    KeyRow,
    MemberRow,
    MembershipRow,
    OrganisationRow,
    SessionRow,
    UserRow,
)
from rollbook.server.db.episode_tables import (
    ArtifactRow,
    DoomedObject,
    EpisodeRow,
    PartRow,
    UploadRow,
    Usage,
)
from rollbook.server.db.eval_tables import (
    DeliveryRow,
    EvalResultRow,
    EvalRunHead,
    EvalRunRow,
    ScenarioRow,
    Standing,
    WebhookRow,
)
from rollbook.server.db.retention_tables import DueEpisode, HoldRow, RetentionRow
from rollbook.server.queries.accounts import (
    consume_device_login,
    create_device_login,
    create_organisation,
    create_session,
    create_sign_in_link,
    create_user,
    decide_device_login,
    delete_expired,
    delete_session,
    delete_sessions_of,
    device_login,
    device_login_by_user_code,
    invitation_by_hash,
    key_by_id,
    needs_touch,
    organisation_ids,
    organisations_of_user,
    session_by_hash,
    set_password,
    touch_key,
    use_sign_in_link,
    user_by_email,
    user_by_id,
    withdraw_sign_in_links,
)
from rollbook.server.queries.evals import EvalRunFilter, NewResult
from rollbook.server.queries.finalize import Finalization, FinalizeQueries
from rollbook.server.queries.leases import end_lease, renew_lease, take_lease
from rollbook.server.queries.people import ROLES
from rollbook.server.queries.retention import RetentionQueries
from rollbook.server.queries.search import EpisodeFilter, Page
from rollbook.server.queries.verify import VerifyQueries, verdict
from rollbook.server.queries.webhooks import WebhookQueries


class Scope(VerifyQueries, FinalizeQueries, WebhookQueries, RetentionQueries):
    """Everything that belongs to one organisation, and nothing else. Valid for one transaction."""


__all__ = [
    "ROLES",
    "ArtifactRow",
    "AuditRow",
    "DeliveryRow",
    "DeviceLoginRow",
    "DoomedObject",
    "DueEpisode",
    "EpisodeFilter",
    "EpisodeRow",
    "EvalResultRow",
    "EvalRunFilter",
    "EvalRunHead",
    "EvalRunRow",
    "Finalization",
    "HoldRow",
    "InvitationRow",
    "KeyRow",
    "MemberRow",
    "MembershipRow",
    "NewResult",
    "OrganisationRow",
    "Page",
    "PartRow",
    "RetentionRow",
    "ScenarioRow",
    "Scope",
    "SessionRow",
    "Standing",
    "UploadRow",
    "Usage",
    "UserRow",
    "WebhookRow",
    "consume_device_login",
    "create_device_login",
    "create_organisation",
    "create_session",
    "create_sign_in_link",
    "create_user",
    "decide_device_login",
    "delete_expired",
    "delete_session",
    "delete_sessions_of",
    "device_login",
    "device_login_by_user_code",
    "end_lease",
    "invitation_by_hash",
    "key_by_id",
    "needs_touch",
    "organisation_ids",
    "organisations_of_user",
    "renew_lease",
    "session_by_hash",
    "set_password",
    "take_lease",
    "touch_key",
    "use_sign_in_link",
    "user_by_email",
    "user_by_id",
    "verdict",
    "withdraw_sign_in_links",
]

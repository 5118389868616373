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
    EpisodeUse,
    EvalAttemptRow,
    EvalResultRow,
    EvalRunDecided,
    EvalRunHead,
    EvalRunRow,
    ScenarioRow,
    Standing,
    VerificationRow,
    WebhookRow,
)
from rollbook.server.db.ledger_tables import LockedGateRow
from rollbook.server.db.lineage_tables import (
    RecordedEpisodes,
    RevisionRow,
    TrainingSourceRow,
)
from rollbook.server.db.retention_tables import DueEpisode, HoldRow, RetentionRow
from rollbook.server.db.store_tables import StoreRow
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
from rollbook.server.queries.analyses import AnalysisQueries
from rollbook.server.queries.attempts import NewResult
from rollbook.server.queries.browse import (
    ORDERS,
    BrowseQueries,
    EpisodeOrder,
    EpisodePage,
    Holdings,
    ListedEpisode,
    Offered,
)
from rollbook.server.queries.deletions import Deletion, DeletionQueries, UsedBy
from rollbook.server.queries.evals import CLOSED, EvalRunFilter
from rollbook.server.queries.finalize import Finalization, FinalizeQueries
from rollbook.server.queries.find import FindQueries, Found
from rollbook.server.queries.gates import GateQueries
from rollbook.server.queries.leases import end_lease, renew_lease, take_lease
from rollbook.server.queries.ledger import LedgerQueries
from rollbook.server.queries.lineage import LineageQueries
from rollbook.server.queries.people import ROLES
from rollbook.server.queries.retention import RetentionQueries
from rollbook.server.queries.search import EpisodeFilter, Page
from rollbook.server.queries.stores import StoreQueries
from rollbook.server.queries.verify import VerifyQueries, verdict
from rollbook.server.queries.webhooks import WebhookQueries


class Scope(
    VerifyQueries,
    LineageQueries,
    LedgerQueries,
    FinalizeQueries,
    WebhookQueries,
    RetentionQueries,
    GateQueries,
    StoreQueries,
    BrowseQueries,
    DeletionQueries,
    FindQueries,
    AnalysisQueries,
):
    """Everything that belongs to one organisation, and nothing else. Valid for one transaction."""


__all__ = [
    "CLOSED",
    "ORDERS",
    "ROLES",
    "ArtifactRow",
    "AuditRow",
    "Deletion",
    "DeliveryRow",
    "DeviceLoginRow",
    "DoomedObject",
    "DueEpisode",
    "EpisodeFilter",
    "EpisodeOrder",
    "EpisodePage",
    "EpisodeRow",
    "EpisodeUse",
    "EvalAttemptRow",
    "EvalResultRow",
    "EvalRunDecided",
    "EvalRunFilter",
    "EvalRunHead",
    "EvalRunRow",
    "Finalization",
    "Found",
    "HoldRow",
    "Holdings",
    "InvitationRow",
    "KeyRow",
    "ListedEpisode",
    "LockedGateRow",
    "MemberRow",
    "MembershipRow",
    "NewResult",
    "Offered",
    "OrganisationRow",
    "Page",
    "PartRow",
    "RecordedEpisodes",
    "RetentionRow",
    "RevisionRow",
    "ScenarioRow",
    "Scope",
    "SessionRow",
    "Standing",
    "StoreRow",
    "TrainingSourceRow",
    "UploadRow",
    "Usage",
    "UsedBy",
    "UserRow",
    "VerificationRow",
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

"""Episodes between the wire and the database: columns from request bodies, answers from rows."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, convert, structs

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.wire.batches import EpisodeFound
from rollbook.contracts.wire.episodes import (
    ArtifactAnswer,
    CreateEpisode,
    EpisodeAnswer,
    EpisodeCreated,
    EpisodeFinalized,
    Failure,
    FinalizeEpisode,
    Otel,
    StoredArray,
)
from rollbook.contracts.wire.uploads import UploadUrl
from rollbook.server.db.episode_tables import ArtifactRow, EpisodeRow
from rollbook.server.http.responses import answer_from_row, wire_time


def new_episode_columns(body: CreateEpisode) -> dict[str, Any]:
    """The trace context is kept in the metadata. A policy without a version goes by the id of its revision."""
    columns = structs.asdict(body)
    del columns["request_uploads"]
    if body.policy_version is None and body.policy_revision is not None:
        columns["policy_version"] = body.policy_revision.revision_id
    otel: Otel | None = columns.pop("otel")
    if otel is not None:
        columns["metadata"] = {**(body.metadata or {}), "otel": structs.asdict(otel)}
    return columns


def created_answer(row: EpisodeRow, upload_urls: list[UploadUrl]) -> EpisodeCreated:
    kept: Literal[True] | UnsetType = UNSET if row.policy_revision_id is None else True
    return EpisodeCreated(row.id, row.status, "r2", upload_urls, kept)


def final_columns(body: FinalizeEpisode) -> dict[str, Any]:
    """`failure` is another form of `failure_time_s`; its reason is kept in the metadata."""
    columns = structs.asdict(body)
    columns.pop("episode_id", None)
    del columns["artifacts"]
    failure: Failure | None = columns.pop("failure")
    if failure is not None:
        if body.failure_time_s is None:
            columns["failure_time_s"] = failure.time_s
        if failure.reason is not None:
            columns["metadata"] = {"failure_reason": failure.reason, **(body.metadata or {})}
    return columns


def finalized_answer(row: EpisodeRow) -> EpisodeFinalized:
    return EpisodeFinalized(row.id, row.status, wire_time(row.updated_at_us))


def episode_answer(row: EpisodeRow) -> EpisodeAnswer:
    return answer_from_row(EpisodeAnswer, row, **_artifacts(row))


def found_answer(row: EpisodeRow, download_urls: dict[ArtifactKind, str]) -> EpisodeFound:
    return answer_from_row(EpisodeFound, row, **_artifacts(row), download_urls=download_urls)


def _artifacts(row: EpisodeRow) -> dict[str, Any]:
    stored = [each for each in row.artifacts if each.status == "stored"]
    return {
        "artifacts": [_artifact_answer(each) for each in stored],
        "missing_artifacts": [each.kind for each in row.artifacts if each.status != "stored"],
    }


def _artifact_answer(row: ArtifactRow) -> ArtifactAnswer:
    arrays = UNSET if row.arrays is None else convert(row.arrays, list[StoredArray])
    return answer_from_row(ArtifactAnswer, row, arrays=arrays)

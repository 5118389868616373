"""Episodes between the wire and the database: columns from request bodies, answers from rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from msgspec import structs

from rollbook.contracts.episode import ArtifactKind, EpisodeSource, EpisodeStatus
from rollbook.contracts.wire.episodes import (
    ArtifactAnswer,
    CreateEpisode,
    EpisodeAnswer,
    EpisodeFinalized,
    Failure,
    FinalizeEpisode,
    Otel,
)
from rollbook.server.db.rows import ArtifactRow, EpisodeRow, UploadRow
from rollbook.server.http.responses import wire_time


def new_episode_columns(body: CreateEpisode) -> dict[str, Any]:
    """The trace context is kept in the metadata."""
    columns = structs.asdict(body)
    del columns["request_uploads"]
    otel: Otel | None = columns.pop("otel")
    if otel is not None:
        columns["metadata"] = {**(body.metadata or {}), "otel": structs.asdict(otel)}
    return columns


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


def kind_of(row: ArtifactRow | UploadRow) -> ArtifactKind:
    return cast(ArtifactKind, row.kind)


def status_of(row: EpisodeRow) -> EpisodeStatus:
    return cast(EpisodeStatus, row.status)


def finalized_answer(row: EpisodeRow) -> EpisodeFinalized:
    return EpisodeFinalized(row.id, status_of(row), wire_time(row.updated_at_us))


def episode_answer(row: EpisodeRow) -> EpisodeAnswer:
    return EpisodeAnswer(
        id=row.id,
        name=row.name,
        source=cast(EpisodeSource, row.source),
        robot=row.robot,
        policy_version=row.policy_version,
        env_version=row.env_version,
        git_sha=row.git_sha,
        seed=row.seed,
        fps=row.fps,
        duration_s=row.duration_s,
        status=status_of(row),
        failure_time_s=row.failure_time_s,
        bytes_total=row.bytes_total,
        metadata=row.metadata,
        tags=row.tags,
        artifacts=_stored(row.artifacts),
        missing_artifacts=[kind_of(each) for each in row.artifacts if each.status != "stored"],
        created_by=row.created_by,
        created_at=wire_time(row.created_at_us),
        updated_at=wire_time(row.updated_at_us),
        finalized_at=_time(row.finalized_at_us),
        archived_at=_time(row.archived_at_us),
    )


def _stored(artifacts: Iterable[ArtifactRow]) -> list[ArtifactAnswer]:
    return [
        ArtifactAnswer(
            kind=kind_of(each),
            size=each.size,
            sha256=each.sha256,
            content_type=each.content_type,
            playable=each.playable,
            detail=each.detail,
            uploaded_at=_time(each.uploaded_at_us),
            rendition=cast(Any, each.rendition),
        )
        for each in artifacts
        if each.status == "stored"
    ]


def _time(at_us: int | None) -> str | None:
    return None if at_us is None else wire_time(at_us)

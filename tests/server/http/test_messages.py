"""One wire: what crosses HTTP is declared in `contracts/wire/`, and only there."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import rollbook
from rollbook.app import create_app
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.episodes import (
    ArtifactAnswer,
    ArtifactRecord,
    EpisodeAnswer,
    EpisodeRecord,
    StoredArray,
)
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.settings import Settings

_SOURCE = Path(rollbook.__file__).parent
_WIRE = "rollbook.contracts.wire."
_NOT_MESSAGES = {"Grant", "Reset", "Act", "ActSteps", "Close", "Loaded", "Answer", "Failure"}
"""The first stands inside a signed URL, which only the server that wrote it reads. The others are between a runner and
the process of its policy."""


def _app_routes() -> list[LeanRoute]:
    app = create_app(
        Settings(
            data_dir=Path("/nowhere"),
            database_url="sqlite:////nowhere/rollbook.db",
            blobs_url="file:///nowhere",
            secret=b"never used, because it never starts",
        )
    )
    return [each for each in app.routes if isinstance(each, LeanRoute)]


def test_every_body_and_answer_of_a_route_is_a_message_of_the_wire() -> None:
    routes = [each for each in _app_routes() if each.shapes]
    assert len(routes) > 50
    for route in routes:
        for shape in route.shapes:
            assert shape.__module__.startswith(_WIRE), f"{route.path}: {shape.__qualname__}"


@pytest.mark.parametrize("room", ["server", "client", "evals", "cli", "app.py"])
def test_no_other_room_declares_messages(room: str) -> None:
    """A Struct elsewhere in these rooms would be a second declaration of something that the wire has."""
    path = _SOURCE / room
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert files
    declared = {
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) in ("Struct", "msgspec.Struct") for base in node.bases)
    }
    assert declared <= _NOT_MESSAGES


@pytest.mark.parametrize(
    ("record", "message"), [(EpisodeRecord, EpisodeAnswer), (ArtifactRecord, ArtifactAnswer)]
)
def test_what_the_sdk_hands_back_reads_what_the_server_answers(
    record: type[msgspec.Struct], message: type[msgspec.Struct]
) -> None:
    """The record is the tolerant reader of the message: the same names, and nothing but the identity is required."""
    named = {each.name for each in msgspec.structs.fields(message)}
    assert {each.name for each in msgspec.structs.fields(record)} <= named
    required = {each.name for each in msgspec.structs.fields(record) if each.required}
    assert required <= {"id", "status", "kind"}


def test_an_answer_becomes_a_record_without_loss() -> None:
    artifact = ArtifactAnswer(
        kind="sensors",
        size=3,
        sha256="ab" * 32,
        content_type="application/octet-stream",
        playable=None,
        readable=True,
        detail="it has 300 arrays; the first 256 are listed",
        uploaded_at="2026-01-31T12:00:00Z",
        rendition=None,
        arrays=[StoredArray("a/value", "float32", [3, 2], 3)],
    )
    answer = EpisodeAnswer(
        id="e1",
        name="n",
        source="sim",
        robot="arm",
        policy_version="v1",
        env_version="w1",
        git_sha="abc",
        seed=7,
        fps=30.0,
        duration_s=1.5,
        status="failed",
        failure_time_s=1.0,
        bytes_total=3,
        metadata={"task": {"name": "pick"}},
        tags=["a"],
        artifacts=[artifact],
        missing_artifacts=["actions"],
        created_by="key:1",
        created_at="2026-01-31T12:00:00Z",
        updated_at="2026-01-31T12:00:01Z",
        finalized_at="2026-01-31T12:00:01Z",
        archived_at=None,
        policy_revision=PolicyRevision(
            policy_family="grasp", revision_id="rev-7", policy_digest="d7", produced_at_ms=1
        ),
        metadata_truncated=True,
    )
    record = msgspec.json.decode(msgspec.json.encode(answer), type=EpisodeRecord)
    for name in EpisodeRecord.__struct_fields__:
        if name != "artifacts":
            assert getattr(record, name) == getattr(answer, name), name
    [read] = record.artifacts
    for name in ArtifactRecord.__struct_fields__:
        assert getattr(read, name) == getattr(artifact, name), name

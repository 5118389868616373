"""Episodes are created once, finalized without going back, archived, restored, and deleted with all they have."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rollbook.errors import (
    EpisodeArchived,
    IdempotencyConflict,
    InvalidNumber,
    InvalidText,
    InvalidValue,
    QuotaExceeded,
    Refusal,
)
from rollbook.server.db import tables
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.episodes.quotas import checked_quota
from rollbook.server.queries import DoomedObject, EpisodeFilter, Scope
from rollbook.server.settings import Settings
from tests.server.tenants import Organisation, in_seconds, new_organisation

VIDEO = ("video", "episodes/o/e/video.mp4", "video/mp4")
ANYTHING = [
    "'; DROP TABLE episodes; --",
    "<script>alert(1)</script>",
    "%s {0} \\ \" ' ` $1 :name",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u202e مرحبا \U0001f916",
    "line\nbreak\ttab\x01\x7f",
    " leading and trailing ",
    "",
]


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


# ------------------------------------------------------------------------------------------- create


def test_an_episode_is_read_as_it_was_created(org: Organisation) -> None:
    values = {
        "name": "Pick 3",
        "source": "sim",
        "robot": "arm-7",
        "policy_version": "pi0-9",
        "env_version": "kitchen-2",
        "git_sha": "0" * 40,
        "seed": 7,
        "fps": 29.97,
        "metadata": {"task": {"name": "pick", "tries": 3}, "ok": True, "none": None, "x": [1, 2.5]},
        "tags": ["night", "arm"],
        "created_by": "a1b2c3d4e5",
    }
    made = org.write(lambda scope: scope.create_episode(values, [VIDEO]))
    read = org.read(lambda scope: scope.episode(made.id))
    assert read == made
    assert {name: getattr(made, name) for name in values} == values
    assert (made.status, made.replayed, made.archived_at_us) == ("recording", False, None)
    assert abs(made.created_at_us - now_us()) < 60_000_000
    (artifact,) = made.artifacts
    assert (artifact.kind, artifact.object_key, artifact.content_type) == VIDEO
    assert (artifact.status, artifact.size) == ("requested", None)


def test_nothing_at_all_is_an_episode_too(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}))
    assert (made.source, made.metadata, made.tags, made.artifacts) == ("real", {}, [], ())
    assert org.read(lambda scope: scope.episode(made.id)) == made


@pytest.mark.parametrize("text", ANYTHING)
def test_any_text_comes_back_as_it_was(org: Organisation, text: str) -> None:
    names = ("name", "robot", "policy_version", "env_version", "git_sha")
    metadata = {text or "empty": text, "in": [text, {"deep": text}]}
    made = org.episode(**dict.fromkeys(names, text), metadata=metadata, tags=[text])
    read = org.read(lambda scope: scope.episode(made.id))
    assert read is not None
    assert {getattr(read, name) for name in names} == {text}
    assert (read.metadata, read.tags) == (metadata, [text])
    found = org.read(lambda scope: scope.episodes(EpisodeFilter(robot=text, tags=(text,))))
    assert [episode.id for episode in found.episodes] == [made.id]


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64 - 1, 10**40])
def test_a_seed_of_any_size_stays_the_same_integer(org: Organisation, seed: int) -> None:
    made = org.episode(seed=seed)
    read = org.read(lambda scope: scope.episode(made.id))
    assert read is not None
    assert (read.seed, type(read.seed)) == (seed, int)
    found = org.read(lambda scope: scope.episodes(EpisodeFilter(seed=seed)))
    assert [episode.id for episode in found.episodes] == [made.id]


def test_numbers_in_metadata_keep_their_kind(org: Organisation) -> None:
    metadata = {
        "big": 2**70,
        "float": 1e22,
        "third": 1 / 3,
        "one": 1.0,
        "small": 5e-324,
        "minus": -0.0,
    }
    made = org.episode(metadata=metadata)
    read = org.read(lambda scope: scope.episode(made.id))
    assert read is not None
    assert {name: (value, type(value)) for name, value in read.metadata.items()} == {
        name: (value, type(value)) for name, value in metadata.items()
    }


@pytest.mark.parametrize(
    ("values", "refusal", "about"),
    [
        ({"name": "a\x00b"}, InvalidText, "name"),
        ({"robot": "\ud800"}, InvalidText, "robot"),
        ({"name": "x" * 201}, InvalidText, "200"),
        ({"robot": "x" * 121}, InvalidText, "120"),
        ({"policy_version": "x" * 513}, InvalidText, "512"),
        ({"name": 5}, InvalidValue, "name"),
        ({"source": "dream"}, InvalidValue, "real, sim, replay"),
        ({"source": ["real"]}, InvalidValue, "real, sim, replay"),
        ({"seed": 1.5}, InvalidNumber, "seed"),
        ({"seed": True}, InvalidNumber, "seed"),
        ({"seed": 10**41}, InvalidNumber, "seed"),
        ({"seed": 10**5000}, InvalidNumber, "bits"),
        ({"fps": float("nan")}, InvalidNumber, "fps"),
        ({"fps": float("inf")}, InvalidNumber, "fps"),
        ({"fps": -1}, InvalidNumber, "fps"),
        ({"fps": 10**400}, InvalidNumber, "fps"),
        ({"fps": "30"}, InvalidNumber, "fps"),
        ({"metadata": [1]}, InvalidValue, "object"),
        ({"metadata": {"a": {"b": float("nan")}}}, InvalidNumber, "metadata.a.b"),
        ({"metadata": {"a": ["x\x00"]}}, InvalidText, "metadata.a"),
        ({"metadata": {"a\x00": 1}}, InvalidText, "name in metadata"),
        ({"metadata": {"a": 2**2000}}, InvalidNumber, "bits"),
        ({"metadata": {"a": object()}}, InvalidValue, "JSON"),
        ({"metadata": {str(n): n for n in range(5001)}}, InvalidValue, "5000"),
        ({"tags": "night"}, InvalidValue, "list"),
        ({"tags": [3]}, InvalidValue, "text"),
        ({"tags": ["x" * 101]}, InvalidText, "100"),
        ({"tags": [str(n) for n in range(101)]}, InvalidValue, "100"),
        ({"colour": "red"}, InvalidValue, "colour"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_what_cannot_be_kept_is_refused_by_name(
    org: Organisation, values: dict[str, Any], refusal: type[Refusal], about: str
) -> None:
    with pytest.raises(refusal, match=about):
        org.episode(**values)
    assert org.read(lambda scope: scope.episodes()).episodes == []
    assert org.read(lambda scope: scope.quota_usage()).episodes == 0


def test_metadata_nested_too_deep_is_refused(org: Organisation) -> None:
    nested: dict[str, Any] = {}
    for _ in range(2000):
        nested = {"a": nested}
    with pytest.raises(InvalidValue, match="levels"):
        org.episode(metadata=nested)


def test_the_longest_of_everything_fits(org: Organisation) -> None:
    """PostgreSQL has a greatest size for an index entry, and these are four bytes a character."""
    wide = "\U0001f916"
    texts = dict.fromkeys(("policy_version", "env_version", "git_sha"), wide * 512)
    made = org.episode(
        name=wide * 200,
        robot=wide * 120,
        tags=[wide * 100],
        metadata={wide * 200: wide * 5000, "a": {wide * 200: {wide * 200: 1}}},
        **texts,
    )
    assert org.read(lambda scope: scope.episode(made.id)) == made


# ------------------------------------------------------------------------------------- idempotency


def test_the_same_key_and_request_give_the_first_episode(org: Organisation) -> None:
    def create(scope: Scope) -> Any:
        return scope.create_episode({"name": "once"}, [VIDEO], ("key", "digest"))

    first, second = org.write(create), org.write(create)
    assert (first.replayed, second.replayed) == (False, True)
    assert (second.id, second.artifacts) == (first.id, first.artifacts)
    assert len(org.read(lambda scope: scope.episodes()).episodes) == 1
    assert org.read(lambda scope: scope.quota_usage()).episodes == 1


def test_the_same_key_with_another_request_is_a_conflict(org: Organisation) -> None:
    org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))
    with pytest.raises(IdempotencyConflict, match="different request"):
        org.write(lambda scope: scope.create_episode({}, (), ("key", "another")))


def test_the_key_of_a_deleted_episode_does_not_bring_it_back(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))
    org.write(lambda scope: scope.delete_episode(made.id))
    with pytest.raises(IdempotencyConflict, match="deleted"):
        org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))


def test_keys_of_two_organisations_do_not_meet(shared_database: Database) -> None:
    one, other = new_organisation(shared_database), new_organisation(shared_database)
    ids = {
        each.write(lambda scope: scope.create_episode({}, (), ("key", "digest"))).id
        for each in (one, other)
    }
    assert len(ids) == 2


def test_one_of_many_at_once_creates_and_all_get_the_same(org: Organisation) -> None:
    start = threading.Barrier(8)

    def create(_: int) -> str:
        start.wait(10)
        return org.write(lambda scope: scope.create_episode({}, (), ("key", "digest"))).id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 1
    assert org.read(lambda scope: scope.quota_usage()).episodes == 1


def test_old_keys_are_forgotten(org: Organisation) -> None:
    org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))
    assert org.write(lambda scope: scope.forget_idempotency_keys(in_seconds(-60))) == 0
    assert org.write(lambda scope: scope.forget_idempotency_keys(in_seconds(60))) == 1
    again = org.write(lambda scope: scope.create_episode({}, (), ("key", "digest")))
    assert not again.replayed


@pytest.mark.parametrize("key", ["a\x00", "x" * 256])
def test_a_key_that_cannot_be_kept_is_refused(org: Organisation, key: str) -> None:
    with pytest.raises(InvalidText, match="idempotency key"):
        org.write(lambda scope: scope.create_episode({}, (), (key, "digest")))


# ----------------------------------------------------------------------------------------- finalize


def finalized(org: Organisation, episode_id: str, **changes: Any) -> Any:
    return org.write(lambda scope: scope.finalize_episode(episode_id, changes))


def test_finalize_ends_a_recording_and_adds_to_it(org: Organisation) -> None:
    made = org.episode(fps=10, metadata={"task": {"name": "pick"}, "kept": 1})
    done = finalized(
        org,
        made.id,
        status="ready",
        duration_s=12.5,
        bytes_total=99,
        metadata={"task": 2, "new": 3},
    )
    assert (done.status, done.duration_s, done.bytes_total, done.fps) == ("ready", 12.5, 99, 10)
    assert done.metadata == {"task": 2, "kept": 1, "new": 3}
    assert done.updated_at_us > made.updated_at_us
    assert org.read(lambda scope: scope.episode(made.id)) == done


def test_the_same_again_changes_nothing(org: Organisation) -> None:
    made = org.episode()
    body = {"status": "failed", "duration_s": 3, "failure_time_s": 2, "metadata": {"a": 1}}
    assert finalized(org, made.id, **body) == finalized(org, made.id, **body)


def test_a_value_of_another_kind_is_a_change(org: Organisation) -> None:
    """Python takes 1, 1.0 and True for equal, and JSON does not."""
    made = org.episode(metadata={"a": 1, "b": [0]})
    for value in (True, 1.0, 1):
        done = finalized(org, made.id, status="ready", metadata={"a": value, "b": [False]})
        assert type(done.metadata["a"]) is type(value)
        assert org.read(lambda scope: scope.episode(made.id)) == done
        found = org.read(lambda scope: scope.episode(made.id))
        assert found is not None
        assert (type(found.metadata["a"]), type(found.metadata["b"][0])) == (type(value), bool)


def test_metadata_cannot_grow_without_end(org: Organisation) -> None:
    made = org.episode(metadata={f"a{n}": n for n in range(3000)})
    with pytest.raises(InvalidValue, match="5000 values"):
        finalized(org, made.id, status="ready", metadata={f"b{n}": n for n in range(3000)})
    assert org.read(lambda scope: scope.episode(made.id)) == made


@pytest.mark.parametrize("first", ["ready", "failed"])
def test_the_status_it_ended_with_stays(org: Organisation, first: str) -> None:
    made = org.episode()
    finalized(org, made.id, status=first)
    second = "failed" if first == "ready" else "ready"
    later = finalized(org, made.id, status=second, fps=24, metadata={"more": 1})
    assert (later.status, later.fps, later.metadata) == (first, 24, {"more": 1})


def test_the_last_rate_that_was_given_counts(org: Organisation) -> None:
    made = org.episode(fps=10)
    assert finalized(org, made.id, status="ready", fps=None).fps == 10
    assert finalized(org, made.id, status="ready", fps=25.0).fps == 25
    assert finalized(org, made.id, status="ready").fps == 25


def test_a_failure_lies_within_the_recording(org: Organisation) -> None:
    made = org.episode()
    assert finalized(org, made.id, status="failed", failure_time_s=9).failure_time_s == 9
    assert finalized(org, made.id, status="failed", duration_s=4).failure_time_s == 4
    late = finalized(org, made.id, status="failed", failure_time_s=99.5)
    assert late.failure_time_s == 4
    with pytest.raises(InvalidNumber, match="failure_time_s"):
        finalized(org, made.id, status="failed", failure_time_s=-0.5)


def test_what_is_ready_has_no_failure(org: Organisation) -> None:
    made = org.episode()
    assert finalized(org, made.id, status="ready", failure_time_s=1).failure_time_s is None


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "recording"},
        {"status": "archived"},
        {"status": "ready", "duration_s": float("nan")},
        {"status": "ready", "bytes_total": 2**63},
        {"status": "ready", "bytes_total": -1},
        {"status": "ready", "bytes_total": 1.5},
        {"status": "ready", "metadata": {"a": "\x00"}},
        {"status": "ready", "name": "new"},
    ],
)
def test_a_wrong_finalize_changes_nothing(org: Organisation, changes: dict[str, Any]) -> None:
    made = org.episode()
    with pytest.raises(Refusal):
        finalized(org, made.id, **changes)
    assert org.read(lambda scope: scope.episode(made.id)) == made


def test_an_archived_episode_is_closed(org: Organisation) -> None:
    made = org.episode()
    finalized(org, made.id, status="failed", duration_s=2, failure_time_s=1)
    archived = org.write(lambda scope: scope.archive_episode(made.id))
    assert archived is not None
    assert archived.status == "archived"
    assert archived == org.write(lambda scope: scope.archive_episode(made.id))
    with pytest.raises(EpisodeArchived):
        finalized(org, made.id, status="ready")
    restored = org.write(lambda scope: scope.restore_episode(made.id))
    assert restored is not None
    assert (restored.status, restored.archived_at_us, restored.failure_time_s) == (
        "failed",
        None,
        1,
    )
    assert restored == org.write(lambda scope: scope.restore_episode(made.id))


@pytest.mark.parametrize(
    "episode_id", ["unknown", "", "\x00", "\ud800", "' OR 1=1 --", "x" * 10_000]
)
def test_an_unknown_episode_is_none_whatever_its_id(org: Organisation, episode_id: str) -> None:
    calls = (
        lambda scope: scope.episode(episode_id),
        lambda scope: scope.finalize_episode(episode_id, {"status": "ready"}),
        lambda scope: scope.archive_episode(episode_id),
        lambda scope: scope.restore_episode(episode_id),
        lambda scope: scope.delete_episode(episode_id),
        lambda scope: scope.tag_episode(episode_id, ["a"]),
        lambda scope: scope.artifact(episode_id, "video"),
        lambda scope: scope.request_artifact(episode_id, *VIDEO),
        lambda scope: scope.set_artifact(episode_id, "video", size=3),
        lambda scope: scope.create_upload(episode_id, "video", size=3, part_size=3),
        lambda scope: scope.upload(episode_id),
        lambda scope: scope.complete_upload(episode_id),
        lambda scope: scope.abort_upload(episode_id),
        lambda scope: scope.revoke_key(episode_id),
        lambda scope: scope.member(episode_id),
    )
    for call in calls:
        assert org.write(call) is None


def test_two_who_finalize_at_once_both_count(org: Organisation) -> None:
    made = org.episode()
    start = threading.Barrier(6)

    def finalize(number: int) -> None:
        start.wait(10)
        finalized(org, made.id, status="ready", metadata={f"from{number}": number})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(finalize, range(6)))
    done = org.read(lambda scope: scope.episode(made.id))
    assert done is not None
    assert done.metadata == {f"from{number}": number for number in range(6)}


# ------------------------------------------------------------------------------------------- delete


def rows_left(org: Organisation) -> dict[str, int]:
    def count(connection: sa.Connection) -> dict[str, int]:
        counted = {}
        for name in ("episodes", "artifacts", "uploads", "upload_parts", "episode_terms"):
            table = tables.metadata.tables[name]
            query = sa.select(sa.func.count()).where(table.c.org_id == org.org_id)
            counted[name] = connection.execute(query).scalar_one()
        return counted

    return org.database.read_now(Tenant(org_id=org.org_id), count)


def test_deleting_leaves_nothing_but_the_blobs_to_delete(org: Organisation) -> None:
    def record(scope: Scope) -> str:
        actions = ("actions", "episodes/o/e/actions.npz", "application/octet-stream")
        values = {"metadata": {"a": {"b": 1}}, "tags": ["t"]}
        made = scope.create_episode(values, [VIDEO, actions])
        scope.set_artifact(made.id, "actions", size=100, status="stored")
        upload = scope.create_upload(made.id, "video", size=9, part_size=5, store_id="mpu-1")
        assert upload is not None
        scope.put_part(upload.id, 1, 5, "etag")
        return made.id

    episode_id = org.write(record)
    finalized(org, episode_id, status="ready", metadata={"a": 2, "c": "x" * 1000}, tags=["u"])
    doomed = org.write(lambda scope: scope.delete_episode(episode_id))
    assert doomed is not None
    assert set(doomed) == {
        DoomedObject("episodes/o/e/actions.npz"),
        DoomedObject("episodes/o/e/video.mp4"),
        DoomedObject("episodes/o/e/video.mp4", "mpu-1"),
    }
    assert set(rows_left(org).values()) == {0}
    usage = org.read(lambda scope: scope.quota_usage())
    assert (usage.episodes, usage.bytes) == (0, 0)
    assert org.write(lambda scope: scope.delete_episode(episode_id)) is None


def test_blobs_to_delete_are_remembered_until_they_are_gone(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}, [VIDEO]))
    org.write(lambda scope: scope.delete_episode(made.id))
    doomed = org.read(lambda scope: scope.doomed_objects())
    assert doomed == [DoomedObject(VIDEO[1])]
    org.write(lambda scope: scope.forget_objects(doomed))
    assert org.read(lambda scope: scope.doomed_objects()) == []


# ---------------------------------------------------------------------------------------- abandoned


def test_a_recording_nobody_came_back_for_has_failed_until_its_owner_does(
    org: Organisation,
) -> None:
    long_ago = in_seconds(-7200)
    old = org.at(long_ago, lambda scope: scope.create_episode({}, [VIDEO]))
    uploading = org.at(
        long_ago, lambda scope: scope.create_episode({}, [("video", "k", "video/mp4")])
    )
    org.write(lambda scope: scope.set_artifact(uploading.id, "video", size=5))
    org.episode()
    before = in_seconds(-3600)
    assert org.read(lambda scope: scope.abandoned_episodes(before)) == [old.id]
    assert org.write(lambda scope: scope.abandon_episode(old.id, before))
    assert not org.write(lambda scope: scope.abandon_episode(old.id, before))
    assert not org.write(lambda scope: scope.abandon_episode(uploading.id, before))
    abandoned = org.read(lambda scope: scope.episode(old.id))
    assert abandoned is not None
    assert abandoned.status == "failed"
    assert abandoned.abandoned_at_us is not None
    back = finalized(org, old.id, status="ready")
    assert (back.status, back.abandoned_at_us) == ("ready", None)


# ---------------------------------------------------------------------------- artifacts and uploads


def test_an_artifact_is_asked_for_once(org: Organisation) -> None:
    made = org.episode()
    first = org.write(lambda scope: scope.request_artifact(made.id, *VIDEO))
    again = org.write(
        lambda scope: scope.request_artifact(made.id, "video", "elsewhere", "video/mp4")
    )
    assert first == again
    assert org.read(lambda scope: scope.artifact(made.id, "video")) == first
    assert org.read(lambda scope: scope.artifact(made.id, "actions")) is None


def test_what_is_known_of_an_artifact_can_be_told(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}, [VIDEO]))
    facts: dict[str, Any] = {
        "status": "stored",
        "size": 1234,
        "sha256": "ab" * 32,
        "playable": False,
        "detail": "hevc",
        "uploaded_at_us": now_us(),
    }
    told = org.write(lambda scope: scope.set_artifact(made.id, "video", **facts))
    assert {name: getattr(told, name) for name in facts} == facts
    with pytest.raises(InvalidValue, match="object_key"):
        org.write(lambda scope: scope.set_artifact(made.id, "video", object_key="elsewhere"))
    with pytest.raises(InvalidValue, match="requested, stored, refused"):
        org.write(lambda scope: scope.set_artifact(made.id, "video", status="lost"))


def test_sizes_add_up_however_often_they_are_told(org: Organisation) -> None:
    actions = ("actions", "episodes/o/e/actions.npz", "application/octet-stream")
    made = org.write(lambda scope: scope.create_episode({}, [VIDEO, actions]))
    for size in (1000, 1000, 700):
        org.write(lambda scope, size=size: scope.set_artifact(made.id, "video", size=size))  # type: ignore[misc]
    org.write(lambda scope: scope.set_artifact(made.id, "actions", size=5))
    assert org.read(lambda scope: scope.quota_usage()).bytes == 705
    org.write(lambda scope: scope.set_artifact(made.id, "video", size=None, status="refused"))
    assert org.read(lambda scope: scope.quota_usage()).bytes == 5
    assert org.write(lambda scope: scope.recount_usage()) == org.read(lambda s: s.quota_usage())


def test_parts_are_kept_until_the_upload_is_complete(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}, [VIDEO]))
    upload = org.write(
        lambda scope: scope.create_upload(made.id, "video", size=12, part_size=5, sha256="ab" * 32)
    )
    assert upload is not None
    assert upload.object_key == VIDEO[1]
    for number, etag in ((2, "two"), (1, "one"), (2, "two again")):
        assert org.write(
            lambda scope, number=number, etag=etag: scope.put_part(upload.id, number, 5, etag)  # type: ignore[misc]
        )
    parts = org.read(lambda scope: scope.parts(upload.id))
    assert [(part.number, part.etag) for part in parts] == [(1, "one"), (2, "two again")]
    done = org.write(lambda scope: scope.complete_upload(upload.id))
    assert done is not None
    assert done.completed_at_us is not None
    assert org.write(lambda scope: scope.complete_upload(upload.id)) is None
    assert not org.write(lambda scope: scope.put_part(upload.id, 3, 2, "late"))
    other = org.write(lambda scope: scope.create_upload(made.id, "video", size=1, part_size=1))
    assert other is not None
    with pytest.raises(InvalidNumber, match="number"):
        org.write(lambda scope: scope.put_part(other.id, 0, 2, "zero"))


def test_an_upload_nobody_finished_is_found_and_aborted(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}, [VIDEO]))
    upload = org.at(
        in_seconds(-7200),
        lambda scope: scope.create_upload(made.id, "video", size=9, part_size=5, store_id="mpu"),
    )
    assert upload is not None
    assert org.read(lambda scope: scope.stale_uploads(in_seconds(-3600))) == [upload]
    assert org.write(lambda scope: scope.abort_upload(upload.id)) == [DoomedObject(VIDEO[1], "mpu")]
    assert org.read(lambda scope: scope.upload(upload.id)) is None
    assert org.read(lambda scope: scope.artifact(made.id, "video")) is not None


def test_a_blob_is_known_while_something_needs_it(org: Organisation) -> None:
    made = org.write(lambda scope: scope.create_episode({}, [VIDEO]))
    asked = [VIDEO[1], "episodes/o/e/orphan.bin"]
    assert org.read(lambda scope: scope.known_objects(asked)) == {VIDEO[1]}
    org.write(lambda scope: scope.delete_episode(made.id))
    assert org.read(lambda scope: scope.known_objects(asked)) == set()


# ------------------------------------------------------------------------------------------- quotas


@pytest.fixture
def limited(org: Organisation) -> Organisation:
    org.write(lambda scope: scope.set_quota(episodes=2, bytes_=1000))
    return org


def test_a_quota_is_refused_with_what_it_is(limited: Organisation, tmp_path: Path) -> None:
    settings = Settings.load(tmp_path)
    limited.episode()
    limited.episode()
    limited.write(lambda scope: checked_quota(scope, settings, more_bytes=1000))
    with pytest.raises(QuotaExceeded, match="1000 bytes"):
        limited.write(lambda scope: checked_quota(scope, settings, more_bytes=1001))
    limited.episode()
    with pytest.raises(QuotaExceeded, match="2 episodes"):
        limited.write(lambda scope: checked_quota(scope, settings))


def test_the_servers_limit_counts_where_the_organisation_has_none(
    org: Organisation, tmp_path: Path
) -> None:
    settings = Settings.load(tmp_path, quota_episodes=1)
    org.episode()
    org.write(lambda scope: checked_quota(scope, settings, more_bytes=10**15))
    org.episode()
    with pytest.raises(QuotaExceeded):
        org.write(lambda scope: checked_quota(scope, settings))
    org.write(lambda scope: scope.set_quota(episodes=5, bytes_=None))
    org.write(lambda scope: checked_quota(scope, settings))


def test_usage_is_right_after_many_at_once(org: Organisation) -> None:
    def record(number: int) -> None:
        key = f"episodes/o/{number}/video.mp4"
        made = org.write(lambda scope: scope.create_episode({}, [("video", key, "video/mp4")]))
        org.write(lambda scope: scope.set_artifact(made.id, "video", size=10))
        if number % 3 == 0:
            org.write(lambda scope: scope.delete_episode(made.id))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(record, range(18)))
    usage = org.read(lambda scope: scope.quota_usage())
    assert (usage.episodes, usage.bytes) == (12, 120)
    assert org.write(lambda scope: scope.recount_usage()) == usage

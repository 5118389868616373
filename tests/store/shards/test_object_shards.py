"""Shards at a URL: finished once, whole, by one worker, whatever happens to the others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rollbook.errors import (
    ConfigurationError,
    GenerationFailed,
    LeaseHeld,
    LeaseLost,
    StorageError,
    UnfinishedRun,
)
from rollbook.store.shards import object_shards
from rollbook.store.shards.build_shard import BuiltStore, RolloutShardRunResult, build_shard
from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch, lease_name
from rollbook.store.shards.object_shards import ShardNames, read_finished_objects
from rollbook.store.urls.remote import open_store
from rollbook.store.urls.url_folder import UrlFolder
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    rclone_server,
)
from tests.store.s3_server import Server, away, memory, server
from tests.store.shards.shard_plans import SmallBuilder, planned
from tests.store.shards.test_shard_faults import LOST, stopped, wait_for, woken, worker

__all__ = ["memory", "server"]

ENTRY = planned()
SHARD = ENTRY.shard_id


def built(root: str, work: Path, builder: Any = None, **options: Any) -> RolloutShardRunResult:
    return build_shard(
        ENTRY,
        SmallBuilder(ENTRY) if builder is None else builder,
        output_tmp=work / SHARD,
        output_final=f"{root}/{SHARD}",
        **options,
    )


def names(root: str) -> ShardNames:
    return ShardNames.among(UrlFolder(f"{root}/{SHARD}", None).names(), SHARD)


def assert_finished(root: str) -> None:
    """The whole store, and nothing beside it."""
    remote = UrlFolder(f"{root}/{SHARD}", None)
    finished = read_finished_objects(remote, ENTRY)
    assert names(root) == ShardNames(True, [], [], {finished.store}, set())
    there = UrlFolder(f"{remote.url}/{finished.store}", None).sizes()
    manifest = json.loads(remote.read_if_there(f"{finished.store}/manifest.json") or b"")
    listed = {path: size for path, (size, _) in manifest["files"].items()}
    assert {path: there[path] for path in there if path in listed} == listed
    assert there.keys() - listed.keys() == {"manifest.json", "zarr.json"}


# --------------------------------------------------------------------------------------- one worker


def test_a_shard_at_a_url_is_built_once_and_then_skipped(memory: str, tmp_path: Path) -> None:
    result = built(memory, tmp_path / "work")
    assert not result.skipped
    assert result.place == f"{memory}/{SHARD}"
    with pytest.raises(ConfigurationError, match="it has no folder; use `place`"):
        _ = result.final_dir
    assert_finished(memory)
    store = read_finished_objects(UrlFolder(result.place, None), ENTRY).store
    assert open_store(f"{result.place}/{store}", cache_dir=tmp_path).validate(deep=True).ok
    assert not (tmp_path / "work" / SHARD).exists()
    builder = SmallBuilder(ENTRY)
    assert built(memory, tmp_path / "work", builder).skipped
    assert builder.calls == 0


def test_a_shard_without_rollouts_has_a_success_object_only(memory: str, tmp_path: Path) -> None:
    built(memory, tmp_path, lambda folder, progress: BuiltStore(None, {}))
    assert names(memory) == ShardNames(True, [], [], set(), set())
    finished = read_finished_objects(UrlFolder(f"{memory}/{SHARD}", None), ENTRY)
    assert finished.owner.counts.rollouts == 0
    assert built(memory, tmp_path).skipped


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The objects of a finished shard."""
    built("memory://bucket/store", tmp_path_factory.mktemp("work"))
    files = fsspec.filesystem("memory")
    found = {path: files.cat_file(path) for path in files.find("memory://bucket/store")}
    files.store.clear()
    return found


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], None]:
    def edit(url: str) -> None:
        files = fsspec.filesystem("memory")
        value = json.loads(files.cat_file(f"{url}/_SUCCESS.json"))
        change(value)
        files.pipe_file(f"{url}/_SUCCESS.json", json.dumps(value).encode())

    return edit


def without_manifest(url: str) -> None:
    (manifest,) = fsspec.filesystem("memory").glob(f"{url}/*/manifest.json")
    fsspec.filesystem("memory").rm_file(manifest)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (edited(lambda s: s["owner"].update(writer_config_hash="0")), "writer_config_hash"),
        (edited(lambda s: s["owner"].update(seconds=0.5)), "belongs to its owner"),
        (edited(lambda s: s.update(store="000009-00000000")), r"000009-00000000/manifest\.json"),
        (edited(lambda s: s.update(store="../other")), "belongs to its owner"),
        (edited(lambda s: s.pop("owner")), "cannot be read"),
        (without_manifest, r"manifest\.json is not the one"),
    ],
)
def test_a_finished_shard_that_was_changed_is_refused(
    memory: str,
    finished: dict[str, bytes],
    tmp_path: Path,
    damage: Callable[[str], None],
    says: str,
) -> None:
    fsspec.filesystem("memory").pipe(finished)
    damage(f"{memory}/{SHARD}")
    before = fsspec.filesystem("memory").find(memory)
    builder = SmallBuilder(ENTRY)
    with pytest.raises(StorageError, match=says) as refused:
        built(memory, tmp_path, builder, take_over=True)
    assert "look at it" in str(refused.value)
    assert builder.calls == 0
    assert fsspec.filesystem("memory").find(memory) == before


def test_an_object_store_that_is_away_for_a_moment_does_not_make_a_shard_look_wrong(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody should remove it for that."""
    built(memory, tmp_path)
    with monkeypatch.context() as patch:
        away(patch)
        with pytest.raises(StorageError, match="it cannot be reached") as error:
            built(memory, tmp_path)
    assert "remove" not in str(error.value)
    assert built(memory, tmp_path).skipped


def test_a_place_with_other_files_is_refused(memory: str, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file(f"{memory}/{SHARD}/zarr.json", b"{}")
    with pytest.raises(StorageError, match=r"belong to no shard, 'zarr\.json' first; look at it"):
        built(memory, tmp_path)
    assert names(memory).foreign == {"zarr.json"}


def test_a_failure_leaves_a_marker_that_the_next_success_replaces(
    memory: str, tmp_path: Path
) -> None:
    def fail(row: int) -> None:
        raise GenerationFailed(sample_index=1, sample_key="flat-0-1", detail="the policy raised")

    with pytest.raises(GenerationFailed):
        built(memory, tmp_path, SmallBuilder(ENTRY, before_row=fail))
    left = names(memory)
    assert len(left.failures) == 1
    assert not left.tokens
    with pytest.raises(UnfinishedRun, match="--take-over"):
        built(memory, tmp_path)
    built(memory, tmp_path, take_over=True)
    assert not names(memory).failures
    finished = read_finished_objects(UrlFolder(f"{memory}/{SHARD}", None), ENTRY)
    assert [each.sample_index for each in finished.owner.failures] == [1]


def test_a_store_that_could_not_be_uploaded_is_uploaded_later_and_not_built_again(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: Any, **options: Any) -> None:
        raise StorageError(path=memory, detail="it cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(object_shards, "publish_store", unreachable)
        with pytest.raises(StorageError, match="cannot be reached"):
            built(memory, tmp_path)
    builder = SmallBuilder(ENTRY)
    assert not built(memory, tmp_path, builder, take_over=True).skipped
    assert builder.calls == 0
    assert_finished(memory)
    finished = read_finished_objects(UrlFolder(f"{memory}/{SHARD}", None), ENTRY)
    assert [each.error_type for each in finished.owner.failures] == ["StorageError"]


def test_damage_in_a_store_that_waited_for_its_upload_is_noticed(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaging(store: Path, *arguments: Any, **options: Any) -> None:
        chunk = next(store.glob("candidates/target_rri/c/*"))
        chunk.write_bytes(bytes(chunk.stat().st_size))
        raise StorageError(path=memory, detail="it cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(object_shards, "publish_store", damaging)
        with pytest.raises(StorageError):
            built(memory, tmp_path)
    builder = SmallBuilder(ENTRY)
    built(memory, tmp_path, builder, take_over=True)
    assert builder.calls == 1
    assert_finished(memory)


# ------------------------------------------------------------------------------------- many workers


@pytest.fixture
def bucket(
    server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A URL on S3 that nothing else uses."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield f"s3://bucket/{request.node.name.replace('[', '-').replace(']', '')}"
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def lease(root: str, token: int) -> LeaseRecord | None:
    leases = object_shards.LeaseObjects(UrlFolder(f"{root}/{SHARD}", None))
    return leases.read(SHARD, token)


@pytest.mark.slow  # two uploads to S3
def test_two_workers_that_race_for_a_shard_build_it_once(bucket: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()

    def note(row: int) -> None:
        (calls / f"{os.getpid()}").touch()

    def race(number: int) -> None:
        try:
            built(bucket, tmp_path / str(number), SmallBuilder(ENTRY, before_row=note))
        except LeaseHeld:
            os._exit(7)

    with worker(lambda: race(1)) as one, worker(lambda: race(2)) as other:
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (one, other)]
    assert sorted(ends) in (
        [0, 0],
        [0, 7],
    )  # the second one came too late, or it found the shard finished
    assert len(list(calls.iterdir())) == 1
    assert_finished(bucket)


def pausing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, pauses: Callable[..., bool]
) -> None:
    """The process stops itself before it calls this with arguments that `pauses`."""
    step = getattr(owner, name)

    def paused(*arguments: Any, **options: Any) -> Any:
        if pauses(*arguments):
            os.kill(os.getpid(), signal.SIGSTOP)
        return step(*arguments, **options)

    monkeypatch.setattr(owner, name, paused)


@pytest.mark.slow  # two uploads to S3
def test_a_worker_killed_while_it_uploads_costs_no_row(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def second_batch(remote: UrlFolder, contents: Any) -> bool:
        seen.append(contents)
        return len(seen) > 3  # its lease, the mark of the upload, a first batch of files

    def uploads() -> None:
        pausing(monkeypatch, UrlFolder, "write", second_batch)
        built(bucket, tmp_path / "work", lease_s=600.0)

    with worker(uploads) as pid:
        wait_for(lambda: stopped(pid))
        left = names(bucket)
        assert left.attempts
        assert not left.is_finished
        with pytest.raises(LeaseHeld):
            built(bucket, tmp_path / "work", take_over=True)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    builder = SmallBuilder(ENTRY)
    assert not built(bucket, tmp_path / "work", builder, take_over=True).skipped
    assert builder.calls == 0, "the store was finished; only its upload was not"
    assert_finished(bucket)


def over(root: str, tokens: int) -> LeaseWatch:
    """A watch that has seen the present leases run out."""
    found = [record for token in range(1, tokens + 1) if (record := lease(root, token))]
    return LeaseWatch(frozenset((each.nonce, each.token, each.beat) for each in found))


def success_next(remote: UrlFolder, path: str, data: bytes) -> bool:
    return path == "_SUCCESS.json"


@pytest.mark.slow  # two uploads to S3
def test_a_worker_that_wakes_after_the_shard_was_finished_changes_nothing(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleeps() -> None:
        pausing(monkeypatch, UrlFolder, "create", success_next)
        built(bucket, tmp_path / "one", lease_s=600.0)

    with worker(sleeps) as pid:
        wait_for(lambda: stopped(pid))
        built(bucket, tmp_path / "two", take_over=True, watch=over(bucket, 2))
        before = fsspec.filesystem("s3").find(bucket)
        assert_finished(bucket)
        assert woken(pid) == LOST
    fsspec.filesystem("s3").invalidate_cache()
    assert fsspec.filesystem("s3").find(bucket) == before
    assert_finished(bucket)


@pytest.mark.slow
def test_a_worker_that_wakes_before_the_other_one_is_done_may_still_win_but_only_one_does(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one uploaded is kept until there is a success object, so its success is never an empty one."""

    def sleeps() -> None:
        pausing(monkeypatch, UrlFolder, "create", success_next)
        built(bucket, tmp_path / "one", lease_s=600.0)

    with worker(sleeps) as pid:
        wait_for(lambda: stopped(pid))

        def wake(row: int) -> None:
            if row == 0:
                assert woken(pid) == 0

        builder = SmallBuilder(ENTRY, before_row=wake)
        with pytest.raises(LeaseLost, match="another worker has finished the shard"):
            built(bucket, tmp_path / "two", builder, take_over=True, watch=over(bucket, 2))
    assert builder.calls == 1
    finished = read_finished_objects(UrlFolder(f"{bucket}/{SHARD}", None), ENTRY)
    assert finished.owner.token == 1
    assert built(bucket, tmp_path / "two").skipped  # and it takes away what the loser left
    assert_finished(bucket)


def test_a_heartbeat_shows_the_progress(bucket: str, tmp_path: Path) -> None:
    seen: list[LeaseRecord] = []

    def look(row: int) -> None:
        if row == 1:
            while not seen or seen[-1].rows_done != 1:
                found = lease(bucket, 1)
                assert found is not None
                seen.append(found)

    def build(folder: Path, progress: Callable[[int], None]) -> BuiltStore:
        look(0)
        progress(1)
        look(1)
        return BuiltStore(None)

    built(bucket, tmp_path, build, lease_s=1.2)
    assert seen[-1].beat >= 1
    assert seen[-1].process.pid == os.getpid()


def test_a_worker_whose_lease_object_is_gone_stops(bucket: str, tmp_path: Path) -> None:
    def beats() -> bool:
        found = lease(bucket, 1)
        return found is not None and found.beat > 0

    def remove(row: int) -> None:
        """After every row: a heartbeat that was being written creates the object again."""
        if row == 0:
            wait_for(beats)
        UrlFolder(f"{bucket}/{SHARD}", None).remove([lease_name(SHARD, 1)])

    builder = SmallBuilder(ENTRY, before_row=remove, seconds_per_row=0.3)
    with pytest.raises(LeaseLost):
        built(bucket, tmp_path, builder, lease_s=0.6)
    assert not names(bucket).tokens
    assert not names(bucket).failures


# ------------------------------------------------------------------------------ servers and their rules


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables for an S3 server that does not know conditions, and that checks credentials."""
    with rclone_server(tmp_path_factory.mktemp("rclone")) as running:
        yield {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": running.url,
            "AWS_DEFAULT_REGION": REGION,
        }


@pytest.mark.parametrize("secret", [SECRET_KEY, "wrong"])
def test_a_server_that_ignores_conditions_or_refuses_the_credentials_is_named(
    careless: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    for name, value in (careless | {"AWS_SECRET_ACCESS_KEY": secret}).items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    builder = SmallBuilder(ENTRY)
    if secret == SECRET_KEY:
        with pytest.raises(ConfigurationError, match="ignores the condition If-None-Match"):
            built(f"s3://{BUCKET}/campaign", tmp_path, builder)
        assert not names(f"s3://{BUCKET}/campaign").tokens
    else:
        with pytest.raises(StorageError, match="check the credentials") as refused:
            built(f"s3://{BUCKET}/campaign", tmp_path, builder)
        assert ACCESS_KEY not in str(refused.value)
        assert secret not in str(refused.value)
    assert builder.calls == 0
    fsspec.get_filesystem_class("s3").clear_instance_cache()

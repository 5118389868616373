"""Stores at a URL, against a server that speaks S3: published whole or not at all, read file by file, not on trust."""

from __future__ import annotations

import http.server
import json
import multiprocessing
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    StorageError,
    TargetExists,
    TruncatedFile,
)
from rollbook.store.collection import RolloutCollection
from rollbook.store.manifest import content_sha256, group_metadata, json_bytes, manifest_sha256
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.urls.publication import SIDECAR
from rollbook.store.urls.remote import RemoteFiles, open_store, publish_store
from rollbook.store.urls.url_folder import UrlFolder, default_cache_dir
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.s3_server import Server, memory, options_for, server
from tests.store.synthetic import make_records
from tests.store.test_collection import write_store
from tests.store.test_reader import assert_same_columns, same

__all__ = ["memory", "server"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("stores")
    return [
        write_store(place, "one", 4, seed=1),
        write_store(place, "other", 2, seed=2, candidates=7),
    ]


@pytest.fixture(scope="module")
def published(server: Server, stores: list[Path]) -> str:
    publish_store(stores[0], "s3://bucket/shards/one", storage_options=server.options)
    return "s3://bucket/shards/one"


def opened(server: Server, url: str, cache: Path) -> RolloutZarrStoreReader:
    return open_store(url, cache_dir=cache, storage_options=server.options)


def listed(store: Path) -> dict[str, list[Any]]:
    files: dict[str, list[Any]] = json.loads((store / "manifest.json").read_bytes())["files"]
    return files


def everything(store: Path) -> set[str]:
    return {*listed(store), "manifest.json", "zarr.json"}


def at(url: str) -> set[str]:
    """What lies at a memory URL."""
    start = url.removeprefix("memory:/") + "/"
    return {name.removeprefix(start) for name in fsspec.filesystem("memory").find(start)}


def assert_same_stores(one: RolloutZarrStoreReader, other: RolloutZarrStoreReader) -> None:
    for table in ("rollouts", "steps", "candidates", "targets", "q_h", "returns", "lineage"):
        assert_same_columns(one.table(table), other.table(table))
    assert one.dictionaries == other.dictionaries
    assert one.attrs == other.attrs


# ----------------------------------------------------------------------------------------- reading


def test_a_published_store_is_the_store(
    server: Server, stores: list[Path], published: str, tmp_path: Path
) -> None:
    store, original = opened(server, published, tmp_path), RolloutZarrStoreReader(stores[0])
    assert_same_stores(store, original)
    for one, other in zip(store.batches(8, seed=1), original.batches(8, seed=1), strict=True):
        assert_same_columns(one, other)
    assert not store.array("candidates/pose_world_cam").flags.writeable
    assert_same_columns(store.rollout(1)["candidates"], original.rollout(1)["candidates"])
    assert store.validate(deep=True).ok
    keys = server.files.find("bucket/shards/one")
    assert {key.removeprefix("bucket/shards/one/") for key in keys} == everything(stores[0])


def test_a_column_brings_its_own_files_only(
    server: Server, stores: list[Path], published: str, tmp_path: Path
) -> None:
    server.requests.clear()
    store = opened(server, published, tmp_path)
    assert store.has("q_h/td_reward")
    assert not store.has("selected_depth/depth_m")
    assert len(store.column_names("candidates")) == 35
    assert {path for _, path in server.requests} == {
        "bucket/shards/one/manifest.json",
        "bucket/shards/one/zarr.json",
    }
    server.requests.clear()
    store.array("candidates/target_rri")
    asked = [path.removeprefix("bucket/shards/one/") for _, path in server.requests]
    expected = [path for path in listed(stores[0]) if path.startswith("candidates/target_rri/")]
    assert sorted(asked) == sorted(expected)
    server.requests.clear()
    store.array("candidates/target_rri")
    again = opened(server, published, tmp_path)
    again.array("candidates/target_rri")  # cached by the first
    assert len(server.requests) == 2  # root and manifest


def test_the_cache_is_named_by_content(
    server: Server,
    stores: list[Path],
    published: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "rollbook" / "stores"
    store = open_store(published, storage_options=server.options)
    payload = json.loads((stores[0] / "manifest.json").read_bytes())
    assert store.store_dir.parent == default_cache_dir() / payload["content_sha256"]
    assert store.store_dir.name == store.attrs["manifest_sha256"]


@pytest.mark.slow
def test_a_prefix_is_no_pattern(server: Server, stores: list[Path], tmp_path: Path) -> None:
    url = "s3://bucket/run [1]/a*b/ä%20"
    publish_store(stores[1], url, storage_options=server.options)
    assert_same_stores(opened(server, url, tmp_path), RolloutZarrStoreReader(stores[1]))


def test_one_depth_image_brings_one_shard(server: Server, tmp_path: Path) -> None:
    records = make_records(3, seed=5, horizon=3, candidates=4, depth=(4, 6))
    write_rollout_zarr_store(
        tmp_path / "seen",
        records,
        selected_depth_height_px=4,
        selected_depth_width_px=6,
        selected_depth_chunk_steps=2,
    )
    publish_store(tmp_path / "seen", "s3://bucket/seen", storage_options=server.options)
    store = opened(server, "s3://bucket/seen", tmp_path / "cache")
    server.requests.clear()
    seen, original = (
        store.selected_depth(5),
        RolloutZarrStoreReader(tmp_path / "seen").selected_depth(5),
    )
    assert seen is not None
    assert original is not None
    assert same(seen["depth_m"], original["depth_m"])
    shards = {path for _, path in server.requests if "/depth_m/c." in path}
    assert shards == {"bucket/seen/selected_depth/depth_m/c.2.0.0"}


def test_local_places_are_opened_where_they_are(stores: list[Path]) -> None:
    for place in (stores[0], str(stores[0]), f"file://{stores[0]}"):
        assert open_store(place).store_dir == stores[0].resolve()


def test_a_collection_of_urls_and_paths(
    server: Server, stores: list[Path], published: str, tmp_path: Path
) -> None:
    many = RolloutCollection([opened(server, published, tmp_path), stores[1]])
    plain = RolloutCollection(stores)
    assert [row["path"] for row in many.provenance()] == [published, str(stores[1].resolve())]
    assert_same_columns(
        many.table("rollouts", global_ids=True), plain.table("rollouts", global_ids=True)
    )
    for one, other in zip(many.batches(8, seed=1), plain.batches(8, seed=1), strict=True):
        assert_same_columns(one, other)


def read_column(store: RolloutZarrStoreReader, results: Any) -> None:
    results.put(store.array("candidates/sampler_probability").sum())


def test_readers_travel_and_fork(
    server: Server, stores: list[Path], published: str, tmp_path: Path
) -> None:
    store = opened(server, published, tmp_path)
    again = pickle.loads(pickle.dumps(store))
    expected = RolloutZarrStoreReader(stores[0])
    assert same(again.array("steps/step_row_id"), expected.array("steps/step_row_id"))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=read_column, args=(store, results)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    total = expected.array("candidates/sampler_probability").sum()
    assert [results.get(), results.get()] == [total, total]


def test_what_another_process_fetched_meanwhile_is_not_fetched_again(
    memory: str, stores: list[Path], tmp_path: Path
) -> None:
    """It looks once more when it has the lock: the files are then there, and no longer at the URL."""
    publish_store(stores[0], memory)
    fetch = open_store(memory, cache_dir=tmp_path).fetch
    assert isinstance(fetch, RemoteFiles)
    take_lock, at_the_lock = fetch._locked, threading.Event()

    @contextmanager
    def locked() -> Iterator[None]:
        at_the_lock.set()
        with take_lock():
            yield

    fetch._locked = locked  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        with take_lock():  # as another process would
            fetched = pool.submit(fetch, "steps")
            assert at_the_lock.wait(60)
            shutil.copytree(stores[0] / "steps", fetch.folder / "steps", dirs_exist_ok=True)
            fsspec.filesystem("memory").rm(f"{memory}/steps", recursive=True)
        fetched.result()
    opened_again = open_store(memory, cache_dir=tmp_path)
    expected = RolloutZarrStoreReader(stores[0]).array("steps/step_index")
    assert same(opened_again.array("steps/step_index"), expected)


# -------------------------------------------------------------------------- what can be wrong with it


FLIPPED = "candidates/target_rri/c/0"
SHORT = "steps/step_index/zarr.json"
GONE = "steps/num_candidates/zarr.json"


@pytest.fixture(scope="module")
def spoilt(server: Server, stores: list[Path]) -> str:
    """A published store of which three objects were changed where they lie."""
    publish_store(stores[0], "s3://bucket/spoilt", storage_options=server.options)
    data = bytearray((stores[0] / FLIPPED).read_bytes())
    data[17] ^= 4
    server.files.pipe_file(f"bucket/spoilt/{FLIPPED}", bytes(data))
    server.files.pipe_file(f"bucket/spoilt/{SHORT}", b"{}")
    server.files.rm_file(f"bucket/spoilt/{GONE}")
    return "s3://bucket/spoilt"


def test_a_flipped_bit(server: Server, spoilt: str, tmp_path: Path) -> None:
    store = opened(server, spoilt, tmp_path)
    assert len(store.array("candidates/scene_rri")) == store.num_candidates
    with pytest.raises(ChecksumMismatch, match=f"{spoilt}/{FLIPPED}"):
        store.array("candidates/target_rri")
    assert not (store.store_dir / FLIPPED).exists()


def test_an_object_cut_short_or_gone(server: Server, spoilt: str, tmp_path: Path) -> None:
    store = opened(server, spoilt, tmp_path)
    with pytest.raises(TruncatedFile, match="2 bytes came"):
        store.array("steps/step_index")
    with pytest.raises(StorageError, match=f"{GONE}: there is no such file"):
        store.array("steps/num_candidates")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("manifest.json", "oracle", "0racle", r"manifest\.json is not the one"),
        ("zarr.json", '"num_rollouts": ', '"num_rollouts": 1', "root attributes are not those"),
        ("zarr.json", "manifest_sha256", "manifest_sha", "no manifest is named"),
        ("zarr.json", "{", "[", "no manifest is named"),
    ],
)
def test_an_edited_manifest_or_root(
    memory: str, stores: list[Path], tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    publish_store(stores[0], memory)
    text = (stores[0] / name).read_text().replace(old, new)
    fsspec.filesystem("memory").pipe_file(f"{memory}/{name}", text.encode())
    with pytest.raises(StorageError, match=said):
        open_store(memory, cache_dir=tmp_path)


def test_without_its_manifest(memory: str, stores: list[Path], tmp_path: Path) -> None:
    publish_store(stores[0], memory)
    fsspec.filesystem("memory").rm_file(f"{memory}/manifest.json")
    with pytest.raises(StorageError, match=r"not complete: there is no manifest\.json"):
        open_store(memory, cache_dir=tmp_path)


def forged(url: str, store: Path, change: Any) -> None:
    """A store whose manifest and root agree with each other."""
    payload = json.loads((store / "manifest.json").read_bytes())
    change(payload)
    attrs = {**payload["root_attrs"], "manifest_sha256": manifest_sha256(payload)}
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{url}/manifest.json", json_bytes(payload, "the manifest"))
    files.pipe_file(f"{url}/zarr.json", group_metadata(attrs))


@pytest.mark.parametrize("path", ["../evil", "/evil", "a//b", "a/../../evil", "a\\b", "./a"])
def test_a_manifest_that_points_elsewhere(
    memory: str, stores: list[Path], tmp_path: Path, path: str
) -> None:
    def change(payload: dict[str, Any]) -> None:
        payload["files"][path] = [4, "0" * 32]
        payload["content_sha256"] = content_sha256(
            {k: tuple(v) for k, v in payload["files"].items()}
        )

    forged(memory, stores[0], change)
    with pytest.raises(StorageError, match="lists a file outside of the store"):
        open_store(memory, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", ["../../evil", "0" * 64, 7])
def test_a_content_address_that_is_none(
    memory: str, stores: list[Path], tmp_path: Path, content: Any
) -> None:
    forged(memory, stores[0], lambda payload: payload.update(content_sha256=content))
    with pytest.raises(ChecksumMismatch, match="content_sha256"):
        open_store(memory, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_places_that_are_not_there(server: Server, stores: list[Path], tmp_path: Path) -> None:
    for url in ("s3://bucket/nothing", "s3://no-such-bucket/store"):
        with pytest.raises(StorageError, match=f"{url}: it is not a rollout store: there is no"):
            opened(server, url, tmp_path)
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/store/.*no such file or bucket"):
        publish_store(stores[0], "s3://no-such-bucket/store", storage_options=server.options)


class Denied(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_access_denied(stores: list[Path], tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Denied) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        options = options_for("127.0.0.1", refusing.server_port)
        with pytest.raises(StorageError, match=r"s3://bucket/.*access was denied.*credentials"):
            open_store("s3://bucket/store", cache_dir=tmp_path, storage_options=options)
        with pytest.raises(StorageError, match=r"s3://bucket/.*access was denied.*credentials"):
            publish_store(stores[0], "s3://bucket/store", storage_options=options)
        refusing.shutdown()


def test_the_network_is_down(server: Server, published: str, tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Denied) as closed:
        options = options_for("127.0.0.1", closed.server_port)
    with pytest.raises(StorageError, match=r"cannot be reached.*check the network"):
        open_store("s3://bucket/store", cache_dir=tmp_path, storage_options=options)


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch, stores: list[Path]) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for use in (lambda: open_store("s3://b/s"), lambda: publish_store(stores[0], "s3://b/s")):
        with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[remote\]'"):
            use()
    assert open_store(stores[0]).num_rollouts


def test_urls_nobody_knows(stores: list[Path]) -> None:
    with pytest.raises(StorageError, match="colour://"):
        open_store("colour://bucket/store")
    with pytest.raises(ConfigurationError, match="is not a URL"):
        publish_store(stores[0], "/some/folder")


# -------------------------------------------------------------------------------------- publishing


def test_publishing_says_what_it_did(memory: str, stores: list[Path]) -> None:
    seen: list[tuple[int, int]] = []
    done = publish_store(stores[0], memory, progress=lambda *state: seen.append(state))
    total = sum(size for size, _ in listed(stores[0]).values())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert done.url == memory
    assert done.files == done.uploaded_files == len(everything(stores[0]))
    assert done.bytes == sum((stores[0] / path).stat().st_size for path in everything(stores[0]))
    assert at(memory) == everything(stores[0])


def test_a_folder_can_be_a_url(stores: list[Path], tmp_path: Path) -> None:
    publish_store(stores[0], f"file://{tmp_path}/deep/down/store")
    assert RolloutZarrStoreReader(tmp_path / "deep/down/store").validate(deep=True).ok


def test_a_store_is_not_replaced_unless_asked(
    memory: str, stores: list[Path], tmp_path: Path
) -> None:
    publish_store(stores[0], memory)
    for store in stores:
        with pytest.raises(TargetExists, match="pass replace=True"):
            publish_store(store, memory)
    publish_store(stores[1], memory, replace=True)
    assert at(memory) == everything(stores[1])
    assert_same_stores(open_store(memory, cache_dir=tmp_path), RolloutZarrStoreReader(stores[1]))


def test_files_of_others_stay(memory: str, stores: list[Path]) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{memory}/notes.txt", b"mine")
    with pytest.raises(TargetExists, match="publish to a place of its own"):
        publish_store(stores[0], memory)
    with pytest.raises(StorageError, match=r"belong to no published store, 'notes\.txt'"):
        publish_store(stores[0], memory, replace=True)
    assert at(memory) == {"notes.txt"}
    files.rm_file(f"{memory}/notes.txt")
    files.pipe_file(f"{memory}/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(StorageError, match="no manifest is named"):
        publish_store(stores[0], memory, replace=True)
    assert at(memory) == {"zarr.json"}


def test_damage_is_not_published(memory: str, stores: list[Path], tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(stores[0], tmp_path / "damaged"))
    chunk = damaged / "candidates/target_rri/c/0"
    data = bytearray(chunk.read_bytes())
    data[3] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(ChecksumMismatch, match="target_rri"):
        publish_store(damaged, memory)
    chunk.unlink()
    with pytest.raises(StorageError, match="target_rri"):
        publish_store(damaged, memory)
    assert "zarr.json" not in at(memory)
    (damaged / "manifest.json").unlink()
    with pytest.raises(StorageError, match="not complete"):
        publish_store(damaged, memory)


def test_what_did_not_arrive_is_noticed(
    memory: str, stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = UrlFolder.write
    cut = "steps/step_index/zarr.json"

    def lossy(self: UrlFolder, contents: Mapping[str, bytes]) -> None:
        write(self, {path: data[:-1] if path == cut else data for path, data in contents.items()})

    monkeypatch.setattr(UrlFolder, "write", lossy)
    with pytest.raises(TruncatedFile, match=f"{cut} is incomplete"):
        publish_store(stores[0], memory)
    assert "zarr.json" not in at(memory)


class Crash(Exception):
    pass


def crash_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Ends the process's work, as far as a URL can tell, before its nth change there."""
    changes = iter(range(1_000_000))

    def counted(change: Any) -> Any:
        def step(self: UrlFolder, what: Any) -> None:
            for each in (
                [{k: v} for k, v in what.items()] if isinstance(what, dict) else [[w] for w in what]
            ):
                if next(changes) == moment:
                    raise Crash
                change(self, each)

        return step

    monkeypatch.setattr(UrlFolder, "write", counted(UrlFolder.write))
    monkeypatch.setattr(UrlFolder, "remove", counted(UrlFolder.remove))


@pytest.mark.parametrize("replace", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_crash_at_any_moment(
    memory: str, stores: list[Path], tmp_path: Path, replace: bool
) -> None:
    """Whatever was there, there is a whole store or none at any moment, and publishing again finishes it."""
    expected = [RolloutZarrStoreReader(store).attrs["manifest_sha256"] for store in stores]
    changes = (len(everything(stores[0])) if replace else 0) + len(everything(stores[1])) + 4
    for moment in [0, 1, 2, 3, *range(10, changes - 6, 67), *range(changes - 6, changes + 2)]:
        fsspec.filesystem("memory").store.clear()
        if replace:
            publish_store(stores[0], memory)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, moment)
            with suppress(Crash):
                publish_store(stores[1], memory, replace=replace)
        if "zarr.json" in at(memory):
            found = open_store(memory, cache_dir=tmp_path)
            assert found.attrs["manifest_sha256"] in expected
            assert found.validate(deep=True).ok
        else:
            with pytest.raises(StorageError, match=r"not (complete|a rollout store)"):
                open_store(memory, cache_dir=tmp_path)
        publish_store(stores[1], memory, replace=True)
        assert at(memory) == everything(stores[1])
        assert open_store(memory, cache_dir=tmp_path).attrs["manifest_sha256"] == expected[1]


def test_publishing_goes_on_where_it_ended(
    memory: str, stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        crash_at(patch, 100)
        with pytest.raises(Crash):
            publish_store(stores[0], memory)
    left = at(memory)
    assert SIDECAR in left
    with pytest.raises(TargetExists, match="another store was being published"):
        publish_store(stores[1], memory)
    done = publish_store(stores[0], memory)
    assert done.uploaded_files == done.files - (len(left) - 1)
    assert at(memory) == everything(stores[0])


def test_a_sidecar_of_other_content_vouches_for_nothing(memory: str, stores: list[Path]) -> None:
    """Files of the right size, but from another store."""
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 100)
        with pytest.raises(Crash):
            publish_store(stores[1], memory)
    done = publish_store(stores[0], memory, replace=True)
    assert done.uploaded_files == done.files
    assert at(memory) == everything(stores[0])


def test_two_stores_at_one_url(
    memory: str, stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one whose turn was taken notices before it would call a mixture complete."""
    rival = b'{"content_sha256": "other", "phase": "uploading", "files": []}'
    write = UrlFolder.write

    def interrupted(self: UrlFolder, contents: Mapping[str, bytes]) -> None:
        write(self, contents)
        if "manifest.json" in contents:
            write(self, {SIDECAR: rival})

    monkeypatch.setattr(UrlFolder, "write", interrupted)
    with pytest.raises(StorageError, match="someone else published"):
        publish_store(stores[0], memory)
    assert "zarr.json" not in at(memory)


PUBLISHER = """
import json, sys, time
from rollbook.store.urls.remote import publish_store
def progress(done, total):
    print(done, flush=True)
    time.sleep(0.1)
publish_store(sys.argv[1], sys.argv[2], storage_options=json.loads(sys.argv[3]), progress=progress)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 3, 6])
def test_killing_a_publisher(
    server: Server, stores: list[Path], tmp_path: Path, lines: int
) -> None:
    url = f"s3://bucket/killed/{lines}"
    arguments = [str(stores[0]), url, json.dumps(server.options)]
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *arguments], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(lines):
            assert child.stdout.readline()
        child.kill()
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(StorageError, match="not complete: publishing it was not finished"):
        opened(server, url, tmp_path)
    done = publish_store(stores[0], url, storage_options=server.options)
    assert done.uploaded_files < done.files or lines == 1
    assert_same_stores(opened(server, url, tmp_path), RolloutZarrStoreReader(stores[0]))

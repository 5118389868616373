"""One suite for every blob store: local disk behind our own routes, and two S3 servers that err in different places."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx
import numpy as np
import pytest

from rollbook.contracts.npz import inspect_npz
from rollbook.errors import (
    BlobExists,
    BlobNotFound,
    BlobTooLarge,
    InvalidBlobKey,
    PartsMismatch,
    UploadNotFound,
)
from rollbook.server.blobs.blob_file import BlobFile
from rollbook.server.blobs.inspect_blob import Inspection, Question, inspect_blobs
from rollbook.server.blobs.interface import BlobStore, PartInfo
from rollbook.server.blobs.open import open_blobs
from rollbook.server.blobs.s3_client import s3_client
from rollbook.server.blobs.signing import Grant, UrlSigner
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET,
    SECRET_KEY,
    Served,
    blob_server,
    create_bucket,
    moto_server,
    rclone_server,
)

pytestmark = pytest.mark.anyio

KEY = "episodes/org-a/ep-1/video.mp4"
VIDEO = {"Content-Type": "video/mp4"}
PART = 5 << 20
"""The least S3 takes for any part but the last."""
_prefixes = count()


@dataclass(frozen=True)
class Kind:
    """A store, and which promises its server cannot be held to."""

    name: str
    open: Callable[[str], BlobStore]
    """With a prefix of its own."""
    base_url: str
    http: httpx.Client
    expired: Callable[[str], str]
    """A URL for that method that was good until an hour ago."""
    checks_signatures: bool = True
    honours_expiry: bool = True
    binds_content_type: bool = True
    says_206: bool = True
    refuses_to_replace: bool = True
    takes_a_part_again: bool = True
    survives_unknown_uploads: bool = True
    ties_uploads_to_keys: bool = True


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    makers = {"local": blob_server, "rclone": rclone_server, "moto": moto_server}
    made = {name: make(tmp_path_factory.mktemp(name)) for name, make in makers.items()}
    try:
        for server in made.values():
            server.start()
        create_bucket(made["moto"])
        yield made
    finally:
        for server in made.values():
            server.kill()


@pytest.fixture
def in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)


def on_s3(endpoint: str) -> Callable[[str], BlobStore]:
    return lambda prefix: open_blobs(f"s3://{BUCKET}/{prefix}", secret=SECRET, s3_endpoint=endpoint)


@pytest.fixture(params=["local", "rclone", "moto"])
def kind(
    request: pytest.FixtureRequest,
    servers: dict[str, Served],
    http: httpx.Client,
    in_environment: None,
) -> Kind:
    name = str(request.param)
    server = servers[name]
    before = datetime.now(UTC) - timedelta(hours=1)

    def expired_on_s3(method: str) -> str:
        named = {"Bucket": BUCKET, "Key": "p/" + KEY}
        operation = {"PUT": "put_object", "GET": "get_object"}[method]
        if method == "PUT":
            named["ContentType"] = VIDEO["Content-Type"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("botocore.auth.get_current_datetime", lambda: before.replace(tzinfo=None))
            client = s3_client(BUCKET, server.url)
            return str(client.generate_presigned_url(operation, Params=named, ExpiresIn=60))

    def expired_here(method: Any) -> str:
        grant = Grant(method, KEY, int(before.timestamp()), "video/mp4")
        return UrlSigner(SECRET).url(server.url, grant)

    if name == "rclone":
        return Kind(
            name,
            on_s3(server.url),
            "",
            http,
            expired_on_s3,
            says_206=False,
            refuses_to_replace=False,
            takes_a_part_again=False,
        )
    if name == "moto":
        return Kind(
            name,
            on_s3(server.url),
            "",
            http,
            expired_on_s3,
            checks_signatures=False,
            honours_expiry=False,
            binds_content_type=False,
            survives_unknown_uploads=False,
            ties_uploads_to_keys=False,
        )
    root = server.log.parent / "blobs"
    return Kind(
        name,
        lambda prefix: open_blobs(root.as_uri(), secret=SECRET),
        server.url,
        http,
        expired_here,
    )


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, timeout=60) as client:
        yield client


@pytest.fixture
async def blobs(kind: Kind) -> AsyncIterator[BlobStore]:
    store = kind.open(f"p{next(_prefixes)}")
    async for left in store.list(""):
        await store.delete(left.key)
    yield store
    await store.close()


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


async def put(blobs: BlobStore, data: bytes, key: str = KEY) -> None:
    await blobs.put(key, chunks(data), content_type="video/mp4", most=None)


async def read(blobs: BlobStore, key: str = KEY, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in await blobs.read(key, start, end)])


async def keys(blobs: BlobStore, prefix: str) -> list[str]:
    return [info.key async for info in blobs.list(prefix)]


def noise(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


# ---------------------------------------------------------------------------------------- whole blobs


async def test_what_is_put_is_read(blobs: BlobStore) -> None:
    data = noise(100_000)
    pieces = [data[at : at + 7_001] for at in range(0, len(data), 7_001)]
    result = await blobs.put(KEY, chunks(*pieces), content_type="video/mp4", most=len(data))
    assert (result.size, result.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert await read(blobs) == data
    assert await blobs.sha256(KEY) == result.sha256
    info = await blobs.head(KEY)
    assert info is not None
    assert (info.key, info.size, info.etag) == (KEY, len(data), result.etag)
    modified = datetime.fromtimestamp(info.modified_at_us / 1e6, UTC)
    assert abs(datetime.now(UTC) - modified) < timedelta(minutes=1)


@pytest.mark.parametrize("size", [0, 1])
async def test_a_blob_may_be_tiny(blobs: BlobStore, size: int) -> None:
    await blobs.put(KEY, chunks(*[b"x"] * size), content_type="video/mp4", most=size)
    assert await read(blobs) == b"x" * size
    assert await blobs.sha256(KEY) == hashlib.sha256(b"x" * size).hexdigest()


async def test_a_blob_larger_than_one_request_is_one_blob(blobs: BlobStore) -> None:
    data = noise(20 << 20)
    pieces = [data[at : at + 999_999] for at in range(0, len(data), 999_999)]
    result = await blobs.put(KEY, chunks(*pieces), content_type="video/mp4", most=len(data))
    assert (result.size, result.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert await blobs.sha256(KEY) == result.sha256


async def test_a_blob_may_be_replaced_and_its_etag_changes(blobs: BlobStore) -> None:
    await put(blobs, b"first")
    before = await blobs.head(KEY)
    await put(blobs, b"second")
    after = await blobs.head(KEY)
    assert await read(blobs) == b"second"
    assert before is not None
    assert after is not None
    assert before.etag != after.etag


async def test_a_blob_that_is_not_to_be_replaced_is_kept(blobs: BlobStore, kind: Kind) -> None:
    async def put_once(data: bytes) -> None:
        await blobs.put(KEY, chunks(data), content_type="video/mp4", most=None, replace=False)

    await put_once(b"first")
    if not kind.refuses_to_replace:
        pytest.skip(f"{kind.name} ignores If-None-Match")
    with pytest.raises(BlobExists):
        await put_once(b"second")
    assert await read(blobs) == b"first"


async def test_too_many_bytes_leave_nothing_and_keep_what_was_there(blobs: BlobStore) -> None:
    with pytest.raises(BlobTooLarge) as refused:
        await blobs.put(KEY, chunks(b"123", b"45"), content_type="video/mp4", most=4)
    assert refused.value.most == 4
    assert await blobs.head(KEY) is None
    await put(blobs, b"old")
    with pytest.raises(BlobTooLarge):
        await blobs.put(KEY, chunks(noise(17 << 20), b"x"), content_type="video/mp4", most=17 << 20)
    assert await read(blobs) == b"old"


async def test_a_stream_that_breaks_leaves_nothing(blobs: BlobStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield noise(17 << 20)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await blobs.put(KEY, broken(), content_type="video/mp4", most=None)
    assert await blobs.head(KEY) is None
    assert await keys(blobs, "") == []


async def test_a_cancelled_put_leaves_nothing(blobs: BlobStore) -> None:
    stuck = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield noise(17 << 20)
        stuck.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(blobs.put(KEY, endless(), content_type="video/mp4", most=None))
    await stuck.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await blobs.head(KEY) is None
    assert await keys(blobs, "") == []


async def test_a_range_is_read(blobs: BlobStore) -> None:
    await put(blobs, b"0123456789")
    for start, end in (
        (0, None),
        (3, None),
        (3, 7),
        (8, 99),
        (0, 1),
        (9, 10),
        (10, None),
        (50, 60),
        (4, 4),
    ):
        assert await read(blobs, KEY, start, end) == b"0123456789"[start:end]


async def test_what_is_not_there_is_not_found(blobs: BlobStore) -> None:
    assert await blobs.head(KEY) is None
    for start, end in ((0, None), (3, 5), (4, 4)):
        with pytest.raises(BlobNotFound):
            await blobs.read(KEY, start, end)
    with pytest.raises(BlobNotFound):
        await blobs.sha256(KEY)
    with pytest.raises(BlobNotFound):
        async with blobs.as_file(KEY):
            pass


async def test_a_blob_can_be_had_as_a_file(blobs: BlobStore) -> None:
    data = noise(2_000_000)
    await put(blobs, data)
    async with blobs.as_file(KEY) as path:
        assert await asyncio.to_thread(path.read_bytes) == data
    assert await read(blobs) == data


async def test_deleting_is_final_and_may_be_repeated(blobs: BlobStore) -> None:
    await put(blobs, b"here")
    await blobs.delete(KEY)
    await blobs.delete(KEY)
    assert await blobs.head(KEY) is None
    await put(blobs, b"again")
    assert await read(blobs) == b"again"


async def test_a_list_holds_exactly_what_begins_with_the_prefix_in_order(blobs: BlobStore) -> None:
    # "-" and "." sort before "/": a walk over folders alone would get the order wrong
    names = ["a/1-b/x", "a/1.b", "a/1/y", "a/10/z", "ab/1", "b/1"]
    for name in names:
        await put(blobs, name.encode(), name)
    assert await keys(blobs, "") == sorted(names)
    assert await keys(blobs, "a/") == sorted(name for name in names if name.startswith("a/"))
    assert await keys(blobs, "a/1") == sorted(name for name in names if name.startswith("a/1"))
    assert await keys(blobs, "a/1/") == ["a/1/y"]
    assert await keys(blobs, "none/") == []
    (listed,) = [info async for info in blobs.list("a/10/")]
    assert (listed.key, listed.size) == ("a/10/z", 6)
    head = await blobs.head("a/10/z")
    assert head is not None
    assert listed.etag == head.etag


async def test_one_tenant_does_not_see_the_blobs_of_another(blobs: BlobStore) -> None:
    await put(blobs, b"a", "episodes/org-a/ep-1/video.mp4")
    await put(blobs, b"b", "episodes/org-ab/ep-1/video.mp4")
    assert await keys(blobs, "episodes/org-a/") == ["episodes/org-a/ep-1/video.mp4"]


async def test_readers_of_a_blob_that_is_replaced_get_one_version(blobs: BlobStore) -> None:
    versions = [bytes([version]) * 600_000 for version in range(6)]
    await put(blobs, versions[0])

    async def reads() -> set[bytes]:
        return {await read(blobs) for _ in range(12)}

    async def writes() -> None:
        for version in versions[1:]:
            await put(blobs, version)

    seen, _ = await asyncio.gather(reads(), writes())
    assert seen <= set(versions)
    assert await read(blobs) == versions[-1]


BAD_KEYS = [
    *("", "/etc/passwd", "a/../b", "..", "a/..", "a//b", "a/", ".hidden/a", "a/.b", "a\\b", "a b"),
    *("a\x00b", "ä", "a%2e%2e", "a/" * 12 + "a", "x" * 129, "a\n", "a?b", "a#b"),
]


async def test_a_key_that_could_mean_something_else_is_refused(blobs: BlobStore) -> None:
    for key in BAD_KEYS:
        attempts = [
            blobs.put(key, chunks(b""), content_type="video/mp4", most=None),
            blobs.read(key),
            blobs.head(key),
            blobs.sha256(key),
            blobs.delete(key),
            blobs.presign_put(key, content_type="video/mp4", ttl_s=60, base_url="http://h"),
            blobs.presign_get(key, content_type="video/mp4", ttl_s=60, base_url="http://h"),
            blobs.start_multipart(key, content_type="video/mp4"),
            blobs.presign_part(key, "0" * 32, 1, ttl_s=60, base_url="http://h"),
            blobs.parts(key, "0" * 32),
            blobs.abort_multipart(key, "0" * 32),
            blobs.complete_multipart(key, "0" * 32, [PartInfo(1, 1, "x")]),
        ]
        for attempt in attempts:
            with pytest.raises(InvalidBlobKey):
                await attempt


async def test_a_prefix_that_leaves_the_keys_is_refused(blobs: BlobStore) -> None:
    for prefix in ("../", "a/../", "/", "a//", ".h"):
        with pytest.raises(InvalidBlobKey):
            await keys(blobs, prefix)


async def test_a_store_that_works_is_ready(blobs: BlobStore) -> None:
    await blobs.check()
    assert await keys(blobs, "") == []


# ---------------------------------------------------------------------------------------- signed URLs


async def presigned_put(blobs: BlobStore, kind: Kind) -> str:
    return await blobs.presign_put(KEY, content_type="video/mp4", ttl_s=60, base_url=kind.base_url)


async def presigned_get(blobs: BlobStore, kind: Kind, filename: str | None = None) -> str:
    return await blobs.presign_get(
        KEY, ttl_s=60, base_url=kind.base_url, content_type="video/mp4", filename=filename
    )


async def test_a_signed_url_takes_and_gives_a_blob(blobs: BlobStore, kind: Kind) -> None:
    data = noise(300_000)
    url = await presigned_put(blobs, kind)
    for _ in range(2):  # it may be used again until it expires
        assert kind.http.put(url, content=data, headers=VIDEO).status_code == 200
    assert await read(blobs) == data
    got = kind.http.get(await presigned_get(blobs, kind))
    assert (got.status_code, got.content) == (200, data)
    assert got.headers["content-type"] == "video/mp4"
    assert got.headers["content-disposition"] == "inline"
    assert got.headers["accept-ranges"] == "bytes"


async def test_a_browser_is_told_the_name_of_the_file(blobs: BlobStore, kind: Kind) -> None:
    await put(blobs, b"x")
    url = await presigned_get(blobs, kind, filename='pick "Ä" & place.mp4')
    got = kind.http.get(url)
    assert got.headers["content-disposition"] == (
        'attachment; filename="pick ___ _ place.mp4"; '
        "filename*=UTF-8''pick%20%22%C3%84%22%20%26%20place.mp4"
    )


async def test_a_signed_url_answers_ranges(blobs: BlobStore, kind: Kind) -> None:
    await put(blobs, b"0123456789")
    url = await presigned_get(blobs, kind)
    got = kind.http.get(url, headers={"Range": "bytes=2-5"})
    assert got.content == b"2345"
    assert got.headers["content-range"] == "bytes 2-5/10"
    assert got.status_code == (
        206 if kind.says_206 else 200
    )  # rclone: the right bytes, the wrong status
    assert kind.http.get(url, headers={"Range": "bytes=10-"}).status_code == 416


async def test_a_changed_signed_url_is_refused(blobs: BlobStore, kind: Kind) -> None:
    if not kind.checks_signatures:
        pytest.skip(f"{kind.name} takes any signature")
    await put(blobs, b"secret")
    url = await presigned_get(blobs, kind)
    changed = url[:-2] + ("AA" if not url.endswith("AA") else "BB")
    assert kind.http.get(changed).status_code == 403
    assert kind.http.put(url, content=b"x", headers=VIDEO).status_code == 403
    put_url = await presigned_put(blobs, kind)
    assert kind.http.get(put_url).status_code == 403
    assert kind.http.put(put_url[:-2] + "zz", content=b"x", headers=VIDEO).status_code == 403
    assert await read(blobs) == b"secret"


async def test_the_url_of_one_tenant_opens_no_blob_of_another(blobs: BlobStore, kind: Kind) -> None:
    if not kind.checks_signatures:
        pytest.skip(f"{kind.name} takes any signature")
    other = "episodes/org-b/ep-1/video.mp4"
    await put(blobs, b"a's")
    await put(blobs, b"b's", other)
    url = await presigned_get(blobs, kind)
    assert kind.http.get(url).content == b"a's"
    assert kind.http.get(url.replace("org-a", "org-b")).content != b"b's"


async def test_an_expired_url_is_refused(blobs: BlobStore, kind: Kind) -> None:
    if not kind.honours_expiry:
        pytest.skip(f"{kind.name} does not look at the expiry")
    await put(blobs, b"x")
    for method in ("GET", "PUT"):
        answer = kind.http.request(method, kind.expired(method), content=b"y", headers=VIDEO)
        assert answer.status_code in (400, 403)  # rclone says 400
    assert await read(blobs) == b"x"


async def test_a_url_takes_only_the_content_type_it_was_signed_for(
    blobs: BlobStore, kind: Kind
) -> None:
    if not kind.binds_content_type:
        pytest.skip(f"{kind.name} takes any content type")
    url = await presigned_put(blobs, kind)
    for headers in ({"Content-Type": "text/html"}, {}):
        assert kind.http.put(url, content=b"<script>", headers=headers).status_code == 403
    assert await blobs.head(KEY) is None


# ----------------------------------------------------------------------------------- uploads in parts


async def send_part(
    blobs: BlobStore, kind: Kind, upload: str, number: int, data: bytes
) -> httpx.Response:
    url = await blobs.presign_part(KEY, upload, number, ttl_s=60, base_url=kind.base_url)
    return kind.http.put(url, content=data)


async def test_a_blob_can_be_sent_in_parts(blobs: BlobStore, kind: Kind) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    assert await blobs.parts(KEY, upload) == []
    sent = [noise(PART, 1), noise(PART, 2), b"the end"]
    for number, data in enumerate(sent, 1):
        answer = await send_part(blobs, kind, upload, number, data)
        assert answer.status_code == 200
        assert answer.headers["etag"]
    parts = await blobs.parts(KEY, upload)
    assert [(part.number, part.size) for part in parts] == [(1, PART), (2, PART), (3, 7)]
    assert await blobs.head(KEY) is None
    info = await blobs.complete_multipart(KEY, upload, parts)
    assert info.size == 2 * PART + 7
    assert await blobs.sha256(KEY) == hashlib.sha256(b"".join(sent)).hexdigest()


async def test_an_upload_is_resumed_from_what_has_arrived(blobs: BlobStore, kind: Kind) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await send_part(blobs, kind, upload, 1, noise(PART, 1))
    again = kind.open("") if blobs.kind == "local" else blobs  # another process, later
    arrived = await again.parts(KEY, upload)
    assert [part.number for part in arrived] == [1]
    await send_part(again, kind, upload, 2, b"rest")
    await again.complete_multipart(KEY, upload, await again.parts(KEY, upload))
    assert await read(blobs) == noise(PART, 1) + b"rest"
    if again is not blobs:
        await again.close()


async def test_a_part_may_be_sent_again(blobs: BlobStore, kind: Kind) -> None:
    if not kind.takes_a_part_again:
        pytest.skip(f"{kind.name} has passed the first copy on already")
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await send_part(blobs, kind, upload, 1, b"wrong")
    old = await blobs.parts(KEY, upload)
    await send_part(blobs, kind, upload, 1, b"right")
    with pytest.raises(PartsMismatch):
        await blobs.complete_multipart(KEY, upload, old)
    await blobs.complete_multipart(KEY, upload, await blobs.parts(KEY, upload))
    assert await read(blobs) == b"right"


async def test_parts_that_did_not_arrive_make_no_blob(blobs: BlobStore, kind: Kind) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await send_part(blobs, kind, upload, 1, noise(PART))
    arrived = await blobs.parts(KEY, upload)
    for parts in (
        [],
        [*arrived, *arrived],
        [PartInfo(0, 1, "x")],
        [PartInfo(10_001, 1, "x")],
        [*arrived, PartInfo(2, 5, "0" * 32)],
    ):
        with pytest.raises(PartsMismatch):
            await blobs.complete_multipart(KEY, upload, parts)
    assert await blobs.head(KEY) is None


async def test_an_upload_that_was_aborted_is_gone(blobs: BlobStore, kind: Kind) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await send_part(blobs, kind, upload, 1, b"x")
    parts = await blobs.parts(KEY, upload)
    for _ in range(2):
        await blobs.abort_multipart(KEY, upload)
    assert await blobs.head(KEY) is None
    with pytest.raises(UploadNotFound):
        await blobs.parts(KEY, upload)
    if not kind.survives_unknown_uploads:
        pytest.skip(f"{kind.name} answers 500 to what comes after an abort")
    assert (await send_part(blobs, kind, upload, 2, b"y")).status_code == 404
    with pytest.raises(UploadNotFound):
        await blobs.complete_multipart(KEY, upload, parts)
    assert await blobs.head(KEY) is None


async def test_an_upload_belongs_to_its_key(blobs: BlobStore, kind: Kind) -> None:
    other = "episodes/org-b/ep-2/video.mp4"
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await send_part(blobs, kind, upload, 1, b"x")
    parts = await blobs.parts(KEY, upload)
    if not kind.ties_uploads_to_keys:
        pytest.skip(f"{kind.name} looks at the upload alone")
    with pytest.raises(UploadNotFound):
        await blobs.parts(other, upload)
    with pytest.raises(UploadNotFound):
        await blobs.complete_multipart(other, upload, parts)
    await blobs.abort_multipart(other, upload)
    assert await blobs.parts(KEY, upload) == parts


async def test_a_sweep_removes_forgotten_uploads_and_spares_those_under_way(
    blobs: BlobStore, kind: Kind
) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    await send_part(blobs, kind, upload, 1, b"x")
    assert await blobs.sweep(older_than_s=3600) == 0
    assert len(await blobs.parts(KEY, upload)) == 1
    assert await blobs.sweep(older_than_s=-5) >= 1  # as if five seconds had passed
    with pytest.raises(UploadNotFound):
        await blobs.parts(KEY, upload)


# ---------------------------------------------------------------------------------- what a blob contains


def _archive(count: int, each: int) -> bytes:
    """Arrays that do not shrink, so that their headers are far apart."""
    random = np.random.default_rng(0)
    arrays: Any = {f"a{n:03}/value": random.integers(0, 255, each, np.uint8) for n in range(count)}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        _archive(3, 50),
        _archive(150, 20_000),
        _archive(150, 20_000)[:-9],
        b"",
        b"<html>",
        bytes(2 << 20),
    ],
    ids=["small", "large", "cut", "nothing", "html", "zeros"],
)
async def test_arrays_are_listed_alike_on_every_store(blobs: BlobStore, data: bytes) -> None:
    await put(blobs, data)
    question = Question(KEY, lambda info: True, "sensors.npz")
    [found] = await inspect_blobs(blobs, [question])
    assert isinstance(found, Inspection)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.content == inspect_npz(data, record="sensors.npz")


async def test_a_large_archive_is_inspected_by_a_few_small_ranges(blobs: BlobStore) -> None:
    data = _archive(20, 200_000)
    await put(blobs, data)
    info = await blobs.head(KEY)
    assert info is not None
    ranges: list[tuple[int, int]] = []

    class Counted(BlobFile):
        async def _range(self, start: int, end: int) -> bytes:
            ranges.append((start, end))
            return await super()._range(start, end)

    loop = asyncio.get_running_loop()

    def inspect() -> int:
        file: Any = Counted(blobs, info, loop)
        return len(inspect_npz(file, prepare=file.prepare).arrays)

    assert await asyncio.to_thread(inspect) == 20
    assert len(ranges) <= 21
    assert sum(end - start for start, end in ranges) < len(data) / 10


async def test_a_blob_is_read_like_a_file(blobs: BlobStore) -> None:
    data = noise(3 << 20)
    await put(blobs, data)
    info = await blobs.head(KEY)
    assert info is not None
    loop = asyncio.get_running_loop()

    def read() -> None:
        file, same = BlobFile(blobs, info, loop), io.BytesIO(data)
        file.prepare([5000, 100_000, 103_000, 900_000])
        for position, size in (
            (0, 10),
            (5000, 6000),
            (5500, 9000),
            (100_500, 8000),
            (900_100, 100),
            (len(data) - 30, 100),
            (len(data) - 100_000, 100_000),
            (len(data) + 5, 1),
        ):
            assert file.seek(position) == same.seek(position)
            assert file.read(size) == same.read(size)
            assert file.tell() == same.tell()
        assert file.seek(-20, 2) == len(data) - 20
        assert file.read() == data[-20:]
        with pytest.raises(OSError, match="before the beginning"):
            file.seek(-1)

    await asyncio.to_thread(read)

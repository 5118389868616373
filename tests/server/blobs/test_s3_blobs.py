"""What only a network can do wrong: servers that are down, busy, or gone in mid-sentence; and who we are to S3."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from rollbook.errors import BlobStoreUnavailable, ConfigurationError
from rollbook.server.blobs import s3_blobs
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.blobs.open import open_blobs
from rollbook.server.blobs.s3_client import s3_client
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET,
    SECRET_KEY,
    BadLine,
    Served,
    free_port,
    frozen,
    rclone_server,
)

pytestmark = pytest.mark.anyio
KEY = "episodes/org/ep/video.mp4"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture
def line(rclone: Served) -> Iterator[BadLine]:
    line = BadLine(rclone.port)
    yield line
    line.close()


@pytest.fixture(autouse=True)
def in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)


def opened(endpoint: str, bucket: str = BUCKET) -> BlobStore:
    return open_blobs(f"s3://{bucket}/below/here", secret=SECRET, s3_endpoint=endpoint)


@pytest.fixture
async def blobs(line: BadLine) -> AsyncIterator[BlobStore]:
    store = opened(line.url)
    yield store
    await store.close()


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def put(blobs: BlobStore, data: bytes) -> None:
    await blobs.put(KEY, chunks(data), content_type="video/mp4")


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"").digest(size)


# ----------------------------------------------------------------------------------------- bad lines


async def test_a_server_that_is_busy_for_a_moment_is_asked_again(
    blobs: BlobStore, line: BadLine
) -> None:
    line.refuse = 2
    await put(blobs, b"x")
    assert line.refuse == 0
    line.refuse = 2
    assert await blobs.sha256(KEY) == hashlib.sha256(b"x").hexdigest()


async def test_a_server_that_stays_busy_is_unavailable_and_then_works_again(
    blobs: BlobStore, line: BadLine
) -> None:
    line.refuse = 4
    with pytest.raises(BlobStoreUnavailable, match="503"):
        await put(blobs, b"x")
    assert line.connections == 4
    await put(blobs, b"x")


async def test_a_download_that_is_cut_off_goes_on_where_it_stopped(
    blobs: BlobStore, line: BadLine
) -> None:
    data = noise(3_000_000)
    await put(blobs, data)
    await blobs.close()
    line.cut = [1_000_000, 700_000, 0]
    fresh = opened(line.url)
    assert await fresh.sha256(KEY) == hashlib.sha256(data).hexdigest()
    assert line.cut == []
    await fresh.close()


async def test_a_download_that_is_cut_off_again_and_again_is_given_up(
    blobs: BlobStore, line: BadLine
) -> None:
    await put(blobs, noise(3_000_000))
    await blobs.close()
    line.cut = [100_000] * 20
    fresh = opened(line.url)
    with pytest.raises(BlobStoreUnavailable):
        await fresh.sha256(KEY)
    await fresh.close()


async def test_a_download_whose_object_was_replaced_is_not_pieced_together(
    blobs: BlobStore, line: BadLine
) -> None:
    await put(blobs, b"a" * 3_000_000)
    await blobs.close()
    line.cut = [1_000_000]
    fresh = opened(line.url)
    stream = await fresh.read(KEY)
    seen = {(await anext(stream))[:1]}
    await put(fresh, b"b" * 3_000_000)

    async def rest() -> None:
        async for chunk in stream:
            seen.add(chunk[:1])

    with pytest.raises(BlobStoreUnavailable, match="replaced"):
        await rest()
    assert seen == {b"a"}
    await fresh.close()


async def test_a_completion_whose_answer_was_lost_is_not_taken_for_a_failure(
    blobs: BlobStore, line: BadLine
) -> None:
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    url = await blobs.presign_part(KEY, upload, 1, ttl_s=60, base_url="")
    assert httpx.put(url, content=b"only").status_code == 200
    parts = await blobs.parts(KEY, upload)
    await blobs.close()
    line.cut = [0]
    fresh = opened(line.url)
    info = await fresh.complete_multipart(KEY, upload, parts)
    assert (line.cut, info.size) == ([], 4)
    assert await fresh.sha256(KEY) == hashlib.sha256(b"only").hexdigest()
    await fresh.close()


_HALF = b'<?xml version="1.0"?><Error><Code>NoSuchBuck'


def _broken_off(how: str) -> bytes:
    """A 404 that is lost in the middle of its message."""
    framed = b"3e8\r\n" + _HALF if how.startswith("Transfer") else _HALF
    head = f"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\n{how}\r\nConnection: close"
    return head.encode() + b"\r\n\r\n" + framed


@pytest.mark.parametrize("how", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
async def test_an_error_message_that_breaks_off_is_asked_for_again(
    blobs: BlobStore, line: BadLine, how: str
) -> None:
    await put(blobs, b"x")
    await blobs.close()

    async def listed(store: BlobStore) -> list[str]:
        return [info.key async for info in store.list("episodes/org/")]

    async def digested(store: BlobStore) -> str:
        return await store.sha256(KEY)

    for ask in (digested, listed):
        fresh = opened(line.url)
        line.answers = [_broken_off(how)] * 2
        assert await ask(fresh)
        assert line.answers == []
        await fresh.close()


async def test_error_messages_that_always_break_off_are_an_unavailable_store(
    blobs: BlobStore, line: BadLine
) -> None:
    line.answers = [_broken_off("Transfer-Encoding: chunked")] * 4
    with pytest.raises(BlobStoreUnavailable, match="does not answer"):
        await blobs.read(KEY)
    assert line.answers == []


async def test_signed_urls_lead_to_the_public_endpoint_and_requests_to_the_internal_one(
    rclone: Served, line: BadLine
) -> None:
    """`line` stands for the name by which clients reach the same server."""
    blobs = open_blobs(
        f"s3://{BUCKET}/below/here",
        secret=SECRET,
        s3_endpoint=rclone.url,
        s3_public_endpoint=line.url,
    )
    put_url = await blobs.presign_put(KEY, content_type="video/mp4", ttl_s=60, base_url="")
    get_url = await blobs.presign_get(KEY, ttl_s=60, base_url="", content_type="video/mp4")
    upload = await blobs.start_multipart(KEY, content_type="video/mp4")
    part_url = await blobs.presign_part(KEY, upload, 1, ttl_s=60, base_url="")
    assert all(url.startswith(f"{line.url}/") for url in (put_url, get_url, part_url))
    assert line.connections == 0, "the server itself used the internal address"
    sent = httpx.put(put_url, content=b"through the door", headers={"Content-Type": "video/mp4"})
    assert sent.status_code == 200
    assert httpx.get(get_url).content == b"through the door"
    assert await blobs.sha256(KEY) == hashlib.sha256(b"through the door").hexdigest()
    await blobs.abort_multipart(KEY, upload)
    await blobs.close()


def test_a_public_endpoint_that_is_no_url_is_refused(rclone: Served) -> None:
    with pytest.raises(ConfigurationError, match="is not a URL"):
        open_blobs(
            f"s3://{BUCKET}", secret=SECRET, s3_endpoint=rclone.url, s3_public_endpoint="s3.example"
        )


async def test_a_server_that_is_down_is_unavailable_and_found_again(tmp_path: Path) -> None:
    with rclone_server(tmp_path) as server:
        blobs = opened(server.url)
        await put(blobs, b"x")
        server.kill()
        attempts = [put(blobs, b"y"), blobs.head(KEY), blobs.read(KEY), blobs.check()]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert {type(result) for result in results} == {BlobStoreUnavailable}
        server.start()
        assert await blobs.sha256(KEY) == hashlib.sha256(b"x").hexdigest()
        await blobs.check()
        await blobs.close()


# -------------------------------------------------------------------------------------- who we are


async def test_a_wrong_secret_is_explained_without_being_shown(
    rclone: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "open-sesame")
    blobs = opened(rclone.url)
    for attempt in (
        blobs.check(),
        put(blobs, b"x"),
        blobs.start_multipart(KEY, content_type="a/b"),
    ):
        with pytest.raises(BlobStoreUnavailable, match="check the credentials") as refused:
            await attempt
        assert "sesame" not in str(refused.value)
    await blobs.close()


async def test_a_missing_bucket_is_named(rclone: Served) -> None:
    blobs = opened(rclone.url, "no-such-bucket")
    for attempt in (blobs.check(), put(blobs, b"x"), blobs.read(KEY)):
        with pytest.raises(BlobStoreUnavailable, match="'no-such-bucket'"):
            await attempt
    await blobs.close()


async def test_objects_lie_below_the_prefix(rclone: Served) -> None:
    blobs = opened(rclone.url)
    await put(blobs, b"x")
    above = open_blobs(f"s3://{BUCKET}", secret=SECRET, s3_endpoint=rclone.url)
    found = [info.key async for info in above.list("")]
    assert f"below/here/{KEY}" in found
    assert all(key.startswith("below/here/") for key in found)
    await blobs.close()
    await above.close()


async def test_no_signature_reaches_the_logs(
    rclone: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    blobs = opened(rclone.url)
    await put(blobs, b"x")
    await blobs.sha256(KEY)
    await blobs.close()
    assert "Signature" not in caplog.text


async def test_a_presigned_url_needs_no_other_secret_and_shows_none(rclone: Served) -> None:
    blobs = opened(rclone.url)
    url = await blobs.presign_put(KEY, content_type="video/mp4", ttl_s=60, base_url="ignored")
    assert SECRET_KEY not in url
    assert parse_qs(urlsplit(url).query)["X-Amz-SignedHeaders"] == ["content-type;host"]
    answer = httpx.put(url, content=b"x", headers={"Content-Type": "video/mp4"})
    assert answer.status_code == 200
    await blobs.close()


NOBODY = {"AWS_CONFIG_FILE": "/nowhere", "AWS_EC2_METADATA_DISABLED": "true"}


def test_without_credentials_one_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    for name, value in NOBODY.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
        opened("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_PROFILE", "of-nobody"), ("AWS_ENDPOINT_URL_S3", "http://a b.example")]
)
def test_a_wrong_aws_setting_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"S3 cannot be used: .*AWS_"):
        s3_client("bucket", None)


def test_half_of_the_credentials_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigurationError, match=r"S3 cannot be used: .*AWS_"):
        s3_client("bucket", None)


async def test_a_profile_is_used_where_boto3_finds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rclone: Served
) -> None:
    profile = tmp_path / "credentials"
    profile.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    for name, value in NOBODY.items():
        monkeypatch.setenv(name, value)
    blobs = opened(rclone.url)
    await blobs.check()
    await blobs.close()


def test_the_bucket_is_addressed_as_its_server_expects() -> None:
    def url(bucket: str, endpoint: str | None = None, **environment: str) -> str:
        named = {"Bucket": bucket, "Key": "k"}
        signed = s3_client(bucket, endpoint, environment).generate_presigned_url(
            "get_object", Params=named
        )
        return str(signed).partition("?")[0]

    assert url("bucket") == "https://bucket.s3.us-east-1.amazonaws.com/k"
    assert url("bucket", AWS_REGION="eu-west-1") == "https://bucket.s3.eu-west-1.amazonaws.com/k"
    assert url("a.b", AWS_DEFAULT_REGION="eu-west-1") == "https://s3.eu-west-1.amazonaws.com/a.b/k"
    assert url("bucket", "https://minio/") == "https://minio/bucket/k"
    assert url("bucket", AWS_ENDPOINT_URL_S3="http://r2") == "http://r2/bucket/k"
    with pytest.raises(ConfigurationError, match="is not a URL"):
        url("bucket", "minio:9000")


async def test_a_port_nobody_listens_on_is_unavailable_soon() -> None:
    blobs = opened(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BlobStoreUnavailable, match="does not answer"):
        await asyncio.wait_for(blobs.check(), 10)
    await blobs.close()


# ------------------------------------------------------------------------------- a frozen S3 (SIGSTOP)


@pytest.fixture
async def two_threads(rclone: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BlobStore]:
    """Each waits for one second at a time."""
    monkeypatch.setattr(s3_blobs, "REQUESTS_AT_ONCE", 2)
    monkeypatch.setattr(s3_blobs, "READ_S", 1.0)
    store = opened(rclone.url)
    yield store
    await store.close()


async def test_every_call_to_a_frozen_server_is_given_up_in_time_and_its_thread_is_free_again(
    two_threads: BlobStore, rclone: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(two_threads, b"stored")
    with frozen(rclone), monkeypatch.context() as patch:
        patch.setattr(s3_blobs, "_LONGEST_CALL_S", 0.3)
        calls = [two_threads.check() for _ in range(4)]
        answers = await asyncio.gather(*calls, put(two_threads, b"x"), return_exceptions=True)
        assert [type(each) for each in answers] == [BlobStoreUnavailable] * 5
    await two_threads.check()
    assert await two_threads.sha256(KEY) in map(sha256_of, (b"stored", b"x"))


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_download_from_a_server_that_freezes_is_given_up(
    two_threads: BlobStore, rclone: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(two_threads, noise(32 << 20))
    body = await two_threads.read(KEY)
    await anext(body)
    with frozen(rclone), monkeypatch.context() as patch:
        patch.setattr(s3_blobs, "_LONGEST_CALL_S", 0.3)
        with pytest.raises(BlobStoreUnavailable):
            [chunk async for chunk in body]
    await two_threads.check()

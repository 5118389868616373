"""Local blobs over HTTP, with a real server: what a URL allows, how bytes stream, and what happens when they stop."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.signing import Grant
from tests.server.blob_servers import SECRET, Served, blob_server

KEY = "episodes/org/ep/video.mp4"
VIDEO = {"Content-Type": "video/mp4"}
DATA = hashlib.shake_128(b"").digest(1_300_000)


class Side:
    """The server, and the store beside it, which signs with the same secret."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.root = server.log.parent / "blobs"
        self.store = LocalBlobs(self.root, SECRET)
        self.http = httpx.Client(verify=False, timeout=30)

    def url(self, method: str = "GET", **changes: object) -> str:
        values = {
            "method": method,
            "key": KEY,
            "expires_at": int(time.time()) + 60,
            "content_type": "video/mp4",
            **changes,
        }
        return self.store.signer.url(self.server.url, Grant(**values))  # type: ignore[arg-type]

    def put(self, data: bytes = DATA) -> None:
        assert self.http.put(self.url("PUT"), content=data, headers=VIDEO).status_code == 200

    def stored(self) -> bytes | None:
        path = self.root / "objects" / KEY
        return path.read_bytes() if path.exists() else None

    def incoming(self) -> list[str]:
        return os.listdir(self.root / "incoming")

    def close(self) -> None:
        self.http.close()
        asyncio.run(self.store.close())
        self.server.kill()


@pytest.fixture(scope="module")
def module_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    server = blob_server(tmp_path_factory.mktemp("server"))
    server.start()
    side = Side(server)
    yield side
    side.close()


@pytest.fixture
def side(module_side: Side) -> Side:
    asyncio.run(LocalBlobs(module_side.root, SECRET).delete(KEY))
    return module_side


@pytest.fixture
def own_side(tmp_path: Path) -> Iterator[Side]:
    server = blob_server(tmp_path, idle_s=0.5)
    server.start()
    side = Side(server)
    yield side
    side.close()


def problem(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert set(body) == {"error", "code"}
    assert body["error"]
    return response.status_code, body["code"]


def eventually(check: object) -> None:
    assert callable(check)
    deadline = time.monotonic() + 5
    while not check() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert check()


# ---------------------------------------------------------------------------------------------- PUT


def test_a_put_is_stored_and_its_digest_told(side: Side) -> None:
    answer = side.http.put(side.url("PUT"), content=DATA, headers=VIDEO)
    assert answer.status_code == 200
    assert answer.json() == {"size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    assert side.stored() == DATA
    assert side.http.head(side.url()).headers["etag"] == answer.headers["etag"]


def test_a_body_of_unknown_length_is_stored(side: Side) -> None:
    pieces = (DATA[at : at + 10_000] for at in range(0, len(DATA), 10_000))
    assert side.http.put(side.url("PUT"), content=pieces, headers=VIDEO).status_code == 200
    assert side.stored() == DATA


def test_a_client_that_asks_before_it_sends_is_told_at_once(side: Side) -> None:
    def first_line(url: str) -> bytes:
        path = urlsplit(url).path
        with socket.create_connection(("127.0.0.1", side.server.port), timeout=10) as raw:
            raw.sendall(
                f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Type: video/mp4\r\n"
                "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode()
            )
            return raw.recv(64).split(b"\r\n")[0]

    assert first_line(side.url("PUT")) == b"HTTP/1.1 100 Continue"
    assert first_line(side.url("GET")).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("sent", ["text/html", "video/mp4; codecs=avc1", "VIDEO/MP4", ""])
def test_a_put_with_another_content_type_is_refused(side: Side, sent: str) -> None:
    headers = {"Content-Type": sent} if sent else {}
    answer = side.http.put(side.url("PUT"), content=DATA, headers=headers)
    assert problem(answer) == (403, "content_type_mismatch")
    assert side.stored() is None


def test_a_put_may_have_so_many_bytes_and_not_one_more(side: Side) -> None:
    url = side.url("PUT", most=len(DATA))
    assert side.http.put(url, content=DATA, headers=VIDEO).status_code == 200
    declared = side.http.put(url, content=DATA + b"x", headers=VIDEO)
    assert problem(declared) == (413, "blob_too_large")
    undeclared = side.http.put(url, content=iter([DATA, b"x"]), headers=VIDEO)
    assert problem(undeclared) == (413, "blob_too_large")
    assert side.stored() == DATA


def test_a_refused_body_does_not_cut_the_answer_off(side: Side) -> None:
    url = side.url("PUT", most=1000)
    for megabytes in (1, 8, 40):
        pieces = iter([bytes(1 << 20)] * megabytes)
        answer = side.http.put(url, content=pieces, headers=VIDEO)
        assert problem(answer) == (413, "blob_too_large")
    assert side.stored() is None
    eventually(lambda: side.incoming() == [])


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_that_stops_halfway_leaves_nothing(side: Side, chunked: bool) -> None:
    side.put(b"old")
    with socket.create_connection(("127.0.0.1", side.server.port)) as raw:
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(DATA)}"
        head = f"PUT {urlsplit(side.url('PUT')).path} HTTP/1.1\r\nHost: x\r\n{length}\r\n"
        raw.sendall(head.encode() + b"Content-Type: video/mp4\r\n\r\n")
        half = DATA[: len(DATA) // 2]
        raw.sendall(b"%x\r\n%b\r\n" % (len(half), half) if chunked else half)
        eventually(lambda: len(side.incoming()) == 1)
    eventually(lambda: side.incoming() == [])
    assert side.stored() == b"old"


def test_many_uploads_of_one_blob_at_once_leave_one_of_them_whole(side: Side) -> None:
    async def race() -> list[int]:
        async with httpx.AsyncClient(verify=False, timeout=30) as http:
            bodies = [bytes([number]) * 900_000 for number in range(8)]
            puts = [http.put(side.url("PUT"), content=body, headers=VIDEO) for body in bodies]
            return [answer.status_code for answer in await asyncio.gather(*puts)]

    assert asyncio.run(race()) == [200] * 8
    stored = side.stored()
    assert stored is not None
    assert stored == stored[:1] * 900_000


# ---------------------------------------------------------------------------------------------- GET


def test_a_get_streams_the_blob_with_everything_a_player_needs(side: Side) -> None:
    side.put()
    got = side.http.get(side.url(filename="run 7.mp4"))
    assert (got.status_code, got.content) == (200, DATA)
    assert got.headers["content-length"] == str(len(DATA))
    assert got.headers["content-type"] == "video/mp4"
    assert got.headers["content-disposition"].startswith('attachment; filename="run 7.mp4"')
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in got.headers["content-security-policy"]
    assert "private" in got.headers["cache-control"]


def test_a_head_says_the_same_without_the_bytes(side: Side) -> None:
    side.put()
    got, head = side.http.get(side.url()), side.http.head(side.url())
    assert (head.status_code, head.content) == (200, b"")
    for name in set(got.headers) - {"date", "content-disposition"}:
        assert head.headers[name] == got.headers[name]
    part = side.http.head(side.url(), headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.headers["content-length"]) == (206, "5")


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 10),
        ("bytes=3-6", 3, 7),
        ("bytes=3-99", 3, 10),
        ("BYTES=9-9", 9, 10),
        ("bytes=-4", 6, 10),
        ("bytes=-99", 0, 10),
        ("bytes=9-999999999999999999", 9, 10),
    ],
)
def test_a_range_is_answered_with_206(side: Side, asked: str, start: int, stop: int) -> None:
    side.put(b"0123456789")
    got = side.http.get(side.url(), headers={"Range": asked})
    assert (got.status_code, got.content) == (206, b"0123456789"[start:stop])
    assert got.headers["content-range"] == f"bytes {start}-{stop - 1}/10"
    assert got.headers["content-length"] == str(stop - start)


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-11", "bytes=99-", "bytes=-0"])
def test_a_range_after_the_end_is_answered_with_416(side: Side, asked: str) -> None:
    side.put(b"0123456789")
    got = side.http.get(side.url(), headers={"Range": asked})
    assert problem(got) == (416, "range_not_satisfiable")
    assert got.headers["content-range"] == "bytes */10"


@pytest.mark.parametrize(
    "asked",
    [
        *("bytes=5-2", "bytes=a-b", "bytes=", "bytes=-", "lines=1-2", "bytes=0-1,4-5"),
        *("bytes=--1", "bytes=0-9999999999999999999999", "bytes=1.5-2"),
    ],
)
def test_a_range_that_makes_no_sense_or_is_several_gets_the_whole(side: Side, asked: str) -> None:
    side.put(b"0123456789")
    got = side.http.get(side.url(), headers={"Range": asked})
    assert (got.status_code, got.content) == (200, b"0123456789")


def test_an_empty_blob_has_no_ranges(side: Side) -> None:
    side.put(b"")
    assert side.http.get(side.url()).content == b""
    assert side.http.get(side.url(), headers={"Range": "bytes=0-"}).status_code == 416


def test_what_the_browser_has_already_is_not_sent_again(side: Side) -> None:
    side.put(b"0123456789")
    etag = side.http.get(side.url()).headers["etag"]
    for names in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        same = side.http.get(side.url(), headers={"If-None-Match": names})
        assert (same.status_code, same.content) == (304, b"")
    ranged = {"Range": "bytes=0-3", "If-Range": etag}
    assert side.http.get(side.url(), headers=ranged).status_code == 206
    side.put(b"abcdefghij")
    assert side.http.get(side.url(), headers={"If-None-Match": etag}).content == b"abcdefghij"
    assert side.http.get(side.url(), headers=ranged).content == b"abcdefghij"


def test_a_blob_that_is_replaced_meanwhile_is_still_sent_as_it_was(side: Side) -> None:
    first, second = b"a" * (8 << 20), b"b" * (8 << 20)
    side.put(first)
    with side.http.stream("GET", side.url()) as got:
        stream = got.iter_raw()
        seen = bytearray(next(stream))
        side.put(second)
        for chunk in stream:
            seen += chunk
    assert seen == first
    assert side.stored() == second


def test_what_is_not_there_is_404(side: Side) -> None:
    for answer in (side.http.get(side.url()), side.http.get(side.url(upload=None, key="a/b"))):
        assert problem(answer) == (404, "blob_not_found")
    lost = side.url("PUT", content_type=None, upload="0" * 32, part=1)
    assert problem(side.http.put(lost, content=b"x")) == (404, "upload_not_found")


# ------------------------------------------------------------------------------------------ refusals


def test_what_a_url_does_not_allow_is_403(side: Side) -> None:
    side.put(b"old")
    past = int(time.time()) - 1
    refused = {
        "url_expired": side.http.get(side.url(expires_at=past)),
        "method_mismatch": side.http.put(side.url("GET"), content=b"new", headers=VIDEO),
        "signature_invalid": side.http.get(side.url() + "x"),
    }
    for code, answer in refused.items():
        assert problem(answer) == (403, code)
    late = side.http.put(side.url("PUT", expires_at=past), content=b"new", headers=VIDEO)
    assert problem(late) == (403, "url_expired")
    assert problem(side.http.get(side.url("PUT"))) == (403, "method_mismatch")
    assert side.stored() == b"old"


@pytest.mark.parametrize(
    "path",
    [
        *("/blobs", "/blobs/", "/blobs/x", "/blobs/x/", "/blobs//etc/passwd", "/blobs/%00"),
        *("/blobs/../../etc/passwd", "/blobs/%2e%2e/%2e%2e/etc/passwd", "/blobs/%C3%A9"),
        *("/blobs/..%2f..%2fetc%2fpasswd", "/blobs/" + "a" * 5000, "/blobs/x?token=y"),
        *(f"/blobs/{KEY}", f"/blobs/objects/{KEY}", f"/blobs/../objects/{KEY}"),
    ],
)
def test_no_path_is_a_way_around_the_signature(side: Side, path: str) -> None:
    side.put(b"secret")
    for method in ("GET", "HEAD", "PUT"):
        connection = http.client.HTTPConnection("127.0.0.1", side.server.port, timeout=10)
        connection.putrequest(method, path)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status in (403, 404)
        assert answer.getheader("location") is None
        assert b"secret" not in body
        assert b"root:" not in body


def test_no_answer_is_a_redirect(side: Side) -> None:
    side.put(b"x")
    for url in (side.url(), side.url() + "/", side.url("PUT") + "/", side.server.url + "/blobs"):
        for method in ("GET", "HEAD", "PUT"):
            assert not side.http.request(method, url, follow_redirects=False).is_redirect


def test_no_method_but_three_is_served(side: Side) -> None:
    side.put(b"old")
    for method in ("POST", "DELETE", "PATCH"):
        assert side.http.request(method, side.url()).status_code == 405
    assert side.stored() == b"old"


def test_a_forged_host_changes_nothing(side: Side) -> None:
    side.put(b"x")
    got = side.http.get(side.url(), headers={"Host": "evil.example"})
    assert (got.status_code, got.content) == (200, b"x")
    assert "evil.example" not in str(got.headers)


# ------------------------------------------------------------------------------------------ parts


def test_parts_are_put_by_url_and_name_themselves(side: Side) -> None:
    upload = asyncio.run(_start_upload(side))
    for number, data in ((2, b"world"), (1, b"hello ")):
        url = side.url("PUT", content_type=None, upload=upload, part=number)
        answer = side.http.put(url, content=data)
        assert answer.json() == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    async def complete() -> None:
        store = LocalBlobs(side.root, SECRET)
        await store.complete_multipart(KEY, upload, await store.parts(KEY, upload))
        await store.close()

    asyncio.run(complete())
    assert side.http.get(side.url()).content == b"hello world"


async def _start_upload(side: Side) -> str:
    store = LocalBlobs(side.root, SECRET)
    upload = await store.start_multipart(KEY, content_type="video/mp4")
    await store.close()
    return upload


# ------------------------------------------------------------------------------------------- faults


def test_a_store_without_its_folder_is_503_and_then_works_again(own_side: Side) -> None:
    own_side.put(b"x")
    away = own_side.root.with_name("unmounted")
    os.rename(own_side.root, away)
    for answer in (
        own_side.http.get(own_side.url()),
        own_side.http.put(own_side.url("PUT"), content=b"y", headers=VIDEO),
    ):
        assert problem(answer) == (503, "blob_store_unavailable")
        assert int(answer.headers["retry-after"]) > 0
    os.rename(away, own_side.root)
    assert own_side.http.get(own_side.url()).content == b"x"


def test_an_upload_that_falls_silent_is_given_up(own_side: Side) -> None:
    with socket.create_connection(("127.0.0.1", own_side.server.port), timeout=10) as raw:
        head = f"PUT {urlsplit(own_side.url('PUT')).path} HTTP/1.1\r\nHost: x\r\n"
        raw.sendall(f"{head}Content-Length: 99\r\nContent-Type: video/mp4\r\n\r\nhalf".encode())
        assert raw.recv(64).startswith(b"HTTP/1.1 408")
    assert own_side.stored() is None
    eventually(lambda: own_side.incoming() == [])


def test_a_full_disk_is_503_and_then_works_again(tmp_path: Path) -> None:
    root = tmp_path / "blobs"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root alone")
    side = Side(blob_server(tmp_path))
    try:
        side.server.start()
        side.put(b"old")
        answer = side.http.put(side.url("PUT"), content=iter([bytes(1 << 20)] * 8), headers=VIDEO)
        assert problem(answer) == (503, "blob_store_unavailable")
        assert side.stored() == b"old"
        eventually(lambda: side.incoming() == [])
        side.put(bytes(2 << 20))
    finally:
        side.close()
        subprocess.run(["umount", str(root)], check=True)


def test_a_server_killed_during_uploads_serves_no_half_of_one(own_side: Side) -> None:
    whole = {number: bytes([number]) * (3 << 20) for number in (1, 2)}
    acknowledged = 0
    for number, data in whole.items():
        own_side.put(data)
        acknowledged = number
        with socket.create_connection(("127.0.0.1", own_side.server.port)) as raw:
            head = f"PUT {urlsplit(own_side.url('PUT')).path} HTTP/1.1\r\nHost: x\r\n"
            raw.sendall(
                f"{head}Content-Length: {9 << 20}\r\nContent-Type: video/mp4\r\n\r\n".encode()
            )
            raw.sendall(bytes(2 << 20))
            eventually(lambda: len(own_side.incoming()) == number)  # noqa: B023 - called at once
            own_side.server.kill()
        own_side.server.start()
        assert own_side.http.get(own_side.url()).content == whole[acknowledged]
    assert asyncio.run(own_side.store.sweep(older_than_s=-5)) == len(whole)
    assert own_side.incoming() == []


@pytest.mark.slow
def test_two_gigabytes_pass_both_ways_in_little_memory(own_side: Side) -> None:
    piece = os.urandom(1 << 20)
    count = 2048
    expected = hashlib.sha256()
    for _ in range(count):
        expected.update(piece)
    headers = {**VIDEO, "Content-Length": str(count << 20)}
    answer = own_side.http.put(
        own_side.url("PUT"), content=(piece for _ in range(count)), headers=headers, timeout=600
    )
    assert answer.json() == {"size": count << 20, "sha256": expected.hexdigest()}
    got = hashlib.sha256()
    with own_side.http.stream("GET", own_side.url(), timeout=600) as download:
        for chunk in download.iter_raw(1 << 20):
            got.update(chunk)
    assert got.digest() == expected.digest()
    assert _most_memory_mb(own_side) < 150


def _most_memory_mb(side: Side) -> float:
    assert side.server.process is not None
    status = Path(f"/proc/{side.server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

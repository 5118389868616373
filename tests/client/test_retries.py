"""When the network or the server fails: what is sent again, what is not, and what the caller is told."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.client import Client, Retries
from rollbook.client.connection import FIRST_CONTACT_S
from rollbook.client.http import Answer, retry_after
from rollbook.errors import (
    APIError,
    AuthError,
    ConflictError,
    NotFoundError,
    RateLimitError,
    ServerError,
    TransportError,
    ValidationError,
)
from tests.client.conftest import QUICK, MakeClient
from tests.client.faulty_server import FaultyServer

AnyClient = Callable[..., Any]
CREATE, FINALIZE = "POST /api/ingest/episode", "/finalize"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "sensors.bin"
    path.write_bytes(bytes(range(256)) * 2000)
    return path


@pytest.mark.parametrize("route", [CREATE, "PUT /blobs", FINALIZE])
@pytest.mark.parametrize("do", ["answer", "drop"])
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_request_and_a_lost_answer_give_one_whole_episode(
    wire: FaultyServer, any_client_of: AnyClient, data: Path, route: str, do: Any, after: bool
) -> None:
    wire.fail(route, do, after=after, times=2, status=503)
    logged = any_client_of(wire).log_episode(name="once", sensors=data)
    assert len(wire.episodes) == 1
    assert wire.episodes[logged.id]["status"] == "ready"
    assert wire.blobs[logged.id, "sensors"].read_bytes() == data.read_bytes()
    assert len(wire.asked(route)) >= 3


def test_a_repeated_request_is_the_same_to_the_byte(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    wire.fail(CREATE, "answer", times=3, status=502)
    client_of(wire).log_episode(name="ü", metadata={"b": 1, "a": [1.5, None]})
    asked = [each for each in wire.asked(CREATE) if not each.path.endswith("finalize")]
    assert len(asked) == 4
    assert len({each.body for each in asked}) == 1
    assert len({each.headers["idempotency-key"] for each in asked}) == 1


def test_two_calls_are_two_episodes(wire: FaultyServer, client_of: MakeClient) -> None:
    client = client_of(wire)
    assert client.log_episode(name="same").id != client.log_episode(name="same").id


def test_after_enough_attempts_the_caller_is_told(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(wire, retries=Retries(attempts=3, first_wait_s=0.001))
    wire.fail(CREATE, "answer", times=3, status=500)
    with pytest.raises(ServerError, match="as told") as found:
        client.log_episode()
    assert found.value.status_code == 500
    wire.fail(CREATE, "drop", times=3)
    with pytest.raises(TransportError, match="cannot create an episode"):
        client.log_episode()
    assert len(wire.seen) == 6
    assert client.log_episode().status == "ready"


def test_a_wait_that_is_asked_for_is_kept(wire: FaultyServer, any_client_of: AnyClient) -> None:
    wire.fail(CREATE, "answer", status=429, headers={"Retry-After": "1"})
    begun = time.monotonic()
    any_client_of(wire).log_episode()
    assert time.monotonic() - begun >= 1.0


def test_a_wait_that_is_too_long_is_left_to_the_caller(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    wire.fail(CREATE, "answer", status=429, headers={"Retry-After": "600"})
    with pytest.raises(RateLimitError) as found:
        client_of(wire).log_episode()
    assert found.value.retry_after == 600
    assert len(wire.seen) == 1


@pytest.mark.parametrize("verb", ["delete_episode", "archive_episode", "restore_episode"])
def test_what_is_not_safe_is_sent_once(
    wire: FaultyServer, client_of: MakeClient, verb: str
) -> None:
    client = client_of(wire)
    logged = client.log_episode()
    wire.seen.clear()
    for do in ("answer", "drop"):
        wire.fail("/api/episodes/", do)
        with pytest.raises((ServerError, TransportError)):
            getattr(client, verb)(logged.id)
    assert len(wire.seen) == 2
    wire.fail("/api/episodes/", "answer", status=429)  # turned away before anything was done
    getattr(client, verb)(logged.id)
    assert len(wire.seen) == 4


def test_reading_is_tried_again(wire: FaultyServer, client_of: MakeClient) -> None:
    client = client_of(wire)
    logged = client.log_episode()
    wire.fail("GET /api/episodes", "drop", times=2)
    assert logged.id is not None
    assert client.episode(logged.id).status == "ready"
    wire.fail("GET /api/episodes", "answer", times=2, status=503)
    assert [each.id for each in client.episodes()] == [logged.id]


def test_a_server_that_does_not_answer_in_time_is_left(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire, timeout=0.2, retries=Retries(attempts=2, first_wait_s=0.001))
    wire.fail(CREATE, "hang", times=2)
    with pytest.raises(
        TransportError, match="ReadTimeout"
    ):  # the server would have hung up in time
        client.start_episode()
    assert len(wire.seen) == 2


def test_a_server_that_is_not_there_is_a_transport_error(client_of: MakeClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = Client(api_key="k", base_url=f"http://127.0.0.1:{port}", retries=QUICK)
    with client, pytest.raises(TransportError, match=f"127.0.0.1:{port} cannot be reached"):
        client.log_episode()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ValidationError),
        (401, AuthError),
        (402, APIError),
        (403, APIError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, APIError),
        (422, ValidationError),
        (429, RateLimitError),
        (500, ServerError),
        (503, ServerError),
    ],
)
def test_every_status_is_the_error_it_means(
    wire: FaultyServer, client_of: MakeClient, status: int, error: type[APIError]
) -> None:
    client = client_of(wire, retries=Retries(attempts=1))
    wire.fail(CREATE, "answer", status=status, headers={"X-Request-Id": "find-me"})
    with pytest.raises(APIError) as found:
        client.log_episode()
    assert type(found.value) is error
    assert found.value.status_code == status
    assert found.value.response_body == {"error": "as told", "code": "told"}
    assert found.value.request_id == "find-me"
    assert found.value.retryable == (status == 429 or status >= 500)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3),
        (" 7 ", 7),
        ("0", 0),
        ("86400", 86400),
        ("86401", None),
        ("-1", None),
        ("1.5", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_is_whole_seconds(header: str, seconds: int | None) -> None:
    assert retry_after(Answer(429, {"retry-after": header}, b"")) == seconds


def test_waits_grow_are_drawn_at_random_and_end() -> None:
    retries = Retries(attempts=5, first_wait_s=1, longest_wait_s=4)
    for failed, longest in ((1, 1), (2, 2), (3, 4), (4, 4)):
        waits = [retries.wait_s(failed) or 0.0 for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
    assert retries.wait_s(5) is None
    assert retries.wait_s(1, asked_s=3) == 3
    assert retries.wait_s(1, asked_s=5) is None


# ------------------------------------------------------------------------- a server that is none


@pytest.fixture
def other_server() -> Iterator[Callable[[bytes], str]]:
    """Something that answers every request with the same bytes."""
    listening = socket.create_server(("127.0.0.1", 0))
    answer = b""

    def serve() -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            with peer:
                peer.recv(65536)
                peer.sendall(answer)

    def start(text: bytes) -> str:
        nonlocal answer
        answer = text
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    thread = threading.Thread(target=serve)
    thread.start()
    yield start
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", ServerError, "not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", ServerError, "not JSON"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            ServerError,
            "missing required field `episode_id`",
        ),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: https://other/x?sig=1\r\nContent-Length: 0\r\n\r\n",
            APIError,
            "redirects to https://other: use that",
        ),
        (b"SSH-2.0-OpenSSH_9\r\n", TransportError, "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", TransportError, "cannot be reached"),
    ],
)
def test_something_that_is_no_such_server_is_told_apart(
    other_server: Callable[[bytes], str], answer: bytes, error: type[Exception], says: str
) -> None:
    with (
        Client(api_key="k", base_url=other_server(answer), retries=QUICK) as client,
        pytest.raises(error, match=says),
    ):
        client.log_episode()


# -------------------------------------------------------------------------------------- secrets


def test_neither_the_key_nor_a_signed_url_is_ever_logged(
    wire: FaultyServer, any_client_of: AnyClient, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "httpx"):
        client = any_client_of(wire)
        logged = client.log_episode(sensors=data)
        client.episode(logged.id).fetch("sensors")
        wire.fail("PUT /blobs", "drop", times=99)
        with pytest.raises(TransportError) as found:
            client.log_episode(sensors=data)
    texts = [caplog.text, repr(client), str(found.value), repr(logged.upload_urls)]
    signed = {each.path.removeprefix("/blobs/") for each in wire.asked("/blobs/")}
    assert len(signed) >= 3
    secrets = [wire.api_key, *signed]
    assert "HTTP Request: PUT" in caplog.text, "the logs of httpx were seen"
    assert [secret for secret in secrets if any(secret in text for text in texts)] == []


def test_the_key_goes_to_the_server_and_nowhere_else(
    wire: FaultyServer, client_of: MakeClient, data: Path
) -> None:
    logged = client_of(wire).log_episode(sensors=data)
    for each in wire.seen:
        assert ("authorization" in each.headers) == each.path.startswith("/api")
        assert each.headers["user-agent"].startswith("rollbook-python/")
    [put] = wire.asked("PUT")
    assert put.headers["content-type"] == "application/octet-stream"
    assert put.headers["content-length"] == str(data.stat().st_size)
    assert "transfer-encoding" not in put.headers
    assert logged.status == "ready"


def test_timeouts_are_those_that_are_documented() -> None:
    from rollbook.client.http import JSON_TIMEOUT, TRANSFER_TIMEOUT

    assert httpx.Timeout(connect=3, read=30, write=30, pool=10) == JSON_TIMEOUT
    assert httpx.Timeout(connect=15, read=600, write=600, pool=15) == TRANSFER_TIMEOUT


# ------------------------------------------------------------------------------------ first contact


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the SDK waited between attempts."""
    waited: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        waited.append(seconds)
        sleep(seconds)

    monkeypatch.setattr("rollbook.client.runtime.time.sleep", note)
    return waited


def free_address() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_a_server_that_never_answered_is_given_up_quickly(waits: list[float]) -> None:
    """By default, with the waits of every program."""
    with Client(api_key="rt_x", base_url=free_address()) as client:
        with pytest.raises(TransportError, match="cannot be reached"):
            client.log_episode(name="first")
        assert 0 < sum(waits) < FIRST_CONTACT_S


def test_without_network_the_first_episode_goes_to_the_spool_at_once(
    waits: list[float], tmp_path: Path
) -> None:
    with Client(api_key="rt_x", base_url=free_address(), spool=tmp_path) as client:
        assert client.log_episode(name="first").status == "spooled"
        assert client.log_episode(name="second").status == "spooled"
    assert waits == []


def test_a_server_that_answered_before_is_tried_again_as_ever(waits: list[float]) -> None:
    """It may be restarting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection, listener:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")

        answering = threading.Thread(target=answer_once)
        answering.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        retries = Retries(attempts=4, first_wait_s=0.6, longest_wait_s=0.6)
        with Client(api_key="rt_x", base_url=address, retries=retries) as client:
            with pytest.raises(NotFoundError):
                client.episode("x")
            answering.join()
            with pytest.raises(TransportError):
                client.episode("x")
    assert len(waits) == 3

"""Limits: what is too often is told when to come back, and what must never be refused is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

from rollbook.server.http import limits
from rollbook.server.http.limits import (
    AttemptLimits,
    GrowingDelays,
    RateLimits,
    TokenBuckets,
    is_exempt,
    network_of,
)
from rollbook.server.http.responses import Problem
from rollbook.server.settings import Settings
from tests.server.fixtures import StartServer
from tests.server.people import PASSWORD, Person, join, web
from tests.server.running import RunningServer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_served_and_then_one_at_a_time() -> None:
    clock = Clock()
    buckets = TokenBuckets(per_s=2, burst=3, clock=clock)
    assert [buckets.wait_s("a") for _ in range(5)] == [0, 0, 0, 1, 1]
    clock.now += 0.5
    assert [buckets.wait_s("a") for _ in range(2)] == [0, 1]
    clock.now += 60
    assert [buckets.wait_s("a") for _ in range(4)] == [0, 0, 0, 1]


def test_the_wait_is_whole_seconds_and_long_enough() -> None:
    clock = Clock()
    buckets = TokenBuckets(per_s=1 / 7, burst=1, clock=clock)
    assert buckets.wait_s("a") == 0
    assert buckets.wait_s("a") == 7
    clock.now += 6.5
    assert buckets.wait_s("a") == 1
    clock.now += 1
    assert buckets.wait_s("a") == 0


def test_names_do_not_share_a_bucket() -> None:
    buckets = TokenBuckets(per_s=1, burst=1, clock=Clock())
    assert buckets.wait_s("a") == buckets.wait_s("b") == 0
    assert buckets.wait_s("a") == 1


def test_a_refused_request_costs_nothing() -> None:
    clock = Clock()
    buckets = TokenBuckets(per_s=1, burst=1, clock=clock)
    assert buckets.wait_s("a") == 0
    assert [buckets.wait_s("a") for _ in range(100)] == [1] * 100
    clock.now += 1
    assert buckets.wait_s("a") == 0


def test_what_is_remembered_is_bounded_and_the_busiest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "_MOST_REMEMBERED", 100)
    clock = Clock()
    buckets = TokenBuckets(per_s=0.001, burst=2, clock=clock)
    busy = [buckets.wait_s("busy") for _ in range(3)]
    for number in range(1000):
        buckets.wait_s(f"passer-by {number}")
    assert len(buckets) <= 100
    assert busy[:2] == [0, 0]
    assert buckets.wait_s("busy") > 0


def _refused(attempt: Callable[[], None]) -> int | None:
    """The seconds to wait; None when it is allowed."""
    try:
        attempt()
    except Problem as problem:
        return int(problem.headers["Retry-After"])
    return None


def test_an_address_has_one_rate_for_all_accounts() -> None:
    attempts = AttemptLimits(per_minute=2, clock=Clock())
    accounts = ("ann", "ben", "cem")
    waits = [
        _refused(partial(attempts.guess, "sign in", "10.0.0.1", account)) for account in accounts
    ]
    assert waits == [None, None, 30]
    attempts.guess("sign in", "10.0.0.2", "ann")
    attempts.spend("connect a device", "10.0.0.1")


def test_guesses_of_one_account_wait_longer_and_longer_and_never_for_ever() -> None:
    clock = Clock()
    delays, waits = GrowingDelays(3, clock), []
    for _ in range(14):
        delays.note("10.0.0.1 ann")
        waits.append(delays.wait_s("10.0.0.1 ann"))
        clock.now += waits[-1]
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    delays.note("10.0.0.1 ann")
    clock.now += 3600
    assert delays.wait_s("10.0.0.1 ann") == 0
    delays.note("10.0.0.1 ann")
    assert delays.wait_s("10.0.0.1 ann") == 0, "after an hour it begins anew"


def test_a_right_password_ends_the_delay_of_its_address_and_account_only() -> None:
    clock = Clock()
    attempts = AttemptLimits(per_minute=3, clock=clock)
    for address in ("10.0.0.1", "10.0.0.2"):
        for _ in range(3):
            attempts.guess("sign in", address, "ann")
    clock.now += 60
    for address in ("10.0.0.1", "10.0.0.2"):
        attempts.guess("sign in", address, "ann")
    attempts.guessed("sign in", "10.0.0.1", "ann")
    assert _refused(lambda: attempts.guess("sign in", "10.0.0.1", "ann")) is None
    assert _refused(lambda: attempts.guess("sign in", "10.0.0.2", "ann")) == 2


def test_a_refused_guess_costs_nothing_and_guesses_of_many_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    delays = GrowingDelays(1, clock)
    delays.note("a")
    assert [delays.wait_s("a") for _ in range(100)] == [1] * 100
    clock.now += 1
    assert delays.wait_s("a") == 0
    monkeypatch.setattr(limits, "_MOST_REMEMBERED", 100)
    for number in range(1000):
        delays.note(f"passer-by {number}")
        delays.note("busy")
    assert len(delays) == 100
    assert delays.wait_s("busy") == 300


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
    ],
)
def test_an_ipv6_customer_counts_once(address: str, network: str) -> None:
    scope = {"type": "http", "client": (address, 1), "headers": []}
    assert network_of(Request(scope)) == network


@pytest.mark.parametrize(
    ("method", "path", "exempt"),
    [
        ("POST", "/api/ingest/episode", False),
        ("POST", "/api/keys", False),
        ("GET", "/api/episodes", False),
        ("POST", "/api/ingest/episode/x/finalize", True),
        ("POST", "/api/ingest/eval-run/x/finalize", True),
        ("POST", "/api/verify/check", True),
        ("POST", "/api/verify/promote", False),
        ("GET", "/api/episodes/x", True),
        ("GET", "/api/episodes/x/artifact/video", True),
        ("DELETE", "/api/episodes/x", False),
        ("POST", "/api/cli/auth/revoke", True),
    ],
)
def test_what_the_public_client_cannot_wait_for_is_never_refused(
    method: str, path: str, exempt: bool
) -> None:
    assert is_exempt(method, path) is exempt


def _asked(path: str = "/api/ingest/episode", method: str = "POST") -> Request:
    server = {"server": ("127.0.0.1", 80), "query_string": b""}
    return Request({"type": "http", "method": method, "path": path, "headers": [], **server})


def test_a_server_is_limited_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    clock, caller = Clock(), "key:0123456789"
    usual = RateLimits(Settings.load(tmp_path), clock)
    for _ in range(5000):
        usual.spend(_asked(), caller)
    with pytest.raises(Problem) as refused:
        usual.spend(_asked(), caller)
    assert refused.value.headers == {"Retry-After": "1"}
    usual.spend(_asked("/api/cli/auth/poll"), caller)
    usual.spend(_asked("/api/ingest/episode/x/finalize"), caller)
    clock.now += 1
    for _ in range(1000):
        usual.spend(_asked(), caller)
    with pytest.raises(Problem):
        usual.spend(_asked(), caller)

    unlimited = RateLimits(Settings.load(tmp_path, requests_per_s=0), clock)
    for _ in range(6000):
        unlimited.spend(_asked(), caller)


# ---------------------------------------------------------------------------------- a real server


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> Iterator[RunningServer]:
    with running_server(requests_per_s=0.2, requests_burst=3, sign_ins_per_minute=2) as started:
        yield started


def _is_told_to_wait(answer: httpx.Response) -> bool:
    if answer.status_code != 429:
        return False
    assert answer.headers["retry-after"].isdigit()
    assert int(answer.headers["retry-after"]) >= 1
    body = answer.json()
    assert body["code"] == "rate_limited"
    assert "wait" in body["error"]
    return True


def test_a_key_that_asks_too_often_is_told_when_to_come_back(server: RunningServer) -> None:
    with (
        web(server, **server.first_org.headers) as client,
        web(server, **server.second_org.headers) as other,
    ):
        answers = [client.post("/api/ingest/episode", json={}) for _ in range(5)]
        assert [each.status_code for each in answers[:3]] == [201] * 3
        assert _is_told_to_wait(answers[-1])
        episode_id = answers[0].json()["episode_id"]
        ended = client.post(f"/api/ingest/episode/{episode_id}/finalize", json={"status": "ready"})
        assert ended.status_code == 200
        assert client.get(f"/api/episodes/{episode_id}").status_code == 200
        assert other.post("/api/ingest/episode", json={}).status_code == 201


def test_sign_ins_are_limited_and_polls_are_not(server: RunningServer) -> None:
    body = {"email": "nobody@example.com", "password": "wrong"}
    with web(server) as client:
        answers = [client.post("/api/sign-in", json=body) for _ in range(3)]
        assert [each.status_code for each in answers] == [401, 401, 429]
        assert _is_told_to_wait(answers[-1])

        starts = [client.post("/api/cli/auth/start", json={}) for _ in range(3)]
        assert [each.status_code for each in starts] == [200, 200, 429]
        assert _is_told_to_wait(starts[-1])
        code = {"device_code": starts[0].json()["device_code"]}
        polls = {client.post("/api/cli/auth/poll", json=code).status_code for _ in range(50)}
        assert polls == {200}


def test_a_form_that_comes_too_often_is_told_on_its_page(server: RunningServer) -> None:
    fields = {"email": "ann@example.com", "password": "wrong"}
    with web(server, Origin=server.base_url) as client:
        answers = [client.post("/sign-in", data=fields) for _ in range(4)]
    assert answers[-1].status_code == 429
    assert answers[-1].headers["retry-after"].isdigit()
    assert "too many attempts" in answers[-1].text


# ------------------------------------------------------------------------- guesses and lock-outs


@pytest.fixture(scope="module")
def guarded(running_server: StartServer) -> Iterator[tuple[RunningServer, str]]:
    """A server with the limit of its settings, and the address of somebody with a password there."""
    with running_server() as started:
        owner = Person(started).sign_in_by_link(started.first_org)
        join(started, owner, "ann@example.com", "member").close()
        join(started, owner, "ben@example.com", "member").close()
        owner.close()
        yield started, "ann@example.com"


def _from(server: RunningServer, address: str) -> httpx.Client:
    """A client at another address of this machine."""
    transport = httpx.HTTPTransport(local_address=address, verify=False)
    return httpx.Client(base_url=server.base_url, transport=transport, timeout=30)


def _sign_in(client: httpx.Client, email: str, password: str) -> int:
    body = {"email": email, "password": password}
    return client.post("/api/sign-in", json=body).status_code


def test_wrong_sign_ins_from_one_address_lock_nobody_out_elsewhere(
    guarded: tuple[RunningServer, str],
) -> None:
    server, email = guarded
    with _from(server, "127.0.0.2") as attacker, _from(server, "127.0.0.3") as ann:
        tried = [_sign_in(attacker, email, "a wrong password") for _ in range(12)]
        assert tried == [401] * 10 + [429] * 2
        assert _sign_in(ann, email, PASSWORD) == 200
        assert _sign_in(attacker, "ben@example.com", PASSWORD) == 429, (
            "it may not try others either"
        )


def test_many_addresses_that_guess_lock_nobody_out_elsewhere(
    guarded: tuple[RunningServer, str],
) -> None:
    server, email = guarded
    for number in range(20, 28):
        with _from(server, f"127.0.0.{number}") as attacker:
            assert {_sign_in(attacker, email, f"guess {each}") for each in range(5)} == {401}
    with _from(server, "127.0.0.4") as ann:
        assert _sign_in(ann, email, PASSWORD) == 200


def test_a_stolen_session_does_not_keep_its_owner_from_changing_the_password(
    guarded: tuple[RunningServer, str],
) -> None:
    server, _ = guarded
    body = {"email": "ben@example.com", "password": PASSWORD}
    with _from(server, "127.0.0.5") as thief, _from(server, "127.0.0.6") as ben:
        sessions = [client.post("/api/sign-in", json=body).json() for client in (thief, ben)]

        def change(client: httpx.Client, session: dict[str, str], current: str) -> int:
            headers = {"Origin": server.base_url, "X-CSRF-Token": session["csrf_token"]}
            sent = {"current_password": current, "new_password": "four other words here"}
            return client.post("/api/password", json=sent, headers=headers).status_code

        tried = [change(thief, sessions[0], "a wrong password") for _ in range(11)]
        assert tried == [403] * 10 + [429]
        assert change(ben, sessions[1], PASSWORD) == 200

"""Calls of webhooks: every address of a name is checked, exactly the checked ones are called, and only 2xx accepts."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path

import pytest

from rollbook.server.context import ServerContext
from rollbook.server.db.columns import new_id
from rollbook.server.db.eval_tables import DeliveryRow
from rollbook.server.db.sqlite import SqliteDatabase
from rollbook.server.webhooks.addresses import AddressRefused, addresses_of, is_public, resolve
from rollbook.server.webhooks.delivery import Sender
from rollbook.server.webhooks.secrets import hash_of, secret_of
from tests.server.episodes.test_upkeep import Server
from tests.server.receiver import Receiver
from tests.server.tenants import Organisation, new_organisation

_PUBLIC, _PUBLIC_V6 = "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"


def _asked(*addresses: str, to_private: bool = False) -> list[str]:
    """For a name with these addresses."""
    return asyncio.run(
        addresses_of(
            "hook.example", 443, to_private=to_private, resolve=lambda _host, _port: [*addresses]
        )
    )


@pytest.mark.parametrize(
    "private",
    ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::1", "fe80::1%eth0", "::ffff:192.168.0.1"],
)
def test_a_name_with_one_private_address_is_refused(private: str) -> None:
    for addresses in (
        (_PUBLIC, private),
        (private, _PUBLIC),
        (_PUBLIC, _PUBLIC_V6, private),
        (private,),
    ):
        with pytest.raises(AddressRefused, match="not public"):
            _asked(*addresses)
    assert _asked(_PUBLIC, private, to_private=True) == [_PUBLIC, private]


def test_a_name_with_public_addresses_gives_all_of_them_in_their_order() -> None:
    assert _asked(_PUBLIC_V6, _PUBLIC) == [_PUBLIC_V6, _PUBLIC]


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"])
def test_other_spellings_of_this_machine_lead_inside_too(host: str) -> None:
    """By the resolver of the system."""
    with pytest.raises(AddressRefused, match="not public"):
        asyncio.run(addresses_of(host, 80, to_private=False))


def test_a_name_that_cannot_be_resolved_is_refused() -> None:
    def fail(_host: str, _port: int) -> list[str]:
        raise OSError("no answer")

    with pytest.raises(AddressRefused, match=r"^has a name that cannot be resolved$"):
        asyncio.run(addresses_of("hook.example", 443, to_private=False, resolve=fail))
    assert resolve("127.0.0.1", 80) == ["127.0.0.1"]


# ------------------------------------------------------------------------------------------ rebinding


def _queued(
    org: Organisation, server: Server, url: str, server_secret: bytes | None = None
) -> None:
    webhook_id = new_id()
    secret = secret_of(server_secret or server.settings.secret, webhook_id, "salt")
    row = {"id": webhook_id, "url": url, "events": ["e"], "salt": "salt"}
    org.write(lambda scope: scope.create_webhook({**row, "secret_hash": hash_of(secret)}))
    org.write(lambda scope: scope.announce("e", lambda _: "{}"))


def _delivered(
    org: Organisation, server: Server, *answers: list[str]
) -> tuple[DeliveryRow, list[tuple[str, int]]]:
    """One attempt with a resolver that gives another answer every time; and what it was asked."""
    asked: list[tuple[str, int]] = []

    def changing(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return answers[len(asked) - 1]

    def noted() -> DeliveryRow:
        hook = org.read(lambda scope: scope.webhooks())[0]
        return org.read(lambda scope: scope.deliveries(hook.id))[0][0]

    async def attempt(context: ServerContext) -> DeliveryRow:
        sender = Sender(context, changing)
        try:
            await sender.start_due(org.org_id)
            async with asyncio.timeout(20):
                while not (found := await asyncio.to_thread(noted)).tries:
                    await asyncio.sleep(0.01)
            return found
        finally:
            await sender.close()

    return server.run(attempt), asked


def test_the_connection_goes_to_the_address_that_was_checked(
    sqlite_database: SqliteDatabase, tmp_path: Path
) -> None:
    """A name that leads elsewhere when it is asked for a second time leads nobody there: it is asked for once."""
    receiver = Receiver()
    port = int(receiver.url.rpartition(":")[2])
    org = new_organisation(sqlite_database)
    server = Server(sqlite_database, tmp_path, webhooks_to_private=True)
    _queued(org, server, f"http://hook.example:{port}/told?x=1")
    try:
        told, asked = _delivered(org, server, ["127.0.0.1"], ["192.0.2.1"])
        assert told.status == "delivered", told.tries
        assert asked == [("hook.example", port)]
        [received] = receiver.received
        assert received.path == "/told?x=1"
        assert received.headers["host"] == f"hook.example:{port}"
    finally:
        receiver.close()


def test_a_name_that_was_public_when_it_was_made_and_is_private_now_is_not_called(
    sqlite_database: SqliteDatabase, tmp_path: Path
) -> None:
    receiver = Receiver()
    org = new_organisation(sqlite_database)
    server = Server(sqlite_database, tmp_path)
    _queued(org, server, f"http://hook.example:{receiver.url.rpartition(':')[2]}/")
    try:
        told, _ = _delivered(org, server, ["127.0.0.1", _PUBLIC])
        assert told.status == "pending"
        assert "not public" in told.tries[0]["error"]
        assert "127.0.0.1" not in told.tries[0]["error"]
        assert receiver.received == []
    finally:
        receiver.close()


# ------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "delivered"), (204, "delivered"), (300, "pending"), (302, "pending"), (404, "pending")],
)
def test_only_an_answer_of_2xx_accepts_and_a_redirect_is_not_followed(
    sqlite_database: SqliteDatabase, tmp_path: Path, status: int, outcome: str
) -> None:
    receiver = Receiver(lambda _: status)
    org = new_organisation(sqlite_database)
    server = Server(sqlite_database, tmp_path, webhooks_to_private=True)
    _queued(org, server, f"{receiver.url}/told")
    try:
        told, _ = _delivered(org, server, ["127.0.0.1"])
        assert told.status == outcome
        assert told.tries[0]["status_code"] == status
        assert [each.path for each in receiver.received] == ["/told"]
    finally:
        receiver.close()


def test_a_server_with_another_secret_calls_nobody_and_says_why(
    sqlite_database: SqliteDatabase, tmp_path: Path
) -> None:
    """It would sign with a secret that the receiver does not know."""
    receiver = Receiver()
    org = new_organisation(sqlite_database)
    server = Server(sqlite_database, tmp_path, webhooks_to_private=True)
    _queued(org, server, f"{receiver.url}/told", b"the secret of the server before" * 2)
    try:
        told, asked = _delivered(org, server, ["127.0.0.1"])
        assert told.status == "pending"
        assert "make it again" in told.tries[0]["error"]
        assert (asked, receiver.received) == ([], [])
    finally:
        receiver.close()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("64:ff9b::808:808", True),
        ("64:ff9b::a00:1", False),
        ("2001:0:4136:e378:8000:63bf:f7f7:f7f7", True),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", False),
        ("2002:808:808::1", True),
        ("2002:a00:1::1", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_an_address_inside_another_decides(address: str, public: bool) -> None:
    """Through NAT64, Teredo and 6to4, and mapped: 8.8.8.8 is reachable, 10.0.0.1 is inside a network."""
    assert is_public(ipaddress.ip_address(address)) is public

"""Webhooks: told in the transaction of what happened, signed, tried again, never lost, and never led inside."""

from __future__ import annotations

import ipaddress
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database
from rollbook.server.queries import Scope
from rollbook.server.webhooks.addresses import AddressRefused, checked_url, is_public
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.people import Person
from tests.server.receiver import Receiver
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation, shared_server
from tests.server.tenants import Organisation
from tests.server.tenants import new_organisation as organisation_in

QUICK = {
    "webhooks_to_private": True,
    "webhook_retry_s": 0.02,
    "webhook_attempts": 4,
    "webhook_timeout_s": 1.0,
    "webhook_poll_s": 2.0,
    "sign_ins_per_minute": 100_000,
}


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    """One that may call this machine, and does not wait long."""
    started = running_server(**QUICK)
    started.prepare()
    started.start()
    return started


@pytest.fixture(scope="module")
def careful_server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


class Owner:
    """An organisation of its own, and its owner in front of a browser."""

    def __init__(self, server: RunningServer) -> None:
        self.team: Campaigner = campaigner(server, new_organisation(server))
        self.person: Person = self.team.owner()

    def hook(self, url: str, *events: str) -> dict[str, Any]:
        body = {"url": url, "events": list(events or ("eval_run.completed",))}
        answer = self.person.call("POST", "/api/webhooks", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def test(self, hook: dict[str, Any]) -> str:
        answer = self.person.call("POST", f"/api/webhooks/{hook['id']}/test")
        assert answer.status_code == 202, answer.text
        delivery: str = answer.json()["delivery_id"]
        return delivery

    def log(self, hook: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.person.get(f"/api/webhooks/{hook['id']}/deliveries")
        deliveries: list[dict[str, Any]] = answer.json()["deliveries"]
        return deliveries

    def until(
        self, hook: dict[str, Any], holds: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """The newest delivery, once it is so."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self.log(hook)
            if found and holds(found[0]):
                return found[0]
            time.sleep(0.05)
        raise AssertionError(self.log(hook))


@pytest.fixture
def owner(server: RunningServer) -> Iterator[Owner]:
    made = Owner(server)
    yield made
    made.person.close()


def is_over(delivery: dict[str, Any]) -> bool:
    return bool(delivery["status"] != "pending")


# ------------------------------------------------------------------------------------- what is told


def test_a_completed_run_is_told_once_and_signed(owner: Owner, receiver: Receiver) -> None:
    hook = owner.hook(f"{receiver.url}/ci?job=7")
    team = owner.team
    [baseline] = team.baselines(1, success=False)
    run_id = team.run([baseline], "v9", baseline_policy_version="v8", name="nightly")
    team.result(run_id, baseline, True)
    summary = team.finalize(run_id)["summary"]
    team.finalize(run_id)  # nothing new
    [got] = receiver.wait_for(1)
    assert got.path == "/ci?job=7"
    assert got.is_signed_with(hook["secret"])
    assert not got.is_signed_with("another")
    assert got.headers["rollbook-event"] == got.told["event"] == "eval_run.completed"
    assert got.delivery == got.told["id"]
    assert got.told["organisation_id"] == team.access.org_id
    data = got.told["data"]
    assert (data["eval_run_id"], data["candidate_policy_version"], data["name"]) == (
        run_id,
        "v9",
        "nightly",
    )
    decision = summary["decision"]
    for name in ("recommend", "sentence", "reasons", "needed_n", "gate_digest"):
        assert data["decision"][name] == decision[name]
    assert data["url"].endswith(f"/portal/evals/{run_id}")
    logged = owner.until(hook, is_over)
    assert (logged["status"], logged["id"]) == ("delivered", got.delivery)
    assert [each["status_code"] for each in logged["attempts"]] == [200]
    assert len(receiver.received) == 1


def test_a_decision_is_told_with_the_policy_revision_it_is_about(
    owner: Owner, receiver: Receiver
) -> None:
    owner.hook(receiver.url)
    revision = {
        "policy_family": "grasp",
        "revision_id": "rev-7",
        "policy_digest": "d7",
        "produced_at_ms": 1,
    }
    ids = owner.team.baselines(1)
    named = owner.team.run(ids, candidate_policy_revision=revision)
    for run_id in (named, owner.team.run(ids)):
        owner.team.finalize(run_id)
    told = {each.told["data"]["eval_run_id"]: each.told["data"] for each in receiver.wait_for(2)}
    assert told.pop(named)["candidate_policy_revision"] == revision
    [other] = told.values()
    assert "candidate_policy_revision" not in other


def test_a_webhook_hears_only_what_it_listens_for(owner: Owner, receiver: Receiver) -> None:
    owner.hook(f"{receiver.url}/done", "eval_run.completed")
    owner.hook(f"{receiver.url}/ended", "eval_run.cancelled", "eval_run.failed")
    team = owner.team
    ids = team.baselines(1)
    cancelled, failed, completed = (team.run(ids) for _ in range(3))
    team.post(f"/api/eval-runs/{cancelled}/cancel")
    team.finalize(failed, status="failed")
    team.finalize(completed)
    told = {(each.path, each.told["data"]["eval_run_id"]) for each in receiver.wait_for(3)}
    assert told == {("/ended", cancelled), ("/ended", failed), ("/done", completed)}


def test_other_organisations_hear_nothing(
    owner: Owner, server: RunningServer, receiver: Receiver
) -> None:
    owner.hook(f"{receiver.url}/theirs")
    other = Owner(server)
    other.hook(f"{receiver.url}/mine")
    other.team.finalize(other.team.run(other.team.baselines(1)))
    assert [each.path for each in receiver.wait_for(1)] == ["/mine"]
    other.person.close()


# ------------------------------------------------------------------------------------ tried again


def test_what_is_refused_is_sent_again_until_it_is_taken(owner: Owner, receiver: Receiver) -> None:
    receiver.answer = lambda before: (500, 302, 204)[before]
    hook = owner.hook(receiver.url)
    delivery = owner.test(hook)
    got = receiver.wait_for(3)
    assert {each.delivery for each in got} == {delivery}
    assert len({each.body for each in got}) == 1
    assert [each.headers["rollbook-attempt"] for each in got] == ["1", "2", "3"]
    assert [each.path for each in got] == ["/", "/", "/"], "a redirect is not followed"
    assert all(each.is_signed_with(hook["secret"]) for each in got)
    logged = owner.until(hook, is_over)
    assert logged["status"] == "delivered"
    assert [each["status_code"] for each in logged["attempts"]] == [500, 302, 204]
    assert (logged["next_attempt_at"], logged["finished_at"] is None) == (None, False)


def test_after_the_last_attempt_it_has_failed(owner: Owner, receiver: Receiver) -> None:
    receiver.answer = lambda _: 503
    hook = owner.hook(receiver.url)
    owner.test(hook)
    logged = owner.until(hook, is_over)
    assert (logged["status"], len(logged["attempts"])) == ("failed", QUICK["webhook_attempts"])


def test_a_receiver_that_is_away_or_hangs_is_in_the_log_without_its_secrets(
    owner: Owner, receiver: Receiver
) -> None:
    release = threading.Event()

    def hang(_before: int) -> int:
        release.wait(10)
        return 200

    receiver.answer = hang
    away, hanging = owner.hook("http://127.0.0.1:9/token-in-path"), owner.hook(receiver.url)
    owner.test(away)
    owner.test(hanging)
    gone = owner.until(away, lambda each: bool(each["attempts"]))["attempts"][0]
    assert (gone["status_code"], gone["error"]) == (None, "no answer: ConnectError")
    slow = owner.until(hanging, lambda each: bool(each["attempts"]))["attempts"][0]
    assert (slow["status_code"], slow["error"]) == (None, "no answer within 1 seconds")
    release.set()
    log = owner.team.server.log_path.read_text()
    assert "token-in-path" not in log
    assert "whsec_" not in log


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle_delivers_after_its_restart(
    running_server: StartServer, receiver: Receiver
) -> None:
    server = running_server(**QUICK)
    server.prepare()
    server.start()
    release = threading.Event()

    def hang_first(before: int) -> int:
        if before == 0:
            release.wait(10)
        return 200

    receiver.answer = hang_first
    owner = Owner(server)
    hook = owner.hook(receiver.url)
    owner.team.finalize(owner.team.run(owner.team.baselines(1)))
    receiver.wait_for(1)
    server.kill()
    release.set()
    server.start()
    first, second = receiver.wait_for(2)
    assert (first.delivery, first.body) == (second.delivery, second.body)
    assert owner.until(hook, is_over)["status"] == "delivered"
    owner.person.close()


@pytest.mark.slow
def test_a_server_with_another_secret_signs_nothing_and_says_why(
    running_server: StartServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = running_server(**QUICK)
    server.prepare()
    server.start()
    owner = Owner(server)
    hook = owner.hook(receiver.url)
    server.stop()
    monkeypatch.setenv("ROLLBOOK_SECRET", "another secret of thirty-two bytes or more")
    server.start()
    owner.test(hook)
    logged = owner.until(hook, lambda each: bool(each["attempts"]))
    assert "make it again" in logged["attempts"][0]["error"]
    assert receiver.received == []
    owner.person.close()


def test_what_is_due_is_taken_by_one_and_again_when_the_lease_is_over(
    shared_database: Database,
) -> None:
    """However many processes ask at the same moment."""
    org: Organisation = organisation_in(shared_database)
    row = {"url": "http://x", "events": ["e"], "salt": "s", "secret_hash": "h"}
    hook = org.write(lambda scope: scope.create_webhook({**row, "id": new_id()}))
    for _ in range(30):
        assert org.write(lambda scope: scope.announce("e", lambda delivery: delivery)) == 1

    def take(_: int) -> list[str]:
        return [each.id for each in org.write(lambda scope: scope.take_deliveries(10**9, 4))]

    with ThreadPoolExecutor(8) as pool:
        taken = [each for some in pool.map(take, range(12)) for each in some]
    assert len(taken) == len(set(taken)) == 30
    assert org.write(lambda scope: scope.take_deliveries(10**9, 4)) == []
    later = org.at(2 * 10**15, lambda scope: scope.take_deliveries(10**9, 100))
    assert {each.id for each in later} == set(taken)
    assert {each.attempts for each in later} == {2}
    found, _ = org.read(lambda scope: scope.deliveries(hook.id))
    assert {each.status for each in found} == {"pending"}


def test_what_waits_in_another_organisation_takes_no_place_from_ones_own(
    shared_database: Database,
) -> None:
    row = {"url": "http://x", "events": ["e"], "salt": "s", "secret_hash": "h"}
    other, own = organisation_in(shared_database), organisation_in(shared_database)
    for org, count in ((other, 5), (own, 1)):
        org.write(lambda scope: scope.create_webhook({**row, "id": new_id()}))
        for _ in range(count):
            org.write(lambda scope: scope.announce("e", lambda _: "body"))
    assert len(own.write(lambda scope: scope.take_deliveries(10**9, 4))) == 1
    assert len(other.write(lambda scope: scope.take_deliveries(10**9, 100))) == 5


def test_one_whose_lease_ran_out_does_not_overrule_the_next(shared_database: Database) -> None:
    org = organisation_in(shared_database)
    row = {"url": "http://x", "events": ["e"], "salt": "s", "secret_hash": "h"}
    org.write(lambda scope: scope.create_webhook({**row, "id": new_id()}))
    org.write(lambda scope: scope.announce("e", lambda _: "body"))
    [first] = org.write(lambda scope: scope.take_deliveries(0, 1))
    [second] = org.write(lambda scope: scope.take_deliveries(0, 1))

    def note(scope: Scope, attempt: Any, status: str) -> bool:
        return scope.note_attempt(attempt, {}, status=status, next_attempt_at_us=1)

    assert not org.write(lambda scope: note(scope, first, "delivered"))
    assert org.write(lambda scope: note(scope, second, "failed"))
    assert not org.write(lambda scope: note(scope, second, "delivered"))
    assert org.read(lambda scope: scope.next_delivery_at_us()) is None
    assert org.write(lambda scope: scope.forget_deliveries(2**60)) == 1


# ---------------------------------------------------------------------------------------- inside


def test_a_url_that_leads_inside_is_refused_when_it_is_made_and_when_it_is_called(
    careful_server: RunningServer, receiver: Receiver
) -> None:
    owner = Owner(careful_server)
    for url in (receiver.url, "http://[::1]/", "http://169.254.169.254/latest", "http://10.0.0.1"):
        body = {"url": url, "events": ["eval_run.completed"]}
        answer = owner.person.call("POST", "/api/webhooks", json=body)
        assert (answer.status_code, answer.json()["where"]) == (400, "$.url")
        assert "webhooks_to_private" in answer.json()["error"]
    port = receiver.url.rpartition(":")[2]
    hook = owner.hook(f"http://localhost:{port}/")
    owner.test(hook)
    logged = owner.until(hook, lambda each: bool(each["attempts"]))
    assert "not public" in logged["attempts"][0]["error"]
    assert "127.0.0.1" not in logged["attempts"][0]["error"]
    assert logged["attempts"][0]["status_code"] is None
    assert receiver.received == []
    owner.person.close()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "fec0::1",
        "2002:7f00:1::",
        "2001:0:1:2:3:4:80ff:fffe",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com",
        "file:///etc/passwd",
        "https://",
        "example.com",
        "https://user:secret@example.com",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: other",
        "https://[::1/",
        "https://bücher.example/",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(AddressRefused):
        checked_url(url, to_private=True)


def certificate(folder: Path, name: str) -> Path:
    """Signed by itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


@pytest.mark.slow
def test_a_receiver_has_to_prove_the_name_in_its_url(
    running_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is its address that is called, and its name that is checked."""
    right, wrong = certificate(tmp_path, "localhost"), certificate(tmp_path, "elsewhere.example")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(right.read_bytes() + wrong.read_bytes())
    receivers = []
    for path in (right, wrong):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(path)
        receivers.append(Receiver(tls=tls))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    server = running_server(**QUICK)
    server.prepare()
    server.start()
    owner = Owner(server)
    proved, pretended = (owner.hook(f"https://localhost:{each.port}/") for each in receivers)
    owner.test(proved)
    owner.test(pretended)
    assert owner.until(proved, is_over)["status"] == "delivered"
    assert receivers[0].received[0].headers["host"] == f"localhost:{receivers[0].port}"
    refused = owner.until(pretended, lambda each: bool(each["attempts"]))["attempts"][0]
    assert (refused["status_code"], refused["error"]) == (None, "no answer: ConnectError")
    assert receivers[1].received == []
    owner.person.close()
    for each in receivers:
        each.close()


# ------------------------------------------------------------------------------------- who may what


def test_a_secret_is_shown_once_and_kept_nowhere(owner: Owner, receiver: Receiver) -> None:
    hook = owner.hook(receiver.url)
    assert hook["secret"].startswith("whsec_")
    [listed] = owner.person.get("/api/webhooks").json()["webhooks"]
    assert "secret" not in listed
    assert (listed["url"], listed["events"]) == (receiver.url, ["eval_run.completed"])
    stored = (owner.team.server.data_dir / "rollbook.db").read_bytes()
    assert hook["secret"].encode() not in stored
    noted = owner.person.get("/api/audit").json()["events"]
    assert "webhook.created" in {each["event"] for each in noted}
    assert hook["secret"] not in str(noted)


def test_a_robot_key_may_not_manage_webhooks(owner: Owner) -> None:
    team, body = owner.team, {"url": "https://example.com", "events": ["eval_run.completed"]}
    with team.server.client(team.server.new_key("write", team.access)) as robot:
        for answer in (robot.post("/api/webhooks", json=body), robot.get("/api/webhooks")):
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_deleted_webhook_is_told_nothing_more(owner: Owner, receiver: Receiver) -> None:
    gone, kept = owner.hook(f"{receiver.url}/gone"), owner.hook(f"{receiver.url}/kept")
    assert owner.person.call("DELETE", f"/api/webhooks/{gone['id']}").status_code == 200
    for method, path in (("GET", "deliveries"), ("POST", "test")):
        answer = owner.person.call(method, f"/api/webhooks/{gone['id']}/{path}")
        assert answer.status_code == 404
    owner.team.finalize(owner.team.run(owner.team.baselines(1)))
    assert [each.path for each in receiver.wait_for(1)] == ["/kept"]
    assert owner.until(kept, is_over)["status"] == "delivered"


@pytest.mark.parametrize("events", [[], ["eval_run.started"], "eval_run.completed"])
def test_events_that_nobody_knows_are_refused(owner: Owner, events: Any) -> None:
    body = {"url": "https://example.com", "events": events}
    answer = owner.person.call("POST", "/api/webhooks", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_value")


def test_webhooks_do_not_pile_up_without_end(owner: Owner) -> None:
    for _ in range(20):
        owner.hook("https://example.com")
    body = {"url": "https://example.com", "events": ["eval_run.completed"]}
    answer = owner.person.call("POST", "/api/webhooks", json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_webhooks")


def test_the_log_comes_in_pages(owner: Owner, receiver: Receiver) -> None:
    hook = owner.hook(receiver.url)
    sent = [owner.test(hook) for _ in range(3)]
    path = f"/api/webhooks/{hook['id']}/deliveries"
    first = owner.person.get(path, params={"limit": 2}).json()
    second = owner.person.get(path, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    found = [each["id"] for page in (first, second) for each in page["deliveries"]]
    assert (found, second["next_cursor"]) == (sent[::-1], None)

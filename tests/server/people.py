"""People for tests: someone in front of a browser, which keeps cookies and says where a form was sent from; and a
server with the owners of two organisations, which tests of several modules share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.server.fixtures import StartServer
from tests.server.postgres_cluster import PostgresCluster
from tests.server.running import Access, RunningServer

PASSWORD = "four unrelated words here"
_CSRF = re.compile(r'name="csrf_token" value="([^"]+)"')


def web(server: RunningServer, **headers: str) -> httpx.Client:
    """Without certificates, which take longer to load than most requests take: nothing here is encrypted."""
    return httpx.Client(base_url=server.base_url, headers=headers, timeout=30, verify=False)


class Person:
    def __init__(self, server: RunningServer) -> None:
        self.base_url = server.base_url
        self.http = web(server)
        self.csrf = ""

    def sign_in_by_link(self, access: Access) -> Person:
        """JSON, as a program would."""
        return self.sign_in_by_token(access.sign_in_token)

    def sign_in_by_token(self, token: str) -> Person:
        return self._signed_in({"token": token})

    def sign_in(self, email: str, password: str = PASSWORD) -> Person:
        return self._signed_in({"email": email, "password": password})

    def _signed_in(self, body: dict[str, str]) -> Person:
        answer = self.http.post("/api/sign-in", json=body)
        assert answer.status_code == 200, answer.text
        self.csrf = answer.json()["csrf_token"]
        return self

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A JSON route, as our own pages would call it."""
        headers = {"Origin": self.base_url, "X-CSRF-Token": self.csrf, **options.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def submit(self, path: str, *, token: str | None = None, **fields: str) -> httpx.Response:
        """A form of ours, with the token of this session unless another is given."""
        sent = {"csrf_token": self.csrf if token is None else token, **fields}
        return self.http.post(path, data=sent, headers={"Origin": self.base_url})

    def close(self) -> None:
        self.http.close()


def csrf_in(page: str) -> str:
    found = _CSRF.search(page)
    assert found is not None, page
    return found[1]


def join(server: RunningServer, inviter: Person, email: str, role: str) -> Person:
    """Someone new, invited and come in."""
    invited = inviter.call("POST", "/api/invitations", json={"email": email, "role": role})
    assert invited.status_code == 201, invited.text
    token = invited.json()["url"].partition("token=")[2]
    person = Person(server)
    body = {"token": token, "password": PASSWORD, "name": f"The {role}"}
    accepted = person.http.post("/api/invitations/accept", json=body)
    assert accepted.status_code == 200, accepted.text
    person.csrf = accepted.json()["csrf_token"]
    return person


# --------------------------------------------------------------------------------------- a shared house


@dataclass(frozen=True)
class House:
    server: RunningServer
    owner: Person
    """Of the first organisation."""
    other_owner: Person


_houses: dict[str, House] = {}


def shared_house(request: pytest.FixtureRequest, kind: str) -> House:
    """Started once for each database, and ended with all servers at the end of the session."""
    if kind not in _houses:
        start: StartServer = request.getfixturevalue("running_server")
        settings: dict[str, object] = {"sign_ins_per_minute": 100_000}
        if kind == "postgres":
            cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
            settings["database_url"] = cluster.new_database(migrated=True)
        server = start(**settings)
        server.prepare()
        server.start()
        owner = Person(server).sign_in_by_link(server.first_org)
        other_owner = Person(server).sign_in_by_link(server.second_org)
        _houses[kind] = House(server, owner, other_owner)
    return _houses[kind]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def house(request: pytest.FixtureRequest) -> House:
    return shared_house(request, str(request.param))


@pytest.fixture(scope="module", params=["sqlite"])
def sqlite_house(request: pytest.FixtureRequest) -> House:
    """For what has nothing to do with the database."""
    return shared_house(request, str(request.param))

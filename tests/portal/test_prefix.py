"""A server below a path, such as `--public-url https://host/rollbook`: what people and programs do there.

The proxy in front of it either passes the path on or removes it.
"""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from rollbook.client import Client
from tests.server.fixtures import StartServer
from tests.server.people import csrf_in
from tests.server.running import RunningServer

PREFIX = "/below/here"
_LOCAL = re.compile(r'(?:href|src|action|formaction)="([^"]*)"')


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def start_below(running_server: StartServer) -> RunningServer:
    """Its public name has its own port, so that browsers and programs can use that name."""
    port = free_port()
    server = running_server(public_url=f"http://127.0.0.1:{port}{PREFIX}")
    server.port = port
    server.prepare()
    server.start()
    return server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    started = start_below(request.getfixturevalue("running_server"))
    yield started
    started.close()


@pytest.fixture
def browser(server: RunningServer) -> Iterator[httpx.Client]:
    """Keeps cookies as a browser does, and sends forms from our own origin."""
    headers = {"Origin": server.base_url}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=30) as client:
        yield client


def test_a_person_signs_in_works_and_signs_out(
    server: RunningServer, browser: httpx.Client
) -> None:
    turned = browser.get(PREFIX, follow_redirects=True)
    assert turned.url.path == f"{PREFIX}/sign-in"
    assert 'name="next" value="/portal"' in turned.text

    fields = {"token": server.first_org.sign_in_token, "next": "/portal/settings/gates"}
    entered = browser.post(f"{PREFIX}/sign-in", data=fields)
    assert entered.headers["location"] == f"{PREFIX}/portal/settings/gates"
    assert f"Path={PREFIX};" in entered.headers["set-cookie"]

    page = browser.get(entered.headers["location"])
    assert page.status_code == 200
    token = csrf_in(page.text)
    locked = browser.post(
        f"{PREFIX}/portal/settings/gates", data={"csrf_token": token, "name": "release"}
    )
    assert locked.headers["location"] == f"{PREFIX}/portal/settings/gates"
    for path in (
        "/portal",
        "/keys",
        "/members",
        "/password",
        "/portal/organisations",
        "/portal/settings/gates",
        "/portal/settings/retention",
        "/portal/settings/webhooks",
        "/portal/settings/audit",
        "/portal/settings/quotas",
        "/portal/settings/gates/release/unlock",
        "/cli/auth",
    ):
        shown = browser.get(f"{PREFIX}{path}").text
        links = [html.unescape(each) for each in _LOCAL.findall(shown)]
        assert links
        assert all(each.startswith((f"{PREFIX}/", "#", "?")) for each in links), (path, links)

    gone = browser.post(f"{PREFIX}/sign-out", data={"csrf_token": token})
    assert gone.headers["location"] == f"{PREFIX}/sign-in"
    assert browser.get(f"{PREFIX}/portal").headers["location"].startswith(f"{PREFIX}/sign-in?next=")


def test_the_cookie_is_not_for_the_rest_of_the_host(
    running_server: StartServer,
) -> None:
    """Over https, behind a proxy that removes the path."""
    with running_server(public_url="https://robots.example.com/rollbook") as server:
        headers = {"Origin": "https://robots.example.com"}
        fields = {"token": server.first_org.sign_in_token}
        answer = httpx.post(f"{server.base_url}/sign-in", data=fields, headers=headers)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Secure-rollbook_session=")
        assert "; Path=/rollbook;" in cookie
        assert "; Secure" in cookie
        assert answer.headers["location"] == "/rollbook/portal"
        token = cookie.partition(";")[0]
        for path in ("/portal", "/rollbook/portal"):
            page = httpx.get(f"{server.base_url}{path}", headers={"Cookie": token})
            assert page.status_code == 200
        signed_out = httpx.post(
            f"{server.base_url}/sign-out",
            data={"csrf_token": csrf_in(page.text)},
            headers={**headers, "Cookie": token},
        )
        assert "; Path=/rollbook;" in signed_out.headers["set-cookie"]


def test_a_program_records_and_reads_below_a_path(server: RunningServer) -> None:
    public = f"{server.base_url}{PREFIX}"
    with Client(api_key=server.api_key, base_url=public) as client:
        sensors = {"/arm/position": np.arange(6.0).reshape(3, 2)}
        episode = client.log_episode(name="below", sensors=sensors, t_ns=[0, 10**9, 2 * 10**9])
        assert episode.id is not None
        found = client.episode(episode.id)
        assert found.name == "below"
        np.testing.assert_array_equal(found.sensors()["/arm/position"], sensors["/arm/position"])


def test_a_device_is_sent_to_the_page_below_the_path(
    server: RunningServer, browser: httpx.Client
) -> None:
    started = browser.post(f"{PREFIX}/api/cli/auth/start", json={}).json()
    link = urlsplit(started["verification_uri_complete"])
    assert f"{link.scheme}://{link.netloc}" == server.base_url
    assert link.path == f"{PREFIX}/cli/auth"
    turned = browser.get(f"{link.path}?{link.query}")
    assert turned.headers["location"].startswith(f"{PREFIX}/sign-in?next=%2Fcli%2Fauth%3Fcode%3D")

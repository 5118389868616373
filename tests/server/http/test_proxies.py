"""Behind a proxy: which peers may say whom a request comes from, and what browsers are told about https."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.errors import ConfigurationError
from rollbook.server.settings import Settings
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.serving import serving

_HSTS = "strict-transport-security"


def logged_addresses(log_path: Path, base_url: str, forwarded: str, **more: str) -> set[str]:
    """Addresses that a server logs for one refused sign-in that names this client."""
    before = len(log_path.read_text())
    headers = {"X-Forwarded-For": forwarded, **more}
    answer = httpx.post(f"{base_url}/api/sign-in", json={"token": "wrong"}, headers=headers)
    assert answer.status_code == 401
    lines = log_path.read_text()[before:].splitlines()
    refused = [line for line in lines if "sign_in_link_refused" in line]
    return {line.split('"ip":"')[1].split('"')[0] for line in refused}


def test_nobody_is_believed_who_was_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the web server under ours would believe its own machine, or a variable of its own."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with serving(tmp_path / "data", "--public-url", "https://rollbook.example.com") as server:
        seen = logged_addresses(server.log_path, server.base_url, "203.0.113.9")
        assert seen == {"127.0.0.1"}
        answer = httpx.get(f"{server.base_url}/healthz")
        assert answer.headers[_HSTS] == "max-age=31536000"


@pytest.fixture(scope="module")
def behind_a_proxy(running_server: StartServer) -> Iterator[RunningServer]:
    with running_server(trusted_proxies="127.0.0.0/8,10.1.0.0/16", hsts_s=600) as server:
        yield server


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8::7", "2001:db8::7"),
        ("198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("", "127.0.0.1"),
    ],
)
def test_a_proxy_that_was_named_says_who_the_client_is(
    behind_a_proxy: RunningServer, forwarded: str, client: str
) -> None:
    """The last address that no trusted proxy has. What a client puts before it is its own invention."""
    server = behind_a_proxy
    assert logged_addresses(server.log_path, server.base_url, forwarded) == {client}


def test_browsers_are_told_to_stay_with_https_where_it_was_used(
    behind_a_proxy: RunningServer,
) -> None:
    url = f"{behind_a_proxy.base_url}/sign-in"
    assert _HSTS not in httpx.get(url).headers
    by_tls = httpx.get(url, headers={"X-Forwarded-Proto": "https"})
    assert by_tls.headers[_HSTS] == "max-age=600"
    missing = httpx.get(f"{url}/nothing", headers={"X-Forwarded-Proto": "https"})
    assert (missing.status_code, missing.headers[_HSTS]) == (404, "max-age=600")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((), ()),
        ("10.0.0.1", ("10.0.0.1",)),
        ("10.0.0.1, fd00::/8", ("10.0.0.1", "fd00::/8")),
        (["::1"], ("::1",)),
    ],
)
def test_proxies_are_addresses_and_networks(tmp_path: Path, given: Any, kept: tuple[str]) -> None:
    settings = Settings.load(tmp_path, trusted_proxies=given)
    assert settings.trusted_proxies == kept
    assert Settings.load(**settings.portable()).trusted_proxies == kept


@pytest.mark.parametrize("given", ["*", "proxy.example", "10.0.0.1/8", "10.0.0.0/33", ",", 5])
def test_anything_else_is_refused_by_name(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="trusted_proxies"):
        Settings.load(tmp_path, trusted_proxies=given)

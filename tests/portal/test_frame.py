"""The frame of every page: navigation, headers, static files, and a server below a path."""

from __future__ import annotations

import re

import httpx
import pytest

from rollbook.portal.static_files import static_files
from tests.server.fixtures import StartServer
from tests.server.people import House, Person

STATIC = re.compile(r'(?:href|src)="([^"]*/static/[^"]+)"')


def test_the_root_leads_to_the_overview(sqlite_house: House) -> None:
    answer = sqlite_house.owner.get("/", follow_redirects=True)
    assert answer.status_code == 200
    assert answer.url.path == "/portal"
    assert 'aria-current="page">Overview' in answer.text


def test_whoever_is_not_signed_in_signs_in_first_and_then_returns(sqlite_house: House) -> None:
    answer = httpx.get(f"{sqlite_house.server.base_url}/portal?a=1&b=2")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?next=%2Fportal%3Fa%3D1%26b%3D2"


def test_static_files_are_kept_by_the_browser_and_need_no_sign_in(sqlite_house: House) -> None:
    page = sqlite_house.owner.get("/portal")
    addresses = STATIC.findall(page.text)
    assert len(addresses) >= 3
    for address in addresses:
        answer = httpx.get(f"{sqlite_house.server.base_url}{address}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


def test_no_page_has_scripts_or_styles_inside(sqlite_house: House) -> None:
    page = sqlite_house.owner.get("/portal")
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "style=" not in page.text
    assert not re.search(r"<script(?![^>]*src=)", page.text)


@pytest.mark.parametrize("prefix_is_removed", [True, False])
def test_a_server_below_a_path_works_whether_its_proxy_removes_the_path_or_not(
    running_server: StartServer, prefix_is_removed: bool
) -> None:
    server = running_server(public_url="http://127.0.0.1:1/below/here")
    server.prepare()
    server.start()
    before = "" if prefix_is_removed else "/below/here"
    owner = Person(server).sign_in_by_link(server.first_org)
    # a browser sees the public path, and sends the cookie for it
    [cookie] = owner.http.cookies.jar
    assert cookie.path == "/below/here"
    headers = {"Cookie": f"{cookie.name}={cookie.value}"}
    page = httpx.get(f"{server.base_url}{before}/portal", headers=headers)
    assert page.status_code == 200
    local = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert local
    assert all(each.startswith("/below/here/") for each in local), local
    turned = httpx.get(f"{server.base_url}{before}/portal")
    assert turned.headers["location"].startswith("/below/here/sign-in?next=%2Fportal")
    owner.close()
    server.close()


def test_all_static_files_together_are_small() -> None:
    assert sum(len(file.packed) for file in static_files().values()) < 60_000

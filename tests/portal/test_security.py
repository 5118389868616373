"""What keeps a page safe, checked for every page: forms, addresses, headers, and templates as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.routing import Route

import rollbook.portal
from rollbook.app import create_app
from rollbook.portal.page import HOME, local_path
from rollbook.server.settings import Settings
from tests.server.people import House, web

PORTAL = Path(rollbook.portal.__file__).parent
TEMPLATES = sorted((PORTAL / "templates").glob("*.html"))
SCRIPTS = sorted((PORTAL / "static").glob("*.js"))
WITHOUT_SESSION = {"sign_in.html", "invitation.html"}
"""Their forms are sent by people who have no session yet; the Origin alone protects them."""


def page_routes(method: str, folder: Path) -> list[str]:
    return [
        each.path
        for each in create_app(Settings.load(folder)).routes
        if isinstance(each, Route)
        and method in (each.methods or ())
        and not each.path.startswith(("/api/", "/blobs"))
    ]


# ----------------------------------------------------------------------------------------------- forms


def test_every_form_refuses_other_sites(sqlite_house: House, tmp_path: Path) -> None:
    """With everything right but the place that the form was sent from."""
    owner = sqlite_house.owner
    paths = page_routes("POST", tmp_path)
    assert len(paths) > 20
    for path in paths:
        at = re.sub(r"\{[^}]*\}", "x", path)
        for origin in ("https://evil.example", "null", f"{owner.base_url}.evil.example", None):
            headers = {} if origin is None else {"Origin": origin}
            answer = owner.http.post(at, data={"csrf_token": owner.csrf}, headers=headers)
            assert answer.status_code == 403, (path, origin)
            assert "has to be sent from a page of this server" in answer.text, (path, origin)


def test_every_form_of_a_signed_in_person_refuses_a_wrong_token(
    sqlite_house: House, tmp_path: Path
) -> None:
    owner = sqlite_house.owner
    for path in page_routes("POST", tmp_path):
        if path in ("/sign-in", "/invitation"):
            continue
        at = re.sub(r"\{[^}]*\}", "x", path)
        for token in ("", "wrong", sqlite_house.other_owner.csrf):
            answer = owner.submit(at, token=token)
            assert (answer.status_code, "CSRF token" in answer.text) == (403, True), (path, token)


def test_no_page_changes_by_get(tmp_path: Path) -> None:
    """A form that changes something is sent with POST: what GET opens only reads, or asks."""
    both = set(page_routes("GET", tmp_path)) & set(page_routes("DELETE", tmp_path))
    assert both == set()
    assert page_routes("PUT", tmp_path) == page_routes("PATCH", tmp_path) == []


# ------------------------------------------------------------------------------------------- addresses


def as_a_browser_reads(path: str) -> str:
    """Browsers drop tabs and line ends, trim spaces and control characters, and take a backslash for a slash."""
    dropped = re.sub(r"[\t\r\n]", "", path).strip("".join(map(chr, range(33))))
    return dropped.replace("\\", "/")


@given(st.text(max_size=60) | st.text(alphabet="/\\.:@?#\t\n evil", max_size=20))
@example("//evil.example")
@example("/\\evil.example")
@example("/\t/evil.example")
@example("https:evil.example")
@example("/ /evil.example")
def test_no_path_leads_to_another_host(path: str) -> None:
    for prefix in ("", "/below/here"):
        target = urljoin("https://host.example/x", as_a_browser_reads(prefix + local_path(path)))
        assert urlsplit(target).netloc == "host.example"


@pytest.mark.parametrize("path", ["/portal", "/portal/episodes?a=1&b=%2F", "/cli/auth?code=A-B"])
def test_a_path_of_ours_stays(path: str) -> None:
    assert local_path(path) == path
    assert local_path(None) == local_path("") == HOME


# --------------------------------------------------------------------------------------------- headers


def test_every_page_of_a_signed_in_person_has_the_headers(
    sqlite_house: House, tmp_path: Path
) -> None:
    """Also pages that say that there is nothing."""
    for path in page_routes("GET", tmp_path):
        answer = sqlite_house.owner.get(re.sub(r"\{[^}]*\}", "x", path))
        assert answer.status_code < 500, path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        if answer.headers.get("content-type", "").startswith("text/html"):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert "unsafe" not in policy, path
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["referrer-policy"] == "same-origin", path


def test_a_page_that_is_not_there_is_the_same_for_a_foreign_id(sqlite_house: House) -> None:
    """Byte for byte, whatever the kind; tests/server/test_tenancy_matrix.py tries every route."""
    foreign = sqlite_house.other_owner.call("POST", "/api/ingest/episode", json={}).json()
    unknown = "01890000-0000-7000-8000-00000000ffff"
    for path in ("/portal/episodes/{}", "/portal/find?q={}"):
        answers = [
            sqlite_house.owner.get(path.format(each)).content.replace(each.encode(), b"ID")
            for each in (foreign["episode_id"], unknown)
        ]
        assert answers[0] == answers[1], path


def test_a_page_for_nobody_says_nothing_of_an_organisation(
    sqlite_house: House, tmp_path: Path
) -> None:
    with web(sqlite_house.server) as nobody:
        for path in page_routes("GET", tmp_path):
            answer = nobody.get(re.sub(r"\{[^}]*\}", "x", path))
            assert answer.status_code in (200, 303, 404), path
            assert "First" not in answer.text, path


# ------------------------------------------------------------------------------------------- templates


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_keeps_the_rules(template: Path) -> None:
    """No script or style inside, every form with its token, every address through `url` or `static`."""
    text = template.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style\b|\sstyle=|\son[a-z]+=", text)
    assert "javascript:" not in text
    if template.name not in WITHOUT_SESSION:
        assert text.lower().count('method="post"') == text.count('{% include "csrf.html" %}')
    for address in re.findall(r'\b(?:href|src|action|formaction|poster)="([^"]*)', text):
        # a name without a dot is an address that the page or the caller of a macro made
        made = r"\{\{ ?(url|static)\(|#|\?|\{\{ ?\w*(link|action|address|url)(\(.*)? ?\}\}"
        assert re.match(made, address), address
    # what stands in the template itself may be markup: a literal, or a shape of an icon
    for trusted in re.findall(r"(\S+)\s*\|\s*safe", text):
        assert re.fullmatch(r'"[^"]*"|(shapes|paths|solid)\S*', trusted), trusted


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_writes_no_html_and_runs_no_text(script: Path) -> None:
    text = script.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    assert not re.search(r"""['"`]https?://(?!www\.w3\.org/)""", text)

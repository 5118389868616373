"""Account pages in a real browser: narrow screens, what is shown once, questions before an end, and hostile uploads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import Scope
from tests.browser.signed_in import window_of
from tests.portal.test_prefix import PREFIX, start_below
from tests.server.people import House, Person, join
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation

pytestmark = pytest.mark.slow

LONG_NAME = "Northlight Robotics Research and Development Laboratory for Dexterous Manipulation" * 2
WIDTH = 375


@pytest.fixture(scope="module")
def owner(sqlite_house: House) -> Iterator[Person]:
    """Of an organisation with a long name and a member with a long address."""
    server = sqlite_house.server
    access = new_organisation(server)
    with closing(open_database(f"sqlite:///{server.data_dir / 'rollbook.db'}")) as database:
        database.write_now(
            Tenant(org_id=access.org_id),
            lambda connection: Scope(connection, access.org_id).rename_organisation(LONG_NAME),
        )
    person = Person(server).sign_in_by_link(access)
    join(server, person, f"{'long-' * 12}address@subdomain.northlight.example", "viewer").close()
    yield person
    person.close()


def expect_inside(page: Page, *parts: Locator) -> None:
    """Nothing is cut off at the side, and the page does not scroll sideways."""
    width = page.evaluate("innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in parts:
        for each in part.all():
            each.scroll_into_view_if_needed()
            box = each.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width, each.text_content()


def test_a_device_is_approved_on_a_narrow_screen(browser: Browser, owner: Person) -> None:
    asked = {"hostname": f"{'workstation-' * 15}17", "user_agent": "x" * 300, "label": "arm" * 60}
    login = owner.http.post("/api/cli/auth/start", json=asked).json()
    with window_of(browser, owner, width=WIDTH) as window:
        page = window.open(f"/cli/auth?code={login['user_code']}")
        expect(page.get_by_text(LONG_NAME)).to_be_visible()
        expect_inside(page, page.get_by_role("button"), page.get_by_role("radio"))
        page.get_by_role("button", name="Authorize").click()
        expect(page.get_by_role("heading", name="Device connected")).to_be_visible()
    polled = owner.http.post("/api/cli/auth/poll", json={"device_code": login["device_code"]})
    assert polled.json()["status"] == "approved"


def test_a_long_label_does_not_push_the_actions_off_a_wide_screen(
    browser: Browser, owner: Person
) -> None:
    made = owner.call("POST", "/api/keys", json={"label": "k" * 200}).json()["key"]["key_id"]
    with window_of(browser, owner) as window:
        page = window.open("/keys")
        edge = page.locator(".scroll").first.bounding_box()
        revoke = page.get_by_role("link", name="Revoke kkk").bounding_box()
        assert edge is not None
        assert revoke is not None
        assert revoke["x"] + revoke["width"] <= edge["x"] + edge["width"]
    owner.call("DELETE", f"/api/keys/{made}")


def test_members_and_keys_are_managed_on_a_narrow_screen(browser: Browser, owner: Person) -> None:
    with window_of(browser, owner, width=WIDTH, theme="dark") as window:
        page = window.open("/members")
        remove = page.get_by_role("link", name="Remove")
        expect(remove).to_have_count(1)
        expect_inside(page, remove, page.get_by_role("button", name="Change the role"))
        remove.click()
        expect(page.get_by_role("heading", name="Remove long-")).to_be_visible()
        expect_inside(page, page.get_by_role("button", name="Remove"))

        page = window.open("/keys")
        page.get_by_label("Label").fill("arm 3, " + "lab" * 60)
        page.get_by_role("radio", name="read read everything").check()
        page.get_by_role("button", name="Create key").click()
        key = page.locator(".once pre").text_content() or ""
        assert key.startswith("rv_")
        expect_inside(page, page.get_by_role("link", name="Revoke"), page.locator(".once .btn"))
        page.get_by_role("link", name="Revoke arm 3").click()
        page.get_by_role("button", name="Revoke key").click()
        expect(page.locator("summary", has_text="Revoked keys")).to_be_visible()
        assert key not in page.content()

        page.get_by_label("Menu and account").click()
        expect_inside(page, page.locator(".drop a"))
        page.locator(".drop").get_by_role("link", name="Settings").click()
        for tab in ("Locked gates", "Retention", "Webhooks", "Audit log"):
            page.get_by_role("navigation", name="Settings").get_by_role("link", name=tab).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(tab)
            expect_inside(page, page.get_by_role("button"))


def test_the_map_of_keys_and_the_theme(browser: Browser, owner: Person) -> None:
    with window_of(browser, owner) as window:
        page = window.open("/keys")
        page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keyboard")
        expect(keys).to_be_visible()
        expect(keys.get_by_text("find an id or a name")).to_be_visible()
        page.keyboard.press("Escape")
        expect(keys).to_be_hidden()
        page.get_by_label("Label").fill("what?")
        expect(keys).to_be_hidden()
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_label("Menu and account").click()
        page.get_by_role("button", name="Light or dark").click()
        dark = page.evaluate(ground)
        assert dark != light
        page = window.open("/members")
        assert page.evaluate(ground) == dark, "the choice is kept"


def test_an_uploaded_page_does_not_run(browser: Browser, sqlite_house: House) -> None:
    """HTML in place of a video: neither where the episode shows it, nor when its own address is opened."""
    hostile = (
        b"<!doctype html><script>document.title = 'ran'; fetch('/api/whoami')</script>" + b" " * 900
    )
    with sqlite_house.server.client() as client:
        made = client.post("/api/ingest/episode", json={"request_uploads": ["video"]}).json()
        address = made["upload_urls"][0]["url"]
        put = client.put(address, content=hostile, headers={"Content-Type": "video/mp4"})
        assert put.status_code == 200, put.text
        episode = made["episode_id"]
        client.post(f"/api/ingest/episode/{episode}/finalize", json={"status": "ready"})
    with window_of(browser, sqlite_house.owner) as window:
        asked: list[str] = []
        window.page.on("request", lambda request: asked.append(request.url))
        page = window.open(f"/portal/episodes/{episode}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        path = f"/api/episodes/{episode}/artifact/video"
        answer = page.request.get(f"{window.base_url}{path}")
        assert answer.headers["content-type"] == "video/mp4"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        page.goto(f"{window.base_url}{path}")
        assert page.title() != "ran"
        assert not any("whoami" in each for each in asked)
        window.faults.clear()  # a video that is none is a fault, and no script of ours


def test_a_person_signs_in_below_a_path(browser: Browser, request: pytest.FixtureRequest) -> None:
    server: RunningServer = start_below(request.getfixturevalue("running_server"))
    visitor = Person(server)
    with window_of(browser, visitor, prefix=PREFIX) as window:
        page = window.open(f"/sign-in?token={server.first_org.sign_in_token}&next=/keys")
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{window.base_url}/keys")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Create key").click()
        expect(page.locator(".once pre")).to_contain_text("ri_")
        page.get_by_role("link", name="Revoke").first.click()
        page.get_by_role("button", name="Revoke key").click()
        expect(page).to_have_url(f"{window.base_url}/keys")
        page.get_by_role("link", name="Overview").click()
        expect(page).to_have_url(f"{window.base_url}/portal")
        page.get_by_label("Menu and account").click()
        page.get_by_role("button", name="Light or dark").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(f"{window.base_url}/sign-in")
        assert page.locator("html").get_attribute("data-theme") == "dark"
    visitor.close()
    server.close()

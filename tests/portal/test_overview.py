"""The overview: what an organisation has, and the three commands while it has nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from rollbook.portal.pages.home import family_of
from tests.portal.lists_world import seed_lists
from tests.server.people import House, Person, join
from tests.server.shared_server import new_organisation

_COMMAND = re.compile(r"<pre>(.*?)</pre>", re.DOTALL)


@pytest.fixture
def owner(sqlite_house: House) -> Iterator[Person]:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    yield person
    person.close()


def commands(page: str) -> list[str]:
    return [unescape(each) for each in _COMMAND.findall(page)]


def test_the_overview_says_what_was_decided_recorded_and_fails(owner: Person) -> None:
    world = seed_lists(owner, count=8)
    page = owner.get("/portal").text
    assert "8 episodes" in page
    assert "2 eval runs" in page
    for link in (
        f"/portal/evals/{world.open_run}",
        f"/portal/evals/{world.done_run}",
        f"/portal/scenarios/{world.scenario}",
        f"/portal/episodes/{world.episodes[-1]}",
    ):
        assert f'href="{link}"' in page
    assert "1 of 1 failing" in page
    assert re.search(r'class="worse nowrap">.*?fails', page)
    assert world.episodes[0] not in page, "only the newest episodes are shown"


def test_an_organisation_with_episodes_and_no_runs_is_shown_the_way_to_one(owner: Person) -> None:
    owner.call("POST", "/api/ingest/episode", json={"name": "alone"})
    page = owner.get("/portal").text
    assert "No eval run yet" in page
    assert "alone" in page
    assert "1 episode<" in page


def test_storage_is_shown_against_the_quota(sqlite_house: House) -> None:
    access = new_organisation(sqlite_house.server, quota_episodes=9, quota_bytes=2_000_000_000)
    person = Person(sqlite_house.server).sign_in_by_link(access)
    person.call("POST", "/api/ingest/episode", json={})
    page = person.get("/portal").text
    assert "quota 2.0 GB" in page
    assert "1 of 9" in page
    person.close()


def test_an_empty_organisation_gets_a_key_that_works_and_is_shown_once(owner: Person) -> None:
    first = owner.get("/portal").text
    assert "Nothing recorded yet" in first
    assert "ROLLBOOK_API_KEY=…" in commands(first)[0]
    made = owner.submit("/portal/first-key").text
    found = re.search(r"ROLLBOOK_API_KEY=(\S+)", commands(made)[0])
    assert found is not None
    headers = {"Authorization": f"Bearer {found[1]}"}
    answer = owner.http.get("/api/whoami", headers=headers)
    assert answer.json()["key"]["scope"] == "write"
    assert found[1] not in owner.get("/portal").text


def test_a_viewer_of_an_empty_organisation_is_told_why_they_cannot_record(
    sqlite_house: House, owner: Person
) -> None:
    viewer = join(sqlite_house.server, owner, "viewer@overview.example", "viewer")
    page = viewer.get("/portal").text
    assert "may read and not record" in page
    assert "Make a key" not in page
    assert viewer.submit("/portal/first-key").status_code == 403
    viewer.close()


@pytest.mark.slow
def test_the_three_commands_of_the_empty_page_work_as_they_stand(
    owner: Person, tmp_path: Path
) -> None:
    page = owner.submit("/portal/first-key").text
    script = "\n".join(["set -e", *commands(page)[:3]])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, **home},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Decision: Ship" in ran.stdout
    overview = owner.get("/portal").text
    assert (
        "30 stored" in owner.get("/portal/episodes?policy_version=left-1").text or "60" in overview
    )
    assert "balance-2" in overview


@pytest.mark.parametrize(
    ("version", "family"),
    [
        ("pick-act-v4-rc1", "pick-act"),
        ("nbv_unknown_2", "nbv_unknown"),
        ("cable.diff.1.0", "cable.diff"),
        ("v4", "v4"),
        ("nightly", "nightly"),
        ("2026-11-16", "2026-11-16"),
    ],
)
def test_the_family_of_a_version_is_the_text_before_its_number(version: str, family: str) -> None:
    assert family_of(version) == family

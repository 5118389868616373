"""Pages of rollout stores: what they show, and what they do with wrong and hostile input."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from html import unescape

import httpx
import numpy as np
import pytest

from rollbook.store.audit.candidates import validity_waterfall_rows
from rollbook.store.reader import RolloutZarrStoreReader
from tests.portal.stores_world import StoresWorld, small_store, start_stores_world
from tests.server.fixtures import StartServer
from tests.server.people import Person, join

HOSTILE = "\"'><svg onload=alert(1)>"


@pytest.fixture(scope="module")
def world(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoresWorld]:
    made = start_stores_world(running_server, tmp_path_factory.mktemp("stores"))
    small_store(made.root / "flats.zarr", 60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def store(world: StoresWorld) -> str:
    """The path of its page."""
    return f"/portal/stores/{world.register(world.root / 'flats.zarr', name='flats')['id']}"


def page(world: StoresWorld, path: str) -> str:
    answer = world.owner.get(path)
    assert answer.status_code == 200, answer.text
    assert "onload=alert(1)>" not in answer.text
    assert len(answer.content) < 150_000
    return answer.text


def rows_in(text: str) -> list[int]:
    return [int(each) for each in re.findall(r'href="[^"]*/rollouts/(\d+)"', text)]


def test_an_admin_registers_a_store_by_form_and_lands_on_its_page(world: StoresWorld) -> None:
    place = small_store(world.root / "by-form.zarr", 3)
    answer = world.owner.submit("/portal/stores", place=str(place), name="")
    assert answer.status_code == 303
    path = answer.headers["location"]
    assert "by-form.zarr" in page(world, path)
    assert path in page(world, "/portal/stores")
    asked = page(world, f"{path}/remove")
    assert "Its files stay where they are" in asked
    assert world.owner.submit(f"{path}/remove").headers["location"] == "/portal/stores"
    assert world.owner.get(path).status_code == 404


def test_a_refused_place_stays_in_the_form_with_the_line_to_type(world: StoresWorld) -> None:
    place = f"/elsewhere/{HOSTILE}"
    answer = world.owner.submit("/portal/stores", place=place, name=HOSTILE)
    assert answer.status_code == 403
    told = unescape(answer.text)
    assert f"rollbook serve --store-root {world.server.org_id}=/elsewhere" in told
    assert "<svg onload" not in answer.text
    assert f'value="{place}"' in told


def test_the_page_shows_the_numbers_of_the_audit(world: StoresWorld, store: str) -> None:
    text = page(world, store)
    reader = RolloutZarrStoreReader(world.root / "flats.zarr")
    for row in validity_waterfall_rows(reader):
        assert f"{row['count']:,} " in text
    assert f"All {reader.num_rollouts}" in text
    assert "95 % interval" in text
    assert reader.store_manifest.payload["content_sha256"] in text
    gained = reader.array("rollouts/final_cumulative_target_root_gain")
    assert rows_in(text) == np.argsort(-gained, kind="stable")[:12].tolist()


def test_rollouts_are_filtered_sorted_and_paged_by_the_address(
    world: StoresWorld, store: str
) -> None:
    reader = RolloutZarrStoreReader(world.root / "flats.zarr")
    greedy = [
        row
        for row, word in enumerate(reader.decoded("rollouts", "policy_id"))
        if word == "oracle_greedy"
    ]
    assert rows_in(page(world, f"{store}/rollouts?policy=oracle_greedy")) == greedy
    first, second = (rows_in(page(world, f"{store}/rollouts?page={at}")) for at in (1, 2))
    assert first + second == list(range(reader.num_rollouts))
    gained = reader.array("rollouts/final_cumulative_target_root_gain")
    worst = rows_in(page(world, f"{store}/rollouts?sort=return"))
    assert worst == np.argsort(gained, kind="stable")[:50].tolist()
    assert 'aria-sort="ascending"' in page(world, f"{store}/rollouts?sort=return")
    assert rows_in(page(world, f"{store}/rollouts?page=99")) == second, "the last page"
    nothing = page(world, f"{store}/rollouts?policy=oracle_greedy&scene={HOSTILE}")
    assert "No rollout matches" in nothing


@pytest.mark.parametrize(
    "query", ["sort=name", "page=-1", "page=x", "page=1e9", "page=" + "9" * 30, "sort="]
)
def test_a_wrong_query_is_answered_in_words(world: StoresWorld, store: str, query: str) -> None:
    answer = world.owner.get(f"{store}/rollouts?{query}")
    assert answer.status_code == 400
    assert "expected" in answer.text


def test_suspicious_rows_lead_to_their_step(world: StoresWorld, store: str) -> None:
    text = page(world, f"{store}/suspicious")
    links = re.findall(r'href="([^"]*/rollouts/\d+\?step=\d+(?:&amp;cand=\d+)?)"', text)
    of_candidates = [each for each in links if "cand=" in each]
    assert of_candidates
    for link in (links[0], of_candidates[-1]):
        page(world, unescape(link))
    assert "invalid candidates: " in text
    assert not re.search(r"\b[A-Z]+(?:_[A-Z]+)+\b", text), "reasons are words, not codes"
    assert "Nothing unusual" in page(world, f"{store}/suspicious?kind={HOSTILE}")
    assert "reconstruct better" in page(world, f"{store}/targets?page=2")


def test_words_of_a_store_are_escaped_everywhere(world: StoresWorld) -> None:
    place = small_store(world.root / "hostile.zarr", 6, policies=(HOSTILE, "random_valid"))
    path = f"/portal/stores/{world.register(place, name=HOSTILE)['id']}"
    for below in ("", "/rollouts", "/targets", "/suspicious", "/remove"):
        page(world, f"{path}{below}")
    assert HOSTILE in unescape(page(world, path))
    page(world, "/portal/stores")


def test_a_store_of_one_candidate_has_a_page(world: StoresWorld) -> None:
    place = small_store(world.root / "one.zarr", 1, horizon=1, candidates=1)
    path = f"/portal/stores/{world.register(place)['id']}"
    for below in ("", "/rollouts", "/targets", "/suspicious"):
        page(world, f"{path}{below}")


def test_an_unreadable_store_says_since_when_and_why(world: StoresWorld) -> None:
    place = small_store(world.root / "vanishing.zarr", 3)
    path = f"/portal/stores/{world.register(place)['id']}"
    shutil.rmtree(place)
    text = page(world, path)
    assert "Unreadable since" in text
    assert "there is no such folder" in text
    assert "unreadable" in page(world, "/portal/stores")
    for below in ("/rollouts", "/targets", "/suspicious"):
        answer = world.owner.get(f"{path}{below}")
        assert answer.status_code == 409
        assert "cannot be read" in answer.text
    assert world.owner.submit(f"{path}/verify").status_code == 409


def test_a_store_that_loses_a_column_says_which(world: StoresWorld) -> None:
    # of another size than the other stores here: those of one second and one content share their summary
    place = small_store(world.root / "damaged.zarr", 7)
    path = f"/portal/stores/{world.register(place)['id']}"
    shutil.rmtree(place / "candidates" / "target_root_gain")
    answer = world.owner.get(path)
    assert answer.status_code == 409
    assert "the file is missing" in answer.text


# -------------------------------------------------------------------------------------- verification


def verified(world: StoresWorld, path: str) -> str:
    """The page after the verification has ended."""
    assert world.owner.submit(f"{path}/verify").status_code == 303
    deadline = time.monotonic() + 60
    while "verifying," in (text := page(world, path)):
        assert time.monotonic() < deadline, "the verification does not end"
    return text


def test_a_check_mark_stands_only_beside_what_was_verified(world: StoresWorld) -> None:
    place = small_store(world.root / "good.zarr", 6)
    made = world.register(place)
    path = f"/portal/stores/{made['id']}"
    assert "not verified" in page(world, path)
    assert "every byte checked" in verified(world, path)
    told = world.owner.get(f"/api/stores/{made['id']}").json()["verification"]
    assert (told["state"], told["violation_count"]) == ("passed", 0)
    assert told["done"] == told["total"] > 20
    shutil.rmtree(place)
    small_store(place, 3)
    assert "changed since it was verified" in page(world, path)


def test_a_flipped_bit_is_found_by_the_verification(world: StoresWorld) -> None:
    place = small_store(world.root / "flipped.zarr", 6)
    path = f"/portal/stores/{world.register(place)['id']}"
    column = next(each for each in (place / "candidates" / "target_rri").rglob("c*/*"))
    data = bytearray(column.read_bytes())
    data[len(data) // 2] ^= 1
    column.write_bytes(bytes(data))
    text = verified(world, path)
    assert "violation" in text
    assert "What the verification found" in text
    assert "candidates/target_rri" in text


def test_viewers_look_and_change_nothing(world: StoresWorld, store: str) -> None:
    viewer: Person = join(world.server, world.owner, "viewer@stores.example", "viewer")
    text = viewer.get(store).text
    assert "All 60" in text
    assert "/verify" not in text
    assert "/remove" not in text
    assert 'name="place"' not in viewer.get("/portal/stores").text
    assert viewer.submit(f"{store}/verify").status_code == 403
    viewer.close()


def test_another_organisation_sees_no_store_and_how_to_allow_its_own(world: StoresWorld) -> None:
    text = world.other_owner.get("/portal/stores").text
    assert "No store is registered" in text
    assert str(world.root) not in text


def test_whoever_is_not_signed_in_signs_in_first(world: StoresWorld, store: str) -> None:
    answer = httpx.get(f"{world.server.base_url}{store}")
    assert answer.status_code == 303
    assert "/sign-in?next=" in answer.headers["location"]

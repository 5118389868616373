"""Who may register which store, and what the server says about it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from rollbook.store.reader import RolloutZarrStoreReader
from tests.portal.stores_world import StoresWorld, small_store
from tests.server.people import Person


def test_a_registered_store_is_listed_with_what_it_holds(world: StoresWorld) -> None:
    made = world.register(world.root / "shared.zarr", name="Flats of November")
    reader = RolloutZarrStoreReader(world.root / "shared.zarr")
    assert made["name"] == "Flats of November"
    assert made["state"] == "readable"
    assert made["content_sha256"] == reader.store_manifest.payload["content_sha256"]
    assert (made["rollouts"], made["steps"]) == (reader.num_rollouts, reader.num_steps)
    listed = world.owner.get("/api/stores").json()["stores"]
    assert made in listed
    assert world.owner.get(f"/api/stores/{made['id']}").json() == made
    again = world.refused(world.root / "shared.zarr")
    assert again.status_code == 409
    assert again.json()["store_id"] == made["id"]
    gone = world.owner.call("DELETE", f"/api/stores/{made['id']}")
    assert gone.json() == {"id": made["id"], "removed": True}
    assert (world.root / "shared.zarr" / "manifest.json").exists(), "the files stay"
    events = [each["event"] for each in world.owner.get("/api/audit").json()["events"]]
    assert events[:2] == ["store.removed", "store.registered"]


@pytest.mark.parametrize(
    "place",
    [
        "/etc",
        "{root}/../second/theirs.zarr",
        "{root}/./shared.zarr",
        "{root}//shared.zarr",
        "{other_root}/theirs.zarr",
        "{root}elsewhere/shared.zarr",
        "shared.zarr",
        "s3://bucket/store.zarr",
        "https://example.com/store.zarr",
        "file://{root}/shared.zarr",
    ],
)
def test_what_lies_in_no_root_of_the_organisation_is_refused_unseen(
    world: StoresWorld, place: str
) -> None:
    theirs = world.other_root / "theirs.zarr"
    if not theirs.exists():
        small_store(theirs, 3)
    asked = place.format(root=world.root, other_root=world.other_root)
    answer = world.refused(asked)
    assert answer.status_code == 403
    assert answer.json()["code"] == "outside_store_roots"
    assert f"rollbook serve --store-root {world.server.org_id}=" in answer.json()["error"]


def test_the_line_that_allows_a_root_can_be_typed_as_it_stands(world: StoresWorld) -> None:
    told = world.refused("/data/my stores/first.zarr").json()["error"]
    line = told.partition("allows it with: ")[2]
    root = f"{world.server.org_id}=/data/my stores"
    assert shlex.split(line) == ["rollbook", "serve", "--store-root", root]
    told = world.refused("/etc").json()["error"]
    assert told.endswith(f"--store-root {world.server.org_id}=/etc"), "not all of the machine"


def test_the_second_organisation_cannot_register_a_store_of_the_first(world: StoresWorld) -> None:
    real = world.refused(world.root / "shared.zarr", world.other_owner)
    unknown = world.refused(world.root / "unknown.zarr", world.other_owner)
    assert real.status_code == unknown.status_code == 403
    assert real.json()["error"].replace("shared", "unknown") == unknown.json()["error"]


def test_a_link_that_leaves_the_root_is_not_followed(world: StoresWorld, tmp_path: Path) -> None:
    elsewhere = small_store(tmp_path / "elsewhere.zarr", 3)
    (world.root / "link.zarr").symlink_to(elsewhere)
    answer = world.refused(world.root / "link.zarr")
    assert (answer.status_code, answer.json()["code"]) == (400, "not_a_store")
    (world.root / "above").symlink_to(tmp_path)
    answer = world.refused(world.root / "above" / "elsewhere.zarr")
    assert (answer.status_code, answer.json()["code"]) == (400, "not_a_store")


def test_what_is_no_store_is_refused_with_the_reason(world: StoresWorld) -> None:
    (world.root / "empty").mkdir()
    answer = world.refused(world.root / "empty")
    assert answer.status_code == 400
    assert "it is not a rollout store" in answer.json()["error"]
    garbled = small_store(world.root / "garbled.zarr", 3)
    manifest = json.loads((garbled / "manifest.json").read_text())
    manifest["files"] = {"../../second/theirs.zarr/zarr.json": [1, "00"]}
    (garbled / "manifest.json").write_text(json.dumps(manifest))
    answer = world.refused(garbled)
    assert answer.status_code == 400
    assert "manifest.json is not the one" in answer.json()["error"]


def test_a_store_that_vanishes_and_returns(world: StoresWorld) -> None:
    store = small_store(world.root / "vanishing.zarr", 3)
    made = world.register(store)
    path = f"/api/stores/{made['id']}"
    store.rename(world.root / "away")
    gone = world.owner.get(path).json()
    assert gone["state"] == "unreadable"
    assert "there is no such folder" in gone["problem"]
    assert gone["rollouts"] == made["rollouts"], "what was last seen stays"
    assert world.owner.get(path).json()["unreadable_at"] == gone["unreadable_at"], "since then"
    (world.root / "away").rename(store)
    assert world.owner.get(path).json() == made


def test_a_store_that_is_written_again_is_noticed(world: StoresWorld) -> None:
    store = small_store(world.root / "rewritten.zarr", 3)
    made = world.register(store)
    shutil.rmtree(store)
    small_store(store, 6)
    read = world.owner.get(f"/api/stores/{made['id']}").json()
    assert read["rollouts"] == 6
    assert read["content_sha256"] != made["content_sha256"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"place": ""}, "$.place"),
        ({"place": "/a\0b"}, "$.place"),
        ({"place": "/" + "a" * 3000}, "$.place"),
        ({"place": 7}, "$.place"),
        ({}, "$"),
    ],
)
def test_a_wrong_request_names_the_field(
    world: StoresWorld, body: dict[str, object], where: str
) -> None:
    answer = world.owner.call("POST", "/api/stores", json=body)
    assert (answer.status_code, answer.json()["where"]) == (400, where)


def test_a_hostile_name_is_refused_or_kept_as_text(world: StoresWorld) -> None:
    place = str(world.root / "shared.zarr")
    refused = world.owner.call("POST", "/api/stores", json={"place": place, "name": "a\nb"})
    assert refused.status_code == 400
    made = world.register(place, name="<script>alert(1)</script>")
    assert made["name"] == "<script>alert(1)</script>"
    world.owner.call("DELETE", f"/api/stores/{made['id']}")


def test_a_server_without_roots_says_how_to_set_one(world: StoresWorld) -> None:
    other: Person = world.other_owner
    answer = world.refused(f"{world.root}/shared.zarr", other)
    line = f"--store-root {world.server.second_org.org_id}={world.root}"
    assert answer.json()["error"].endswith(line)
    assert os.path.isdir(world.root)

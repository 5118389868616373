"""The page of one rollout: what it shows is what the store holds, also when something is missing or hostile."""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from rollbook.generate.sources.reader import SourceStore
from rollbook.portal.store_words import reason_words
from rollbook.server.stores import scene
from rollbook.store.audit import candidate_audit_rows
from rollbook.store.reader import RolloutZarrStoreReader
from tests.portal.steps_world import DEPTH, HOSTILE, rollouts_in, source_beside
from tests.portal.stores_world import StoresWorld, start_stores_world
from tests.server.fixtures import StartServer
from tests.store.tampering import edit, sign


@dataclass(frozen=True)
class Rollouts:
    world: StoresWorld
    source: SourceStore
    place: Path
    store_id: str

    def get(self, path: str = "", row: object = 1, **options: Any) -> httpx.Response:
        address = f"/portal/stores/{self.store_id}/rollouts/{row}{path}"
        return self.world.owner.get(address, **options)

    def other(self, place: Path) -> Rollouts:
        return Rollouts(self.world, self.source, place, self.world.register(place)["id"])

    @property
    def reader(self) -> RolloutZarrStoreReader:
        return RolloutZarrStoreReader(self.place)

    def step(self, number: int, row: int = 1) -> int:
        return int(self.reader.array("rollouts/step_offset")[row]) + number - 1


@pytest.fixture(scope="module")
def rollouts(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rollouts]:
    world = start_stores_world(running_server, tmp_path_factory.mktemp("steps"))
    source = source_beside(world.root)
    place = rollouts_in(world.root / "a.zarr", source)
    yield Rollouts(world, source, place, world.register(place)["id"])
    world.close()


def unpacked(body: bytes) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """The head of a scene, its vertices, the corners of its triangles, and the walk."""
    (length,) = struct.unpack_from("<I", body)
    assert length % 4 == 0
    head = json.loads(body[4 : 4 + length])
    numbers = np.frombuffer(body, "<u4", offset=4 + length)
    ends = np.cumsum([head["vertices"], head["triangles"], head["walk"]]) * 3
    parts = np.split(numbers, ends)
    assert not len(parts[3])
    vertices, corners, walk = (part.reshape(-1, 3) for part in parts[:3])
    return head, vertices.view("<f4"), corners, walk.view("<f4")


# ------------------------------------------------------------------------------------------- page


def test_the_page_says_which_step_what_was_taken_and_what_it_gained(rollouts: Rollouts) -> None:
    answer = rollouts.get("?step=2")
    assert answer.status_code == 200
    reader, step = rollouts.reader, rollouts.step(2)
    assert f"Rollout 1, step 2 of {reader.array('rollouts/num_steps')[1]}" in answer.text
    [taken] = [row for row in candidate_audit_rows(reader, step_row_id=step) if row["selected"]]
    assert f"Candidate {taken['candidate_row_id']}</h2>" in answer.text
    assert f"{taken['target_root_gain']:.3f}" in answer.text
    gains = reader.array("candidates/target_root_gain")[
        reader.array("candidates/step_row_id") == step
    ].astype(float)
    assert f"{np.nanmean(gains):.3f} on average" in answer.text


def test_without_a_script_steps_candidates_colours_and_order_are_links(rollouts: Rollouts) -> None:
    page = rollouts.get("?step=2").text
    links = [
        each.replace("&amp;", "&")
        for each in re.findall(r'<a[^>]*data-swap[^>]*href="([^"]+)"', page)
    ]
    assert len(links) > 15
    for link in links:
        answer = rollouts.world.owner.get(link)
        assert answer.status_code == 200, link
        assert "style=" not in answer.text
    assert {"step=1", "step=3", "colour=family", "sort=row", "rows=all"} <= {
        part for link in links for part in link.partition("?")[2].split("&")
    }


def test_the_table_has_every_candidate_when_asked_in_the_order_asked_for(
    rollouts: Rollouts,
) -> None:
    reader = rollouts.reader
    rows = candidate_audit_rows(reader, step_row_id=rollouts.step(1))
    by_row = [row["candidate_row_id"] for row in rows]

    def listed(query: str) -> list[int]:
        page = rollouts.get(f"?{query}").text
        return [int(each) for each in re.findall(r'id="row-(\d+)"', page)]

    assert listed("sort=row&rows=all") == by_row
    assert listed("sort=row") == by_row[:12]
    families = {row["candidate_row_id"]: row["position"] for row in rows}
    found = [families[each] for each in listed("sort=family&rows=all")]
    assert found == sorted(found)


def test_an_invalid_candidate_says_all_reasons(rollouts: Rollouts) -> None:
    rows = candidate_audit_rows(rollouts.reader, step_row_id=rollouts.step(1))
    invalid = next(row for row in rows if not row["actor_action"])
    page = rollouts.get(f"?cand={invalid['candidate_row_id']}").text
    assert f"Invalid: {reason_words(invalid['invalid_reason'])}" in page, (
        "as on the page of the store"
    )
    assert not re.search(r"\b[A-Z]+(?:_[A-Z]+)+\b", page)
    assert "Root gain" not in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("?step=0", 404),
        ("?step=99", 404),
        ("?step=-1", 400),
        ("?step=two", 400),
        ("?step=", 400),
        ("?cand=0", 404),
        ("?cand=x", 400),
        (f"?cand={'9' * 40}", 400),
        ("?colour=red", 400),
        ("?sort=price", 400),
        ("/steps/0", 404),
        ("/steps/x", 404),
        ("/steps/1?colour=red", 400),
        ("/depth/99", 404),
        ("/depth/1?near=2&far=1", 400),
        ("/depth/1?near=nan&far=1", 400),
        ("/depth/1?far=1", 400),
    ],
)
def test_wrong_addresses_are_refused_in_words(rollouts: Rollouts, path: str, status: int) -> None:
    answer = rollouts.get(path)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("row", ["3", "-1", "x", "1e0", "9" * 40, "%00"])
@pytest.mark.parametrize("path", ["", "/scene", "/steps/1", "/depth/1"])
def test_a_row_that_does_not_exist_is_the_same_404(rollouts: Rollouts, path: str, row: str) -> None:
    answer = rollouts.get(path, row=row)
    assert answer.status_code == 404
    assert answer.text == rollouts.get(path, row="999").text


@pytest.mark.parametrize(
    "view", ["x", "1,2,3", "1,2,3,4,5,6,7", '1,2,3,4,5,"><script>', "nan,1,1,1,1,1"]
)
def test_a_view_that_cannot_be_read_is_left_out_of_the_links(rollouts: Rollouts, view: str) -> None:
    answer = rollouts.get("", params={"view": view})
    assert answer.status_code == 200
    assert "view=" not in answer.text
    assert "view=1.5,0.7,3,0,0,1" in rollouts.get("?view=1.5,0.7,3,0,0,1").text


# ------------------------------------------------------------------------------------------- data


def test_the_candidates_of_a_step_are_the_arrays_of_the_store(rollouts: Rollouts) -> None:
    found = rollouts.get("/steps/2").json()
    own = rollouts.reader.candidates(rollouts.step(2))
    assert found["rows"] == own["candidate_row_id"].tolist()
    assert found["valid"] == own["actor_action_mask"].tolist()
    assert found["taken"] == own["selected_mask"].tolist()
    np.testing.assert_array_equal(
        np.array(found["poses"], np.float32).reshape(-1, 12), own["pose_world_cam"]
    )
    best = int(np.nanargmax(own["target_root_gain"]))
    rgb = np.array(found["rgb"]).reshape(-1, 3)
    assert rgb[best].sum() == rgb[own["actor_action_mask"]].sum(axis=1).max()


def test_the_scene_has_the_mesh_of_the_source_below_the_cut_and_the_walk(
    rollouts: Rollouts,
) -> None:
    head, vertices, corners, walk = unpacked(rollouts.get("/scene").content)
    row = rollouts.source.row(0)
    mesh = rollouts.source.mesh(row.scene_id)
    assert head["kind"] == "mesh"
    assert head["of_triangles"] == len(mesh)
    np.testing.assert_array_equal(vertices, mesh.vertices)
    below = mesh.faces
    if head["cut_m"] is not None:
        below = below[(mesh.vertices[mesh.faces][:, :, 2] <= head["cut_m"]).any(axis=1)]
    np.testing.assert_array_equal(corners, below)
    np.testing.assert_array_equal(walk, row.actor.poses[:, 9:])
    reader = rollouts.reader
    np.testing.assert_array_equal(
        np.array(head["root"], np.float32), reader.array("rollouts/root_pose_world")[1]
    )
    target = int(reader.array("rollouts/target_row_id")[1])
    np.testing.assert_array_equal(
        np.array(head["target"]["extents"], np.float32),
        reader.array("targets/target_extents")[target],
    )
    assert len(head["taken"]) == reader.array("rollouts/num_steps")[1]


def test_no_ceiling_hides_the_room_however_high_the_cameras_are(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ceiling = float(rollouts.source.mesh(rollouts.source.row(0).scene_id).vertices[:, 2].max())
    poses = rollouts.reader.array("candidates/pose_world_cam").copy()
    for height in (ceiling - 1, ceiling - 0.02, ceiling + 0.5, np.nan):
        poses[:, 11] = height
        monkeypatch.setattr(scene, "poses_considered", lambda *_: poses)
        shown = scene.mesh_scene(rollouts.reader, 1, rollouts.source, 0)
        assert shown.cut_m is not None
        assert shown.cut_m < ceiling
        lowest_corners = shown.positions[shown.corners][:, :, 2].min(axis=1)
        assert (lowest_corners < ceiling - 0.01).all()


def test_a_browser_that_has_the_scene_is_told_so(rollouts: Rollouts) -> None:
    first = rollouts.get("/scene")
    again = rollouts.get("/scene", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "no-cache" in first.headers["cache-control"]


def test_depth_images_are_pictures_of_the_stored_depths(rollouts: Rollouts) -> None:
    answer = rollouts.get("/depth/1?near=0&far=10")
    assert answer.headers["content-type"] == "image/png"
    picture = Image.open(io.BytesIO(answer.content))
    assert picture.size == (DEPTH[1], DEPTH[0])
    near = Image.open(io.BytesIO(rollouts.get("/depth/1").content))
    assert near.tobytes() != picture.tobytes()


# ---------------------------------------------------------------------------------------- missing


def test_without_its_source_store_the_points_of_the_depth_images_are_shown(
    rollouts: Rollouts,
) -> None:
    folder = rollouts.world.root / "alone"
    folder.mkdir()
    made = rollouts.other(
        rollouts_in(folder / "b.zarr", rollouts.source, stated="/elsewhere/flats")
    )
    head, points, corners, walk = unpacked(made.get("/scene").content)
    assert head["kind"] == "points"
    assert "no source store" in head["reason"]
    assert len(points) > 100
    assert len(corners) == len(walk) == 0


def test_without_source_store_and_depth_only_boxes_and_poses_are_left(rollouts: Rollouts) -> None:
    folder = rollouts.world.root / "bare"
    folder.mkdir()
    place = rollouts_in(folder / "c.zarr", rollouts.source, stated="/elsewhere/flats", depth=False)
    made = rollouts.other(place)
    head, points, _, _ = unpacked(made.get("/scene").content)
    assert (head["kind"], len(points)) == ("none", 0)
    assert "no depth images" in made.get().text
    assert "<img" not in made.get().text
    assert made.get("/depth/1").status_code == 404


def test_a_long_rollout_lists_the_steps_around_the_one_that_is_shown(rollouts: Rollouts) -> None:
    place = rollouts_in(
        rollouts.world.root / "long.zarr", rollouts.source, horizon=100, candidates=4, depth=False
    )
    made = rollouts.other(place)
    for step, first, last in ((1, 1, 40), (50, 30, 69), (100, 61, 100)):
        page = made.get(f"?step={step}").text
        listed = [int(each) for each in re.findall(r'id="step-row-(\d+)"', page)]
        assert listed == list(range(first, last + 1))
        assert f"Steps {first} to {last} of 100." in page
        assert len(page) < 150_000


def test_another_source_store_at_the_same_place_is_not_shown(rollouts: Rollouts) -> None:
    wrong = {"source_offline_store_manifest_hash": "0" * 64}
    place = rollouts_in(rollouts.world.root / "d.zarr", rollouts.source, lineage=wrong)
    head, *_ = unpacked(rollouts.other(place).get("/scene").content)
    assert head["kind"] == "points"
    assert rollouts.source.manifest_digest in head["reason"]


def test_a_source_store_of_another_organisation_is_not_read(rollouts: Rollouts) -> None:
    world = rollouts.world
    foreign = world.other_root / "flats"
    shutil.copytree(rollouts.source.path, foreign)
    folder = world.root / "curious"
    folder.mkdir()
    place = rollouts_in(folder / "e.zarr", rollouts.source, stated=str(foreign))
    head, *_ = unpacked(rollouts.other(place).get("/scene").content)
    assert head["kind"] == "points"
    (folder / "flats").symlink_to(foreign)  # beside the store, where it is looked for too
    linked = rollouts_in(folder / "f.zarr", rollouts.source, stated=str(foreign), seed=5)
    head, *_ = unpacked(rollouts.other(linked).get("/scene").content)
    assert head["kind"] == "points"
    assert "link" in head["reason"]


def test_a_damaged_store_is_shown_as_far_as_it_goes(rollouts: Rollouts) -> None:
    place = rollouts_in(rollouts.world.root / "g.zarr", rollouts.source)

    def break_poses(values: np.ndarray, _: Any) -> None:
        values[::2] = np.nan

    edit(place, "candidates/pose_world_cam", break_poses)
    edit(place, "candidates/target_root_gain", lambda values, _: values.fill(np.inf))
    edit(place, "steps/selected_candidate_row_id", lambda values, _: values.fill(10**9))
    edit(place, "rollouts/target_row_id", lambda values, _: values.fill(-1))
    sign(place)
    made = rollouts.other(place)
    page = made.get()
    assert page.status_code == 200
    assert "names no candidate that was taken" in page.text
    assert "0 valid and labelled" in page.text
    found = made.get("/steps/1").json()
    assert len(found["poses"]) == 12 * len(found["rows"]) == 12 * 8
    head, *_ = unpacked(made.get("/scene").content)
    assert head["target"] is None
    assert head["taken"] == [None, None, None]


def test_what_it_was_made_from_has_a_check_mark_where_it_was_computed_again(
    rollouts: Rollouts,
) -> None:
    def states(page: str) -> dict[str, str]:
        return dict(
            re.findall(r"<span>([A-Z][\w ]+?) <span class=\"small \w+\">(\w+)</span>", page)
        )

    assert states(rollouts.get().text) == {
        "Store content": "recorded",
        "Lineage of the rollout": "verified",
        "Recipe": "recorded",
        "Candidate config": "recorded",
        "Oracle config": "recorded",
        "Source row 0": "verified",
        "Source manifest": "verified",
        "Mesh of the scene": "differs",  # records of tests name a mesh that never was
        "Split manifest": "differs",
    }


def test_names_from_the_store_are_text_and_never_markup(rollouts: Rollouts) -> None:
    hostile = {
        "target_class_name": HOSTILE,
        "rollout_policy": HOSTILE,
        "rollout_config_hash": HOSTILE,
    }
    place = rollouts_in(rollouts.world.root / "h.zarr", rollouts.source, lineage=hostile)
    made = rollouts.world.register(place, name=HOSTILE)
    page = rollouts.world.owner.get(f"/portal/stores/{made['id']}/rollouts/0?colour=family").text
    assert "onload=alert" in page
    assert "<svg onload" not in page
    assert "'><svg" not in page

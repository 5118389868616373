"""A rollout is walked back to its source row; a check mark stands only beside what was computed again."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.server.http.responses import Problem
from rollbook.server.queries import StoreRow
from rollbook.server.settings import Settings
from rollbook.server.store_files.open_stores import OpenStores
from rollbook.server.stores.lineage import LineageStep, lineage_of
from rollbook.server.stores.opened import OpenedStore, columns_of
from tests.portal.stores_world import generated_store

ORG = "the-organisation"
FROM_SOURCE = ("Source manifest", "Mesh of the scene", "Split manifest")


class Context:
    """What the lineage needs of a server: its stores."""

    def __init__(self, settings: Settings) -> None:
        self.stores = OpenStores(settings)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated_store(tmp_path_factory.mktemp("generated"))


@pytest.fixture
def store(generated: Path, tmp_path: Path) -> Path:
    """A copy, whose source store is beside it."""
    root = tmp_path / "root"
    shutil.copytree(generated.parent, root)
    return root / generated.name


def lineage(store: Path, row: int = 0, **changes: Any) -> dict[str, LineageStep]:
    settings = Settings.load(store.parents[1] / "data", store_roots=[f"{ORG}={store.parent}"])
    context: Any = Context(settings)
    place = context.stores.place(ORG, "", str(store))
    found = context.stores.read(ORG, place)
    kept: dict[str, Any] = dict.fromkeys(("added_by", "unreadable_at_us", "problem"))
    seen = columns_of(found)
    registered = StoreRow(
        id="x", name="x", place=str(store), added_at_us=1, verification=None, **kept, **seen
    )
    opened = OpenedStore(replace(registered, **changes), found, context.stores)
    steps = asyncio.run(lineage_of(context, ORG, opened, row))
    return {each.title.partition(" row")[0]: each for each in steps}


def checked(store: Path, state: str) -> dict[str, Any]:
    found = lineage(store)["Store content"]
    assert found.state == "recorded"
    manifest = OpenStores(
        Settings.load(store.parents[1] / "data", store_roots=[f"{ORG}={store.parent}"])
    )
    place = manifest.place(ORG, "", str(store))
    assert place is not None
    digest = manifest.read(ORG, place).manifest_sha256
    return {"state": state, "manifest_sha256": digest, "violation_count": 3}


def test_everything_is_verified_back_to_the_source(store: Path) -> None:
    found = lineage(store, verification=checked(store, "passed"))
    states = {title: each.state for title, each in found.items()}
    assert states == {
        "Store content": "verified",
        "Lineage of the rollout": "verified",
        "Recipe": "recorded",
        "Candidate config": "recorded",
        "Oracle config": "recorded",
        "Source": "verified",
        **dict.fromkeys(FROM_SOURCE, "verified"),
    }


def test_a_failed_verification_and_that_of_another_store_give_no_check_mark(store: Path) -> None:
    failed = checked(store, "failed")
    assert lineage(store, verification=failed)["Store content"].state == "differs"
    other = {**failed, "state": "passed", "manifest_sha256": "of another"}
    assert lineage(store, verification=other)["Store content"].state == "recorded"


def test_without_the_source_store_its_digests_are_only_recorded(store: Path) -> None:
    shutil.rmtree(store.parent / "sources")
    found = lineage(store)
    assert {found[title].state for title in (*FROM_SOURCE, "Source")} == {"recorded"}
    assert "there is no source store" in found["Source"].why


def test_a_changed_source_store_differs_and_so_does_another_one(store: Path) -> None:
    source = store.parent / "sources"
    manifest = source / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"created_by": "', '"created_by": "another '))
    found = lineage(store)["Source manifest"]
    assert (found.state, "was changed" in found.why) == ("differs", True)
    shutil.rmtree(source)
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    make_source_store(source, MakeSourcesConfig(scenes=1, seed=4, scene=scene))
    found = lineage(store)["Source manifest"]
    assert (found.state, "has the digest" in found.why) == ("differs", True)


def test_a_changed_mesh_differs(store: Path) -> None:
    for path in (store.parent / "sources" / "oracle").rglob("*"):
        if path.is_file() and "mesh" in str(path) and path.suffix != ".json":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(bytes(data))
    assert lineage(store)["Mesh of the scene"].state == "differs"


def test_a_link_in_the_source_store_is_not_followed(store: Path, tmp_path: Path) -> None:
    (store.parent / "sources").rename(tmp_path / "moved")
    (store.parent / "sources").symlink_to(tmp_path / "moved")
    found = lineage(store)
    assert found["Mesh of the scene"].state == "recorded"
    assert "link" in found["Mesh of the scene"].why


def test_a_row_that_there_is_not_is_unknown(store: Path) -> None:
    for row in (-1, 10**6):
        with pytest.raises(Problem) as refused:
            lineage(store, row)
        assert refused.value.status == 404

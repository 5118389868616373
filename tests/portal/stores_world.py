"""A server whose two organisations may each register stores of a folder of their own, and a real store to register."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.writer import write_rollout_zarr_store
from tests.generate.tiny_source import tiny_config, tiny_source
from tests.server.fixtures import StartServer
from tests.server.people import Person
from tests.server.running import RunningServer
from tests.store.synthetic import make_records

DEPTH = (24, 32)
"""Height and width of the depth images."""


@dataclass(frozen=True)
class StoresWorld:
    server: RunningServer
    owner: Person
    other_owner: Person
    root: Path
    """The root of the first organisation."""
    other_root: Path

    def register(self, place: Path | str, **more: str) -> dict[str, Any]:
        answer = self.owner.call("POST", "/api/stores", json={"place": str(place), **more})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def refused(self, place: Path | str, person: Person | None = None) -> httpx.Response:
        who = person or self.owner
        return who.call("POST", "/api/stores", json={"place": str(place)})

    def close(self) -> None:
        self.owner.close()
        self.other_owner.close()
        self.server.close()


def start_stores_world(
    start: StartServer,
    folder: Path,
    *,
    more_roots: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> StoresWorld:
    """`more_roots` are of the first organisation."""
    root, other_root = folder / "first", folder / "second"
    root.mkdir()
    other_root.mkdir()
    server = start(sign_ins_per_minute=100_000, **settings)
    server.prepare()
    theirs = f"{server.second_org.org_id}={other_root}"
    server.overrides["store_roots"] = [str(root), theirs, *more_roots]
    server.environment.update(environment or {})
    server.start()
    owner = Person(server).sign_in_by_link(server.first_org)
    other_owner = Person(server).sign_in_by_link(server.second_org)
    return StoresWorld(server, owner, other_owner, root, other_root)


def small_store(place: Path, records: int = 12, **options: Any) -> Path:
    """Three policies, two targets per source row, shells of 16 candidates with a depth image for each step."""
    wanted: dict[str, Any] = {
        "horizon": 3,
        "candidates": 16,
        "depth": DEPTH,
        "unlabelled_fraction": 0.05,
        "unmatched_fraction": 0.2,
        **options,
    }
    write_rollout_zarr_store(
        place,
        make_records(records, **wanted),
        selected_depth_height_px=DEPTH[0],
        selected_depth_width_px=DEPTH[1],
        manifest_context=RolloutStoreManifestContext.programmatic(writer_config={}),
    )
    return place


def generated_store(root: Path) -> Path:
    """A store made by generation, with its source store beside it: two flats, two recipes, a depth image per step."""
    source, place = root / "sources", root / "generated.zarr"
    shutil.copytree(tiny_source(), source)
    stated = {"store_dir": str(source), "split": "train"}
    tiny_config(place, source=stated).setup_target().run()
    return place

"""A file that the manifest lists and the disk lacks is an error at first use, never a column of fill values."""

from __future__ import annotations

import functools
import http.server
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import StorageError, TruncatedFile
from rollbook.store.audit import (
    candidate_audit_rows,
    rollout_step_objective_rows,
    selected_depth_summary_rows,
    validity_waterfall_rows,
)
from rollbook.store.collection import RolloutCollection
from rollbook.store.mapped import MappedArray
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.repack import repack_store
from rollbook.store.urls.remote import open_store
from rollbook.store.views.frames import pandas_frame
from rollbook.store.writer import write_rollout_zarr_store
from rollbook.train.dataset import QHStates
from tests.store.synthetic import make_records
from tests.store.tampering import (
    copy_store,
    edit_group,
    inodes_of,
    replace_file,
    restore_store,
    write_manifest,
)

Reader = RolloutZarrStoreReader
Use = Callable[[Reader], Any]
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same store in both profiles."""
    folder = tmp_path_factory.mktemp("lost")
    write_rollout_zarr_store(
        folder / "local",
        make_records(3, seed=5, depth=(12, 16), features=3),
        selected_depth_width_px=16,
        selected_depth_height_px=12,
    )
    repack_store(folder / "local", folder / "archive", "archive")
    for name in ("local", "archive"):
        copy_store(folder / name, folder / f"{name}-copy")
    return {name: folder / name for name in ("local", "archive")}


@pytest.fixture(params=["local", "archive"])
def store(request: pytest.FixtureRequest, stores: dict[str, Path]) -> Iterator[Path]:
    """A copy to be damaged."""
    original = stores[request.param]
    copy = original.with_name(f"{original.name}-copy")
    yield copy
    restore_store(copy, original)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    replace_file(path, path.read_bytes()[:-1])


USES: dict[str, tuple[str, Use]] = {
    "array": ("q_h/td_reward/c/0", lambda reader: reader.array("q_h/td_reward")),
    "batches": ("q_h/td_reward/c/0", lambda reader: next(reader.batches(4))),
    "one column in batches": (
        "q_h/td_reward/c/0",
        lambda reader: next(reader.batches(4, columns=["td_reward"])),
    ),
    "dense view": ("q_h/td_reward/c/0", lambda reader: reader.q_h_view()),
    "dense view with another discount": (
        "q_h/td_reward/c/0",
        lambda reader: reader.q_h_view(discount_gamma=0.5),
    ),
    "returns": ("returns/mc_return/c/0", lambda reader: reader.returns_view()),
    "returns with another discount": (
        "candidates/target_root_gain/c/0",
        lambda reader: reader.returns_view(discount_gamma=0.5),
    ),
    "columns that share an array": (
        "targets/scores/c/0/0",
        lambda reader: reader.array("targets/gt_match_iou"),
    ),
    "one chain": ("steps/candidate_offset/c/0", lambda reader: reader.rollout(0)),
    "one shell": ("candidates/pose_world_cam/c/0/0", lambda reader: reader.candidates(0)),
    "depth image": ("selected_depth/depth_m/c.0.0.0", lambda reader: reader.selected_depth(0)),
    "depth images": (
        "selected_depth/depth_m/c.0.0.0",
        lambda reader: reader.array("selected_depth/depth_m"),
    ),
    "mask of a depth image": (
        "selected_depth/valid_mask/zarr.json",
        lambda reader: reader.selected_depth(0),
    ),
    "words": ("dictionaries/zarr.json", lambda reader: reader.words("policy")),
    "zarr-python": ("q_h/td_reward/c/0", lambda reader: reader.root["q_h/td_reward"]),
    "optional column": (
        "q_h/actor_features/zarr.json",
        lambda reader: reader.q_h_view(),
    ),
    "audit of candidates": (
        "candidates/target_rri/c/0",
        lambda reader: candidate_audit_rows(reader),
    ),
    "audit of a chain": (
        "steps/cumulative_target_root_gain/c/0",
        lambda reader: rollout_step_objective_rows(reader, rollout_row_id=0),
    ),
    "waterfall": (
        "candidates/actor_action_mask/c/0",
        lambda reader: validity_waterfall_rows(reader),
    ),
    "data frame": (
        "candidates/target_rri/c/0",
        lambda reader: pandas_frame(reader, "candidates", ["target_rri"]),
    ),
    "collection": (
        "q_h/td_reward/c/0",
        lambda reader: RolloutCollection([reader]).q_h_view(),
    ),
    "tensors": ("q_h/td_reward/c/0", lambda reader: QHStates(reader)),
}


@pytest.mark.parametrize("use", USES)
def test_a_lost_file_is_an_error_at_first_use(store: Path, use: str) -> None:
    if use == "tensors":
        pytest.importorskip("torch")
    assert_refused(store, use, lose)


@pytest.mark.parametrize("use", ["array", "batches", "depth image", "words"])
def test_a_short_file_is_an_error_at_first_use(store: Path, use: str) -> None:
    assert_refused(store, use, cut)


def assert_refused(store: Path, use: str, damage: Damage) -> None:
    name, read = USES[use]
    read(RolloutZarrStoreReader(store))
    damage(store / name)
    with pytest.raises(TruncatedFile) as caught:
        read(RolloutZarrStoreReader(store))
    assert name in str(caught.value)
    assert "copy the store again" in str(caught.value)


def test_the_audit_of_depth_says_which_image_is_lost(store: Path) -> None:
    (store / "selected_depth/depth_m/c.0.0.0").unlink()
    row = selected_depth_summary_rows(RolloutZarrStoreReader(store))[0]
    assert not row["available"]
    assert "c.0.0.0 is incomplete: the file is missing" in row["warning"]


def test_columns_of_one_value_have_no_chunks_and_still_read(store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    files = inodes_of(store)
    constant = [
        name.removesuffix("/zarr.json")
        for name in files
        if name.count("/") == 2
        and name.endswith("/zarr.json")
        and not any(other.startswith(name.replace("zarr.json", "c")) for other in files)
    ]
    assert constant
    for path in constant:
        assert len(np.unique(reader.array(path))) <= 1


def test_the_disk_is_looked_at_once_per_column(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RolloutZarrStoreReader(stores["local"])
    looked: list[str] = []
    stat = Path.stat

    def counted(path: Path, **options: Any) -> Any:
        looked.append(path.name)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", counted)
    for _ in range(3):
        list(reader.batches(4, epochs=2, columns=["td_reward"]))
        reader.array("q_h/td_reward")
    assert looked == ["zarr.json", "0"] or looked == ["0", "zarr.json"]


def test_a_mapped_array_that_travels_does_not_become_constant(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    store = copy_store(stores["local"], tmp_path / "s.zarr")
    sent = pickle.dumps(MappedArray.open(store / "q_h/td_reward"))
    (store / "q_h/td_reward/c/0").unlink()
    with pytest.raises(TruncatedFile, match="c/0 is incomplete: the chunk is missing"):
        pickle.loads(sent)


def test_a_manifest_that_lists_files_elsewhere_is_refused(store: Path, tmp_path: Path) -> None:
    def outside(_: dict[str, Any]) -> None:
        """Only the manifest changes."""

    edit_group(store, "metadata", outside)
    payload = dict(RolloutZarrStoreReader(store).store_manifest.payload)
    payload["files"] = {**payload["files"], "../elsewhere/zarr.json": [2, "0" * 32]}
    write_manifest(store, payload)
    for use in (
        lambda: RolloutZarrStoreReader(store).array("q_h/td_reward"),
        lambda: repack_store(store, tmp_path / "out", "local"),
    ):
        with pytest.raises(StorageError, match=r"outside of the store: '\.\./elsewhere"):
            use()
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------- URLs


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url(store: Path) -> Iterator[str]:
    """The store behind plain HTTP. tests/store/urls/test_remote.py does the same with S3."""
    handler = functools.partial(_Quiet, directory=str(store.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{store.name}"
        server.shutdown()


@pytest.mark.parametrize("store", ["local"], indirect=True)
@pytest.mark.parametrize("use", ["array", "depth image"])
@pytest.mark.parametrize("damage", [lose, cut])
def test_a_file_lost_at_a_url_is_an_error_at_first_use(
    store: Path, url: str, use: str, damage: Damage, tmp_path: Path
) -> None:
    name, read = USES[use]
    damage(store / name)
    with pytest.raises(StorageError) as caught:
        read(open_store(url, cache_dir=tmp_path / "cache"))
    assert f"{url}/{name}" in str(caught.value)


def test_a_file_lost_from_the_cache_is_fetched_again(url: str, tmp_path: Path) -> None:
    before = open_store(url, cache_dir=tmp_path / "cache").array("q_h/td_reward").copy()
    (chunk,) = (tmp_path / "cache").rglob("q_h/td_reward/c/0")
    chunk.unlink()
    after = open_store(url, cache_dir=tmp_path / "cache").array("q_h/td_reward")
    assert np.array_equal(before, after, equal_nan=True)

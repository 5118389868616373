"""The manifest: what a store is, in standard JSON, with the size and checksum of every file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.errors import ZarrUserWarning

from rollbook.digest import checksum
from rollbook.errors import ChecksumMismatch, ConfigurationError, StorageError, UnsupportedVersion
from rollbook.store.config import RolloutZarrWriteResult
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_VERSION,
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    group_metadata,
    json_bytes,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import (
    DEFAULT_RETURN_SEMANTICS,
    DICTIONARIES,
    REQUIRED_GROUPS,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
)
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records, spec_fixture_records


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here outlives the test."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def result(tmp_path: Path) -> RolloutZarrWriteResult:
    return write_rollout_zarr_store(
        tmp_path / "rollouts.zarr",
        spec_fixture_records(),
        target_eval_crops_enabled=True,
        target_eval_crop_max_points=8,
    )


def strict(path: Path) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in {path}")

    return json.loads(path.read_bytes(), parse_constant=refuse)


def test_every_json_file_is_standard_json(result: RolloutZarrWriteResult) -> None:
    files = list(result.store_dir.rglob("*.json"))
    assert len(files) > len(REQUIRED_GROUPS)
    for path in files:
        strict(path)


def test_it_counts_what_was_written(result: RolloutZarrWriteResult) -> None:
    manifest = strict(result.manifest_path)
    assert manifest["counts"] == {
        "sources": 3,
        "targets": 3,
        "rollouts": result.num_rollouts,
        "steps": result.num_steps,
        "candidates": result.num_candidates,
        "candidate_diagnostics": result.num_candidates,
        "selected_depths": 6,
        "target_eval_crops": 54,
        "q_h_states": 6,
        "q_h_max_candidates": 8,
    }
    coverage = manifest["source_coverage"]
    assert coverage["scene_counts"] == {"fixture_box": 3}
    assert coverage["split_counts"] == {"train": 3}
    assert coverage["source_shard_counts"] == {"vin-shard-000000": 3}
    assert [row["source_row_id"] for row in coverage["sources"]] == [0, 1, 2]
    assert set(manifest["dictionary_sizes"]) == set(DICTIONARIES)
    assert manifest["config_hashes"]["model_checkpoint"] == []
    assert len(manifest["config_hashes"]["rollout"]) == 3
    assert all(len(each) == 64 for each in manifest["config_hashes"]["rollout"])


def test_the_root_says_what_the_store_is(result: RolloutZarrWriteResult) -> None:
    attrs = RolloutZarrStoreReader(result.store_dir).root.attrs
    assert attrs["schema_id"] == ROLLOUT_ZARR_SCHEMA_ID
    assert attrs["schema_version"] == ROLLOUT_ZARR_SCHEMA_VERSION
    assert attrs["return_semantics"] == DEFAULT_RETURN_SEMANTICS
    assert attrs["manifest_path"] == "manifest.json"
    assert attrs["manifest_version"] == ROLLOUT_MANIFEST_VERSION
    assert attrs["num_rollouts"] == 3
    assert "writer_config" not in attrs
    assert not (result.store_dir / "splits").exists()


def test_its_digest_is_a_root_attribute(result: RolloutZarrWriteResult) -> None:
    data = result.manifest_path.read_bytes()
    attrs = strict(result.store_dir / "zarr.json")["attributes"]
    assert attrs["manifest_sha256"] == result.manifest_sha256 == hashlib.sha256(data).hexdigest()
    assert data == json_bytes(json.loads(data), "it")
    assert "manifest_sha256" not in json.loads(data)["root_attrs"]


def test_it_lists_every_file_with_its_size_and_checksum(result: RolloutZarrWriteResult) -> None:
    listed = strict(result.manifest_path)["files"]
    found = {
        str(path.relative_to(result.store_dir)): [path.stat().st_size, checksum(path.read_bytes())]
        for path in result.store_dir.rglob("*")
        if path.is_file()
    }
    del found["manifest.json"], found["zarr.json"]
    assert listed == found


def test_zarr_sees_exactly_the_required_groups(result: RolloutZarrWriteResult) -> None:
    root = RolloutZarrStoreReader(result.store_dir).root
    with pytest.warns(ZarrUserWarning, match=r"manifest\.json"):  # it lies beside, as no part of it
        assert set(root.group_keys()) == set(REQUIRED_GROUPS)


def test_the_same_records_have_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_rollout_zarr_store(tmp_path / "a", spec_fixture_records())
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "915148800")  # 1999
    second = write_rollout_zarr_store(tmp_path / "b", spec_fixture_records())
    assert first.content_sha256 == second.content_sha256
    assert first.manifest_sha256 != second.manifest_sha256
    other = write_rollout_zarr_store(tmp_path / "c", spec_fixture_records(seed=1))
    assert other.content_sha256 != first.content_sha256


def test_no_secret_of_the_environment_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_TEST_TOKEN", "a-secret-of-mine")
    result = write_rollout_zarr_store(tmp_path / "s", spec_fixture_records())
    for path in result.store_dir.rglob("*.json"):
        assert b"a-secret-of-mine" not in path.read_bytes()
        assert b"ROLLBOOK_TEST_TOKEN" not in path.read_bytes()


def test_a_programmatic_run_says_so(result: RolloutZarrWriteResult) -> None:
    generation = strict(result.manifest_path)["generation"]
    assert generation["invocation"] == {
        "mode": "programmatic",
        "argv": [],
        "config_path": None,
        "raw_toml_text": None,
        "raw_toml_sha256": None,
    }
    assert generation["writer_config"] is None
    assert generation["runtime"]["packages"]["numpy"] == np.__version__
    assert set(generation["runtime"]) == {"python", "platform", "git", "packages"}


def test_a_run_from_the_command_line_keeps_its_config(tmp_path: Path) -> None:
    config = tmp_path / "campaign.toml"
    config.write_text('name = "röllout"\n', "utf-8")
    context = RolloutStoreManifestContext.from_cli(
        writer_config={"horizon": 2}, argv=["run", "campaign.toml"], config_path=config
    )
    path = tmp_path / "s"
    write_rollout_zarr_store(path, spec_fixture_records(), manifest_context=context)
    config.write_text("edited = true\n")
    generation = RolloutZarrStoreReader(path).manifest()["manifest"]["generation"]
    assert generation["writer_config"] == {"horizon": 2}
    assert generation["invocation"] == {
        "mode": "cli",
        "argv": ["run", "campaign.toml"],
        "config_path": str(config),
        "raw_toml_text": 'name = "röllout"\n',
        "raw_toml_sha256": hashlib.sha256('name = "röllout"\n'.encode()).hexdigest(),
    }


def test_an_unreadable_config_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        RolloutStoreInvocation.from_cli(argv=(), config_path=tmp_path / "none.toml")


def test_a_context_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    context = RolloutStoreManifestContext.programmatic(writer_config={"gamma": float("nan")})
    with pytest.raises(ConfigurationError, match="standard JSON"):
        write_rollout_zarr_store(tmp_path / "s", spec_fixture_records(), manifest_context=context)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------ damaged ones


def test_a_folder_without_root_or_manifest_is_not_a_store(result: RolloutZarrWriteResult) -> None:
    with pytest.raises(StorageError, match="not a rollout store"):
        RolloutZarrStoreReader(result.store_dir.parent)
    result.manifest_path.unlink()
    with pytest.raises(StorageError, match=r"not complete: there is no manifest\.json"):
        RolloutZarrStoreReader(result.store_dir)


def test_an_edited_manifest_is_noticed(result: RolloutZarrWriteResult) -> None:
    data = result.manifest_path.read_bytes()
    result.manifest_path.write_bytes(data.replace(b"fixture_box", b"fixture_bix"))
    with pytest.raises(ChecksumMismatch, match=r"manifest\.json"):
        RolloutZarrStoreReader(result.store_dir)


def test_edited_root_attributes_are_noticed(result: RolloutZarrWriteResult) -> None:
    root = result.store_dir / "zarr.json"
    root.write_bytes(root.read_bytes().replace(b'"num_steps": 6', b'"num_steps": 5'))
    with pytest.raises(ChecksumMismatch, match="root attributes"):
        RolloutZarrStoreReader(result.store_dir)


def rewrite(store: Path, payload: dict[str, Any]) -> None:
    """A manifest that is not ours but whose digest is right."""
    data = json_bytes(payload, "it")
    digest = hashlib.sha256(data).hexdigest()
    (store / "manifest.json").write_bytes(data)
    attrs = {**payload.get("root_attrs", {}), "manifest_sha256": digest}
    (store / "zarr.json").write_bytes(group_metadata(attrs))


def test_a_stale_schema_is_refused_by_name(result: RolloutZarrWriteResult) -> None:
    payload = strict(result.manifest_path)
    payload["root_attrs"]["schema_version"] = "0.1-tracer"
    rewrite(result.store_dir, payload)
    with pytest.raises(UnsupportedVersion, match=r"0\.1-tracer") as refused:
        RolloutZarrStoreReader(result.store_dir)
    assert ROLLOUT_ZARR_SCHEMA_VERSION in str(refused.value)


def test_a_manifest_without_its_parts_is_an_error_of_its_own(
    result: RolloutZarrWriteResult,
) -> None:
    rewrite(result.store_dir, {"hello": 1})
    with pytest.raises(StorageError, match="names no root attributes"):
        RolloutZarrStoreReader(result.store_dir)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_a_manifest_that_is_no_json_object_is_an_error_of_its_own(
    result: RolloutZarrWriteResult, data: bytes
) -> None:
    result.manifest_path.write_bytes(data)
    with pytest.raises(StorageError, match=r"manifest\.json"):
        RolloutZarrStoreReader(result.store_dir)


def test_sixty_thousand_candidates_make_at_most_three_hundred_files(tmp_path: Path) -> None:
    records = make_records(200, horizon=5, candidates=60)
    result = write_rollout_zarr_store(tmp_path / "s", records, selected_depth_enabled=False)
    assert result.num_candidates == 60_000
    assert sum(path.is_file() for path in result.store_dir.rglob("*")) <= 300

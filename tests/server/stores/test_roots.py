"""Which places lie in a root, and which roots are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.errors import ConfigurationError
from rollbook.server.settings import Settings
from rollbook.server.store_files.root_checks import examine_roots
from rollbook.server.store_files.roots import StoreRoot, place_within, store_roots


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("/data/stores/", StoreRoot(None, "/data/stores")),
        ("0189-a=/data", StoreRoot("0189-a", "/data")),
        ("/data/a=b", StoreRoot(None, "/data/a=b")),
        ("s3://bucket/a=b/", StoreRoot(None, "s3://bucket/a=b")),
        ("0189-a=s3://bucket", StoreRoot("0189-a", "s3://bucket")),
    ],
)
def test_a_root_names_its_organisation_or_none(text: str, root: StoreRoot) -> None:
    assert StoreRoot.parse(text) == root


@pytest.mark.parametrize(
    "text",
    ["", "https://example.com/stores", "s3://", "s3://bucket/../other", "s3://b/a::b", "gs://b"],
)
def test_what_is_neither_a_folder_nor_s3_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="store-root"):
        StoreRoot.parse(text)


@pytest.mark.parametrize(
    "place",
    ["s3://bucket/stores/a", "s3://bucket/stores", "s3://bucket/stores/deep/er.zarr"],
)
def test_a_url_below_the_prefix_is_in_the_root(place: str) -> None:
    found = place_within([StoreRoot(None, "s3://bucket/stores")], place)
    assert found is not None
    assert found.text == place


@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/storesother/a",
        "s3://bucket/stores/../a",
        "s3://bucket/stores//a",
        "s3://bucket/stores/a?versionId=1",
        "s3://bucket/stores/a::file:///etc",
        "s3://bucket/stores/*",
        "s3://bucket",
        "/bucket/stores/a",
    ],
)
def test_a_url_elsewhere_is_not(place: str) -> None:
    assert place_within([StoreRoot(None, "s3://bucket/stores")], place) is None


def test_roots_that_let_one_organisation_see_another_are_refused(tmp_path: Path) -> None:
    data_dir, shared = tmp_path / "data", tmp_path / "shared"
    for inside in (tmp_path, data_dir / "blobs", data_dir):
        with pytest.raises(ConfigurationError, match="data folder"):
            store_roots([str(inside)], data_dir)
    with pytest.raises(ConfigurationError, match="different organisations"):
        store_roots([f"a={shared}", f"b={shared / 'deeper'}"], data_dir)
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(ConfigurationError, match="different organisations"):
        store_roots([f"a={shared}", f"b={tmp_path / 'link'}"], data_dir)
    with pytest.raises(ConfigurationError, match="different organisations"):
        store_roots(["s3://bucket/a", "b=s3://bucket/a/b"], data_dir)
    assert len(store_roots([f"a={shared}", f"a={shared / 'deeper'}"], data_dir)) == 2


def test_the_doctor_names_roots_that_cannot_be_used(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    roots = [str(there), str(tmp_path / "missing"), f"unknown={there}2"]
    settings = Settings.load(tmp_path / "data", store_roots=roots)
    found = examine_roots(settings, ["some-organisation"])
    assert [each.code for each in found] == [None, "root_missing", "unknown_organisation"]


def test_the_command_of_the_doctor_looks_at_roots(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from rollbook.cli.serve import app

    missing = str(tmp_path / "missing")
    done = CliRunner().invoke(
        app, ["doctor", "--data", str(tmp_path / "data"), "--store-root", missing, "--json"]
    )
    assert "root_missing" in done.output

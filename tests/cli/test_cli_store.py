"""`rollbook store` as a person or a script meets it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fsspec
import msgspec
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from rollbook.errors import RollbookError, StorageError
from rollbook.store.audit import AUDIT_COLUMNS, candidate_audit_rows, rollout_tree_summary_rows
from rollbook.store.audit.charts import colour_ramp
from rollbook.store.audit.depth_png import depth_png
from rollbook.store.manifest import read_manifest
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.writer import write_rollout_zarr_store
from tests.command import Ended, rollbook
from tests.store.s3_server import memory
from tests.store.synthetic import make_records, spec_fixture_records
from tests.store.tampering import copy_store, edit, flip_bit, sign

__all__ = ["memory"]

COMMANDS = (
    *("info", "validate", "audit", "waterfall", "suspicious", "tree", "depth"),
    *("export", "repack", "publish", "migrate", "to-artifacts", "push"),
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "rich.zarr"
    records = make_records(6, seed=2, horizon=2, candidates=(6, 12), branching=True, depth=(12, 16))
    write_rollout_zarr_store(path, records, selected_depth_height_px=12, selected_depth_width_px=16)
    return path


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return copy_store(good, tmp_path / "rich.zarr")


def said(result: Ended) -> Any:
    return json.loads(result.stdout)


def refused(result: Ended, code: int, *words: str) -> None:
    assert result.returncode == code, result
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


# -------------------------------------------------------------------------------- every command


def test_help_lists_every_command_on_a_line_of_its_own() -> None:
    shown = rollbook("store", "--help").stdout
    listed = shown.partition("Commands:\n")[2].splitlines()
    assert tuple(line.split()[0] for line in listed) == COMMANDS
    assert all(len(line) < 80 and not line.endswith("...") for line in listed)


def test_help_loads_neither_numpy_nor_zarr() -> None:
    code = (
        "import sys; sys.argv = ['rollbook', 'store', '--help']\n"
        "from rollbook.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    loaded = {'numpy', 'zarr', 'pyarrow', 'rollbook.store'} & set(sys.modules)\n"
        "    assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("validate",),
        ("audit",),
        ("audit", "--targets"),
        ("audit", "--group-by", "invalid_reason"),
        ("waterfall",),
        ("suspicious",),
        ("tree",),
        ("tree", "--rollout", "1"),
        ("depth",),
    ],
)
def test_every_line_fits_into_eighty_columns(
    good: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(good.parent)
    command, *options = arguments
    result = rollbook("store", command, good.name, *options)
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    # the ellipsis that says how many rows are left out is ours; one inside a cell is a cut value
    assert not [line for line in result.stdout.splitlines() if "…" in line.lstrip("…")]


@pytest.mark.parametrize("command", ["info", "validate", "audit", "waterfall", "tree", "migrate"])
def test_a_path_that_is_not_there_is_a_usage_error(tmp_path: Path, command: str) -> None:
    refused(rollbook("store", command, tmp_path / "none.zarr"), 2, "there is nothing at")


@pytest.mark.parametrize(
    "command", ["audit", "waterfall", "suspicious", "tree", "depth", "migrate"]
)
def test_a_folder_that_is_no_store_is_refused(tmp_path: Path, command: str) -> None:
    refused(rollbook("store", command, tmp_path), 1, "it is not a rollout store")


def test_errors_are_json_when_json_was_asked_for(tmp_path: Path) -> None:
    result = rollbook("store", "waterfall", tmp_path, "--json")
    assert json.loads(result.stderr)["code"] == "storage"


# ------------------------------------------------------------------------------- info, validate


def test_info_says_what_a_store_holds_and_where_it_comes_from(good: Path) -> None:
    reader = RolloutZarrStoreReader(good)
    shown = rollbook("store", "info", good)
    assert shown.returncode == 0
    for fact in (f"{reader.num_candidates}", "oracle_greedy", reader.attrs["manifest_sha256"]):
        assert fact in shown.stdout
    found = said(rollbook("store", "info", good, "--json"))
    assert found["counts"]["candidates"] == reader.num_candidates
    assert found["root_attrs"]["schema_id"] == reader.attrs["schema_id"]


def test_info_of_a_folder_lists_the_stores_in_it(store: Path, tmp_path: Path) -> None:
    sign(copy_store(store, tmp_path / "sub/old.zarr"), schema_version="0.1-tracer")
    (tmp_path / "broken.zarr").mkdir()
    shown = rollbook("store", "info", tmp_path).stdout
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [
        ["rich.zarr", "current"],
        ["sub/old.zarr", "stale"],
        ["broken.zarr", "unreadable"],
    ]
    assert "0.1-tracer" in shown
    rows = said(rollbook("store", "info", tmp_path, "--json"))
    assert [row["schema_status"] for row in rows] == ["current", "stale", "unreadable"]
    assert {row["validation_status"] for row in rows} == {"unknown"}


def test_info_of_a_folder_without_stores_is_refused(tmp_path: Path) -> None:
    refused(rollbook("store", "info", tmp_path), 1, "no folder named *.zarr")


def test_a_good_store_validates(good: Path) -> None:
    for options in ((), ("--deep",)):
        result = rollbook("store", "validate", good, *options)
        assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "all is well")
    assert said(rollbook("store", "validate", good, "--json"))["ok"] is True


def test_violations_are_printed_with_code_and_rows(store: Path) -> None:
    def twice(values: Any, _: Any) -> None:
        values[:] = 5

    edit(store, "steps/num_valid_candidates", twice)
    result = rollbook("store", "validate", store)
    assert result.returncode == 1
    found = said(rollbook("store", "validate", store, "--json"))
    assert found["ok"] is False
    assert len(result.stdout.splitlines()) == len(found["violations"]) + 2
    for line, violation in zip(result.stdout.splitlines(), found["violations"], strict=False):
        assert violation["code"] in line
        assert violation["message"] in line
    assert any(violation["rows"] for violation in found["violations"])
    short = rollbook("store", "validate", store, "--limit", "1").stdout
    if len(found["violations"]) > 1:
        assert "--limit 0 prints all" in short


def test_a_flipped_bit_is_found_only_by_deep(store: Path) -> None:
    flip_bit(next((store / "candidates/selection_logits/c").rglob("*0")), 12_345 % 800)
    assert rollbook("store", "validate", store).returncode == 0
    result = rollbook("store", "validate", store, "--deep")
    assert (result.returncode, "selection_logits" in result.stdout) == (1, True)


def test_a_folder_that_is_no_store_is_a_violation(tmp_path: Path) -> None:
    result = rollbook("store", "validate", tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith("not_a_store")


# ---------------------------------------------------------------------------------------- audit


def test_audit_rows_as_json_have_every_column(good: Path) -> None:
    reader = RolloutZarrStoreReader(good)
    rows = said(rollbook("store", "audit", good, "--json", "--limit", "0"))
    assert rows == candidate_audit_rows(reader)
    assert list(rows[0]) == list(AUDIT_COLUMNS)
    assert len(said(rollbook("store", "audit", good, "--json"))) == 20
    of_step = said(rollbook("store", "audit", good, "--json", "--step", "3"))
    assert {row["step_row_id"] for row in of_step} == {3}


@pytest.mark.parametrize("options", [(), ("--targets",), ("--group-by", "position")])
def test_json_with_a_limit_says_how_many_rows_there_are(
    good: Path, options: tuple[str, ...]
) -> None:
    every = rollbook("store", "audit", good, "--json", "--limit", 0, *options)
    some = rollbook("store", "audit", good, "--json", "--limit", 1, *options)
    total = len(said(every))
    assert (len(said(some)), total > 1, every.stderr) == (1, True, "")
    told = {"rows": 1, "total": total, "note": "--limit 0 prints all"}
    assert json.loads(some.stderr) == told


def test_commands_that_write_a_file_print_json_too(good: Path, tmp_path: Path) -> None:
    exported = said(rollbook("store", "export", good, tmp_path / "x.csv", "--json"))
    assert exported["rows"] == RolloutZarrStoreReader(good).num_candidates
    packed = ("repack", good, tmp_path / "r.zarr", "--profile", "local", "--json")
    assert said(rollbook("store", *packed))["profile"] == "local"
    page = said(rollbook("store", "audit", good, "--html", tmp_path / "a.html", "--json"))
    assert page["size_bytes"] == (tmp_path / "a.html").stat().st_size
    image = ("depth", good, "--step", 0, "--output", tmp_path / "d.png", "--json")
    assert said(rollbook("store", *image))["path"] == str(tmp_path / "d.png")


def test_the_table_of_candidates_says_what_it_leaves_out(good: Path) -> None:
    reader = RolloutZarrStoreReader(good)
    shown = rollbook("store", "audit", good, "--limit", "5").stdout
    assert f"… {reader.num_candidates - 5:,} more" in shown
    one = rollbook("store", "audit", good, "--rollout", "2", "--limit", "0").stdout
    assert len(one.splitlines()) == 2 + len(candidate_audit_rows(reader, rollout_row_id=2))


def test_groups_and_targets(good: Path) -> None:
    rows = said(rollbook("store", "audit", good, "--group-by", "position", "--json"))
    assert sum(row["total"] for row in rows) == RolloutZarrStoreReader(good).num_candidates
    assert "mean gain" in rollbook("store", "audit", good, "--group-by", "scene").stdout
    targets = said(rollbook("store", "audit", good, "--targets", "--json"))
    assert "gt_match_status" in targets[0]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--group-by", "nonsense"), "no audit column 'nonsense'"),
        (("--group-by", "scene", "--targets"), "--group-by and --targets do not go together"),
        (("--rollout", "1", "--targets"), "--rollout and --targets do not go together"),
        (("--step", "1", "--group-by", "scene"), "--step and --group-by do not go together"),
        (("--step", "100000"), "there is no step row 100000; the store has"),
        (("--rollout", "100000"), "there is no rollout row 100000"),
    ],
)
def test_audits_that_cannot_be_are_usage_errors(
    good: Path, options: tuple[str, ...], word: str
) -> None:
    refused(rollbook("store", "audit", good, *options), 2, word)


def test_the_waterfall(good: Path) -> None:
    rows = said(rollbook("store", "waterfall", good, "--json"))
    assert [row["stage"] for row in rows][::4] == ["full shell", "selected"]
    shown = rollbook("store", "waterfall", good).stdout
    assert "100.0%" in shown
    assert "█" * 40 in shown


def test_suspicious_rows_end_with_a_violation_only_if_one_is_an_error(
    good: Path, tmp_path: Path
) -> None:
    calm = rollbook("store", "suspicious", good, "--min-valid-candidates", "100", "--json")
    found = said(calm)
    assert calm.returncode == 0
    assert {row["severity"] for row in found["rows"]} == {"warning"}
    assert found["counts"][0]["count"] == RolloutZarrStoreReader(good).num_steps
    records = make_records(2, horizon=2, candidates=20, unlabelled_fraction=0.5)
    write_rollout_zarr_store(tmp_path / "s.zarr", records, selected_depth_enabled=False)
    result = rollbook("store", "suspicious", tmp_path / "s.zarr", "--limit", "1")
    assert result.returncode == 1
    assert "the actor could take it, but it has no oracle label" in result.stdout


def test_the_tree_and_the_steps_of_one_rollout(good: Path) -> None:
    reader = RolloutZarrStoreReader(good)
    rows = said(rollbook("store", "tree", good, "--json", "--limit", "0"))
    assert rows == rollout_tree_summary_rows(reader)
    steps = said(rollbook("store", "tree", good, "--rollout", "1", "--json"))
    assert [row["step_index"] for row in steps] == list(range(len(steps)))
    refused(rollbook("store", "tree", good, "--rollout", "100000"), 2, "no rollout row 100000")


# ---------------------------------------------------------------------------------------- depth


def png(data: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, str]]:
    """Palette indices, palette and texts of a PNG file."""
    image = Image.open(BytesIO(data))
    image.load()
    assert isinstance(image, PngImageFile)
    assert image.mode == "P"
    return (
        np.asarray(image),
        np.array(image.getpalette(), np.uint8).reshape(-1, 3),
        {key: str(value) for key, value in image.text.items()},
    )


def test_a_depth_image_becomes_a_png_file(good: Path, tmp_path: Path) -> None:
    result = rollbook("store", "depth", good, "--step", 3, "--output", tmp_path / "d.png")
    assert (result.returncode, "16x12 pixels" in result.stdout) == (0, True)
    pixels, _, texts = png((tmp_path / "d.png").read_bytes())
    assert pixels.shape[1] == 480
    assert texts["Title"] == "rich.zarr, step 3"
    again = rollbook("store", "depth", good, "--step", 3, "--output", tmp_path / "d.png")
    refused(again, 1, "--replace replaces it")
    options = ("--step", 3, "--output", tmp_path / "d.png", "--replace")
    assert rollbook("store", "depth", good, *options).returncode == 0


def test_near_is_bright_far_is_dark_and_unknown_is_neither() -> None:
    depth = np.array([[1.0, 2.0], [3.0, np.nan]], np.float32)
    pixels, palette, texts = png(depth_png(depth, at_least_px=200))
    near, middle, far = (pixels[at] for at in ((50, 50), (50, 150), (150, 50)))
    light = palette.astype(int).sum(axis=1)
    assert light[near] > light[middle] > light[far]
    unknown = set(pixels[100:200, 100:200].ravel().tolist())
    assert not unknown & set(pixels[:100, :200].ravel().tolist())
    assert len(unknown) == 2
    assert texts["Comment"] == "depth from 1.000 m to 3.000 m"


@pytest.mark.parametrize(
    "depth", [np.full((3, 4), np.nan), np.full((3, 4), 2.0), np.ones((1, 600))]
)
def test_images_without_contrast_are_images_too(depth: Any) -> None:
    pixels, _, _ = png(depth_png(depth.astype(np.float32)))
    assert pixels.shape[1] >= 480


def test_the_colour_ramp_gets_darker_at_every_step() -> None:
    ramp = colour_ramp(252).astype(float)
    light = ramp @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light) < 0.7).all()
    assert light[0] > 210
    assert light[-1] < 45


def test_depth_without_an_image_says_why(good: Path, tmp_path: Path) -> None:
    refused(
        rollbook("store", "depth", good, "--output", tmp_path / "d.png"), 2, "say which with --step"
    )
    write_rollout_zarr_store(
        tmp_path / "s.zarr", spec_fixture_records(depth=False), selected_depth_enabled=False
    )
    options = ("--step", 0, "--output", tmp_path / "d.png")
    result = rollbook("store", "depth", tmp_path / "s.zarr", *options)
    refused(result, 1, "no depth image of step 0: selected depth is disabled")
    shown = rollbook("store", "depth", tmp_path / "s.zarr")
    assert (shown.returncode, "not available: selected depth is disabled" in shown.stdout) == (
        0,
        True,
    )


def test_depth_summaries(good: Path) -> None:
    rows = said(rollbook("store", "depth", good, "--json", "--limit", "3"))
    assert [row["available"] for row in rows] == [True] * 3


# ----------------------------------------------------------------------------------------- page


def test_the_page_is_whole_and_loads_nothing(good: Path, tmp_path: Path) -> None:
    result = rollbook("store", "audit", good, "--html", tmp_path / "a.html")
    assert result.returncode == 0
    page = (tmp_path / "a.html").read_text()
    body = page.partition("<body>")[2].partition("</body>")[0]
    root = ElementTree.fromstring(
        body.replace("<img ", "<image ").replace('taken"><p', 'taken"/><p')
    )
    titles = [each.text for each in root.iter("h2")]
    assert titles == [
        "Waterfall",
        "Why candidates are invalid",
        "Root gain by position family",
        "Root gain along the chain",
        "One decision",
        "Suspicious rows",
    ]
    assert len(list(root.iter("svg"))) == 6
    for word in ("<script", "http:", "https:", "@import", "url(//", "<link", "NaN", "nan,"):
        assert word not in page
    refused(rollbook("store", "audit", good, "--html", tmp_path / "a.html"), 1, "--replace")


def test_the_page_shows_the_step_that_was_asked_for(good: Path, tmp_path: Path) -> None:
    rollbook("store", "audit", good, "--html", tmp_path / "a.html", "--step", 5)
    page = (tmp_path / "a.html").read_text()
    shell = candidate_audit_rows(RolloutZarrStoreReader(good), step_row_id=5)
    assert "Step row 5 (" in page
    assert sum(f"<title>candidate {row['candidate_row_id']}," in page for row in shell) > 0
    assert page.count('class="chosen"') == 1


def test_names_in_a_page_are_text_not_markup(tmp_path: Path) -> None:
    first, *others = spec_fixture_records(depth=False)
    evil = msgspec.structs.replace(first.lineage, scene_id="<script>alert(1)</script>")
    records = [dataclasses.replace(first, lineage=evil), *others]
    write_rollout_zarr_store(tmp_path / "s.zarr", records, selected_depth_enabled=False)
    assert (
        rollbook("store", "audit", tmp_path / "s.zarr", "--html", tmp_path / "a.html").returncode
        == 0
    )
    page = (tmp_path / "a.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_store_without_labels_has_a_page_too(tmp_path: Path) -> None:
    records = make_records(
        2, horizon=1, candidates=5, unlabelled_fraction=0.9, unmatched_fraction=1.0
    )
    write_rollout_zarr_store(tmp_path / "s.zarr", records, selected_depth_enabled=False)
    result = rollbook("store", "audit", tmp_path / "s.zarr", "--html", tmp_path / "a.html")
    assert (result.returncode, result.stderr) == (0, "")


# ---------------------------------------------------------------------- export, repack, migrate


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_table_is_exported(good: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"steps.{suffix}"
    options = ("--table", "steps", "--columns", "step_row_id, num_candidates")
    result = rollbook("store", "export", good, output, *options)
    assert result.returncode == 0
    assert f"{RolloutZarrStoreReader(good).num_steps} rows of steps" in result.stdout
    assert output.stat().st_size > 100
    refused(rollbook("store", "export", good, output, *options), 1, "--replace replaces it")


def test_exports_that_cannot_be_are_usage_errors(good: Path, tmp_path: Path) -> None:
    refused(rollbook("store", "export", good, tmp_path / "x.xlsx"), 2, ".parquet, .csv, .jsonl")
    options = ("--table", "nonsense")
    refused(
        rollbook("store", "export", good, tmp_path / "x.csv", *options), 2, "no table 'nonsense'"
    )


def test_a_missing_extra_is_named_with_its_pip_line(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = rollbook("store", "export", good, tmp_path / "c.parquet")
    refused(result, 2, "pip install 'rollbook[frames]'")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_no_store_is_never_said_to_be_replaced(good: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    words = ("store", "repack", good, tmp_path / "mine", "--profile", "archive")
    for given in (words, (*words, "--replace")):
        ended = rollbook(*given)
        refused(ended, 1, "it is not a store, so it stays")
        assert "--replace" not in ended.stderr
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_no_folder_is_made_that_is_named_like_a_url(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("store", "repack", good, "s3://bucket/packed", "--profile", "archive")
    refused(rollbook(*words), 2, "OUTPUT is a URL (s3:/bucket/packed), expected a folder")
    refused(
        rollbook("store", "migrate", "s3://bucket/packed"), 2, "convert the store in its folder"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("OUT", ("source", "make", "s3://bucket/flats")),
        (
            "OUT",
            ("source", "import", "s3://bucket/flats", "--mesh", "{file}", "--trajectory", "{file}"),
        ),
        ("--out", ("train", "run", "--store", "{store}", "--out", "s3://bucket/run")),
        ("--out", ("import", "episodes", "{store}", "--out", "S3://bucket/episodes")),
        ("--out", ("export", "mcap", "--episodes", "{store}", "--out", "gs://bucket/file.mcap")),
    ],
)
def test_no_other_command_makes_such_a_folder_either(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"store": str(good), "file": str(good / "manifest.json")}
    refused(rollbook(*(each.format(**named) for each in words)), 2, f"{option} is a URL")
    assert not list(tmp_path.iterdir())


def test_a_store_is_repacked_and_reads_the_same(good: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive.zarr"
    result = rollbook("store", "repack", "--profile", "archive", good, archive)
    assert result.returncode == 0
    waterfalls = [rollbook("store", "waterfall", each).stdout for each in (good, archive)]
    assert waterfalls[0] == waterfalls[1]
    refused(rollbook("store", "repack", "--profile", "archive", good, archive), 1, "--replace")
    refused(rollbook("store", "repack", "--profile", "tape", good, archive), 2, "archive")
    refused(rollbook("store", "repack", good, archive), 2, "--profile")


def flip_some_bit(path: Path) -> None:
    flip_bit(path, 77)


@pytest.mark.parametrize("damage", [flip_some_bit, Path.unlink])
@pytest.mark.parametrize(
    "command",
    [
        ("repack", "--profile", "local"),
        ("repack", "--profile", "archive"),
        ("export", "--columns", "target_rri,score_source_id"),
    ],
)
def test_damage_is_neither_repacked_nor_exported(
    store: Path, tmp_path: Path, command: tuple[str, ...], damage: Callable[[Path], None]
) -> None:
    output = tmp_path / "out.csv"
    for name in ("dictionaries/zarr.json", "candidates/target_rri/c/0"):
        damage(store / name)
        refused(rollbook("store", *command, store, output), 1, name)
        assert not output.exists()


def test_an_export_of_other_columns_does_not_care(store: Path, tmp_path: Path) -> None:
    (store / "candidates/target_rri/c/0").unlink()
    options = ("--columns", "target_root_gain")
    assert rollbook("store", "export", store, tmp_path / "x.csv", *options).returncode == 0


def test_a_current_store_needs_no_migration(good: Path) -> None:
    result = rollbook("store", "migrate", good)
    assert (result.returncode, "which is current" in result.stdout) == (0, True)


def test_a_store_from_the_future_is_refused_by_its_version(store: Path) -> None:
    sign(store, schema_version="9.0-later")
    later = "it needs a later release of rollbook"
    refused(rollbook("store", "migrate", store), 1, "9.0-later", later)
    refused(rollbook("store", "audit", store), 1, "9.0-later", later)
    sign(store, schema_version="0.9-earlier")
    refused(rollbook("store", "audit", store), 1, "0.9-earlier", "store migrate")
    assert later not in rollbook("store", "migrate", store).stderr


def test_publish_puts_a_store_at_a_url_once(store: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/published"
    done = rollbook("store", "publish", store, url)
    assert done.returncode == 0
    assert RolloutZarrStoreReader(tmp_path / "published").validate(deep=True).ok
    assert said(rollbook("store", "info", url, "--json"))
    refused(rollbook("store", "publish", store, url), 1, "--replace")
    assert rollbook("store", "publish", store, url, "--replace").returncode == 0
    refused(rollbook("store", "publish", store, "nowhere"), 2, "s3://bucket/prefix")


def test_a_store_at_a_url_is_published_to_another_one(
    store: Path, tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert rollbook("store", "publish", store, f"{memory}/one").returncode == 0
    done = rollbook("store", "publish", f"{memory}/one", f"{memory}/two", "--json")
    assert said(done)["content_sha256"] == read_manifest(store).payload["content_sha256"]
    fsspec.filesystem("memory").pipe_file(f"{memory}/mine/notes.txt", b"mine")
    ended = rollbook("store", "publish", store, f"{memory}/mine")
    refused(ended, 1, "1 files are there; publish to a place of its own")
    assert "--replace" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("audit", "{store}", "--group-by", "positon"), "did you mean position"),
        (("export", "{store}", "{out}/x.csv", "--columns", "target_root_gian"), "target_root_gain"),
        (("export", "{store}", "{out}/x.csv", "--table", "candidate"), "did you mean candidates"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_names_that_look_like_it(
    good: Path, tmp_path: Path, arguments: tuple[str, ...], near: str
) -> None:
    words = [each.format(store=good, out=tmp_path) for each in arguments]
    refused(rollbook("store", *words), 2, near)
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_column_is_refused_by_every_way_to_read(good: Path) -> None:
    reader = RolloutZarrStoreReader(good)
    ways: dict[str, Callable[[], object]] = {
        "target_root_gain": lambda: reader.table("candidates", ("target_root_gian",)),
        "steps": lambda: reader.array("step/rollout_row_id"),
        "rollout_row_id": lambda: reader.to_arrow("steps", ["rolout_row_id"]),
        "q_train_mask": lambda: next(reader.batches(2, columns=["q_trian_mask"])),
    }
    for near, read in ways.items():
        with pytest.raises(RollbookError, match=f"did you mean .*{near}"):
            read()


JSON_DAMAGE = (b"", b"{", b"not json", b"[]", b"{}", b"3", b"null", b"\xff\xfe", b"[" * 10_000)


@pytest.mark.parametrize("name", ["zarr.json", "manifest.json", "dictionaries/zarr.json"])
def test_damaged_json_is_a_storage_error_that_names_the_file(store: Path, name: str) -> None:
    for damage in (*JSON_DAMAGE, None):
        (store / name).unlink()
        if damage is None:
            (store / name).mkdir()  # it cannot be read, whatever the rights
        else:
            (store / name).write_bytes(damage)
        with pytest.raises(StorageError) as caught:
            RolloutZarrStoreReader(store).words("strategy")
        assert (name if damage != b"{}" else store.name) in str(caught.value), damage
        assert rollbook("store", "info", store).returncode == 1
        assert rollbook("store", "validate", store).returncode == 1

"""Replay buffers: rows by episode, from folders and zip files, whatever packed them; and nothing that runs code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.adapters.formats import detect
from rollbook.adapters.source_digest import SourceDigests
from rollbook.adapters.zarr_buffer import (
    ZarrBufferImporter,
    chunk_codecs,
    looks_like,
    stored_array,
)
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    StorageError,
    UnknownFormat,
)
from tests.adapters.damaged_files import outcomes_of_damage
from tests.adapters.encoded_files import Imported, import_all, imported
from tests.adapters.pictures import decode
from tests.adapters.zarr_buffers import NO_CODEC, arrays, pictures, write, write_small

both_stores = pytest.mark.parametrize("name", ["pusht.zarr", "pusht.zarr.zip"])


def change(path: Path, name: str, **changes: Any) -> None:
    """Change the description of an array in a folder."""
    file = path / name / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@both_stores
def test_rows_are_cut_into_episodes(name: str, tmp_path: Path) -> None:
    path = write_small(tmp_path / name)
    expected = arrays(9)
    importer = ZarrBufferImporter()
    recording = importer.scan(path)
    assert recording.name == "pusht"
    assert [(each.key, each.rows) for each in recording.episodes] == [
        ("episode_0", 4),
        ("episode_1", 5),
    ]
    for index, (start, stop) in enumerate(((0, 4), (4, 9))):
        found = imported(importer, recording, index, tmp_path)
        assert found.actions["action/value"].tobytes() == expected["action"][start:stop].tobytes()
        state = found.sensors["state/value"]
        assert (state.dtype, state.tobytes()) == (
            np.float64,
            expected["state"][start:stop].tobytes(),
        )
        assert found.sensors["n_contacts/value"].shape == (stop - start, 1)
        assert found.sensors["state/_t_ns"][:2].tolist() == [0, 100_000_000]
        film = decode(found.encoded.files["video"])
        shades = [int(each.mean()) for each in film.pictures]
        assert shades == pytest.approx(expected["img"][start:stop, 0, 0, 0].tolist(), abs=3)
        assert found.metadata["declared"] == found.metadata["read"]
        assert found.metadata["timestamps_assumed"] is True
        assert found.metadata["steps"] == stop - start


@both_stores
def test_a_buffer_is_recognised_by_its_episode_ends(name: str, tmp_path: Path) -> None:
    path = write_small(tmp_path / name)
    assert looks_like(path) == "there is meta/episode_ends"
    assert looks_like(tmp_path) is None
    assert [found.format for found in detect(path)] == ["zarr-buffer"]


def test_an_episode_is_known_by_the_files_it_is_read_from(tmp_path: Path) -> None:
    path = write_small(tmp_path / "pusht.zarr")
    recording = ZarrBufferImporter().scan(path)
    first, second = recording.episodes
    assert path / "data/action/0.0" in first.files
    assert path / "data/action/2.0" in second.files
    assert path / "data/action/2.0" not in first.files
    digests = SourceDigests()
    keys = {digests.of_episode(recording, each, {}).import_key for each in (first, second)}
    assert len(keys) == 2


CODECS: list[Any] = [
    NO_CODEC,
    numcodecs.Blosc("lz4", shuffle=0),
    numcodecs.Blosc("zstd", shuffle=2),
    numcodecs.Zstd(3),
    numcodecs.LZ4(),
    numcodecs.Zlib(),
    numcodecs.GZip(),
    numcodecs.BZ2(),
    numcodecs.LZMA(),
]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    extra=st.integers(0, 3),
    chunk=st.integers(1, 9),
    codec=st.sampled_from(CODECS),
    order=st.sampled_from(["C", "F"]),
    dtype=st.sampled_from(["<f4", ">f8", "<i8", "|u1", "|b1", "<f2", ">u2"]),
    zipped=st.booleans(),
)
def test_every_buffer_that_zarr_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    extra: int,
    chunk: int,
    codec: Any,
    order: Any,
    dtype: str,
    zipped: bool,
) -> None:
    folder = tmp_path_factory.mktemp("buffer")
    ends = np.cumsum(lengths)
    rng = np.random.default_rng(len(lengths))
    values = (rng.random((ends[-1] + extra, 3, 2)) * 3).astype(dtype)
    name = "b.zarr.zip" if zipped else "b.zarr"
    path = write(folder / name, {"x": values}, ends.tolist(), codec=codec, chunk=chunk, order=order)
    found = import_all(ZarrBufferImporter(), path, folder)
    read = np.concatenate([each.sensors["x/value"] for each in found])
    assert read.dtype == values.dtype.newbyteorder("=")
    assert np.array_equal(read, values[: ends[-1]])
    skipped = [each["name"] for each in found[0].metadata["skipped"]]
    assert skipped == (["data/x"] if extra else [])
    shutil.rmtree(folder)


def test_filters_are_undone(tmp_path: Path) -> None:
    values = np.arange(40, dtype=np.int32).reshape(20, 2)
    path = write(tmp_path / "b.zarr", {"x": values}, [20], filters=[numcodecs.Delta("<i4")])
    (found,) = import_all(ZarrBufferImporter(), path, tmp_path)
    assert np.array_equal(found.sensors["x/value"], values)


def test_rows_behind_the_last_end_are_reported(tmp_path: Path) -> None:
    data = {"x": np.arange(12.0), "y": np.arange(10.0)}
    path = write(tmp_path / "b.zarr", data, [4, 10])
    (skipped,) = ZarrBufferImporter().scan(path).skipped
    assert (skipped.name, skipped.reason[:12]) == ("data/x", "its rows 10 ")


def test_an_array_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(12.0), "y": np.arange(9.0)}, [4, 12])
    with pytest.raises(CountMismatch, match="declares 12 rows, but 9 were read"):
        ZarrBufferImporter().scan(path)


@pytest.mark.parametrize("ends", [[4, 4, 9], [0, 9], [5, 3], [-1, 9], [2**63 - 1, -(2**62), 9]])
def test_ends_that_do_not_rise_are_refused(ends: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(9.0)}, ends)
    with pytest.raises(DamagedRecording, match="not behind"):
        ZarrBufferImporter().scan(path)


def test_chunks_that_are_not_stored_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(1.0, 10)}, [4, 9])
    (path / "data/x/1").unlink()
    first, second = import_all(ZarrBufferImporter(), path, tmp_path)
    assert not any("not stored" in each for each in first.metadata["losses"])
    assert any("1 chunks of x are not stored" in each for each in second.metadata["losses"])
    assert second.sensors["x/value"].tolist() == [0, 0, 0, 0, 9]


@both_stores
def test_a_chunk_that_episodes_share_is_unpacked_once_unless_it_changes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, ends = np.arange(9.0), [2, 4, 9]
    path = write(tmp_path / name, {"x": values}, ends, chunk=9)
    importer = ZarrBufferImporter()
    recording = importer.scan(path)
    read: list[str] = []
    unpack = chunk_codecs.unpacked

    def counted(*given: Any) -> Any:
        read.append("chunk")
        return unpack(*given)

    monkeypatch.setattr(stored_array, "unpacked", counted)
    found = [imported(importer, recording, each, tmp_path).sensors["x/value"] for each in range(2)]
    assert (len(read), np.concatenate(found).tolist()) == (1, [0, 1, 2, 3])
    other = write(tmp_path / f"other-{name}", {"x": -values}, ends, chunk=9)
    before = path.stat().st_mtime_ns
    if path.is_dir():
        shutil.copytree(other, path, dirs_exist_ok=True)
    else:
        shutil.copy(other, path)
        os.utime(path, ns=(before, before + 1))
    assert imported(importer, recording, 2, tmp_path).sensors["x/value"].tolist() == [
        -4,
        -5,
        -6,
        -7,
        -8,
    ]


def test_a_chunk_that_cannot_be_looked_at_is_not_taken_for_one_that_is_missing(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(9.0)}, [9])
    chunk = path / "data/x/0"
    chunk.unlink()
    chunk.symlink_to(chunk)
    with pytest.raises(StorageError, match="cannot be read"):
        import_all(ZarrBufferImporter(), path, tmp_path)


def test_numbers_of_each_episode_become_metadata(tmp_path: Path) -> None:
    meta = {"task": np.array([7, 8]), "notes": np.zeros(5)}
    path = write(tmp_path / "b.zarr", {"x": np.arange(9.0)}, [4, 9], meta=meta)
    first, second = import_all(ZarrBufferImporter(), path, tmp_path)
    assert first.metadata["zarr_buffer_meta"] == {"task": 7}
    assert second.metadata["zarr_buffer_meta"] == {"task": 8}
    assert [each["name"] for each in first.metadata["skipped"]] == ["meta/notes"]


def test_a_reward_is_added_up(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"reward": np.arange(6.0)}, [2, 6])
    first, second = import_all(ZarrBufferImporter(), path, tmp_path)
    assert first.metadata["outcome"]["reward_total"] == 1.0
    assert second.metadata["outcome"]["reward_total"] == 14.0


# -------------------------------------------------------------------------------- times and cameras


def timed(tmp_path: Path, seconds: Any) -> Path:
    rows = len(seconds)
    return write(
        tmp_path / "b.zarr", {"timestamp": seconds, "x": np.arange(float(rows))}, [3, rows]
    )


def test_an_array_can_be_the_clock(tmp_path: Path) -> None:
    seconds = 1.7e9 + np.array([0, 0.1, 0.25, 5, 5.5, 6.0])
    path = timed(tmp_path, seconds)
    assert any("timestamps=timestamp" in each for each in ZarrBufferImporter().scan(path).losses)
    first, second = import_all(ZarrBufferImporter(timestamps="timestamp"), path, tmp_path)
    assert np.diff(first.sensors["x/_t_ns"]) == pytest.approx([1e8, 1.5e8], abs=300)
    assert second.encoded.duration_s == pytest.approx(1.0)
    assert "timestamps_assumed" not in first.metadata
    with pytest.raises(ConfigurationError, match="no such array"):
        ZarrBufferImporter(timestamps="time").scan(path)


@pytest.mark.parametrize("wrong", [np.nan, 1.0, 1e300])
def test_a_clock_that_does_not_rise_is_refused(wrong: float, tmp_path: Path) -> None:
    path = timed(tmp_path, np.array([0.0, 1.0, wrong, 3.0, 4.0]))
    with pytest.raises(DamagedRecording, match="row 2 is"):
        import_all(ZarrBufferImporter(timestamps="timestamp"), path, tmp_path)


def test_cameras_are_shown_side_by_side_or_left_out(tmp_path: Path) -> None:
    data = {"left": pictures(5), "right": pictures(5), "x": np.arange(5.0)}
    path = write(tmp_path / "b.zarr", data, [5])
    (both,) = import_all(ZarrBufferImporter(), path, tmp_path)
    film = decode(both.encoded.files["video"])
    assert (film.width, film.height) == (96, 32)
    assert [each["camera"] for each in both.metadata["video_cameras"]] == ["left", "right"]
    (none,) = import_all(ZarrBufferImporter(cameras=()), path, tmp_path)
    assert "video" not in none.encoded.files
    assert [each["name"] for each in none.metadata["skipped"]] == ["data/left", "data/right"]
    with pytest.raises(ConfigurationError, match="no camera 'top'"):
        ZarrBufferImporter(cameras=("top",)).scan(path)


def test_pictures_of_whole_floats_are_shown_too(tmp_path: Path) -> None:
    """The buffer of Push-T has its pictures so."""
    path = write(tmp_path / "b.zarr", {"img": pictures(5).astype(np.float32)}, [5])
    (found,) = import_all(ZarrBufferImporter(), path, tmp_path)
    assert len(decode(found.encoded.files["video"]).pictures) == 5
    assert any("float32" in each for each in found.metadata["losses"])
    broken = pictures(5).astype(np.float32)
    broken[3, 1, 1, 1] = 0.5
    path = write(tmp_path / "c.zarr", {"img": broken}, [5])
    with pytest.raises(DamagedRecording, match="row 3 is no picture"):
        import_all(ZarrBufferImporter(), path, tmp_path)


# ----------------------------------------------------------------------------------- hostile stores


def only(path: Path, tmp_path: Path) -> Imported:
    (found,) = import_all(ZarrBufferImporter(), path, tmp_path)
    return found


def skipped_reason(found: Imported, name: str) -> str:
    return str({each["name"]: each["reason"] for each in found.metadata["skipped"]}[name])


class Hostile:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of the file was run",))


def hostile_store(tmp_path: Path, **changes: Any) -> Path:
    path = write(tmp_path / "b.zarr", {"x": np.arange(4.0), "bad": np.arange(4.0)}, [4])
    change(path, "data/bad", **changes)
    (path / "data/bad/0").write_bytes(pickle.dumps(np.array([Hostile()], object)))
    return path


def test_objects_are_never_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*arguments: Any, **options: Any) -> None:
        pytest.fail("the codec was made")

    monkeypatch.setattr(numcodecs.Pickle, "__init__", made)
    path = hostile_store(tmp_path / "1", dtype="|O", filters=[{"id": "pickle", "protocol": 5}])
    assert "Python objects" in skipped_reason(only(path, tmp_path), "data/bad")
    for changes in (
        {"compressor": {"id": "pickle", "protocol": 5}},
        {"filters": [{"id": "pickle"}], "compressor": None},
    ):
        path = hostile_store(tmp_path / str(len(changes)) / "p", **changes)
        assert "would run code" in skipped_reason(only(path, tmp_path), "data/bad")


def test_objects_as_episode_ends_are_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "b.zarr")
    change(path, "meta/episode_ends", dtype="|O", filters=[{"id": "pickle"}])
    with pytest.raises(DamagedRecording, match="Python objects"):
        ZarrBufferImporter().scan(path)


@pytest.mark.parametrize(
    "codec", ["imagecodecs_jpegxl", "imagecodecs_jpeg2k", "vlen-utf8", "json2"]
)
def test_a_codec_that_is_not_known_is_named_and_skipped(codec: str, tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(4.0), "img": pictures(4)}, [4])
    change(path, "data/img", compressor={"id": codec, "level": 1})
    found = only(path, tmp_path)
    assert codec in skipped_reason(found, "data/img")
    assert found.sensors["x/value"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "codec", [numcodecs.Zlib(), numcodecs.GZip(), numcodecs.BZ2(), numcodecs.LZMA(),
              numcodecs.Blosc(), numcodecs.Zstd(), numcodecs.LZ4()]
)  # fmt: skip
def test_a_chunk_cannot_unpack_to_more_than_its_array_says(codec: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(4.0)}, [4], codec=codec)
    for size in (1 << 26, 16):
        (path / "data/x/0").write_bytes(codec.encode(bytes(size)))
        with pytest.raises(DamagedRecording, match=r"its array says|more than the"):
            only(path, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [2**40], "chunks": [1]}, "chunks, and"),
        ({"shape": [2**24], "chunks": [1]}, "chunks, and"),
        ({"shape": [2**40, 2**40]}, "in chunks of"),
        ({"chunks": [2**40]}, "a chunk of"),
        ({"chunks": [0]}, "in chunks of"),
        ({"shape": [-4]}, "not a list of lengths"),
        ({"zarr_format": 3}, "zarr_format"),
        ({"fill_value": "blue"}, "does not fit"),
        ({"order": "Z"}, "order is unknown"),
        ({"dimension_separator": "/../"}, "dimension_separator"),
    ],
)
def test_a_description_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(4.0)}, [4])
    change(path, "data/x", **changes)
    if changes.get("shape") in ([2**40], [2**24]):
        array = np.array(changes["shape"], "<i8").tobytes()
        (path / "meta/episode_ends/0").write_bytes(array)
    with pytest.raises(DamagedRecording, match=message):
        ZarrBufferImporter().scan(path)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "data/../../x", "a\\b"])
def test_names_in_a_zip_file_that_leave_it_are_refused(name: str, tmp_path: Path) -> None:
    path = write_small(tmp_path / "b.zarr.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(DamagedRecording, match="no name in a Zarr store"):
        ZarrBufferImporter().scan(path)


def test_a_member_of_a_zip_file_cannot_be_larger_than_a_chunk(tmp_path: Path) -> None:
    path = write(tmp_path / "b.zarr", {"x": np.arange(4.0)}, [4], codec=NO_CODEC)
    (path / "data/x/0").write_bytes(bytes(1 << 26))
    zipped = tmp_path / "c.zarr.zip"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in path.rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(path).as_posix())
    assert zipped.stat().st_size < 1 << 18
    with pytest.raises(DamagedRecording, match="more than 32"):
        only(zipped, tmp_path)


def test_other_paths_are_not_buffers(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "x.txt", tmp_path / "nothing"):
        with pytest.raises(UnknownFormat):
            ZarrBufferImporter().scan(path)
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(UnknownFormat, match="version 3"):
        ZarrBufferImporter().scan(tmp_path)


@pytest.mark.parametrize(
    "codec", [NO_CODEC, numcodecs.Blosc("lz4"), numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.Zlib()]
)
def test_damaged_folders_give_errors_of_rollbook(codec: Any, tmp_path: Path) -> None:
    def make(folder: Path) -> Path:
        data = {"x": np.random.default_rng(1).normal(size=(6, 9)), "action": np.arange(6.0)}
        return write(folder / "b.zarr", data, [3, 6], codec=codec)

    counts = outcomes_of_damage(make, ZarrBufferImporter(), tmp_path, most=30)
    assert counts["refused"] > 20


def test_damaged_zip_files_give_errors_of_rollbook(tmp_path: Path) -> None:
    def make(folder: Path) -> Path:
        return write(folder / "b.zarr.zip", {"x": np.arange(60.0).reshape(6, 10)}, [3, 6])

    counts = outcomes_of_damage(make, ZarrBufferImporter(), tmp_path)
    assert counts["refused"] > 20

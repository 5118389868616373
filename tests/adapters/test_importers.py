"""What every importer has to do. A new format adds a module to tests/adapters/recordings, and passes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.formats import IMPORTS, detect
from rollbook.adapters.importing import ImportFolder, import_recording
from rollbook.adapters.recording import Importer, Recording
from rollbook.adapters.source_digest import SourceDigests
from rollbook.contracts.npz import read_npz
from rollbook.contracts.streams import CLOCK_FIELD, split_key
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import RollbookError, UnknownFormat

KINDS = sorted(IMPORTS)
SAID_BY_ALL = ("adapter", "declared", "read", "skipped", "losses")
RECORDED_BY_US = ("episodes", "gymnasium")
"""Their files are taken as they are, with the metadata that they were recorded with."""


def importer_of(kind: str) -> Importer:
    made: Importer = IMPORTS[kind].made_by()()
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A recording of each kind, made once. Tests that change it take a copy."""
    paths: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in paths:
            name = kind.replace("-", "_")
            module = importlib.import_module(f"tests.adapters.recordings.{name}")
            paths[kind] = module.make(tmp_path_factory.mktemp(name))
        return paths[kind]

    return make


def encoded_all(kind: str, path: Path, folder: Path) -> Iterator[tuple[Recording, EncodedEpisode]]:
    importer = importer_of(kind)
    recording = importer.scan(path)
    for each in recording.episodes:
        own = folder / str(each.index)
        own.mkdir(parents=True)
        yield recording, importer.encode(recording, each.index, own)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_is_recognised_as_what_it_is_and_as_nothing_else(
    made: Callable[[str], Path], kind: str
) -> None:
    assert [each.format for each in detect(made(kind))] == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_scanning_names_episodes_streams_and_files(made: Callable[[str], Path], kind: str) -> None:
    recording = importer_of(kind).scan(made(kind))
    assert recording.format == kind
    assert recording.episodes
    assert len({each.index for each in recording.episodes}) == len(recording.episodes)
    assert len({each.key for each in recording.episodes}) == len(recording.episodes)
    assert {each.slot for each in recording.streams} <= {"sensors", "actions", "video"}
    assert recording.streams
    assert all(path.is_file() for path in recording.files)
    assert json.loads(json.dumps(dict(recording.about))) == dict(recording.about)


@pytest.mark.parametrize("kind", KINDS)
def test_scanning_and_encoding_change_no_file(
    made: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    path = made(kind)
    before = _files(path)
    list(encoded_all(kind, path, tmp_path))
    assert _files(path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_encoded_streams_can_be_read_and_their_clocks_rise(
    made: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    for _, encoded in encoded_all(kind, made(kind), tmp_path):
        assert encoded.files
        assert encoded.duration_s is not None
        assert encoded.duration_s >= 0
        for slot in ("sensors", "actions"):
            if slot not in encoded.files:
                continue
            arrays = read_npz(encoded.files[slot])
            assert arrays
            for key, value in arrays.items():
                namespace, field = split_key(key)
                clock = arrays[f"{namespace}/{CLOCK_FIELD}"]
                assert clock.dtype == np.int64
                assert len(value) == len(clock)
                if field == CLOCK_FIELD:
                    assert (np.diff(clock) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_episode_is_not_taken_for_the_result_of_a_replay(
    made: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    """`rollbook replay run` leaves episodes with the source `replay` out of its baselines."""
    for _, encoded in encoded_all(kind, made(kind), tmp_path):
        assert encoded.source in ("real", "sim")


@pytest.mark.parametrize("kind", KINDS)
def test_the_metadata_is_json_and_says_what_was_declared_read_and_left_out(
    made: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    for _, encoded in encoded_all(kind, made(kind), tmp_path):
        plain = plain_metadata(encoded.metadata)
        json.dumps(plain, allow_nan=False)
        if kind in RECORDED_BY_US:
            continue
        assert plain["adapter"] == kind
        assert [name for name in SAID_BY_ALL if name not in plain] == []
        assert all(set(each) == {"name", "reason"} for each in plain["skipped"])
        assert all(isinstance(each, str) for each in plain["losses"])
        common = plain["declared"].keys() & plain["read"].keys()
        assert all(plain["declared"][name] == plain["read"][name] for name in common)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_file_gives_the_same_bytes(
    made: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    first = [each for _, each in encoded_all(kind, made(kind), tmp_path / "one")]
    second = [each for _, each in encoded_all(kind, made(kind), tmp_path / "two")]
    for one, two in zip(first, second, strict=True):
        assert one.files.keys() == two.files.keys()
        for slot, path in one.files.items():
            assert path.read_bytes() == two.files[slot].read_bytes(), slot
        assert one.metadata == two.metadata


@pytest.mark.parametrize("kind", KINDS)
def test_every_episode_has_an_import_key_of_its_own_that_follows_the_bytes(
    made: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    importer = importer_of(kind)
    copy = _copied(made(kind), tmp_path)

    def keys() -> list[str]:
        recording = importer.scan(copy)
        digests = SourceDigests()
        return [
            digests.of_episode(recording, each, importer.options()).import_key
            for each in recording.episodes
        ]

    assert len(set(keys())) == len(keys())
    assert keys() == keys()


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_is_repeatable(made: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    target = ImportFolder(tmp_path / "out")
    first = import_recording(importer_of(kind), made(kind), target)
    assert [each.error for each in first] == [None] * len(first)
    again = import_recording(importer_of(kind), made(kind), ImportFolder(tmp_path / "out"))
    assert {each.outcome for each in again} == {"there already"}


@pytest.mark.parametrize("kind", KINDS)
def test_another_folder_and_another_file_are_refused(kind: str, tmp_path: Path) -> None:
    importer = importer_of(kind)
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("nothing")
    for name in ("empty", "note.txt"):
        with pytest.raises(UnknownFormat):
            importer.scan(tmp_path / name)
        assert detect(tmp_path / name) == []
    with pytest.raises(RollbookError):
        importer.scan(tmp_path / "missing")


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_help_and_a_default(kind: str) -> None:
    for each in dataclasses.fields(IMPORTS[kind].made_by()):
        assert each.default is not dataclasses.MISSING, each.name
        assert str(each.metadata["help"]).endswith("."), each.name


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_ever_unpickled(
    made: Callable[[str], Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    list(encoded_all(kind, made(kind), tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_loading_an_importer_loads_no_library_of_its_format(kind: str) -> None:
    each = IMPORTS[kind]
    heavy = ("h5py", "zarr", "pyarrow", "mcap", "rosbags", "av", "google.protobuf", "gymnasium")
    code = (
        f"import sys, importlib; importlib.import_module({each.module!r}).{each.name}; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_recording_is_an_error_of_ours_or_an_import(
    made: Callable[[str], Path], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _fuzz(made(kind), kind, tmp_path_factory, examples=6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_that_a_long_search_finds_is_another_error(
    made: Callable[[str], Path], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _fuzz(made(kind), kind, tmp_path_factory, examples=150)


def _fuzz(path: Path, kind: str, folders: pytest.TempPathFactory, *, examples: int) -> None:
    files = [each for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file()]
    files.sort()

    @settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        which=st.integers(0, len(files) - 1),
        where=st.floats(0, 1, exclude_max=True),
        how=st.sampled_from(["cut", "flip", "zero", "remove", "grow"]),
        value=st.integers(1, 255),
    )
    def check(which: int, where: float, how: str, value: int) -> None:
        folder = folders.mktemp("damaged")
        copy = _copied(path, folder)
        hit = copy if path.is_file() else copy / files[which].relative_to(path)
        _damage(hit, where, how, value)
        with suppress(RollbookError):
            list(encoded_all(kind, copy, folder / "out"))
        shutil.rmtree(folder, ignore_errors=True)

    check()


def _damage(path: Path, where: float, how: str, value: int) -> None:
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    if how == "remove":
        path.unlink()
        return
    if how == "cut":
        del data[at:]
    elif how == "grow":
        data += bytes([value]) * 17
    elif data:
        data[at] = data[at] ^ value if how == "flip" else 0
    path.unlink()  # it may be a second name of the recording's own file
    path.write_bytes(data)


def _copied(path: Path, folder: Path) -> Path:
    target = folder / path.name
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copyfile(path, target)
    return target


def _files(path: Path) -> dict[str, tuple[bytes, int]]:
    found = path.rglob("*") if path.is_dir() else iter([path])
    return {
        os.fspath(each): (each.read_bytes(), each.stat().st_mtime_ns)
        for each in sorted(found)
        if each.is_file()
    }

"""A saved table: maps back bit for bit, and no changed, missing or foreign byte goes unnoticed."""

from __future__ import annotations

import copy
import hashlib
import json
import multiprocessing
import pickle
import struct
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rollbook import errors
from rollbook.contracts import RolloutTable, open_table, save_table
from rollbook.contracts.rl.table_file import _PREAMBLE, MAGIC, VERSION
from rollbook.digest import checksum
from tests.factories import artifact, proof, same_columns, samples, table, tables

EVERYTHING: dict[str, Any] = {
    "samples": samples(3, loss_mask=[1, 0, 1], policy_version=[-1, 2, 3]),
    "proof_references": [proof("p"), proof("q")],
    "prompt": [4, 5],
    "group_id": "g",
    "attempt": 1,
}


def rich_table() -> RolloutTable:
    return RolloutTable.from_artifacts(
        [artifact("a", **EVERYTHING), artifact("ü", **EVERYTHING, task_id="雪")]
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.table"


def test_the_bytes_of_a_file_are_pinned(path: Path) -> None:
    """A change of the format is a change of VERSION."""
    save_table(rich_table(), path)
    assert (VERSION, hashlib.sha256(path.read_bytes()).hexdigest()[:16]) == (1, "39e9b5d28b626007")


@settings(max_examples=40)
@given(some=tables())
def test_any_table_comes_back_bit_for_bit(some: RolloutTable, tmp_path_factory: Any) -> None:
    place = tmp_path_factory.mktemp("t") / "t"
    save_table(some, place)
    for verify in ("lazy", "bytes", "all"):
        again = open_table(place, verify=verify)
        assert same_columns(again, some)
        assert [*again] == [*some]


def test_an_opened_table_is_mapped_read_only_and_aligned(path: Path) -> None:
    some = table([100, 200])
    save_table(some, path)
    again = open_table(path)
    for column in again.samples.values():
        assert not column.flags.writeable
        assert not column.flags.owndata
        assert column.ctypes.data % 64 == 0


def test_reading_one_rollout_reads_only_that_rollout(path: Path) -> None:
    some = table([5, 6, 7])
    save_table(some, path)
    again = open_table(path)
    assert again[1].columns["reward"].tolist() == some[1].columns["reward"].tolist()
    assert again.columns.samples.checked_rows == {1}  # type: ignore[attr-defined]
    assert not again.columns.samples.all_checked  # type: ignore[attr-defined]


def small_file(path: Path) -> bytes:
    """A file of a few thousand bytes in which every kind of column has a value, and a third of the bytes are data."""
    save_table(
        RolloutTable.from_artifacts([artifact("a", **EVERYTHING), artifact("ü", **EVERYTHING)]),
        path,
    )
    return path.read_bytes()


def read_all(path: Path) -> None:
    """As a trainer reads a table: opened lazily, every rollout, then every column."""
    opened = open_table(path)
    for each in opened:
        assert each.columns
    for name in opened.samples:
        opened.samples[name].sum()


def test_every_flipped_byte_of_a_file_is_noticed(path: Path) -> None:
    """Each byte in turn, in another bit than its neighbours: preamble, header, columns and the gaps between them."""
    content = small_file(path)
    with open(path, "r+b", buffering=0) as file:
        for place, byte in enumerate(content):
            file.seek(place)
            file.write(bytes([byte ^ 1 << place % 8]))
            with pytest.raises(errors.StorageError) as caught:
                open_table(path, verify="bytes")
            assert caught.value.path == str(path)
            with pytest.raises((errors.StorageError, errors.DigestMismatch)):
                read_all(path)
            file.seek(place)
            file.write(bytes([byte]))
    open_table(path, verify="all")  # nothing else was changed


def test_every_truncation_of_a_file_is_refused(path: Path) -> None:
    content = small_file(path)
    with open(path, "r+b", buffering=0) as file:
        for size in reversed(range(len(content))):
            file.truncate(size)
            with pytest.raises((errors.NotATable, errors.TruncatedFile)):
                open_table(path)


def test_every_flipped_data_byte_of_a_larger_file_is_noticed_by_its_column(path: Path) -> None:
    """Nearly all of this file is data. The column that is damaged is named, and no other one is refused."""
    save_table(table([40, 23]), path)
    content = bytearray(path.read_bytes())
    for name, column in table([40, 23]).samples.items():
        start = content.index(column.tobytes())
        for place in range(start, start + column.nbytes, 7):
            content[place] ^= 0x10
            path.write_bytes(content)
            opened = open_table(path)
            for other in opened.samples.keys() - {name}:
                assert opened.samples[other] is not None
            with pytest.raises(errors.ChecksumMismatch, match=rf"samples\.{name}"):
                opened.samples[name]
            content[place] ^= 0x10


def test_a_flipped_sample_is_noticed_when_it_is_read_and_not_before(path: Path) -> None:
    some = table([5, 6, 7])
    save_table(some, path)
    content = bytearray(path.read_bytes())
    content[content.rindex(some[2].columns["advantage"].tobytes())] ^= 1
    path.write_bytes(content)
    damaged = open_table(path)
    assert damaged[0].columns
    with pytest.raises(errors.DigestMismatch) as caught:
        assert damaged[2].columns
    assert caught.value.record_id == "rollout-2"
    damaged.samples["reward"]
    with pytest.raises(errors.ChecksumMismatch, match=r"samples\.advantage"):
        damaged.samples["advantage"]


def test_bytes_after_the_end_are_refused(path: Path) -> None:
    save_table(rich_table(), path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(errors.TruncatedFile):
        open_table(path)


def test_other_files_and_versions_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"PK" + bytes(1000))
    with pytest.raises(errors.NotATable):
        open_table(path)
    save_table(rich_table(), path, replace=True)
    content = bytearray(path.read_bytes())
    content[8] = 99
    path.write_bytes(content)
    with pytest.raises(errors.UnsupportedVersion, match="its version is 99"):
        open_table(path)
    with pytest.raises(errors.StorageError, match="No such file"):
        open_table(tmp_path / "none")
    with pytest.raises(errors.StorageError, match="Is a directory"):
        open_table(tmp_path)


def forged(path: Path, change: Any) -> None:
    """A file whose header was rewritten by someone who knows the format, digest and all."""
    content = path.read_bytes()
    _, _, _, length, _, _ = _PREAMBLE.unpack_from(content)
    header = json.loads(content[_PREAMBLE.size : _PREAMBLE.size + length])
    data = bytearray(content[_PREAMBLE.size + length :])
    change(header, data)
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 64) * 64)
    digest = hashlib.sha256(text).digest()
    preamble = _PREAMBLE.pack(MAGIC, VERSION, 0, len(text), digest, bytes(8))
    path.write_bytes(preamble + text + data)


def buffer(header: Any, name: str) -> Any:
    return next(each for each in header["buffers"] if each["name"] == name)


def overwrite(header: Any, data: bytearray, name: str, value: bytes) -> None:
    place = buffer(header, name)
    data[place["offset"] : place["offset"] + len(value)] = value
    size = place["count"] * np.dtype(place["dtype"]).itemsize
    place["checksum"] = checksum(bytes(data[place["offset"] : place["offset"] + size]))


FORGERIES: dict[str, Any] = {
    "wrong dtype": lambda h, d: buffer(h, "samples.reward").update(dtype="<f8"),
    "object dtype": lambda h, d: buffer(h, "samples.reward").update(dtype="|O"),
    "wrong count": lambda h, d: buffer(h, "samples.reward").update(count=1),
    "negative count": lambda h, d: buffer(h, "samples.reward").update(count=-1),
    "huge count": lambda h, d: buffer(h, "samples.reward").update(count=2**62),
    "misplaced buffer": lambda h, d: buffer(h, "samples.reward").update(offset=0),
    "missing buffer": lambda h, d: h["buffers"].remove(buffer(h, "samples.reward")),
    "doubled buffer": lambda h, d: h["buffers"].append(buffer(h, "samples.reward")),
    "unknown key": lambda h, d: h.update(extra=1),
    "unknown column": lambda h, d: buffer(h, "samples.reward").update(name="samples.entropy"),
    "more rollouts": lambda h, d: h.update(rollouts=3),
    "negative rollouts": lambda h, d: h.update(rollouts=-2),
    "more samples": lambda h, d: h.update(samples=99),
    "no environments": lambda h, d: h.update(environments=[]),
    "no revisions": lambda h, d: h.update(revisions=[]),
    "a bad revision": lambda h, d: h["revisions"][0].update(produced_at_ms=-5),
    "offsets that go back": lambda h, d: overwrite(
        h, d, "sample_offsets", struct.pack("<3q", 0, 9, 6)
    ),
    "negative offsets": lambda h, d: overwrite(
        h, d, "sample_offsets", struct.pack("<3q", -3, 3, 6)
    ),
    "text offsets too far": lambda h, d: overwrite(
        h, d, "task_id.offsets", struct.pack("<3q", 0, 4, 99)
    ),
    "text that is not UTF-8": lambda h, d: overwrite(h, d, "task_id.data", b"\xff"),
    "a split character": lambda h, d: overwrite(
        h, d, "task_id.offsets", struct.pack("<3q", 0, 5, 7)
    ),
    "an unknown ending": lambda h, d: overwrite(h, d, "termination", b"\x09"),
    "an unknown group": lambda h, d: overwrite(h, d, "group_index", struct.pack("<i", 7)),
    "not JSON's idea of a header": lambda h, d: h.clear(),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_file_is_refused_and_never_crashes(case: str, path: Path) -> None:
    save_table(rich_table(), path)
    forged(path, FORGERIES[case])
    with pytest.raises(errors.StorageError):
        open_table(path, verify="bytes")


def test_two_columns_cannot_be_the_same_bytes(path: Path) -> None:
    """Sizes and checksums fit; only the place is that of another column."""

    def shared(header: Any, data: bytearray) -> None:
        reward, logprob = buffer(header, "samples.reward"), buffer(header, "samples.logprob")
        reward.update(offset=logprob["offset"], checksum=logprob["checksum"])

    save_table(rich_table(), path)
    forged(path, shared)
    with pytest.raises(errors.NotATable, match=r"'samples\.reward' is misplaced"):
        open_table(path)


def test_bytes_that_belong_to_no_column_are_refused(path: Path) -> None:
    def longer(header: Any, data: bytearray) -> None:
        header["data_size"] += 64
        data.extend(bytes(64))

    save_table(rich_table(), path)
    forged(path, longer)
    with pytest.raises(errors.NotATable, match="belong to no buffer"):
        open_table(path)


def test_consistent_bytes_with_wrong_digests_are_found_by_full_verification(path: Path) -> None:
    save_table(rich_table(), path)
    forged(path, lambda h, d: overwrite(h, d, "samples.reward", struct.pack("<f", 7.0)))
    open_table(path, verify="bytes")
    with pytest.raises(errors.DigestMismatch) as caught:
        open_table(path, verify="all")
    assert caught.value.record_id == "a"


def test_a_wrong_root_is_found_by_full_verification(path: Path) -> None:
    save_table(rich_table(), path)
    forged(path, lambda h, d: h.update(root="0" * 64))
    with pytest.raises(errors.ChecksumMismatch, match="root"):
        open_table(path, verify="all")


def test_an_existing_file_is_replaced_only_on_request(path: Path) -> None:
    save_table(table([1]), path)
    with pytest.raises(errors.TargetExists):
        save_table(table([2]), path)
    assert open_table(path).sample_count == 1
    save_table(table([2]), path, replace=True)
    assert open_table(path).sample_count == 2
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_table_opened_from_a_file_can_be_cut_joined_and_saved_again(
    path: Path, tmp_path: Path
) -> None:
    some = table([3, 4, 5])
    save_table(some, path)
    again = open_table(path)
    save_table(RolloutTable.concat([again[2:], again[:2]]), tmp_path / "turned")
    turned = open_table(tmp_path / "turned", verify="all")
    assert [each.artifact_id for each in turned] == ["rollout-2", "rollout-0", "rollout-1"]
    assert turned[0] == some[2]


def test_a_table_replaced_while_it_is_open_keeps_its_content(path: Path) -> None:
    save_table(table([3], seed=1), path)
    opened = open_table(path)
    save_table(table([3], seed=2), path, replace=True)
    assert opened[0] == table([3], seed=1)[0]


# ---------------------------------------------------------------------------------------- pickling


def test_an_opened_table_goes_to_a_spawned_process_as_the_path_of_its_file(path: Path) -> None:
    save_table(table([100_000, 3]), path)
    opened = open_table(path)
    assert len(pickle.dumps(opened)) < 2000
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        sums = pool.submit(opened.reward_sums).result()
    assert sums.tolist() == opened.reward_sums().tolist()


def test_a_relative_path_is_found_from_another_folder(
    path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_table(rich_table(), path)
    monkeypatch.chdir(path.parent)
    sent = pickle.dumps(open_table(path.name))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert same_columns(pickle.loads(sent), rich_table())


class Rollouts:
    """A map-style dataset over an opened table."""

    def __init__(self, table: RolloutTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> list[str | int]:
        return [self.table[row].content_digest, self.table[row].token_count]


@pytest.mark.slow
def test_workers_of_a_data_loader_read_an_opened_table(path: Path) -> None:
    save_table(table([2, 3, 4]), path)
    opened = open_table(path)
    loader: Any = torch.utils.data.DataLoader(
        cast(Any, Rollouts(opened)),
        batch_size=None,
        num_workers=2,
        multiprocessing_context="spawn",
    )
    assert list(loader) == [[each.content_digest, each.token_count] for each in opened]


def test_a_table_whose_file_is_gone_or_replaced_is_pickled_with_its_columns(path: Path) -> None:
    save_table(rich_table(), path)
    replaced = open_table(path)
    save_table(table([1]), path, replace=True)
    assert same_columns(pickle.loads(pickle.dumps(replaced)), rich_table())
    gone = open_table(path)
    path.unlink()
    assert same_columns(pickle.loads(pickle.dumps(gone)), table([1]))
    assert same_columns(copy.deepcopy(gone), table([1]))


def test_a_pickle_whose_file_was_replaced_later_is_refused(path: Path) -> None:
    save_table(rich_table(), path)
    sent = pickle.dumps(open_table(path))
    save_table(table([1]), path, replace=True)
    with pytest.raises(errors.ChecksumMismatch, match="not the file that the pickled table"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(errors.StorageError, match="cannot be opened"):
        pickle.loads(sent)


def test_rows_of_an_opened_table_are_pickled_with_their_columns(path: Path) -> None:
    save_table(rich_table(), path)
    opened = open_table(path)
    sent = [
        pickle.dumps(part) for part in (opened[:], opened[1], dict(opened.samples), opened.samples)
    ]
    path.unlink()
    whole, one, *columns = map(pickle.loads, sent)
    assert same_columns(whole, rich_table())
    assert one == rich_table()[1]
    assert all(
        each[name].tolist() == rich_table().samples[name].tolist()
        for each in columns
        for name in each
    )


def test_a_damaged_column_is_not_pickled(path: Path) -> None:
    save_table(table([100]), path)
    data = bytearray(path.read_bytes())
    data[-80] ^= 1
    path.write_bytes(data)
    opened = open_table(path)
    path.unlink()
    with pytest.raises(errors.ChecksumMismatch):
        pickle.dumps(opened)

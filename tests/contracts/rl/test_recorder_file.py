"""The journal of a Recorder: what a kill leaves is recovered and said, any other damage is an error."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts import Journal, open_table, read_file, read_journal
from rollbook.contracts.rl import recorder_file
from rollbook.contracts.rl.check import check_files
from rollbook.contracts.rl.recorded_turn import RecordedTurn, encode_entry
from rollbook.contracts.rl.recorder_file import JournalReader, JournalWriter, is_journal_file
from rollbook.contracts.rl.sample import RolloutRole
from rollbook.errors import (
    ChecksumMismatch,
    DamagedRecording,
    DigestMismatch,
    LeaseHeld,
    RollbookError,
    StorageError,
    TruncatedFile,
    UnknownFormat,
    UnsupportedVersion,
)
from tests.command import rollbook
from tests.contracts.rl.agent_responses import begin, chat, recorder


def write_some(folder: Path, rollouts: int = 2) -> Path:
    """Closed rollouts, one that was discarded, and one that is unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    with recorder(folder) as book:
        for _ in range(rollouts):
            rollout = begin(book)
            rollout.add_response(chat([1, 2], [3, 4], tool="search"))
            rollout.add_response(chat([1, 2, 3, 4, 0, 0], [0]))
            rollout.close(reward=0.0)
        begin(book).discard("not needed")
        begin(book).add_response(chat([1], [2]))
    return folder / "agents.journal"


@pytest.fixture(scope="module")
def journal_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_some(tmp_path_factory.mktemp("journal")).read_bytes()


def starts(data: bytes) -> list[int]:
    """Where each record begins, and the end of the last."""
    places = [16]
    while places[-1] < len(data):
        (length,) = struct.unpack_from("<I", data, places[-1] + 4)
        places.append(places[-1] + 48 + length + 4)
    return places


def all_of(path: Path) -> tuple[int, list[str]]:
    """Everything that can be read, as a user does."""
    with read_journal(path) as journal:
        journal.table()
        list(journal.rollouts())
        return journal.closed, list(journal.unfinished)


# -------------------------------------------------------------------------------------------- damage


@settings(max_examples=150)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, journal_bytes: bytes, at: int, bit: int
) -> None:
    data = bytearray(journal_bytes)
    at %= len(data)
    data[at] ^= 1 << bit
    path = tmp_path_factory.mktemp("flip") / "agents.journal"
    path.write_bytes(data)
    expected: tuple[type[RollbookError], ...] = (ChecksumMismatch,)
    if at < 16:
        expected = (UnknownFormat, UnsupportedVersion, ChecksumMismatch)
    with pytest.raises(expected) as refused:
        all_of(path)
    assert str(path) in str(refused.value)
    if at >= 16:
        number = sum(start <= at for start in starts(journal_bytes)) - 1
        assert f"record {number} at byte" in str(refused.value)
    with pytest.raises(expected):
        recorder(path.parent)
    assert path.read_bytes() == data


@pytest.mark.parametrize("record", [2, -1], ids=["in the middle", "last"])
def test_every_bit_around_a_payload_is_checked(
    tmp_path: Path, journal_bytes: bytes, record: int
) -> None:
    path = tmp_path / "agents.journal"
    start, end = list(pairwise(starts(journal_bytes)))[record]
    for at in (*range(start, start + 48), *range(end - 4, end)):
        for bit in range(8):
            data = bytearray(journal_bytes)
            data[at] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(ChecksumMismatch, match=f"record .* at byte {start}"):
                read_journal(path)


def test_a_journal_cut_anywhere_keeps_every_complete_record(
    tmp_path: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_file, "_STILL_WRITING_S", 0)
    path = tmp_path / "agents.journal"
    places = starts(journal_bytes)
    for end in range(16, len(journal_bytes) + 1, 3):
        path.write_bytes(journal_bytes[:end])
        whole = max(place for place in places if place <= end)
        with read_journal(path) as journal:
            assert journal.end == (whole if whole > 16 else 0)
            assert (journal.torn is None) == (end == whole)
            if journal.torn is not None:
                assert (journal.torn.position, journal.torn.size) == (whole, end - whole)


def test_a_recorder_cuts_a_torn_record_off_and_says_so(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    size = path.stat().st_size
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    last = starts(data)[-2]
    with recorder(tmp_path) as book:
        assert book.recovered is not None
        assert (book.recovered.position, book.recovered.size) == (last, size - 5 - last)
        assert path.stat().st_size == last
        rollout = book.resume("run-3")
        assert rollout.token_ids.tolist() == [1]
        rollout.add_response(chat([1], [2]))
        rollout.close(reward=1.0)
    with recorder(tmp_path) as book:
        assert (book.recovered, book.closed, book.unfinished) == (None, 3, ())


@pytest.mark.parametrize("zeros", [4, 4096])
@pytest.mark.parametrize("kept", [0, 20, 48, 60])
def test_zeros_that_a_power_cut_left_are_torn_too(tmp_path: Path, kept: int, zeros: int) -> None:
    path = write_some(tmp_path)
    data = path.read_bytes()
    last = starts(data)[-2]
    path.write_bytes(data[: last + kept] + bytes(max(zeros, len(data) - last - kept)))
    with recorder(tmp_path) as book:
        assert book.recovered is not None
        assert book.recovered.position == last
    assert path.stat().st_size == last


def test_zeros_in_the_middle_are_damage(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    data = path.read_bytes()
    a, b = starts(data)[2:4]
    path.write_bytes(data[:a] + bytes(b - a) + data[b:])
    with pytest.raises(ChecksumMismatch, match="record 2 at byte"):
        read_journal(path)


@pytest.mark.parametrize("change", ["removed", "twice", "swapped"])
def test_records_that_are_missing_or_moved_are_damage(tmp_path: Path, change: str) -> None:
    path = write_some(tmp_path)
    data = path.read_bytes()
    places = starts(data)
    parts = [data[a:b] for a, b in pairwise(places)]
    if change == "removed":
        del parts[3]
    elif change == "twice":
        parts.insert(3, parts[3])
    else:
        parts[3], parts[4] = parts[4], parts[3]
    path.write_bytes(data[:16] + b"".join(parts))
    with pytest.raises(ChecksumMismatch, match="missing or were moved"):
        all_of(path)


def test_what_is_no_journal_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "agents.journal"
    for data in (b"", b"ROLLJ", b"ROLLTABL" + bytes(100), b'{"artifact_id": "a"}' * 9):
        path.write_bytes(data)
        assert not is_journal_file(path)
        with pytest.raises(UnknownFormat):
            read_journal(path)
        with pytest.raises(UnknownFormat):
            recorder(tmp_path)
        assert path.read_bytes() == data
    path.write_bytes(b"ROLLJRNL" + struct.pack("<II", 9, 0))
    with pytest.raises(UnsupportedVersion, match="later release"):
        read_journal(path)
    with pytest.raises(StorageError):
        read_journal(tmp_path / "absent")
    with pytest.raises(StorageError):
        read_journal(tmp_path)


# ------------------------------------------------------------------------- well sealed, but not sensible


def turn(artifact_id: str = "run-0", **changes: object) -> bytes:
    fields: dict[str, object] = {
        "artifact_id": artifact_id,
        "role": RolloutRole.POLICY,
        "tokens": np.array([1, 2], "<u4").tobytes(),
        "logs": np.array([-1, -2], "<f4").tobytes(),
    }
    return encode_entry(RecordedTurn(**(fields | changes)))  # type: ignore[arg-type]


def append(path: Path, payload: bytes, previous: int) -> None:
    """A record with right checksums, as a wrong program would write it."""
    writer = JournalWriter(path, sync=False)
    frames = list(writer.reader.frames())
    writer.start(end=frames[-1].end, number=len(frames))
    writer.append([payload], previous)
    writer.close()


def test_sealed_records_that_make_no_sense_are_refused_by_number(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        begin(book)
        begin(book)
    path = tmp_path / "agents.journal"
    data = path.read_bytes()
    first, second = starts(data)[1:3]
    ended = {"kind": "ended", "artifact_id": "run-0", "termination_reason": "completed"}
    for payload, previous in (
        (b"", 0),
        (b"\xc1", 0),
        (b"\x91" * 10_000, 0),
        (msgspec.msgpack.encode({"kind": "pickle"}), 0),
        (msgspec.msgpack.encode({"kind": "turn", "artifact_id": "run-0"}), first),
        (msgspec.msgpack.encode({"kind": "journal", "name": "second"}), 0),
        (msgspec.msgpack.encode({**ended, "reward": "x", "content_digests": []}), first),
        (turn(logs=b"1234"), first),
        (turn(tokens=b"123"), first),
        (turn(mask=b"1"), first),
        (turn(), second),
        (turn("absent"), 0),
        (turn(policy_version=2**40), first),
        (turn(), len(data) + 100),
    ):
        path.write_bytes(data)
        append(path, payload, previous)
        with pytest.raises(DamagedRecording, match="record 3 at byte"):
            all_of(path)
        with pytest.raises(DamagedRecording):
            recorder(tmp_path)


@pytest.mark.parametrize(
    "digests", [[], [bytes(32)], ["x"]], ids=["without digests", "other digests", "wrong type"]
)
def test_rows_that_are_not_those_that_were_closed_are_refused(
    tmp_path: Path, digests: list[object]
) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        rollout.add_tokens([2], [-1.0])
    path = tmp_path / "agents.journal"
    ended = {
        "kind": "ended",
        "artifact_id": "run-0",
        "termination_reason": "completed",
        "reward": 1e300,
        "advantage": 0.0,
    }
    for reward in (0.0, 1e300):
        data = path.read_bytes()
        payload = msgspec.msgpack.encode({**ended, "reward": reward, "content_digests": digests})
        append(path, payload, starts(data)[-2])
        with pytest.raises(RollbookError) as refused:
            all_of(path)
        if reward == 0.0 and digests != ["x"]:
            assert isinstance(refused.value, DigestMismatch)
        path.write_bytes(data)


def test_a_length_that_the_file_does_not_have_is_not_allocated(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    data = path.read_bytes()
    header = bytearray(data[starts(data)[-2] :][:48])
    header[4:8] = b"\xff\xff\xff\xff"
    path.write_bytes(data + bytes(header))
    with pytest.raises(ChecksumMismatch):
        read_journal(path)


def test_a_reader_needs_no_lock_and_a_writer_does(tmp_path: Path) -> None:
    write_some(tmp_path)
    with recorder(tmp_path), read_journal(tmp_path / "agents.journal") as journal:
        assert isinstance(journal, Journal)
        with pytest.raises(LeaseHeld):
            JournalWriter(tmp_path / "agents.journal", sync=False)
    assert repr(journal) == "Journal(2 closed, 1 unfinished)"


def test_a_journal_that_was_removed_acknowledges_nothing_more(tmp_path: Path) -> None:
    """The system would still take every record, and drop them all when the file is closed."""
    with recorder(tmp_path) as running:
        rollout = begin(running)
        rollout.add_response(chat([1], [5]))
        (tmp_path / "agents.journal").unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match="removed by another program"):
                rollout.add_response(chat([1, 5], [6]))
        assert rollout.token_ids.tolist() == [1, 5]


def test_reading_after_the_file_was_replaced_by_zeros_is_an_error(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    with read_journal(path) as journal:
        path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(ChecksumMismatch, match="not there any more"):
            journal.table()
        path.write_bytes(b"")
        with pytest.raises(ChecksumMismatch, match="not there any more"):
            journal.table()


def test_a_reader_waits_for_a_record_that_is_being_written(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    sizes = iter([len(data) - 1, len(data)])
    with open(path, "rb") as file:
        reader = JournalReader(str(path), file)

        def grow() -> int:
            path.write_bytes(data)
            return next(sizes)

        reader._size = grow  # type: ignore[method-assign]
        assert len(list(reader.frames())) == len(starts(data)) - 1
        assert reader.torn is None


# ------------------------------------------------------------------------------------ other readers


def test_the_files_of_contracts_can_be_journals(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    entries = list(read_file(path))
    assert [entry.where for entry in entries] == ["rollout 'run-0'", "rollout 'run-1'"]
    assert all(finding.passed for finding in check_files([path]))
    table = tmp_path / "agents.table"
    assert rollbook("contracts", "convert", path, table).returncode == 0
    with read_journal(path) as journal:
        assert open_table(table, verify="all").root == journal.table().root
    assert rollbook("contracts", "show", path, "--json").json["rollouts"] == 2


def test_a_torn_record_is_a_finding(tmp_path: Path) -> None:
    path = write_some(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    [*good, torn] = check_files([path])
    assert all(finding.passed for finding in good)
    assert not torn.passed
    assert torn.code == TruncatedFile.code
    path.write_bytes(path.read_bytes().replace(b"run-0", b"run-9", 1))
    [damaged] = check_files([path])
    assert damaged.code == ChecksumMismatch.code

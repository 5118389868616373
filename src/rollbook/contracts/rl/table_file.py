"""A saved RolloutTable: one file of raw column buffers that memory-map, behind a small JSON header.

    0   magic, format version, header length, SHA-256 of the header          64 bytes
    64  JSON header: counts, table root, dictionaries, and every buffer's name, type, place and checksum
    …   buffers, each starting at a multiple of 64, zeros between them

Opening maps the file and checks everything except the sample columns, which are large. A whole sample column is
compared with its checksum before it is first used; a single rollout is compared with its own content digest.
`verify="bytes"` checks the whole file at once. `verify="all"` also computes every digest again.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import checked_type
from rollbook.contracts.rl.columns import StoredSamples, TableColumns
from rollbook.contracts.rl.provenance import (
    PROOF_KINDS,
    TERMINATION_REASONS,
    EnvironmentPackageKey,
    LogprobSemantics,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import COMPATIBLE
from rollbook.contracts.rl.sample import BASE_COLUMNS, SAMPLE_DTYPES, Column
from rollbook.contracts.rl.table_checks import table_problems
from rollbook.contracts.rl.text_column import Offsets, TextColumn
from rollbook.digest import checksum, sha256
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    NotATable,
    StorageError,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.files import atomic_write

MAGIC = b"ROLLTABL"
VERSION = 1
_PREAMBLE = struct.Struct("<8sIIQ32s8s")
_ALIGN = 64
_LARGEST_HEADER = 1 << 30
_TEXTS = ("artifact_id", "worker_id", "task_id", "groups", "proof_digest", "proof_reference")
_ARRAYS = {
    "environment_index": "<i4",
    "revision_index": "<i4",
    "termination": "u1",
    "created_at_ms": "<u8",
    "group_index": "<i4",
    "attempt": "<i8",
    "semantics_index": "<i4",
    "proof_offsets": "<i8",
    "proof_kind": "u1",
    "prompt_offsets": "<i8",
    "prompt_token_id": "<u4",
    "sample_offsets": "<i8",
}
Verify = Literal["lazy", "bytes", "all"]


class _Buffer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    dtype: str
    count: int
    offset: int
    checksum: str

    @property
    def size(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


class _Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["rollbook.rollout_table"]
    rollouts: int
    samples: int
    root: str
    environments: tuple[EnvironmentPackageKey, ...]
    revisions: tuple[PolicyRevision, ...]
    semantics: tuple[LogprobSemantics, ...]
    data_size: int
    """Bytes from the first buffer to the end of the file; buffer offsets count from the first buffer too."""
    buffers: tuple[_Buffer, ...]


def is_table_file(path: Path) -> bool:
    """Whether the file begins like a saved table. It may still be damaged."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(path=path, detail=f"cannot be opened ({error.strerror or error})")


# ----------------------------------------------------------------------------------------- saving


def save_table(table: RolloutTable, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write the table in one atomic step. An existing file is refused unless `replace` is set."""
    checked_type(table, RolloutTable, "saved table", "table")
    checked_type(path, (str, os.PathLike), "saved table", "path")
    arrays = list(_arrays_of(table))
    buffers, place = [], 0
    for name, array in arrays:
        buffers.append(
            _Buffer(
                name=name,
                dtype=array.dtype.str,
                count=array.size,
                offset=place,
                checksum=checksum(_bytes_of(array)),
            )
        )
        place += -(-array.nbytes // _ALIGN) * _ALIGN
    header = msgspec.json.encode(
        _Header(
            format="rollbook.rollout_table",
            rollouts=len(table),
            samples=table.sample_count,
            root=table.root,
            environments=table.columns.environments,
            revisions=table.columns.revisions,
            semantics=table.columns.semantics,
            data_size=place,
            buffers=tuple(buffers),
        )
    )
    # JSON may end in spaces: the header is padded with them, and its digest covers the padding
    header = header.ljust(-(-len(header) // _ALIGN) * _ALIGN)
    digest = sha256(header).digest()
    with atomic_write(path, replace=replace) as file:
        file.write(_PREAMBLE.pack(MAGIC, VERSION, 0, len(header), digest, bytes(8)))
        file.write(header)
        for _, array in arrays:
            file.write(_bytes_of(array))
            file.write(bytes(-array.nbytes % _ALIGN))


def _bytes_of(array: Column) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _arrays_of(table: RolloutTable) -> Iterator[tuple[str, Column]]:
    columns = table.columns
    for name in _TEXTS:
        value = getattr(columns, name)
        texts = TextColumn.encode([v.encode() for v in value]) if name == "groups" else value
        yield f"{name}.data", texts.data
        yield f"{name}.offsets", texts.offsets
    for name, dtype in _ARRAYS.items():
        yield name, getattr(columns, name).astype(dtype, copy=False)
    yield "artifact_digests", table.artifact_digests
    yield "content_digests", table.content_digests
    for name, column in columns.samples.items():
        yield f"samples.{name}", column


# ---------------------------------------------------------------------------------------- opening


def open_table(path: str | os.PathLike[str], *, verify: Verify = "lazy") -> RolloutTable:
    """Map a saved table. Everything is checked before it is returned; `verify` says what is checked at once."""
    checked_type(path, (str, os.PathLike), "saved table", "path")
    if verify not in get_args(Verify):
        raise ConfigurationError(
            message=f"verify is {verify!r}, expected {', '.join(get_args(Verify))}"
        )
    stored = _StoredTable(Path(path))
    table = stored.table()
    if verify != "lazy":
        stored.read_ahead()
        for name in table.samples:
            table.samples[name]  # the first use checks it
    if verify == "all":
        _check_content(stored, table)
    return table


class _StoredTable:
    """An open file whose content is not trusted yet. Every error names the file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._absolute = str(path.absolute())
        try:
            with open(path, "rb") as file:
                self._stat = os.fstat(file.fileno())
                size = self._stat.st_size
                if size < _PREAMBLE.size:
                    raise NotATable(path=self.path, detail=f"it has only {size} bytes")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        self.header, self._start = self._read_header(size)
        self._buffers = {buffer.name: buffer for buffer in self.header.buffers}
        self._check_places(size)

    def _read_header(self, size: int) -> tuple[_Header, int]:
        magic, version, zero, length, digest, zeros = _PREAMBLE.unpack_from(self._map)
        if magic != MAGIC:
            raise NotATable(path=self.path, detail="it does not begin like one")
        if version != VERSION:
            raise UnsupportedVersion.of(self.path, version, VERSION)
        if length > min(_LARGEST_HEADER, size - _PREAMBLE.size):
            raise TruncatedFile(path=self.path, detail="it ends inside its header")
        end = _PREAMBLE.size + length
        text = self._map[_PREAMBLE.size : end]
        if zero or any(zeros) or sha256(text).digest() != digest:
            raise ChecksumMismatch(path=self.path, detail="the header does not match its digest")
        try:
            return msgspec.json.decode(text, type=_Header), end
        except (msgspec.DecodeError, RecursionError) as error:
            raise NotATable(path=self.path, detail=f"bad header: {error}") from error

    def _check_places(self, size: int) -> None:
        """Check that the buffers lie one after the other, and that the file ends with the last one."""
        if size != self._start + self.header.data_size:
            expected = self._start + self.header.data_size
            detail = f"it has {size} bytes, its header describes {expected}"
            raise TruncatedFile(path=self.path, detail=detail)
        samples = {f"samples.{name}": dtype.str for name, dtype in SAMPLE_DTYPES.items()}
        known = {f"{name}.data": "|u1" for name in _TEXTS}
        known |= {f"{name}.offsets": "<i8" for name in _TEXTS}
        known |= {name: np.dtype(dtype).str for name, dtype in _ARRAYS.items()}
        known |= {"artifact_digests": "|u1", "content_digests": "|u1"}
        known |= {name: samples[name] for name in samples if name in self._buffers}
        if {name: buffer.dtype for name, buffer in self._buffers.items()} != known:
            raise NotATable(path=self.path, detail="its columns are not those of this format")
        if any(f"samples.{name}" not in self._buffers for name in BASE_COLUMNS):
            raise NotATable(path=self.path, detail="a base sample column is missing")
        place = 0
        for buffer in self.header.buffers:
            if buffer.offset != place or buffer.count < 0:
                raise NotATable(path=self.path, detail=f"buffer {buffer.name!r} is misplaced")
            place += -(-buffer.size // _ALIGN) * _ALIGN
            if place > self.header.data_size:
                raise NotATable(path=self.path, detail=f"buffer {buffer.name!r} is too long")
            if any(self._map[self._start + buffer.offset + buffer.size : self._start + place]):
                raise ChecksumMismatch(path=self.path, detail=f"gap after buffer {buffer.name!r}")
        if place != self.header.data_size:
            raise NotATable(path=self.path, detail="there are bytes that belong to no buffer")

    def _array(self, name: str) -> Column:
        buffer = self._buffers[name]
        return np.frombuffer(self._map, buffer.dtype, buffer.count, self._start + buffer.offset)

    def _check(self, name: str) -> None:
        if checksum(_bytes_of(self._array(name))) != self._buffers[name].checksum:
            raise ChecksumMismatch(
                path=self.path, detail=f"column {name!r} does not match its checksum"
            )

    def read_ahead(self) -> None:
        """Tell the system that the whole file is about to be read in order."""
        self._map.madvise(mmap.MADV_SEQUENTIAL)

    def _checked(self, name: str, count: int) -> Column:
        self._check(name)
        array = self._array(name)
        if len(array) != count:
            detail = f"column {name!r} has {len(array)} entries, expected {count}"
            raise NotATable(path=self.path, detail=detail)
        return array

    def _offsets(self, name: str, rows: int, end: int | None = None) -> Offsets:
        offsets: Offsets = self._checked(name, rows + 1)
        if offsets[0] or (np.diff(offsets) < 0).any() or (end is not None and offsets[-1] != end):
            raise NotATable(path=self.path, detail=f"column {name!r} is not a list of offsets")
        return offsets

    def _codes(self, name: str, rows: int, words: int, lowest: int = 0) -> Column:
        codes = self._checked(name, rows)
        if len(codes) and not lowest <= codes.min() <= codes.max() < words:
            raise NotATable(path=self.path, detail=f"column {name!r} has codes out of range")
        return codes

    def _text(self, name: str, rows: int | None) -> TextColumn:
        data_size = self._buffers[f"{name}.data"].count
        data = self._checked(f"{name}.data", data_size)
        rows = self._buffers[f"{name}.offsets"].count - 1 if rows is None else rows
        offsets = self._offsets(f"{name}.offsets", rows, data_size)
        try:
            data.tobytes().decode()
        except UnicodeDecodeError as error:
            raise NotATable(path=self.path, detail=f"column {name!r}: {error}") from error
        inside = offsets[offsets < data_size]
        if (data[inside] & 0xC0 == 0x80).any():
            raise NotATable(path=self.path, detail=f"column {name!r} splits a character")
        return TextColumn(data, offsets)

    def table(self) -> RolloutTable:
        header, rows = self.header, self.header.rollouts
        if rows < 0 or header.samples < 0:
            raise NotATable(path=self.path, detail="negative counts")
        proof_offsets = self._offsets("proof_offsets", rows)
        proofs = int(proof_offsets[-1])
        prompt_offsets = self._offsets("prompt_offsets", rows)
        groups = tuple(self._text("groups", None))
        columns = TableColumns(
            artifact_id=self._text("artifact_id", rows),
            worker_id=self._text("worker_id", rows),
            task_id=self._text("task_id", rows),
            environments=header.environments,
            environment_index=self._codes("environment_index", rows, len(header.environments)),
            revisions=header.revisions,
            revision_index=self._codes("revision_index", rows, len(header.revisions)),
            termination=self._codes("termination", rows, len(TERMINATION_REASONS)),
            created_at_ms=self._checked("created_at_ms", rows),
            groups=groups,
            group_index=self._codes("group_index", rows, len(groups), -1),
            attempt=self._codes("attempt", rows, 1 << 32, -1),
            semantics=header.semantics,
            semantics_index=self._codes("semantics_index", rows, len(header.semantics), -1),
            proof_offsets=proof_offsets,
            proof_kind=self._codes("proof_kind", proofs, len(PROOF_KINDS)),
            proof_digest=self._text("proof_digest", proofs),
            proof_reference=self._text("proof_reference", proofs),
            prompt_offsets=prompt_offsets,
            prompt_token_id=self._checked("prompt_token_id", int(prompt_offsets[-1])),
            sample_offsets=self._offsets("sample_offsets", rows, header.samples),
            samples=self._samples(),
        )
        artifact_digests = self._checked("artifact_digests", rows * 32).reshape(rows, 32)
        content_digests = self._checked("content_digests", rows * 32).reshape(rows, 32)
        return RolloutTable(columns, artifact_digests, content_digests)

    def _samples(self) -> StoredSamples:
        names = [name for name in SAMPLE_DTYPES if f"samples.{name}" in self._buffers]
        for name in names:
            if self._buffers[f"samples.{name}"].count != self.header.samples:
                raise NotATable(path=self.path, detail=f"column {name!r} has the wrong length")
        return StoredSamples(
            {name: self._array(f"samples.{name}") for name in names},
            lambda name: self._check(f"samples.{name}"),
            self._reopen,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the header. The header has the checksum of every buffer, so it identifies the whole file."""
        return bytes(_PREAMBLE.unpack_from(self._map)[4]).hex()

    def _reopen(self) -> tuple[Any, ...] | None:
        try:
            same = os.path.samestat(os.stat(self._absolute), self._stat)
        except OSError:
            same = False
        return (_reopened, (self._absolute, self.digest)) if same else None


def _reopened(path: str, digest: str) -> RolloutTable:
    """The table of a pickle, read from its file, which must be the one that was pickled."""
    stored = _StoredTable(Path(path))
    if stored.digest != digest:
        detail = "it is not the file that the pickled table was opened from"
        raise ChecksumMismatch(path=path, detail=detail)
    return stored.table()


def _check_content(stored: _StoredTable, table: RolloutTable) -> None:
    """Check the digests, the root and the rules that every table keeps."""
    table.verify()
    if table.root != stored.header.root:
        raise ChecksumMismatch(path=stored.path, detail="its root is not that of its rollouts")
    for problem in table_problems(table.columns, COMPATIBLE):
        raise problem

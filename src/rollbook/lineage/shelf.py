"""Shelf: the stores, sources, tables, batches and run folders of this machine that a walk may use, each by its digest.

Folders that are searched are looked into three levels deep; links are not followed. What cannot be opened is kept with
its error: a walk that misses a record then says so, instead of saying that the record is nowhere.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.json_form import batch_from_json
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.table_file import is_table_file, open_table
from rollbook.errors import ConfigurationError, RollbookError, StorageError
from rollbook.generate.sources.layout import MANIFEST_FILE, SPLITS_FILE
from rollbook.generate.sources.reader import SourceStore
from rollbook.learned import is_training_run, open_training_run
from rollbook.learned.run_folder import CHECKPOINT_FOLDER, PLAN_FILE, REVISION_FILE
from rollbook.lineage.evidence import Evidence, open_evidence
from rollbook.lineage.report import Check, Kind, whole_text
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME, stated_source
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.shards.collection_file import COLLECTION_FILENAME, find_collection
from rollbook.store.urls.url_folder import is_url
from rollbook.train.artifacts import content_digest

if TYPE_CHECKING:
    from rollbook.learned import TrainingRunFolder
    from rollbook.lineage.server_records import ServerRecords

_DEEPEST = 3
_ROOT_FILE = "zarr.json"
_OF_A_TRAINING = (REVISION_FILE, PLAN_FILE, CHECKPOINT_FOLDER)
"""Each of them tells the folder of a training run from another one with a run.json."""
_TABLE_SUFFIX = ".table"
_BATCH_SUFFIX = ".batch.json"
_EVIDENCE_SUFFIX = ".zip"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where to look."""

    stores: tuple[Path, ...] = ()
    sources: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()
    batches: tuple[Path, ...] = ()
    run_folders: tuple[Path, ...] = ()
    evidence: tuple[Path, ...] = ()
    """Evidence files of eval runs."""
    recordings: tuple[Path, ...] = ()
    """Files and folders that episodes were imported from."""
    search: tuple[Path, ...] = ()
    """Folders in which all of these are looked for."""

    def __iter__(self) -> Iterator[Path]:
        yield from self.stores
        yield from self.sources
        yield from self.tables
        yield from self.batches
        yield from self.run_folders
        yield from self.evidence
        yield from self.recordings
        yield from self.search


@dataclass(frozen=True, slots=True)
class Damaged:
    """Something that looks like a record of this kind and cannot be opened."""

    kind: Kind
    path: str
    error: RollbookError

    def told(self) -> str:
        """What is wrong with which file. Errors about the content of a record name its id only."""
        text = whole_text(self.error)
        return text if self.path in text else f"{self.path}: {text}"


@dataclass(frozen=True, slots=True)
class FoundBatch:
    batch: TrainerBatch
    path: str


@dataclass(slots=True)
class Shelf:
    stores: dict[str, RolloutZarrStoreReader] = field(default_factory=dict)
    """By content digest."""
    sources: dict[str, SourceStore] = field(default_factory=dict)
    """By the digest of the manifest."""
    tables: dict[str, RolloutTable] = field(default_factory=dict)
    """By path."""
    batches: dict[str, FoundBatch] = field(default_factory=dict)
    """By batch digest. Ids of batches are unique within a training run only."""
    runs: dict[str, TrainingRunFolder] = field(default_factory=dict)
    """By path."""
    evidence: dict[str, Evidence] = field(default_factory=dict)
    """By the id of the eval run."""
    recordings: list[Path] = field(default_factory=list)
    """Files and folders that were named as the origin of imported episodes."""
    searched: list[Path] = field(default_factory=list)
    """Folders in which everything is looked for."""
    server: ServerRecords | None = None
    download_limit: int = 256 << 20
    """Bytes of artifacts of one set of episodes that are downloaded to be hashed."""
    store_checks: dict[str, tuple[Check, ...]] = field(default_factory=dict)
    """What was found in stores whose bytes were compared, by content digest."""
    _sound: set[str] = field(default_factory=set)
    """Stores whose words and revisions were compared."""
    damaged: list[Damaged] = field(default_factory=list)
    looked_in: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, places: Places, server: ServerRecords | None = None) -> Shelf:
        shelf = cls(server=server)
        if server is not None:
            shelf.looked_in.append(server.place)
        for path in places:
            if not path.exists():
                raise ConfigurationError(message=f"{path} does not exist")
            shelf.looked_in.append(str(path.absolute()))
        for path in places.stores:
            shelf.add_store(path)
        for path in places.sources:
            shelf.add_source(path)
        for path in places.tables:
            shelf.add_table(path)
        for path in places.batches:
            shelf.add_batch(path)
        for path in places.run_folders:
            shelf.add_run(path)
        for path in places.evidence:
            shelf.add_evidence(path)
        shelf.recordings += places.recordings
        shelf.searched += places.search
        for path in places.search:
            shelf._search(path)
        return shelf

    def _search(self, folder: Path) -> None:
        for path in _below(folder):
            self.add(path)

    def add(self, path: Path, *, before_copies: bool = False) -> Kind | None:
        """Add what the path is, by the files in it; None if it is nothing that is known here.

        Of several copies of a store or a source the first one is used, or the one that is added `before_copies`.
        """
        if path.is_file():
            if path.name == COLLECTION_FILENAME:
                self.add_store(path, before_copies=before_copies)
                return "store"
            if path.name.endswith(_BATCH_SUFFIX):
                self.add_batch(path)
                return "batch"
            if path.suffix == _TABLE_SUFFIX or is_table_file(path):
                self.add_table(path)
                return "artifacts"
            if path.suffix == _EVIDENCE_SUFFIX:
                self.add_evidence(path)
                return "run"
            return None
        kind = folder_kind(path)
        if kind == "store" or is_collection(path):
            self.add_store(path, before_copies=before_copies)
            return "store"
        if kind == "source":
            self.add_source(path, before_copies=before_copies)
        elif kind == "training":
            self.add_run(path)
        return kind

    def add_store(self, path: Path, *, before_copies: bool = False) -> None:
        """A store, or every store on this machine that a collection lists."""
        if not is_collection(path):
            places: Sequence[Path] = (path,)
        else:
            places = self._opened("store", path, lambda: stores_collected(path)) or ()
        for place in places:
            store = self._opened("store", place, partial(RolloutZarrStoreReader, place))
            if store is not None:
                _keep(self.stores, content_digest(store), store, before_copies)

    def add_source(self, path: Path, *, before_copies: bool = False) -> None:
        if any(each.path == path.absolute() for each in self.sources.values()):
            return
        source = self._opened("source", path, lambda: SourceStore.open(path))
        if source is not None:
            _keep(self.sources, source.manifest_digest, source, before_copies)

    def add_table(self, path: Path) -> None:
        place = str(path.resolve())
        if place not in self.tables:
            table = self._opened("artifacts", path, lambda: open_table(path))
            if table is not None:
                self.tables[place] = table

    def add_batch(self, path: Path) -> None:
        batch = self._opened("batch", path, lambda: _read_batch(path))
        if batch is not None:
            self.batches.setdefault(batch.batch_digest, FoundBatch(batch, str(path)))

    def add_evidence(self, path: Path) -> None:
        found = self._opened("run", path, lambda: open_evidence(path.read_bytes(), str(path)))
        if found is None:
            return
        self.evidence[found.run.id] = found
        for batch in found.batches:
            self.batches.setdefault(batch.batch_digest, FoundBatch(batch, str(path)))

    def add_run(self, path: Path) -> None:
        place = str(path.resolve())
        if place in self.runs:
            return
        # its files are compared when the walk comes to it
        run = self._opened("training", path, lambda: open_training_run(path, verify=False))
        if run is None:
            return
        self.runs[place] = run
        table = path / "batches" / "rollouts.table"
        if table.is_file():
            self.add_table(table)
        for batch in run.run.batches:
            self.add_batch(path / "batches" / f"{batch.batch_id}.json")

    def _opened(self, kind: Kind, path: Path, opened: Callable[[], T]) -> T | None:
        try:
            return opened()
        except RollbookError as error:
            self.damaged.append(Damaged(kind, str(path), error))
        except OSError as error:
            detail = f"cannot be read ({error.strerror or error})"
            unreadable = StorageError(path=str(path), detail=detail)
            self.damaged.append(Damaged(kind, str(path), unreadable))
        return None

    def source(self, digest: str) -> SourceStore | None:
        """The source store with this digest. If none of the named places has one, or has a damaged one, it is looked
        for where the rollout stores say that it was."""
        if digest not in self.sources and not self.damaged_of("source"):
            for store in self.stores.values():
                stated = stated_source(store.store_manifest.payload)
                if stated is not None:
                    self._add_hinted(Path(stated))
                    self._add_hinted(store.store_dir.parent / Path(stated).name)
        return self.sources.get(digest)

    def _add_hinted(self, place: Path) -> None:
        if str(place) not in self.looked_in:
            self.looked_in.append(str(place))
            if folder_kind(place) == "source":
                self.add_source(place)

    def sound_stores(
        self, **columns: Sequence[str]
    ) -> Iterator[tuple[str, RolloutZarrStoreReader]]:
        """The stores whose words, revisions and these columns are as they were written, by content digest. A damaged
        one is noted. `columns` are names by table."""
        for digest, store in self.stores.items():
            try:
                if digest not in self._sound:
                    for name in ("dictionaries/zarr.json", "metadata/zarr.json"):
                        store.files.verify(name)
                    self._sound.add(digest)
                for table, names in columns.items():
                    there = [each for each in names if store.has(f"{table}/{each}")]
                    store.verify_columns(table, there)
            except RollbookError as error:
                if all(each.path != str(store.store_dir) for each in self.damaged):
                    self.damaged.append(Damaged("store", str(store.store_dir), error))
                continue
            yield digest, store

    def recordings_named(self, name: str) -> Iterator[Path]:
        """Files and folders with this name: those that were given, then those in the folders that are searched."""
        yield from (each for each in self.recordings if each.resolve().name == name)
        for folder in self.searched:
            for depth in range(_DEEPEST):
                pattern = "/".join(["*"] * depth + [glob.escape(name)])
                yield from sorted(folder.glob(pattern))

    @property
    def server_place(self) -> str | None:
        return None if self.server is None else self.server.place

    def damaged_of(self, *kinds: Kind) -> list[Damaged]:
        return [each for each in self.damaged if each.kind in kinds]


def _keep(records: dict[str, T], digest: str, record: T, before_copies: bool) -> None:
    if before_copies or digest not in records:
        records[digest] = record


def folder_kind(path: Path) -> Kind | None:
    """What a folder is, by the names of its files. An evidence file that somebody unpacked has a run.json too."""
    if is_training_run(path) and any((path / name).exists() for name in _OF_A_TRAINING):
        return "training"
    if (path / _ROOT_FILE).is_file() and (path / ROLLOUT_MANIFEST_FILENAME).is_file():
        return "store"
    if (path / MANIFEST_FILE).is_file() and (path / SPLITS_FILE).is_file():
        return "source"
    return None


def is_collection(path: Path) -> bool:
    """Whether this is a collection file, or a folder with one, such as a campaign or an improvement loop."""
    return path.name == COLLECTION_FILENAME or (path / COLLECTION_FILENAME).is_file()


def stores_collected(path: Path) -> tuple[Path, ...]:
    """The stores on this machine that a collection lists."""
    found = find_collection(path)
    places = () if found is None else (each.place for each in found.file.listed(found.folder))
    return tuple(Path(each) for each in places if not is_url(each))


def _below(folder: Path) -> Iterable[Path]:
    """The folder, then folders and tables in it. Nothing inside of a store or a source is listed."""
    if folder_kind(folder) is not None:
        yield folder
        return
    base = len(folder.parts)
    for at, folders, files in os.walk(folder):
        here = Path(at)
        yield from (
            here / name for name in sorted(files) if name.endswith((_TABLE_SUFFIX, _BATCH_SUFFIX))
        )
        known = [name for name in sorted(folders) if folder_kind(here / name) is not None]
        yield from (here / name for name in known)
        deeper = len(here.parts) - base + 1 < _DEEPEST
        folders[:] = [
            name
            for name in sorted(folders)
            if deeper
            and name not in known
            and not name.startswith(".")
            and not (here / name).is_symlink()
        ]


def _read_batch(path: Path) -> TrainerBatch:
    return batch_from_json(path.read_bytes(), source=str(path))

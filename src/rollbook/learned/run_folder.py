"""TrainingRunFolder: the folder of a finished training run. Every file is compared with the digests of run.json.

RUN/
  run.json        the TrainingRun, written last: a folder without it is not finished
  training.json   what is trained: learner, options, seed and the digests of the data
  metrics.jsonl   one line for each report of the training
  checkpoint/     head-01.txt, head-02.txt … (LightGBM text), or weights.safetensors
  revision.json   the PolicyRevision
  batches/        rollouts.table with every chain that was trained on, and the trainer batches
  state/          only while the run is not finished: what `rollbook train resume` needs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import check_digest, decode_json
from rollbook.digest import sha256
from rollbook.errors import (
    ChecksumMismatch,
    NotATrainingRun,
    StorageError,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.files import AnyPath
from rollbook.learned.training_run import SCHEMA, VERSION, RunFile, TrainingRun, is_checkpoint

if TYPE_CHECKING:
    from rollbook.contracts.rl.batch import TrainerBatch
    from rollbook.contracts.rl.rollout import RolloutTable

RUN_FILE = "run.json"
PLAN_FILE = "training.json"
METRICS_FILE = "metrics.jsonl"
REVISION_FILE = "revision.json"
CHECKPOINT_FOLDER = "checkpoint"
BATCHES_FOLDER = "batches"
ROLLOUTS_FILE = f"{BATCHES_FOLDER}/rollouts.table"
STATE_FOLDER = "state"


class _Version(msgspec.Struct):
    schema: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class TrainingRunFolder:
    """An opened run folder. `open_training_run` makes it."""

    path: Path
    run: TrainingRun

    @property
    def revision(self) -> PolicyRevision:
        return self.run.policy_revision

    def _repr_html_(self) -> str:
        return self.run._repr_html_()

    def read(self, name: str) -> bytes:
        """The bytes of a file of the run, compared with its digest."""
        known = next((each for each in self.run.files if each.path == name), None)
        if known is None:
            raise StorageError(path=str(self.path / name), detail=f"{RUN_FILE} names no such file")
        return _checked_bytes(self.path, known)

    def verify(self) -> None:
        """Compare every file with its digest. Files that run.json does not name are not read."""
        for file in self.run.files:
            _checked_bytes(self.path, file)

    def checkpoint(self) -> dict[str, bytes]:
        """The checkpoint files by their names in the folder `checkpoint`, compared with their digests."""
        return {
            file.path.removeprefix(f"{CHECKPOINT_FOLDER}/"): _checked_bytes(self.path, file)
            for file in self.run.files
            if is_checkpoint(file)
        }

    def metrics(self) -> list[dict[str, Any]]:
        """The reports of the training, in order."""
        return [msgspec.json.decode(line) for line in self.read(METRICS_FILE).splitlines()]

    def rollouts(self) -> RolloutTable:
        """Every chain that was trained on. The digests in the table are verified when it is used."""
        from rollbook.contracts.rl.table_file import open_table

        self.read(ROLLOUTS_FILE)
        return open_table(self.path / ROLLOUTS_FILE)

    def batches(self) -> Iterator[TrainerBatch]:
        """The trainer batches, with their digests verified."""
        from rollbook.contracts.rl.json_form import batch_from_json

        for known in self.run.batches:
            batch = batch_from_json(self.read(f"{BATCHES_FOLDER}/{known.batch_id}.json"))
            for field in ("batch_digest", "content_digest", "rollouts_root"):
                check_digest(known.batch_id, field, getattr(known, field), getattr(batch, field))
            yield batch


def is_training_run(path: AnyPath) -> bool:
    """Whether this is the folder of a finished training run. Its content is not read."""
    return (Path(path) / RUN_FILE).is_file()


def open_training_run(path: AnyPath, *, verify: bool = True) -> TrainingRunFolder:
    """Open a finished run folder. Every file is compared with its digest, unless `verify` is False.

    Without `verify` only run.json itself is checked, and each file when it is read.
    """
    folder = Path(path)
    run = _read_run(folder)
    opened = TrainingRunFolder(folder, run)
    if verify:
        opened.verify()
    return opened


def _read_run(folder: Path) -> TrainingRun:
    try:
        data = (folder / RUN_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_finished(folder) from error
    except OSError as error:
        raise StorageError(
            path=str(folder / RUN_FILE), detail=f"cannot be read ({error.strerror})"
        ) from error
    try:
        found = msgspec.json.decode(data, type=_Version)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotATrainingRun(path=str(folder), detail=f"{RUN_FILE}: {error}") from error
    if found.schema != SCHEMA:
        detail = f"the schema of {RUN_FILE} is {found.schema!r}, expected {SCHEMA!r}"
        raise NotATrainingRun(path=str(folder), detail=detail)
    if found.version != VERSION:
        raise UnsupportedVersion.of(folder, found.version, VERSION, "train again")
    run = decode_json(data, TrainingRun, str(folder / RUN_FILE))
    run.verify()
    return run


def _not_finished(folder: Path) -> NotATrainingRun:
    if (folder / PLAN_FILE).is_file():
        command = f"rollbook train resume {quote(str(folder))}"
        detail = f"the training has not finished; continue it with `{command}`"
    elif folder.is_dir():
        detail = f"it has no {RUN_FILE}"
    else:
        detail = "there is no such folder"
    return NotATrainingRun(path=str(folder), detail=detail)


def described_file(folder: Path, name: str) -> RunFile:
    """Size and digest of a file as it is now."""
    data = (folder / name).read_bytes()
    return RunFile(path=name, sha256=sha256(data).hexdigest(), bytes=len(data))


def _checked_bytes(folder: Path, file: RunFile) -> bytes:
    place = folder / file.path
    if ".." in Path(file.path).parts or Path(file.path).is_absolute():
        raise StorageError(path=str(place), detail="the file is not inside the run folder")
    try:
        if (
            place.exists() and not place.is_file()
        ):  # a pipe would be waited for, and a device has no end
            raise StorageError(path=str(place), detail="it is not a file")
        size = place.stat().st_size
        data = place.read_bytes() if size == file.bytes else b""
    except FileNotFoundError as error:
        raise TruncatedFile(path=str(folder), detail=f"{file.path} is missing") from error
    except OSError as error:
        raise StorageError(path=str(place), detail=f"cannot be read ({error.strerror})") from error
    if size != file.bytes:
        detail = f"{file.path} has {size} bytes, {RUN_FILE} names {file.bytes}"
        raise TruncatedFile(path=str(folder), detail=detail)
    found = sha256(data).hexdigest()
    if found != file.sha256:
        detail = f"{file.path} has the SHA-256 {found}, {RUN_FILE} names {file.sha256}"
        raise ChecksumMismatch(path=str(folder), detail=detail)
    return data

"""StepRecorder: the batches of a training run on disk, each written before the step that learns from it.

    step-000001.table        the rollouts
    step-000001.npz          tensors for which a table has no column, if there are any; the rollouts name its digest
    step-000001.batch.json   the batch; written after the two files above
    step-000001.step.json    written after the step: its batch, and the revision that it made

Files are never replaced. A step that is done again after a crash gets the names of `step-000001-2`.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.npz import read_npz, write_npz
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import Record, check_digest, checked_text, decode_json
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.graph import LineageGraph
from rollbook.contracts.rl.json_form import batch_from_json, batch_to_json
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    LogprobSemantics,
    RolloutProofKind,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import ContractRules
from rollbook.contracts.rl.table_file import open_table, save_table
from rollbook.digest import digest_of, sha256
from rollbook.errors import StorageError
from rollbook.files import make_folders, write_bytes, write_errors
from rollbook.train.export import identity_of

STEP_DOMAIN = "rollbook.trained_step.v1"
_BATCH, _STEP, _TABLE, _TENSORS = ".batch.json", ".step.json", ".table", ".npz"
_RULES = ContractRules(non_finite="allow")
"""A rollout that no reward function could score has the reward NaN. It is recorded as it is."""


class TrainedStep(Record, frozen=True, kw_only=True):
    """An optimizer step: the batch it learned from, and the revision of the policy that it made."""

    step: int
    batch_id: str
    batch_digest: str
    revision: PolicyRevision
    digest: str

    def computed_digest(self) -> str:
        content = self.plain()
        del content["digest"]
        return digest_of(STEP_DOMAIN, content)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedStep:
    """What a step learns from, as it lies on disk, with every digest compared."""

    name: str
    batch: TrainerBatch
    table: RolloutTable
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Tensors of the trainer for which a table has no column, by their names."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class StepRecorder:
    """Writes the batches of one training run into a folder. One process writes."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        policy_family: str = "policy",
        run_id: str | None = None,
        environment: EnvironmentPackageKey | None = None,
        task_id: str = "",
        clock: Callable[[], int] = _now_ms,
    ) -> None:
        """`run_id` begins the ids of batches and rollouts; the name of the folder, unless given. `clock` gives
        milliseconds since 1970."""
        self.folder = Path(folder)
        self.policy_family = policy_family
        self.run_id = run_id or self.folder.absolute().name
        self.environment = environment
        self.task_id = task_id
        self._clock = clock
        checked_text(self.policy_family, "step recorder", "policy_family")
        checked_text(self.run_id, "step recorder", "run_id")
        with write_errors(self.folder):
            make_folders(self.folder)
        self._known = {each.revision_id: each for each in _revisions(self.folder)}
        self._last: PolicyRevision | None = None

    def revision(self, number: int, policy_digest: str) -> PolicyRevision:
        """The revision with these weights. Its parent is the one that was asked for before it.

        A revision that the folder knows from an earlier run is described as before.
        """
        revision_id = f"step-{number:06d}-{policy_digest[:12]}"
        if revision_id not in self._known:
            self._known[revision_id] = PolicyRevision(
                policy_family=self.policy_family,
                revision_id=revision_id,
                policy_digest=policy_digest,
                produced_at_ms=self._clock(),
                revision_number=number,
                parent_revision_id=None if self._last is None else self._last.revision_id,
            )
        self._last = self._known[revision_id]
        return self._last

    def record(
        self,
        step: int,
        *,
        revision: PolicyRevision,
        offsets: ArrayLike,
        samples: Mapping[str, ArrayLike],
        prompt: Sequence[ArrayLike],
        groups: Sequence[int],
        termination_reason: Sequence[RolloutTerminationReason],
        logprob_semantics: LogprobSemantics,
        environment: EnvironmentPackageKey,
        tensors: Mapping[str, ArrayLike] = MappingProxyType({}),
    ) -> RecordedStep:
        """Write the rollouts of a step and their batch, and read them back from the disk with every digest compared.

        The batch trains the revision that sampled its rollouts: the weights as they are before the step.
        """
        name = self._free_name(f"step-{step:06d}", _TABLE)
        batch_id = f"{self.run_id}-{name}"
        rows = len(prompt)
        proofs = self._save_tensors(name, tensors)
        table = RolloutTable.from_columns(
            artifact_id=[f"{batch_id}-{row}" for row in range(rows)],
            worker_id=[self.run_id] * rows,
            environment=[self.environment or environment] * rows,
            task_id=[self.task_id] * rows,
            source_policy_revision=[revision] * rows,
            offsets=offsets,
            samples=samples,
            termination_reason=termination_reason,
            created_at_ms=[self._clock()] * rows,
            proof_references=[proofs] * rows,
            prompt=prompt,
            group_id=[f"{batch_id}-group-{group}" for group in groups],
            logprob_semantics=[logprob_semantics] * rows,
            rules=_RULES,
        )
        batch = TrainerBatch.assemble(
            batch_id=batch_id,
            target_revision=revision,
            rollouts=table,
            assembled_at_ms=self._clock(),
            rules=_RULES,
        )
        save_table(table, self.folder / f"{name}{_TABLE}")
        write_bytes(self.folder / f"{name}{_BATCH}", batch_to_json(batch), replace=False)
        return read_step(self.folder, name)

    def finish(self, step: int, batch: TrainerBatch, revision: PolicyRevision) -> TrainedStep:
        """Write which batch the step learned from, and which revision it made."""
        unsigned = TrainedStep(
            step=step,
            batch_id=batch.batch_id,
            batch_digest=batch.batch_digest,
            revision=revision,
            digest="",
        )
        done = msgspec.structs.replace(unsigned, digest=unsigned.computed_digest())
        name = self._free_name(f"step-{step:06d}", _STEP)
        write_bytes(self.folder / f"{name}{_STEP}", msgspec.json.encode(done), replace=False)
        return done

    def _free_name(self, name: str, suffix: str) -> str:
        found, again = name, 1
        while (self.folder / f"{found}{suffix}").exists():
            again += 1
            found = f"{name}-{again}"
        return found

    def _save_tensors(
        self, name: str, tensors: Mapping[str, ArrayLike]
    ) -> list[RolloutProofReference]:
        if not tensors:
            return []
        stream = io.BytesIO()
        write_npz(stream, tensors)
        data = stream.getvalue()
        # a run that was killed before its table was written may have left a file of this name
        write_bytes(self.folder / f"{name}{_TENSORS}", data)
        return [
            RolloutProofReference(
                kind=RolloutProofKind.COMMITMENT,
                digest=sha256(data).hexdigest(),
                reference=f"{name}{_TENSORS}",
            )
        ]


# ----------------------------------------------------------------------------------------- reading


def recorded_steps(folder: str | os.PathLike[str]) -> list[RecordedStep]:
    """Every recorded batch of the folder in the order of its steps, with every digest compared."""
    place = Path(folder)
    return [read_step(place, name) for name in _names(place, _BATCH)]


def trained_steps(folder: str | os.PathLike[str]) -> list[TrainedStep]:
    """Every finished step, with the batch it learned from and the revision it made."""
    place = Path(folder)
    return [_read_trained(place / f"{name}{_STEP}") for name in _names(place, _STEP)]


def lineage_of_steps(folder: str | os.PathLike[str]) -> LineageGraph:
    """The revisions, rollouts and batches of the folder, and how they follow from each other."""
    graph = LineageGraph()
    for step in recorded_steps(folder):
        graph.add_table(step.table)
        graph.add_batch(step.batch)
    for done in trained_steps(folder):
        graph.add_revision(done.revision)
        check_digest(
            done.batch_id,
            "batch_digest",
            done.batch_digest,
            graph.batch(done.batch_id).batch_digest,
        )
    return graph


def read_step(folder: Path, name: str) -> RecordedStep:
    """One recorded batch. Raises a typed error if any byte of it was changed after it was written."""
    path = folder / f"{name}{_BATCH}"
    batch = batch_from_json(_bytes(path), source=str(path))
    table = open_table(folder / f"{name}{_TABLE}", verify="all")
    identity_of(batch, table)
    return RecordedStep(
        name=name, batch=batch, table=table, tensors=_read_tensors(folder, batch, table)
    )


def _read_tensors(
    folder: Path, batch: TrainerBatch, table: RolloutTable
) -> Mapping[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    for proof in batch.proof_references:
        if (
            proof.kind != RolloutProofKind.COMMITMENT
            or Path(proof.reference).name != proof.reference
        ):
            continue
        data = _bytes(folder / proof.reference)
        check_digest(batch.batch_id, "proof digest", proof.digest, sha256(data).hexdigest())
        tensors |= read_npz(io.BytesIO(data))
    return MappingProxyType(tensors)


def _read_trained(path: Path) -> TrainedStep:
    done = decode_json(_bytes(path), TrainedStep, str(path))
    check_digest(f"step {done.step}", "digest", done.digest, done.computed_digest())
    return done


def _revisions(folder: Path) -> list[PolicyRevision]:
    """Every revision that the folder names. Tables are not opened: batches name the same ones."""
    found = []
    for name in _names(folder, _BATCH):
        path = folder / f"{name}{_BATCH}"
        lineage = batch_from_json(_bytes(path), source=str(path)).policy_lineage
        found += [lineage.target_revision, *lineage.source_revisions]
    return [*found, *(done.revision for done in trained_steps(folder))]


def _names(folder: Path, suffix: str) -> list[str]:
    """Names of steps in order: that of `step-000002` comes before `step-000002-2` and `step-000010`."""
    names = [path.name.removesuffix(suffix) for path in folder.glob(f"step-*{suffix}")]
    return sorted(
        names, key=lambda name: [int(each) for each in name.split("-")[1:] if each.isdigit()]
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        detail = f"cannot be read ({error.strerror or error})"
        raise StorageError(path=str(path), detail=detail) from error

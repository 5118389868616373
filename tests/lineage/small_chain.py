"""A whole chain small enough for quick tests: source store, rollouts of it, a table, a batch, and the run folder of a
training that used the batch. The store and the source are real; the checkpoint is a model of one feature."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from rollbook.contracts.policy import CheckpointReference, PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.json_form import batch_to_json
from rollbook.contracts.rl.table_file import save_table
from rollbook.generate.writer import RolloutDatasetWriter
from rollbook.learned.run_folder import CHECKPOINT_FOLDER, REVISION_FILE, RUN_FILE, described_file
from rollbook.learned.training_run import (
    SCHEMA,
    VERSION,
    BatchReference,
    TrainingData,
    TrainingRun,
    checkpoint_digest,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train.artifacts import chains_table
from tests.generate.tiny_source import tiny_config, tiny_source
from tests.learned.small_runs import small_model

_FOLDER = tempfile.TemporaryDirectory(prefix="small-chain-")
FAMILY = "next-best-view"


@dataclass(frozen=True)
class SmallChain:
    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "flats"

    @property
    def store(self) -> Path:
        return self.folder / "rollouts.zarr"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def table(self) -> Path:
        return self.run / "batches" / "rollouts.table"

    @property
    def batch(self) -> Path:
        return self.run / "batches" / "batch-000001.json"

    @property
    def checkpoint(self) -> Path:
        return self.run / CHECKPOINT_FOLDER / "head-01.txt"

    @property
    def reader(self) -> RolloutZarrStoreReader:
        return RolloutZarrStoreReader(self.store)

    @property
    def digest(self) -> str:
        return str(self.reader.store_manifest.payload["content_sha256"])

    @property
    def revision(self) -> PolicyRevision:
        return msgspec.json.decode((self.run / REVISION_FILE).read_bytes(), type=PolicyRevision)


def copied_chain(folder: Path) -> SmallChain:
    """A copy that a test may damage. The source is found beside the store."""
    shutil.copytree(small_chain().folder, folder, dirs_exist_ok=True)
    return SmallChain(folder)


@lru_cache
def small_chain() -> SmallChain:
    """Made once for all tests; read-only."""
    chain = SmallChain(Path(_FOLDER.name))
    shutil.copytree(tiny_source(), chain.source)
    config = tiny_config(chain.store, source={"store_dir": str(chain.source), "split": "train"})
    RolloutDatasetWriter(config).run()
    write_run(chain)
    return chain


def write_run(chain: SmallChain, *, parent: str | None = None) -> None:
    """The run folder, written by hand as a training would write it."""
    chain.checkpoint.parent.mkdir(parents=True)
    chain.table.parent.mkdir(parents=True)
    chain.checkpoint.write_text(small_model(0, ("remaining",)))
    files = [described_file(chain.run, "checkpoint/head-01.txt")]
    policy_digest = checkpoint_digest(files)
    checkpoint = CheckpointReference(
        checkpoint_family=FAMILY,
        stream_id="small",
        manifest_digest=policy_digest,
        object_digest=files[0].sha256,
        writer_node_id="test",
        membership_epoch=0,
        cluster_state_digest="none",
        topology_digest="none",
        started_at_ms=1,
    )
    revision = PolicyRevision(
        policy_family=FAMILY,
        revision_id="small-r1",
        policy_digest=policy_digest,
        produced_at_ms=1,
        revision_number=1,
        parent_revision_id=parent,
        checkpoint=checkpoint,
    )
    table = chains_table(chain.reader)
    save_table(table, chain.table)
    batch = TrainerBatch.assemble(
        batch_id="batch-000001", target_revision=revision, rollouts=table, assembled_at_ms=2
    )
    chain.batch.write_bytes(batch_to_json(batch))
    (chain.run / REVISION_FILE).write_bytes(msgspec.json.encode(revision))
    names = (REVISION_FILE, "batches/batch-000001.json", "batches/rollouts.table")
    attrs = chain.reader.store_manifest.payload
    data = TrainingData(
        content_sha256=str(attrs["content_sha256"]),
        manifest_sha256=str(chain.reader.attrs["manifest_sha256"]),
        scenes=("a",),
        chains=len(table),
        states=table.sample_count,
    )
    run = TrainingRun(
        schema=SCHEMA,
        version=VERSION,
        learner="boosted",
        seed=0,
        threads=1,
        options={},
        data=(data,),
        validation=(_validation(chain),),
        feature_names=("remaining",),
        horizon=1,
        metrics={},
        batches=(
            BatchReference(
                batch_id=batch.batch_id,
                batch_digest=batch.batch_digest,
                content_digest=batch.content_digest,
                rollouts_root=str(batch.rollouts_root),
            ),
        ),
        files=(*files, *(described_file(chain.run, name) for name in sorted(names))),
        policy_revision=revision,
        digest="",
    )
    (chain.run / RUN_FILE).write_bytes(msgspec.json.encode(run.with_digest()))


def _validation(chain: SmallChain) -> TrainingData:
    """The chains of the second scene."""
    reader = chain.reader
    scene = reader.words("scene")[1]
    rows = [row for row, each in enumerate(reader.decoded("rollouts", "scene_id")) if each == scene]
    return TrainingData(
        content_sha256=chain.digest,
        manifest_sha256=str(reader.attrs["manifest_sha256"]),
        scenes=(scene,),
        chains=len(rows),
        states=2 * len(rows),
    )

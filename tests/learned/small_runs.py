"""Run folders small enough for quick tests: two heads over a few made-up features."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import lightgbm
import msgspec
import numpy as np

from rollbook.contracts.policy import PolicyRevision
from rollbook.learned.run_folder import CHECKPOINT_FOLDER, REVISION_FILE, RUN_FILE, described_file
from rollbook.learned.training_run import (
    SCHEMA,
    VERSION,
    TrainingData,
    TrainingRun,
    checkpoint_digest,
)

NAMES = ("near", "wide", "remaining")


def small_run(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Writes a run by hand. Head 1 prefers a great `near`, head 2 a great `wide`: the first two features."""
    models = [small_model(liked, names[:2]).encode() for liked in (0, 1)]
    files = ("head-01.txt", "head-02.txt")
    return written_run(folder, "boosted", dict(zip(files, models, strict=True)), names)


def written_run(
    folder: Path, learner: str, checkpoint: Mapping[str, bytes], names: tuple[str, ...] = NAMES
) -> Path:
    """A run of two heads with these checkpoint files."""
    (folder / CHECKPOINT_FOLDER).mkdir(parents=True)
    for name, content in checkpoint.items():
        (folder / CHECKPOINT_FOLDER / name).write_bytes(content)
    files = [described_file(folder, f"{CHECKPOINT_FOLDER}/{name}") for name in sorted(checkpoint)]
    revision = PolicyRevision(
        policy_family="next-best-view",
        revision_id="next-best-view-r1-small",
        policy_digest=checkpoint_digest(files),
        produced_at_ms=1,
        revision_number=1,
    )
    (folder / REVISION_FILE).write_bytes(msgspec.json.encode(revision))
    data = TrainingData(
        content_sha256="1" * 64, manifest_sha256="2" * 64, scenes=("a",), chains=1, states=2
    )
    run = TrainingRun(
        schema=SCHEMA,
        version=VERSION,
        learner=learner,
        seed=0,
        threads=1,
        options={},
        data=(data,),
        validation=(),
        feature_names=names,
        horizon=2,
        metrics={},
        batches=(),
        files=(*files, described_file(folder, REVISION_FILE)),
        policy_revision=revision,
        digest="",
    )
    (folder / RUN_FILE).write_bytes(msgspec.json.encode(run.with_digest()))
    return folder


def small_model(liked: int, names: tuple[str, ...]) -> str:
    """A model, as a checkpoint holds it, that prefers a great value of one of the features."""
    rows = np.random.default_rng(liked).random((400, len(names)))
    settings = {
        "objective": "regression",
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(rows, rows[:, liked], feature_name=list(names))
    return lightgbm.train(settings, data, 20).model_to_string()

"""TrainingRun: the record of a finished training run, with the digest of everything that it used and made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import Record, check_digest, checked_choice
from rollbook.digest import digest_of
from rollbook.errors import InvalidNumber
from rollbook.notebook import card, table

SCHEMA = "rollbook.training_run"
VERSION = 1
LEARNERS = ("boosted", "attention")
_DOMAIN = "rollbook.training_run.v1"
_CHECKPOINT_DOMAIN = "rollbook.checkpoint.v1"
_HINTS = ("place",)
"""Fields that say where something was. They are not part of the digest."""


class TrainingData(Record, frozen=True, kw_only=True):
    """The chains of one store that were used."""

    content_sha256: str
    manifest_sha256: str
    split: str | None = None
    """Split of these chains; several are joined by commas. None if the store names none."""
    scenes: tuple[str, ...]
    """In order of their names."""
    chains: int
    states: int
    place: str | None = None
    """Where the store was: a hint that nothing relies on."""


class RunFile(Record, frozen=True, kw_only=True):
    """A file of the run folder."""

    path: str
    """Relative to the run folder, with `/`."""
    sha256: str
    bytes: int


class BatchReference(Record, frozen=True, kw_only=True):
    """A trainer batch of the run. The file `batches/<batch_id>.json` holds all of it."""

    batch_id: str
    batch_digest: str
    content_digest: str
    rollouts_root: str


class TrainingRun(Record, frozen=True, kw_only=True):
    """What a training run used and made. `digest` covers every field except itself and `place` of the data."""

    schema: str
    version: int
    learner: str
    seed: int
    threads: int
    options: dict[str, Any]
    """The learner's options, all of them."""
    data: tuple[TrainingData, ...]
    validation: tuple[TrainingData, ...]
    feature_names: tuple[str, ...]
    """Columns of the actor features that the policy needs, in the order of the training stores."""
    horizon: int
    """Number of heads: the head h ranks candidates when h moves are left."""
    metrics: dict[str, float]
    batches: tuple[BatchReference, ...]
    files: tuple[RunFile, ...]
    """Every file of the folder except run.json, in order of the paths."""
    policy_revision: PolicyRevision
    parent_run_digest: str | None = None
    digest: str

    def __post_init__(self) -> None:
        checked_choice(self.learner, LEARNERS, "training run", "learner")
        self._check_ints("training run", "seed", "threads")
        if isinstance(self.horizon, bool) or not 1 <= self.horizon <= 64:
            raise InvalidNumber(
                record="training run",
                field="horizon",
                value=repr(self.horizon),
                expected="a whole number from 1 to 64",
            )

    def with_digest(self) -> TrainingRun:
        return msgspec.structs.replace(self, digest=self.computed_digest())

    def computed_digest(self) -> str:
        return digest_of(_DOMAIN, _without(msgspec.to_builtins(self), ("digest", *_HINTS)))

    def verify(self) -> None:
        """Raise DigestMismatch if a field was changed after the run was written."""
        revision = self.policy_revision
        check_digest(
            f"training run {revision.revision_id}", "digest", self.digest, self.computed_digest()
        )
        check_digest(
            f"policy revision {revision.revision_id}",
            "policy_digest",
            revision.policy_digest,
            checkpoint_digest(self.files),
        )

    def seen_among(self, scenes: Iterable[str]) -> list[str]:
        """Those of these scenes that the policy was trained on, or whose chains said when to stop; in order."""
        used = {scene for each in (*self.data, *self.validation) for scene in each.scenes}
        return sorted(used.intersection(scenes))

    def _repr_html_(self) -> str:
        """In a notebook: what was trained on what, and how good each head is on the validation scenes."""
        revision = self.policy_revision
        facts = [
            ("learner", f"{self.learner}, seed {self.seed}"),
            ("parent", revision.parent_revision_id),
            ("trained on", _data_words(self.data)),
            ("validated on", _data_words(self.validation)),
            ("policy digest", revision.policy_digest),
            ("run digest", self.digest),
        ]
        measured = ("iterations", "validation_regret", "random_regret", "gap_closed")
        rows = [
            (head, *(self.metrics.get(f"head_{head}_{name}") for name in measured))
            for head in range(1, self.horizon + 1)
        ]
        heads = table(("moves left", *(name.replace("_", " ") for name in measured)), rows)
        return card(f"Training run {revision.revision_id}", facts, heads)

    @property
    def checkpoint_digest(self) -> str:
        """Digest over the checkpoint files: the policy digest of the revision."""
        return self.policy_revision.policy_digest


def _data_words(data: Sequence[TrainingData]) -> str:
    chains, states = sum(each.chains for each in data), sum(each.states for each in data)
    scenes = len({scene for each in data for scene in each.scenes})
    return f"{chains:,} chains, {states:,} states, {scenes:,} scenes"


def checkpoint_digest(files: Sequence[RunFile]) -> str:
    """Digest over the checkpoint files among these."""
    kept = sorted((each for each in files if is_checkpoint(each)), key=lambda each: each.path)
    return digest_of(_CHECKPOINT_DOMAIN, [[each.path, each.sha256, each.bytes] for each in kept])


def is_checkpoint(file: RunFile) -> bool:
    return file.path.startswith("checkpoint/")


def _without(value: Any, left_out: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in left_out}
        return {name: _without(each, _HINTS) for name, each in kept.items()}
    if isinstance(value, list | tuple):
        return [_without(each, _HINTS) for each in value]
    return value

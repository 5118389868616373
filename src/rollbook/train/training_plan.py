"""TrainingPlan: training.json, which a run writes first. It says what is trained, on what, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rollbook.contracts.record import Record, decode_json
from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError, NotATrainingRun, UnsupportedVersion
from rollbook.files import AnyPath, write_bytes
from rollbook.learned.run_folder import PLAN_FILE, STATE_FOLDER, open_training_run
from rollbook.learned.training_run import LEARNERS, TrainingData

SCHEMA = "rollbook.training_plan"
VERSION = 1
_DOMAIN = "rollbook.training_plan.v1"
_PLACES_FILE = f"{STATE_FOLDER}/places.json"
_LARGEST_SEED = 2**31 - 1
_MOST_THREADS = 1024


class ParentRun(Record, frozen=True, kw_only=True):
    """The run whose policy this one improves on."""

    run_digest: str
    revision_id: str
    revision_number: int
    policy_family: str

    @classmethod
    def of(cls, folder: AnyPath) -> ParentRun:
        run = open_training_run(folder).run
        revision = run.policy_revision
        return cls(
            run_digest=run.digest,
            revision_id=revision.revision_id,
            revision_number=revision.revision_number or 0,
            policy_family=revision.policy_family,
        )


class TrainingPlan(Record, frozen=True, kw_only=True):
    """Everything that decides what comes out of a run. It names no path: the data are known by their digests."""

    schema: str
    version: int
    learner: str
    options: dict[str, Any]
    seed: int
    threads: int
    family: str
    feature_names: tuple[str, ...]
    data: tuple[TrainingData, ...]
    validation: tuple[TrainingData, ...]
    validation_from_data: bool
    """Whether the validation scenes were held out of the training stores."""
    parent: ParentRun | None = None
    started_at_ms: int

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            message = f"learner is {self.learner!r}, expected one of {', '.join(LEARNERS)}"
            raise ConfigurationError(message=message)
        for name, low, high in (("seed", 0, _LARGEST_SEED), ("threads", 1, _MOST_THREADS)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                message = f"{name} is {value!r}, expected a whole number from {low} to {high}"
                raise ConfigurationError(message=message)
        if not self.family.strip():
            raise ConfigurationError(message="family is empty; name the family of the policy")

    def digest(self) -> str:
        return digest_of(_DOMAIN, msgspec.to_builtins(self))

    def write(self, folder: Path) -> None:
        plain = msgspec.json.encode(self)
        write_bytes(folder / PLAN_FILE, msgspec.json.format(plain, indent=1) + b"\n")

    @classmethod
    def read(cls, folder: Path) -> TrainingPlan:
        try:
            data = (folder / PLAN_FILE).read_bytes()
        except OSError as error:
            detail = f"it has no {PLAN_FILE}" if folder.is_dir() else "there is no such folder"
            raise NotATrainingRun(path=str(folder), detail=detail) from error
        plan = decode_json(data, cls, str(folder / PLAN_FILE))
        if (plan.schema, plan.version) != (SCHEMA, VERSION):
            raise UnsupportedVersion.of(folder / PLAN_FILE, plan.version, VERSION)
        return plan


class TrainingPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where the stores of an unfinished run are. They are not part of the plan."""

    stores: tuple[str, ...]
    validation: tuple[str, ...]
    plan_digest: str | None = None
    """Of the plan that the run began with. Its finished parts were made by that plan."""

    def write(self, folder: Path) -> None:
        write_bytes(folder / _PLACES_FILE, msgspec.json.encode(self))

    @classmethod
    def read(cls, folder: Path) -> TrainingPlaces:
        try:
            data = (folder / _PLACES_FILE).read_bytes()
        except OSError as error:
            detail = f"{_PLACES_FILE} is missing, which says where the stores are; train again with --replace"
            raise NotATrainingRun(path=str(folder), detail=detail) from error
        return decode_json(data, cls, str(folder / _PLACES_FILE))

"""LoopRecord: loop.json, which says what an improvement loop does, what its rounds made, and where it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from rollbook.contracts.gate import Gate
from rollbook.contracts.record import Record, check_digest, decode_json
from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError, StorageError, UnsupportedVersion
from rollbook.files import write_bytes

LOOP_FILE = "loop.json"
SCHEMA = "rollbook.improvement_loop"
VERSION = 1
_DOMAIN = "rollbook.improvement_loop.v1"
_PLACE = "place"
"""Field that says where something is, relative to the folder of the loop. It is not part of the digest."""


class LoopPlan(Record, frozen=True, kw_only=True):
    """Everything that decides what comes out of the rounds. All rounds of a loop have the same plan."""

    config_hash: str
    """Of the generation config, for the training split."""
    source_manifest_hash: str
    training_split: str
    held_out_split: str
    training_rows: int
    """Source rows from which rollouts are generated for training."""
    held_out_rows: int
    horizon: int
    """Moves of a chain."""
    chains: int
    """Chains of the current policy from every root, in the rounds after the first."""
    epsilon: float | None = None
    """Share of the choices that are left to chance while data are generated; None with a temperature."""
    temperature: float | None = None
    learner: str
    options: dict[str, Any]
    """Those of the learner that were given."""
    seed: int
    threads: int
    """Threads of the training."""
    family: str
    gate: Gate

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.temperature is None):
            message = "epsilon and temperature are two ways to explore: give one"
            raise ConfigurationError(message=message)
        for name, holds, expected in (
            ("epsilon", 0 <= (self.epsilon or 0) <= 1, "a probability from 0 to 1"),
            ("temperature", 0 < _given(self.temperature, 1.0) < math.inf, "more than 0"),
            ("chains", self.chains >= 1, "at least 1"),
            ("family", bool(self.family.strip()), "a name"),
        ):
            if not holds:
                message = f"{name} is {getattr(self, name)!r}, expected {expected}"
                raise ConfigurationError(message=message)

    def difference_from(self, other: LoopPlan) -> str | None:
        """The first setting in which two plans differ, with both values."""
        mine, its = msgspec.to_builtins(self), msgspec.to_builtins(other)
        for name in self.__struct_fields__:
            if mine.get(name) != its.get(name):
                return f"{name} was {its.get(name)!r} and is {mine.get(name)!r}"
        return None


class MadeStore(Record, frozen=True, kw_only=True):
    """A rollout store of the loop."""

    place: str
    content_sha256: str
    manifest_sha256: str
    chains: int


class MadeRun(Record, frozen=True, kw_only=True):
    """A training run of the loop."""

    place: str
    run_digest: str
    revision_id: str
    policy_digest: str
    parent_revision_id: str | None = None
    validation_regret: float | None = None
    """Of the first head, on scenes that the learner held out of the training scenes."""


class Verdict(Record, frozen=True, kw_only=True):
    """The new policy against the current one, closed loop on held-out scenes."""

    place: str
    """Folder of the results."""
    results_sha256: str
    rollup_sha256: str
    pairs: int
    scenes: int | None = None
    baseline_gain: float | None = None
    candidate_gain: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    ships: bool
    sentence: str


class LoopRound(Record, frozen=True, kw_only=True):
    """One round. What is not finished is None."""

    number: int
    policy: str | None = None
    """Revision that generated the data; None for the recipes of the config."""
    data: MadeStore | None = None
    run: MadeRun | None = None
    baseline: MadeStore | None = None
    """Chains of the current policy on the held-out scenes."""
    verdict: Verdict | None = None

    @property
    def promoted(self) -> bool:
        return self.verdict is not None and self.verdict.ships


class LoopRecord(Record, frozen=True, kw_only=True):
    """The content of loop.json. `digest` covers everything except places and itself."""

    schema: str
    version: int
    plan: LoopPlan
    rounds: tuple[LoopRound, ...]
    digest: str

    @classmethod
    def begun(cls, plan: LoopPlan) -> LoopRecord:
        return cls(schema=SCHEMA, version=VERSION, plan=plan, rounds=(), digest="")

    @property
    def finished(self) -> int:
        """Number of finished rounds."""
        return sum(each.verdict is not None for each in self.rounds)

    def current_before(self, number: int) -> MadeRun | None:
        """The policy to beat in a round: the last one that shipped before it; None for chance."""
        shipped = [each.run for each in self.rounds if each.promoted and each.number < number]
        return shipped[-1] if shipped else None

    @property
    def current(self) -> MadeRun | None:
        """The last policy that shipped; None if none did."""
        return self.current_before(len(self.rounds) + 1)

    def with_round(self, changed: LoopRound) -> LoopRecord:
        kept = tuple(each for each in self.rounds if each.number != changed.number)
        return msgspec.structs.replace(self, rounds=(*kept, changed))

    def computed_digest(self) -> str:
        return digest_of(_DOMAIN, _without_places(msgspec.to_builtins(self)))

    def write(self, folder: Path) -> LoopRecord:
        written = msgspec.structs.replace(self, digest=self.computed_digest())
        plain = msgspec.json.format(msgspec.json.encode(written), indent=1)
        write_bytes(folder / LOOP_FILE, plain + b"\n")
        return written

    @classmethod
    def read(cls, folder: Path) -> LoopRecord | None:
        """None if there is no loop yet. Raises DigestMismatch if the file was edited."""
        file = folder / LOOP_FILE
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            detail = f"cannot be read ({error.strerror or error})"
            raise StorageError(path=str(file), detail=detail) from error
        found = decode_json(data, _Version, str(file))
        if found.schema != SCHEMA:
            detail = f"it is not the record of an improvement loop (schema {found.schema!r})"
            raise StorageError(path=str(file), detail=detail)
        if found.version != VERSION:
            raise UnsupportedVersion.of(file, found.version, VERSION, "start another loop")
        record = decode_json(data, cls, str(file))
        check_digest(str(file), "digest", record.digest, record.computed_digest())
        return record

    def check_plan(self, plan: LoopPlan, folder: Path) -> None:
        change = plan.difference_from(self.plan)
        if change is not None:
            message = f"{folder} holds another loop: {change}; give its settings to continue it, or another folder"
            raise ConfigurationError(message=message)


class _Version(msgspec.Struct):
    schema: str = ""
    version: int = 0


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in (_PLACE, "digest")}
        return {name: _without_places(each) for name, each in kept.items()}
    if isinstance(value, list | tuple):
        return [_without_places(each) for each in value]
    return value

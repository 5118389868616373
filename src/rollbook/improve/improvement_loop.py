"""The improvement loop: rounds of generate, train, replay and promote, in a folder that says where it is.

FOLDER/
  loop.json          the plan and the rounds so far, rewritten after every stage
  collection.json    the data of all rounds as one collection, which the training reads
  baselines/         chains on the held-out scenes, one store for each policy that was to be beaten
  rounds/001/
    data.zarr        rollouts of the round, on training scenes
    run/             the training run: checkpoint, revision, trainer batches
    replay/          results of the new policy against the current one, and their rollup
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollbook.contracts.gate import Gate
from rollbook.digest import sha256
from rollbook.errors import (
    ConfigurationError,
    ShardDrift,
    StorageError,
    TargetExists,
)
from rollbook.files import AnyPath, held_alone
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.improve.loop_record import (
    LOOP_FILE,
    LoopPlan,
    LoopRecord,
    LoopRound,
    MadeStore,
)
from rollbook.improve.round_work import RESULTS_FILE, ROLLUP_FILE, LoopProgress, RoundWork
from rollbook.learned import open_training_run
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.shards.collect_stores import collect_stores
from rollbook.store.shards.collection_file import COLLECTION_FILENAME
from rollbook.train.artifacts import POLICY_FAMILY
from rollbook.train.learners import learner_named
from rollbook.train.training import DEFAULT_THREADS

DEFAULT_EPSILON = 0.1
DEFAULT_CHAINS = 2
_MOST_ROUNDS = 999


def improve_policy(
    config: RolloutDatasetWriterConfig,
    out: AnyPath,
    *,
    rounds: int = 3,
    held_out: str = "val",
    held_out_samples: int | None = None,
    epsilon: float | None = None,
    temperature: float | None = None,
    chains: int = DEFAULT_CHAINS,
    learner: str = "boosted",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int = DEFAULT_THREADS,
    family: str = POLICY_FAMILY,
    gate: Gate | None = None,
    progress: LoopProgress | None = None,
) -> LoopRecord:
    """Run rounds until the folder `out` has `rounds` of them. A folder that has some already is continued.

    The config names the source, its training split, and the recipes of the first round. Later rounds generate `chains`
    chains from every root with the current policy: the best candidate, or with the probability `epsilon` any valid one
    (default 0.1), or a draw by `temperature`. Every round trains on all data so far. The new policy replaces the
    current one only if the gate ships it, closed loop on the split `held_out`, from which nothing is ever trained.

    The same settings give the same policies, however often the loop is interrupted. Workers may change.
    """
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise ConfigurationError(message=f"rounds is {rounds}, expected 1 to {_MOST_ROUNDS}")
    horizon = max(recipe.horizon for recipe in config.recipes)
    learner_named(learner).checked(options or {}, horizon)
    held_out_config = _held_out_config(config, held_out, held_out_samples)
    source_manifest, counts = _checked_rows(config, held_out_config)
    plan = LoopPlan(
        config_hash=config.config_hash,
        source_manifest_hash=source_manifest,
        training_split=config.source.split,
        held_out_split=held_out,
        training_rows=counts[0],
        held_out_rows=counts[1],
        horizon=horizon,
        chains=chains,
        epsilon=DEFAULT_EPSILON if epsilon is None and temperature is None else epsilon,
        temperature=temperature,
        learner=learner,
        options=dict(options or {}),
        seed=seed,
        threads=threads,
        family=family,
        gate=gate or Gate.for_reward(),
    )
    folder = Path(out).absolute()
    with held_alone(folder, folder / ".lock"):
        record = _begun(folder, plan)
        for number in range(1, rounds + 1):
            work = RoundWork(folder, number, plan, (config, held_out_config), progress)
            record = _finished_round(folder, record, number, work)
    return record


def _finished_round(folder: Path, record: LoopRecord, number: int, work: RoundWork) -> LoopRecord:
    """The record with this round finished. It is written after every stage, and a recorded stage is not repeated."""
    found = next((each for each in record.rounds if each.number == number), None)
    if found is not None and found.verdict is not None:
        return record
    current = record.current_before(number)
    policy = None if current is None else current.revision_id
    now = found or LoopRound(number=number, policy=policy)
    if now.data is None:
        now = msgspec.structs.replace(now, data=work.data(current))
        record = record.with_round(now).write(folder)
    stores = [each.data for each in record.rounds if each.data is not None]
    _collect(folder, record, stores)
    if now.run is None:
        now = msgspec.structs.replace(now, run=work.run(stores, current))
        record = record.with_round(now).write(folder)
    if now.baseline is None:
        now = msgspec.structs.replace(now, baseline=work.baseline(current))
        record = record.with_round(now).write(folder)
    assert now.run is not None
    assert now.baseline is not None
    now = msgspec.structs.replace(now, verdict=work.verdict(now.run, now.baseline))
    return record.with_round(now).write(folder)


def _collect(folder: Path, record: LoopRecord, stores: list[MadeStore]) -> None:
    collect_stores(
        {f"round-{number:03}": folder / each.place for number, each in enumerate(stores, start=1)},
        folder / COLLECTION_FILENAME,
        writer_config_hash=record.plan.config_hash,
        source_manifest_hash=record.plan.source_manifest_hash,
    )


# ------------------------------------------------------------------------------------ before it runs


def _held_out_config(
    config: RolloutDatasetWriterConfig, split: str, samples: int | None
) -> RolloutDatasetWriterConfig:
    """The same world on other rows. Nobody looks at the images of these chains."""
    return dataclasses.replace(
        config,
        source=msgspec.structs.replace(config.source, split=split),
        max_samples=samples,
        selected_depth=msgspec.structs.replace(config.selected_depth, enabled=False),
    )


def _checked_rows(
    training: RolloutDatasetWriterConfig, held_out: RolloutDatasetWriterConfig
) -> tuple[str, tuple[int, int]]:
    """The digest of the source and the numbers of rows. Refuses a scene on both sides, under one name or two."""
    source, rows = training.setup_target().rows()
    _, others = held_out.setup_target().rows()
    seen = {source.index[row].scene_id for row in rows}
    shared = sorted(seen & {source.index[row].scene_id for row in others})
    if shared:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        message = (
            f"the scene {shared[0]!r}{more} is in the training split {training.source.split!r} and in the held-out "
            f"split {held_out.source.split!r}; judge a policy on scenes that it was not trained on"
        )
        raise ConfigurationError(message=message)
    meshes = {each.scene_id: each.mesh_sha256 for each in source.manifest.scenes}
    trained = {meshes[scene]: scene for scene in sorted(seen, reverse=True)}
    for row in others:
        scene = source.index[row].scene_id
        if meshes[scene] in trained:
            message = (
                f"the held-out scene {scene!r} has the same mesh as {trained[meshes[scene]]!r} of the training split; "
                "judge a policy on scenes that it was not trained on"
            )
            raise ConfigurationError(message=message)
    return source.manifest_digest, (len(rows), len(others))


def _begun(folder: Path, plan: LoopPlan) -> LoopRecord:
    """The record of the folder: a new one, or the one that is there, with everything that it names."""
    found = LoopRecord.read(folder)
    if found is None:
        others = [name for name in os.listdir(folder) if not name.startswith(".")]
        if others:
            detail = f"it has no {LOOP_FILE}, but {others[0]!r}; choose an empty folder"
            raise TargetExists(path=str(folder), detail=detail)
        return LoopRecord.begun(plan).write(folder)
    found.check_plan(plan, folder)
    for each in found.rounds:
        for store in (each.data, each.baseline):
            if store is not None:
                _check(folder / store.place, store.manifest_sha256, _manifest_digest)
        if each.run is not None:
            _check(folder / each.run.place, each.run.run_digest, _run_digest)
        if each.verdict is not None:
            place = folder / each.verdict.place
            _check(place / RESULTS_FILE, each.verdict.results_sha256, _file_digest)
            _check(place / ROLLUP_FILE, each.verdict.rollup_sha256, _file_digest)
    return found


def _check(place: Path, recorded: str, digest_of: Callable[[Path], str]) -> None:
    found = digest_of(place)
    if found != recorded:
        detail = f"{LOOP_FILE} names {recorded[:16]}, it is {found[:16]} now"
        raise ShardDrift(path=str(place), detail=f"{detail}; bring back what the loop made")


def _manifest_digest(place: Path) -> str:
    return str(RolloutZarrStoreReader(place).attrs["manifest_sha256"])


def _run_digest(place: Path) -> str:
    return open_training_run(place).run.digest


def _file_digest(place: Path) -> str:
    try:
        return sha256(place.read_bytes()).hexdigest()
    except OSError as error:
        detail = f"cannot be read ({error.strerror or error})"
        raise StorageError(path=str(place), detail=detail) from error

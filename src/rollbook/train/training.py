"""Training runs: from stores to a run folder with a checkpoint, the trainer batches it was made of, and a revision."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from rollbook.contracts.policy import CheckpointReference, PolicyRevision
from rollbook.contracts.record import check_digest
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.json_form import batch_to_json
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.table_file import open_table, save_table
from rollbook.digest import digest_of
from rollbook.errors import (
    ConfigurationError,
    ShardDrift,
    TargetExists,
    UnfinishedRun,
)
from rollbook.files import AnyPath, held_alone, make_folders, write_bytes, write_errors
from rollbook.learned.run_folder import (
    BATCHES_FOLDER,
    METRICS_FILE,
    PLAN_FILE,
    REVISION_FILE,
    ROLLOUTS_FILE,
    RUN_FILE,
    STATE_FOLDER,
    TrainingRunFolder,
    described_file,
    is_training_run,
    open_training_run,
)
from rollbook.learned.training_run import (
    SCHEMA as RUN_SCHEMA,
    VERSION as RUN_VERSION,
    BatchReference,
    RunFile,
    TrainingData,
    TrainingRun,
    checkpoint_digest,
)
from rollbook.moment import now_ms
from rollbook.notebook import Progress, show_nothing, shown_progress
from rollbook.store.urls.url_folder import is_url
from rollbook.train.artifacts import POLICY_FAMILY, chains_table
from rollbook.train.learners import learner_named
from rollbook.train.regret import RegretMeasure
from rollbook.train.run_work import OnReport, Report, RunWork
from rollbook.train.training_plan import (
    SCHEMA,
    VERSION,
    ParentRun,
    TrainingPlaces,
    TrainingPlan,
)
from rollbook.train.training_states import ChosenChains, TrainingStates, check_disjoint

DEFAULT_THREADS = 1
"""The same on every machine, so that the same data give the same record of a run everywhere."""
CHAINS_PER_BATCH = 1024
_NO_CLUSTER = "rollbook.single_process.v1"
_ROOT_PIECE = "rollouts.root"
"""The root of the table of chains: another table in its place is refused when the run goes on."""

OnStage = Callable[[str], None]
"""Called with a few words when a part of the work begins."""


def train_policy(
    stores: Sequence[AnyPath] | AnyPath,
    out: AnyPath,
    *,
    validation: Sequence[AnyPath] | AnyPath = (),
    learner: str = "boosted",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int = DEFAULT_THREADS,
    family: str = POLICY_FAMILY,
    parent: AnyPath | None = None,
    replace: bool = False,
    on_report: OnReport | None = None,
    on_stage: OnStage | None = None,
) -> TrainingRunFolder:
    """Train a policy on stores or collections and write the run folder `out`.

    Without `validation`, every fifth scene of the stores is held out. `options` are those of the learner; what is not
    given has its default. `parent` is the run folder of the policy that this one improves on. The same data, options,
    seed and threads give the same checkpoint. An interrupted run is continued by `resume_training`.
    """
    folder = Path(out)
    places = TrainingPlaces(stores=_listed(stores), validation=_listed(validation))
    if not places.stores:
        raise ConfigurationError(message="stores is empty; name at least one store to train on")
    _refuse_existing(folder, replace)
    if on_stage is not None:
        on_stage("reading the chains")
    chosen = _Chosen(places, seed)
    plan = TrainingPlan(
        schema=SCHEMA,
        version=VERSION,
        learner=learner,
        options=learner_named(learner).checked(options or {}, chosen.training.longest),
        seed=seed,
        threads=threads,
        family=family,
        feature_names=chosen.training.names,
        data=_without_places(chosen.training.described()),
        validation=_without_places(chosen.validation.described()),
        validation_from_data=not places.validation,
        parent=None if parent is None else _parent(parent, family),
        started_at_ms=now_ms(),
    )
    _ = chosen.states  # what cannot be learned from is refused before a folder is made or replaced
    with _held(folder):
        _start_folder(folder, replace)
        plan.write(folder)
        msgspec.structs.replace(places, plan_digest=plan.digest()).write(folder)
        return _Training(folder, plan, chosen, on_report, on_stage).run()


def resume_training(
    path: AnyPath, *, on_report: OnReport | None = None, on_stage: OnStage | None = None
) -> TrainingRunFolder:
    """Continue an interrupted run. What was finished is kept, and the result is that of a run without interruption.

    A finished run is opened and returned. A store or a plan that changed since the run began is refused.
    """
    folder = Path(path)
    if is_training_run(folder):
        return open_training_run(folder)
    plan = TrainingPlan.read(folder)
    with _held(folder):
        places = TrainingPlaces.read(folder)
        if places.plan_digest not in (None, plan.digest()):
            detail = f"{PLAN_FILE} was changed after the run began; bring it back, or train again with --replace"
            raise ShardDrift(path=str(folder), detail=detail)
        chosen = _Chosen(places, plan.seed)
        chosen.check(plan, folder)
        return _Training(folder, plan, chosen, on_report, on_stage).run()


class _Chosen:
    """The chains of both sides. Opening them checks that no scene is on both."""

    def __init__(self, places: TrainingPlaces, seed: int) -> None:
        self.training = ChosenChains.open(places.stores)
        if places.validation:
            self.validation = ChosenChains.open(places.validation)
            if self.validation.names != self.training.names:
                message = "the validation stores have other actor features than the training stores"
                raise ConfigurationError(message=message)
        else:
            self.training, self.validation = self.training.divided(seed)
        check_disjoint(self.training, self.validation)

    @cached_property
    def states(self) -> tuple[TrainingStates, TrainingStates]:
        """Of both sides. Refuses training states in which no choice is better than another."""
        training, validation = self.training.states(), self.validation.states()
        learned_from, judged_by = RegretMeasure(training.reward), RegretMeasure(validation.reward)
        for lacks, what in (
            (not learned_from.counted.any(), "training state has two candidates with a label"),
            (not judged_by.counted.any(), "validation state has two candidates with a label"),
            (not learned_from.differs.any(), "training state has candidates with different labels"),
        ):
            if lacks:
                message = (
                    f"no {what}, so there is nothing to rank; `rollbook store waterfall` says what became of the "
                    "candidates"
                )
                raise ConfigurationError(message=message)
        return training, validation

    def check(self, plan: TrainingPlan, folder: Path) -> None:
        for side, known in (("training", plan.data), ("validation", plan.validation)):
            found = _without_places(getattr(self, side).described())
            if found != known:
                detail = f"the {side} stores are not those that the run began with; train again"
                raise ShardDrift(path=str(folder), detail=detail)


class _Training:
    def __init__(
        self,
        folder: Path,
        plan: TrainingPlan,
        chosen: _Chosen,
        on_report: OnReport | None,
        on_stage: OnStage | None,
    ) -> None:
        self._folder, self._plan, self._chosen = folder, plan, chosen
        self._progress: Progress = show_nothing
        self._work = RunWork(folder, on_report or self._show)
        self._shows_itself = on_report is None
        self._on_stage = on_stage or (lambda words: None)

    def run(self) -> TrainingRunFolder:
        self._on_stage("reading the chains")
        table = self._rollouts()
        training, validation = self._chosen.states
        self._on_stage("training")
        given = None if self._shows_itself else show_nothing
        with shown_progress("training", given) as self._progress:
            metrics = learner_named(self._plan.learner).fit(
                training,
                validation,
                self._plan.options,
                self._work,
                seed=self._plan.seed,
                threads=self._plan.threads,
            )
        self._work.finish()
        self._on_stage("writing the trainer batches")
        return self._finish(table, metrics)

    def _show(self, report: Report) -> None:
        """Iterations so far, of the most that there can be: a head may need fewer."""
        most, heads = self._plan.options["iterations"], self._plan.options["horizon"]
        self._progress(most * (report["head"] - 1) + report["iteration"], most * heads)

    def _rollouts(self) -> RolloutTable:
        """The table of all chains that are trained on: written first, so that it cannot depend on the result."""
        path = self._folder / ROLLOUTS_FILE
        make_folders(path.parent)
        root = self._work.saved(_ROOT_PIECE)
        if root is None or not path.exists():
            chains = self._chosen.training
            made = chains_table(chains.collection, chains.rows, family=self._plan.family)
            save_table(made, path, replace=True)
            root = made.root.encode()
            self._work.save(_ROOT_PIECE, root)
        table = open_table(path, verify="all")
        check_digest(str(path), "root", root.decode(), table.root)
        return table

    def _finish(self, table: RolloutTable, metrics: dict[str, float]) -> TrainingRunFolder:
        revision = self._revision(table, metrics)
        write_bytes(self._folder / REVISION_FILE, msgspec.json.encode(revision))
        batches = self._batches(table, revision)
        names = [
            *(PLAN_FILE, METRICS_FILE, REVISION_FILE, ROLLOUTS_FILE),
            *(f"{BATCHES_FOLDER}/{each.batch_id}.json" for each in batches),
            *(each.path for each in self._checkpoint()),
        ]
        parent = self._plan.parent
        run = TrainingRun(
            schema=RUN_SCHEMA,
            version=RUN_VERSION,
            learner=self._plan.learner,
            seed=self._plan.seed,
            threads=self._plan.threads,
            options=self._plan.options,
            data=self._chosen.training.described(),
            validation=self._chosen.validation.described(),
            feature_names=self._plan.feature_names,
            horizon=self._plan.options["horizon"],
            metrics=metrics,
            batches=batches,
            files=tuple(described_file(self._folder, name) for name in sorted(names)),
            policy_revision=revision,
            parent_run_digest=None if parent is None else parent.run_digest,
            digest="",
        ).with_digest()
        plain = msgspec.json.format(msgspec.json.encode(run), indent=1)
        write_bytes(self._folder / RUN_FILE, plain + b"\n")
        self._work.remove_state()
        return open_training_run(self._folder)

    def _checkpoint(self) -> list[RunFile]:
        return [described_file(self._folder, name) for name in self._work.checkpoint_files()]

    def _revision(self, table: RolloutTable, metrics: dict[str, float]) -> PolicyRevision:
        """A later revision than any that made the chains, and than its parent."""
        plan, parent = self._plan, self._plan.parent
        sources = table.columns.revisions
        digest = checkpoint_digest(self._checkpoint())
        number = 1 + max(
            [
                0 if parent is None else parent.revision_number,
                *(each.revision_number or 0 for each in sources),
            ]
        )
        produced = max([now_ms(), *(each.produced_at_ms for each in sources)])
        identity = digest_of("rollbook.revision_id.v1", [plan.digest(), digest, produced])
        return PolicyRevision(
            policy_family=plan.family,
            revision_id=f"{plan.family}-r{number}-{identity[:12]}",
            policy_digest=digest,
            produced_at_ms=produced,
            revision_number=number,
            parent_revision_id=None if parent is None else parent.revision_id,
            checkpoint=CheckpointReference(
                checkpoint_family=f"rollbook.{plan.learner}",
                stream_id=plan.family,
                manifest_digest=plan.digest(),
                object_digest=digest,
                writer_node_id="local",
                membership_epoch=0,
                cluster_state_digest=digest_of(_NO_CLUSTER, None),
                topology_digest=digest_of(_NO_CLUSTER, {"threads": plan.threads}),
                started_at_ms=plan.started_at_ms,
                checkpoint_ref="checkpoint",
                step=int(sum(v for k, v in metrics.items() if k.endswith("_iterations"))),
                durable_at_ms=produced,
            ),
        )

    def _batches(self, table: RolloutTable, revision: PolicyRevision) -> tuple[BatchReference, ...]:
        written = []
        for number, first in enumerate(range(0, len(table), CHAINS_PER_BATCH), start=1):
            batch = TrainerBatch.assemble(
                batch_id=f"batch-{number:06}",
                target_revision=revision,
                rollouts=table.take(range(first, min(first + CHAINS_PER_BATCH, len(table)))),
                assembled_at_ms=revision.produced_at_ms,
            )
            place = self._folder / BATCHES_FOLDER / f"{batch.batch_id}.json"
            write_bytes(place, batch_to_json(batch))
            assert batch.rollouts_root is not None  # every batch that is assembled has it
            written.append(
                BatchReference(
                    batch_id=batch.batch_id,
                    batch_digest=batch.batch_digest,
                    content_digest=batch.content_digest,
                    rollouts_root=batch.rollouts_root,
                )
            )
        return tuple(written)


# ------------------------------------------------------------------------------------- the folder


def _refuse_existing(folder: Path, replace: bool) -> None:
    if not os.path.lexists(folder) or (folder.is_dir() and _holds_nothing(folder)):
        return
    ours = (folder / RUN_FILE).is_file() or (folder / PLAN_FILE).is_file()
    if not ours:
        detail = "it is not the folder of a training run, so it is not replaced; choose another"
        raise TargetExists(path=str(folder), detail=detail)
    if replace:
        return
    if not is_training_run(folder):
        detail = (
            f"a training that has not finished; `rollbook train resume {quote(str(folder))}` continues it, "
            "--replace starts over"
        )
        raise UnfinishedRun(path=str(folder), detail=detail)
    raise TargetExists(path=str(folder), detail="it was not to be replaced")


def _holds_nothing(folder: Path) -> bool:
    """It is empty, or a run in it was killed before it had written what it would do."""
    found = {each.name for each in folder.iterdir() if not each.match(f".{PLAN_FILE}.*.tmp")}
    return not found or (found == {STATE_FOLDER} and not any((folder / STATE_FOLDER).iterdir()))


def _held(folder: Path) -> AbstractContextManager[None]:
    """The lock is beside the run folder, which may be removed and made again."""
    place = folder.absolute()
    return held_alone(folder, place.with_name(f".{place.name}.lock"))


def _start_folder(folder: Path, replace: bool) -> None:
    """An empty run folder. Of a run that is replaced, run.json goes first: what is left is an unfinished run."""
    _refuse_existing(folder, replace)
    with write_errors(folder):
        if folder.exists():
            (folder / RUN_FILE).unlink(missing_ok=True)
            shutil.rmtree(folder)
        make_folders(folder / STATE_FOLDER)


def _listed(places: Sequence[AnyPath] | AnyPath) -> tuple[str, ...]:
    """Paths do not depend on the working folder: a run may be resumed from another one."""
    given = [places] if isinstance(places, str | os.PathLike) else places
    texts = [os.fspath(place) for place in given]
    return tuple(text if is_url(text) else os.path.abspath(text) for text in texts)


def _without_places(data: Sequence[TrainingData]) -> tuple[TrainingData, ...]:
    return tuple(msgspec.structs.replace(each, place=None) for each in data)


def _parent(folder: AnyPath, family: str) -> ParentRun:
    found = ParentRun.of(folder)
    if found.policy_family != family:
        message = (
            f"the parent {folder} is of the family {found.policy_family!r}, this run of {family!r}"
        )
        raise ConfigurationError(message=message)
    return found

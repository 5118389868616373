"""RoundWork: the four stages of one round. Each leaves something complete on disk or nothing, and is done only once.

A stage that finds its result there takes it, after checking that it was made by the same plan.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rollbook.contracts.evals import INFRASTRUCTURE, EvalResult
from rollbook.digest import sha256
from rollbook.errors import ConfigurationError, NotATrainingRun, ShardDrift
from rollbook.evals.store_baselines import StoreBaselines
from rollbook.evals.store_replay import replay_store, rollup_store
from rollbook.files import make_folders, write_bytes
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.improve.loop_record import LoopPlan, MadeRun, MadeStore, Verdict
from rollbook.learned import TrainingRunFolder, is_training_run, open_training_run
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train.training import resume_training, train_policy

DATA_FOLDER = "data.zarr"
RUN_FOLDER = "run"
REPLAY_FOLDER = "replay"
RESULTS_FILE = "results.jsonl"
ROLLUP_FILE = "rollup.json"
_Policy = CounterfactualSelectionPolicy
CHANCE = _Policy.RANDOM_VALID.value
"""The policy to beat until one has shipped."""
_BASELINE_RECIPE = "held_out"


class LoopProgress(Protocol):
    """What a person gets to see of a loop."""

    def stage(self, number: int, words: str) -> None:
        """A stage of a round begins."""

    def done(self, count: int, total: int) -> None:
        """So many of all items of the stage are finished."""

    def report(self, report: Mapping[str, Any]) -> None:
        """A report of the training, as in the metrics of its run."""


class RoundWork:
    def __init__(
        self,
        folder: Path,
        number: int,
        plan: LoopPlan,
        configs: tuple[RolloutDatasetWriterConfig, RolloutDatasetWriterConfig],
        progress: LoopProgress | None,
    ) -> None:
        """`configs` are those for the training and for the held-out rows. Without `progress`, generation, training and
        replay show what they show when they are called alone: a bar in a notebook."""
        self._folder, self._number, self._plan = folder, number, plan
        self._training_config, self._held_out_config = configs
        self._progress = progress
        self._own = folder / "rounds" / f"{number:03}"

    def _stage(self, words: str) -> None:
        if self._progress is not None:
            self._progress.stage(self._number, words)

    def _done(self, count: int, total: int) -> None:
        if self._progress is not None:
            self._progress.done(count, total)

    def _relative(self, place: Path) -> str:
        return os.path.relpath(place, self._folder)

    # ---------------------------------------------------------------------------------------- data

    def data(self, current: MadeRun | None) -> MadeStore:
        """Rollouts from the training scenes: by the current policy with some chance, or by the config's recipes."""
        how = "the recipes of the config" if current is None else current.revision_id
        self._stage(f"generating with {how}")
        recipes = self._recipes() if current is None else self._exploring(current)
        config = dataclasses.replace(self._training_config, recipes=recipes)
        return self._made(config, self._own / DATA_FOLDER)

    def _recipes(self) -> tuple[RolloutRecipeConfig, ...]:
        """Those of the config. While no policy has shipped, later rounds repeat them with other names and seeds."""
        given = self._training_config.recipes
        if self._number == 1:
            return given
        return tuple(
            msgspec.structs.replace(
                recipe,
                name=f"{recipe.name}_{self._number:03}",
                seed=(recipe.seed or 0) + self._first_seed,
            )
            for recipe in given
        )

    @property
    def _first_seed(self) -> int:
        """Every round has seeds of its own, and so new shells."""
        of_config = 1 + max(recipe.seed or 0 for recipe in self._training_config.recipes)
        return max(of_config, self._plan.chains) * (self._number - 1)

    def _exploring(self, current: MadeRun) -> tuple[RolloutRecipeConfig, ...]:
        """Chains by the current policy with some chance, under names that no other round uses."""
        plan = self._plan
        how: dict[str, Any] = (
            {"selection_policy": _Policy.EPSILON_GREEDY, "epsilon": plan.epsilon}
            if plan.temperature is None
            else {
                "selection_policy": _Policy.TEMPERATURE_SOFTMAX,
                "selection_temperature": plan.temperature,
            }
        )
        return tuple(
            RolloutRecipeConfig(
                name=f"round_{self._number:03}_{chain + 1}",
                scorer=str(self._folder / current.place),
                horizon=plan.horizon,
                seed=self._first_seed + chain,
                **how,
            )
            for chain in range(plan.chains)
        )

    def baseline(self, current: MadeRun | None) -> MadeStore:
        """The chains of the current policy from the held-out scenes, without chance. Rounds with the same current
        policy share them."""
        name = CHANCE if current is None else current.revision_id
        recipe = RolloutRecipeConfig(
            name=_BASELINE_RECIPE,
            selection_policy=_Policy.RANDOM_VALID if current is None else _Policy.ORACLE_GREEDY,
            scorer=None if current is None else str(self._folder / current.place),
            horizon=self._plan.horizon,
        )
        self._stage(f"held-out scenes with {name}")
        config = dataclasses.replace(self._held_out_config, recipes=(recipe,))
        # a revision id has the name of a family in it, which may have any characters
        file = name if current is None else current.run_digest[:16]
        return self._made(config, self._folder / "baselines" / f"{file}.zarr")

    def _made(self, config: RolloutDatasetWriterConfig, place: Path) -> MadeStore:
        """The store of a config. A store that is there is taken if the same config made it."""
        config = dataclasses.replace(
            config, store=dataclasses.replace(config.store, store_dir=place, replace=False)
        )
        if (place / ROLLOUT_MANIFEST_FILENAME).exists():
            found = RolloutDatasetWriterConfig.from_manifest(place)
            if found.config_hash != config.config_hash:
                raise _other(place, "it was generated with another config")
        else:
            silent = self._progress is None
            config.setup_target().run(
                unfinished="resume",
                on_row=None if silent else lambda done, total, _: self._done(done, total),
            )
        reader = RolloutZarrStoreReader(place)
        return MadeStore(
            place=self._relative(place),
            content_sha256=str(reader.store_manifest.payload["content_sha256"]),
            manifest_sha256=str(reader.attrs["manifest_sha256"]),
            chains=reader.num_rollouts,
        )

    # ------------------------------------------------------------------------------------ training

    def run(self, stores: Sequence[MadeStore], current: MadeRun | None) -> MadeRun:
        """A training run on all data so far. Its parent is the current policy."""
        self._stage(f"training on {sum(each.chains for each in stores):,} chains")
        place = self._own / RUN_FOLDER
        opened = self._trained(place, current)
        known = {each.content_sha256 for each in stores}
        parent = None if current is None else current.run_digest
        used = {each.content_sha256 for each in (*opened.run.data, *opened.run.validation)}
        if used != known or opened.run.parent_run_digest != parent:
            raise _other(place, "it was trained on other data, or from another parent")
        revision = opened.revision
        return MadeRun(
            place=self._relative(place),
            run_digest=opened.run.digest,
            revision_id=revision.revision_id,
            policy_digest=revision.policy_digest,
            parent_revision_id=revision.parent_revision_id,
            validation_regret=opened.run.metrics.get("head_1_validation_regret"),
        )

    def _trained(self, place: Path, current: MadeRun | None) -> TrainingRunFolder:
        if is_training_run(place):
            return open_training_run(place)
        report: Callable[[Mapping[str, Any]], None] | None = (
            None if self._progress is None else self._progress.report
        )
        if place.exists():
            try:
                return resume_training(place, on_report=report)
            except NotATrainingRun:  # it was killed before it had written what it would do
                shutil.rmtree(place)
        return train_policy(
            self._folder,
            place,
            learner=self._plan.learner,
            options=self._plan.options,
            seed=self._plan.seed,
            threads=self._plan.threads,
            family=self._plan.family,
            parent=None if current is None else self._folder / current.place,
            on_report=report,
        )

    # -------------------------------------------------------------------------------------- replay

    def verdict(self, run: MadeRun, baseline: MadeStore) -> Verdict:
        """The new policy from the same roots as the current one, closed loop, and what the gate says about it."""
        self._stage(f"replaying {run.revision_id} on held-out scenes")
        chains = StoreBaselines(self._folder / baseline.place)
        results = self._replayed(chains, run)
        rollup = rollup_store(chains, results, self._plan.gate)
        place = self._own / REPLAY_FOLDER
        make_folders(place)
        lines = b"".join(msgspec.json.encode(_plain(each)) + b"\n" for each in results)
        summary = msgspec.json.format(msgspec.json.encode(rollup.to_wire()), indent=1) + b"\n"
        write_bytes(place / RESULTS_FILE, lines)
        write_bytes(place / ROLLUP_FILE, summary)
        reward = rollup.reward_mean
        low, high = reward.interval or (None, None)
        return Verdict(
            place=self._relative(place),
            results_sha256=sha256(lines).hexdigest(),
            rollup_sha256=sha256(summary).hexdigest(),
            pairs=reward.n_pairs,
            scenes=None if reward.clusters is None else reward.clusters.count,
            baseline_gain=reward.baseline,
            candidate_gain=reward.candidate,
            difference=reward.paired_delta,
            low=low,
            high=high,
            ships=rollup.decision.recommend == "ship",
            sentence=rollup.decision.sentence,
        )

    def _replayed(self, chains: StoreBaselines, run: MadeRun) -> list[EvalResult]:
        count = 0

        def landed(_: EvalResult) -> None:
            nonlocal count
            count += 1
            self._done(count, len(chains))

        config = self._held_out_config
        results = replay_store(
            chains,
            str(self._folder / run.place),
            policy_version=run.revision_id,
            source=config.source.store_dir,
            workers=config.workers,
            parallel="process" if config.workers > 1 else "thread",
            on_episode=None if self._progress is None else landed,
        )
        lost = [each for each in results if (each.error or "").startswith(INFRASTRUCTURE)]
        if lost:
            message = f"{len(lost)} of {len(results)} chains could not be replayed, the first: {lost[0].error}"
            raise ConfigurationError(message=message)
        return results


def _plain(result: EvalResult) -> dict[str, Any]:
    return {
        "baseline_episode_id": result.baseline_episode_id,
        "status": result.status,
        "metrics": result.metrics,
        "error": result.error,
    }


def _other(place: Path, why: str) -> ShardDrift:
    detail = f"{why}: move it away to make it again, or start another loop in another folder"
    return ShardDrift(path=str(place), detail=detail)

"""Learning: the default learner against chance, every heuristic and the greedy oracle, closed loop, on unseen flats.

Training: flats of one seed, four recipes, three moves. Test: flats of another seed, on which nothing was chosen: the
number of targets and the settings of the oracle were chosen on flats of a third seed. Every policy starts from the same
roots, at most two of a flat. The share of the gap is (learned - random) / (greedy - random) of the mean gain over
flats; differences are paired by flat, with 95 % intervals of Student's t. The greedy oracle knows the gain of every
candidate before it moves; heuristics and the learned policy know what the actor knows. Finished parts are kept in
`.bench/learning`, so that an interrupted measurement goes on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.results import RESULTS, ROOT
from benchmarks.timing import Claim
from rollbook.digest import digest_of
from rollbook.files import make_folders, write_bytes
from rollbook.generate.compare import PolicyResult, compare_policies, recipe_for
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig, SourceConfig
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.generate.sources.splits import SplitConfig
from rollbook.train import resume_training, train_policy

TRAINING_FLATS, TRAINING_SEED = 150, 17
TEST_FLATS, TEST_SEED = 48, 2017
HORIZON = 3
HEURISTICS = (
    *("nearest", "novelty", "target_area"),
    *("frontier", "information_gain", "information_gain_target"),
)
GAP = 0.85
LEAST_FLATS = 40


class _Compared(msgspec.Struct):
    heuristic: str
    """The best heuristic on the test flats themselves."""
    versus_random: list[PolicyResult]
    versus_heuristic: list[PolicyResult]


def main(scale: float = 1.0) -> list[Claim]:
    set_up = [TRAINING_FLATS, TRAINING_SEED, TEST_FLATS, TEST_SEED, scale]
    known = rollouts_config(Path("flats"), Path("training.zarr")).config_hash
    folder = RESULTS / "learning" / digest_of("rollbook.benchmark", [*set_up, known])[:12]
    make_folders(folder)
    training, test = (
        max(5, round(TRAINING_FLATS * scale)),
        max(2, round(TEST_FLATS * scale)),
    )
    source = kept_or_made(
        folder / "training-flats", lambda path: make_flats(path, training, TRAINING_SEED, scale)
    )
    unseen = kept_or_made(
        folder / "test-flats", lambda path: make_flats(path, test, TEST_SEED, scale)
    )
    config = rollouts_config(source, folder / "training.zarr")
    store = kept_or_made(
        folder / "training.zarr", lambda _: config.setup_target().run(unfinished="resume")
    )
    began = time.process_time()
    run = kept_or_made(folder / "run", lambda path: _train(store, path, scale))
    spent = time.process_time() - began
    compared = _compared(folder, rollouts_config(unseen, folder / "unused.zarr"), run)
    return _claims(compared, training, spent)


def kept_or_made(path: Path, make: Callable[[Path], object]) -> Path:
    """What an earlier call left; made now if it did not. Each maker names its result last."""
    if not path.exists() or (path.name == "run" and not (path / "run.json").exists()):
        make(path)
    return path


def _train(store: Path, path: Path, scale: float) -> None:
    if path.exists():
        resume_training(path)
    else:
        train_policy(store, path, options={"iterations": 20} if scale < 1 else None)


def make_flats(
    path: Path, scenes: int, seed: int, scale: float, splits: SplitConfig | None = None
) -> None:
    coarse = {"max_edge_m": 1.0} if scale < 1 else {}
    scene = SceneConfig.of_difficulty("easy" if scale < 1 else "medium", **coarse)
    config = MakeSourcesConfig(
        scenes=scenes, seed=seed, scene=scene, splits=splits or SplitConfig()
    )
    make_source_store(path, config)


def rollouts_config(source: Path, store: Path) -> RolloutDatasetWriterConfig:
    """The candidates of examples/generate/free_shell.toml, with a smaller image for the labels, for speed."""
    example = ROOT / "examples" / "generate" / "free_shell.toml"
    config = RolloutDatasetWriterConfig.from_toml(example)
    chance, softmax = (
        CounterfactualSelectionPolicy.RANDOM_VALID,
        CounterfactualSelectionPolicy.TEMPERATURE_SOFTMAX,
    )
    greedy = CounterfactualSelectionPolicy.ORACLE_GREEDY
    recipes = (
        RolloutRecipeConfig(name="random_valid", selection_policy=chance, horizon=HORIZON),
        RolloutRecipeConfig(
            name="random_valid_2", selection_policy=chance, horizon=HORIZON, seed=1
        ),
        RolloutRecipeConfig(name="softmax", selection_policy=softmax, horizon=HORIZON),
        RolloutRecipeConfig(name="oracle_greedy", selection_policy=greedy, horizon=HORIZON),
    )
    return dataclasses.replace(
        config,
        source=SourceConfig(store_dir=str(source), split="train"),
        store=dataclasses.replace(config.store, store_dir=store),
        target_scorer=msgspec.structs.replace(
            config.target_scorer, render_size_px=48, scene_samples=1000, target_samples=1000
        ),
        selected_depth=type(config.selected_depth)(enabled=False),
        recipes=recipes,
        max_targets_per_sample=2,
    )


def _compared(folder: Path, config: RolloutDatasetWriterConfig, run: Path) -> _Compared:
    """Every policy from the same roots of the test flats, closed loop."""
    names = ["random", *HEURISTICS, "greedy", str(run)]
    kept = folder / "compared.json"
    if not kept.exists():
        config = dataclasses.replace(
            config,
            source=SourceConfig(store_dir=config.source.store_dir),
            recipes=tuple(recipe_for(name, HORIZON) for name in names),
        )
        opened, rows = config.setup_target().rows(one_split=False)
        comparison = compare_policies(config, opened, rows, names)
        gains = {each.policy: each.target_gain for each in comparison.results()}
        heuristic = max(HEURISTICS, key=lambda name: gains[name])
        found = _Compared(
            heuristic=heuristic,
            versus_random=comparison.results("random"),
            versus_heuristic=comparison.results(heuristic),
        )
        write_bytes(kept, msgspec.json.encode(found))
    return msgspec.json.decode(kept.read_bytes(), type=_Compared)


def _claims(compared: _Compared, flats: int, trained_s: float) -> list[Claim]:
    gain = {each.policy: each.target_gain for each in compared.versus_random}
    over_random, over_heuristic = compared.versus_random[-1], compared.versus_heuristic[-1]
    learned = over_random.policy
    scale = gain["greedy"] - gain["random"]
    print(
        f"learning: {flats} training flats; {over_random.scenes} test flats, {over_random.roots} roots; "
        f"training took {trained_s:.0f} s of CPU time (0: kept from before)"
    )
    for each in sorted(compared.versus_random, key=lambda each: -each.target_gain):
        name = "learned (boosted, default options)" if each.policy == learned else each.policy
        closed = (each.target_gain - gain["random"]) / scale
        print(f"  {name:36} gain {each.target_gain:.3f}, {closed:7.1%} of the gap")
    for each, name in ((over_random, "random"), (over_heuristic, compared.heuristic)):
        print(
            f"  learned - {name}: {each.difference:+.3f}, 95 % interval {each.low:+.3f} to {each.high:+.3f}"
        )
    enough = (
        over_random.scenes >= LEAST_FLATS
    )  # a small run measures nothing, it only shows that all parts work
    share = (gain[learned] - gain["random"]) / scale if enough else None
    return [
        Claim("share of the gap from random to the greedy oracle that is closed", share, GAP, ""),
        Claim("learned - random, lower limit", over_random.low if enough else None, 0.0, ""),
        Claim(
            "learned - best heuristic, lower limit",
            over_heuristic.low if enough else None,
            0.0,
            "",
        ),
        Claim("test flats", float(over_random.scenes), LEAST_FLATS, "flats"),
    ]

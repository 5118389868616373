"""Learns where to look next: MaskablePPO in rollbook's environment, compared with chance on flats it has never seen.

    pip install 'rollbook[generate,rl]'
    python -m examples.learn_in_environment              (from the root of the repository)

The policy scores every candidate by the same small network, so it does not matter how many candidates there are or in
which order. It sees only `candidate_features`, which hold what the actor knows. The comparison is paired: both policies
begin at the same roots with the same first shell. The mean difference of a flat counts once, because the episodes of a
flat are not independent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from torch import nn

from rollbook.generate import (
    CounterfactualEnv,
    RolloutDatasetWriterConfig,
    make_source_store,
    sources_config,
)
from rollbook.scoring import mean_interval

HORIZON = 3
Chooser = Callable[[dict[str, Any], NDArray[np.bool_]], int]
"""An action for an observation and the mask of valid actions."""


def config_for(sources: Path, split: str) -> RolloutDatasetWriterConfig:
    """Small images and few candidates: enough to learn from, and quick."""
    families = {"target_bearing_local": "target_point", "forward_local": "forward_rig"}
    table = {
        "source": {"store_dir": str(sources), "split": split},
        "store": {"store_dir": "not-written"},
        "target_source": "actor_visible_selector",
        "target_scorer": {"render_size_px": 32, "target_samples": 400, "include_scene": False},
        "candidate_mixture": {
            "components": [
                {"name": name, "count": 10, "position": name, "view": view}
                for name, view in families.items()
            ]
        },
    }
    return RolloutDatasetWriterConfig.from_table(table, folder=Path.cwd())


# ------------------------------------------------------------------------------------------- policy


class CandidateFeatures(BaseFeaturesExtractor):  # type: ignore[misc]
    """The features of all candidates, compressed: they are metres, radians, counts and logarithms."""

    def __init__(self, space: Any) -> None:
        self.shape: tuple[int, int] = space["candidate_features"].shape
        super().__init__(space, self.shape[0] * self.shape[1])

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        given = observations["candidate_features"]
        return (torch.sign(given) * torch.log1p(torch.abs(given))).flatten(1)


class CandidateScorer(nn.Module):
    """One network for every candidate. Its scores are the logits; the mean over candidates feeds the critic."""

    def __init__(self, shape: tuple[int, int], hidden: int = 64) -> None:
        super().__init__()
        self.shape = shape
        self.latent_dim_pi, self.latent_dim_vf = shape[0], hidden
        self.each = nn.Sequential(
            nn.LayerNorm(shape[1]),
            nn.Linear(shape[1], hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
        )
        self.score = nn.Linear(hidden, 1)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.each(features.reshape(-1, *self.shape))
        return self.score(seen).squeeze(-1), seen.mean(dim=1)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return self.forward(features)[0]

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        return self.forward(features)[1]


class CandidatePolicy(MaskableMultiInputActorCriticPolicy):  # type: ignore[misc]
    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = CandidateScorer(self.features_extractor.shape)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # the scores are the logits already
        rate = lr_schedule(1)
        self.optimizer = self.optimizer_class(self.parameters(), lr=rate, **self.optimizer_kwargs)


# ------------------------------------------------------------------------------ learning, comparing


def learn(
    config: RolloutDatasetWriterConfig, *, steps: int, seed: int, processes: int
) -> MaskablePPO:
    torch.manual_seed(seed)
    make = partial(CounterfactualEnv, config, horizon=HORIZON)
    workers = [make] * max(processes, 1)
    envs = SubprocVecEnv(workers, "spawn") if processes > 1 else DummyVecEnv(workers)
    model = MaskablePPO(
        CandidatePolicy,
        envs,
        policy_kwargs={"features_extractor_class": CandidateFeatures},
        n_steps=240 // len(workers),
        batch_size=60,
        n_epochs=8,
        learning_rate=2e-3,
        gamma=0.9,
        ent_coef=0.005,
        seed=seed,
        device="cpu",
    )
    try:
        return model.learn(steps)
    finally:
        envs.close()


def episode(env: CounterfactualEnv, options: dict[str, int], choose: Chooser) -> float:
    observation, info = env.reset(options=options)
    while info["ended"] is None:
        observation, *_, info = env.step(choose(observation, env.action_masks()))
    return float(info["target_gain"])


def compare(
    env: CounterfactualEnv, trained: MaskablePPO, *, episodes: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean final gains of the trained policy and of chance, one of each per held-out flat."""
    rng = np.random.default_rng(seed)

    def by_policy(observation: dict[str, Any], mask: NDArray[np.bool_]) -> int:
        return int(trained.predict(observation, action_masks=mask, deterministic=True)[0])

    def by_chance(_: dict[str, Any], mask: NDArray[np.bool_]) -> int:
        return int(rng.choice(np.flatnonzero(mask)))

    by_flat = defaultdict(list)
    for number in range(episodes):
        _, info = env.reset(seed=seed + number)
        same = {name: info[name] for name in ("row", "target", "candidate_seed")}
        by_flat[info["row"]].append(
            [episode(env, same, choose) for choose in (by_policy, by_chance)]
        )
    trained_gain, chance_gain = np.array([np.mean(pairs, axis=0) for pairs in by_flat.values()]).T
    return trained_gain, chance_gain


def main(
    *, flats: int = 60, steps: int = 9_600, episodes: int = 120, seed: int = 0, processes: int = 1
) -> tuple[float, float]:
    """Trains on half of the flats and compares on the other half. Returns the interval of the difference.

    With one process the result is the same every time.
    """
    torch.set_num_threads(1)  # the network is small: threads would only wait for each other
    with tempfile.TemporaryDirectory(prefix="rollbook-learn-") as folder:
        sources = Path(folder) / "sources"
        made = sources_config(
            difficulty="easy",
            top={"scenes": flats, "seed": seed, "splits": {"train": 0.5, "val": 0.0, "test": 0.5}},
            scene={"max_edge_m": 1.0},
            walk={"frames": 10},
            sensing={"points_per_frame": 100},
        )
        make_source_store(sources, made)
        begin = time.process_time()
        model = learn(config_for(sources, "train"), steps=steps, seed=seed, processes=processes)
        print(f"trained for {steps} steps in {time.process_time() - begin:.0f} CPU seconds")
        held_out = CounterfactualEnv(config_for(sources, "test"), horizon=HORIZON)
        trained, chance = compare(held_out, model, episodes=episodes, seed=seed)
    difference = trained - chance
    low, high = mean_interval(difference).interval or (-np.inf, np.inf)
    print(f"{episodes} episodes of {HORIZON} moves in {len(trained)} held-out flats")
    print(f"  final gain: trained {trained.mean():.3f}, chance {chance.mean():.3f}")
    print(
        f"  difference {difference.mean():+.3f}, 95 % interval {low:+.3f} to {high:+.3f}: "
        + ("better than chance" if low > 0 else "not shown to be better than chance")
    )
    return low, high


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--flats", type=int, default=60, help="half for training, half held out")
    parser.add_argument("--steps", type=int, default=9_600, help="environment steps of training")
    parser.add_argument(
        "--episodes", type=int, default=120, help="compared episodes, in all flats together"
    )
    parser.add_argument("--seed", type=int, default=0, help="of flats, network and episodes")
    parser.add_argument("--processes", type=int, default=1, help="environments, one per process")
    main(**vars(parser.parse_args()))

"""Generation as a whole: time per source row, time per scored candidate of a node, and gains of policies."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np

from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.generate.compare import compare_policies, paired_interval, recipe_for
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.rollout.loop import RolloutEngine
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import (
    MakeSourcesConfig,
    make_numbered_scene,
    make_source_store,
)
from rollbook.generate.sources.reader import SourceStore

_EXAMPLES = Path(__file__).parents[1] / "examples" / "generate"
_POLICIES = ("random", "target_area", "information_gain_target", "greedy")
_SEEDS = 60
"""With 24 roots the interval of greedy minus target_area still contained 0: the difference is small."""
_HORIZON = 3


def main(scale: float = 1.0) -> list[Claim]:
    seeds = max(2, int(_SEEDS * scale))
    edge = 0.25 if scale >= 1 else 1.0
    with scratch() as folder:
        sources = Path(folder) / "sources"
        config = MakeSourcesConfig(scenes=seeds, seed=20_000, scene=SceneConfig(max_edge_m=edge))
        make_numbered_scene(config, 0)  # compiles the kernels
        start = time.process_time()
        make_source_store(sources, config)
        row = (time.process_time() - start) / seeds
        store = SourceStore.open(sources)
        faces = np.mean([len(store.mesh(scene)) for scene in store.scenes])
        print(f"source rows: {seeds} of {faces:,.0f} triangles, {row:.2f} CPU-s each")
        run = _config("free_shell", sources)
        return [
            Claim("a source row, CPU", row, 2.0, "s", at_most=True),
            _node_cost(run, store),
            *_policies(run, store, seeds),
        ]


def _config(name: str, sources: Path) -> RolloutDatasetWriterConfig:
    read = RolloutDatasetWriterConfig.from_toml(_EXAMPLES / f"{name}.toml")
    source = type(read.source)(store_dir=str(sources))
    depth = type(read.selected_depth)(enabled=False)
    return dataclasses.replace(
        read,
        source=source,
        recipes=tuple(recipe_for(each, _HORIZON) for each in _POLICIES),
        max_targets_per_sample=1,
        selected_depth=depth,
    )


def _node_cost(config: RolloutDatasetWriterConfig, store: SourceStore) -> Claim:
    """Time per candidate: sampling, rules on mesh and map, rendering, labels of target and scene, features."""
    roller = RowRoller(config, store)
    spent, scored, nodes = 0.0, 0, 0
    for row in range(min(4, len(store))):
        for task in roller.tasks(row):
            engine = RolloutEngine(task)
            recipe = config.recipes[-1]
            RolloutEngine(task).evaluator(recipe).evaluate(engine.evaluator(recipe).root())
            evaluator = engine.evaluator(recipe)
            start = time.process_time()
            evaluator.evaluate(evaluator.root())
            spent += time.process_time() - start
            scored += evaluator.candidates_scored
            nodes += 1
    cost = 1e3 * spent / max(scored, 1)
    print(
        f"nodes: {nodes} of 60 candidates, {scored} scored, {cost:.1f} CPU-ms per scored candidate"
    )
    return Claim("a full step per scored candidate, CPU", cost, 20.0, "ms", at_most=True)


def _policies(config: RolloutDatasetWriterConfig, store: SourceStore, seeds: int) -> list[Claim]:
    compared = compare_policies(config, store, range(seeds), _POLICIES)
    for each in compared.results("random"):
        print(
            f"  {each.policy:24} target gain {each.target_gain:.3f}  scene gain {each.scene_gain:.3f}  "
            f"coverage {each.target_coverage:.3f}"
        )
    gain = {name: compared.endpoint[:, at, 0] for at, name in enumerate(_POLICIES)}
    claims = []
    for better, worse in (("target_area", "random"), ("greedy", "target_area")):
        low, mean, high = paired_interval(gain[better] - gain[worse])
        print(
            f"  {better} - {worse}: {mean:+.3f} [{low:+.3f}, {high:+.3f}], {len(gain[better])} roots"
        )
        # distance of the interval's centre from 0 in half widths: above 1 the interval excludes 0
        claims.append(
            Claim(
                f"{better} over {worse}: mean difference in half widths of its 95 % interval",
                max(mean / (high - mean), 1e-9) if high > mean else 1e-9,
                1.0,
                "x",
            )
        )
    return claims


if __name__ == "__main__":
    for claim in main():
        print(claim)

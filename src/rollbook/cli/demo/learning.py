"""The stage of the demo that learns a policy from the rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollbook.cli.demo.demo_folder import DemoFolder
from rollbook.cli.demo.rollouts import STORES
from rollbook.cli.demo.stage_lines import StageLines

if TYPE_CHECKING:
    from rollbook.learned import TrainingRunFolder

ITERATIONS = 60
"""Most trees: enough for so little data."""


def train(folder: DemoFolder, lines: StageLines) -> TrainingRunFolder:
    """A run that is there is read again, and with it every digest; one that was interrupted is made anew."""
    from rollbook.learned import is_training_run, open_training_run
    from rollbook.store import RolloutZarrStoreReader
    from rollbook.train import train_policy

    with lines.stage("train", "learning from the rollouts") as stage:
        store, place = folder / STORES["train"], folder / "run"
        content = RolloutZarrStoreReader(store).store_manifest.payload["content_sha256"]
        made_of = [content, ITERATIONS]
        stage.reused = folder.made("run", made_of) is not None and is_training_run(place)
        if stage.reused:
            run = open_training_run(place)
        else:

            def show(report: dict[str, Any]) -> None:
                stage.progress(int(report["iteration"]), ITERATIONS)

            run = train_policy(
                store, place, options={"iterations": ITERATIONS}, replace=True, on_report=show
            )
            folder.note("run", made_of)
        metrics = run.run.metrics
        regret, by_chance = (metrics[f"head_1_{each}_regret"] for each in ("validation", "random"))
        stage.text = f"boosted ranker; regret {regret:.3f}, by chance {by_chance:.3f}"
        return run

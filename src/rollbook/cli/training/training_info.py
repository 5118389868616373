"""`rollbook train info` and `rollbook train compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.output import AsJson, print_json, print_pairs, print_rows, say
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.learned.run_folder import TrainingRunFolder
    from rollbook.learned.training_run import TrainingData, TrainingRun


def info(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    as_json: AsJson = False,
) -> None:
    """Show a training run: its data, its revision, its metrics. Every file is compared with its digest.

    \b
    Example:
      rollbook train info runs/first
    """
    folder = _opened(path)
    if as_json:
        print_json(run_summary(folder))
        return
    run, revision = folder.run, folder.run.policy_revision
    pairs = {
        "revision": revision.revision_id,
        "parent": revision.parent_revision_id or "none",
        "policy digest": revision.policy_digest,
        "learner": f"{run.learner}, seed {run.seed}, threads {run.threads}",
        "options": ", ".join(f"{name} {value}" for name, value in run.options.items()),
        "features": f"{len(run.feature_names)} actor features",
        "trained on": _data_words(run.data),
        "validated on": _data_words(run.validation),
        "batches": f"{len(run.batches)}, with {sum(each.chains for each in run.data):,} chains",
        "run digest": run.digest,
    }
    print_pairs(pairs)
    say("")
    print_rows(_heads(run))
    say(validation_words(run))
    say(f"{len(run.files)} files, all as they were written")


def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN…", help="Two or more run folders.")
    ],
    as_json: AsJson = False,
) -> None:
    """Compare training runs: what differs in data and options, and the validation of each.

    Regrets are comparable only between runs that were validated on the same chains; the last column says so. To compare
    the policies themselves on the same scenes, replay them: rollbook replay run --policy RUN.

    \b
    Example:
      rollbook train compare runs/first runs/second
    """
    if len(paths) < 2:
        raise ConfigurationError(message="compare needs two or more run folders")
    folders = [_opened(path) for path in paths]
    rows = [_compared(folder, folders[0]) for folder in folders]
    differences = _differences(folders)
    if as_json:
        print_json({"runs": rows, "differences": differences})
        return
    shown = {
        "run": "run",
        "regret": "regret",
        "gap_closed": "gap closed",
        "heads": "heads",
        "chains": "chains",
        "revision": "revision",
        "parent": "parent",
        "same_validation": "same validation",
    }
    print_rows(rows, shown, essential=3)
    for name, values in differences.items():
        say(f"{name}: {' | '.join(str(value) for value in values)}")
    if not all(row["same_validation"] for row in rows):
        say("regrets are not comparable: the runs were validated on different chains", err=True)


def run_summary(folder: TrainingRunFolder) -> dict[str, Any]:
    """A run for scripts: its record, and where it is."""
    import msgspec

    return {"path": str(folder.path), **msgspec.to_builtins(folder.run)}


def validation_words(run: TrainingRun) -> str:
    """What the first head, which ranks by the gain of a single move, is worth on the validation scenes."""
    regret = run.metrics.get("head_1_validation_regret")
    by_chance = run.metrics.get("head_1_random_regret")
    if regret is None or by_chance is None:
        return "no validation"
    scenes = len({scene for each in run.validation for scene in each.scenes})
    words = f"one-step regret on {scenes} held-out scenes: {regret:.4f}, {by_chance:.4f} at random"
    closed = run.metrics.get("head_1_gap_closed")
    return words if closed is None else f"{words}; {closed:.1%} of the gap to the best closed"


def _opened(path: Path) -> TrainingRunFolder:
    from rollbook.cli.store_paths import existing_path
    from rollbook.learned.run_folder import open_training_run

    return open_training_run(existing_path(path, "a training run"))


def _data_words(data: tuple[TrainingData, ...]) -> str:
    chains, states = sum(each.chains for each in data), sum(each.states for each in data)
    scenes = len({scene for each in data for scene in each.scenes})
    stores = ", ".join(
        f"{each.content_sha256[:12]}{f' ({each.place})' if each.place else ''}" for each in data
    )
    return f"{chains:,} chains, {states:,} states, {scenes:,} scenes of {stores}"


def _heads(run: TrainingRun) -> list[dict[str, Any]]:
    names = {
        "iterations": "iterations",
        "validation regret": "validation_regret",
        "random regret": "random_regret",
        "gap closed": "gap_closed",
    }
    return [
        {
            "moves left": head,
            **{shown: run.metrics.get(f"head_{head}_{name}") for shown, name in names.items()},
        }
        for head in range(1, run.horizon + 1)
    ]


def _compared(folder: TrainingRunFolder, first: TrainingRunFolder) -> dict[str, Any]:
    run, revision = folder.run, folder.run.policy_revision
    return {
        "run": str(folder.path),
        "regret": run.metrics.get("head_1_validation_regret"),
        "gap_closed": run.metrics.get("head_1_gap_closed"),
        "heads": run.horizon,
        "chains": sum(each.chains for each in run.data),
        "revision": revision.revision_id,
        "parent": revision.parent_revision_id,
        "same_validation": _sides(run.validation) == _sides(first.run.validation),
        "same_weights": run.checkpoint_digest == first.run.checkpoint_digest,
    }


def _sides(data: tuple[TrainingData, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.content_sha256, each.scenes) for each in data]


def _differences(folders: list[TrainingRunFolder]) -> dict[str, list[Any]]:
    """What the runs were started with and do not share: one value for each run."""
    started = [
        {
            "learner": folder.run.learner,
            "seed": folder.run.seed,
            "threads": folder.run.threads,
            **folder.run.options,
            "data": [each.content_sha256[:12] for each in folder.run.data],
        }
        for folder in folders
    ]
    names = dict.fromkeys(name for each in started for name in each)
    values = {name: [each.get(name) for each in started] for name in names}
    return {name: each for name, each in values.items() if any(v != each[0] for v in each)}

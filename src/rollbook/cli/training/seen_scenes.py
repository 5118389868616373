"""Says when a policy is judged on scenes that it was trained on: such a judgement says nothing about other scenes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rollbook.cli.output import say
from rollbook.errors import RollbookError


def warn_of_seen_scenes(policies: Iterable[str], scenes: Iterable[str | None]) -> None:
    """A line on standard error for every policy that is a run folder and has seen some of the scenes."""
    from rollbook.learned import is_training_run, open_training_run

    judged = {each for each in scenes if each}
    for policy in policies:
        if not is_training_run(policy):
            continue
        with suppress(RollbookError):  # whoever uses the folder says what is wrong with it
            seen = open_training_run(policy, verify=False).run.seen_among(judged)
            if seen:
                say(
                    f"warning: {policy} was trained on {len(seen)} of these {len(judged)} scenes, such as {seen[0]}: "
                    "judge it on others",
                    err=True,
                )


def scenes_of_store(path: Path) -> list[str | None]:
    """The scenes of its chains; empty where it cannot be read."""
    from rollbook.store.reader import RolloutZarrStoreReader

    with suppress(RollbookError):
        return RolloutZarrStoreReader(path).decoded("rollouts", "scene_id")
    return []

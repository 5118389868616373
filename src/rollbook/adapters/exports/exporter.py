"""Exporter: what every export format offers; and ExportSummary, what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from rollbook.adapters.exports.exported_episode import ExportedEpisode

OnEpisode: TypeAlias = "Callable[[int, int], None]"
"""Called with the number of episodes that are written, and of all."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that the export changes or leaves out."""

    episode: str
    """Name of the episode."""
    what: str
    """The stream or field."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    format: str
    path: Path
    episodes: int
    rows: int
    """Frames, steps or messages."""
    files: int
    size: int
    """Bytes."""


def facts_without_place(episodes: Sequence[ExportedEpisode]) -> list[Loss]:
    """Facts of episodes that no format holds."""
    found: list[Loss] = []
    for each in episodes:
        if each.status == "failed":
            reason = (
                "The run failed. The export does not say so: imported again, it is a finished one."
            )
            found.append(Loss(each.name, "status", reason))
        if each.tags:
            found.append(Loss(each.name, "tags", f"{', '.join(each.tags)}: left out."))
        if each.policy_revision is not None:
            reason = f"{each.policy_revision.revision_id}: only the policy version is written."
            found.append(Loss(each.name, "policy_revision", reason))
    return found


class Exporter(Protocol):
    """Writes one format. Its options are given when it is made."""

    @property
    def format(self) -> str: ...

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        """Everything that a re-import of the export would not give back, beside `facts_without_place`. Known before
        anything is written."""
        ...

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        """Write all episodes to `target`, which does not exist. After a crash there is no target."""
        ...

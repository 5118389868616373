"""ExportedEpisode: the facts and the files of one episode, as an exporter reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.contracts.episode import ArtifactKind, EpisodeSource, FinalStatus
from rollbook.contracts.npz import ArrayFacts, NpzArchive
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.streams import split_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEpisode:
    name: str
    source: EpisodeSource
    files: Mapping[ArtifactKind, Path]
    digests: Mapping[ArtifactKind, str]
    """SHA-256 of each file."""
    metadata: Mapping[str, Any]
    fps: float | None = None
    duration_s: float | None = None
    robot: str | None = None
    seed: int | None = None
    env_version: str | None = None
    policy_version: str | None = None
    git_sha: str | None = None
    policy_revision: PolicyRevision | None = None
    tags: tuple[str, ...] = ()
    status: FinalStatus = "ready"
    episode_id: str | None = None
    """Id on the server; None where it was read from a folder."""

    @classmethod
    def of_encoded(
        cls,
        encoded: EncodedEpisode,
        digests: Mapping[ArtifactKind, str],
        *,
        episode_id: str | None = None,
    ) -> ExportedEpisode:
        return cls(
            name=encoded.name,
            source=encoded.source,
            files=encoded.files,
            digests=digests,
            metadata=encoded.metadata,
            fps=encoded.fps,
            duration_s=encoded.duration_s,
            robot=encoded.robot,
            seed=encoded.seed,
            env_version=encoded.env_version,
            policy_version=encoded.policy_version,
            git_sha=encoded.git_sha,
            policy_revision=encoded.policy_revision,
            tags=encoded.tags,
            status=encoded.status,
            episode_id=episode_id,
        )

    def open(self, kind: ArtifactKind) -> NpzArchive:
        """The arrays of `sensors` or `actions`; close it after use."""
        return NpzArchive(self.files[kind], record=f"{kind} of {self.name}")

    def streams(self, kind: ArtifactKind) -> dict[str, dict[str, ArrayFacts]]:
        """Type and shape of every field, by namespace. Empty where there is no such file."""
        if kind not in self.files:
            return {}
        found: dict[str, dict[str, ArrayFacts]] = {}
        with self.open(kind) as archive:
            for key in archive.keys:
                namespace, field = split_key(key)
                found.setdefault(namespace, {})[field] = archive.facts(key)
        return found

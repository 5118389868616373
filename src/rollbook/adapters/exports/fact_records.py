"""Facts of an episode as records of names and texts, for formats that keep such records beside their streams."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.contracts.source_file import SOURCE_FILE_KEY
from rollbook.contracts.typed_metadata import plain_metadata


def fact_records(episode: ExportedEpisode) -> dict[str, dict[str, str]]:
    """What is not known is left out. Numbers are written as JSON writes them."""
    facts = {
        "name": episode.name,
        "source": episode.source,
        "robot": episode.robot,
        "fps": episode.fps,
        "duration_s": episode.duration_s,
        "seed": episode.seed,
        "env_version": episode.env_version,
        "policy_version": episode.policy_version,
        "git_sha": episode.git_sha,
        "episode_id": episode.episode_id,
    }
    records = {
        "rollbook.episode": {
            name: _text(value) for name, value in facts.items() if value is not None
        },
        "rollbook.sha256": {str(kind): digest for kind, digest in sorted(episode.digests.items())},
    }
    metadata = plain_metadata(episode.metadata)
    source = metadata.get(SOURCE_FILE_KEY)
    if isinstance(source, Mapping):
        records["rollbook.source_file"] = {name: _text(value) for name, value in source.items()}
    records["rollbook.metadata"] = {"json": json.dumps(metadata, ensure_ascii=False)}
    return records


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

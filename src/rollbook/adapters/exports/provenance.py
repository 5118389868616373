"""Provenance: where an episode comes from, as named values for the columns of a table.

Readers drop the key-value metadata of files, but no reader drops a column.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

from rollbook import __version__
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.extras import library
from rollbook.contracts.episode import ARTIFACT_KINDS
from rollbook.contracts.source_file import SourceFile
from rollbook.contracts.typed_metadata import plain_metadata

_TEXT, _WHOLE, _NUMBER, _TRUTH = "string", "int64", "float64", "bool_"

PROVENANCE = MappingProxyType(
    {
        "episode_id": _TEXT,
        "name": _TEXT,
        "source": _TEXT,
        "robot": _TEXT,
        "policy_version": _TEXT,
        "seed": _TEXT,
        "env_version": _TEXT,
        "git_sha": _TEXT,
        **{f"{kind}_sha256": _TEXT for kind in ARTIFACT_KINDS},
        "source_format": _TEXT,
        "source_name": _TEXT,
        "source_digest": _TEXT,
        "source_episode": _TEXT,
        "source_options": _TEXT,
        "import_key": _TEXT,
        "success": _TRUTH,
        "reward_total": _NUMBER,
        "collision_count": _WHOLE,
        "time_to_goal_s": _NUMBER,
        "metadata": _TEXT,
        "rollbook_version": _TEXT,
    }
)
"""The columns and their types. A seed is text, because it may have more than 64 bits. `metadata` is JSON."""


def provenance(episode: ExportedEpisode) -> dict[str, Any]:
    """A value for each column; None where it is not known."""
    metadata = plain_metadata(episode.metadata)
    source = SourceFile.recorded_in(metadata)
    stated = metadata.get("outcome")
    outcome = stated if isinstance(stated, dict) else {}
    values: dict[str, Any] = {
        "episode_id": episode.episode_id,
        "name": episode.name,
        "source": episode.source,
        "robot": episode.robot,
        "policy_version": episode.policy_version,
        "seed": None if episode.seed is None else str(episode.seed),
        "env_version": episode.env_version,
        "git_sha": episode.git_sha,
        **{f"{kind}_sha256": episode.digests.get(kind) for kind in ARTIFACT_KINDS},
        "success": _of_type(outcome.get("success"), bool),
        "reward_total": _of_type(outcome.get("reward_total"), int, float),
        "collision_count": _of_type(outcome.get("collision_count"), int),
        "time_to_goal_s": _of_type(outcome.get("time_to_goal_s"), int, float),
        "metadata": json.dumps(metadata, sort_keys=True),
        "rollbook_version": __version__,
    }
    if source is not None:
        values |= {
            "source_format": source.format,
            "source_name": source.name,
            "source_digest": source.digest,
            "source_episode": source.episode,
            "source_options": json.dumps(source.to_json()["options"], sort_keys=True),
            "import_key": source.import_key,
        }
    return {name: values.get(name) for name in PROVENANCE}


def provenance_types() -> dict[str, Any]:
    """The Arrow type of each column."""
    arrow = library("pyarrow")
    return {name: getattr(arrow, kind)() for name, kind in PROVENANCE.items()}


def _of_type(value: Any, *kinds: type) -> Any:
    """A value of another type is of another meaning: metadata may come from anybody."""
    return value if type(value) in kinds else None

"""Destination: the server that gets encoded episodes, and what the caller says about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from rollbook.adapters.encoded import AnyPath, EncodedEpisode
from rollbook.adapters.episode_folder import write_episode_file
from rollbook.contracts.episode import EpisodeSource
from rollbook.errors import AuthError, ConfigurationError

if TYPE_CHECKING:
    from rollbook.client import Client, Episode
    from rollbook.contracts.policy import PolicyRevision

_log = logging.getLogger("rollbook.adapters")
_TEXTS = ("name", "robot", "policy_version", "env_version", "git_sha")


class EpisodeAbout(TypedDict, total=False):
    """Facts that a caller may give about an episode. They override those that the adapter found."""

    name: str
    source: EpisodeSource
    robot: str
    policy_version: str
    policy_revision: PolicyRevision
    env_version: str
    git_sha: str
    metadata: Mapping[str, Any]
    tags: Sequence[str]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    encoded: EncodedEpisode
    episode: Episode | None
    """None when no server is configured and the episode exists only as files."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of one item of a batch: a run or an error."""

    item: int
    """The seed, or the index of the episode in its dataset."""
    run: RecordedRun | None = None
    error: Exception | None = None


OnProgress: TypeAlias = "Callable[[int, int, BatchResult], None]"
"""Called with the number of finished items, the number of all items, and the last result."""


# ----------------------------------------------------------------------------------------- upload


@dataclass(frozen=True, slots=True)
class Destination:
    """The server for encoded episodes, and the caller's facts about them. Both are checked before anything runs."""

    client: Client | None
    about: EpisodeAbout = field(default_factory=EpisodeAbout)

    @classmethod
    def find(
        cls, client: Client | None, about: EpisodeAbout, output_dir: AnyPath | None
    ) -> Destination:
        _check_about(about)
        return cls(client or _default_client(output_dir), about)

    @classmethod
    def local(cls, about: EpisodeAbout) -> Destination:
        """Episodes stay on this machine."""
        _check_about(about)
        return cls(None, about)

    def named(self, **values: object) -> Destination:
        """The same for one item of a batch: `{seed}` or `{episode_index}` in the name is replaced."""
        name = self.about.get("name")
        if name is None:
            return self
        for key, value in values.items():
            name = name.replace(f"{{{key}}}", str(value))
        return replace(self, about={**self.about, "name": name})

    def deliver(self, encoded: EncodedEpisode, *, kept_in: Path | None) -> RecordedRun:
        """Upload the episode if there is a server, then raise the error that ended the run, if there is one.

        `kept_in`: the folder in which its files stay. They are described there in episode.json.
        """
        if encoded.failure is not None and not encoded.files:
            raise encoded.failure
        if kept_in is not None:
            write_episode_file(kept_in, encoded, self.about)
        try:
            episode = None if self.client is None else self._log(self.client, encoded)
        except Exception as error:
            if encoded.failure is None:
                raise
            encoded.failure.add_note(f"the steps before the error could not be uploaded: {error}")
            raise encoded.failure from None
        if encoded.failure is not None:
            where = "in its files" if episode is None else f"episode {episode.id or 'in the spool'}"
            encoded.failure.add_note(f"the steps before the error are {where}, as failed")
            raise encoded.failure
        kept = encoded if kept_in is not None else replace(encoded, files={})
        return RecordedRun(kept, episode)

    def _log(self, client: Client, encoded: EncodedEpisode) -> Episode:
        return client.log_episode(**self.facts(encoded))

    def facts(self, encoded: EncodedEpisode) -> dict[str, Any]:
        """The arguments of `log_episode`: what the adapter found, and what the caller says instead."""
        facts: dict[str, Any] = {
            "name": encoded.name,
            "source": encoded.source,
            "robot": encoded.robot,
            "env_version": encoded.env_version,
            "policy_version": encoded.policy_version,
            "git_sha": encoded.git_sha,
            "policy_revision": encoded.policy_revision,
            **self.about,
            **{str(kind): path for kind, path in encoded.files.items()},
            "metadata": {**encoded.metadata, **self.about.get("metadata", {})},
            "tags": list(dict.fromkeys([*encoded.tags, *self.about.get("tags", ())])),
            "seed": encoded.seed,
            "fps": encoded.fps,
            "duration_s": encoded.duration_s,
            "status": encoded.status,
        }
        if encoded.status == "failed":
            facts["failure_time_s"] = encoded.failed_at_s
        return facts


def _check_about(about: EpisodeAbout) -> None:
    """Check the facts before the run. The client would refuse the same mistakes, but only after it."""
    from rollbook.client.bodies import create_body

    unknown = sorted(about.keys() - EpisodeAbout.__annotations__.keys())
    if unknown:
        known = ", ".join(EpisodeAbout.__annotations__)
        raise ConfigurationError(message=f"there is no argument {unknown[0]!r}; known: {known}")
    given: dict[str, Any] = {**about}
    create_body(
        source=about.get("source", "sim"),
        artifacts=(),
        texts={name: given.get(name) for name in _TEXTS},
        seed=None,
        fps=None,
        metadata=about.get("metadata"),
        tags=about.get("tags"),
        policy_revision=about.get("policy_revision"),
    )


def _default_client(output_dir: AnyPath | None) -> Client | None:
    """None where no client is configured but an `output_dir` keeps the files."""
    from rollbook.client import default_client

    try:
        return default_client()
    except ConfigurationError as error:
        if output_dir is None:
            message = f"{error}; or pass output_dir= to keep the files and upload nothing"
            raise ConfigurationError(message=message) from error
        _log.warning("files are written, nothing is uploaded: %s", error)
        return None


# ------------------------------------------------------------------------------------------- many


def run_many(
    items: Sequence[int],
    work: Callable[[int], RecordedRun],
    *,
    on_progress: OnProgress | None,
    stop_on_error: bool,
) -> list[BatchResult]:
    """Work on every item. An error of one item does not stop the others unless `stop_on_error`; a refused key does."""
    results: list[BatchResult] = []
    for item in items:
        try:
            result = BatchResult(item, run=work(item))
        except AuthError:
            raise
        except Exception as error:
            if stop_on_error:
                raise
            result = BatchResult(item, error=error)
        results.append(result)
        if on_progress is not None:
            on_progress(len(results), len(items), result)
    return results

"""EpisodePlan: which streams of an episode go where in a Minari dataset, and what is lost on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.minari.episode_reading import FLAGS, REWARD
from rollbook.adapters.steps.step_clock import StepClock
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import ArrayFacts
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD
from rollbook.errors import ConfigurationError

_LARGEST_SEED = 2**63 - 1
_KEPT = frozenset(
    {
        *("adapter", "steps", "terminated", "truncated", "ended_by", "truncated_by", "outcome"),
        *("total_reward", "declared", "read", "skipped", "losses", "environment_description"),
        *("gymnasium_env_id", "gymnasium_spec", "minari_spaces", "minari_dataset_id"),
        *("minari_version", "minari_episode", "video_cameras", "timestamps_assumed"),
        "source_file",
    }
)
"""Keys in the metadata that an import of the export gives again, or that only describe the import."""


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    episode: ExportedEpisode
    steps: int
    streams: Mapping[str, Mapping[str, ArrayFacts]]
    """By `observation` and `action`, then by name."""
    infos: tuple[str, ...]
    rewards: bool
    flags: tuple[str, ...]
    """Flags that were recorded for every step."""

    @classmethod
    def of(cls, episode: ExportedEpisode) -> EpisodePlan:
        sensors, actions = episode.streams("sensors"), episode.streams("actions")
        action = _named(actions, "action")
        observation = _named(sensors, "observation")
        if not action or not observation:
            missing = "actions called action" if not action else "sensors called observation"
            raise _unfit(episode, f"it has no {missing}")
        steps = next(iter(action.values())).shape[0]
        _check_rows(episode, action, steps, "action")
        _check_rows(episode, observation, steps + 1, "observation")
        rows = {name: _value(fields) for name, fields in sensors.items()}
        infos = [
            name
            for name, facts in rows.items()
            if name.startswith("info.") and facts is not None and facts.dtype.kind in "biuf"
            if facts.shape[0] in (steps, steps + 1)
        ]
        for streams in (observation, action):
            wrong = _misplaced(list(streams))
            if wrong:
                why = "has an empty part, or would lie inside or in the place of another stream"
                raise _unfit(episode, f"the name {wrong[0]!r} {why}")
        misplaced = _misplaced(infos)
        return cls(
            episode,
            steps,
            {"observation": observation, "action": action},
            tuple(name for name in infos if name not in misplaced),
            _is_vector(rows.get(REWARD), steps),
            tuple(name for name in FLAGS.values() if _is_vector(rows.get(name), steps)),
        )

    @property
    def seed(self) -> int | None:
        seed = self.episode.seed
        return seed if seed is not None and seed <= _LARGEST_SEED else None

    @property
    def ended(self) -> dict[str, bool]:
        metadata = self.episode.metadata
        return {name: metadata.get(name) is True for name in FLAGS.values()}

    # ------------------------------------------------------------------------------------ losses

    def losses(self) -> Iterator[Loss]:
        for kind in ("sensors", "actions"):
            yield from self._left_out(kind, self.episode.streams(kind))
        if "video" in self.episode.files:
            yield self._loss("video", "Minari has no video.")
        if not self.rewards:
            yield self._loss(
                REWARD, "No rewards were recorded; Minari needs them, so they are NaN."
            )
        if self.episode.seed is not None and self.seed is None:
            yield self._loss("seed", "It has more than 63 bits.")
        for name in FLAGS.values():
            if name not in self.episode.metadata and name not in self.flags:
                yield self._loss(name, "It is not known; Minari needs it, so it is false.")
        yield from self._clock_losses()
        yield self._loss("name", "A Minari dataset has one name for all its episodes.")
        for name in ("robot", "policy_version", "git_sha"):
            if getattr(self.episode, name) is not None:
                yield self._loss(name, "It is kept as an attribute, which an import does not read.")
        other = sorted(set(self.episode.metadata) - _KEPT)
        if other:
            names = ", ".join(other[:20])
            yield self._loss("metadata", f"Minari keeps no metadata of its own: {names}.")

    def _left_out(
        self, kind: ArtifactKind, streams: Mapping[str, Mapping[str, ArrayFacts]]
    ) -> Iterator[Loss]:
        for name, fields in streams.items():
            kept = name in self._exported(kind)
            for field in fields:
                if field != CLOCK_FIELD and not (kept and field == ONLY_FIELD):
                    reason = "A Minari dataset has observations, actions, rewards and infos only."
                    yield self._loss(f"{kind}: {name}/{field}", reason)

    def _exported(self, kind: ArtifactKind) -> set[str]:
        if kind == "actions":
            return set(self.streams["action"])
        names = {*self.streams["observation"], *self.infos, *self.flags}
        return names | {REWARD} if self.rewards else names

    def _clock_losses(self) -> Iterator[Loss]:
        """Minari has no times. A rate is kept as an attribute; other times are lost."""
        reason = "Minari has no times, and these do not follow from a rate."
        if self.episode.fps is None:
            yield self._loss("times", reason)
            return
        clock = StepClock(self.episode.fps)
        for kind in ("sensors", "actions"):
            with self.episode.open(kind) as archive:
                for name in sorted(self._exported(kind)):
                    key = f"{name}/{CLOCK_FIELD}"
                    first = 1 if self._is_at_end(kind, name) else 0
                    if key not in archive.keys:
                        yield self._loss(f"{kind}: {name}", "It has no times.")
                        continue
                    count = archive.facts(key).shape[0]
                    for times in archive.rows(key, 0, count):
                        if not np.array_equal(times, clock.times(first, len(times))):
                            yield self._loss(f"{kind}: {name}", reason)
                            break
                        first += len(times)

    def _is_at_end(self, kind: ArtifactKind, name: str) -> bool:
        """Whether the rows are known at the end of a step, as a reward is."""
        if kind == "actions" or name in self.streams["observation"]:
            return False
        if name in self.infos:
            facts = self.episode.streams("sensors")[name][ONLY_FIELD]
            return facts.shape[0] == self.steps
        return True

    def _loss(self, what: str, reason: str) -> Loss:
        return Loss(self.episode.name, what, reason)


def path_of(name: str) -> list[str]:
    """Where a stream goes: `info.arm.q` into the group `arm`. A slash in a name is the border of a group, too."""
    return name.replace("/", ".").split(".")


def _misplaced(names: Sequence[str]) -> list[str]:
    """Those that would lie inside of another one or in its place, and those with an empty part."""
    paths = {name: path_of(name) for name in names}
    return [
        name
        for name, path in paths.items()
        if "" in path
        or any(other != name and path[: len(each)] == each for other, each in paths.items())
    ]


def _named(streams: Mapping[str, Mapping[str, ArrayFacts]], part: str) -> dict[str, ArrayFacts]:
    known = {name: _value(fields) for name, fields in streams.items()}
    return {
        name: facts
        for name, facts in known.items()
        if facts is not None and facts.dtype.kind in "biufU"
        if name == part or name.startswith(f"{part}.")
    }


def _value(fields: Mapping[str, ArrayFacts]) -> ArrayFacts | None:
    facts = fields.get(ONLY_FIELD)
    return facts if facts is not None and facts.shape else None


def _is_vector(facts: ArrayFacts | None, rows: int) -> bool:
    if facts is None or facts.dtype.kind not in "biuf" or facts.shape[0] != rows:
        return False
    return math.prod(facts.shape[1:]) == 1


def _check_rows(
    episode: ExportedEpisode, streams: Mapping[str, ArrayFacts], rows: int, part: str
) -> None:
    for name, facts in streams.items():
        if facts.shape[0] != rows:
            hint = "one observation more than actions" if part == "observation" else "one each step"
            raise _unfit(episode, f"{name} has {facts.shape[0]} rows where {rows} belong ({hint})")
        if 0 in facts.shape[1:]:
            raise _unfit(episode, f"the rows of {name} hold no values")
    if not rows:
        raise _unfit(episode, f"its {part} has no rows")
    if part in streams and len(streams) > 1:
        raise _unfit(episode, f"{part} is an array and has parts, such as {sorted(streams)[1]}")


def _unfit(episode: ExportedEpisode, why: str) -> ConfigurationError:
    return ConfigurationError(message=f"{episode.name} cannot become a Minari episode: {why}")


def written_values(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values that an import from Minari kept with the episode, such as the options of its reset."""
    kept = metadata.get("minari_episode")
    for name, value in kept.items() if isinstance(kept, Mapping) else ():
        plain = isinstance(value, bool | int | float | str | list)
        if plain and not name.startswith("rollbook/") and name not in ("id", "seed", "total_steps"):
            yield name, value

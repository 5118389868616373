"""What the attributes of a file say about an episode: its task, robot, environment, rate and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.adapters.hdf5.attributes import Attributes
from rollbook.adapters.hdf5.layouts import Layout
from rollbook.contracts.episode import (
    EPISODE_SOURCES,
    LONGEST_NAME,
    LONGEST_ROBOT,
    EpisodeSource,
)
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.errors import InvalidValue

PROVENANCE = "rollbook_episode"
"""Attribute of a demonstration that our own exporter writes: where the episode came from, as JSON."""
_TASK_NAMES = (
    *("language_instruction", "language", "lang", "instruction", "task", "task_description"),
    *("current_task", "natural_language_instruction"),
)
_LONGEST_TASK = 1000
_HIGHEST_RATE = 1000.0


@dataclass(frozen=True, slots=True)
class Rate:
    fps: float
    reason: str


def rate(layout: Layout, attributes: Attributes, named: float | None) -> Rate:
    if named is not None:
        return Rate(named, "the option fps")
    for owner, name, path in (
        ("episode", PROVENANCE, ("fps",)),
        ("data", "env_args", ("env_kwargs", "control_freq")),
        ("data", "env_info", ("control_freq",)),
    ):
        found: Any = attributes.parsed(owner, name)
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if is_number and 0 < found <= _HIGHEST_RATE:
            return Rate(float(found), f"{path[-1]} in {name}")
    return Rate(layout.fps, layout.rate_reason)


def tasks(attributes: Attributes, scalars: Mapping[str, str]) -> list[str]:
    found = dict.fromkeys(_clean(text) for text in _task_texts(attributes, scalars))
    return [text for text in found if text][:100]


def _task_texts(attributes: Attributes, scalars: Mapping[str, str]) -> Iterator[str]:
    provenance = attributes.parsed("episode", PROVENANCE).get("tasks")
    if isinstance(provenance, list) and provenance:
        yield from (each for each in provenance if isinstance(each, str))
        return
    for name, text in scalars.items():
        if name.rpartition("/")[2] in _TASK_NAMES:
            yield text
    for owner in ("episode", "data", "file"):
        for name in _TASK_NAMES:
            text = attributes.get(owner, name)
            if isinstance(text, str):
                yield text
    for owner, name, key in (
        ("episode", "ep_meta", "lang"),
        ("data", "problem_info", "language_instruction"),
        ("data", "env_args", "env_lang"),
    ):
        stated: Any = attributes.parsed(owner, name).get(key)
        words = stated if isinstance(stated, list) else [stated]
        if all(isinstance(word, str) for word in words):
            yield " ".join(words)


def _clean(text: str) -> str:
    return text.strip().strip('"').strip()[:_LONGEST_TASK]


def environment(attributes: Attributes) -> str | None:
    """Name and version of the environment, such as `Lift 1.4.1`."""
    args = attributes.parsed("data", "env_args")
    info = attributes.parsed("data", "env_info")
    name = args.get("env_name") or info.get("env_name") or attributes.get("data", "env")
    version = args.get("env_version") or attributes.get("data", "repository_version")
    words = [word for word in (name, version) if isinstance(word, str) and word]
    return " ".join(words)[:200] if isinstance(name, str) and name else None


def recorded_source(attributes: Attributes) -> EpisodeSource:
    """A file that names its environment is of a simulator; ALOHA says whether it was one."""
    told = [attributes.get(owner, "sim") for owner in ("file", "episode")]
    return "sim" if True in told or environment(attributes) is not None else "real"


def robot(attributes: Attributes) -> str | None:
    kwargs = attributes.parsed("data", "env_args").get("env_kwargs")
    for found in (kwargs, attributes.parsed("data", "env_info")):
        names = found.get("robots") if isinstance(found, dict) else None
        names = [names] if isinstance(names, str) else names
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return ", ".join(names)[:LONGEST_ROBOT]
    return None


def outcome(layout: Layout, attributes: Attributes, reward_total: float | None) -> EpisodeOutcome:
    """Only what the file says. What `dones` means differs from file to file, so it is no success."""
    kept = attributes.parsed("episode", PROVENANCE).get("outcome")
    if isinstance(kept, dict):
        names = ("success", "reward_total", "collision_count", "time_to_goal_s")
        try:
            return EpisodeOutcome(**{name: kept.get(name) for name in names})
        except InvalidValue:
            pass  # somebody else wrote the attribute
    if layout.name == "droid":
        success, failure = (
            attributes.get("episode", "success"),
            attributes.get("episode", "failure"),
        )
        if success is True and failure is not True:
            return EpisodeOutcome(success=True)
        return EpisodeOutcome(success=False if failure is True and success is not True else None)
    if layout.name == "libero":
        return EpisodeOutcome()
    return EpisodeOutcome(reward_total=reward_total)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What an episode was before it was exported."""

    name: str | None = None
    source: EpisodeSource | None = None
    seed: int | None = None
    robot: str | None = None
    env_version: str | None = None
    policy_version: str | None = None
    git_sha: str | None = None


def provenance(attributes: Attributes) -> Provenance:
    found = attributes.parsed("episode", PROVENANCE)
    seed, source = found.get("seed"), found.get("source")
    return Provenance(
        name=_short(found.get("name"), LONGEST_NAME),
        source=source if source in EPISODE_SOURCES else None,
        seed=seed if type(seed) is int and 0 <= seed < 2**63 else None,
        robot=_short(found.get("robot"), LONGEST_ROBOT),
        env_version=_short(found.get("env_version"), 200),
        policy_version=_short(found.get("policy_version"), 200),
        git_sha=_short(found.get("git_sha"), 200),
    )


def _short(value: Any, longest: int) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= longest else None

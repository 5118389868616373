"""EnvironmentDescription: what a recording keeps of its environment, so that a replay can find what has changed.

It is read from the attributes that Gymnasium environments have; Gymnasium itself is not needed. Whoever records without
the adapter can store `EnvironmentDescription.of(env).to_json()` in the metadata of an episode, under
`DESCRIPTION_KEY`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from rollbook.digest import sha256

DESCRIPTION_KEY = "environment_description"
"""Key in the metadata of an episode."""
STEP_LIMIT_KEY = "step_limit"
"""Key in the metadata of an episode: the number of steps after which the recorder would have stopped it."""
TRUNCATED_BY_KEY = "truncated_by"

_WATCHING = frozenset(
    {
        "HumanRendering",
        "OrderEnforcing",
        "PassiveEnvChecker",
        "RecordEpisodeStatistics",
        "RecordVideo",
        "RenderCollection",
        "TimeLimit",
    }
)
"""Wrappers that only watch. A time limit is compared as `max_steps`."""
_RENDERING = frozenset({"render_mode", "render_fps"})
_LONGEST = 4096
_MOST_WRAPPERS = 100


@dataclass(frozen=True, slots=True)
class EnvironmentDescription:
    id: str
    """The id of its spec; the name of its class where it is not registered."""
    class_name: str
    arguments: Any
    """With which it was made, as far as its spec says; without those that only concern pictures."""
    wrappers: Any
    """Names, outermost first, without those that only watch."""
    wrapper_arguments: Any
    max_steps: int | None
    """Its own limit: the environment is truncated after so many steps."""
    package: str | None
    """Package and version of its class. It is kept, and not compared: the recorded actions show what has changed."""

    @classmethod
    def of(cls, environment: Any) -> EnvironmentDescription:
        inside = getattr(environment, "unwrapped", environment)
        spec = _spec(environment)
        class_name = type(inside).__name__
        return cls(
            id=str(getattr(spec, "id", None) or class_name),
            class_name=class_name,
            arguments=_arguments(getattr(spec, "kwargs", None)),
            wrappers=[name for name in _wrappers(environment) if name not in _WATCHING],
            wrapper_arguments=_wrapper_arguments(spec),
            max_steps=_max_steps(environment, spec),
            package=_package(type(inside)),
        )

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any], class_name: str) -> EnvironmentDescription:
        """Of an environment that was made from a Gymnasium spec, given as JSON. The environment is not made again.

        `class_name` is that of the environment without its wrappers.
        """
        listed = spec.get("additional_wrappers")
        wrappers = [
            SimpleNamespace(name=str(each["name"]), kwargs=each.get("kwargs"))
            for each in (listed if isinstance(listed, list | tuple) else ())
            if isinstance(each, Mapping) and "name" in each
        ]
        known = SimpleNamespace(
            additional_wrappers=wrappers, max_episode_steps=spec.get("max_episode_steps")
        )
        return cls(
            id=str(spec.get("id") or class_name),
            class_name=class_name,
            arguments=_arguments(spec.get("kwargs")),
            wrappers=[each.name for each in reversed(wrappers) if each.name not in _WATCHING],
            wrapper_arguments=_wrapper_arguments(known),
            max_steps=_max_steps(None, known),
            package=None,
        )

    @classmethod
    def recorded_in(cls, metadata: Mapping[str, Any]) -> EnvironmentDescription | None:
        """None where the recording has none, or one that cannot be read."""
        stored = metadata.get(DESCRIPTION_KEY)
        if not isinstance(stored, Mapping):
            return None
        known = {name: stored.get(name) for name in cls.__slots__}
        texts = isinstance(known["id"], str) and isinstance(known["class_name"], str)
        return cls(**known) if texts and "max_steps" in stored else None  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def changes(self, recorded: EnvironmentDescription) -> list[str]:
        """What is not as it was recorded: `spec`, `wrappers`, `max_steps`."""
        compared = {
            "spec": ("id", "class_name", "arguments"),
            "wrappers": ("wrappers", "wrapper_arguments"),
            "max_steps": ("max_steps",),
        }
        return [
            word
            for word, names in compared.items()
            if any(getattr(self, name) != getattr(recorded, name) for name in names)
        ]


def changes_of_spec(now: EnvironmentDescription, spec: object) -> list[str]:
    """The same for an older recording, which only has Gymnasium's own spec."""
    if not isinstance(spec, Mapping):
        return []
    words = []
    if spec.get("id") != now.id or _arguments(spec.get("kwargs")) != now.arguments:
        words.append("spec")
    if spec.get("max_episode_steps") != now.max_steps:
        words.append("max_steps")
    return words


def truncated_by(steps: int, max_steps: int | None) -> str:
    """Which limit ended a run that was truncated after so many steps."""
    reached = max_steps is not None and steps >= max_steps
    return "max_steps" if reached else "environment"


def _spec(environment: Any) -> Any:
    try:
        return getattr(environment, "spec", None)
    except Exception:  # noqa: BLE001 - wrappers copy their arguments for it, which may be of any type
        return None


def _layers(environment: Any) -> Iterator[Any]:
    """The environment and what it wraps, outermost first."""
    layer = environment
    for _ in range(_MOST_WRAPPERS):
        yield layer
        inside = getattr(layer, "env", None)
        if inside is None or inside is layer or getattr(layer, "unwrapped", None) is layer:
            return
        layer = inside


def _wrappers(environment: Any) -> list[str]:
    return [type(layer).__name__ for layer in _layers(environment)][:-1]


def _max_steps(environment: Any, spec: Any) -> int | None:
    """The lowest of the limits: a time limit may be wrapped in another."""
    limits = [getattr(layer, "_max_episode_steps", None) for layer in _layers(environment)]
    limits.append(getattr(spec, "max_episode_steps", None))
    known = [each for each in limits if isinstance(each, int) and not isinstance(each, bool)]
    return min((each for each in known if each > 0), default=None)


def _wrapper_arguments(spec: Any) -> Any:
    given = [
        [str(each.name), _plain(each.kwargs)]
        for each in getattr(spec, "additional_wrappers", None) or ()
        if each.name not in _WATCHING
    ]
    return _short(given)


def _arguments(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return {}
    return _short({str(k): _plain(v) for k, v in given.items() if k not in _RENDERING})


def _plain(value: Any) -> Any:
    """As JSON has it. What JSON cannot hold is named: an array by its digest, a function by its name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array {value.dtype.str} {value.shape} {data}"
    return getattr(value, "__qualname__", type(value).__qualname__)


def _short(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= _LONGEST else f"sha256 {sha256(text.encode()).hexdigest()}"


def _package(made_of: type) -> str | None:
    name = made_of.__module__.partition(".")[0]
    version = getattr(sys.modules.get(name), "__version__", None)
    return f"{name} {version}" if isinstance(version, str) else None

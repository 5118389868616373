"""Environments: what a user gives for closed-loop replay, and the keys of its observations and actions.

An environment has `reset(seed=)` and `step(action)` as in Gymnasium; Gymnasium itself is not needed. Keys are those of
the adapter: `observation/value`, or `observation.arm.0/value` for a value inside dicts and tuples.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.streams import ONLY_FIELD
from rollbook.errors import ConfigurationError, InvalidValue, RollbookError
from rollbook.evals.policies.policy import ReplayEpisode, load_attribute

Array = NDArray[Any]
EnvironmentFactory: TypeAlias = "Callable[..., Environment] | str"
"""A function that makes an environment, without arguments or from a ReplayEpisode; or `module:attr`."""


class Environment(Protocol):
    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]: ...


def environment_factory(given: EnvironmentFactory) -> Callable[..., Any]:
    """The function that makes environments, loaded if it was given as `module:attr`."""
    found: Any = _loaded(given) if isinstance(given, str) else given
    if not callable(found):
        message = f"environment is a {type(found).__name__}, expected a function that makes one, or 'module:attr'"
        raise ConfigurationError(message=message)
    return found  # type: ignore[no-any-return]


def _loaded(named: str) -> Any:
    try:
        return load_attribute(named, "environment")
    except RollbookError:
        raise
    except Exception as error:
        message = f"environment {named!r}: importing it raised {type(error).__name__}: {error}"
        raise ConfigurationError(message=message) from error


def try_environment(given: EnvironmentFactory) -> None:
    """Makes one environment and closes it, so that a broken factory is found before anything is replayed.

    A factory that takes an episode is not tried, because it may fail for one episode and work for others.
    """
    found = environment_factory(given)
    if _wants_episode(found):
        return
    made = make_environment(found, ReplayEpisode("none"))
    try:
        close_environment(made)
    except (Exception, SystemExit) as error:  # exit code 0 would look like a candidate that passed
        message = f"the environment cannot be closed: {type(error).__name__}: {error}"
        raise ConfigurationError(message=message) from error


def make_environment(factory: EnvironmentFactory, episode: ReplayEpisode) -> Environment:
    """Raises ConfigurationError when it cannot be made: the candidate is not the reason."""
    found = environment_factory(factory)
    try:
        made = found(episode) if _wants_episode(found) else found()
    except (Exception, SystemExit) as error:
        message = f"the environment cannot be made: {type(error).__name__}: {error}"
        raise ConfigurationError(message=message) from error
    if hasattr(made, "num_envs"):
        message = "the environment is a vector of environments; make a single one for each episode"
        raise ConfigurationError(message=message)
    for name in ("reset", "step"):
        if not callable(getattr(made, name, None)):
            message = f"the environment is a {type(made).__name__} without {name}(), expected one like Gymnasium's"
            raise ConfigurationError(message=message)
    environment: Environment = made
    return environment


def close_environment(environment: Environment) -> None:
    close = getattr(environment, "close", None)
    if callable(close):
        close()


@contextmanager
def open_environment(factory: EnvironmentFactory, episode: ReplayEpisode) -> Iterator[Environment]:
    environment = make_environment(factory, episode)
    try:
        yield environment
    finally:
        close_environment(environment)


def _wants_episode(factory: Callable[..., Any]) -> bool:
    """Whether the factory has a required argument."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)


def env_version_of(environment: Environment) -> str | None:
    """Its `env_version`, else the id of its spec; None if it has neither."""
    inside = getattr(environment, "unwrapped", environment)
    said = getattr(environment, "env_version", getattr(inside, "env_version", None))
    if said is None:
        said = getattr(getattr(environment, "spec", None), "id", None)
    return str(said) if said is not None else None


def declared_fps(environment: Environment) -> float | None:
    metadata = getattr(environment, "metadata", None)
    said = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    known = isinstance(said, int | float) and math.isfinite(said) and said > 0
    return float(said) if known else None  # type: ignore[arg-type]


def reset(environment: Environment, seed: int | None) -> tuple[Any, Mapping[str, Any]]:
    """The first observation and info."""
    observation, info = _answered("reset", environment.reset(seed=seed), 2)
    return observation, info


def step(environment: Environment, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Observation, reward, terminated, truncated and info."""
    answer = _answered("step", environment.step(action), 5)
    observation, reward, terminated, truncated, info = answer
    return observation, _reward(reward), bool(terminated), bool(truncated), info


def _answered(what: str, answer: Any, parts: int) -> tuple[Any, ...]:
    """Refuses tuples of another length, which older environments return, and plain observations."""
    if isinstance(answer, tuple) and len(answer) == parts and isinstance(answer[-1], Mapping):
        return answer
    found = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
    expected = "(observation, reward, terminated, truncated, info)"
    raise InvalidValue(
        record="the environment",
        field=f"{what}()",
        value=found,
        expected="(observation, info)" if what == "reset" else expected,
    )


def _reward(reward: Any) -> float:
    number = np.asarray(reward)
    if number.size != 1 or number.dtype.kind not in "biuf":
        raise InvalidValue(
            record="the environment's step",
            field="reward",
            value=repr(reward)[:80],
            expected="one number",
        )
    return float(number.item())


# ------------------------------------------------------------------------------ names of the parts


def observed(value: Any, name: str = "observation") -> Iterator[tuple[str, Array]]:
    """Every part of an observation with the name of its stream, as a copy: environments reuse their arrays."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from observed(part, f"{name}.{key}")
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from observed(part, f"{name}.{number}")
    else:
        yield name, np.array(value)


def action_for(environment: Environment, action: Mapping[str, Any]) -> Any:
    """The argument of `step`: the parts of a policy's answer in the structure of the action space."""
    return _action(getattr(environment, "action_space", None), action, "action")


def _action(space: Any, action: Mapping[str, Any], name: str) -> Any:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: _action(part, action, f"{name}.{key}") for key, part in parts.items()}
    if isinstance(parts, tuple | list):
        return tuple(_action(part, action, f"{name}.{i}") for i, part in enumerate(parts))
    key = f"{name}/{ONLY_FIELD}"
    if key not in action and name not in action:
        given = ", ".join(sorted(map(str, action))[:8]) or "nothing"
        raise _invalid_action("keys", given, f"{key!r}, which the environment needs for its step")
    return _fitted(space, key, action[key] if key in action else action[name])


def _fitted(space: Any, key: str, value: Any) -> Any:
    """The value in type and shape of the space. An action that does not fit is refused, never clipped."""
    dtype, shape = getattr(space, "dtype", None), getattr(space, "shape", None)
    if dtype is None or shape is None:
        return str(value) if isinstance(value, np.str_) else value
    given = np.asarray(value)
    expected = f"finite {np.dtype(dtype)} of shape {tuple(shape)}"
    if given.dtype.kind not in "biuf" or given.size != math.prod(shape):
        raise _invalid_action(key, f"{given.dtype} of shape {given.shape}", expected)
    if not np.isfinite(given).all():
        raise _invalid_action(key, "not finite", expected)
    fitted = given.astype(dtype).reshape(shape)
    if fitted.dtype.kind != "f" and not np.array_equal(fitted.ravel(), given.ravel()):
        raise _invalid_action(key, str(given.tolist())[:80], expected)
    return fitted[()]


def _invalid_action(field: str, value: str, expected: str) -> InvalidValue:
    return InvalidValue(record="the policy's action", field=field, value=value, expected=expected)

"""Situations: which baselines start from the same state of the same world, and so are one pair.

Where the environment can be run again, a situation is named by its description, the first observation after
`reset(seed)`, and what four fixed sequences of actions lead to. The first observation alone says too little where it
shows little of the state (FrozenLake always starts on the same field). The seed is not part of the name: an environment
may ignore it. Nor are the recorded actions: one situation may have been recorded with a noisy policy.

Where it cannot be run again, recordings with the same observations and actions are one pair, and recordings with the
same first observation are one cluster.
"""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.environment_description import EnvironmentDescription
from rollbook.contracts.streams import CLOCK_FIELD, split_key
from rollbook.digest import digest_of
from rollbook.evals.baselines import Arrays, Baseline
from rollbook.evals.worlds.environments import Environment, observed, reset, step

REWARD = "reward"
"""The namespace in which rewards are recorded."""
PROBES = 4
PROBE_STEPS = 20
_DOMAIN = "rollbook.situation.v1"


def situation_of(description: EnvironmentDescription, start: str, probes: str | None) -> str:
    """The name of a situation. Without probes, all that have the same first observation are one."""
    world = {**description.to_json(), "package": None}
    return digest_of(_DOMAIN, [world, start, probes])


def observation_digest(observation: Any) -> str:
    found = hashlib.sha256()
    _add_observation(found, observation)
    return found.hexdigest()


def probe(environment: Environment, seed: int | None) -> str | None:
    """Digest of what the fixed actions lead to.

    None where the environment has no action space, and where the same actions lead to something else when they are
    played again: then probes would tell two runs of one situation apart.
    """
    sequences = _sequences(getattr(environment, "action_space", None))
    if not sequences:
        return None
    found = [_played(environment, seed, actions) for actions in sequences]
    if _played(environment, seed, sequences[0]) != found[0]:
        return None
    return digest_of(_DOMAIN, found)


def _sequences(space: Any) -> list[list[Any]]:
    """The same for every baseline: drawn from the action space, with fixed seeds."""
    if not (callable(getattr(space, "sample", None)) and callable(getattr(space, "seed", None))):
        return []
    drawn = []
    try:
        own = copy.deepcopy(space)  # the environment may draw from its own space
        for number in range(PROBES):
            own.seed(int(digest_of(_DOMAIN, number)[:7], 16))
            drawn.append([own.sample() for _ in range(PROBE_STEPS)])
    except Exception:  # noqa: BLE001 - a space of the user's own may be neither copied nor drawn from
        return []
    return drawn


def _played(environment: Environment, seed: int | None, actions: Sequence[Any]) -> str:
    found = hashlib.sha256()
    observation, _ = reset(environment, seed)
    _add_observation(found, observation)
    for action in actions:
        try:
            observation, reward, terminated, truncated, _ = step(environment, action)
        except Exception as error:  # noqa: BLE001 - some environments refuse actions of their own space
            found.update(type(error).__name__.encode())
            break
        _add_observation(found, observation)
        found.update(struct.pack("<d??", reward, terminated, truncated))
        if terminated or truncated:
            break
    return found.hexdigest()


def recorded_repro(baseline: Baseline) -> dict[str, Any]:
    """`situation` and `first_observation` of a recording that is not run again."""
    sensors = _values(baseline.sensors)
    if not sensors:
        return {"situation": None, "first_observation": None}
    trace, start = hashlib.sha256(), hashlib.sha256()
    for key, array in {**sensors, **_values(baseline.actions)}.items():
        _add_array(trace, key, array)
    for key, array in sensors.items():
        if split_key(key)[0] != REWARD:  # the first reward depends on the first action
            _add_array(start, key, array[:1] if array.ndim else array)
    return {"situation": trace.hexdigest(), "first_observation": start.hexdigest()}


def _values(arrays: Arrays | None) -> Arrays:
    """Without clocks, in the order of the keys."""
    known = arrays or {}
    return {key: known[key] for key in sorted(known) if split_key(key)[1] != CLOCK_FIELD}


def _add_observation(found: Any, observation: Any) -> None:
    for name, value in observed(observation):
        _add_array(found, name, value)


def _add_array(found: Any, name: str, value: NDArray[Any]) -> None:
    found.update(f"{name} {value.dtype.str} {value.shape} ".encode())
    if value.dtype.hasobject:  # the bytes of objects are their addresses
        found.update(repr(value.tolist()).encode())
    else:
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

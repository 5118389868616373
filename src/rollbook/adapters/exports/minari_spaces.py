"""ExportSpaces: the observation and action space of a Minari dataset, and where each stream of an episode goes.

Minari needs a space. The best source is the recording, if it was imported from Minari; then the environment, if this
machine knows it under the same id and entry point; and last the arrays themselves, whose bounds are not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbook.adapters.extras import library
from rollbook.adapters.minari.importer import SPACES_KEY
from rollbook.adapters.minari.spaces import SpaceLeaf, full_space, space_leaves
from rollbook.contracts.npz import ArrayFacts
from rollbook.errors import RollbookError

PARTS = ("observation", "action")


@dataclass(frozen=True, slots=True)
class ExportSpace:
    stated: Any
    """As JSON."""
    leaves: tuple[SpaceLeaf, ...]
    exact: bool
    """False where its bounds were made up from the types of the arrays."""

    @property
    def text(self) -> str:
        """As Minari stores it. Bounds may be infinite, which Python's JSON can write and read."""
        return json.dumps(self.stated)


def spaces_for(
    metadata: Mapping[str, Any], streams: Mapping[str, Mapping[str, ArrayFacts]]
) -> dict[str, ExportSpace]:
    """`streams`: type and shape of each stream by its name, for `observation` and `action`."""
    return {part: _space(metadata, part, streams[part]) for part in PARTS}


def _space(
    metadata: Mapping[str, Any], part: str, streams: Mapping[str, ArrayFacts]
) -> ExportSpace:
    for stated in _known(metadata, part):
        kept = _pruned(stated, part, streams)
        if kept is None:
            continue
        leaves = _leaves(part, kept)
        if leaves is not None and _fit(leaves, streams):
            return ExportSpace(kept, leaves, True)
    made = _from_arrays(part, streams)
    leaves = _leaves(part, made)
    assert leaves is not None
    return ExportSpace(made, leaves, False)


def _known(metadata: Mapping[str, Any], part: str) -> Iterator[Any]:
    recorded = metadata.get(SPACES_KEY)
    if isinstance(recorded, Mapping) and part in recorded:
        # metadata may come from anybody, and mean something else under this name
        with suppress(TypeError, ValueError, OverflowError, MemoryError):
            yield full_space(recorded[part])
    spaces = _spaces_of_environment(metadata.get("gymnasium_spec"))
    if spaces is not None:
        yield spaces[part]


def _leaves(part: str, stated: Any) -> tuple[SpaceLeaf, ...] | None:
    try:
        found = space_leaves(part, stated, "metadata")
    except RollbookError:
        return None
    leaves = tuple(each for each in found if isinstance(each, SpaceLeaf))
    return leaves if len(leaves) == len(found) else None


def _fit(leaves: Sequence[SpaceLeaf], streams: Mapping[str, ArrayFacts]) -> bool:
    if {each.name for each in leaves} != set(streams):
        return False
    return all(
        (leaf.dtype is None) == (streams[leaf.name].dtype.kind == "U")
        and streams[leaf.name].shape[1:] == leaf.shape
        for leaf in leaves
    )


def _pruned(stated: Any, name: str, streams: Mapping[str, ArrayFacts]) -> Any:
    """The space without parts that have no stream, such as pictures that were kept only as video."""
    inside = stated.get("subspaces") if isinstance(stated, dict) else None
    if isinstance(inside, dict):
        kept = {key: _pruned(part, f"{name}.{key}", streams) for key, part in inside.items()}
        left = {key: part for key, part in kept.items() if part is not None}
        return {**stated, "subspaces": left} if left else None
    if isinstance(inside, list):
        parts = [_pruned(part, f"{name}.{number}", streams) for number, part in enumerate(inside)]
        return None if None in parts else {**stated, "subspaces": parts}
    return stated if name in streams else None


# ------------------------------------------------------------------------------ from the environment


def _spaces_of_environment(spec: Any) -> dict[str, Any] | None:
    """Made only if this machine has registered it: a module that only the metadata names is never loaded."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("id"), str):
        return None
    gymnasium = library("gymnasium")
    registered = gymnasium.registry.get(spec.get("id"))
    kwargs = spec.get("kwargs")
    if registered is None or registered.entry_point != spec.get("entry_point"):
        return None
    try:
        given = {**kwargs, "render_mode": None} if isinstance(kwargs, Mapping) else {}
        with closing(gymnasium.make(registered.id, **given)) as env:
            return {
                "observation": _as_json(env.observation_space),
                "action": _as_json(env.action_space),
            }
    except Exception:  # noqa: BLE001 - an environment may need a simulator that is not there
        return None


def _as_json(space: Any) -> Any:
    """As Minari writes it; an error for a space that it cannot write."""
    spaces = library("gymnasium.spaces")
    if isinstance(space, spaces.Dict):
        inside = {key: _as_json(part) for key, part in space.spaces.items()}
        return {"type": "Dict", "subspaces": inside}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [_as_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        described = {"dtype": str(space.dtype), "shape": list(space.shape)}
        return {"type": "Box", **described, **bounds}
    if isinstance(space, spaces.Discrete):
        bounds = {"start": int(space.start), "n": int(space.n)}
        return {"type": "Discrete", "dtype": "int64", **bounds}
    if isinstance(space, spaces.MultiDiscrete):
        bounds = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.MultiBinary):
        n = space.n if isinstance(space.n, int) else list(space.n)
        return {"type": "MultiBinary", "n": n}
    if isinstance(space, spaces.Text):
        lengths = {"max_length": space.max_length, "min_length": space.min_length}
        return {"type": "Text", **lengths, "charset": space.characters}
    raise TypeError(f"Minari has no form for {type(space).__name__}")


# ----------------------------------------------------------------------------------- from the arrays


def _from_arrays(part: str, streams: Mapping[str, ArrayFacts]) -> Any:
    """Parts of a name that are 0, 1, 2 … are a Tuple, others a Dict."""
    if set(streams) == {part}:
        return _from_array(streams[part])
    keys = list(dict.fromkeys(name[len(part) + 1 :].split(".")[0] for name in streams))
    inside = {}
    for key in keys:
        name = f"{part}.{key}"
        below = {n: f for n, f in streams.items() if n == name or n.startswith(f"{name}.")}
        inside[key] = _from_arrays(name, below)
    if keys == [str(number) for number in range(len(keys))]:
        return {"type": "Tuple", "subspaces": list(inside.values())}
    return {"type": "Dict", "subspaces": inside}


def _from_array(facts: ArrayFacts) -> Any:
    if facts.dtype.kind == "U":
        width = facts.dtype.itemsize // 4
        return {"type": "Text", "max_length": width, "min_length": 0, "charset": ""}
    if facts.dtype.kind == "b":
        low, high, name = 0, 1, "int8"
    elif facts.dtype.kind in "iu":
        limits = np.iinfo(facts.dtype)
        low, high, name = int(limits.min), int(limits.max), str(facts.dtype)
    else:
        low, high, name = -np.inf, np.inf, str(facts.dtype)  # type: ignore[assignment]
    shape = list(facts.shape[1:])
    bounds = {
        "low": np.full(shape, low, object).tolist(),
        "high": np.full(shape, high, object).tolist(),
    }
    return {"type": "Box", "dtype": name, "shape": shape, **bounds}

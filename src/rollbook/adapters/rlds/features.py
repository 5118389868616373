"""Features: the types and shapes of a dataset's values, from features.json."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rollbook.adapters.steps.json_file import read_object
from rollbook.adapters.storable_text import stream_name_problem
from rollbook.errors import DamagedRecording, UnsupportedVersion

FEATURES_FILE = "features.json"
STEPS = "steps"
_DEEPEST = 32
_MOST_DIMENSIONS = 16
_LARGEST_ROW = 1 << 28
_TEXTS = ("string", "object", "bytes")
_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)

FeatureKind: TypeAlias = Literal["numbers", "text", "picture"]


@dataclass(frozen=True, slots=True)
class Feature:
    key: str
    """Its name in a record, such as `steps/observation/state`."""
    name: str
    """The same without `steps`, joined by points."""
    kind: FeatureKind
    dtype: str
    shape: tuple[int, ...]
    """Of one step; of one value for a feature of the episode."""
    encoding: str = "none"
    """How a tensor is stored: `none` as a list of numbers, `bytes` or `zlib` as its bytes."""
    ragged: bool = False
    """A list inside a step: stored with the length of each row."""

    @property
    def size(self) -> int:
        """Values of one row."""
        return math.prod(self.shape)

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class LeftOut:
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Features:
    steps: tuple[Feature, ...]
    episode: tuple[Feature, ...]
    left_out: tuple[LeftOut, ...]


def read_features(folder: Path) -> Features:
    path = folder / FEATURES_FILE
    stated = read_object(path)
    if "featuresDict" not in stated:
        detail = "it has no featuresDict: TensorFlow Datasets before version 4.5 wrote another form"
        raise UnsupportedVersion(path=str(path), detail=detail)
    found = list(_walk(path, stated, (), 0, False))
    kept = [each for each in found if isinstance(each, Feature)]
    in_steps = tuple(each for each in kept if each.key.startswith(f"{STEPS}/"))
    if not in_steps:
        detail = "it has no steps whose values can be read: this is not RLDS"
        raise DamagedRecording(path=str(path), detail=detail)
    names = [each.name for each in in_steps]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DamagedRecording(path=str(path), detail=f"two features are both called {twice!r}")
    episode = tuple(each for each in kept if each not in in_steps)
    left_out = tuple(each for each in found if isinstance(each, LeftOut))
    return Features(in_steps, episode, left_out)


def _walk(
    path: Path, stated: Any, keys: tuple[str, ...], depth: int, ragged: bool
) -> Iterator[Feature | LeftOut]:
    place = "/".join(keys)
    if not isinstance(stated, dict) or depth > _DEEPEST:
        raise DamagedRecording(path=str(path), detail=f"{place or 'it'} is not a feature")
    if "featuresDict" in stated:
        inside = stated["featuresDict"]
        named = inside.get("features") if isinstance(inside, dict) else None
        if not isinstance(named, dict):
            raise DamagedRecording(path=str(path), detail=f"{place or 'it'} has no features")
        for name, each in named.items():
            yield from _walk(path, each, (*keys, name), depth + 1, ragged)
    elif "sequence" in stated:
        listed = stated["sequence"]
        within = listed.get("feature") if isinstance(listed, dict) else None
        if ragged or (keys and keys[0] != STEPS):
            yield LeftOut(place, "lists inside of lists are not read")
        else:
            yield from _walk(path, within, keys, depth + 1, keys != (STEPS,))
    else:
        yield _leaf(path, stated, keys, ragged)


def _leaf(
    path: Path, stated: dict[str, Any], keys: tuple[str, ...], ragged: bool
) -> Feature | LeftOut:
    key = "/".join(keys)
    name = ".".join(keys[1:] if keys[0] == STEPS else keys)
    problem = stream_name_problem(name)
    if problem is not None:
        return LeftOut(key, problem)
    if "text" in stated:
        return Feature(key, name, "text", "string", (), ragged=ragged)
    if "classLabel" in stated:
        return Feature(key, name, "numbers", "int64", (), ragged=ragged)
    form = next((each for each in ("tensor", "image", "boundingBox") if each in stated), None)
    if form is None:
        kind = str(stated.get("pythonClassName", "unknown")).rpartition(".")[2]
        return LeftOut(key, f"features of the type {kind[:40]} are not read")
    described = stated[form]
    if not isinstance(described, dict):
        raise DamagedRecording(path=str(path), detail=f"{key} is not described")
    shape = _shape(path, key, described.get("shape"))
    dtype = str(described.get("dtype", "float32" if form == "boundingBox" else "uint8"))
    if form == "image":
        return _picture(key, name, dtype, ragged)
    if shape is None:
        return LeftOut(key, "its values have no fixed shape")
    encoding = str(described.get("encoding", "none")).lower()
    if dtype in _TEXTS:
        text = Feature(key, name, "text", "string", (), ragged=ragged)
        return text if not shape else LeftOut(key, "arrays of text are not read")
    if dtype not in _NUMBERS or encoding not in ("none", "bytes", "zlib"):
        return LeftOut(key, f"values of type {dtype[:40]}, stored as {encoding[:40]}, are not read")
    made = Feature(key, name, "numbers", dtype, shape, encoding, ragged)
    if made.size * 8 > _LARGEST_ROW:
        raise DamagedRecording(path=str(path), detail=f"{key} has {made.size} values in one step")
    return made


def _picture(key: str, name: str, dtype: str, ragged: bool) -> Feature | LeftOut:
    if dtype != "uint8" or ragged:
        return LeftOut(key, f"pictures of {dtype[:40]}, or several in one step, are not read")
    return Feature(key, name, "picture", dtype, ())


def _shape(path: Path, key: str, stated: Any) -> tuple[int, ...] | None:
    """None where a length is unknown. Protocol Buffers write numbers as text."""
    given = stated.get("dimensions", []) if isinstance(stated, dict) else []
    if not isinstance(given, list) or len(given) > _MOST_DIMENSIONS:
        raise DamagedRecording(path=str(path), detail=f"{key} has no shape")
    try:
        lengths = [int(each) for each in given]
    except (TypeError, ValueError) as error:
        raise DamagedRecording(path=str(path), detail=f"{key} has no shape") from error
    if any(each < 0 for each in lengths):
        return None
    if any(each >= 2**48 for each in lengths):
        raise DamagedRecording(path=str(path), detail=f"{key} has the shape {lengths}")
    return tuple(lengths)

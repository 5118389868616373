"""Texts of a recording as a server keeps them.

Files hold texts that no database can store: NUL, half a surrogate pair (JSON can write one), names of any length. One
such text must not keep the whole episode out, so it is changed, and the losses of the episode say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.contracts.episode import LONGEST_NAME, LONGEST_ROBOT
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.contracts.wire.limits import LONGEST_INDEXED
from rollbook.contracts.zip_members import NpzLimits, check_key
from rollbook.errors import InvalidValue, StorageError

_LONGEST = {
    "name": LONGEST_NAME,
    "robot": LONGEST_ROBOT,
    "env_version": LONGEST_INDEXED,
    "policy_version": LONGEST_INDEXED,
    "git_sha": LONGEST_INDEXED,
}
_LONGEST_KEY = 200
_REPLACED = {0: "\ufffd", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}
_LOSS = (
    "Texts that cannot be stored were changed: NUL and half surrogate pairs became U+FFFD, and names that are too long "
    "were cut."
)


def is_storable(text: str) -> bool:
    return text == text.translate(_REPLACED)


def check_names(*names: str) -> None:
    """Refuse a file whose name is not UTF-8: neither an episode nor most libraries can name it."""
    for name in names:
        if not is_storable(name):
            raise StorageError(path=name, detail="its name is not UTF-8; rename it")


def stream_name_problem(name: str) -> str | None:
    """Why a part of a recording cannot be a stream of this name; None for a name that is right. One such part must not
    keep the others out."""
    try:
        check_key(f"{name}/{CLOCK_FIELD}", NpzLimits(), "npz")
    except InvalidValue as error:
        return f"its name cannot be the name of an array: {error.expected}"
    return None


def with_storable_texts(encoded: EncodedEpisode) -> EncodedEpisode:
    """The same episode where all of its texts can be stored."""
    metadata = plain_metadata(encoded.metadata)
    facts: dict[str, Any] = {}
    for name, longest in _LONGEST.items():
        text: str | None = getattr(encoded, name)
        if text is not None:
            facts[name] = _storable(text)[:longest]
    kept = _storable_json(metadata)
    if kept == metadata and all(getattr(encoded, name) == text for name, text in facts.items()):
        return encoded
    losses = kept.get("losses")
    kept["losses"] = [*(losses if isinstance(losses, list) else ()), _LOSS]
    return replace(encoded, **facts, metadata=kept)


def _storable(text: str) -> str:
    return text if is_storable(text) else text.translate(_REPLACED)


def _storable_json(value: Any) -> Any:
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, Mapping):
        return {_storable_key(key): _storable_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_storable_json(each) for each in value]
    return value


def _storable_key(key: str) -> str:
    """Two names that differ stay different."""
    kept = _storable(key)
    if kept == key and len(key) <= _LONGEST_KEY:
        return key
    mark = sha256(key.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{kept[: _LONGEST_KEY - len(mark) - 1]}…{mark}"

"""Store roots: the folders and buckets from which the server reads rollout stores, each for one organisation.

Whoever registers a store names a path. Without roots that path could be any file of the machine, or a store of another
organisation. Only the operator sets roots, when the server starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.errors import ConfigurationError
from rollbook.store.urls.url_folder import is_url

S3 = "s3://"
_OWNED = re.compile(r"([0-9A-Za-z][0-9A-Za-z-]*)=(.+)", re.DOTALL)
_NAME = re.compile(r"[^/\x00-\x1f\x7f]+")
_KEY_NAME = re.compile(r"[A-Za-z0-9!_.'()+@=&$, -]+", re.ASCII)
"""A part of an S3 key. Characters that a URL or a file pattern reads in another way are left out:
fsspec gives `::` and `*` a meaning."""


@dataclass(frozen=True, slots=True)
class StoreRoot:
    org_id: str | None
    """None: the first organisation of the server."""
    place: str
    """An absolute path, or `s3://bucket/prefix`, without a slash at the end."""

    @property
    def is_url(self) -> bool:
        return self.place.startswith(S3)

    @classmethod
    def parse(cls, text: str) -> StoreRoot:
        """`[ORG=]PATH_OR_S3_URL`. A relative path is below the working folder."""
        owned = None if is_url(text) else _OWNED.fullmatch(text)
        org_id, place = (owned[1], owned[2]) if owned else (None, text)
        if is_url(place):
            bucket, _, prefix = place.rstrip("/").removeprefix(S3).partition("/")
            names = [bucket, *prefix.split("/")] if prefix else [bucket]
            if not place.startswith(S3) or not all(map(_is_key_name, names)):
                message = f"store-root: {place!r} is not a folder or s3://bucket/prefix"
                raise ConfigurationError(message=message)
            return cls(org_id, place.rstrip("/"))
        if not place or "\0" in place:
            message = "store-root: expected a folder or s3://bucket/prefix, such as --store-root /data/stores"
            raise ConfigurationError(message=message)
        return cls(org_id, os.path.abspath(place))


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A place that lies in a root: the names that lead from the root to it."""

    root: StoreRoot
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        return "/".join((self.root.place.rstrip("/"), *self.names))

    @property
    def folder(self) -> Path:
        """Of a local place. The root may be a link, because the operator put it there; nothing below it may be one."""
        return Path(self.root.place).resolve().joinpath(*self.names)


def store_roots(texts: Iterable[str], data_dir: Path) -> tuple[StoreRoot, ...]:
    """All roots of a server. Refuses roots through which one organisation could read what is not its own."""
    roots = tuple(StoreRoot.parse(text) for text in texts)
    for root in roots:
        if not root.is_url and _overlap(str(_real(root)), str(data_dir.resolve())):
            message = (
                f"store-root: {root.place} and the data folder {data_dir} overlap; the data folder holds files of "
                "every organisation: choose a folder beside it"
            )
            raise ConfigurationError(message=message)
        for other in roots:
            if root.org_id != other.org_id and _overlap(str(_real(root)), str(_real(other))):
                message = (
                    f"store-root: {root.place} and {other.place} overlap and belong to different organisations; "
                    "give each organisation a folder of its own"
                )
                raise ConfigurationError(message=message)
    return roots


def place_within(roots: Sequence[StoreRoot], text: str) -> StorePlace | None:
    """The place that a path or URL names; None if it lies in none of the roots. Looks at no file."""
    for root in roots:
        if root.is_url != is_url(text):
            continue
        for start in dict.fromkeys((root.place, str(_real(root)))):
            names = _names_below(start, text.rstrip("/"))
            if names is not None and all(map(_is_key_name if root.is_url else _is_name, names)):
                return StorePlace(root, names)
    return None


def _names_below(start: str, text: str) -> tuple[str, ...] | None:
    if text == start:
        return ()
    above = start.rstrip("/") + "/"
    return tuple(text[len(above) :].split("/")) if text.startswith(above) else None


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def _is_key_name(name: str) -> bool:
    return _KEY_NAME.fullmatch(name) is not None and name not in (".", "..")


def _real(root: StoreRoot) -> str | Path:
    return root.place if root.is_url else Path(root.place).resolve()


def _overlap(one: str, other: str) -> bool:
    return _names_below(one, other) is not None or _names_below(other, one) is not None

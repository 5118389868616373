"""SourceFile: the file or folder of another tool that an imported episode was read from.

It is kept in the metadata of the episode. Its digest finds the file again, and `import_key` finds the episode again
when the same file is imported twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from rollbook.digest import Plain, digest_of

SOURCE_FILE_KEY = "source_file"
"""The key in the metadata of an episode."""
_IMPORT_DOMAIN = "rollbook.imported_episode.v1"
_FILES_DOMAIN = "rollbook.source_files.v1"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 255
"""Bytes."""
MOST_NAMES = 64
"""Names of files that an episode lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    format: str
    """The kind of importer, such as `ros2`."""
    name: str
    """Name of the file or folder, without the path to it."""
    digest: str
    """SHA-256 of the file. Of several files: the digest over their names, sizes and SHA-256."""
    size: int
    """Bytes of all files."""
    files: int
    episode: str
    """Which episode of the file it is, such as `demo_3`."""
    options: Mapping[str, Plain]
    """What was chosen for the import, such as the colour order."""
    names: tuple[str, ...] = ()
    """Of a folder: the paths of the files in it, so that the digest can be computed again. Empty where these are more
    than MOST_NAMES."""

    @property
    def import_key(self) -> str:
        """The same for the same bytes, episode and options, wherever the file lies."""
        return digest_of(
            _IMPORT_DOMAIN,
            {
                "format": self.format,
                "digest": self.digest,
                "episode": self.episode,
                "options": dict(self.options),
            },
        )

    def to_json(self) -> dict[str, Any]:
        facts = {**asdict(self), "options": dict(self.options), "names": list(self.names)}
        if not self.names:
            del facts["names"]
        return {**facts, "import_key": self.import_key}

    @classmethod
    def recorded_in(cls, metadata: Mapping[str, Any]) -> SourceFile | None:
        """None where the episode was not imported, or where somebody else wrote the key with another meaning."""
        value = metadata.get(SOURCE_FILE_KEY)
        if not isinstance(value, Mapping):
            return None
        expected: dict[str, type] = {
            "format": str,
            "name": str,
            "digest": str,
            "size": int,
            "files": int,
            "episode": str,
            "options": dict,
        }
        if any(type(value.get(name)) is not kind for name, kind in expected.items()):
            return None
        names = value.get("names", [])
        if not (isinstance(names, list) and all(map(_is_inside, names))):
            return None
        if not (_is_file_name(value["name"]) and _DIGEST.fullmatch(value["digest"])):
            return None
        return cls(**{name: value[name] for name in expected}, names=tuple(names))


def _is_file_name(name: str) -> bool:
    """Whether it is a name alone: lineage looks for it in folders, and must not be led out of them."""
    is_short = 0 < len(name.encode(errors="surrogatepass")) <= _LONGEST_NAME
    return is_short and name not in (".", "..") and not {"/", "\x00"} & set(name)


def _is_inside(name: object) -> bool:
    """Whether it is a path in the folder: metadata may come from anybody, and must not lead to other files."""
    if not isinstance(name, str) or "\x00" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def digest_of_files(files: Sequence[tuple[str, int, str]]) -> str:
    """One digest for several files, each given by its path in the folder, its size and its SHA-256."""
    return digest_of(_FILES_DOMAIN, [list(each) for each in sorted(files)])

"""SourceDigests: SHA-256 of the files that recordings are read from. Each file is read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollbook.adapters.recording import EpisodeInRecording, Recording
from rollbook.adapters.storable_text import check_names
from rollbook.contracts.source_file import MOST_NAMES, SourceFile, digest_of_files
from rollbook.digest import Plain, file_sha256
from rollbook.errors import StorageError
from rollbook.files import unreadable


@dataclass(slots=True)
class SourceDigests:
    _known: dict[Path, tuple[int, str]] = field(default_factory=dict)
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Size and time of the last change when the file was hashed."""

    def of_episode(
        self, recording: Recording, episode: EpisodeInRecording, options: Mapping[str, Plain]
    ) -> SourceFile:
        if episode.source is not None:
            return episode.source
        paths = episode.files or recording.files
        if not paths:
            raise StorageError(path=str(recording.path), detail="no file of it can be named")
        root = recording.path
        check_names(root.resolve().name, *(os.path.relpath(each, root) for each in paths))
        files = [(os.path.relpath(path, root), *self._of_file(path)) for path in paths]
        names = tuple(sorted(name for name, *_ in files if name != os.curdir))
        return SourceFile(
            format=recording.format,
            name=root.resolve().name,
            digest=files[0][2] if len(files) == 1 else digest_of_files(files),
            size=sum(size for _, size, _ in files),
            files=len(files),
            episode=episode.key,
            options=options,
            names=names if len(names) <= MOST_NAMES else (),
        )

    def check_unchanged(self, recording: Recording, episode: EpisodeInRecording) -> None:
        """Refuse an episode whose files changed after they were hashed: it would name other bytes than were read."""
        for path in episode.files or recording.files:
            if path in self._seen and _state(path) != self._seen[path]:
                detail = "it changed while it was imported; import it again when it is complete"
                raise StorageError(path=str(path), detail=detail)

    def _of_file(self, path: Path) -> tuple[int, str]:
        known = self._known.get(path)
        if known is None:
            self._seen[path] = _state(path)
            try:
                known = self._known[path] = file_sha256(path)
            except OSError as error:
                raise unreadable(path, error) from error
        return known


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return found.st_size, found.st_mtime_ns

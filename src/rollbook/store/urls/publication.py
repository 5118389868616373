"""Publishing: uploads a finished folder to a URL that has no other files. The file that completes it goes last."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from rollbook.errors import ConfigurationError, StorageError, TargetExists, TruncatedFile
from rollbook.store.urls.url_folder import Options, Progress, UrlFolder, in_batches, is_url

SIDECAR = "_publishing.json"
"""Names the owner of the files at a URL while what is published there is not complete."""


class Publishable(ABC):
    """A finished folder that can be published."""

    complete: ClassVar[str]
    """The file that is uploaded last: where it is, all others are."""
    content: str
    """The digest of the content. Files of the same content are not uploaded again."""
    sizes: Mapping[str, int]
    """Every file with its size, except the last ones."""
    last: Mapping[str, bytes]
    """The files that are uploaded after all others, in this order, `complete` at the end."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The bytes of a file, after a check of its digest."""

    @abstractmethod
    def published_files(self, remote: UrlFolder, found: set[str], begun: bool) -> set[str]:
        """The files that belong to what is published at the URL, completely or, if `begun`, in part.

        Refuses a URL whose file `complete` was not published.
        """


def publish(
    content: Publishable,
    url: str,
    *,
    replace: bool,
    storage_options: Options | None,
    progress: Progress | None,
) -> int:
    """Upload the folder. Returns the number of files that this call uploaded; an earlier one uploaded the others."""
    if not is_url(url):
        raise ConfigurationError(
            message=f"{url!r} is not a URL; expected one like s3://bucket/prefix"
        )
    publication = _Publication(content, UrlFolder(url, storage_options), progress)
    publication.make_room(replace)
    return publication.upload()


class _Publication:
    def __init__(self, content: Publishable, remote: UrlFolder, progress: Progress | None) -> None:
        self._content = content
        self._remote = remote
        self._progress = progress

    # ------------------------------------------------------------------------------- before

    def make_room(self, replace: bool) -> None:
        """Make the URL empty, except for files of this same content that an earlier call uploaded."""
        there = self._remote.sizes()
        complete = self._content.complete
        left = self._left_behind(there)
        if left is not None and left.uploading(self._content.content) and complete not in there:
            return
        found = set(there)
        if found and not replace:
            raise TargetExists(path=self._remote.url, detail=self._describe_found(found, left))
        owned = {SIDECAR, *(left.files if left is not None else ())}
        owned |= self._content.published_files(self._remote, found, left is not None)
        self._refuse_foreign(found - owned)
        if owned - {SIDECAR}:
            # after a crash at this point, the next call must know whose files these are
            self._mark("clearing", owned - {SIDECAR})
            self._remote.remove([complete] if complete in found else [])
            self._remote.remove(sorted((owned & found) - {complete, SIDECAR}))
        self._mark("uploading", set(self._content.sizes))

    def _left_behind(self, there: Mapping[str, int]) -> _Sidecar | None:
        data = self._remote.read_if_there(SIDECAR) if SIDECAR in there else None
        return None if data is None else _Sidecar.parse(f"{self._remote.url}/{SIDECAR}", data)

    def _describe_found(self, found: set[str], left: _Sidecar | None) -> str:
        if self._content.complete in found:
            return "a store is published there; pass replace=True to replace it"
        if left is not None:
            return "another store was being published there; pass replace=True to drop what is there of it"
        return f"{len(found)} files are there; publish to a place of its own"

    def _refuse_foreign(self, foreign: set[str]) -> None:
        if foreign:
            detail = (
                f"{len(foreign)} files are there that belong to no published store, {min(foreign)!r} first; "
                "publish to a place of its own"
            )
            raise StorageError(path=self._remote.url, detail=detail)

    def _mark(self, phase: str, files: set[str]) -> None:
        sidecar = _Sidecar(self._content.content, phase, sorted(files))
        self._remote.write({SIDECAR: sidecar.to_bytes()})

    # --------------------------------------------------------------------------------- the files

    def upload(self) -> int:
        """Upload the files, check them all, then upload the last ones, of which the last completes the store."""
        sizes, there = self._content.sizes, self._remote.sizes()
        missing = [path for path, size in sizes.items() if there.get(path) != size]
        total = sum(sizes.values())
        done = total - sum(sizes[path] for path in missing)
        self._report(done, total)
        for batch in in_batches((path, sizes[path]) for path in missing):
            self._remote.write({path: self._content.read(path) for path in batch})
            done += sum(sizes[path] for path in batch)
            self._report(done, total)
        self._check_arrived()
        *before, complete = self._content.last.items()
        for path, data in before:
            self._remote.write({path: data})
        self._check_still_ours()
        self._remote.write(dict([complete]))
        with suppress(
            StorageError
        ):  # not everybody who may write may delete; the store is complete anyway
            self._remote.remove([SIDECAR])
        return len(missing) + len(self._content.last)

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _check_arrived(self) -> None:
        there = self._remote.sizes()
        for path, size in self._content.sizes.items():
            if there.get(path) != size:
                detail = f"{there.get(path, 'no')} bytes arrived, {size} were sent; publish the store again"
                raise TruncatedFile(path=f"{self._remote.url}/{path}", detail=detail)
        self._refuse_foreign(set(there) - {*self._content.sizes, *self._content.last, SIDECAR})

    def _check_still_ours(self) -> None:
        """Check that nobody else published to the URL meanwhile: the files would be a mixture of two stores."""
        data = self._remote.read_if_there(SIDECAR)
        left = None if data is None else _Sidecar.parse(self._remote.url, data)
        if left is None or not left.uploading(self._content.content):
            detail = "someone else published to this URL meanwhile; publish the store again"
            raise StorageError(path=self._remote.url, detail=detail)


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """The content that the files at a URL belong to. Objects there are complete or absent."""

    content_sha256: str
    phase: str
    """clearing: old files are being removed. uploading: those of `files` that exist belong to this content."""
    files: Sequence[str]

    @classmethod
    def parse(cls, place: str, data: bytes) -> _Sidecar:
        try:
            fields = json.loads(data)
            files = [str(path) for path in fields["files"]]
            return cls(str(fields["content_sha256"]), str(fields["phase"]), files)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            detail = f"not written by a publisher ({error}); look at it, then remove it"
            raise StorageError(path=place, detail=detail) from error

    def to_bytes(self) -> bytes:
        fields = {
            "content_sha256": self.content_sha256,
            "phase": self.phase,
            "files": list(self.files),
        }
        return json.dumps(fields, indent=1).encode()

    def uploading(self, content: str) -> bool:
        return self.phase == "uploading" and self.content_sha256 == content

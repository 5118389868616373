"""What S3 answers, read tolerantly: servers differ in namespaces, quotes and in what they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from xml.etree import ElementTree

from rollbook.errors import BlobStoreUnavailable
from rollbook.server.blobs.interface import BlobInfo, PartInfo, Parts


@dataclass(frozen=True, slots=True)
class ListedPart:
    info: PartInfo
    modified: datetime


@dataclass(frozen=True, slots=True)
class Page:
    blobs: tuple[BlobInfo, ...]
    next: str | None


@dataclass(frozen=True)
class S3Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    attempts: int
    """How often it was asked. After the first, what was asked for may be done already."""

    @property
    def etag(self) -> str:
        return self.headers.get("etag", "").strip('"')

    @cached_property
    def code(self) -> str | None:
        """The name S3 has for what went wrong. It may come with status 200, when it went wrong late."""
        root = self._root
        if root is None or _name(root) != "Error":
            return None
        return _text(root, "Code")

    def expect(self, bucket: str, *statuses: int) -> None:
        if self.status not in statuses or (self.status < 300 and self.code is not None):
            raise self.failure(bucket)

    def failure(self, bucket: str) -> BlobStoreUnavailable:
        """Whatever S3 has against us, our caller did nothing wrong."""
        said = f"{self.status} {self.code}" if self.code else str(self.status)
        if self.code == "NoSuchBucket":
            text = f"there is no S3 bucket {bucket!r}; create it, or correct the blobs setting"
        elif self.status in (400, 401, 403):
            text = f"S3 refuses us bucket {bucket!r} ({said}); check the credentials, their rights and the clock"
        elif 300 <= self.status < 400:
            text = (
                f"S3 keeps bucket {bucket!r} elsewhere ({said}); check the region and the endpoint"
            )
        else:
            text = f"S3 does not do its work for bucket {bucket!r} ({said}); try again shortly"
        return BlobStoreUnavailable(detail=text)

    def listed(self) -> Page:
        blobs = tuple(
            BlobInfo(
                _text(each, "Key") or "",
                int(_text(each, "Size") or 0),
                (_text(each, "ETag") or "").strip('"'),
                int(_time(each, "LastModified").timestamp() * 1_000_000),
            )
            for each in self._all("Contents")
        )
        return Page(blobs, self._following("NextContinuationToken"))

    def parts(self) -> tuple[tuple[ListedPart, ...], str | None]:
        """And where the next page begins."""
        found = tuple(
            ListedPart(
                PartInfo(
                    int(_text(each, "PartNumber") or 0),
                    int(_text(each, "Size") or 0),
                    (_text(each, "ETag") or "").strip('"'),
                ),
                _time(each, "LastModified"),
            )
            for each in self._all("Part")
        )
        return found, self._following("NextPartNumberMarker")

    def upload_id(self) -> str:
        found = None if self._root is None else _text(self._root, "UploadId")
        if not found:
            raise BlobStoreUnavailable(detail="S3 started an upload without naming it; try again")
        return found

    def uploads(self) -> Iterator[tuple[str, str, datetime]]:
        """Key, id and beginning of every upload that is under way."""
        for each in self._all("Upload"):
            yield _text(each, "Key") or "", _text(each, "UploadId") or "", _time(each, "Initiated")

    def _following(self, marker: str) -> str | None:
        if self._root is None or _text(self._root, "IsTruncated") != "true":
            return None
        return _text(self._root, marker)

    def _all(self, name: str) -> Iterator[ElementTree.Element]:
        found = () if self._root is None else self._root
        return (each for each in found if _name(each) == name)

    @cached_property
    def _root(self) -> ElementTree.Element | None:
        try:
            return ElementTree.fromstring(self.body)
        except ElementTree.ParseError:
            return None


def completion(parts: Parts) -> bytes:
    root = ElementTree.Element("CompleteMultipartUpload")
    for part in parts:
        element = ElementTree.SubElement(root, "Part")
        ElementTree.SubElement(element, "PartNumber").text = str(part.number)
        etag = part.etag.strip('"')
        ElementTree.SubElement(element, "ETag").text = f'"{etag}"'
    return ElementTree.tostring(root)


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element, name: str) -> str | None:
    return next((each.text for each in element if _name(each) == name), None)


def _time(element: ElementTree.Element, name: str) -> datetime:
    return datetime.fromisoformat(_text(element, name) or "1970-01-01T00:00:00Z")

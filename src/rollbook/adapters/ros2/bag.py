"""Bag: the files of a recording, and what metadata.yaml declares about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollbook.adapters.extras import library
from rollbook.adapters.ros2.mcap_records import MAGIC as MCAP_MAGIC
from rollbook.errors import (
    CountMismatch,
    DamagedRecording,
    StorageError,
    UnknownFormat,
    UnsupportedVersion,
)
from rollbook.files import unreadable

if TYPE_CHECKING:
    from rollbook.adapters.ros2.storage import Storage

FORMAT = "ros2"
METADATA = "metadata.yaml"
_INFORMATION = "rosbag2_bagfile_information"
_NEWEST = 9
_MOST_YAML = 1 << 24
_SQLITE_MAGIC = b"SQLite format 3\0"
_NUMBERED = re.compile(r"(?P<stem>.+)_(?P<number>\d{1,9})(?P<ending>\.(?:db3|mcap))")
_EXPORTED = re.compile(r"episode_\d{6}\.mcap")
"""Files of `rollbook export mcap`: each is an episode. rosbag2 numbers the files of one bag without leading zeros."""
_PACKED = ".zstd"
_MOST_NUMBERED = 100_000

Compression: TypeAlias = Literal["none", "file", "message"]


def looks_like(path: Path) -> str | None:
    if path.is_dir():
        if (path / METADATA).is_file():
            with open(path / METADATA, "rb") as file:
                start = file.read(1 << 16)
            if _INFORMATION.encode() in start:
                return f"{METADATA} has {_INFORMATION}"
            return None
        if exported := exported_files(path):
            return f"{exported[0].name} is an exported episode"
        files = _numbered_files(path)
        return f"{files[0].name} is a file of a bag without {METADATA}" if files else None
    with open(path, "rb") as file:
        start = file.read(16)
    if start.startswith(MCAP_MAGIC):
        return "it begins as an MCAP file does"
    if start == _SQLITE_MAGIC and path.suffix == ".db3":
        return "it is an SQLite file with the ending .db3"
    return None


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    type: str
    encoding: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bag:
    path: Path
    files: tuple[Path, ...]
    """The files of messages, in their order."""
    topics: Mapping[str, DeclaredTopic] | None = None
    """None where no metadata.yaml declares them."""
    compression: Compression = "none"
    about: Mapping[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    duration_ns: int | None = None
    """As metadata.yaml declares it."""

    @property
    def name(self) -> str:
        resolved = self.path.resolve()
        return resolved.name if self.path.is_dir() else resolved.stem

    @property
    def all_files(self) -> tuple[Path, ...]:
        """With everything that can change the result: the metadata, and journals beside SQLite files."""
        from rollbook.adapters.ros2.sqlite_storage import JOURNALS

        metadata = [self.path / METADATA] if self.topics is not None else []
        beside = [Path(f"{each}{suffix}") for each in self.files for suffix in JOURNALS]
        return (*metadata, *self.files, *(each for each in beside if each.is_file()))

    @contextmanager
    def opened(self) -> Iterator[list[Storage]]:
        """Every file, unpacked into a temporary folder where the bag is compressed by file."""
        with ExitStack() as stack:
            storages: list[Storage] = []
            for path in self.files:
                damage = None
                if self.compression == "file":
                    path, damage = self._unpacked(path, stack)
                storages.append(stack.enter_context(_opened_file(path, damage)))
            yield storages

    def _unpacked(self, path: Path, stack: ExitStack) -> tuple[Path, str | None]:
        from rollbook.adapters.ros2.packed import unpack_file

        folder = stack.enter_context(TemporaryDirectory(prefix="rollbook-"))
        target = Path(folder, path.name.removesuffix(_PACKED))
        return target, unpack_file(path, target)


def _opened_file(path: Path, damage: str | None) -> Storage:
    from rollbook.adapters.ros2.mcap_storage import McapStorage
    from rollbook.adapters.ros2.sqlite_storage import SqliteStorage

    try:
        with open(path, "rb") as file:
            start = file.read(16)
        if start.startswith(MCAP_MAGIC):
            return McapStorage(path)
        if start == _SQLITE_MAGIC:
            return SqliteStorage(path)
    except OSError as error:
        raise unreadable(path, error) from error
    detail = damage or "it is neither an MCAP nor an SQLite file"
    raise DamagedRecording(path=str(path), detail=detail)


def find_bag(path: Path) -> Bag:
    """Describe the bag from its names and its metadata; messages are not read."""
    if path.is_dir():
        if (path / METADATA).is_file():
            return _declared_bag(path)
        files = _numbered_files(path)
        if files:
            loss = (
                f"There is no {METADATA}: files are read in the order of their numbers, "
                "and only what they declare themselves is compared."
            )
            return Bag(path=path, files=files, losses=(loss, *_missing_numbers(files)))
        detail = (
            f"there is no {METADATA}, and no files of one bag (NAME_0.mcap, NAME_1.mcap, or .db3); "
            "import other files one by one"
        )
        raise UnknownFormat(path=str(path), detail=detail)
    if not path.is_file():
        raise StorageError(path=str(path), detail="there is no such file or folder")
    with open(path, "rb") as file:
        start = file.read(16)
    if not start.startswith(MCAP_MAGIC) and start != _SQLITE_MAGIC:
        raise UnknownFormat(path=str(path), detail="it is neither an MCAP nor an SQLite file")
    return Bag(path=path, files=(path,))


def exported_files(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that `rollbook export mcap` wrote, each an episode. Empty where it is another folder."""
    if not folder.is_dir() or (folder / METADATA).is_file():
        return ()
    found = sorted(each for each in folder.iterdir() if each.suffix in (".db3", ".mcap"))
    return tuple(found) if all(_EXPORTED.fullmatch(each.name) for each in found) else ()


def _numbered_files(folder: Path) -> tuple[Path, ...]:
    """Files of one bag whose recorder did not live to write metadata.yaml. Empty where names do not tell."""
    found = []
    for path in folder.iterdir():
        if path.suffix not in (".db3", ".mcap"):
            continue
        name = _NUMBERED.fullmatch(path.name)
        if name is None:
            return ()
        found.append((name["stem"], name["ending"], int(name["number"]), path))
    if len({(stem, ending) for stem, ending, _, _ in found}) != 1:
        return ()
    return tuple(path for _, _, _, path in sorted(found, key=lambda each: each[2]))


def _missing_numbers(files: Sequence[Path]) -> Iterator[str]:
    """rosbag2 numbers the files of a bag from 0, without a gap."""
    names = [_NUMBERED.fullmatch(each.name) for each in files]
    numbers = {int(name["number"]) for name in names if name is not None}
    missing = [
        str(each) for each in range(min(max(numbers), _MOST_NUMBERED)) if each not in numbers
    ]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        listed = f"{', '.join(missing[:5])}{more}"
        yield f"Files are missing between or before those that are there: number {listed}."


# ------------------------------------------------------------------------------------- metadata.yaml


def _declared_bag(folder: Path) -> Bag:
    information = _information(folder / METADATA)
    try:
        return _bag(folder, information)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        detail = f"a field is missing or has another type than expected ({error!r})"
        raise DamagedRecording(path=str(folder / METADATA), detail=detail) from error


def _information(path: Path) -> Mapping[str, Any]:
    yaml = library("ruamel.yaml")
    try:
        if path.stat().st_size > _MOST_YAML:
            raise DamagedRecording(path=str(path), detail=f"it has more than {_MOST_YAML} bytes")
        content = yaml.YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except (yaml.error.YAMLError, ValueError, RecursionError, TypeError, AttributeError) as error:
        if isinstance(error, StorageError):
            raise
        first_line = str(error).partition("\n")[0]
        raise DamagedRecording(path=str(path), detail=f"it is not YAML: {first_line}") from error
    information = content.get(_INFORMATION) if isinstance(content, dict) else None
    if not isinstance(information, dict):
        raise UnknownFormat(path=str(path), detail=f"it has no {_INFORMATION}")
    return information


def _bag(folder: Path, information: Mapping[str, Any]) -> Bag:
    version = information["version"]
    if not isinstance(version, int) or not 1 <= version <= _NEWEST:
        detail = f"version {version!r} of {METADATA} is not known; known: 1 to {_NEWEST}"
        raise UnsupportedVersion(path=str(folder), detail=detail)
    topics: dict[str, DeclaredTopic] = {}
    for each in information["topics_with_message_count"] or []:
        about = each["topic_metadata"]
        count = each["message_count"]
        if not isinstance(count, int) or count < 0:
            raise ValueError(f"message_count {count!r}")
        before = topics.get(str(about["name"]))
        topic = DeclaredTopic(str(about["type"]), str(about["serialization_format"]), count)
        if before is not None:
            topic = replace(topic, messages=count + before.messages)
        topics[str(about["name"])] = topic
    facts = {
        "version": version,
        "storage": str(information["storage_identifier"]),
        "ros_distro": str(information.get("ros_distro") or ""),
        "custom_data": _plain_texts(information.get("custom_data")),
    }
    total = sum(topic.messages for topic in topics.values())
    if information["message_count"] != total:
        raise CountMismatch(
            path=str(folder / METADATA),
            what="messages",
            declared=int(information["message_count"]),
            read=total,
            detail="the counts of its topics add up to another number",
        )
    return Bag(
        path=folder,
        files=_files(folder, information),
        topics=topics,
        compression=_compression(folder, information),
        about=facts,
        duration_ns=int(information["duration"]["nanoseconds"]) if total else None,
    )


def _files(folder: Path, information: Mapping[str, Any]) -> tuple[Path, ...]:
    """Only the last part of a name counts: bags before version 4 name the folder too. Nothing outside is read."""
    names = [PurePosixPath(str(each)).name for each in information["relative_file_paths"]]
    for name in names:
        if name in ("", "..") or not (folder / name).is_file():
            detail = f"{METADATA} names the file {name!r}, which is not there"
            raise DamagedRecording(path=str(folder), detail=detail)
    if not names:
        raise DamagedRecording(path=str(folder), detail=f"{METADATA} names no file")
    return tuple(folder / name for name in dict.fromkeys(names))


def _compression(folder: Path, information: Mapping[str, Any]) -> Compression:
    mode = str(information.get("compression_mode") or "none").lower()
    method = str(information.get("compression_format") or "")
    if mode == "none":
        return "none"
    if mode not in ("file", "message") or method != "zstd":
        detail = f"its compression is {method!r} by {mode}; only zstd by file or message is read"
        raise StorageError(path=str(folder), detail=detail)
    return "file" if mode == "file" else "message"


def _plain_texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(name): str(text) for name, text in value.items()}

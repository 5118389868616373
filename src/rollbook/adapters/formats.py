"""The formats that can be imported and exported, and the look at a path that tells which one it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from rollbook.errors import ConfigurationError, RollbookError, StorageError, near_names

if TYPE_CHECKING:
    from rollbook.adapters.exports.exporter import Exporter
    from rollbook.adapters.recording import Importer


@dataclass(frozen=True, slots=True)
class Format:
    module: str
    name: str
    """Name of the importer or exporter in the module. Its fields are its options."""
    about: str
    """One line for people."""

    def made_by(self) -> Any:
        """The class of the importer or exporter."""
        return getattr(import_module(self.module), self.name)


IMPORTS: Mapping[str, Format] = MappingProxyType(
    {
        "ros2": Format("rollbook.adapters.ros2", "Ros2Importer", "ROS 2 bags and MCAP files"),
        "hdf5": Format(
            "rollbook.adapters.hdf5",
            "Hdf5Importer",
            "HDF5 demonstrations of robomimic, ALOHA, LIBERO and robosuite",
        ),
        "lerobot": Format(
            "rollbook.adapters.lerobot", "LeRobotImporter", "LeRobot datasets of version 2 and 3"
        ),
        "minari": Format("rollbook.adapters.minari", "MinariImporter", "Minari datasets"),
        "rlds": Format(
            "rollbook.adapters.rlds", "RldsImporter", "RLDS datasets of TensorFlow Datasets"
        ),
        "zarr-buffer": Format(
            "rollbook.adapters.zarr_buffer",
            "ZarrBufferImporter",
            "replay buffers of Diffusion Policy, folder or zip",
        ),
        "trajectories": Format(
            "rollbook.adapters.trajectories",
            "TrajectoriesImporter",
            "trajectories that the package imitation saved as NPZ",
        ),
        "gymnasium": Format(
            "rollbook.adapters.gymnasium",
            "GymnasiumImporter",
            "runs that rollbook.adapters.gymnasium recorded into folders",
        ),
        "episodes": Format(
            "rollbook.adapters.folder_importer",
            "EpisodeFolderImporter",
            "episode folders of `rollbook import --out` and `rollbook episodes download`",
        ),
    }
)
"""By kind. Each module has `looks_like(path)`."""

EXPORTS: Mapping[str, Format] = MappingProxyType(
    {
        "lerobot": Format(
            "rollbook.adapters.lerobot_export", "LeRobotExporter", "a LeRobot dataset of version 3"
        ),
        "mcap": Format(
            "rollbook.adapters.exports.mcap", "McapExporter", "MCAP files with Foxglove schemas"
        ),
        "hdf5": Format(
            "rollbook.adapters.exports.hdf5", "Hdf5Exporter", "an HDF5 file as robomimic reads it"
        ),
        "minari": Format("rollbook.adapters.exports.minari", "MinariExporter", "a Minari dataset"),
        "parquet": Format(
            "rollbook.adapters.exports.parquet", "ParquetExporter", "Parquet tables of all streams"
        ),
        "rrd": Format(
            "rollbook.adapters.exports.rrd", "RrdExporter", "recordings for the Rerun viewer"
        ),
    }
)


def importer(kind: str, **options: Any) -> Importer:
    """The importer of a format, such as `importer("ros2", topics=("/odom",))`."""
    return cast("Importer", _made(IMPORTS, kind, options))


def exporter(kind: str, **options: Any) -> Exporter:
    """The exporter of a format, such as `exporter("lerobot", fps=10)`."""
    return cast("Exporter", _made(EXPORTS, kind, options))


def _made(formats: Mapping[str, Format], kind: str, options: Mapping[str, Any]) -> object:
    if kind not in formats:
        raise ConfigurationError(message=f"no format {kind!r}; {near_names(kind, formats)}")
    try:
        return formats[kind].made_by()(**options)
    except TypeError as error:
        raise ConfigurationError(message=f"{kind}: {error}") from error


@dataclass(frozen=True, slots=True)
class Detected:
    format: str
    reason: str
    """What was found that only this format has."""


def detect(path: Path) -> list[Detected]:
    """The formats that the path can be imported as; usually one. It is looked at, not read."""
    if not path.exists():
        raise StorageError(path=str(path), detail="there is no such file or folder")
    if not (path.is_file() or path.is_dir()):  # opening a pipe waits for a writer
        raise StorageError(path=str(path), detail="it is neither a file nor a folder")
    found = []
    for name, each in IMPORTS.items():
        looks_like = cast("Callable[[Path], str | None]", import_module(each.module).looks_like)
        try:
            reason = looks_like(path)
        except ConfigurationError:  # a library is missing: the message says which
            raise
        except (OSError, RollbookError):
            continue
        if reason is not None:
            found.append(Detected(name, reason))
    return found

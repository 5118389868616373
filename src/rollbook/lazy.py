"""Public names of a package that are loaded when they are first used.

A package says where its names live, and type checkers see plain imports:

    if TYPE_CHECKING:
        from rollbook.store.reader import RolloutZarrStoreReader as RolloutZarrStoreReader
    else:
        __getattr__, __dir__, __all__ = lazy_names(
            __name__, {"rollbook.store.reader": ("RolloutZarrStoreReader",)}, extra="store"
        )

The plain imports keep misspelled names visible to type checkers; `X as X` marks a name as public.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

EXTRAS = {
    "adapters": (
        *("foxglove_schemas_protobuf", "google", "google_crc32c", "h5py", "mcap", "mcap_protobuf"),
        "rosbags",
    ),
    "client": ("httpx",),
    "evals": ("cryptography",),
    "frames": ("duckdb", "pandas", "polars", "pyarrow"),
    "generate": ("embreex", "llvmlite", "matplotlib", "numba", "scipy", "trimesh"),
    "gym": ("gymnasium",),
    "otel": ("opentelemetry",),
    "postgres": ("psycopg",),
    "ray": ("ray",),
    "remote": ("fsspec", "s3fs"),
    "rerun": ("rerun",),
    "rl": ("sb3_contrib", "stable_baselines3"),
    "server": (
        *("alembic", "anyio", "argon2", "boto3", "botocore", "fastapi", "httptools", "jinja2"),
        *("prometheus_client", "sqlalchemy", "starlette", "uvicorn", "uvloop"),
    ),
    "store": ("PIL", "numcodecs", "zarr"),
    "torch": ("safetensors", "torch"),
    "train": ("lightgbm",),
    "trl": ("datasets", "transformers", "trl"),
    "video": ("av",),
}
"""Every extra of Rollbook, with the libraries for which it is the one to install."""


@contextmanager
def needs(what: str, extra: str | None = None) -> Iterator[None]:
    """For the import of an optional library: a missing one raises ConfigurationError with the pip command.

    `extra` installs it, if that is not the extra of EXTRAS.

        with needs("drawing a depth image"):
            from PIL import Image
    """
    try:
        yield
    except ImportError as missing:
        told = missing_extra(missing, what, extra)
        if told is None:
            raise
        raise told from missing


def missing_extra(missing: ImportError, what: str, extra: str | None = None) -> Exception | None:
    """The error that names the pip command, or None if no extra installs what is missing."""
    library = str(missing.name).partition(".")[0]
    home = extra or next((name for name, known in EXTRAS.items() if library in known), None)
    if home is None or library == "rollbook":
        return None
    from rollbook.errors import ConfigurationError  # late: `import rollbook` has to be quick

    why = "which is not installed"
    if not isinstance(missing, ModuleNotFoundError):
        why = f"which cannot be loaded ({missing})"
    command = f"pip install 'rollbook[{home}]'"
    return ConfigurationError(message=f"{what} needs {library}, {why}: {command}")


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]], *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for `package`.

    `homes` maps the full name of a module to the names that it defines. A module mapped to no names is itself public,
    under the last part of its name. `extra` is the extra of Rollbook that installs what the names need: a name that
    cannot be loaded because a library is missing then raises ConfigurationError with the pip command.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}

    def __getattr__(name: str) -> Any:
        home = modules.get(name) or home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs(f"{package}.{name}", extra):
            module = importlib.import_module(home)
        value = module if name in modules else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return __getattr__, __dir__, sorted({*home_of, *modules})

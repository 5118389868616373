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
from collections.abc import Callable, Mapping
from typing import Any


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
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if extra is None or str(error.name).startswith("rollbook"):
                raise
            from rollbook.errors import (
                ConfigurationError,
            )  # late: `import rollbook` has to be quick

            raise ConfigurationError(
                message=f"{package}.{name} needs {error.name}, which is not installed: "
                f"pip install 'rollbook[{extra}]'"
            ) from error
        value = module if name in modules else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return __getattr__, __dir__, sorted({*home_of, *modules})

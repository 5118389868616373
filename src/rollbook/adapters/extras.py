"""Optional libraries of the adapters: loaded on first use. A missing one raises with the command that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rollbook.errors import ConfigurationError


def library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as missing:
        package = name.partition(".")[0]
        raise ConfigurationError(
            message=f"{package} is not installed; install it with: pip install 'rollbook[adapters]'"
        ) from missing

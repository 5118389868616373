"""Optional libraries of the adapters: loaded on first use. A missing one raises with the command that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rollbook.lazy import needs


def library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        with needs("this adapter", "adapters"):
            raise

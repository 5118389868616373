"""The public client as our tests name it. It ships no types, so here it is anything."""

from __future__ import annotations

from importlib import import_module
from typing import Any

robotrace: Any = import_module("robotrace")

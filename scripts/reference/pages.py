"""The pages that are made from the code, by their place in docs/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollbook.store.format_page import store_format_page
from scripts.reference.cli_page import cli_page
from scripts.reference.config_page import config_page
from scripts.reference.gate_page import gate_page
from scripts.reference.python_page import python_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/config.md": config_page,
    "reference/gate.md": gate_page,
    "reference/python.md": python_page,
    "reference/store-format.md": store_format_page,
}

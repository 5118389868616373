"""A small Minari dataset: two episodes of CartPole."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.minari_datasets import write_cart_pole


def make(folder: Path) -> Path:
    return write_cart_pole(folder)

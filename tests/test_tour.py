"""examples/tour.ipynb: it runs from beginning to end, shows what it promises, and is stored without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def shown_html(cell: Any) -> list[str]:
    return [each.data["text/html"] for each in cell.outputs if "text/html" in each.get("data", {})]


def test_the_tour_is_stored_without_outputs() -> None:
    book = nbformat.read(TOUR, as_version=4)
    nbformat.validate(book)
    assert not any(cell.outputs or cell.execution_count for cell in code_cells(book))


@pytest.mark.slow
def test_the_tour_ends_with_a_policy_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    book = nbformat.read(TOUR, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=1200, kernel_name="python3", resources=place).execute()
    cards = [shown_html(cell)[-1] for cell in code_cells(book) if shown_html(cell)]
    source, store, trained, counterfactual, closed_loop = cards
    assert "Source store" in source
    assert "random_valid" in store
    assert "Training run next-best-view-r1" in trained
    assert "counterfactual" in counterfactual
    assert "<b>Ship: " in closed_loop
    assert "closed loop" in closed_loop
    assert not list(tmp_path.glob("rollbook-tour-*"))

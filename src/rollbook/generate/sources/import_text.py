"""Text files, plain or gzipped: comma-separated tables with a header, and JSON. Errors name the line."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import RollbookError

Refuse = Callable[[str], RollbookError]
"""Makes the error for a file from a description of the problem."""
_GZIP = b"\x1f\x8b"


def read_text(place: Path, refuse: Refuse) -> str:
    """The text of a file, unpacked if its content is gzipped."""
    try:
        data = place.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(f"it is not text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot be read ({detail})") from error


def parsed_json(text: str, refuse: Refuse) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(f"it is not JSON: {error}") from error


def csv_columns(text: str, names: Sequence[str], refuse: Refuse) -> dict[str, NDArray[np.float64]]:
    """The named columns of a table with a header. An error names the line."""
    header, _, body = text.partition("\n")
    known = [name.strip() for name in header.split(",")]
    missing = [name for name in names if name not in known]
    if missing:
        detail = f"there is no column {', '.join(missing)}; columns are {', '.join(known)}"
        raise refuse(f"line 1: {detail}")
    places = [known.index(name) for name in names]
    if not body.strip():
        return {name: np.zeros(0) for name in names}
    try:
        table = np.loadtxt(io.StringIO(body), delimiter=",", usecols=places, ndmin=2, comments=None)
    except ValueError as error:
        raise refuse(_bad_cell(body, names, places) or str(error)) from error
    return dict(zip(names, table.T, strict=True))


def _bad_cell(body: str, names: Sequence[str], places: Sequence[int]) -> str | None:
    """Describes the first cell that is not a number, by line and column."""
    for number, line in enumerate(body.splitlines(), 2):
        cells = line.split(",")
        for name, at in zip(names, places, strict=True):
            try:
                float(cells[at])
            except IndexError:
                if line.strip():
                    return f"line {number}: {len(cells)} cells, {name} would be cell {at + 1}"
            except ValueError:
                return f"line {number}: {name} is {cells[at].strip()!r}"
    return None

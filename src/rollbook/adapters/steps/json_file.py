"""JSON objects of other tools, read with a limit and with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollbook.errors import DamagedRecording
from rollbook.files import unreadable

_LARGEST = 64 << 20


def read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            detail = f"it is larger than {_LARGEST} bytes"
            raise DamagedRecording(path=str(path), detail=detail)
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return parse_object(data, str(path))


def parse_object(data: bytes | str, name: str) -> dict[str, Any]:
    try:
        stated = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedRecording(path=name, detail=f"it is not JSON ({error})") from error
    if not isinstance(stated, dict):
        raise DamagedRecording(path=name, detail="it is not a JSON object")
    return stated


def count_in(stated: dict[str, Any], key: str, name: str) -> int | None:
    """A whole number of 0 or more, also as text, as protobuf writes it; None where there is none."""
    value = stated.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        detail = f"{key} is {str(value)[:80]}, not a whole number of 0 or more"
        raise DamagedRecording(path=name, detail=detail)
    return value

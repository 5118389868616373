"""Masks: named subsets of the demonstrations of a robomimic file, such as `train` and `valid`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.adapters.recording import Skipped
from rollbook.adapters.steps.h5_dataset import DatasetReader, H5Dataset, described_dataset
from rollbook.adapters.steps.h5_file import child, is_dataset, is_group, link_problem, object_names

_LONGEST_MASK = 1_000_000


@dataclass(slots=True)
class Masks:
    of_demo: dict[str, list[str]] = field(default_factory=dict)
    """Names of the masks that each demonstration is in."""
    skipped: list[Skipped] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)


def read_masks(root: Any, demos: set[str], path: Path) -> Masks:
    masks = Masks()
    group = child(root, "mask", path)
    if not is_group(group):
        return masks
    for name, raw in object_names(group, path):
        found = child(group, name, path)
        described = described_dataset(found.id, name, path) if is_dataset(found) else None
        if isinstance(described, H5Dataset) and _is_list_of_names(described):
            _add(masks, name, DatasetReader(found.id, described, path), demos)
        elif isinstance(described, Skipped) and described.reason == "it has no values":
            continue  # a mask without demonstrations
        else:
            reason = link_problem(group, raw, path) or "it is not a list of names"
            masks.skipped.append(Skipped(f"mask/{name}", reason))
    return masks


def _is_list_of_names(described: H5Dataset) -> bool:
    is_list = described.kind == "text" and len(described.shape) == 1
    return is_list and described.rows <= _LONGEST_MASK


def _add(masks: Masks, mask: str, reader: DatasetReader, demos: set[str]) -> None:
    try:
        names = [name for block in reader.texts() for name in block]
    except UnicodeDecodeError:
        masks.skipped.append(Skipped(f"mask/{mask}", "its bytes are not text in UTF-8"))
        return
    strangers = [name for name in names if name not in demos]
    for demo in dict.fromkeys(names):
        if demo in demos:
            masks.of_demo.setdefault(demo, []).append(mask)
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        masks.losses.append(
            f"mask/{mask} names {strangers[0]!r}{more}, which the file does not hold."
        )

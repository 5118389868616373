"""H5Episode: one episode in an HDF5 file, and the files that are written of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.hdf5.attributes import Attributes
from rollbook.adapters.hdf5.cameras import (
    CameraPictures,
    ColourOrder,
    Form,
    camera_form,
    check_lengths,
    chosen_cameras,
    compressed_problem,
    write_video,
)
from rollbook.adapters.hdf5.clocks import RowClock
from rollbook.adapters.hdf5.layouts import Layout
from rollbook.adapters.recording import Skipped
from rollbook.adapters.steps.h5_dataset import (
    LONGEST_TEXT,
    DatasetReader,
    H5Dataset,
    H5Tree,
    datasets_below,
    text_of,
)
from rollbook.adapters.steps.h5_file import descendant
from rollbook.adapters.steps.text_column import UnstorableText, check_width
from rollbook.client.tiles import Tile
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import ArrayInPieces, write_npz
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD, first_fall
from rollbook.errors import CountMismatch, DamagedRecording

STEP_TIMES = "rollbook_t_ns"
"""Dataset with the times of the steps, which our own exporter writes into a demonstration."""
LENGTHS = "compress_len"
_MILLISECONDS = (
    "observation/timestamp/control/step_start",
    "observation/timestamp/robot_state/read_start",
)
"""Datasets of DROID with the times of the steps."""
_LONGEST_SCALAR = 16_384
_MOST_UNPACKED = 4 << 30
_MOST_RATIO = 100


def stream_slot(name: str) -> Literal["sensors", "actions"]:
    """The artifact of a dataset: `actions` for those whose first name says so."""
    first = name.split("/")[0]
    return "actions" if first.startswith("action") or first == "base_action" else "sensors"


@dataclass(slots=True)
class EpisodePlan:
    """What is read of one episode, and what is not."""

    group: Any
    path: Path
    layout: Layout
    tree: H5Tree
    steps: int
    numbers: list[H5Dataset] = field(default_factory=list)
    texts: list[H5Dataset] = field(default_factory=list)
    cameras: dict[str, tuple[H5Dataset, Form]] = field(default_factory=dict)
    internal: dict[str, H5Dataset] = field(default_factory=dict)
    """Datasets that say how others are stored."""
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def not_per_step(self) -> dict[str, list[int]]:
        """Shapes of the datasets that do not have one row for each step."""
        return {
            each.name: list(each.shape)
            for each in (*self.numbers, *self.texts)
            if each.rows != self.steps or not each.shape
        }


def plan_episode(
    group: Any, path: Path, layout: Layout, cameras: tuple[str, ...] | None, declared: int | None
) -> EpisodePlan:
    """Sort the datasets of the episode by what becomes of them. A wrong number of rows is refused."""
    tree = datasets_below(group, path)
    steps = _steps(tree, layout, path, _place(group))
    if declared is not None and declared != steps:
        raise _mismatch(path, f"{_place(group)}/{layout.actions}", declared, steps, "num_samples")
    plan = EpisodePlan(group, path, layout, tree, steps, skipped=list(tree.skipped))
    forms: dict[str, tuple[H5Dataset, Form]] = {}
    for each in tree.datasets:
        if each.name in (STEP_TIMES, LENGTHS):
            plan.internal[each.name] = each
            continue
        if each.shape and layout.is_per_step(each.name) and each.rows != steps:
            raise _mismatch(path, f"{_place(group)}/{each.name}", steps, each.rows, layout.actions)
        form = camera_form(each) if each.rows == steps else None
        if form in ("padded", "lists"):
            problem = _compressed_problem(plan, each)
            if problem is not None and form == "lists":
                plan.skipped.append(Skipped(each.name, problem))
                continue
            form = None if problem is not None else form
        if form is not None:
            forms[each.name] = (each, form)
        elif each.kind == "numbers":
            plan.numbers.append(each)
        elif each.kind == "text":
            plan.texts.append(each)
        else:
            plan.skipped.append(Skipped(each.name, "its rows are lists of bytes, but not pictures"))
    _choose(plan, forms, cameras)
    _check_size(plan)
    return plan


def _check_size(plan: EpisodePlan) -> None:
    """A small file must not fill the disk. Real recordings are packed, but not by this much."""
    cameras = [each for each, _ in plan.cameras.values()]
    size = sum(each.rows * each.row_bytes for each in (*plan.numbers, *cameras))
    packed = plan.path.stat().st_size
    if size > _MOST_UNPACKED and size > _MOST_RATIO * packed:
        detail = f"an episode of this file of {packed} bytes unpacks to {size} bytes"
        raise DamagedRecording(path=str(plan.path), detail=detail)


def _choose(
    plan: EpisodePlan, forms: dict[str, tuple[H5Dataset, Form]], cameras: tuple[str, ...] | None
) -> None:
    chosen = chosen_cameras({name: form for name, (_, form) in forms.items()}, cameras)
    plan.cameras = {name: forms[name] for name in chosen}
    for name in forms:
        if name not in chosen:
            reason = "this camera was not chosen"
            if cameras is None:
                reason = (
                    "its pictures are those of obs one step later; name it with the option cameras"
                )
            plan.skipped.append(Skipped(name, reason))


def _compressed_problem(plan: EpisodePlan, each: H5Dataset) -> str | None:
    if each.unreadable is not None:
        return None  # reading it says why
    reader = plan.tree.reader(each, plan.path)
    first = next(reader.byte_rows()) if each.kind == "bytes" else next(reader.blocks())[0]
    return compressed_problem(first)


def _steps(tree: H5Tree, layout: Layout, path: Path, place: str) -> int:
    under = f"{layout.actions}/"
    for each in tree.datasets:
        if each.name == layout.actions or each.name.startswith(under):
            return each.rows
    for left_out in tree.skipped:
        if left_out.name == layout.actions or left_out.name.startswith(under):
            detail = f"{place}/{left_out.name} cannot be imported: {left_out.reason}"
            raise DamagedRecording(path=str(path), detail=detail)
    detail = f"there is no {layout.actions} in {place or 'it'}, whose rows would be the steps"
    raise DamagedRecording(path=str(path), detail=detail)


def _place(group: Any) -> str:
    return str(group.name).rstrip("/")


def _mismatch(path: Path, name: str, declared: int, read: int, source: str) -> CountMismatch:
    return CountMismatch(
        path=str(path),
        what=f"rows of {name}",
        declared=declared,
        read=read,
        detail=f"{source} has {declared} rows",
    )


# ------------------------------------------------------------------------------------------ times


def step_clock(plan: EpisodePlan, fps: float, *, is_named: bool) -> RowClock:
    """Times from the file where it has them and they rise; else from the rate. A rate that was named comes first."""
    if is_named:
        return RowClock(fps)
    names = (STEP_TIMES,) if plan.layout.with_demos else _MILLISECONDS
    for each in (*plan.internal.values(), *plan.numbers):
        if each.name not in names or each.dtype.kind not in "iu" or each.shape != (plan.steps,):
            continue
        reader = plan.tree.reader(each, plan.path)
        times = np.concatenate([block.astype(np.int64) for block in reader.blocks()])
        most = np.iinfo(np.int64).max // 1_000_000
        in_range = -most < times.min() and times.max() < most
        stored = times if each.name == STEP_TIMES else times * 1_000_000
        if (in_range or each.name == STEP_TIMES) and first_fall(stored) is None:
            return RowClock(fps, stored)
    return RowClock(fps)


# ---------------------------------------------------------------------------------------- writing


@dataclass(slots=True)
class WrittenEpisode:
    read: dict[str, int] = field(default_factory=dict)
    """Rows that were read, by dataset."""
    layout: list[Tile] = field(default_factory=list)
    scalars: dict[str, str] = field(default_factory=dict)
    """Texts that belong to the whole episode, by dataset."""
    skipped: list[Skipped] = field(default_factory=list)
    reward_total: float | None = None


def write_episode(
    plan: EpisodePlan,
    attributes: Attributes,
    clock: RowClock,
    colour_order: ColourOrder,
    folder: Path,
) -> WrittenEpisode:
    """Write the artifacts. The values go from the file to the artifact in blocks, so memory stays small."""
    written = WrittenEpisode()
    arrays: dict[ArtifactKind, dict[str, NDArray[Any] | ArrayInPieces]]
    arrays = {"sensors": {}, "actions": {}}
    for each in plan.numbers:
        _add_numbers(arrays[stream_slot(each.name)], plan, each, clock, written)
    for each in plan.texts:
        _add_text(arrays[stream_slot(each.name)], plan, each, clock, written)
    for (owner, name), row in attributes.long.items():
        namespace = f"hdf5_attributes/{owner}/{name}"
        arrays["sensors"][f"{namespace}/{ONLY_FIELD}"] = row
        arrays["sensors"][f"{namespace}/{CLOCK_FIELD}"] = np.zeros(1, np.int64)
    if plan.cameras:
        _write_video(plan, clock, colour_order, folder, written)
    for slot, found in arrays.items():
        if found:
            # not synced to disk here: the folder is, when it gets its final place
            with open(folder / FILE_NAMES[slot], "xb") as file:
                write_npz(file, found)
    for each in (*plan.numbers, *plan.texts):
        count = written.read.get(each.name, each.rows)
        if count != each.rows:
            raise _mismatch(plan.path, each.name, each.rows, count, "the dataset")
    return written


def _add_numbers(
    arrays: dict[str, NDArray[Any] | ArrayInPieces],
    plan: EpisodePlan,
    each: H5Dataset,
    clock: RowClock,
    written: WrittenEpisode,
) -> None:
    reader = plan.tree.reader(each, plan.path)
    is_reward = each.name == "rewards" and math.prod(each.row_shape) == 1

    def pieces() -> Iterator[NDArray[Any]]:
        written.read[each.name] = 0
        total = 0.0
        for block in reader.blocks():
            written.read[each.name] += len(block)
            if is_reward:
                with np.errstate(all="ignore"):  # a sum that is not finite is left out
                    total += float(np.sum(block, dtype=np.float64))
            yield block
        if is_reward and math.isfinite(total):
            written.reward_total = total

    shape = (each.rows, *each.row_shape)
    arrays[f"{each.name}/{ONLY_FIELD}"] = ArrayInPieces(each.dtype, shape, pieces)
    arrays[f"{each.name}/{CLOCK_FIELD}"] = _clock_array(clock, each.rows)


def _clock_array(clock: RowClock, rows: int) -> ArrayInPieces:
    return ArrayInPieces(np.dtype(np.int64), (rows,), partial(clock.pieces, rows))


def _add_text(
    arrays: dict[str, NDArray[Any] | ArrayInPieces],
    plan: EpisodePlan,
    each: H5Dataset,
    clock: RowClock,
    written: WrittenEpisode,
) -> None:
    reader = plan.tree.reader(each, plan.path)
    try:
        if each.row_bytes > 4 * _LONGEST_SCALAR:
            raise _LeftOut(f"its text may have {each.row_bytes} bytes")
        if not each.shape or each.shape == (1,) != (plan.steps,):
            text = text_of(reader.scalar()) if not each.shape else next(reader.texts())[0]
            if "\0" in text:
                raise _LeftOut("its text contains NUL")
            if len(text) > _LONGEST_SCALAR:
                raise _LeftOut(f"its text has more than {_LONGEST_SCALAR} characters")
            written.scalars[each.name] = text
            return
        if len(each.shape) > 1:
            raise _LeftOut("it holds a table of texts")
        width = _text_width(reader)
    except (_LeftOut, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, _LeftOut) else "its bytes are not text in UTF-8"
        written.skipped.append(Skipped(each.name, reason))
        return
    dtype = np.dtype(f"U{max(1, width)}")

    def pieces() -> Iterator[NDArray[Any]]:
        written.read[each.name] = 0
        for texts in reader.texts():
            written.read[each.name] += len(texts)
            yield np.array(texts, dtype)

    arrays[f"{each.name}/{ONLY_FIELD}"] = ArrayInPieces(dtype, each.shape, pieces)
    arrays[f"{each.name}/{CLOCK_FIELD}"] = _clock_array(clock, each.rows)


class _LeftOut(Exception):
    """Why a dataset of text is left out."""


def _text_width(reader: DatasetReader) -> int:
    width = characters = rows = 0
    for texts in reader.texts():
        width = max(width, *map(len, texts))
        characters, rows = characters + sum(map(len, texts)), rows + len(texts)
        if any(text.endswith("\0") for text in texts):
            raise _LeftOut("a text ends in NUL, which an array of text cannot keep")
    if width > LONGEST_TEXT:
        raise _LeftOut(
            f"a text has {width} characters; at most {LONGEST_TEXT} are kept in each row"
        )
    try:
        check_width(width, rows, characters)
    except UnstorableText as reason:
        raise _LeftOut(str(reason)) from None
    return width


def _write_video(
    plan: EpisodePlan,
    clock: RowClock,
    colour_order: ColourOrder,
    folder: Path,
    written: WrittenEpisode,
) -> None:
    cameras = [
        CameraPictures(plan.tree.reader(each, plan.path), form, colour_order, plan.path)
        for each, form in plan.cameras.values()
    ]
    written.layout, frames = write_video(cameras, folder / FILE_NAMES["video"], clock.fps)
    for camera in cameras:
        written.read[camera.name] = frames
        if frames != plan.steps:
            raise _mismatch(plan.path, camera.name, plan.steps, frames, "the video")
    lengths = plan.internal.get(LENGTHS)
    compressed = [camera for camera in cameras if camera.form == "padded"]
    if lengths is not None and compressed:
        if len(lengths.shape) != 2 or lengths.kind != "numbers" or lengths.shape[0] > 64:
            detail = f"{LENGTHS} has the shape {lengths.shape}, not one row for each camera"
            raise DamagedRecording(path=str(plan.path), detail=detail)
        reader = plan.tree.reader(lengths, plan.path)
        declared = np.concatenate([block.copy() for block in reader.blocks()])
        check_lengths(compressed, declared, LENGTHS, plan.path)
        written.read[LENGTHS] = lengths.rows


def read_attributes(root: Any, plan: EpisodePlan) -> Attributes:
    """Attributes of the file, of `data`, of the episode, and of what is in it."""
    found = Attributes()
    if plan.layout.with_demos:
        found.read("file", root.id, plan.path)
        found.read("data", descendant(root, "data", plan.path).id, plan.path)
    found.read("episode", plan.group.id, plan.path)
    for name, owner in plan.tree.handles.items():
        found.read(f"episode/{name}", owner, plan.path)
    return found


def tile_facts(layout: list[Tile]) -> list[dict[str, Any]]:
    return [asdict(tile) for tile in layout]

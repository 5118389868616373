"""Analysis: what the detectors found in one episode. It is made at the first look, kept, and made again when the
episode, its files or its results change. A newer analyzer runs when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from rollbook.contracts.failures import FailureFinding
from rollbook.digest import digest_of
from rollbook.errors import InvalidValue
from rollbook.scoring.failures.analyse import ANALYZER_VERSION, analyse
from rollbook.scoring.failures.recorded import (
    EpisodeFacts,
    PictureClock,
    RecordedArray,
    Recording,
)
from rollbook.server.context import Caller, ServerContext
from rollbook.server.db.analysis_table import AnalysisRow
from rollbook.server.queries import EpisodeRow, Scope
from rollbook.server.recordings.facts import facts_of
from rollbook.server.recordings.layout import ChannelArray, layout_of
from rollbook.server.recordings.recording_file import RecordingFile, read_recording, reason_of

MOST_NUMBERS = 8_000_000
"""Numbers of a recording that are looked at."""
_SHORTEST_PART = 1000
"""Rows. Less of an array says nothing, and it is left out."""
_MOST_LEFT_OUT = 20
_running: set[asyncio.Task[Analysis]] = set()
"""Analyses that nobody waits for any more; asyncio itself does not keep them."""


@dataclass(frozen=True, slots=True)
class Analysis:
    version: str
    findings: list[FailureFinding]
    left_out: list[str]
    """What was not looked at, and why."""
    made_at_us: int
    is_current: bool
    """False: a newer analyzer would look again if somebody asks."""


async def analysis_of(
    context: ServerContext, caller: Caller, episode: EpisodeRow, *, again: bool = False
) -> Analysis:
    """`again`: with the newest analyzer, whatever is kept."""

    def look(scope: Scope) -> tuple[AnalysisRow | None, EpisodeFacts]:
        replays = scope.results_of_replay(episode.id)
        facts = facts_of(episode, replays, scope.scenarios_failed_by(episode.id))
        return scope.analysis(episode.id), facts

    kept, facts = await context.read(caller, look)
    basis = _basis(episode, facts)
    if kept is not None and kept.basis == basis and not again:
        return _of_row(kept)
    findings, left_out = await read_recording(
        context,
        caller,
        episode,
        lambda files, missing: _analysed(files, missing, episode, facts),
    )
    plain: list[dict[str, Any]] = msgspec.to_builtins(findings)
    # on the server's behalf: whoever may look may not always write, and this only keeps what can be made again
    row = await context.write_for(
        caller.org_id,
        lambda scope: scope.keep_analysis(
            episode.id,
            analyzer_version=ANALYZER_VERSION,
            basis=basis,
            findings=plain,
            left_out=left_out,
        ),
    )
    if row is None:  # deleted meanwhile
        return Analysis(ANALYZER_VERSION, findings, left_out, context.clock(), True)
    return _of_row(row)


async def analysis_within(
    context: ServerContext, caller: Caller, episode: EpisodeRow, seconds: float
) -> Analysis | None:
    """None if it takes longer. It goes on, and the next look finds it."""

    def end(task: asyncio.Task[Analysis]) -> None:
        _running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context.log.warning("analysis_failed", episode_id=episode.id, error=repr(error))

    task = asyncio.create_task(analysis_of(context, caller, episode))
    _running.add(task)
    task.add_done_callback(end)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return task.result() if done else None


def _of_row(row: AnalysisRow) -> Analysis:
    findings = msgspec.convert(row.findings, list[FailureFinding], strict=False)
    is_current = row.analyzer_version == ANALYZER_VERSION
    return Analysis(row.analyzer_version, findings, row.left_out, row.made_at_us, is_current)


def _basis(episode: EpisodeRow, facts: EpisodeFacts) -> str:
    files = sorted(
        (each.kind, each.sha256 or "", each.status)
        for each in episode.artifacts
        if each.kind != "video"
    )
    about = {
        "files": [list(each) for each in files],
        "facts": msgspec.json.encode(asdict(facts)),
        "fps": episode.fps,
        "duration_s": episode.duration_s,
    }
    return digest_of("rollbook.failure-analysis", about)


# ----------------------------------------------------------------------------------------- in a thread


def _analysed(
    files: Sequence[RecordingFile],
    missing: Mapping[str, str],
    episode: EpisodeRow,
    facts: EpisodeFacts,
) -> tuple[list[FailureFinding], list[str]]:
    layout = layout_of(files, missing, episode)
    by_kind = {each.kind: each for each in files}
    left_out = [f"{name}: {why}" for name, why in layout.skipped]
    arrays: list[RecordedArray] = []
    left = MOST_NUMBERS
    for array in layout.arrays:
        rows = min(array.rows, left // len(array.channels))
        if rows < min(array.rows, _SHORTEST_PART):
            left_out.append(f"{array.topic}: the recording is too long to look at all of it")
            continue
        if rows < array.rows:
            begin = array.clock.seconds[array.rows - rows]
            left_out.append(f"{array.topic}: only from {begin:.1f} s on, because it is long")
        left -= rows * len(array.channels)
        try:
            arrays.append(_read(by_kind[array.artifact], array, array.rows - rows))
        except InvalidValue as error:
            left_out.append(f"{array.topic}: {reason_of(error)}")
    pictures = [
        PictureClock(each.name, each.clock.seconds)
        for each in layout.pictures
        if each.clock.kind == "recorded"
    ]
    if len(left_out) > _MOST_LEFT_OUT:
        more = len(left_out) - _MOST_LEFT_OUT
        left_out = [*left_out[:_MOST_LEFT_OUT], f"and {more} more"]
    return analyse(facts, Recording(arrays=arrays, pictures=pictures)), left_out


def _read(file: RecordingFile, array: ChannelArray, first: int) -> RecordedArray:
    values = np.empty((array.rows - first, len(array.channels)), np.float64)
    at = 0
    for piece in file.rows(array.key, first, array.rows):
        values[at : at + len(piece)] = piece.reshape(len(piece), -1)
        at += len(piece)
    note = array.clock.note if array.clock.kind == "spread" else None
    return RecordedArray(
        array.topic,
        array.kind,
        tuple(each.name for each in array.channels),
        array.clock.seconds[first:],
        values,
        has_clock=array.clock.kind == "recorded",
        clock_note=note,
    )

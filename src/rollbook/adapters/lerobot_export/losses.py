"""What an episode loses when it becomes a part of a LeRobot dataset, found before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.exports.stream_rows import text_width_loss
from rollbook.adapters.lerobot_export.clock import TOLERANCE_NS, ClockFit, FrameGrid, Resampling
from rollbook.adapters.lerobot_export.features import StoredColumn
from rollbook.adapters.lerobot_export.video import EpisodeVideo
from rollbook.contracts.episode import ArtifactKind


def frame_losses(
    episode: ExportedEpisode, video: EpisodeVideo, grid: FrameGrid, begin: int
) -> Iterator[Loss]:
    chosen, error = video.picks(grid, begin)
    unused = len(video.times) - len(np.unique(chosen))
    if error > TOLERANCE_NS:
        yield Loss(
            episode.name,
            "video",
            f"Each of {grid.count} frames at {grid.fps:g} fps shows the nearest of {len(video.times)} frames; "
            f"the largest time error is {error / 1e9:.6f} s.",
        )
    if unused:
        yield Loss(episode.name, "video", f"{unused} of {len(video.times)} frames are left out.")


def text_losses(episode: ExportedEpisode, columns: Sequence[StoredColumn]) -> Iterator[Loss]:
    texts = [column for column in columns if column.dtype == "string"]
    for column in texts:
        with episode.open(column.kind) as archive:
            reason = text_width_loss(archive, column.key, column.facts)
        if reason is not None:
            yield Loss(episode.name, column.stream, reason)


def clock_losses(
    episode: ExportedEpisode,
    fits: Mapping[tuple[ArtifactKind, str], ClockFit],
    grid: FrameGrid,
    resampling: Resampling,
) -> Iterator[Loss]:
    taken = "nearest row" if resampling == "nearest" else "last row before it"
    for (kind, namespace), fit in fits.items():
        what = f"{kind}: {namespace}"
        if fit.offset is None:
            reason = (
                f"Its {fit.clock.rows} rows come onto {grid.count} frames at {grid.fps:g} fps: each frame takes the "
                f"{taken}. The largest time error is {fit.error_ns / 1e9:.6f} s."
            )
            yield Loss(episode.name, what, reason)
            continue
        if fit.is_next:
            reason = "Each row is written with the frame before it, as LeRobot does with what follows a frame."
            yield Loss(episode.name, what, reason)
        elif fit.moved_ns:
            reason = f"Times become frame / {grid.fps:g} fps from 0; they move by up to {fit.moved_ns / 1e9:.9f} s."
            yield Loss(episode.name, what, reason)
        unused = fit.rows_unused(grid.count)
        if unused:
            reason = f"{unused} of {fit.clock.rows} rows lie before the first frame or behind the last; left out."
            yield Loss(episode.name, what, reason)


def fact_losses(episode: ExportedEpisode) -> Iterator[Loss]:
    facts = {
        "policy_version": episode.policy_version,
        "env_version": episode.env_version,
        "git_sha": episode.git_sha,
        "seed": episode.seed,
    }
    given = [name for name, value in facts.items() if value is not None]
    if given:
        reason = "Kept in the columns rollbook/* of meta/episodes, which an import does not read."
        yield Loss(episode.name, ", ".join(given), reason)

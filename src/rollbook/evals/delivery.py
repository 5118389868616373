"""ResultDelivery: sends finished replays to the server in batches, while the policy goes on.

A batch is written to the journal first. Then its replay episodes are created in one call, their artifacts are uploaded,
all episodes are finalized in one call, and all results are reported in one call. A batch can be sent again after any
failure: a result replaces the earlier one of the same baseline, and the journal names the episodes that were created.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from rollbook.contracts.episode import CONTENT_TYPES, LONGEST_NAME, ArtifactKind
from rollbook.contracts.evals import (
    EVIDENCE_KEY,
    LONGEST_ERROR,
    RESULT_KEYS,
    EvalResult,
)
from rollbook.contracts.wire.eval_runs import ResultsPut
from rollbook.contracts.wire.uploads import UploadUrl, UrlsMinted
from rollbook.errors import ConflictError, NotFoundError, RollbookError
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.journal import FinishedReplay, Journal, Piece
from rollbook.evals.server_calls import ask, create_episodes, finalize_episodes, item_error

if TYPE_CHECKING:
    from rollbook.client import Client

ROWS_AT_ONCE = 32
BYTES_AT_ONCE = 16 << 20
_COLLECT_S = 0.5
"""How long a finished replay waits for others to fill a batch; longer while both senders are busy."""
_POLL_S = 0.05
_BATCHES_AT_ONCE = 2
_PUTS_AT_ONCE = 8
_WAITING_ROWS = 4 * ROWS_AT_ONCE
"""With more waiting, the policy waits too, so that memory does not grow with the run."""

OnDelivered = Callable[[EvalResult], None]


class ResultDelivery:
    """`add` finished replays as they come and `finish` at the end.

    `on_delivered` is called for each result, one at a time, from a thread. A batch that failed with a retryable error
    is sent once more at the end; then it stays in the journal and counts as `undelivered`. Any other error ends the
    delivery: `add` and `finish` raise it.
    """

    def __init__(
        self, client: Client, run: EvalRun, journal: Journal, on_delivered: OnDelivered
    ) -> None:
        self.last_problem: RollbookError | None = None
        self._left: list[list[FinishedReplay]] = []
        """Batches that could not be delivered. A batch is never split, because it has one file in the journal."""
        self._client = client
        self._run = run
        self._journal = journal
        self._on_delivered = on_delivered
        self._reporting = threading.Lock()
        self._fatal: BaseException | None = None
        self._rows: queue.Queue[FinishedReplay | None] = queue.Queue(_WAITING_ROWS)
        self._puts = ThreadPoolExecutor(_PUTS_AT_ONCE, thread_name_prefix="rollbook-put")
        self._batches = ThreadPoolExecutor(_BATCHES_AT_ONCE, thread_name_prefix="rollbook-upload")
        self._free = threading.Semaphore(_BATCHES_AT_ONCE)
        self._collector = threading.Thread(
            target=self._collect, name="rollbook-collect", daemon=True
        )
        self._collector.start()

    @property
    def undelivered(self) -> list[FinishedReplay]:
        return [row for batch in self._left for row in batch]

    def add(self, row: FinishedReplay) -> None:
        while True:
            if self._fatal is not None:
                raise self._fatal
            try:
                self._rows.put(row, timeout=0.2)
                return
            except queue.Full:
                continue

    def keep_attempts(self, results: Sequence[EvalResult]) -> None:
        """Reports results of pairs that will be replayed again, and returns when the server has them: it keeps what a
        later result replaces."""
        if results:
            self._report([FinishedReplay(each) for each in results])

    def finish(self) -> None:
        """Waits until all batches are sent, and sends the failed ones once more."""
        self._end(try_again=True)
        if self._fatal is not None:
            raise self._fatal

    def abort(self) -> None:
        """Finishes the batches that are being sent, and writes the waiting ones to the journal."""
        self._fatal = self._fatal or RuntimeError("the runner was stopped")
        self._end()

    def _end(self, *, try_again: bool = False) -> None:
        self._rows.put(None)
        self._collector.join()
        self._batches.shutdown()
        if try_again:
            self._deliver_what_is_left()
        self._puts.shutdown()

    # ----------------------------------------------------------------------------------- collecting

    def _collect(self) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            if batch:
                self._batches.submit(self._guarded, batch)

    def _next_batch(self) -> tuple[list[FinishedReplay], bool]:
        """The replays that are finished when a sender becomes free, and whether more can follow."""
        row = self._rows.get()
        if row is None:
            return [], False
        batch, size, more = [row], row.bytes, True
        deadline = time.monotonic() + _COLLECT_S
        while len(batch) < ROWS_AT_ONCE and size < BYTES_AT_ONCE:
            left = deadline - time.monotonic()
            if left <= 0 and self._free.acquire(blocking=False):
                return batch, True
            try:
                row = self._rows.get(timeout=max(left, _POLL_S))
            except queue.Empty:
                continue
            if row is None:
                more = False
                break
            batch.append(row)
            size += row.bytes
        self._free.acquire()
        return batch, more

    def _guarded(self, batch: list[FinishedReplay]) -> None:
        try:
            fresh = [row for row in batch if not row.pieces]
            if fresh:
                self._journal.keep(fresh)
            if self._fatal is None:
                self._deliver_or_leave(batch)
        except BaseException as error:  # noqa: BLE001 - raised by `add` and `finish`
            self._fatal = self._fatal or error
        finally:
            self._free.release()

    def _deliver_or_leave(self, batch: list[FinishedReplay]) -> None:
        try:
            self._deliver(batch)
        except RollbookError as error:
            if not error.retryable:
                raise
            self._left.append(batch)
            self.last_problem = error

    def _deliver_what_is_left(self) -> None:
        """Stops when one fails again, because the others need the same server."""
        batches, self._left = self._left, []
        try:
            while batches and self._fatal is None and not self._left:
                self._deliver_or_leave(batches.pop(0))
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._fatal = error
        self._left += batches

    # ----------------------------------------------------------------------------------- delivering

    def _deliver(self, batch: list[FinishedReplay]) -> None:
        complete = [row for row in batch if row.result.status == "complete"]
        if complete:
            self._make_episodes(complete)
        refused = self._report(batch)
        self._journal.delivered(batch)
        for row in batch:
            result = row.result
            if row.id in refused:
                result = replace(result, status="failed", error=f"NotFoundError: {refused[row.id]}")
            with self._reporting:
                call_user(self._on_delivered, result)

    def _make_episodes(self, rows: list[FinishedReplay]) -> None:
        """Creates, fills and finalizes the replay episodes. Those that an earlier runner created are filled."""
        known = [row for row in rows if row.result.candidate_episode_id is not None]
        urls = self._urls_of_known(known)
        urls |= self._created([row for row in rows if row.result.candidate_episode_id is None])
        unfinished = [row for row in rows if row.id in urls]
        sent: list[Future[None]] = [
            self._puts.submit(self._put, urls[row.id][kind], kind, piece)
            for row in unfinished
            for kind, piece in row.pieces.items()
            if kind in urls[row.id]
        ]
        for each in sent:
            each.result()
        if unfinished:
            self._finalize(unfinished, urls)

    def _urls_of_known(self, rows: list[FinishedReplay]) -> dict[str, Mapping[str, str]]:
        """Upload URLs of episodes that an earlier runner created and did not finalize."""
        from rollbook.client.http import wire_code

        urls: dict[str, Mapping[str, str]] = {}
        for row in rows:
            try:
                minted = ask(
                    self._client,
                    UrlsMinted,
                    "get new upload URLs",
                    "POST",
                    f"/api/ingest/episode/{row.result.candidate_episode_id}/upload-urls",
                    body={"request_uploads": list(row.pieces)},
                    safe_to_resend=True,
                )
                urls[row.id] = _by_kind(minted.upload_urls)
            except NotFoundError:
                row.set_episode(None)  # it was deleted meanwhile, so it is created again
            except ConflictError as error:  # it is finalized already
                if wire_code(error) != "artifact_stored":
                    raise
        return urls

    def _created(self, rows: list[FinishedReplay]) -> dict[str, Mapping[str, str]]:
        """Upload URLs by baseline and kind."""
        if not rows:
            return {}
        created = create_episodes(self._client, [self._episode(row) for row in rows])
        urls: dict[str, Mapping[str, str]] = {}
        for row, episode in zip(rows, created, strict=True):
            row.set_episode(episode.episode_id)
            urls[row.id] = _by_kind(episode.upload_urls)
        self._journal.created({row.id: str(row.result.candidate_episode_id) for row in rows})
        return urls

    def _episode(self, row: FinishedReplay) -> dict[str, Any]:
        """With the metrics that every client knows. The result has all metrics."""
        metrics = row.result.metrics
        about = {
            "eval_run_id": self._run.id,
            "baseline_episode_id": row.id,
            "metrics": {key: metrics.get(key) for key in (*RESULT_KEYS, EVIDENCE_KEY)},
        }
        body: dict[str, Any] = {
            "name": replay_name(self._run, row.id),
            "source": "replay",
            "policy_version": self._run.candidate_policy_version,
            "metadata": about,
            "request_uploads": list(row.pieces),
        }
        if self._run.candidate_policy_revision is not None:
            body["policy_revision"] = msgspec.to_builtins(self._run.candidate_policy_revision)
        return body if row.fps is None else {**body, "fps": row.fps}

    def _put(self, url: str, kind: ArtifactKind, piece: Piece) -> None:
        from rollbook.client.file_slice import FileSlice
        from rollbook.client.runtime import finish

        file = FileSlice(self._journal.folder / piece.file, piece.start, piece.size)
        put = self._client.connection.put
        finish(put(f"upload {kind} of a replay", url, CONTENT_TYPES[kind], file))

    def _finalize(
        self, rows: Sequence[FinishedReplay], urls: Mapping[str, Mapping[str, str]]
    ) -> None:
        bodies = []
        for row in rows:
            sent = {k: p for k, p in row.pieces.items() if k in urls[row.id]}
            body: dict[str, Any] = {
                "episode_id": row.result.candidate_episode_id,
                "status": "ready",
                "bytes_total": sum(piece.size for piece in sent.values()),
                "artifacts": {k: {"sha256": p.sha256, "size": p.size} for k, p in sent.items()},
            }
            bodies.append(
                body if row.duration_s is None else {**body, "duration_s": row.duration_s}
            )
        finalize_episodes(self._client, bodies)

    def _report(self, rows: Sequence[FinishedReplay]) -> dict[str, str]:
        """Returns errors by baseline, for results that the server refuses because their baseline was deleted."""
        reported = ask(
            self._client,
            ResultsPut,
            "report results",
            "POST",
            f"/api/ingest/eval-run/{self._run.id}/results",
            body={"results": [_result_body(row.result) for row in rows]},
            safe_to_resend=True,
        )
        with self._reporting:
            self._run.update(
                status=reported.run_status,
                episodes_completed=reported.episodes_completed,
                episodes_failed=reported.episodes_failed,
            )
        refused = {}
        for each in reported.results:
            if each.error:
                if each.status_code != 404:
                    raise item_error(f"report the result of {each.baseline_episode_id}", each)
                refused[each.baseline_episode_id] = each.error
        return refused


def call_user(callback: OnDelivered, result: EvalResult) -> None:
    """An error of a user's callback is printed and ignored, so that the run goes on."""
    try:
        callback(result)
    except Exception:  # noqa: BLE001 - a user's callback may raise anything
        traceback.print_exc(file=sys.stderr)


def replay_name(run: EvalRun, baseline_id: str) -> str:
    # ids that were made at the same time begin alike
    suffix = f" · {baseline_id[-8:]}"
    name = run.name or f"replay {run.candidate_policy_version}"
    return f"{name[: LONGEST_NAME - len(suffix)]}{suffix}"


def _result_body(result: EvalResult) -> dict[str, Any]:
    body: dict[str, Any] = {
        "baseline_episode_id": result.baseline_episode_id,
        "status": result.status,
        "metrics": result.metrics,
    }
    if result.candidate_episode_id is not None:
        body["candidate_episode_id"] = result.candidate_episode_id
    if result.error is not None:
        body["error"] = result.error[:LONGEST_ERROR]
    return body


def _by_kind(urls: Sequence[UploadUrl]) -> dict[str, str]:
    return {each.kind: each.url for each in urls}

"""Uploads: rows on their way to the server, many at a time, while the policy goes on.

A batch is written into the journal first. Then its replay episodes are created in one call, their artifacts sent, all
of them finalized in one call, and all results reported in one. Whatever the network does to a batch, trying again later
does no harm: results replace those of the same baseline, and episodes that were created are named in the journal.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

from rollbook.contracts.episode import CONTENT_TYPES, LONGEST_NAME, ArtifactKind
from rollbook.contracts.evals import (
    EVIDENCE_KEY,
    LONGEST_ERROR,
    RESULT_KEYS,
    EvalResult,
    EvalRun,
)
from rollbook.errors import APIError, ConflictError, NotFoundError, RollbookError
from rollbook.evals.journal import Journal, Piece, Row

if TYPE_CHECKING:
    from rollbook.client import Client

ROWS_AT_ONCE = 32
BYTES_AT_ONCE = 16 << 20
_COLLECT_S = 0.5
"""How long a row waits for others; longer while all hands are full."""
_LOOK_S = 0.05
_BATCHES_AT_ONCE = 2
_PUTS_AT_ONCE = 8
_WAITING_ROWS = 4 * ROWS_AT_ONCE
"""Then the policy waits too: memory does not grow with the run."""

Landed = Callable[[EvalResult], None]


class Uploads:
    """`add` rows as they come and `finish` at the end. `landed` is called for each, one at a time, from a thread.

    What trying again can help with is tried once more at the end, then left in the journal and counted in
    `undelivered`. Anything else ends it: `add` and `finish` raise it.
    """

    def __init__(self, client: Client, run: EvalRun, journal: Journal, landed: Landed) -> None:
        self.last_problem: RollbookError | None = None
        self._left: list[list[Row]] = []
        """Batches that could not be delivered. They stay whole, as each has one file in the journal."""
        self._client = client
        self._run = run
        self._journal = journal
        self._landed = landed
        self._landing = threading.Lock()
        self._fatal: BaseException | None = None
        self._rows: queue.Queue[Row | None] = queue.Queue(_WAITING_ROWS)
        self._puts = ThreadPoolExecutor(_PUTS_AT_ONCE, thread_name_prefix="rollbook-put")
        self._batches = ThreadPoolExecutor(_BATCHES_AT_ONCE, thread_name_prefix="rollbook-upload")
        self._free = threading.Semaphore(_BATCHES_AT_ONCE)
        self._collector = threading.Thread(
            target=self._collect, name="rollbook-collect", daemon=True
        )
        self._collector.start()

    @property
    def undelivered(self) -> list[Row]:
        return [row for batch in self._left for row in batch]

    def add(self, row: Row) -> None:
        while True:
            if self._fatal is not None:
                raise self._fatal
            try:
                self._rows.put(row, timeout=0.2)
                return
            except queue.Full:
                continue

    def finish(self) -> None:
        """Waits for all of them. A server that was away for a while may be back by now."""
        self._end(try_again=True)
        if self._fatal is not None:
            raise self._fatal

    def abort(self) -> None:
        """What is under way is finished, and what waits is written into the journal."""
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

    def _next_batch(self) -> tuple[list[Row], bool]:
        """As many rows as there are by the time that someone is free to send them; and whether more can come."""
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
                row = self._rows.get(timeout=max(left, _LOOK_S))
            except queue.Empty:
                continue
            if row is None:
                more = False
                break
            batch.append(row)
            size += row.bytes
        self._free.acquire()
        return batch, more

    def _guarded(self, batch: list[Row]) -> None:
        try:
            fresh = [row for row in batch if not row.pieces]
            if fresh:
                self._journal.keep(fresh)
            if self._fatal is None:
                self._deliver_or_leave(batch)
        except BaseException as error:  # noqa: BLE001 - raised where the rows come from
            self._fatal = self._fatal or error
        finally:
            self._free.release()

    def _deliver_or_leave(self, batch: list[Row]) -> None:
        try:
            self._deliver(batch)
        except RollbookError as error:
            if not error.retryable:
                raise
            self._left.append(batch)
            self.last_problem = error

    def _deliver_what_is_left(self) -> None:
        """Until one fails again: the others would wait for the same server."""
        batches, self._left = self._left, []
        try:
            while batches and self._fatal is None and not self._left:
                self._deliver_or_leave(batches.pop(0))
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._fatal = error
        self._left += batches

    # ----------------------------------------------------------------------------------- delivering

    def _deliver(self, batch: list[Row]) -> None:
        complete = [row for row in batch if row.status == "complete"]
        if complete:
            self._make_episodes(complete)
        refused = self._report(batch)
        self._journal.delivered(batch)
        for row in batch:
            self._land(row, refused.get(row.baseline_episode_id))

    def _make_episodes(self, rows: list[Row]) -> None:
        urls = self._taken_up([row for row in rows if row.candidate_episode_id is not None])
        urls |= self._created([row for row in rows if row.candidate_episode_id is None])
        unfinished = [row for row in rows if row.baseline_episode_id in urls]
        sent: list[Future[None]] = [
            self._puts.submit(self._put, urls[row.baseline_episode_id][kind], kind, piece)
            for row in unfinished
            for kind, piece in row.pieces.items()
            if kind in urls[row.baseline_episode_id]
        ]
        for each in sent:
            each.result()
        if unfinished:
            self._finalize(unfinished, urls)

    def _taken_up(self, rows: list[Row]) -> dict[str, Mapping[str, str]]:
        """Upload URLs for episodes that another runner created, as far as it did not finish them."""
        urls: dict[str, Mapping[str, str]] = {}
        for row in rows:
            try:
                urls[row.baseline_episode_id] = self._minted(row)
            except NotFoundError:
                row.candidate_episode_id = None  # deleted meanwhile: it is made again
            except ConflictError as error:  # whole already
                if _code_of(error) != "artifact_stored":
                    raise
        return urls

    def _created(self, rows: list[Row]) -> dict[str, Mapping[str, str]]:
        """Upload URLs by baseline and kind. A lost answer leaves empty episodes, which the server clears away."""
        if not rows:
            return {}
        body = {"episodes": [self._episode(row) for row in rows]}
        answer = self._client.call(
            "create replay episodes",
            "POST",
            "/api/ingest/episodes",
            body=body,
            safe_to_resend=True,
        )
        urls: dict[str, Mapping[str, str]] = {}
        for row, made in zip(rows, answer["episodes"], strict=True):
            row.candidate_episode_id = made["episode_id"]
            urls[row.baseline_episode_id] = _urls(made)
        self._journal.created(
            {row.baseline_episode_id: str(row.candidate_episode_id) for row in rows}
        )
        return urls

    def _minted(self, row: Row) -> Mapping[str, str]:
        answer = self._client.call(
            "get new upload URLs",
            "POST",
            f"/api/ingest/episode/{row.candidate_episode_id}/upload-urls",
            body={"request_uploads": list(row.pieces)},
            safe_to_resend=True,
        )
        return _urls(answer)

    def _episode(self, row: Row) -> dict[str, Any]:
        """With the metrics that every client knows; the others are told with the result, once."""
        about = {
            "eval_run_id": self._run.id,
            "baseline_episode_id": row.baseline_episode_id,
            "metrics": {key: row.metrics.get(key) for key in (*RESULT_KEYS, EVIDENCE_KEY)},
        }
        body: dict[str, Any] = {
            "name": replay_name(self._run, row.baseline_episode_id),
            "source": "replay",
            "policy_version": self._run.candidate_policy_version,
            "metadata": about,
            "request_uploads": list(row.pieces),
        }
        return body if row.fps is None else {**body, "fps": row.fps}

    def _put(self, url: str, kind: ArtifactKind, piece: Piece) -> None:
        from rollbook.client.file_slice import FileSlice
        from rollbook.client.runtime import finish

        file = FileSlice(self._journal.folder / piece.file, piece.start, piece.size)
        put = self._client.connection.put
        finish(put(f"upload {kind} of a replay", url, CONTENT_TYPES[kind], file))

    def _finalize(self, rows: Sequence[Row], urls: Mapping[str, Mapping[str, str]]) -> None:
        bodies = []
        for row in rows:
            there = {k: p for k, p in row.pieces.items() if k in urls[row.baseline_episode_id]}
            body: dict[str, Any] = {
                "episode_id": row.candidate_episode_id,
                "status": "ready",
                "bytes_total": sum(piece.size for piece in there.values()),
                "artifacts": {k: {"sha256": p.sha256, "size": p.size} for k, p in there.items()},
            }
            bodies.append(
                body if row.duration_s is None else {**body, "duration_s": row.duration_s}
            )
        answer = self._client.call(
            "finalize replay episodes",
            "POST",
            "/api/ingest/episodes/finalize",
            body={"episodes": bodies},
            slow=True,
            safe_to_resend=True,
        )
        for each in answer["results"]:
            if each.get("error"):
                _raise_for(f"finalize the replay episode {each['episode_id']}", each)

    def _report(self, rows: Sequence[Row]) -> dict[str, str]:
        """Errors by baseline, of rows that the server does not take: their baseline is gone."""
        answer = self._client.call(
            "report results",
            "POST",
            f"/api/ingest/eval-run/{self._run.id}/results",
            body={"results": [_result(row) for row in rows]},
            safe_to_resend=True,
        )
        with self._landing:
            self._run.status = answer.get("run_status", self._run.status)
            self._run.episodes_completed = int(answer.get("episodes_completed", 0))
            self._run.episodes_failed = int(answer.get("episodes_failed", 0))
        refused = {}
        for each in answer["results"]:
            if each.get("error"):
                if each.get("status_code") != 404:
                    _raise_for(f"report the result of {each['baseline_episode_id']}", each)
                refused[each["baseline_episode_id"]] = str(each["error"])
        return refused

    def _land(self, row: Row, refused: str | None) -> None:
        result = as_result(row)
        if refused is not None:
            result.status = "failed"
            result.error = f"NotFoundError: {refused}"
        with self._landing:
            tell(self._landed, result)


def as_result(row: Row) -> EvalResult:
    complete = row.status == "complete"
    return EvalResult(
        row.baseline_episode_id,
        row.candidate_episode_id,
        "complete" if complete else "failed",
        row.metrics,
        row.error,
    )


def tell(callback: Landed, result: EvalResult) -> None:
    """What a callback raises is printed and ignored: the campaign matters more."""
    try:
        callback(result)
    except Exception:  # noqa: BLE001 - it is the user's
        traceback.print_exc(file=sys.stderr)


def replay_name(run: EvalRun, baseline_id: str) -> str:
    suffix = f" · {baseline_id[:8]}"
    name = run.name or f"replay {run.candidate_policy_version}"
    return f"{name[: LONGEST_NAME - len(suffix)]}{suffix}"


def _result(row: Row) -> dict[str, Any]:
    body: dict[str, Any] = {
        "baseline_episode_id": row.baseline_episode_id,
        "status": row.status,
        "metrics": row.metrics,
    }
    if row.candidate_episode_id is not None:
        body["candidate_episode_id"] = row.candidate_episode_id
    if row.error is not None:
        body["error"] = row.error[:LONGEST_ERROR]
    return body


def _code_of(error: APIError) -> object:
    return error.response_body.get("code") if isinstance(error.response_body, dict) else None


def _urls(made: Mapping[str, Any]) -> dict[str, str]:
    return {each["kind"]: each["url"] for each in made.get("upload_urls") or ()}


def _raise_for(what: str, answer: Mapping[str, Any]) -> NoReturn:
    """One of many that failed, as if it had been asked for alone."""
    from rollbook.client.http import JSON_TIMEOUT, Answer, Request, raise_for

    request = Request(what=what, method="POST", url="", timeout=JSON_TIMEOUT)
    body = json.dumps(dict(answer)).encode()
    raise_for(request, Answer(int(answer.get("status_code", 500)), {}, body))

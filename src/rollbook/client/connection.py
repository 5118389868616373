"""Connection: one server and one key. It sends requests, repeats them where that is safe, and decodes the answers."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from rollbook.client.file_slice import FileSlice
from rollbook.client.http import (
    JSON_TIMEOUT,
    TRANSFER_TIMEOUT,
    Answer,
    Request,
    decoded_answer,
    json_request,
    raise_for,
    retry_after,
    transport_error,
)
from rollbook.client.runtime import Runtime, Sink
from rollbook.errors import TransportError

_log = logging.getLogger("rollbook.client")
_NO_ANSWER = (httpx.TransportError, httpx.InvalidURL, httpx.DecodingError)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """When a request is sent again.

    Waits grow as 1, 2, 4 … times `first_wait_s`. Each is drawn at random from the upper half of that, so that a hundred
    robots that lost one server do not all return in the same instant.
    """

    attempts: int = 4
    """Including the first one."""
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    """Also the longest wait that a server may ask for. If it asks for more, the caller gets the error."""
    upload_for_s: float = 600.0
    """How long an upload that has begun is tried again, however many attempts that takes: a server may be restarted in
    the middle of a large file. With `attempts=1` nothing is tried again."""

    def wait_s(
        self,
        failed_attempts: int,
        asked_s: int | None = None,
        *,
        failing_for_s: float | None = None,
    ) -> float | None:
        """Seconds before the next attempt; None when no attempt is left.

        `failing_for_s`: how long an upload that has begun has been failing.
        """
        if (asked_s or 0) > self.longest_wait_s or self.attempts == 1:
            return None
        goes_on = failing_for_s is not None and failing_for_s < self.upload_for_s
        if failed_attempts >= self.attempts and not goes_on:
            return None
        doublings = min(failed_attempts - 1, 60)  # the wait has its limit long before
        backoff = min(self.first_wait_s * float(2**doublings), self.longest_wait_s)
        return max(backoff * random.uniform(0.5, 1.0), float(asked_s or 0))


ONCE = Retries(attempts=1)
FIRST_CONTACT_S = 2.0
"""How long a server that has never answered is tried. A wrong address or no network is then said at once."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    repeat: bool
    answer: Answer | None = None
    failure: TransportError | None = None
    never_sent: bool = False
    """There was no connection, so that the server knows nothing of the request."""

    @property
    def asked_s(self) -> int | None:
        """The wait that the server asks for."""
        return None if self.answer is None else retry_after(self.answer)

    @property
    def status(self) -> int | None:
        return None if self.answer is None else self.answer.status

    def outcome(self) -> Answer:
        if self.answer is None:
            assert self.failure is not None
            raise self.failure
        return self.answer


class Connection:
    def __init__(
        self,
        runtime: Runtime,
        *,
        api_key: str,
        base_url: str,
        timeout: httpx.Timeout | None = None,
        retries: Retries | None = None,
        first_contact_s: float = FIRST_CONTACT_S,
    ) -> None:
        """`first_contact_s`: how long a connection is tried again while the server has never answered."""
        self.runtime = runtime
        self.base_url = base_url
        self._api_key = api_key
        self._timeout = timeout or JSON_TIMEOUT
        self._retries = retries or Retries()
        self.presumed_down = False
        """Set when an episode went to the spool: each request is then tried once, until one succeeds."""
        self._told_until = 0.0
        self._first_contact_s = first_contact_s
        self._has_answered = False

    async def call(
        self,
        what: str,
        method: str,
        path: str,
        *,
        answer: type[T],
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        slow: bool = False,
        safe_to_resend: bool = False,
        patient: bool = False,
    ) -> T:
        """Calls a JSON route and decodes its answer, a message of `rollbook.contracts.wire`.

        `slow`: the server may read every byte of an artifact before it answers. `patient`: see `Request`.
        """
        request = json_request(
            what,
            method,
            self.base_url + path,
            api_key=self._api_key,
            body=body,
            headers=headers,
            timeout=TRANSFER_TIMEOUT if slow else self._timeout,
            safe_to_resend=safe_to_resend or method == "GET",
            patient=patient,
        )
        return decoded_answer(request, await self.send(request), answer)

    async def put(
        self,
        what: str,
        url: str,
        content_type: str,
        body: FileSlice | bytes,
        *,
        patient: bool = False,
    ) -> None:
        """Uploads to a signed URL. The URL is the permission, so the API key is not sent."""
        request = Request(
            what=what,
            method="PUT",
            url=self.absolute(url),
            headers={"Content-Type": content_type},
            body=body,
            timeout=TRANSFER_TIMEOUT,
            safe_to_resend=True,
            signed=True,
            patient=patient,
        )
        answer = await self.send(request)
        if not answer.ok:
            raise_for(request, answer)

    async def where(self, what: str, path: str) -> str:
        """The signed URL that a route redirects to."""
        request = json_request(
            what, "GET", self.base_url + path, api_key=self._api_key, safe_to_resend=True
        )
        answer = await self.send(request)
        to = answer.headers.get("location")
        if answer.status not in (302, 303, 307, 308) or not to:
            raise_for(request, answer)
        return self.absolute(to)

    async def read(self, what: str, path: str) -> bytes:
        """The bytes that a route answers with, whatever they are."""
        request = json_request(
            what,
            "GET",
            self.base_url + path,
            api_key=self._api_key,
            timeout=TRANSFER_TIMEOUT,
            safe_to_resend=True,
        )
        answer = await self.send(request)
        if not answer.ok:
            raise_for(request, answer)
        return answer.body

    async def get(self, what: str, url: str, sink: Sink, *, start: int = 0) -> None:
        """One attempt to download from a signed URL. The caller repeats it, from where the sink stopped."""
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = Request(
            what=what,
            method="GET",
            url=url,
            headers=headers,
            timeout=TRANSFER_TIMEOUT,
            signed=True,
        )
        try:
            answer = await self.runtime.send(request, sink)
        except _NO_ANSWER as error:
            raise transport_error(request, error) from error
        if not answer.ok:
            raise_for(request, answer)

    async def send(self, request: Request) -> Answer:
        """The answer. Raises TransportError when every attempt failed, or when a second one is not safe."""
        retries = ONCE if self.presumed_down else self._retries
        begun, failed, failing_since = time.monotonic(), 0, 0.0
        while True:
            attempt = await self._attempt(request)
            if not attempt.repeat:
                self.presumed_down = self.presumed_down and attempt.answer is None
                return attempt.outcome()
            failed += 1
            now = time.monotonic()
            failing_since = failing_since or now
            failing_for_s = now - failing_since if request.patient else None
            wait = retries.wait_s(failed, attempt.asked_s, failing_for_s=failing_for_s)
            if wait is None or (
                attempt.never_sent
                and not self._has_answered
                and now + wait - begun > self._first_contact_s
            ):
                return attempt.outcome()
            if failing_for_s is not None and now >= self._told_until:
                self._told_until = now + wait  # parts that fail together are told of once
                _tell_of_retry(request, attempt, wait, retries.upload_for_s - failing_for_s)
            await self.runtime.sleep(wait)
            if isinstance(request.body, FileSlice) and request.body.watcher is not None:
                request.body.watcher.check()

    async def _attempt(self, request: Request) -> _Attempt:
        try:
            answer = await self.runtime.send(request)
        except _NO_ANSWER as error:
            never_sent = isinstance(error, _NEVER_SENT)
            again = request.safe_to_resend or never_sent
            return _Attempt(again, None, transport_error(request, error), never_sent)
        self._has_answered = True
        # the server did not act on a request that it turned away; it may have acted on one that failed inside
        failed_inside = answer.status >= 500 and request.safe_to_resend
        return _Attempt(answer.status == 429 or failed_inside, answer=answer)

    async def pause(self, failed: int, asked_s: int | None = None) -> bool:
        """Waits before the next attempt of a caller that repeats by itself. False: no attempt is left."""
        wait = self._retries.wait_s(failed, asked_s)
        if wait is None:
            return False
        await self.runtime.sleep(wait)
        return True

    def absolute(self, url: str) -> str:
        """A server may give URLs of its own without scheme and host."""
        return self.base_url + url if url.startswith("/") else url


def _tell_of_retry(request: Request, attempt: _Attempt, wait_s: float, left_s: float) -> None:
    reason = attempt.failure or f"cannot {request.what}: {request.host} answered {attempt.status}"
    _log.warning(
        "%s. Trying again in %.1f s, and for up to %.0f s if it goes on failing",
        reason,
        wait_s,
        left_s,
    )

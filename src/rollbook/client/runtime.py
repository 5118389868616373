"""Runtimes: two ways to drive the coroutines of the core, so that the logic is written once.

The core awaits a runtime for everything that takes time. `BlockingRuntime` does the work at once and never suspends, so
`finish` can run a coroutine of the core to its end like a plain call. `AsyncRuntime` uses the event loop (asyncio or
trio).
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any, Protocol, TypeAlias, TypeVar

import httpx

from rollbook.client.file_slice import FileSlice
from rollbook.client.http import USER_AGENT, Answer, Request
from rollbook.errors import ServerError

T = TypeVar("T")
Job: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"

_LARGEST_ANSWER = 64 << 20
_PIECE_IN_THREAD = 1 << 20
"""Larger than elsewhere, because each piece costs a switch to a thread and back."""


class Sink(Protocol):
    """Where the bytes of a download go."""

    def begin(self, answer: Answer) -> None:
        """Called once, with the status and headers of a successful answer."""

    def write(self, piece: bytes) -> None: ...


class Runtime(Protocol):
    async def send(self, request: Request, sink: Sink | None = None) -> Answer:
        """Returns the answer, whatever its status. With a sink, the body of a success goes to the sink.

        Raises the error of httpx when no answer arrives.
        """

    async def sleep(self, seconds: float) -> None: ...

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs work on files or CPU that must not block an event loop."""

    async def together(self, jobs: Sequence[Job], at_once: int) -> None:
        """Runs all jobs, at most `at_once` at a time. Raises the first failure and drops the rest."""

    async def close(self) -> None: ...


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that awaits nothing but a BlockingRuntime."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call tried to wait for an event loop")


@cache
def _trust() -> ssl.SSLContext:
    """The trusted certificates. Reading them takes longer than the rest of making a client, so it is done once."""
    return httpx.create_ssl_context()


class _UnshownURL(httpx.URL):
    """httpx logs every URL. A signed URL is a secret, so its text is only the host."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc.decode()}/…"


def _built(client: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    headers = dict(request.headers)
    content: Any = request.body
    if isinstance(request.body, FileSlice):
        headers["Content-Length"] = str(request.body.length)
        blocking = isinstance(client, httpx.Client)
        content = request.body.pieces() if blocking else _pieces_in_thread(request.body)
    built = client.build_request(
        request.method, request.url, headers=headers, content=content, timeout=request.timeout
    )
    if request.signed:
        built.url = _UnshownURL(built.url)
    return built


def _head(response: httpx.Response) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, b"")


class _Collected:
    """Collects an answer in memory, up to a limit."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > _LARGEST_ANSWER:
            raise ServerError(
                status_code=200,
                message=f"cannot {self._request.what}: the answer is longer than {_LARGEST_ANSWER >> 20} MiB",
            )
        self._pieces.append(piece)

    def under(self, head: Answer) -> Answer:
        return Answer(head.status, head.headers, b"".join(self._pieces))


def _finish_job(job: Job) -> None:
    finish(job())


class BlockingRuntime:
    """Threads may share one. A forked process gets connections of its own."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._client = httpx.Client(headers={"User-Agent": USER_AGENT}, verify=_trust())
        self._process = os.getpid()

    def _own_client(self) -> httpx.Client:
        """On a connection that two processes use, one would read the answer to a request of the other. The connections
        of the parent are not closed: they are still its own."""
        if self._process != os.getpid():
            self._inherited = self._client
            self._open()
        return self._client

    async def send(self, request: Request, sink: Sink | None = None) -> Answer:
        client = self._own_client()
        response = client.send(_built(client, request), stream=True)
        try:
            head = _head(response)
            if sink is not None and head.ok:
                sink.begin(head)
                for piece in response.iter_bytes():
                    sink.write(piece)
                return head
            collected = _Collected(request)
            for piece in response.iter_bytes():
                collected.write(piece)
            return collected.under(head)
        finally:
            response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return work()

    async def together(self, jobs: Sequence[Job], at_once: int) -> None:
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="rollbook")
        try:
            done, _ = wait([pool.submit(_finish_job, job) for job in jobs], None, FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            # after a failure the others are not waited for: one may hang in a dead connection
            pool.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        self._client.close()


class AsyncRuntime:
    """Belongs to the event loop in which it is first used."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(headers={"User-Agent": USER_AGENT}, verify=_trust())

    async def send(self, request: Request, sink: Sink | None = None) -> Answer:
        response = await self._client.send(_built(self._client, request), stream=True)
        try:
            head = _head(response)
            if sink is not None and head.ok:
                sink.begin(head)
                async for piece in response.aiter_bytes():
                    await self.in_thread(partial(sink.write, piece))
                return head
            collected = _Collected(request)
            async for piece in response.aiter_bytes():
                collected.write(piece)
            return collected.under(head)
        finally:
            await response.aclose()

    async def sleep(self, seconds: float) -> None:
        import anyio

        await anyio.sleep(seconds)

    async def in_thread(self, work: Callable[[], T]) -> T:
        import anyio.to_thread

        return await anyio.to_thread.run_sync(work)

    async def together(self, jobs: Sequence[Job], at_once: int) -> None:
        import anyio

        turn = anyio.Semaphore(at_once)
        failures: list[Exception] = []

        async def run(job: Job) -> None:
            async with turn:
                try:
                    await job()
                except Exception as error:  # noqa: BLE001 - raised below, outside of the exception group
                    failures.append(error)
                    group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(run, job)
        if failures:
            raise failures[0]

    async def close(self) -> None:
        await self._client.aclose()


async def _pieces_in_thread(file: FileSlice) -> AsyncIterator[bytes]:
    import anyio.to_thread

    pieces = file.pieces(_PIECE_IN_THREAD)
    while piece := await anyio.to_thread.run_sync(lambda: next(pieces, b"")):
        yield piece

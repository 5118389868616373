"""Baselines: the recorded episodes that a candidate is compared with, and how they are fetched from a server.

Many are looked up in one call. Their artifacts are fetched ahead of the policy, through the cache, so that no artifact
is downloaded twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from numpy.typing import NDArray

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import read_npz
from rollbook.contracts.wire.batches import ArtifactsRead, EpisodesFound
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import NotFoundError, RollbookError
from rollbook.evals.server_calls import ask
from rollbook.scoring.outcomes import outcome_of

if TYPE_CHECKING:
    from rollbook.client import Client

Arrays: TypeAlias = "dict[str, NDArray[Any]]"

LOOKED_UP_AT_ONCE = 50
"""Signed URLs expire after an hour, so they are requested page by page."""
DOWNLOADS_AT_ONCE = 4
_READ_KINDS: tuple[ArtifactKind, ...] = ("sensors", "actions")


@dataclass(frozen=True, slots=True)
class Baseline:
    """One recorded episode with the artifacts that a replay needs. What was not recorded is None."""

    id: str
    record: EpisodeRecord | None = None
    """The record on the server. None for a baseline that is not from a server."""
    sensors: Arrays | None = None
    actions: Arrays | None = None
    video: Path | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)
    """Those of the four outcomes that are known."""

    @property
    def seed(self) -> int | None:
        return None if self.record is None else self.record.seed

    @property
    def env_version(self) -> str | None:
        return None if self.record is None else self.record.env_version

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {} if self.record is None else self.record.metadata


@dataclass(frozen=True, slots=True)
class Ticket:
    """A baseline that can be fetched, here or in another process."""

    id: str
    record: EpisodeRecord | None = None
    """None: the server has no such episode, or it belongs to another organisation."""
    urls: Mapping[ArtifactKind, str] = field(default_factory=dict, repr=False)
    data: Mapping[ArtifactKind, bytes] = field(default_factory=dict, repr=False)
    """The bytes of small artifacts."""
    problem: RollbookError | None = None
    """Why it could not be looked up."""

    def fetch(self, client: Client, kinds: Sequence[ArtifactKind]) -> Baseline:
        """The baseline with those of the asked artifacts that it has.

        Raises the error of an artifact that cannot be downloaded or read.
        """
        if self.problem is not None:
            raise self.problem
        if self.record is None:
            message = f"episode {self.id} does not exist: it was deleted, or is not yours"
            raise NotFoundError(status_code=404, message=message)
        record = self.whole_record(client)
        there = [kind for kind in kinds if self.record.artifact(kind) is not None]
        files = {kind: self._file(client, kind) for kind in there}
        arrays = {kind: read_npz(files[kind]) for kind in _READ_KINDS if kind in files}
        video = files.get("video")
        return Baseline(
            self.id,
            record,
            arrays.get("sensors"),
            arrays.get("actions"),
            video if isinstance(video, Path) else None,
            outcome_of(record.metadata),
        )

    def whole_record(self, client: Client) -> EpisodeRecord:
        """The record with all its metadata: a lookup leaves it out where it is large."""
        assert self.record is not None
        return client.episode(self.id).record if self.record.metadata_truncated else self.record

    def _file(self, client: Client, kind: ArtifactKind) -> Path | bytes:
        """The artifact's bytes if they came with the ticket, else its file in the cache, downloaded if needed."""
        from rollbook.client.recorded import RecordedCore
        from rollbook.client.runtime import finish

        assert self.record is not None
        artifact = self.record.artifact(kind)
        assert artifact is not None
        data = self.data.get(kind)
        if data is not None and artifact.sha256 is not None and kind != "video":
            kept = client.cache.add(data, f"{kind} of episode {self.id}")
            if kept.name == artifact.sha256:
                return data
        core = RecordedCore(client.connection, client.cache, self.record, self.urls)
        return finish(core.fetch(kind))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A baseline that is being fetched."""

    id: str
    coming: Future[Baseline]

    def baseline(self) -> Baseline:
        return self.coming.result()


def look_up(
    client: Client, ids: Iterable[str], kinds: Sequence[ArtifactKind] = ()
) -> Iterator[Ticket]:
    """Tickets in the order of the ids, looked up page by page. An error is raised when its ticket is fetched.

    With `kinds`, small artifacts that are not in the cache come with the ticket, and larger ones with a fresh URL.
    """
    each = iter(ids)
    pages = iter(lambda: list(islice(each, LOOKED_UP_AT_ONCE)), [])
    with ThreadPoolExecutor(1, thread_name_prefix="rollbook-look-up") as pool:
        # one page ahead: the server prepares the next page while the policy works on this one
        coming = deque(pool.submit(_page, client, page, kinds) for page in islice(pages, 2))
        while coming:
            tickets = coming.popleft().result()
            coming.extend(pool.submit(_page, client, page, kinds) for page in islice(pages, 1))
            yield from tickets


def _page(client: Client, ids: Sequence[str], kinds: Sequence[ArtifactKind]) -> list[Ticket]:
    try:
        found = _looked_up(client, ids, urls=not kinds)
        if kinds:
            found = _with_contents(client, found, kinds)
    except RollbookError as error:
        return [Ticket(each, problem=error) for each in ids]
    return [found.get(each, Ticket(each)) for each in ids]


def _looked_up(client: Client, ids: Sequence[str], *, urls: bool) -> dict[str, Ticket]:
    answer = ask(
        client,
        EpisodesFound,
        "look up baseline episodes",
        "POST",
        "/api/episodes/lookup",
        body={"ids": list(ids), "urls": urls},
        safe_to_resend=True,
    )
    return {
        found.id: Ticket(
            found.id,
            msgspec.convert(msgspec.to_builtins(found), EpisodeRecord),
            found.download_urls,
        )
        for found in answer.episodes
    }


def _with_contents(
    client: Client, tickets: Mapping[str, Ticket], kinds: Sequence[ArtifactKind]
) -> dict[str, Ticket]:
    wanted = [
        {"episode_id": ticket.id, "kind": artifact.kind}
        for ticket in tickets.values()
        if ticket.record is not None
        for artifact in ticket.record.artifacts
        if artifact.kind in kinds and not client.cache.has(artifact.sha256)
    ]
    if not wanted:
        return dict(tickets)
    answer = ask(
        client,
        ArtifactsRead,
        "read baseline artifacts",
        "POST",
        "/api/episodes/artifacts",
        body={"artifacts": wanted},
        safe_to_resend=True,
    )
    data: dict[str, dict[ArtifactKind, bytes]] = {}
    urls: dict[str, dict[ArtifactKind, str]] = {}
    for each in answer.artifacts:
        if each.data is not None:
            data.setdefault(each.episode_id, {})[each.kind] = each.data
        elif each.url is not None:
            urls.setdefault(each.episode_id, {})[each.kind] = each.url
    return {
        name: replace(ticket, urls=urls.get(name, {}), data=data.get(name, {}))
        for name, ticket in tickets.items()
    }


def fetch_ahead(
    client: Client, tickets: Iterator[Ticket], kinds: Sequence[ArtifactKind], ahead: int
) -> Iterator[Fetched]:
    """In order. `ahead` baselines are being fetched or wait, so that the next is ready when a worker is free."""
    pool = ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="rollbook-fetch")
    waiting: deque[Fetched] = deque()
    try:
        while True:
            for ticket in islice(tickets, ahead + 1 - len(waiting)):
                waiting.append(Fetched(ticket.id, pool.submit(ticket.fetch, client, kinds)))
            if not waiting:
                return
            yield waiting.popleft()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)

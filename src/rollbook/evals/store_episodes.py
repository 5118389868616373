"""Logs chains of rollout stores as episodes on a server, so that a decision can be traced back to source rows.

The sensors of such an episode are what the actor knew, its actions are what was chosen, its video is the depth that was
seen, where the store has it. Its metadata names the store by content digest, the row of the chain, its source row and
its target. The rewards stay in the store, where they can be checked.

An episode is created with an idempotency key that follows from what is sent. So a call that was stopped is continued in
the same episodes, and two calls at the same time do not log a chain twice.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbook.client import Client
from rollbook.client.bodies import create_body
from rollbook.client.http import wire_code
from rollbook.client.ingest import create_episode, urls_by_kind
from rollbook.client.runtime import finish
from rollbook.contracts.episode import CONTENT_TYPES, ArtifactKind
from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.npz import write_npz
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.episodes import EpisodeCreated, EpisodeRecord
from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError, ConflictError, IdempotencyConflict
from rollbook.evals.depth_video import depth_video
from rollbook.evals.server_calls import finalize_episodes
from rollbook.evals.store_baselines import StoreBaselines, check_one_policy
from rollbook.notebook import shown_progress
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train.artifacts import POLICY_FAMILY, StoredChains

CHAINS_AT_ONCE = 32
"""Finalized in one call."""
_VIDEOS_AT_ONCE = 8
"""The same for chains with a video, because the server looks at every one of them."""
_SENT_AT_ONCE = 8
_MOST_KEYS = 100
_KEY_DOMAIN = "rollbook.logged_chain.v1"
_READ_TABLES = ("rollouts", "lineage", "sources", "targets", "steps", "q_h")
_READ_FILES = ("dictionaries/zarr.json", "metadata/zarr.json")
_DEPTH_TABLE = "selected_depth"

Progress = Callable[[int, int], None]
"""Called with the number of chains that are stored and of all."""


@dataclass(frozen=True, slots=True)
class LoggedChains:
    ids: list[str]
    """The episodes, in the order of rows."""
    new: int
    """Episodes that were not there before, or not complete."""


def log_chains(
    client: Client,
    store_path: str | os.PathLike[str],
    *,
    policy_version: str | None = None,
    policy: str | None = None,
    rows: Sequence[int] | None = None,
    limit: int | None = None,
    tags: Sequence[str] | None = None,
    on_logged: Progress | None = None,
    video: bool = True,
    family: str = POLICY_FAMILY,
) -> list[str]:
    """Logs each chain once, and returns the ids of the episodes in the order of rows.

    `policy`, `rows` and `limit` choose chains, as in StoreBaselines. `policy_version` is by default the store's name of
    the policy of each chain; chains of several policies cannot be given one version. Every episode names its policy
    revision; `family` is the policy family of built-in policies. `video=False` leaves the depth images out.

    A chain whose episode exists already is not logged again, so a failed call can be repeated. `on_logged(done, total)`
    is called as episodes are stored.
    """
    chains = StoreBaselines(store_path, policy=policy, rows=rows, limit=limit)
    return push_chains(
        client,
        [chains],
        policy_version=policy_version,
        tags=tags,
        on_logged=on_logged,
        video=video,
        family=family,
    ).ids


def push_chains(
    client: Client,
    stores: Sequence[StoreBaselines],
    *,
    policy_version: str | None = None,
    tags: Sequence[str] | None = None,
    on_logged: Progress | None = None,
    video: bool = True,
    family: str = POLICY_FAMILY,
) -> LoggedChains:
    """`log_chains` for chains of one or several stores, which are chosen already. Says how many were new."""
    total = sum(map(len, stores))
    ids: list[str] = []
    new = 0
    check_one_policy(stores, policy_version, field="policy_version", choose="policy=")
    with shown_progress("logging chains", on_logged) as progress:
        for chains in stores:
            _verify(chains.reader, video)
            seen = video and chains.reader.has(f"{_DEPTH_TABLE}/depth_m")
            size = _VIDEOS_AT_ONCE if seen else CHAINS_AT_ONCE
            with _Logger(client, chains, policy_version, tags, video, family) as logger:
                for first in range(0, len(chains), size):
                    ids += logger.log(chains.rows[first : first + size].tolist())
                    progress(len(ids), total)
                new += logger.new
    return LoggedChains(ids, new)


def chosen_chains(
    stores: Iterable[RolloutZarrStoreReader],
    *,
    policy: str | None = None,
    limit: int | None = None,
) -> list[StoreBaselines]:
    """The chains of several stores, of all policies or of one; at most `limit` in all."""
    chosen: list[StoreBaselines] = []
    known: set[str] = set()
    left = limit
    for store in stores:
        own = {each for each in store.decoded("rollouts", "policy_id") if each is not None}
        known |= own
        if left != 0 and (policy is None or policy in own):
            chosen.append(StoreBaselines(store, policy=policy, limit=left))
            left = None if left is None else left - len(chosen[-1])
    if policy is not None and policy not in known:
        message = f"there are no chains of {policy!r}, only of: {', '.join(sorted(known))}"
        raise ConfigurationError(message=message)
    return chosen


def _verify(reader: RolloutZarrStoreReader, video: bool) -> None:
    """Compare every byte that will be sent with the manifest: on the server nobody can tell that one is wrong."""
    for path in (*_READ_TABLES, *_READ_FILES, *([_DEPTH_TABLE] if video else ())):
        reader.local(path)
        reader.files.verify(path)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The episode and the files of one chain."""

    record: EpisodeRecord
    metadata: dict[str, Any]
    revision: PolicyRevision
    files: dict[ArtifactKind, bytes]

    def create(self, tags: Sequence[str] | None) -> dict[str, Any]:
        record = self.record
        return create_body(
            source="sim",
            artifacts=self.files,
            texts={
                "name": record.name,
                "policy_version": record.policy_version,
                "env_version": record.env_version,
                "git_sha": record.git_sha,
            },
            seed=record.seed,
            fps=record.fps,
            metadata=self.metadata,
            tags=tags,
            policy_revision=self.revision,
        )

    def finalize(self, episode_id: str) -> dict[str, Any]:
        return {
            "episode_id": episode_id,
            "status": "ready",
            "duration_s": self.record.duration_s,
            "bytes_total": sum(map(len, self.files.values())),
            "artifacts": {
                kind: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
                for kind, data in self.files.items()
            },
        }


@dataclass(frozen=True, slots=True)
class _Sent:
    episode_id: str
    finalize: dict[str, Any] | None
    """None if the episode is complete."""


class _Logger:
    def __init__(
        self,
        client: Client,
        chains: StoreBaselines,
        policy_version: str | None,
        tags: Sequence[str] | None,
        video: bool,
        family: str,
    ) -> None:
        self._client = client
        self._chains = chains
        self._policy_version = policy_version
        self._tags = tags
        self._video = video
        self._revisions = StoredChains(chains.reader, family).revisions
        self._there = self._already_there()
        self._threads = ThreadPoolExecutor(_SENT_AT_ONCE, thread_name_prefix="rollbook-log")
        self.new = 0

    def __enter__(self) -> _Logger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _already_there(self) -> dict[tuple[Any, str | None], str]:
        """Ready episodes of this store by row and policy version. Unfinished episodes do not count."""
        found = self._client.episodes(
            policy_version=self._policy_version,
            status="ready",
            metadata={ROLLOUT_METADATA: {"store_content_sha256": self._chains.digest}},
        )
        return {
            (each.metadata[ROLLOUT_METADATA].get("rollout_row_id"), each.policy_version): each.id
            for each in found
            if each.source != "replay"
        }

    def log(self, rows: list[int]) -> list[str]:
        """Logs the missing chains. Returns the ids of all of them."""
        records = [self._chains.record(row, self._policy_version) for row in rows]
        ids = [
            self._there.get((row, each.policy_version))
            for row, each in zip(rows, records, strict=True)
        ]
        missing = [at for at, each in enumerate(ids) if each is None]
        revisions = self._revisions(np.array([rows[at] for at in missing], np.int64))
        sending = [
            self._threads.submit(self._send, rows[at], records[at], revision)
            for at, revision in zip(missing, revisions, strict=True)
        ]
        sent = [each.result() for each in sending]
        bodies = [each.finalize for each in sent if each.finalize is not None]
        if bodies:
            finalize_episodes(self._client, bodies)
        self.new += len(bodies)
        made = iter(sent)
        return [next(made).episode_id if each is None else each for each in ids]

    def _send(self, row: int, record: EpisodeRecord, revision: PolicyRevision) -> _Sent:
        """Creates the episode of a chain, or finds the one that an earlier call left, and uploads its files."""
        chain = self._chain(row, record, revision)
        created = self._created(chain.create(self._tags))
        if created.status == "ready":
            return _Sent(created.episode_id, None)
        urls = urls_by_kind(created.upload_urls)
        if chain.files.keys() - urls.keys():
            message = "this server stores no files, only metadata; ask whoever runs it for storage"
            raise ConfigurationError(message=message)
        for kind, data in chain.files.items():
            put = self._client.connection.put
            what = f"upload {kind} of a chain"
            finish(put(what, urls[kind].url, CONTENT_TYPES[kind], data))
        return _Sent(created.episode_id, chain.finalize(created.episode_id))

    def _chain(self, row: int, record: EpisodeRecord, revision: PolicyRevision) -> _Chain:
        states, metadata = self._chains.states(row), dict(record.metadata)
        if states.start == states.stop:
            return _Chain(record, metadata, revision, {})
        files: dict[ArtifactKind, bytes] = {
            "sensors": _encoded(self._chains.observations(states)),
            "actions": _encoded(self._chains.actions(row)),
        }
        assert record.fps is not None
        seen = depth_video(self._chains.reader, states, record.fps) if self._video else None
        if seen is not None:
            files["video"] = seen.data
            metadata["depth_video"] = {"near_m": seen.near_m, "far_m": seen.far_m}
        return _Chain(record, metadata, revision, files)

    def _created(self, body: dict[str, Any]) -> EpisodeCreated:
        """The same body has the same key, and gets the same episode, unless that was deleted or archived since."""
        key = digest_of(_KEY_DOMAIN, body)
        for number in range(_MOST_KEYS):
            try:
                created = finish(
                    create_episode(self._client.connection, body, f"chain-{key}-{number}")
                )
            except ConflictError as error:
                if wire_code(error) != IdempotencyConflict.code:
                    raise
                continue
            if created.status != "archived":
                return created
        message = f"the episode of {body['name']!r} was deleted or archived {_MOST_KEYS} times"
        raise ConfigurationError(message=message)


def _encoded(arrays: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    write_npz(target, arrays)
    return target.getvalue()

"""Logs chains of a rollout store as episodes on a server, so that a decision can be traced back to source rows.

The sensors of such an episode are what the actor knew, its actions are what was chosen. Its metadata names the store by
content digest, the row of the chain, its source row and its target. The rewards stay in the store, where they can be
checked.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rollbook.client import Client
from rollbook.client.bodies import create_body
from rollbook.client.ingest import urls_by_kind
from rollbook.client.runtime import finish
from rollbook.contracts.episode import CONTENT_TYPES, ArtifactKind
from rollbook.contracts.npz import write_npz
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError
from rollbook.evals.server_calls import create_episodes, finalize_episodes
from rollbook.evals.store_baselines import ROLLOUT_METADATA, StoreBaselines

CHAINS_AT_ONCE = 32
"""Created in one call, and finalized in one."""
_PUTS_AT_ONCE = 8


def log_chains(
    client: Client,
    store_path: str | os.PathLike[str],
    *,
    policy_version: str | None = None,
    policy: str | None = None,
    rows: Sequence[int] | None = None,
    limit: int | None = None,
    tags: Sequence[str] | None = None,
    on_logged: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Logs each chain once, and returns the ids of the episodes in the order of rows.

    `policy`, `rows` and `limit` choose chains, as in StoreBaselines. `policy_version` is by default the store's name of
    the policy of each chain; chains of several policies cannot be given one version.

    A chain whose episode exists already is not logged again, so a failed call can be repeated. Two processes that log
    the same store at the same time may log a chain twice. `on_logged(done, total)` is called as episodes are stored.
    """
    chains = StoreBaselines(store_path, policy=policy, rows=rows, limit=limit)
    chains.check_version(policy_version, field="policy_version", choose="policy=")
    ids: list[str] = []
    with _Logger(client, chains, policy_version, tags) as logger:
        for first in range(0, len(chains), CHAINS_AT_ONCE):
            ids += logger.log(chains.rows[first : first + CHAINS_AT_ONCE].tolist())
            if on_logged is not None:
                on_logged(len(ids), len(chains))
    return ids


@dataclass(frozen=True, slots=True)
class _Chain:
    """The episode and the files of one chain."""

    record: EpisodeRecord
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
            metadata=record.metadata,
            tags=tags,
            policy_revision=record.policy_revision or None,
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


class _Logger:
    def __init__(
        self,
        client: Client,
        chains: StoreBaselines,
        policy_version: str | None,
        tags: Sequence[str] | None,
    ) -> None:
        self._client = client
        self._chains = chains
        self._policy_version = policy_version
        self._tags = tags
        self._there = self._already_there()
        self._puts = ThreadPoolExecutor(_PUTS_AT_ONCE, thread_name_prefix="rollbook-log")

    def __enter__(self) -> _Logger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._puts.shutdown(cancel_futures=True)

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
        missing = [
            _Chain(record, self._files(row))
            for row, record, there in zip(rows, records, ids, strict=True)
            if there is None
        ]
        made = iter(self._create_and_fill(missing) if missing else ())
        return [next(made) if each is None else each for each in ids]

    def _files(self, row: int) -> dict[ArtifactKind, bytes]:
        states = self._chains.states(row)
        if states.start == states.stop:
            return {}
        return {
            "sensors": _encoded(self._chains.observations(states)),
            "actions": _encoded(self._chains.actions(row)),
        }

    def _create_and_fill(self, chains: list[_Chain]) -> list[str]:
        created = create_episodes(self._client, [each.create(self._tags) for each in chains])
        urls = [urls_by_kind(each.upload_urls) for each in created]
        if any(
            chain.files.keys() - there.keys() for chain, there in zip(chains, urls, strict=True)
        ):
            message = "this server stores no files, only metadata; ask whoever runs it for storage"
            raise ConfigurationError(message=message)
        sent = [
            self._puts.submit(self._put, there[kind].url, kind, data)
            for chain, there in zip(chains, urls, strict=True)
            for kind, data in chain.files.items()
        ]
        for each in sent:
            each.result()
        ids = [each.episode_id for each in created]
        bodies = [chain.finalize(each) for each, chain in zip(ids, chains, strict=True)]
        finalize_episodes(self._client, bodies)
        return ids

    def _put(self, url: str, kind: ArtifactKind, data: bytes) -> None:
        put = self._client.connection.put
        finish(put(f"upload {kind} of a chain", url, CONTENT_TYPES[kind], data))


def _encoded(arrays: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    write_npz(target, arrays)
    return target.getvalue()

"""ServerRecords: what a server knows, asked for once in a walk. An id that it does not have gives None, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from msgspec import UNSET

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.evidence import EvidenceArtifact, EvidenceEpisode
from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.source_file import SOURCE_FILE_KEY, SourceFile
from rollbook.contracts.wire.batches import EpisodeFound, EpisodesFound
from rollbook.contracts.wire.eval_runs import EpisodeUses, EvalRunAnswer
from rollbook.contracts.wire.evidence import EvidenceKey
from rollbook.contracts.wire.limits import MOST_IN_A_BATCH
from rollbook.contracts.wire.lineage import BatchList, RevisionAnswer, RevisionList
from rollbook.digest import sha256
from rollbook.errors import NotFoundError
from rollbook.lineage.evidence import Evidence, open_evidence

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.client.http import Answer
    from rollbook.contracts.rl.batch import TrainerBatch

_MOST_EPISODES_ASKED = 50

T = TypeVar("T")


class ServerRecords:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.place = client.base_url
        self.run = cache(self._run)
        self.evidence = cache(self._evidence)
        self.revisions = cache(self._revisions)
        self.batches = cache(self._batches)
        self.key = cache(self._key)

    def _run(self, run_id: str) -> EvalRunAnswer | None:
        return self._asked(EvalRunAnswer, "read an eval run", f"/api/eval-runs/{_quoted(run_id)}")

    def evidence_bytes(self, run_id: str) -> bytes:
        from rollbook.client.runtime import finish

        path = f"/api/eval-runs/{_quoted(run_id)}/evidence"
        return finish(self._client.connection.read("read the evidence of an eval run", path))

    def _evidence(self, run_id: str) -> Evidence:
        place = f"{self.place}/api/eval-runs/{run_id}/evidence"
        return open_evidence(self.evidence_bytes(run_id), place, key=self.key())

    def _key(self) -> str:
        found = self._asked(EvidenceKey, "read the key of the server", "/api/evidence-key")
        assert found is not None, "every server has a key"
        return found.public_key

    def _revisions(self, name: str) -> list[RevisionAnswer]:
        path = f"/api/policy-revisions/{_quoted(name)}"
        found = self._asked(RevisionList, "read a policy revision", path)
        return [] if found is None else found.revisions

    def _batches(self, batch_id: str) -> list[TrainerBatch]:
        path = f"/api/trainer-batches/{_quoted(batch_id)}"
        found = self._asked(BatchList, "read a trainer batch", path)
        return [] if found is None else [each.batch for each in found.batches]

    # ---------------------------------------------------------------------------------- episodes

    def episodes(self, ids: Sequence[str]) -> dict[str, EvidenceEpisode]:
        """Those that the server has, by id."""
        from rollbook.client.runtime import finish

        found: dict[str, EvidenceEpisode] = {}
        for first in range(0, len(ids), MOST_IN_A_BATCH):
            asked = {"ids": list(ids[first : first + MOST_IN_A_BATCH]), "urls": False}
            answer = finish(
                self._client.connection.call(
                    "look up episodes",
                    "POST",
                    "/api/episodes/lookup",
                    answer=EpisodesFound,
                    body=asked,
                    safe_to_resend=True,
                )
            )
            for each in answer.episodes:
                metadata = each.metadata
                if each.metadata_truncated:
                    metadata = self._client.episode(each.id).read_metadata()
                found[each.id] = _episode(each, metadata)
        return found

    def episodes_of_store(self, digest: str) -> dict[str, int]:
        """Episodes that were logged from chains of a store, replays left out: by id, with the row of the chain."""
        about = {ROLLOUT_METADATA: {"store_content_sha256": digest}}
        found = self._client.episodes(status="ready", metadata=about)
        return {
            each.id: each.metadata[ROLLOUT_METADATA].get("rollout_row_id")
            for each in found
            if each.source != "replay"
        }

    def episodes_of_file(self, digest: str) -> list[str]:
        """Ids of the episodes that were imported from the file or the files with this digest."""
        about = {SOURCE_FILE_KEY: {"digest": digest}}
        return [each.id for each in self._client.episodes(metadata=about)]

    def sources_named(self, name: str) -> list[SourceFile]:
        """What episodes say about the folders with this name that they were imported from, each once."""
        return self._sources({"name": name})

    def sources_with(self, digest: str) -> list[SourceFile]:
        """What episodes say about the file or the files with this digest, once."""
        return self._sources({"digest": digest})

    def _sources(self, about: dict[str, str]) -> list[SourceFile]:
        found = self._client.episodes(metadata={SOURCE_FILE_KEY: about})
        told = (SourceFile.recorded_in(each.metadata) for each in found)
        return list({each.digest: each for each in told if each is not None}.values())

    def runs_of_episodes(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """Eval runs that have some of these episodes as baselines, each with its baselines among them. Asked for the
        first episodes only, where they are many: the others are mostly in the same runs."""
        runs: dict[str, list[str]] = {}
        for episode_id in ids[:_MOST_EPISODES_ASKED]:
            path = f"/api/episodes/{_quoted(episode_id)}/eval-runs"
            found = self._asked(EpisodeUses, "read the uses of an episode", path)
            for use in () if found is None else found.eval_runs:
                if not use.is_replay:
                    runs.setdefault(use.eval_run_id, []).append(episode_id)
        return runs

    def artifact_sha256(self, episode_id: str, kind: ArtifactKind) -> str:
        """Of the bytes that the server has now. No cache is used: it would hide what happened to them."""
        from rollbook.client.runtime import finish

        connection, what = self._client.connection, f"download {kind} of episode {episode_id}"
        route = f"/api/episodes/{_quoted(episode_id)}/artifact/{kind}"
        sink = _Hashed()
        finish(connection.get(what, finish(connection.where(what, route)), sink))
        return sink.digest.hexdigest()

    def _asked(self, answer: type[T], what: str, path: str) -> T | None:
        from rollbook.client.runtime import finish

        try:
            return finish(self._client.connection.call(what, "GET", path, answer=answer))
        except NotFoundError:
            return None


class _Hashed:
    """A sink that keeps the digest only."""

    def __init__(self) -> None:
        self.digest = sha256()

    def begin(self, answer: Answer) -> None:
        self.digest = sha256()

    def write(self, piece: bytes) -> None:
        self.digest.update(piece)


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _episode(found: EpisodeFound, metadata: dict[str, Any]) -> EvidenceEpisode:
    rollout, imported = metadata.get(ROLLOUT_METADATA), metadata.get(SOURCE_FILE_KEY)
    return EvidenceEpisode(
        id=found.id,
        status=found.status,
        source=found.source,
        policy_version=found.policy_version,
        env_version=found.env_version,
        seed=found.seed,
        artifacts=[
            EvidenceArtifact(each.kind, each.size, each.sha256)
            for each in sorted(found.artifacts, key=lambda each: each.kind)
        ],
        missing_artifacts=sorted(found.missing_artifacts),
        rollout=rollout if isinstance(rollout, dict) else None,
        policy_revision=found.policy_revision,
        source_file=imported if isinstance(imported, dict) else UNSET,
    )

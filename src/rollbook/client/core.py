"""ClientCore: everything that Client and AsyncClient can do, written once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from rollbook.client.artifact_files import ArtifactFile, ArtifactFiles, Frames, Given
from rollbook.client.bodies import create_body, finalize_body
from rollbook.client.cache import Cache
from rollbook.client.connection import Connection
from rollbook.client.delivery import Courier, Delivery, DeliveryRound
from rollbook.client.listing import Listing, search_terms
from rollbook.client.recorded import RecordedCore
from rollbook.client.recording import Recording, RecordingPlace
from rollbook.client.spool import Spool
from rollbook.client.uploads import OnProgress
from rollbook.contracts.episode import ARTIFACT_KINDS, ArtifactKind, EpisodeSource, FinalStatus
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.streams import Clocks
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.contracts.rl.batch import TrainerBatch
    from rollbook.contracts.wire.lineage import RevisionRecorded, StoreRows

T = TypeVar("T")


class ClientCore:
    def __init__(
        self,
        connection: Connection,
        cache: Cache,
        *,
        spool: Spool | None,
        courier: Courier | None,
        multipart_above: int,
        verbose: bool,
    ) -> None:
        self.connection = connection
        self.spool = spool
        self.cache = cache
        self._courier = courier
        self._multipart_above = multipart_above
        self._verbose = verbose
        self._place = RecordingPlace(connection, spool, multipart_above, self._reached)

    # ---------------------------------------------------------------------------------- recording

    async def start_episode(
        self,
        *,
        name: str | None = None,
        source: EpisodeSource = "real",
        robot: str | None = None,
        policy_version: str | None = None,
        env_version: str | None = None,
        git_sha: str | None = None,
        seed: int | None = None,
        fps: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        artifacts: Iterable[ArtifactKind] = ARTIFACT_KINDS,
        policy_revision: PolicyRevision | None = None,
    ) -> Recording:
        """Opens an episode. `upload` artifacts into it and `finalize` it, or use it as a context manager.

        `policy_version`, `env_version`, `git_sha` and `seed` say how the run can be repeated. `metadata` takes JSON
        values, NumPy values and the typed values of rollbook.client. `artifacts`: the kinds that will be uploaded.
        `policy_revision` says exactly which policy ran; without a `policy_version`, its `revision_id` is the version.
        """
        body = create_body(
            source=source,
            artifacts=artifacts,
            texts={
                "name": name,
                "robot": robot,
                "policy_version": policy_version,
                "env_version": env_version,
                "git_sha": git_sha,
            },
            seed=seed,
            fps=fps,
            metadata=metadata,
            tags=tags,
            policy_revision=policy_revision,
        )
        return await self._begin(body)

    async def log_episode(
        self,
        *,
        name: str | None = None,
        source: EpisodeSource = "real",
        robot: str | None = None,
        policy_version: str | None = None,
        env_version: str | None = None,
        git_sha: str | None = None,
        seed: int | None = None,
        video: str | os.PathLike[str] | Frames | None = None,
        sensors: Given | None = None,
        actions: Given | None = None,
        t_ns: Clocks | None = None,
        duration_s: float | None = None,
        fps: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        status: FinalStatus = "ready",
        failure_time_s: float | None = None,
        on_progress: OnProgress | None = None,
        policy_revision: PolicyRevision | None = None,
        idempotency_key: str | None = None,
    ) -> Recording:
        """Records a whole episode in one call: creates it, uploads the given files, and finalizes it.

        `sensors` and `actions` are files, or arrays by key (`{"/joint_states/position": array}`) with `t_ns`, their
        times in nanoseconds: one clock for all arrays, or one for each namespace; a clock has to rise. `video` is a
        file, or frames (uint8, the first axis counts them) that are encoded at `fps`. All arguments are checked before
        anything is created. If an upload fails, the episode is finalized as failed and the error is raised. With a
        spool, the episode is noted there before anything is sent: if the program is killed, the next delivery finishes
        it, and parts that have arrived are not sent again.

        A second call with the same `idempotency_key` and the same facts goes on in the episode of the first call; if
        that has ended, nothing is sent, and `status` says how it ended.
        """
        ending = finalize_body(
            status=status, duration_s=duration_s, fps=fps, failure_time_s=failure_time_s
        )
        given: dict[ArtifactKind, Given | None] = {
            "video": video,
            "sensors": sensors,
            "actions": actions,
        }
        files = await self.connection.runtime.in_thread(partial(ArtifactFiles, given, t_ns, fps))
        with files:
            body = create_body(
                source=source,
                artifacts=files.by_kind,
                texts={
                    "name": name,
                    "robot": robot,
                    "policy_version": policy_version,
                    "env_version": env_version,
                    "git_sha": git_sha,
                },
                seed=seed,
                fps=fps,
                metadata=metadata,
                tags=tags,
                policy_revision=policy_revision,
            )
            recording = await self._begin(body, files.by_kind.values(), ending, idempotency_key)
            if recording.finalized:
                return recording
            try:
                for file in files.by_kind.values():
                    await recording.upload_file(file, on_progress)
            except Exception as error:
                await recording.fail(f"upload error: {error}")
                raise
            await recording.finalize_with(ending)
        return recording

    async def deliver(
        self,
        *,
        retry_refused: bool = False,
        for_any_server: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Delivery:
        """Sends every episode that waits in the spool, each exactly once, and reports the outcome of each.

        Episodes recorded for another server keep waiting unless `for_any_server`. `retry_refused` also sends the
        episodes that the server refused before. Raises LeaseHeld while another process delivers from the same folder.
        """
        if self.spool is None:
            raise ConfigurationError(message="there is no spool; make the client with spool=FOLDER")
        if self._courier is not None:
            await self.connection.runtime.in_thread(self._courier.wait)
        if retry_refused:
            self.spool.take_back_refused()
        delivery = DeliveryRound(
            self.spool,
            self.connection,
            multipart_above=self._multipart_above,
            for_any_server=for_any_server,
            on_progress=on_progress,
        )
        return await delivery.run()

    # --------------------------------------------------------------------------------- reading back

    async def episode(self, episode_id: str) -> RecordedCore:
        """Reads one episode. Raises NotFoundError for an unknown id and for an episode of another organisation."""
        return self._recorded(await self._call(EpisodeRecord, "read", "GET", episode_id))

    def listing(
        self,
        *,
        policy_version: str | None = None,
        env_version: str | None = None,
        git_sha: str | None = None,
        seed: int | None = None,
        status: str | None = None,
        source: str | None = None,
        robot: str | None = None,
        name: str | None = None,
        tag: str | Iterable[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        with_archived: bool = False,
        limit: int | None = None,
    ) -> Listing:
        """Episodes that match every filter, newest first, fetched page by page as you iterate.

        `name`: a part of the name. `tag`: one tag or several; an episode needs all of them. `metadata`: values that the
        metadata must contain, such as `{"task": {"name": "pick"}}`. `since` (included) and `until` (excluded) are times
        of creation. `limit`: the greatest number of episodes.
        """
        wanted = {
            "policy_version": policy_version,
            "env_version": env_version,
            "git_sha": git_sha,
            "seed": seed,
            "status": status,
            "source": source,
            "robot": robot,
            "name": name,
            "with_archived": "true" if with_archived else None,
        }
        query = [(key, str(value)) for key, value in wanted.items() if value is not None]
        query += search_terms(tag, metadata, since, until)
        return Listing(self.connection, self._recorded, query, limit)

    async def delete_episode(self, episode_id: str) -> None:
        """Deletes the episode and its artifacts. This cannot be undone."""
        await self._call(dict[str, Any], "delete", "DELETE", episode_id)

    async def archive_episode(self, episode_id: str) -> None:
        """Hides the episode from lists and closes it to changes, until it is restored."""
        await self._call(dict[str, Any], "archive", "POST", episode_id, "/archive")

    async def restore_episode(self, episode_id: str) -> None:
        await self._call(dict[str, Any], "restore", "POST", episode_id, "/restore")

    async def record_revision(
        self,
        revision: PolicyRevision,
        *,
        batches: Sequence[TrainerBatch] = (),
        stores: Sequence[StoreRows] = (),
        episode_ids: Sequence[str] = (),
    ) -> RevisionRecorded:
        """Records a policy revision and what it was trained on. The same again changes nothing.

        `batches` have to train this revision. `stores` are rows of rollout stores, by content digest. The portal shows
        all of it at `/portal/lineage/{id}`.
        """
        # loads the contracts of training, which most programs never need
        from rollbook.contracts.wire.lineage import RevisionRecorded

        body = {
            "revision": msgspec.to_builtins(revision),
            "batches": [msgspec.to_builtins(each) for each in batches],
            "stores": [msgspec.to_builtins(each) for each in stores],
            "episode_ids": list(episode_ids),
        }
        return await self.connection.call(
            "record a policy revision",
            "POST",
            "/api/policy-revisions",
            answer=RevisionRecorded,
            body=body,
            safe_to_resend=True,
        )

    async def call(
        self,
        what: str,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        safe_to_resend: bool = False,
        slow: bool = False,
    ) -> dict[str, Any]:
        """Calls a JSON route that has no method here. `what` says in words what it does, for error messages.

        `safe_to_resend`: the server may receive the request twice without harm, so it is sent again after a lost
        answer. `slow`: the answer may take minutes.
        """
        return await self.connection.call(
            what,
            method,
            path,
            answer=dict[str, Any],
            body=body,
            headers=headers,
            slow=slow,
            safe_to_resend=safe_to_resend,
        )

    async def close(self) -> None:
        """Closes the connections. Episodes in the spool stay there. A second call does nothing."""
        if self._courier is not None:
            await self.connection.runtime.in_thread(self._courier.stop)
        await self.connection.runtime.close()

    # ------------------------------------------------------------------------------------- helpers

    async def _call(
        self, answer: type[T], verb: str, method: str, episode_id: str, suffix: str = ""
    ) -> T:
        if not episode_id:
            raise ConfigurationError(message=f"cannot {verb} an episode without an id")
        path = f"/api/episodes/{quote(episode_id, safe='')}{suffix}"
        return await self.connection.call(f"{verb} the episode", method, path, answer=answer)

    async def _begin(
        self,
        body: dict[str, Any],
        files: Iterable[ArtifactFile] = (),
        ending: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Recording:
        recording = Recording(self._place, body, idempotency_key)
        await recording.create(files, ending)
        self._announce(recording)
        return recording

    def _recorded(self, record: EpisodeRecord) -> RecordedCore:
        return RecordedCore(self.connection, self.cache, record)

    def _reached(self) -> None:
        """Starts a delivery: an episode has reached the server, so the waiting ones can reach it too."""
        if self._courier is not None:
            self._courier.start()

    def _announce(self, recording: Recording) -> None:
        if self._verbose and recording.id is not None:
            url = f"{self.connection.base_url}/portal/episodes/{recording.id}"
            sys.stdout.write(f"[rollbook] → {url}\n")
            sys.stdout.flush()

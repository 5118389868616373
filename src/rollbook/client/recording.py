"""Recording: an episode between start and finalize, on the server or, without network, in the spool.

With a spool, every step is noted in the episode's draft before it is taken. So a delivery can finish the episode when
the program is killed: it asks the server which parts have arrived, and sends the others.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from numpy.typing import ArrayLike

from rollbook.client.artifact_files import ArtifactFile, ArtifactFiles, Given, checked_kind
from rollbook.client.bodies import finalize_body, with_artifacts
from rollbook.client.connection import Connection
from rollbook.client.ingest import abort_upload, create_episode, finalize_episode, urls_by_kind
from rollbook.client.spool import Spool, SpoolDraft
from rollbook.client.step_columns import STEP_KINDS
from rollbook.client.step_recorder import StepRecorder
from rollbook.client.uploads import OnProgress, Uploaded, Uploader
from rollbook.contracts.episode import ArtifactKind, FinalStatus
from rollbook.contracts.streams import Clocks
from rollbook.contracts.wire.uploads import UploadUrl
from rollbook.errors import ConfigurationError, RollbookError, StorageError

_log = logging.getLogger("rollbook.client")

T = TypeVar("T")
StepValue: TypeAlias = "ArrayLike | Mapping[str, Any]"
"""A number, an array, or a dict of them, also nested."""


@dataclass(frozen=True, slots=True)
class RecordingPlace:
    """Where episodes go."""

    connection: Connection
    spool: Spool | None
    multipart_above: int
    reached: Callable[[], None]
    """Called after an episode was finalized on the server."""


class Recording:
    """The core of Episode and AsyncEpisode."""

    def __init__(
        self, place: RecordingPlace, body: dict[str, Any], idempotency_key: str | None = None
    ) -> None:
        """The same key and the same body mean the same episode. Without a key it is a new one."""
        self.id: str | None = None
        """None for an episode that is in the spool and was not created on the server."""
        self.status = "recording"
        self.storage = "unconfigured"
        self.upload_urls: dict[ArtifactKind, UploadUrl] = {}
        self.finalized = False
        self._place = place
        self._body = body
        self._key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        self._draft: SpoolDraft | None = None
        """Its journal in the spool; None without a spool, or when the spool cannot be written."""
        self._offline = False
        """Set when the network is gone: from then on the episode is recorded into the spool."""
        self._uploaded: dict[ArtifactKind, Uploaded] = {}
        self._begun: dict[ArtifactKind, tuple[str, tuple[object, ...]]] = {}
        self._journalled: set[ArtifactKind] = set()
        """Files that the draft has known since the beginning."""
        self._steps: StepRecorder | None = None
        self._stepped: set[ArtifactKind] = set()
        """Artifacts that steps and frames become."""
        self._making_steps = threading.Lock()
        self._ending = False
        """Set when the episode begins to end: it takes no more steps and frames."""

    async def create(
        self, files: Iterable[ArtifactFile] = (), ending: dict[str, Any] | None = None
    ) -> None:
        """`files` and `ending`: what will be uploaded, and how it will end, if that is known."""

        async def online() -> None:
            created = await create_episode(self._place.connection, self._body, self._key)
            self.id, self.status = created.episode_id, created.status
            self.storage, self.upload_urls = created.storage, urls_by_kind(created.upload_urls)
            self.finalized = created.status != "recording"
            if self._draft is not None:
                self._draft.note_episode(created.episode_id)

        if self._place.spool is not None:
            await self._in_thread(partial(self._begin_journal, self._place.spool, files, ending))
        try:
            await self._or_spooled(online)
        except RollbookError:
            if self._draft is not None:
                await self._in_thread(self._draft.discard)
            raise
        if self.finalized and self._draft is not None:
            await self._in_thread(self._draft.discard)

    async def step(
        self,
        *,
        obs: StepValue | None = None,
        action: StepValue | None = None,
        reward: float | None = None,
        t: float | None = None,
        t_ns: int | None = None,
    ) -> None:
        """Logs one step: what was observed, what was done, what it earned, and when.

        `obs` and `action` are numbers, arrays, or dicts of them, also nested. The first step fixes their names, types
        and shapes; a step that differs is refused and changes nothing. `t` is in seconds, `t_ns` in nanoseconds, from
        any start; it has to rise. Without a time, steps are `1 / fps` apart if the episode has an `fps`, else they get
        the time that has passed since the first one. Steps are on disk at once: with a spool, a program that is killed
        loses none. `finalize` makes the sensors and actions of them that `log_episode` would make.
        """
        arguments = {"obs": obs, "action": action, "reward": reward}
        given = {name: value for name, value in arguments.items() if value is not None}
        kinds = [STEP_KINDS[name] for name in given]
        self._recorder(kinds).add_step(given, t, t_ns)
        self._stepped.update(kinds)

    async def frame(
        self,
        image: ArrayLike,
        *,
        camera: str | None = None,
        t: float | None = None,
        t_ns: int | None = None,
    ) -> None:
        """Adds a picture to the video of the episode, which is encoded as the pictures come. Needs `rollbook[video]`.

        `image` is uint8: height, width and red-green-blue, or only height and width for a grey one. With several
        cameras, name the `camera` of each picture: the video shows them side by side. Times are those of `step`; the
        video starts with its first frame.
        """
        recorder = self._recorder(["video"])
        await self._in_thread(partial(recorder.add_frame, image, camera, t, t_ns))
        self._stepped.add("video")

    async def upload(
        self,
        kind: ArtifactKind,
        file: Given,
        *,
        t_ns: Clocks | None = None,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Uploads one artifact, a file or arrays with their clock `t_ns`, and returns its size in bytes.

        A video may be frames, which are encoded at the `fps` of the episode.
        `on_progress(kind, sent, total)` is called as bytes leave. Uploading a kind again replaces it.
        """
        if self.finalized:
            raise ConfigurationError(message=f"{kind} cannot be uploaded: the episode is finalized")
        if kind in self._stepped:
            message = (
                f"{kind} cannot be uploaded: steps or frames were logged, which become the {kind}"
            )
            raise ConfigurationError(message=message)
        files = await self._in_thread(
            partial(ArtifactFiles, {checked_kind(kind): file}, t_ns, self._body.get("fps"))
        )
        with files:
            return await self.upload_file(files.by_kind[kind], on_progress)

    async def upload_file(self, file: ArtifactFile, on_progress: OnProgress | None = None) -> int:
        self._check_requested(file.kind)

        async def online() -> None:
            if self._draft is not None and file.kind not in self._journalled:
                await self._in_thread(partial(self._draft.refer, file))
            self._journalled.discard(file.kind)
            self._uploaded[file.kind] = await self._upload(file, on_progress)
            if self._draft is not None:
                self._draft.note_arrival(file.kind, self._uploaded[file.kind])

        if not await self._or_spooled(online):
            assert self._draft is not None
            self._uploaded[file.kind] = await self._in_thread(partial(self._draft.keep, file))
        return file.size

    async def finalize(
        self,
        *,
        status: FinalStatus = "ready",
        duration_s: float | None = None,
        fps: float | None = None,
        bytes_total: int | None = None,
        failure_time_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Ends the episode as `ready` or `failed`. A second call does nothing.

        The server compares every uploaded artifact with its SHA-256. `failure_time_s`, in seconds from the start, is
        allowed with `failed` only. `metadata` is merged into the metadata given at the start.
        """
        body = finalize_body(
            status=status,
            duration_s=duration_s,
            fps=fps,
            failure_time_s=failure_time_s,
            metadata=metadata,
        )
        await self.finalize_with(body, bytes_total)

    async def finalize_with(self, body: dict[str, Any], bytes_total: int | None = None) -> None:
        if self.finalized:
            return
        self._ending = True
        draft = self._draft
        if self._steps is not None:
            body = await self._upload_steps(self._steps, body)
        complete = with_artifacts(body, self._uploaded, bytes_total)
        if draft is not None:
            await self._in_thread(partial(draft.end, with_artifacts(body, {}, bytes_total)))

        async def online() -> None:
            assert self.id is not None
            self.status = await finalize_episode(
                self._place.connection, self.id, complete, patient=draft is None
            )

        if await self._or_spooled(online):
            if draft is not None:
                await self._in_thread(draft.discard)
            self._place.reached()
        else:
            assert draft is not None
            if self._steps is not None:
                await self._in_thread(self._steps.discard)
            await self._in_thread(partial(draft.commit, complete))
            self.status = "spooled"
        if self._steps is not None:
            await self._in_thread(self._steps.discard)
        self.finalized = True

    async def _upload_steps(self, steps: StepRecorder, body: dict[str, Any]) -> dict[str, Any]:
        """Uploads what the steps and frames become. Returns the body that finalizes, with what they say.

        The end is noted first: a delivery that finds the steps then ends the episode as the program wanted.
        """
        if self._draft is not None:
            await self._in_thread(partial(self._draft.end, body))
        finished = await self._in_thread(steps.finish)
        for kind, path in finished.files.items():
            await self.upload_file(ArtifactFile(kind, path, path.stat().st_size, is_ours=True))
        return finished.ending(body, self._body)

    async def leave(self, error: BaseException | None) -> None:
        """The end of a `with` block. An error inside the block is more important than one raised here."""
        if self.finalized:
            return
        if error is None:
            await self.finalize()
            return
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        await self.fail(reason)

    async def fail(self, reason: str) -> None:
        """Finalizes as failed if that is possible. Never raises: the caller raises an error of its own."""
        try:
            await self._abort_uploads()
            await self.finalize(status="failed", metadata={"failure_reason": reason})
        except Exception as problem:  # noqa: BLE001 - the caller raises the first one
            _log.warning("episode %s stays %s: %s", self.id, self.status, problem)

    # ------------------------------------------------------------------------------------ helpers

    def _recorder(self, kinds: Iterable[ArtifactKind]) -> StepRecorder:
        """For steps or frames that become artifacts of these kinds."""
        if self._ending or self.finalized:
            message = "the episode is finalized: it takes no more steps and frames"
            raise ConfigurationError(message=message)
        for kind in kinds:
            if kind not in self._stepped:
                self._check_requested(kind)
                if kind in self._uploaded:
                    message = f"steps and frames become the {kind}, which was uploaded before"
                    raise ConfigurationError(message=message)
        with self._making_steps:
            if self._steps is None:
                journal = None if self._draft is None else self._draft.folder
                self._steps = StepRecorder(journal, self._body.get("fps") or None)
            return self._steps

    def _check_requested(self, kind: ArtifactKind) -> None:
        if kind not in self._body["request_uploads"]:
            message = f"the episode was started without {kind}; name it in artifacts="
            raise ConfigurationError(message=message)
        if self.storage == "unconfigured":
            message = "this server stores no files, only metadata; ask whoever runs it for storage"
            raise ConfigurationError(message=message)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._place.connection.runtime.in_thread(work)

    def _begin_journal(
        self, spool: Spool, files: Iterable[ArtifactFile], ending: dict[str, Any] | None
    ) -> None:
        try:
            self._draft = spool.draft(
                base_url=self._place.connection.base_url,
                idempotency_key=self._key,
                create=self._body,
                files=files,
                finalize=ending,
            )
        except (
            StorageError
        ) as error:  # a full disk must not stop a recording that the network can take
            _log.warning(
                "this episode is sent without a journal, and lost if that fails: %s", error
            )
        else:
            self._journalled = set(self._draft.facts.files)

    async def _or_spooled(self, online: Callable[[], Awaitable[None]]) -> bool:
        """False when there is no network. From then on this episode is recorded into the spool."""
        if self._offline:
            return False
        try:
            await online()
        except RollbookError as error:
            if self._draft is None or not error.retryable:
                raise
            self._place.connection.presumed_down = True
            _log.warning("recording into %s: %s", self._draft.folder.parent, error)
        else:
            return True
        self._offline = True
        self.storage = "spool"
        return False

    async def _abort_uploads(self) -> None:
        """Has the server remove the parts of files that did not arrive. What it does not hear of it removes in time."""
        assert self.id is not None or not self._begun
        for kind, (upload_id, _) in self._begun.items():
            if kind not in self._uploaded:
                with suppress(RollbookError):
                    await abort_upload(self._place.connection, self.id or "", upload_id)

    async def _upload(self, file: ArtifactFile, on_progress: OnProgress | None) -> Uploaded:
        assert self.id is not None
        found = file.path.stat()
        identity = (str(file.path), found.st_ino, found.st_size, found.st_mtime_ns)
        begun = self._begun.get(file.kind)

        def began(kind: ArtifactKind, upload_id: str) -> None:
            self._begun[kind] = (upload_id, identity)
            if self._draft is not None:
                self._draft.note_upload(kind, upload_id)

        uploader = Uploader(
            self._place.connection,
            self.id,
            self.upload_urls,
            multipart_above=self._place.multipart_above,
            began=began,
            patient=self._draft is None,
        )
        resume = begun[0] if begun is not None and begun[1] == identity else None
        return await uploader.upload(file, on_progress, resume)

"""Episode: what `start_episode` and `log_episode` return, and its async twin."""

from __future__ import annotations

from types import TracebackType

from rollbook.client.facade import Facade, awaiting, blocking
from rollbook.client.recording import Recording
from rollbook.client.runtime import finish
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.wire.uploads import UploadUrl
from rollbook.notebook import card


class EpisodeState(Facade[Recording]):
    @property
    def id(self) -> str | None:
        """None while the episode is in the spool and the server does not know it."""
        return self._core.id

    @property
    def status(self) -> str:
        """`recording`, `ready` or `failed`; `spooled` if the episode was finalized without network."""
        return self._core.status

    @property
    def storage(self) -> str:
        return self._core.storage

    @property
    def upload_urls(self) -> dict[ArtifactKind, UploadUrl]:
        return self._core.upload_urls

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, status={self.status!r})"

    def _repr_html_(self) -> str:
        """In a notebook."""
        place = self.id or "in the spool; the server does not know it yet"
        return card("Episode", [("id", place), ("status", self.status), ("storage", self.storage)])


class Episode(EpisodeState):
    """As a context manager: a block without error finalizes the episode as ready, an exception as failed."""

    step = blocking(Recording.step)
    frame = blocking(Recording.frame)
    upload = blocking(Recording.upload)
    finalize = blocking(Recording.finalize)

    def __enter__(self) -> Episode:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        finish(self._core.leave(error))


class AsyncEpisode(EpisodeState):
    step = awaiting(Recording.step)
    frame = awaiting(Recording.frame)
    upload = awaiting(Recording.upload)
    finalize = awaiting(Recording.finalize)

    async def __aenter__(self) -> AsyncEpisode:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._core.leave(error)

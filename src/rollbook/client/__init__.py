"""The SDK: record episodes from a robot, a simulator or a training job, and read them back.

with rollbook.client.Client() as client:
    client.log_episode(name="pick 12", policy_version="v4", sensors="sensors.npz", video="run.mp4")

`core` holds everything a client can do, once; `client` has the blocking and the async form of it. `connection`, `http`
and `runtime` send requests and decode answers into the messages of `rollbook.contracts.wire`. `spool` and `delivery`
keep episodes while there is no network. Only `evals`, `adapters` and `cli` import this room.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.client.client import (
        AsyncClient as AsyncClient,
        Client as Client,
    )
    from rollbook.client.connection import (
        Retries as Retries,
    )
    from rollbook.client.credentials import (
        ENV_API_KEY as ENV_API_KEY,
        ENV_BASE_URL as ENV_BASE_URL,
        ENV_HOME as ENV_HOME,
        ENV_QUIET as ENV_QUIET,
    )
    from rollbook.client.default import (
        close as close,
        default_client as default_client,
        init as init,
        log_episode as log_episode,
        start_episode as start_episode,
    )
    from rollbook.client.delivery import (
        Delivery as Delivery,
    )
    from rollbook.client.episode import (
        AsyncEpisode as AsyncEpisode,
        Episode as Episode,
    )
    from rollbook.client.recorded import (
        AsyncRecordedEpisode as AsyncRecordedEpisode,
        RecordedEpisode as RecordedEpisode,
    )
    from rollbook.client.spool import (
        Spool as Spool,
    )
    from rollbook.contracts.episode import (
        ArtifactKind as ArtifactKind,
        EpisodeSource as EpisodeSource,
        FinalStatus as FinalStatus,
    )
    from rollbook.contracts.typed_metadata import (
        Battery as Battery,
        EpisodeOutcome as EpisodeOutcome,
        Imu as Imu,
        JointState as JointState,
        Pose3D as Pose3D,
        Twist as Twist,
    )
    from rollbook.contracts.wire.uploads import (
        UploadUrl as UploadUrl,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.client.client": ("AsyncClient", "Client"),
            "rollbook.client.connection": ("Retries",),
            "rollbook.client.credentials": (
                "ENV_API_KEY",
                "ENV_BASE_URL",
                "ENV_HOME",
                "ENV_QUIET",
            ),
            "rollbook.client.default": (
                "close",
                "default_client",
                "init",
                "log_episode",
                "start_episode",
            ),
            "rollbook.client.delivery": ("Delivery",),
            "rollbook.client.episode": ("AsyncEpisode", "Episode"),
            "rollbook.client.recorded": ("AsyncRecordedEpisode", "RecordedEpisode"),
            "rollbook.client.spool": ("Spool",),
            "rollbook.contracts.episode": ("ArtifactKind", "EpisodeSource", "FinalStatus"),
            "rollbook.contracts.typed_metadata": (
                "Battery",
                "EpisodeOutcome",
                "Imu",
                "JointState",
                "Pose3D",
                "Twist",
            ),
            "rollbook.contracts.wire.uploads": ("UploadUrl",),
        },
        extra="client",
    )

"""The SDK: record episodes from a robot, a simulator or a training job, and read them back.

with rollbook.client.Client() as client:
    client.log_episode(name="pick 12", policy_version="v4", sensors="sensors.npz", video="run.mp4")
"""

from importlib.util import find_spec

from rollbook.errors import ConfigurationError

if find_spec("httpx") is None:
    raise ConfigurationError(
        message="the SDK needs httpx, which is not installed: pip install 'rollbook[client]'"
    )

from rollbook.client.async_client import AsyncClient
from rollbook.client.client import Client
from rollbook.client.credentials import ENV_API_KEY, ENV_BASE_URL, ENV_HOME, ENV_QUIET
from rollbook.client.default import close, default_client, init, log_episode, start_episode
from rollbook.client.delivery import Delivery
from rollbook.client.episode import AsyncEpisode, Episode
from rollbook.client.recorded import AsyncRecordedEpisode, RecordedEpisode
from rollbook.client.retries import Retries
from rollbook.client.spool import Spool
from rollbook.client.uploads import UploadUrl
from rollbook.contracts.episode import ArtifactKind, EpisodeSource, FinalStatus
from rollbook.contracts.typed_metadata import (
    Battery,
    EpisodeOutcome,
    Imu,
    JointState,
    Pose3D,
    Twist,
)

__all__ = [
    "ENV_API_KEY",
    "ENV_BASE_URL",
    "ENV_HOME",
    "ENV_QUIET",
    "ArtifactKind",
    "AsyncClient",
    "AsyncEpisode",
    "AsyncRecordedEpisode",
    "Battery",
    "Client",
    "Delivery",
    "Episode",
    "EpisodeOutcome",
    "EpisodeSource",
    "FinalStatus",
    "Imu",
    "JointState",
    "Pose3D",
    "RecordedEpisode",
    "Retries",
    "Spool",
    "Twist",
    "UploadUrl",
    "close",
    "default_client",
    "init",
    "log_episode",
    "start_episode",
]

"""Gymnasium: run a policy in an environment and record the whole run.

    from rollbook.adapters import gymnasium
    gymnasium.record(env, policy, seed=7, policy_version="v4")

`policy` is called with the observation, or with the observation and the info when it takes two arguments.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from rollbook.adapters.destination import (
    BatchResult,
    Destination,
    EpisodeAbout,
    OnProgress,
    RecordedRun,
    run_many,
)
from rollbook.adapters.encoded import (
    AnyPath,
    EncodedEpisode,
    artifact_folder,
    files_in,
    prepared_folder,
)
from rollbook.adapters.episode_folder import read_episode_file, write_episode_file
from rollbook.adapters.extras import library
from rollbook.adapters.folder_importer import EpisodeFolderImporter, episode_folders
from rollbook.adapters.gymnasium_rollout import RolloutLog
from rollbook.adapters.gymnasium_spaces import SpaceColumn, space_columns
from rollbook.client.video import VideoWriter, checked_rate
from rollbook.contracts.environment_description import (
    DESCRIPTION_KEY,
    STEP_LIMIT_KEY,
    TRUNCATED_BY_KEY,
    EnvironmentDescription,
    truncated_by,
)
from rollbook.contracts.episode import FILE_NAMES, LONGEST_NAME
from rollbook.contracts.npz import write_npz
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import ConfigurationError, RollbookError

if TYPE_CHECKING:
    from gymnasium import Env

    from rollbook.client import Client

Policy: TypeAlias = Callable[..., Any]
AnyEnv: TypeAlias = "Env[Any, Any]"

_ASSUMED_FPS = 30.0
_LONGEST_SPEC = 16_384


@dataclass(frozen=True, slots=True)
class EnvSummary:
    """The streams that a recording of the environment has."""

    env_id: str
    observation: tuple[SpaceColumn, ...]
    action: tuple[SpaceColumn, ...]
    render_mode: str | None
    fps: float | None
    """`render_fps` of the environment; None where it declares none."""

    @property
    def has_video(self) -> bool:
        return self.render_mode == "rgb_array"


class GymnasiumImporter(EpisodeFolderImporter):
    """Runs that `record`, `record_many` and `encode_rollout` wrote into folders."""

    adapter = "gymnasium"


def looks_like(path: Path) -> str | None:
    for folder in episode_folders(path):
        if read_episode_file(folder).metadata.get("adapter") == GymnasiumImporter.adapter:
            return f"{folder.name} has a run of an environment"
    return None


def scan_env(env: AnyEnv) -> EnvSummary:
    """Describe the environment without running it. An environment that cannot be recorded is refused."""
    if not isinstance(env, library("gymnasium").Env):
        hint = "; record its environments one by one" if hasattr(env, "num_envs") else ""
        message = f"{type(env).__name__} is not a gymnasium.Env{hint}"
        raise ConfigurationError(message=message)
    spec = env.spec
    declared = (env.metadata or {}).get("render_fps")
    return EnvSummary(
        env_id=type(env.unwrapped).__name__ if spec is None else spec.id,
        observation=space_columns("observation", env.observation_space),
        action=space_columns("action", env.action_space),
        render_mode=env.render_mode,
        fps=None if declared is None else checked_rate(declared),
    )


def record(
    env: AnyEnv,
    policy: Policy,
    *,
    seed: int | None = None,
    max_steps: int = 10_000,
    fps: float | None = None,
    record_video: bool | None = None,
    client: Client | None = None,
    output_dir: AnyPath | None = None,
    **about: Unpack[EpisodeAbout],
) -> RecordedRun:
    """Run one episode and upload it with `client`, or with the default client of rollbook.init.

    `fps` defaults to the rate that the environment declares. `record_video` defaults to true for environments made with
    render_mode="rgb_array". With `output_dir` the files are kept there, also where no server is configured. When the
    policy or the environment raises an error, the steps before it are uploaded as a failed episode, and then the error
    is raised.
    """
    plan = _Plan(env, policy, seed, max_steps, fps, record_video)
    destination = Destination.find(client, about, output_dir)
    with artifact_folder(output_dir) as folder:
        return destination.deliver(plan.run(folder), kept_in=None if output_dir is None else folder)


def record_many(
    env: AnyEnv | Callable[[], AnyEnv],
    policy: Policy,
    *,
    seeds: Sequence[int],
    max_steps: int = 10_000,
    fps: float | None = None,
    record_video: bool | None = None,
    client: Client | None = None,
    output_dir: AnyPath | None = None,
    on_progress: OnProgress | None = None,
    stop_on_error: bool = False,
    **about: Unpack[EpisodeAbout],
) -> list[BatchResult]:
    """Record one episode for each seed. `env` may be a function that makes an environment, which is closed afterwards.

    `{seed}` in the name is replaced by the seed. In `output_dir` each episode has a folder of its own.
    """
    destination = Destination.find(client, about, output_dir)

    def one(seed: int) -> RecordedRun:
        own = None if output_dir is None else Path(output_dir) / f"seed_{seed}"
        made = env() if callable(env) else None
        with nullcontext() if made is None else closing(made):
            used: Any = env if made is None else made
            plan = _Plan(used, policy, seed, max_steps, fps, record_video)
            with artifact_folder(own) as folder:
                return destination.named(seed=seed).deliver(
                    plan.run(folder), kept_in=None if own is None else folder
                )

    return run_many(seeds, one, on_progress=on_progress, stop_on_error=stop_on_error)


def encode_rollout(
    env: AnyEnv,
    policy: Policy,
    output_dir: AnyPath,
    *,
    seed: int | None = None,
    max_steps: int = 10_000,
    fps: float | None = None,
    record_video: bool | None = None,
) -> EncodedEpisode:
    """Run one episode and write its files, without upload. An error of policy or environment is raised afterwards."""
    plan = _Plan(env, policy, seed, max_steps, fps, record_video)
    folder = prepared_folder(output_dir)
    encoded = plan.run(folder)
    if encoded.files:
        write_episode_file(folder, encoded)
    if encoded.failure is not None:
        encoded.failure.add_note(f"the steps before the error are in {output_dir}")
        raise encoded.failure
    return encoded


# ---------------------------------------------------------------------------------------- one run


class _Plan:
    """A run whose arguments have been checked before it begins."""

    def __init__(
        self,
        env: AnyEnv,
        policy: Policy,
        seed: int | None,
        max_steps: int,
        fps: float | None,
        record_video: bool | None,
    ) -> None:
        self.env, self.max_steps = env, max_steps
        self.summary = scan_env(env)
        if max_steps < 1:
            raise ConfigurationError(message=f"max_steps={max_steps}; it has to be at least 1")
        if record_video and not self.summary.has_video:
            mode = self.summary.render_mode
            message = (
                f"the environment renders {mode}; make it with render_mode='rgb_array' for a video"
            )
            raise ConfigurationError(message=message)
        rate = self.summary.fps if fps is None else checked_rate(fps)
        self.fps = _ASSUMED_FPS if rate is None else rate
        self.fps_assumed = rate is None
        self.act = _with_info(policy)
        self.seed = None if seed is None else _checked_seed(seed)
        self.with_video = self.summary.has_video if record_video is None else record_video

    def run(self, folder: Path) -> EncodedEpisode:
        path = folder / FILE_NAMES["video"]
        failure: Exception | None = None
        with VideoWriter(path, self.fps) if self.with_video else nullcontext() as video:
            log = RolloutLog(self.fps, self.summary.observation, self.summary.action, video)
            with closing(log):
                try:
                    self._play(log)
                except RollbookError:
                    raise
                except Exception as error:  # noqa: BLE001 - of policy or environment: part of the record
                    failure = error
                if sensors := log.sensors():
                    write_npz(folder / FILE_NAMES["sensors"], sensors)
                if actions := log.actions():
                    write_npz(folder / FILE_NAMES["actions"], actions)
        return self._encoded(folder, log, failure)

    def _play(self, log: RolloutLog) -> None:
        observation, info = self.env.reset(seed=self.seed)
        log.add_observation(self.env, observation, info)
        while not (log.terminated or log.truncated) and log.steps < self.max_steps:
            action = self.act(observation, info)
            log.add_action(action)
            observation, reward, terminated, truncated, info = self.env.step(action)
            log.add_step(reward, terminated, truncated)
            log.add_observation(self.env, observation, info)

    def _encoded(self, folder: Path, log: RolloutLog, failure: Exception | None) -> EncodedEpisode:
        name = self.summary.env_id if self.seed is None else f"{self.summary.env_id} #{self.seed}"
        return EncodedEpisode(
            files=files_in(folder),
            name=name[:LONGEST_NAME],
            source="sim",
            fps=self.fps,
            duration_s=log.steps / self.fps,
            metadata=self._metadata(log, failure),
            env_version=None if self.env.spec is None else self.env.spec.id,
            seed=self.seed,
            failure=failure,
        )

    def _metadata(self, log: RolloutLog, failure: Exception | None) -> dict[str, Any]:
        described = EnvironmentDescription.of(self.env)
        metadata: dict[str, Any] = {
            "adapter": "gymnasium",
            "gymnasium_env_id": self.summary.env_id,
            "gymnasium_version": str(library("gymnasium").__version__),
            "steps": log.steps,
            "terminated": log.terminated,
            "truncated": log.truncated,
            "ended_by": _end(log, failure),
            "render_mode": self.summary.render_mode,
            "total_reward": log.reward_total,
            "outcome": log.outcome(),
            DESCRIPTION_KEY: described.to_json(),
            STEP_LIMIT_KEY: self.max_steps,
        }
        if metadata["ended_by"] == "truncated":
            metadata[TRUNCATED_BY_KEY] = truncated_by(log.steps, described.max_steps)
        if self.fps_assumed:
            metadata["fps_assumed"] = True
        if failure is not None:
            reason = f"{type(failure).__name__}: {failure}".removesuffix(": ")
            metadata["failure_reason"] = reason
        spec = _spec(self.env)
        return metadata if spec is None else {**metadata, "gymnasium_spec": spec}


def _checked_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        message = f"seed={seed!r}; it has to be a whole number of 0 or more"
        raise ConfigurationError(message=message)
    return int(seed)


def _with_info(policy: Policy) -> Callable[[Any, dict[str, Any]], Any]:
    """A policy gets the info only as a second required argument. An optional one keeps its default."""
    if not callable(policy):
        raise ConfigurationError(message=f"the policy is {type(policy).__name__}, not a function")
    try:
        parameters = inspect.signature(policy).parameters.values()
    except (TypeError, ValueError):  # some compiled functions have no signature
        return lambda observation, info: policy(observation)
    needed = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(needed) == 2:
        return policy
    return lambda observation, info: policy(observation)


def _end(log: RolloutLog, failure: Exception | None) -> str:
    if failure is not None:
        return "error"
    if log.terminated:
        return "terminated"
    return "truncated" if log.truncated else "max_steps"


def _spec(env: AnyEnv) -> Any:
    """The specification from which the environment can be made again, where it can be written as JSON."""
    if env.spec is None:
        return None
    try:
        text = env.spec.to_json()
        return plain_metadata(json.loads(text)) if len(text) <= _LONGEST_SPEC else None
    except Exception:  # noqa: BLE001 - arguments of an environment may be of any type
        return None

"""Policies: the forms in which a user can give one, and the one form that the runner uses.

A policy is a function from an observation to an action; an object with `act` and optionally `reset` and `close`; an
object with `act_batch`, which takes many steps at once; or an object with `chunk = k`, which answers k steps per call.
A class, or a function without arguments that makes one of these, gives each worker its own instance. The run folder of
a training is a policy too.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rollbook.contracts.outcomes import OUTCOME_KEY
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.digest import digest_of
from rollbook.engines import expect
from rollbook.errors import ConfigurationError, PolicyFailed
from rollbook.evals.policies.run_folders import load_run_folder, run_folder_of

_LONGEST_TEXT = 20_000
"""Characters of a message and of a traceback that are kept."""

Observation: TypeAlias = dict[str, Any]
Action: TypeAlias = dict[str, Any]
PolicyCallable: TypeAlias = Callable[[Observation], Action]


SHOWN_METADATA = (
    "actor_feature_names",
    "task",
    "task_name",
    "task_index",
    "language_instruction",
)
"""Metadata of an episode that every policy sees. Other keys may hold the seed or the outcome."""


@dataclass(frozen=True, slots=True)
class ReplayEpisode:
    """What a policy knows about the episode in which it acts."""

    id: str
    """For a policy that is not trusted, another id than the server's: it cannot be looked up."""
    step_count: int | None = None
    """None where the environment decides when the episode ends."""
    record: EpisodeRecord | None = None
    """The record on the server; for a policy that is not trusted, only robot, rate, environment version and task. None
    when the episode has no record."""

    @property
    def seed(self) -> int | None:
        return None if self.record is None else self.record.seed

    @property
    def env_version(self) -> str | None:
        return None if self.record is None else self.record.env_version


def shown_episode(episode: ReplayEpisode, salt: str) -> ReplayEpisode:
    """The episode as a policy sees it that is not trusted: without seed and outcome, and without anything that may
    hold them or by which they can be looked up.

    The id is the same whenever the same run is replayed, and another one in every run.
    """
    shown = digest_of("rollbook.shown_episode", [salt, episode.id])[:16]
    known = episode.record
    if known is None:
        return ReplayEpisode(shown, episode.step_count)
    record = EpisodeRecord(
        id=shown,
        status=known.status,
        source=known.source,
        robot=known.robot,
        env_version=known.env_version,
        fps=known.fps,
        metadata={key: known.metadata[key] for key in SHOWN_METADATA if key in known.metadata},
    )
    return ReplayEpisode(shown, episode.step_count, record)


@dataclass(frozen=True, slots=True)
class StepContext:
    """The place of a step in the episode. For a batch or chunk: its first step, and whether it contains the last."""

    step: int
    is_first: bool
    is_last: bool
    t_ns: int | None
    episode: ReplayEpisode


class Policy(ABC):
    """One instance of a policy, used by one worker at a time, as the runner uses it.

    A policy that is not `trusted` gets the episode without seed and outcome (`shown_episode`).
    """

    batched: bool
    """Whether it takes many steps at once, by `act_batch`."""
    chunk: int | None
    """Steps that it answers per call of `act`; None for one."""

    def __init__(self, *, trusted: bool, salt: str) -> None:
        self._trusted = trusted
        self._salt = salt
        self._given_episode: ReplayEpisode | None = None
        self._shown_episode = ReplayEpisode("")

    @property
    def plain(self) -> Callable[[Observation], Any] | None:
        """The user's own function, if it can be called directly, without context and time limit."""
        return None

    @property
    def takes_steps(self) -> bool:
        """Whether recorded steps should go to it many at a time, by `act_steps`, though it answers each alone."""
        return False

    @abstractmethod
    def reset(self, episode: ReplayEpisode) -> None:
        """A new episode begins."""

    @abstractmethod
    def act(self, observation: Observation, context: StepContext) -> Action:
        """The answer of the policy, which must be a mapping."""

    @abstractmethod
    def act_batch(self, observations: Observation, context: StepContext) -> Action:
        """Observations and actions of many steps. The first dimension of each array is the step."""

    def act_steps(
        self, observations: Observation, first: int, last: int, t_ns: list[int] | None
    ) -> list[Action]:
        """The answer to each step from `first` on; `last` is the last step of the episode. Only for a policy that
        `takes_steps`."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """No further episode comes."""

    def shown(self, episode: ReplayEpisode) -> ReplayEpisode:
        """The episode as this policy sees it."""
        if self._trusted:
            return episode
        if episode is not self._given_episode:
            self._given_episode = episode
            self._shown_episode = shown_episode(episode, self._salt)
        return self._shown_episode


class LivePolicy(Policy):
    """A policy in this process. It can do what this process can do.

    With `step_timeout_s`, the engine ends a worker when one answer takes longer.
    """

    def __init__(
        self,
        given: Any,
        step_timeout_s: float | None = None,
        *,
        trusted: bool = False,
        salt: str = "",
    ) -> None:
        super().__init__(trusted=trusted, salt=salt)
        self._given = given
        self._step_timeout_s = step_timeout_s
        act, batch = getattr(given, "act", None), getattr(given, "act_batch", None)
        self._batch: Callable[..., Any] | None = batch if callable(batch) else None
        self._act: Callable[..., Any] | None = act if callable(act) else None
        if self._act is None and self._batch is None:
            self._act = given
        self._with_context = _takes_context(self._act)
        self._batch_with_context = _takes_context(self._batch)
        self.batched = self._batch is not None
        self.chunk = _chunk(given)

    @property
    def plain(self) -> Callable[[Observation], Any] | None:
        return None if self._with_context or self._step_timeout_s is not None else self._act

    def reset(self, episode: ReplayEpisode) -> None:
        reset = getattr(self._given, "reset", None)
        if callable(reset):
            self._timed(reset, self.shown(episode))

    def act(self, observation: Observation, context: StepContext) -> Action:
        """With `act_batch` only, the policy gets a batch of one step."""
        if self._act is None:
            return self._batch_of_one(observation, context)
        if self._with_context:
            answer = self._timed(self._act, observation, self._shown_context(context))
        else:
            answer = self._timed(self._act, observation)
        return checked_action(answer, context.step)

    def act_batch(self, observations: Observation, context: StepContext) -> Action:
        assert self._batch is not None
        if self._batch_with_context:
            answer = self._timed(self._batch, observations, self._shown_context(context))
        else:
            answer = self._timed(self._batch, observations)
        return checked_action(answer, context.step)

    def close(self) -> None:
        close = getattr(self._given, "close", None)
        if callable(close):
            close()

    def _shown_context(self, context: StepContext) -> StepContext:
        return context if self._trusted else replace(context, episode=self.shown(context.episode))

    def _timed(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """An error of the policy is a PolicyFailed, whatever its class: otherwise a policy could raise an error that
        means a failure of the infrastructure."""
        if self._step_timeout_s is not None:
            expect(self._step_timeout_s)
        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:
            raise policy_failed(error) from error
        finally:
            if self._step_timeout_s is not None:
                expect(None)

    def _batch_of_one(self, observation: Observation, context: StepContext) -> Action:
        import numpy as np

        answer = self.act_batch({k: np.asarray(v)[None] for k, v in observation.items()}, context)
        return {k: v if k == OUTCOME_KEY else np.asarray(v)[0] for k, v in answer.items()}


def policy_failed(error: BaseException) -> PolicyFailed:
    """The error of a policy as text: not every exception can be sent to another process."""
    return PolicyFailed(
        kind=type(error).__name__,
        message=str(error)[:_LONGEST_TEXT],
        traceback="".join(traceback.format_exception(error))[-_LONGEST_TEXT:],
    )


def checked_action(answer: object, step: int) -> Action:
    if type(answer) is dict:  # checked at every step, so the common case comes first
        return answer
    if not isinstance(answer, Mapping):
        what = "nothing" if answer is None else f"a value of type {type(answer).__name__}"
        raise TypeError(
            f"the policy returned {what} at step {step}, expected a mapping of action keys to arrays"
        )
    return dict(answer)


def keeps_state(given: Any) -> bool:
    """Whether it is an object with a state, which two workers must not share."""
    found = _loaded_if_named(given)
    return not _is_factory(found) and callable(getattr(found, "reset", None))


def as_policy(
    given: Any, step_timeout_s: float | None = None, *, trusted: bool = False, salt: str = ""
) -> Policy:
    """A policy in this process, of whatever form the user gave it in."""
    found = _loaded_if_named(given)
    if _is_factory(found):
        found = found()
    if isinstance(found, Policy):
        return found
    if not callable(found) and not _has_act(found):
        raise ConfigurationError(
            message=f"policy_callable is a {type(found).__name__}, expected a function from an observation to an "
            "action, an object with act(obs, context), a class of such, 'module:attr', or the run folder of a training"
        )
    return LivePolicy(found, step_timeout_s, trusted=trusted, salt=salt)


def load_policy(spec: str | os.PathLike[str]) -> Any:
    """Loads what `package.module:attr` names, or the learned policy of a run folder.

    `attr` may have dots. The current folder is searched too.
    """
    folder = run_folder_of(spec)
    if folder is not None:
        return load_run_folder(folder)
    text = os.fspath(spec)
    if ":" not in text:
        message = (
            f"policy {text!r} is neither like package.module:name nor the run folder of a training"
        )
        raise ConfigurationError(message=message)
    return load_attribute(text, "policy")


def load_attribute(spec: str, what: str) -> Any:
    name, colon, attribute = spec.partition(":")
    if not colon or not name.strip() or not attribute.strip():
        message = f"{what} {spec!r} is not like package.module:name"
        raise ConfigurationError(message=message)
    _search_current_folder()
    try:
        found: Any = importlib.import_module(name.strip())
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name.strip()}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its own imports fails
        message = f"{what} {spec!r}: there is no module {error.name!r}; run where it can be imported, or set PYTHONPATH"
        raise ConfigurationError(message=message) from error
    except SystemExit as error:  # exit code 0 would look like a candidate that passed
        message = f"{what} {spec!r}: its module called sys.exit({error.code!r}) when it was imported; put that under "
        raise ConfigurationError(message=f"{message}if __name__ == '__main__'") from error
    for part in attribute.strip().split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            message = f"{what} {spec!r}: {getattr(found, '__name__', found)!r} has no {part!r}"
            raise ConfigurationError(message=message) from error
    return found


def _search_current_folder() -> None:
    """Adds the current folder to the path, as Python does for a script."""
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)


def _loaded_if_named(given: Any) -> Any:
    return load_policy(given) if isinstance(given, str | os.PathLike) else given


def _has_act(value: Any) -> bool:
    return callable(getattr(value, "act", None)) or callable(getattr(value, "act_batch", None))


def _is_factory(value: Any) -> bool:
    """A class, or a function without arguments. A function that acts takes an observation."""
    if inspect.isclass(value):
        return True
    if not callable(value) or _has_act(value):
        return False
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return False  # written in C: it is used as it is
    return _binds(signature, 0) and not _binds(signature, 1)


def _takes_context(function: Callable[..., Any] | None) -> bool:
    """Whether the second parameter is required or named `context`. Other parameters have their own meaning."""
    if function is None:
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    positional = [
        each
        for each in signature.parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) < 2:
        return False
    return positional[1].default is inspect.Parameter.empty or positional[1].name == "context"


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _chunk(given: Any) -> int | None:
    chunk = getattr(given, "chunk", None)
    if chunk is None or callable(chunk):
        return None
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        message = f"the policy's chunk is {chunk!r}, expected how many steps it answers per call"
        raise ConfigurationError(message=message)
    return chunk

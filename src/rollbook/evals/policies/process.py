"""PolicyProcess: a policy in a process of its own, which the runner uses like any other.

The process sees observations and sends actions. Environment, scorer, gate and results stay with the runner, so a policy
that ends its process, crashes, hangs or answers nonsense loses the pair that it was asked about, and nothing else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from rollbook.contracts.evals import Isolation
from rollbook.errors import ConfigurationError, PolicyFailed
from rollbook.evals.policies.messages import (
    MOST_BYTES,
    Act,
    ActBatch,
    ActSteps,
    Answer,
    Channel,
    Close,
    Failure,
    FromPolicy,
    Loaded,
    Request,
    Reset,
    decode_answer,
    encode_request,
    shown_values,
)
from rollbook.evals.policies.policy import (
    Action,
    Observation,
    Policy,
    ReplayEpisode,
    StepContext,
    as_policy,
    keeps_state,
)
from rollbook.evals.policies.starter import PolicyStarter

ANSWER_S = 300.0
"""Seconds that one answer may take where the user has set no limit. A first answer may have to compile a model."""
LOAD_S = 600.0
"""Seconds that loading the policy may take."""
_CLOSE_S = 10.0
_BETWEEN_ANSWERS_S = 0.5
"""Answers to recorded steps are sent together, so one of them may be this much late."""
_MOST_CHUNK = 1_000_000
_LONGEST_KIND = 200
_LONGEST_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Makes the policies of the workers, in this process or in another."""

    given: Any
    """What the user gave: `module:attr`, a run folder, a class, a function that makes one, an object or a function."""
    step_timeout_s: float | None = None
    isolation: Isolation = "process"
    trusted: bool = False
    salt: str = ""
    """For the ids that a policy sees: the id of the run."""
    starter: PolicyStarter | None = None
    """Shared by the workers of one process."""

    @property
    def keeps_state(self) -> bool:
        """Whether it is an object that two workers must not share. In processes, each worker has a copy."""
        return self.isolation == "thread" and keeps_state(self.given)

    @contextmanager
    def opened(self) -> Iterator[PolicySource]:
        """With a starter, if it needs one. Opened before the runner starts threads, because it may fork."""
        if self.isolation == "thread" or self.starter is not None:
            yield self
            return
        starter = PolicyStarter(self.given)
        try:
            yield replace(self, starter=starter)
        finally:
            starter.close()

    @contextmanager
    def tried(self) -> Iterator[PolicySource]:
        """As opened, after one policy was made, so that one that cannot be made is found before anything is done.

        Raises ConfigurationError.
        """
        with self.opened() as opened:
            opened.make().close()
            yield opened

    def make(self) -> Policy:
        if self.isolation == "thread":
            return as_policy(self.given, self.step_timeout_s, trusted=self.trusted, salt=self.salt)
        return PolicyProcess(self)


class PolicyProcess(Policy):
    takes_steps = True

    def __init__(self, source: PolicySource) -> None:
        """Raises ConfigurationError for a policy that cannot be made."""
        super().__init__(trusted=source.trusted, salt=source.salt)
        self._step_timeout_s = source.step_timeout_s
        self._own_starter = PolicyStarter(source.given) if source.starter is None else None
        self._starter = source.starter or self._own_starter
        self._child: _Child | None = None
        self._episode: Reset | None = None
        try:
            loaded = self._start()
        except PolicyFailed as error:
            self._end()
            is_ours = error.kind == ConfigurationError.__name__
            message = error.message if is_ours else f"the policy cannot be made: {error}"
            raise ConfigurationError(message=message) from error
        self.batched, self.chunk = loaded.batched, loaded.chunk

    # ------------------------------------------------------------------------------------- asking

    def reset(self, episode: ReplayEpisode) -> None:
        shown = self.shown(episode)
        record = None if shown.record is None else msgspec.to_builtins(shown.record)
        self._episode = Reset(shown.id, shown.step_count, record)
        if self._child is not None:
            self._exchange(self._episode, self._limit_s)
        else:
            self._restart()

    def act(self, observation: Observation, context: StepContext) -> Action:
        return self._one(Act, observation, context)

    def act_batch(self, observations: Observation, context: StepContext) -> Action:
        return self._one(ActBatch, observations, context)

    def act_steps(
        self, observations: Observation, first: int, last: int, t_ns: list[int] | None
    ) -> list[Action]:
        count = len(next(iter(observations.values()))) if observations else 0
        if not count:
            return []
        asked = ActSteps(dict(observations), first, count, last, t_ns)
        limit_s = self._limit_s + _BETWEEN_ANSWERS_S
        actions = self._actions(self._ask(asked, limit_s), count)
        while len(actions) < count:
            actions += self._actions(self._receive(limit_s), count - len(actions))
        return actions

    def close(self) -> None:
        with suppress(PolicyFailed):
            if self._child is not None:
                self._exchange(Close(), _CLOSE_S)
        self._end()

    def _one(self, kind: type[Act], observation: Observation, context: StepContext) -> Action:
        asked = kind(
            shown_values(observation),
            context.step,
            context.is_first,
            context.is_last,
            context.t_ns,
        )
        return self._actions(self._ask(asked, self._limit_s), 1)[0]

    def _actions(self, answer: Answer, most: int) -> list[Action]:
        """One for each step that was answered: at least one, at most `most`."""
        columns = answer.columns
        if columns is None:
            if 1 <= len(answer.actions) <= most:
                return answer.actions
        elif 1 <= answer.count <= most and all(
            isinstance(each, np.ndarray) and each.ndim and len(each) == answer.count
            for each in columns.values()
        ):
            return [{k: v[row] for k, v in columns.items()} for row in range(answer.count)]
        raise self._lost("PolicyEnded", "it sent more or fewer actions than it was asked for")

    # --------------------------------------------------------------------------------- the process

    @property
    def _limit_s(self) -> float:
        return ANSWER_S if self._step_timeout_s is None else self._step_timeout_s

    def _ask(self, request: Request, limit_s: float) -> Answer:
        if self._child is None:
            self._restart()
        return self._exchange(request, limit_s)

    def _start(self) -> Loaded:
        assert self._starter is not None
        self._child = _Child(self._starter)
        loaded = self._received(LOAD_S)
        if not isinstance(loaded, Loaded):
            raise self._lost("PolicyEnded", "it answered before it was asked")
        if loaded.chunk is not None and not 1 <= loaded.chunk <= _MOST_CHUNK:
            raise self._lost("PolicyEnded", f"its chunk is {loaded.chunk}")
        return loaded

    def _restart(self) -> None:
        """A policy that lost its process begins as a new one, in the episode of now."""
        self._start()
        if self._episode is not None:
            self._exchange(self._episode, self._limit_s)

    def _exchange(self, request: Request, limit_s: float) -> Answer:
        data = encode_request(request)
        child = self._child
        assert child is not None
        if child.channel.has_more:
            raise self._lost("PolicyEnded", "it sent more than it was asked for")
        try:
            child.channel.send(data, limit_s)
        except TimeoutError:
            raise self._late(limit_s) from None
        except OSError:
            raise self._died() from None
        return self._receive(limit_s)

    def _receive(self, limit_s: float) -> Answer:
        answer = self._received(limit_s)
        if not isinstance(answer, Answer):
            raise self._lost("PolicyEnded", "it sent what it was not asked for")
        return answer

    def _received(self, limit_s: float) -> FromPolicy:
        """Raises PolicyFailed for an error of the policy, and for every other way in which it gives no answer."""
        child = self._child
        assert child is not None
        try:
            answer = decode_answer(child.channel.receive(limit_s))
        except TimeoutError:
            raise self._late(limit_s) from None
        except (EOFError, OSError):
            raise self._died() from None
        except ValueError as error:
            raise self._lost("PolicyEnded", f"it sent what is no answer: {error}") from None
        if isinstance(answer, Failure):
            raise PolicyFailed(
                kind=answer.kind[:_LONGEST_KIND],
                message=answer.message[:_LONGEST_TEXT],
                traceback=answer.traceback[-_LONGEST_TEXT:],
            )
        return answer

    def _late(self, limit_s: float) -> PolicyFailed:
        if limit_s == LOAD_S:
            what = f"loading the policy took longer than {LOAD_S:g} s"
        elif self._step_timeout_s is None:
            what = f"a step of the policy took longer than {ANSWER_S:g} s, the limit where step_timeout_s sets no other"
        else:
            what = f"a step of the policy took longer than step_timeout_s={self._step_timeout_s:g}"
        return self._lost("TimeoutError", what)

    def _died(self) -> PolicyFailed:
        status = self._end_child()
        if status is None:
            how = "ended"
        elif status < 0:
            how = f"was ended by signal {-status} ({_signal_name(-status)})"
            if -status == signal.SIGKILL:
                how += "; it may have run out of memory"
        else:
            how = f"ended with exit status {status}"
        return PolicyFailed(kind="PolicyEnded", message=f"the process of the policy {how}")

    def _lost(self, kind: str, message: str) -> PolicyFailed:
        """Ends the process: its next answer could be one to an earlier question."""
        self._end_child()
        return PolicyFailed(kind=kind, message=message)

    def _end_child(self) -> int | None:
        child, self._child = self._child, None
        return None if child is None else child.end()

    def _end(self) -> None:
        self._end_child()
        if self._own_starter is not None:
            self._own_starter.close()


class _Child:
    """One process of a policy."""

    def __init__(self, starter: PolicyStarter) -> None:
        self._starter = starter
        self._pid, end = starter.start()
        # where the system cannot watch a process, the end of the socket is noticed
        self._ended: int | None = None
        with suppress(AttributeError, OSError):
            self._ended = os.pidfd_open(self._pid)
        self.channel = Channel(end, ended=self._ended, most=MOST_BYTES)

    def end(self) -> int | None:
        status = self._starter.end(self._pid)
        self.channel.close()
        if self._ended is not None:
            os.close(self._ended)
        return status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"

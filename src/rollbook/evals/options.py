"""ReplayOptions: every keyword of `run_against`, declared once, with its help.

`run_against` takes these fields as keywords, and `rollbook replay run` has a command-line option for each field that
has a `CommandLine`. A new option is one field here, and the code that reads it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from rollbook.contracts.evals import ALIGNMENTS, ISOLATIONS, Align, Isolation
from rollbook.errors import ConfigurationError

# `rollbook --help` reads this module, so it imports nothing heavy
if TYPE_CHECKING:
    from rollbook.contracts.episode import ArtifactKind
    from rollbook.contracts.evals import EvalResult
    from rollbook.engines import Engine, Parallel
    from rollbook.evals.eval_run import EvalRun
    from rollbook.evals.policies.process import PolicySource

STEPS_AT_ONCE = 256
"""Steps that a policy with `act_batch` gets in one call."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """How a field appears as an option of `rollbook replay run`."""

    kind: Any
    """The type of its value."""
    flag: str | None = None
    """Needed where it is not the name of the field."""
    help: str | None = None
    """Needed where it is not the help of the field."""
    short: str | None = None
    """A second flag of one letter."""
    negated: bool = False
    """The flag sets the field to False."""
    metavar: str | None = None
    least: float | None = None


def _about(help: str, kind: Any = None, /, **cli: Any) -> dict[str, Any]:
    """`kind`, if given, makes it an option of the command line too."""
    return {"help": help, "cli": None if kind is None else CommandLine(kind=kind, **cli)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    policy_callable: Any = field(
        metadata=_about(
            "A function from an observation to an action; an object with `act(obs, context)`; a class, or a "
            "function that makes one for each worker; `module:attr`; or the run folder of a training. An error that "
            "it raises makes a failed result, and the other baselines go on."
        )
    )
    on_episode: Callable[[EvalResult], object] | None = field(
        default=None,
        metadata=_about(
            "Called with each finished result, one at a time, possibly in another thread."
        ),
    )
    dry_run: bool = field(default=False, metadata=_about("Compute the results and send nothing."))
    workers: int = field(
        default=1,
        metadata=_about("Number of baselines that are replayed at the same time.", int, least=1),
    )
    engine: Engine = field(
        default="local",
        metadata=_about("Where workers run: `local` is this machine, `ray` is a Ray cluster.", str),
    )
    parallel: Parallel = field(
        default="thread",
        metadata=_about("Whether a worker is a thread or a process.", Literal["thread", "process"]),
    )
    resume: bool = field(
        default=False,
        metadata=_about(
            "Replay only what has no result or failed by the infrastructure, and deliver results that an earlier "
            "runner left in the `journal`. A failure of the policy stays a failure."
        ),
    )
    journal: str | os.PathLike[str] | None = field(
        default=None,
        metadata=_about(
            "The folder that keeps results until the server has them; by default in ROLLBOOK_HOME/runs."
        ),
    )
    align: Align = field(
        default="index",
        metadata=_about(
            "How observations of different rates are paired: by index, or by their clocks (nearest, hold).",
            Align,
        ),
    )
    clock: str | None = field(
        default=None,
        metadata=_about(
            "The namespace whose `_t_ns` gives the steps, when `align` pairs by clocks."
        ),
    )
    step_timeout_s: float | None = field(
        default=None,
        metadata=_about(
            "Seconds that one answer of the policy may take; by default 300, and without limit in a thread.",
            float | None,
            flag="--step-timeout",
            least=0.001,
        ),
    )
    upload_actions: bool = field(
        default=True,
        metadata=_about(
            "Upload the actions of the candidate.",
            bool,
            flag="--no-actions",
            negated=True,
            help="Do not upload the actions of the candidate.",
        ),
    )
    environment: Any = field(
        default=None,
        metadata=_about(
            "Function that makes the environment of the candidate; outcomes are then measured.",
            str | None,
            metavar="MODULE:ATTR",
        ),
    )
    store: str | os.PathLike[str] | None = field(
        default=None, metadata=_about("A rollout store that knows the reward of every choice.")
    )
    source: str | os.PathLike[str] | None = field(
        default=None,
        metadata=_about(
            "The source store from which the rollouts of `store` were generated. The candidate is then rolled out in "
            "the generator, from the roots of the stored chains, and its returns are measured (closed loop)."
        ),
    )
    frames: bool | Mapping[str, str] = field(
        default=False,
        metadata=_about(
            "Add the frames of the video to the observations, as `/video/rgb`.",
            bool,
            flag="--frames",
        ),
    )
    batch: int | None = field(
        default=None,
        metadata=_about(
            f"Steps that a policy with `act_batch` gets in one call; by default {STEPS_AT_ONCE}."
        ),
    )
    isolation: Isolation = field(
        default="process",
        metadata=_about(
            "Where the policy runs. `process`: in a process of its own, which sees observations only. `thread`: inside "
            "the runner; it is easier to debug, but a policy that ends the process, or crashes, ends the runner with "
            "its own exit status (0 is ship), and it can change results.",
            Isolation,
        ),
    )
    trusted: bool = field(
        default=False,
        metadata=_about(
            "Show the policy the whole record of each episode: id, seed, outcome and metadata. A policy that knows "
            "them can pass without being better.",
            bool,
            flag="--trusted",
        ),
    )
    retry_failed: bool = field(
        default=False,
        metadata=_about(
            "With `resume`: also replay baselines in which the policy failed. The run is marked as retried, and the "
            "gate then holds unless it has `accept_retried`.",
            bool,
            flag="--retry-failed",
            help="With --resume: also replay episodes in which the policy failed. The run is marked as retried, and "
            "the gate then holds unless it has accept_retried.",
        ),
    )
    verbose: bool = field(
        default=False,
        metadata=_about(
            "Print the traceback of each failed result on standard error, not only one line.",
            bool,
            flag="--verbose",
            short="-v",
        ),
    )
    check_determinism: bool = field(
        default=True,
        metadata=_about(
            "Play the recorded actions, and fixed random ones, in the environment before the candidate acts. Without "
            "it, nobody knows whether the world is the recorded one, and the gate holds unless it has "
            "`accept_unverified_environment`.",
            bool,
            flag="--no-world-check",
            negated=True,
            help="Do not play recorded and random actions in the environment before the candidate acts, for example "
            "because it moves a real robot. The gate then holds unless it has accept_unverified_environment.",
        ),
    )

    @property
    def policy(self) -> PolicySource:
        from rollbook.evals.policies.process import PolicySource

        if isinstance(self.policy_callable, PolicySource):  # it was tried before
            return self.policy_callable

        return PolicySource(self.policy_callable, self.step_timeout_s, self.isolation, self.trusted)

    @property
    def store_path(self) -> str | None:
        return None if self.store is None else os.fspath(self.store)

    @property
    def source_path(self) -> str | None:
        return None if self.source is None else os.fspath(self.source)

    @property
    def journal_path(self) -> Path | None:
        return None if self.journal is None else Path(self.journal)

    @property
    def kinds(self) -> tuple[ArtifactKind, ...]:
        """The artifacts that a baseline needs before it can be replayed."""
        from rollbook.evals.frames import frame_key

        if self.store is not None:
            return ()
        wants_video = frame_key(self.frames) is not None
        return ("sensors", "actions", "video") if wants_video else ("sensors", "actions")

    @property
    def in_other_processes(self) -> bool:
        return self.engine != "local" or self.parallel == "process"

    @property
    def worker_kind(self) -> Parallel:
        """One worker runs in the caller's own thread, where debuggers work, unless the engine has to watch the time
        of a policy in that thread."""
        watched = self.step_timeout_s is not None and self.isolation == "thread"
        alone = self.workers == 1 and not watched
        return "inline" if self.parallel == "thread" and alone else self.parallel

    def check(self) -> None:
        """Raises ConfigurationError for values that are wrong or contradict each other, before anything is sent."""
        from rollbook.evals.frames import frame_key
        from rollbook.evals.worlds.environments import environment_factory, try_environment

        _check_positive("workers", self.workers, whole=True)
        _check_positive("batch", self.batch, whole=True)
        _check_positive("step_timeout_s", self.step_timeout_s)
        if self.environment is not None:
            if self.store is not None:
                message = (
                    "environment= and store= both determine the outcome; give only one of them"
                )
                raise ConfigurationError(message=message)
            # an environment for a cluster may need what is not installed here
            (try_environment if self.engine == "local" else environment_factory)(self.environment)
        if self.source is not None and self.store is None:
            message = "source= is the source of a rollout store; give store= too"
            raise ConfigurationError(message=message)
        frame_key(self.frames)
        for name, value, known in (
            ("align", self.align, ALIGNMENTS),
            ("isolation", self.isolation, ISOLATIONS),
        ):
            if value not in known:
                message = f"{name} is {value!r}, expected {', '.join(known)}"
                raise ConfigurationError(message=message)
        if self.retry_failed and not self.resume:
            message = "retry_failed repeats baselines of an earlier runner: it needs resume"
            raise ConfigurationError(message=message)
        if self.in_other_processes or not self.policy.keeps_state:
            return
        if self.workers > 1:
            message = (
                "the policy keeps a state, which workers cannot share; pass its class, or a "
                "function that makes one"
            )
            raise ConfigurationError(message=message)
        if self.step_timeout_s is not None:
            message = (
                "step_timeout_s needs a policy that can be made anew, because one that hangs is abandoned; pass its "
                "class, a function that makes one, or parallel='process'"
            )
            raise ConfigurationError(message=message)


def _check_positive(name: str, value: float | None, *, whole: bool = False) -> None:
    if value is None:
        return
    known = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, known) or not value > 0:
        what = "whole number" if whole else "number"
        raise ConfigurationError(message=f"{name} is {value!r}, expected a {what} above 0")


def with_keywords(
    make: Callable[P, ReplayOptions],
) -> Callable[
    [Callable[[EvalRun, ReplayOptions], R]],
    Callable[Concatenate[EvalRun, P], R],
]:
    """Gives a function of (run, options) the fields of ReplayOptions as keywords, in signature and docstring."""

    def decorate(
        function: Callable[[EvalRun, ReplayOptions], R],
    ) -> Callable[Concatenate[EvalRun, P], R]:
        @wraps(function)
        def verb(run: EvalRun, *args: P.args, **kwargs: P.kwargs) -> R:
            return function(run, make(*args, **kwargs))

        known = inspect.signature(function)
        keywords = list(inspect.signature(ReplayOptions).parameters.values())
        verb.__signature__ = known.replace(  # type: ignore[attr-defined]
            parameters=[known.parameters["run"], *keywords]
        )
        lines = [f"`{each.name}`: {each.metadata['help']}" for each in fields(ReplayOptions)]
        verb.__doc__ = "\n\n    ".join([(function.__doc__ or "").rstrip(), *lines])
        # at run time `run` can be a keyword too, which Concatenate cannot say
        return cast("Callable[Concatenate[EvalRun, P], R]", verb)

    return decorate

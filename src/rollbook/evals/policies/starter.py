"""PolicyStarter: a process that starts the processes of policies, and the process of a policy itself.

A policy named by `module:attr` or by its run folder is loaded by a fresh interpreter. A live Python object cannot be
sent to one, so the runner forks before it fetches anything. Either way there is first a starter, which has one thread
and runs no code of the policy; every policy is a fork of it. So a policy that ended its process is started again as it
was at first, and nothing is forked from a runner that has threads in the middle of their work.

A policy sees neither the runner's standard output nor its open files and ROLLBOOK_ variables. This is no sandbox: it
runs as the same user, and a live object is forked with the runner's memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

import msgspec
import numpy as np

from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError, InvalidValue, PolicyFailed, RollbookError
from rollbook.evals.policies.messages import (
    Act,
    ActBatch,
    ActSteps,
    Answer,
    Channel,
    Close,
    Failure,
    Loaded,
    Request,
    Reset,
    Values,
    decode_request,
    encode_answer,
)
from rollbook.evals.policies.policy import (
    Action,
    Policy,
    ReplayEpisode,
    StepContext,
    as_policy,
    checked_action,
    load_policy,
    policy_failed,
)

_SECRET = "ROLLBOOK_"
"""Variables of the environment that begin with it are not for policies: one of them is the API key."""
_ORDER = struct.Struct(">cq")
_STATUS = struct.Struct(">q")
_START, _END = b"s", b"e"
_ORDER_S = 30.0
"""Seconds that the starter has for one order. It needs milliseconds; a policy may have stopped it."""
_LOOK_S = 0.005
_PARENT_SEEN_EVERY_MS = 1000
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl."""
_ENDED_FIRST = "500"
"""Where memory runs out, the kernel ends a policy before the runner that keeps the results."""
_SEND_EVERY_S = 0.1
"""Answers to recorded steps are sent together, but not later than this after the first of them."""

_STARTED_APART = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from rollbook.evals.policies.starter import main; main(sys.argv[1], sys.argv[3], int(sys.argv[4]))"
)


class PolicyStarter:
    """Starts and ends the processes of one policy. Workers in several threads may share it."""

    def __init__(self, given: Any) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self._control = ours
            ours.settimeout(_ORDER_S)
            apart = isinstance(given, str | os.PathLike)
            self._process = (
                _run_apart(os.fspath(given), theirs) if apart else _Forked(given, theirs)
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> tuple[int, socket.socket]:
        """A new process of the policy, and our end of the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [_ORDER.pack(_START, 0)], [theirs.fileno()])
                    return self._answer(), ours
            except OSError as error:
                ours.close()
                self._control.close()  # an answer that comes late must not be taken for the next one
                raise PolicyFailed(
                    kind="PolicyEnded",
                    message="no process can be started for the policy: the process that starts them has ended",
                ) from error

    def end(self, pid: int) -> int | None:
        """Ends the process and all processes of its group. Returns its exit status, negative for a signal; None when
        it is not known."""
        try:
            with self._lock:
                self._control.sendall(_ORDER.pack(_END, pid))
                return self._answer()
        except OSError:
            self._control.close()
            return None

    def _answer(self) -> int:
        data = self._control.recv(_STATUS.size)
        if len(data) < _STATUS.size:
            raise ConnectionResetError
        number: int = _STATUS.unpack(data)[0]
        return number

    def close(self) -> None:
        """Ends all processes that are still there."""
        self._control.close()
        try:
            self._process.wait(_ORDER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _run_apart(given: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-c", _STARTED_APART),
            *(str(theirs.fileno()), json.dumps(sys.path), given, str(os.getpid())),
        ],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=[theirs.fileno()],
        process_group=0,  # Ctrl-C in a terminal is for the runner
        env={key: value for key, value in os.environ.items() if not key.startswith(_SECRET)},
    )


class _Forked:
    """The starter as a fork of this process."""

    def __init__(self, given: Any, theirs: socket.socket) -> None:
        for stream in (sys.stdout, sys.stderr):  # what waits in them would be printed twice
            with suppress(AttributeError, ValueError, OSError):  # there is none, or it is closed
                stream.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setpgid(0, 0)  # Ctrl-C in a terminal is for the runner
            _forget_runner(theirs.fileno())
            _run_starter(theirs, given, parent)
        finally:
            os._exit(1)

    def wait(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if deadline is not None and time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("starter", timeout or 0.0)
                time.sleep(_LOOK_S)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def main(control: str, given: str, parent: int) -> NoReturn:
    """The starter in a fresh interpreter."""
    sys.stdout = sys.stderr
    _run_starter(socket.socket(fileno=int(control)), given, parent)


def _forget_runner(kept: int) -> None:
    """Open files of the runner become /dev/null. They are not closed: their numbers could then be used again, and the
    objects that still have them would close what is not theirs."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        if int(name) not in (2, kept, nothing):
            with suppress(OSError):  # of the listing itself
                os.fstat(int(name))
                os.dup2(2 if name == "1" else nothing, int(name))
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, errors="replace", closefd=False)
    for key in [key for key in os.environ if key.startswith(_SECRET)]:
        del os.environ[key]
    signal.set_wakeup_fd(-1)


# ------------------------------------------------------------------------------------- the starter


def _run_starter(control: socket.socket, given: Any, parent: int) -> NoReturn:
    """Starts and ends policies as asked, until the runner ends."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    running: set[int] = set()
    asked = select.poll()
    asked.register(control, select.POLLIN)
    while os.getppid() == parent:
        if not asked.poll(_PARENT_SEEN_EVERY_MS):
            continue
        data, handed, _, _ = socket.recv_fds(control, _ORDER.size, 1)
        if len(data) < _ORDER.size:
            break
        order, number = _ORDER.unpack(data)
        if order == _START:
            number = _start_policy(control, handed[0], given)
            running.add(number)
        else:
            running.discard(number)
            number = _end_group(number)
        control.sendall(_STATUS.pack(number))
    for pid in running:
        _end_group(pid)
    os._exit(0)


def _end_group(pid: int) -> int:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _start_policy(control: socket.socket, theirs: int, given: Any) -> int:
    starter = os.getpid()
    pid = os.fork()
    if pid:
        with suppress(OSError):
            os.setpgid(pid, pid)
        os.close(theirs)
        return pid
    status = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        control.close()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(_ENDED_FIRST)
        with suppress(AttributeError, OSError):  # Linux; elsewhere the end of the socket is noticed
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() == starter:
            _serve(Channel(socket.socket(fileno=theirs)), given)
        status = 0
    finally:
        os._exit(status)


# -------------------------------------------------------------------------- the process of a policy


def _serve(channel: Channel, given: Any) -> None:
    """Answers what the runner asks, until it closes the socket."""
    with suppress(EOFError, OSError):
        try:
            policy = _load(given)
        except BaseException as error:  # noqa: BLE001 - a policy may raise anything
            channel.send(encode_answer(_failure(error)))
            return
        channel.send(encode_answer(Loaded(policy.batched, policy.chunk)))
        served = _ServedPolicy(policy, channel)
        while served.answer(decode_request(channel.receive())):
            pass


def _load(given: Any) -> Policy:
    if isinstance(given, str):
        try:
            given = load_policy(given)
        except RollbookError:
            raise
        except Exception as error:
            message = f"policy {given}: importing it raised {type(error).__name__}: {error}"
            raise ConfigurationError(message=message) from error
    return as_policy(given, trusted=True)  # the runner has already left out what it must not see


def _failure(error: BaseException) -> Failure:
    failed = error if isinstance(error, PolicyFailed) else policy_failed(error)
    return Failure(failed.kind, failed.message, failed.traceback)


class _ServedPolicy:
    def __init__(self, policy: Policy, channel: Channel) -> None:
        self._policy = policy
        self._channel = channel
        self._episode = ReplayEpisode("")

    def answer(self, request: Request) -> bool:
        """Whether more can follow."""
        try:
            data = self._asked(request)
        except BaseException as error:  # noqa: BLE001 - sys.exit in a policy is a failure like any other
            data = encode_answer(_failure(error))
        self._channel.send(data)
        return not isinstance(request, Close)

    def _asked(self, request: Request) -> bytes:
        if isinstance(request, Reset):
            record = request.record
            self._episode = ReplayEpisode(
                request.id,
                request.step_count,
                None if record is None else msgspec.convert(record, EpisodeRecord),
            )
            self._policy.reset(self._episode)
        elif isinstance(request, Act):
            act = self._policy.act_batch if isinstance(request, ActBatch) else self._policy.act
            context = StepContext(
                request.step, request.is_first, request.is_last, request.t_ns, self._episode
            )
            return _encoded([act(request.observation, context)])
        elif isinstance(request, ActSteps):
            return self._steps(request)
        else:
            self._policy.close()
        return encode_answer(Answer())

    def _steps(self, asked: ActSteps) -> bytes:
        done: list[Action] = []
        sent, plain = time.monotonic(), self._policy.plain
        for row in range(asked.count):
            if done and time.monotonic() - sent > _SEND_EVERY_S:
                self._channel.send(_encoded(done))
                done, sent = [], time.monotonic()
            step = asked.first + row
            seen = {key: values[row, ...] for key, values in asked.observations.items()}
            if plain is not None:
                done.append(checked_action(plain(seen), step))
                continue
            t_ns = None if asked.t_ns is None else asked.t_ns[row]
            context = StepContext(step, step == 0, step == asked.last, t_ns, self._episode)
            done.append(self._policy.act(seen, context))
        return _encoded(done)


def _encoded(actions: list[Action]) -> bytes:
    columns = _columns(actions) if len(actions) > 1 else None
    if columns is not None:
        return encode_answer(Answer(columns=columns, count=len(actions)))
    named = [{str(key): value for key, value in each.items()} for each in actions]
    try:
        return encode_answer(Answer(named))
    except (TypeError, OverflowError):
        for key, value in (item for action in named for item in action.items()):
            _check_sendable(key, value)
        raise


def _columns(actions: list[Action]) -> Values | None:
    """The actions with one array for each key, which is much faster to send; None where they are not all alike."""
    columns: Values = {}
    for key in actions[0]:
        values: list[Any] = [each.get(key) for each in actions]
        first = values[0]
        if type(key) is not str or not isinstance(first, np.ndarray):
            return None
        alike = (first.dtype, first.shape)
        if any(type(v) is not np.ndarray or (v.dtype, v.shape) != alike for v in values):
            return None
        columns[key] = np.stack(values)
    return columns if all(len(each) == len(columns) for each in actions) else None


def _check_sendable(key: str, value: Any) -> None:
    try:
        encode_answer(Answer([{key: value}]))
    except (TypeError, OverflowError) as error:
        raise InvalidValue(
            record="the policy's action",
            field=key,
            value=f"of type {type(value).__name__}",
            expected="numbers, texts, or arrays of these",
        ) from error

"""Policies that tests name as `tests.evals.hostile_policies:…`: each tries to harm the runner that asks it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Obs = dict[str, Any]


def _trouble(obs: Obs) -> bool:
    """The third of the five baselines of these tests begins below zero."""
    return float(obs["/arm/position"][0]) < 0


def follow(obs: Obs) -> Obs:
    return {"/arm/command": obs["/arm/position"]}


def ends_with_0(obs: Obs) -> Obs:
    if _trouble(obs):
        os._exit(0)
    return follow(obs)


def segfault(obs: Obs) -> Obs:
    if _trouble(obs):
        ctypes.string_at(0)
    return follow(obs)


def killed(obs: Obs) -> Obs:
    if _trouble(obs):
        os.kill(os.getpid(), signal.SIGKILL)
    return follow(obs)


def stopped(obs: Obs) -> Obs:
    if _trouble(obs):
        os.kill(os.getpid(), signal.SIGSTOP)
    return follow(obs)


def endless_recursion(obs: Obs) -> Obs:
    return endless_recursion(obs) if _trouble(obs) else follow(obs)


def orphans_that_hold_the_socket(obs: Obs) -> Obs:
    if _trouble(obs) and os.fork():
        os._exit(0)
    if _trouble(obs):
        time.sleep(600)
    return follow(obs)


def grandchild(obs: Obs) -> Obs:
    """Leaves a process behind, in its own group."""
    if _trouble(obs):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ["SPY_FILE"]).write_text(str(left.pid))
        os._exit(0)
    return follow(obs)


def _socket_to_the_runner() -> socket.socket:
    open_files = {name: _target(name) for name in os.listdir("/proc/self/fd")}
    (number,) = [int(name) for name, target in open_files.items() if target.startswith("socket:")]
    return socket.socket(fileno=os.dup(number))


def _target(name: str) -> str:
    """What a descriptor stands for; empty for the one of the listing itself, which is closed by now."""
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""


def claims_10_gigabytes(obs: Obs) -> Obs:
    if _trouble(obs):
        _socket_to_the_runner().send(struct.pack(">Q", 10 << 30))
        time.sleep(600)
    return follow(obs)


def sends_garbage(obs: Obs) -> Obs:
    if _trouble(obs):
        _socket_to_the_runner().send(struct.pack(">Q", 5) + b"\xc1\xff\x00ab")
        time.sleep(600)
    return follow(obs)


def sends_too_large_an_array(obs: Obs) -> Obs:
    return {"/arm/command": np.zeros(9 << 20)} if _trouble(obs) else follow(obs)


def sends_an_object(obs: Obs) -> Obs:
    return {"/arm/command": object()} if _trouble(obs) else follow(obs)


def raises_infrastructure(obs: Obs) -> Obs:
    if _trouble(obs):
        raise type("infrastructure", (Exception,), {})("the server is down")
    return follow(obs)


def raises_interrupted(obs: Obs) -> Obs:
    if _trouble(obs):
        raise type("interrupted", (Exception,), {})("the runner ended while this pair was replayed")
    return follow(obs)


def raises_our_error(obs: Obs) -> Obs:
    from rollbook.errors import ConfigurationError

    raise ConfigurationError(message="the environment cannot be made: no display")


class FairCoin:
    """Raises when it would lose. A new coin is thrown whenever it is asked again."""

    def __init__(self) -> None:
        self._coin = np.random.default_rng()

    def act(self, obs: Obs) -> Obs:
        if self._coin.random() < 0.5:
            raise RuntimeError("no answer")
        return {**follow(obs), "_outcome": {"success": True}}


class Spy:
    """Writes down everything that it can see."""

    def reset(self, episode: Any) -> None:
        self._told = [repr(episode)]

    def act(self, obs: Obs, context: Any) -> Obs:
        self._told += [repr(context), repr(sorted(obs))]
        if context.is_last:
            files = [_target(name) for name in os.listdir("/proc/self/fd")]
            told = [*self._told, repr(dict(os.environ)), repr(files)]
            Path(os.environ["SPY_FILE"]).write_text("\n".join(told))
        return follow(obs)

"""RayConnection: this process connected to a Ray cluster, or to a local one that is started here and ends with it."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from rollbook.errors import ConfigurationError, TransportError

_CONNECT_S = 10.0
_token = secrets.token_hex(32)
"""Ray reads it once in a process, so that all local clusters of this process have the same one."""
_lock = threading.Lock()
_users = 0
"""Runs of this process that use the connection that the first of them made."""
_handler: Any = signal.SIG_DFL
"""What this process does on SIGTERM without Ray."""
_folder: str | None = None
"""Of the local cluster that this process has started: its sockets and logs."""


def check_installed() -> None:
    if find_spec("ray") is None:
        message = "engine='ray' needs Ray, which is not installed: pip install 'rollbook[ray]'"
        raise ConfigurationError(message=message)


class RayConnection:
    """The cluster at `address`, else the one that RAY_ADDRESS names, else a local one that is started here.

    If the caller's own code has connected this process to Ray, that connection is used, and stays.
    """

    def __init__(self, address: str | None) -> None:
        global _users
        check_installed()
        self.ray: Any = importlib.import_module("ray")
        with _lock:
            if self.ray.is_initialized():
                self._check_same_cluster(address)
                self._shared = _users > 0
            else:
                self._open(address or os.environ.get("RAY_ADDRESS") or "local")
                self._shared = True
            _users += self._shared
        self.grows = _folder is None
        """Whether nodes may join later."""

    def close(self) -> None:
        global _users
        with _lock:
            if not self._shared:
                return
            self._shared = False
            _users -= 1
            if _users == 0:
                _shut_down()

    def nodes(self) -> list[dict[str, float]]:
        """The resources of every node that is alive, memory in megabytes."""
        found = [dict(each["Resources"]) for each in self.ray.nodes() if each["Alive"]]
        return [{**each, "memory": each.get("memory", 0) / 2**20} for each in found]

    def _check_same_cluster(self, address: str | None) -> None:
        here = self.ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            message = f"this process is connected to the Ray cluster {here}, not to {address}"
            raise ConfigurationError(message=message)

    def _open(self, address: str) -> None:
        global _folder, _handler
        _handler = signal.getsignal(signal.SIGTERM)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        environment: dict[str, str] = {}
        if address == "local":
            # not the usual folder for temporary files: its name may be too long for the sockets in it
            _folder = tempfile.mkdtemp(prefix="rollbook-ray-", dir="/tmp")
            options |= {"_temp_dir": _folder, "include_dashboard": False}
            environment = _local_environment()
        else:
            _check_reachable(address)
        try:
            with _environment(environment), _quiet():
                self.ray.init(address=address, **options)
            _print_messages_of_nodes(False)
            if callable(_handler):
                _restore_handler()
            # for a run whose results nobody has asked for: its `close` is never called
            atexit.register(_shut_down)
        except BaseException as error:
            with suppress(Exception):
                _shut_down()
            if isinstance(error, ConnectionError):
                raise TransportError(message=_unreachable(address, error)) from error
            if isinstance(error, Exception):
                message = f"Ray cannot be used at {address}: {type(error).__name__}: {error}"
                raise ConfigurationError(message=message) from error
            raise


def _local_environment() -> dict[str, str]:
    """What the processes of a local cluster get.

    Ray listens on all networks of the machine. It asks for a token by default, which it takes from the environment;
    otherwise it writes one into the home folder, where it stays.
    """
    known = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"} & os.environ.keys()
    token = {} if known else {"RAY_AUTH_TOKEN": _token}
    return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_process_group_cleanup_enabled": "1", **token}


def _check_reachable(address: str) -> None:
    """Looks for a listener at `host:port`: Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        if address == "auto":
            return
        message = f"the address of the Ray cluster is {address!r}, expected HOST:PORT or 'auto'"
        raise ConfigurationError(message=message)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise TransportError(message=_unreachable(address, error)) from error


def _unreachable(address: str, error: Exception) -> str:
    return (
        f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, correct "
        "the address, or leave it out to run on this machine"
    )


def _shut_down() -> None:
    """Leaves the cluster. A local one ends, and its folder is removed."""
    global _folder
    atexit.unregister(_shut_down)
    with _quiet():
        importlib.import_module("ray").shutdown()
    _print_messages_of_nodes(True)
    _restore_handler()
    folder, _folder = _folder, None
    if folder is not None:
        _forget_token()
        shutil.rmtree(folder, ignore_errors=True)


def _forget_token() -> None:
    """Ray keeps the token of the local cluster in memory. The next cluster of this process may ask for none."""
    raylet: Any = importlib.import_module("ray._raylet")
    with suppress(AttributeError):
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _restore_handler() -> None:
    """Ray replaces the handler of SIGTERM. A caller who has a handler keeps it, so that it can end in order."""
    if _handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _handler)


def _print_messages_of_nodes(whether: bool) -> None:
    """Ray prints on standard output that a worker was lost. `log_to_driver=False` does not prevent it."""
    worker: Any = importlib.import_module("ray._private.worker")
    worker._worker_logs_enabled = whether


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the processes that are started meanwhile. Ray sets RAY_AUTH_MODE itself."""
    before = {name: os.environ.get(name) for name in [*values, "RAY_AUTH_MODE"]}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray's own code warns, for example of files that it leaves open. The caller cannot do anything about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

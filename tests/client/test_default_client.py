"""The front door: module functions over a default client, and how little importing them costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollbook import client as sdk
from rollbook.errors import AuthError, ConfigurationError
from tests.client.faulty_server import FaultyServer


@pytest.fixture
def environment(wire: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> FaultyServer:
    monkeypatch.setenv("ROLLBOOK_API_KEY", wire.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", wire.base_url)
    return wire


def test_the_default_client_is_made_when_it_is_first_needed(environment: FaultyServer) -> None:
    logged = sdk.log_episode(name="first", status="failed", duration_s=2, failure_time_s=1.5)
    assert environment.episodes[logged.id or ""]["failure_time_s"] == 1.5
    with sdk.start_episode(name="second", artifacts=[]) as episode:
        pass
    assert episode.status == "ready"


def test_without_a_key_the_first_call_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="rollbook login"):
        sdk.log_episode()


def test_init_replaces_the_client_and_close_ends_it(environment: FaultyServer) -> None:
    first = sdk.default_client()
    sdk.init(api_key="rt_wrong", base_url=environment.base_url, timeout=5)
    assert sdk.default_client() is not first
    with pytest.raises(AuthError):
        sdk.log_episode()
    with pytest.raises(RuntimeError, match="closed"):
        first.log_episode()
    sdk.close()
    sdk.close()
    assert sdk.log_episode().status == "ready"


def test_threads_share_one_default_client(environment: FaultyServer) -> None:
    start = threading.Barrier(8)

    def log(number: int) -> str | None:
        start.wait()
        return sdk.log_episode(seed=number).id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(log, range(8)))
    assert len(set(ids)) == 8
    assert sorted(environment.episodes[each or ""]["seed"] for each in ids) == list(range(8))


def test_every_way_to_log_an_episode_takes_the_same_arguments() -> None:
    def names(function: object) -> list[str]:
        found = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
        return [name for name in found if name != "self"]

    for name in ("log_episode", "start_episode"):
        module = names(getattr(sdk, name))
        assert module == names(getattr(sdk.Client, name)) == names(getattr(sdk.AsyncClient, name))
        assert getattr(sdk, name).__doc__
    assert {"failure_time_s", "t_ns", "on_progress"} <= set(names(sdk.log_episode))
    methods = {name for name in dir(sdk.Client) if not name.startswith("_")}
    assert methods == {name for name in dir(sdk.AsyncClient) if not name.startswith("_")}


def test_an_argument_that_does_not_exist_is_a_type_error(environment: FaultyServer) -> None:
    with pytest.raises(TypeError, match="polic_version"):
        sdk.log_episode(polic_version="v1")  # type: ignore[call-arg]
    assert environment.seen == []


def test_without_httpx_the_missing_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['httpx'] = None; from rollbook.errors import ConfigurationError\n"
        "try: from rollbook.client import Client\n"
        "except ConfigurationError as error: sys.exit('rollbook[client]' not in str(error))\n"
        "sys.exit(2)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_reading_contracts_loads_no_http() -> None:
    program = (
        "import sys; import rollbook.contracts.episode, rollbook.contracts.npz, rollbook.contracts.streams\n"
        "sys.exit(bool({'httpx', 'anyio', 'fastapi', 'sqlalchemy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""Sensors and actions are inspected when an episode is finalized: what the server calls readable, the SDK reads."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rollbook.client import Client
from rollbook.contracts.npz import write_npz
from rollbook.errors import InvalidValue
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import shared_server

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture(scope="module")
def team(server: RunningServer) -> Campaigner:
    return campaigner(server)


@pytest.fixture
def client(server: RunningServer, team: Campaigner, tmp_path: Path) -> Iterator[Client]:
    with Client(
        api_key=team.access.api_key,
        base_url=server.base_url,
        cache=tmp_path / "cache",
        verbose=False,
    ) as client:
        yield client


def saved(save: Any = np.savez, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


OBJECTS = saved(a=np.array([{"code": "here"}], object))
FILES = {
    "numbers": saved(**{"arm/value": np.arange(6.0).reshape(3, 2), "arm/_t_ns": np.arange(3)}),
    "no rows": saved(a=np.zeros((0, 7), np.float32)),
    "other rows": saved(a=np.arange(3), b=np.arange(5)),
    "no arrays": saved(),
    "packed 900 times": saved(np.savez_compressed, depth=np.zeros(12_000_000)),
    "object array": OBJECTS,
    "pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00]\x94.",
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "nothing": b"",
    "cut": saved(a=np.arange(100))[:-30],
    "no array inside": zipped(("readme.txt", b"hello")),
    "parquet": b"PAR1" + bytes(100) + b"PAR1",
}
READABLE = {"numbers", "no rows", "other rows", "no arrays", "packed 900 times"}


def recorded(team: Campaigner, content: bytes, kind: str = "sensors") -> str:
    """As the public protocol does it: create, PUT, finalize."""
    made = team.post("/api/ingest/episode", {"request_uploads": [kind]})
    [url] = made["upload_urls"]
    httpx.put(url["url"], content=content, headers=OCTETS).raise_for_status()
    done = team.post(f"/api/ingest/episode/{made['episode_id']}/finalize", {"status": "ready"})
    assert done["status"] == "ready"
    return str(made["episode_id"])


@pytest.mark.parametrize("name", FILES)
def test_what_the_server_calls_readable_the_sdk_reads_and_nothing_else(
    team: Campaigner, client: Client, name: str
) -> None:
    kind = "actions" if len(name) % 2 else "sensors"
    episode_id = recorded(team, FILES[name], kind)
    [artifact] = team.get(f"/api/episodes/{episode_id}")["artifacts"]
    found = client.episode(episode_id)
    read = found.actions if kind == "actions" else found.sensors
    assert artifact["readable"] is (name in READABLE)
    assert found.artifacts[0].readable is artifact["readable"]
    if name not in READABLE:
        with pytest.raises(InvalidValue) as refused:
            read()
        said = str(refused.value).partition(": ")[2]
        assert artifact["detail"] == f"{kind}.npz: {said}"
        assert "arrays" not in artifact
        return
    assert artifact["detail"] is None
    listed = {each["key"]: (each["dtype"], each["shape"]) for each in artifact["arrays"]}
    arrays = read()
    assert listed == {key: (str(array.dtype), list(array.shape)) for key, array in arrays.items()}


def test_keys_types_and_rows_are_shown_for_one_episode_and_left_out_of_lists(
    team: Campaigner, client: Client
) -> None:
    text = np.array(["idle", "reach"])
    episode_id = recorded(team, saved(**{"mode/value": text, "gain": np.array(2.0, ">f8")}))
    found = client.episode(episode_id).artifacts[0]
    assert [(each.key, each.dtype, each.rows) for each in found.arrays] == [
        ("mode/value", "<U5", 2),
        ("gain", "float64", None),
    ]
    listed = team.get("/api/episodes", limit="1")["episodes"][0]["artifacts"][0]
    looked_up = team.post("/api/episodes/lookup", {"ids": [episode_id]})["episodes"][0]
    for artifact in (listed, looked_up["artifacts"][0]):
        assert artifact["readable"] is True
        assert "arrays" not in artifact


def test_of_very_many_arrays_the_first_are_listed(team: Campaigner, tmp_path: Path) -> None:
    write_npz(tmp_path / "many.npz", {f"a{number:03}": [number] for number in range(300)})
    episode_id = recorded(team, (tmp_path / "many.npz").read_bytes())
    [artifact] = team.get(f"/api/episodes/{episode_id}")["artifacts"]
    assert (len(artifact["arrays"]), artifact["arrays"][-1]["key"]) == (256, "a255")
    assert artifact["readable"] is True
    assert artifact["detail"] == "it has 300 arrays; the first 256 are listed"


def test_bytes_that_replace_others_are_inspected_again(team: Campaigner) -> None:
    made = team.post("/api/ingest/episode", {"request_uploads": ["sensors"]})
    episode_id, url = made["episode_id"], made["upload_urls"][0]["url"]
    for name in ("numbers", "html", "no rows"):
        content = FILES[name]
        httpx.put(url, content=content, headers=OCTETS).raise_for_status()
        claim = {"sensors": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}}
        body = {"status": "ready", "artifacts": claim}
        team.post(f"/api/ingest/episode/{episode_id}/finalize", body)
        [artifact] = team.get(f"/api/episodes/{episode_id}")["artifacts"]
        assert artifact["readable"] is (name in READABLE)
        assert ("arrays" in artifact) is (name in READABLE)
        assert (artifact["detail"] is None) is (name in READABLE)


def test_the_sender_is_warned_before_the_upload(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The episode is recorded all the same: the rest of it is worth keeping."""
    (tmp_path / "objects.npz").write_bytes(OBJECTS)
    (tmp_path / "fine.npz").write_bytes(FILES["numbers"])
    (tmp_path / "table.parquet").write_bytes(FILES["parquet"])
    logged = client.log_episode(sensors=tmp_path / "objects.npz")
    assert logged.status == "ready"
    [warning] = caplog.messages
    assert "objects.npz' is recorded, but sensors() cannot read it back" in warning
    assert "a is of type" in warning
    client.log_episode(sensors=tmp_path / "fine.npz", actions=tmp_path / "table.parquet")
    assert len(caplog.messages) == 1

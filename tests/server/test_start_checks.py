"""Settings with which a server cannot work: one line says which and what to do, and no one-time key is spent."""

from __future__ import annotations

import pwd
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.command import Ended, rollbook
from tests.journeys.deployments import S3_ACCESS
from tests.server.blob_servers import BUCKET, free_port, rclone_server
from tests.server.blob_servers import Served as ServedS3
from tests.server.postgres_cluster import PostgresCluster
from tests.server.serving import START_LIMIT_S, serving


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedS3]:
    with rclone_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def in_s3(monkeypatch: pytest.MonkeyPatch, s3: ServedS3) -> ServedS3:
    for name, value in S3_ACCESS.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def is_refused(ended: Ended, data: Path, said: str) -> bool:
    """In one line, before there is anything that could hold a key."""
    assert ended.returncode in (1, 2), ended
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stdout == ""
    return not (data / "rollbook.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--public-url", "http://host:eighty"], "is not an address such as"),
        (["--public-url", "http://host:99999"], "is not an address such as"),
        (["--public-url", "http://[::1"], "is not an address such as"),
        (["--metrics", "127.0.0.1:eighty"], "is not HOST:PORT"),
        (["--metrics", "no.such.host.invalid:9321"], "cannot be bound"),
        (["--metrics", "127.0.0.1:8765", "--port", "8765"], "is where the API is served"),
        (["--host", "no.such.host.invalid"], "choose another --host"),
        (["--database", "postgresql://user@host:eighty/name"], "check the port"),
        (["--database", "sqlite:////dev/null/rollbook.db"], "cannot be made"),
        (["--blobs", "file:///dev/null/blobs"], "cannot be used"),
    ],
)
def test_a_value_that_cannot_work_is_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    ended = rollbook("serve", "--data", tmp_path / "data", "--port", 0, *options)
    assert is_refused(ended, tmp_path / "data", said)


def test_a_port_that_is_no_number_is_said_by_its_option(tmp_path: Path) -> None:
    ended = rollbook("serve", "--data", tmp_path / "data", "--port", "eighty")
    assert ended.returncode == 2
    assert "'--port'" in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_metrics_port_that_is_taken_is_said_before_there_is_a_key(
    tmp_path: Path, taken_port: int, workers: int
) -> None:
    options = ("--metrics", f"127.0.0.1:{taken_port}", "--workers", workers)
    ended = rollbook("serve", "--data", tmp_path / "data", "--port", 0, *options)
    assert is_refused(ended, tmp_path / "data", "choose another --metrics")


def test_a_data_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    ended = rollbook("serve", "--data", "/dev/null/data", "--port", 0)
    assert is_refused(ended, tmp_path, "the data folder cannot be made")


def test_a_user_without_a_home_folder_is_asked_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> object:
        raise KeyError("no such user")

    for name in ("HOME", "ROLLBOOK_HOME", "ROLLBOOK_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert is_refused(rollbook("serve", "--port", 0), tmp_path, "set HOME, or name a folder")


# ------------------------------------------------------------------------------------------ PostgreSQL


def test_a_superuser_is_refused_before_anything_is_created(
    tmp_path: Path, postgres_cluster: PostgresCluster
) -> None:
    url = postgres_cluster.new_database()
    admin = postgres_cluster.admin_url(urlsplit(url).path[1:])
    ended = rollbook("serve", "--data", tmp_path / "data", "--port", 0, "--database", admin)
    assert is_refused(ended, tmp_path / "data", "NOSUPERUSER NOBYPASSRLS")
    with psycopg.connect(admin) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(query).fetchone() == (0,)


@pytest.mark.parametrize(
    ("database", "role", "said"),
    [("no_such_database", None, "no_such_database"), ("postgres", "nobody", '"nobody"')],
)
def test_a_database_that_does_not_take_us_says_why(
    tmp_path: Path, postgres_cluster: PostgresCluster, database: str, role: str | None, said: str
) -> None:
    url = postgres_cluster.url(database, *([role] if role else []))
    ended = rollbook("serve", "--data", tmp_path / "data", "--port", 0, "--database", url)
    assert is_refused(ended, tmp_path / "data", said)


# -------------------------------------------------------------------------------------------------- S3


def test_an_s3_that_refuses_us_is_refused(
    tmp_path: Path, in_s3: ServedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(bucket: str, endpoint: str, *more: str) -> Ended:
        place = ("--blobs", f"s3://{bucket}", "--s3-endpoint", endpoint, *more)
        return rollbook("serve", "--data", tmp_path / "data", "--port", 0, *place)

    assert is_refused(start("no-such-bucket", in_s3.url), tmp_path / "data", "create it")
    assert is_refused(start(BUCKET, "http://host:eighty"), tmp_path / "data", "is not a URL")
    public = ("--s3-public-endpoint", "http://host:eighty")
    assert is_refused(start(BUCKET, in_s3.url, *public), tmp_path / "data", "is not a URL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert is_refused(start(BUCKET, in_s3.url), tmp_path / "data", "check the credentials")


@pytest.mark.slow
def test_an_s3_that_does_not_answer_yet_is_a_warning_and_the_key_is_printed(
    tmp_path: Path,
) -> None:
    s3 = rclone_server(tmp_path)
    s3.port = free_port()
    options = ("--blobs", f"s3://{BUCKET}", "--s3-endpoint", s3.url)
    with serving(tmp_path / "data", *options, environment=S3_ACCESS, ready=False) as server:
        assert server.api_key
        # S3 itself was asked, or the check gave up waiting for it
        assert re.search(r"warning: blobs: \S+ does not answer", server.log_path.read_text())
        readyz = f"{server.base_url}/readyz"
        assert httpx.get(readyz).status_code == 503
        with s3:
            deadline = time.monotonic() + START_LIMIT_S
            while httpx.get(readyz).status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)

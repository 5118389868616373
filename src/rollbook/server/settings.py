"""Settings of one server. Settings that are not given get working defaults, and missing files are created."""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollbook.errors import ConfigurationError, StorageError
from rollbook.files import fsync_folder, make_folders

DEFAULT_PORT = 8321
_LEAST_SECRET_BYTES = 32
_SECRET_FILE = "secret.key"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data_dir: Path
    database_url: str
    """`sqlite:///PATH` or `postgresql://…`."""
    blobs_url: str
    """`file:///folder` or `s3://bucket/prefix`."""
    secret: bytes = field(repr=False)
    """Signs URLs. All processes of one server need the same secret: from ROLLBOOK_SECRET, or from the data folder."""
    s3_endpoint: str | None = None
    s3_public_endpoint: str | None = None
    """Where clients reach S3, when that is another address than `s3_endpoint`. Signed URLs lead there."""
    database_connections: int = 16
    """Connections of one process to PostgreSQL. All processes together must stay below `max_connections` there."""
    public_url: str | None = None
    """The URL at which clients reach this server, when it differs from their Host header."""
    allowed_hosts: tuple[str, ...] = ()
    """More host names that clients may use; the server's own address and loopback are always allowed."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies. Only they may say, by X-Forwarded-For and X-Forwarded-Proto, from whom a
    request comes and whether by https; of anyone else these headers are ignored."""
    hsts_s: int = 31_536_000
    """Over https, how long browsers are told to use nothing else for this host (HSTS); 0 tells them nothing."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    workers: int = 1
    metrics_bind: str | None = None
    """`HOST:PORT` for Prometheus, apart from the public API."""
    log_level: str = "info"

    upload_ttl_s: int = 1800
    download_ttl_s: int = 3600
    body_limit_bytes: int = 4 << 20
    """Bytes of one JSON request."""
    artifact_limit_bytes: int = 64 << 30
    quota_episodes: int | None = None
    """Per organisation, unless it has its own limit; None means no limit."""
    quota_bytes: int | None = None
    requests_per_s: float = 1000.0
    """Requests per second of one API key or one person, on average; 0 means no limit. Far more than a fleet sends, and
    low enough that a runaway program leaves capacity for others."""
    requests_burst: int = 5000
    transcode_videos: bool = True
    """After a finalize, make a copy that browsers can play of every video that they cannot."""
    transcode_limit_bytes: int = 2 << 30
    """Bytes of a video to transcode, and of its copy; a larger video is marked not playable."""
    transcode_limit_s: float = 1800.0
    """Length of a video to transcode."""
    head_timeout_s: float = 10.0
    """Seconds within which the head of a request has to arrive."""
    minimum_bytes_per_s: int = 1000
    """A request body, or a download, that moves more slowly than this for `rate_window_s` is cut off; 0 means no limit.
    Low, so that a robot on a bad link is not hurt."""
    rate_window_s: float = 60.0
    connections_per_address: int = 256
    """Open connections of one address, in each process; 0 means no limit. A connection above it ends the one that has
    waited longest for its client. Connections of `trusted_proxies` are not counted."""
    sign_ins_per_minute: int = 10
    """Sign-in attempts from one address or for one account."""

    reap_every_s: float = 300.0
    """0 turns upkeep off in this process."""
    reap_after_s: float = 86_400.0
    """A recording that nobody touched for this long has failed."""
    find_orphans_every_s: float = 86_400.0
    """Lists every blob, which S3 charges for."""
    idempotency_ttl_s: float = 90 * 86_400.0
    """Long, so that a robot without network for months does not deliver an episode twice."""
    reap_runs_after_s: float = 7 * 86_400.0
    """An eval run that nobody touched for this long has failed."""
    webhooks_to_private: bool = False
    """Webhooks may call loopback and private networks. Everyone who may create a webhook can then reach what this
    server can."""
    webhook_timeout_s: float = 15.0
    webhook_attempts: int = 8
    webhook_retry_s: float = 10.0
    """Seconds until the second attempt; each later wait is four times as long, up to six hours."""
    webhook_poll_s: float = 30.0
    """How often a process looks for deliveries that others left; 0 leaves deliveries to other processes."""
    webhook_log_s: float = 30 * 86_400.0
    """How long the log of deliveries is kept."""
    store_roots: tuple[str, ...] = ()
    """Where rollout stores may lie that people register: `[ORG=]FOLDER` or `[ORG=]s3://bucket/prefix`. A root belongs
    to the organisation with this id; without one to the first organisation of the server."""
    shutdown_grace_s: int = 30
    """Seconds after SIGTERM within which a process ends. Running requests get all but the last 5."""

    @classmethod
    def load(cls, data_dir: Path, **overrides: Any) -> Settings:
        """Creates the folder and the secret. An override of None is ignored."""
        given = {name: value for name, value in overrides.items() if value is not None}
        known = {each.name: each for each in fields(cls)}
        for name in given:
            if name not in known:
                expected = ", ".join(sorted(set(known) - {"data_dir"}))
                message = f"there is no setting {name!r}; known: {expected}"
                raise ConfigurationError(message=message)
        folder = _private_folder(Path(data_dir))
        values: dict[str, Any] = {
            "database_url": f"sqlite:///{folder / 'rollbook.db'}",
            "blobs_url": (folder / "blobs").as_uri(),
            **given,
        }
        values["secret"] = _secret(folder, given.get("secret") or os.environ.get("ROLLBOOK_SECRET"))
        values["public_url"] = _public_url(given.get("public_url"))
        hosts = given.get("allowed_hosts", ())
        values["allowed_hosts"] = tuple(hosts.split(",") if isinstance(hosts, str) else hosts)
        values["trusted_proxies"] = _proxies(given.get("trusted_proxies", ()))
        roots = given.get("store_roots", ())
        values["store_roots"] = (roots,) if isinstance(roots, str) else tuple(map(str, roots))
        _check_numbers(values)
        return cls(data_dir=folder, **values)

    @property
    def local_url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "", "::") else self.host
        return f"http://{_in_url(host)}:{self.port}"

    @property
    def client_url(self) -> str:
        """The base URL of links that are shown to the operator."""
        return self.public_url or self.local_url

    @property
    def known_hosts(self) -> frozenset[str]:
        """Allowed Host headers, in lower case, with and without our port."""
        names = {*_LOOPBACK, self.host.lower(), *(name.lower() for name in self.allowed_hosts)}
        return frozenset(names) | {f"{_in_url(name)}:{self.port}" for name in names}

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        if self.metrics_bind is None:
            return None
        host, colon, port = self.metrics_bind.rpartition(":")
        if not colon or not port.isdecimal() or not 0 <= int(port) < 65_536:
            message = f"metrics: {self.metrics_bind!r} is not HOST:PORT, such as 127.0.0.1:9321"
            raise ConfigurationError(message=message)
        return host.strip("[]") or "127.0.0.1", int(port)

    def portable(self) -> dict[str, Any]:
        """What another process needs to load the same settings. The secret is in the data folder."""
        kept = {each.name: getattr(self, each.name) for each in fields(self)}
        del kept["secret"]
        return {**kept, "data_dir": str(self.data_dir)}


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Below ROLLBOOK_HOME, or the home folder of the user."""
    home = environment.get("ROLLBOOK_HOME")
    try:
        return (Path(home) if home else Path.home() / ".rollbook") / "server"
    except RuntimeError as error:
        message = "data: this user has no home folder; set HOME, or name a folder by --data"
        raise ConfigurationError(message=message) from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _private_folder(folder: Path) -> Path:
    """The folder holds hashes of keys and recordings: no other user of the machine may read it."""
    try:
        make_folders(folder, mode=0o700)
        return folder.resolve(strict=True)
    except OSError as error:
        detail = f"the data folder cannot be made: {error.strerror}"
        raise StorageError(path=str(folder), detail=detail) from error


def _secret(folder: Path, given: bytes | str | None) -> bytes:
    """The given secret, or the one in the folder. Processes that start together all use the first one's secret."""
    if given is not None:
        secret = given.encode() if isinstance(given, str) else given
        if len(secret) < _LEAST_SECRET_BYTES:
            message = f"secret: {len(secret)} bytes are too few; give at least {_LEAST_SECRET_BYTES} random ones"
            raise ConfigurationError(message=message)
        return secret
    path = folder / _SECRET_FILE
    if not path.exists():
        _write_secret(path)
    try:
        secret = path.read_bytes()
        open_to_others = stat.S_IMODE(path.stat().st_mode) & 0o077
    except OSError as error:
        raise StorageError(path=str(path), detail=f"cannot be read: {error.strerror}") from error
    if len(secret) < _LEAST_SECRET_BYTES:
        detail = "it is too short to be the secret of a server; remove it and start again"
        raise StorageError(path=str(path), detail=detail)
    if open_to_others:
        raise StorageError(path=str(path), detail="others can read it; chmod 600 it")
    return secret


def _write_secret(path: Path) -> None:
    temp = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_LEAST_SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temp, path)
        except FileExistsError:
            pass  # another process was first; its secret is used
        finally:
            temp.unlink()
    except OSError as error:
        raise StorageError(path=str(path), detail=f"cannot be written: {error.strerror}") from error
    fsync_folder(path.parent)


def is_http_url(url: str) -> bool:
    """With a host, and a port that is a number, if any."""
    try:
        split = urlsplit(url)
        return split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        return False


def _public_url(url: str | None) -> str | None:
    if url is None:
        return None
    if not is_http_url(url) or urlsplit(url).query or urlsplit(url).fragment:
        message = f"public-url: {url!r} is not an address such as https://rollbook.example.com"
        raise ConfigurationError(message=message)
    return url.rstrip("/")


def _proxies(given: object) -> tuple[str, ...]:
    texts = given.split(",") if isinstance(given, str) else given
    try:
        if not isinstance(texts, list | tuple):
            raise ValueError
        names = tuple(str(text).strip() for text in texts)
        for name in names:
            ipaddress.ip_network(name)
    except ValueError as error:
        message = (
            f"trusted_proxies is {given!r}; expected addresses or networks, separated by commas, "
            "such as 127.0.0.1,10.0.0.0/8"
        )
        raise ConfigurationError(message=message) from error
    return names


_WHOLE = {
    "port": 0,
    "workers": 1,
    "database_connections": 1,
    "upload_ttl_s": 1,
    "download_ttl_s": 1,
    "body_limit_bytes": 1,
    "artifact_limit_bytes": 1,
    "quota_episodes": 0,
    "quota_bytes": 0,
    "requests_burst": 1,
    "minimum_bytes_per_s": 0,
    "connections_per_address": 0,
    "sign_ins_per_minute": 1,
    "shutdown_grace_s": 0,
    "hsts_s": 0,
    "transcode_limit_bytes": 1,
    "webhook_attempts": 1,
}
_REAL = {
    "requests_per_s": 0,
    "head_timeout_s": 0.1,
    "rate_window_s": 0.1,
    "reap_every_s": 0,
    "reap_after_s": 0,
    "find_orphans_every_s": 0,
    "idempotency_ttl_s": 0,
    "transcode_limit_s": 0,
    "reap_runs_after_s": 0,
    "webhook_timeout_s": 0.1,
    "webhook_retry_s": 0,
    "webhook_poll_s": 0,
    "webhook_log_s": 0,
}
"""The smallest allowed value of each setting."""
_FLAGS = ("transcode_videos", "webhooks_to_private")


def _check_numbers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in _FLAGS and not isinstance(value, bool):
            raise ConfigurationError(message=f"{name} is {value!r}; expected true or false")
        least = _WHOLE.get(name, _REAL.get(name))
        if least is None:
            continue
        kinds = (int,) if name in _WHOLE else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
            what = "a whole number" if name in _WHOLE else "a number"
            message = f"{name} is {value!r}; expected {what}, at least {least}"
            raise ConfigurationError(message=message)

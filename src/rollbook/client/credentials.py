"""Credentials: the server and its API key, from arguments, the environment, or the file that login wrote."""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from rollbook.errors import ConfigurationError
from rollbook.files import fsync_folder

ENV_API_KEY = "ROLLBOOK_API_KEY"
ENV_BASE_URL = "ROLLBOOK_BASE_URL"
ENV_HOME = "ROLLBOOK_HOME"
ENV_QUIET = "ROLLBOOK_QUIET"
DEFAULT_PROFILE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One table of the credentials file."""

    api_key: str
    base_url: str
    org_id: str | None = None
    user_email: str | None = None
    written_at: str | None = None

    def __repr__(self) -> str:
        return f"Profile(base_url={self.base_url!r}, user_email={self.user_email!r})"


@dataclass(frozen=True, slots=True)
class Access:
    api_key: str
    base_url: str

    def __repr__(self) -> str:
        return f"Access(base_url={self.base_url!r})"


def home() -> Path:
    """The folder of this user: credentials, cache and journals."""
    given = os.environ.get(ENV_HOME, "").strip()
    try:
        return Path(given).expanduser() if given else Path.home() / ".rollbook"
    except RuntimeError as error:
        message = f"this user has no home folder; set HOME or {ENV_HOME}"
        raise ConfigurationError(message=message) from error


def credentials_path() -> Path:
    return home() / "credentials"


def resolve_access(
    api_key: str | None = None, base_url: str | None = None, profile: str | None = None
) -> Access:
    """Key and URL, each from the argument, else from the environment, else from the profile."""
    key = api_key or os.environ.get(ENV_API_KEY)
    url = base_url or os.environ.get(ENV_BASE_URL)
    if not key or not url:
        stored = read_profile(profile or DEFAULT_PROFILE)
        if stored is None and profile is not None:
            known = ", ".join(read_profiles()) or "none"
            message = f"there is no profile {profile!r} in {credentials_path()} (known: {known})"
            raise ConfigurationError(
                message=f"{message}; run `rollbook login --profile {quote(profile)}`"
            )
        key = key or (stored.api_key if stored else None)
        url = url or (stored.base_url if stored else None)
    if not key:
        raise ConfigurationError(message=_missing("API key", "api_key", ENV_API_KEY))
    if not url:
        raise ConfigurationError(message=_missing("server URL", "base_url", ENV_BASE_URL))
    return Access(_checked_key(key), _checked_url(url))


def read_profile(name: str = DEFAULT_PROFILE) -> Profile | None:
    return read_profiles().get(name)


def read_profiles() -> dict[str, Profile]:
    path = credentials_path()
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read ({error}); remove it and run `rollbook login` again"
        raise ConfigurationError(message=message) from error
    return {name: _profile(path, name, table) for name, table in tables.items()}


def write_profile(profile: Profile, name: str = DEFAULT_PROFILE) -> Path:
    """Adds or replaces one profile. Only the owner can read the file, also while it is being written."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    table = {field.name: getattr(profile, field.name) for field in fields(profile)}
    table["written_at"] = profile.written_at or now
    with _locked():
        profiles = {**read_profiles(), name: Profile(**table)}
        _write(profiles)
    return credentials_path()


def remove_profile(name: str = DEFAULT_PROFILE) -> bool:
    """Returns False if there is no such profile. Removing the last profile removes the file."""
    if not credentials_path().exists():
        return False
    with _locked():
        profiles = read_profiles()
        if profiles.pop(name, None) is None:
            return False
        if profiles:
            _write(profiles)
        else:
            credentials_path().unlink()
    return True


def is_quiet() -> bool:
    return os.environ.get(ENV_QUIET, "").strip().lower() in ("1", "true", "yes")


def _missing(what: str, argument: str, variable: str) -> str:
    return f"no {what}: run `rollbook login`, set {variable}, or pass {argument}= to rollbook.init() or Client()"


def _checked_key(key: str) -> str:
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        message = "the API key contains characters that no key has; copy it again, without quotes or spaces"
        raise ConfigurationError(message=message)
    return key


def _checked_url(url: str) -> str:
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or "@" in parts.netloc:
        message = "base_url has to be like https://rollbook.example.com or http://127.0.0.1:8000"
        raise ConfigurationError(message=message)
    return url


def _profile(path: Path, name: str, table: object) -> Profile:
    known = {field.name for field in fields(Profile)}
    values = table if isinstance(table, Mapping) else {}
    kept = {key: value for key, value in values.items() if key in known and isinstance(value, str)}
    if not {"api_key", "base_url"} <= kept.keys():
        message = f"profile {name!r} in {path} is incomplete; run `rollbook login --profile {quote(name)}`"
        raise ConfigurationError(message=message)
    return Profile(**kept)


def _write(profiles: Mapping[str, Profile]) -> None:
    path = credentials_path()
    temp = path.with_name(f".credentials.{os.urandom(8).hex()}.tmp")
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(_as_toml(name, each) for name, each in sorted(profiles.items())))
            file.flush()
            os.fsync(descriptor)
        os.replace(temp, path)
        fsync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            temp.unlink()


def _as_toml(name: str, profile: Profile) -> str:
    values = {field.name: getattr(profile, field.name) for field in fields(profile)}
    lines = [f"{key} = {_quoted(value)}" for key, value in sorted(values.items()) if value]
    return "\n".join([f"[{_quoted(name)}]", *lines, ""])


def _quoted(text: str) -> str:
    """A JSON string is a TOML string, except that TOML requires DEL to be escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@contextmanager
def _locked() -> Iterator[None]:
    """Prevents two logins at the same time from losing a profile."""
    folder = home()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / ".credentials.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        message = f"{folder} cannot be written ({error.strerror}); set {ENV_HOME} to another folder"
        raise ConfigurationError(message=message) from error

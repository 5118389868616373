"""Credentials: where a key and a URL come from, and how the file of profiles is kept."""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.client import Client
from rollbook.client.credentials import (
    Profile,
    credentials_path,
    home,
    read_profile,
    read_profiles,
    remove_profile,
    resolve_access,
    write_profile,
)
from rollbook.errors import ConfigurationError
from tests.watched_files import WatchedFiles

HERE = Profile(api_key="rb_file", base_url="https://file.example")


def test_a_call_counts_more_than_the_environment_and_that_more_than_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_profile(HERE)
    assert resolve_access() == resolve_access(None, None, "default")
    assert (resolve_access().api_key, resolve_access().base_url) == (
        "rb_file",
        "https://file.example",
    )
    monkeypatch.setenv("ROLLBOOK_API_KEY", "rb_env")
    assert resolve_access().api_key == "rb_env"
    assert resolve_access().base_url == "https://file.example", "each value is found on its own"
    monkeypatch.setenv("ROLLBOOK_BASE_URL", "https://env.example/")
    assert resolve_access().base_url == "https://env.example"
    found = resolve_access("rb_call", "http://call.example:8000/")
    assert (found.api_key, found.base_url) == ("rb_call", "http://call.example:8000")


def test_a_login_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path))
    with WatchedFiles(tmp_path) as watched:
        path = write_profile(HERE)
        assert watched.is_durable(path)
    assert watched.named_before_sync == []


def test_what_is_missing_is_said_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"rollbook login.*ROLLBOOK_API_KEY.*api_key="):
        Client()
    with pytest.raises(ConfigurationError, match=r"rollbook login.*ROLLBOOK_BASE_URL.*base_url="):
        Client(api_key="k")
    write_profile(HERE, "lab")
    with pytest.raises(ConfigurationError, match=r"no profile 'nope'.*known: lab.*--profile nope"):
        Client(profile="nope")


@pytest.mark.parametrize(
    "url",
    [
        "example.com",
        "ftp://x",
        "http://",
        "http://u:p@host",
        "http://h/?q=1",
        "http://h:0",
        "x" * 9,
    ],
)
def test_a_url_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url has to be like"):
        resolve_access("k", url)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        resolve_access(key, "http://h")
    assert key not in str(found.value)


def test_the_file_is_for_its_owner_alone() -> None:
    before = os.umask(0)
    try:
        path = write_profile(HERE)
    finally:
        os.umask(before)
    assert path == home() / "credentials" == credentials_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None
)
@given(st.dictionaries(TEXT, st.tuples(TEXT, TEXT, st.none() | TEXT), min_size=1, max_size=3))
def test_profiles_come_back_as_they_were(profiles: dict[str, tuple[str, str, str | None]]) -> None:
    credentials_path().unlink(missing_ok=True)
    for name, (key, url, email) in profiles.items():
        write_profile(Profile(api_key=key, base_url=url, user_email=email), name)
    back = read_profiles()
    assert {name: (p.api_key, p.base_url, p.user_email) for name, p in back.items()} == profiles


def test_writing_one_profile_keeps_the_others_and_says_when() -> None:
    write_profile(HERE, "lab")
    write_profile(Profile(api_key="k2", base_url="http://b", org_id="o"), "home")
    assert sorted(read_profiles()) == ["home", "lab"]
    found = read_profile("home")
    assert found is not None
    assert found.org_id == "o"
    assert (found.written_at or "").endswith("Z")
    assert "k2" not in repr(found)


def test_removing_the_last_profile_removes_the_file() -> None:
    assert not remove_profile()
    write_profile(HERE)
    write_profile(HERE, "lab")
    assert remove_profile("lab")
    assert not remove_profile("lab")
    assert remove_profile()
    assert not credentials_path().exists()


@pytest.mark.parametrize(
    "text",
    [
        "not toml [",
        "[default]\napi_key = 3\nbase_url = 'u'",
        "[default]\nbase_url = 'u'",
        "default = 1",
    ],
)
def test_a_file_that_is_not_one_says_what_to_do(text: str) -> None:
    home().mkdir()
    credentials_path().write_text(text)
    with pytest.raises(ConfigurationError, match="rollbook login"):
        Client()


def test_logins_at_the_same_time_lose_no_profile(tmp_path: Path) -> None:
    program = (
        "import sys; from rollbook.client.credentials import *\n"
        "for i in range(8): write_profile(Profile(api_key='k', base_url='u'), f'{sys.argv[1]}-{i}')"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, name]) for name in ("a", "b")]
    assert [each.wait(60) for each in running] == [0, 0]
    assert len(read_profiles()) == 16


def test_a_login_waits_for_another_one(tmp_path: Path) -> None:
    write_profile(HERE)
    login = threading.Thread(target=write_profile, args=(HERE, "second"))
    with open(home() / ".credentials.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        login.start()
        login.join(0.3)
        assert login.is_alive()
        assert list(read_profiles()) == ["default"]
    login.join()
    assert sorted(read_profiles()) == ["default", "second"]


def test_a_folder_that_cannot_be_written_is_a_mistake_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="ROLLBOOK_HOME"):
        write_profile(HERE)


def test_a_user_without_a_home_folder_needs_none_when_everything_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(_: int) -> object:
        raise KeyError("no such user")

    for name in ("HOME", "ROLLBOOK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert resolve_access("rb_key", "https://call.example").api_key == "rb_key"
    with pytest.raises(ConfigurationError, match="set HOME or ROLLBOOK_HOME"):
        resolve_access()

"""`rollbook server` changes organisations without a running server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import rollbook


@pytest.fixture
def org_id(tmp_path: Path) -> str:
    made = rollbook("server", "bootstrap", "--data", tmp_path, "--org", "Acme", "--json").stdout
    return str(json.loads(made)["org_id"])


def test_an_organisation_gets_another_name(tmp_path: Path, org_id: str) -> None:
    place = ("--data", tmp_path)
    renamed = rollbook("server", "rename-organisation", org_id, "Acme Robots", *place, "--json")
    assert json.loads(renamed.stdout) == {"org_id": org_id, "org": "Acme Robots"}
    shown = rollbook("server", "rename-organisation", org_id, "Acme", *place)
    assert shown.stdout == f"organisation  Acme ({org_id})\n"
    refused = rollbook("server", "rename-organisation", org_id, "x" * 1000, *place, "--json")
    assert refused.returncode != 0
    assert "characters" in json.loads(refused.stderr)["error"]


def test_an_organisation_gets_a_quota_and_loses_it_again(tmp_path: Path, org_id: str) -> None:
    place = ("--data", tmp_path)
    limits = ("--episodes", "5", "--bytes", str(10**12))
    limited = rollbook("server", "set-quota", org_id, *limits, *place, "--json")
    assert json.loads(limited.stdout) == {
        "org_id": org_id,
        "org": "Acme",
        "quota_episodes": 5,
        "quota_bytes": 10**12,
    }
    free = rollbook("server", "set-quota", org_id, *place)
    assert free.stdout.count("the server's limit") == 2
    negative = rollbook("server", "set-quota", org_id, "--episodes", "-1", *place)
    assert negative.returncode != 0


def test_an_unknown_organisation_is_named(tmp_path: Path, org_id: str) -> None:
    unknown = rollbook("server", "set-quota", "nobody", "--data", tmp_path, "--json")
    assert unknown.returncode == 2
    assert "nobody" in json.loads(unknown.stderr)["error"]


def test_the_organisations_are_listed_with_what_they_store_and_may(
    tmp_path: Path, org_id: str
) -> None:
    place = ("--data", tmp_path)
    rollbook("server", "set-quota", org_id, "--episodes", "5", *place)
    [shown] = json.loads(rollbook("server", "organisations", *place, "--json").stdout)
    assert shown == {
        "org_id": org_id,
        "org": "Acme",
        "episodes": 0,
        "bytes": 0,
        "quota_episodes": 5,
        "quota_bytes": None,
    }


def test_a_retention_policy_is_tried_added_listed_and_removed(tmp_path: Path, org_id: str) -> None:
    place = ("--data", tmp_path, "--json")

    def retention(verb: str, *options: object) -> Any:
        return json.loads(rollbook("server", "retention", verb, org_id, *options, *place).stdout)

    wanted = ("--older-than-days", 30, "--source", "sim", "--tag", "scratch")
    tried = retention("add", *wanted, "--dry-run")
    assert (tried["policy_id"], tried["episode_count"], tried["bytes"]) == (None, 0, 0)
    assert retention("list") == []
    policy_id = retention("add", *wanted)["policy_id"]
    [listed] = retention("list")
    assert (listed["id"], listed["older_than_days"]) == (policy_id, 30)
    assert (listed["source"], listed["tags"]) == ("sim", ["scratch"])
    assert retention("remove", policy_id) == {"policy_id": policy_id, "removed": True}
    assert retention("list") == []
    unknown = rollbook("server", "retention", "hold", org_id, "none", "--reason", "x", *place)
    assert (unknown.returncode, "no episode" in unknown.stderr) == (2, True)


def test_the_address_that_serve_prints_accepts_connections(tmp_path: Path) -> None:
    """The server is stopped as soon as it has printed its key, long before it could answer."""
    rollbook_command = str(Path(sys.executable).with_name("rollbook"))
    command = [rollbook_command, "serve", "--data", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(re.findall(r"http://[\d.]+:(\d+)", process.stdout.readline())[0])
            os.kill(process.pid, signal.SIGSTOP)
            socket.create_connection(("127.0.0.1", port)).close()
        finally:
            process.kill()

"""The unit of systemd and the Containerfile start a server with options, extras and files that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from configparser import RawConfigParser
from pathlib import Path

from tests.command import rollbook

ROOT = Path(__file__).parents[1]
CONTAINERFILE = (ROOT / "Containerfile").read_text()


def test_the_unit_starts_the_server_with_options_that_exist() -> None:
    unit = RawConfigParser(strict=False)
    unit.read_string((ROOT / "examples" / "deploy" / "rollbook.service").read_text())
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program == "/opt/rollbook/bin/rollbook"
    assert arguments[0] == "serve"
    described = rollbook("serve", "--help").stdout
    assert all(f" {each} " in described for each in arguments if each.startswith("--"))
    assert int(unit["Service"]["TimeoutStopSec"]) > 30, "shutdown_grace_s"


def test_the_image_is_made_of_files_and_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        each for found in re.findall(r"\[([\w,]+)\]'", CONTAINERFILE) for each in found.split(",")
    }
    assert {"server", "postgres"} <= named <= set(project["optional-dependencies"])
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    files = [each for line in copied for each in line.split()]
    assert files
    assert all((ROOT / each).exists() for each in files)
    kept = re.findall(r"^!(.+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE)
    assert set(kept) == set(files)


def test_the_image_runs_a_command_that_exists_as_a_user_of_its_own() -> None:
    assert 'ENTRYPOINT ["rollbook"]\nCMD ["serve", "--host", "0.0.0.0"]' in CONTAINERFILE
    assert CONTAINERFILE.index("USER rollbook") < CONTAINERFILE.index("ENTRYPOINT")

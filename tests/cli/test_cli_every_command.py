"""Rules that every command keeps, found by walking the tree of commands."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from rollbook import evals
from rollbook.cli.exit_codes import USAGE
from rollbook.cli.main import app
from rollbook.client import Client
from rollbook.contracts import save_table
from tests.cli.test_cli import every_command
from tests.command import rollbook
from tests.evals.small_stores import small_store
from tests.factories import table
from tests.server.fixtures import StartServer, running_server
from tests.server.running import Access, RunningServer
from tests.server.shared_server import new_organisation, shared_server

__all__ = ["running_server"]

TREE = typer.main.get_command(app)
COMMANDS = {
    path: command for path, command in every_command(TREE) if not hasattr(command, "commands")
}
GROUPS = [path for path, command in every_command(TREE) if hasattr(command, "commands")]


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ROLLBOOK_API_KEY", raising=False)
    monkeypatch.delenv("ROLLBOOK_BASE_URL", raising=False)


def test_h_is_help_for_every_command_and_group() -> None:
    for path in (*COMMANDS, *GROUPS):
        short, long = rollbook(*path.split(), "-h"), rollbook(*path.split(), "--help")
        assert (short.returncode, short.stdout) == (0, long.stdout), path
        assert "-h, --help" in short.stdout


WITHOUT_JSON = {
    "serve": "runs until it is stopped, and logs",
    "login": "waits for a person in a browser",
}


def test_every_command_has_json_but_for_those_with_a_reason() -> None:
    without = {
        path
        for path, command in COMMANDS.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(WITHOUT_JSON)


# ------------------------------------------------------------------------------------- wrong input

WRONG_INPUT = {
    "demo": "{folder}/x too-many-words",
    "serve": "--data {folder} --set quota_bytes",
    "login": "--base-url nonsense",
    "whoami": "--profile none",
    "logout": "--profile none",
    "episodes list": "--metadata nonsense",
    "episodes show": "x --profile none",
    "episodes download": "../x",
    "episodes delete": "x --yes --profile none",
    "episodes deliver": "{none}",
    "import ros2": "{none} --dry-run",
    "import hdf5": "{none} --dry-run",
    "import lerobot": "{none} --dry-run",
    "import minari": "{none} --dry-run",
    "import rlds": "{none} --dry-run",
    "import zarr-buffer": "{none} --dry-run",
    "import trajectories": "{none} --dry-run",
    "import gymnasium": "{none} --dry-run",
    "import episodes": "{none} --dry-run",
    "export lerobot": "--episodes {none} --out {folder}/x",
    "export mcap": "--episodes {none} --out {folder}/x",
    "export hdf5": "--episodes {none} --out {folder}/x",
    "export minari": "--episodes {none} --out {folder}/x",
    "export parquet": "--episodes {none} --out {folder}/x",
    "export rrd": "--query nonsense --out {folder}/x",
    "store info": "{none}",
    "store validate": "{none}",
    "store audit": "{none}",
    "store waterfall": "{none}",
    "store suspicious": "{none}",
    "store tree": "{none}",
    "store depth": "{none}",
    "store export": "{none} {folder}/x.csv",
    "store repack": "{none} {folder}/x.zarr --profile local",
    "store publish": "{none} s3://bucket/x",
    "store migrate": "{none}",
    "store to-artifacts": "{none} --out {folder}/x.table",
    "store push": "{none}",
    "contracts check": "{none}",
    "contracts show": "{none}",
    "contracts convert": "{none} {folder}/x.table",
    "contracts lineage": "{none}",
    "contracts send": "{none}",
    "source make": "{folder}/x --config {none}",
    "source import": "{folder}/x --config {none}",
    "source info": "{none}",
    "source validate": "{none}",
    "source preview": "{none} --out {folder}/x.png",
    "source publish": "{none} s3://bucket/x",
    "generate run": "--config {none}",
    "campaign plan": "--config {none} --out {folder}/x",
    "campaign run": "{none}",
    "campaign retry": "{none}",
    "campaign status": "{none}",
    "campaign clean": "{none}",
    "campaign run-shard": "{none} 0",
    "campaign merge": "{none}",
    "campaign publish": "{none} s3://bucket/x",
    "generate preview": "--config {none}",
    "generate compare": "--config {none}",
    "train run": "--store {none} --out {folder}/run",
    "train resume": "{none}",
    "train loop": "--config {none} --out {folder}/loop",
    "train info": "{none}",
    "train compare": "{none} {none}",
    "replay run": "--store {none} --policy os:getcwd --candidate-version c",
    "replay list": "--profile none",
    "replay show": "x --profile none",
    "replay cancel": "x --profile none",
    "replay gate": "{none}",
    "replay compare": "{none}.json {none}.json",
    "replay plan": "--effect nonsense",
    "replay audit": "x --policy a:b --profile none",
    "replay report": "--html page.html",
    "verify check": "--candidate c --profile none",
    "verify promote": "x --profile none",
    "verify list": "--profile none",
    "gates list": "--profile none",
    "lineage show": "nothing --in {none}",
    "lineage export": "x --out {folder}/x.zip --profile none",
    "lineage verify": "{none}.zip",
    "gates show": "x --profile none",
    "gates lock": "x --gate-file {none}",
    "gates unlock": "x --profile none",
    "server bootstrap": "--org x --database nonsense://x --data {folder}",
    "server reset-password": "nobody@example.com --data {folder}",
    "server rename-organisation": "none x --data {folder}",
    "server organisations": "--database nonsense://x --data {folder}",
    "server set-quota": "none --data {folder}",
    "server migrate": "--database nonsense://x --data {folder}",
    "server doctor": "too many words",  # it reports all else as findings
    "server backup": "{folder}/b --database nonsense://x --data {folder}",
    "server restore": "{none} --data {folder}/new",
    "server retention add": "none --older-than-days 1 --data {folder}",
    "server retention list": "none --data {folder}",
    "server retention remove": "none none --data {folder}",
    "server retention hold": "none none --reason x --data {folder}",
    "server retention lift-hold": "none none --data {folder}",
    "keys create": "--read-only --scope write",
    "keys list": "--profile none",
    "keys revoke": "!! --profile none",
}
"""For each command: well-formed arguments that name something which is not there or makes no sense."""


def test_wrong_input_exits_with_the_documented_code(tmp_path: Path) -> None:
    assert set(WRONG_INPUT) == set(COMMANDS)
    places = {"folder": tmp_path, "none": tmp_path / "no such place"}
    seen = {}
    for path, arguments in WRONG_INPUT.items():
        words = [each.format(**places) for each in arguments.split()]
        wrong = rollbook(*path.split(), *words)
        unknown = rollbook(*path.split(), "--no-such-option")
        seen[path] = (wrong.returncode, unknown.returncode, wrong.stdout + unknown.stdout)
        assert "Traceback" not in wrong.stderr + unknown.stderr, path
    assert {path: each for path, each in seen.items() if each != (USAGE, USAGE, "")} == {}


@pytest.mark.parametrize("place", ["no such place", "."])
def test_a_gate_with_a_store_that_is_not_there_is_wrong_usage(tmp_path: Path, place: str) -> None:
    wanted = ("--policy", "os:getcwd", "--candidate-version", "c")
    done = rollbook("replay", "run", "--gate", "--store", tmp_path / place, *wanted)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "name the folder of a store" in done.stderr


# ------------------------------------------------------------------------- encodings and terminals


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


ANSI = re.compile(r"\x1b\[[0-9;]*m")
LONG = "a policy with a long name, and more words than any terminal has columns for it"


@pytest.fixture(scope="module")
def signed_in(server: RunningServer) -> tuple[Access, str]:
    """An organisation with an episode and a run, and the id of the run."""
    access = new_organisation(server)
    with Client(api_key=access.api_key, base_url=server.base_url, verbose=False) as client:
        episode = client.log_episode(
            name=f"Übung → {LONG}", source="sim", policy_version="pick-and-place-v3.2.1"
        )
        run = evals.create_run(
            candidate_policy_version="pick-and-place-v4.0.0-rc1",
            baseline_episode_ids=[str(episode.id)],
            baseline_policy_version="pick-and-place-v3.2.1",
            name=LONG,
            client=client,
        )
        evals.complete_run(run)
    return access, run.id


def environment(server: RunningServer, access: Access, **more: str) -> dict[str, str]:
    known = {"ROLLBOOK_API_KEY": access.api_key, "ROLLBOOK_BASE_URL": server.base_url}
    return {**os.environ, **known, **more}


SEVERAL = """
import json, os, sys
from rollbook.cli.main import main
for words in json.load(open(sys.argv[1])):
    print("==", ascii(words), flush=True)
    os.environ["COLUMNS"], *rest = words
    sys.argv = ["rollbook", *rest]
    try: main()
    except SystemExit as stop: code = stop.code
    print("== exits with", code, flush=True)
"""
"""Many commands in one process, each at a width: starting Python takes longer than most of them."""


def several(folder: Path, commands: Sequence[Sequence[object]]) -> list[str]:
    listed = folder / "commands.json"
    listed.write_text(json.dumps([[str(each) for each in command] for command in commands]))
    return [sys.executable, "-c", SEVERAL, str(listed)]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_no_character_stops_a_command(
    encoding: str, server: RunningServer, signed_in: tuple[Access, str], tmp_path: Path
) -> None:
    access, run = signed_in
    store = tmp_path / "Größe → s.zarr"
    store.symlink_to(small_store())
    save_table(table([2, 3]), tmp_path / "t.table")
    commands: list[Sequence[object]] = [
        *([80, "store", name, store] for name in ("info", "validate", "waterfall", "tree")),
        *([80, "store", name, store, "--limit", 1] for name in ("audit", "suspicious", "depth")),
        [80, "store", "audit", store, "--html", tmp_path / "→.html"],
        [80, "contracts", "check"],
        [80, "contracts", "show", tmp_path / "t.table"],
        [80, "episodes", "list"],
        [80, "episodes", "list", "--json"],
        [80, "replay", "list"],
        [80, "replay", "show", run],
        [80, "replay", "run", "--help"],
        [80, "keys", "list"],
        [80, "server", "doctor", "--data", tmp_path / "…"],
    ]
    done = subprocess.run(
        several(tmp_path, commands),
        capture_output=True,
        env=environment(server, access, PYTHONIOENCODING=encoding),
    )
    out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert "Traceback" not in err
    assert out.count("== exits with") == len(commands)
    assert set(out.split("== exits with ")[-2]) <= set(map(chr, range(256)))
    assert "####" in out
    assert "... " in out
    listed = out.split("'episodes', 'list', '--json']\n")[1].split("== exits")[0]
    assert json.loads(listed)[0]["name"].startswith("Übung → ")


def on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 80))
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        text = b"".join(_all_of(ours))
        os.close(ours)
    assert process.returncode == 0, text.decode()
    return text.decode().replace("\r\n", "\n")


def _all_of(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(descriptor, 1 << 16)
        except OSError:  # the other end is closed
            return


def test_a_narrow_terminal_cuts_neither_ids_nor_status_nor_decision(
    server: RunningServer, signed_in: tuple[Access, str], tmp_path: Path
) -> None:
    access, run = signed_in
    commands: list[Sequence[object]] = [
        [width, *words]
        for width in (60, 80, 400)
        for words in (("episodes", "list"), ("replay", "list"), ("keys", "list"))
    ]
    plain = {"NO_COLOR": "1", "TERM": "dumb"}
    text = on_a_terminal(several(tmp_path, commands), environment(server, access, **plain))
    parts = text.split("== exits with 0\n")
    assert len(parts) == len(commands) + 1
    listed: dict[tuple[str, str], Any] = {}
    for part in parts[:-1]:
        heading, *lines = part.strip().splitlines()
        _, width, group, _ = re.findall(r"[\w=]+", heading)
        listed[width, group] = lines
    for width in ("60", "80"):
        for group in ("episodes", "replay", "keys"):
            shown = [ANSI.sub("", line) for line in listed[width, group]]
            assert max(map(len, shown)) <= int(width)
            assert not [line for line in listed[width, group] if "…" in line]
        [row, *_] = listed[width, "replay"][1:]
        assert row.split()[:3] == [run, "completed", "hold"]
        [row, *_] = listed[width, "episodes"][1:]
        assert row.split()[1] == "ready"
        assert "not shown" in " ".join(listed[width, "replay"])
    assert LONG in " ".join(listed["400", "replay"])

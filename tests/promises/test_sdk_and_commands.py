"""What the SDK sends and what commands print for scripts is a promise."""

from __future__ import annotations

from pathlib import Path

from tests.promises.cli_script import printed
from tests.promises.inner import RunningServer
from tests.promises.recordings import assert_same, json_text, load_text
from tests.promises.sdk_script import sdk_requests


def test_the_sdk_sends_the_recorded_requests(server: RunningServer, tmp_path: Path) -> None:
    assert_same("sdk.txt", load_text("sdk.txt"), sdk_requests(server, tmp_path))


def test_commands_print_the_recorded_json(server: RunningServer, tmp_path: Path) -> None:
    assert_same("cli.json", load_text("cli.json"), json_text(printed(server, tmp_path)))

"""`rollbook campaign status`, as typed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.store.shards.shard_manifest import write_rollout_shard_manifest
from tests.cli.test_cli_campaign import plan
from tests.command import Ended, rollbook
from tests.store.shards.shard_plans import SmallBuilder, built, planned

PLAN = [planned(number) for number in range(30)]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shard has succeeded, one has failed with a long text, and the others are missing."""
    root = tmp_path_factory.mktemp("campaign")
    write_rollout_shard_manifest(root / "shards.jsonl", PLAN)
    built(root, PLAN[0])

    def fails(row: int) -> None:
        raise RuntimeError("too \x1b[31m" + "x" * 999)

    with pytest.raises(RuntimeError):
        built(root, PLAN[1], SmallBuilder(PLAN[1], before_row=fails))
    return root


def words(root: Path, *more: object) -> list[str]:
    places = ("--manifest", root / "shards.jsonl", "--final-root", root / "shards")
    return [*map(str, ("campaign", "status", *places, *more))]


def status(root: Path, *more: object) -> Ended:
    return rollbook(*words(root, *more))


def test_a_status_says_how_far_the_campaign_is_and_what_went_wrong(campaign: Path) -> None:
    shown = status(campaign)
    assert shown.returncode == 0
    assert "1 of 30 shards succeeded, 1 failed, 28 missing\n" in shown.stdout
    assert "2 of 60 rows" in shown.stdout
    assert "skipped: 1 no_target" in shown.stdout
    assert "shard-000001  failed  RuntimeError on" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "--json prints all" in shown.stdout
    assert "missing  " not in shown.stdout
    assert "x" * 400 not in shown.stdout


def test_a_campaign_that_must_be_complete_exits_with_2_and_names_the_first_problems(
    campaign: Path,
) -> None:
    shown = status(campaign, "--require-complete")
    assert shown.returncode == 2
    listed = [line.split()[:2] for line in shown.stdout.splitlines() if line.startswith("shard-")]
    missing = [[entry.shard_id, "missing"] for entry in PLAN[2:21]]
    assert listed == [["shard-000001", "failed"], *missing]
    assert "… 9 more; --json prints all" in shown.stdout
    as_json = status(campaign, "--require-complete", "--json")
    assert as_json.returncode == 2
    assert as_json.json["counts"]["missing"] == 28
    assert "x" * 900 in as_json.json["shards"][1]["errors"][0]


def test_a_complete_campaign_ends_a_watch_with_0(tmp_path: Path) -> None:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", PLAN[:1])
    built(tmp_path, PLAN[0])
    for more in ([], ["--watch"], ["--json"]):
        assert status(tmp_path, "--require-complete", *more).returncode == 0
    assert status(tmp_path, "--watch").stdout == "1 of 1 shards succeeded, 2 of 2 rows\n"


def test_a_planned_campaign_is_named_by_its_folder(tmp_path: Path) -> None:
    plan(tmp_path / "campaign")
    shown = rollbook("campaign", "status", tmp_path / "campaign")
    assert shown.stdout.startswith("0 of 2 shards succeeded, 2 missing\n"), shown
    with open(tmp_path / "campaign" / "shards.jsonl", "a") as manifest:
        manifest.write(" ")
    edited = rollbook("campaign", "status", tmp_path / "campaign")
    assert edited.returncode == 1
    assert "it is not the plan of campaign.json" in edited.stderr
    (tmp_path / "campaign" / "campaign.json").write_bytes(b'{"campaign_version": "\xff"}')
    damaged = rollbook("campaign", "status", tmp_path / "campaign")
    assert damaged.returncode == 1
    assert "campaign.json" in damaged.stderr


def test_a_status_needs_one_campaign(tmp_path: Path, campaign: Path) -> None:
    for wrong, says in (
        (["campaign", "status"], "name the folder of a campaign"),
        (["campaign", "status", campaign, "--final-root", campaign], "name the folder"),
        (["campaign", "status", "--manifest", tmp_path / "no", "--final-root", "x"], "no"),
        (words(campaign, "--watch", "--json"), "exclude each other"),
    ):
        ended = rollbook(*wrong)
        assert ended.returncode == 2, wrong
        assert says in ended.stderr


def watching(
    root: Path, *more: object, out: int, err: int | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollbook", *words(root, "--watch", "--interval", 0.1, *more)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        # Ctrl-C must reach the command, also where the tests were started in the background
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_a_watch_prints_a_line_for_every_change_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", PLAN[:2])
    with watching(tmp_path, "--require-complete", out=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0 of 2 shards succeeded, 2 missing, 0 of 4 rows\n"
        built(tmp_path, PLAN[0])
        while not (line := process.stdout.readline()).startswith(b"1 of 2 shards succeeded"):
            assert b"1 running" in line
        process.send_signal(signal.SIGINT)
        assert process.wait() == 2


def test_a_watch_goes_on_when_the_shards_cannot_be_read_for_a_moment(tmp_path: Path) -> None:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", PLAN[:1])
    shards = tmp_path / "shards"
    with watching(tmp_path, out=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"0 of 1 shards succeeded")
        shards.touch()  # cannot be listed
        assert process.stdout.readline().startswith(b"the last look failed")
        shards.unlink()
        built(tmp_path, PLAN[0])
        assert process.stdout.read().splitlines()[-1].startswith(b"1 of 1 shards succeeded")
        assert process.wait() == 0


def test_a_watch_redraws_a_terminal_until_every_shard_has_succeeded(tmp_path: Path) -> None:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", PLAN[:1])
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 80))
    begun, go_on = threading.Event(), threading.Event()

    def pauses(row: int) -> None:
        begun.set()
        go_on.wait()

    work = threading.Thread(
        target=lambda: built(tmp_path, PLAN[0], SmallBuilder(PLAN[0], before_row=pauses))
    )
    work.start()
    begun.wait()
    text = ""
    with watching(tmp_path, out=theirs, err=theirs) as process:
        os.close(theirs)
        for part in _parts(ours):
            text += part
            if "running:" in text:
                go_on.set()
        go_on.set()
        work.join()
        assert process.wait() == 0
    os.close(ours)
    assert "shard-000000  0 of 2" in text
    assert f"process {os.getpid()}" in text
    last = text.rpartition("\x1b[2K")[2]
    assert "1 of 1 shards succeeded" in last
    assert "100%" in last


def _parts(descriptor: int) -> Iterator[str]:
    while True:
        try:
            yield os.read(descriptor, 1 << 16).decode(errors="replace")
        except OSError:  # the command has ended
            return

"""Campaigns whose workers and drivers are killed without a word, again and again: everything is finished, once."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollbook.generate.campaigns.run_campaign import ShardOutcome, ShardTask, ShardWork
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.shards.build_shard import build_shard
from rollbook.store.shards.campaign_status import summarize_rollout_shard_campaign
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_record import LeaseWatch
from rollbook.store.shards.shard_manifest import write_rollout_shard_manifest
from rollbook.store.shards.shard_status import RolloutShardCampaignStatus
from rollbook.store.shards.sidecars import read_finished
from tests.generate.campaigns.scripted_shards import plan, run
from tests.store.shards.shard_plans import SmallBuilder, names

pytestmark = pytest.mark.slow


# ------------------------------------------------------------------------------ a ledger of the truth


class Ledger:
    """What was seen of a campaign. Nothing that was finished may change or go."""

    def __init__(self, root: Path, entries: list[RolloutShardEntry]) -> None:
        self.root = root
        self.entries = entries
        self.finished: dict[str, tuple[int, bytes]] = {}
        self.looks = 0
        write_rollout_shard_manifest(root / "shards.jsonl", entries)

    def look(self) -> RolloutShardCampaignStatus:
        """Takes a status and compares it with the shards themselves."""
        status = summarize_rollout_shard_campaign(
            self.root / "shards.jsonl", final_root=self.root / "shards"
        )
        assert len(status.shards) == len(self.entries)
        assert sum(status.counts.values()) == len(self.entries)
        done = {each.shard_id for each in status.shards if each.status == "succeeded"}
        for shard_id, seen in self.finished.items():
            assert shard_id in done, "nothing finished is lost"
            assert self._seen(shard_id) == seen, "nothing is built twice into its final place"
        for entry in self.entries:
            if entry.shard_id in done:
                read_finished(self.root / "shards" / entry.shard_id, entry)
                self.finished.setdefault(entry.shard_id, self._seen(entry.shard_id))
        self.looks += 1
        return status

    def _seen(self, shard_id: str) -> tuple[int, bytes]:
        final = self.root / "shards" / shard_id
        return final.stat().st_ino, (final / "_owner.json").read_bytes()

    def close(self) -> None:
        """The campaign is complete, every byte is right, and nothing is left beside the shards."""
        assert self.look().counts["succeeded"] == len(self.entries)
        for entry in self.entries:
            assert validate_rollout_zarr_store(self.root / "shards" / entry.shard_id, deep=True).ok
        assert names(self.root) == {entry.shard_id for entry in self.entries}
        assert not (self.root / "work").exists()


def start_small(seconds_per_row: float) -> ShardWork:
    """Workers that write small stores."""

    def work(task: ShardTask) -> ShardOutcome:
        result = build_shard(
            task.entry,
            SmallBuilder(task.entry, seconds_per_row=seconds_per_row),
            output_tmp=task.output_tmp,
            output_final=task.output_final,
            take_over=True,
            watch=LeaseWatch(task.over),
        )
        return ShardOutcome(result.skipped)

    return work


@contextmanager
def meanwhile(call: Callable[[], object]) -> Iterator[None]:
    """Calls it again and again in a thread. An error of it is raised at the end of the block."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def run_calls() -> None:
        try:
            while not ended.is_set():
                call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run_calls)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


# ---------------------------------------------------------------------------------------- workers


def test_fifty_killed_workers_cost_fifty_attempts_and_no_shard(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, plan(24))
    chance = random.Random(11)
    kills = 0

    def kill_a_worker() -> None:
        nonlocal kills
        time.sleep(chance.uniform(0.05, 0.6))
        workers = multiprocessing.active_children()
        if workers and kills < 50:
            os.kill(chance.choice(workers).pid or 0, signal.SIGKILL)
            kills += 1
        ledger.look()

    with meanwhile(kill_a_worker):
        ended = run(
            tmp_path,
            ledger.entries,
            start=partial(start_small, 0.2),
            parallel="process",
            workers=2,
            max_retries=60,
        )
    assert ended.complete
    assert kills == 50, "the campaign was over too soon"
    assert ended.retries <= kills
    ledger.close()


# ---------------------------------------------------------------------------------------- drivers

_DRIVER = """
import sys
from functools import partial
from pathlib import Path
from tests.generate.campaigns.scripted_shards import plan, run
from tests.journeys.test_campaigns import start_small

root, shards = Path(sys.argv[1]), int(sys.argv[2])
if __name__ == "__main__":
    ended = run(root, plan(shards), start=partial(start_small, 0.05), parallel="process", workers=1)
    sys.exit(0 if ended.complete else 1)
"""


def started_driver(root: Path, shards: int) -> subprocess.Popen[bytes]:
    script = root / "driver.py"
    if not script.exists():
        script.write_text(_DRIVER)
    return subprocess.Popen(
        [sys.executable, script, root, str(shards)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )


def test_drivers_that_are_killed_and_run_side_by_side_lose_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, plan(16))
    chance = random.Random(5)
    drivers = [started_driver(tmp_path, 16) for _ in range(2)]
    try:
        for number in range(6):
            reached = len(ledger.finished) + 1
            while len(ledger.finished) < min(reached, 14):
                ledger.look()
            time.sleep(chance.uniform(0, 0.3))
            killed = drivers[number % 2]
            killed.kill()
            killed.wait()
            ledger.look()
            drivers[number % 2] = started_driver(tmp_path, 16)
        while any(each.poll() is None for each in drivers):
            ledger.look()
        assert [each.returncode for each in drivers] == [0, 0]
    finally:
        for each in drivers:
            each.kill()
            each.wait()
    ledger.close()


# --------------------------------------------------------------------------------- from the terminal

_CONFIG = """
max_targets_per_sample = 1
target_source = "actor_visible_selector"
[source]
store_dir = "source"
split = "all"
[store]
store_dir = "unused"
[target_scorer]
render_size_px = 40
scene_samples = 1000
target_samples = 400
[selected_depth]
width_px = 32
height_px = 24
[[recipes]]
name = "random"
selection_policy = "random_valid"
[[recipes]]
name = "greedy"
selection_policy = "oracle_greedy"
"""


def rollbook(*words: object) -> Any:
    """The output of a command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "rollbook", *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_a_campaign_from_the_plan_over_a_kill_to_batches_of_one_collection(tmp_path: Path) -> None:
    config, campaign = tmp_path / "config.toml", tmp_path / "campaign"
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    made = MakeSourcesConfig(scenes=3, rows_per_scene=2, seed=3, scene=scene)
    make_source_store(tmp_path / "source", made)
    config.write_text(_CONFIG)
    rollbook("campaign", "plan", "--config", config, "--out", campaign, "--rows-per-shard", 1)
    shards = len((campaign / "shards.jsonl").read_text().splitlines())

    driver = subprocess.Popen(
        [sys.executable, "-m", "rollbook", "campaign", "run", campaign, "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while len(list(campaign.glob("shards/*/_SUCCESS.json"))) < shards // 2:
            assert driver.poll() is None, "it ended before half of the shards were done"
            time.sleep(0.01)
    finally:
        driver.kill()
        driver.wait()
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)

    status = json.loads(rollbook("campaign", "status", campaign, "--json"))
    assert shards // 2 <= status["counts"]["succeeded"] < shards
    before = {each: (each / "_owner.json").read_bytes() for each in campaign.glob("shards/shard-*")}
    rollbook("campaign", "run", campaign, "--workers", "2")
    for each, owner in before.items():
        if (each / "_SUCCESS.json").exists():
            assert (each / "_owner.json").read_bytes() == owner
    status = json.loads(rollbook("campaign", "status", campaign, "--json", "--require-complete"))
    assert status["counts"]["succeeded"] == shards

    rollbook("campaign", "merge", campaign)
    rollbook("store", "validate", campaign / "collection.json", "--deep")
    from rollbook.store import open_collection

    collection = open_collection(campaign / "collection.json")
    total = status["totals"]
    assert collection.num_rollouts == total["rollouts"] > 0
    states = sum(len(batch["q_train_mask"]) for batch in collection.batches(4))
    assert states == collection.num_steps == total["steps"]
    audited = rollbook("store", "audit", campaign / "collection.json", "--json")
    assert json.loads(audited)

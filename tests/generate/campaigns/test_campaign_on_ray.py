"""A campaign on a Ray cluster: workers and nodes that are killed cost attempts, and no shard."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import fsspec
import msgspec
import pytest

from rollbook.generate.campaigns.run_campaign import CampaignRun, ShardEvent, run_campaign
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.sidecars import OwnerFile, read_finished
from tests.engines.ray_cluster import RayCluster
from tests.engines.test_in_order import wait_until
from tests.generate.campaigns.scripted_shards import CONFIG, attempts, plan, run, start_scripted
from tests.store.s3_server import Server, server
from tests.store.shards.shard_plans import names

__all__ = ["server"]


def finished(root: Path, entry: RolloutShardEntry) -> OwnerFile:
    return read_finished(root / "shards" / entry.shard_id, entry)


@pytest.mark.slow
def test_shards_whose_workers_raise_or_die_are_finished_by_others(
    ray_address: str, tmp_path: Path
) -> None:
    entries = plan(4)
    ended = run(
        tmp_path,
        entries,
        {1: ["raise"], 2: ["die"], 3: ["die", "raise"]},
        engine="ray",
        address=ray_address,
        workers=2,
        max_retries=2,
    )
    assert sorted(ended.succeeded) == [entry.shard_id for entry in entries]
    assert (ended.complete, ended.retries) == (True, 4)
    assert [attempts(tmp_path, number) for number in range(4)] == [1, 2, 2, 3]
    failures = [
        [each.error_type for each in finished(tmp_path, entry).failures] for entry in entries
    ]
    assert failures == [
        [],
        ["GenerationFailed"],
        ["WorkerLost"],
        ["WorkerLost", "GenerationFailed"],
    ]
    assert names(tmp_path) == {entry.shard_id for entry in entries}


@pytest.mark.slow
def test_shards_are_finished_on_s3_by_workers_of_a_local_ray(
    server: Server, ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local Ray has the environment of its driver. It and another cluster can be used by one process in turns."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    entries = plan(3)

    def run_on_s3() -> CampaignRun:
        return run_campaign(
            CONFIG,
            entries,
            final_root="s3://bucket/campaign",
            work_root=tmp_path / "work",
            engine="ray",
            workers=2,
            start=partial(start_scripted, tmp_path, {1: ["die"]}),
        )

    ended = run_on_s3()
    assert sorted(ended.succeeded) == [entry.shard_id for entry in entries]
    assert ended.retries == 1
    assert run_on_s3().skipped == [entry.shard_id for entry in entries]
    assert run(tmp_path, entries[:1], engine="ray", address=ray_address).complete
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.slow
def test_a_node_that_is_killed_costs_one_attempt_of_its_shard(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    """Shards need a GPU, which the first node has not. The second node is killed, and then a third one joins."""
    add = partial(ray_cluster.cluster.add_node, num_cpus=1, num_gpus=1)
    nodes = [add()]
    entries = plan(2)
    needs = msgspec.structs.replace(CONFIG.campaign, gpus_per_shard=1.0)
    config = replace(CONFIG, campaign=needs)

    def kill() -> None:
        wait_until(lambda: attempts(tmp_path, 0) == 1)
        ray_cluster.cluster.remove_node(nodes[0], allow_graceful=False)

    def replace_node(event: ShardEvent) -> None:
        if event.what == "tried again":
            nodes.append(add())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        ended = run_campaign(
            config,
            entries,
            final_root=tmp_path / "shards",
            work_root=tmp_path / "work",
            engine="ray",
            address=ray_cluster.address,
            start=partial(start_scripted, tmp_path, {0: ["hang"]}),
            on_event=replace_node,
        )
    finally:
        killer.join()
        for node in nodes[1:]:
            ray_cluster.cluster.remove_node(node)
    assert ended.complete
    assert ended.retries == 1
    assert [attempts(tmp_path, number) for number in range(2)] == [2, 1]
    assert [each.error_type for each in finished(tmp_path, entries[0]).failures] == ["WorkerLost"]
    assert names(tmp_path) == {entry.shard_id for entry in entries}

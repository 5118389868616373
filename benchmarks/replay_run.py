"""A replay run from end to end, ours and the public client's: the same baselines, trivial policy and server.

Ours has one worker and an empty cache. It is measured with and without upload of the candidate's actions; the public
client uploads none. The policy of ours runs in a process of its own, as by default, and once more inside the runner.
All take turns. Then: the gain by workers when the policy waits at every step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.servers import Server, rollbook_server
from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.client import Client
from rollbook.evals import create_run, run_against

_EPISODES = 200
_STEPS = 200
_TURNS = 3
_WORKERS = 8

Policy = Callable[[dict[str, Any]], dict[str, Any]]


def main(scale: float = 1.0) -> list[Claim]:
    small = scale <= 0.1
    episodes, turns = (10, 1) if small else (_EPISODES, _TURNS)
    with scratch() as folder, rollbook_server(Path(folder) / "server") as server:
        with _client(server, Path(folder) / "cache") as client:
            ids = [_baseline(client, number) for number in range(episodes)]
        print(f"replay run, {episodes} episodes of {_STEPS} steps, load {os.getloadavg()[0]:.1f}")
        seconds = _take_turns(server, Path(folder), ids, turns)
        scaling = _scaling(server, Path(folder), ids[: 10 if small else 40])
    public = seconds["public client"]
    isolation = seconds["ours"] / seconds["ours, in a thread"]
    return [
        Claim("replay run vs public client", public / seconds["ours"], 5, "x"),
        Claim("… with the candidate's actions", public / seconds["ours, actions sent"], 5, "x"),
        Claim("a policy in a process vs in a thread", isolation, 1.5, "x", at_most=True),
        Claim(f"{_WORKERS} workers vs 1, 1 ms per step", scaling, _WORKERS / 2, "x"),
    ]


def _take_turns(server: Server, folder: Path, ids: list[str], turns: int) -> dict[str, float]:
    runs: dict[str, Callable[[Path], object]] = {
        "ours": lambda cache: _ours(server, cache, ids, follow, upload_actions=False),
        "ours, in a thread": lambda cache: _ours(
            server, cache, ids, follow, upload_actions=False, isolation="thread"
        ),
        "ours, actions sent": lambda cache: _ours(server, cache, ids, follow),
        "public client": lambda _: _public(server, ids),
    }
    best = dict.fromkeys(runs, float("inf"))
    spent = dict.fromkeys(runs, float("inf"))
    for turn in range(turns):
        for name, run in runs.items():
            before = time.process_time() + server.cpu_s
            began = time.perf_counter()
            run(folder / f"{name}-{turn}")
            best[name] = min(best[name], time.perf_counter() - began)
            spent[name] = min(spent[name], time.process_time() + server.cpu_s - before)
    for name, seconds in best.items():
        each = seconds / len(ids) * 1e3
        print(
            f"  {name:20} {seconds:6.2f} s  {each:6.1f} ms/episode, CPU of both {spent[name]:5.2f} s"
        )
    return best


def _scaling(server: Server, folder: Path, ids: list[str]) -> float:
    seconds = {}
    for workers in (1, _WORKERS):
        began = time.perf_counter()
        _ours(server, folder / "workers", ids, sleepy, workers=workers)
        seconds[workers] = time.perf_counter() - began
        print(f"  {workers} workers, policy of 1 ms per step: {seconds[workers]:.2f} s")
    return seconds[1] / seconds[_WORKERS]


def follow(obs: dict[str, Any]) -> dict[str, Any]:
    return {"/arm/command": obs["/arm/position"], "/gripper/command": obs["/gripper/width"]}


def sleepy(obs: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.001)
    return follow(obs)


def _ours(server: Server, home: Path, ids: list[str], policy: Policy, **options: Any) -> None:
    with _client(server, home / "cache") as client, _home(home):
        run = create_run(candidate_policy_version="v4", baseline_episode_ids=ids, client=client)
        results = run_against(run, policy_callable=policy, **options)
    assert all(each.status == "complete" for each in results)


def _public(server: Server, ids: list[str]) -> None:
    robotrace: Any = import_module("robotrace")
    client = robotrace.Client(api_key=_key(server), base_url=server.base_url, verbose=False)
    run = robotrace.evals.create_run(
        candidate_policy_version="v4", baseline_episode_ids=ids, client=client
    )
    results = robotrace.evals.run_against(run, policy_callable=follow)
    client.close()
    assert all(each.status == "complete" for each in results)


@contextmanager
def _home(folder: Path) -> Any:
    before = os.environ.get("ROLLBOOK_HOME")
    os.environ["ROLLBOOK_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("ROLLBOOK_HOME")
        if before is not None:
            os.environ["ROLLBOOK_HOME"] = before


def _baseline(client: Client, number: int) -> str:
    draw = np.random.default_rng(number)
    arm = draw.normal(size=(_STEPS, 7)).astype(np.float32)
    gripper = draw.normal(size=(_STEPS, 1)).astype(np.float32)
    made = client.log_episode(
        name=f"baseline {number}",
        source="sim",
        policy_version="v3",
        seed=number,
        metadata={"success": True, "reward_total": 1.0},
        sensors={"/arm/position": arm, "/gripper/width": gripper},
        actions={"/arm/command": arm + 0.1, "/gripper/command": gripper},
        t_ns=np.arange(_STEPS, dtype=np.int64) * 20_000_000,
    )
    assert made.id is not None
    return made.id


def _client(server: Server, cache: Path) -> Client:
    return Client(api_key=_key(server), base_url=server.base_url, verbose=False, cache=cache)


def _key(server: Server) -> str:
    return server.headers["Authorization"].removeprefix("Bearer ")


if __name__ == "__main__":
    for claim in main():
        print(claim)

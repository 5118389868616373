"""A server with everything that the portal shows: recordings with videos, runs with real replays and every kind of
decision, a scenario, a rollout store, and names that try to break the pages."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.client import Client, EpisodeOutcome
from rollbook.evals import complete_run, create_run, run_against
from tests.portal.episodes_world import FPS, EpisodesWorld, numbered_frames, seed_episodes
from tests.portal.pairs_world import scenario
from tests.portal.runs_world import RunsWorld, runs_world
from tests.portal.stores_world import small_store
from tests.server.campaigns import campaigner
from tests.server.fixtures import StartServer
from tests.server.people import Person
from tests.server.running import RunningServer

REPLAYED = 8
RATE = 50
SECONDS = 3.0


@dataclass(frozen=True)
class WholeWorld:
    server: RunningServer
    owner: Person
    episodes: EpisodesWorld
    runs: RunsWorld
    replayed_run: str
    """A run whose pairs were recorded and replayed."""
    store: str
    scenario: str

    def close(self) -> None:
        self.owner.close()
        self.server.close()


def whole_world(start: StartServer, folder: Path, prefix: str = "", **settings: Any) -> WholeWorld:
    """With a `prefix` the server says that it is reached below that path."""
    place = small_store(folder / "flats-nov.zarr")
    server = start(sign_ins_per_minute=100_000, store_roots=[str(folder)], **settings)
    if prefix:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            server.port = free.getsockname()[1]
        server.overrides["public_url"] = f"{server.base_url}{prefix}"
    server.prepare()
    server.start()
    owner = Person(server).sign_in_by_link(server.first_org)
    team = campaigner(server, server.first_org)
    runs = runs_world(team)
    episodes = seed_episodes(server, server.first_org)
    replayed = _replayed(server)
    store: str = team.post("/api/stores", {"place": str(place)})["id"]
    return WholeWorld(
        server, owner, episodes, runs, replayed, store, scenario(team, episodes.dropped)
    )


def _replayed(server: RunningServer) -> str:
    """The candidate moves faster than the baseline, and loses where the baseline was good."""
    with Client(api_key=server.first_org.api_key, base_url=server.base_url) as client:
        ids = [_recorded(client, number) for number in range(REPLAYED)]
        run = create_run(
            candidate_policy_version="pick-act-v4",
            baseline_policy_version="pick-act-v3",
            baseline_episode_ids=ids,
            name="Recorded pairs",
            client=client,
        )
        run_against(run, policy_callable=_candidate, isolation="thread")
        complete_run(run)
        run_id = run.id
        assert run_id is not None, "it is on the server"
        return run_id


def _recorded(client: Client, number: int) -> str:
    t = np.arange(round(SECONDS * RATE)) / RATE
    joints = np.stack([np.sin(t * (1 + 0.2 * k) + number) for k in range(3)], axis=1)
    logged = client.log_episode(
        name=f"Cable in clip, {number}",
        source="sim",
        robot="arm-2",
        policy_version="pick-act-v3",
        env_version="tabletop-clips@1.0.0",
        git_sha="9c2e71f0aa41b7",
        seed=number,
        fps=FPS,
        duration_s=SECONDS,
        video=numbered_frames(round(SECONDS * FPS), 208, 64),
        sensors={"/joint_states/position": joints, "/progress": np.linspace(0, 1, len(t))},
        actions={"action/joint_target": joints + 0.01},
        t_ns=(t * 1e9).astype(np.int64),
        metadata={
            "task": "cable in clip" if number % 2 else "lid on jar",
            "outcome": EpisodeOutcome(success=number % 4 > 0, reward_total=float(number)),
        },
    )
    assert logged.id is not None
    return logged.id


def _candidate(observation: dict[str, Any]) -> dict[str, Any]:
    joints = np.asarray(observation["/joint_states/position"])
    reward = 4.0 + float(np.sin(joints[0]))
    return {
        "action/joint_target": joints * 1.1,
        "_outcome": {"success": bool(joints[0] > -0.5), "reward_total": reward},
    }

"""The page of one pair: both sides, what came out, its neighbours, its error and its attempts."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rollbook.client import Client
from tests.portal.pairs_world import HOSTILE, metrics_of
from tests.server.campaigns import Campaigner, campaigner
from tests.server.people import House, Person, join


@dataclass(frozen=True)
class World:
    team: Campaigner
    owner: Person
    run: str
    won: str
    lost: str
    crashed: str
    pending: str
    replay: str

    def page(self, baseline: str, query: str = "") -> str:
        answer = self.owner.get(f"/portal/evals/{self.run}/pairs/{baseline}{query}")
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> Iterator[World]:
    team = campaigner(sqlite_house.server)
    with Client(
        base_url=team.server.base_url, api_key=team.access.api_key, verbose=False
    ) as client:
        won, replay = (_recorded(client, shift) for shift in (0.0, 0.5))
    lost, crashed, pending = team.baselines(3, success=True)
    run = team.run([lost, won, crashed, pending], "v4", name="Nightly")
    more: dict[str, Any] = {"collision_count_baseline": 2, "collision_count_candidate": 0}
    metrics = metrics_of(False, True, **more)
    metrics["evidence"] = {**metrics["evidence"], "collision_count": "closed_loop"}
    team.result(run, won, metrics=metrics, candidate_episode_id=replay)
    team.result(run, lost, metrics=metrics_of(True, True))
    team.result(run, lost, metrics=metrics_of(True, False))
    team.result(run, crashed, status="failed", metrics={}, error=f"ValueError: no\n{HOSTILE}")
    owner = team.owner()
    yield World(team, owner, run, won, lost, crashed, pending, replay)
    owner.close()


def _recorded(client: Client, shift: float) -> str:
    t = np.arange(200) / 50
    made = client.log_episode(
        name=f"Cube {HOSTILE}",
        source="sim",
        seed=7,
        env_version=HOSTILE,
        fps=50,
        duration_s=4.0,
        actions={"action/lift": np.sin(t) + shift * (t > 2)},
        sensors={"/force": np.cos(t)},
        t_ns=(t * 1e9).astype(np.int64),
    )
    assert made.id is not None
    return made.id


def test_a_pair_says_what_came_out_on_both_sides(world: World) -> None:
    page = world.page(world.won)
    assert re.search(r"no → yes</dd><dd class=\"d better\">.*won", page)
    assert "3.50 → 8.50" in page
    assert "+5.00" in page
    assert "2 → 0" in page
    assert '<dd class="d better">−2</dd>' in page, "fewer collisions are better"
    assert "baseline repeats bit for bit" in page
    assert "Closed loop" in page
    for episode in (world.won, world.replay):
        assert f"/portal/episodes/{episode}" in page


def test_the_pairs_are_walked_from_the_worst_to_the_best(world: World) -> None:
    place, seen = f"/portal/evals/{world.run}/pairs/{world.lost}", []
    while place:
        page = world.owner.get(place).text
        seen.append(place.split("/pairs/")[1].split("?")[0])
        [at] = re.findall(r"pair (\d+) of 4", page)
        assert int(at) == len(seen)
        found = re.search(r'data-better href="([^"]+)"', page)
        place = found[1].replace("&amp;", "&") if found else ""
    assert seen == [world.lost, world.won, world.crashed, world.pending]
    assert "data-worse" not in world.page(world.lost)
    assert (
        world.owner.get(f"/portal/evals/{world.run}/pairs/{world.won}?metric=luck").status_code
        == 400
    )


def test_a_failed_pair_shows_the_whole_error_and_counts_as_lost(world: World) -> None:
    page = world.page(world.crashed)
    assert "ValueError: no" in page
    assert "yes → failed" in page
    assert "lost" in page
    assert "The candidate failed in this pair" in page


def test_what_is_not_there_is_said(world: World) -> None:
    assert "This pair has no result yet" in world.page(world.pending)
    page = world.page(world.lost)
    assert "The replay was not kept as an episode" in page
    assert "Nothing to play" in page
    assert "data-timeline" not in page
    assert "The baseline was recorded without video" in world.page(world.won)


def test_replaced_results_are_listed(world: World) -> None:
    page = world.page(world.lost)
    assert "Earlier attempts" in page
    assert "an earlier one says something else about the candidate" in page
    assert "Earlier attempts" not in world.page(world.won)


def test_the_action_difference_is_a_track(world: World) -> None:
    sources = re.search(r'data-sources="([^"]+)"', world.page(world.won))
    assert sources is not None
    kinds = [each["kind"] for each in json.loads(sources[1].replace("&#34;", '"'))]
    assert kinds == ["difference", "baseline", "candidate"]
    answer = world.owner.get(f"/portal/evals/{world.run}/pairs/{world.won}/tracks?columns=4")
    [length] = struct.unpack_from("<I", answer.content)
    head = json.loads(answer.content[4 : 4 + length])
    [channel] = head["channels"]
    assert channel["name"] == "Action difference, action/lift"
    columns = np.frombuffer(answer.content, np.float32, offset=4 + length).reshape(4, 2)
    assert np.abs(columns[0]).max() < 1e-6, "the same for two seconds"
    assert np.abs(columns[3] - 0.5).max() < 1e-6
    for pair, query, status in (
        (world.won, "columns=many", 400),
        (world.won, "from=3&to=1", 400),
        (world.lost, "columns=4", 404),
    ):
        path = f"/portal/evals/{world.run}/pairs/{pair}/tracks?{query}"
        assert world.owner.get(path).status_code == status, query


def test_an_episode_that_is_not_in_the_run_is_no_pair(world: World) -> None:
    [other] = world.team.baselines(1)
    for run, episode in ((world.run, other), ("unknown", world.won), (world.run, "%00")):
        assert world.owner.get(f"/portal/evals/{run}/pairs/{episode}").status_code == 404


def test_hostile_text_is_shown_and_never_runs(world: World) -> None:
    for baseline in (world.won, world.crashed):
        page = world.page(baseline)
        assert "<svg onload" not in page
        assert not re.search(r"<script(?![^>]*src=)", page)


def test_who_may_not_promote_an_episode_is_not_asked_to(world: World) -> None:
    viewer = join(world.team.server, world.owner, "looks-at-pairs@example.com", "viewer")
    page = viewer.get(f"/portal/evals/{world.run}/pairs/{world.won}").text
    assert "Promote the baseline" in world.page(world.won)
    assert "Promote the baseline" not in page
    viewer.close()


def test_small_rewards_are_written_with_enough_digits(sqlite_house: House) -> None:
    team = campaigner(sqlite_house.server)
    owner = team.owner()
    [baseline] = team.baselines(1)
    run = team.run([baseline], "v2")
    small = {"reward_total_baseline": 0.9135, "reward_total_candidate": 0.9194}
    team.result(run, baseline, metrics={**metrics_of(True, True), **small})
    page = owner.get(f"/portal/evals/{run}/pairs/{baseline}").text
    assert "0.913 → 0.919" in page or "0.914 → 0.919" in page
    assert "+0.006" in page
    owner.close()

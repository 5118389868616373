"""The page of one episode, as the server writes it: everything can be read without a script."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rollbook.client import Client
from tests.portal.episodes_world import (
    FAILED_AT_S,
    FPS,
    HOSTILE,
    EpisodesWorld,
    numbered_frames,
    seed_episodes,
)
from tests.server.fixtures import StartServer
from tests.server.people import House, Person, join
from tests.server.video.test_video import Clip

_SLOW = tuple(number / 10 for number in range(30))
_VIDEO = re.compile(r'<video src="([^"]+)"')


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> EpisodesWorld:
    return seed_episodes(sqlite_house.server, sqlite_house.server.first_org)


def _page(house: House, episode_id: str, query: str = "") -> httpx.Response:
    page = house.owner.get(f"/portal/episodes/{episode_id}{query}")
    assert page.status_code == 200, page.text
    return page


def test_what_is_needed_to_repeat_it_comes_first(sqlite_house: House, world: EpisodesWorld) -> None:
    text = _page(sqlite_house, world.dropped).text
    fields = ["Policy revision", "Environment", "Code", "Seed"]
    places = [text.index(f"<dt>{name}</dt>") for name in fields]
    assert places == sorted(places)
    assert max(places) < text.index("<video")
    for value in ("pick-act-v3", "tabletop-bins@2.3.1", "git 9c2e71f0aa41", "481516"):
        assert value in text
    command = unescape(text[text.index('<div class="cmd"><pre>') :].partition("</pre>")[0])
    assert "git checkout 9c2e71f0aa41b7" in command
    assert f"--baseline-episodes {world.dropped}" in command


def test_a_failure_says_when_and_why_and_leads_there(
    sqlite_house: House, world: EpisodesWorld
) -> None:
    text = _page(sqlite_house, world.dropped).text
    assert f"failed at {FAILED_AT_S:.3f} s" in text
    assert "object dropped" in text
    assert 'href="?t=5640ms"' in text
    assert "not reached" in text


def test_the_video_plays_without_a_script_and_its_frames_have_times(
    sqlite_house: House, world: EpisodesWorld
) -> None:
    found = _VIDEO.search(_page(sqlite_house, world.dropped).text)
    assert found is not None
    video = sqlite_house.owner.get(found[1], follow_redirects=True, headers={"Range": "bytes=0-99"})
    assert (video.status_code, video.headers["content-type"]) == (206, "video/mp4")
    facts = sqlite_house.owner.get(f"/portal/episodes/{world.dropped}/video").json()
    assert facts["state"] == "ready"
    assert facts["src"] == found[1]
    assert (facts["fps"], facts["frames"], facts["times"]) == (FPS, 12 * FPS, None)


def test_a_video_that_waits_for_its_copy_says_so_and_one_that_gets_none_says_why(
    running_server: StartServer, tmp_path: Path
) -> None:
    server = running_server(reap_every_s=0, transcode_limit_s=2.0)
    server.prepare()
    server.start()
    owner = Person(server).sign_in_by_link(server.first_org)
    clip = Clip("mpeg4").write(tmp_path)
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        waits = client.log_episode(video=clip).id
        long = client.log_episode(video=Clip("mpeg4", times=_SLOW).write(tmp_path)).id
    for episode_id, state, words in (
        (waits, "pending", "A copy that they can play is being made."),
        (long, "refused", "browsers do not play mpeg4 in mp4"),
    ):
        page = owner.get(f"/portal/episodes/{episode_id}")
        assert words in page.text
        assert "<video src" not in page.text
        facts = owner.get(f"/portal/episodes/{episode_id}/video").json()
        assert facts["state"] == state
    owner.close()
    server.close()


def test_a_video_that_is_lost_or_damaged_on_the_disk_says_so(running_server: StartServer) -> None:
    server = running_server()
    server.prepare()
    server.start()
    owner = Person(server).sign_in_by_link(server.first_org)
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        lost, damaged = (
            client.log_episode(video=numbered_frames(10, 208, 64), fps=FPS).id for _ in range(2)
        )
    files = {path.parent.name: path for path in server.data_dir.rglob("video.mp4")}
    files[str(lost)].unlink()
    kept = files[str(damaged)].read_bytes()
    files[str(damaged)].write_bytes(kept[: len(kept) // 2])
    for episode_id, words in (
        (lost, "its bytes are gone from the blob store"),
        (damaged, "other bytes were put in its place"),
    ):
        assert owner.get(f"/portal/episodes/{episode_id}").status_code == 200
        facts = owner.get(f"/portal/episodes/{episode_id}/video").json()
        assert facts["state"] == "refused"
        assert words in facts["why"]
    owner.close()
    server.close()


def test_arrays_that_look_like_pictures_have_a_place_on_the_page_and_others_have_none(
    sqlite_house: House,
) -> None:
    clock = np.arange(20) * 100_000_000
    kinds: dict[str, Any] = {
        "depth": np.zeros((20, 48, 64), np.float32),
        "colours first": np.zeros((20, 3, 48, 64), np.uint8),
        "touch": np.zeros((20, 7, 3), np.uint8),
        "features": np.zeros((20, 40, 16), np.float32),
        "joints": np.zeros((20, 7)),
    }
    shown = {}
    server = sqlite_house.server
    with Client(api_key=server.api_key, base_url=server.base_url) as client:
        for name, array in kinds.items():
            made = client.log_episode(sensors={f"/{name}/value": array}, t_ns=clock)
            shown[name] = "data-images" in _page(sqlite_house, str(made.id)).text
    assert [name for name in kinds if shown[name]] == ["depth", "colours first"]


def test_files_have_their_size_and_digest_and_can_be_downloaded(
    sqlite_house: House, world: EpisodesWorld
) -> None:
    page = _page(sqlite_house, world.dropped).text
    kept = sqlite_house.owner.get(f"/api/episodes/{world.dropped}").json()["artifacts"]
    assert len(kept) == 3
    for artifact in kept:
        assert f'data-copy="{artifact["sha256"]}"' in page
        assert f'/artifact/{artifact["kind"]}" download=' in page
    assert "/joint_states/position" in page


def test_typed_metadata_the_trace_and_everything_else_can_be_read(
    sqlite_house: House, world: EpisodesWorld
) -> None:
    page = _page(sqlite_house, world.dropped).text
    for words in ("62 % charged", "23.40 V", "elbow", "gripper was replaced", "0.410"):
        assert words in page
    assert 'data-copy="4bf92f3577b34da6a3ce929d0e0e4736"' in page


def test_much_metadata_is_cut_and_the_page_says_how_much_is_left(sqlite_house: House) -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(28):
        deep = {"in": deep}
    metadata = {
        "deep": deep,
        "long": list(range(5_000)),
        "text": "x" * 20_000,
        "many": {f"name {each}": {"value": each} for each in range(2_000)},
        "not a joint": {"__type": "robotrace.Unknown", "positions": "x"},
    }
    body = {"metadata": metadata, "name": "Much"}
    made = sqlite_house.owner.call("POST", "/api/ingest/episode", json=body)
    assert made.status_code == 201, made.text
    page = _page(sqlite_house, made.json()["episode_id"])
    assert len(page.content) < 150_000
    assert "5000 in all" in page.text
    assert re.search(r"<code>1,?\d\d\d more</code>", page.text)


def test_an_episode_without_files_says_so(sqlite_house: House, world: EpisodesWorld) -> None:
    page = _page(sqlite_house, world.bare).text
    assert "No files were recorded with this episode." in page
    assert "<video" not in page
    assert 'class="well' not in page
    assert "data-timeline" not in page
    assert "episode.js" not in page, "it would look for a timeline"
    missing = sqlite_house.owner.get(f"/portal/episodes/{world.bare}/video")
    assert missing.status_code == 404


def test_names_that_are_markup_stay_text(sqlite_house: House, world: EpisodesWorld) -> None:
    text = _page(sqlite_house, world.hostile).text
    assert HOSTILE not in text
    assert "<svg onload" not in text
    assert "<script>alert" not in text
    assert (
        text.count(str(escape(HOSTILE)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")) > 6
    )


@pytest.mark.parametrize(
    "query", ["?t=abc", "?t=-5ms", "?t=99999999999ms&from=9ms&to=1ms", "?ch=%00&ch=<b>"]
)
def test_a_wrong_address_is_still_the_page(
    sqlite_house: House, world: EpisodesWorld, query: str
) -> None:
    assert "<h1>" in _page(sqlite_house, world.bare, query).text


def test_an_episode_shows_the_runs_it_is_part_of(house: House) -> None:
    """On both databases, like every query."""
    baseline, replay = (
        house.owner.call("POST", "/api/ingest/episode", json={"name": name}).json()["episode_id"]
        for name in ("the baseline", "its replay")
    )
    wanted = {
        "candidate_policy_version": "v9",
        "baseline_episode_ids": [baseline],
        "name": "Nightly, bins",
    }
    run = house.owner.call("POST", "/api/ingest/eval-run", json=wanted).json()["eval_run_id"]
    result = {
        "baseline_episode_id": baseline,
        "candidate_episode_id": replay,
        "status": "complete",
        "metrics": {},
    }
    sent = house.owner.call("POST", f"/api/ingest/eval-run/{run}/result", json=result)
    assert sent.status_code == 200, sent.text
    assert "baseline in 1 eval run" in _page(house, baseline).text
    text = _page(house, replay).text
    assert "part of eval run Nightly, bins" in text
    assert f"/portal/evals/{run}/pairs/{baseline}" in text
    both = house.owner.get(f"/portal/side-by-side?episode={replay}&episode={baseline}")
    assert both.status_code == 200
    assert both.text.index("its replay") < both.text.index("the baseline")


@pytest.mark.parametrize("count", [0, 1, 5])
def test_side_by_side_takes_two_to_four_episodes(sqlite_house: House, count: int) -> None:
    query = "&".join(f"episode={number}" for number in range(count))
    refused = sqlite_house.owner.get(f"/portal/side-by-side?{query}")
    assert refused.status_code == 400
    assert f"choose 2 to 4 different episodes in the list, not {count}" in refused.text


def test_a_viewer_sees_it_and_is_not_offered_what_a_viewer_may_not_do(
    sqlite_house: House, world: EpisodesWorld
) -> None:
    viewer = join(sqlite_house.server, sqlite_house.owner, "viewer@episode.example", "viewer")
    try:
        page = viewer.get(f"/portal/episodes/{world.dropped}")
        assert page.status_code == 200
        assert "Promote to scenario" not in page.text
    finally:
        viewer.close()
    assert "Promote to scenario" in _page(sqlite_house, world.dropped).text

"""Tracks of a stored episode: what arrives in the browser, for recordings of every shape and for damaged ones."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.server.people import House, join, sqlite_house
from tests.server.recordings.stored_recording import npz_bytes, stored_episode, tracks

__all__ = ["sqlite_house"]

RATE = 100
ROWS = 1000
START_NS = 1_700_000_000 * 10**9
TIMES = START_NS + np.arange(ROWS) * (10**9 // RATE)


def arm(rows: int = ROWS) -> dict[str, Any]:
    seconds = np.arange(rows) / RATE
    return {
        "/joint_states/position": np.stack([np.sin(seconds), np.cos(seconds)], 1),
        "/joint_states/_t_ns": TIMES[:rows],
        "/battery/voltage": np.full(rows // 10, 24.0, np.float32),
        "/battery/_t_ns": TIMES[:rows:10],
    }


@pytest.fixture(scope="module")
def episode_id(sqlite_house: House) -> str:
    actions = {
        "action/value": np.linspace(0, 1, ROWS)[:, None],
        "action/_t_ns": TIMES,
        "/joint_states/position": np.zeros(ROWS),
        "/joint_states/_t_ns": TIMES,
    }
    files = {"sensors": npz_bytes(arm()), "actions": npz_bytes(actions)}
    joints = {"__type": "robotrace.JointState", "positions": [0, 0], "names": ["pan", "<lift>"]}
    return stored_episode(
        sqlite_house.owner, files, create={"metadata": {"joints": joints}}, duration_s=9.99
    )


def test_the_head_names_every_channel_with_its_topic_unit_and_rate(
    sqlite_house: House, episode_id: str
) -> None:
    head, data = tracks(sqlite_house.owner, episode_id)
    assert data.size == 0
    assert (head["version"], head["columns"], head["clock"]) == (1, 0, "recorded")
    assert head["duration"] == pytest.approx(9.99)
    by_name = {each["name"]: each for each in head["channels"]}
    assert list(by_name) == [
        "/joint_states/position/0",
        "/joint_states/position/1",
        "/battery/voltage",
        "action/value/0",
        "actions:/joint_states/position",
    ]
    lift = by_name["/joint_states/position/1"]
    assert (lift["topic"], lift["label"], lift["kind"]) == (
        "/joint_states/position",
        "<lift>",
        "sensor",
    )
    assert (lift["samples"], lift["rate"], lift["gaps"]) == (ROWS, 100.0, 0)
    assert by_name["/battery/voltage"]["unit"] == "V"
    assert by_name["/battery/voltage"]["rate"] == 10.0
    assert (by_name["action/value/0"]["kind"], by_name["action/value/0"]["topic"]) == (
        "action",
        "action",
    )


def test_channels_have_the_names_that_an_importer_found(sqlite_house: House) -> None:
    files = {"sensors": npz_bytes(arm()), "actions": npz_bytes({"action/value": np.zeros((9, 3))})}
    channels = {
        "/joint_states": ["shoulder", "<elbow>"],
        "action": ["one name", "too few"],
        "/battery": [5],
        "nothing": "text",
    }
    found = stored_episode(sqlite_house.owner, files, create={"metadata": {"channels": channels}})
    head, _ = tracks(sqlite_house.owner, found)
    labels = {each["name"]: each["label"] for each in head["channels"]}
    assert labels["/joint_states/position/0"] == "shoulder"
    assert labels["/joint_states/position/1"] == "<elbow>"
    assert [labels[f"action/value/{place}"] for place in range(3)] == ["0", "1", "2"]
    assert labels["/battery/voltage"] == "voltage"


def test_columns_hold_the_extremes_of_the_whole_episode_and_of_a_zoom(
    sqlite_house: House, episode_id: str
) -> None:
    whole, data = tracks(sqlite_house.owner, episode_id, columns=50, ch="/joint_states/position/0")
    [channel] = whole["channels"]
    raw = np.sin(np.arange(ROWS) / RATE).astype(np.float32)
    assert (channel["lo"], channel["hi"]) == (float(raw.min()), float(raw.max()))
    assert (np.nanmin(data), np.nanmax(data)) == (raw.min(), raw.max())

    some = {"from": 1.995, "to": 2.995, "columns": 100, "ch": "/joint_states/position/0"}
    zoom, data = tracks(sqlite_house.owner, episode_id, **some)
    assert (zoom["from"], zoom["to"]) == (1.995, 2.995)
    np.testing.assert_array_equal(data[0, :, 0], raw[200:300])
    assert zoom["channels"][0]["hi"] == float(raw.max()), "the scale stays that of the episode"


@pytest.mark.parametrize(
    "query",
    [
        *("columns=x", "columns=-1", "columns=4097", "columns=1e3", "columns=٣"),
        *("columns=99999999999999999999", "from=x&columns=9", "from=nan", "to=inf", "from=1e99"),
        *("from=3&to=3", "from=3&to=2", "&".join(f"ch={i}" for i in range(300))),
    ],
)
def test_a_wrong_query_is_refused_with_what_to_send(
    sqlite_house: House, episode_id: str, query: str
) -> None:
    answer = sqlite_house.owner.get(f"/portal/episodes/{episode_id}/tracks?{query}")
    assert answer.status_code == 400
    assert "expected" in answer.text


def test_a_channel_that_is_not_there_is_named_and_the_others_are_drawn(
    sqlite_house: House, episode_id: str
) -> None:
    head, data = tracks(
        sqlite_house.owner, episode_id, columns=4, ch=["/battery/voltage", "<script>"]
    )
    assert [each["name"] for each in head["channels"]] == ["/battery/voltage"]
    assert data.shape == (1, 4, 2)
    assert {"name": "<script>", "why": "there is no such channel"} in head["skipped"]


def test_whoever_may_read_the_episode_sees_its_tracks_and_nobody_else(
    sqlite_house: House, episode_id: str
) -> None:
    path = f"/portal/episodes/{episode_id}/tracks"
    viewer = join(sqlite_house.server, sqlite_house.owner, "tracks-viewer@example.com", "viewer")
    assert viewer.get(path).status_code == 200
    viewer.close()
    assert sqlite_house.other_owner.get(path).status_code == 404
    assert httpx.get(f"{sqlite_house.server.base_url}{path}").status_code == 303


# --------------------------------------------------------------------------- recordings of other kinds


def shown(house: House, arrays: dict[str, Any] | bytes, **final: Any) -> tuple[dict[str, Any], Any]:
    content = arrays if isinstance(arrays, bytes) else npz_bytes(arrays)
    return tracks(
        house.owner, stored_episode(house.owner, {"sensors": content}, **final), columns=8
    )


def why(head: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["why"] for each in head["skipped"]}


def test_an_episode_without_recordings_has_no_channels(sqlite_house: House) -> None:
    head, _ = tracks(sqlite_house.owner, stored_episode(sqlite_house.owner, {}), columns=8)
    assert (head["channels"], head["images"], head["skipped"]) == ([], [], [])


def test_arrays_without_a_clock_follow_the_frame_rate_or_the_duration_or_their_rows(
    sqlite_house: House,
) -> None:
    for final, clock, duration in (
        ({"fps": 10}, "rate", 9.9),
        ({"duration_s": 50}, "spread", 50),
        ({}, "rows", 100),
    ):
        head, _ = shown(sqlite_house, {"q": np.arange(100)}, **final)
        assert (head["clock"], head["duration"]) == (clock, pytest.approx(duration))


def test_odd_clocks_are_said_and_drawn_as_well_as_possible(sqlite_house: House) -> None:
    back = TIMES[:100].copy()
    back[50:] -= 10**9
    arrays = {
        "/back/q": np.arange(100),
        "/back/_t_ns": back,
        "/short/q": np.arange(100),
        "/short/_t_ns": TIMES[:99],
        "/boot/q": np.arange(100),
        "/boot/_t_ns": np.arange(100) * 10**7,
        "/vast/q": np.arange(2),
        "/vast/_t_ns": np.array([-(2**63), 2**63 - 1]),
    }
    head, _ = shown(sqlite_house, arrays, fps=100)
    said = why(head)
    assert "goes back at row 50" in said["/back/q"]
    assert "99 times for 100 rows" in said["/short/q"]
    assert len(head["channels"]) == 4


def test_one_sample_nan_and_infinity_are_no_trouble(sqlite_house: House) -> None:
    values = np.array([np.nan, np.inf, 1.0, 2.0])
    clock = TIMES[:4]
    arrays = {
        "/a/q": values,
        "/a/_t_ns": clock,
        "/b/q": np.full(4, np.nan),
        "/b/_t_ns": clock,
        "/one/q": np.array([7.0]),
        "/one/_t_ns": clock[:1],
    }
    head, data = shown(sqlite_house, arrays)
    a, b, one = head["channels"]
    assert (a["lo"], a["hi"]) == (1.0, 2.0)
    assert (b["lo"], b["hi"]) == (None, None)
    assert (one["lo"], one["samples"], one["rate"]) == (7.0, 1, None)
    assert np.isnan(data[1]).all()


def test_what_is_not_a_channel_is_listed_with_the_reason(sqlite_house: House) -> None:
    arrays = {
        "/text/value": np.array(["a", "b"]),
        "/single/value": np.float64(3),
        "/lidar/ranges": np.zeros((5, 1080)),
        "/empty/value": np.zeros((0, 3)),
        "/when/value": np.array([1, 2], "M8[s]"),
        "/complex/value": np.zeros(3, complex),
    }
    head, _ = shown(sqlite_house, arrays)
    assert head["channels"] == []
    said = why(head)
    assert said["/text/value"] == "it holds text, not plain numbers"
    assert "1080 values in a row" in said["/lidar/ranges"]
    assert set(said) == set(arrays)


def test_channels_that_do_not_fit_into_one_answer_are_named_and_come_when_they_are_asked_for(
    sqlite_house: House,
) -> None:
    arrays = {f"/hand{number}/force": np.full((20, 30), number) for number in range(10)}
    episode = stored_episode(sqlite_house.owner, {"sensors": npz_bytes(arrays)}, fps=10)
    head, data = tracks(sqlite_house.owner, episode, columns=8)
    names = [each["name"] for each in (*head["channels"], *head["more"])]
    assert (len(head["channels"]), len(set(names)), len(data)) == (128, 300, 128)
    assert head["skipped"] == []
    last = head["more"][-1]
    assert (last["name"], last["topic"], last["label"], last["lo"]) == (
        "/hand9/force/29",
        "/hand9/force",
        "29",
        None,
    )
    asked, data = tracks(sqlite_house.owner, episode, columns=8, ch=last["name"])
    assert (asked["channels"][0]["lo"], asked["more"]) == (9.0, [])
    assert np.nanmax(data) == 9.0
    many, data = tracks(sqlite_house.owner, episode, columns=8, ch=names[:200])
    assert (len(data), many["more"]) == (128, [])
    assert set(why(many).values()) == {"only 128 channels are drawn at once; choose fewer"}


def test_thousands_of_arrays_that_are_left_out_are_one_line(sqlite_house: House) -> None:
    arrays = {f"/bus/signal{number:04}": np.zeros(3) for number in range(3000)}
    head, _ = shown(sqlite_house, arrays, fps=10)
    assert len(head["channels"]) + len(head["more"]) == 1024
    assert head["skipped"] == [
        {
            "name": "/bus/signal1024, /bus/signal1025, /bus/signal1026 and 1,973 more",
            "why": "the recording has more than 1024 channels",
        }
    ]


def _packed_zeros(rows: int) -> bytes:
    """A small archive that unpacks to a large array."""
    out = io.BytesIO()
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows},), }}"
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("q.npy", "w") as member,
    ):
        member.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(118).encode())
        for _ in range(rows >> 20):
            member.write(bytes(1 << 20))
    return out.getvalue()


def test_damaged_and_hostile_files_are_listed_with_the_reason_and_never_a_crash(
    sqlite_house: House,
) -> None:
    whole = npz_bytes(arm())
    objects = io.BytesIO()
    np.savez(objects, q=np.array([{"a": 1}], object))
    for content in (b"", b"not a zip", whole[:-30], whole[: len(whole) // 2]):
        head, _ = shown(sqlite_house, content)
        assert head["channels"] == []
        assert "sensors.npz" in why(head)
    head, _ = shown(sqlite_house, _packed_zeros(32 << 20))
    assert why(head)["q"] == "it has 33,554,432 rows without a clock"
    head, _ = shown(sqlite_house, objects.getvalue())
    assert "expected numbers, truth values, times or text" in why(head)["q"]


def test_packed_archives_and_other_byte_orders_are_read_like_plain_ones(
    sqlite_house: House,
) -> None:
    packed = io.BytesIO()
    values = np.asfortranarray(np.arange(30, dtype=">f8").reshape(10, 3))
    arrays: dict[str, Any] = {"/a/q": values, "/a/_t_ns": TIMES[:10]}
    np.savez_compressed(packed, **arrays)
    head, data = shown(sqlite_house, packed.getvalue())
    assert [(each["lo"], each["hi"]) for each in head["channels"]] == [(0, 27), (1, 28), (2, 29)]
    assert np.nanmax(data) == 29


# ------------------------------------------------------------------------------------------ pictures


def test_a_frame_of_an_image_array_is_a_png(sqlite_house: House) -> None:
    random = np.random.default_rng(0)
    colour = random.integers(0, 256, (5, 12, 16, 3), np.uint8)
    arrays = {
        "/camera/rgb": colour,
        "/camera/_t_ns": TIMES[:5],
        "/first/rgb": np.moveaxis(colour, 3, 1),
        "/first/_t_ns": TIMES[:5],
        "/depth/image": np.linspace(0, 1, 5 * 8 * 8, dtype=np.float32).reshape(5, 8, 8),
        "/depth/_t_ns": TIMES[:5],
    }
    episode = stored_episode(sqlite_house.owner, {"sensors": npz_bytes(arrays)})
    head, _ = tracks(sqlite_house.owner, episode)
    assert [(each["name"], each["frames"]) for each in head["images"]] == [
        ("/camera/rgb", 5),
        ("/first/rgb", 5),
        ("/depth/image", 5),
    ]
    assert head["images"][0]["times"] == pytest.approx([0, 0.01, 0.02, 0.03, 0.04])

    def frame(name: str, index: object) -> httpx.Response:
        return sqlite_house.owner.get(f"/portal/episodes/{episode}/frames/{name}/{index}")

    for name in ("%2Fcamera%2Frgb", "/camera/rgb", "%2Ffirst%2Frgb"):
        answer = frame(name, 3)
        assert answer.headers["content-type"] == "image/png"
        np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(answer.content))), colour[3])
    depth = np.array(Image.open(io.BytesIO(frame("%2Fdepth%2Fimage", 0).content)))
    assert (depth.min(), depth.max()) == (0, 255)
    for name, index in (("%2Fcamera%2Frgb", 5), ("%2Fcamera%2Frgb", "-1"), ("no", 0), ("no", "x")):
        assert frame(name, index).status_code == 404

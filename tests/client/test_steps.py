"""Steps that are logged one by one: what becomes of them, what is refused, and what a killed program leaves."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from rollbook.client import ArtifactKind, EpisodeOutcome
from rollbook.client.step_files import finish_steps
from rollbook.client.step_log import ROWS_FILE, StepLog
from rollbook.contracts.npz import read_npz
from rollbook.contracts.streams import clocked_streams
from rollbook.errors import ConfigurationError, InvalidValue, StorageError
from tests.client.conftest import MakeClient
from tests.client.faulty_server import FaultyServer
from tests.test_files import small_disk

AnyClient = Callable[..., Any]
JOINTS = np.linspace(0, 1, 28).astype(np.float32).reshape(4, 7)
FORCE = np.arange(8.0).reshape(4, 2)
TIMES = [0, 20_000_000, 45_000_000, 60_000_000]
DATA: tuple[ArtifactKind, ...] = ("sensors", "actions")


def log_four(episode: Any) -> None:
    for row in range(4):
        obs = {"joints": JOINTS[row], "arm": {"open": bool(row % 2)}, "/tip/pose": FORCE[row]}
        episode.step(obs=obs, action=FORCE[row], reward=0.1 * row, t_ns=TIMES[row])


def test_steps_become_the_artifacts_that_log_episode_makes(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    client = any_client_of(wire, spool=tmp_path / "spool")
    with client.start_episode(name="live", artifacts=DATA) as episode:
        log_four(episode)
    logged = client.log_episode(
        sensors={
            "observation.joints": JOINTS,
            "observation.arm.open": np.array([False, True, False, True]),
            "/tip/pose": FORCE,
            "reward": 0.1 * np.arange(4),
        },
        actions={"action": FORCE},
        t_ns=TIMES,
    )
    live, whole = client.episode(episode.id), client.episode(logged.id)
    assert live.status == "ready"
    assert live.duration_s == 0.06
    assert [each.sha256 for each in live.artifacts] == [each.sha256 for each in whole.artifacts]
    assert not any((tmp_path / "spool").iterdir())


def test_rewards_become_the_outcome_and_what_the_caller_says_stays(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire)

    def metadata(rewards: list[Any], **given: Any) -> dict[str, Any]:
        with client.start_episode(artifacts=["sensors"], metadata=given) as episode:
            for reward in rewards:
                episode.step(reward=reward)
        return client.episode(str(episode.id)).metadata

    plain = metadata([1, True, np.float32(0.5), np.array([2.0])])
    assert plain["outcome"]["reward_total"] == 4.5
    assert plain["outcome"]["success"] is None
    assert plain["steps"] == 4
    said = metadata([1.0], outcome=EpisodeOutcome(success=True), steps=9)
    assert (said["outcome"]["success"], said["outcome"]["reward_total"]) == (True, 1.0)
    assert said["steps"] == 9
    assert metadata([1.0], outcome=EpisodeOutcome(reward_total=7))["outcome"]["reward_total"] == 7
    assert "outcome" not in metadata([1.0, float("nan")])


def test_times_come_from_the_caller_from_fps_or_from_the_clock(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire)

    def clock(fps: float | None, times: list[Any]) -> tuple[list[int], float | None]:
        with client.start_episode(artifacts=["sensors"], fps=fps) as episode:
            for t in times:
                episode.step(obs=1.0, t=t)
        found = client.episode(str(episode.id))
        return found.sensors()["observation/_t_ns"].tolist(), found.duration_s

    assert clock(None, [5, 5.25, np.float64(6)]) == (
        [5_000_000_000, 5_250_000_000, 6_000_000_000],
        1.0,
    )
    assert clock(30.0, [None] * 3) == ([0, 33_333_333, 66_666_667], 0.1)
    assert clock(30.0, [0, 5, 10]) == ([0, 5_000_000_000, 10_000_000_000], 10.0)
    measured, _ = clock(None, [None] * 3)
    assert measured[0] == 0
    assert sorted(set(measured)) == measured


FIRST: dict[str, Any] = {"obs": {"q": np.zeros(3), "n": 1, "x": 0.5}, "action": np.zeros(2), "t": 0}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"obs": {"q": np.zeros(4), "n": 1, "x": 1.0}},
            r"row 1: obs\['q'\] is float64 of shape \(4,\)",
        ),
        ({"obs": {"q": np.zeros(3, "f4"), "n": 1, "x": 1.0}}, r"row 1: obs\['q'\] is float32"),
        ({"obs": {"q": np.zeros(3), "n": 1.5, "x": 1.0}}, r"row 1: obs\['n'\] is float64"),
        ({"obs": {"q": np.zeros(3), "n": 1}}, r"row 1: obs\['x'\] is missing"),
        ({"obs": {"q": np.zeros(3), "n": 1, "x": 1.0, "z": 1}}, r"row 1: obs\['z'\] is new"),
        ({"obs": np.zeros(3)}, "row 1: obs is a ndarray, expected a dict"),
        ({"obs": {"q": {"q": 1}, "n": 1, "x": 1.0}}, r"row 1: obs\['q'\] is object"),
        ({"obs": {"q": [[1], 2, 3], "n": 1, "x": 1.0}}, r"row 1: obs\['q'\] is not an array"),
        ({"obs": {"q": np.ma.zeros(3), "n": 1, "x": 1.0}}, r"row 1: obs\['q'\] is a masked array"),
        ({"obs": None}, "row 1: obs is missing"),
        ({"action": None}, "row 1: action is missing"),
        ({"reward": 1.0}, "row 1: reward is new"),
        ({"t": 0}, "row 1: t is 0 ns, expected later than the row before it"),
        ({"t": -0.5}, "row 1: t is -500000000 ns, expected later"),
        ({"t": None}, "row 1: t is missing"),
        ({"t": float("nan")}, "row 1: t is nan"),
        ({"t": "1"}, "row 1: t is '1'"),
        ({"t": None, "t_ns": 1.5}, "row 1: t_ns is 1.5"),
        ({"t": 1_700_000_000_000_000_000}, "row 1: t is 17.*t_ns= takes nanoseconds"),
    ],
)
def test_a_step_that_differs_is_refused_with_field_and_row_and_changes_nothing(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    def add(step: dict[str, Any]) -> None:
        given = {k: v for k, v in step.items() if v is not None and not k.startswith("t")}
        log.add(given, step.get("t"), step.get("t_ns"))

    log = StepLog(tmp_path, None)
    add(FIRST)
    with pytest.raises(InvalidValue, match=says):
        add({**FIRST, "t": 1, **change})
    add({**FIRST, "obs": {"q": np.ones(3), "n": 2, "x": 1}, "t": 1})
    found = read_npz(finish_steps(tmp_path).files["sensors"])
    assert found["observation.q/value"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert found["observation.x/value"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({"obs": np.zeros(2) + 1j}, "row 0: obs is complex128, expected real numbers"),
        ({"obs": {"a": {"b": 1j}}}, r"row 0: obs\['a'\]\['b'\] is complex128"),
        ({"obs": np.array([{}], object)}, "row 0: obs is of type object"),
        ({"action": "left"}, "row 0: action is of type <U4, expected numbers"),
        ({"obs": {}}, "row 0: obs is an empty dict"),
        ({"obs": {1: 2.0}}, "row 0: obs is a dict with the key 1"),
        ({"obs": [[1, 2], [3]]}, "row 0: obs is not an array"),
        ({"obs": np.datetime64("NaT")}, "times with a unit"),
        ({"reward": [1.0, 2.0]}, "row 0: reward is float64 of shape"),
        ({"reward": {"a": 1}}, "row 0: reward is object"),
        ({"obs": {"a.b": 1, "a": {"b": 1}}}, "row 0: observation.a.b/value is there twice"),
        ({"obs": {"reward/value": 1.0}, "reward": 1.0}, "row 0: reward/value is there twice"),
        ({"obs": {"a/_t_ns": 1}}, "row 0: a/_t_ns is a clock"),
        ({"obs": {"../up": 1}}, "no '..' between slashes"),
    ],
)
def test_a_first_step_that_cannot_be_stored_is_refused_at_once(
    tmp_path: Path, step: dict[str, Any], says: str
) -> None:
    log = StepLog(tmp_path, None)
    with pytest.raises(InvalidValue, match=says):
        log.add(step, None, None)
    log.add({"obs": np.float16(1)}, None, None)
    assert finish_steps(tmp_path).steps == 1


def test_a_step_needs_something_to_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs obs=, action= or reward="):
        StepLog(tmp_path, None).add({}, None, None)
    with pytest.raises(ConfigurationError, match="not both"):
        StepLog(tmp_path, None).add({"obs": 1}, 1.0, 1)


_LEAVES = st.sampled_from(["?", "i1", "<u8", ">i4", "f2", "f4", "f8", "M8[ns]"])
_SHAPES = st.sampled_from([(), (1,), (3,), (0,), (2, 3)])
_TREES = st.recursive(
    st.tuples(_LEAVES, _SHAPES),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "/c/d"]), inner, min_size=1),
    max_leaves=5,
)


def _flat(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _flat(value, f"{prefix}.{key}")


@settings(max_examples=40, deadline=None)
@generated(tree=_TREES, rows=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_any_nested_observation_comes_back_as_its_rows(
    tmp_path_factory: pytest.TempPathFactory, tree: Any, rows: int, seed: int
) -> None:
    """Compared with the arrays of whole columns, which `log_episode` would be given."""
    rng = np.random.default_rng(seed)

    def column(leaf: tuple[str, tuple[int, ...]]) -> Any:
        dtype, shape = np.dtype(leaf[0]), leaf[1]
        size = rows * int(np.prod(shape)) * dtype.itemsize
        raw = rng.integers(0, 2 if dtype.kind == "b" else 256, size, np.uint8)
        # every second element of a wider array: not contiguous
        wide = np.repeat(raw.view(dtype).reshape(rows, *shape)[..., None], 2, axis=-1)
        return wide[..., 0]

    def columns(node: Any) -> Any:
        return {k: columns(v) for k, v in node.items()} if isinstance(node, dict) else column(node)

    def row_of(node: Any, row: int) -> Any:
        if isinstance(node, dict):
            return {key: row_of(each, row) for key, each in node.items()}
        return node[row, ...]

    whole, folder = columns(tree), tmp_path_factory.mktemp("steps")
    log = StepLog(folder, 50.0)
    for row in range(rows):
        log.add({"obs": row_of(whole, row)}, None, None)
    keyed = {
        name.removeprefix("observation.") if "/" in name else name: array
        for name, array in _flat(whole, "observation")
    }
    expected = clocked_streams("sensors", keyed, np.arange(rows) * 20_000_000)
    found = read_npz(finish_steps(folder).files["sensors"])
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert found[key].shape == array.shape
        assert found[key].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


# ------------------------------------------------------------------------------------ the episode


def test_an_error_in_the_block_ends_the_episode_as_failed_with_its_steps(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(wire)

    def readings() -> Iterator[float]:
        yield 1.0
        yield 2.0
        raise RuntimeError("the sensor is gone")

    def record(episode: Any) -> None:
        with episode:
            for reading in readings():
                episode.step(obs=reading)

    episode = client.start_episode(artifacts=DATA)
    with pytest.raises(RuntimeError):
        record(episode)
    found = client.episode(episode.id)
    assert found.status == "failed"
    assert found.metadata["failure_reason"] == "RuntimeError: the sensor is gone"
    assert found.sensors()["observation/value"].tolist() == [1.0, 2.0]


def test_steps_and_uploads_of_one_artifact_exclude_each_other(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    episode = client_of(wire).start_episode(artifacts=DATA)
    episode.upload("actions", {"action": [1.0]}, t_ns=[0])
    with pytest.raises(ConfigurationError, match="the actions, which was uploaded before"):
        episode.step(obs=1.0, action=1.0)
    episode.step(obs=1.0)
    with pytest.raises(ConfigurationError, match="steps or frames were logged"):
        episode.upload("sensors", {"x": [1.0]}, t_ns=[0])
    with pytest.raises(ConfigurationError, match="started without video"):
        episode.frame(np.zeros((4, 4), np.uint8))
    episode.finalize()
    with pytest.raises(ConfigurationError, match="the episode is finalized"):
        episode.step(obs=1.0)
    assert wire.episodes[str(episode.id)]["status"] == "ready"


def test_without_network_steps_wait_in_the_spool(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    client = any_client_of(wire, spool=tmp_path / "spool")
    wire.fail("", "drop", times=1_000_000)
    with client.start_episode(name="offline", artifacts=DATA) as episode:
        log_four(episode)
    assert episode.status == "spooled"
    wire.faults.clear()
    [episode_id] = client.deliver().delivered.values()
    found = client.episode(episode_id)
    assert (found.status, found.metadata["steps"]) == ("ready", 4)
    np.testing.assert_array_equal(found.actions()["action/value"], FORCE)


def test_an_episode_that_nobody_ended_is_delivered_as_failed_with_its_steps(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    client = client_of(wire, spool=tmp_path / "spool")
    episode = client.start_episode(artifacts=DATA)
    log_four(episode)
    assert client.deliver().delivered == {}  # still being recorded
    episode_id = str(episode.id)
    del episode
    gc.collect()
    assert list(client.deliver().delivered.values()) == [episode_id]
    found = client.episode(episode_id)
    assert (found.status, found.metadata["steps"]) == ("failed", 4)
    np.testing.assert_array_equal(found.sensors()["observation.joints/value"], JOINTS)


def test_threads_log_into_episodes_of_their_own_and_into_one(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire)
    shared = client.start_episode(artifacts=["sensors"])
    own = [client.start_episode(artifacts=["sensors"]) for _ in range(2)]

    def work(number: int) -> None:
        for row in range(300):
            own[number].step(obs=[number, row])
            shared.step(obs=number)
        own[number].finalize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    shared.finalize()
    for number, episode in enumerate(own):
        found = client.episode(str(episode.id)).sensors()["observation/value"]
        assert found.tolist() == [[number, row] for row in range(300)]
    both = client.episode(str(shared.id)).sensors()["observation/value"]
    assert sorted(both.tolist()) == [0] * 300 + [1] * 300


def test_a_full_disk_refuses_the_step_and_keeps_those_before_it(tmp_path: Path) -> None:
    with small_disk(tmp_path) as reason:
        log = StepLog(tmp_path, None)

        def add(row: int) -> None:
            log.add({"obs": np.full(100, row, np.int16)}, None, row)

        with pytest.raises(StorageError, match=reason):
            deque(map(add, range(10_000)), maxlen=0)
        rows = log.rows
        with pytest.raises(StorageError, match=reason):
            add(rows)
        kept = (tmp_path / ROWS_FILE).read_bytes()
        log = StepLog(tmp_path, None)  # closes the file: the disk is taken away now
    elsewhere = tmp_path / "more room"
    elsewhere.mkdir()
    StepLog(elsewhere, None).add({"obs": np.zeros(100, np.int16)}, None, 0)
    (elsewhere / ROWS_FILE).write_bytes(kept)
    found = finish_steps(elsewhere)
    assert found.steps == rows > 100
    values = read_npz(found.files["sensors"])["observation/value"]
    assert values[:, 0].tolist() == list(range(rows))


@pytest.mark.parametrize("tail", [b"\x07" * 23, bytes(24 * 5), b""], ids=["torn", "zeros", "none"])
def test_what_a_power_cut_left_behind_the_last_step_is_not_a_step(
    tmp_path: Path, tail: bytes
) -> None:
    log = StepLog(tmp_path, None)
    for row in range(5):
        log.add({"obs": float(row), "reward": 1.0}, None, row + 10)
    with open(tmp_path / ROWS_FILE, "ab") as file:
        file.write(tail)
    found = finish_steps(tmp_path)
    assert (found.steps, found.reward_total) == (5, 5.0)
    assert read_npz(found.files["sensors"])["observation/value"].tolist() == [0, 1, 2, 3, 4]


def test_steps_as_far_apart_as_64_bits_allow_are_all_there(tmp_path: Path) -> None:
    log = StepLog(tmp_path, None)
    times = [-(2**63 - 1), 2**63 - 1]
    for t_ns in times:
        log.add({"obs": 1.0}, None, t_ns)
    found = finish_steps(tmp_path)
    assert found.steps == 2
    assert read_npz(found.files["sensors"])["observation/_t_ns"].tolist() == times


def test_steps_whose_files_vanished_do_not_end_as_an_episode_without_steps(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    """A folder for temporary files is cleaned now and then."""
    episode = client_of(wire).start_episode(artifacts=["sensors"])
    for row in range(3):
        episode.step(obs=float(row))
    steps = episode._core._steps
    assert steps is not None
    shutil.rmtree(steps.folder)
    with pytest.raises(StorageError, match="3 steps were logged and 0 are there"):
        episode.finalize()
    assert wire.episodes[str(episode.id)]["status"] == "recording"


# -------------------------------------------------------------------------------------- processes


FORKED = """
import os, sys
from rollbook.client import Client
from rollbook.errors import ConfigurationError
client = Client(api_key=sys.argv[1], base_url=sys.argv[2], spool=sys.argv[3] or None)
episode = client.start_episode(name="forked", artifacts=["sensors"])
episode.step(obs=0.0)
child = os.fork()
if not child:
    try:
        episode.step(obs=-1.0)
    except ConfigurationError as error:
        assert "in each process" in str(error), error
        sys.exit(3)  # as a program ends: with everything that is to be done then
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
for row in (1.0, 2.0):
    episode.step(obs=row)
episode.finalize()
print(episode.id)
"""


@pytest.mark.parametrize("spool", ["", "spool"])
def test_a_forked_process_neither_changes_nor_removes_the_steps_of_its_parent(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path, spool: str
) -> None:
    place = str(tmp_path / spool) if spool else ""
    program = [sys.executable, "-c", FORKED, wire.api_key, wire.base_url, place]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = client_of(wire).episode(done.stdout.split()[-1])
    assert found.sensors()["observation/value"].tolist() == [0, 1, 2]


KILLED = """
import itertools, sys
import numpy as np
from rollbook.client import Client
client = Client(api_key=sys.argv[1], base_url=sys.argv[2], spool=sys.argv[3])
episode = client.start_episode(name="killed", artifacts=["sensors", "actions", "video"], fps=20)
for row in itertools.count():
    episode.step(obs={"row": row, "state": np.full(500, row, np.float32)}, action=float(row), reward=1.0)
    episode.frame(np.full((16, 16), row % 250, np.uint8))
    print(row, flush=True)
"""


def test_a_program_killed_in_mid_episode_loses_no_step_that_it_logged(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    arguments = [wire.api_key, wire.base_url, str(tmp_path / "spool")]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.strip() == "40":
                os.kill(program.pid, signal.SIGKILL)
                break
        logged = 1 + max([40, *map(int, program.stdout)])
    client = client_of(wire, spool=tmp_path / "spool")
    [episode_id] = client.deliver().delivered.values()
    found = client.episode(episode_id)
    sensors, actions = found.sensors(), found.actions()
    rows = sensors["observation.row/value"].tolist()
    assert rows in ([*range(logged)], [*range(logged + 1)])  # the last one was not acknowledged
    assert sensors["observation.state/value"][:, -1].tolist() == rows
    assert actions["action/value"].tolist() == rows
    assert (found.status, found.metadata["outcome"]["reward_total"]) == ("failed", len(rows))
    assert "before it finalized" in found.metadata["failure_reason"]
    video = found.record.artifact("video")
    assert video is not None
    assert video.playable
    assert not any((tmp_path / "spool").glob("*draft*"))


MILLION = """
import resource, sys
import numpy as np
from rollbook.client import Client, Retries
client = Client(
    api_key="rt_x", base_url="http://127.0.0.1:9", spool=sys.argv[1], retries=Retries(attempts=1)
)
obs, action = np.zeros(8, np.float32), np.zeros(4, np.float32)
with client.start_episode(artifacts=["sensors", "actions"]) as episode:
    for row in range(1_000_000):
        if row == 10_000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        obs[0] = row
        episode.step(obs=obs, action=action, reward=1.0, t_ns=row)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_million_steps_take_no_more_memory_than_ten_thousand(tmp_path: Path) -> None:
    """68 MB of steps. What grows a little are the blocks in which they become artifacts at the end."""
    ran = subprocess.run(
        [sys.executable, "-c", MILLION, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert int(ran.stdout) < 40 << 10
    [entry] = (each for each in tmp_path.iterdir() if each.is_dir())
    values = read_npz(entry / "sensors.npz")["observation/value"]
    assert values[:, 0].tolist() == list(range(1_000_000))

"""`rollbook replay plan` and gate presets: what they print, without a server."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, SliceGuard, gate_from
from rollbook.contracts.gate_presets import gate_preset
from rollbook.scoring import rollup
from tests.command import Ended, rollbook


def plan(*options: object) -> Ended:
    return rollbook("replay", "plan", *options)


def planned(*options: object) -> dict[str, Any]:
    done = plan(*options, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = done.json
    return found


def by_gate(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {row["gate"]: row[key] for row in document["plans"]}


def test_a_plan_says_how_many_pairs_each_preset_takes() -> None:
    done = plan("--effect", "10points")
    assert done.returncode == 0
    assert "ships with 80% probability, if it wins 20% and loses 10% of the pairs" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["default", "199", "0.05"] in rows
    document = planned("--effect", "10points")
    assert by_gate(document, "pairs") == {"quick": 150, "default": 199, "strict": 361}
    assert by_gate(document, "hours") == {"quick": None, "default": None, "strict": None}


def test_pairs_that_differ_less_take_fewer_pairs_and_time_is_counted() -> None:
    document = planned("--effect", "10points", "--differ", 0.2, "--seconds-per-pair", 36)
    assert by_gate(document, "pairs")["default"] == 134
    assert by_gate(document, "hours")["default"] == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("seconds", "time"), [(0.006, "1.2 s"), (6, "19.8 min"), (36, "2.0 h"), (3600, "8.3 days")]
)
def test_time_is_printed_in_a_unit_that_people_use(seconds: float, time: str) -> None:
    done = plan("--effect", "10points", "--seconds-per-pair", seconds)
    [row] = [line for line in done.stdout.splitlines() if line.startswith("default")]
    assert f" {time} " in row


def test_scenes_are_counted_where_pairs_come_in_scenes() -> None:
    document = planned("--effect", "15points", "--pairs-per-scene", 10, "--correlation", 0.3)
    assert by_gate(document, "scenes")["default"] == 30
    few = plan("--effect", "15points", "--scenes", 12)
    assert few.returncode == 0
    assert "12 scenes are not enough, however many pairs each has" in few.stdout


def test_a_reward_is_planned_in_standard_deviations_or_in_its_unit() -> None:
    in_spreads = planned("--effect", "0.3sd", "--worst-loss", 4)
    in_units = planned("--effect", "30", "--spread", 100, "--worst-loss", 400)
    assert by_gate(in_spreads, "pairs") == by_gate(in_units, "pairs")
    undeclared = plan("--effect", "0.5sd")
    assert (
        "Declaring reward_range takes fewer pairs; without it, 150 are the least"
        in undeclared.stdout
    )


def test_looks_are_planned_with_the_pairs_on_average() -> None:
    document = planned("--effect", "10points", "--looks", 3, "--preset", "default")
    [row] = document["plans"]
    assert row["mean_pairs"] < 199 < row["pairs"]
    assert row["level"] == 0.0218
    assert "pairs on average" in plan("--effect", "10points", "--looks", 3).stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--effect", "ten"), "a gain such as 10points, 0.3sd, or a number"),
        (("--effect", "0points"), "more than 0points"),
        (("--effect", "9" * 400, "--spread", "1"), "a gain that is not infinite"),
        (("--effect", "120points"), "at most 100points"),
        (("--effect", "3"), "give --spread or --from-run"),
        (("--effect", "10points", "--power", "1.5"), "--power is 1.5, expected"),
        (("--effect", "10points", "--differ", "3"), "--differ is 3.0, expected"),
        (("--effect", "0.3sd", "--worst-loss", "-1"), "--worst-loss is -1.0, expected"),
        (("--effect", "10points", "--preset", "lax"), "the presets are quick, default, strict"),
        (
            ("--effect", "10points", "--scenes", "9", "--looks", "2"),
            "cannot be planned with scenes",
        ),
        (
            ("--effect", "10points", "--scenes", "9", "--pairs-per-scene", "3"),
            "finds the other one",
        ),
        (("--effect", "10points", "--from-results", "none.json"), "none.json cannot be read"),
    ],
)
def test_wrong_input_says_what_to_do(options: tuple[str, ...], says: str) -> None:
    done = plan(*options)
    assert done.returncode == 2
    assert says in done.stderr


def earlier(tmp_path: Path, *, gate: Gate) -> Path:
    """What `rollbook replay run --json` printed: of 200 pairs, 40 won and 20 lost, gains with a deviation of 2."""
    gains = np.random.default_rng(4).normal(0.1, 2.0, 200)
    won = [(0, 1)] * 40 + [(1, 0)] * 20 + [(1, 1)] * 140
    results = [
        EvalResult(
            f"{place:03}",
            None,
            "complete",
            {
                "success_baseline": bool(before),
                "success_candidate": bool(after),
                "reward_total_baseline": 10.0,
                "reward_total_candidate": 10.0 + gain,
                "evidence": {"success": "closed_loop", "reward_total": "closed_loop"},
                "repro": {"verified": True},
            },
        )
        for place, ((before, after), gain) in enumerate(zip(won, gains.tolist(), strict=True))
    ]
    document = {
        "eval_run_id": "run-7",
        "results": [{"metrics": each.metrics} for each in results],
        "summary": rollup(results, gate).to_wire(),
    }
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document))
    return path


def test_an_earlier_run_says_how_much_pairs_differ(tmp_path: Path) -> None:
    path = earlier(tmp_path, gate=Gate())
    document = planned("--effect", "10points", "--from-results", path)
    assert document["differ"] == pytest.approx(0.3)
    assert document["from"] == "run run-7"
    assert by_gate(document, "pairs")["default"] == 199
    reward = planned("--effect", "0.6", "--from-results", path)
    assert reward["spread"] == pytest.approx(2.0, rel=0.1)


def test_times_and_rewards_that_cannot_be_read_are_not_planned_with(tmp_path: Path) -> None:
    path = earlier(tmp_path, gate=Gate())
    odd = {"results": 5, "created_at": "today", "completed_at": 3, "episodes_completed": "many"}
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    assert planned("--effect", "10points", "--from-results", path)["seconds_per_pair"] is None
    done = plan("--effect", "3", "--from-results", path)
    assert done.returncode == 2
    assert "give --spread" in done.stderr


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, says in (("[]", "is not what"), ("{}", "no summary"), ("{", "cannot be read")):
        path.write_text(text)
        done = plan("--effect", "10points", "--from-results", path)
        assert done.returncode == 2
        assert says in done.stderr


def test_a_preset_is_printed_as_a_gate_to_edit() -> None:
    shown = rollbook("replay", "gate", "--preset", "strict", "--toml")
    assert gate_from(tomllib.loads(shown.stdout)) == gate_preset("strict")
    reward = rollbook("replay", "gate", "--preset", "quick", "--reward")
    assert gate_from(json.loads(reward.stdout)) == gate_preset("quick", reward=True)
    assert rollbook("replay", "gate", "--preset", "lax").returncode == 2


def test_a_gate_with_slices_is_printed_as_toml_that_can_be_read_back(tmp_path: Path) -> None:
    gate = Gate(guard_slices=(SliceGuard(by="task"), SliceGuard(by="scene", margin=0.1)))
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(gate.as_dict()))
    shown = rollbook("replay", "gate", path, "--toml")
    assert gate_from(tomllib.loads(shown.stdout)) == gate

"""Several candidates on the same baselines are ranked together, and ship only if the correction leaves them better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook import evals
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.errors import ConfigurationError
from rollbook.scoring import rollup
from rollbook.scoring.run_comparison import ComparedRun
from tests.command import rollbook

GATE = Gate(n_min=20)
LUCKY = 81
"""Of the first 200 seeds, one of two whose equal policy ships by chance."""


def result(number: int, baseline: bool, candidate: bool | None, **repro: Any) -> EvalResult:
    name = f"ep-{number:03}"
    if candidate is None:
        return EvalResult(name, None, "failed", {"success_baseline": baseline}, "it crashed")
    metrics = {
        "success_baseline": baseline,
        "success_candidate": candidate,
        "evidence": {"success": "closed_loop"},
        "repro": {"verified": True, **repro},
    }
    return EvalResult(name, None, "complete", metrics)


def results(won: Sequence[bool | None], **repro: Any) -> list[EvalResult]:
    """Against a baseline that fails in every other pair."""
    return [result(number, number % 2 == 0, each, **repro) for number, each in enumerate(won)]


def run(
    name: str, rows: Sequence[EvalResult], gate: Gate = GATE, scenes: int | None = None
) -> ComparedRun:
    labels = {}
    if scenes:
        ids = sorted(each.baseline_episode_id for each in rows)
        labels = {each: {"scene": (str(place % scenes),)} for place, each in enumerate(ids)}
    return ComparedRun(name, f"policy {name}", rows, rollup(rows, gate, labels=labels), labels)


def noisy(seed: int, pairs: int = 100, lift: float = 0.0) -> list[EvalResult]:
    """Equal to the baseline in most pairs; with a lift it wins some of the lost ones."""
    rng = np.random.default_rng(seed)
    old = np.arange(pairs) % 2 == 0
    new = np.where(rng.random(pairs) < 0.3, rng.random(pairs) < 0.5, old)
    return results([bool(each) for each in new | (rng.random(pairs) < lift)])


def test_a_better_candidate_leads_ships_and_is_told_apart() -> None:
    runs = [run(f"r{seed}", noisy(seed)) for seed in range(4)]
    found = evals.compare([*runs, run("best", noisy(9, lift=0.5))])
    best, *others = found.candidates
    assert (best.run, best.candidate, best.rank) == ("best", "policy best", 1)
    assert (best.recommend, best.better, best.letters) == ("ship", True, "a")
    assert 0 < best.bound < best.delta
    assert [each.recommend for each in others] == ["hold"] * 4
    assert all("a" not in each.letters and each.bound <= 0 for each in others)
    assert found.shipping == (best,)
    assert (found.metric, found.baselines, found.left_out, found.pairs) == ("success", 100, 0, 100)


def test_the_best_of_many_equal_candidates_ships_alone_and_holds_among_them() -> None:
    """One of these sets of results looks better by chance."""
    gate = Gate(n_min=20, rules=(MetricRule(metric="success", role="primary", required=True),))
    equal = [run(f"r{seed}", noisy(seed, 60), gate) for seed in range(LUCKY - 11, LUCKY + 1)]
    assert equal[-1].summary.decision.recommend == "ship"
    found = evals.compare(equal)
    [lucky] = [each for each in found.candidates if each.own == "ship"]
    assert found.shipping == ()
    assert lucky.reasons == ("not_better_of_many",)


def test_only_shared_baselines_are_compared_and_the_others_are_counted() -> None:
    first, second = noisy(1), noisy(2)
    found = evals.compare([run("a", first[:80]), run("b", second[10:])])
    assert (found.baselines, found.left_out) == (70, 30)


def test_a_crash_counts_as_lost() -> None:
    same = results([number % 2 == 0 for number in range(60)])
    crashing = results([None if number < 20 else number % 2 == 0 for number in range(60)])
    found = evals.compare([run("same", same), run("crashing", crashing)])
    assert [each.run for each in found.candidates] == ["same", "crashing"]
    assert found.candidates[1].crashes == 20
    assert found.candidates[1].delta == pytest.approx(-10 / 60)


def test_pairs_of_a_scene_count_together() -> None:
    """All of the gain is in two of twelve scenes: alone the pairs would show it."""
    won = [number % 2 == 0 or number % 12 < 3 for number in range(120)]
    rows, other = results(won), results([number % 2 == 0 for number in range(120)])
    alone = evals.compare([run("a", rows), run("b", other)])
    together = evals.compare([run("a", rows, scenes=12), run("b", other, scenes=12)])
    assert alone.candidates[0].better
    assert not together.candidates[0].better
    assert together.clusters is not None
    assert (together.clusters.by, together.clusters.count) == ("scene", 12)


def test_copies_of_one_run_share_their_letter_and_cost_nothing() -> None:
    rows = noisy(3, lift=0.4)
    few = evals.compare([run("a", rows), run("b", rows)])
    many = evals.compare([run(name, rows) for name in "abcdefgh"])
    assert {each.letters for each in many.candidates} == {"a"}
    assert many.candidates[0].p_value == pytest.approx(few.candidates[0].p_value)


# ------------------------------------------------------------------------------------ what is refused


def test_runs_that_cannot_be_compared_are_refused_with_the_reason() -> None:
    first = run("a", noisy(1))
    stricter = msgspec.structs.replace(GATE, n_min=30)
    elsewhere = results([True] * 40, env_version={"baseline": "v1", "candidate": "v2"})
    here = results([True] * 40, env_version={"baseline": "v1", "candidate": "v1"})
    others = [
        msgspec.structs.replace(each, baseline_episode_id=f"x{each.baseline_episode_id}")
        if isinstance(each, msgspec.Struct)
        else EvalResult(f"x{each.baseline_episode_id}", None, each.status, each.metrics)
        for each in noisy(2)
    ]
    cases = [
        ([first], "2 to 50"),
        ([first, first], "given twice"),
        ([first, run("b", noisy(2), stricter)], "differ in n_min"),
        ([first, run("b", others)], "no baseline in common"),
        ([run("a", here), run("b", elsewhere)], "same environment"),
    ]
    for runs, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            evals.compare(runs)


def test_outcomes_of_different_evidence_are_refused() -> None:
    stated = [
        EvalResult(
            each.baseline_episode_id,
            None,
            "complete",
            {**each.metrics, "evidence": {"success": "counterfactual"}},
        )
        for each in noisy(2)
    ]
    with pytest.raises(ConfigurationError, match="different evidence"):
        evals.compare([run("a", noisy(1)), run("b", stated)])


def test_files_without_the_labels_of_clustered_runs_are_refused() -> None:
    clustered = run("a", noisy(1), scenes=12)
    bare = ComparedRun("b", "b", clustered.results, clustered.summary)
    with pytest.raises(ConfigurationError, match="labels of the baselines are not in"):
        evals.compare([bare, ComparedRun("c", "c", clustered.results, clustered.summary)])


# ------------------------------------------------------------------------------------- command line


def written(folder: Path, name: str, rows: Sequence[EvalResult]) -> Path:
    path = folder / f"{name}.json"
    summary = rollup(rows, GATE).to_wire()
    document = {
        "candidate_policy_version": name,
        "baseline_policy_version": None,
        "episodes": len(rows),
        "results": [asdict(each) for each in rows],
        "summary": summary,
    }
    path.write_text(json.dumps(document))
    return path


def test_files_of_dry_runs_are_ranked_on_the_command_line(tmp_path: Path) -> None:
    files = [
        written(tmp_path, "plain", noisy(1)),
        written(tmp_path, "best|`x`", noisy(9, lift=0.5)),
    ]
    shown = rollbook("replay", "compare", *files)
    assert shown.returncode == 0, shown.stderr
    assert "2 candidates by success, 100 pairs, 95 % sure of all bounds together." in shown.stdout
    assert "Ships: best|`x`." in shown.stdout
    told = json.loads(rollbook("replay", "compare", *files, "--json").stdout)
    assert [each["recommend"] for each in told["candidates"]] == ["ship", "hold"]
    table = rollbook("replay", "compare", *files, "--markdown").stdout.splitlines()
    rows = [line for line in table if line.startswith("| ")]
    assert len(rows) == 3
    assert {line.count("|") for line in rows} == {9}


def test_a_file_that_is_something_else_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in (
        "nonsense",
        "[1]",
        '{"results": 3}',
        '{"results": [], "candidate_policy_version": "a"}',
    ):
        path.write_text(text)
        done = rollbook("replay", "compare", path, path)
        assert done.returncode == 2, text
        assert "Traceback" not in done.stderr

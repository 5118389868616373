"""Beside a closed loop, a report says what the same choices in the recorded states are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.decision import Rollup
from rollbook.contracts.evals import EvalResult
from rollbook.report.words import relation_words
from rollbook.scoring import rollup


def pair(number: int, baseline: float, closed: float, chosen: float | None) -> EvalResult:
    metrics: dict[str, Any] = {
        "reward_total_baseline": baseline,
        "reward_total_candidate": closed,
        "evidence": {"reward_total": "closed_loop"},
    }
    if chosen is not None:
        metrics["counterfactual"] = {"chosen_total": chosen}
    return EvalResult(f"pair-{number:03}", None, "complete", metrics)


def test_the_excess_is_the_mean_of_counterfactual_minus_closed_loop() -> None:
    rows = [(0.2, 0.5, 0.6), (0.1, 0.4, 0.4), (0.3, 0.2, 0.5)]
    found = rollup([pair(n, *row) for n, row in enumerate(rows)]).counterfactual_relation
    assert found is not None
    assert found.n_pairs == 3
    assert found.counterfactual_delta == pytest.approx(0.3)
    assert found.closed_loop_delta == pytest.approx(0.5 / 3)
    assert found.excess == pytest.approx(0.4 / 3)
    # Student's interval of the three differences .1, .0, .3
    assert found.excess_interval == pytest.approx((-0.24612, 0.51279), abs=1e-4)


def test_pairs_of_one_scene_do_not_make_the_interval_narrower() -> None:
    rng = np.random.default_rng(0)
    shifts = rng.normal(0, 0.1, 12)
    alone = [pair(n, 0.2, 0.4, 0.4 + shift) for n, shift in enumerate(shifts)]
    copied = [pair(4 * n + k, 0.2, 0.4, 0.4 + s) for n, s in enumerate(shifts) for k in range(4)]
    scenes = {f"pair-{4 * n + k:03}": {"scene": (f"s{n}",)} for n in range(12) for k in range(4)}
    one, four = rollup(alone), rollup(copied, labels=scenes)
    assert _interval(four) == pytest.approx(_interval(one))


def _interval(found: Rollup) -> Sequence[float]:
    relation = found.counterfactual_relation
    assert relation is not None
    assert relation.excess_interval is not None
    return relation.excess_interval


def test_equal_order_of_the_pairs_is_a_rank_correlation_of_one() -> None:
    rows = [pair(n, 0.0, n / 10, (n / 10) ** 2) for n in range(6)]
    found = rollup(rows).counterfactual_relation
    assert found is not None
    assert found.rank_correlation == pytest.approx(1.0)


@pytest.mark.parametrize("chosen", [None, float("nan"), "much"])
def test_without_a_second_figure_nothing_is_said(chosen: Any) -> None:
    found = rollup([pair(0, 0.1, 0.2, chosen)])
    assert found.counterfactual_relation is None
    assert "counterfactual_relation" not in found.to_wire()


def test_counterfactual_pairs_have_no_second_figure() -> None:
    result = pair(0, 0.1, 0.2, 0.2)
    result.metrics["evidence"]["reward_total"] = "counterfactual"
    assert rollup([result]).counterfactual_relation is None


def test_one_pair_has_neither_an_interval_nor_a_rank_correlation() -> None:
    found = rollup([pair(0, 0.1, 0.2, 0.5)]).counterfactual_relation
    assert found is not None
    assert (found.excess_interval, found.rank_correlation) == (None, None)
    said = relation_words(found)
    assert (
        said
        == "+0.4 in the recorded states of 1 pair, 0.3 more than closed loop; the closed loop decides"
    )


def test_it_survives_the_wire() -> None:
    found = rollup([pair(n, 0.1, 0.2 + n / 9, 0.5) for n in range(4)])
    assert Rollup.from_wire(found.to_wire()) == found

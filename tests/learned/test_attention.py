"""The attention policy: what its network sees, what it does not depend on, and checkpoints that it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollbook.errors import StorageError
from rollbook.learned import LearnedPolicy, load_learned_policy
from rollbook.learned.attention_network import SetAttention, weights_of
from tests.learned.small_runs import NAMES, written_run

WEIGHTS = "weights.safetensors"
Array = np.ndarray[Any, Any]


def weights(features: int = len(NAMES), seed: int = 0) -> dict[str, torch.Tensor]:
    """Those of two heads that nobody trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [SetAttention(features, 16, 2) for _ in range(2)]
    return {
        f"head-{head:02}.{name}": each
        for head, network in enumerate(networks, start=1)
        for name, each in weights_of(network).items()
    }


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> LearnedPolicy:
    data = safetensors.torch.save(weights())
    folder = tmp_path_factory.mktemp("attention") / "run"
    return load_learned_policy(written_run(folder, "attention", {WEIGHTS: data}))


def shells(count: int, candidates: int, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, candidates, len(NAMES))).astype(np.float32)
    features[..., -1] = 1 + np.arange(count)[:, None] % 2
    return features, random.random((count, candidates)) < 0.7


shapes = st.tuples(st.integers(1, 5), st.integers(1, 7))
quick = settings(deadline=None, max_examples=25)


@quick
@given(shapes, st.integers(0, 99))
def test_the_order_of_the_candidates_does_not_change_their_scores(
    policy: LearnedPolicy, shape: tuple[int, int], seed: int
) -> None:
    features, valid = shells(*shape, seed)
    order = np.random.default_rng(seed).permutation(shape[1])
    scores = policy.score(features, NAMES, valid)
    other = policy.score(features[:, order], NAMES, valid[:, order])
    np.testing.assert_allclose(other, scores[:, order], rtol=1e-6)


@quick
@given(st.data(), shapes)
def test_a_candidate_that_is_not_valid_has_no_score_and_no_influence(
    policy: LearnedPolicy, data: st.DataObject, shape: tuple[int, int]
) -> None:
    features, valid = shells(*shape)
    scores = policy.score(features, NAMES, valid)
    np.testing.assert_array_equal(np.isnan(scores), ~valid)
    anything = arrays.arrays(np.float32, features.shape, elements=st.floats(width=32))
    changed = np.where(valid[..., None], features, data.draw(anything))
    # the first feature of a shell without any valid candidate may choose another head, and scores nothing
    np.testing.assert_array_equal(policy.score(changed, NAMES, valid), scores)


@quick
@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 5), st.integers(1, 3))
def test_neither_neighbours_nor_padding_nor_threads_change_a_single_bit(
    policy: LearnedPolicy, states: int, candidates: int, more: int, threads: int
) -> None:
    features, valid = shells(states, candidates)
    together = policy.score(features, NAMES, valid)
    wide = np.pad(features, ((0, 0), (0, more), (0, 0)), constant_values=np.nan)
    masked = np.pad(valid, ((0, 0), (0, more)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = [policy.score(wide[at], NAMES, masked[at]) for at in range(states)]
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(np.stack(alone)[:, :candidates], together)


def test_a_candidate_is_judged_in_view_of_the_others(policy: LearnedPolicy) -> None:
    features, _ = shells(1, 3)
    every = np.ones((1, 3), bool)
    without = np.array([[True, True, False]])
    seen, unseen = (policy.score(features, NAMES, valid) for valid in (every, without))
    assert seen[0, 0] != unseen[0, 0]


def test_a_feature_that_is_not_finite_counts_as_its_mean(policy: LearnedPolicy) -> None:
    features, _ = shells(1, 3)
    features[0, 1, 0] = np.inf
    scores = policy.score(features, NAMES, np.ones((1, 3), bool))
    features[0, 1, 0] = np.nan
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(policy.score(features, NAMES, np.ones((1, 3), bool)), scores)


def test_inputs_are_scaled_by_what_was_seen_in_training() -> None:
    network = SetAttention(3, 16, 1)
    random = np.random.default_rng(0)
    rows = np.stack([random.normal(5, 2, 400), np.full(400, 7.0), random.normal(size=400)], axis=1)
    features = torch.from_numpy(rows.astype(np.float32)).view(40, 10, 3)
    network.measure(features, torch.ones(40, 10, dtype=torch.bool), unused=[2])
    assert network.mean[0].item() == pytest.approx(rows[:, 0].mean(), rel=1e-4)
    assert network.factor.tolist() == pytest.approx([1 / rows[:, 0].std(), 0, 0], rel=1e-4)


def broken(**changes: Any) -> bytes:
    kept = {**weights(), **changes}
    return safetensors.torch.save({name: each for name, each in kept.items() if each is not None})


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ({"other.safetensors": b""}, "names no such checkpoint file"),
        ({WEIGHTS: b"no weights"}, "not an attention checkpoint"),
        ({WEIGHTS: broken(**{"head-02.out.bias": None})}, "out.bias"),
        ({WEIGHTS: broken(**{"head-01.more": torch.zeros(1)})}, "more"),
        ({WEIGHTS: broken(**{"head-01.out.bias": torch.tensor([torch.nan])})}, "not a finite"),
        ({WEIGHTS: safetensors.torch.save(weights(features=5))}, "for 5 features, not 3"),
        # networks of any size, in a file without a byte of weights
        ({WEIGHTS: broken(**{"head-01.embed.weight": torch.zeros(1 << 40, 0)})}, "embed.weight"),
        ({WEIGHTS: broken(**{"head-01.embed.weight": torch.zeros(160, 3)})}, r"expected \[160"),
        ({WEIGHTS: broken(**{"head-01.embed.weight": torch.zeros(17, 3)})}, "embed.weight"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    tmp_path: Path, checkpoint: dict[str, bytes], words: str
) -> None:
    folder = written_run(tmp_path / "run", "attention", checkpoint)
    with pytest.raises(StorageError, match=words):
        load_learned_policy(folder)

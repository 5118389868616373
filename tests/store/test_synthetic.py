"""The synthetic records keep what real ones promise."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.contracts.reasons import VALID_BITSET, has_reason, primary_reasons
from rollbook.store.records import RolloutChain, RolloutStep, RolloutZarrRecord
from rollbook.store.schema import CANDIDATES, DIAGNOSTICS
from tests.store.synthetic import METRICS, POLICIES, make_records, spec_fixture_records

Array = NDArray[Any]

RAGGED: dict[str, Any] = {
    "candidates": (4, 40),
    "branching": True,
    "horizon": 4,
    "policies": (*POLICIES, "learned_ranker"),
}


@pytest.fixture(scope="module")
def records() -> list[RolloutZarrRecord]:
    return list(make_records(24, seed=3, features=5, **RAGGED))


def _steps(records: list[RolloutZarrRecord]) -> Iterator[tuple[str, RolloutStep]]:
    for record in records:
        for chain in record.result.chains:
            yield from ((record.result.policy, step) for step in chain.steps)


def _over_shell(step: RolloutStep, values: Array | None, fill: float = np.nan) -> Array:
    """A vector over the whole shell, whichever length it was given with."""
    assert values is not None
    mask = step.candidates.mask_valid
    if len(values) == len(mask):
        return values
    assert len(values) == mask.sum()
    whole = np.full(len(mask), fill, values.dtype)
    whole[mask] = values
    return whole


def _metrics(step: RolloutStep) -> dict[str, Array]:
    return {name: _over_shell(step, step.metric_vectors[name]) for name in METRICS}


def _content(records: Iterator[RolloutZarrRecord]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(record.lineage.to_json())
        for chain in record.result.chains:
            for step in chain.steps:
                shell = step.candidates
                vectors = [*step.metric_vectors.values(), *shell.extras.values()]
                for array in (shell.shell_poses, shell.mask_valid, *vectors):
                    digest.update(np.ascontiguousarray(array).data)
                digest.update(repr(step.selected_shell_index).encode())
    return digest.hexdigest()


def test_same_seed_same_records_however_many_are_asked_for() -> None:
    few = _content(make_records(3, seed=5))
    assert few == _content(itertools.islice(make_records(40, seed=5), 3))
    assert few != _content(make_records(3, seed=6))


def test_records_are_made_when_they_are_asked_for() -> None:
    assert next(make_records(10**9, seed=0)).lineage.source_row_id == 0


def test_shells_have_the_size_that_was_asked_for() -> None:
    steps = list(_steps(list(make_records(2, candidates=60, horizon=3))))
    assert [len(step.candidates) for _, step in steps] == [60] * 6
    ragged = {len(step.candidates) for _, step in _steps(list(make_records(4, candidates=(3, 9))))}
    assert ragged <= set(range(3, 10))
    assert len(ragged) > 1


def test_poses_are_rigid_and_moves_start_where_the_last_one_ended(
    records: list[RolloutZarrRecord],
) -> None:
    for record in records:
        for chain in record.result.chains:
            pose = record.result.root_pose_world
            for step in chain.steps:
                shell = step.candidates
                turns = shell.shell_poses[:, :9].reshape(-1, 3, 3).astype(np.float64)
                assert np.allclose(turns @ turns.swapaxes(1, 2), np.eye(3), atol=1e-5)
                assert np.allclose(np.linalg.det(turns), 1, atol=1e-5)
                moved = np.linalg.norm(shell.shell_poses[:, 9:] - pose[9:], axis=1)
                assert np.allclose(moved, shell.extras["motion_step_length_m"], atol=1e-4)
                pose = shell.shell_poses[step.selected_shell_index]


def test_metrics_follow_from_errors_that_telescope(records: list[RolloutZarrRecord]) -> None:
    for record, part in itertools.product(records, ("target", "scene")):
        for chain in record.result.chains:
            taken = [
                {n: v[step.selected_shell_index] for n, v in _metrics(step).items()}
                for step in chain.steps
            ]
            root = taken[0][f"{part}_pm_dist_before"]
            for before, after in itertools.pairwise(taken):
                assert before[f"{part}_pm_dist_after"] == after[f"{part}_pm_dist_before"]
            endpoint = (root - taken[-1][f"{part}_pm_dist_after"]) / root
            assert np.isclose(sum(m[f"{part}_root_gain"] for m in taken), endpoint, atol=1e-5)
            for step in chain.steps:
                _check_gains(_metrics(step), part, root)


def _check_gains(metrics: dict[str, Array], part: str, root: float) -> None:
    before, after = metrics[f"{part}_pm_dist_before"], metrics[f"{part}_pm_dist_after"]
    close: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-6, "equal_nan": True}
    assert np.allclose(metrics[f"{part}_rri"], (before - after) / before, **close)
    assert np.allclose(metrics[f"{part}_root_gain"], (before - after) / root, **close)
    assert np.allclose(metrics[f"{part}_log_error_gain"], np.log(before / after), **close)


def test_labels_are_there_exactly_for_valid_candidates(records: list[RolloutZarrRecord]) -> None:
    for _, step in _steps(records):
        for values in _metrics(step).values():
            assert (np.isfinite(values) == step.candidates.mask_valid).all()


def test_labels_are_missing_only_where_asked() -> None:
    records = list(make_records(16, seed=1, unlabelled_fraction=0.3, **RAGGED))
    missing = 0
    for _, step in _steps(records):
        labelled = np.isfinite(_metrics(step)["target_root_gain"])
        assert labelled[step.selected_shell_index]
        assert not (labelled & ~step.candidates.mask_valid).any()
        missing += int((step.candidates.mask_valid & ~labelled).sum())
        probabilities = _over_shell(step, step.selection_probabilities, 0.0)
        assert (probabilities[~labelled] == 0).all()
    assert missing


def test_vectors_come_in_both_lengths(records: list[RolloutZarrRecord]) -> None:
    lengths = {
        len(step.metric_vectors["target_rri"]) == len(step.candidates)
        for _, step in _steps(records)
        if not step.candidates.mask_valid.all()
    }
    assert lengths == {True, False}


def test_names_are_columns(records: list[RolloutZarrRecord]) -> None:
    for _, step in _steps(records[:2]):
        assert set(step.metric_vectors) <= set(CANDIDATES.columns)
        assert set(step.candidates.extras) == {
            column.name for column in DIAGNOSTICS.columns.values() if column.packed is None
        } - {"candidate_row_id", "position_id", "valid_actor_mask"}


def test_reasons_and_diagnostics_agree(records: list[RolloutZarrRecord]) -> None:
    several = 0
    for _, step in _steps(records):
        shell = step.candidates
        bits = shell.invalid_reason_bitset
        assert bits is not None
        assert ((bits == VALID_BITSET) == shell.mask_valid).all()
        assert ((primary_reasons(bits) == 0) == shell.mask_valid).all()
        collides = shell.extras["path_collision_mask"]
        assert (collides == has_reason(bits, "PATH_SEGMENT_COLLISION")).all()
        assert not (collides & shell.mask_valid).any()
        outside = shell.extras["free_space_margin_m"] < 0
        assert (outside == has_reason(bits, "POSE_OUT_OF_EXTENT")).all()
        several += int((np.bitwise_count(bits) > 1).sum())
    assert several


def test_shares_are_near_what_was_asked_for() -> None:
    masks = [s.candidates.mask_valid for _, s in _steps(list(make_records(40, valid_fraction=0.3)))]
    assert 0.28 < np.concatenate(masks).mean() < 0.35


def test_distributions_and_choices_follow_the_policy(records: list[RolloutZarrRecord]) -> None:
    for policy, step in _steps(records):
        mask = step.candidates.mask_valid
        probabilities = _over_shell(step, step.selection_probabilities, 0.0)
        logits = _over_shell(step, step.selection_logits)
        log_probabilities = _over_shell(step, step.selection_log_probabilities, -np.inf)
        assert np.isclose(probabilities.sum(), 1, atol=1e-5)
        assert (probabilities[~mask] == 0).all()
        assert np.isnan(logits[~mask]).all()
        assert not np.isnan(logits[mask]).any()
        assert np.allclose(np.exp(log_probabilities), probabilities, atol=1e-6)
        assert probabilities[step.selected_shell_index] > 0
        assert mask[step.selected_shell_index]
        if policy == "oracle_greedy":
            assert sorted(probabilities)[-2:] == [0, 1]
            assert step.temperature is None
        elif policy == "random_valid":
            assert len(set(probabilities[probabilities > 0].tolist())) == 1


def test_the_greedy_policy_takes_the_best() -> None:
    for _, step in _steps(list(make_records(8, policies=("oracle_greedy",)))):
        gain = _metrics(step)["target_root_gain"]
        assert gain[step.selected_shell_index] == np.nanmax(gain)


def test_sampling_probabilities_sum_to_one(records: list[RolloutZarrRecord]) -> None:
    for _, step in _steps(records):
        probability = step.candidates.sampler_probability
        assert probability is not None
        assert np.isclose(probability.sum(), 1, atol=1e-5)
        assert (probability > 0).all()


def test_forks_share_the_steps_before_them(records: list[RolloutZarrRecord]) -> None:
    for record in records:
        chains = record.result.chains
        assert len(chains) == 4
        assert chains[0].parent_chain is None
        for chain in chains[1:]:
            _check_fork(chain, chains)


def _check_fork(chain: RolloutChain, chains: tuple[RolloutChain, ...]) -> None:
    fork, parent = chain.fork_step_index, chain.parent_chain
    assert parent is not None
    assert fork is not None
    other = chains[parent]
    assert all(a is b for a, b in zip(chain.steps[:fork], other.steps[:fork], strict=True))
    mine, theirs = chain.steps[fork], other.steps[fork]
    assert mine.candidates is theirs.candidates
    assert mine.selected_shell_index != theirs.selected_shell_index


def test_chains_end_early_where_asked() -> None:
    records = make_records(16, early_fraction=0.5, horizon=5)
    chains = [chain for record in records for chain in record.result.chains]
    assert all(chain.terminated_early == (len(chain.steps) < 5) for chain in chains)
    assert {chain.terminated_early for chain in chains} == {True, False}


def test_every_step_has_its_own_generator_state(records: list[RolloutZarrRecord]) -> None:
    steps = {id(step): step for _, step in _steps(records)}
    digests = {step.rng_state_digest for step in steps.values()}
    assert len(digests) == len(steps)
    assert {len(digest or b"") for digest in digests} == {32}


def test_lineage_says_everything(records: list[RolloutZarrRecord]) -> None:
    for record in records:
        fields = msgspec.structs.asdict(record.lineage_for_chain(0))
        learned = record.result.policy not in POLICIES
        missing = {name for name, value in fields.items() if value is None}
        optional = {"policy_revision"}
        assert missing == (optional if learned else {"model_checkpoint_hash", *optional})
        assert record.lineage.label_valid
        for name in ("mesh_version", "candidate_config_hash", "oracle_config_hash"):
            assert re.fullmatch("[0-9a-f]{64}", fields[name])


def test_records_of_one_source_agree_on_it(records: list[RolloutZarrRecord]) -> None:
    sources: dict[int, set[Any]] = {}
    targets: dict[int, set[str | None]] = {}
    for record in records:
        row = record.lineage.resolved_source_row_id()
        root = record.result.root_pose_world.tobytes()
        sources.setdefault(row, set()).add((record.lineage.source_identity(), root))
        targets.setdefault(row, set()).add(record.lineage.target_id)
    assert {len(identities) for identities in sources.values()} == {1}
    assert {len(names) for names in targets.values()} == {2}
    prefixes = [record.rollout_id_prefix for record in records]
    assert len(set(prefixes)) == len(prefixes)


def test_targets_go_unmatched_where_asked() -> None:
    lineages = [record.lineage for record in make_records(60, unmatched_fraction=0.4, horizon=1)]
    assert {lineage.label_valid for lineage in lineages} == {True, False}


def test_features_depth_and_crops_come_along() -> None:
    options: dict[str, Any] = {"features": 6, "depth": (24, 32), "crops": True, "horizon": 2}
    for _, step in _steps(list(make_records(3, **options))):
        shell, depth = step.candidates, step.selected_depth
        assert shell.actor_features is not None
        assert depth is not None
        assert shell.actor_features.shape == (60, 6)
        assert depth.depth_m.shape == depth.valid_mask.shape == (24, 32)
        assert not depth.valid_mask.all()
        assert (depth.depth_m[depth.valid_mask] > 0).all()
        assert (depth.depth_m[~depth.valid_mask] == 0).all()
        owners = [crop.shell_index for crop in step.target_eval_crops]
        assert owners == [None, *np.flatnonzero(shell.mask_valid).tolist()]


def test_the_fixture_has_known_numbers() -> None:
    records = spec_fixture_records(horizon=2, num_samples=3)
    assert [record.result.policy for record in records] == list(POLICIES)
    assert [record.lineage.matched_gt_target_row_id for record in records] == [100, 101, 102]
    for _, step in _steps(records):
        assert len(step.candidates) == 6
        assert step.candidates.mask_valid.all()
        assert len(step.target_eval_crops) == 7
    second = records[0].result.chains[0].steps[1]
    expected = np.linspace(0.1, 0.6, 6) + 1
    assert np.allclose(second.metric_vectors["target_rri"], expected)
    assert np.allclose(second.metric_vectors["target_root_gain"], expected + 10)
    assert second.selected_shell_index == 5
    assert second.selected_depth is not None
    assert (second.selected_depth.depth_m == 2).all()

"""Every bridge refuses a batch in which a field does not mean what its trainer takes it for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollbook.contracts import LogprobSemantics, RolloutTable, StalenessPolicy, token_staleness
from rollbook.errors import InvalidNumber, InvalidValue, RolloutsNotInBatch
from rollbook.train import to_prime_rl, to_tinker, to_trl, to_verl
from tests.train.recorded_batches import PROCESSED, batch_of, conversations, raw

Bridge = Callable[..., Any]


def trl(table: RolloutTable, **options: Any) -> Any:
    return to_trl(batch_of(table), table, pad_id=0, **options)


def verl(table: RolloutTable, **options: Any) -> Any:
    return to_verl(batch_of(table), table, pad_id=0, **options)


def prime_rl(table: RolloutTable, **options: Any) -> Any:
    return to_prime_rl(batch_of(table), table, **options)


def tinker(table: RolloutTable, **options: Any) -> Any:
    return to_tinker(batch_of(table), table, **options)


every_bridge = pytest.mark.parametrize("bridge", [trl, verl, prime_rl, tinker])


@every_bridge
@pytest.mark.parametrize(
    ("meaning", "said"),
    [
        (raw(temperature=0.7), r"logprob_semantics.temperature is 0.7, expected 1: raw log-probs"),
        (raw(temperature=1, top_p=0.9), r"logprob_semantics.top_p is 0.9, expected 1"),
        (raw(temperature=1, top_k=20), r"logprob_semantics.top_k is 20, expected none"),
        (raw(), r"logprob_semantics.temperature is missing"),
        (None, r"logprob_semantics.* is missing"),
    ],
)
def test_log_probs_of_another_distribution_than_that_of_sampling_are_refused(
    bridge: Bridge, meaning: LogprobSemantics | None, said: str
) -> None:
    with pytest.raises((InvalidValue, InvalidNumber), match=rf"artifact 'rollout-0': {said}"):
        bridge(conversations(semantics=meaning))


@every_bridge
def test_raw_log_probs_at_temperature_1_without_a_cut_off_are_those_of_sampling(
    bridge: Bridge,
) -> None:
    assert bridge(conversations(semantics=raw(temperature=1, top_p=1, top_k=0)))


@every_bridge
def test_what_rollouts_do_not_record_can_be_stated_but_not_contradicted(bridge: Bridge) -> None:
    assert bridge(conversations(semantics=None), logprob_semantics=PROCESSED)
    with pytest.raises(InvalidValue, match="expected 1: raw log-probs"):
        bridge(conversations(semantics=None), logprob_semantics=raw(temperature=0.7))
    with pytest.raises(InvalidValue, match="distribution is processed, expected raw, as the arg"):
        bridge(conversations(), logprob_semantics=raw(temperature=1))


@every_bridge
def test_a_temperature_that_was_recorded_by_token_counts_too(bridge: Bridge) -> None:
    by_token = {"temperature": [1, 1, 1, 1, 0.5, 1]}
    with pytest.raises(InvalidNumber, match=r"artifact 'rollout-2', sample 1: temperature is 0.5"):
        bridge(conversations(semantics=raw(temperature=1), samples=by_token))
    outside = {**by_token, "loss_mask": [1, 1, 1, 1, 0, 1]}
    assert bridge(conversations(semantics=raw(temperature=1), samples=outside))


@pytest.mark.parametrize("bridge", [trl, verl])
def test_log_probs_at_another_temperature_than_the_trainers_are_refused(bridge: Bridge) -> None:
    assert bridge(conversations(), temperature=0.5)
    with pytest.raises(InvalidNumber, match=r"is 0.5, expected 1.0, the temperature of the train"):
        bridge(conversations(), temperature=1.0)


@every_bridge
def test_a_rollout_without_a_prompt_is_refused(bridge: Bridge) -> None:
    with pytest.raises(InvalidValue, match="artifact 'rollout-1': prompt is missing"):
        bridge(conversations(prompt=[[1], None, [1]]))


@pytest.mark.parametrize("bridge", [trl, verl, tinker])
def test_weights_between_0_and_1_are_refused_where_the_trainer_has_none(bridge: Bridge) -> None:
    table = conversations(samples={"policy_version": [5, 5, 3, 5, 5, 5]})
    weighed = token_staleness(table, 5, StalenessPolicy(max_age=0, mode="down_weight"))
    with pytest.raises(
        InvalidNumber, match=r"artifact 'rollout-1': weight is 0.25, expected 0 or 1"
    ):
        bridge(table, staleness=weighed)
    masked = token_staleness(table, 5, StalenessPolicy(max_age=0, mode="mask"))
    assert bridge(table, staleness=masked)


@every_bridge
@pytest.mark.parametrize(
    "altered",
    [
        {"token_id": [10, 11, 20, 30, 31, 33]},
        {"logprob": [-0.5, -1, -1.5, -2, -2.5, -3.5]},
        {"advantage": [1, 1, -1, 3, 3, 3.5]},
    ],
)
def test_a_table_that_was_altered_after_its_batch_is_refused(
    bridge: Bridge, altered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(conversations())
    monkeypatch.setattr("tests.train.test_bridge_meaning.batch_of", lambda _: batch)
    with pytest.raises(RolloutsNotInBatch, match="artifact 'rollout-2' has another digest"):
        bridge(conversations(samples=altered))

"""What prime-rl gets: flat lists, one entry per token, and temperatures where its trainer looks for them."""

from __future__ import annotations

import pytest

from rollbook.contracts import (
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    StalenessPolicy,
    token_staleness,
)
from rollbook.errors import InvalidNumber, InvalidValue
from rollbook.train import to_prime_rl
from tests.train.recorded_batches import batch_of, conversations


def test_sequences_lie_end_to_end_with_every_field_of_a_micro_batch() -> None:
    table = conversations(
        samples={"reference_logprob": [-1.0] * 6, "loss_mask": [1, 1, 1, 1, 0, 1]}
    )
    [micro] = to_prime_rl(batch_of(table), table)
    assert micro.input_ids == [7, 8, 9, 10, 11, 4, 20, 5, 6, 30, 31, 32]
    assert micro.loss_mask == [bool(each) for each in (0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1)]
    assert micro.advantages == [0, 0, 0, 1, 1, 0, -1, 0, 0, 3, 3, 3]
    assert micro.inference_logprobs == [0, 0, 0, -0.5, -1, 0, -1.5, 0, 0, -2, -2.5, -3]
    assert micro.position_ids == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4]
    assert micro.sequence_lengths == micro.seq_lens == [5, 2, 5]
    assert micro.temperatures == [0.5] * 12
    assert micro.env_names == ["env.weather"] * 12
    assert micro.ref_logprobs == [0, 0, 0, -1, -1, 0, -1, 0, 0, -1, -1, -1]
    assert set(micro.fields()) >= {"input_ids", "temperatures", "rl_weights"}
    assert micro.rl_weights is None


def test_a_temperature_by_token_lies_where_the_logits_of_the_token_are() -> None:
    """prime-rl divides the logits of place i, which predict token i + 1, by the temperature of place i."""
    table = conversations(samples={"temperature": [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]})
    [micro] = to_prime_rl(batch_of(table), table)
    expected = [1, 1, 0.2, 0.4, 1, 0.6, 1, 1, 0.8, 1.0, 1.2, 1]
    assert micro.temperatures == pytest.approx(expected)


def test_a_budget_makes_several_micro_batches_with_every_rollout_once() -> None:
    table = conversations()
    parts = to_prime_rl(batch_of(table), table, token_budget=7)
    assert [sum(part.seq_lens) for part in parts] == [7, 5]
    assert sorted(id_ for part in parts for id_ in part.input_ids) == sorted(
        [7, 8, 9, 10, 11, 4, 20, 5, 6, 30, 31, 32]
    )


def test_weights_of_stale_tokens_are_their_own_stream() -> None:
    table = conversations(samples={"policy_version": [5, 5, 3, 5, 5, 5]})
    aged = token_staleness(table, 5, StalenessPolicy(max_age=0, mode="down_weight"))
    [micro] = to_prime_rl(batch_of(table), table, staleness=aged)
    assert micro.rl_weights == [0, 0, 0, 1, 1, 0, 0.25, 0, 0, 1, 1, 1]


def test_an_environment_of_a_reserved_name_and_a_missing_temperature_are_refused() -> None:
    named = EnvironmentPackageKey(environment_ref="all", version="1")
    table = conversations(environment=[named] * 3)
    with pytest.raises(InvalidValue, match="artifact 'rollout-0': environment_ref is 'all'"):
        to_prime_rl(batch_of(table), table)
    for temperature, said in ((None, "missing"), (0.0, "0.0")):
        meaning = LogprobSemantics(
            distribution=LogprobDistribution.PROCESSED, temperature=temperature
        )
        table = conversations(semantics=meaning)
        with pytest.raises(InvalidNumber, match=f"temperature is {said}, expected the temperature"):
            to_prime_rl(batch_of(table), table)
    table = conversations(samples={"temperature": [1, 1, 0, 1, 1, 1]})
    with pytest.raises(InvalidValue, match=r"artifact 'rollout-1': temperature is 0.0"):
        to_prime_rl(batch_of(table), table)

"""Seeds of nodes: the same node, the same numbers; any other node, other numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.generate.rollout.seeds import node_generator, rng_state_digest

NODE: dict[str, Any] = {
    "campaign_seed": 7,
    "sample_key": "flat-0003/walk-00",
    "target_id": "chair-12",
    "recipe": "oracle_lookahead",
    "seed": 0,
    "path": (4, 17),
    "purpose": "selection",
}

GOLDEN_WORD = 4013472030393621043
GOLDEN_DRAW = 0.2175707547281286
GOLDEN_STATE = "823fa4b2fa53b59476ffc905b3d7dae312575998f30a292831da50d8382cc159"

nodes = st.fixed_dictionaries(
    {
        "campaign_seed": st.integers(-(2**63), 2**63),
        "sample_key": st.text(max_size=4),
        "target_id": st.text(max_size=4),
        "recipe": st.none() | st.text(max_size=4),
        "seed": st.none() | st.integers(0, 3),
        "path": st.lists(st.integers(0, 20), max_size=3).map(tuple),
        "purpose": st.sampled_from(["candidates", "selection"]),
    }
)


def words(node: dict[str, Any]) -> list[int]:
    """The first numbers of a node's stream: 256 bits, so that chance makes no two streams alike."""
    raw = node_generator(**node).bit_generator.random_raw(4)
    return [int(word) for word in np.asarray(raw)]


@settings(max_examples=80)
@given(one=nodes, other=nodes)
def test_nodes_share_a_stream_exactly_when_they_are_the_same(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert words(one) == words(dict(one))
    assert (words(one) == words(other)) == (one == other)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("campaign_seed", 8),
        ("sample_key", "flat-0003/walk-01"),
        ("target_id", "chair-1"),
        ("recipe", None),
        ("recipe", "None"),
        ("seed", None),
        ("seed", 1),
        ("path", ()),
        ("path", (4,)),
        ("path", (17, 4)),
        ("path", (41, 7)),
        ("purpose", "candidates"),
    ],
)
def test_every_part_of_a_node_matters(field: str, other: Any) -> None:
    assert words({**NODE, field: other}) != words(NODE)


def test_text_does_not_run_from_one_part_into_the_next() -> None:
    one = {**NODE, "sample_key": "ab", "target_id": "c"}
    assert words(one) != words({**NODE, "sample_key": "a", "target_id": "bc"})


def test_the_order_in_which_nodes_are_met_does_not_matter() -> None:
    paths = [(), (1,), (1, 2), (3,)]
    forth = {path: words({**NODE, "path": path}) for path in paths}
    back = {path: words({**NODE, "path": path}) for path in reversed(paths)}
    assert forth == back


def test_numpy_numbers_name_the_same_node() -> None:
    path = tuple(np.array([4, 17]))
    assert words({**NODE, "path": path, "campaign_seed": np.int64(7)}) == words(NODE)


def test_the_first_draw_of_a_node_stays_what_it_was() -> None:
    assert words(NODE)[0] == GOLDEN_WORD
    assert node_generator(**NODE).random() == GOLDEN_DRAW
    assert rng_state_digest(node_generator(**NODE)).hex() == GOLDEN_STATE


def test_streams_of_neighbouring_nodes_are_not_related() -> None:
    drawn = np.array(
        [node_generator(**{**NODE, "path": (index,)}).random(200) for index in range(50)]
    )
    assert abs(drawn.mean() - 0.5) < 0.015
    related = np.corrcoef(drawn)[np.triu_indices(50, 1)]
    assert np.abs(related).max() < 0.35
    assert abs(related.mean()) < 0.01


# --------------------------------------------------------------------------------------------- state


def test_a_state_has_32_bytes_that_follow_the_draws() -> None:
    one, two = node_generator(**NODE), node_generator(**NODE)
    start = rng_state_digest(one)
    assert len(start) == 32
    assert rng_state_digest(one) == start == rng_state_digest(two)
    one.random()
    assert rng_state_digest(one) != start
    two.random()
    assert rng_state_digest(one) == rng_state_digest(two)


def test_half_a_word_kept_for_later_is_part_of_the_state() -> None:
    one, two = node_generator(**NODE), node_generator(**NODE)
    one.integers(0, 2**32, dtype=np.uint32)
    two.random()
    states = [generator.bit_generator.state for generator in (one, two)]
    assert states[0]["state"] == states[1]["state"]
    assert rng_state_digest(one) != rng_state_digest(two)


@pytest.mark.parametrize("kind", [np.random.PCG64DXSM, np.random.Philox, np.random.MT19937])
def test_any_generator_has_a_state_digest(kind: Any) -> None:
    generator = np.random.Generator(kind(1))
    before = rng_state_digest(generator)
    assert before == rng_state_digest(np.random.Generator(kind(1)))
    generator.random()
    assert rng_state_digest(generator) != before

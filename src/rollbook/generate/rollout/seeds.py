"""Seeds: the generator of every node follows from what the node is, never from when or where it is computed.

Two workers that meet the same node draw the same numbers, whatever came before it and however the work was split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollbook.digest import Plain, digest_of

_DOMAIN = "rollbook.generate.rng.v1"
_STATE_DOMAIN = "rollbook.generate.rng_state.v1"
_POOL_WORDS = 8
"""Of 32 bits: as many as a digest has, so that none of it is lost."""


def node_generator(
    *,
    campaign_seed: int,
    sample_key: str,
    target_id: str,
    recipe: str | None,
    seed: int | None,
    path: Sequence[int],
    purpose: str,
) -> np.random.Generator:
    """A generator for one purpose at one node.

    `path` is the shell indices taken from the root to the node. What recipes are to share, as the candidates of
    a node they both reach, is drawn with `recipe` None.
    """
    digest = digest_of(
        _DOMAIN,
        {
            "campaign_seed": int(campaign_seed),
            "sample_key": sample_key,
            "target_id": target_id,
            "recipe": recipe,
            "seed": None if seed is None else int(seed),
            "path": [int(index) for index in path],
            "purpose": purpose,
        },
    )
    sequence = np.random.SeedSequence(int(digest, 16), pool_size=_POOL_WORDS)
    return np.random.Generator(np.random.PCG64(sequence))


def rng_state_digest(generator: np.random.Generator) -> bytes:
    """SHA-256 of the generator's state, 32 bytes: equal only where the numbers to come are equal."""
    return bytes.fromhex(digest_of(_STATE_DOMAIN, _plain(generator.bit_generator.state)))


def _plain(state: object) -> Plain:
    """Numbers as decimal text: a state has words wider than canonical integers are."""
    if isinstance(state, Mapping):
        return {str(key): _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return [str(word) for word in state.tolist()]
    return str(state)

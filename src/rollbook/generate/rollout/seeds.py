"""Seeds: the random generator of a node is derived from the node's identity alone.

Two workers that evaluate the same node draw the same numbers, however the work is split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollbook.digest import Plain, digest_of

_DOMAIN = "rollbook.generate.rng.v1"
_STATE_DOMAIN = "rollbook.generate.rng_state.v1"
_POOL_WORDS = 8
"""Number of 32-bit words of the seed pool: as many bits as the digest has."""


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

    `path` holds the shell indices from the root to the node. Values that recipes share, such as the candidates of a
    node that several recipes reach, are drawn with `recipe` None.
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
    """SHA-256 of the generator's state, 32 bytes. Equal digests mean equal future numbers."""
    return bytes.fromhex(digest_of(_STATE_DOMAIN, _plain(generator.bit_generator.state)))


def _plain(state: object) -> Plain:
    """The state with numbers as decimal text, because its words are wider than canonical integers."""
    if isinstance(state, Mapping):
        return {str(key): _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return [str(word) for word in state.tolist()]
    return str(state)

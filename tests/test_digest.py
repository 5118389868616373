"""Canonical bytes tell any two values apart; a Merkle path proves one leaf and nothing else."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.digest import (
    Plain,
    canonical,
    checksum,
    digest_of,
    merkle_path,
    merkle_root,
    merkle_root_from_path,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def key(value: Any) -> Any:
    """Python's own notion of the same value, with types and float bits told apart."""
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(key, value)))
    if isinstance(value, dict):
        return ("dict", tuple(sorted((name, key(item)) for name, item in value.items())))
    return (type(value).__name__, value)


@given(plain, plain)
def test_values_share_canonical_bytes_only_if_they_are_the_same(left: Any, right: Any) -> None:
    assert (canonical(left) == canonical(right)) == (key(left) == key(right))


def test_the_recipe_is_pinned() -> None:
    value: Plain = {"b": [1, -1, None, True], "a": "é", "c": b"\x00", "d": 0.5}
    count = struct.Struct("<Q").pack
    assert canonical(value) == b"".join(
        [
            b"m" + count(4),
            b"s" + count(1) + b"a" + b"s" + count(2) + "é".encode(),
            b"s" + count(1) + b"b" + b"l" + count(4),
            b"i\x01" + bytes(15) + b"i" + b"\xff" * 16 + b"n" + b"t",
            b"s" + count(1) + b"c" + b"b" + count(1) + b"\x00",
            b"s" + count(1) + b"d" + b"d" + struct.pack("<d", 0.5),
        ]
    )
    assert (
        digest_of("domain", value)
        == hashlib.sha256(canonical("domain") + canonical(value)).hexdigest()
    )


def test_domains_keep_equal_values_apart() -> None:
    assert digest_of("a", 1) != digest_of("b", 1)


leaves = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=20)


@given(leaves, st.data())
def test_a_path_leads_from_every_leaf_to_the_root(
    given_leaves: list[bytes], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(given_leaves) - 1))
    path = merkle_path(given_leaves, index)
    reached = merkle_root_from_path("d", given_leaves[index], index, len(given_leaves), path)
    assert reached == merkle_root("d", given_leaves)


@given(leaves, st.data())
def test_no_other_leaf_place_count_or_path_leads_there(
    given_leaves: list[bytes], data: st.DataObject
) -> None:
    count = len(given_leaves)
    index = data.draw(st.integers(0, count - 1))
    path = merkle_path(given_leaves, index)
    root = merkle_root("d", given_leaves)
    leaf = given_leaves[index]
    flipped = bytes([leaf[0] ^ 1]) + leaf[1:]
    assert merkle_root_from_path("d", flipped, index, count, path) != root
    assert merkle_root_from_path("d", leaf, index, count + 1, path) != root
    assert merkle_root_from_path("d", leaf, index, count, [*path, bytes(32)]) is None
    if path:
        assert merkle_root_from_path("d", leaf, index, count, path[:-1]) is None
    if count > 1 and given_leaves[(index + 1) % count] != leaf:
        assert merkle_root_from_path("d", leaf, (index + 1) % count, count, path) != root


def test_a_root_binds_the_number_of_leaves() -> None:
    one = bytes(32)
    assert merkle_root("d", []) != merkle_root("d", [one]) != merkle_root("d", [one, one])


@pytest.mark.parametrize("data", [b"", b"abc", bytes(1000)])
def test_checksums_take_bytes_and_views_alike(data: bytes) -> None:
    assert checksum(data) == checksum(memoryview(data))


def test_a_root_is_that_of_rfc_6962_bound_to_the_number_of_leaves() -> None:
    """Leaves and nodes are hashed with different first bytes, so that a node cannot be passed off as a leaf."""
    leaves = [b"left", b"right", b"odd"]
    left, right, odd = (hashlib.sha256(b"\x00" + leaf).digest() for leaf in leaves)
    pair = hashlib.sha256(b"\x01" + left + right).digest()
    top = hashlib.sha256(b"\x01" + pair + odd).digest()
    assert merkle_root("domain", leaves) == digest_of("domain", [3, top])

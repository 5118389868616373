"""Checks of the provenance: sources, targets and lineage must state the origin of every rollout, and agree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.contracts.lineage import LABELLED_STATUSES
from rollbook.contracts.reasons import (
    TARGET_INVALID_REASON_CODES,
    VALID_BITSET,
    primary_target_reasons,
)
from rollbook.store.checks.columns import UNREADABLE, Mask, NotUsable, StoreColumns
from rollbook.store.checks.violation import Violation, any_in_row, violations_at
from rollbook.store.lineage_rows import LineageRows
from rollbook.store.schema import LINEAGE_NUMBERS, TABLES

_KNOWN_TARGET_BITS = np.uint32(sum(1 << bit for bit in TARGET_INVALID_REASON_CODES.values()))
_REQUIRED_ATTRS = ("source_offline_store_version", "split_manifest_hash", "target_protocol_version")
_REQUIRED_WORDS = {
    "sources": (
        "source_cache_version_id",
        "source_offline_store_manifest_hash_id",
        "split_manifest_hash_id",
        "source_shard_id",
    ),
    "rollouts": ("rollout_id", "policy_id"),
    "lineage": (
        "candidate_config_id",
        "oracle_config_id",
        "rollout_config_id",
        "target_protocol_version_id",
        "target_crop_policy_id",
        "reason_code_version_id",
    ),
    "targets": ("target_id", "gt_match_status_id"),
}
_SAME_AS_ROOT = {
    "target_protocol_version_id": "target_protocol_version",
    "reason_code_version_id": "reason_code_version",
}
_WHOLE_LINEAGE = (
    *("lineage/known_fields", "lineage/selector_target_row_id", "lineage/policy_revision_index"),
    "targets/lineage_values",
)
"""A store has all of these columns, or none if an earlier release wrote it."""
_TARGET_ID_TAIL = ("sem=", "inst=", "idx=")


def check_root_attrs(columns: StoreColumns) -> Iterator[Violation]:
    for name in _REQUIRED_ATTRS:
        value = columns.attrs.get(name)
        if not isinstance(value, str) or not value:
            yield Violation("missing_attr", "", f"the root attribute {name} is empty")


def check_required_words(columns: StoreColumns) -> Iterator[Violation]:
    for table, names in _REQUIRED_WORDS.items():
        for name in names:
            yield from violations_at(
                "missing_word", table, _without_word(columns, table, name), f"{name} names nothing"
            )


def _without_word(columns: StoreColumns, table: str, name: str) -> Mask:
    """Rows without a code or with an empty word. A code out of range is another violation."""
    dictionary = TABLES[table].columns[name].words
    assert dictionary is not None, f"{table}/{name} is not coded"
    codes, words = columns[f"{table}/{name}"], columns.words(dictionary)
    missing: Mask = codes < 0
    return missing | (codes == words.index("")) if "" in words else missing


def check_rollout_ids(columns: StoreColumns) -> Iterator[Violation]:
    codes = columns["rollouts/rollout_id"]
    _, first = np.unique(codes, return_index=True)
    repeated = np.ones(len(codes), np.bool_)
    repeated[first] = False
    yield from violations_at(
        "duplicate_rollout",
        "rollouts",
        repeated & (codes >= 0),
        "rollout_id names an earlier rollout",
    )


def check_one_split(columns: StoreColumns) -> Iterator[Violation]:
    codes = columns["rollouts/split_id"]
    found = np.unique(codes)
    if len(found) > 1:
        yield from violations_at(
            "several_splits",
            "rollouts",
            codes != codes[0],
            f"a store has exactly one split, this one has {len(found)}; write one store per split",
        )


def check_source_shards(columns: StoreColumns) -> Iterator[Violation]:
    yield from violations_at(
        "missing_shard_row",
        "sources",
        columns["sources/source_shard_row"] < 0,
        "source_shard_row is missing: the row could not be found again in its shard",
    )


# ----------------------------------------------------------------------------------------- lineage


def check_lineage_versions(columns: StoreColumns) -> Iterator[Violation]:
    words = columns.words("config")
    for name, attribute in _SAME_AS_ROOT.items():
        expected = columns.attrs.get(attribute)
        code = words.index(expected) if expected in words else len(words)
        codes = columns[f"lineage/{name}"]
        yield from violations_at(
            "lineage_version_differs",
            "lineage",
            (codes >= 0) & (codes != code),
            f"{name} is not the root attribute {attribute}, {expected!r}",
        )


def check_lineage_digests(columns: StoreColumns) -> Iterator[Violation]:
    yield from violations_at(
        "missing_lineage_digest",
        "lineage",
        ~any_in_row(columns["lineage/lineage_digest"] != 0),
        "lineage_digest is all zeros",
    )


def check_lineage_records(columns: StoreColumns) -> Iterator[Violation]:
    """Put every lineage record together again and compute its digest. Older stores do not keep all of its fields."""
    if not any(columns.has(path) for path in _WHOLE_LINEAGE):
        return
    targets, there = columns.target_rows
    if not there.all():
        raise NotUsable("rollouts/target_row_id names rows that targets does not have")
    try:
        revisions = columns.store.stated_policy_revisions
    except UNREADABLE as error:
        raise NotUsable(f"the policy revisions cannot be read: {error}") from error
    stored = columns["lineage/lineage_digest"]
    of_table = {"sources": columns.source_rows, "targets": targets}
    records = LineageRows(
        columns.__getitem__, columns.words, revisions, np.arange(len(stored)), of_table
    )
    yield from violations_at(
        "wrong_lineage_digest",
        "lineage",
        any_in_row(records.digests() != stored) & any_in_row(stored != 0),
        "lineage_digest is not that of the lineage in the columns of this row",
    )
    stated = columns["lineage/policy_revision_index"]
    yield from violations_at(
        "code_out_of_range",
        "lineage",
        (stated < -1) | (stated >= len(revisions)),
        f"policy_revision_index is none of the {len(revisions)} stated policy revisions, and not -1",
    )


def check_lineage_values(columns: StoreColumns) -> Iterator[Violation]:
    if not columns.has("targets/lineage_values"):
        return
    given = columns["targets/lineage_values"]
    first = 0
    for name, size in LINEAGE_NUMBERS.items():
        rounded = given[:, first : first + size].astype(np.float32)
        stored = columns[f"targets/{name}"].reshape(len(given), size)
        first += size
        yield from violations_at(
            "lineage_value_differs",
            "targets",
            any_in_row((rounded != stored) & ~(np.isnan(rounded) & np.isnan(stored))),
            f"{name} is not the number in lineage_values, rounded to float32",
        )


# ----------------------------------------------------------------------------------------- targets


def check_target_validity(columns: StoreColumns) -> Iterator[Violation]:
    bits = columns["targets/target_invalid_reason_bitset"]
    yield from violations_at(
        "wrong_target_mask",
        "targets",
        columns["targets/target_valid_mask"] != (bits == VALID_BITSET),
        "target_valid_mask is not: target_invalid_reason_bitset is VALID alone",
    )
    mixed = ((bits & np.uint32(VALID_BITSET)) != 0) & (bits != VALID_BITSET)
    unknown = (bits & ~_KNOWN_TARGET_BITS) != 0
    yield from violations_at(
        "wrong_target_reasons",
        "targets",
        (bits == 0) | mixed | unknown,
        "target_invalid_reason_bitset is neither VALID alone nor known reasons against the target",
    )


def check_target_primary_reasons(columns: StoreColumns) -> Iterator[Violation]:
    bits = columns["targets/target_invalid_reason_bitset"]
    known = np.where(bits == 0, np.uint32(VALID_BITSET), bits)  # zeros are `wrong_target_reasons`
    yield from violations_at(
        "wrong_target_primary_reason",
        "targets",
        columns["targets/target_primary_invalid_reason"] != primary_target_reasons(known),
        "target_primary_invalid_reason is not the lowest in target_invalid_reason_bitset",
    )


def check_target_labels(columns: StoreColumns) -> Iterator[Violation]:
    words = columns.words("target_match_status")
    labelled = [at for at, word in enumerate(words) if word in LABELLED_STATUSES]
    matched = np.isin(columns["targets/gt_match_status_id"], labelled)
    expected = matched & (columns["targets/matched_gt_target_row_id"] >= 0)
    yield from violations_at(
        "wrong_gt_label_mask",
        "targets",
        columns["targets/gt_label_valid_mask"] != expected,
        f"gt_label_valid_mask is not: gt_match_status is one of {', '.join(LABELLED_STATUSES)}, "
        "and matched_gt_target_row_id is known",
    )


def check_target_names(columns: StoreColumns) -> Iterator[Violation]:
    """A target id that contains a scene and a snippet must contain those of the rollouts that use it."""
    names = _spelled_places(columns.words("target"))
    if not names:
        return
    scenes, snippets = columns.words("scene"), columns.words("snippet")
    scene, snippet = columns["rollouts/scene_id"], columns["rollouts/snippet_id"]
    uses = np.stack([columns.of_target("target_id"), scene, snippet], axis=1)
    kinds, of_kind = np.unique(uses, axis=0, return_inverse=True)
    wrong = np.zeros(len(kinds), np.bool_)
    for row, (target, one, two) in enumerate(kinds.tolist()):
        if target in names and 0 <= one < len(scenes) and 0 <= two < len(snippets):
            wrong[row] = names[target] != f"{scenes[one]}:{snippets[two]}"
    yield from violations_at(
        "foreign_target",
        "rollouts",
        wrong[of_kind.reshape(-1)],
        "target_row_id leads to a target_id that names another scene or snippet",
    )


def _spelled_places(words: tuple[str, ...]) -> dict[int, str]:
    """Code → `scene:snippet`, for ids of the form `scene:snippet:table:sem=…:inst=…:idx=…`."""
    places = {}
    for code, word in enumerate(words):
        head, *tail = word.rsplit(":", 4)
        spelled = len(tail) == 4 and all(
            part.startswith(key) for part, key in zip(tail[1:], _TARGET_ID_TAIL, strict=True)
        )
        if spelled and ":" in head:
            places[code] = head
    return places

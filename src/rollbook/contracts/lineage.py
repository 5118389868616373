"""RolloutLineage: the origin of one rollout: source row, target, ground-truth match, configs and policy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.reasons import (
    INVALID_REASON_VERSION,
    TARGET_INVALID_REASON_CODES,
    VALID_BITSET,
    primary_target_reasons,
)
from rollbook.contracts.record import Record, checked_int, checked_text, checked_type, decode_json
from rollbook.digest import Plain, digest_of
from rollbook.errors import InvalidNumber, InvalidValue

LINEAGE_DOMAIN = "rollbook.rollout_lineage.v1"
ROLLOUT_METADATA = "rollout"
"""Key in the metadata of an episode that names the rollout of a store it was logged from."""

Vector3: TypeAlias = Annotated[tuple[float, ...], msgspec.Meta(min_length=3, max_length=3)]
"""Metres."""
Pose12: TypeAlias = Annotated[tuple[float, ...], msgspec.Meta(min_length=12, max_length=12)]
"""Nine row-major rotation entries, then the translation in metres."""

SourceIdentity: TypeAlias = tuple[str | int | None, ...]

_INT64_MAX = 2**63 - 1
LABELLED_STATUSES = frozenset({"matched", "v0_gt_input"})
_IDENTITY = (
    "source_sample_index",
    "source_sample_key",
    "scene_id",
    "snippet_id",
    "split",
    "source_cache_version",
    "source_offline_store_manifest_hash",
    "split_manifest_hash",
    "source_shard_id",
    "source_shard_row",
)


class RolloutLineage(Record, frozen=True, kw_only=True):
    """What a rollout was made from, by id and digest. A field is None where nothing is known.

    The record is flat, so that each field can be a column. Numbers and vectors may be given as numpy values; they are
    stored as Python ints, floats and tuples. NaN is refused: a missing number is None.
    """

    rollout_id: str = ""
    """Empty until the chains of the rollout are known: see `for_chain`."""
    chain_id: int = 0
    """Index of the chain among those that one rollout call kept, from 0."""
    scene_id: str | None = None
    snippet_id: str | None = None
    mesh_version: str | None = None
    candidate_config_hash: str | None = None
    oracle_config_hash: str | None = None
    model_checkpoint_hash: str | None = None
    """Checkpoint of a learned policy. Built-in policies have none."""
    random_seed: int | None = None
    rollout_policy: str = "unknown"
    source_cache_version: str | None = None
    split: str | None = None
    source_offline_store_manifest_hash: str | None = None
    source_row_id: int | None = None
    source_sample_index: int | None = None
    source_sample_key: str | None = None
    split_manifest_hash: str | None = None
    source_shard_id: str | None = None
    source_shard_row: int | None = None
    rollout_config_hash: str | None = None
    branch_schedule_id: str | None = None
    target_row_id: int | None = None
    """The number that the selector gave the target. A store gives it a row id of its own."""
    target_id: str | None = None
    target_protocol_version: str | None = None
    target_crop_policy: str | None = None
    reason_code_version: str = INVALID_REASON_VERSION
    """Version of the reason codes of candidates. `target_reason_code_version` is that of the target."""
    selection_rng_state_hash: str | None = None
    target_selection_policy: str | None = None
    target_selection_rank: int | None = None
    target_selection_score: float | None = None
    target_selection_probability: float | None = None
    target_selection_temperature: float | None = None
    target_source: str | None = None
    target_source_index: int | None = None
    target_sem_id: int | None = None
    target_inst_id: int | None = None
    target_class_name: str | None = None
    target_confidence: float | None = None
    target_projected_area_pixels: float | None = None
    target_projected_area_fraction: float | None = None
    target_semidense_support_count: int | None = None
    target_evl_support_count: int | None = None
    target_effective_support_count: float | None = None
    """A weighted sum of the two counts, so it need not be a whole number."""
    target_visibility_score: float | None = None
    target_support_score: float | None = None
    target_deficit_score: float | None = None
    target_center_world: Vector3 | None = None
    target_extents: Vector3 | None = None
    """Full side lengths, not half lengths."""
    target_pose_world_object: Pose12 | None = None
    target_relative_pose_reference_object: Pose12 | None = None
    target_invalid_reason_bitset: int | None = None
    """Bits of TARGET_INVALID_REASON_CODES. None means that no reason is recorded, so the target counts as valid."""
    target_primary_invalid_reason: int | None = None
    target_reason_code_version: str | None = None
    matched_gt_target_row_id: int | None = None
    matched_gt_target_id: str | None = None
    gt_match_iou: float | None = None
    gt_match_score: float | None = None
    gt_match_status: str | None = None
    policy_revision: PolicyRevision | None = None
    """Which learned policy, exactly. Its `policy_digest` is the `model_checkpoint_hash`. No column of its own: a store
    keeps each revision once, in the attributes of its `metadata` group."""

    def __post_init__(self) -> None:
        record = self._name
        for field, check, optional in _FIELD_CHECKS:
            given = getattr(self, field)
            if given is None and optional:
                continue
            kept = check(given, record, field)
            if kept is not given:
                msgspec.structs.force_setattr(self, field, kept)
        self._check_ranges(record)
        self._check_target_reasons(record)
        self._check_policy(record)

    def _check_ranges(self, record: str) -> None:
        if self.chain_id < 0:
            raise _bad_number(record, "chain_id", self.chain_id, "a whole number from 0 up")
        probability = self.target_selection_probability
        if probability is not None and not 0 <= probability <= 1:
            field = "target_selection_probability"
            raise _bad_number(record, field, probability, "a probability from 0 to 1")

    def _check_target_reasons(self, record: str) -> None:
        bitset, primary = self.target_invalid_reason_bitset, self.target_primary_invalid_reason
        if bitset is not None and not 0 < bitset < 1 << len(TARGET_INVALID_REASON_CODES):
            raise InvalidValue(
                record=record,
                field="target_invalid_reason_bitset",
                value=hex(bitset),
                expected="VALID or reasons against the target, as bits of TARGET_INVALID_REASON_CODES",
            )
        if primary is not None and primary not in _primaries(bitset):
            raise InvalidValue(
                record=record,
                field="target_primary_invalid_reason",
                value=str(primary),
                expected=" or ".join(map(str, _primaries(bitset))),
            )

    def _check_policy(self, record: str) -> None:
        if self.policy_revision is None:
            return
        digest = self.policy_revision.policy_digest
        if self.model_checkpoint_hash is None:
            msgspec.structs.force_setattr(self, "model_checkpoint_hash", digest)
        elif self.model_checkpoint_hash != digest:
            raise InvalidValue(
                record=record,
                field="model_checkpoint_hash",
                value=self.model_checkpoint_hash,
                expected=f"the digest of its policy revision, {digest!r}",
            )

    @property
    def _name(self) -> str:
        return f"lineage of {self.rollout_id or self.source_sample_key!r}"

    @property
    def target_valid(self) -> bool:
        """Whether no reason against the target itself is recorded."""
        return self.target_invalid_reason_bitset in (None, VALID_BITSET)

    @property
    def gt_label_valid(self) -> bool:
        """Whether the ground-truth object that gives the labels is known."""
        row = self.matched_gt_target_row_id
        return self.gt_match_status in LABELLED_STATUSES and row is not None and row >= 0

    @property
    def label_valid(self) -> bool:
        """Whether the labels of the candidates of this rollout may be used for training."""
        return self.target_valid and self.gt_label_valid

    def source_identity(self) -> SourceIdentity:
        """The fields that all rollouts of one source row must share, whatever their target, policy and chain."""
        return tuple(getattr(self, field) for field in _IDENTITY)

    def resolved_source_row_id(self) -> int:
        """The source row of this rollout: `source_row_id`, or else `source_sample_index`.

        A rollout with neither is refused. Taking row 0 instead would link it to a source that it may never have used.
        """
        if self.source_row_id is not None:
            return self.source_row_id
        if self.source_sample_index is not None:
            return self.source_sample_index
        expected = "a source row, here or as source_sample_index"
        raise _bad_number(self._name, "source_row_id", None, expected)

    def for_chain(self, rollout_id: str, chain_id: int, rollout_policy: str) -> RolloutLineage:
        """The same lineage with the name of one chain. Only the new fields are checked again."""
        record = f"lineage of {rollout_id!r}"
        checked_text(rollout_id, record, "rollout_id")
        checked_text(rollout_policy, record, "rollout_policy")
        checked_int(chain_id, record, "chain_id", _INT64_MAX)
        chain = copy.copy(self)
        for field, value in (
            ("rollout_id", rollout_id),
            ("chain_id", chain_id),
            ("rollout_policy", rollout_policy),
        ):
            msgspec.structs.force_setattr(chain, field, value)
        return chain

    def asdict(self) -> dict[str, Any]:
        """Every field by name, as it is in this record: `RolloutLineage(**lineage.asdict()) == lineage`."""
        return msgspec.structs.asdict(self)

    def replace(self, **changes: Any) -> RolloutLineage:
        """The same lineage with other values in these fields. Everything is checked as in a new record.

        `model_checkpoint_hash` follows a new `policy_revision`, unless both are given.
        """
        fields = {**self.asdict(), **changes}
        if changes.get("policy_revision") is not None and "model_checkpoint_hash" not in changes:
            fields["model_checkpoint_hash"] = None
        return RolloutLineage(**fields)

    def plain(self) -> dict[str, Plain]:
        """Without a policy revision, as before there were any: digests of such lineages stay what they were."""
        fields = super().plain()
        if self.policy_revision is None:
            del fields["policy_revision"]
        return fields

    def digest(self) -> str:
        """The digest over every field, including absent ones. Equal lineages have equal digests."""
        return digest_of(LINEAGE_DOMAIN, self.plain())

    def to_json(self) -> bytes:
        fields = msgspec.to_builtins(self)
        # written even when it is the default: a later release may have another default
        fields["reason_code_version"] = self.reason_code_version
        return msgspec.json.encode(fields)

    @classmethod
    def from_json(cls, data: bytes | str, *, source: str = "JSON") -> RolloutLineage:
        return decode_json(data, cls, source)


def _text(value: object, record: str, field: str) -> object:
    checked_text(value, record, field)
    return value


def _whole(value: object, record: str, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _bad_number(record, field, value, "a whole number")
    number = int(value)
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise _bad_number(record, field, number, "a whole number of 64 bits")
    return number


def _finite(value: object, record: str, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _bad_number(record, field, value, "a finite number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _bad_number(record, field, value, "a finite number")
    return number + 0.0  # -0.0 becomes 0.0: the two are equal, so they must have one digest


def _vector(value: object, record: str, field: str, length: int) -> tuple[float, ...]:
    entries = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(entries, str | bytes) or not isinstance(entries, Sequence):
        raise _bad_vector(record, field, type(value).__name__, length)
    if len(entries) != length:
        raise _bad_vector(record, field, f"of length {len(entries)}", length)
    return tuple(_finite(entry, record, f"{field}[{at}]") for at, entry in enumerate(entries))


def _revision(value: object, record: str, field: str) -> object:
    checked_type(value, PolicyRevision, record, field)
    return value


def _primaries(bitset: int | None) -> tuple[int, ...]:
    """The primary reasons that are possible for a bitset: exactly one, or every known reason if there is no bitset."""
    if bitset is None:
        return tuple(TARGET_INVALID_REASON_CODES.values())
    return (int(primary_target_reasons(np.array([bitset], np.uint32))[0]),)


def _bad_vector(record: str, field: str, value: str, length: int) -> InvalidValue:
    return InvalidValue(
        record=record, field=field, value=value, expected=f"{length} finite numbers"
    )


def _bad_number(record: str, field: str, value: object, expected: str) -> InvalidNumber:
    return InvalidNumber(record=record, field=field, value=repr(value), expected=expected)


_CHECK_OF: dict[str, Callable[[object, str, str], object]] = {
    "str": _text,
    "int": _whole,
    "float": _finite,
    "Vector3": partial(_vector, length=3),
    "Pose12": partial(_vector, length=12),
    "PolicyRevision": _revision,
}


def _field_check(
    field: str, annotation: str
) -> tuple[str, Callable[[object, str, str], object], bool]:
    """The check of a field follows from its annotation."""
    kind, _, rest = annotation.partition(" | ")
    return field, _CHECK_OF[kind], rest == "None"


_FIELD_CHECKS = tuple(
    _field_check(field, annotation) for field, annotation in RolloutLineage.__annotations__.items()
)

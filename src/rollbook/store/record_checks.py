"""Checks of a record before it becomes rows. The whole record is checked before any part of it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.record import checked_text
from rollbook.errors import InvalidValue
from rollbook.store.records import (
    POSE,
    CandidateSamplingResult,
    CounterfactualRolloutResult,
    RolloutChain,
    RolloutStep,
    RolloutZarrRecord,
    SelectedDepth,
)
from rollbook.store.schema import (
    CANDIDATES,
    DIAGNOSTICS,
    ROLLOUTS,
    TARGET_EVAL_CROPS,
    TARGETS,
    Column,
)

_RESULT_NUMBERS = (
    *("horizon", "branch_factor", "beam_width"),
    *("root_time_ns", "root_trajectory_index", "root_frame_index"),
)
_AT_LEAST_ONE = ("horizon", "branch_factor", "beam_width")
_PROVENANCE = (
    *("strategy_id", "position_id", "mixture_id"),
    *("sampler_probability", "invalid_reason_bitset"),
)
_SELECTION = ("selection_logits", "selection_probabilities", "selection_log_probabilities")
_EXTRAS = tuple(
    column.name
    for column in DIAGNOSTICS.columns.values()
    if column.name not in ("candidate_row_id", "position_id") and column.packed is None
)
_LINEAGE_NUMBERS = tuple(
    column.name
    for column in TARGETS.columns.values()
    if column.words is None and column.name in RolloutLineage.__struct_fields__
)


def _limits(column: Column) -> tuple[float, float, str]:
    """The smallest and the largest number that a column can hold, and the name of its type."""
    dtype: np.dtype[Any] = column.numpy
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max), dtype.name
    return np.iinfo(dtype).min, np.iinfo(dtype).max, dtype.name


_LIMITS = {
    column.name: _limits(column)
    for column in (
        *(ROLLOUTS.columns[name] for name in (*_RESULT_NUMBERS, "temperature")),
        *(TARGETS.columns[name] for name in _LINEAGE_NUMBERS),
        TARGET_EVAL_CROPS.columns["voxel_size_m"],
    )
}
_VECTOR_TYPES = {
    column.name: column.numpy
    for column in (*CANDIDATES.columns.values(), *DIAGNOSTICS.columns.values())
}
_FLOAT = np.dtype(np.float32)


def invalid_value(record: str, field: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record=record, field=field, value=str(value), expected=expected)


def feature_count(step: RolloutStep) -> int:
    """Number of actor features of each candidate of the step."""
    features = step.candidates.actor_features
    return 0 if features is None else int(np.shape(features)[-1])


def checked_steps(record: RolloutZarrRecord, features: int | None) -> list[RolloutStep]:
    """All steps in order. `features` is the number of actor features in the store; None if it has no step yet."""
    result, name = record.result, f"record {record.rollout_id_prefix!r}"
    _check_result(name, result)
    _check_lineage(name, record.lineage)
    for number, chain in enumerate(result.chains):
        _check_chain(f"{name}, chain {number}", number, chain, result.horizon, result.chains)
    steps = []
    for place, step in named_steps(record):
        _check_step(place, step)
        features = feature_count(step) if features is None else features
        _check_features(place, step.candidates, features)
        steps.append(step)
    return steps


def _check_result(name: str, result: CounterfactualRolloutResult) -> None:
    for field in _RESULT_NUMBERS:
        _check_number(name, field, getattr(result, field))
    for field in _AT_LEAST_ONE:
        value = getattr(result, field)
        if value is not None and value < 1:
            raise invalid_value(name, field, value, "at least 1")
    root = np.asarray(result.root_pose_world)
    if root.shape != (POSE,) or root.dtype.kind != "f" or not np.isfinite(root).all():
        raise invalid_value(name, "root_pose_world", root.tolist(), f"{POSE} finite numbers")
    if not result.chains:
        raise invalid_value(name, "chains", "none", "at least one chain")


def _check_lineage(name: str, lineage: RolloutLineage) -> None:
    for field in _LINEAGE_NUMBERS:
        value = getattr(lineage, field)
        for each in value if isinstance(value, tuple) else (value,):
            _check_number(name, field, each)


def _check_number(name: str, column: str, value: float | None) -> None:
    """Refuse a number that its column cannot hold."""
    if value is None:
        return
    least, greatest, dtype = _LIMITS[column]
    if not least <= value <= greatest:
        raise invalid_value(name, column, value, f"a number that {dtype} can hold")
    if not dtype.startswith("float") and not isinstance(value, int | np.integer):
        raise invalid_value(name, column, value, "a whole number")


def _check_chain(
    name: str, number: int, chain: RolloutChain, horizon: int, chains: Sequence[RolloutChain]
) -> None:
    parent, fork = chain.parent_chain, chain.fork_step_index
    if len(chain.steps) > horizon:
        raise invalid_value(name, "steps", len(chain.steps), f"at most the horizon, {horizon}")
    if parent is None and fork is None:
        return
    if parent is None or fork is None:
        raise invalid_value(name, "fork_step_index", fork, "given together with parent_chain")
    if not 0 <= parent < number:
        raise invalid_value(name, "parent_chain", parent, "an earlier chain of the same result")
    longest = min(len(chain.steps), len(chains[parent].steps))
    if not 0 <= fork <= longest:
        raise invalid_value(name, "fork_step_index", fork, f"from 0 to {longest}")


def _check_step(name: str, step: RolloutStep) -> None:
    _check_shell(name, step.candidates)
    shell, count = step.candidates, len(step.candidates)
    selected = step.selected_shell_index
    if not 0 <= selected < count or not shell.mask_valid[selected]:
        raise invalid_value(
            name, "selected_shell_index", selected, "a valid candidate of the shell"
        )
    lengths = (count, int(np.count_nonzero(shell.mask_valid)))
    for field, values in step.metric_vectors.items():
        _check_vector(name, f"metric_vectors[{field!r}]", values, lengths, _FLOAT)
    for field in _SELECTION:
        _check_vector(name, field, getattr(step, field), lengths, _FLOAT)
    if (step.selection_probabilities is None) != (step.selection_log_probabilities is None):
        field = "selection_log_probabilities"
        raise invalid_value(
            name, field, "one of them alone", "given together with selection_probabilities"
        )
    digest = step.rng_state_digest
    if digest is not None and len(digest) != 32:
        raise invalid_value(name, "rng_state_digest", f"{len(digest)} bytes", "32 bytes")
    _check_number(name, "temperature", step.temperature)
    checked_text(step.score_label, name, "score_label")


def _check_shell(name: str, shell: CandidateSamplingResult) -> None:
    mask, poses = np.asarray(shell.mask_valid), np.asarray(shell.shell_poses)
    if mask.ndim != 1 or mask.dtype != np.bool_:
        raise invalid_value(name, "mask_valid", f"{mask.dtype}{list(mask.shape)}", "bool[N]")
    count = len(mask)
    if poses.shape != (count, POSE) or poses.dtype.kind != "f":
        raise invalid_value(
            name, "shell_poses", f"{poses.dtype}{list(poses.shape)}", f"float[{count}, {POSE}]"
        )
    if not np.isfinite(poses[mask]).all():
        raise invalid_value(
            name, "shell_poses", "not finite at a valid candidate", "finite numbers there"
        )
    for field in _PROVENANCE:
        _check_vector(name, field, getattr(shell, field), (count,), _VECTOR_TYPES[field])
    for field, values in shell.extras.items():
        if field not in _EXTRAS:
            raise invalid_value(
                name, f"extras[{field!r}]", "unknown", f"one of {', '.join(_EXTRAS)}"
            )
        _check_vector(name, f"extras[{field!r}]", values, (count,), _VECTOR_TYPES[field])


def _check_features(name: str, shell: CandidateSamplingResult, width: int) -> None:
    """All candidates of a store have the same number of actor features; 0 means none."""
    if shell.actor_features is None:
        if width:
            expected = f"{width} per candidate, as in the rest of the store"
            raise invalid_value(name, "actor_features", "missing", expected)
        return
    features = np.asarray(shell.actor_features)
    if features.shape != (len(shell), width) or features.dtype.kind != "f":
        expected = f"float[{len(shell)}, {width}], as wide as in the rest of the store"
        raise invalid_value(
            name, "actor_features", f"{features.dtype}{list(features.shape)}", expected
        )


# ------------------------------------------------------------------------------ images and points


def named_steps(record: RolloutZarrRecord) -> Iterator[tuple[str, RolloutStep]]:
    """All steps in order, each with a name for error messages."""
    for number, chain in enumerate(record.result.chains):
        for index, step in enumerate(chain.steps):
            yield f"record {record.rollout_id_prefix!r}, chain {number}, step {index}", step


def checked_depth(name: str, step: RolloutStep, shape: tuple[int, int]) -> SelectedDepth:
    """The depth image of a step. Refuses an image that float16 cannot hold."""
    depth, field = step.selected_depth, "selected_depth"
    if depth is None:
        expected = "an image for every step, or a store with selected_depth_enabled=False"
        raise invalid_value(name, field, "missing", expected)
    pixels, mask = np.asarray(depth.depth_m), np.asarray(depth.valid_mask)
    if pixels.shape != shape or mask.shape != shape or mask.dtype != np.bool_:
        given = f"{pixels.dtype}{list(pixels.shape)} with mask {mask.dtype}{list(mask.shape)}"
        raise invalid_value(name, field, given, f"{list(shape)} with a mask of bool")
    limit = float(np.finfo(np.float16).max)
    # this form is false for NaN too; only then are the valid pixels checked alone
    within = -limit <= pixels.min(initial=0) and pixels.max(initial=0) <= limit
    if not within and not np.abs(pixels[mask]).max(initial=0) <= limit:
        value = "a valid pixel that is not finite or beyond float16"
        raise invalid_value(name, field, value, f"metres up to {limit:g}")
    for part in ("focal_px", "principal_point_px"):
        pair = np.asarray(getattr(depth, part))
        if pair.shape != (2,) or pair.dtype.kind not in "fiu" or not np.isfinite(pair).all():
            raise invalid_value(name, f"selected_depth.{part}", pair.tolist(), "2 finite numbers")
    return depth


def check_crops(name: str, step: RolloutStep) -> None:
    """Refuse point clouds that belong neither to the state before the step nor to a valid candidate."""
    if step.crop_policy is not None:
        checked_text(step.crop_policy, name, "crop_policy")
    _check_number(name, "voxel_size_m", step.crop_voxel_size_m)
    for number, crop in enumerate(step.target_eval_crops):
        field, points = f"target_eval_crops[{number}]", np.asarray(crop.points_world)
        if points.ndim != 2 or points.shape[1] != 3 or points.dtype.kind != "f":
            raise invalid_value(
                name, field, f"{points.dtype}{list(points.shape)}", "float[n, 3] points"
            )
        owner, mask = crop.shell_index, step.candidates.mask_valid
        if owner is not None and (not 0 <= owner < len(mask) or not mask[owner]):
            raise invalid_value(
                name, f"{field}.shell_index", owner, "a valid candidate of the shell"
            )


# ---------------------------------------------------------------------------------------- vectors


def _check_vector(
    name: str,
    field: str,
    values: NDArray[Any] | None,
    lengths: tuple[int, ...],
    dtype: np.dtype[Any],
) -> None:
    if values is None:
        return
    given = np.asarray(values)
    if given.ndim != 1 or len(given) not in lengths:
        expected = " or ".join(map(str, dict.fromkeys(lengths)))
        raise invalid_value(name, field, f"of shape {list(given.shape)}", f"{expected} values")
    if given.dtype != dtype and not _fits(given, dtype):
        raise invalid_value(
            name, field, f"of type {given.dtype}", f"values that {dtype.name} can hold"
        )


def _fits(given: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a cast keeps every value. Rounding to a shorter float is allowed."""
    if dtype.kind == "b":
        return given.dtype.kind == "b"
    if dtype.kind == "f":
        largest = np.finfo(dtype).max
        return (
            given.dtype.kind in "fiu" and not (np.isfinite(given) & (np.abs(given) > largest)).any()
        )
    limits = np.iinfo(dtype)
    return given.dtype.kind in "iu" and bool(((given >= limits.min) & (given <= limits.max)).all())

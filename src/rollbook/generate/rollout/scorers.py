"""Scorers rank the candidates of an evaluated shell. A greater score is better.

A scorer that does not read labels gets none: it knows only what the actor knows. A learned policy is a function that
the user names as `module:attr`, or the folder of a training run (learned_scorers.py).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.geometry.poses import centres, rotations

Array = NDArray[np.float64]

METRES_PER_RADIAN = 0.5
"""Weight of a rotation relative to a translation when poses are compared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShellView:
    """One evaluated shell of N candidates, as a scorer sees it."""

    features: NDArray[np.float32]
    """[N, len(names)]"""
    poses: Array
    """[N, 12]"""
    valid: NDArray[np.bool_]
    """[N]: whether the actor may take the candidate."""
    reference_pose: Array
    """[12]: the actor's pose."""
    visited: Array
    """[k, 3]: visited camera centres."""
    names: tuple[str, ...] = FEATURES
    labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Labels of the oracle by name; as long as the shell or as its valid part."""
    next_recorded: Array | None = None
    """[12]: the next pose of the recording; None at its end."""

    def __post_init__(self) -> None:
        count = len(self.valid)
        for name, shape in (("features", (count, len(self.names))), ("poses", (count, 12))):
            given = getattr(self, name).shape
            if given != shape:
                raise _invalid("shell", name, f"of shape {list(given)}", f"{list(shape)}")

    def feature(self, name: str) -> Array:
        """One feature column; NaN for invalid candidates."""
        if name not in self.names:
            raise ConfigurationError(message=f"the shell has no feature {name!r}")
        return self.known(self.features[:, self.names.index(name)])

    def label(self, name: str) -> Array:
        """One label column; NaN for invalid candidates."""
        if name not in self.labels:
            known = ", ".join(self.labels) or "none"
            message = f"the label {name!r} is needed, the oracle gave: {known}"
            raise ConfigurationError(message=message)
        return self.known(np.asarray(self.labels[name]))

    def known(self, values: NDArray[Any]) -> Array:
        """The values as a column of the whole shell; NaN for invalid candidates."""
        scores = np.full(len(self.valid), np.nan)
        if values.shape not in (self.valid.shape, (self.valid.sum(),)):
            expected = f"[{len(self.valid)}], or [{self.valid.sum()}] for the valid ones"
            raise _invalid("shell", "values", f"of shape {list(values.shape)}", expected)
        scores[self.valid] = values[self.valid] if values.shape == self.valid.shape else values
        return scores

    def for_actor(self) -> ShellView:
        """This view without anything that only the oracle knows."""
        return replace(self, labels={}, next_recorded=None)


@dataclass(frozen=True, slots=True, eq=False)
class Scorer:
    """Returns a score for every candidate, [N]; NaN if it is invalid or has no score."""

    name: str
    meaning: str
    score: Callable[[ShellView], Array]
    reads_labels: bool = False
    """Whether it needs the oracle's labels or the recorded continuation."""
    checkpoint: str | None = None
    """Digest of a learned policy's weights, if the policy gives one."""
    policy_revision: PolicyRevision | None = None
    """Which learned policy, exactly, if the policy has an attribute of this name."""

    def __call__(self, shell: ShellView) -> Array:
        return self.score(shell if self.reads_labels else shell.for_actor())


LearnedPolicy = Callable[
    [NDArray[np.float32], tuple[str, ...], NDArray[np.bool_], dict[str, Any]], NDArray[Any]
]
"""(features [N, F], their names, valid [N], context) -> scores [N], of floats.

The context holds copies of `poses` [N, 12], `reference_pose` [12] and `visited` [k, 3]."""


def scorer_named(name: str) -> Scorer:
    """A scorer of SCORERS, or a learned one by `module:attr`. Recipes also name run folders."""
    if name in SCORERS:
        return SCORERS[name]
    if ":" not in name:
        near = ", ".join(get_close_matches(name, SCORERS, n=4, cutoff=0))
        message = (
            f"scorer {name!r} is not known; expected module:attr, the folder of a finished training run, "
            f"or a name such as {near}"
        )
        raise ConfigurationError(message=message)
    return load_scorer(name)


def load_scorer(path: str) -> Scorer:
    """The scorer of a learned policy, `module:attr`."""
    return policy_scorer(_imported(path), path)


def policy_scorer(policy: LearnedPolicy, name: str) -> Scorer:
    """The scorer of a learned policy. The policy gets copies of what the actor knows, and no labels.

    Its printed output goes to standard error, because standard output is for results.
    """

    def score(shell: ShellView) -> Array:
        context = {
            "poses": shell.poses.copy(),
            "reference_pose": shell.reference_pose.copy(),
            "visited": shell.visited.copy(),
        }
        with redirect_stdout(sys.stderr):
            found = policy(shell.features.copy(), shell.names, shell.valid.copy(), context)
        return _checked(found, shell, name)

    checkpoint = getattr(policy, "checkpoint_digest", None)
    digest = None if checkpoint is None else str(checkpoint)
    revision = getattr(policy, "policy_revision", None)
    return Scorer(name, "a learned policy", score, checkpoint=digest, policy_revision=revision)


def _imported(path: str) -> LearnedPolicy:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or ":" in attribute:
        raise ConfigurationError(message=f"policy {path!r}: expected module:attr")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        message = f"policy {path!r}: {module_name} cannot be imported: {kind}{error}"
        raise ConfigurationError(message=message) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            message = f"policy {path!r}: there is no {attribute} in {module_name}"
            raise ConfigurationError(message=message)
        found = getattr(found, part)
    if not callable(found):
        message = f"policy {path!r} is a {type(found).__name__}, expected something to call"
        raise ConfigurationError(message=message)
    policy: LearnedPolicy = found
    return policy


def _checked(scores: object, shell: ShellView, path: str) -> Array:
    """A learned policy must score every valid candidate. Its scores are never cut or padded to fit."""
    record = f"policy {path!r}"
    if not isinstance(scores, np.ndarray):
        raise _invalid(record, "scores", f"a {type(scores).__name__}", "a numpy array")
    if scores.shape != shell.valid.shape or scores.dtype.kind != "f":
        value = f"{scores.dtype}{list(scores.shape)}"
        raise _invalid(record, "scores", value, f"float[{len(shell.valid)}]")
    bad = np.flatnonzero(shell.valid & ~np.isfinite(scores))
    if len(bad):
        expected = f"a finite number for every valid candidate; {len(bad)} are not"
        raise _invalid(record, f"scores[{bad[0]}]", scores[bad[0]], expected)
    return shell.known(scores)


# -------------------------------------------------------------------------------------- baselines


def _random_valid(shell: ShellView) -> Array:
    return shell.known(np.zeros(len(shell.valid)))


def _farthest_from_history(shell: ShellView) -> Array:
    if not len(shell.visited):
        raise _invalid("shell", "visited", "empty", "at least the root")
    apart = np.linalg.norm(centres(shell.poses)[:, None] - shell.visited, axis=2)
    return shell.known(apart.min(axis=1))


def _farthest_from_reference(shell: ShellView) -> Array:
    offset = centres(shell.poses) - centres(shell.reference_pose)
    return shell.known(np.linalg.norm(offset, axis=1))


def _novelty(shell: ShellView) -> Array:
    """The angle to earlier views; 0 for a view that does not show the target."""
    angle, area = shell.feature("view_novelty_rad"), shell.feature("obb_area_frac")
    return np.where(area == 0, 0.0, angle)


def _coverage_greedy(shell: ShellView) -> Array:
    return shell.label("target_coverage_after") - shell.label("target_coverage_before")


def _recorded_continuation(shell: ShellView) -> Array:
    if shell.next_recorded is None:
        return np.full(len(shell.valid), np.nan)
    offset = centres(shell.poses) - centres(shell.next_recorded)
    # trace of A^T B is the sum of products; for rotations 1 + 2 cos of the angle between them
    trace = (rotations(shell.poses) * rotations(shell.next_recorded)).sum(axis=(1, 2))
    turn = np.arccos(np.clip((trace - 1) / 2, -1.0, 1.0))
    return shell.known(-np.linalg.norm(offset, axis=1) - METRES_PER_RADIAN * turn)


def _by_feature(name: str, meaning: str, column: str, sign: float = 1.0) -> Scorer:
    return Scorer(name, meaning, lambda shell: sign * shell.feature(column))


def _by_label(name: str, meaning: str, column: str) -> Scorer:
    return Scorer(name, meaning, lambda shell: shell.label(column), reads_labels=True)


_ALL = (
    Scorer("random_valid", "nothing: chance decides", _random_valid),
    _by_feature("nearest", "nearness to the target", "dist_target", sign=-1.0),
    Scorer(
        "farthest_from_history", "distance to the nearest place visited", _farthest_from_history
    ),
    Scorer("farthest_from_reference", "length of the move", _farthest_from_reference),
    Scorer("novelty", "angle to earlier views of the target, if it is in view", _novelty),
    _by_feature("target_area", "size of the target in the image", "obb_area_frac"),
    _by_feature("frontier", "steps from free into unknown", "frontier_per_ray"),
    _by_feature("information_gain", "unknown voxels in view", "unknown_per_ray"),
    _by_feature(
        "information_gain_target", "unknown voxels of the target in view", "target_unknown_per_ray"
    ),
    Scorer("coverage_greedy", "gain of the target's coverage", _coverage_greedy, reads_labels=True),
    _by_label("rri_greedy_target", "root gain of the target", "target_root_gain"),
    _by_label("rri_greedy_scene", "root gain of the scene", "scene_root_gain"),
    Scorer(
        "recorded_continuation",
        "nearness to where the recording went next",
        _recorded_continuation,
        reads_labels=True,
    ),
)
SCORERS: Mapping[str, Scorer] = MappingProxyType({each.name: each for each in _ALL})


def _invalid(record: str, field_name: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record=record, field=field_name, value=str(value), expected=expected)

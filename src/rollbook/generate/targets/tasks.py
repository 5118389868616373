"""Oracle target tasks: targets drawn evenly from the ground truth, to get labels for every kind of object.

This mode is not actor-visible: the actor gets the ground-truth box as its target. Results say nothing about an actor
that must find its targets itself; `ActorVisibleTargetSelector` serves that purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.reasons import VALID_BITSET
from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.targets.config import TargetSelectorConfig
from rollbook.generate.targets.considered import (
    ConsideredTargets,
    consider_targets,
    shape_reasons,
)
from rollbook.generate.targets.draws import TargetDraw
from rollbook.generate.targets.matching import GtMatch, GtMatchStatus
from rollbook.generate.targets.selection import (
    GT_SOURCE_ORACLE,
    TargetSelection,
    refuse_bad_trajectory,
    selected_targets,
)

if TYPE_CHECKING:
    from rollbook.generate.sources.reader import ActorView

POLICY = "oracle_identity_valid_uniform"
NO_ORACLE_TARGET_TASKS = "no_oracle_target_tasks"
NO_IDENTITY_VALID_TASKS = "no_identity_valid_oracle_target_tasks"

_STATUS_ORDER = (
    GtMatchStatus.INVALID_GEOMETRY,
    GtMatchStatus.UNMATCHED_IDENTITY,
    GtMatchStatus.AMBIGUOUS_IDENTITY,
    GtMatchStatus.MATCHED,
)
_AUDIT = TargetSelectorConfig()
"""Settings for the recorded measurements of a task in the actor's view. No result depends on them."""


class OracleTargetTaskSamplerConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """When a ground-truth box identifies one object, and how many boxes are drawn."""

    max_targets_per_sample: int = 3
    min_identity_iou: float = 0.25
    """Least overlap of a box with the box it overlaps most, which is normally itself."""
    identity_ambiguity_gap: float = 0.05
    """The second largest overlap must be smaller by more than this."""
    identity_iou_samples: int = 8
    """Grid cells along each side of a box."""
    sweep_min_ious: tuple[float, ...] = (0.1, 0.25, 0.5)
    """The result lists the number of tasks for each of these values with each gap."""
    sweep_gaps: tuple[float, ...] = (0.0, 0.05, 0.1)

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("max_targets_per_sample", self.max_targets_per_sample >= 1, "at least 1"),
            ("identity_iou_samples", self.identity_iou_samples >= 1, "at least 1"),
            ("min_identity_iou", 0 <= self.min_identity_iou <= 1, "a number from 0 to 1"),
            (
                "identity_ambiguity_gap",
                0 <= self.identity_ambiguity_gap <= 1,
                "a number from 0 to 1",
            ),
            (
                "sweep_min_ious",
                all(0 <= iou <= 1 for iou in self.sweep_min_ious),
                "numbers from 0 to 1",
            ),
            ("sweep_gaps", all(0 <= gap <= 1 for gap in self.sweep_gaps), "numbers from 0 to 1"),
        ):
            expect(self, name, holds, expected, section="oracle_target_task_sampler")


class IdentitySweepRow(NamedTuple):
    """Number of tasks with other thresholds."""

    min_iou: float
    gap: float
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskIdentities:
    """How clearly each ground-truth box is distinguished from all others, row by row."""

    best_iou: NDArray[np.float64]
    """NaN for a box without a valid shape, as is `second_iou`."""
    second_iou: NDArray[np.float64]
    """0 if no other box overlaps."""
    status: tuple[GtMatchStatus, ...]
    sweep: tuple[IdentitySweepRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OracleTargetSelection(TargetSelection):
    identities: TaskIdentities


class OracleTargetTaskSampler:
    def __init__(self, config: OracleTargetTaskSamplerConfig | None = None) -> None:
        self.config = config or OracleTargetTaskSamplerConfig()

    def select(
        self,
        view: ActorView,
        gt: Boxes | None,
        *,
        scene_id: str,
        snippet_id: str,
        rng: np.random.Generator,
        observed_voxels: ArrayLike | None = None,
    ) -> OracleTargetSelection:
        """Draws up to `max_targets_per_sample` boxes that each identify one object, all equally likely.

        `observed_voxels` [n, 3] are the centres of the occupied voxels of the actor's map, if it has one. They are
        counted only for the record.
        """
        place = f"{scene_id}:{snippet_id}"
        refuse_bad_trajectory(view.poses, place)
        boxes = Boxes.none() if gt is None else gt
        measured = consider_targets(
            boxes,
            view,
            _AUDIT,
            source=GT_SOURCE_ORACLE,
            place=place,
            observed_voxels=observed_voxels,
        )
        identities = identities_of(boxes, self.config)
        considered = _as_tasks(measured, identities)
        draws = self._draws(considered, rng)
        targets = selected_targets(
            considered,
            draws,
            [_own_match(identities, draw.row) for draw in draws],
            boxes,
            place=place,
            root_pose=view.root_pose,
            policy=POLICY,
            temperature=None,
        )
        none = NO_IDENTITY_VALID_TASKS if len(boxes) else NO_ORACLE_TARGET_TASKS
        return OracleTargetSelection(
            targets=targets,
            considered=considered,
            skip_reason=None if targets else none,
            identities=identities,
        )

    def _draws(self, considered: ConsideredTargets, rng: np.random.Generator) -> list[TargetDraw]:
        pool = np.flatnonzero(considered.reason_bitset == VALID_BITSET)
        drawn = rng.permutation(pool)[: self.config.max_targets_per_sample].tolist()
        # the probability of being among the drawn boxes, not that of one draw
        chance = len(drawn) / max(len(pool), 1)
        return [TargetDraw(row, chance, math.log(chance), None) for row in drawn]


def identities_of(boxes: Boxes, config: OracleTargetTaskSamplerConfig) -> TaskIdentities:
    sound = np.flatnonzero(shape_reasons(boxes) == 0)
    best, second = np.full((2, len(boxes)), np.nan)
    best[sound], second[sound] = _two_greatest(_overlaps(boxes, sound, config.identity_iou_samples))
    return TaskIdentities(
        best_iou=best,
        second_iou=second,
        status=_statuses(best, second, config),
        sweep=tuple(
            IdentitySweepRow(iou, gap, int(np.count_nonzero((best >= iou) & (best - second > gap))))
            for iou in config.sweep_min_ious
            for gap in config.sweep_gaps
        ),
    )


def _overlaps(boxes: Boxes, sound: NDArray[np.intp], samples: int) -> NDArray[np.float64]:
    """[S, S]: overlaps among the valid boxes. Boxes too far apart to touch are not compared and overlap by 0."""
    pool = boxes.take(sound)
    apart = np.linalg.norm(pool.centres[:, None] - pool.centres, axis=2)
    reach = np.linalg.norm(pool.extents.astype(np.float64), axis=1) / 2
    meet = apart <= reach[:, None] + reach
    found = np.zeros((len(pool), len(pool)))
    for row in range(len(pool)):
        near = np.flatnonzero(meet[row])
        found[row, near] = pool.iou(row, pool.take(near), samples=samples)
    return found


def _two_greatest(
    overlaps: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with_nothing = np.column_stack([overlaps, np.zeros((len(overlaps), 2))])
    ordered = np.sort(with_nothing, axis=1)
    return ordered[:, -1], ordered[:, -2]


def _statuses(
    best: NDArray[np.float64], second: NDArray[np.float64], config: OracleTargetTaskSamplerConfig
) -> tuple[GtMatchStatus, ...]:
    unsound, unmatched = np.isnan(best), best < config.min_identity_iou
    ambiguous = best - second <= config.identity_ambiguity_gap
    first = np.select([unsound, unmatched, ambiguous], [0, 1, 2], 3)
    return tuple(_STATUS_ORDER[at] for at in first.tolist())


def _as_tasks(measured: ConsideredTargets, identities: TaskIdentities) -> ConsideredTargets:
    """The measured boxes with the gates and scores of tasks: only shape and identity exclude a box."""
    ones = np.ones(len(measured))
    return replace(
        measured,
        visibility_score=ones,
        support_score=ones,
        deficit_score=np.zeros(len(measured)),
        score=identities.best_iou,
        reason_bitset=_task_reasons(measured.boxes, identities.status),
    )


def _task_reasons(boxes: Boxes, status: Sequence[GtMatchStatus]) -> NDArray[np.uint32]:
    shape = shape_reasons(boxes)
    shape[shape == 0] = VALID_BITSET
    joined = [GtMatch(each).joined(bits) for each, bits in zip(status, shape.tolist(), strict=True)]
    return np.array(joined, np.uint32)


def _own_match(identities: TaskIdentities, row: int) -> GtMatch:
    iou = float(identities.best_iou[row])
    return GtMatch(GtMatchStatus.MATCHED, row, iou, iou)

"""Candidates: a shell of camera poses around a reference pose, drawn from a mixture of position families.

A family aims one or more fans of directions in the gravity-aligned frame of the reference: heading about +Z, up is +Z.
Every fan has an exact density, so the density of each proposed centre under the whole mixture is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.reasons import POSITION_NAMES, STRATEGY_NAMES
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.candidates.orientations import ViewJitter, view_rotations
from rollbook.generate.config_checks import expect, invalid_setting
from rollbook.generate.geometry.directions import EDGE, Fans, bearings, walking_headings
from rollbook.generate.geometry.poses import centres, poses_of

Array = NDArray[np.float64]

_SPREADS = {
    "upper_bound_free_shell": 1.0,
    "forward_local": 0.45,
    "target_bearing_local": 0.4,
    "lateral_target_bypass": 0.3,
    "local_refinement": 0.25,
    "revisit_backtrack": 0.35,
}
"""Share of the configured azimuth width that a family uses around its aim."""
_AIMED_AT_TARGET = ("target_bearing_local", "lateral_target_bypass")
_BYPASS_ANGLE = math.atan2(0.85, 0.55)
"""Angle to either side of the target at which an actor passes it."""
_MOST_REVISITED = 32
"""Most earlier centres to aim at. A longer history is thinned evenly; its newest centre stays."""
_NEAREST_REVISITED_M = 0.05
"""An earlier centre that is closer than this counts as the current place."""


class CandidateSamplerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How centres and views are drawn, unless a component overrides it."""

    sampling_strategy: Literal["uniform_sphere", "forward_powerspherical"] = (
        "forward_powerspherical"
    )
    """Whether directions fill a fan evenly or concentrate at its middle by `kappa`."""
    kappa: float = 8.0
    min_radius_m: float = 0.25
    max_radius_m: float = 1.25
    """Range of move lengths, drawn evenly. The two must differ: a sphere without thickness has no volume density."""
    min_elev_deg: float = -12.0
    max_elev_deg: float = 18.0
    delta_azimuth_deg: float = 120.0
    """Width from edge to edge. Each family uses a share of it, its spread."""
    view_max_azimuth_deg: float = 0.0
    """Greatest turn to either side of the intended view direction."""
    view_max_elevation_deg: float = 0.0
    view_kappa: float | None = None
    """If given, views are power-spherical about the intended direction instead of even within the two limits above."""
    view_max_angle_deg: float = 60.0
    """Greatest angle to the intended direction, with `view_kappa`."""
    view_roll_jitter_deg: float = 0.0

    def __post_init__(self) -> None:
        for field, low, high in (
            ("kappa", 0.0, math.inf),
            ("view_kappa", 0.0, math.inf),
            ("view_max_azimuth_deg", 0.0, 180.0),
            ("view_max_elevation_deg", 0.0, 90.0),
            ("view_max_angle_deg", 0.0, 180.0),
            ("view_roll_jitter_deg", 0.0, 180.0),
        ):
            value = getattr(self, field)
            holds = value is None or (math.isfinite(value) and low <= value <= high)
            at_most = f" and at most {high:g}" if high < math.inf else ""
            self._expect(field, holds, f"at least 0{at_most}")
        holds = 0 < self.delta_azimuth_deg <= 360
        self._expect("delta_azimuth_deg", holds, "more than 0, at most 360")
        for field in ("min_radius_m", "max_radius_m"):
            self._expect(field, math.isfinite(getattr(self, field)), "a finite number")
        holds = self.sampling_strategy in ("uniform_sphere", "forward_powerspherical")
        self._expect("sampling_strategy", holds, "uniform_sphere or forward_powerspherical")
        if not 0 < self.min_radius_m < self.max_radius_m:
            value = f"{self.min_radius_m} with max_radius_m {self.max_radius_m}"
            expected = "0 < min_radius_m < max_radius_m"
            raise invalid_setting("candidate_sampler.min_radius_m", value, expected)
        if not -90 <= self.min_elev_deg < self.max_elev_deg <= 90:
            value = f"{self.min_elev_deg} with max_elev_deg {self.max_elev_deg}"
            expected = "-90 <= min_elev_deg < max_elev_deg <= 90"
            raise invalid_setting("candidate_sampler.min_elev_deg", value, expected)

    def _expect(self, field: str, holds: bool, expected: str) -> None:
        expect(self, field, holds, expected, section="candidate_sampler")


class ComponentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family of the mixture. Fields that are None take the value of the base."""

    name: str
    count: int
    position: str
    """A position family, one of POSITION_NAMES."""
    view: str
    """View strategy of its candidates, one of STRATEGY_NAMES."""
    spread: float | None = None
    """Share of `delta_azimuth_deg` that is used; None for the family's default."""
    sampling_strategy: Literal["uniform_sphere", "forward_powerspherical"] | None = None
    kappa: float | None = None
    min_radius_m: float | None = None
    max_radius_m: float | None = None
    min_elev_deg: float | None = None
    max_elev_deg: float | None = None
    delta_azimuth_deg: float | None = None
    view_max_azimuth_deg: float | None = None
    view_max_elevation_deg: float | None = None
    view_kappa: float | None = None
    view_max_angle_deg: float | None = None
    view_roll_jitter_deg: float | None = None

    def __post_init__(self) -> None:
        place = f"components.{self.name}"
        if not self.name:
            raise invalid_setting("components.name", repr(self.name), "some text")
        if self.count < 1:
            raise invalid_setting(f"{place}.count", self.count, "at least 1")
        for field, names in (("position", POSITION_NAMES), ("view", STRATEGY_NAMES)):
            if getattr(self, field) not in names:
                expected = f"one of {', '.join(names)}"
                raise invalid_setting(f"{place}.{field}", repr(getattr(self, field)), expected)
        if self.spread is not None and not 0 < self.spread < math.inf:
            raise invalid_setting(f"{place}.spread", self.spread, "more than 0")

    @property
    def needs_target(self) -> bool:
        return self.position in _AIMED_AT_TARGET or self.view == "target_point"

    def resolved(self, base: CandidateSamplerConfig) -> CandidateSamplerConfig:
        """The base with this component's overrides."""
        own = {name: getattr(self, name) for name in CandidateSamplerConfig.__struct_fields__}
        try:
            return msgspec.structs.replace(base, **{k: v for k, v in own.items() if v is not None})
        except ConfigurationError as error:
            raise ConfigurationError(message=f"components.{self.name}: {error}") from error


def _three_families(**settings: float) -> tuple[ComponentConfig, ...]:
    return (
        _component("forward_local", 24, "forward_rig", **settings),
        _component("target_bearing_local", 24, "target_point", **settings),
        _component("lateral_target_bypass", 12, "target_point", **settings),
    )


def _default_components() -> tuple[ComponentConfig, ...]:
    """Views are spread: if all of them meet the target in the middle, a random choice is almost as good as any."""
    return _three_families(view_max_azimuth_deg=60.0, view_max_elevation_deg=20.0)


class CandidateMixtureConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):
    """The families and their numbers of candidates. The shell's rows are in the order of the components.

    Each preset belongs to the motion rules of the same name in RuleConfig.
    """

    base: CandidateSamplerConfig = CandidateSamplerConfig()
    components: tuple[ComponentConfig, ...] = msgspec.field(default_factory=_default_components)

    def __post_init__(self) -> None:
        if not self.components:
            raise invalid_setting("candidate_mixture.components", "empty", "at least one")
        names = [component.name for component in self.components]
        for name in names:
            if names.count(name) > 1:
                raise invalid_setting(f"components.{name}.name", "given twice", "names that differ")
        _ = self.samplers  # refuses overrides that contradict each other

    @classmethod
    def reference(cls) -> CandidateMixtureConfig:
        """The default families with the views of the reference system: exactly ahead, or exactly at the target."""
        return cls(components=_three_families())

    @classmethod
    def rich_local_five_family(cls) -> CandidateMixtureConfig:
        """All local families. Steps back are short, as the motion rules require."""
        return cls(
            components=(
                _component("target_bearing_local", 18, "target_point"),
                _component("forward_local", 18, "forward_rig"),
                _component("lateral_target_bypass", 12, "target_point"),
                _component(
                    "local_refinement", 6, "target_point", min_radius_m=0.25, max_radius_m=0.7
                ),
                _component(
                    "revisit_backtrack", 6, "forward_rig", min_radius_m=0.2, max_radius_m=0.3
                ),
            )
        )

    @classmethod
    def radial_target_backtrack_family(cls) -> CandidateMixtureConfig:
        """For diverse chains: views along and against the move, steps back, and a few views of the target."""
        around = {"position": "target_bearing_local", "min_radius_m": 0.35, "max_radius_m": 1.1}
        return cls(
            base=CandidateSamplerConfig(max_radius_m=1.1, delta_azimuth_deg=110.0),
            components=(
                _component("radial_towards_target_bearing", 16, "radial_towards", **around),
                _component("radial_away_target_bearing", 16, "radial_away", **around),
                _component(
                    "revisit_backtrack", 12, "forward_rig", min_radius_m=0.2, max_radius_m=0.3
                ),
                _component(
                    "target_point_anchor", 4, "target_point", **{**around, "max_radius_m": 0.9}
                ),
            ),
        )

    @classmethod
    def upper_bound_free_shell(cls, count: int = 60) -> CandidateMixtureConfig:
        """One wide shell that ignores the target."""
        return cls(
            base=CandidateSamplerConfig(
                sampling_strategy="uniform_sphere",
                kappa=4.0,
                min_radius_m=0.5,
                max_radius_m=1.8,
                min_elev_deg=-20.0,
                max_elev_deg=25.0,
                delta_azimuth_deg=170.0,
                view_max_azimuth_deg=60.0,
                view_max_elevation_deg=30.0,
            ),
            components=(_component("upper_bound_free_shell", count, "radial_away"),),
        )

    @property
    def total_count(self) -> int:
        return sum(component.count for component in self.components)

    @property
    def shortest_move_m(self) -> float:
        return min(each.min_radius_m for each in self.samplers)

    @cached_property
    def samplers(self) -> tuple[CandidateSamplerConfig, ...]:
        """The resolved sampler settings of each component."""
        return tuple(component.resolved(self.base) for component in self.components)

    @cached_property
    def mixture_id(self) -> NDArray[np.int32]:
        """[N]: the component of every row."""
        counts = [component.count for component in self.components]
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        rows.flags.writeable = False
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A whole shell as it was drawn, before any rule is applied."""

    poses: Array
    """[N, 12]"""
    strategy_id: NDArray[np.int32]
    position_id: NDArray[np.int32]
    mixture_id: NDArray[np.int32]
    density: Array
    """[N] per cubic metre: density of the camera's centre under the whole mixture."""

    def __len__(self) -> int:
        return len(self.poses)


def sample_shell(
    config: CandidateMixtureConfig,
    reference_pose: ArrayLike,
    target_centre: ArrayLike | None,
    history: ArrayLike,
    rng: np.random.Generator,
) -> Proposal:
    """Draws a shell around `reference_pose`. `history` [k, 3] are the visited centres, oldest first.

    All randomness comes from `rng`. If it is seeded per node, a shell does not depend on other nodes.
    """
    reference, target = _finite("reference_pose", reference_pose, (12,)), _target(target_centre)
    shells = _shells(config, reference, target, history)
    row = config.mixture_id
    uniforms = rng.random((len(row), 7))
    eyes = centres(reference) + shells.drawn(row, uniforms[:, :4])
    views = np.array([STRATEGY_NAMES.index(each.view) for each in config.components], np.int32)
    places = np.array([POSITION_NAMES.index(each.position) for each in config.components], np.int32)
    turned = view_rotations(views[row], eyes, reference, target, _jitter(config), uniforms[:, 4:])
    density = shells.density(eyes - centres(reference), row)
    _refuse_extreme(density)
    return Proposal(
        poses=poses_of(turned, eyes),
        strategy_id=views[row],
        position_id=places[row],
        mixture_id=row,
        density=density,
    )


def shell_density(
    config: CandidateMixtureConfig,
    reference_pose: ArrayLike,
    target_centre: ArrayLike | None,
    history: ArrayLike,
    eyes: ArrayLike,
) -> Array:
    """[n] per cubic metre: density of the mixture at each of `eyes` [n, 3]."""
    reference, target = _finite("reference_pose", reference_pose, (12,)), _target(target_centre)
    shells = _shells(config, reference, target, history)
    return shells.density(_finite("eyes", eyes, (-1, 3)) - centres(reference), config.mixture_id)


@dataclass(frozen=True, slots=True, eq=False)
class _Shells:
    """The L spherical shells of all components: a fan of directions and a range of radii each."""

    fans: Fans
    component: NDArray[np.intp]
    """[L]; shells of one component are adjacent and equally likely."""
    near: Array
    far: Array

    def drawn(self, row: NDArray[np.int32], uniforms: Array) -> Array:
        """Offsets [N, 3] for rows of these components; `uniforms` are [N, 4] numbers in [0, 1)."""
        many = np.bincount(self.component)
        first = np.cumsum(many) - many
        shell = first[row] + (uniforms[:, 0] * many[row]).astype(np.intp)
        near, far = self.near[shell], self.far[shell]
        radius = near + uniforms[:, 1] * (far - near)
        return np.asarray(self.fans.drawn(shell, uniforms[:, 2:]) * radius[:, None])

    def density(self, offsets: Array, row: NDArray[np.int32]) -> Array:
        """[N] per cubic metre: density of the offsets under the mixture of these rows."""
        radius = np.maximum(np.linalg.norm(offsets, axis=1, keepdims=True), 1e-12)
        per_angle = self.fans.densities(offsets / radius)
        within = (radius >= self.near * (1 - EDGE)) & (radius <= self.far * (1 + EDGE))
        per_volume = per_angle / ((self.far - self.near) * radius**2)
        share = np.bincount(row) / len(row) / np.bincount(self.component)
        return np.asarray(np.where(within, per_volume, 0.0) @ share[self.component])


def _shells(
    config: CandidateMixtureConfig, reference: Array, target: Array | None, history: ArrayLike
) -> _Shells:
    _refuse_missing_target(config, target)
    visited = _finite("history", history if np.size(history) else np.zeros((0, 3)), (-1, 3))
    aims = [_aims(each.position, reference, target, visited) for each in config.components]
    component = np.repeat(np.arange(len(aims)), [len(each) for each in aims])
    spreads = [
        _SPREADS[each.position] if each.spread is None else each.spread
        for each in config.components
    ]
    settings = np.array(
        [
            (
                min(math.radians(one.delta_azimuth_deg) * spread, 2 * math.pi),
                math.sin(math.radians(one.min_elev_deg)),
                math.sin(math.radians(one.max_elev_deg)),
                one.kappa if one.sampling_strategy == "forward_powerspherical" else 0.0,
                one.min_radius_m,
                one.max_radius_m,
            )
            for one, spread in zip(config.samplers, spreads, strict=True)
        ]
    )[component].T
    return _Shells(Fans(np.concatenate(aims), *settings[:4]), component, *settings[4:])


def _aims(position: str, reference: Array, target: Array | None, visited: Array) -> Array:
    """World azimuths at which a family aims, all equally often."""
    heading, here = walking_headings(reference), centres(reference)
    if position == "revisit_backtrack":
        level = np.hypot(visited[:, 0] - here[0], visited[:, 1] - here[1])
        earlier = visited[level > _NEAREST_REVISITED_M]
        if not len(earlier):
            return np.atleast_1d(heading + np.pi)
        kept = np.linspace(len(earlier) - 1, 0, min(len(earlier), _MOST_REVISITED))
        return bearings(here, earlier[kept.round().astype(np.intp)], heading)
    if position not in _AIMED_AT_TARGET or target is None:
        return np.atleast_1d(heading)
    at_target = np.atleast_1d(bearings(here, target, heading))
    sides = (-_BYPASS_ANGLE, _BYPASS_ANGLE) if position == "lateral_target_bypass" else (0.0,)
    return np.asarray(at_target + sides)


def _jitter(config: CandidateMixtureConfig) -> ViewJitter:
    columns = np.array(
        [
            (
                math.radians(one.view_max_azimuth_deg),
                math.radians(one.view_max_elevation_deg),
                math.radians(one.view_roll_jitter_deg),
                math.nan if one.view_kappa is None else one.view_kappa,
                math.radians(one.view_max_angle_deg),
            )
            for one in config.samplers
        ]
    )[config.mixture_id].T
    return ViewJitter(*columns)


def _refuse_extreme(density: Array) -> None:
    """Refuses a shell so narrow or so wide that its density does not fit into float32, as it is stored."""
    limits = np.finfo(np.float32)
    bad = np.flatnonzero(~((density >= limits.tiny) & (density <= limits.max)))
    if len(bad):
        value = f"a density of {density[bad[0]]} per cubic metre"
        message = f"candidate_mixture gives {value}, expected radii and angles of a room"
        raise ConfigurationError(message=message)


def _component(name: str, count: int, view: str, **settings: Any) -> ComponentConfig:
    """A component whose position family has its name, unless `settings` give another."""
    return ComponentConfig(name=name, count=count, view=view, **{"position": name, **settings})


def _refuse_missing_target(config: CandidateMixtureConfig, target: Array | None) -> None:
    if target is not None:
        return
    for each in config.components:
        if each.needs_target:
            what = f"position {each.position!r} and view {each.view!r}"
            message = f"components.{each.name} ({what}) needs a target centre, and there is none"
            raise ConfigurationError(message=message)


def _target(centre: ArrayLike | None) -> Array | None:
    return None if centre is None else _finite("target_centre", centre, (3,))


def _finite(field: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    values = np.asarray(given, np.float64)
    if shape[-1:] != values.shape[-1:] or len(shape) != values.ndim:
        raise InvalidValue(
            record="candidate shell",
            field=field,
            value=f"of shape {list(values.shape)}",
            expected=f"{shape[-1]} numbers",
        )
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise InvalidValue(
            record="candidate shell", field=field, value=str(bad), expected="finite numbers"
        )
    return values

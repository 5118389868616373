"""Candidates: shells are of the families that were asked for, look where they should, and know their density."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.contracts.reasons import POSITION_NAMES, STRATEGY_NAMES
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.candidates.families import (
    CandidateMixtureConfig,
    CandidateSamplerConfig,
    ComponentConfig,
    Proposal,
    sample_shell,
    shell_density,
)
from rollbook.generate.geometry.poses import (
    are_rigid,
    centres,
    forwards,
    look_at,
    rotations,
    wrapped,
)

Array = NDArray[np.float64]

REFERENCE = look_at([1.0, -2.0, 1.5], [3.0, -1.0, 1.2])
TARGET = np.array([3.5, 0.5, 0.6])
HISTORY = np.array([[-1.0, -2.5, 1.5], [0.0, -2.2, 1.5], [1.0, -3.5, 1.4], [1.0, -2.0, 1.5]])
PRESETS = {
    "default": CandidateMixtureConfig(),
    "rich": CandidateMixtureConfig.rich_local_five_family(),
    "radial": CandidateMixtureConfig.radial_target_backtrack_family(),
    "free": CandidateMixtureConfig.upper_bound_free_shell(),
}


def family(
    position: str, count: int = 400, view: str = "forward_rig", **own: Any
) -> CandidateMixtureConfig:
    return CandidateMixtureConfig(
        components=(ComponentConfig(name="one", count=count, position=position, view=view, **own),)
    )


def shell(
    config: CandidateMixtureConfig,
    seed: int = 0,
    *,
    reference: Array = REFERENCE,
    target: Array | None = TARGET,
    history: Array = HISTORY,
) -> Proposal:
    return sample_shell(config, reference, target, history, np.random.default_rng(seed))


def azimuths_from_reference(proposal: Proposal) -> Array:
    offset = centres(proposal.poses) - centres(REFERENCE)
    return np.asarray(np.arctan2(offset[:, 1], offset[:, 0]))


def bearing_of(point: Array) -> float:
    offset = point - centres(REFERENCE)
    return float(np.arctan2(offset[1], offset[0]))


# ------------------------------------------------------------------------------------- mixtures


def test_the_default_mixture_proposes_sixty_candidates_of_three_local_families() -> None:
    config = PRESETS["default"]
    named = [(each.name, each.count, each.position, each.view) for each in config.components]
    assert named == [
        ("forward_local", 24, "forward_local", "forward_rig"),
        ("target_bearing_local", 24, "target_bearing_local", "target_point"),
        ("lateral_target_bypass", 12, "lateral_target_bypass", "target_point"),
    ]
    base = config.base
    assert (base.sampling_strategy, base.kappa) == ("forward_powerspherical", 8.0)
    assert (base.min_radius_m, base.max_radius_m) == (0.25, 1.25)
    assert (base.min_elev_deg, base.max_elev_deg, base.delta_azimuth_deg) == (-12, 18, 120)
    assert config.total_count == 60


def test_presets_are_of_the_families_their_names_say() -> None:
    assert [(each.name, each.count) for each in PRESETS["rich"].components] == [
        ("target_bearing_local", 18),
        ("forward_local", 18),
        ("lateral_target_bypass", 12),
        ("local_refinement", 6),
        ("revisit_backtrack", 6),
    ]
    assert [(each.view, each.count) for each in PRESETS["radial"].components] == [
        ("radial_towards", 16),
        ("radial_away", 16),
        ("forward_rig", 12),
        ("target_point", 4),
    ]
    free = CandidateMixtureConfig.upper_bound_free_shell(count=5)
    assert [(each.name, each.count) for each in free.components] == [("upper_bound_free_shell", 5)]


def test_a_mixture_comes_from_toml_and_goes_back_to_plain_values_with_its_names() -> None:
    text = """
        [base]
        kappa = 3.0
        [[components]]
        name = "ahead"
        count = 7
        position = "forward_local"
        view = "forward_rig"
        max_radius_m = 0.5
    """
    config = msgspec.convert(tomllib.loads(text), CandidateMixtureConfig)
    plain = msgspec.to_builtins(config)
    assert plain["components"][0]["name"] == "ahead"
    assert plain["components"][0]["count"] == 7
    assert msgspec.convert(plain, CandidateMixtureConfig) == config
    assert (config.samplers[0].kappa, config.samplers[0].max_radius_m) == (3.0, 0.5)
    with pytest.raises(msgspec.ValidationError, match="unknown field `spred`"):
        msgspec.convert({"base": {"spred": 1.0}}, CandidateMixtureConfig)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_row_says_which_component_proposed_it(preset: str) -> None:
    config = PRESETS[preset]
    proposal = shell(config)
    assert len(proposal) == config.total_count
    assert proposal.mixture_id.dtype == np.int32
    np.testing.assert_array_equal(
        np.bincount(proposal.mixture_id), [each.count for each in config.components]
    )
    assert (np.diff(proposal.mixture_id) >= 0).all()
    for row, component in enumerate(config.components):
        own = proposal.mixture_id == row
        assert set(proposal.position_id[own]) == {POSITION_NAMES.index(component.position)}
        assert set(proposal.strategy_id[own]) == {STRATEGY_NAMES.index(component.view)}
    assert are_rigid(proposal.poses, 1e-9).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_radius_m": 0.5, "max_radius_m": 0.5}, "min_radius_m is 0.5 with max_radius_m 0.5"),
        ({"min_radius_m": 0.0}, "min_radius_m is 0.0"),
        ({"max_radius_m": np.inf}, "max_radius_m is inf"),
        ({"min_radius_m": np.nan}, "min_radius_m is nan"),
        ({"min_elev_deg": 20.0}, "min_elev_deg is 20.0 with max_elev_deg 18.0"),
        ({"max_elev_deg": 91.0}, "max_elev_deg 91.0"),
        ({"min_elev_deg": np.nan}, "min_elev_deg is nan"),
        ({"delta_azimuth_deg": 0.0}, "delta_azimuth_deg is 0.0"),
        ({"delta_azimuth_deg": 361.0}, "delta_azimuth_deg is 361.0"),
        ({"kappa": -1.0}, "kappa is -1.0"),
        ({"kappa": np.nan}, "kappa is nan"),
        ({"view_kappa": -0.5}, "view_kappa is -0.5"),
        ({"view_max_azimuth_deg": 200.0}, "view_max_azimuth_deg is 200.0"),
        ({"view_roll_jitter_deg": -1.0}, "view_roll_jitter_deg is -1.0"),
        ({"sampling_strategy": "gauss"}, "sampling_strategy is 'gauss'"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CandidateSamplerConfig(**wrong)
    with pytest.raises(ConfigurationError, match=f"components.one: .*{message}"):
        family("forward_local", **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "components.one.count is 0, expected at least 1"),
        ({"name": ""}, "components.name is ''"),
        ({"position": "sideways"}, "components.one.position is 'sideways'"),
        ({"view": "inward"}, "components.one.view is 'inward'"),
        ({"spread": 0.0}, "components.one.spread is 0.0"),
    ],
)
def test_components_that_cannot_be_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    usual = {"name": "one", "count": 1, "position": "forward_local", "view": "forward_rig"}
    with pytest.raises(ConfigurationError, match=message):
        ComponentConfig(**{**usual, **wrong})


def test_a_mixture_needs_components_with_different_names() -> None:
    with pytest.raises(ConfigurationError, match=r"candidate_mixture.components is empty"):
        CandidateMixtureConfig(components=())
    twice = family("forward_local").components * 2
    with pytest.raises(ConfigurationError, match=r"components.one.name is given twice"):
        CandidateMixtureConfig(components=twice)


def test_components_that_need_a_target_say_so_when_there_is_none() -> None:
    with pytest.raises(
        ConfigurationError, match=r"components.target_bearing_local .* needs a target"
    ):
        shell(PRESETS["default"], target=None)
    with pytest.raises(ConfigurationError, match=r"components.one .* needs a target"):
        shell(family("forward_local", view="target_point"), target=None)
    assert len(shell(PRESETS["free"], target=None)) == 60
    assert len(shell(family("revisit_backtrack"), target=None)) == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reference", np.full(12, np.nan)),
        ("reference", np.zeros(7)),
        ("target", np.array([0, np.inf, 0])),
        ("history", np.array([[0.0, 0.0, np.nan]])),
        ("history", np.zeros((4, 2))),
    ],
)
def test_what_a_shell_is_drawn_around_has_to_be_finite(field: str, value: Array) -> None:
    given: dict[str, Any] = {field: value}
    with pytest.raises(InvalidValue, match=field):
        shell(PRESETS["rich"], **given)


# ------------------------------------------------------------------------------------- positions


@pytest.mark.parametrize("position", POSITION_NAMES)
def test_moves_keep_to_the_limits_of_radius_and_elevation(position: str) -> None:
    proposal = shell(family(position, 2000, min_elev_deg=-5.0, max_elev_deg=30.0))
    offset = centres(proposal.poses) - centres(REFERENCE)
    radius = np.linalg.norm(offset, axis=1)
    elevation = np.degrees(np.arcsin(offset[:, 2] / radius))
    assert 0.25 <= radius.min() < 0.27
    assert 1.23 < radius.max() <= 1.25
    assert radius.mean() == pytest.approx(0.75, abs=0.03)
    assert elevation.min() >= -5 - 1e-9
    assert elevation.max() <= 30 + 1e-9


@pytest.mark.parametrize(
    ("position", "aims", "spread"),
    [
        ("upper_bound_free_shell", [bearing_of(centres(REFERENCE) + forwards(REFERENCE))], 1.0),
        ("forward_local", [bearing_of(centres(REFERENCE) + forwards(REFERENCE))], 0.45),
        ("local_refinement", [bearing_of(centres(REFERENCE) + forwards(REFERENCE))], 0.25),
        ("target_bearing_local", [bearing_of(TARGET)], 0.4),
        (
            "lateral_target_bypass",
            [
                bearing_of(TARGET) - np.arctan2(0.85, 0.55),
                bearing_of(TARGET) + np.arctan2(0.85, 0.55),
            ],
            0.3,
        ),
        ("revisit_backtrack", [bearing_of(each) for each in HISTORY[:3]], 0.35),
    ],
)
def test_each_family_goes_where_it_aims(position: str, aims: list[float], spread: float) -> None:
    azimuth = azimuths_from_reference(shell(family(position, 3000)))
    off = np.abs(wrapped(azimuth[:, None] - np.array(aims)))
    nearest = off.argmin(axis=1)
    assert np.degrees(off.min(axis=1)).max() <= 60 * spread + 1e-6
    # every aim is taken about as often as the others
    shares = np.bincount(nearest, minlength=len(aims)) / len(nearest)
    np.testing.assert_allclose(shares, 1 / len(aims), atol=0.05)


def test_without_earlier_centres_one_goes_back_where_one_came_from() -> None:
    behind = bearing_of(centres(REFERENCE) - forwards(REFERENCE))
    here = centres(REFERENCE)[None] + [0.01, 0.0, 3.0]
    for history in (np.zeros((0, 3)), here):
        azimuth = azimuths_from_reference(shell(family("revisit_backtrack"), history=history))
        assert np.degrees(np.abs(wrapped(azimuth - behind))).max() <= 21 + 1e-6


def test_a_long_history_is_thinned_and_its_newest_kept() -> None:
    around = np.linspace(0.5, 5.5, 5000)
    arc = centres(REFERENCE) + np.stack([np.cos(around), np.sin(around), 0 * around], axis=1)
    proposal = shell(family("revisit_backtrack", 20_000, spread=0.001), history=arc)
    azimuth = np.sort(np.mod(azimuths_from_reference(proposal), 2 * np.pi))
    assert np.count_nonzero(np.diff(azimuth) > 0.1) == 31
    assert azimuth[-1] == pytest.approx(5.5, abs=2e-3)


def test_a_target_straight_below_is_gone_for_straight_ahead() -> None:
    below = centres(REFERENCE) - [0, 0, 1.4]
    ahead = bearing_of(centres(REFERENCE) + forwards(REFERENCE))
    azimuth = azimuths_from_reference(shell(family("target_bearing_local"), target=below))
    assert np.degrees(np.abs(wrapped(azimuth - ahead))).max() <= 24 + 1e-6


def test_all_chance_comes_from_the_generator_that_is_given() -> None:
    first, again, other = (shell(PRESETS["rich"], seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.poses, again.poses)
    np.testing.assert_array_equal(first.density, again.density)
    apart = np.linalg.norm(centres(first.poses) - centres(other.poses), axis=1)
    assert (apart > 1e-6).all()


@settings(max_examples=30, deadline=None)
@given(
    st.floats(-3.1, 3.1),
    st.tuples(*[st.floats(-50, 50)] * 3),
    st.integers(0, 1000),
    st.sampled_from(sorted(PRESETS)),
)
def test_a_shell_turns_and_moves_with_its_world(
    turn: float, shift: tuple[float, float, float], seed: int, preset: str
) -> None:
    rotation = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )

    def carried(points: Array) -> Array:
        return np.asarray(points @ rotation.T + shift)

    reference = np.concatenate(
        [(rotation @ rotations(REFERENCE)).ravel(), carried(centres(REFERENCE))]
    )
    here = shell(PRESETS[preset], seed)
    there = shell(
        PRESETS[preset],
        seed,
        reference=reference,
        target=carried(TARGET),
        history=carried(HISTORY),
    )
    np.testing.assert_allclose(centres(there.poses), carried(centres(here.poses)), atol=1e-9)
    np.testing.assert_allclose(rotations(there.poses), rotation @ rotations(here.poses), atol=1e-7)
    np.testing.assert_allclose(there.density, here.density, rtol=1e-6)


# --------------------------------------------------------------------------------------- density


@pytest.mark.parametrize("position", POSITION_NAMES)
@pytest.mark.parametrize("strategy", ["uniform_sphere", "forward_powerspherical"])
def test_a_familys_density_integrates_to_one(position: str, strategy: str) -> None:
    config = family(position, sampling_strategy=strategy, delta_azimuth_deg=300.0)
    rng = np.random.default_rng(1)
    count = 150_000
    # all of the ball that could be reached, drawn so that every radius is as likely: weight 4 pi r^2 R
    radius = 1.3 * rng.random(count)
    rise, azimuth = rng.uniform(-0.25, 0.35, count), rng.uniform(-np.pi, np.pi, count)
    level = np.sqrt(1 - rise**2)
    way = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), rise], axis=1)
    eyes = centres(REFERENCE) + way * radius[:, None]
    density = shell_density(config, REFERENCE, TARGET, HISTORY, eyes)
    values = density * radius**2 * (1.3 * 0.6 * 2 * np.pi)
    error = values.std() / np.sqrt(count)
    assert error < 0.02
    assert values.mean() == pytest.approx(1, abs=5 * error)


@pytest.mark.parametrize("preset", PRESETS)
def test_centres_fall_into_cells_as_often_as_the_mixtures_density_says(preset: str) -> None:
    config = PRESETS[preset]
    many = [msgspec.structs.replace(each, count=each.count * 1000) for each in config.components]
    drawn = centres(shell(msgspec.structs.replace(config, components=tuple(many)), 7).poses)
    cell = 0.12
    cells, found = np.unique(
        np.floor((drawn - centres(REFERENCE)) / cell).astype(int), axis=0, return_counts=True
    )
    # the density over each of these cells, from points spread over them
    steps = (np.arange(6) + 0.5) / 6
    inner = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    eyes = centres(REFERENCE) + (cells[:, None] + inner) * cell
    density = shell_density(config, REFERENCE, TARGET, HISTORY, eyes.reshape(-1, 3))
    expected = len(drawn) * cell**3 * density.reshape(len(cells), -1).mean(axis=1)
    usual = expected > 50
    assert np.count_nonzero(usual) > 60
    # cells were found by drawing into them, so only those that could not well be missed are compared
    off = (found - expected)[usual] / np.sqrt(expected[usual] + (0.03 * expected[usual]) ** 2)
    assert np.abs(off).max() < 6
    assert (off**2).mean() == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), x=st.floats(-1e4, 1e4), kappa=st.floats(0, 200))
def test_every_centre_that_is_drawn_has_a_density(
    preset: str, seed: int, x: float, kappa: float
) -> None:
    config = msgspec.structs.replace(
        PRESETS[preset], base=msgspec.structs.replace(PRESETS[preset].base, kappa=kappa)
    )
    moved = REFERENCE.copy()
    moved[9] = x
    proposal = shell(config, seed, reference=moved)
    assert np.isfinite(proposal.density).all()
    assert (proposal.density > 0).all()
    again = shell_density(config, moved, TARGET, HISTORY, centres(proposal.poses))
    np.testing.assert_array_equal(again, proposal.density)


def test_a_centre_counts_for_every_component_that_could_have_proposed_it() -> None:
    one, other = family("forward_local", 30), family("upper_bound_free_shell", 10)
    both = CandidateMixtureConfig(
        components=(
            *one.components,
            msgspec.structs.replace(other.components[0], name="other"),
        )
    )
    proposal = shell(both)
    parts = [
        shell_density(each, REFERENCE, TARGET, HISTORY, centres(proposal.poses))
        for each in (one, other)
    ]
    np.testing.assert_allclose(proposal.density, 0.75 * parts[0] + 0.25 * parts[1], rtol=1e-12)
    assert (parts[1] > 0).all()


def test_where_nothing_is_proposed_there_is_no_density() -> None:
    here = centres(REFERENCE)
    eyes = here + np.array([[0, 0, 0], [0, 0, 1], 2 * forwards(REFERENCE), [99, 0, 0]])
    np.testing.assert_array_equal(
        shell_density(PRESETS["default"], REFERENCE, TARGET, HISTORY, eyes), 0
    )


# -------------------------------------------------------------------------------------- views


@pytest.mark.parametrize("view", STRATEGY_NAMES)
def test_views_look_where_their_strategy_says_and_are_level(view: str) -> None:
    proposal = shell(family("upper_bound_free_shell", view=view))
    eyes, looks = centres(proposal.poses), forwards(proposal.poses)
    away = eyes - centres(REFERENCE)
    meant = {
        "forward_rig": np.broadcast_to(forwards(REFERENCE), eyes.shape),
        "radial_away": away,
        "radial_towards": -away,
        "target_point": TARGET - eyes,
    }[view]
    unit = meant / np.linalg.norm(meant, axis=1, keepdims=True)
    np.testing.assert_allclose(looks, unit, atol=1e-9)
    turned = rotations(proposal.poses)
    np.testing.assert_allclose(turned[:, 2, 0], 0, atol=1e-9)  # x is level
    assert (turned[:, 2, 1] < 0).all()  # and y points down


def test_a_rolled_reference_gives_level_views() -> None:
    roll = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
    rolled = REFERENCE.copy()
    rolled[:9] = (rotations(REFERENCE) @ roll).ravel()
    proposal = shell(family("forward_local"), reference=rolled)
    np.testing.assert_allclose(forwards(proposal.poses) @ forwards(REFERENCE), 1, atol=1e-12)
    np.testing.assert_allclose(rotations(proposal.poses)[:, 2, 0], 0, atol=1e-9)


def test_a_candidate_at_the_target_looks_as_the_reference_does() -> None:
    config = family("forward_local", 20, view="target_point")
    at = centres(shell(config).poses)[3]
    # aims and draws do not depend on the target here, so row 3 comes out at it
    proposal = shell(config, target=at)
    np.testing.assert_array_equal(centres(proposal.poses)[3], at)
    np.testing.assert_allclose(forwards(proposal.poses)[3], forwards(REFERENCE), atol=1e-9)
    assert are_rigid(proposal.poses, 1e-9).all()


def test_views_stray_by_no_more_than_their_box() -> None:
    config = family("forward_local", 4000, view_max_azimuth_deg=40.0, view_max_elevation_deg=10.0)
    looks = forwards(shell(config).poses)
    ahead = forwards(REFERENCE)
    turn = np.degrees(
        wrapped(np.arctan2(looks[:, 1], looks[:, 0]) - np.arctan2(ahead[1], ahead[0]))
    )
    tilt = np.degrees(np.arcsin(looks[:, 2]) - np.arcsin(ahead[2]))
    assert (turn.min(), turn.max()) == pytest.approx((-40, 40), abs=0.5)
    assert (tilt.min(), tilt.max()) == pytest.approx((-10, 10), abs=0.5)
    assert np.histogram(turn, bins=8)[0] == pytest.approx(500, abs=110)
    assert np.corrcoef(turn, tilt)[0, 1] == pytest.approx(0, abs=0.06)


def test_views_may_stray_on_the_sphere_instead() -> None:
    config = family("forward_local", 4000, view_kappa=6.0, view_max_angle_deg=35.0)
    looks = forwards(shell(config).poses)
    off = np.degrees(np.arccos(np.clip(looks @ forwards(REFERENCE), -1, 1)))
    assert off.max() <= 35 + 1e-6
    assert off.max() > 33
    tight = family("forward_local", 4000, view_kappa=500.0, view_max_angle_deg=35.0)
    near = forwards(shell(tight).poses) @ forwards(REFERENCE)
    assert np.degrees(np.arccos(np.clip(near, -1, 1))).mean() < off.mean() / 2


def test_jitter_never_turns_a_camera_over() -> None:
    steep = look_at([0.0, 0.0, 1.5], [0.1, 0.0, 0.0])
    config = family("forward_local", 2000, view_max_elevation_deg=90.0, view_max_azimuth_deg=90.0)
    proposal = shell(config, reference=steep)
    assert (rotations(proposal.poses)[:, 2, 1] <= 0).all()
    assert are_rigid(proposal.poses, 1e-9).all()


def test_roll_is_about_the_view_itself() -> None:
    proposal = shell(family("forward_local", 2000, view_roll_jitter_deg=20.0))
    np.testing.assert_allclose(forwards(proposal.poses) @ forwards(REFERENCE), 1, atol=1e-12)
    turned = rotations(proposal.poses)
    # how far the image's x is from level, measured in the image
    roll = np.degrees(np.arctan2(-turned[:, 2, 0], -turned[:, 2, 1]))
    assert (roll.min(), roll.max()) == pytest.approx((-20, 20), abs=0.5)

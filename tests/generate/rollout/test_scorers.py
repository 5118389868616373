from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.geometry.poses import look_at
from rollbook.generate.rollout.scorers import (
    METRES_PER_RADIAN,
    SCORERS,
    Scorer,
    ShellView,
    load_scorer,
    scorer_named,
)

ORACLE = {"coverage_greedy", "rri_greedy_target", "rri_greedy_scene", "recorded_continuation"}
EYES = np.array([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 3.0], [4.0, 0, 0]])
POLICY = """
import numpy as np

seen = {}

def by_distance(features, names, valid, context):
    seen.update(features=features, names=names, valid=valid, context=context)
    return -features[:, names.index("dist_target")]

class Model:
    def score(self, features, names, valid, context):
        return np.arange(len(features)) + 0.5

model = Model()
number = 3

def ruins(features, names, valid, context):
    features[:] = 0
    valid[:] = True
    context["poses"][:] = 0
    context["visited"][:] = 0
    return np.zeros(len(features))

def short(features, names, valid, context):
    return np.zeros(len(features) - 1)

def square(features, names, valid, context):
    return np.zeros((len(features), 1))

def whole(features, names, valid, context):
    return np.arange(len(features))

def words(features, names, valid, context):
    return np.array(["a"] * len(features))

def a_list(features, names, valid, context):
    return [0.0] * len(features)

def talkative(features, names, valid, context):
    print("four candidates, how nice")
    return np.zeros(4)


def unsure(features, names, valid, context):
    return np.array([0.0, np.nan, np.nan, np.inf])
"""


@pytest.fixture
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with policies of a user."""
    (tmp_path / "users_policies.py").write_text(POLICY)
    (tmp_path / "users_broken.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "users_slip.py").write_text("def policy(:\n")
    (tmp_path / "users_mood.py").write_text("raise ValueError('not today')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "users_policies"
    sys.modules.pop("users_policies", None)


def a_shell(**changed: Any) -> ShellView:
    """Four candidates, the second of them not valid."""
    features = np.arange(4 * len(FEATURES), dtype=np.float32).reshape(4, -1) % 7
    features[1] = np.nan
    labels = {
        "target_root_gain": np.array([0.1, np.nan, 0.3, 0.2]),
        "scene_root_gain": np.array([0.3, 0.1, 0.2]),
        "target_coverage_before": np.array([0.5, np.nan, 0.5, 0.5]),
        "target_coverage_after": np.array([0.5, np.nan, 0.75, 0.625]),
    }
    return ShellView(
        **{
            "features": features,
            "poses": look_at(EYES, [9.0, 9.0, 9.0]),
            "valid": np.array([True, False, True, True]),
            "reference_pose": look_at([0.0, 0, 0], [1.0, 0, 0]),
            "visited": np.array([[0.0, 0, 0], [4.0, 1.0, 0]]),
            "labels": labels,
            "next_recorded": look_at([0.0, 0, 3.0], [1.0, 0, 3.0]),
            **changed,
        }
    )


def column(shell: ShellView, name: str) -> NDArray[np.float64]:
    return shell.features[:, FEATURES.index(name)].astype(np.float64)


def test_the_scorers_are_these_and_say_who_reads_labels() -> None:
    assert set(SCORERS) == ORACLE | {
        *("random_valid", "nearest", "farthest_from_history", "farthest_from_reference"),
        *("novelty", "target_area", "frontier", "information_gain", "information_gain_target"),
    }
    assert {name for name, each in SCORERS.items() if each.reads_labels} == ORACLE
    assert all(each.name == name and each.meaning for name, each in SCORERS.items())


@pytest.mark.parametrize("name", SCORERS)
def test_a_score_for_every_candidate_and_nan_where_one_is_not_valid(name: str) -> None:
    shell = a_shell()
    scores = SCORERS[name](shell)
    assert scores.shape == (4,)
    assert scores.dtype == np.float64
    assert np.isnan(scores).tolist() == [False, True, False, False]


@pytest.mark.parametrize("name", sorted(set(SCORERS) - ORACLE))
def test_what_does_not_read_labels_is_given_none(name: str) -> None:
    shell = a_shell()
    blind = a_shell(labels={}, next_recorded=None)
    garbled = a_shell(
        labels={key: -99 * values for key, values in shell.labels.items()},
        next_recorded=look_at([9.0, 0, 0], [0.0, 0, 0]),
    )
    scores = SCORERS[name](shell)
    assert scores.tobytes() == SCORERS[name](blind).tobytes()
    assert scores.tobytes() == SCORERS[name](garbled).tobytes()


def test_labels_are_taken_away_before_an_actors_scorer_is_called() -> None:
    given: list[ShellView] = []

    def curious(shell: ShellView) -> NDArray[np.float64]:
        given.append(shell)
        return shell.label("target_root_gain")

    with pytest.raises(ConfigurationError, match="the oracle gave: none"):
        Scorer("curious", "", reads_labels=False, score=curious)(a_shell())
    assert given[0].next_recorded is None
    assert Scorer("curious", "", reads_labels=True, score=curious)(a_shell())[2] == 0.3


@pytest.mark.parametrize(
    ("name", "feature", "sign"),
    [
        ("nearest", "dist_target", -1),
        ("target_area", "obb_area_frac", 1),
        ("frontier", "frontier_per_ray", 1),
        ("information_gain", "unknown_per_ray", 1),
        ("information_gain_target", "target_unknown_per_ray", 1),
    ],
)
def test_heuristics_read_their_feature(name: str, feature: str, sign: int) -> None:
    shell = a_shell()
    kept = shell.valid
    assert SCORERS[name](shell)[kept].tolist() == (sign * column(shell, feature))[kept].tolist()


def test_a_new_angle_counts_only_where_the_target_is_in_view() -> None:
    shell = a_shell()
    shell.features[:, FEATURES.index("view_novelty_rad")] = [0.5, np.nan, 2.0, 1.0]
    shell.features[:, FEATURES.index("obb_area_frac")] = [0.25, np.nan, 0.0, 0.5]
    assert SCORERS["novelty"](shell) == pytest.approx([0.5, np.nan, 0, 1], nan_ok=True)


def test_chance_has_no_opinion() -> None:
    assert SCORERS["random_valid"](a_shell()).tolist() == pytest.approx(
        [0, np.nan, 0, 0], nan_ok=True
    )


def test_farthest_is_measured_to_the_nearest_visited_place_or_to_the_reference() -> None:
    history = SCORERS["farthest_from_history"](a_shell())
    assert history == pytest.approx([1, np.nan, 3, 1], nan_ok=True)
    reference = SCORERS["farthest_from_reference"](a_shell())
    assert reference == pytest.approx([1, np.nan, 3, 4], nan_ok=True)
    with pytest.raises(InvalidValue, match="visited is empty, expected at least the root"):
        SCORERS["farthest_from_history"](a_shell(visited=np.zeros((0, 3))))


def test_the_oracles_scores_are_its_labels_also_of_the_valid_part_only() -> None:
    found = {name: SCORERS[name](a_shell()) for name in ORACLE}
    assert found["rri_greedy_target"] == pytest.approx([0.1, np.nan, 0.3, 0.2], nan_ok=True)
    assert found["rri_greedy_scene"] == pytest.approx([0.3, np.nan, 0.1, 0.2], nan_ok=True)
    assert found["coverage_greedy"] == pytest.approx([0, np.nan, 0.25, 0.125], nan_ok=True)


def test_a_label_that_is_missing_or_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'scene_root_gain' is needed, the oracle gave: x"):
        SCORERS["rri_greedy_scene"](a_shell(labels={"x": np.zeros(4)}))
    with pytest.raises(InvalidValue, match=r"of shape \[2\], expected \[4\], or \[3\]"):
        SCORERS["rri_greedy_scene"](a_shell(labels={"scene_root_gain": np.zeros(2)}))


def test_the_recording_goes_on_at_the_nearest_pose_turns_included() -> None:
    ahead = look_at([0.0, 0, 0], [1.0, 0, 0])
    poses = np.stack(
        [ahead, look_at([0.0, 0, 0], [0.0, 1.0, 0]), look_at([0.5, 0, 0], [2.0, 0, 0]), ahead]
    )
    shell = a_shell(poses=poses, next_recorded=ahead, valid=np.ones(4, np.bool_))
    scores = SCORERS["recorded_continuation"](shell)
    assert scores == pytest.approx([0, -METRES_PER_RADIAN * math.pi / 2, -0.5, 0], abs=1e-6)


def test_where_the_recording_ends_nothing_is_known() -> None:
    scores = SCORERS["recorded_continuation"](a_shell(next_recorded=None))
    assert np.isnan(scores).all()


def test_a_shell_whose_columns_do_not_fit_is_refused() -> None:
    with pytest.raises(InvalidValue, match="features is of shape"):
        a_shell(features=np.zeros((4, 3), np.float32))
    with pytest.raises(InvalidValue, match="poses is of shape"):
        a_shell(poses=np.zeros((3, 12)))
    shell = a_shell(features=np.zeros((4, 1), np.float32), names=("trans_m",))
    with pytest.raises(ConfigurationError, match="no feature 'dist_target'"):
        SCORERS["nearest"](shell)


# ----------------------------------------------------------------------------------------- learned


def test_a_learned_policy_may_say_which_revision_it_is(
    policy_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_scorer(f"{policy_file}:by_distance")
    revision = PolicyRevision(
        policy_family="views", revision_id="rev-7", policy_digest="d7", produced_at_ms=1
    )
    policy = sys.modules[policy_file].by_distance
    monkeypatch.setattr(policy, "policy_revision", revision, raising=False)
    assert load_scorer(f"{policy_file}:by_distance").policy_revision == revision


def test_a_learned_policy_is_named_by_module_and_attribute(policy_file: str) -> None:
    scorer = load_scorer(f"{policy_file}:by_distance")
    shell = a_shell()
    assert not scorer.reads_labels
    assert scorer.name == "users_policies:by_distance"
    assert scorer(shell).tobytes() == SCORERS["nearest"](shell).tobytes()
    seen = sys.modules[policy_file].seen
    assert seen["names"] == FEATURES
    assert set(seen["context"]) == {"poses", "reference_pose", "visited"}
    assert (scorer.checkpoint, scorer.policy_revision) == (None, None)
    method = scorer_named(f"{policy_file}:model.score")
    assert method(shell) == pytest.approx([0.5, np.nan, 2.5, 3.5], nan_ok=True)


def test_names_lead_to_built_in_scorers_first() -> None:
    assert scorer_named("novelty") is SCORERS["novelty"]
    with pytest.raises(ConfigurationError, match="'novelti' is not known; expected module:attr"):
        scorer_named("novelti")


def test_a_learned_policy_cannot_change_what_it_was_given(policy_file: str) -> None:
    shell = a_shell()
    before = (shell.features.tobytes(), shell.valid.tobytes(), shell.poses.tobytes())
    load_scorer(f"{policy_file}:ruins")(shell)
    assert before == (shell.features.tobytes(), shell.valid.tobytes(), shell.poses.tobytes())
    assert shell.visited[1].tolist() == [4, 1, 0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("users_policies", "expected module:attr"),
        ("users_policies:", "expected module:attr"),
        (":x", "expected module:attr"),
        ("a:b:c", "expected module:attr"),
        ("no_such_module_here:x", "cannot be imported: No module named"),
        ("users_broken:x", "a_package_that_is_not_there"),
        ("users_slip:x", "cannot be imported: SyntaxError: .*line 1"),
        ("users_mood:x", "cannot be imported: ValueError: not today"),
        ("users_policies:nothing", "there is no nothing in users_policies"),
        ("users_policies:model.nothing", r"there is no model\.nothing"),
        ("users_policies:number", "is a int, expected something to call"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, message: str, policy_file: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_scorer(path)
    assert path in str(caught.value)


def test_what_a_learned_policy_prints_does_not_mix_with_results(
    policy_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load_scorer(f"{policy_file}:talkative")(a_shell())
    assert capsys.readouterr() == ("", "four candidates, how nice\n")


def test_an_unknown_scorer_is_told_those_most_like_it() -> None:
    with pytest.raises(ConfigurationError, match=r"'targetarea' is not known; .* target_area, "):
        scorer_named("targetarea")


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("short", r"scores is float64\[3\], expected float\[4\]"),
        ("square", r"scores is float64\[4, 1\], expected float\[4\]"),
        ("whole", r"scores is int64\[4\], expected float\[4\]"),
        ("words", r"scores is <U1\[4\], expected float\[4\]"),
        ("a_list", "scores is a list, expected a numpy array"),
        ("unsure", r"scores\[2\] is nan, expected a finite number for every valid .*; 2 are not"),
    ],
)
def test_scores_that_do_not_fit_are_refused_by_name(
    attribute: str, message: str, policy_file: str
) -> None:
    with pytest.raises(InvalidValue, match=f"users_policies:{attribute}.*{message}"):
        load_scorer(f"{policy_file}:{attribute}")(a_shell())

"""Presets: gates by name, each stricter than the one before."""

import itertools

import pytest

from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.gate_presets import GATE_PRESETS, gate_preset
from rollbook.errors import ConfigurationError


def test_the_default_preset_is_the_default_gate() -> None:
    assert gate_preset("default") == Gate()
    assert gate_preset("default", reward=True) == Gate.for_reward()


def test_each_preset_asks_for_more_than_the_one_before() -> None:
    gates = [preset.gate for preset in GATE_PRESETS.values()]
    for easier, harder in itertools.pairwise(gates):
        assert harder.alpha < easier.alpha
        assert harder.n_min > easier.n_min
        assert harder.least_clusters >= easier.least_clusters
        margins = [gate.rule("success").margin for gate in (easier, harder)]
        assert margins[0] is not None
        assert margins[1] is not None
        assert margins[1] < margins[0]


def test_no_preset_forgives_what_a_candidate_could_exploit() -> None:
    for preset in GATE_PRESETS.values():
        gate = preset.gate
        assert gate.missing == "lost"
        assert not gate.accept_unverified_environment
        assert not gate.accept_retried
        assert gate_from(gate.as_dict()) == gate


def test_an_unknown_preset_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="'lax'; the presets are quick, default, strict"):
        gate_preset("lax")

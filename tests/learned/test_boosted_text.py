"""Texts of LightGBM models that somebody wrote by hand: refused before LightGBM reads them."""

from __future__ import annotations

import re
from pathlib import Path

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import StorageError
from rollbook.learned import load_learned_policy
from rollbook.learned.boosted_text import checked_model
from tests.learned.small_runs import NAMES, small_model, written_run

MODEL = small_model(0, NAMES[:2])


def changed(name: str, value: str, *, tree: int = 0) -> str:
    """The model with other numbers in one of its trees, and the sizes that belong to them."""
    start = MODEL.index(f"Tree={tree}\n")
    end = MODEL.index(f"Tree={tree + 1}\n")
    block = re.sub(
        rf"^{name}=.*$", f"{name}={value}", MODEL[start:end], count=1, flags=re.MULTILINE
    )
    assert block != MODEL[start:end]
    head = MODEL[:start].replace(f"={end - start} ", f"={len(block)} ", 1)
    return head + block + MODEL[end:]


def numbers(name: str) -> list[str]:
    found = re.search(rf"^{name}=(.*)$", MODEL, re.MULTILINE)
    assert found is not None
    return found[1].split()


def with_first(name: str, value: str) -> str:
    return changed(name, " ".join([value, *numbers(name)[1:]]))


HOSTILE = {
    "a child beyond the tree": (with_first("left_child", "100000"), "each leaf once"),
    "a leaf beyond the tree": (with_first("right_child", "-100000"), "each leaf once"),
    "a split that leads to itself": (with_first("left_child", "0"), "leads back"),
    "a feature that is not there": (with_first("split_feature", "99999"), "there are 2 features"),
    "a category": (with_first("decision_type", "1"), "decision_type"),
    "more leaves than numbers": (changed("num_leaves", "100000000"), "numbers, not"),
    "fewer than no leaves": (changed("num_leaves", "-5"), "num_leaves is '-5'"),
    "too few values": (changed("leaf_value", "1 2"), "leaf_value has 2 numbers"),
    "a value that is not finite": (with_first("leaf_value", "nan"), "not finite"),
    "a value that overflows": (with_first("leaf_value", "1e999"), "not finite"),
    "a value that is a word": (with_first("leaf_value", "many"), "no number"),
    "categories": (changed("num_cat", "1"), "num_cat"),
    "linear leaves": (changed("is_linear", "1"), "is_linear"),
    "sizes that are not those of the trees": (
        MODEL.replace("tree_sizes=", "tree_sizes=9"),
        "tree_sizes add up",
    ),
    "features without names": (
        MODEL.replace("max_feature_idx=1", "max_feature_idx=99999"),
        "feature_names",
    ),
    "classes": (MODEL.replace("num_class=1", "num_class=3"), "num_class"),
    "no tree in an iteration": (
        MODEL.replace("tree_per_iteration=1", "tree_per_iteration=0"),
        "tree_per_iteration",
    ),
    "another objective": (
        MODEL.replace("=regression\n", "=multiclass num_class:9\n", 1),
        "objective",
    ),
    "a feature that the run does not name": (
        MODEL.replace("feature_names=near", "feature_names=evil"),
        "'evil'",
    ),
    "half of it": (MODEL[: len(MODEL) // 2], "not all of it"),
    "nothing": ("", "not the text of a model"),
    "not ASCII": (MODEL.replace("near", "n\u00e9ar"), "not the text of a model"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_by_name(name: str, tmp_path: Path) -> None:
    text, words = HOSTILE[name]
    heads = {"head-01.txt": text.encode(), "head-02.txt": MODEL.encode()}
    run = written_run(tmp_path / "run", "boosted", heads)
    with pytest.raises(StorageError, match=f"head-01.*{words}"):
        load_learned_policy(run)


def test_a_head_that_the_run_does_not_name_is_refused(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", "boosted", {"head-01.txt": MODEL.encode()})
    with pytest.raises(StorageError, match=r"head-02\.txt: the run names no such"):
        load_learned_policy(run)


@pytest.mark.parametrize("rows", [50, 400])
def test_what_is_kept_of_a_model_predicts_the_same(rows: int) -> None:
    """Also a model that found nothing to learn: a single leaf."""
    inputs = np.random.default_rng(rows).random((rows, 2)) * (rows > 50)
    data = lightgbm.Dataset(inputs, inputs.sum(axis=1), feature_name=["a", "b@shell"])
    whole = lightgbm.train({"verbosity": -1, "num_threads": 1}, data, 7)
    kept = lightgbm.Booster(model_str=checked_model(whole.model_to_string()))
    assert kept.feature_name() == whole.feature_name()
    np.testing.assert_array_equal(kept.predict(inputs), whole.predict(inputs))


@settings(deadline=None)
@given(st.integers(0, len(MODEL) - 1), st.characters(max_codepoint=127))
def test_a_changed_character_is_refused_or_harmless(at: int, character: str) -> None:
    text = MODEL[:at] + character + MODEL[at + 1 :]
    try:
        kept = checked_model(text)
    except ValueError:
        return
    assert np.isfinite(lightgbm.Booster(model_str=kept).predict(np.zeros((1, 2)))).all()

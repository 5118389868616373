"""The text of a LightGBM model, checked before LightGBM reads it.

Its reader trusts every number: a wrong one ends the process, reads memory that is not the model's, or never returns.
So a checkpoint is refused here unless it is exactly what a training of this project writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_END = "end of trees\n"
_FIXED = {
    "num_class": ("1",),
    "num_tree_per_iteration": ("1",),
    "label_index": ("0",),
    "objective": ("lambdarank", "regression"),
}
_HEAD = {*_FIXED, "version", "max_feature_idx", "feature_names", "feature_infos", "tree_sizes"}
_OF_SPLITS = (
    *("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child"),
    *("internal_value", "internal_weight", "internal_count"),
)
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_OF_TREE = {
    *("Tree", "num_leaves", "num_cat", "is_linear", "shrinkage"),
    *(*_OF_SPLITS, *_OF_LEAVES),
}
_STRANGE = re.compile(r"[^\n -~]")
"""A 0 would end the text for LightGBM."""
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf|nan)"
_NUMBERS = re.compile(rf"(?:{_NUMBER}(?: {_NUMBER})*)?", re.ASCII)
_DECISIONS = frozenset({"0", "2", "4", "6", "8", "10"})
"""Of numbers, with every way to treat a missing value. Odd ones are of categories."""


def checked_model(text: str) -> str:
    """The part of a model's text that predictions need. Anything unexpected is a ValueError that says where."""
    head, gap, rest = text.partition("\n\n")
    trees, end, _ = rest.partition(_END)
    if not (head.startswith("tree\n") and gap and end) or _STRANGE.search(head + trees):
        raise ValueError("it is not the text of a model, or not all of it")
    fields = _fields(head.removeprefix("tree\n"), _HEAD, "the header")
    for name, expected in _FIXED.items():
        if fields[name] not in expected:
            raise ValueError(f"{name} is {fields[name]!r}, expected {' or '.join(expected)}")
    features = _whole(fields["max_feature_idx"], "max_feature_idx") + 1
    for name in ("feature_names", "feature_infos"):
        if len(fields[name].split(" ")) != features:
            raise ValueError(f"{name} are not {features}, as max_feature_idx says")
    sizes = [_whole(each, "tree_sizes") for each in fields["tree_sizes"].split(" ")]
    if sum(sizes) != len(trees):
        raise ValueError(f"tree_sizes add up to {sum(sizes)}, the trees have {len(trees)} bytes")
    at = 0
    for number, size in enumerate(sizes):
        _check_tree(trees[at : at + size], number, features)
        at += size
    return f"{head}{gap}{trees}{end}"


def _check_tree(text: str, number: int, features: int) -> None:
    where = f"tree {number}"
    fields = _fields(text.rstrip("\n"), _OF_TREE, where)
    for name, expected in (("Tree", str(number)), ("num_cat", "0"), ("is_linear", "0")):
        if fields[name] != expected:
            raise ValueError(f"{where}: {name} is {fields[name]!r}, expected {expected}")
    leaves = _whole(fields["num_leaves"], f"{where}: num_leaves")
    numbers = {
        name: fields[name].split(" ") if fields[name] else []
        for name in (*_OF_SPLITS, *_OF_LEAVES, "shrinkage")
    }
    for names, count in ((_OF_SPLITS, leaves - 1), (_OF_LEAVES, leaves)):
        for name in names:
            # a tree of one leaf has only its value
            if len(numbers[name]) != count and not (leaves == 1 and name != "leaf_value"):
                raise ValueError(f"{where}: {name} has {len(numbers[name])} numbers, not {count}")
    for name in numbers:
        if not _NUMBERS.fullmatch(fields[name]):
            raise ValueError(f"{where}: {name} has something that is no number")
    for name in ("leaf_value", "threshold"):
        if not all(math.isfinite(float(each)) for each in numbers[name]):
            raise ValueError(f"{where}: {name} has a number that is not finite")
    if leaves > 1:
        _check_splits(numbers, leaves, features, where)


def _check_splits(numbers: dict[str, list[str]], leaves: int, features: int, where: str) -> None:
    """Every split leads down to each leaf once, by features that there are."""
    used = [_whole(each, f"{where}: split_feature") for each in numbers["split_feature"]]
    if max(used) >= features:
        raise ValueError(f"{where}: split_feature is {max(used)}, there are {features} features")
    if not _DECISIONS.issuperset(numbers["decision_type"]):
        raise ValueError(f"{where}: decision_type is not that of a number")
    sides = [_children(numbers[name], where) for name in ("left_child", "right_child")]
    for split, children in enumerate(zip(*sides, strict=True)):
        if any(0 <= child <= split for child in children):
            raise ValueError(f"{where}: split {split} leads back to a split before it")
    if sorted([*sides[0], *sides[1]]) != [*range(-leaves, 0), *range(1, leaves - 1)]:
        raise ValueError(f"{where}: its splits do not lead to each leaf once")


def _children(numbers: Sequence[str], where: str) -> list[int]:
    signs = [-1 if each.startswith("-") else 1 for each in numbers]
    sizes = [_whole(each.removeprefix("-"), f"{where}: a child") for each in numbers]
    return [sign * size for sign, size in zip(signs, sizes, strict=True)]


def _fields(text: str, known: set[str], where: str) -> dict[str, str]:
    """`name=value`, line by line: every known name once, and no other."""
    pairs = [line.partition("=") for line in text.split("\n")]
    names = [name for name, _, _ in pairs]
    if any(not sign or "=" in value for _, sign, value in pairs):
        raise ValueError(f"{where} has a line that is not a name, = and a value")
    if set(names) != known or len(names) != len(known):
        wrong = sorted({*names} ^ known) or sorted(
            {each for each in names if names.count(each) > 1}
        )
        raise ValueError(f"{where} does not have every field once: {', '.join(wrong)[:80]!r}")
    return {name: value for name, _, value in pairs}


def _whole(text: str, what: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{what} is {text[:20]!r}, expected a whole number")
    return int(text)

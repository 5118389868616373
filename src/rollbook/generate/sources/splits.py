"""Splits: the scenes for training, validation and test. A scene is in one split with all its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError

SPLITS: Final = ("train", "val", "test")
_SPLITS_DOMAIN = "rollbook.source_splits.v1"
_DRAW_DOMAIN = "rollbook.source_split_draw.v1"


class SplitMethod(StrEnum):
    IN_TURN = "in_turn"
    """Scenes in order of their ids, each to the split that is furthest behind its share. Shares hold for every
    number of scenes, and scenes added at the end do not move earlier ones."""
    BY_HASH = "by_hash"
    """Each scene by a digest of its id, so it is in the same split in every store. Shares hold on average."""


class SplitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How scenes are split."""

    method: SplitMethod = SplitMethod.IN_TURN
    seed: int = 0
    """Seed of the draw by hash."""
    train: float = 0.8
    val: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.train, self.val, self.test)
        if not all(0 <= share <= 1 for share in shares) or not math.isclose(sum(shares), 1):
            message = f"splits: shares are {shares}, expected three from 0 to 1 that add up to 1"
            raise ConfigurationError(message=message)


class Splits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """splits.json."""

    method: SplitMethod
    seed: int
    shares: dict[str, float]
    given: list[str]
    """Scenes whose split was given instead of drawn."""
    train: list[str]
    val: list[str]
    test: list[str]
    split_manifest_hash: str = ""

    def scenes(self, split: str) -> list[str]:
        found: list[str] = getattr(self, split)
        return found

    def computed_hash(self) -> str:
        payload = msgspec.to_builtins(self)
        del payload["split_manifest_hash"]
        return digest_of(_SPLITS_DOMAIN, payload)


def assign_splits(
    scene_ids: Sequence[str], config: SplitConfig, given: Mapping[str, str] | None = None
) -> Splits:
    """Assigns every scene to one split; `given` fixes the split of some scenes."""
    fixed = dict(given or {})
    for scene_id, split in fixed.items():
        if split not in SPLITS:
            message = f"scene {scene_id!r} is to be in split {split!r}, expected one of {', '.join(SPLITS)}"
            raise ConfigurationError(message=message)
    shares = {split: float(getattr(config, split)) for split in SPLITS}
    members: dict[str, list[str]] = {split: [] for split in SPLITS}
    drawn = dict.fromkeys(SPLITS, 0)
    for scene_id in sorted(scene_ids):
        if scene_id in fixed:
            members[fixed[scene_id]].append(scene_id)
            continue
        if config.method is SplitMethod.BY_HASH:
            split = _drawn_split(scene_id, config.seed, shares)
        else:
            split = _furthest_behind(drawn, shares)
        drawn[split] += 1
        members[split].append(scene_id)
    splits = Splits(
        method=config.method,
        seed=config.seed,
        shares=shares,
        given=sorted(fixed.keys() & set(scene_ids)),
        train=members["train"],
        val=members["val"],
        test=members["test"],
    )
    return msgspec.structs.replace(splits, split_manifest_hash=splits.computed_hash())


def _furthest_behind(drawn: Mapping[str, int], shares: Mapping[str, float]) -> str:
    """The split that lacks most after one more scene; the earlier one of two equal splits."""
    total = sum(drawn.values()) + 1
    # rounded, so that 0.1 * 3 equals 0.3
    behind = {split: round(shares[split] * total - drawn[split], 9) for split in SPLITS}
    return max(SPLITS, key=lambda split: behind[split])


def _drawn_split(scene_id: str, seed: int, shares: Mapping[str, float]) -> str:
    draw = int(digest_of(_DRAW_DOMAIN, [seed, scene_id])[:13], 16) / 16**13
    if draw < shares["train"]:
        return "train"
    return "val" if draw < shares["train"] + shares["val"] else "test"

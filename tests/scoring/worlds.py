"""Worlds for simulations: pairs of two policies whose true difference is known, in scenes of known sizes.

A world draws the gain of every pair. Pairs of one scene share a part of their luck: `icc` is the correlation of their
gains. All draws come from the generator that is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def equal_scenes(scenes: int, pairs_each: int = 10) -> Ints:
    """The scene of each pair."""
    return np.repeat(np.arange(scenes), pairs_each)


def unequal_scenes(scenes: int, pairs_each: int = 10) -> Ints:
    """As many pairs, of which scene g has a share of about 1/g, and at least one."""
    shares = 1 / np.arange(1, scenes + 1)
    sizes = np.maximum(1, np.floor(shares / shares.sum() * scenes * pairs_each)).astype(int)
    sizes[0] += scenes * pairs_each - sizes.sum()
    return np.repeat(np.arange(scenes), sizes)


def alone(pairs: int) -> Ints:
    """Every pair in a scene of its own."""
    return np.arange(pairs)


@dataclass(frozen=True)
class SuccessWorld:
    """A pair is won, lost or neither. Two pairs of a scene are copies of one draw with probability `icc`."""

    win: float
    loss: float
    icc: float = 0.0

    def gains(self, rng: np.random.Generator, scenes: Ints) -> Floats:
        kinds, chances = [1.0, -1.0, 0.0], [self.win, self.loss, 1 - self.win - self.loss]
        own = rng.choice(kinds, len(scenes), p=chances)
        common = rng.choice(kinds, int(scenes.max()) + 1, p=chances)[scenes]
        return np.where(rng.random(len(scenes)) < np.sqrt(self.icc), common, own)


@dataclass(frozen=True)
class NormalWorld:
    """Gains with this mean, in standard deviations."""

    mean: float = 0.0
    icc: float = 0.0

    def gains(self, rng: np.random.Generator, scenes: Ints) -> Floats:
        common = rng.normal(size=int(scenes.max()) + 1)[scenes]
        own = rng.normal(size=len(scenes))
        mixed: Floats = np.sqrt(self.icc) * common + np.sqrt(1 - self.icc) * own
        return self.mean + mixed


@dataclass(frozen=True)
class SkewedWorld:
    """Mostly a small gain, sometimes a large loss: one less an exponential variable. The mean is zero."""

    icc: float = 0.0

    def gains(self, rng: np.random.Generator, scenes: Ints) -> Floats:
        common = rng.exponential(size=int(scenes.max()) + 1)[scenes]
        own = rng.exponential(size=len(scenes))
        mixed = np.where(rng.random(len(scenes)) < np.sqrt(self.icc), common, own)
        return 1 - mixed


@dataclass(frozen=True)
class DisasterWorld:
    """A small gain in nearly every pair and a disaster in a few: truly worse by default."""

    gain: float = 0.2
    loss: float = 20.0
    share: float = 0.02

    def gains(self, rng: np.random.Generator, scenes: Ints) -> Floats:
        lost = rng.random(len(scenes)) < self.share
        return np.where(lost, -self.loss, self.gain)


World = SuccessWorld | NormalWorld | SkewedWorld | DisasterWorld

"""TrainingStates: the states of stored chains as a learner needs them, and how chains are divided by scenes.

Only what the actor knew is an input. A candidate that is not valid, or whose label cannot be trusted (`q_train_mask`),
has no reward here and never contributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError
from rollbook.files import AnyPath
from rollbook.learned.training_run import TrainingData
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.shards.collection_file import open_collection
from rollbook.train.artifacts import trainable_chains

HELD_OUT_SHARE = 0.2
"""Scenes that are held out for validation where no validation store is given."""
_COLUMNS = (
    *("state_step_row_id", "valid_action_mask", "q_train_mask", "one_step_target_root_gain"),
    *("selected_candidate_index", "td_next_step_row_id", "td_discount", "actor_features"),
)
_CHAIN_COLUMNS = ("scene_id", "split_id", "step_offset", "num_steps")
_DOMAIN = "rollbook.held_out_scenes.v1"
_MESH = "mesh_version_id"

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingStates:
    """States of whole chains. S states of at most A candidates with F features."""

    features: NDArray[np.float32]
    """[S, A, F]"""
    names: tuple[str, ...]
    """[F]"""
    valid: NDArray[np.bool_]
    """[S, A]: the actions that the actor could take."""
    reward: NDArray[np.float64]
    """[S, A]: one-step gain of the target; NaN where nothing may be learned from."""
    selected: Indices
    """[S]: the action that was taken; -1 for none."""
    next_state: Indices
    """[S]: index of the state that followed; -1 at the end of a chain."""
    discount: NDArray[np.float64]
    """[S]: of the value of the next state; 0 at the end of a chain."""
    scene: Indices
    """[S]: index into `scenes`."""
    scenes: tuple[str, ...]
    """In order of their names."""

    def __len__(self) -> int:
        return len(self.valid)

    @cached_property
    def trainable(self) -> NDArray[np.bool_]:
        """[S, A]"""
        return np.isfinite(self.reward)

    def take(self, states: Indices) -> TrainingStates:
        """These states, in order. They must be whole chains."""
        place = np.full(len(self) + 1, -1, np.int64)  # the last entry serves the -1 of next_state
        place[states] = np.arange(len(states))
        return TrainingStates(
            self.features[states],
            self.names,
            self.valid[states],
            self.reward[states],
            self.selected[states],
            place[self.next_state[states]],
            self.discount[states],
            self.scene[states],
            self.scenes,
        )


class ChosenChains:
    """Chains of one or more stores, by their rows in the collection of these stores."""

    def __init__(self, collection: RolloutCollection, rows: Indices, places: Sequence[str]) -> None:
        self.collection = collection
        self.rows = rows
        self._places = places

    @classmethod
    def open(cls, stores: Sequence[AnyPath]) -> ChosenChains:
        """Every chain with a step to learn from. Each place is a store or a collection, also at a URL."""
        opened: list[RolloutZarrStoreReader] = []
        places: list[str] = []
        for place in stores:
            found = list(open_collection(place).stores)
            opened += found
            places += [str(getattr(each.fetch, "url", each.store_dir)) for each in found]
        collection = RolloutCollection(opened)
        _check_features(collection, places)
        rows = np.asarray(trainable_chains(collection))
        if not len(rows):
            message = f"{places[0]} has no chain with a label to learn from"
            raise ConfigurationError(message=message)
        return cls(collection, rows, places)

    @property
    def names(self) -> tuple[str, ...]:
        return _feature_names(self.collection.stores[0])

    @cached_property
    def scenes(self) -> list[str]:
        """The scene of each chain. A chain without a scene is a scene of its own."""
        words = self.collection.decoded("rollouts", "scene_id", self.rows)
        return [word or f"chain {row}" for word, row in zip(words, self.rows.tolist(), strict=True)]

    @cached_property
    def _mesh_of_chains(self) -> list[str | None]:
        if not self.collection.has(f"lineage/{_MESH}"):
            return [None] * len(self.rows)
        return self.collection.decoded("lineage", _MESH, self.rows)

    @cached_property
    def meshes(self) -> dict[str, str]:
        """The scene of each mesh; the first by name, where several scenes have the same mesh."""
        chains = zip(self._mesh_of_chains, self.scenes, strict=True)
        return dict(sorted({(mesh, scene) for mesh, scene in chains if mesh}, reverse=True))

    @property
    def longest(self) -> int:
        lengths = self.collection.table("rollouts", ("num_steps",), self.rows)["num_steps"]
        return int(lengths.max(initial=0))

    def of_scenes(self, scenes: set[str]) -> ChosenChains:
        chosen = np.array([each in scenes for each in self.scenes], np.bool_)
        return ChosenChains(self.collection, self.rows[chosen], self._places)

    def divided(self, seed: int) -> tuple[ChosenChains, ChosenChains]:
        """Training and held-out chains, of different scenes. The same scenes and seed give the same division.

        Scenes with the same mesh are on the same side.
        """
        alike = self._scenes_alike()
        order = sorted(set(alike.values()), key=lambda each: digest_of(_DOMAIN, [seed, each]))
        if len(order) < 2:
            message = (
                f"all chains are of {len(order)} scene; training and validation need different scenes: "
                "name another store with --validation"
            )
            raise ConfigurationError(message=message)
        held_out = set(order[: max(1, round(len(order) * HELD_OUT_SHARE))])
        sides = [
            {scene for scene, first in alike.items() if (first in held_out) == held}
            for held in (False, True)
        ]
        return self.of_scenes(sides[0]), self.of_scenes(sides[1])

    def _scenes_alike(self) -> dict[str, str]:
        """For each scene the first one with the same mesh."""
        chains = zip(self.scenes, self._mesh_of_chains, strict=True)
        return {scene: self.meshes[mesh] if mesh else scene for scene, mesh in chains}

    def described(self) -> tuple[TrainingData, ...]:
        """One entry for each store that has some of the chains."""
        split = self.collection.decoded("rollouts", "split_id", self.rows)
        steps = self.collection.table("rollouts", ("num_steps",), self.rows)["num_steps"]
        ends = self.collection.offsets("rollouts")
        store = np.searchsorted(ends, self.rows, side="right") - 1
        found = []
        for index in np.unique(store).tolist():
            reader = self.collection.stores[index]
            own = np.flatnonzero(store == index)
            splits = sorted({word for word in (split[at] for at in own.tolist()) if word})
            found.append(
                TrainingData(
                    content_sha256=str(reader.store_manifest.payload["content_sha256"]),
                    manifest_sha256=str(reader.attrs["manifest_sha256"]),
                    split=",".join(splits) or None,
                    scenes=tuple(sorted({self.scenes[at] for at in own.tolist()})),
                    chains=len(own),
                    states=int(steps[own].sum()),
                    place=self._places[index],
                )
            )
        return tuple(found)

    def states(self) -> TrainingStates:
        """Read the states of the chains. Every byte that is read is compared with the manifests of the stores."""
        self.collection.verify_columns("q_h", _COLUMNS)
        self.collection.verify_columns("rollouts", _CHAIN_COLUMNS)
        chains = self.collection.table("rollouts", ("step_offset", "num_steps"), global_ids=True)
        counts = chains["num_steps"][self.rows].astype(np.int64)
        first = chains["step_offset"][self.rows].astype(np.int64)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(first, counts) + within
        view = self.collection.table("q_h", _COLUMNS, rows, global_ids=True)
        gain = view["one_step_target_root_gain"].astype(np.float64)
        valid = np.asarray(view["valid_action_mask"])
        trusted = valid & view["q_train_mask"] & np.isfinite(gain)
        scenes = tuple(sorted(set(self.scenes)))
        number = {each: place for place, each in enumerate(scenes)}
        return TrainingStates(
            features=view["actor_features"],
            names=self.names,
            valid=valid,
            reward=np.where(trusted, gain, np.nan),
            selected=view["selected_candidate_index"].astype(np.int64),
            next_state=_places(view["state_step_row_id"], view["td_next_step_row_id"]),
            discount=view["td_discount"].astype(np.float64),
            scene=np.repeat(np.array([number[each] for each in self.scenes], np.int64), counts),
            scenes=scenes,
        )


def check_disjoint(training: ChosenChains, validation: ChosenChains) -> None:
    """Refuse a scene on both sides, under one name or two: validation would then measure what was learned by heart."""
    shared = sorted(set(training.scenes) & set(validation.scenes))
    if shared:
        message = (
            f"{len(shared)} of the scenes are in the training and in the validation stores, such as {shared[0]!r}; "
            "validate on scenes that were not trained on"
        )
        raise ConfigurationError(message=message)
    for mesh in sorted(training.meshes.keys() & validation.meshes.keys()):
        message = (
            f"the validation scene {validation.meshes[mesh]!r} has the same mesh as the training scene "
            f"{training.meshes[mesh]!r}; validate on scenes that were not trained on"
        )
        raise ConfigurationError(message=message)


def _places(ids: Array, wanted: Array) -> Indices:
    """The index of each wanted id among `ids`; -1 where it is not there."""
    if not len(ids):
        return np.zeros(0, np.int64)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    found = order[at]
    return np.where((wanted >= 0) & (ids[found] == wanted), found, -1).astype(np.int64)


def _feature_names(store: RolloutZarrStoreReader) -> tuple[str, ...]:
    generation = store.store_manifest.payload.get("generation") or {}
    return tuple((generation.get("writer_config") or {}).get("actor_feature_names") or ())


def _check_features(collection: RolloutCollection, places: Sequence[str]) -> None:
    first = _feature_names(collection.stores[0])
    for store, place in zip(collection.stores, places, strict=True):
        if not store.has("q_h/actor_features"):
            message = f"{place} has no actor features, so nothing can be learned from it; generate it with them"
            raise ConfigurationError(message=message)
        names = _feature_names(store)
        if not names:
            message = f"{place} does not name its actor features (generation.writer_config.actor_feature_names)"
            raise ConfigurationError(message=message)
        if names != first:
            message = f"{place} and {places[0]} have different actor features; train on stores of one generator"
            raise ConfigurationError(message=message)

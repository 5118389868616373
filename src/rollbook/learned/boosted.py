"""BoostedHeads: gradient-boosted trees, one LightGBM model per head, read from text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import StorageError
from rollbook.lazy import needs
from rollbook.learned.boosted_text import checked_model
from rollbook.learned.run_folder import TrainingRunFolder

IN_SHELL = "@shell"
"""Ends the name of a column that is relative to the shell: the value minus the mean of the valid candidates."""


def head_file(head: int) -> str:
    return f"head-{head:02}.txt"


def model_columns(
    features: NDArray[np.float32],
    valid: NDArray[np.bool_],
    names: Sequence[str],
    columns: Sequence[str],
) -> NDArray[np.float32]:
    """The inputs [valid candidates, columns] of a model, from features [S, A, F] with these names."""
    state = np.nonzero(valid)[0]
    flat = features[valid]
    own = flat[:, [names.index(each.removesuffix(IN_SHELL)) for each in columns]]
    relative = np.array([each.endswith(IN_SHELL) for each in columns])
    if not relative.any() or not len(flat):
        return own
    starts = np.flatnonzero(np.r_[True, state[1:] != state[:-1]])
    counts = np.diff(np.r_[starts, len(state)])
    with np.errstate(
        invalid="ignore"
    ):  # infinite features have no difference; LightGBM takes NaN as missing
        means = np.add.reduceat(own[:, relative].astype(np.float64), starts) / counts[:, None]
        own[:, relative] -= np.repeat(means, counts, axis=0).astype(np.float32)
    return own


def check_columns(columns: Sequence[str], names: Sequence[str]) -> None:
    """A ValueError for a column of a model that is made of no feature with these names."""
    unknown = [each for each in columns if each.removesuffix(IN_SHELL) not in names]
    if unknown:
        raise ValueError(f"it needs the feature {unknown[0]!r}, which the run does not name")


class BoostedHeads:
    """The heads of a boosted checkpoint."""

    def __init__(self, models: Sequence[Any], names: Sequence[str]) -> None:
        self._models = list(models)
        self._names = tuple(names)
        self._columns = [tuple(model.feature_name()) for model in models]

    @classmethod
    def read(cls, folder: TrainingRunFolder) -> BoostedHeads:
        with needs("a boosted policy"):
            import lightgbm

        files = folder.checkpoint()
        models = []
        for head in range(1, folder.run.horizon + 1):
            name = head_file(head)
            place = str(folder.path / "checkpoint" / name)
            if name not in files:
                raise StorageError(path=place, detail="the run names no such checkpoint file")
            try:
                text = checked_model(files[name].decode())
                model = lightgbm.Booster(model_str=text)
                check_columns(model.feature_name(), folder.run.feature_names)
            except (ValueError, lightgbm.basic.LightGBMError) as error:
                raise StorageError(path=place, detail=f"not a LightGBM model: {error}") from error
            models.append(model)
        return cls(models, folder.run.feature_names)

    def scores(
        self, features: NDArray[np.float32], valid: NDArray[np.bool_], head: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        found = np.full(valid.shape, np.nan)
        for number in np.unique(head).tolist():
            states = np.flatnonzero(head == number)
            mask = valid[states]
            if not mask.any():
                continue
            columns = model_columns(features[states], mask, self._names, self._columns[number - 1])
            part = np.full(mask.shape, np.nan)
            # one thread: the caller may be one of many workers, and small shells gain nothing from more
            part[mask] = self._models[number - 1].predict(columns, num_threads=1)
            found[states] = part
        return found

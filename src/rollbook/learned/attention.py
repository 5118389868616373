"""AttentionHeads: set attention over the shell, one network per head, read from safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import StorageError
from rollbook.lazy import needs
from rollbook.learned.attention_network import SetAttention, network_of
from rollbook.learned.run_folder import TrainingRunFolder

with needs("an attention policy"):
    import safetensors.torch
    import torch
    from torch import Tensor

WEIGHTS_FILE = "weights.safetensors"
_STATES_AT_ONCE = 256


def head_prefix(head: int) -> str:
    """Begins the names of the weights of a head."""
    return f"head-{head:02}."


class AttentionHeads:
    """The heads of an attention checkpoint. They compute on the CPU, wherever they were trained.

    Scores are computed in double precision and rounded to single, so that neither the number of threads nor the number
    of states that are asked at once changes them.
    """

    def __init__(self, networks: Sequence[SetAttention]) -> None:
        self._networks = [network.double().eval() for network in networks]

    @classmethod
    def read(cls, folder: TrainingRunFolder) -> AttentionHeads:
        place = str(folder.path / "checkpoint" / WEIGHTS_FILE)
        data = folder.checkpoint().get(WEIGHTS_FILE)
        if data is None:
            raise StorageError(path=place, detail="the run names no such checkpoint file")
        names = folder.run.feature_names
        try:
            weights = safetensors.torch.load(data)
            networks = [
                network_of(_of_head(weights, head)) for head in range(1, folder.run.horizon + 1)
            ]
            for network in networks:
                if network.embed.in_features != len(names):
                    detail = f"it is for {network.embed.in_features} features, not {len(names)}"
                    raise ValueError(detail)
        except (ValueError, safetensors.SafetensorError) as error:
            raise StorageError(
                path=place, detail=f"not an attention checkpoint: {error}"
            ) from error
        return cls(networks)

    def scores(
        self, features: NDArray[np.float32], valid: NDArray[np.bool_], head: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        found = np.full(valid.shape, np.nan)
        # one thread: the caller may be one of many workers, and small shells gain nothing from more
        with torch.no_grad(), torch_threads(1):
            for number in np.unique(head).tolist():
                network = self._networks[number - 1]
                states = np.flatnonzero(head == number)
                for first in range(0, len(states), _STATES_AT_ONCE):
                    part = states[first : first + _STATES_AT_ONCE]
                    mask = valid[part]
                    inputs = torch.from_numpy(features[part].astype(np.float64))
                    scores = network(inputs, torch.from_numpy(mask)).numpy()
                    found[part] = np.where(mask, scores.astype(np.float32), np.nan)
        return found


def _of_head(weights: dict[str, Tensor], head: int) -> dict[str, Tensor]:
    prefix = head_prefix(head)
    return {
        name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)
    }


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute on so many threads inside, and on as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""NetworkFit: teaches a set attention network values of candidates. Numbers in, weights out; on the CPU or on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from rollbook.lazy import needs
from rollbook.learned.attention_network import SetAttention, weights_of

with needs("training an attention policy"):
    import torch
    from torch import Tensor

Weights = Mapping[str, Tensor]

_SOFTNESS = 0.25
"""Of the choice that a network is taught, in standard deviations of the gain: small values teach the best move only."""
_WARM_UP = 0.1
"""Share of all steps in which the learning rate rises."""
_WEIGHT_DECAY = 0.05
_LARGEST_GRADIENT = 1.0


class FitOptions(Protocol):
    """Those of AttentionOptions that the fit of one network needs."""

    @property
    def iterations(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def states_per_step(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...


class NetworkFit:
    """Teaches one network the values of the candidates: how large they are, and which is the best of a shell."""

    def __init__(
        self, features: Tensor, valid: Tensor, values: Tensor, options: FitOptions, seed: int
    ) -> None:
        """`features` [S, A, F], `valid` [S, A], and the values to learn [S, A], NaN where they are not known."""
        known = torch.isfinite(values) & valid
        self._features, self._valid, self._options = features, valid, options
        self._values = torch.where(known, values, torch.nan)
        self._random = np.random.default_rng(seed)
        self._states = torch.nonzero(known.any(dim=1)).squeeze(1)
        spread = float(values[known].std(unbiased=False)) if bool(known.any()) else 0.0
        self._scale = spread if spread > 0 else 1.0

    def judged(
        self,
        network: SetAttention,
        judge: Callable[[SetAttention], float],
        report: Callable[[int, float, float], None] = lambda epoch, loss, error: None,
    ) -> tuple[Weights, int]:
        """The weights of the best epoch, and its number."""
        steps = self._steps(network)
        best, best_epoch, kept = math.inf, 0, weights_of(network)
        for epoch in range(1, self._options.iterations + 1):
            loss = steps()
            error = judge(network)
            if error < best:
                best, best_epoch, kept = error, epoch, weights_of(network)
            report(epoch, loss, error)
            if epoch - best_epoch >= self._options.patience:
                break
        return kept, best_epoch

    def epochs(self, network: SetAttention, count: int) -> Weights:
        steps = self._steps(network)
        for _ in range(count):
            steps()
        return weights_of(network)

    def _steps(self, network: SetAttention) -> Callable[[], float]:
        """A function that runs one epoch and returns its mean loss."""
        size = self._options.states_per_step
        total = self._options.iterations * max(math.ceil(len(self._states) / size), 1)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=self._options.learning_rate, weight_decay=_WEIGHT_DECAY
        )
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step / total))

        def epoch() -> float:
            order = self._states[self._random.permutation(len(self._states))]
            losses = []
            for first in range(0, len(order), size):
                chosen = order[first : first + size]
                optimizer.zero_grad()
                loss = self._loss(network, chosen)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
                optimizer.step()
                rate.step()
                losses.append(loss.detach())
            return float(torch.stack(losses).mean()) if losses else 0.0

        return epoch

    def _loss(self, network: SetAttention, states: Tensor) -> Tensor:
        targets = self._values[states]
        known = torch.isfinite(targets)
        values = torch.where(known, targets, 0.0) / self._scale
        found = network(self._features[states], self._valid[states]) / self._scale
        count = known.sum().clamp(min=1)
        squared: Tensor = torch.where(known, (found - values) ** 2, 0.0).sum() / count
        taught = torch.where(known, values / _SOFTNESS, -torch.inf).log_softmax(-1)
        chosen = torch.where(known, found / _SOFTNESS, -torch.inf).log_softmax(-1)
        missed = torch.where(known, taught.exp() * (taught - chosen), 0.0).sum(-1)
        return squared + missed.mean()


def _rate(share: float) -> float:
    """Of the learning rate, after this share of all steps."""
    if share < _WARM_UP:
        return share / _WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * min((share - _WARM_UP) / (1 - _WARM_UP), 1.0))

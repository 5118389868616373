"""The attention learner: one set attention network for each number of moves left, taught by fitted-Q over the chains.

The head h learns Q_h, the gain of a move and of the best h - 1 moves after it, for every candidate with a label:

    Q_1(s, a) = r(s, a)                      the stored gain
    Q_h(s, a) = r(s, a) + discount * V(s')   where s' follows; known only for the move that was taken

So a network of its own learns the second part from the moves that were taken, and predicts it for every candidate.
V(s') is a double-Q target: the scenes are divided into halves, each with its own network; in a state of one half the
network of the other half chooses the move, and the stored gain says what it is worth.

A network is fitted from the weights of the network before it, which had one move less to think of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError
from rollbook.lazy import needs
from rollbook.learned.attention import WEIGHTS_FILE, head_prefix, torch_threads
from rollbook.learned.attention_network import SetAttention, network_of
from rollbook.learned.policy import REMAINING
from rollbook.train.learner_options import (
    HEADS,
    ITERATIONS,
    check_learning_rate,
    check_whole_numbers,
    options_given,
)
from rollbook.train.network_fit import NetworkFit, Weights
from rollbook.train.regret import RegretMeasure, head_metrics
from rollbook.train.run_work import RunWork
from rollbook.train.training_states import TrainingStates

with needs("training an attention policy"):
    import safetensors.torch
    import torch
    from torch import Tensor

Array = NDArray[np.float64]

_STATES_AT_ONCE = 512
_SEED_DOMAIN = "rollbook.attention_seed.v1"
_WIDTH_UNIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """Options of the learner. All of them are recorded."""

    horizon: int
    """Number of heads."""
    iterations: int = 12
    """Most passes over the training states for a head."""
    patience: int = 4
    """Epochs without a smaller validation regret after which a head is finished."""
    states_per_step: int = 64
    learning_rate: float = 1e-3
    width: int = 64
    """Numbers that stand for a candidate inside the network; a multiple of 16."""
    layers: int = 2
    device: str = "cpu"
    """Where the networks are trained: `cpu`, `cuda`, or one of several GPUs such as `cuda:1`."""

    def __post_init__(self) -> None:
        check_whole_numbers(
            self,
            horizon=HEADS,
            iterations=ITERATIONS,
            patience=ITERATIONS,
            states_per_step=(1, 65_536),
            width=(_WIDTH_UNIT, 4096),
            layers=(1, 64),
        )
        if self.width % _WIDTH_UNIT:
            message = f"width is {self.width}, expected a multiple of {_WIDTH_UNIT}"
            raise ConfigurationError(message=message)
        check_learning_rate(self.learning_rate)
        kind, _, number = str(self.device).partition(":")
        if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdecimal())):
            message = f"device is {self.device!r}, expected cpu, cuda or cuda:NUMBER"
            raise ConfigurationError(message=message)


def checked_options(given: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """All options. By default there is a head for every move of the longest chain."""
    options = AttentionOptions(**options_given(AttentionOptions, "attention", given, longest))
    _check_device(options.device)
    return asdict(options)


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= count:
        found = f"{count} GPUs" if count else "no GPU"
        message = f"device is {device!r}, but torch sees {found}; use the device 'cpu'"
        raise ConfigurationError(message=message)


def fit_attention(
    training: TrainingStates,
    validation: TrainingStates,
    options: Mapping[str, Any],
    work: RunWork,
    *,
    seed: int,
    threads: int,
) -> dict[str, float]:
    """Fit every head, write the checkpoint, and return the metrics of the run.

    On the CPU the same data, options, seed and threads give the same bytes. A GPU may add in another order.
    """
    chosen = AttentionOptions(**options)
    _check_device(chosen.device)  # a run may be resumed on another machine
    with torch_threads(threads):
        return _Fit(training, validation, chosen, work, seed).heads()


class _Shells:
    """States on the device. Only valid candidates are kept, at the front: an attention costs their number squared."""

    def __init__(self, states: TrainingStates, device: str) -> None:
        self.states = states
        widest = max(int(states.valid.sum(axis=1).max(initial=0)), 1)
        self._place = np.argsort(~states.valid, axis=1, kind="stable")[:, :widest]
        features = np.take_along_axis(states.features, self._place[..., None], axis=1)
        self.features = torch.from_numpy(features).to(device)
        self.valid = torch.from_numpy(self._packed(states.valid)).to(device)

    def _packed(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.take_along_axis(values, self._place, axis=1))

    def targets(self, values: Array) -> Tensor:
        """Values [S, A] in the order of the kept candidates, on the device; NaN where they are not known."""
        known = np.where(self.states.valid, values, np.nan)
        return torch.from_numpy(self._packed(known).astype(np.float32)).to(self.features.device)

    def predicted(self, network: SetAttention) -> Array:
        """What a network says about every candidate, [S, A]; NaN where it is not valid."""
        found = np.full(self.states.valid.shape, np.nan)
        if not len(self.states):
            return found
        with torch.no_grad():
            parts = [
                network(
                    self.features[at : at + _STATES_AT_ONCE], self.valid[at : at + _STATES_AT_ONCE]
                )
                for at in range(0, len(self.states), _STATES_AT_ONCE)
            ]
        scores = torch.cat(parts).double().cpu().numpy()
        np.put_along_axis(found, self._place, scores, axis=1)
        return np.where(self.states.valid, found, np.nan)


class _Fit:
    def __init__(
        self,
        training: TrainingStates,
        validation: TrainingStates,
        options: AttentionOptions,
        work: RunWork,
        seed: int,
    ) -> None:
        self._options, self._work, self._seed = options, work, seed
        self._training = _Shells(training, options.device)
        self._validation = _Shells(validation, options.device)
        # the scenes in turn, in order of their names; a single scene is a half of its own
        self._halves = min(2, len(np.unique(training.scene)))
        self._half = training.scene % self._halves if self._halves else training.scene

    # ------------------------------------------------------------------------------------- heads

    def heads(self) -> dict[str, float]:
        self._work.restart_reports(
            lambda report: self._work.saved(_piece_name("head", int(report["head"]))) is not None
        )
        metrics: dict[str, float] = {}
        checkpoint: dict[str, Tensor] = {}
        gain, validated = self._training.states.reward, self._validation.states.reward
        weights: Weights | None = None
        halves: list[Weights | None] = [None] * self._halves
        for head in range(1, self._options.horizon + 1):
            if weights is not None:
                halves = [
                    self._half_network(head - 1, half, gain, halves[half])
                    for half in range(self._halves)
                ]
                future = self._future_network(head, gain, validated, weights, halves)
                if future is not None:
                    gain = self._training.states.reward + self._training.predicted(future)
                    validated = self._validation.states.reward + self._validation.predicted(future)
            weights = self._head_network(head, gain, validated, weights)
            checkpoint |= {head_prefix(head) + name: each for name, each in weights.items()}
            metrics |= self._metrics(head, weights, validated)
        self._work.write_checkpoint(WEIGHTS_FILE, safetensors.torch.save(checkpoint))
        return metrics

    def _metrics(self, head: int, weights: Weights, validated: Array) -> dict[str, float]:
        measure = RegretMeasure(validated)
        regret = measure.of(self._validation.predicted(self._network(weights)))
        return head_metrics(head, self._epochs_of(head), regret, measure.of_random())

    def _head_network(
        self, head: int, gain: Array, validated: Array, start: Weights | None
    ) -> Weights:
        measure = RegretMeasure(validated)

        def fitted() -> Weights:
            fit = self._fit_of("head", head, gain)
            weights, epoch = fit.judged(
                self._network(start),
                lambda network: measure.of(self._validation.predicted(network)),
                lambda epoch, loss, regret: self._work.report(
                    {"head": head, "iteration": epoch, "loss": loss, "validation_regret": regret}
                ),
            )
            self._work.save(_epochs_name(head), str(epoch).encode())
            return weights

        return self._piece(_piece_name("head", head), fitted)

    def _epochs_of(self, head: int) -> int:
        known = self._work.saved(_epochs_name(head))
        assert known is not None  # it was saved before the weights of the head
        return int(known)

    # ----------------------------------------------------------------------------- fitted-Q targets

    def _half_network(self, head: int, half: int, gain: Array, start: Weights | None) -> Weights:
        """A network like that of the head, which saw one half of the scenes only."""

        def fitted() -> Weights:
            own = np.where((self._half == half)[:, None], gain, np.nan)
            fit = self._fit_of(f"half-{half}", head, own)
            return fit.epochs(self._network(start), self._epochs_of(head))

        return self._piece(_piece_name(f"half-{half}", head), fitted)

    def _future_network(
        self,
        head: int,
        gain: Array,
        validated: Array,
        weights: Weights,
        halves: list[Weights | None],
    ) -> SetAttention | None:
        """A network of what the moves after a move bring; None if no chain goes on.

        `gain` and `validated` are Q_{h-1} of the training and validation candidates, `weights` and `halves` the
        networks that learned it.
        """
        chosen = [self._training.predicted(self._network(each)) for each in halves]
        scores = np.full_like(gain, np.nan)
        for half in range(self._halves):
            own = self._half == half
            scores[own] = chosen[self._halves - 1 - half][own]
        future = _futures(self._training.states, gain, scores)
        if not np.isfinite(future).any():
            return None
        of_validation = self._validation.predicted(self._network(weights))
        judged = _futures(self._validation.states, validated, of_validation)

        def fitted() -> Weights:
            fit = self._fit_of("future", head, future)
            return fit.judged(
                self._network(weights),
                lambda network: _squared_error(self._validation.predicted(network), judged),
            )[0]

        return self._network(self._piece(_piece_name("future", head), fitted))

    # ------------------------------------------------------------------------------------ networks

    def _fit_of(self, name: str, head: int, values: Array) -> NetworkFit:
        states = self._training
        targets = states.targets(values)
        seed = self._seeded(name, head)
        return NetworkFit(states.features, states.valid, targets, self._options, seed)

    def _piece(self, name: str, fit: Callable[[], Weights]) -> Weights:
        """Fitted weights, read from their bytes: so a resumed run computes with the same numbers."""
        data = self._work.saved(name)
        if data is None:
            data = safetensors.torch.save(dict(fit()))
            self._work.save(name, data)
        found: Weights = safetensors.torch.load(data)
        return found

    def _network(self, weights: Weights | None) -> SetAttention:
        """A network with these weights, or a new one."""
        if weights is not None:
            return network_of(weights).to(self._options.device)
        names = self._training.states.names
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seeded("start", 0))
            network = SetAttention(len(names), self._options.width, self._options.layers)
        # the number of moves left chooses the head, so a head always sees the same
        unused = [at for at, name in enumerate(names) if name == REMAINING]
        states = self._training
        network = network.to(self._options.device)
        network.measure(states.features, states.valid, unused)
        return network

    def _seeded(self, name: str, head: int) -> int:
        return int(digest_of(_SEED_DOMAIN, [self._seed, name, head])[:12], 16)


def _futures(states: TrainingStates, gain: Array, scores: Array) -> Array:
    """[S, A]: discount * V of the next state at the move that was taken, NaN elsewhere.

    In the next state the candidate with the greatest score is chosen, and its gain is the value of the state.
    """
    found = np.full(gain.shape, np.nan)
    rows = np.arange(len(states))
    best = np.where(np.isfinite(gain) & states.valid, scores, -np.inf).argmax(axis=1)
    value = gain[rows, best]
    future = np.where(states.next_state >= 0, states.discount * value[states.next_state], np.nan)
    known = np.flatnonzero(np.isfinite(future) & (states.selected >= 0))
    found[known, states.selected[known]] = future[known]
    return np.where(states.trainable, found, np.nan)


def _squared_error(predicted: Array, known: Array) -> float:
    errors = (predicted - known)[np.isfinite(known)]
    return float((errors**2).mean()) if len(errors) else 0.0


def _piece_name(kind: str, head: int) -> str:
    return f"{kind}-{head:02}.safetensors"


def _epochs_name(head: int) -> str:
    return f"head-{head:02}.epochs"

"""The boosted learner: one LightGBM ranker for each number of moves left, taught by fitted-Q over the stored chains.

The head h ranks the candidates of a state by Q_h, the gain of a move and of the best h - 1 moves after it:

    Q_1(s, a) = r(s, a)                      the stored gain, known for every candidate with a label
    Q_h(s, a) = r(s, a) + discount * V(s')   where s' follows; known only for the move that was taken

So the second part is learned from the moves that were taken, by a regression on the features of a candidate, and then
predicted for every candidate. V(s') is a double-Q target: the two halves of the scenes have their own models; the
models of one half choose the move in a state of the other half, and its stored gain and the models of its own half say
what the move is worth. A ranker therefore never rates its own favourites. How much the predicted future counts in the
ranking is measured on chains that made different moves in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, StorageError
from rollbook.lazy import needs
from rollbook.learned.boosted import IN_SHELL, head_file, model_columns
from rollbook.learned.boosted_text import checked_model
from rollbook.learned.policy import REMAINING
from rollbook.train.learner_options import (
    HEADS,
    ITERATIONS,
    check_learning_rate,
    check_whole_numbers,
    options_given,
)
from rollbook.train.regret import RegretMeasure, head_metrics
from rollbook.train.run_work import RunWork
from rollbook.train.training_states import TrainingStates

_GRADES = 31
"""Labels of a ranker are whole numbers: 0 for the worst candidate of a state, this for the best."""
_FUTURE_ITERATIONS = 100
_REWARD = "reward"
_LEAST_CONTRASTS = 40
"""Moves in a state in which another chain made another move."""
_LEAST_REWARD_WEIGHT = 0.1

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedOptions:
    """Options of the learner. All of them are recorded."""

    horizon: int = 1
    """Number of heads. One head ranks by the gain of the next move alone."""
    iterations: int = 200
    """Most trees of a head."""
    patience: int = 60
    """Iterations without a smaller validation regret after which a head is finished."""
    report_every: int = 10
    learning_rate: float = 0.1
    leaves: int = 31
    """Most leaves of a tree."""

    def __post_init__(self) -> None:
        check_whole_numbers(
            self,
            horizon=HEADS,
            iterations=ITERATIONS,
            patience=ITERATIONS,
            report_every=ITERATIONS,
            leaves=(2, 4096),
        )
        check_learning_rate(self.learning_rate)


def checked_options(given: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """All options. More heads than moves of the longest chain are refused: nothing was stored about them."""
    options = BoostedOptions(**options_given(BoostedOptions, "boosted", given, 1))
    if options.horizon > max(longest, 1):
        message = f"horizon is {options.horizon}, the longest chain has {longest} moves"
        raise ConfigurationError(message=message)
    return asdict(options)


def fit_boosted(
    training: TrainingStates,
    validation: TrainingStates,
    options: Mapping[str, Any],
    work: RunWork,
    *,
    seed: int,
    threads: int,
) -> dict[str, float]:
    """Fit every head, write the checkpoint, and return the metrics of the run."""
    return _Fit(training, validation, BoostedOptions(**options), work, seed, threads).heads()


class _Shells:
    """The candidates of some states as the rows of a matrix, grouped by state."""

    def __init__(self, states: TrainingStates, columns: tuple[str, ...]) -> None:
        self.states = states
        self.matrix = model_columns(states.features, states.valid, states.names, columns)
        """[valid candidates, columns]"""

    def rows(self, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The rows of chosen candidates [S, A], all of which are valid."""
        return np.asarray(self.matrix[chosen[self.states.valid]])

    def with_rewards(self, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
        """`rows` with the reward as last column."""
        reward = self.states.reward[chosen].astype(np.float32)
        return np.column_stack([self.rows(chosen), reward])


class _Ranking:
    """What a ranker learns from or is judged by: the states in which there is something to choose, and their gains."""

    def __init__(
        self, shells: _Shells, gain: Array, among: NDArray[np.bool_] | None = None
    ) -> None:
        """`gain` is [S, A], NaN where it is not known. `among` leaves out states, [S]."""
        counted = RegretMeasure(gain).counted
        counted &= True if among is None else among
        self.chosen = np.isfinite(gain) & counted[:, None]
        self.matrix = shells.rows(self.chosen)
        self.gain = gain[counted]
        self._measure = RegretMeasure(self.gain)
        self._known = np.isfinite(self.gain)

    @property
    def group(self) -> NDArray[np.int64]:
        """The number of rows of each state."""
        return np.asarray(self._known.sum(axis=1))

    def labels(self) -> tuple[NDArray[np.int32], Array]:
        """Grade and weight of each row: its place between the worst and the best candidate of its state, and how much
        there is to gain in the state over a random choice."""
        low, high = np.nanmin(self.gain, axis=1), np.nanmax(self.gain, axis=1)
        spread = np.maximum(high - low, 1e-12)[:, None]
        grade = np.rint((self.gain - low[:, None]) / spread * _GRADES)
        stake = high - np.nanmean(self.gain, axis=1)
        weight = np.repeat(stake / max(float(stake.mean()), 1e-12), self.group)
        return grade[self._known].astype(np.int32), weight

    def regret(self, predicted: Array, _: Any = None) -> tuple[str, float, bool]:
        """As LightGBM calls it, with one value for each row."""
        scores = np.full(self.gain.shape, -np.inf)
        scores[self._known] = predicted
        return "regret", self._measure.of(scores), False

    def random_regret(self) -> float:
        return self._measure.of_random()


class _Halves(NamedTuple):
    """For each half of the scenes, by its own models, over all training states [S, A]."""

    worth: list[Array]
    """Q of every candidate: what the move and those after it gain."""
    ranked_by: list[Array]
    """What the ranker of the half learns to rank by."""


class _Weights(NamedTuple):
    """What a head ranks by: a sum of the reward of a move and of its predicted future."""

    reward: float
    future: float

    def of(self, reward: Array, future: Array) -> Array:
        return self.reward * reward + self.future * future


class _Fit:
    def __init__(
        self,
        training: TrainingStates,
        validation: TrainingStates,
        options: BoostedOptions,
        work: RunWork,
        seed: int,
        threads: int,
    ) -> None:
        with needs("training a boosted policy"):
            import lightgbm

        self._lightgbm = lightgbm
        self._options, self._work = options, work
        self._seed, self._threads = seed, threads
        self._columns = _columns_of(training)
        self._training = _Shells(training, self._columns)
        self._validation = _Shells(validation, self._columns)
        # the scenes in turn, in order of their names; a single scene is a half of its own
        self._halves = min(2, len(np.unique(training.scene)))
        self._half = training.scene % 2 if self._halves == 2 else np.zeros(len(training), np.int64)

    # ------------------------------------------------------------------------------------- heads

    def heads(self) -> dict[str, float]:
        self._work.restart_reports(
            lambda report: self._work.saved(head_file(int(report["head"]))) is not None
        )
        metrics: dict[str, float] = {}
        own, validated = self._training.states.reward, self._validation.states.reward
        halves = _Halves([own] * self._halves, [own] * self._halves)
        for head in range(1, self._options.horizon + 1):
            if head > 1:
                own, validated, halves, weights = self._with_futures(head, halves)
                metrics[f"head_{head}_reward_weight"] = weights.reward
                metrics[f"head_{head}_future_weight"] = weights.future
            metrics |= self._fit_head(
                head, _Ranking(self._training, own), _Ranking(self._validation, validated)
            )
        return metrics

    def _fit_head(self, head: int, ranking: _Ranking, judged: _Ranking) -> dict[str, float]:
        model = self._piece(head_file(head), lambda: self._ranker(head, ranking, judged))
        self._work.write_checkpoint(head_file(head), model.model_to_string().encode())
        regret = judged.regret(self._predict(model, judged.matrix))[1]
        return head_metrics(head, model.current_iteration(), regret, judged.random_regret())

    def _ranker(self, head: int, ranking: _Ranking, judged: _Ranking) -> str:
        """The ranker of all training scenes, with as many trees as are best on the validation scenes."""
        data = self._ranking_data(ranking)
        booster = self._lightgbm.Booster(self._settings("lambdarank"), data)
        unlabelled = np.zeros(len(judged.matrix))
        shown = data.create_valid(
            judged.matrix, unlabelled, group=judged.group, params=data.get_params()
        )
        booster.add_valid(shown, "validation")
        best, best_iteration = np.inf, 0
        for iteration in range(1, self._options.iterations + 1):
            last = booster.update() or iteration == self._options.iterations
            if iteration % self._options.report_every and not last:
                continue
            loss = booster.eval_train(ranking.regret)[-1][2]
            regret = booster.eval_valid(judged.regret)[-1][2]
            if regret < best:
                best, best_iteration = regret, iteration
            self._work.report(
                {"head": head, "iteration": iteration, "loss": loss, "validation_regret": regret}
            )
            if last or iteration - best_iteration >= self._options.patience:
                break
        return str(booster.model_to_string(num_iteration=best_iteration))

    def _half_ranker(self, head: int, half: int, gain: Array) -> Any:
        """A ranker of one half of the scenes, with as many trees as the head of all scenes has."""

        def fitted() -> str:
            rounds = self._model(self._work.saved(head_file(head)) or b"").current_iteration()
            data = self._ranking_data(_Ranking(self._training, gain, self._half == half))
            booster = self._lightgbm.train(self._settings("lambdarank"), data, rounds)
            return str(booster.model_to_string())

        return self._piece(f"half-{half}-{head:02}.txt", fitted)

    def _ranking_data(self, ranking: _Ranking) -> Any:
        grade, weight = ranking.labels()
        return self._lightgbm.Dataset(
            ranking.matrix,
            grade,
            group=ranking.group,
            weight=weight,
            feature_name=list(self._columns),
            params=self._settings("lambdarank"),
        )

    # ----------------------------------------------------------------------------- fitted-Q targets

    def _with_futures(self, head: int, before: _Halves) -> tuple[Array, Array, _Halves, _Weights]:
        """What the head h ranks by, for the training and the validation states; the same of each half; and the weights.

        `before` is that of the head before.
        """
        reward, taken, future = self._training.states.reward, *self._taken_futures(head, before)
        models = [
            self._future_model(
                f"future-{half}-{head:02}.txt", taken & (self._half == half)[:, None], future
            )
            for half in range(self._halves)
        ]
        whole = self._future_model(f"future-{head:02}.txt", taken, future)
        of_halves = [self._future(self._training, model) for model in models]
        weights = self._contrasts(taken, future, of_halves)
        return (
            weights.of(reward, self._future(self._training, whole)),
            weights.of(self._validation.states.reward, self._future(self._validation, whole)),
            _Halves(
                [reward + each for each in of_halves],
                [weights.of(reward, each) for each in of_halves],
            ),
            weights,
        )

    def _taken_futures(self, head: int, before: _Halves) -> tuple[NDArray[np.bool_], Array]:
        """The moves that were taken and have a known future [S, A], and these: discount * V of the next state."""
        states = self._training.states
        value = np.full(len(states), np.nan)
        for half, worth in enumerate(before.worth):
            own = self._half == half
            other = self._halves - 1 - half
            ranker = self._half_ranker(head - 1, other, before.ranked_by[other])
            chosen = np.isfinite(worth) & own[:, None]
            scores = np.full(worth.shape, -np.inf)
            if chosen.any():
                scores[chosen] = self._predict(ranker, self._training.rows(chosen))
            value[own] = worth[np.arange(len(worth)), scores.argmax(axis=1)][own]
        future = np.where(
            states.next_state >= 0, states.discount * value[states.next_state], np.nan
        )
        known = np.flatnonzero(np.isfinite(future) & (states.selected >= 0))
        taken = np.zeros(states.valid.shape, np.bool_)
        taken[known, states.selected[known]] = True
        taken &= states.trainable
        return taken, future

    def _contrasts(
        self, taken: NDArray[np.bool_], future: Array, of_halves: list[Array]
    ) -> _Weights:
        """How much of a predicted difference between two moves is real.

        Chains that start at the same root make different moves in the same state, so the difference of their futures is
        due to the move alone. It is compared with the difference that the models of the other half of the scenes
        predict. Without enough such pairs a head ranks by the reward alone: the regression then only knows how states
        differ, and would prefer moves that merely look like those of states with much left to gain.
        """
        states = self._training.states
        rows = np.flatnonzero(taken.any(axis=1))
        move = states.selected[rows]
        other = np.stack(of_halves)[self._halves - 1 - self._half[rows], rows, move]
        same_state = _same_states(states, rows)
        known = [
            _minus_group_mean(values, same_state)
            for values in (states.reward[rows, move], other, future[rows])
        ]
        differs = np.abs(known[0]) > 0
        if differs.sum() < _LEAST_CONTRASTS:
            return _Weights(1.0, 0.0)
        reward, predicted, found = (values[differs] for values in known)
        of_reward, of_future = np.linalg.lstsq(
            np.stack([reward, predicted], axis=1), found, rcond=None
        )[0]
        return _Weights(
            float(np.clip(1 + of_reward, _LEAST_REWARD_WEIGHT, 1)), float(np.clip(of_future, 0, 1))
        )

    def _future(self, shells: _Shells, model: Any) -> Array:
        """The predicted future of each candidate that has a reward, [S, A]; NaN elsewhere."""
        known = shells.states.trainable
        found = np.where(known, 0.0, np.nan)
        if model is not None and known.any():
            found[known] = self._predict(model, shells.with_rewards(known))
        return found

    def _future_model(self, name: str, taken: NDArray[np.bool_], future: Array) -> Any:
        """A regression of the futures of the moves that were taken; None if there are none.

        The reward of a move is one of its inputs: what a view has already shown is not there to be gained later. It is
        known wherever this model is asked, since only labels are made with it.
        """
        if not taken.any():
            return None

        def fitted() -> str:
            settings = self._settings("regression")
            data = self._lightgbm.Dataset(
                self._training.with_rewards(taken),
                future[taken.any(axis=1)],
                feature_name=[*self._columns, _REWARD],
                params=settings,
            )
            booster = self._lightgbm.train(settings, data, _FUTURE_ITERATIONS)
            return str(booster.model_to_string())

        return self._piece(name, fitted)

    def _predict(self, model: Any, rows: NDArray[np.float32]) -> Array:
        return np.asarray(model.predict(rows, num_threads=self._threads))

    # -------------------------------------------------------------------------------------- models

    def _piece(self, name: str, fit: Callable[[], str]) -> Any:
        """A fitted model, read from its text: so a resumed run computes with the same numbers."""
        text = self._work.saved(name)
        if text is None:
            text = fit().encode()
            self._work.save(name, text)
        else:
            self._check_piece(name, text)
        return self._model(text)

    def _check_piece(self, name: str, text: bytes) -> None:
        """Of a run that goes on: somebody may have changed what it had finished."""
        try:
            checked_model(text.decode())
        except ValueError as error:
            detail = f"it is damaged ({error}); remove it and resume: it is made again"
            raise StorageError(path=str(self._work.piece(name)), detail=detail) from error

    def _model(self, text: bytes) -> Any:
        return self._lightgbm.Booster(model_str=text.decode())

    def _settings(self, objective: str) -> dict[str, Any]:
        settings = {
            "objective": objective,
            "learning_rate": self._options.learning_rate,
            "num_leaves": self._options.leaves,
            "min_data_in_leaf": 20,
            "lambda_l2": 1.0,
            "feature_fraction": 0.8,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "seed": self._seed,
            "max_bin": 63,
            "num_threads": self._threads,
            "deterministic": True,
            "force_row_wise": True,
            "feature_pre_filter": False,
            "metric": "none",
            "verbosity": -1,
        }
        if objective == "lambdarank":
            ranking = {"label_gain": list(range(_GRADES + 1)), "lambdarank_truncation_level": 20}
            return settings | ranking
        return settings | {"learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 40}


def _same_states(states: TrainingStates, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each of these states that is the same for equal shells. Chains of one root share their first."""
    shown = np.where(states.valid[rows][..., None], states.features[rows], 0)
    return np.unique(shown.sum(axis=1, dtype=np.float64), axis=0, return_inverse=True)[1]


def _minus_group_mean(values: Array, group: NDArray[np.int64]) -> Array:
    sums, counts = np.bincount(group, values), np.bincount(group)
    return np.asarray(values - (sums / np.maximum(counts, 1))[group])


def _columns_of(states: TrainingStates) -> tuple[str, ...]:
    """Every feature but `remaining`, which chooses the head; and relative to the shell those that differ in shells."""
    low = np.where(states.valid[..., None], states.features, np.inf).min(axis=1)
    high = np.where(states.valid[..., None], states.features, -np.inf).max(axis=1)
    differs = (high > low).any(axis=0)
    own = [name for name in states.names if name != REMAINING]
    shell = [name + IN_SHELL for name, some in zip(states.names, differs, strict=True) if some]
    return (*own, *(name for name in shell if name != REMAINING + IN_SHELL))

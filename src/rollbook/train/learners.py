"""Learners by name: how each checks its options and fits a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rollbook.errors import ConfigurationError, near_names
from rollbook.learned.training_run import LEARNERS
from rollbook.train.run_work import RunWork
from rollbook.train.training_states import TrainingStates


class Fit(Protocol):
    def __call__(
        self,
        training: TrainingStates,
        validation: TrainingStates,
        options: Mapping[str, Any],
        work: RunWork,
        *,
        seed: int,
        threads: int,
    ) -> dict[str, float]:
        """Fit the policy, report, and write the checkpoint through `work`. Returns the metrics, all finite.

        Names of metrics are those of the boosted learner; `head_1_validation_regret` has to be among them.
        """


@dataclass(frozen=True, slots=True)
class Learner:
    checked: Callable[[Mapping[str, Any], int], dict[str, Any]]
    """(given options, length of the longest chain) -> all options, `horizon` among them; refuses wrong ones."""
    fit: Fit


def learner_named(name: str) -> Learner:
    if name == "boosted":
        from rollbook.train.boosted import checked_options, fit_boosted

        return Learner(checked_options, fit_boosted)
    if name == "attention":
        from rollbook.train import attention

        return Learner(attention.checked_options, attention.fit_attention)
    raise ConfigurationError(message=f"there is no learner {name!r}; {near_names(name, LEARNERS)}")

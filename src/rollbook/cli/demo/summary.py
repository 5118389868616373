"""The ten lines at the end of a demo: the decision, the numbers behind it, and where to look next."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

from rollbook.cli.demo.demo_folder import DemoFolder
from rollbook.cli.demo.judging import BASELINE_POLICY, BEST_POLICY
from rollbook.cli.output import say

if TYPE_CHECKING:
    from rollbook.contracts.decision import Rollup
    from rollbook.learned import TrainingRunFolder

_WIDTH = 79


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a demo came to."""

    trained: TrainingRunFolder
    counterfactual: Rollup
    closed_loop: Rollup
    eval_run: str
    """Id of the closed-loop run on the server."""
    rewards: dict[str, float]
    """Mean reward of the recorded policies."""
    seconds: float
    reused: list[str]

    @property
    def learned(self) -> float:
        return self.closed_loop.reward_mean.candidate or 0.0

    @property
    def gap_closed(self) -> float:
        """Share of the way from the random policy to the greedy oracle."""
        random, best = self.rewards[BASELINE_POLICY], self.rewards[BEST_POLICY]
        return (self.learned - random) / (best - random)

    def plain(self, folder: DemoFolder) -> dict[str, Any]:
        """For scripts."""
        decision = self.closed_loop.decision
        return {
            "folder": str(folder.path),
            "decision": decision.recommend,
            "sentence": decision.sentence,
            "eval_run": self.eval_run,
            "policy_revision": self.trained.run.policy_revision.revision_id,
            "policy_digest": self.trained.run.policy_revision.policy_digest,
            "rewards": {
                **self.rewards,
                "learned": self.learned,
                "learned_counterfactual": self.counterfactual.reward_mean.candidate,
            },
            "gap_closed": self.gap_closed,
            "reused": self.reused,
            "seconds": round(self.seconds, 1),
        }

    def print_summary(self, folder: DemoFolder) -> None:
        place = os.path.relpath(folder.path)
        run = quote(os.path.join(place, "run"))
        guessed = self.counterfactual.reward_mean.candidate or 0.0
        revision = self.trained.run.policy_revision
        say("")
        say(_wrapped(self.closed_loop.decision.sentence))
        for name, value, meaning in (
            ("random", self.rewards[BASELINE_POLICY], "the recorded baseline"),
            ("learned", self.learned, f"measured; the counterfactual replay said {guessed:.3f}"),
            ("greedy", self.rewards[BEST_POLICY], "an oracle that knows every gain of one move"),
        ):
            say(f"  {name:8} {value:.3f}  {meaning}")
        say(f"  {'gap':8} {self.gap_closed:5.0%}  of the way from random to greedy")
        say(f"  {'policy':8} {revision.revision_id}, {revision.policy_digest[:23]}…")
        say(f"  {'look':8} rollbook train info {run}")
        say(f"  {'':8} rollbook lineage show {run} --in {quote(place)}")
        say(
            f"  {'again':8} the same command, which uses what is there; {self.seconds:.0f} s this time"
        )


def _wrapped(sentence: str) -> str:
    """In lines for a narrow terminal; a number keeps its per cent sign."""
    joined = sentence.replace(" %", "\N{NO-BREAK SPACE}%")
    filled = textwrap.fill(joined, _WIDTH, subsequent_indent="  ")
    return filled.replace("\N{NO-BREAK SPACE}", " ")

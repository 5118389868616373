"""RecordedRollout: one rollout as a journal holds it, and the rows of a RolloutTable that it becomes.

The tokens before the first sampled one are the prompt of a row, all later ones are its samples. A rollout has one row,
and one more for each time that its prompt was replaced.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.record import check_digest
from rollbook.contracts.rl.build import PromptTokens
from rollbook.contracts.rl.recorded_turn import (
    FLOAT_DTYPE,
    TOKEN_DTYPE,
    RecordedTurn,
    RolloutBegun,
    RolloutEnded,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.text_column import offsets_of
from rollbook.errors import ColumnLengthMismatch, ColumnSetMismatch

NEUTRAL_TEMPERATURE = 1.0
"""At tokens that nobody sampled. A trainer divides by this column also where the loss is masked, so it is not 0."""


class _Row(NamedTuple):
    artifact_id: str
    prompt: Column
    samples: Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A rollout with all its turns."""

    begun: RolloutBegun
    turns: Sequence[RecordedTurn]
    ended: RolloutEnded | None = None

    @property
    def artifact_id(self) -> str:
        return self.begun.artifact_id

    @property
    def sample_count(self) -> int:
        """Tokens from the first sampled one on: as many as there are rewards, if each token has its own."""
        return sum(
            len(turn) for branch in self._branches() for turn in branch[_first_sampled(branch) :]
        )

    def table(self, rules: ContractRules = STRICT) -> RolloutTable:
        """Its rows. It must have ended."""
        return table_of([self], rules=rules)

    def checked_rows(self, rules: ContractRules) -> RolloutTable:
        """Its rows before their digests are recorded."""
        rows = list(self.rows())
        return RolloutTable.from_columns(rules=rules, **_table_arguments(rows, [self] * len(rows)))

    def _branches(self) -> list[list[RecordedTurn]]:
        branches: list[list[RecordedTurn]] = [[]]
        for turn in self.turns:
            if turn.branches:
                branches.append([])
            branches[-1].append(turn)
        return branches

    def rows(self) -> Iterator[_Row]:
        branches = self._branches()
        for number, turns in enumerate(branches, 1):
            name = self.artifact_id if number == 1 else f"{self.artifact_id}#{number}"
            first = _first_sampled(turns)
            if number > 1 and first == len(turns):
                continue  # a kill came between a new prompt and what was sampled after it
            samples = _sample_columns(turns[first:])
            samples["reward"], samples["advantage"] = self._values(turns[first:], len(branches))
            yield _Row(name, _joined([t.token_ids for t in turns[:first]], TOKEN_DTYPE), samples)

    def _values(self, turns: list[RecordedTurn], branches: int) -> tuple[Column, Column]:
        """Reward and advantage of each token. The reward of a rollout belongs to its last sampled token."""
        assert self.ended is not None
        sampled = _joined([np.full(len(turn), turn.sampled) for turn in turns], np.dtype(bool))
        reward, advantage = np.zeros((2, len(sampled)), FLOAT_DTYPE)
        if self.ended.reward is None:
            reward = self._per_token("reward", self.ended.rewards, len(sampled), branches)
        elif sampled.any():
            reward[np.flatnonzero(sampled)[-1]] = _binary32(self.ended.reward)
        if self.ended.advantage is None:
            advantage = self._per_token("advantage", self.ended.advantages, len(sampled), branches)
        else:
            advantage[sampled] = _binary32(self.ended.advantage)
        return reward, advantage

    def _per_token(self, column: str, data: bytes, expected: int, branches: int) -> Column:
        values = np.frombuffer(data, FLOAT_DTYPE)
        if branches > 1 or len(values) != expected:
            raise ColumnLengthMismatch(
                artifact_id=self.artifact_id, column=column, expected=expected, actual=len(values)
            )
        return values


def _binary32(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(value)  # too large a number becomes infinite, which the rules refuse


def _first_sampled(turns: Sequence[RecordedTurn]) -> int:
    return next((index for index, turn in enumerate(turns) if turn.sampled), len(turns))


def _sample_columns(turns: Sequence[RecordedTurn]) -> dict[str, Column]:
    """The sample columns of turns, the first of which was sampled."""
    lengths = [len(turn) for turn in turns]
    numbers = np.cumsum([not turn.continues for turn in turns]) - 1

    def spread(values: Iterable[Any], dtype: Any) -> Column:
        return np.repeat(np.fromiter(values, dtype, len(turns)), lengths)

    columns = {
        "token_id": _joined([turn.token_ids for turn in turns], TOKEN_DTYPE),
        "logprob": _joined(
            [_no_logprobs(turn) if turn.logprobs is None else turn.logprobs for turn in turns],
            FLOAT_DTYPE,
        ),
        "loss_mask": _joined([turn.loss_mask for turn in turns], np.dtype(np.uint8)),
        "role": spread((turn.role for turn in turns), np.uint8),
        "turn": spread(numbers, np.int64),
    }
    sampled = [turn for turn in turns if turn.sampled]
    if sampled and sampled[0].policy_version is not None:
        versions = (-1 if t.policy_version is None else t.policy_version for t in turns)
        columns["policy_version"] = spread(versions, np.int64)
    if sampled and sampled[0].temperature is not None:
        given = (NEUTRAL_TEMPERATURE if t.temperature is None else t.temperature for t in turns)
        columns["temperature"] = spread(given, FLOAT_DTYPE)
    return columns


def _no_logprobs(turn: RecordedTurn) -> NDArray[np.float32]:
    """The contracts keep 0 where no policy sampled; the loss mask and the version say so."""
    return np.zeros(len(turn), FLOAT_DTYPE)


def _joined(parts: Sequence[Column], dtype: np.dtype[Any]) -> Column:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def table_of(rollouts: Iterable[RecordedRollout], *, rules: ContractRules = STRICT) -> RolloutTable:
    """The rows of rollouts that have ended, checked under the rules and compared with their recorded digests."""
    rows: list[_Row] = []
    whose: list[RecordedRollout] = []
    recorded: list[bytes | None] = []
    for rollout in rollouts:
        assert rollout.ended is not None
        made = list(rollout.rows())
        rows += made
        whose += [rollout] * len(made)
        recorded += itertools.islice(
            itertools.chain(rollout.ended.content_digests, itertools.repeat(None)), len(made)
        )
    if not rows:
        return RolloutTable.empty()
    table = RolloutTable.from_columns(rules=rules, **_table_arguments(rows, whose))
    for row, (digest, was) in enumerate(zip(table.content_digests, recorded, strict=True)):
        name = table.columns.artifact_id[row]
        check_digest(
            name, "content_digest", was.hex() if was else "nothing", digest.tobytes().hex()
        )
    return table


def _table_arguments(rows: Sequence[_Row], whose: Sequence[RecordedRollout]) -> dict[str, Any]:
    _check_same_columns(rows)
    begun = [rollout.begun for rollout in whose]
    samples = {
        name: np.concatenate([row.samples[name] for row in rows]) for name in rows[0].samples
    }
    for column in samples.values():
        column.setflags(write=False)  # new arrays that nobody else has: a table need not copy them
    return {
        "artifact_id": [row.artifact_id for row in rows],
        "offsets": offsets_of([len(row.samples["token_id"]) for row in rows]),
        "samples": samples,
        "prompt": PromptTokens(
            np.concatenate([row.prompt for row in rows]), offsets_of([len(r.prompt) for r in rows])
        ),
        "worker_id": [each.worker_id for each in begun],
        "environment": [each.environment for each in begun],
        "task_id": [each.task_id for each in begun],
        "source_policy_revision": [each.source_policy_revision for each in begun],
        "created_at_ms": [each.created_at_ms for each in begun],
        "group_id": [each.group_id for each in begun],
        "attempt": [each.attempt for each in begun],
        "logprob_semantics": [each.logprob_semantics for each in begun],
        "termination_reason": [
            rollout.ended.termination_reason for rollout in whose if rollout.ended is not None
        ],
        "proof_references": [
            rollout.ended.proof_references for rollout in whose if rollout.ended is not None
        ],
    }


def _check_same_columns(rows: Sequence[_Row]) -> None:
    for row in rows:
        if row.samples.keys() != rows[0].samples.keys():
            raise ColumnSetMismatch(
                artifact_id=row.artifact_id,
                expected=", ".join(rows[0].samples),
                actual=", ".join(row.samples),
            )

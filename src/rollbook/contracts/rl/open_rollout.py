"""OpenRollout: a rollout that is being recorded. Whoever adds a turn has it in the file when the call returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.record import checked_choice, checked_int, checked_type
from rollbook.contracts.rl.provenance import RolloutProofReference, RolloutTerminationReason
from rollbook.contracts.rl.recorded_rollout import RecordedRollout
from rollbook.contracts.rl.recorded_turn import (
    FLOAT_DTYPE,
    TOKEN_DTYPE,
    VERSION_MAX,
    JournalEntry,
    RecordedTurn,
    RolloutDiscarded,
    RolloutEnded,
    ToolCall,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import ContractRules
from rollbook.contracts.rl.sample import RolloutRole, sample_column
from rollbook.contracts.rl.sampled_response import (
    TokenIds,
    missing_prompt,
    read_response,
    refuse_missing_logprobs,
    token_array,
)
from rollbook.errors import (
    ColumnLengthMismatch,
    ConfigurationError,
    InvalidNumber,
    InvalidValue,
    NonFiniteValue,
    PositiveLogProb,
    PromptDiverged,
)

MissingLogprobs = Literal["refuse", "nan"]
Role = RolloutRole | str

_MOST_TURNS = 1 << 16
_ROLES = {each.name.lower(): each for each in RolloutRole} | {
    "assistant": RolloutRole.POLICY,
    "developer": RolloutRole.SYSTEM,
}
_TERMINATIONS = {
    "stop": RolloutTerminationReason.COMPLETED,
    "tool_calls": RolloutTerminationReason.COMPLETED,
    "function_call": RolloutTerminationReason.COMPLETED,
    "length": RolloutTerminationReason.MAX_TOKENS,
    "content_filter": RolloutTerminationReason.REJECTED,
    "abort": RolloutTerminationReason.CANCELLED,
}
"""What the finish reason of the last response says about the rollout."""


def checked_context(token_ids: ArrayLike, record: str, field: str) -> TokenIds:
    ids = token_array(token_ids, record, field)
    if not len(ids):
        expected = "at least one token id"
        raise InvalidValue(record=record, field=field, value="empty", expected=expected)
    return ids


class OpenRollout:
    """A rollout that is being recorded. Every `add_…` is in the file when it returns."""

    def __init__(
        self,
        recorded: RecordedRollout,
        position: int,
        rules: ContractRules,
        append: Callable[[Sequence[JournalEntry], str, int], int],
    ) -> None:
        """`Recorder.rollout` and `Recorder.resume` make it."""
        self._rules = rules
        self._append = append
        self._begun = recorded.begun
        self._record = f"rollout {self.artifact_id!r}"
        self._position = position
        self._lock = threading.Lock()
        self._ended = False
        self._turns: list[RecordedTurn] = []
        self._tokens = bytearray()
        """All tokens since the last new prompt: the next prompt has to begin with them."""
        self._turn_count = 0
        for turn in recorded.turns:
            self._keep(turn)

    @property
    def artifact_id(self) -> str:
        return self._begun.artifact_id

    @property
    def token_ids(self) -> TokenIds:
        """Every token so far, prompt included: what the next prompt has to begin with."""
        return np.frombuffer(bytes(self._tokens), TOKEN_DTYPE)

    @property
    def turns(self) -> tuple[RecordedTurn, ...]:
        return tuple(self._turns)

    @property
    def sample_count(self) -> int:
        """Tokens from the first sampled one on. Rewards per token have one for each of them."""
        return RecordedRollout(self._begun, self._turns).sample_count

    def _keep(self, turn: RecordedTurn) -> None:
        if turn.branches:
            self._tokens.clear()
            self._turn_count = 0
        self._tokens += turn.tokens
        self._turns.append(turn)
        self._turn_count += not turn.continues

    # ----------------------------------------------------------------------------------- adding

    def add_response(
        self,
        response: object,
        *,
        choice: int | None = None,
        context_role: Role | None = None,
        loss_mask: ArrayLike | None = None,
        policy_version: int | None = None,
        temperature: float | None = None,
        missing_logprobs: MissingLogprobs = "refuse",
        unchecked_prompt: bool = False,
    ) -> None:
        """Add what the policy sampled, from the answer of an OpenAI-compatible server or of vLLM.

        The answer's prompt has to begin with the tokens recorded so far. What it has beyond them is context, such as
        the result of a tool; its role is TOOL after a turn with tool calls and USER otherwise, or `context_role`.
        """
        checked_choice(
            missing_logprobs, get_args(MissingLogprobs), self._record, "missing_logprobs"
        )
        sampled = read_response(response, choice=choice, record=self._record)
        with self._lock:
            entries = self._context_of(sampled.prompt_token_ids, context_role, unchecked_prompt)
            entries.append(
                self._sampled_turn(
                    sampled.token_ids,
                    sampled.logprobs,
                    loss_mask,
                    policy_version,
                    temperature,
                    missing_logprobs,
                    finish_reason=sampled.finish_reason,
                    tool_calls=sampled.tool_calls,
                    text=sampled.text,
                    model=sampled.model,
                    response_id=sampled.response_id,
                )
            )
            self._add(entries)

    def _context_of(
        self, prompt: TokenIds | None, role: Role | None, unchecked: bool
    ) -> list[RecordedTurn]:
        """The context turn that a prompt adds to the recorded tokens, if it adds any."""
        if prompt is None:
            if unchecked:
                return []
            raise missing_prompt(self._record)
        known = self._tokens
        given = prompt.tobytes()
        if given[: len(known)] == known:
            new = given[len(known) :]
            return [self._context(new, role, branches=False)] if new else []
        if self._begun.diverged == "refuse" or not any(turn.sampled for turn in self._turns):
            raise self._divergence(prompt)
        return [self._context(given, role, branches=True)]

    def _context(self, tokens: bytes, role: Role | None, *, branches: bool) -> RecordedTurn:
        if role is None:
            last = self._turns[-1] if self._turns else None
            role = RolloutRole.TOOL if last is not None and last.tool_calls else RolloutRole.USER
        return RecordedTurn(
            artifact_id=self.artifact_id, role=self._role(role), tokens=tokens, branches=branches
        )

    def _divergence(self, prompt: TokenIds) -> PromptDiverged:
        recorded = self.token_ids
        shared = min(len(recorded), len(prompt))
        different = np.flatnonzero(recorded[:shared] != prompt[:shared])
        at = int(different[0]) if len(different) else shared
        found = str(prompt[at]) if at < len(prompt) else f"missing: it has {len(prompt)} tokens"
        return PromptDiverged(
            position=at,
            record=self._record,
            field=f"prompt_token_ids[{at}]",
            value=found,
            expected=f"{recorded[at]}, which is recorded there. The conversation was turned into tokens again, or "
            "cut: send the recorded token ids as the prompt, or begin the rollout with diverged='new_row'",
        )

    def add_tokens(
        self,
        token_ids: ArrayLike,
        logprobs: ArrayLike,
        *,
        loss_mask: ArrayLike | None = None,
        policy_version: int | None = None,
        temperature: float | None = None,
        finish_reason: str | None = None,
        tool_calls: Sequence[ToolCall] = (),
        text: str | None = None,
        continues: bool = False,
        missing_logprobs: MissingLogprobs = "refuse",
    ) -> None:
        """Add tokens that the policy sampled. With `continues` they belong to the turn before, as in a stream."""
        checked_choice(
            missing_logprobs, get_args(MissingLogprobs), self._record, "missing_logprobs"
        )
        checked_type(continues, bool, self._record, "continues")
        ids = token_array(token_ids, self._record, "token_ids")
        logs = sample_column("logprob", logprobs, self._locate)
        for call in tool_calls:
            checked_type(call, ToolCall, self._record, "tool_calls")
        with self._lock:
            turn = self._sampled_turn(
                ids,
                logs,
                loss_mask,
                policy_version,
                temperature,
                missing_logprobs,
                finish_reason=finish_reason,
                tool_calls=tuple(tool_calls),
                text=text,
                continues=continues,
            )
            if continues and not (self._turns and self._turns[-1].sampled):
                self._refuse("continues", "True", "False: the turn before was not sampled")
            self._add([turn])

    def add_context(
        self,
        token_ids: ArrayLike,
        role: Role,
        *,
        tool_call_id: str | None = None,
        text: str | None = None,
    ) -> None:
        """Add tokens that no policy sampled: a system prompt, a user's message, the result of a tool.

        They are not in the loss. Before the first sampled token they are the prompt.
        """
        ids = checked_context(token_ids, self._record, "token_ids")
        turn = RecordedTurn(
            artifact_id=self.artifact_id,
            role=self._role(role),
            tokens=ids.tobytes(),
            tool_call_id=self._optional_text("tool_call_id", tool_call_id),
            text=self._optional_text("text", text),
        )
        with self._lock:
            self._add([turn])

    def _sampled_turn(
        self,
        ids: TokenIds,
        logs: NDArray[np.float32],
        loss_mask: ArrayLike | None,
        policy_version: int | None,
        temperature: float | None,
        missing_logprobs: MissingLogprobs,
        **about: Any,
    ) -> RecordedTurn:
        if not len(ids):
            self._refuse("token_ids", "empty", "at least one sampled token")
        self._check_logprobs(ids, logs, missing_logprobs)
        mask = b""
        if loss_mask is not None:
            values = sample_column("loss_mask", loss_mask, self._locate)
            self._check_length("loss_mask", len(values), len(ids))
            mask = values.tobytes()
        for name in ("finish_reason", "text"):
            about[name] = self._optional_text(name, about.get(name))
        turn = RecordedTurn(
            artifact_id=self.artifact_id,
            role=RolloutRole.POLICY,
            tokens=ids.tobytes(),
            logs=logs.tobytes(),
            mask=mask,
            policy_version=self._version(policy_version),
            temperature=self._temperature(temperature),
            **about,
        )
        self._check_facts(turn)
        return turn

    def _check_logprobs(
        self, ids: TokenIds, logs: NDArray[np.float32], missing: MissingLogprobs
    ) -> None:
        self._check_length("logprob", len(logs), len(ids))
        rules = self._rules
        if missing == "refuse":
            refuse_missing_logprobs(logs, self._record)
        elif rules.non_finite == "refuse":
            self._refuse(
                "missing_logprobs", "'nan'", "a recorder with ContractRules(non_finite='allow')"
            )
        if rules.non_finite == "refuse" and np.count_nonzero(~np.isfinite(logs)):
            at = int(np.argmax(~np.isfinite(logs)))
            raise NonFiniteValue(
                artifact_id=self.artifact_id,
                column="logprob",
                sample_index=at,
                value=str(logs[at]),
            )
        if rules.strict and np.count_nonzero(logs > 0):
            at = int(np.argmax(logs > 0))
            raise PositiveLogProb(
                artifact_id=self.artifact_id,
                column="logprob",
                sample_index=at,
                value=float(logs[at]),
            )

    def _check_facts(self, turn: RecordedTurn) -> None:
        """A column has a value for every sampled turn of a rollout, or for none: nothing is filled in."""
        earlier = next((each for each in self._turns if each.sampled), turn)
        for name in ("policy_version", "temperature"):
            before, now = getattr(earlier, name), getattr(turn, name)
            if (before is None) != (now is None):
                self._refuse(
                    name,
                    "missing" if now is None else str(now),
                    "a value" if now is None else "none: earlier turns have none",
                )

    def _version(self, given: int | None) -> int | None:
        if given is None:
            given = self._begun.source_policy_revision.revision_number
        if given is not None:
            checked_int(given, self._record, "policy_version", VERSION_MAX)
        return given

    def _temperature(self, given: float | None) -> float | None:
        if given is None:
            return None
        checked_type(given, (float, int), self._record, "temperature")
        if not 0 <= given < float(np.finfo(FLOAT_DTYPE).max):
            raise InvalidNumber(
                record=self._record,
                field="temperature",
                value=repr(given),
                expected="a finite number >= 0",
            )
        return float(given)

    def _role(self, role: Role) -> RolloutRole:
        if isinstance(role, RolloutRole):
            return role
        checked_choice(role, tuple(_ROLES), self._record, "role")
        return _ROLES[role]

    def _optional_text(self, field: str, value: str | None) -> str | None:
        if value is None:
            return None
        checked_type(value, str, self._record, field)
        return value.encode("utf-8", "replace").decode()

    def _check_length(self, column: str, actual: int, expected: int) -> None:
        if actual != expected:
            raise ColumnLengthMismatch(
                artifact_id=self.artifact_id, column=column, expected=expected, actual=actual
            )

    def _locate(self, index: int) -> str:
        return f"{self._record}, token {index}"

    def _refuse(self, field: str, value: str, expected: str) -> None:
        raise InvalidValue(record=self._record, field=field, value=value, expected=expected)

    def _add(self, turns: list[RecordedTurn]) -> None:
        self._check_open()
        if self._turn_count + len(turns) > _MOST_TURNS:
            self._refuse("turns", f"more than {_MOST_TURNS}", f"at most {_MOST_TURNS}")
        self._position = self._append(turns, self.artifact_id, self._position)
        for turn in turns:
            self._keep(turn)

    def _check_open(self) -> None:
        if self._ended:
            raise ConfigurationError(message=f"{self._record} is closed; nothing can be added")

    # ----------------------------------------------------------------------------------- ending

    def close(
        self,
        reward: float | ArrayLike,
        *,
        advantage: float | ArrayLike = 0.0,
        termination: RolloutTerminationReason | str | None = None,
        proof_references: Sequence[RolloutProofReference] = (),
    ) -> RolloutTable:
        """End the rollout and return its row. If it is refused, nothing is written and the rollout stays open.

        One reward belongs to the last sampled token; several are one for each of `sample_count` tokens. Without
        `termination`, the finish reason of the last response says how the rollout ended.
        """
        with self._lock:
            self._check_open()
            one_reward, rewards = self._values("reward", reward)
            one_advantage, advantages = self._values("advantage", advantage)
            ended = RolloutEnded(
                artifact_id=self.artifact_id,
                termination_reason=self._termination(termination),
                reward=one_reward,
                rewards=rewards,
                advantage=one_advantage,
                advantages=advantages,
                proof_references=tuple(proof_references),
                content_digests=(),
            )
            table = RecordedRollout(self._begun, self._turns, ended).checked_rows(self._rules)
            digests = tuple(digest.tobytes() for digest in table.content_digests)
            self._end(msgspec.structs.replace(ended, content_digests=digests))
        return table

    def discard(self, reason: str) -> None:
        """End the rollout without a row, such as after an error of the environment. Its turns stay in the file."""
        checked_type(reason, str, self._record, "reason")
        text = self._optional_text("reason", reason)
        with self._lock:
            self._check_open()
            self._end(RolloutDiscarded(artifact_id=self.artifact_id, reason=str(text)))

    def _end(self, entry: RolloutEnded | RolloutDiscarded) -> None:
        self._append([entry], self.artifact_id, self._position)
        self._ended = True

    def _values(self, name: str, given: float | ArrayLike) -> tuple[float | None, bytes]:
        """One number, or the bytes of one number for each token."""
        if isinstance(given, float | int) or getattr(given, "ndim", None) == 0:
            one: list[Any] = [given]
            return float(sample_column(name, one, self._locate)[0]), b""
        values = sample_column(name, given, self._locate)
        if any(turn.branches for turn in self._turns):
            self._refuse(name, "one for each token", "one number: the rollout has several rows")
        return None, values.astype(FLOAT_DTYPE, copy=False).tobytes()

    def _termination(
        self, given: RolloutTerminationReason | str | None
    ) -> RolloutTerminationReason:
        if given is not None:
            checked_choice(given, tuple(RolloutTerminationReason), self._record, "termination")
            return RolloutTerminationReason(given)
        sampled = [turn for turn in self._turns if turn.sampled]
        reason = sampled[-1].finish_reason if sampled else None
        known = _TERMINATIONS.get(reason or "")
        if sampled and known is None:
            self._refuse(
                "termination",
                f"missing, and the last finish reason is {reason!r}",
                ", ".join(RolloutTerminationReason),
            )
        return known or RolloutTerminationReason.COMPLETED

    def __enter__(self) -> OpenRollout:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error the rollout stays unfinished: it can be resumed, closed or discarded."""
        if kind is None and not self._ended:
            raise ConfigurationError(
                message=f"{self._record} ends without a reward: call close(reward=…) or discard(…) "
                "inside of its block; it stays unfinished in the file"
            )

    def __repr__(self) -> str:
        return f"OpenRollout({self.artifact_id!r}, {len(self._turns)} turns, {len(self._tokens) // 4} tokens)"

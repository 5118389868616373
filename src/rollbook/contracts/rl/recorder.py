"""Recorder: records the rollouts of agents while they run, token by token, into a file that survives a kill.

    with Recorder("agents.journal") as recorder:
        with recorder.rollout(environment=…, source_policy_revision=…) as rollout:
            rollout.add_response(response)
            rollout.add_context(result_tokens, role="tool")
            rollout.add_response(next_response)
            rollout.close(reward=1.0)
        table = recorder.table()

A call returns when its record is in the file: it survives the end of the process, however that comes. With
`sync=True` it also survives a power cut. Closed rollouts are kept on disk only.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from typing import get_args

from numpy.typing import ArrayLike

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import checked_choice, checked_text, checked_type
from rollbook.contracts.rl.journal import Journal
from rollbook.contracts.rl.open_rollout import OpenRollout, checked_context
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    LogprobSemantics,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.recorded_rollout import RecordedRollout
from rollbook.contracts.rl.recorded_turn import (
    Diverged,
    JournalBegun,
    JournalEntry,
    RolloutBegun,
    encode_entry,
)
from rollbook.contracts.rl.recorder_file import JournalWriter, TornTail
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules, checked_rules
from rollbook.contracts.rl.sample import RolloutRole
from rollbook.errors import (
    AlreadyTaken,
    ConfigurationError,
    InvalidValue,
    RollbookError,
    UnknownArtifact,
)

_RESERVED_ID = re.compile(r"#\d+$")
"""The rows after the first one of a rollout have such ids."""


class Recorder:
    """Writes one file. Many rollouts can be open at once, in many threads; one process at a time can write the file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        worker_id: str = "",
        sync: bool = False,
        rules: ContractRules = STRICT,
    ) -> None:
        """Begin a file, or go on with one.

        `name` is the beginning of automatic ids, `<name>-0`, `<name>-1` and so on; without one, a new file gets a
        random name. `sync` makes every record durable before the call that adds it returns.
        """
        checked_type(path, (str, os.PathLike), "recorder", "path")
        checked_type(sync, bool, "recorder", "sync")
        checked_text(worker_id, "recorder", "worker_id")
        if name is not None:
            checked_text(name, "recorder", "name")
        self.rules = checked_rules(rules)
        self.worker_id = worker_id
        self._lock = threading.Lock()
        self._writer = JournalWriter(path, sync=sync)
        try:
            self._begin(name)
        except BaseException:
            self._writer.close()
            raise

    def _begin(self, name: str | None) -> None:
        self._writer.reader.check_preamble()
        self._read_again()
        if self._journal.name is None:
            self._write([JournalBegun(name=os.urandom(6).hex() if name is None else name)], 0)
            self._writer.sync()
        elif name not in (None, self._journal.name):
            raise InvalidValue(
                record=f"recorder of {self._writer.path}",
                field="name",
                value=repr(name),
                expected=f"{self._journal.name!r}, with which the file was begun",
            )

    def _read_again(self) -> None:
        self._journal = Journal(self._writer.reader, self._writer.file)
        self._journal.scan()
        self._writer.start(end=self._journal.end, number=self._journal.records)

    @property
    def name(self) -> str:
        return str(self._journal.name)

    @property
    def recovered(self) -> TornTail | None:
        """The incomplete record that was cut off the file when it was opened. Its turn was never acknowledged."""
        return self._journal.torn

    @property
    def closed(self) -> int:
        """How many rollouts were closed, also before the file was opened again."""
        return self._journal.closed

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of rollouts that were neither closed nor discarded. `resume` goes on with one."""
        with self._lock:
            return tuple(self._journal.unfinished)

    # ---------------------------------------------------------------------------------- rollouts

    def rollout(
        self,
        *,
        environment: EnvironmentPackageKey,
        source_policy_revision: PolicyRevision,
        prompt: ArrayLike | None = None,
        task_id: str = "",
        group_id: str | None = None,
        attempt: int | None = None,
        logprob_semantics: LogprobSemantics | None = None,
        artifact_id: str | None = None,
        created_at_ms: int | None = None,
        diverged: Diverged = "refuse",
    ) -> OpenRollout:
        """Begin a rollout. `prompt` has token ids; without it, the prompt is that of the first response.

        `diverged` says what happens if the prompt of a later response does not begin with the recorded tokens: it is
        refused, or recorded as the prompt of a new row (`new_row`), which gets the same reward as the rows before it.
        """
        checked_choice(diverged, get_args(Diverged), "rollout", "diverged")
        if prompt is not None:
            prompt = checked_context(prompt, "rollout", "prompt")
        with self._lock:
            begun = RolloutBegun(
                artifact_id=self._new_id(artifact_id),
                worker_id=self.worker_id,
                environment=environment,
                task_id=task_id,
                source_policy_revision=source_policy_revision,
                created_at_ms=time.time_ns() // 1_000_000
                if created_at_ms is None
                else created_at_ms,
                group_id=group_id,
                attempt=attempt,
                logprob_semantics=logprob_semantics,
                diverged=diverged,
            )
            self._check_begun(begun)
            position = self._write([begun], 0)
        self._writer.sync()
        rollout = OpenRollout(RecordedRollout(begun, []), position, self.rules, self._append)
        if prompt is not None:
            rollout.add_context(prompt, role=RolloutRole.USER)
        return rollout

    def _new_id(self, given: str | None) -> str:
        if given is None:
            return f"{self.name}-{self._journal.begun}"
        checked_text(given, "rollout", "artifact_id")
        if given in self._journal.given_ids:
            raise AlreadyTaken(what="artifact id", value=given)
        if self._journal.is_automatic(given) or _RESERVED_ID.search(given):
            raise InvalidValue(
                record="rollout",
                field="artifact_id",
                value=repr(given),
                expected=f"an id unlike {self.name}-0 and unlike r#2, which recorders make themselves",
            )
        return given

    def _check_begun(self, begun: RolloutBegun) -> None:
        """Refuse now what would be refused when the rollout is closed."""
        RolloutArtifact(
            artifact_id=begun.artifact_id,
            worker_id=begun.worker_id,
            environment=begun.environment,
            task_id=begun.task_id,
            source_policy_revision=begun.source_policy_revision,
            samples={"token_id": [0], "logprob": [0.0], "reward": [0.0], "advantage": [0.0]},
            termination_reason=RolloutTerminationReason.COMPLETED,
            created_at_ms=begun.created_at_ms,
            group_id=begun.group_id,
            attempt=begun.attempt,
            logprob_semantics=begun.logprob_semantics,
            rules=self.rules,
        )

    def resume(self, artifact_id: str) -> OpenRollout:
        """Go on with an unfinished rollout, such as one of a killed process. It has everything that was added."""
        with self._lock:
            position = self._journal.unfinished.get(artifact_id)
            if position is None:
                where = f"the unfinished rollouts of {self._writer.path}"
                raise UnknownArtifact(artifact_id=str(artifact_id), where=where)
            recorded = self._journal.rollout_at(position)
        return OpenRollout(recorded, position, self.rules, self._append)

    def _append(self, entries: Sequence[JournalEntry], artifact_id: str, after: int) -> int:
        """Write records of a rollout. `after` is the position of its last record, as the caller knows it."""
        with self._lock:
            if self._journal.unfinished.get(artifact_id) != after:
                raise ConfigurationError(
                    message=f"rollout {artifact_id!r} was resumed or ended elsewhere; use that object"
                )
            position = self._write(entries, after)
        self._writer.sync()
        return position

    def _write(self, entries: Sequence[JournalEntry], after: int) -> int:
        payloads = [encode_entry(entry) for entry in entries]
        try:
            position = self._writer.append(payloads, after)
            self._journal.note(entries[-1], position)
        except RollbookError:
            raise
        except BaseException:
            # Ctrl-C came between the write and the note of it: the file knows what was written
            self._read_again()
            raise
        return position

    # ---------------------------------------------------------------------------------- reading

    def table(self, first: int = 0) -> RolloutTable:
        """The closed rollouts, read from the file, in the order of closing.

        With `first` only those from that number on: `table(first=seen)` has what was closed since `closed` was `seen`.
        """
        return self._journal.table(first, rules=self.rules)

    def close(self) -> None:
        """Close the file. Rollouts that are open stay unfinished and can be resumed later."""
        with self._lock:
            self._writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        unfinished = len(self._journal.unfinished)
        return (
            f"Recorder({str(self._writer.path)!r}, {self.closed} closed, {unfinished} unfinished)"
        )

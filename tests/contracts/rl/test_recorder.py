"""A Recorder keeps every token of an agent's rollouts, from many threads, and gives them back as a table."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollbook.contracts.rl as rl
from rollbook.contracts import (
    COMPATIBLE,
    ContractRules,
    LogprobDistribution,
    LogprobSemantics,
    Recorder,
    RolloutArtifact,
    RolloutRole,
    RolloutTable,
    RolloutTerminationReason,
    ToolCall,
    TrainerBatch,
    read_journal,
)
from rollbook.contracts.rl.recorded_rollout import RecordedRollout
from rollbook.errors import (
    AllSamplesMasked,
    AlreadyTaken,
    AmbiguousId,
    ColumnLengthMismatch,
    ColumnSetMismatch,
    ConfigurationError,
    EmptyId,
    EmptyRolloutSamples,
    InvalidNumber,
    InvalidText,
    InvalidValue,
    LeaseHeld,
    NonFiniteValue,
    NoSuchRow,
    PositiveLogProb,
    PromptDiverged,
    StorageError,
    UnknownArtifact,
    WrongColumnType,
)
from rollbook.train import to_padded
from tests.contracts.rl.agent_responses import ENVIRONMENT, POLICY, begin, chat, recorder
from tests.factories import proof, revision


def columns(table: RolloutTable, row: int = 0) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in table[row].columns.items()}


def kept_rollouts(folder: Path) -> list[RecordedRollout]:
    with read_journal(folder / "agents.journal") as journal:
        return list(journal.rollouts())


# ------------------------------------------------------------------------------------- what is kept


def test_it_is_a_name_of_the_room_and_of_its_inner_room() -> None:
    assert rl.Recorder is Recorder


def test_a_conversation_becomes_a_row_with_roles_masks_and_versions(tmp_path: Path) -> None:
    with recorder(tmp_path, worker_id="w") as book:
        with begin(book, task_id="t", group_id="g", attempt=2) as rollout:
            rollout.add_response(chat([1, 2], [3, 4], [-0.25, -0.5], tool="search"))
            rollout.add_response(chat([1, 2, 3, 4, 8, 9], [5], [-1.0]))
            closed = rollout.close(reward=2.0, advantage=0.5)
        table = book.table()
    assert table.root == closed.root
    row = table[0]
    assert (row.artifact_id, row.worker_id, row.task_id) == ("run-0", "w", "t")
    assert (row.group_id, row.attempt, row.created_at_ms) == ("g", 2, 1_000)
    assert (row.environment, row.source_policy_revision) == (ENVIRONMENT, POLICY)
    assert row.termination_reason is RolloutTerminationReason.COMPLETED
    assert row.prompt is not None
    assert row.prompt.tolist() == [1, 2]
    assert columns(table) == {
        "token_id": [3, 4, 8, 9, 5],
        "logprob": [-0.25, -0.5, 0.0, 0.0, -1.0],
        "reward": [0.0, 0.0, 0.0, 0.0, 2.0],
        "advantage": [0.5, 0.5, 0.0, 0.0, 0.5],
        "loss_mask": [1, 1, 0, 0, 1],
        "role": [RolloutRole.POLICY] * 2 + [RolloutRole.TOOL] * 2 + [RolloutRole.POLICY],
        "turn": [0, 0, 1, 1, 2],
        "policy_version": [7, 7, -1, -1, 7],
    }


def test_context_before_the_first_sampled_token_is_the_prompt(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        rollout.add_context([2], role="system")
        rollout.add_context(np.array([3], np.int32), role=RolloutRole.USER)
        rollout.add_tokens([4], [-0.5], finish_reason="stop")
        rollout.add_context([5, 6], role="tool", tool_call_id="call-1", text="found")
        rollout.close(reward=1.0)
        row = book.table()[0]
        assert row.prompt is not None
        assert row.prompt.tolist() == [1, 2, 3]
        assert row.columns["role"].tolist() == [0, 2, 2]
        assert row.columns["reward"].tolist() == [1.0, 0.0, 0.0]
        [kept] = kept_rollouts(tmp_path)
    assert [turn.role.name for turn in kept.turns] == ["USER", "SYSTEM", "USER", "POLICY", "TOOL"]
    assert (kept.turns[-1].tool_call_id, kept.turns[-1].text) == ("call-1", "found")


def test_the_journal_keeps_what_a_table_has_no_column_for(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book)
        rollout.add_response(chat([1], [2], tool="search", finish_reason="tool_calls"))
        rollout.close(reward=0.0)
        [kept] = kept_rollouts(tmp_path)
    turn = kept.turns[1]
    assert turn.tool_calls == (ToolCall(name="search", arguments="{}", call_id="call-1"),)
    assert (turn.finish_reason, turn.model, turn.response_id) == (
        "tool_calls",
        "small",
        "chatcmpl-1",
    )


def test_tokens_of_a_stream_belong_to_one_turn(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        rollout.add_tokens([2], [-0.5])
        rollout.add_tokens([3], [-0.25], continues=True)
        rollout.add_context([4], role="user")
        rollout.add_tokens([5], [-1.0], loss_mask=[0], finish_reason="length")
        table = rollout.close(reward=[0.0, 1.0, 0.0, 2.0], advantage=[0, 1, 2, 3])
    assert columns(table)["turn"] == [0, 0, 1, 2]
    assert columns(table)["reward"] == [0.0, 1.0, 0.0, 2.0]
    assert columns(table)["advantage"] == [0.0, 1.0, 2.0, 3.0]
    assert columns(table)["loss_mask"] == [1, 1, 0, 0]
    assert table[0].termination_reason is RolloutTerminationReason.MAX_TOKENS


def test_weights_and_temperature_may_change_between_turns(tmp_path: Path) -> None:
    meaning = LogprobSemantics(distribution=LogprobDistribution.PROCESSED, temperature=0.7)
    with recorder(tmp_path) as book:
        rollout = begin(book, logprob_semantics=meaning)
        rollout.add_response(chat([1], [2]), temperature=0.5)
        rollout.add_response(chat([1, 2, 3], [4]), temperature=1, policy_version=8)
        table = rollout.close(reward=0.0, proof_references=[proof()])
    assert columns(table)["policy_version"] == [7, -1, 8]
    assert columns(table)["temperature"] == [0.5, 1.0, 1.0]
    assert table[0].logprob_semantics == meaning
    assert table[0].proof_references == (proof(),)


def test_a_revision_without_a_number_leaves_the_column_out(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, source_policy_revision=revision(revision_number=None))
        rollout.add_response(chat([1], [2]))
        assert "policy_version" not in rollout.close(reward=0.0)[0].columns


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "completed"),
        ("tool_calls", "completed"),
        ("length", "max_tokens"),
        ("content_filter", "rejected"),
        ("abort", "cancelled"),
    ],
)
def test_the_last_response_says_how_a_rollout_ended(
    tmp_path: Path, finish: str, reason: str
) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book)
        rollout.add_response(chat([1], [2], finish_reason=finish))
        assert rollout.close(reward=0.0)[0].termination_reason == reason


def test_an_unknown_finish_reason_needs_a_termination(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book)
        rollout.add_response(chat([1], [2], finish_reason="repetition"))
        with pytest.raises(InvalidValue, match="repetition"):
            rollout.close(reward=0.0)
        with pytest.raises(InvalidValue):
            rollout.close(reward=0.0, termination="done")
        row = rollout.close(reward=0.0, termination="tool_error")[0]
    assert row.termination_reason is RolloutTerminationReason.TOOL_ERROR


def test_recorded_rollouts_become_a_batch_and_padded_arrays(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        for number, reward in enumerate((1.0, 0.0)):
            with begin(book, group_id="q") as rollout:
                rollout.add_response(chat([1, 2], [3] * (number + 1)))
                rollout.close(reward=reward, advantage=reward - 0.5)
        table = book.table()
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(8, policy_family="agent"), rollouts=table,
        assembled_at_ms=5_000,
    )  # fmt: skip
    arrays = to_padded(batch, table, layout="left_prompt")
    assert arrays.loss_mask.sum() == 3
    assert arrays.advantages[arrays.loss_mask].tolist() == [0.5, -0.5, -0.5]


# --------------------------------------------------------------------------------- the next prompt


def test_a_prompt_that_was_made_into_tokens_again_is_refused_at_its_first_difference(
    tmp_path: Path,
) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book)
        rollout.add_response(chat([1, 2], [3, 4]))
        with pytest.raises(PromptDiverged) as refused:
            rollout.add_response(chat([1, 2, 3, 77, 5], [6]))
        assert refused.value.field == "prompt_token_ids[3]"
        assert refused.value.position == 3
        assert (refused.value.value, refused.value.expected[:2]) == ("77", "4,")
        with pytest.raises(PromptDiverged) as cut:
            rollout.add_response(chat([1, 2, 3], [6]))
        assert cut.value.field == "prompt_token_ids[3]"
        rollout.add_response(chat([1, 2, 3, 4], [6]))
        assert rollout.token_ids.tolist() == [1, 2, 3, 4, 6]


def test_a_prompt_that_diverges_may_begin_a_row_of_its_own(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, artifact_id="r", diverged="new_row", group_id="g")
        rollout.add_response(chat([1, 2], [3, 4]))
        rollout.add_response(chat([1, 9], [5]))
        rollout.add_response(chat([1, 9, 5, 6], [7]))
        with pytest.raises(InvalidValue, match="several rows"):
            rollout.close(reward=[0.0] * 5)
        rollout.close(reward=1.0)
        table = book.table()
    assert [row.artifact_id for row in table] == ["r", "r#2"]
    assert [row.group_id for row in table] == ["g", "g"]
    assert [row.prompt.tolist() for row in table if row.prompt is not None] == [[1, 2], [1, 9]]
    assert columns(table, 0)["reward"] == [0.0, 1.0]
    assert columns(table, 1)["token_id"] == [5, 6, 7]
    assert columns(table, 1)["reward"] == [0.0, 0.0, 1.0]
    assert columns(table, 1)["turn"] == [0, 1, 2]


def test_a_new_prompt_without_an_answer_is_no_row(tmp_path: Path) -> None:
    """As after a kill between the two records of a response."""
    path = tmp_path / "agents.journal"
    with recorder(tmp_path) as book:
        rollout = begin(book, diverged="new_row")
        rollout.add_response(chat([1, 2], [3, 4]))
        rollout.add_response(chat([1, 9], [5]))
    path.write_bytes(path.read_bytes()[:-1])
    with recorder(tmp_path) as book:
        rollout = book.resume("run-0")
        assert rollout.token_ids.tolist() == [1, 9]
        assert len(rollout.close(reward=1.0)) == 1
        assert [row.prompt.tolist() for row in book.table() if row.prompt is not None] == [[1, 2]]


def test_the_first_prompt_has_to_be_the_one_that_was_given(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1, 2], diverged="new_row")
        with pytest.raises(InvalidValue, match=r"prompt_token_ids\[1\]"):
            rollout.add_response(chat([1, 3], [4]))


# ------------------------------------------------------------------------------------ what is refused


def test_what_cannot_become_a_row_is_refused_when_the_rollout_begins(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        for wrong, error in (
            ({"artifact_id": "a|b"}, AmbiguousId),
            ({"artifact_id": ""}, EmptyId),
            ({"task_id": "a|b"}, AmbiguousId),
            ({"environment": "env"}, InvalidValue),
            ({"source_policy_revision": "r"}, InvalidValue),
            ({"group_id": 3}, InvalidText),
            ({"attempt": -1}, InvalidNumber),
            ({"created_at_ms": -1}, InvalidNumber),
            ({"diverged": "perhaps"}, InvalidValue),
            ({"artifact_id": "run-5"}, InvalidValue),
            ({"artifact_id": "r#2"}, InvalidValue),
            ({"logprob_semantics": "raw"}, InvalidValue),
            ({"prompt": []}, InvalidValue),
            ({"prompt": "text"}, InvalidValue),
            ({"prompt": [-1]}, InvalidNumber),
        ):
            with pytest.raises(error):
                begin(book, **wrong)
        assert book.unfinished == ()
    assert (tmp_path / "agents.journal").stat().st_size < 200


def test_a_refused_turn_leaves_the_rollout_and_the_file_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "agents.journal"
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        rollout.add_tokens([2], [-0.5], finish_reason="stop")
        size = path.stat().st_size
        for call, error in (
            (lambda: rollout.add_tokens([3], [0.5]), PositiveLogProb),
            (lambda: rollout.add_tokens([3], [float("-inf")]), NonFiniteValue),
            (lambda: rollout.add_tokens([3], [float("nan")]), InvalidValue),
            (lambda: rollout.add_tokens([3, 4], [-0.5]), ColumnLengthMismatch),
            (lambda: rollout.add_tokens([3], [-0.5], loss_mask=[1, 1]), ColumnLengthMismatch),
            (lambda: rollout.add_tokens([3], [-0.5], loss_mask=[2]), InvalidValue),
            (lambda: rollout.add_tokens([], []), InvalidValue),
            (lambda: rollout.add_tokens([-1], [-0.5]), InvalidNumber),
            (lambda: rollout.add_tokens([2**32], [-0.5]), InvalidNumber),
            (lambda: rollout.add_tokens([0.5], [-0.5]), InvalidValue),
            (lambda: rollout.add_tokens(["a"], [-0.5]), InvalidValue),
            (lambda: rollout.add_tokens([[1], [2, 3]], [-0.5]), WrongColumnType),
            (lambda: rollout.add_tokens([3], ["x"]), WrongColumnType),
            (lambda: rollout.add_tokens([3], [-0.5], temperature=0.5), InvalidValue),
            (lambda: rollout.add_tokens([3], [-0.5], temperature="hot"), InvalidValue),  # type: ignore[arg-type]
            (lambda: rollout.add_tokens([3], [-0.5], policy_version=-1), InvalidNumber),
            (lambda: rollout.add_tokens([3], [-0.5], policy_version=2**31), InvalidNumber),
            (lambda: rollout.add_tokens([3], [-0.5], text=b"x"), InvalidValue),  # type: ignore[arg-type]
            (lambda: rollout.add_tokens([3], [-0.5], tool_calls=[{}]), InvalidValue),  # type: ignore[list-item]
            (lambda: rollout.add_tokens([3], [-0.5], missing_logprobs="nan"), InvalidValue),
            (lambda: rollout.add_context([], role="user"), InvalidValue),
            (lambda: rollout.add_context([3], role="robot"), InvalidValue),
            (lambda: rollout.close(reward=float("nan")), NonFiniteValue),
            (lambda: rollout.close(reward=1e300), InvalidNumber),
            (lambda: rollout.close(reward=[1.0, 2.0]), ColumnLengthMismatch),
            (lambda: rollout.close(reward="much"), WrongColumnType),
            (lambda: rollout.close(reward=None), WrongColumnType),  # type: ignore[arg-type]
        ):
            with pytest.raises(error):
                call()
        assert path.stat().st_size == size
        assert rollout.token_ids.tolist() == [1, 2]
        assert rollout.close(reward=1.0)[0].token_count == 1


def test_a_rollout_without_a_sampled_token_or_without_a_loss_is_refused(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        empty = begin(book, prompt=[1])
        with pytest.raises(EmptyRolloutSamples):
            empty.close(reward=0.0)
        masked = begin(book, prompt=[1])
        masked.add_tokens([2], [-0.5], loss_mask=[0], finish_reason="stop")
        with pytest.raises(AllSamplesMasked):
            masked.close(reward=0.0)
        assert book.unfinished == ("run-0", "run-1")


def test_rules_of_the_recorder_may_allow_more(tmp_path: Path) -> None:
    with recorder(tmp_path, rules=ContractRules(non_finite="allow")) as book:
        rollout = begin(book)
        rollout.add_response(chat([1], [2, 3], [-0.5, None]), missing_logprobs="nan")
        rollout.close(reward=0.0)
        assert np.isnan(book.table()[0].columns["logprob"]).tolist() == [False, True]
    with read_journal(tmp_path / "agents.journal") as journal:
        with pytest.raises(NonFiniteValue):
            journal.table()
        assert len(journal.table(rules=COMPATIBLE)) == 1


def test_rollouts_with_different_columns_are_not_one_table(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        for temperature in (None, 0.5):
            rollout = begin(book)
            rollout.add_response(chat([1], [2]), temperature=temperature)
            rollout.close(reward=0.0)
        with pytest.raises(ColumnSetMismatch, match="temperature"):
            book.table()
        assert len(book.table(first=1)) == 1


def test_an_id_is_given_once(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, artifact_id="mine")
        rollout.add_response(chat([1], [2]))
        rollout.close(reward=0.0)
    with recorder(tmp_path) as book, pytest.raises(AlreadyTaken):
        begin(book, artifact_id="mine")


def test_a_rollout_that_leaves_its_block_without_a_reward_is_an_error(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        with pytest.raises(ConfigurationError, match="without a reward"), begin(book) as rollout:
            rollout.add_response(chat([1], [2]))
        with pytest.raises(KeyError), begin(book) as rollout:
            raise KeyError("of the agent")
        with begin(book) as rollout:
            rollout.discard("the simulator failed")
        assert book.unfinished == ("run-0", "run-1")
        with pytest.raises(ConfigurationError, match="closed"):
            rollout.add_response(chat([1], [2]))


# --------------------------------------------------------------------------------------- going on


def test_an_unfinished_rollout_goes_on_in_the_next_recorder(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        begin(book).add_response(chat([1], [2], tool="search"))
        done = begin(book)
        done.add_response(chat([1], [2]))
        done.close(reward=0.5)
    with Recorder(tmp_path / "agents.journal") as book:
        assert (book.name, book.closed, book.unfinished) == ("run", 1, ("run-0",))
        rollout = book.resume("run-0")
        with pytest.raises(InvalidValue):
            rollout.add_response(chat([1, 3], [4]))
        rollout.add_response(chat([1, 2, 3], [4]))
        rollout.close(reward=1.0)
        begin(book)
        assert book.unfinished == ("run-2",)
        table = book.table()
    assert [row.artifact_id for row in table] == ["run-1", "run-0"]
    assert columns(table, 1)["role"] == [0, RolloutRole.TOOL, 0]
    with pytest.raises(InvalidValue, match="'run'"):
        recorder(tmp_path, name="other")


def test_only_the_last_object_of_a_rollout_can_add_to_it(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        old = begin(book)
        new = book.resume(old.artifact_id)
        new.add_response(chat([1], [2]))
        with pytest.raises(ConfigurationError, match="elsewhere"):
            old.add_response(chat([1], [2]))
        new.close(reward=0.0)
        with pytest.raises(UnknownArtifact):
            book.resume(old.artifact_id)


def test_a_table_of_what_is_new(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        assert len(book.table()) == 0
        for _ in range(3):
            rollout = begin(book)
            rollout.add_response(chat([1], [2]))
            rollout.close(reward=0.0)
        assert [row.artifact_id for row in book.table(first=2)] == ["run-2"]
        assert len(book.table(first=3)) == 0
        with pytest.raises(NoSuchRow):
            book.table(first=4)


def test_a_closed_recorder_says_so(tmp_path: Path) -> None:
    book = recorder(tmp_path)
    rollout = begin(book)
    book.close()
    book.close()
    for call in (lambda: rollout.add_context([1], "user"), lambda: begin(book)):
        with pytest.raises(ConfigurationError, match="is closed"):
            call()
    assert len(book.table()) == 0


def test_two_recorders_do_not_write_one_file(tmp_path: Path) -> None:
    with recorder(tmp_path), pytest.raises(LeaseHeld) as held:
        recorder(tmp_path)
    assert held.value.retryable
    with recorder(tmp_path) as book:
        assert book.unfinished == ()


def test_a_forked_process_does_not_write_into_the_file_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(LeaseHeld, match="forked"):
            rollout.add_context([1], "user")
        monkeypatch.undo()
        rollout.add_context([1], "user")


# --------------------------------------------------------------------------------------- many at once


def record_some(book: Recorder, thread: int, rollouts: int) -> None:
    for number in range(rollouts):
        name = f"t{thread}.{number}"
        with begin(book, artifact_id=name, prompt=[thread, number]) as rollout:
            for turn in range(3):
                seen = rollout.token_ids.tolist()
                rollout.add_response(chat([*seen, 50 + turn], [100 * thread + turn, number]))
            rollout.close(reward=float(thread))


@pytest.mark.parametrize("sync", [False, True])
def test_many_threads_record_at_once(tmp_path: Path, sync: bool) -> None:
    threads, each = 8, 2 if sync else 12
    with recorder(tmp_path, sync=sync) as book:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda thread: record_some(book, thread, each), range(threads)))
        table = book.table()
    assert len(table) == threads * each
    for row in table:
        thread, number = map(int, row.artifact_id.removeprefix("t").split("."))
        assert row.prompt is not None
        assert row.prompt.tolist() == [thread, number, 50]
        sampled = row.columns["token_id"][row.columns["loss_mask"] == 1].tolist()
        assert sampled == [x for turn in range(3) for x in (100 * thread + turn, number)]
    with read_journal(tmp_path / "agents.journal") as journal:
        assert journal.table().root == table.root


def test_threads_may_share_one_rollout(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: rollout.add_tokens([n], [-0.5]), range(100)))
        row = rollout.close(reward=0.0, termination="completed")[0]
        assert sorted(row.columns["token_id"].tolist()) == list(range(100))
        assert book.table()[0].content_digest == row.content_digest


def test_agents_that_are_coroutines(tmp_path: Path) -> None:
    async def agent(book: Recorder, number: int) -> None:
        with begin(book) as rollout:
            for _ in range(3):
                await asyncio.sleep(0)
                rollout.add_response(chat([*rollout.token_ids.tolist(), number], [number]))
            rollout.close(reward=float(number))

    async def all_agents(book: Recorder) -> None:
        await asyncio.gather(*(agent(book, number) for number in range(1, 20)))

    with recorder(tmp_path) as book:
        asyncio.run(all_agents(book))
        assert sorted(book.table().reward_sums().tolist()) == list(range(1, 20))


def test_the_file_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "agents.journal"
    stop = threading.Event()
    with recorder(tmp_path) as book:

        def write() -> None:
            while not stop.is_set():
                record_some(book, book.closed + 1, 1)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            counts = []
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                with read_journal(path) as journal:
                    assert journal.torn is None
                    counts.append(len(journal.table()))
        finally:
            stop.set()
            writer.join()
        assert counts == sorted(counts)
        assert 0 < counts[-1] <= book.closed


# ------------------------------------------------------------------------------------------- failures


def test_a_full_disk_leaves_nothing_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def full(descriptor: int, data: memoryview, at: int) -> int:
        if at + 20 > full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: full_at - at], at)

    path = tmp_path / "agents.journal"
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        size = path.stat().st_size
        full_at = size + 30
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="No space left"):
            rollout.add_tokens([2], [-0.5], finish_reason="stop")
        assert path.stat().st_size == size
        monkeypatch.undo()
        rollout.add_tokens([3], [-0.5], finish_reason="stop")
        rollout.close(reward=1.0)
        assert book.table()[0].columns["token_id"].tolist() == [3]


def test_after_a_failed_fsync_nothing_is_promised_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with recorder(tmp_path, sync=True) as book:
        rollout = begin(book, prompt=[1])
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="synced"):
            rollout.add_tokens([2], [-0.5])
        monkeypatch.undo()
        with pytest.raises(StorageError, match="synced"):
            begin(book)


def test_ctrl_c_between_the_write_and_its_note_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        monkeypatch.setattr(book._journal, "note", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rollout.add_tokens([2], [-0.5], finish_reason="stop")
        again = book.resume(rollout.artifact_id)
        assert again.token_ids.tolist() == [1, 2]
        again.close(reward=1.0)
        begin(book, prompt=[3])
    with recorder(tmp_path) as book:
        assert (book.closed, book.unfinished, book.recovered) == (1, ("run-1",), None)


def test_a_file_that_another_program_cut_is_not_written_any_more(tmp_path: Path) -> None:
    with recorder(tmp_path) as book:
        rollout = begin(book, prompt=[1])
        os.truncate(tmp_path / "agents.journal", 40)
        with pytest.raises(StorageError, match="cut to 40 bytes"):
            rollout.add_context([2], "user")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        Recorder(tmp_path / "file" / "a.journal")
    with pytest.raises(StorageError):
        Recorder(tmp_path)
    with pytest.raises(InvalidValue):
        Recorder(3)  # type: ignore[arg-type]
    with Recorder(tmp_path / "new" / "folder" / "a.journal") as book:
        assert len(book.name) == 12


def test_closed_rollouts_are_not_kept_in_memory(tmp_path: Path) -> None:
    tokens = np.arange(2_000, dtype=np.uint32)
    logs = np.full(2_000, -0.5, np.float32)

    def grown(book: Recorder, rollouts: int) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rollouts):
            rollout = begin(book, prompt=tokens[:10])
            rollout.add_tokens(tokens, logs, finish_reason="stop")
            rollout.close(reward=0.0)
        return tracemalloc.get_traced_memory()[0] - before

    with recorder(tmp_path) as book:
        grown(book, 5)
        tracemalloc.start()
        try:
            kept = grown(book, 100)
        finally:
            tracemalloc.stop()
    assert kept < 100_000  # their tokens are 1.6 MB


# ----------------------------------------------------------------------------------------- round trip

token = st.integers(0, 2**32 - 1)
logprob = st.floats(-50, 0, width=32)
turns = st.lists(
    st.tuples(
        st.lists(st.tuples(token, logprob, st.booleans()), min_size=1, max_size=5),
        st.lists(token, max_size=4),
    ),
    min_size=1,
    max_size=4,
)
conversations = st.lists(
    st.tuples(st.lists(token, max_size=4), turns, st.floats(-10, 10, width=32)), max_size=4
)


@settings(max_examples=40)
@given(given_conversations=conversations, reopen=st.booleans())
def test_what_was_recorded_is_what_the_table_holds(
    tmp_path_factory: pytest.TempPathFactory, given_conversations: Any, reopen: bool
) -> None:
    folder = tmp_path_factory.mktemp("round-trip")
    expected = []
    book = recorder(folder)
    for number, (prompt, steps, reward) in enumerate(given_conversations):
        rollout = begin(book, artifact_id=f"r{number}", prompt=prompt or None)
        tokens, logs, mask, role, turn = [], [], [], [], []  # type: ignore[var-annotated]
        for sampled, context in steps:
            ids, values, kept = map(list, zip(*sampled, strict=True))
            kept[0] = True
            rollout.add_tokens(ids, values, loss_mask=kept, finish_reason="stop")
            count = len(set(turn))
            turn += [count] * len(ids)
            tokens, logs, mask = tokens + ids, logs + values, mask + kept
            role += [0] * len(ids)
            if context:
                rollout.add_context(context, "tool")
                tokens, logs = tokens + context, logs + [0.0] * len(context)
                mask += [False] * len(context)
                role += [2] * len(context)
                turn += [count + 1] * len(context)
        last = max(at for at, who in enumerate(role) if who == 0)
        if reopen:
            book.close()
            book = recorder(folder)
            rollout = book.resume(f"r{number}")
        rollout.close(reward=reward)
        expected.append(
            RolloutArtifact(
                artifact_id=f"r{number}",
                worker_id="",
                environment=ENVIRONMENT,
                task_id="",
                source_policy_revision=POLICY,
                samples={
                    "token_id": np.array(tokens, np.uint32),
                    "logprob": logs,
                    "reward": [reward if at == last else 0.0 for at in range(len(tokens))],
                    "advantage": np.zeros(len(tokens)),
                    "loss_mask": mask,
                    "role": role,
                    "turn": turn,
                    "policy_version": [7 if who == 0 else -1 for who in role],
                },
                termination_reason=RolloutTerminationReason.COMPLETED,
                created_at_ms=1_000,
                prompt=prompt or None,
            )
        )
    assert book.table().root == RolloutTable.from_artifacts(expected).root
    book.close()

"""The policy is a stranger: whatever it does, it loses its own pair, and learns nothing that it could win with."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import PolicyFailed
from rollbook.evals import open_run, run_against, run_closed_loop
from rollbook.evals.policies.messages import (
    MOST_KEYS,
    Act,
    Answer,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    shown_values,
)
from rollbook.evals.policies.policy import Policy, ReplayEpisode, StepContext, as_policy
from rollbook.evals.policies.process import PolicySource
from tests.evals import hostile_policies
from tests.evals.campaigns import Campaign
from tests.evals.recorded_runs import SlidingEnv, away, push_away, push_towards, recorded, sliding
from tests.evals.replay_policies import Batched, Chunked, Counting, follow

HOSTILE = "tests.evals.hostile_policies"
EPISODE = ReplayEpisode("ep-1", 2)
FIRST = StepContext(0, True, False, None, EPISODE)
FINE = {"/arm/position": np.ones(2)}
TROUBLE = {"/arm/position": -np.ones(2)}


def ask(policy: Policy, observation: Any = FINE) -> Any:
    policy.reset(EPISODE)
    return policy.act(observation, FIRST)["/arm/command"]


# ------------------------------------------------------------------------------- it loses its pair


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ends_with_0", "PolicyEnded: the process of the policy ended with exit status 0"),
        ("segfault", "PolicyEnded: the process of the policy was ended by signal 11 (SIGSEGV)"),
        ("killed", "PolicyEnded: the process of the policy was ended by signal 9 (SIGKILL)"),
        ("stopped", "TimeoutError: a step of the policy took longer than step_timeout_s=0.5"),
        ("endless_recursion", "RecursionError"),
        ("orphans_that_hold_the_socket", "PolicyEnded: the process of the policy ended with"),
        ("claims_10_gigabytes", "it sent what is no answer: 10737418240 bytes"),
        ("sends_garbage", "it sent what is no answer"),
        ("sends_too_large_an_array", "the policy's answer has 75497"),
        ("sends_an_object", "InvalidValue: the policy's action: /arm/command is of type object"),
    ],
)
def test_whatever_it_does_it_fails_alone_and_the_next_pair_is_answered(
    name: str, said: str
) -> None:
    limit_s = 0.5 if name == "stopped" else None
    with PolicySource(getattr(hostile_policies, name), limit_s).opened() as source:
        policy = source.make()
        try:
            assert ask(policy).tolist() == [1, 1]
            with pytest.raises(PolicyFailed) as failed:
                ask(policy, TROUBLE)
            assert said in f"{failed.value.kind}: {failed.value.message}"
            assert ask(policy).tolist() == [1, 1]
        finally:
            policy.close()


def test_processes_that_a_policy_leaves_behind_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPY_FILE", str(tmp_path / "pid"))
    with PolicySource(hostile_policies.grandchild).opened() as source:
        policy = source.make()
        with pytest.raises(PolicyFailed, match="exit status 0"):
            ask(policy, TROUBLE)
        wait_until(lambda: has_ended(int((tmp_path / "pid").read_text())))
        policy.close()


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_policy_named_by_its_module_fails_its_row_only(campaign: Campaign) -> None:
    results = campaign.against(f"{HOSTILE}:ends_with_0", dry_run=True)
    assert [each.status for each in results] == ["complete"] * 2 + ["failed"] + ["complete"] * 2
    assert results[2].error == "PolicyEnded: the process of the policy ended with exit status 0"


# ------------------------------------------------------------------------------- it learns nothing


def test_a_policy_sees_no_seed_no_outcome_and_no_key(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("SPY_FILE", str(seen))
    monkeypatch.setenv("ROLLBOOK_API_KEY", "rt_very_secret")
    secrets = ["rt_very_secret", "reward_total", "success", campaign.ids[0], "baseline 0"]
    run = campaign.run(ids=campaign.ids[:1], dry_run=True)
    for trusted, expected in ((False, []), (True, secrets[1:])):
        (result,) = run_against(run, policy_callable=f"{HOSTILE}:Spy", trusted=trusted)
        told = seen.read_text()
        assert [each for each in secrets if each in told] == expected
        assert ("seed=0" in told) == trusted
        assert "socket" in told
        assert ".sqlite" not in told
        repro = result.metrics["repro"]
        assert (repro["isolation"], repro["trusted"]) == ("process", trusted)


@pytest.mark.parametrize("trusted", [False, True])
def test_an_oracle_on_the_seed_wins_only_when_it_is_trusted(trusted: bool) -> None:
    baseline = recorded(SlidingEnv(), away, 3)

    class Oracle:
        def reset(self, episode: ReplayEpisode) -> None:
            known = {} if episode.record is None else episode.record.metadata
            self._knows = episode.seed == 3 or "success" in repr(known) or episode.id == "episode-3"

        def act(self, obs: Any, context: StepContext) -> Any:
            return push_towards(obs) if self._knows else push_away(obs)

    with PolicySource(Oracle, trusted=trusted, salt="run").opened() as source:
        policy = source.make()
        run = run_closed_loop(sliding, baseline, policy)
        policy.close()
    assert run.outcome["success"] is trusted


def test_an_episode_is_shown_under_another_id_in_every_run() -> None:
    record = EpisodeRecord(
        id="ep-1",
        status="ready",
        seed=7,
        robot="arm-3",
        fps=10.0,
        tags=["lost"],
        name="seed 7",
        metadata={"task": "pick", "success": True, "note": "seed 7", "outcome": {"success": True}},
    )
    seen: list[ReplayEpisode] = []

    class Policy:
        def reset(self, episode: ReplayEpisode) -> None:
            seen.append(episode)

        def act(self, obs: Any) -> Any: ...

    for salt in ("run-1", "run-1", "run-2"):
        as_policy(Policy(), salt=salt).reset(ReplayEpisode("ep-1", 3, record))
    assert seen[0] == seen[1]
    assert len({each.id for each in seen} | {"ep-1"}) == 3
    shown = seen[0].record
    assert shown == EpisodeRecord(
        id=seen[0].id, status="ready", robot="arm-3", fps=10.0, metadata={"task": "pick"}
    )


def test_what_a_policy_sees_and_answers_has_the_same_types_in_a_process() -> None:
    seen: dict[str, Any] = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
        "clock": np.int64(4),
        "reward": np.float64(np.nan),
        "nothing": np.zeros((0, 3)),
        "words": np.array(["left", "right"]),
        "single": np.array(2.5),
    }
    got = decode_request(encode_request(Act(shown_values(seen), 3, False, True, None)))
    assert isinstance(got, Act)
    for key, value in seen.items():
        found = got.observation[key]
        assert (type(found), found.dtype, found.shape) == (type(value), value.dtype, value.shape)
        np.testing.assert_array_equal(found, value)
    answer = {"index": 3, "score": [0.5, 1.0], "flag": np.bool_(True), "_outcome": {"x": None}}
    assert decode_answer(encode_answer(Answer([answer]))) == Answer([answer])


def test_answers_of_many_keys_or_other_types_are_refused() -> None:
    many = Answer([{str(number): 0 for number in range(MOST_KEYS + 1)}])
    with pytest.raises(ValueError, match="1001 keys"):
        decode_answer(encode_answer(many))
    for wrong in (np.zeros(2, "M8[s]"), np.zeros(2, complex)):
        with pytest.raises(ValueError, match="an array of type"):
            decode_answer(encode_answer(Answer([{"x": wrong}])))


@pytest.mark.parametrize("policy", [follow, Counting, Batched, Chunked])
def test_a_process_answers_what_a_thread_answers(campaign: Campaign, policy: Any) -> None:
    thread, process = (
        campaign.against(policy, dry_run=True, isolation=isolation)
        for isolation in ("thread", "process")
    )
    for one, other in zip(thread, process, strict=True):
        assert one.status == other.status == "complete"
        one.metrics["repro"].pop("isolation")
        other.metrics["repro"].pop("isolation")
        assert one.metrics == other.metrics


# ------------------------------------------------------------------------------- it cannot try again


def test_a_fair_coin_that_raises_when_it_loses_is_not_resumed_until_it_wins(
    campaign: Campaign,
) -> None:
    run = campaign.run()
    first = run_against(run, policy_callable=hostile_policies.FairCoin)
    failed = [each.baseline_episode_id for each in first if each.status == "failed"]
    assert failed, "ten steps without a single tail"
    for _ in range(3):
        again = run_against(
            open_run(run.id, campaign.client),
            policy_callable=hostile_policies.FairCoin,
            resume=True,
        )
        assert [each.baseline_episode_id for each in again if each.status == "failed"] == failed


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_policy_cannot_say_that_the_infrastructure_failed(
    campaign: Campaign, isolation: Any
) -> None:
    results = campaign.against(
        hostile_policies.raises_infrastructure, dry_run=True, isolation=isolation
    )
    assert results[2].error == "error of the policy: infrastructure: the server is down"


def test_a_policy_cannot_say_that_its_replay_was_interrupted(campaign: Campaign) -> None:
    """Otherwise a resumed run would replay the pair again."""
    run = campaign.run()
    first = run_against(run, policy_callable=hostile_policies.raises_interrupted)
    assert str(first[2].error).startswith("error of the policy: interrupted: ")
    again = run_against(open_run(run.id, campaign.client), policy_callable=follow, resume=True)
    assert [each.status for each in again] == [each.status for each in first]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_error_of_ours_that_a_policy_raises_is_its_own_failure(isolation: Any) -> None:
    """In a closed loop a ConfigurationError means that the environment cannot be made, which is repeated."""
    with PolicySource(hostile_policies.raises_our_error, isolation=isolation).opened() as source:
        policy = source.make()
        with pytest.raises(PolicyFailed, match="ConfigurationError"):
            ask(policy)
        policy.close()


# --------------------------------------------------------------------------------- it ends with us


def test_a_starter_that_is_killed_costs_pairs_and_no_more() -> None:
    with PolicySource(follow).opened() as source:
        policy = source.make()
        assert ask(policy).tolist() == [1, 1]
        assert source.starter is not None
        os.kill(source.starter.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(PolicyFailed, match="ended"):
                _until_it_fails(policy)
        policy.close()


def _until_it_fails(policy: Policy) -> None:
    """The kernel ends the policy when its starter has ended, a moment later."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ask(policy)

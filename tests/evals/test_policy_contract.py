"""The policy contract: many shapes, one behaviour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError
from rollbook.evals.policies.policy import ReplayEpisode, StepContext, as_policy, load_policy
from rollbook.evals.policies.process import PolicySource
from tests.evals import replay_policies
from tests.evals.replay_policies import Batched, Counting, make_counting

EPISODE = ReplayEpisode("ep-1", 2)
FIRST = StepContext(0, True, False, None, EPISODE)


def test_a_plain_function_is_given_the_observation_alone() -> None:
    policy = as_policy(lambda obs: {"a": obs["x"]})
    policy.reset(EPISODE)
    assert policy.act({"x": 3}, FIRST) == {"a": 3}
    policy.close()


def test_a_function_with_a_second_argument_is_given_the_context() -> None:
    def with_context(obs: Any, context: StepContext) -> Any:
        return {"step": context.step, "first": context.is_first}

    def with_something_else(obs: Any, temperature: float = 0.5) -> Any:
        return {"temperature": temperature}

    assert as_policy(with_context).act({}, FIRST) == {"step": 0, "first": True}
    assert as_policy(with_something_else).act({}, FIRST) == {"temperature": 0.5}


@pytest.mark.parametrize("given", [Counting, make_counting, "tests.evals.replay_policies:Counting"])
def test_a_class_or_a_function_without_arguments_makes_one_for_each_worker(given: Any) -> None:
    source = PolicySource(given, isolation="thread")
    assert not source.keeps_state
    first, second = source.make(), source.make()
    first.reset(EPISODE)
    assert second.act({"/arm/position": np.zeros(2)}, FIRST).keys() == {"/arm/command"}


def test_an_object_with_a_memory_is_known_to_have_one() -> None:
    assert PolicySource(Counting(), isolation="thread").keeps_state
    assert not PolicySource(replay_policies.follow, isolation="thread").keeps_state
    assert not PolicySource(Counting()).keeps_state, "each worker forks a copy of its own"


def test_a_policy_that_knows_batches_only_can_be_asked_for_one_step() -> None:
    policy = as_policy(Batched())
    assert policy.batched
    answer = policy.act({"/arm/position": np.zeros(2)}, FIRST)
    np.testing.assert_array_equal(answer["/arm/command"], [0.5, 0.5])


@pytest.mark.parametrize("answer", [None, [1, 2], 3.0, "left", np.zeros(3)])
def test_an_answer_that_is_no_mapping_is_a_type_error_that_names_the_step(answer: Any) -> None:
    with pytest.raises(TypeError, match="at step 0, expected a mapping"):
        as_policy(lambda obs: answer).act({}, FIRST)


@pytest.mark.parametrize("given", [3, None, object(), {"act": 1}])
def test_what_is_no_policy_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="policy_callable is a"):
        as_policy(given)


@pytest.mark.parametrize("chunk", [0, -1, True, "four"])
def test_a_chunk_has_to_be_a_number_of_steps(chunk: Any) -> None:
    class Wrong:
        def act(self, obs: Any) -> Any: ...

    wrong = Wrong()
    wrong.chunk = chunk  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="chunk"):
        as_policy(wrong)


def test_an_attribute_may_have_dots() -> None:
    assert load_policy("tests.evals.replay_policies:Nested.policy") is replay_policies.follow


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("no_colon", "neither like package.module:name nor the run folder"),
        (":x", "is not like"),
        ("tests.evals.replay_policies:", "is not like"),
        ("there.is.none:x", "there is no module 'there'"),
        ("tests.evals.replay_policies:missing", "has no 'missing'"),
    ],
)
def test_a_spec_that_leads_nowhere_says_where_it_ends(spec: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        load_policy(spec)


def test_a_module_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy_of_this_folder.py").write_text("def act(obs):\n    return {}\n")
    (tmp_path / "policy_that_needs_more.py").write_text("import there_is_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in __import__("sys").path if each])
    assert load_policy("policy_of_this_folder:act")({}) == {}
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        load_policy("policy_that_needs_more:act")

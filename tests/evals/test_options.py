"""Options of a replay are declared once, and a run is a frozen record beside the client that works on it."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import typer.main

from rollbook import evals
from rollbook.cli.main import app
from rollbook.contracts.evals import EvalRunRecord
from rollbook.evals.options import CommandLine, ReplayOptions


def test_the_keywords_of_run_against_are_the_options() -> None:
    parameters = list(inspect.signature(evals.run_against).parameters.values())
    assert [each.name for each in parameters] == ["run", *(f.name for f in fields(ReplayOptions))]
    assert {each.kind for each in parameters[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    for each in fields(ReplayOptions):
        assert f"`{each.name}`: {each.metadata['help']}" in (evals.run_against.__doc__ or "")


def test_a_keyword_that_does_not_exist_is_a_type_error() -> None:
    run = evals.EvalRun("run-1", "v2", None, ["ep-1"], dry=True)
    with pytest.raises(TypeError, match="wrkers"):
        evals.run_against(run, policy_callable=dict, wrkers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="policy_callable"):
        evals.run_against(run)  # type: ignore[call-arg]


def test_the_command_has_an_option_for_every_field_that_says_so() -> None:
    command: Any = typer.main.get_command(app)
    for name in ("replay", "run"):
        command = command.commands[name]
    options = {each.name: each for each in command.params}
    declared = {f.name: f for f in fields(ReplayOptions) if f.metadata["cli"] is not None}
    assert set(declared) <= set(options)
    for name, each in declared.items():
        cli: CommandLine = each.metadata["cli"]
        flag = cli.flag or f"--{name.replace('_', '-')}"
        assert options[name].opts == [flag, *([cli.short] if cli.short else [])]
        assert options[name].help == (cli.help or each.metadata["help"])
        assert options[name].default == (not each.default if cli.negated else each.default)


def test_a_run_has_the_attributes_of_its_frozen_record() -> None:
    run = evals.EvalRun("run-1", "v2", baseline_policy_version="v1", baseline_episode_ids=["ep-1"])
    before = run.record
    assert before == EvalRunRecord("run-1", "v2", "v1", ["ep-1"])
    run.update(status="running", episodes_completed=1)
    assert (run.id, run.status, run.episodes_completed, run.client) == ("run-1", "running", 1, None)
    assert (before.status, before.episodes_completed) == ("pending", 0)
    with pytest.raises(FrozenInstanceError):
        before.status = "failed"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="summary"):
        _ = run.summary  # type: ignore[attr-defined]

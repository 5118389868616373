"""The one module here that reaches below public names: what moves inside Rollbook is followed here alone."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from rollbook.app import create_app
from rollbook.cli.main import app
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.npz import read_npz, write_npz
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.generate.rollout.seeds import node_generator, rng_state_digest
from rollbook.scoring import rollup
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.settings import Settings
from rollbook.store.records import (
    CandidateSamplingResult,
    CounterfactualRolloutResult,
    RolloutChain,
    RolloutStep,
    SelectedDepth,
    TargetEvalCrop,
)
from rollbook.store.repack import repack_store
from tests.command import rollbook
from tests.server.people import Person
from tests.server.receiver import Receiver
from tests.server.running import Access, RunningServer
from tests.server.shared_server import new_organisation

__all__ = [
    "Access",
    "CandidateSamplingResult",
    "CounterfactualRolloutResult",
    "Person",
    "Receiver",
    "RolloutChain",
    "RolloutStep",
    "RunningServer",
    "SelectedDepth",
    "TargetEvalCrop",
    "command_line",
    "command_tree",
    "described_routes",
    "environment_names",
    "new_organisation",
    "node_generator",
    "plain_metadata",
    "promise_server",
    "read_npz",
    "repack_store",
    "rng_state_digest",
    "rollup_bytes",
    "server_settings",
    "write_npz",
]

BODY_LIMIT = 64 << 10


@contextmanager
def promise_server(folder: Path) -> Iterator[RunningServer]:
    """A real one, on SQLite and local disk, with two organisations."""
    settings: dict[str, Any] = {
        "body_limit_bytes": BODY_LIMIT,
        "sign_ins_per_minute": 100_000,
        "webhooks_to_private": True,
        "transcode_videos": False,
    }
    with RunningServer(folder, settings) as server:
        yield server


def rollup_bytes(results: Sequence[EvalResult], gate: Gate | None = None, **facts: Any) -> bytes:
    """The summary of a run as the server sends it."""
    return msgspec.json.encode(rollup(results, gate, **facts).to_wire())


def server_settings() -> dict[str, str]:
    """Names of all settings, each with its default as text; `required` where there is none."""
    return {
        each.name: "required" if each.default is MISSING else repr(each.default)
        for each in fields(Settings)
    }


def environment_names() -> list[str]:
    """Variables that anything in the package speaks of, but for the one between a server and its workers."""
    found: set[str] = set()
    for text in _sources(files("rollbook")):
        found |= set(re.findall(r"\bROLLBOOK_[A-Z0-9_]+\b", text))
    return sorted(found - {"ROLLBOOK_WORKER_SETTINGS"})


def _sources(folder: Traversable) -> Iterator[str]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _sources(each)
        elif each.name.endswith(".py"):
            yield each.read_text("utf-8")


def command_tree() -> Mapping[str, Any]:
    """Every command by what is typed for it, with its arguments and options."""
    found: dict[str, Any] = {}
    _walk("rollbook", typer.main.get_command(app), found)
    return found


def _walk(path: str, command: Any, found: dict[str, Any]) -> None:
    found[path] = {_typed(each): _facts(each) for each in command.params}
    for name, below in getattr(command, "commands", {}).items():
        _walk(f"{path} {name}", below, found)


def _typed(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return " ".join((*parameter.opts, *parameter.secondary_opts))


def _facts(parameter: Any) -> dict[str, Any]:
    default = parameter.default
    facts: dict[str, Any] = {
        "required": parameter.required,
        "repeated": parameter.multiple or parameter.nargs != 1,
        "flag": getattr(parameter, "is_flag", False),
        "default": None if callable(default) or default in (None, False) else str(default),
        "environment": parameter.envvar,
    }
    return {name: value for name, value in facts.items() if value not in (None, False)}


def command_line(*arguments: object) -> tuple[int, str]:
    """The command in this process: how it ends, and what it prints."""
    ended = rollbook(*arguments)
    return ended.returncode, ended.stdout


@cache
def described_routes() -> list[tuple[str, str, dict[int | str, type]]]:
    """Method, path, and the types of every route: of its answers by status, and of what it takes."""
    with tempfile.TemporaryDirectory() as folder:
        routes = create_app(Settings.load(Path(folder))).routes
    return [
        (method, each.path, dict(_shapes(each)))
        for each in routes
        if isinstance(each, LeanRoute) and each.described is not None
        for method in each.methods or ()
    ]


def _shapes(route: LeanRoute) -> Iterator[tuple[int | str, type]]:
    by_name = {shape.__name__: shape for shape in route.shapes}
    assert route.described is not None
    contents = dict(route.described["responses"])
    contents["takes"] = route.described["openapi_extra"].get("requestBody", {})
    for which, described in contents.items():
        schema = described.get("content", {}).get("application/json", {}).get("schema", {})
        shape = by_name.get(str(schema.get("$ref", "")).rpartition("/")[2])
        if shape is not None:
            yield which, shape

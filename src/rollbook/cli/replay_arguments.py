"""What `rollbook replay run` was told: lists of episodes, gates in files, and what does not go together."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.errors import ConfigurationError, RollbookError

if TYPE_CHECKING:
    from rollbook.contracts.gate import Gate


class Engine(StrEnum):
    local = "local"
    ray = "ray"


class Parallel(StrEnum):
    thread = "thread"
    process = "process"


class Align(StrEnum):
    by_index = "index"
    nearest = "nearest"
    hold = "hold"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line of `replay run`, read."""

    policy: str
    candidate: str | None
    baseline: str | None
    ids: list[str]
    name: str | None
    metadata: dict[str, Any]
    gate: Gate
    store: Path | None
    store_policy: str | None
    limit: int | None
    resume: str | None
    dry_run: bool
    quiet: bool
    runner: dict[str, Any]
    """For `run_against`, as it is."""

    @property
    def store_alone(self) -> bool:
        return self.store is not None and not self.ids and self.resume is None


def check(asked: Asked, *, gate_given: bool) -> None:
    """What does not go together, said before anything is done."""
    if asked.resume is not None:
        wrong = [
            option
            for option, given in (
                ("--baseline-episodes", asked.ids),
                ("--candidate-version", asked.candidate),
                ("--gate-file", gate_given),
                ("--dry-run", asked.dry_run),
            )
            if given
        ]
        if wrong:
            message = f"{' and '.join(wrong)} cannot be given with --resume: the run has its own"
            raise ConfigurationError(message=message)
    elif not (asked.candidate and asked.candidate.strip()):
        raise ConfigurationError(
            message="--candidate-version is missing: what is the candidate called?"
        )
    elif not asked.ids and asked.store is None:
        raise ConfigurationError(
            message="--baseline-episodes is missing: a comma list of ids, or @FILE with one a line"
        )
    if asked.store is not None and asked.runner["environment"]:
        raise ConfigurationError(message="--environment and --store are two ways to know; give one")
    if not asked.store_alone and (asked.store_policy or asked.limit):
        message = (
            "--store-policy and --limit choose chains of a --store, where no episodes are named"
        )
        raise ConfigurationError(message=message)
    if asked.runner["engine"] == Engine.ray:
        from rollbook.engines.ray_actors import check_ray

        check_ray()
    if asked.store is not None:
        from rollbook.evals.store_baselines import StoreBaselines

        # else every episode would fail, as if the candidate had
        StoreBaselines(asked.store, limit=1)
    _importable("--policy", asked.policy)
    if asked.runner["environment"] is not None:
        _importable("--environment", asked.runner["environment"])


def _importable(option: str, named: str) -> None:
    """A module that cannot be imported is nobody's verdict on the candidate."""
    from rollbook.evals.policies import load_attribute

    try:
        load_attribute(named, option)
    except RollbookError:
        raise
    except Exception as error:
        traceback.print_exc()
        message = f"{option} {named}: importing it raised {type(error).__name__}: {error}"
        raise ConfigurationError(message=message) from error


def episode_ids(given: Sequence[str]) -> list[str]:
    """Comma lists and files of ids, each id once, in their order. A list without one is a mistake."""
    found: list[str] = []
    for each in given:
        lines = _lines(each[1:]) if each.startswith("@") else [each]
        found += [part.strip() for line in lines for part in line.split(",")]
    ids = list(dict.fromkeys(part for part in found if part))
    if given and not ids:
        raise ConfigurationError(
            message=f"--baseline-episodes {','.join(given)!r} names no episode; give their ids"
        )
    return ids


def _lines(path: str) -> list[str]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = f"--baseline-episodes @{path} cannot be read: {error}"
        raise ConfigurationError(message=message) from error
    return [line.partition("#")[0] for line in text.splitlines()]


def metadata_pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for each, (key, equals, _) in zip(given, pairs, strict=True):
        if not (key and equals):
            raise ConfigurationError(message=f"--metadata {each!r}: expected KEY=VALUE")
    return {key: value for key, _, value in pairs}


def ci_facts() -> dict[str, Any]:
    """Where this runs, so that a run can be traced to the change it was about."""
    known = {
        name: os.environ.get(f"GITHUB_{name.upper()}") for name in ("sha", "ref", "repository")
    }
    server, job = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_RUN_ID")
    if server and job and known["repository"]:
        known["url"] = f"{server}/{known['repository']}/actions/runs/{job}"
    return {"ci": {name: value for name, value in known.items() if value}}


def gate_of(path: Path | None, *, for_reward: bool) -> Gate:
    """A store knows rewards and no success, so its default asks for those."""
    from rollbook.contracts.gate import Gate, gate_from

    if path is None:
        return Gate.for_reward() if for_reward else Gate()
    return gate_from(_gate_document(path))


def _gate_document(path: Path) -> Any:
    try:
        text = path.read_text("utf-8-sig")
        as_toml = path.suffix == ".toml" or (path.suffix != ".json" and text.lstrip()[:1] != "{")
        document = tomllib.loads(text) if as_toml else json.loads(text)
    except (OSError, ValueError) as error:
        message = f"--gate-file {path} cannot be read: {error}"
        raise ConfigurationError(message=message) from error
    return document["gate"] if isinstance(document, dict) and "gate" in document else document

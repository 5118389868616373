"""The arguments of `rollbook replay run`: lists of episodes, gate files, and checks of combinations."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.cli.store_paths import rollout_store_path
from rollbook.errors import ConfigurationError, RollbookError

if TYPE_CHECKING:
    from rollbook.contracts.gate import Gate


@dataclass(frozen=True, kw_only=True)
class ReplayArguments:
    """The parsed command line of `rollbook replay run`."""

    policy: str
    candidate: str | None
    baseline: str | None
    ids: list[str]
    name: str | None
    metadata: dict[str, Any]
    gate: Gate | None
    """None: the default for what the baselines have."""
    store: Path | None
    store_policy: str | None
    tag: str | None
    limit: int | None
    resume: str | None
    dry_run: bool
    quiet: bool
    replay: dict[str, Any]
    """Keywords of `run_against` that have a command-line option."""

    @property
    def finds_episodes(self) -> bool:
        """Whether the baselines are the episodes that match --baseline-version and --baseline-tag."""
        if self.ids or self.resume is not None:
            return False
        return self.tag is not None or (self.store is None and self.baseline is not None)

    @property
    def store_alone(self) -> bool:
        """Whether the baselines are the chains of the store."""
        given = self.ids or self.resume is not None
        return self.store is not None and not given and not self.finds_episodes


def check(asked: ReplayArguments, *, gate_given: bool) -> None:
    """Refuses arguments that contradict each other, before anything is done."""
    from rollbook.engines import check_engine

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
            message = (
                f"{' and '.join(wrong)} cannot be given with --resume: the run already has its own"
            )
            raise ConfigurationError(message=message)
    elif not (asked.candidate and asked.candidate.strip()):
        raise ConfigurationError(message="--candidate-version is missing: it names the candidate")
    elif not asked.ids and asked.store is None and not asked.finds_episodes:
        raise ConfigurationError(
            message="there are no baselines: give --baseline-version, the version of the policy that recorded them, or "
            "--baseline-episodes, ids separated by commas or @FILE with one id a line"
        )
    if asked.store is not None and asked.replay["environment"]:
        message = "--environment and --store both determine the outcome; give only one of them"
        raise ConfigurationError(message=message)
    if asked.tag is not None and (asked.ids or asked.resume is not None):
        message = "--baseline-tag finds episodes; it cannot be given with episode ids or --resume"
        raise ConfigurationError(message=message)
    if asked.store_policy and not asked.store_alone:
        message = "--store-policy chooses chains of a --store; it needs --store and no episodes"
        raise ConfigurationError(message=message)
    if asked.limit and not (asked.store_alone or asked.finds_episodes):
        message = (
            "--limit is for the chains of a --store and for the episodes that --baseline-version finds; "
            "it cannot be given with episode ids or --resume"
        )
        raise ConfigurationError(message=message)
    check_engine(asked.replay["engine"])
    if asked.store is not None:
        from rollbook.evals.store_baselines import StoreBaselines

        # without this check every episode would fail, and the candidate would look bad
        StoreBaselines(rollout_store_path(asked.store), limit=1)
    _importable("--policy", asked.policy)
    if asked.replay["environment"] is not None:
        _importable("--environment", asked.replay["environment"])


def _importable(option: str, named: str) -> None:
    """Imports the module now: an import error is a usage error, not a verdict on the candidate."""
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
    """Ids from comma lists and files, each once, in their order. A list without any id is an error."""
    found: list[str] = []
    for each in given:
        lines = _lines(each[1:]) if each.startswith("@") else [each]
        found += [part.strip() for line in lines for part in line.split(",")]
    ids = list(dict.fromkeys(part for part in found if part))
    if given and not ids:
        raise ConfigurationError(
            message=f"--baseline-episodes {','.join(given)!r} contains no episode id"
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
    """The commit and the CI job of this process, to trace a run to the change that it tests."""
    known = {
        name: os.environ.get(f"GITHUB_{name.upper()}") for name in ("sha", "ref", "repository")
    }
    server, job = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_RUN_ID")
    if server and job and known["repository"]:
        known["url"] = f"{server}/{known['repository']}/actions/runs/{job}"
    return {"ci": {name: value for name, value in known.items() if value}}


def gate_in(path: Path) -> Gate:
    from rollbook.contracts.gate import gate_from

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

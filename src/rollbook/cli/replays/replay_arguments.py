"""The arguments of `rollbook replay run`: lists of episodes, gate files, and checks of combinations."""

from __future__ import annotations

import json
import os
import sys
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.cli.plain_text import visible_lines
from rollbook.cli.store_paths import rollout_store_path
from rollbook.errors import ConfigurationError, PolicyFailed, RollbookError

if TYPE_CHECKING:
    from rollbook.contracts.gate import Gate
    from rollbook.contracts.policy import PolicyRevision


@dataclass(frozen=True, kw_only=True)
class ReplayArguments:
    """The parsed command line of `rollbook replay run`."""

    policy: Any
    """`module:attr`; when it was tried, the PolicySource that can make it."""
    candidate: str | None
    baseline: str | None
    ids: list[str]
    name: str | None
    metadata: dict[str, Any]
    gate: Gate | None
    """None: the default for what the baselines have."""
    store: Path | None
    store_policy: str | None
    source: str | None
    """The source store of the rollouts, for a closed loop on the store."""
    tag: str | None
    query: dict[str, Any]
    """Filters of episodes, as `client.episodes` takes them."""
    fresh: int | None
    """Draw this many baselines that no run has used."""
    draw_seed: int
    gate_name: str | None
    limit: int | None
    resume: str | None
    dry_run: bool
    quiet: bool
    replay: dict[str, Any]
    """Keywords of `run_against` that have a command-line option."""
    revision: PolicyRevision | None = None
    """Of a policy that is a run folder."""

    @property
    def finds_episodes(self) -> bool:
        """Whether the baselines are the episodes that match --baseline-version and --baseline-tag."""
        if self.ids or self.resume is not None:
            return False
        if self.tag is not None or self.query or self.fresh is not None:
            return True
        return self.store is None and self.baseline is not None

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
                ("--gate-file or --gate-preset", gate_given),
                ("--gate-name", asked.gate_name),
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
    if (asked.query or asked.fresh is not None) and (asked.ids or asked.resume is not None):
        message = "--query and --baselines find episodes; they cannot be given with episode ids or --resume"
        raise ConfigurationError(message=message)
    if asked.fresh is not None and asked.limit:
        message = "--baselines fresh:N already says how many; leave out --limit"
        raise ConfigurationError(message=message)
    if asked.gate_name is not None and (asked.dry_run or asked.store_alone):
        message = (
            "--gate-name is a locked gate of a server, which does not judge this run; "
            "`rollbook gates show` prints the gate, for --gate-file"
        )
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
        from rollbook.evals.store_check import opened_store

        chains = opened_store(rollout_store_path(asked.store))
        if asked.source is not None:
            from rollbook.evals.generated.store_world import StoreWorld

            StoreWorld(chains, asked.source)  # refuses another source
    if asked.replay["environment"] is not None:
        _importable("--environment", asked.replay["environment"])


def not_apart(asked: ReplayArguments) -> str | None:
    """Why the policy is not kept apart from the runner, if it is not. It could then end the runner with exit status 0,
    which means ship."""
    if asked.replay["isolation"] == "thread":
        return (
            "--isolation thread runs the policy inside the runner, so that it can end the runner as if it had "
            "shipped; leave the option out where the exit status decides"
        )
    environment = asked.replay["environment"]
    modules = {str(named).partition(":")[0].strip() for named in (asked.policy, environment)}
    if environment is None or len(modules) > 1:
        return None
    return (
        f"policy and environment are both in {modules.pop()}, which the runner imports, so that code of the policy can "
        "end the runner as if it had shipped; put the environment into a module of its own"
    )


def with_revision(asked: ReplayArguments) -> ReplayArguments:
    """With the revision of a policy that is a run folder, which is also the version where none is given."""
    from rollbook.evals.policies.run_folders import revision_of

    revision = revision_of(asked.policy)
    if revision is None or asked.resume is not None:
        return asked
    return replace(asked, revision=revision, candidate=asked.candidate or revision.revision_id)


def recorded_source(store: Path) -> str:
    """Where the source store was when the rollouts were generated; a relative path may also count from the store."""
    from rollbook.evals.generated.store_world import config_of
    from rollbook.evals.store_check import opened_store
    from rollbook.store.urls.url_folder import is_url

    place = config_of(opened_store(rollout_store_path(store))).source.store_dir
    if is_url(place):
        return place
    for found in (Path(place), store.resolve().parent / place):
        if found.exists():
            return str(found)
    message = f"the rollouts were generated from {place}, which is not there; --source says where it is now"
    raise ConfigurationError(message=message)


@contextmanager
def tried_policy(asked: ReplayArguments) -> Iterator[ReplayArguments]:
    """Makes the policy once: one that cannot be made is a usage error, not a verdict on the candidate.

    It is made in a process of its own, because importing its module here would give it this process.
    """
    from rollbook.evals.policies.process import PolicySource
    from rollbook.evals.policies.run_folders import run_folder_of

    options = asked.replay
    if options["isolation"] == "thread":
        if run_folder_of(asked.policy) is None:
            _importable("--policy", asked.policy)
        yield asked
        return
    source = PolicySource(asked.policy, options["step_timeout_s"], trusted=options["trusted"])
    with ExitStack() as stack:
        try:
            tried = stack.enter_context(source.tried())
        except ConfigurationError as error:
            if isinstance(error.__cause__, PolicyFailed):
                sys.stderr.write(visible_lines(error.__cause__.traceback))
            raise
        elsewhere = options["engine"] != "local" or options["parallel"] == "process"
        yield asked if elsewhere else replace(asked, policy=tried)


def _importable(option: str, named: str) -> None:
    """Imports the module now: an import error is a usage error, not a verdict on the candidate."""
    from rollbook.evals.policies.policy import load_attribute

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


_QUERY_COLUMNS = ("policy_version", "env_version", "git_sha", "robot", "source")


def episode_query(given: Sequence[str]) -> dict[str, Any]:
    """Filters in the form KEY=VALUE: a column of episodes, `tag`, or a path into the metadata."""
    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not (key and equals and value):
            raise ConfigurationError(message=f"--query {each!r}: expected KEY=VALUE")
        if key == "tag":
            found.setdefault("tag", []).append(value)
            continue
        place = found if key in _QUERY_COLUMNS else found.setdefault("metadata", {})
        if place.setdefault(key, value) != value:
            raise ConfigurationError(message=f"--query gives {key} twice, with different values")
    return found


def fresh_count(text: str | None) -> int | None:
    """N of `fresh:N`."""
    if text is None:
        return None
    kind, _, number = text.partition(":")
    if kind != "fresh" or not (number.isascii() and number.isdigit() and int(number)):
        raise ConfigurationError(
            message=f"--baselines {text!r}: expected fresh:N, such as fresh:200"
        )
    return int(number)


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
        document = (
            tomllib.loads(text) if as_toml else json.loads(text, object_pairs_hook=_each_key_once)
        )
    except (OSError, ValueError) as error:
        message = f"--gate-file {path} cannot be read: {error}"
        raise ConfigurationError(message=message) from error
    if not (isinstance(document, dict) and "gate" in document):
        return document
    if beside := sorted(set(document) - {"gate"}):
        message = (
            f"--gate-file {path} has {', '.join(beside)[:200]} beside a section called gate, so it is not clear which "
            "of them count; put all of them into the section, or leave it out"
        )
        raise ConfigurationError(message=message)
    return document["gate"]


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As TOML does: JSON itself would let the last one win."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(twice)[:200]} is given twice")
    return found

"""What commands print with --json: every key in its order, and every value that no processor rounds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.client import Client
from rollbook.contracts import TrainerBatch, save_table, write_file
from tests.promises.digests import fixed_table, revision
from tests.promises.fixed_stores import manifest_digest, write
from tests.promises.inner import RunningServer, command_line, new_organisation
from tests.promises.placeholders import Placeholders

_LONG = 5


class LastChoice:
    """A policy for rollout stores that likes later candidates better."""

    def act(self, observation: Any) -> Any:
        return {"/choice/score": np.arange(len(observation["/candidates/valid"]), dtype=np.float32)}


def printed(server: RunningServer, folder: Path) -> dict[str, Any]:
    store, pictured = write(folder / "fixed.zarr", depth=False), write(folder / "pictured.zarr")
    table = fixed_table()
    save_table(table, folder / "fixed.table")
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(5), rollouts=table, assembled_at_ms=6_000
    )
    write_file(table, [batch], folder / "fixed.json")
    commands: dict[str, tuple[object, ...]] = {
        **{
            f"store {name}": ("store", name, store, "--json")
            for name in ("info", "validate", "waterfall", "audit", "suspicious", "tree")
        },
        "store depth": ("store", "depth", pictured, "--json"),
        "store validate --deep": ("store", "validate", "--deep", pictured, "--json"),
        "store audit --targets": ("store", "audit", "--targets", store, "--json"),
        "store waterfall of no store": ("store", "waterfall", folder, "--json"),
        "contracts check": ("contracts", "check", "--json"),
        "contracts check FILE": ("contracts", "check", folder / "fixed.json", "--json"),
        "contracts show TABLE": ("contracts", "show", folder / "fixed.table", "--json"),
        "contracts show FILE": ("contracts", "show", folder / "fixed.json", "--json"),
        "contracts lineage": ("contracts", "lineage", folder / "fixed.json"),
        "replay run --store": (
            *("replay", "run", "--store", store, "--candidate-version", "c1", "--json"),
            *("--policy", "tests.promises.cli_script:LastChoice"),
        ),
        "episodes list": ("episodes", "list", "--json"),
        "whoami": ("whoami", "--json"),
        "keys list": ("keys", "list", "--json"),
        "replay list": ("replay", "list", "--json"),
        "verify list": ("verify", "list", "--json"),
    }
    access = new_organisation(server)
    hidden = Placeholders()
    hidden.name(str(folder), "folder")
    hidden.name(os.environ["ROLLBOOK_HOME"], "home")
    hidden.name(access.email, "email")
    hidden.name(access.api_key.split("_")[1], "key id")
    hidden.name(manifest_digest(store), "sha256 of the manifest")
    options: dict[str, Any] = {"verbose": False, "cache": folder / "cache"}
    with Client(api_key=access.api_key, base_url=server.base_url, **options) as client:
        client.log_episode(name="one", policy_version="v3", seed=7, metadata={"n": 1}, tags=["x"])
    os.environ |= {"ROLLBOOK_API_KEY": access.api_key, "ROLLBOOK_BASE_URL": server.base_url}
    try:
        return {name: _shape(hidden, command) for name, command in commands.items()}
    finally:
        for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL"):
            os.environ.pop(name)


def _shape(hidden: Placeholders, command: tuple[object, ...]) -> Any:
    code, text = command_line(*command)
    try:
        said = json.loads(hidden.hide(text))
    except ValueError:
        said = [json.loads(hidden.hide(line)) for line in text.splitlines()]
    return {"status": code, "prints": _without_floats(said)}


def _without_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        # rows are alike: two of them show what they are made of
        shown = value if len(value) < _LONG else [*value[:2], f"… {len(value)} in all"]
        return [_without_floats(each) for each in shown]
    return "(a number)" if isinstance(value, float) else value

"""`rollbook generate`, as typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.generate.tiny_source import tiny_source

ROLLBOOK = Path(sys.executable).with_name("rollbook")
SMOKE = Path(__file__).parents[2] / "examples" / "generate" / "smoke.toml"


def rollbook(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROLLBOOK, "generate", *map(str, words)], cwd=cwd, capture_output=True, text=True
    )


@contextmanager
def begun(*words: object, cwd: Path, until: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, once a file of this pattern is there. It is killed if it outlives the test."""
    with subprocess.Popen(
        [ROLLBOOK, "generate", *map(str, words)],
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            while not list(cwd.glob(until)):
                assert run.poll() is None
                time.sleep(0.02)
            yield run
        finally:
            run.kill()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("generate")
    run = rollbook(
        *("run", "--config", SMOKE, "--source", tiny_source(), "--out", "smoke.zarr"), cwd=folder
    )
    return folder, run


def test_run_writes_a_store_and_says_what_came_of_it(
    done: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, run = done
    assert run.returncode == 0, run.stderr
    assert "2 rollouts, 6 steps, 360 candidates" in run.stdout
    assert "rollbook store audit" in run.stdout
    assert (folder / "smoke.zarr" / "manifest.json").exists()


def test_the_manifest_keeps_the_config_as_it_was_typed(
    done: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    manifest = json.loads((done[0] / "smoke.zarr" / "manifest.json").read_bytes())
    invocation = manifest["generation"]["invocation"]
    assert invocation["mode"] == "cli"
    assert invocation["raw_toml_text"] == SMOKE.read_text()
    names = [
        each["name"]
        for each in manifest["generation"]["writer_config"]["candidate_mixture"]["components"]
    ]
    assert names == ["forward_local", "target_bearing_local", "lateral_target_bypass"]


def test_an_existing_store_is_left_alone_unless_told(
    done: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = done
    words = ("run", "--config", SMOKE, "--source", tiny_source(), "--out", "smoke.zarr")
    refused = rollbook(*words, cwd=folder)
    assert refused.returncode == 1
    assert "--replace replaces it" in refused.stderr
    replaced = rollbook(*words, "--replace", "--json", cwd=folder)
    assert replaced.returncode == 0, replaced.stderr
    said = json.loads(replaced.stdout)
    assert (said["rollouts"], said["candidates"]) == (2, 360)
    assert said["skipped_reasons"]["max_targets_per_sample"] >= 1


def test_replace_is_not_offered_to_who_has_given_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters").write_text("dear")
    words = ("--config", SMOKE, "--source", tiny_source(), "--out", "mine", "--replace")
    refused = rollbook("run", *words, cwd=tmp_path)
    assert refused.returncode == 1
    assert "it is not a store, so it stays" in refused.stderr
    assert (tmp_path / "mine" / "letters").read_text() == "dear"


@pytest.mark.slow
def test_a_policy_of_this_folder_is_found_by_workers_too(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text(
        "def policy(features, names, valid, context):\n"
        "    print('near')\n"
        "    return -features[:, names.index('dist_target')].astype('f8')\n"
    )
    (tmp_path / "timeit.py").write_text("raise SystemExit('not what numba meant to import')")
    (tmp_path / "own.toml").write_text(
        SMOKE.read_text().replace("max_samples = 1", "max_samples = 2")
        + 'scorer = "near:policy"\n'  # of the last recipe
    )
    words = ("run", "--config", "own.toml", "--source", tiny_source(), "--json", "--replace")
    alone, shared = (
        json.loads(rollbook(*words, "--workers", count, cwd=tmp_path).stdout) for count in (1, 2)
    )
    assert alone["rollouts"] == 4
    assert alone["content_sha256"] == shared["content_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "how", "code"),
    [(1, signal.SIGINT, 130), (2, signal.SIGINT, 130), (2, signal.SIGTERM, 143)],
)
def test_an_interrupted_run_says_nothing_and_leaves_nothing(
    tmp_path: Path, workers: int, how: signal.Signals, code: int
) -> None:
    words = ("run", "--config", SMOKE, "--source", tiny_source(), "--out", "x.zarr")
    with begun(*words, "--workers", workers, cwd=tmp_path, until=".x.zarr.stage-*") as run:
        os.killpg(run.pid, how)
        said = run.communicate(timeout=60)[1]
    assert run.returncode == code
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


_WAITING_POLICY = '''
import os
import time
from pathlib import Path

def held():
    """One worker makes a row; it and all others wait with the next one."""
    other = Path("first").read_text() != str(os.getpid())
    return other or bool(list(Path(".x.zarr.rows").glob("*.row")))

def policy(features, names, valid, context):
    Path(f"worker-{os.getpid()}").touch()
    try:
        with open("first", "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        pass
    while not Path("go").exists() and held():
        time.sleep(0.01)
    return features[:, names.index("dist_target")].astype("f8")
'''


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "end"), [(1, signal.SIGINT), (2, signal.SIGKILL)])
def test_a_run_that_ends_early_goes_on_with_resume(
    tmp_path: Path, workers: int, end: signal.Signals
) -> None:
    """The policy holds the second row back until the run is ended from outside."""
    (tmp_path / "slow_policy.py").write_text(_WAITING_POLICY)
    text = SMOKE.read_text().replace("max_samples = 1", "max_samples = 2")
    (tmp_path / "own.toml").write_text(text + 'scorer = "slow_policy:policy"\n')
    words = ("run", "--config", "own.toml", "--source", tiny_source(), "--out", "x.zarr")
    with begun(*words, "--workers", workers, cwd=tmp_path, until=".x.zarr.rows/*.row") as run:
        os.kill(run.pid, end)
        said = run.communicate(timeout=60)[1]
    for worker in tmp_path.glob("worker-*"):  # one that still lives could finish the second row
        while Path("/proc", worker.name.removeprefix("worker-")).exists():
            time.sleep(0.02)
    (tmp_path / "go").touch()
    if end == signal.SIGINT:
        assert said.splitlines()[-1] == "1 of 2 rows are finished and kept; --resume goes on"
    refused = rollbook(*words, cwd=tmp_path)
    assert refused.returncode == 1
    assert "1 finished row of a run that did not end: --resume goes on" in refused.stderr
    both = rollbook(*words, "--resume", "--start-over", cwd=tmp_path)
    assert (both.returncode, "give one" in both.stderr) == (2, True)
    resumed = json.loads(rollbook(*words, "--resume", "--json", cwd=tmp_path).stdout)
    assert (resumed["rows_resumed"], resumed["samples_seen"]) == (1, 2)
    assert not list(tmp_path.glob(".x.zarr*"))
    whole = json.loads(rollbook(*words[:-1], "whole.zarr", "--json", cwd=tmp_path).stdout)
    assert resumed["content_sha256"] == whole["content_sha256"]


_FRAGILE_POLICY = """
import os, signal
from pathlib import Path

def policy(features, names, valid, context):
    lost = len(list(Path().glob("lost-*")))
    if not Path("never").exists() and lost < int(Path("times").read_text()):
        Path(f"lost-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return features[:, names.index("dist_target")].astype("f8")
"""


@pytest.mark.slow
def test_a_killed_worker_costs_its_row_one_attempt_and_the_third_ends_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "fragile.py").write_text(_FRAGILE_POLICY)
    (tmp_path / "times").write_text("1")
    text = SMOKE.read_text().replace("max_samples = 1", "max_samples = 2")
    (tmp_path / "own.toml").write_text(text + 'scorer = "fragile:policy"\n')
    words = ("run", "--config", "own.toml", "--source", tiny_source(), "--json")
    retried = rollbook(*words, "--out", "a.zarr", "--workers", 2, cwd=tmp_path)
    assert retried.returncode == 0, retried.stderr
    assert len(list(tmp_path.glob("lost-*"))) == 1
    (tmp_path / "never").touch()
    alone = rollbook(*words, "--out", "b.zarr", cwd=tmp_path)
    first, second = (json.loads(each.stdout)["content_sha256"] for each in (retried, alone))
    assert first == second
    (tmp_path / "never").unlink()
    (tmp_path / "times").write_text("99")
    failed = rollbook(*words, "--out", "c.zarr", "--workers", 2, cwd=tmp_path)
    assert failed.returncode == 1
    assert json.loads(failed.stderr.splitlines()[-1])["code"] == "generation_failed"
    assert (
        "exit status -9; it may have run out of memory: use fewer workers (3 attempts)"
        in failed.stderr
    )
    assert "BrokenProcessPool" not in failed.stderr


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    words = ("run", "--config", SMOKE, "--source", tiny_source(), "--out", "x.zarr", "--dry-run")
    run = rollbook(*words, "--json", cwd=tmp_path)
    plan = json.loads(run.stdout)
    assert (plan["source_rows"], plan["candidates_per_node"]) == (1, 60)
    assert plan["recipes"] == ["random_valid", "oracle_greedy"]
    assert "would write" in rollbook(*words, cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_compare_prints_gains_and_intervals(tmp_path: Path) -> None:
    words = ("compare", "--config", SMOKE, "--source", tiny_source(), "--horizon", 1)
    run = rollbook(*words, "--policies", "random,greedy", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    random, greedy = json.loads(run.stdout)["policies"]
    assert (random["policy"], greedy["versus"]) == ("random", "random")
    assert greedy["target_gain"] >= random["target_gain"]
    shown = rollbook(*words, "--policies", "random,greedy", cwd=tmp_path).stdout
    assert "minus random" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--config", "nowhere.toml"], "cannot be read"),
        (["run", "--config", SMOKE, "--source", "nowhere"], "not_a_source_store"),
        (["compare", "--config", SMOKE, "--policies", "random,random"], "different names"),
        (["compare", "--config", SMOKE, "--policies", "unheard_of"], "unheard_of"),
        (["compare", "--config", SMOKE, "--versus", "unheard_of"], "versus is 'unheard_of'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, words: list[object], said: str) -> None:
    given = (
        words if "--source" in words or words[0] == "run" else [*words, "--source", tiny_source()]
    )
    run = rollbook(*given, cwd=tmp_path)
    assert run.returncode in (1, 2)
    assert said in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("command", ["run", "preview", "compare"])
def test_help_teaches(command: str, tmp_path: Path) -> None:
    shown = rollbook(command, "--help", cwd=tmp_path).stdout
    assert "--config" in shown
    assert "--source" in shown

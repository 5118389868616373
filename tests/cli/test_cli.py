"""The command line as a person or a script meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rollbook import __version__
from rollbook.cli.main import _command, app
from rollbook.contracts import (
    COMPATIBLE,
    TrainerBatch,
    batch_to_json,
    open_table,
    save_table,
    write_file,
)
from tests.command import Ended, rollbook
from tests.factories import artifact, proof, revision, samples, table


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """Two rollouts and the batch made of them."""
    some = table([2, 3])
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(9), rollouts=some, assembled_at_ms=1
    )
    write_file(some, [batch], tmp_path / "rollouts.json")
    return tmp_path / "rollouts.json"


def findings(result: Ended) -> Any:
    return json.loads(result.stdout)


def test_version_and_help() -> None:
    assert rollbook("--version").stdout == f"rollbook {__version__}\n"
    shown = rollbook("--help")
    assert (shown.returncode, "contracts" in shown.stdout) == (0, True)
    assert rollbook("contracts", "check", "--help").returncode == 0


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("rollbook")
    result = subprocess.run(
        [command, "contracts", "check"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("10 checked, all green\n")


def test_help_has_a_start_for_each_kind_of_reader_and_groups_the_commands() -> None:
    shown = rollbook("--help").stdout
    readers = ["You record a robot", "You generate rollouts", "You have rollouts and batches"]
    headings = [*readers, "Options:", "Record:", "Store:", "Generate:", "Replay:", "Operate:"]
    places = [shown.index(heading) for heading in headings]
    assert places == sorted(places)
    assert max(map(len, shown.splitlines())) < 80
    steps = [line for line in shown.splitlines() if line.startswith("    rollbook ")]
    assert len(steps) >= 2 * len(readers)
    for step in steps:
        command = step.split()[1:3]
        if command[0] in ("serve", "login"):
            command = command[:1]
        assert rollbook(*command, "--help").returncode == 0, step


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, (*path, name))


def test_every_command_and_option_is_described() -> None:
    commands = dict(every_command(typer.main.get_command(app)))
    assert len(commands) > 40
    undescribed = [path for path, command in commands.items() if not command.help]
    undescribed += [
        f"{path} {parameter.name}"
        for path, command in commands.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert undescribed == []


def test_a_group_that_is_built_alone_is_the_group_of_the_whole() -> None:
    whole = dict(every_command(typer.main.get_command(app)))
    for group in app.registered_groups:
        alone = dict(every_command(_command(group.name)))
        assert set(alone) == {"", *(each for each in whole if each.split()[:1] == [group.name])}
        assert alone[""].epilog == whole[""].epilog
    assert set(whole) == set(dict(every_command(_command(None))))
    shown = rollbook("nothing").stderr
    assert "No such command 'nothing'" in shown


def test_the_module_runs_as_the_command_does() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rollbook", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"rollbook {__version__}\n"


def test_a_shell_completes_commands_and_options() -> None:
    command = Path(sys.executable).with_name("rollbook")
    # typer takes the shell from the process tree, in which a CI job may have none; this names it
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        [command, "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env=named,
    ).stdout
    assert "complete -o default -F _rollbook_completion rollbook" in script
    for words, expected in (("rollbook sto", ["store"]), ("rollbook keys l", ["list"])):
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        environment = {**os.environ, **asked, "_ROLLBOOK_COMPLETE": "complete_bash"}
        done = subprocess.run([command], capture_output=True, text=True, env=environment)
        assert done.stdout.split() == expected


def test_help_loads_no_room_and_no_heavy_library() -> None:
    """Only the options of a replay are read from their room, and the names of contracts that they use."""
    code = (
        "import sys; sys.argv = ['rollbook', '--help']\n"
        "from rollbook.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'msgspec', 'rich', 'zarr', 'torch', 'httpx', 'sqlalchemy', 'rollbook.contracts.rl', "
        "'rollbook.store', 'rollbook.train', 'rollbook.client', 'rollbook.server', 'rollbook.generate'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr == "[]\n"


def test_the_package_alone_loads_no_room() -> None:
    code = "import sys, rollbook; print('numpy' in sys.modules, 'msgspec' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False False\n"


def test_the_reference_loop_is_green_one_line_per_criterion() -> None:
    result = rollbook("contracts", "check")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line[:4] for line in lines[:-1]] == ["pass"] * 10
    assert lines[-1] == "10 checked, all green"


def test_a_good_file_is_green_and_its_batch_is_assembled_again(document: Path) -> None:
    result = rollbook("contracts", "check", document, "--json")
    report = findings(result)
    assert (result.returncode, report["passed"], report["checked"]) == (0, True, 3)
    assert "assembled again from its rollouts" in report["findings"][2]["detail"]


def test_all_violations_of_a_file_are_reported_at_once(document: Path) -> None:
    content = json.loads(document.read_text())
    content["artifacts"][0]["worker_id"] = "someone-else"
    content["artifacts"].append(content["artifacts"][1])
    content["batches"][0]["token_count"] = 99
    document.write_text(json.dumps(content))
    result = rollbook("contracts", "check", document, "--json")
    report = findings(result)
    assert (result.returncode, report["failed"]) == (1, 3)
    assert [each["code"] for each in report["findings"]] == [
        "digest_mismatch",
        None,
        "duplicate_artifact_id",
        "digest_mismatch",
    ]


def test_a_batch_that_was_not_made_of_these_rollouts_is_found(tmp_path: Path) -> None:
    told = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(9), rollouts=[artifact("a")], assembled_at_ms=1
    )
    other = artifact("a", samples=samples(4))
    write_file(other.table, [told], tmp_path / "x.json")
    report = findings(rollbook("contracts", "check", tmp_path / "x.json", "--json"))
    assert [each["code"] for each in report["findings"]] == [None, "digest_mismatch"]


@pytest.fixture
def lone_batch(tmp_path: Path) -> Path:
    """A batch of the rollouts of `table([2, 3])`, without them."""
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(9), rollouts=table([2, 3]), assembled_at_ms=1
    )
    (tmp_path / "batch.json").write_bytes(batch_to_json(batch))
    return tmp_path / "batch.json"


def test_a_batch_without_its_rollouts_is_not_plainly_green(lone_batch: Path) -> None:
    shown = rollbook("contracts", "check", lone_batch)
    assert shown.returncode == 0
    first, last = shown.stdout.splitlines()
    assert first.startswith("part")
    assert last == ("1 checked, none failed; 2 rollouts were NOT checked: give their files too")
    report = findings(rollbook("contracts", "check", lone_batch, "--json"))
    counts = (report["passed"], report["checked"], report["failed"], report["unchecked"])
    assert counts == (True, 1, 0, 2)


def test_a_check_that_has_to_be_complete_fails_without_the_rollouts(lone_batch: Path) -> None:
    asked = rollbook("contracts", "check", lone_batch, "--complete", "--json")
    assert (asked.returncode, findings(asked)["passed"]) == (1, False)


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.table"])
def test_the_rollouts_of_a_batch_may_be_in_another_file(
    lone_batch: Path, tmp_path: Path, name: str
) -> None:
    if name.endswith(".table"):
        save_table(table([2, 3]), tmp_path / name)
    else:
        write_file(table([2, 3]), [], tmp_path / name)
    shown = rollbook("contracts", "check", lone_batch, tmp_path / name, "--complete")
    assert (shown.returncode, shown.stdout.splitlines()[-1][-9:]) == (0, "all green")
    assert f"{lone_batch} $" in shown.stdout
    assert "assembled again from its rollouts" in shown.stdout


def test_a_batch_is_compared_with_the_rollouts_of_another_file(
    lone_batch: Path, tmp_path: Path
) -> None:
    save_table(table([2, 4]), tmp_path / "other.table")
    shown = rollbook("contracts", "check", tmp_path / "other.table", lone_batch)
    assert shown.returncode == 1
    assert "[digest_mismatch]" in shown.stdout


def test_a_table_is_checked_to_the_last_byte(tmp_path: Path) -> None:
    path = tmp_path / "t.table"
    save_table(table([2, 3]), path)
    assert rollbook("contracts", "check", path).returncode == 0
    content = bytearray(path.read_bytes())
    content[-70] ^= 4
    path.write_bytes(content)
    result = rollbook("contracts", "check", path)
    assert result.returncode == 1
    assert "[checksum_mismatch]" in result.stdout


def test_compatible_rules_accept_what_strict_ones_do_not(tmp_path: Path) -> None:
    write_file(artifact("a|b", rules=COMPATIBLE).table, [], tmp_path / "x.json")
    strict = rollbook("contracts", "check", tmp_path / "x.json", "--json")
    assert [each["code"] for each in findings(strict)["findings"]] == ["ambiguous_id"]
    assert rollbook("contracts", "check", tmp_path / "x.json", "--compatible").returncode == 0


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"artifacts": 3}'])
def test_a_file_without_contracts_is_not_green(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    result = rollbook("contracts", "check", tmp_path / "x.json")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    result = rollbook("contracts", "check", tmp_path / "none.json")
    assert (result.returncode, "does not exist" in result.stderr) == (2, True)


def test_convert_goes_to_a_table_and_back(document: Path, tmp_path: Path) -> None:
    content = json.loads(document.read_text())
    (tmp_path / "only.json").write_text(json.dumps(content["artifacts"]))
    assert (
        rollbook("contracts", "convert", tmp_path / "only.json", tmp_path / "t.table").returncode
        == 0
    )
    assert len(open_table(tmp_path / "t.table", verify="all")) == 2
    back = rollbook("contracts", "convert", tmp_path / "t.table", tmp_path / "back.jsonl")
    assert back.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "back.jsonl").read_text().splitlines()]
    assert lines == content["artifacts"]


def test_convert_loses_nothing_silently(document: Path, tmp_path: Path) -> None:
    lost = rollbook("contracts", "convert", document, tmp_path / "t.table")
    assert (lost.returncode, "would be lost" in lost.stderr) == (2, True)
    existing = rollbook("contracts", "convert", document, document)
    assert (existing.returncode, "already exists" in existing.stderr) == (1, True)
    refused = rollbook("contracts", "convert", document, tmp_path / "x.json", "--reference-only")
    assert refused.returncode == 0


def test_errors_are_json_when_json_was_asked_for(tmp_path: Path) -> None:
    bad = json.dumps({"artifact_id": "a"})
    (tmp_path / "x.json").write_text(bad)
    result = rollbook("contracts", "show", tmp_path / "x.json", "--json")
    assert result.returncode == 1
    assert json.loads(result.stderr)["code"] == "malformed_json"


def test_show_lists_rollouts_and_batches(document: Path) -> None:
    shown = json.loads(rollbook("contracts", "show", document, "--json", "--limit", 1).stdout)
    assert (shown["rollouts"], len(shown["listed"]), shown["batches"][0]["batch"]) == (2, 1, "b")
    plain = rollbook("contracts", "show", document, "--limit", 1).stdout
    assert "rollout-0" in plain
    assert "1 more" in plain


def test_lineage_joins_files(document: Path, tmp_path: Path) -> None:
    write_file(artifact("alone", proof_references=[proof("p")]).table, [], tmp_path / "more.json")
    dot = rollbook("contracts", "lineage", document, tmp_path / "more.json", "--format", "dot")
    assert dot.returncode == 0
    assert dot.stdout.startswith("digraph")
    graph = json.loads(rollbook("contracts", "lineage", document, tmp_path / "more.json").stdout)
    assert {"alone", "rollout-0", "rollout-1"} <= {
        each["artifact_id"] for each in graph["artifacts"]
    }


def test_a_quiet_check_prints_only_what_failed(document: Path) -> None:
    quiet = rollbook("contracts", "check", document, "--quiet")
    assert (quiet.returncode, quiet.stdout) == (0, "")
    content = json.loads(document.read_text())
    content["artifacts"][0]["worker_id"] = "someone-else"
    document.write_text(json.dumps(content))
    failed = rollbook("contracts", "check", document, "-q")
    assert failed.returncode == 1
    assert [line[:4] for line in failed.stdout.splitlines()[:-1]] == ["FAIL", "part"]
    listed = json.loads(rollbook("contracts", "check", document, "-q", "--json").stdout)
    assert (listed["checked"], len(listed["findings"])) == (3, 2)


def test_convert_lineage_and_gate_print_json(document: Path, tmp_path: Path) -> None:
    made = rollbook("contracts", "convert", document, tmp_path / "o.jsonl", "--json")
    told = json.loads(made.stdout)
    assert (told["path"], told["rollouts"], told["batches"]) == (str(tmp_path / "o.jsonl"), 2, 1)
    plain, asked = (rollbook("contracts", "lineage", document, *more) for more in ((), ("--json",)))
    assert (asked.stdout, json.loads(asked.stdout)["batches"] != []) == (plain.stdout, True)
    assert json.loads(rollbook("replay", "gate", "--json").stdout)["rules"]
    assert rollbook("replay", "gate", "--json", "--toml").returncode == 2
    assert rollbook("contracts", "lineage", document, "--json", "--format", "dot").returncode == 2


def test_an_id_with_markup_and_escape_codes_is_shown_as_text(tmp_path: Path) -> None:
    write_file(artifact("[/foo]\x1b[31m").table, [], tmp_path / "x.json")
    shown = rollbook("contracts", "show", tmp_path / "x.json")
    assert (shown.returncode, "[/foo]\\x1b[31m " in shown.stdout) == (0, True)

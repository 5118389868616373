"""A stand-in for a Slurm cluster: the programs `sbatch`, `squeue` and `scontrol`, and a machine that runs the jobs.

`sbatch` reads the lines `#SBATCH` as Slurm does, refuses what Slurm refuses, and only queues the job. The test runs the
queue with `SlurmCluster.run`: tasks are real processes, at most two at a time. Only the standard library is used, so
that the programs start fast.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_ARRAY_SIZE = 1001
_VALUE = re.compile(r".+")
_COUNT = re.compile(r"[1-9]\d*")
OPTIONS: dict[str, re.Pattern[str] | None] = {
    "account": _VALUE,
    "array": re.compile(r"(\d+)-(\d+)(?:%([1-9]\d*))?"),
    "comment": _VALUE,
    "constraint": _VALUE,
    "cpus-per-task": _COUNT,
    "dependency": re.compile(r"afterany(:\d+)+"),
    "exclusive": None,
    "gres": re.compile(r"gpu(:\w+)?:\d+"),
    "job-name": _VALUE,
    "mem": re.compile(r"\d+[KMGT]?"),
    "nodes": _COUNT,
    "ntasks": _COUNT,
    "open-mode": re.compile(r"append|truncate"),
    "output": _VALUE,
    "parsable": None,
    "partition": _VALUE,
    "qos": _VALUE,
    "requeue": None,
    "signal": re.compile(r"(?:[RB]+:)?\w+(?:@\d+)?"),
    "time": re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(?::\d\d){0,2}"),
}
"""The options that the stand-in knows, with the form of their values; None for options without a value."""


class SlurmTask:
    """A task of a job while it runs. A job that is no array has one task, without an index."""

    def __init__(self, state: Path, job: dict[str, Any], index: int | None) -> None:
        self.job, self.index, self.restarts, self.ended_by_slurm = job, index, 0, False
        self.name = f"{job['id']}" if index is None else f"{job['id']}_{index}"
        self._state = state
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        job, options = self.job, self.job["options"]
        environment = job["environment"] | {
            "SLURM_JOB_ID": str(100_000 + 1_000 * job["id"] + (self.index or 0)),
            "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", "1"),
        }
        if self.index is not None:
            environment["SLURM_ARRAY_JOB_ID"] = str(job["id"])
            environment["SLURM_ARRAY_TASK_ID"] = str(self.index)
        if self.restarts:
            environment["SLURM_RESTART_COUNT"] = str(self.restarts)
        self.ended_by_slurm = False
        with open(self.log, "ab" if options.get("open-mode") == "append" else "wb") as log:
            self._process = subprocess.Popen(
                [job["script"]],
                cwd=job["folder"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        pattern = self.job["options"].get("output", "slurm-%j.out")
        values = {
            "A": str(self.job["id"]),
            "a": str(self.index),
            "j": str(self.job["id"]),
            "%": "%",
        }
        name = re.sub(r"%([Aaj%])", lambda found: values[found[1]], pattern)
        if "\\" in pattern:
            name = pattern.replace("\\", "")  # nothing is replaced then
        return Path(self.job["folder"], name)

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def warn(self) -> None:
        """The time is nearly over: as `--signal=B:…` asks, the signal reaches the shell of the script alone."""
        found = re.match(r"B:(\w+)", self.job["options"]["signal"])
        assert found is not None
        assert self._process is not None
        self._process.send_signal(signal.Signals[f"SIG{found[1]}"])

    def preempt(self) -> None:
        """Another job goes first: all processes of the task get SIGTERM, and it waits in the queue again."""
        self._end(signal.SIGTERM)

    def lose_node(self) -> None:
        """The machine of the task is gone."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self.ended_by_slurm = "requeue" in self.job["options"]
        os.killpg(self._process.pid, how)

    def goes_back(self) -> bool:
        """Whether the task that ended is queued again, by Slurm or by its own `scontrol requeue`."""
        marker = self._state / f"requeue-{self.name}"
        asked = marker.exists()
        marker.unlink(missing_ok=True)
        self.restarts += asked or self.ended_by_slurm
        return asked or self.ended_by_slurm


class SlurmCluster:
    """Put `bin` first on the PATH; then `sbatch` queues jobs here, and `run` runs them."""

    def __init__(self, folder: Path, *, cores: int = 2) -> None:
        self.bin, self.state, self.cores = folder / "bin", folder / "state", cores
        self.ended: dict[str, int] = {}
        """Exit code of every task that ended."""
        self.most_at_once = 0
        for each in (self.bin, self.state):
            each.mkdir(parents=True)
        for name in ("sbatch", "squeue", "scontrol"):
            program = self.bin / name
            command = shlex.join([sys.executable, "-S", "-E", __file__, name, str(self.state)])
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            program.chmod(0o755)

    @property
    def path(self) -> str:
        """The PATH of a user of the cluster."""
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def jobs(self) -> list[dict[str, Any]]:
        return _jobs(self.state)

    def run(self, watch: Callable[[SlurmTask], None] | None = None) -> dict[str, int]:
        """Runs all jobs until none is left. `watch` sees every running task again and again, and may end it."""
        done = self.ended.keys()
        tasks = [SlurmTask(self.state, job, index) for job in self.jobs() for index in _tasks(job)]
        waiting = [task for task in tasks if task.name not in done]
        running: list[SlurmTask] = []
        try:
            while waiting or running:
                for task in [each for each in waiting if self._may_start(each, running, waiting)]:
                    if len(running) < self.cores and self._may_start(task, running, waiting):
                        waiting.remove(task)
                        task.start()
                        running.append(task)
                self.most_at_once = max(self.most_at_once, len(running))
                assert running, "the jobs that are left wait for each other"
                for task in list(running):
                    code = task.poll()
                    if code is None:
                        if watch is not None:
                            watch(task)
                        continue
                    running.remove(task)
                    if task.goes_back():
                        waiting.append(task)
                    else:
                        self.ended[task.name] = code
                        (self.state / f"ended-{task.name}").touch()
                time.sleep(0.01)
        finally:
            for task in running:
                task.lose_node()
        return self.ended

    def _may_start(
        self, task: SlurmTask, running: list[SlurmTask], waiting: list[SlurmTask]
    ) -> bool:
        """Whether the jobs it depends on have ended, and its array has not too many running tasks."""
        options = task.job["options"]
        before = set(options.get("dependency", "").split(":")[1:])
        if before & {str(other.job["id"]) for other in (*running, *waiting)}:
            return False
        limit = _array(options)[2] if "array" in options else None
        return limit is None or sum(each.job is task.job for each in running) < limit


# --------------------------------------------------------------------------------------- programs


def _jobs(state: Path) -> list[dict[str, Any]]:
    numbered = sorted(state.glob("job-*.json"), key=lambda file: int(file.stem[4:]))
    return [json.loads(file.read_text()) for file in numbered]


def _array(options: dict[str, str]) -> tuple[int, int, int | None]:
    found = re.fullmatch(r"(\d+)-(\d+)(?:%(\d+))?", options["array"])
    assert found is not None
    return int(found[1]), int(found[2]), None if found[3] is None else int(found[3])


def _tasks(job: dict[str, Any]) -> list[int] | list[None]:
    if "array" not in job["options"]:
        return [None]
    first, last, _ = _array(job["options"])
    return list(range(first, last + 1))


def _words(line: str) -> list[str]:
    """The arguments of a line `#SBATCH`. A backslash counts between quotes too; `#` begins a comment."""
    words, word, quote, at = [], "", "", 0
    started = False
    while at < len(line):
        here = line[at]
        if here == "\\":
            at += 1
            word, started = word + line[at : at + 1], True
        elif quote:
            quote, word = ("", word) if here == quote else (quote, word + here)
        elif here in "\"'":
            quote, started = here, True
        elif here == "#":
            break
        elif here.isspace():
            if started:
                words.append(word)
            word, started = "", False
        else:
            word, started = word + here, True
        at += 1
    if quote:
        _fail(f"Unmatched `{quote}` in [{line}]")
    return [*words, word] if started else words


def _fail(message: str) -> None:
    print(f"sbatch: error: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(1)


def _checked(words: list[str]) -> dict[str, str]:
    options = {}
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in OPTIONS:
            _fail(f"unrecognized option '{word}'")
        form = OPTIONS[name]
        if bool(equals) != (form is not None) or (form and not form.fullmatch(value)):
            _fail(f"Invalid --{name} specification: {value}")
        options[name] = value
    return options


def sbatch(state: Path, arguments: list[str]) -> None:
    script = Path(arguments[-1])
    lines = script.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    if not lines[0].startswith("#!"):
        _fail("This does not look like a batch script")
    words: list[str] = []
    for line in lines[1:]:
        if line.startswith("#SBATCH"):
            words += _words(line.removeprefix("#SBATCH"))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    options = _checked(words) | _checked(arguments[:-1])
    if "array" in options and _array(options)[1] >= MAX_ARRAY_SIZE:
        _fail("Batch job submission failed: Invalid job array specification")
    known = {str(job["id"]) for job in _jobs(state)}
    if not known.issuperset(options.get("dependency", "").split(":")[1:]):
        _fail("Batch job submission failed: Job dependency problem")
    limit = os.environ.get("STAND_IN_MOST_JOBS")
    if limit is not None and len(known) >= int(limit):
        _fail("Batch job submission failed: Job violates accounting/QOS policy (job submit limit)")
    number = len(known) + 1
    copy = state / f"script-{number}"  # Slurm runs a copy: the file may change meanwhile
    copy.write_bytes(script.read_bytes())
    copy.chmod(0o755)
    job = {
        "id": number,
        "options": options,
        "script": str(copy),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    (state / f"job-{number}.json").write_text(json.dumps(job))
    print(f"{number};stand-in" if "parsable" in options else f"Submitted batch job {number}")  # noqa: T201


def squeue(state: Path, arguments: list[str]) -> None:
    expected = ["--noheader", "--array", "--format=%F %K", f"--user={os.getuid()}"]
    if arguments != expected:
        _fail(f"squeue: the stand-in knows only {expected}")
    for job in _jobs(state):
        for index in _tasks(job):
            name = str(job["id"]) if index is None else f"{job['id']}_{index}"
            if not (state / f"ended-{name}").exists():
                print(job["id"], "N/A" if index is None else index)  # noqa: T201


def scontrol(state: Path, arguments: list[str]) -> None:
    verb, name = arguments
    if verb != "requeue":
        _fail(f"scontrol {verb}: the stand-in knows only requeue")
    (state / f"requeue-{name}").touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # Slurm ends the task that it queues again


if __name__ == "__main__":
    {"sbatch": sbatch, "squeue": squeue, "scontrol": scontrol}[sys.argv[1]](
        Path(sys.argv[2]), sys.argv[3:]
    )

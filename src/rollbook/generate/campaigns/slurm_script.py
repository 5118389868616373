"""Batch scripts for Slurm: job arrays that build one shard per task, and a job that merges the shards at the end."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollbook.errors import ConfigurationError
from rollbook.files import make_folders, write_errors, write_files
from rollbook.generate.campaign_config import CampaignConfig

_OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_OWN_OPTIONS = ("array", "dependency", "parsable", "quiet", "wrap")
"""Options of sbatch that the scripts and their submission need as they are."""
_WARNING_S = 60
"""Slurm warns a task this long before its time is over, or up to a minute earlier."""
_RESTARTS = 20
"""A task that ran out of time this often is not queued again: it may never end."""


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a user can say about the jobs of a campaign."""

    tasks_at_once: int | None = None
    """Most shards that are built at the same time; None leaves it to Slurm."""
    max_array: int = 1000
    """Most tasks of one job array. Slurm refuses arrays beyond its MaxArraySize, which is 1001 unless it was set."""
    setup: tuple[str, ...] = ()
    """Lines of bash that run before every command of `rollbook`, for example to activate an environment."""
    sbatch: tuple[str, ...] = ()
    """Options of sbatch, as KEY=VALUE or KEY. They replace options that the scripts would have."""

    def __post_init__(self) -> None:
        for name, value in (("tasks_at_once", self.tasks_at_once), ("max_array", self.max_array)):
            if value is not None and value < 1:
                raise ConfigurationError(message=f"{name} is {value}, expected at least 1")
        self.options()

    def options(self) -> dict[str, str | None]:
        """The options of `sbatch`; None for an option without a value."""
        options: dict[str, str | None] = {}
        for given in self.sbatch:
            key, equals, value = given.partition("=")
            key = key.removeprefix("--")
            if not _OPTION.fullmatch(key):
                expected = "expected the long name of an option: partition=gpu, exclusive"
                raise ConfigurationError(message=f"--sbatch is {given!r}, {expected}")
            if key in _OWN_OPTIONS:
                raise ConfigurationError(message=f"--sbatch {key}: the scripts set it themselves")
            options[key] = _one_line(f"--sbatch {key}", value) if equals else None
        return options


class SlurmScript(msgspec.Struct, frozen=True, kw_only=True):
    """A script that was written, ready for sbatch."""

    path: Path
    shard_ids: tuple[str, ...]
    """The shards by the number of their task in the array. The script that merges has none."""
    after: int | None = None
    """Position of the array that must have ended before this one begins."""


def write_slurm_scripts(
    campaign: Path, shard_ids: Sequence[str], needs: CampaignConfig, settings: SlurmSettings
) -> list[SlurmScript]:
    """Writes `CAMPAIGN/slurm/`: a script for every array of shards, then the script that merges.

    Scripts of an earlier call are replaced. Slurm has copied those that are in its queue.
    """
    folder = campaign.absolute() / "slurm"
    arrays = math.ceil(len(shard_ids) / settings.max_array)
    # of equal size, so that none is left alone at the end with its part of the limit
    parts = [tuple(shard_ids[first::arrays]) for first in range(arrays)]
    # together the arrays that run side by side keep the limit; the others wait, each for one of these
    lanes = min(len(parts), settings.tasks_at_once or len(parts))
    scripts, texts = [], {}
    for number, part in enumerate(parts):
        path = folder / f"array-{number:03d}.sh"
        at_once = settings.tasks_at_once and _share(settings.tasks_at_once, lanes, number % lanes)
        texts[path] = _array_script(folder, part, at_once, needs, settings)
        after = number - lanes if number >= lanes else None
        scripts.append(SlurmScript(path=path, shard_ids=part, after=after))
    merge = SlurmScript(path=folder / "merge.sh", shard_ids=())
    texts[merge.path] = _merge_script(folder, settings)
    for text in (texts[merge.path], *list(texts.values())[:1]):
        _refuse_broken(text)
    with write_errors(folder):
        make_folders(folder / "logs")
        for old in set(folder.glob("array-*.sh")) - texts.keys():
            old.unlink(missing_ok=True)
    write_files({path: text.encode("utf-8", "surrogateescape") for path, text in texts.items()})
    return [*scripts, merge]


def _share(total: int, parts: int, at: int) -> int:
    return total // parts + (at < total % parts)


# ----------------------------------------------------------------------------------------- texts


def _array_script(
    folder: Path,
    shard_ids: Sequence[str],
    at_once: int | None,
    needs: CampaignConfig,
    settings: SlurmSettings,
) -> str:
    throttle = "" if at_once is None else f"%{at_once}"
    options: dict[str, str | None] = {
        "array": f"0-{len(shard_ids) - 1}{throttle}",
        "output": _log(folder, "%A_%a.log"),
        "signal": f"B:USR1@{_WARNING_S}",
        "cpus-per-task": str(math.ceil(needs.cpus_per_shard)),
    }
    if needs.gpus_per_shard:
        options["gres"] = f"gpu:{math.ceil(needs.gpus_per_shard)}"
    if needs.memory_mb is not None:
        options["mem"] = f"{needs.memory_mb}M"
    if needs.timeout_s is not None:
        # the worker is stopped when Slurm warns
        options["time"] = str(math.ceil((needs.timeout_s + 2 * _WARNING_S) / 60))
    return f"""{_head(folder, "shards", options, settings)}
shards=({" ".join(shard_ids)})
shard=${{shards[SLURM_ARRAY_TASK_ID]}}
echo "$shard on $(hostname), start ${{SLURM_RESTART_COUNT:-0}} of task ${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"

# Slurm warns this shell alone before the time is over: the worker then stops and keeps its finished rows. When Slurm
# ends a task, to cancel it or to run another job first, it sends TERM to the worker too.
signals=0 out_of_time='' worker=''
trap 'signals=$((signals + 1))' TERM
trap 'signals=$((signals + 1)) out_of_time=yes; kill -TERM "$worker" 2>/dev/null || true' USR1

for ((attempt = 0; attempt <= {needs.max_retries}; attempt++)); do
    "${{rollbook[@]}}" campaign run-shard {shlex.quote(str(folder.parent))} "$shard" --take-over --wait &
    worker=$!
    while :; do
        before=$signals code=0
        wait "$worker" || code=$?
        if [[ $signals == "$before" ]]; then break; fi # otherwise a signal has ended the wait, not the worker
    done
    # another attempt does not help a task that was told to stop, and not against a wrong setting
    if [[ $code == 0 || $code == 2 || $signals != 0 ]]; then break; fi
done
if [[ $code != 0 && $out_of_time && ${{SLURM_RESTART_COUNT:-0}} -lt {_RESTARTS} ]]; then
    echo "the time of this task is over: it goes back to the queue, and continues with the finished rows"
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
"""


def _merge_script(folder: Path, settings: SlurmSettings) -> str:
    campaign = shlex.quote(str(folder.parent))
    return f"""{_head(folder, "merge", {"output": _log(folder, "merge_%j.log")}, settings)}
"${{rollbook[@]}}" campaign status {campaign} --require-complete
"${{rollbook[@]}}" campaign merge {campaign}
"""


def _head(
    folder: Path, what: str, options: Mapping[str, str | None], settings: SlurmSettings
) -> str:
    """The options of sbatch, the folder in which the user gave the command, and the user's own lines."""
    campaign = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.parent.name)
    shown: dict[str, str | None] = {
        "job-name": f"rollbook-{what}-{campaign}",
        "open-mode": "append",
        "requeue": None,
        "nodes": "1",
        "ntasks": "1",
        **options,
        **settings.options(),
    }
    directives = [
        f"#SBATCH --{key}" + ("" if value is None else f"={_quoted(value)}")
        for key, value in shown.items()
    ]
    # the user's lines come before `set -u`, because scripts that activate environments use unset variables
    lines = [
        "#!/bin/bash",
        *directives,
        "# Written by `rollbook campaign run --engine slurm`, which replaces this file at its next start.",
        "set -eo pipefail",
        f"cd -- {shlex.quote(str(Path.cwd()))}",
        f"rollbook=({shlex.quote(sys.executable)} -m rollbook)",
        *settings.setup,
        "set -u",
    ]
    return "\n".join(lines)


def _log(folder: Path, name: str) -> str:
    """Slurm replaces %A and the like in the whole path, and does not where there is a backslash anywhere in it."""
    path = _one_line("the folder of the campaign", str(folder))
    if "\\" in path:
        message = f"{path}: Slurm cannot write logs to a folder with a backslash in its name"
        raise ConfigurationError(message=message)
    return f"{path.replace('%', '%%')}/logs/{name}"


def _quoted(value: str) -> str:
    """Quoted for a line `#SBATCH`. sbatch removes backslashes between quotes too, and `#` begins a comment."""
    if re.fullmatch(r"[\w./:,@%=+-]+", value, re.ASCII):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _one_line(what: str, value: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise ConfigurationError(message=f"{what} is {value!r}, expected one line of text")
    return value


def _refuse_broken(text: str) -> None:
    """A quote that is never closed in a user's line would be found by every task of the array."""
    bash = shutil.which("bash")
    if bash is None:
        return
    source = text.encode("utf-8", "surrogateescape")
    checked = subprocess.run([bash, "-n"], input=source, capture_output=True, check=False)
    if checked.returncode != 0:
        found = checked.stderr.decode(errors="replace").strip()
        raise ConfigurationError(message=f"--setup: bash does not accept the script: {found}")

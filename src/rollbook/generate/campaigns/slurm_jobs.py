"""Slurm jobs of a campaign: submits its scripts, and knows which shards are already in the queue."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rollbook.errors import ConfigurationError, MalformedJson
from rollbook.files import locked, make_folders, write_bytes, write_errors
from rollbook.generate.campaign_config import CampaignConfig
from rollbook.generate.campaigns.slurm_script import (
    SlurmScript,
    SlurmSettings,
    write_slurm_scripts,
)

_JOBS = "jobs.json"


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that sbatch accepted."""

    job_id: str
    script: str
    shard_ids: tuple[str, ...]
    """The shards by the number of their task. A job that merges has none."""
    submitted_at: str


class SlurmSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """What a start of a campaign on Slurm has done."""

    scripts: list[SlurmScript]
    jobs: list[SlurmJob]
    """The jobs that were submitted now."""
    commands: list[str]
    """What to type where the scripts were written but not submitted."""
    in_queue: int
    """Shards that were not submitted, because Slurm already has tasks for them."""


def start_on_slurm(
    campaign: Path,
    unfinished: Callable[[], Sequence[str]],
    needs: CampaignConfig,
    settings: SlurmSettings,
    *,
    submit: bool = True,
    on_job: Callable[[SlurmJob], object] = lambda job: None,
) -> SlurmSubmission:
    """Writes scripts for the shards that nobody has finished and that are not in the queue, and submits them.

    Without `submit`, and where there is no sbatch, the scripts are only written. Two starts at once submit every shard
    once: the second waits for the first, and finds its jobs in the queue.
    """
    folder = campaign.absolute() / "slurm"
    with ExitStack() as lock:
        with write_errors(folder):
            make_folders(folder)
            lock.enter_context(locked(folder / ".lock"))
        jobs = _read_jobs(folder / _JOBS)
        queue = _queue(jobs)
        waiting = {
            shard_id
            for job in jobs
            for task, shard_id in enumerate(job.shard_ids)
            if (job.job_id, str(task)) in queue
        }
        shard_ids = unfinished()
        wanted = [shard_id for shard_id in shard_ids if shard_id not in waiting]
        scripts = write_slurm_scripts(campaign, wanted, needs, settings) if wanted else []
        submission = SlurmSubmission(
            scripts=scripts, jobs=[], commands=[], in_queue=len(shard_ids) - len(wanted)
        )
        earlier = [
            job.job_id
            for job in jobs
            if job.shard_ids and any(job.job_id == queued for queued, _ in queue)
        ]
        if submit and shutil.which("sbatch") is not None:
            for job in _submitted(scripts, earlier):
                submission.jobs.append(job)
                write_bytes(folder / _JOBS, msgspec.json.encode([*jobs, *submission.jobs]))
                on_job(job)
        else:
            submission.commands.extend(_commands(scripts, earlier))
    return submission


# ----------------------------------------------------------------------------------------- submit


def _submitted(scripts: Sequence[SlurmScript], earlier: Sequence[str]) -> Iterable[SlurmJob]:
    """Submits one script after the other. The last merges, so it waits for all others and for `earlier` jobs."""
    ids: list[str] = []
    for script in scripts:
        after = _after(script, ids, earlier)
        answer = _run("sbatch", "--parsable", *_dependency(after), str(script.path))
        found = re.match(r"\d+", answer)  # the name of the cluster may follow
        if found is None:
            detail = f"sbatch {script.path.name}: expected the id of a job, not {answer!r}"
            raise ConfigurationError(message=detail)
        ids.append(found[0])
        yield SlurmJob(
            job_id=found[0],
            script=script.path.name,
            shard_ids=script.shard_ids,
            submitted_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        )


def _commands(scripts: Sequence[SlurmScript], earlier: Sequence[str]) -> list[str]:
    """Lines for a shell that do the same as `_submitted`."""
    ids = [f"${{job{number}%%;*}}" for number in range(len(scripts))]
    lines = []
    for number, script in enumerate(scripts):
        options = _dependency(_after(script, ids[:number], earlier))
        command = " ".join(["sbatch --parsable", *options, shlex.quote(str(script.path))])
        lines.append(f"job{number}=$({command})")
    return lines


def _after(script: SlurmScript, ids: Sequence[str], earlier: Sequence[str]) -> list[str]:
    """The jobs that must have ended before the script runs."""
    if not script.shard_ids:
        return [*earlier, *ids]
    return [] if script.after is None else [ids[script.after]]


def _dependency(job_ids: Sequence[str]) -> list[str]:
    return [f"--dependency=afterany:{':'.join(job_ids)}"] if job_ids else []


def _run(*command: str) -> str:
    """What a command of Slurm prints. Raises with its own words if it fails."""
    try:
        ended = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False
        )
    except OSError as error:
        message = f"{command[0]} cannot be run ({error.strerror or error})"
        raise ConfigurationError(message=message) from error
    if ended.returncode != 0:
        said = ended.stderr.strip() or f"exit code {ended.returncode}"
        message = f"{command[0]} {Path(command[-1]).name} failed: {said}"
        raise ConfigurationError(message=message)
    return ended.stdout.strip()


# ------------------------------------------------------------------------------------------ queue


def _read_jobs(file: Path) -> list[SlurmJob]:
    """All jobs that were submitted for the campaign, also those that ended."""
    with suppress(FileNotFoundError):
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[SlurmJob])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            detail = f"{error}; if Slurm has no jobs of this campaign, remove the file"
            raise MalformedJson(
                source=str(file), record_id=None, where="$", detail=detail
            ) from error
    return []


def _queue(jobs: Sequence[SlurmJob]) -> set[tuple[str, str]]:
    """Job and task of everything that waits or runs. Nothing where nothing was submitted or there is no squeue."""
    if not jobs or shutil.which("squeue") is None:
        return set()
    lines = _run(
        "squeue", "--noheader", "--array", "--format=%F %K", f"--user={os.getuid()}"
    ).splitlines()
    pairs = [line.split() for line in lines]
    return {(pair[0], pair[1]) for pair in pairs if len(pair) == 2}

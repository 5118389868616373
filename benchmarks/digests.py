"""Digests: v1 against the naive loop over samples, v2 against raw SHA-256 over the same columns."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from functools import partial

import numpy as np

from benchmarks.rollouts import VOCABULARY, many_lengths, random_table
from benchmarks.timing import Claim, best
from rollbook.contracts import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.table_digests import artifact_digests, content_digests

_FAIR = "naive v1, joined once"


def naive_v1(table: RolloutTable) -> list[bytes]:
    """What one writes first: one hasher per rollout, one update per sample."""
    digests = []
    for artifact in table:
        hasher = hashlib.sha256(_head(artifact))
        columns = artifact.columns
        pack = struct.Struct("<f").pack
        for token, logprob, reward, advantage in zip(
            columns["token_id"].tolist(),
            columns["logprob"].tolist(),
            columns["reward"].tolist(),
            columns["advantage"].tolist(),
            strict=True,
        ):
            hasher.update(
                b"|sample|%d|%b|%b|%b" % (token, pack(logprob), pack(reward), pack(advantage))
            )
        digests.append(hasher.digest())
    return digests


def naive_v1_joined(table: RolloutTable) -> list[bytes]:
    """What one writes second: one pack per sample, all samples joined and hashed once. Our claims follow this one."""
    pack = struct.Struct("<fcfcf").pack
    digests = []
    for artifact in table:
        columns = artifact.columns
        samples = zip(
            columns["token_id"].tolist(),
            columns["logprob"].tolist(),
            columns["reward"].tolist(),
            columns["advantage"].tolist(),
            strict=True,
        )
        parts = [
            b"|sample|%d|%b" % (token, pack(logprob, b"|", reward, b"|", advantage))
            for token, logprob, reward, advantage in samples
        ]
        digests.append(hashlib.sha256(_head(artifact) + b"".join(parts)).digest())
    return digests


def _head(artifact: RolloutArtifact) -> bytes:
    source = artifact.source_policy_revision
    return (
        f"psionic_rollout_artifact|{artifact.artifact_id}|worker|{artifact.worker_id}"
        f"|env|{artifact.environment.storage_key}|task|{artifact.task_id}"
        f"|policy_family|{source.policy_family}|revision|{source.revision_id}"
        f"|policy_digest|{source.policy_digest}|created_at_ms|{artifact.created_at_ms}"
        f"|termination|{artifact.termination_reason}"
    ).encode()


def raw_sha256(table: RolloutTable) -> list[bytes]:
    return [hashlib.sha256(column.data).digest() for column in table.samples.values()]


def _measure(title: str, table: RolloutTable, repeats: int, in_a_row: int = 1) -> dict[str, float]:
    ours = [digest.tobytes() for digest in artifact_digests(table.columns)]
    assert naive_v1(table) == naive_v1_joined(table) == ours
    seconds = best(
        {
            "naive v1, one update per sample": lambda: naive_v1(table),
            "naive v1, joined once": lambda: naive_v1_joined(table),
            "v1": lambda: artifact_digests(table.columns),
            "v2": lambda: content_digests(table.columns),
            "raw SHA-256": lambda: raw_sha256(table),
        },
        repeats=repeats,
        in_a_row=in_a_row,
    )
    print(f"{title}: {len(table)} rollouts, {table.sample_count} samples")
    for name, spent in seconds.items():
        rate = table.sample_count / spent / 1e6
        print(
            f"  {name:32} {spent * 1e3:9.3f} ms  {rate:7.2f} Msamples/s  {rate * 16:8.1f} MB/s of columns"
        )
    return seconds


_SIZES = (3, 32, 150, 300, 4096)
_VOCABULARIES = (1_000, VOCABULARY, 300_000, 2**32)
_FIRST_CALL = """
import time
import numpy as np
from benchmarks.digests import {function}
from benchmarks.rollouts import random_columns
from rollbook.contracts.rl.build import build_columns
from rollbook.contracts.rl.rollout import RolloutTable
columns = build_columns(**random_columns(np.array([{samples}]), vocabulary=300_000))
none = np.zeros((1, 32), np.uint8)
table = RolloutTable(columns, none, none)
start = time.process_time()
{function}({argument})
print(time.process_time() - start)
"""


def _worst_ratio(scale: float) -> float:
    """How many times as fast as the naive loop, joined once, over all sizes and vocabularies: the lowest figure."""
    print("single artifacts: v1 beside the naive loop, joined once")
    ratios = []
    for samples in _SIZES:
        in_a_row = max(1, int(20_000 * scale) // samples)
        for vocabulary in _VOCABULARIES:
            table = random_table(np.array([samples]), vocabulary=vocabulary)
            seconds = best(
                {
                    "naive": partial(naive_v1_joined, table),
                    "v1": partial(artifact_digests, table.columns),
                },
                repeats=15,
                in_a_row=in_a_row,
            )
            ratios.append(seconds["naive"] / seconds["v1"])
            print(
                f"  {samples:5} samples, ids below {vocabulary:10}: {seconds['v1'] * 1e6:8.1f} us, "
                f"naive {seconds['naive'] * 1e6:8.1f} us"
            )
    return min(ratios)


def _first_call(function: str, argument: str, samples: int) -> float:
    """CPU seconds of the first call in a new process, the best of three processes."""
    code = _FIRST_CALL.format(function=function, argument=argument, samples=samples)
    return min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    )


def main(scale: float = 1.0) -> list[Claim]:
    many = _measure("table", random_table(many_lengths(max(2, int(2048 * scale)))), 5)
    single = _measure(
        "single artifact", random_table(np.array([max(64, int(4096 * scale))])), 15, 20
    )
    worst = _worst_ratio(scale)
    samples = max(64, int(4096 * scale))
    first = _first_call("artifact_digests", "table.columns", samples)
    naive_first = _first_call("naive_v1_joined", "table", samples)
    print(
        f"first call of a process, {samples} samples, ids below 300000: v1 {first * 1e6:.1f} us, "
        f"naive {naive_first * 1e6:.1f} us"
    )
    return [
        Claim("v1 over a table vs the naive loop, joined once", many[_FAIR] / many["v1"], 4, "x"),
        Claim("v1 of one artifact vs the same", single[_FAIR] / single["v1"], 4, "x"),
        Claim("v1 vs the same, worst size and vocabulary", worst, 0.95, "x"),
        Claim("v1 vs the same, first call of a process", naive_first / first, 1, "x"),
        Claim(
            "v2 of one artifact vs raw SHA-256", single["raw SHA-256"] / single["v2"] * 100, 60, "%"
        ),
    ]

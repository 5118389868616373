"""Digests: v1 against the naive loop over samples, v2 against raw SHA-256 over the same columns."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from benchmarks.rollouts import many_lengths, random_table
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


def main(scale: float = 1.0) -> list[Claim]:
    many = _measure("table", random_table(many_lengths(max(2, int(2048 * scale)))), 5)
    single = _measure(
        "single artifact", random_table(np.array([max(64, int(4096 * scale))])), 15, 20
    )
    return [
        Claim("v1 over a table vs the naive loop, joined once", many[_FAIR] / many["v1"], 4, "x"),
        Claim("v1 of one artifact vs the same", single[_FAIR] / single["v1"], 4, "x"),
        Claim(
            "v2 of one artifact vs raw SHA-256", single["raw SHA-256"] / single["v2"] * 100, 60, "%"
        ),
    ]

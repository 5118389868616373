"""Rollouts for tests: small hand-made ones, and hypothesis strategies for all that the contracts can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from rollbook.contracts import (
    COMPATIBLE,
    CheckpointReference,
    ContractRules,
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    PolicyRevision,
    RolloutArtifact,
    RolloutProofKind,
    RolloutProofReference,
    RolloutTable,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.sample import SAMPLE_DTYPES

ENVIRONMENT = EnvironmentPackageKey(environment_ref="env.weather", version="1")


def revision(number: int = 1, **changes: Any) -> PolicyRevision:
    fields: dict[str, Any] = {
        "policy_family": "train.decoder",
        "revision_id": f"policy-r{number}",
        "policy_digest": f"digest-r{number}",
        "produced_at_ms": 1000 + number,
        "revision_number": number,
    }
    return PolicyRevision(**{**fields, **changes})


def checkpoint(**changes: Any) -> CheckpointReference:
    fields: dict[str, Any] = {
        "checkpoint_family": "train.decoder",
        "stream_id": "stream",
        "manifest_digest": "m",
        "object_digest": "o",
        "writer_node_id": "node",
        "membership_epoch": 1,
        "cluster_state_digest": "c",
        "topology_digest": "t",
        "started_at_ms": 5,
    }
    return CheckpointReference(**{**fields, **changes})


def proof(digest: str = "proof-a", **changes: Any) -> RolloutProofReference:
    fields: dict[str, Any] = {
        "kind": RolloutProofKind.EXECUTION_PROOF,
        "digest": digest,
        "reference": f"exec://{digest}",
    }
    return RolloutProofReference(**{**fields, **changes})


def samples(count: int = 3, **changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "token_id": np.arange(count) * 7 + 1,
        "logprob": -np.arange(1, count + 1) / 8,
        "reward": np.arange(count) / 4,
        "advantage": np.arange(count) / 2 - 1,
    }
    return {**columns, **changes}


def artifact(artifact_id: str = "a", **changes: Any) -> RolloutArtifact:
    fields: dict[str, Any] = {
        "artifact_id": artifact_id,
        "worker_id": "worker-a",
        "environment": ENVIRONMENT,
        "task_id": "task",
        "source_policy_revision": revision(),
        "samples": samples(),
        "termination_reason": RolloutTerminationReason.COMPLETED,
        "created_at_ms": 1100,
    }
    return RolloutArtifact(**{**fields, **changes})


def table_fields(lengths: list[int], seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Keyword arguments of `RolloutTable.from_columns` for rollouts of these lengths."""
    rng = np.random.default_rng(seed)
    rows, total = len(lengths), sum(lengths)
    fields: dict[str, Any] = {
        "artifact_id": [f"rollout-{row}" for row in range(rows)],
        "worker_id": [f"worker-{row % 3}" for row in range(rows)],
        "environment": [ENVIRONMENT] * rows,
        "task_id": [f"task-{row % 5}" for row in range(rows)],
        "source_policy_revision": [revision(1 + row % 3) for row in range(rows)],
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "samples": {
            "token_id": rng.integers(0, 150_000, total),
            "logprob": -rng.random(total),
            "reward": rng.normal(size=total),
            "advantage": rng.normal(size=total),
        },
        "termination_reason": [RolloutTerminationReason.COMPLETED] * rows,
        "created_at_ms": np.arange(rows) + 1100,
    }
    return {**fields, **changes}


def table(lengths: list[int], seed: int = 0, **changes: Any) -> RolloutTable:
    return RolloutTable.from_columns(**table_fields(lengths, seed, **changes))


# ------------------------------------------------------------------------------------- strategies

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
u64 = st.integers(0, 2**64 - 1)
f32_bits = st.integers(0, 2**32 - 1)
checkpoints = st.builds(
    checkpoint,
    stream_id=texts,
    membership_epoch=u64,
    step=st.none() | u64,
    checkpoint_ref=st.none() | texts,
)
revisions = st.builds(
    PolicyRevision,
    policy_family=texts,
    revision_id=texts,
    policy_digest=texts,
    produced_at_ms=u64,
    revision_number=st.none() | u64,
    parent_revision_id=st.none() | texts,
    checkpoint=st.none() | checkpoints,
)
proofs = st.builds(
    RolloutProofReference, kind=st.sampled_from(RolloutProofKind), digest=texts, reference=texts
)
semantics = st.builds(
    LogprobSemantics,
    distribution=st.sampled_from(LogprobDistribution),
    temperature=st.none() | st.floats(0, 4),
    top_k=st.none() | st.integers(0, 100),
    engine=st.none() | texts,
)


@st.composite
def sample_columns(
    draw: st.DrawFn, count: int, names: list[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Any bits whatever in float columns, NaN payloads and -0.0 included."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for name in names:
        dtype = SAMPLE_DTYPES[name]
        if dtype.kind == "f":
            bits = draw(st.lists(f32_bits, min_size=count, max_size=count))
            columns[name] = np.array(bits, np.uint32).view(np.float32)
            continue
        highest = {"loss_mask": 1, "role": 4}.get(name, int(np.iinfo(dtype).max))
        lowest = -1 if name == "policy_version" else 0
        values = draw(st.lists(st.integers(lowest, highest), min_size=count, max_size=count))
        columns[name] = np.array(values, dtype)
    return columns


@st.composite
def tables(draw: st.DrawFn, min_rows: int = 0, max_rows: int = 4) -> RolloutTable:
    """Tables of everything the compatible rules accept."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=min_rows, max_size=max_rows))
    rows = len(lengths)
    optional = draw(st.lists(st.sampled_from(list(SAMPLE_DTYPES)[4:]), unique=True))
    names = [name for name in SAMPLE_DTYPES if name in optional or name in list(SAMPLE_DTYPES)[:4]]

    def each(strategy: st.SearchStrategy[Any], unique: bool = False) -> list[Any]:
        return draw(st.lists(strategy, min_size=rows, max_size=rows, unique=unique))

    rules: ContractRules = COMPATIBLE
    return RolloutTable.from_columns(
        artifact_id=each(texts, unique=True),
        worker_id=each(texts),
        environment=each(st.builds(EnvironmentPackageKey, environment_ref=texts, version=texts)),
        task_id=each(texts),
        source_policy_revision=each(revisions),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        samples=draw(sample_columns(sum(lengths), names)),
        termination_reason=each(st.sampled_from(RolloutTerminationReason)),
        created_at_ms=each(u64),
        proof_references=each(
            st.lists(proofs, max_size=2, unique_by=lambda each_proof: each_proof.digest)
        ),
        prompt=each(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3)),
        group_id=each(st.none() | texts),
        attempt=each(st.none() | st.integers(0, 2**32 - 1)),
        logprob_semantics=each(st.none() | semantics),
        rules=rules,
    )


def same_columns(left: RolloutTable, right: RolloutTable) -> bool:
    """Bit for bit, all facts."""
    return (
        left.root == right.root
        and left.artifact_digests.tobytes() == right.artifact_digests.tobytes()
        and all(
            left.samples[name].tobytes() == right.samples[name].tobytes() for name in left.samples
        )
        and left.columns.sample_names == right.columns.sample_names
    )

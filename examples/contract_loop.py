"""The contract loop on one screen: revisions → rollouts → admission → batch → tensors → back to the checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from rollbook.contracts import (
    AdmissionWindow,
    CheckpointReference,
    EnvironmentPackageKey,
    LineageGraph,
    OffPolicyBudget,
    PolicyRevision,
    RolloutTable,
    RolloutTerminationReason,
    TrainerBatch,
    open_table,
    save_table,
    verify_proof,
)
from rollbook.train import to_packed


def revision(number: int) -> PolicyRevision:
    return PolicyRevision(
        policy_family="arm.pick",
        revision_id=f"r{number}",
        policy_digest=f"sha256:weights-{number}",
        produced_at_ms=1_000 * number,
        revision_number=number,
        parent_revision_id=f"r{number - 1}" if number > 1 else None,
        checkpoint=CheckpointReference(
            checkpoint_family="arm.pick",
            stream_id="main",
            manifest_digest=f"manifest-{number}",
            object_digest=f"object-{number}",
            writer_node_id="trainer-0",
            membership_epoch=1,
            cluster_state_digest="cluster",
            topology_digest="topology",
            started_at_ms=1_000 * number - 500,
            step=number * 100,
        ),
    )


def record(rollouts: int, seed: int) -> RolloutTable:
    """Columns as workers would send them, and where each rollout begins."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(5, 50, rollouts))])
    total = int(offsets[-1])
    return RolloutTable.from_columns(
        artifact_id=[f"pick-{row:04d}" for row in range(rollouts)],
        worker_id=[f"robot-{row % 3}" for row in range(rollouts)],
        environment=[EnvironmentPackageKey(environment_ref="bench.pick", version="2.1")] * rollouts,
        task_id=[f"cube-{row % 4}" for row in range(rollouts)],
        # some rollouts come from old policies
        source_policy_revision=[revision(1 + row % 8) for row in range(rollouts)],
        offsets=offsets,
        samples={
            "token_id": rng.integers(0, 256, total),
            "logprob": -rng.random(total),
            "reward": rng.normal(size=total),
            "advantage": rng.normal(size=total),
        },
        termination_reason=[RolloutTerminationReason.COMPLETED] * rollouts,
        created_at_ms=np.arange(rollouts) + 9_000,
    )


def main() -> None:
    table = record(64, seed=7)
    with tempfile.TemporaryDirectory() as folder:
        save_table(table, Path(folder) / "rollouts.table")
        table = open_table(Path(folder) / "rollouts.table")
        print(
            f"recorded   {len(table)} rollouts, {table.sample_count} samples, root {table.root[:16]}…"
        )

        window = AdmissionWindow(
            run_id="run-1",
            stage_id="rl",
            window_id="run-1-window-1",
            target_revision=revision(8),
            budget=OffPolicyBudget.default(),
        )
        window.submit(table, observed_at_ms=10_000)
        print(f"admitted   {window.accounting().rollouts}")

        batch = TrainerBatch.assemble(
            batch_id="batch-1",
            target_revision=revision(8),
            rollouts=window.accepted(),
            assembled_at_ms=11_000,
        )
        print(
            f"assembled  {batch.rollout_count} rollouts, reward {batch.reward_sum:.3f}, {batch.batch_digest[:16]}…"
        )

        packed = to_packed(batch, window.accepted())
        print(f"packed     {len(packed.token_ids)} tokens, recipe {packed.recipe_digest[:16]}…")

        verify_proof(table.prove(3), table[3], table.root)
        print(f"proved     {table[3].artifact_id} is row 3 of the table, without the other rows")

        graph = LineageGraph()
        graph.add_table(window.accepted())
        graph.add_batch(batch)
        steps = [
            each.checkpoint.step
            for each in batch.policy_lineage.source_revisions
            if each.checkpoint
        ]
        print(
            f"walked     batch-1 → {len(graph.artifacts_of_batch('batch-1'))} rollouts → checkpoints {steps}"
        )


if __name__ == "__main__":
    main()

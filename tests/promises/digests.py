"""Digests of fixed data: whoever stored one has to find it again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from rollbook import rollouts
from rollbook.client import Battery, EpisodeOutcome, Imu, JointState, Pose3D, Twist
from rollbook.contracts import (
    CheckpointReference,
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    OffPolicyBudget,
    PolicyRevision,
    RolloutArtifact,
    RolloutProofKind,
    RolloutProofReference,
    RolloutTable,
    RolloutTerminationReason,
    TrainerBatch,
    admit,
    save_table,
)
from rollbook.evals import Gate, gate_from
from rollbook.train import to_jagged, to_packed, to_padded
from tests.promises.fixed_stores import lineage, records
from tests.promises.inner import node_generator, plain_metadata, rng_state_digest, write_npz
from tests.promises.rollup_cases import CUSTOM_GATE, REWARD_GATE

EXAMPLES = Path(__file__).parents[2] / "examples" / "generate"


def digests(folder: Path) -> dict[str, Any]:
    return {
        "gates": _gates(),
        "rollout lineage": _lineages(),
        "typed metadata": _typed_metadata(),
        "contracts": _contracts(folder),
        "npz": _npz(folder),
        "generation configs": _configs(),
        "seeds": _seeds(),
    }


def _gates() -> dict[str, str]:
    return {
        "default": Gate().digest,
        "for reward": Gate.for_reward().digest,
        "reward, from JSON": gate_from(REWARD_GATE).digest,
        "custom": gate_from(CUSTOM_GATE).digest,
        "sequential": gate_from({"design": "sequential", "alpha": 0.01}).digest,
    }


def _lineages() -> dict[str, str]:
    [last] = records()[3:]
    return {
        "empty": rollouts.RolloutLineage().digest(),
        "full": lineage(0).digest(),
        "of chain 0": last.lineage_for_chain(0).digest(),
        "of chain 1": last.lineage_for_chain(1).digest(),
    }


def _typed_metadata() -> Any:
    return plain_metadata(
        {
            "joints": JointState(
                names=["a", "b"], positions=[0.5, 1], velocities=[0, 0.25], efforts=[1, 2]
            ),
            "pose": Pose3D(translation=[1, 2, 3], rotation=[0, 0, 0, 1]),
            "twist": Twist(linear=[1, 0, 0], angular=[0, 0, 0.5]),
            "imu": Imu(linear_acceleration=[0, 0, 9.5], angular_velocity=[0, 0, 0]),
            "battery": Battery(percent=50, voltage_v=12.5, charging=False),
            "outcome": EpisodeOutcome(success=True, reward_total=1, collision_count=0),
            "array": np.arange(3, dtype=np.float32) / 2,
            "number": np.int64(7),
        }
    )


# ------------------------------------------------------------------------------------------ contracts


def revision(number: int, **more: Any) -> PolicyRevision:
    return PolicyRevision(
        policy_family="arm.pick",
        revision_id=f"r{number}",
        policy_digest=f"sha256:{number:064}",
        produced_at_ms=1_000 * number,
        revision_number=number,
        **more,
    )


def _artifacts() -> list[RolloutArtifact]:
    checkpoint = CheckpointReference(
        checkpoint_family="arm.pick",
        stream_id="stream",
        manifest_digest="m",
        object_digest="o",
        writer_node_id="node",
        membership_epoch=1,
        cluster_state_digest="c",
        topology_digest="t",
        started_at_ms=5,
        step=9,
    )
    plain: dict[str, Any] = {
        "worker_id": "robot-3",
        "environment": EnvironmentPackageKey(environment_ref="bench.pick", version="2.1"),
        "task_id": "red-cube",
        "termination_reason": RolloutTerminationReason.COMPLETED,
    }
    samples: dict[str, Any] = {
        "token_id": [17, 4, 9],
        "logprob": [-0.25, -1.5, -0.75],
        "reward": [0.0, 0.0, 1.0],
        "advantage": [0.125, -0.25, 0.5],
    }
    rich: dict[str, Any] = {
        **samples,
        "loss_mask": [1, 0, 1],
        "role": [2, 3, 2],
        "turn": [0, 0, 1],
        "policy_version": [3, 3, 4],
        "temperature": [1.0, 0.5, 0.5],
        "reference_logprob": [-0.5, -1.0, -0.5],
        "value": [0.25, 0.5, 1.0],
    }
    return [
        RolloutArtifact(
            artifact_id="pick-0001",
            source_policy_revision=revision(3),
            samples=samples,
            created_at_ms=4_000,
            **plain,
        ),
        RolloutArtifact(
            artifact_id="pick-0002",
            source_policy_revision=revision(4, parent_revision_id="r3", checkpoint=checkpoint),
            samples=rich,
            created_at_ms=5_000,
            proof_references=[
                RolloutProofReference(
                    kind=RolloutProofKind.EXECUTION_PROOF, digest="p", reference="exec://p"
                )
            ],
            prompt=[1, 2, 3],
            group_id="group",
            attempt=1,
            logprob_semantics=LogprobSemantics(
                distribution=LogprobDistribution.PROCESSED, temperature=0.5, engine="engine"
            ),
            **plain,
        ),
        RolloutArtifact(
            artifact_id="pick-0003",
            source_policy_revision=revision(3),
            samples={name: values[:2] for name, values in rich.items()},
            created_at_ms=4_500,
            **plain,
        ),
    ]


def fixed_table() -> RolloutTable:
    """Of all but the first, which has fewer columns."""
    return RolloutTable.from_artifacts(_artifacts()[1:])


def _contracts(folder: Path) -> dict[str, Any]:
    artifacts, table = _artifacts(), fixed_table()
    target = revision(5, parent_revision_id="r4")
    batch = TrainerBatch.assemble(
        batch_id="batch-7", target_revision=target, rollouts=table, assembled_at_ms=6_000
    )
    admission = admit(
        table,
        target,
        OffPolicyBudget(max_revision_drift=1, max_rollout_age_ms=2_500),
        run_id="run",
        stage_id="stage",
        window_id="window",
        observed_at_ms=7_000,
    )
    save_table(table, folder / "rollouts.table")
    exports = {
        "packed": to_packed(batch, table),
        "padded": to_padded(batch, table),
        "jagged": to_jagged(batch, table),
    }
    return {
        "artifact digests": [each.artifact_digest for each in artifacts],
        "content digests": [each.content_digest for each in artifacts],
        "table root": table.root,
        "path of a proof": list(table.prove(1).path),
        "batch digest": batch.batch_digest,
        "policy lineage": batch.policy_lineage.lineage_digest,
        "receipts": [each.receipt_digest for each in admission.receipts()],
        "export recipes": {name: each.recipe_digest for name, each in exports.items()},
        "table file": hashlib.sha256((folder / "rollouts.table").read_bytes()).hexdigest(),
    }


def _npz(folder: Path) -> dict[str, str]:
    path = folder / "arrays.npz"
    arrays = {
        "arm/position": np.arange(6, dtype=np.float32).reshape(3, 2) / 4,
        "arm/_t_ns": np.arange(3, dtype=np.int64) * 100,
        "arm/held": np.array([True, False, True]),
        "arm/mode": np.array(["a", "grün", ""]),
    }
    write_npz(path, arrays)
    return {
        "size": str(path.stat().st_size),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


# ----------------------------------------------------------------------------------------- generation


def _configs() -> dict[str, Any]:
    found = {}
    for path in sorted(EXAMPLES.glob("*.toml")):
        config = rollouts.RolloutDatasetWriterConfig.from_toml(path)
        found[path.name] = {
            "config": config.config_hash,
            "candidates": config.candidate_config_hash,
            "oracle": config.oracle_config_hash,
            "rollouts": {
                recipe.name: config.rollout_config_hash(recipe) for recipe in config.recipes
            },
        }
    return found


def _seeds() -> dict[str, Any]:
    """Raw words of the generator: what is drawn from them is NumPy's business."""
    found = {}
    for name, facts in {
        "shared": {"recipe": None, "seed": None, "path": (), "purpose": "candidates"},
        "of a recipe": {"recipe": "greedy", "seed": 3, "path": (4, 0), "purpose": "selection"},
        "of a target": {"recipe": None, "seed": 0, "path": (), "purpose": "target"},
    }.items():
        made = node_generator(
            campaign_seed=11,
            sample_key="flat/walk/0",
            target_id="chair",
            **facts,  # type: ignore[arg-type]
        )
        found[name] = {
            "state": rng_state_digest(made).hex(),
            "words": [int(made.bit_generator.random_raw()) for _ in range(2)],
        }
    return found

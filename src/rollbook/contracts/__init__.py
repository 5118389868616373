"""The records that rooms exchange. They are frozen and checked when they are made. They need numpy, nothing heavier.

Root modules hold what several rooms share; `rl/` has the records of reinforcement learning, `wire/` the messages of the
HTTP API. `rl/` and `wire/` import the root modules, never each other. A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.contracts.lineage import (
        RolloutLineage as RolloutLineage,
    )
    from rollbook.contracts.npz import (
        NpzLimits as NpzLimits,
        read_npz as read_npz,
        write_npz as write_npz,
    )
    from rollbook.contracts.policy import (
        CheckpointReference as CheckpointReference,
        PolicyRevision as PolicyRevision,
        PolicyRevisionLineage as PolicyRevisionLineage,
    )
    from rollbook.contracts.rl.admission import (
        Admission as Admission,
        OffPolicyBudget as OffPolicyBudget,
        admit as admit,
    )
    from rollbook.contracts.rl.admission_receipt import (
        AdmissionOutcome as AdmissionOutcome,
        AdmissionSignal as AdmissionSignal,
        AdmissionSignalKind as AdmissionSignalKind,
        RolloutAdmissionReceipt as RolloutAdmissionReceipt,
        RolloutIngestionTelemetry as RolloutIngestionTelemetry,
    )
    from rollbook.contracts.rl.admission_window import (
        AdmissionWindow as AdmissionWindow,
        ReleaseDecision as ReleaseDecision,
        WindowAccounting as WindowAccounting,
    )
    from rollbook.contracts.rl.batch import (
        TrainerBatch as TrainerBatch,
    )
    from rollbook.contracts.rl.graph import (
        LineageGraph as LineageGraph,
    )
    from rollbook.contracts.rl.graph_nodes import (
        Drift as Drift,
        LineageWalk as LineageWalk,
        RevisionKey as RevisionKey,
    )
    from rollbook.contracts.rl.journal import (
        Journal as Journal,
        read_journal as read_journal,
    )
    from rollbook.contracts.rl.json_form import (
        artifact_from_json as artifact_from_json,
        artifact_to_json as artifact_to_json,
        batch_from_json as batch_from_json,
        batch_to_json as batch_to_json,
        read_document as read_document,
        read_file as read_file,
        write_file as write_file,
    )
    from rollbook.contracts.rl.provenance import (
        EnvironmentPackageKey as EnvironmentPackageKey,
        LogprobDistribution as LogprobDistribution,
        LogprobSemantics as LogprobSemantics,
        RolloutProofKind as RolloutProofKind,
        RolloutProofReference as RolloutProofReference,
        RolloutTerminationReason as RolloutTerminationReason,
    )
    from rollbook.contracts.rl.recorded_turn import (
        ToolCall as ToolCall,
    )
    from rollbook.contracts.rl.recorder import (
        Recorder as Recorder,
    )
    from rollbook.contracts.rl.rollout import (
        InclusionProof as InclusionProof,
        RolloutArtifact as RolloutArtifact,
        RolloutTable as RolloutTable,
        verify_proof as verify_proof,
    )
    from rollbook.contracts.rl.rules import (
        COMPATIBLE as COMPATIBLE,
        STRICT as STRICT,
        ContractRules as ContractRules,
    )
    from rollbook.contracts.rl.sample import (
        RolloutRole as RolloutRole,
        RolloutSample as RolloutSample,
    )
    from rollbook.contracts.rl.staleness import (
        StalenessPolicy as StalenessPolicy,
        TokenStaleness as TokenStaleness,
        token_staleness as token_staleness,
    )
    from rollbook.contracts.rl.table_file import (
        open_table as open_table,
        save_table as save_table,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.contracts.lineage": ("RolloutLineage",),
            "rollbook.contracts.npz": ("NpzLimits", "read_npz", "write_npz"),
            "rollbook.contracts.rl.admission": ("Admission", "OffPolicyBudget", "admit"),
            "rollbook.contracts.rl.admission_receipt": (
                "AdmissionOutcome",
                "AdmissionSignal",
                "AdmissionSignalKind",
                "RolloutAdmissionReceipt",
                "RolloutIngestionTelemetry",
            ),
            "rollbook.contracts.rl.admission_window": (
                "AdmissionWindow",
                "ReleaseDecision",
                "WindowAccounting",
            ),
            "rollbook.contracts.rl.batch": ("TrainerBatch",),
            "rollbook.contracts.rl.graph": ("LineageGraph",),
            "rollbook.contracts.rl.graph_nodes": ("Drift", "LineageWalk", "RevisionKey"),
            "rollbook.contracts.rl.journal": ("Journal", "read_journal"),
            "rollbook.contracts.rl.json_form": (
                "artifact_from_json",
                "artifact_to_json",
                "batch_from_json",
                "batch_to_json",
                "read_document",
                "read_file",
                "write_file",
            ),
            "rollbook.contracts.policy": (
                "CheckpointReference",
                "PolicyRevision",
                "PolicyRevisionLineage",
            ),
            "rollbook.contracts.rl.provenance": (
                "EnvironmentPackageKey",
                "LogprobDistribution",
                "LogprobSemantics",
                "RolloutProofKind",
                "RolloutProofReference",
                "RolloutTerminationReason",
            ),
            "rollbook.contracts.rl.recorded_turn": ("ToolCall",),
            "rollbook.contracts.rl.recorder": ("Recorder",),
            "rollbook.contracts.rl.rollout": (
                "InclusionProof",
                "RolloutArtifact",
                "RolloutTable",
                "verify_proof",
            ),
            "rollbook.contracts.rl.rules": ("COMPATIBLE", "ContractRules", "STRICT"),
            "rollbook.contracts.rl.sample": ("RolloutRole", "RolloutSample"),
            "rollbook.contracts.rl.staleness": (
                "StalenessPolicy",
                "TokenStaleness",
                "token_staleness",
            ),
            "rollbook.contracts.rl.table_file": ("open_table", "save_table"),
        },
    )

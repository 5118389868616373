"""Nouns that rooms exchange: frozen, checked when made, digestible. Needs numpy, nothing heavier.

A name is loaded when it is first used: a server that only wants episodes does not pay for trainer batches.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbook.contracts.rl.admission import Admission, OffPolicyBudget, admit
    from rollbook.contracts.rl.admission_receipt import (
        AdmissionOutcome,
        AdmissionSignal,
        AdmissionSignalKind,
        RolloutAdmissionReceipt,
        RolloutIngestionTelemetry,
    )
    from rollbook.contracts.rl.admission_window import (
        AdmissionWindow,
        ReleaseDecision,
        WindowAccounting,
    )
    from rollbook.contracts.rl.batch import TrainerBatch
    from rollbook.contracts.rl.graph import LineageGraph
    from rollbook.contracts.rl.graph_nodes import Drift, LineageWalk, RevisionKey
    from rollbook.contracts.rl.json_form import (
        artifact_from_json,
        artifact_to_json,
        batch_from_json,
        batch_to_json,
        read_document,
        read_file,
        write_file,
    )
    from rollbook.contracts.rl.policy import (
        CheckpointReference,
        PolicyRevision,
        PolicyRevisionLineage,
    )
    from rollbook.contracts.rl.provenance import (
        EnvironmentPackageKey,
        LogprobDistribution,
        LogprobSemantics,
        RolloutProofKind,
        RolloutProofReference,
        RolloutTerminationReason,
    )
    from rollbook.contracts.rl.rollout import (
        InclusionProof,
        RolloutArtifact,
        RolloutTable,
        verify_proof,
    )
    from rollbook.contracts.rl.rules import COMPATIBLE, STRICT, ContractRules
    from rollbook.contracts.rl.sample import RolloutRole, RolloutSample
    from rollbook.contracts.rl.staleness import StalenessPolicy, TokenStaleness, token_staleness
    from rollbook.contracts.rl.table_file import open_table, save_table

__all__ = [
    "COMPATIBLE",
    "STRICT",
    "Admission",
    "AdmissionOutcome",
    "AdmissionSignal",
    "AdmissionSignalKind",
    "AdmissionWindow",
    "CheckpointReference",
    "ContractRules",
    "Drift",
    "EnvironmentPackageKey",
    "InclusionProof",
    "LineageGraph",
    "LineageWalk",
    "LogprobDistribution",
    "LogprobSemantics",
    "OffPolicyBudget",
    "PolicyRevision",
    "PolicyRevisionLineage",
    "ReleaseDecision",
    "RevisionKey",
    "RolloutAdmissionReceipt",
    "RolloutArtifact",
    "RolloutIngestionTelemetry",
    "RolloutProofKind",
    "RolloutProofReference",
    "RolloutRole",
    "RolloutSample",
    "RolloutTable",
    "RolloutTerminationReason",
    "StalenessPolicy",
    "TokenStaleness",
    "TrainerBatch",
    "WindowAccounting",
    "admit",
    "artifact_from_json",
    "artifact_to_json",
    "batch_from_json",
    "batch_to_json",
    "open_table",
    "read_document",
    "read_file",
    "save_table",
    "token_staleness",
    "verify_proof",
    "write_file",
]

_MODULES = {
    "admission": (
        "Admission",
        "OffPolicyBudget",
        "admit",
    ),
    "admission_receipt": (
        "AdmissionOutcome",
        "AdmissionSignal",
        "AdmissionSignalKind",
        "RolloutAdmissionReceipt",
        "RolloutIngestionTelemetry",
    ),
    "admission_window": (
        "AdmissionWindow",
        "ReleaseDecision",
        "WindowAccounting",
    ),
    "batch": ("TrainerBatch",),
    "graph": ("LineageGraph",),
    "graph_nodes": (
        "Drift",
        "LineageWalk",
        "RevisionKey",
    ),
    "policy": (
        "CheckpointReference",
        "PolicyRevision",
        "PolicyRevisionLineage",
    ),
    "provenance": (
        "EnvironmentPackageKey",
        "LogprobDistribution",
        "LogprobSemantics",
        "RolloutProofKind",
        "RolloutProofReference",
        "RolloutTerminationReason",
    ),
    "rollout": (
        "InclusionProof",
        "RolloutArtifact",
        "RolloutTable",
        "verify_proof",
    ),
    "rules": (
        "COMPATIBLE",
        "STRICT",
        "ContractRules",
    ),
    "sample": (
        "RolloutRole",
        "RolloutSample",
    ),
    "staleness": (
        "StalenessPolicy",
        "TokenStaleness",
        "token_staleness",
    ),
    "table_file": (
        "open_table",
        "save_table",
    ),
    "json_form": (
        "artifact_from_json",
        "artifact_to_json",
        "batch_from_json",
        "batch_to_json",
        "read_document",
        "read_file",
        "write_file",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.rl.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

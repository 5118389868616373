"""Nouns that rooms exchange: frozen, checked when made, digestible. Needs numpy, nothing heavier."""

from rollbook.contracts.admission import Admission, OffPolicyBudget, admit
from rollbook.contracts.admission_receipt import (
    AdmissionOutcome,
    AdmissionSignal,
    AdmissionSignalKind,
    RolloutAdmissionReceipt,
    RolloutIngestionTelemetry,
)
from rollbook.contracts.admission_window import AdmissionWindow, ReleaseDecision, WindowAccounting
from rollbook.contracts.batch import TrainerBatch
from rollbook.contracts.graph import LineageGraph
from rollbook.contracts.graph_nodes import Drift, LineageWalk, RevisionKey
from rollbook.contracts.policy import CheckpointReference, PolicyRevision, PolicyRevisionLineage
from rollbook.contracts.provenance import (
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    RolloutProofKind,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rollout import InclusionProof, RolloutArtifact, RolloutTable, verify_proof
from rollbook.contracts.rules import COMPATIBLE, STRICT, ContractRules
from rollbook.contracts.sample import RolloutRole, RolloutSample
from rollbook.contracts.staleness import StalenessPolicy, TokenStaleness, token_staleness
from rollbook.contracts.table_file import open_table, save_table
from rollbook.contracts.wire import (
    artifact_from_json,
    artifact_to_json,
    batch_from_json,
    batch_to_json,
    read_document,
    read_file,
    write_file,
)

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

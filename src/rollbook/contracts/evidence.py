"""Evidence: everything that a decision rests on, packed into one zip file that can be checked without the server.

    manifest.json    the run, and size and SHA-256 of every other file
    signature.json   the server's Ed25519 signature of the bytes of manifest.json, and its public key
    run.json         the run with its gate, its summary and its decision
    decided.json     what the summary was computed from, kept when it was computed (absent for runs of older releases)
    results.jsonl    the result of every pair
    episodes.jsonl   baselines and replays: digests of their artifacts, their policy, and what they were made from
    revisions.jsonl  the policies and their ancestors, with what each was trained on
    batches.jsonl    the trainer batches of these revisions, whole

The same state of the server always gives the same bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.eval_runs import EvalResultAnswer
from rollbook.contracts.wire.lineage import TrainingSource
from rollbook.digest import digest_of, sha256

FORMAT = "rollbook.evidence.v1"
MANIFEST, SIGNATURE = "manifest.json", "signature.json"
RUN, DECIDED, RESULTS = "run.json", "decided.json", "results.jsonl"
EPISODES, REVISIONS, BATCHES = "episodes.jsonl", "revisions.jsonl", "batches.jsonl"
ALGORITHM = "ed25519"
_RESULT_DOMAIN = "rollbook.eval_result.v1"
_RESULTS_DOMAIN = "rollbook.eval_results.v1"
_SUMMARY_DOMAIN = "rollbook.eval_summary.v1"
_EPOCH = (1980, 1, 1, 0, 0, 0)


class DecidedFrom(Struct, frozen=True, kw_only=True):
    """What a summary was computed from, beside the gate and the results themselves. Kept with the summary."""

    total: int
    """Pairs of the run."""
    deleted: int
    """Baselines that had been deleted."""
    retried: int
    earlier_runs: int
    """Runs that used some of the same baselines before."""
    critical: dict[str, str]
    """Active critical scenarios, by baseline."""
    gate_name: str | None
    gate_digest: str
    summary_digest: str
    result_digests: list[str]
    """In the order of the baselines."""
    results_digest: str
    """Over all of them."""
    rollbook: str
    """The release that computed the summary."""


class EvidenceArtifact(Struct, frozen=True):
    kind: str
    size: int | None
    sha256: str | None


class EvidenceEpisode(Struct, frozen=True, kw_only=True):
    id: str
    status: str
    source: str | None
    policy_version: str | None
    env_version: str | None
    seed: int | None
    artifacts: list[EvidenceArtifact]
    """Those whose bytes are stored."""
    missing_artifacts: list[str]
    """Kinds that were announced, and whose bytes are absent or are not the announced ones."""
    rollout: dict[str, Any] | None
    """The rollout of a store that it was logged from."""
    policy_revision: PolicyRevision | UnsetType = UNSET
    source_file: dict[str, Any] | UnsetType = UNSET
    """The file of another tool that it was imported from. Absent where it was not imported."""


class EvidenceRevision(Struct, frozen=True, kw_only=True):
    revision: PolicyRevision
    sources: list[TrainingSource]


class EvidenceFile(Struct, frozen=True):
    bytes: int
    sha256: str


class EvidenceManifest(Struct, frozen=True, kw_only=True):
    format: str
    eval_run_id: str
    organisation: str
    files: dict[str, EvidenceFile]


class EvidenceSignature(Struct, frozen=True, kw_only=True):
    algorithm: str
    public_key: str
    """64 hexadecimal digits."""
    signature: str
    """Of the bytes of manifest.json; 128 hexadecimal digits."""


def result_digest(result: EvalResultAnswer) -> str:
    """Covers what a decision reads of a result. The id of a replay is not covered: replays may be deleted later."""
    return _digest(
        _RESULT_DOMAIN,
        {
            "baseline_episode_id": result.baseline_episode_id,
            "status": result.status,
            "metrics": result.metrics,
            "error": result.error,
            "labels": result.labels,
        },
    )


def results_digest(result_digests: Sequence[str]) -> str:
    return digest_of(_RESULTS_DOMAIN, list(result_digests))


def summary_digest(summary: Mapping[str, Any]) -> str:
    return _digest(_SUMMARY_DOMAIN, summary)


def _digest(domain: str, value: object) -> str:
    """Of JSON text with sorted keys: metrics may have integers beyond 128 bits."""
    return digest_of(domain, json.dumps(value, sort_keys=True, separators=(",", ":")))


def file_of(data: bytes) -> EvidenceFile:
    return EvidenceFile(len(data), sha256(data).hexdigest())


def packed(files: Mapping[str, bytes]) -> bytes:
    """A zip file whose bytes depend on the files only."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            # not compressed: another release of zlib would give other bytes
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return target.getvalue()

"""Where a rollout came from and how it ended: environment, termination, proofs, meaning of its log-probs."""

from __future__ import annotations

from enum import StrEnum

from rollbook.contracts.record import U32_MAX, Record, checked_type
from rollbook.errors import InvalidNumber


class EnvironmentPackageKey(Record, frozen=True, kw_only=True, order=True):
    """A version of an environment package."""

    environment_ref: str
    version: str

    def __post_init__(self) -> None:
        self._check_texts("environment", "environment_ref", "version")

    @property
    def storage_key(self) -> str:
        return f"{self.environment_ref}@{self.version}"


class RolloutTerminationReason(StrEnum):
    COMPLETED = "completed"
    MAX_TOKENS = "max_tokens"
    ENVIRONMENT_ERROR = "environment_error"
    TOOL_ERROR = "tool_error"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class RolloutProofKind(StrEnum):
    EXECUTION_PROOF = "execution_proof"
    VALIDATOR_BUNDLE = "validator_bundle"
    COMMITMENT = "commitment"


TERMINATION_REASONS = tuple(RolloutTerminationReason)
PROOF_KINDS = tuple(RolloutProofKind)
"""Columns store the index into these; members are only ever added at the end."""


class RolloutProofReference(Record, frozen=True, kw_only=True):
    """Evidence about a rollout that lies elsewhere: its kind, its digest, and where to find it."""

    kind: RolloutProofKind
    digest: str
    reference: str

    def __post_init__(self) -> None:
        checked_type(self.kind, RolloutProofKind, f"proof {self.digest!r}", "kind")
        self._check_texts(f"proof {self.digest!r}", "digest", "reference")


class LogprobDistribution(StrEnum):
    RAW = "raw"
    """Of the model's own distribution, before temperature and truncation."""
    PROCESSED = "processed"
    """Of the distribution that was sampled from."""


class LogprobSemantics(Record, frozen=True, kw_only=True):
    """What the log-prob column means: which distribution, and how it was made."""

    distribution: LogprobDistribution
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    engine: str | None = None
    """Name and version of what computed the log-probs."""
    dtype: str | None = None

    def __post_init__(self) -> None:
        record = "logprob_semantics"
        checked_type(self.distribution, LogprobDistribution, record, "distribution")
        self._check_texts(record, optional=("engine", "dtype"))
        self._check_ints(record, optional=("top_k",), highest=U32_MAX)
        for field in ("temperature", "top_p"):
            value = getattr(self, field)
            if value is None:
                continue
            checked_type(value, (float, int), record, field)
            if not 0 <= value < float("inf"):
                raise InvalidNumber(
                    record=record, field=field, value=repr(value), expected="a finite number >= 0"
                )

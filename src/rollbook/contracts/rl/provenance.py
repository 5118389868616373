"""The origin of a rollout and how it ended: environment, termination reason, proofs, meaning of its log-probs."""

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
"""Columns store the index into these tuples, so new members are added at the end only."""


class RolloutProofReference(Record, frozen=True, kw_only=True):
    """Evidence about a rollout that is stored elsewhere: its kind, its digest and its address."""

    kind: RolloutProofKind
    digest: str
    reference: str

    def __post_init__(self) -> None:
        checked_type(self.kind, RolloutProofKind, f"proof {self.digest!r}", "kind")
        self._check_texts(f"proof {self.digest!r}", "digest", "reference")


class LogprobDistribution(StrEnum):
    RAW = "raw"
    """Log-probs of the distribution of the model, before temperature and truncation."""
    PROCESSED = "processed"
    """Log-probs of the distribution that the token was sampled from."""


class LogprobSemantics(Record, frozen=True, kw_only=True):
    """What the log-prob column means: the distribution and how it was computed."""

    distribution: LogprobDistribution
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    engine: str | None = None
    """Name and version of the program that computed the log-probs."""
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

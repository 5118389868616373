"""Every exception that a caller of Rollbook can meet.

    RollbookError
    ├── ConfigurationError            a wrong option or a missing extra: correct the call
    ├── StorageError                  the bytes on disk are not as expected
    │   ├── TargetExists              the target exists, and replacing it was not asked for
    │   ├── NotATable                 the file is not a saved rollout table
    │   ├── UnsupportedVersion        this release does not read the format of the file
    │   ├── TruncatedFile             the file is shorter or longer than its header says
    │   ├── ChecksumMismatch          stored bytes changed after they were written
    │   ├── UnknownFormat             the file is not a recording of the format that was named
    │   ├── DamagedRecording          a recording of another tool breaks the rules of its format
    │   ├── CountMismatch             a recording holds more or less than it declares
    │   ├── IncompatibleStores        the rows of two stores mean different things; they cannot be read as one
    │   ├── NotRawArray               the array is encoded and cannot be mapped: read it through zarr
    │   ├── RowOutOfRange             the row does not exist
    │   ├── NotASourceStore           the folder is not a finished source store
    │   ├── NotATrainingRun           the folder is not that of a finished training run
    │   ├── UnfinishedRun             a run that did not end has left finished rows: resume it, or start over
    │   ├── ShardDrift                the config or the source is not the one that the shard was planned with
    │   ├── LeaseLost                 another worker has taken over this work; this one must stop
    │   └── LeaseHeld                 another process is working on the file (a retry can help)
    ├── MalformedJson                 the JSON is not the expected record
    ├── TransportError                the server could not be reached (a retry can help)
    ├── APIError                      the server refused the request
    │   ├── AuthError                 401: the key is missing, wrong or revoked
    │   ├── NotFoundError             404: the record does not exist, or belongs to another organisation
    │   ├── ConflictError             409: the state of the record does not allow the change
    │   ├── ValidationError           400: the request is invalid
    │   ├── RateLimitError            429: too many requests (a retry can help, after `retry_after` seconds)
    │   └── ServerError               5xx: the server failed (a retry can help)
    ├── DatabaseUnavailable           the database is down, restarting or locked (a retry can help)
    ├── DatabaseFull                  the disk of the database is full
    ├── KeyRevoked                    the API key of a transaction is no longer valid
    ├── BlobError                     storing an artifact failed; the text never contains a server path or a secret
    │   ├── InvalidBlobKey            the text is not an object key
    │   ├── BlobNotFound              no object has this key
    │   ├── BlobExists                an object with this key exists and must not be replaced
    │   ├── BlobTooLarge              the object has more bytes than allowed; nothing was stored
    │   ├── UploadNotFound            the multipart upload was completed, aborted or never started
    │   ├── PartsMismatch             the listed parts are not the parts that were uploaded
    │   └── BlobStoreUnavailable      the disk is full, or S3 is down or refuses access (a retry can help)
    ├── PolicyFailed                  the policy of a replay raised an error, ended its process or took too long
    ├── GenerationFailed              an unexpected error at one source row, which it names
    ├── NoRollouts                    generation made no rollout; the error gives the reasons
    └── Refusal                       a record breaks a rule of the contracts
        ├── InvalidText, InvalidNumber, InvalidValue, AmbiguousId, EmptyId
        ├── PromptDiverged            an InvalidValue: the next prompt does not begin with the recorded tokens
        ├── NoSuchRow                 an InvalidNumber: the row number that was given is outside of the table
        ├── WrongColumnType, UnknownColumn, ColumnLengthMismatch, ColumnSetMismatch, InvalidOffsets
        ├── EmptyRolloutSamples, DuplicateProofDigest, DuplicateArtifactId
        ├── NonFiniteValue, PositiveLogProb, AllSamplesMasked
        ├── EmptyTrainerBatch, PolicyFamilyMismatch, DuplicateRolloutArtifact
        ├── ConflictingRevision, ConflictingProof, TargetOlderThanSource
        ├── DigestMismatch, InvalidProof, RolloutsNotInBatch
        ├── UnknownArtifact, UnknownBatch, UnknownRevision, LineageCycle
        ├── NotQuarantined, PayloadDropped, MissingColumn
        ├── IdempotencyConflict, EpisodeArchived, EpisodeOnHold, EpisodeInUse, QuotaExceeded, AlreadyTaken, LastOwner
        ├── InvalidMesh, InvalidTrajectory, InvalidBoxes, InvalidPoints, TargetInvalid
        └── SequenceOverBudget

Each class has a stable ``code``, the ids involved as attributes (``fields`` lists them), and ``retryable``, which says
whether the same call can succeed later. Errors are raised with keyword arguments and can be pickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import ClassVar

_LONGEST_SHOWN = 240


def _shown(value: object) -> object:
    """Shorten a value for a message, so that a very long id does not flood a terminal."""
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[:_LONGEST_SHOWN]}… ({len(value)} characters)"
    return value


def near_names(wrong: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: names that look like it, or all known names."""
    names = list(known)
    near = get_close_matches(wrong, names, n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "there are none"


def _rebuild(cls: type[RollbookError], values: dict[str, object]) -> RollbookError:
    return cls(**values)


@dataclass(eq=False, kw_only=True)
class RollbookError(Exception):
    """Base class of all errors of Rollbook."""

    code: ClassVar[str] = "rollbook_error"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = "an error occurred"

    @property
    def fields(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def as_dict(self) -> dict[str, object]:
        """The text, the code and every id involved, for `--json` and for HTTP answers."""
        return {"error": str(self), "code": self.code, **self.fields}

    def __str__(self) -> str:
        return self.template.format(**{k: _shown(v) for k, v in self.fields.items()})

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _rebuild, (type(self), self.fields)


@dataclass(eq=False, kw_only=True)
class ConfigurationError(RollbookError, ValueError):
    code: ClassVar[str] = "configuration"
    template: ClassVar[str] = "{message}"
    message: str


# --------------------------------------------------------------------------------------- storage


@dataclass(eq=False, kw_only=True)
class StorageError(RollbookError):
    code: ClassVar[str] = "storage"
    template: ClassVar[str] = "{path}: {detail}"
    path: str
    detail: str


@dataclass(eq=False, kw_only=True)
class TargetExists(StorageError, FileExistsError):
    code: ClassVar[str] = "target_exists"
    template: ClassVar[str] = "{path} already exists; {detail}"


@dataclass(eq=False, kw_only=True)
class NotATable(StorageError, ValueError):
    code: ClassVar[str] = "not_a_table"
    template: ClassVar[str] = "{path} is not a saved rollout table: {detail}"


def _numbers(version: object) -> list[int]:
    """The numbers of a version such as 1, "1.0", "1.0-core" or "rollout-collection-v1". Of anything else, none."""
    found = re.match(r"(?:[a-z-]+-v)?(\d+(?:\.\d+)*)", str(version))
    return [int(each) for each in found[1].split(".")] if found else []


@dataclass(eq=False, kw_only=True)
class UnsupportedVersion(StorageError, ValueError):
    code: ClassVar[str] = "unsupported_version"
    template: ClassVar[str] = "{path} cannot be read by this release: {detail}"

    @classmethod
    def of(
        cls, path: object, found: object, current: object, older: str = ""
    ) -> UnsupportedVersion:
        """`older` says what to do with an older version. A newer one needs a later release."""
        advice = older
        if _numbers(found) > _numbers(current):
            advice = "it needs a later release of rollbook: pip install --upgrade rollbook"
        detail = f"its version is {found!r}, this release reads {current!r}"
        return cls(path=str(path), detail=f"{detail}; {advice}" if advice else detail)


@dataclass(eq=False, kw_only=True)
class TruncatedFile(StorageError, ValueError):
    code: ClassVar[str] = "truncated_file"
    template: ClassVar[str] = "{path} is incomplete: {detail}"


@dataclass(eq=False, kw_only=True)
class ChecksumMismatch(StorageError, ValueError):
    code: ClassVar[str] = "checksum_mismatch"
    template: ClassVar[str] = "{path} was changed after it was written: {detail}"


@dataclass(eq=False, kw_only=True)
class UnknownFormat(StorageError, ValueError):
    code: ClassVar[str] = "unknown_format"
    template: ClassVar[str] = "{path} is not a recording of the expected format: {detail}"


@dataclass(eq=False, kw_only=True)
class DamagedRecording(StorageError, ValueError):
    code: ClassVar[str] = "damaged_recording"
    template: ClassVar[str] = "{path} is damaged: {detail}"


@dataclass(eq=False, kw_only=True)
class CountMismatch(StorageError, ValueError):
    code: ClassVar[str] = "count_mismatch"
    template: ClassVar[str] = (
        "{path} declares {declared} {what}, but {read} were read; nothing was imported of it ({detail})"
    )
    what: str
    declared: int
    read: int


@dataclass(eq=False, kw_only=True)
class NotRawArray(StorageError, ValueError):
    code: ClassVar[str] = "not_raw_array"
    template: ClassVar[str] = "{path} cannot be mapped: {detail}"


@dataclass(eq=False, kw_only=True)
class RowOutOfRange(StorageError, IndexError):
    code: ClassVar[str] = "row_out_of_range"


@dataclass(eq=False, kw_only=True)
class NotASourceStore(StorageError, ValueError):
    code: ClassVar[str] = "not_a_source_store"
    template: ClassVar[str] = "{path} is not a source store: {detail}"


@dataclass(eq=False, kw_only=True)
class NotATrainingRun(StorageError, ValueError):
    code: ClassVar[str] = "not_a_training_run"
    template: ClassVar[str] = "{path} is not a finished training run: {detail}"


@dataclass(eq=False, kw_only=True)
class IncompatibleStores(StorageError, ValueError):
    code: ClassVar[str] = "incompatible_stores"
    template: ClassVar[str] = "{path} and {other} cannot be read as one: {detail}"
    other: str


@dataclass(eq=False, kw_only=True)
class UnfinishedRun(StorageError):
    code: ClassVar[str] = "unfinished_run"
    template: ClassVar[str] = "{path} holds {detail}"


@dataclass(eq=False, kw_only=True)
class ShardDrift(StorageError):
    code: ClassVar[str] = "shard_drift"


@dataclass(eq=False, kw_only=True)
class LeaseLost(StorageError):
    code: ClassVar[str] = "lease_lost"


@dataclass(eq=False, kw_only=True)
class LeaseHeld(StorageError):
    code: ClassVar[str] = "lease_held"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = "{path} is held by {owner}; {detail}"
    owner: str


@dataclass(eq=False, kw_only=True)
class MalformedJson(RollbookError, ValueError):
    """`where` is a JSON path (`$.samples[3].token_id`); `record_id` the artifact or batch it lies in, when known."""

    code: ClassVar[str] = "malformed_json"
    source: str
    record_id: str | None
    where: str
    detail: str

    def __str__(self) -> str:
        record = "" if self.record_id is None else f", record {_shown(self.record_id)!r},"
        return f"{self.source}{record} at {self.where}: {self.detail}"


# ------------------------------------------------------------------------------------------ server


@dataclass(eq=False, kw_only=True)
class TransportError(RollbookError, ConnectionError):
    code: ClassVar[str] = "transport"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = "{message}"
    message: str


@dataclass(eq=False, kw_only=True)
class APIError(RollbookError):
    """`response_body` is the answer, decoded if it is JSON; `request_id` identifies the request in the server's log."""

    code: ClassVar[str] = "api"
    template: ClassVar[str] = "{message} (HTTP {status_code})"
    status_code: int
    message: str
    response_body: object = None
    request_id: str | None = None


@dataclass(eq=False, kw_only=True)
class AuthError(APIError):
    code: ClassVar[str] = "auth"


@dataclass(eq=False, kw_only=True)
class NotFoundError(APIError, LookupError):
    code: ClassVar[str] = "not_found"


@dataclass(eq=False, kw_only=True)
class ConflictError(APIError):
    code: ClassVar[str] = "conflict"


@dataclass(eq=False, kw_only=True)
class ValidationError(APIError, ValueError):
    code: ClassVar[str] = "validation"


@dataclass(eq=False, kw_only=True)
class RateLimitError(APIError):
    code: ClassVar[str] = "rate_limit"
    retryable: ClassVar[bool] = True
    retry_after: int | None = None


@dataclass(eq=False, kw_only=True)
class ServerError(APIError):
    code: ClassVar[str] = "server"
    retryable: ClassVar[bool] = True


# ---------------------------------------------------------------------------------------- database


@dataclass(eq=False, kw_only=True)
class DatabaseUnavailable(RollbookError):
    """The database is down, restarting, locked, too slow or closing. The same request may be sent again."""

    code: ClassVar[str] = "database_unavailable"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = "the database is not available: {detail}; try again shortly"
    detail: str


@dataclass(eq=False, kw_only=True)
class DatabaseFull(RollbookError):
    code: ClassVar[str] = "database_full"
    template: ClassVar[str] = (
        "the database has no room left on its disk; nothing was changed, make room and try again"
    )


@dataclass(eq=False, kw_only=True)
class KeyRevoked(RollbookError):
    code: ClassVar[str] = "key_revoked"
    template: ClassVar[str] = "the API key {key_id!r} was revoked or deleted"
    key_id: str


@dataclass(eq=False, kw_only=True)
class BlobError(RollbookError):
    code: ClassVar[str] = "blob_error"


@dataclass(eq=False, kw_only=True)
class InvalidBlobKey(BlobError, ValueError):
    code: ClassVar[str] = "invalid_blob_key"
    template: ClassVar[str] = "{detail}"
    detail: str


@dataclass(eq=False, kw_only=True)
class BlobNotFound(BlobError, LookupError):
    code: ClassVar[str] = "blob_not_found"
    template: ClassVar[str] = "there is nothing at {key!r}; upload it first"
    key: str


@dataclass(eq=False, kw_only=True)
class BlobExists(BlobError):
    code: ClassVar[str] = "blob_exists"
    template: ClassVar[str] = "{key!r} already exists and must not be replaced"
    key: str


@dataclass(eq=False, kw_only=True)
class BlobTooLarge(BlobError):
    code: ClassVar[str] = "blob_too_large"
    template: ClassVar[str] = "{key!r} may have {most} bytes and has more; nothing was kept"
    key: str
    most: int


@dataclass(eq=False, kw_only=True)
class UploadNotFound(BlobError, LookupError):
    code: ClassVar[str] = "upload_not_found"
    template: ClassVar[str] = (
        "there is no such upload of {key!r}: it was completed or aborted, or never started; start a new one"
    )
    key: str


@dataclass(eq=False, kw_only=True)
class PartsMismatch(BlobError, ValueError):
    code: ClassVar[str] = "parts_mismatch"
    template: ClassVar[str] = "{detail}"
    detail: str


@dataclass(eq=False, kw_only=True)
class BlobStoreUnavailable(BlobError):
    code: ClassVar[str] = "blob_store_unavailable"
    retryable: ClassVar[bool] = True
    template: ClassVar[str] = "{detail}"
    detail: str
    is_refusal: bool = False
    """The store answers and refuses us: its bucket, credentials or region are wrong."""


# ----------------------------------------------------------------------------------------- replay


@dataclass(eq=False, kw_only=True)
class PolicyFailed(RollbookError, RuntimeError):
    """Loses the pair that was being replayed, and nothing else."""

    code: ClassVar[str] = "policy_failed"
    template: ClassVar[str] = "{kind}: {message}"
    kind: str
    """The class of the policy's error, by name."""
    message: str
    traceback: str = ""


# ------------------------------------------------------------------------------------- generation


@dataclass(eq=False, kw_only=True)
class GenerationFailed(RollbookError, RuntimeError):
    """A bug in Rollbook or in a policy. Bad data does not raise it: such rows are counted and skipped."""

    code: ClassVar[str] = "generation_failed"
    template: ClassVar[str] = "source row {sample_key!r} (index {sample_index}): {detail}"
    sample_index: int
    sample_key: str
    detail: str


@dataclass(eq=False, kw_only=True)
class NoRollouts(RollbookError, ValueError):
    code: ClassVar[str] = "no_rollouts"
    template: ClassVar[str] = (
        "{samples_seen} source rows gave no rollout, so no store was written; skipped: {reasons}"
    )
    samples_seen: int
    reasons: str


# --------------------------------------------------------------------------------------- refusals


@dataclass(eq=False, kw_only=True)
class Refusal(RollbookError, ValueError):
    """A record that breaks a rule of the contracts. The same record is refused again every time."""

    code: ClassVar[str] = "refusal"


@dataclass(eq=False, kw_only=True)
class InvalidText(Refusal):
    code: ClassVar[str] = "invalid_text"
    template: ClassVar[str] = "{record}: {field} {detail}"
    record: str
    field: str
    detail: str


@dataclass(eq=False, kw_only=True)
class InvalidNumber(Refusal):
    code: ClassVar[str] = "invalid_number"
    template: ClassVar[str] = "{record}: {field} is {value}, expected {expected}"
    record: str
    field: str
    value: str
    expected: str


@dataclass(eq=False, kw_only=True)
class NoSuchRow(InvalidNumber, IndexError):
    code: ClassVar[str] = "no_such_row"


@dataclass(eq=False, kw_only=True)
class InvalidValue(Refusal):
    code: ClassVar[str] = "invalid_value"
    template: ClassVar[str] = "{record}: {field} is {value}, expected {expected}"
    record: str
    field: str
    value: str
    expected: str


@dataclass(eq=False, kw_only=True)
class PromptDiverged(InvalidValue):
    code: ClassVar[str] = "prompt_diverged"
    position: int
    """The first token that differs."""


@dataclass(eq=False, kw_only=True)
class AmbiguousId(Refusal):
    code: ClassVar[str] = "ambiguous_id"
    template: ClassVar[str] = (
        "{record}: {field} {value!r} contains {character!r}, so that two different records could share one v1 digest; "
        "rename it, or read foreign records with the compatible rules"
    )
    record: str
    field: str
    value: str
    character: str


@dataclass(eq=False, kw_only=True)
class EmptyId(Refusal):
    code: ClassVar[str] = "empty_id"
    template: ClassVar[str] = "{record}: {field} is empty; an id must have at least one character"
    record: str
    field: str


@dataclass(eq=False, kw_only=True)
class WrongColumnType(Refusal):
    code: ClassVar[str] = "wrong_column_type"
    template: ClassVar[str] = "column {column!r} holds {actual}, expected {expected}"
    column: str
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class UnknownColumn(Refusal):
    code: ClassVar[str] = "unknown_column"
    template: ClassVar[str] = "there is no sample column {column!r}; known: {known}"
    column: str
    known: str


@dataclass(eq=False, kw_only=True)
class ColumnLengthMismatch(Refusal):
    """`artifact_id` is the first artifact whose rows are missing or left over, when one can be named."""

    code: ClassVar[str] = "column_length_mismatch"
    template: ClassVar[str] = (
        "column {column!r} has {actual} rows, expected {expected} (first affected artifact: {artifact_id!r})"
    )
    artifact_id: str | None
    column: str
    expected: int
    actual: int


@dataclass(eq=False, kw_only=True)
class ColumnSetMismatch(Refusal):
    code: ClassVar[str] = "column_set_mismatch"
    template: ClassVar[str] = (
        "artifact {artifact_id!r} has sample columns [{actual}] where the table has [{expected}]; "
        "a missing column is never filled in"
    )
    artifact_id: str
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class InvalidOffsets(Refusal):
    code: ClassVar[str] = "invalid_offsets"
    template: ClassVar[str] = "{column}: {detail}"
    column: str
    detail: str


@dataclass(eq=False, kw_only=True)
class EmptyRolloutSamples(Refusal):
    code: ClassVar[str] = "empty_rollout_samples"
    template: ClassVar[str] = "rollout artifact {artifact_id!r} has no samples"
    artifact_id: str


@dataclass(eq=False, kw_only=True)
class DuplicateProofDigest(Refusal):
    code: ClassVar[str] = "duplicate_proof_digest"
    template: ClassVar[str] = "rollout artifact {artifact_id!r} names proof {digest!r} twice"
    artifact_id: str
    digest: str


@dataclass(eq=False, kw_only=True)
class DuplicateArtifactId(Refusal):
    code: ClassVar[str] = "duplicate_artifact_id"
    template: ClassVar[str] = (
        "artifact id {artifact_id!r} appears twice in one table, at rows {first_row} and {row}"
    )
    artifact_id: str
    first_row: int
    row: int


@dataclass(eq=False, kw_only=True)
class NonFiniteValue(Refusal):
    code: ClassVar[str] = "non_finite_value"
    template: ClassVar[str] = "artifact {artifact_id!r}: {column}[{sample_index}] is {value}"
    artifact_id: str
    column: str
    sample_index: int
    value: str


@dataclass(eq=False, kw_only=True)
class PositiveLogProb(Refusal):
    code: ClassVar[str] = "positive_logprob"
    template: ClassVar[str] = (
        "artifact {artifact_id!r}: {column}[{sample_index}] is {value}; a log-probability is at most 0"
    )
    artifact_id: str
    column: str
    sample_index: int
    value: float


@dataclass(eq=False, kw_only=True)
class AllSamplesMasked(Refusal):
    code: ClassVar[str] = "all_samples_masked"
    template: ClassVar[str] = (
        "artifact {artifact_id!r}: every sample is masked out of the loss, so nothing can be learned from it"
    )
    artifact_id: str


@dataclass(eq=False, kw_only=True)
class EmptyTrainerBatch(Refusal):
    code: ClassVar[str] = "empty_trainer_batch"
    template: ClassVar[str] = "trainer batch {batch_id!r} has no rollouts"
    batch_id: str


@dataclass(eq=False, kw_only=True)
class PolicyFamilyMismatch(Refusal):
    code: ClassVar[str] = "policy_family_mismatch"
    template: ClassVar[str] = (
        "{batch_id!r}: artifact {artifact_id!r} is of policy family {actual_policy_family!r}, "
        "expected {expected_policy_family!r}"
    )
    batch_id: str
    artifact_id: str
    expected_policy_family: str
    actual_policy_family: str


@dataclass(eq=False, kw_only=True)
class DuplicateRolloutArtifact(Refusal):
    code: ClassVar[str] = "duplicate_rollout_artifact"
    template: ClassVar[str] = "{batch_id!r} was given artifact {artifact_id!r} twice"
    batch_id: str
    artifact_id: str


@dataclass(eq=False, kw_only=True)
class ConflictingRevision(Refusal):
    code: ClassVar[str] = "conflicting_revision"
    template: ClassVar[str] = (
        "{record}: revision {revision_id!r} is described twice with different {field}: {first!r} and {second!r}"
    )
    record: str
    artifact_id: str | None
    revision_id: str
    field: str
    first: str
    second: str


@dataclass(eq=False, kw_only=True)
class ConflictingProof(Refusal):
    code: ClassVar[str] = "conflicting_proof"
    template: ClassVar[str] = (
        "{batch_id!r}: artifact {artifact_id!r} describes proof {digest!r} as {second!r}, "
        "an earlier artifact as {first!r}"
    )
    batch_id: str
    artifact_id: str
    digest: str
    first: str
    second: str


@dataclass(eq=False, kw_only=True)
class TargetOlderThanSource(Refusal):
    code: ClassVar[str] = "target_older_than_source"
    template: ClassVar[str] = (
        "{batch_id!r}: target revision {target_revision_id!r} ({measure} {target_value}) is older than "
        "{source_revision_id!r} ({source_value}), which made artifact {artifact_id!r}"
    )
    batch_id: str
    artifact_id: str
    target_revision_id: str
    source_revision_id: str
    measure: str
    target_value: int
    source_value: int


@dataclass(eq=False, kw_only=True)
class DigestMismatch(Refusal):
    code: ClassVar[str] = "digest_mismatch"
    template: ClassVar[str] = (
        "{record_id!r}: {field} is recorded as {recorded}, its content gives {computed}"
    )
    record_id: str
    field: str
    recorded: str
    computed: str


@dataclass(eq=False, kw_only=True)
class InvalidProof(Refusal):
    code: ClassVar[str] = "invalid_proof"
    template: ClassVar[str] = "the inclusion proof does not hold: {detail}"
    detail: str


@dataclass(eq=False, kw_only=True)
class RolloutsNotInBatch(Refusal):
    code: ClassVar[str] = "rollouts_not_in_batch"
    template: ClassVar[str] = (
        "the table does not hold what batch {batch_id!r} was assembled from: {detail}"
    )
    batch_id: str
    detail: str


@dataclass(eq=False, kw_only=True)
class UnknownArtifact(Refusal, KeyError):
    code: ClassVar[str] = "unknown_artifact"
    template: ClassVar[str] = "no artifact {artifact_id!r} in {where}"
    artifact_id: str
    where: str


@dataclass(eq=False, kw_only=True)
class UnknownBatch(Refusal, KeyError):
    code: ClassVar[str] = "unknown_batch"
    template: ClassVar[str] = "no batch {batch_id!r} in the lineage graph"
    batch_id: str


@dataclass(eq=False, kw_only=True)
class UnknownRevision(Refusal, KeyError):
    code: ClassVar[str] = "unknown_revision"
    template: ClassVar[str] = (
        "no revision {revision_id!r} of family {policy_family!r} in the lineage graph"
    )
    policy_family: str
    revision_id: str


@dataclass(eq=False, kw_only=True)
class LineageCycle(Refusal):
    code: ClassVar[str] = "lineage_cycle"
    template: ClassVar[str] = (
        "revision {revision_id!r} of {policy_family!r} would become its own ancestor: {path}"
    )
    policy_family: str
    revision_id: str
    path: str


@dataclass(eq=False, kw_only=True)
class NotQuarantined(Refusal):
    code: ClassVar[str] = "not_quarantined"
    template: ClassVar[str] = (
        "artifact {artifact_id!r} is {outcome}; only a quarantined artifact can be released"
    )
    artifact_id: str
    outcome: str


@dataclass(eq=False, kw_only=True)
class PayloadDropped(Refusal):
    code: ClassVar[str] = "payload_dropped"
    template: ClassVar[str] = (
        "the samples of discarded artifact {artifact_id!r} were dropped: the window keeps receipts only"
    )
    artifact_id: str


@dataclass(eq=False, kw_only=True)
class MissingColumn(Refusal):
    code: ClassVar[str] = "missing_column"
    template: ClassVar[str] = (
        "{purpose} needs the sample column {column!r}, which this table does not have"
    )
    column: str
    purpose: str


@dataclass(eq=False, kw_only=True)
class SequenceOverBudget(Refusal):
    code: ClassVar[str] = "sequence_over_budget"
    template: ClassVar[str] = (
        "artifact {artifact_id!r} is {length} tokens long, the budget of one bin is {token_budget}"
    )
    artifact_id: str
    length: int
    token_budget: int


@dataclass(eq=False, kw_only=True)
class InvalidMesh(Refusal):
    code: ClassVar[str] = "invalid_mesh"
    template: ClassVar[str] = "{record}: {detail}"
    record: str
    detail: str


@dataclass(eq=False, kw_only=True)
class InvalidTrajectory(Refusal):
    code: ClassVar[str] = "invalid_trajectory"
    template: ClassVar[str] = "{record}: {detail}"
    record: str
    detail: str


@dataclass(eq=False, kw_only=True)
class InvalidBoxes(Refusal):
    code: ClassVar[str] = "invalid_boxes"
    template: ClassVar[str] = "{record}: {detail}"
    record: str
    detail: str


@dataclass(eq=False, kw_only=True)
class InvalidPoints(Refusal):
    code: ClassVar[str] = "invalid_points"
    template: ClassVar[str] = "{record}: {detail}"
    record: str
    detail: str


@dataclass(eq=False, kw_only=True)
class TargetInvalid(Refusal):
    """`reason` is a name of INVALID_REASON_CODES. Generation counts it and continues with the next target."""

    code: ClassVar[str] = "target_invalid"
    template: ClassVar[str] = "target {target_id!r}: {reason}: {detail}"
    target_id: str
    reason: str
    detail: str


@dataclass(eq=False, kw_only=True)
class IdempotencyConflict(Refusal):
    code: ClassVar[str] = "idempotency_conflict"
    template: ClassVar[str] = "idempotency key {key!r}: {detail}"
    key: str
    detail: str


@dataclass(eq=False, kw_only=True)
class EpisodeArchived(Refusal):
    code: ClassVar[str] = "episode_archived"
    template: ClassVar[str] = (
        "episode {episode_id!r} is archived and cannot be changed; restore it first"
    )
    episode_id: str


@dataclass(eq=False, kw_only=True)
class EpisodeOnHold(Refusal):
    code: ClassVar[str] = "episode_on_hold"
    template: ClassVar[str] = (
        "episode {episode_id!r} is under legal hold and cannot be deleted; an admin must lift the hold first"
    )
    episode_id: str


@dataclass(eq=False, kw_only=True)
class EpisodeInUse(Refusal):
    code: ClassVar[str] = "episode_in_use"
    template: ClassVar[str] = (
        "episode {episode_id!r} is a baseline of the eval run {eval_run_id!r}, which is open, and cannot be deleted; "
        "complete, cancel or delete the run first"
    )
    episode_id: str
    eval_run_id: str


@dataclass(eq=False, kw_only=True)
class QuotaExceeded(Refusal):
    code: ClassVar[str] = "quota_exceeded"
    template: ClassVar[str] = (
        "this organisation may keep {limit} {what} and would have {wanted}; "
        "delete some episodes, or ask whoever runs the server for more"
    )
    what: str
    limit: int
    wanted: int


@dataclass(eq=False, kw_only=True)
class AlreadyTaken(Refusal):
    code: ClassVar[str] = "already_taken"
    template: ClassVar[str] = "{what} {value!r} is taken; choose another"
    what: str
    value: str


@dataclass(eq=False, kw_only=True)
class LastOwner(Refusal):
    code: ClassVar[str] = "last_owner"
    template: ClassVar[str] = (
        "{user_id!r} is the only owner of this organisation; make someone else an owner first"
    )
    user_id: str

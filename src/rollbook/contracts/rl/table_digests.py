"""The two digests of every rollout.

`artifact_digest` is the v1 recipe, byte-exact for interchange: text joined by `|`, samples as text and raw floats.
`content_digest` is our v2 recipe: canonical and length-prefixed, over every field and the raw bytes of every column.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.record import Record
from rollbook.contracts.rl import sample_payload
from rollbook.contracts.rl.columns import TableColumns
from rollbook.contracts.rl.provenance import PROOF_KINDS, TERMINATION_REASONS
from rollbook.contracts.rl.sample import SAMPLE_DTYPES
from rollbook.digest import canonical, canonical_count, canonical_text, merkle_root, sha256

Digests = NDArray[np.uint8]
"""One row of 32 bytes per rollout."""

TABLE_DOMAIN = "rollbook.rollout_table.v2"
_U64 = struct.Struct("<Q")
_CONTENT_START = canonical("rollbook.rollout_artifact.v2") + canonical_count(b"l", 12)
_NOTHING = canonical(None)
_V1_TERMINATIONS = [f"|termination|{reason}".encode() for reason in TERMINATION_REASONS]
_V2_TERMINATIONS = [canonical(str(reason)) for reason in TERMINATION_REASONS]
_V1_KINDS = [f"|proof|{kind}|".encode() for kind in PROOF_KINDS]
_V2_KINDS = [canonical(str(kind)) for kind in PROOF_KINDS]
_TITLES = {
    name: canonical(name) + canonical(dtype.str) + b"b" for name, dtype in SAMPLE_DTYPES.items()
}


@lru_cache(maxsize=4096)
def _canonical_record(record: Record) -> bytes:
    """Many rollouts share their environment and revision, so each of these is encoded once."""
    return canonical(record.plain())


def _stacked(digests: Sequence[bytes]) -> Digests:
    return np.ndarray((len(digests), 32), np.uint8, b"".join(digests))


def digest_list(digests: Digests) -> list[bytes]:
    """The digest of each rollout as bytes."""
    raw = digests.tobytes()
    return [raw[start : start + 32] for start in range(0, len(raw), 32)]


# ---------------------------------------------------------------------------------------------- v1


def artifact_digests(columns: TableColumns) -> Digests:
    """v1 digest of every row."""
    few = columns.sample_offsets[-1] <= sample_payload.FEW
    return _stacked((_v1_of_few if few else _v1_of_many)(columns))


def _v1_of_few(columns: TableColumns) -> list[bytes]:
    samples = sample_payload.sample_rows(columns.samples)
    return [
        sha256(b"".join((head, *samples[a:b], proofs))).digest()
        for head, (a, b), proofs in zip(
            _v1_headers(columns),
            pairwise(columns.sample_offsets.tolist()),
            _v1_proofs(columns),
            strict=True,
        )
    ]


def _v1_of_many(columns: TableColumns) -> list[bytes]:
    """The sample bytes are laid out for many rows at once, then hashed row by row."""
    total = int(columns.sample_offsets[-1])
    finished: list[bytes] = []
    tails = _v1_proofs(columns)
    heads = _v1_headers(columns)
    hasher = sha256(next(heads, b""))
    for start, end in sample_payload.chunks(total):
        payload, begins = sample_payload.sample_payload(columns.samples, start, end)
        view = memoryview(payload)
        first = len(finished)
        last = int(np.searchsorted(columns.sample_offsets, end, side="left"))
        bounds = columns.sample_offsets[first : last + 1]
        places = begins[np.clip(bounds, start, end) - start].tolist()
        ends_here = (bounds[1:] <= end).tolist()
        for row, (a, b) in enumerate(pairwise(places), first):
            hasher.update(view[a:b])
            if ends_here[row - first]:
                hasher.update(tails[row])
                finished.append(hasher.digest())
                hasher = sha256(next(heads, b""))
    return finished


def _v1_headers(columns: TableColumns) -> Iterator[bytes]:
    environments = [b"|env|" + key.storage_key.encode() + b"|task|" for key in columns.environments]
    revisions = [
        (
            f"|policy_family|{r.policy_family}|revision|{r.revision_id}"
            f"|policy_digest|{r.policy_digest}|created_at_ms|"
        ).encode()
        for r in columns.revisions
    ]
    for artifact_id, worker_id, task_id, environment, revision, created, ending in zip(
        columns.artifact_id.all_utf8(),
        columns.worker_id.all_utf8(),
        columns.task_id.all_utf8(),
        columns.environment_index.tolist(),
        columns.revision_index.tolist(),
        columns.created_at_ms.tolist(),
        columns.termination.tolist(),
        strict=True,
    ):
        yield b"psionic_rollout_artifact|%b|worker|%b%b%b%b%d%b" % (
            artifact_id,
            worker_id,
            environments[environment],
            task_id,
            revisions[revision],
            created,
            _V1_TERMINATIONS[ending],
        )


def _v1_proofs(columns: TableColumns) -> list[bytes]:
    if not len(columns.proof_kind):
        return [b""] * len(columns)
    proofs = [
        _V1_KINDS[kind] + digest + b"|" + reference
        for kind, digest, reference in zip(
            columns.proof_kind.tolist(),
            columns.proof_digest.all_utf8(),
            columns.proof_reference.all_utf8(),
            strict=True,
        )
    ]
    bounds = columns.proof_offsets.tolist()
    return [b"".join(proofs[a:b]) for a, b in pairwise(bounds)]


# ---------------------------------------------------------------------------------------------- v2


def content_digests(columns: TableColumns) -> Digests:
    """v2 digest of every row: SHA-256 over a header and the raw bytes of its columns."""
    samples = [
        (columns.samples[name].data, title, SAMPLE_DTYPES[name].itemsize)
        for name, title in _TITLES.items()
        if name in columns.samples
    ]
    bounds = columns.sample_offsets.tolist()
    digests = []
    for header, (start, end) in zip(content_headers(columns), pairwise(bounds), strict=True):
        hasher = sha256(header)
        for column, title, width in samples:
            hasher.update(title + _U64.pack((end - start) * width))
            hasher.update(column[start:end])
        digests.append(hasher.digest())
    return _stacked(digests)


def row_content_digest(columns: TableColumns, row: int) -> bytes:
    """v2 digest of one row, without reading the others."""
    return bytes(content_digests(columns.take(np.array([row], np.int64)))[0])


def content_headers(columns: TableColumns) -> Iterator[bytes]:
    """For each row the canonical bytes of the domain, of every field except the samples, and the number of columns."""
    environments = [_canonical_record(key) for key in columns.environments]
    revisions = [_canonical_record(revision) for revision in columns.revisions]
    # the extra last entry serves code -1, which stands for None
    groups = [*map(canonical, columns.groups), _NOTHING]
    semantics = [*map(_canonical_record, columns.semantics), _NOTHING]
    columns_follow = canonical_count(b"l", len(columns.samples))
    for (
        artifact_id,
        worker_id,
        task_id,
        environment,
        revision,
        ending,
        created,
        group,
        attempt,
        meaning,
        proofs,
        prompt,
    ) in zip(
        columns.artifact_id.all_utf8(),
        columns.worker_id.all_utf8(),
        columns.task_id.all_utf8(),
        columns.environment_index.tolist(),
        columns.revision_index.tolist(),
        columns.termination.tolist(),
        columns.created_at_ms.tolist(),
        columns.group_index.tolist(),
        columns.attempt.tolist(),
        columns.semantics_index.tolist(),
        _canonical_proofs(columns),
        _canonical_prompts(columns),
        strict=True,
    ):
        yield b"".join(
            (
                _CONTENT_START,
                canonical_text(artifact_id),
                canonical_text(worker_id),
                canonical_text(task_id),
                environments[environment],
                revisions[revision],
                _V2_TERMINATIONS[ending],
                canonical(created),
                groups[group],
                _NOTHING if attempt < 0 else canonical(attempt),
                semantics[meaning],
                proofs,
                prompt,
                columns_follow,
            )
        )


def _canonical_prompts(columns: TableColumns) -> Iterator[bytes]:
    tokens = columns.prompt_token_id
    if not len(tokens):
        return repeat(_NOTHING, len(columns))
    return (
        canonical(tokens[a:b].tobytes()) if b > a else _NOTHING
        for a, b in pairwise(columns.prompt_offsets.tolist())
    )


def _canonical_proofs(columns: TableColumns) -> Iterator[bytes]:
    if not len(columns.proof_kind):
        return repeat(canonical_count(b"l", 0), len(columns))
    proofs = [
        _V2_KINDS[kind] + canonical_text(digest) + canonical_text(reference)
        for kind, digest, reference in zip(
            columns.proof_kind.tolist(),
            columns.proof_digest.all_utf8(),
            columns.proof_reference.all_utf8(),
            strict=True,
        )
    ]
    return (
        canonical_count(b"l", 3 * (b - a)) + b"".join(proofs[a:b])
        for a, b in pairwise(columns.proof_offsets.tolist())
    )


def table_root(digests: Digests) -> str:
    """Merkle root over the content digests in row order."""
    return merkle_root(TABLE_DOMAIN, digest_list(digests))

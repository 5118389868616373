"""RolloutTable: many rollouts as columns, each with its digests; RolloutArtifact: a light view of one rollout.

`RolloutTable.from_columns` makes every table. It refuses what the contracts do not accept and computes both digests.
An artifact that stands alone is a table of one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.read_only import read_only
from rollbook.contracts.record import Record, check_digest, checked_list, checked_text, checked_type
from rollbook.contracts.rl.build import build_columns
from rollbook.contracts.rl.columns import (
    StoredSamples,
    TableColumns,
    concat_columns,
)
from rollbook.contracts.rl.padded import OneOrEach, flattened
from rollbook.contracts.rl.provenance import (
    PROOF_KINDS,
    TERMINATION_REASONS,
    EnvironmentPackageKey,
    LogprobSemantics,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.rules import COMPATIBLE, STRICT, ContractRules, checked_rules
from rollbook.contracts.rl.sample import (
    BASE_COLUMNS,
    Column,
    RolloutSample,
    columns_of,
    sample_count,
)
from rollbook.contracts.rl.sums import sequential_sums
from rollbook.contracts.rl.table_checks import table_problems
from rollbook.contracts.rl.table_digests import (
    TABLE_DOMAIN,
    Digests,
    artifact_digests,
    content_digests,
    digest_list,
    row_content_digest,
    table_root,
)
from rollbook.contracts.rl.text_column import Offsets
from rollbook.contracts.row_numbers import row_number, row_numbers
from rollbook.digest import merkle_path, merkle_root_from_path
from rollbook.errors import DigestMismatch, InvalidProof, Refusal, UnknownArtifact

_TABLE_NAME = "rollout table"


class InclusionProof(Record, frozen=True, kw_only=True):
    """Proof that one rollout is row `index` of the table with root `root`. Checking it needs no other rollout."""

    root: str
    index: int
    count: int
    content_digest: str
    path: tuple[str, ...]


def verify_proof(proof: InclusionProof, artifact: RolloutArtifact, root: str) -> None:
    """Hash `artifact` again and raise InvalidProof unless it is in the table whose root the caller trusts."""
    computed = row_content_digest(artifact.table.columns, artifact.row)
    if computed.hex() != proof.content_digest:
        raise InvalidProof(
            detail=f"artifact {artifact.artifact_id!r} has content digest {computed.hex()}, "
            f"the proof is for {proof.content_digest}"
        )
    try:
        path = [bytes.fromhex(each) for each in proof.path]
    except ValueError as error:
        raise InvalidProof(detail=f"its path is not hexadecimal ({error})") from error
    reached = merkle_root_from_path(TABLE_DOMAIN, computed, proof.index, proof.count, path)
    if reached is None:
        raise InvalidProof(
            detail=f"its path does not fit row {proof.index} of a table of {proof.count}"
        )
    if reached != root:
        raise InvalidProof(detail=f"it leads to root {reached}, not to {root}")


class SampleSequence(Sequence[RolloutSample]):
    """The samples of one rollout as objects, each made when it is read."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["token_id"])

    @overload
    def __getitem__(self, index: int) -> RolloutSample: ...
    @overload
    def __getitem__(self, index: slice) -> SampleSequence: ...
    def __getitem__(self, index: int | slice) -> RolloutSample | SampleSequence:
        if isinstance(index, slice):
            return SampleSequence({name: self._columns[name][index] for name in BASE_COLUMNS})
        return RolloutSample(**{name: self._columns[name][index].item() for name in BASE_COLUMNS})


class RolloutArtifact:
    """One rollout with its digests and its origin: what a trainer learns from. Immutable."""

    __slots__ = ("row", "table")

    table: RolloutTable
    row: int

    def __init__(
        self,
        *,
        artifact_id: str,
        worker_id: str,
        environment: EnvironmentPackageKey,
        task_id: str,
        source_policy_revision: PolicyRevision,
        samples: Mapping[str, ArrayLike] | Sequence[RolloutSample],
        termination_reason: RolloutTerminationReason,
        created_at_ms: int,
        proof_references: Sequence[RolloutProofReference] = (),
        prompt: ArrayLike | None = None,
        group_id: str | None = None,
        attempt: int | None = None,
        logprob_semantics: LogprobSemantics | None = None,
        rules: ContractRules = STRICT,
    ) -> None:
        columns = columns_of(samples)
        table = RolloutTable.from_columns(
            artifact_id=[artifact_id],
            worker_id=[worker_id],
            environment=[environment],
            task_id=[task_id],
            source_policy_revision=[source_policy_revision],
            offsets=[0, sample_count(columns)],
            samples=columns,
            termination_reason=[termination_reason],
            created_at_ms=[created_at_ms],
            proof_references=[proof_references],
            prompt=None if prompt is None else [prompt],
            group_id=None if group_id is None else [group_id],
            attempt=None if attempt is None else [attempt],
            logprob_semantics=None if logprob_semantics is None else [logprob_semantics],
            rules=rules,
        )
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "row", 0)

    @classmethod
    def view(cls, table: RolloutTable, row: int) -> RolloutArtifact:
        artifact = object.__new__(cls)
        object.__setattr__(artifact, "table", table)
        object.__setattr__(artifact, "row", row)
        return artifact

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a RolloutArtifact cannot be changed (tried to set {name!r})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RolloutArtifact) and self.content_digest == other.content_digest

    def __hash__(self) -> int:
        return hash(self.content_digest)

    def __repr__(self) -> str:
        return (
            f"RolloutArtifact({self.artifact_id!r}, {self.token_count} samples of "
            f"{self.source_policy_revision.revision_id!r}, {self.artifact_digest[:12]}…)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return RolloutTable.__getitem__, (self.table.take([self.row]), 0)

    @property
    def artifact_id(self) -> str:
        return self.table.columns.artifact_id[self.row]

    @property
    def worker_id(self) -> str:
        return self.table.columns.worker_id[self.row]

    @property
    def task_id(self) -> str:
        return self.table.columns.task_id[self.row]

    @property
    def environment(self) -> EnvironmentPackageKey:
        columns = self.table.columns
        return columns.environments[int(columns.environment_index[self.row])]

    @property
    def source_policy_revision(self) -> PolicyRevision:
        columns = self.table.columns
        return columns.revisions[int(columns.revision_index[self.row])]

    @property
    def termination_reason(self) -> RolloutTerminationReason:
        return TERMINATION_REASONS[int(self.table.columns.termination[self.row])]

    @property
    def created_at_ms(self) -> int:
        return int(self.table.columns.created_at_ms[self.row])

    @property
    def group_id(self) -> str | None:
        code = int(self.table.columns.group_index[self.row])
        return None if code < 0 else self.table.columns.groups[code]

    @property
    def attempt(self) -> int | None:
        attempt = int(self.table.columns.attempt[self.row])
        return None if attempt < 0 else attempt

    @property
    def logprob_semantics(self) -> LogprobSemantics | None:
        code = int(self.table.columns.semantics_index[self.row])
        return None if code < 0 else self.table.columns.semantics[code]

    @property
    def proof_references(self) -> tuple[RolloutProofReference, ...]:
        columns = self.table.columns
        bounds = columns.proof_offsets[self.row], columns.proof_offsets[self.row + 1]
        return tuple(
            RolloutProofReference(
                kind=PROOF_KINDS[columns.proof_kind[proof]],
                digest=columns.proof_digest[proof],
                reference=columns.proof_reference[proof],
            )
            for proof in range(*map(int, bounds))
        )

    @property
    def prompt(self) -> NDArray[np.uint32] | None:
        columns = self.table.columns
        a, b = columns.prompt_offsets[self.row], columns.prompt_offsets[self.row + 1]
        return columns.prompt_token_id[a:b] if b > a else None

    @property
    def columns(self) -> Mapping[str, Column]:
        """Its samples as columns. They are views; nothing is copied."""
        return self.table.row_samples(self.row)

    @property
    def samples(self) -> SampleSequence:
        return SampleSequence(self.columns)

    @property
    def token_count(self) -> int:
        offsets = self.table.columns.sample_offsets
        return int(offsets[self.row + 1] - offsets[self.row])

    @property
    def reward_sum(self) -> float:
        """Left-to-right binary32 sum."""
        return self._sum("reward")

    @property
    def advantage_sum(self) -> float:
        return self._sum("advantage")

    def _sum(self, name: str) -> float:
        values = self.columns[name]
        return float(sequential_sums(values, np.array([0, len(values)]))[0])

    @property
    def artifact_digest(self) -> str:
        return bytes(self.table.artifact_digests[self.row]).hex()

    @property
    def content_digest(self) -> str:
        return bytes(self.table.content_digests[self.row]).hex()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RolloutTable:
    """Many rollouts as columns, with the digests of each. Row i is `table[i]`; all arrays are read-only."""

    columns: TableColumns
    artifact_digests: Digests
    """v1 digests, one row of 32 bytes per rollout."""
    content_digests: Digests
    """v2 digests, in the same form."""
    _rows_by_id: dict[str, int] = field(default_factory=dict)
    _kept_rules: set[ContractRules] = field(default_factory=set)
    """Rules that every rollout was found to keep. A check is not repeated."""

    def __post_init__(self) -> None:
        for name in ("artifact_digests", "content_digests"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __reduce__(self) -> tuple[Any, ...]:
        """A table that lies in a file is opened again from it; other tables are pickled with their columns.

        Arrays come out of a pickle or a deep copy writable, so they are sealed again.
        """
        samples = self.columns.samples
        opened = samples.reopen() if isinstance(samples, StoredSamples) else None
        if opened is not None:
            return opened
        return _sealed_table, (self.columns, self.artifact_digests, self.content_digests)

    @classmethod
    def from_columns(cls, *, rules: ContractRules = STRICT, **columns: Any) -> RolloutTable:
        """Check the columns (`build_columns` lists their names) and compute both digests."""
        built = build_columns(**columns)
        for problem in table_problems(built, rules):
            raise problem
        return cls(built, artifact_digests(built), content_digests(built), _kept_rules={rules})

    @classmethod
    def report(cls, *, rules: ContractRules = STRICT, **columns: Any) -> list[Refusal]:
        """Every problem for which `from_columns` would raise. Columns that do not fit together are reported alone."""
        try:
            return table_problems(build_columns(**columns), rules)
        except Refusal as problem:
            return [problem]

    @classmethod
    def from_padded(
        cls,
        input_ids: ArrayLike,
        response_mask: ArrayLike,
        logprobs: ArrayLike,
        *,
        rewards: ArrayLike | None = None,
        sequence_rewards: ArrayLike | None = None,
        advantages: ArrayLike | None = None,
        attention_mask: ArrayLike | None = None,
        columns: Mapping[str, ArrayLike] = MappingProxyType({}),
        source_policy_revision: OneOrEach[PolicyRevision],
        environment: OneOrEach[EnvironmentPackageKey],
        task_id: OneOrEach[str] = "",
        worker_id: OneOrEach[str] = "",
        artifact_id: Sequence[str] | None = None,
        created_at_ms: OneOrEach[int] | ArrayLike | None = None,
        termination_reason: OneOrEach[RolloutTerminationReason] | None = None,
        group_id: Sequence[str | None] | ArrayLike | None = None,
        attempt: OneOrEach[int] | ArrayLike | None = None,
        logprob_semantics: OneOrEach[LogprobSemantics] | None = None,
        proof_references: Sequence[Sequence[RolloutProofReference]] | None = None,
        rules: ContractRules = STRICT,
    ) -> RolloutTable:
        """One rollout per row of padded arrays or tensors; docs/reference/contracts.md says what each argument may be.

        Arrays of one value per token that are narrower than `input_ids` are those of its last columns. Without
        `attention_mask`, prompts cannot be told from padding and are not recorded.
        """
        return cls.from_columns(
            rules=rules,
            **flattened(
                input_ids,
                response_mask,
                logprobs,
                rewards=rewards,
                sequence_rewards=sequence_rewards,
                advantages=advantages,
                attention_mask=attention_mask,
                columns=columns,
                source_policy_revision=source_policy_revision,
                environment=environment,
                task_id=task_id,
                worker_id=worker_id,
                artifact_id=artifact_id,
                created_at_ms=created_at_ms,
                termination_reason=termination_reason,
                group_id=group_id,
                attempt=attempt,
                logprob_semantics=logprob_semantics,
                proof_references=proof_references,
            ),
        )

    @classmethod
    def from_artifacts(cls, artifacts: Sequence[RolloutArtifact]) -> RolloutTable:
        """One table of these rollouts, in this order."""
        for artifact in checked_list(artifacts, "rollout table", "artifacts"):
            checked_type(artifact, RolloutArtifact, "rollout table", "artifacts")
        if not artifacts:
            return cls.empty()
        shared = artifacts[0].table
        if all(artifact.table is shared for artifact in artifacts):
            return shared.take([artifact.row for artifact in artifacts])
        parts = [a.table if len(a.table) == 1 else a.table.take([a.row]) for a in artifacts]
        return cls.concat(parts)

    @classmethod
    def empty(cls) -> RolloutTable:
        return cls.from_columns(
            artifact_id=[],
            worker_id=[],
            environment=[],
            task_id=[],
            source_policy_revision=[],
            offsets=[0],
            samples={name: [] for name in BASE_COLUMNS},
            termination_reason=[],
            created_at_ms=[],
        )

    @classmethod
    def concat(cls, tables: Sequence[RolloutTable]) -> RolloutTable:
        """Rows of all tables, in order, with their digests. An id may occur only once."""
        for table in checked_list(tables, "rollout table", "tables"):
            checked_type(table, RolloutTable, "rollout table", "tables")
        filled = [table for table in tables if len(table)]
        if not filled:
            return tables[0] if tables else cls.empty()
        if len(filled) == 1:
            return filled[0]
        joined = cls(
            concat_columns([table.columns for table in filled]),
            np.concatenate([table.artifact_digests for table in filled]),
            np.concatenate([table.content_digests for table in filled]),
            _kept_rules={
                rules
                for rules in filled[0]._kept_rules
                if all(table._is_known_to_keep(rules) for table in filled)
            },
        )
        ids = joined.columns.artifact_id.all_utf8()
        if len(set(ids)) < len(ids):
            raise table_problems(joined.columns, COMPATIBLE)[0]
        return joined

    # ---------------------------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"RolloutTable({len(self)} rollouts, {self.sample_count} samples)"

    @overload
    def __getitem__(self, rows: int) -> RolloutArtifact: ...
    @overload
    def __getitem__(self, rows: slice) -> RolloutTable: ...
    def __getitem__(self, rows: int | slice) -> RolloutArtifact | RolloutTable:
        if isinstance(rows, slice):
            return self.take(np.arange(len(self))[rows])
        return RolloutArtifact.view(self, row_number(rows, len(self), _TABLE_NAME, from_end=True))

    def __iter__(self) -> Iterator[RolloutArtifact]:
        return (RolloutArtifact.view(self, row) for row in range(len(self)))

    def take(self, rows: ArrayLike) -> RolloutTable:
        """These rows, in this order: row numbers (negative ones count from the end), or a mask of all rows.

        A run of neighbouring rows shares memory with this table.
        """
        chosen = row_numbers(rows, len(self), _TABLE_NAME, from_end=True)
        return RolloutTable(
            self.columns.take(chosen),
            self.artifact_digests[chosen],
            self.content_digests[chosen],
            _kept_rules=set(self._kept_rules),
        )

    def artifact(self, artifact_id: str) -> RolloutArtifact:
        checked_text(artifact_id, "rollout table", "artifact_id")
        if not self._rows_by_id:
            self._rows_by_id.update(zip(self.columns.artifact_id, range(len(self)), strict=True))
        row = self._rows_by_id.get(artifact_id)
        if row is None:
            raise UnknownArtifact(artifact_id=artifact_id, where=f"a table of {len(self)}")
        return RolloutArtifact.view(self, row)

    @property
    def samples(self) -> Mapping[str, Column]:
        """The sample columns of all rollouts, end to end. `offsets` says where each rollout begins."""
        return self.columns.samples

    @property
    def offsets(self) -> Offsets:
        return self.columns.sample_offsets

    @property
    def sample_count(self) -> int:
        return int(self.columns.sample_offsets[-1])

    def row_samples(self, row: int) -> Mapping[str, Column]:
        start, end = self.columns.sample_offsets[row], self.columns.sample_offsets[row + 1]
        samples = self.columns.samples
        if isinstance(samples, StoredSamples) and not samples.all_checked:
            self._check_stored_row(samples, row)
            samples = samples.raw
        return {name: column[start:end] for name, column in samples.items()}

    def _check_stored_row(self, samples: StoredSamples, row: int) -> None:
        if row in samples.checked_rows:
            return
        raw = msgspec.structs.replace(self.columns, samples=samples.raw)
        computed = row_content_digest(raw, row)
        recorded = self.content_digests[row].tobytes()
        check_digest(
            self.columns.artifact_id[row], "content_digest", recorded.hex(), computed.hex()
        )
        samples.checked_rows.add(row)

    def reward_sums(self) -> NDArray[np.float32]:
        return sequential_sums(self.samples["reward"], self.offsets)

    def advantage_sums(self) -> NDArray[np.float32]:
        return sequential_sums(self.samples["advantage"], self.offsets)

    # --------------------------------------------------------------------------------- checking

    def problems(self, rules: ContractRules = STRICT) -> list[Refusal]:
        """Every problem of these rollouts under `rules`, which may be stricter than those they were made under."""
        if self._is_known_to_keep(checked_rules(rules)):
            return []
        found = table_problems(self.columns, rules)
        if not found:
            self._kept_rules.add(rules)
        return found

    def _is_known_to_keep(self, rules: ContractRules) -> bool:
        return any(kept.cover(rules) for kept in self._kept_rules)

    # ---------------------------------------------------------------------------------- proving

    @property
    def root(self) -> str:
        """Merkle root over the content digests in row order. It identifies the whole table."""
        return table_root(self.content_digests)

    def prove(self, row: int) -> InclusionProof:
        """The proof that a rollout is in this table. `verify_proof` checks it."""
        artifact = self[row]
        leaves = digest_list(self.content_digests)
        return InclusionProof(
            root=self.root,
            index=artifact.row,
            count=len(self),
            content_digest=artifact.content_digest,
            path=tuple(each.hex() for each in merkle_path(leaves, artifact.row)),
        )

    def verify(self) -> None:
        """Compute every digest again from the columns. Raises DigestMismatch for the first one that differs."""
        for problem in self.digest_problems():
            raise problem

    def digest_problems(self) -> list[DigestMismatch]:
        found = []
        for name, recorded, compute in (
            ("artifact_digest", self.artifact_digests, artifact_digests),
            ("content_digest", self.content_digests, content_digests),
        ):
            computed = compute(self.columns)
            for row in np.flatnonzero((recorded != computed).any(axis=1)).tolist():
                found.append(
                    DigestMismatch(
                        record_id=self.columns.artifact_id[row],
                        field=name,
                        recorded=recorded[row].tobytes().hex(),
                        computed=computed[row].tobytes().hex(),
                    )
                )
        return found


def _sealed_table(
    columns: TableColumns, artifact_digests: Digests, content_digests: Digests
) -> RolloutTable:
    return RolloutTable(columns.sealed(), artifact_digests, content_digests)

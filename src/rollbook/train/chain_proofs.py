"""Checks rollouts against the stores that their proofs name: each is made again from its row and compared by digest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rollbook.contracts.findings import Finding
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.table_file import open_table
from rollbook.errors import ConfigurationError, DigestMismatch, InvalidValue, RollbookError
from rollbook.store.stored_tables import StoredTables
from rollbook.train.artifacts import (
    CHAINS_AT_ONCE,
    STORE_REFERENCE,
    StoredChains,
    Stores,
    chain_id,
    content_digest,
)


@dataclass(slots=True)
class ProofCheck:
    """What came out of comparing a table with stores."""

    proved: int = 0
    """Rollouts that are exactly what their row of their store says."""
    problems: list[RollbookError] = field(default_factory=list)
    without_proof: int = 0
    """Rollouts that name no store."""
    not_given: Counter[str] = field(default_factory=Counter)
    """Rollouts by the content digest of their store, where that store was not among those given."""


def check_proofs(table: RolloutTable, stores: Iterable[Stores]) -> ProofCheck:
    """Compare every rollout of a table with the row of the store that its proof names.

    Nothing is trusted: the digests of the table are computed again, and the bytes of the stores are verified.
    """
    known = {content_digest(each): each for one in stores for each in one.stores}
    done = ProofCheck(problems=list(table.digest_problems()))
    places: dict[tuple[str, str], list[int]] = {}
    for row, (digest, family) in enumerate(_named_stores(table)):
        if digest is None:
            done.without_proof += 1
        elif digest not in known:
            done.not_given[digest] += 1
        else:
            places.setdefault((digest, family), []).append(row)
    verified: set[str] = set()
    for (digest, family), rows in places.items():
        try:
            chains = StoredChains(known[digest], family)
            if digest not in verified:
                chains.verify()
                verified.add(digest)
        except RollbookError as problem:
            done.problems.append(problem)
            continue
        for first in range(0, len(rows), CHAINS_AT_ONCE):
            _compare(table, rows[first : first + CHAINS_AT_ONCE], chains, known[digest], done)
    return done


def proof_findings(subject: str, table: RolloutTable, stores: Iterable[Stores]) -> list[Finding]:
    """`check_proofs` for `rollbook contracts check`. A file without rollouts, such as one of batches, has none."""
    if not len(table):
        return []
    done = check_proofs(table, stores)
    found = [Finding.violation(subject, problem) for problem in done.problems]
    detail = f"{done.proved} rollouts are those of their rows in the stores"
    for digest, count in done.not_given.items():
        detail += f"; {count} are of the store {digest[:12]}…, which was not given"
    if done.without_proof:
        detail += f"; {done.without_proof} name no store"
    unchecked = done.without_proof + done.not_given.total()
    return (
        [*found, Finding(subject, True, detail, unchecked=unchecked)]
        if done.proved or unchecked
        else found
    )


def open_chains(path: str | os.PathLike[str], stores: Iterable[Stores]) -> RolloutTable:
    """A saved table whose rollouts are all proved by these stores. Raises the first problem."""
    table = open_table(path, verify="all")
    done = check_proofs(table, stores)
    for problem in done.problems:
        raise problem
    if done.without_proof:
        message = f"{done.without_proof} rollouts of {path} name no store that could prove them"
        raise ConfigurationError(message=message)
    for digest, count in done.not_given.items():
        message = f"{count} rollouts of {path} are from the store {digest}, which was not given"
        raise ConfigurationError(message=message)
    return table


def _named_stores(table: RolloutTable) -> Iterator[tuple[str | None, str]]:
    """For each rollout: the content digest of its store, and the family of its policy."""
    references = list(table.columns.proof_reference)
    families = [revision.policy_family for revision in table.columns.revisions]
    bounds = table.columns.proof_offsets.tolist()
    codes = table.columns.revision_index.tolist()
    for row, code in enumerate(codes):
        own = references[bounds[row] : bounds[row + 1]]
        named = [each for each in own if each.startswith(STORE_REFERENCE)]
        yield named[0].removeprefix(STORE_REFERENCE) if named else None, families[code]


def _compare(
    table: RolloutTable,
    rows: list[int],
    chains: StoredChains,
    store: StoredTables,
    done: ProofCheck,
) -> None:
    """Make these rollouts again from the store, and note what differs."""
    places, numbers = [], []
    for row in rows:
        number = _row_in_store(table.columns.artifact_id[row], store)
        if isinstance(number, InvalidValue):
            done.problems.append(number)
        else:
            places.append(row)
            numbers.append(number)
    try:
        again = chains.table(np.array(numbers, np.int64), table.columns.created_at_ms[places])
    except RollbookError as problem:  # a chain that has no step to learn from, or one named twice
        done.problems.append(problem)
        return
    differs = (again.content_digests != table.content_digests[places]).any(axis=1)
    done.proved += len(places) - int(differs.sum())
    for at in np.flatnonzero(differs).tolist():
        done.problems.append(
            DigestMismatch(
                record_id=again.columns.artifact_id[at],
                field=f"content_digest, made again from row {numbers[at]} of {store.store_dir},",
                recorded=table[places[at]].content_digest,
                computed=again[at].content_digest,
            )
        )


def _row_in_store(artifact_id: str, store: StoredTables) -> int | InvalidValue:
    digest = content_digest(store)
    number = artifact_id.rpartition(":")[2]
    row = int(number) if number.isascii() and number.isdigit() else -1
    if 0 <= row < store.num_rollouts and artifact_id == chain_id(digest, row):
        return row
    return InvalidValue(
        record=f"rollout {artifact_id!r}",
        field="artifact_id",
        value=repr(artifact_id),
        expected=f"{chain_id(digest, 0)} to {chain_id(digest, store.num_rollouts - 1)}, "
        "the chains of the store that its proof names",
    )

"""Saves the chains of stores as a table file. A killed run is continued; a finished one is not written again.

Chains are converted in blocks, and each block is saved as a part beside the file. At the end the parts are joined and
removed. So memory holds one block and the finished table, whose numbers are few: the shells stay in the store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollbook import __version__
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.table_file import open_table, save_table
from rollbook.contracts.row_numbers import Rows
from rollbook.digest import digest_of, sha256
from rollbook.errors import ConfigurationError, RollbookError, StorageError, TargetExists
from rollbook.files import locked, make_folders, write_errors
from rollbook.train.artifacts import (
    CHAINS_AT_ONCE,
    POLICY_FAMILY,
    ChainTables,
    Stores,
    content_digest,
    trainable_chains,
)

_PARTS_DOMAIN = "rollbook.chain_parts.v1"

Progress = Callable[[int, int], None]
"""Called with the number of finished chains and of all."""


@dataclass(frozen=True, slots=True)
class SavedChains:
    table: RolloutTable
    written: bool
    """False if the file was there already, with exactly these rollouts."""
    reused: int
    """Chains that an earlier run had converted."""


def chosen_chains(stores: Stores, *, policy: str | None = None, limit: int | None = None) -> Rows:
    """The first `limit` chains with a step to learn from, of all policies or of one. `policy` is its name in the
    store."""
    if limit is not None and limit < 1:
        raise ConfigurationError(message=f"limit={limit}; it has to be 1 or more")
    rows = trainable_chains(stores)
    if policy is not None:
        words = np.array(stores.decoded("rollouts", "policy_id", rows), object)
        if policy not in words:
            known = ", ".join(sorted({word for word in words if word})) or "none"
            message = f"no chain to learn from is of the policy {policy!r}; known: {known}"
            raise ConfigurationError(message=message)
        rows = rows[words == policy]
    if not len(rows):
        message = (
            f"no chain of {stores.title} has a step to learn from: a label and a log-probability"
        )
        raise ConfigurationError(message=message)
    return rows[:limit]


def save_chains(
    stores: Stores,
    path: str | os.PathLike[str],
    rows: Rows,
    *,
    family: str = POLICY_FAMILY,
    replace: bool = False,
    on_chains: Progress | None = None,
) -> SavedChains:
    """Save these chains as a table. A file with the same rollouts stays; another one is refused without `replace`."""
    final = Path(path)
    if final.is_dir():
        raise ConfigurationError(message=f"{final} is a folder; name a file for the table")
    parts = final.with_name(f".{final.name[:200]}.parts")
    with ExitStack() as held:
        with write_errors(final):
            make_folders(final.parent)
            held.enter_context(locked(parts.with_suffix(".lock")))
        there = _root(final) if final.exists() else None
        if final.exists() and there is None and not replace:
            raise TargetExists(path=str(final), detail="it is not a whole table")
        found = _Parts(stores, parts, rows, family)
        tables = []
        for table in found.tables():
            tables.append(table)
            if on_chains is not None:
                on_chains(sum(map(len, tables)), len(rows))
        whole = RolloutTable.concat(tables)
        if there != whole.root:
            save_table(whole, final, replace=replace)
        shutil.rmtree(parts, ignore_errors=True)
    return SavedChains(whole, there != whole.root, found.reused)


def _root(path: Path) -> str | None:
    """The root of a saved table; None for a file that is not a whole table."""
    try:
        return open_table(path, verify="all").root
    except RollbookError:
        return None


class _Parts:
    """The finished blocks of a run, and the ones that are still to be made."""

    def __init__(self, stores: Stores, folder: Path, rows: Rows, family: str) -> None:
        self._chains = ChainTables(stores, family)
        self._folder = folder
        self._rows = rows
        self.reused = 0
        made_of = [[content_digest(s), str(s.attrs["created_at_utc"])] for s in stores.stores]
        chosen = sha256(rows.astype("<i8").tobytes()).hexdigest()
        self._key = digest_of(_PARTS_DOMAIN, [__version__, family, chosen, made_of])

    def tables(self) -> Iterator[RolloutTable]:
        for first in range(0, len(self._rows), CHAINS_AT_ONCE):
            yield self._part(first)

    def _part(self, first: int) -> RolloutTable:
        path = self._folder / f"{self._key[:16]}-{first:012}.table"
        rows = self._rows[first : first + CHAINS_AT_ONCE]
        try:
            table = open_table(path, verify="all")
        except StorageError:
            pass  # it was not made yet, or it is damaged
        else:
            self.reused += len(table)
            return table
        (table,) = self._chains.blocks(rows)
        if len(rows) < len(
            self._rows
        ):  # a single block is quicker to make again than to save twice
            make_folders(self._folder)
            save_table(table, path, replace=True)
        return table

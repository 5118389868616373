"""docs/reference/store-format.md, from the schema; `make reference` writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rollbook.contracts.reasons import INVALID_REASON_VERSION, TARGET_REASON_VERSION
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME, ROLLOUT_MANIFEST_VERSION
from rollbook.store.schema import (
    DICTIONARIES,
    FIXED_WORDS,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    TABLES,
    Column,
    Table,
)

_INTRODUCTION = f"""# The rollout store

Schema `{ROLLOUT_ZARR_SCHEMA_ID}`, version `{ROLLOUT_ZARR_SCHEMA_VERSION}`. This page is generated from
`rollbook/store/schema.py`; a test compares the two.

A store is one folder: a Zarr 3 hierarchy that zarr-python can read, with one group per table and one array per column.
All columns of a table have the same number of rows. Row ids are dense, 0..n-1 in write order, except `source_row_id`,
which is the index in the source. Rollouts, steps and candidates are in order: the steps of a rollout are the
`num_steps` rows from `step_offset` on, and the candidates of a step are the `num_candidates` rows from
`candidate_offset` on.

Invalid candidates keep their row. Their masks are false, their reason bits say why, and their labels are NaN. Missing
values are never filled from another row.

## Files

- `zarr.json`: the root group. Its attributes describe the store and name the digest of the manifest.
- `{ROLLOUT_MANIFEST_FILENAME}` (`{ROLLOUT_MANIFEST_VERSION}`): how the store was made, what it contains, and size and
  XXH3-128 checksum of every other file. `manifest_sha256` is the SHA-256 of its bytes. `content_sha256` depends on the
  files only, so the same content always has the same address.
- `<table>/<column>/zarr.json` and `c/…`: a column. In the `local` profile chunk files are the plain little-endian bytes
  of their rows, split along the first axis only, so that a reader can map them as one array. A constant column has no
  chunk files: its value is the fill value. In the `archive` profile columns are compressed.
- Images are compressed one by one (Blosc, zstd, byte shuffle) and stored in shard files, in both profiles.

A store is written to a hidden folder beside its final name, synced, and renamed. If it has its final name, it is
complete. A folder whose manifest does not match its root is never opened.

Zarr reads a chunk file that is not there as fill values. Here only a constant column has no chunk files, and the
manifest lists none for it. A file that the manifest lists and that is missing, or has another size, is a
`TruncatedFile` when its column is first used, on disk and at URLs. `repack`, `export` and `publish` also compare every
byte that they read with the manifest, so that damage never gets a new checksum; they leave no output behind when they
refuse.

## Dictionaries

Coded columns hold the index of a word; -1 means no word. The words are in the attributes of the group `dictionaries`,
in order of first use: {", ".join(f"`{name}`" for name in DICTIONARIES)}.

Families, reasons and roles are coded by names that are the same in every store: see Codes. `to_arrow`, `to_pandas`,
`to_polars`, `sql` and `export` return words for both kinds of codes (dictionary arrays in Arrow, categories in pandas
and polars, text in DuckDB and in files), and numbers with `decode=False` (`--codes`). A code that a later release added
is named by its number, such as `reason_31`. Vectors of codes, which only `q_h` has, stay numbers.

## Reading

`reader.batches(256, columns=("td_reward", "mc_return"))` takes columns of `q_h` and of `returns` by name; without
`columns` a batch has all of `q_h`. `QHBatches` and `QHStates` in `rollbook.train` do the same with tensors.

`reader.sql("select position_id, avg(target_root_gain) from candidates group by 1")` returns the rows of one SELECT as
an Arrow table (extra `frames`). The tables have the names below; images are left out. Values go in as parameters:
`reader.sql("select … where step_index = ?", [2])`. DuckDB runs the query with access to nothing but these tables: no
files, no network, no settings. Whatever is wrong with a query is a `ConfigurationError`.

`RolloutCollection([…])` reads several stores as one: rows, batches, returns, data frames, SQL, exports, audits and
validation work as on one store, with row ids and codes of the collection. `array`, frames and audits copy the columns
that they need into memory; `batches` does not. What belongs to one folder (`root`, `local`, manifests) is reached
through `collection.stores`.

`open_collection(place)` opens the stores that a `collection.json` lists ([campaigns](../guides/campaigns.md)):
their sizes come from the file, and a store is opened when its rows are read. Beside its own files a store may have
`_owner.json` and `_SUCCESS.json`, which a campaign adds to a finished shard; they are no part of the store, and are
neither repacked nor published.

## Policy revisions

If the lineage of a chain names a `PolicyRevision`, the attributes of the group `metadata` have `policy_revisions`: each
revision once, as JSON. The word of `lineage/model_checkpoint_id` is its `policy_digest`. `stated_policy_revisions` are
the same as single records stated them, which may be less.

## Lineage

`reader.lineage(row)` returns the `RolloutLineage` of a rollout as its record stated it, after its digest was compared
with `lineage/lineage_digest`. Its fields are in `rollouts`, `lineage`, `sources` and `targets`. `lineage/known_fields`
says which of them are not None, and `targets/lineage_values` has the numbers before they were rounded to float32.
Validation computes every digest again. Stores of earlier releases lack these columns; they stay valid.
"""


def store_format_page() -> str:
    parts = [_INTRODUCTION, "## Tables\n", *map(_table_part, TABLES.values()), _codes_part()]
    return "\n".join(parts)


def _table_part(table: Table) -> str:
    notes = [table.doc]
    if table.derived:
        notes.append(
            "Derived: it can be computed again from the factual tables, and validation compares the two."
        )
    if table.optional:
        notes.append("Optional: without its payload the group has attributes only.")
    lines = [
        f"### `{table.name}/`\n",
        " ".join(notes) + f" Storage class: {table.storage}.\n",
        "| column | type | not known | |",
        "|---|---|---|---|",
        *(_column_line(column) for column in table.columns.values()),
    ]
    return "\n".join(lines) + "\n"


def _column_line(column: Column) -> str:
    shape = f"[{', '.join(map(str, column.shape))}]" if column.shape else ""
    notes = [column.doc]
    if column.words is not None:
        notes.append(f"words: `{column.words}`")
    if column.fixed_words is not None:
        notes.append(f"names: `{column.fixed_words}`")
    if column.packed is not None:
        notes.append(f"a column of the array `{column.packed}`")
    if column.optional:
        notes.append("optional")
    return (
        f"| `{column.name}` | {column.numpy.name}{shape} | {_fill(column)} | {'; '.join(notes)} |"
    )


def _fill(column: Column) -> str:
    if isinstance(column.fill, float) and math.isnan(column.fill):
        return "NaN"
    return str(column.fill)


def _codes_part() -> str:
    def listed(names: Iterable[str]) -> str:
        return ", ".join(f"{code} {name}" for code, name in enumerate(names))

    titles = {
        "reason": f"Candidate reason bits, `reason` (`{INVALID_REASON_VERSION}`)",
        "target_reason": f"Target reason bits, `target_reason` (`{TARGET_REASON_VERSION}`)",
    }
    lines = [
        f"{titles.get(kind, f'`{kind}`')}: {listed(names)}.\n"
        for kind, names in FIXED_WORDS.items()
    ]
    return "\n".join(["## Codes\n", *lines])

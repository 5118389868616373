"""Validating and auditing a store: what each costs, how it grows, and duckdb over our columns against parquet."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.stores import files_of, peer, records_for, scratch, size_of, turns
from benchmarks.timing import Claim, best
from rollbook.digest import checksum
from rollbook.store.audit import candidate_audit_rows, candidate_group_summary_rows
from rollbook.store.checks.columns import StoreColumns
from rollbook.store.checks.files import check_checksums
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.q_h import q_h_of
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import TABLES
from rollbook.store.views.frames import arrow_table, duckdb_columns, duckdb_relation
from rollbook.store.writer import RolloutStoreWriter

_SIZES = (10_000, 100_000, 1_000_000)
_ROWS = 60_000
_GAMMA = 0.9
_QUERIES = (
    "select primary_invalid_reason, mixture_id, count(*), avg(target_root_gain), max(target_root_gain) "
    "from candidates group by 1, 2",
    "select step_row_id, max(target_root_gain), sum(selection_probabilities) from candidates group by 1",
    "select count(*) from candidates where actor_action_mask and target_rri > 0.1 and strategy_id = 3",
)
_QUERIED = (
    "step_row_id",
    "primary_invalid_reason",
    "mixture_id",
    "strategy_id",
    "target_root_gain",
    "target_rri",
    "actor_action_mask",
    "selection_probabilities",
)


def main(scale: float = 1.0) -> list[Claim]:
    sizes = [max(300, int(rows * scale)) for rows in _SIZES]
    repeats = turns(scale)
    with scratch() as name:
        folder = Path(name)
        rows = max(300, int(_ROWS * scale))
        middle = folder / "middle"
        _write(middle, rows)
        written = [_write(folder / f"{at}", size) for at, size in enumerate(sizes)]
        stores = [folder / f"{at}" for at in range(len(sizes))]
        return [
            *_on_middle(middle, repeats),
            *_on_largest(stores[-1], repeats),
            *_deep(stores[-1], repeats),
            *_growth(stores, sizes, written, repeats),
            *_duckdb(stores[-1], folder, repeats),
        ]


def _write(store: Path, rows: int) -> float:
    """Seconds spent in the writer, without those in which records are made."""
    spent = 0.0
    config = RolloutZarrStoreConfig(store_dir=store, selected_depth_enabled=False)
    with RolloutStoreWriter(config) as writer:
        for record in records_for(rows):
            start = time.perf_counter()
            writer.append(record)
            spent += time.perf_counter() - start
        start = time.perf_counter()
        writer.finish()
        return spent + time.perf_counter() - start


def _validate(store: Path) -> None:
    result = validate_rollout_zarr_store(store)
    assert result.ok, result.errors[:3]


def _map_everything(store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    for table in TABLES:
        reader.table(table)


def _summary(store: Path) -> None:
    candidate_group_summary_rows(RolloutZarrStoreReader(store), group_by="position")


def _rebuild(store: Path) -> None:
    q_h_of(RolloutZarrStoreReader(store), _GAMMA)


def _of(run: Callable[[Path], object], store: Path) -> Callable[[], object]:
    return lambda: run(store)


def _measured(
    store: Path, runs: dict[str, Callable[[Path], object]], repeats: int
) -> dict[str, float]:
    """Every run opens the store anew."""
    rows = RolloutZarrStoreReader(store).num_candidates
    seconds = best(
        {name: _of(run, store) for name, run in runs.items()},
        repeats=repeats,
        clock=time.perf_counter,
    )
    print(f"store audit: {rows:,} candidate rows, {size_of(store) / 1e6:.0f} MB")
    for name, spent in seconds.items():
        print(f"  {name:36} {spent * 1e3:10.2f} ms  {rows / spent / 1e6:8.2f} M rows/s")
    return seconds


def _on_middle(store: Path, repeats: int) -> list[Claim]:
    seconds = _measured(
        store,
        {
            "validate": _validate,
            "q_h for a new gamma": lambda at: RolloutZarrStoreReader(at).q_h_view(
                discount_gamma=_GAMMA
            ),
            "q_h rebuilt from the facts": _rebuild,
        },
        repeats=repeats,
    )
    slower = max(seconds["q_h for a new gamma"], seconds["q_h rebuilt from the facts"])
    return [
        Claim("validate 60 000 candidate rows", seconds["validate"], 1, "s", at_most=True),
        Claim("q_h for a new gamma on 60 000 rows", slower, 0.2, "s", at_most=True),
    ]


def _on_largest(store: Path, repeats: int) -> list[Claim]:
    seconds = _measured(
        store,
        {
            "open": RolloutZarrStoreReader,
            "open and map every column": _map_everything,
            "100 audit rows": lambda at: candidate_audit_rows(
                RolloutZarrStoreReader(at), limit=100
            ),
            "group summary by position": _summary,
            "group summary by scene": lambda at: candidate_group_summary_rows(
                RolloutZarrStoreReader(at), group_by="scene"
            ),
            "validate": _validate,
        },
        repeats=repeats,
    )
    slower = max(spent for name, spent in seconds.items() if name.startswith("group summary"))
    opened = seconds["open and map every column"] * 1e3
    return [
        Claim("validate 1e6 candidate rows", seconds["validate"], 5, "s", at_most=True),
        Claim("100 audit rows of 1e6", seconds["100 audit rows"] * 1e3, 50, "ms", at_most=True),
        Claim("group summary over 1e6", slower, 1, "s", at_most=True),
        Claim("open 1e6 candidate rows, every column", opened, 100, "ms", at_most=True),
    ]


def _deep(store: Path, repeats: int) -> list[Claim]:
    """What `deep` adds to validation, against the checksum of as many bytes in memory."""
    data = b"".join(path.read_bytes() for path in files_of(store))
    columns = StoreColumns(RolloutZarrStoreReader(store), deep=True)
    seconds = best(
        {
            "deep, every file": lambda: list(check_checksums(columns)),
            "limit: checksum in memory": lambda: checksum(data),
        },
        repeats=2 * repeats,
        clock=time.perf_counter,
    )
    for name, spent in seconds.items():
        print(f"  {name:36} {spent * 1e3:10.2f} ms  {len(data) / spent / 1e9:8.2f} GB/s")
    share = seconds["limit: checksum in memory"] / seconds["deep, every file"]
    return [Claim("deep validation vs its checksum", share * 100, 50, "%")]


def _growth(
    stores: list[Path], sizes: list[int], written: list[float], repeats: int
) -> list[Claim]:
    runs: dict[str, Callable[[Path], object]] = {
        "validate": _validate,
        "validate, deep": lambda store: validate_rollout_zarr_store(store, deep=True),
        "q_h rebuilt": _rebuild,
        "group summary": _summary,
    }
    seconds = {"write": written}
    for name, run in runs.items():
        sized = {str(at): _of(run, store) for at, store in enumerate(stores)}
        seconds[name] = list(best(sized, repeats=repeats, clock=time.perf_counter).values())
    print("growth: seconds at " + ", ".join(f"{size:,}" for size in sizes) + " rows, and slopes")
    for name, spent in seconds.items():
        slopes = [math.log10(after / before) for before, after in itertools.pairwise(spent)]
        figures = "".join(f"{each:10.4f}" for each in spent)
        print(f"  {name:16} {figures}   {''.join(f'{slope:7.2f}' for slope in slopes)}")
    worst = max(spent[-1] / spent[-2] for spent in seconds.values())
    return [Claim("ten times the rows cost, at worst", worst, 10**1.1, "x", at_most=True)]


def _duckdb(store: Path, folder: Path, repeats: int) -> list[Claim]:
    duckdb, arrow, parquet = peer("duckdb"), peer("pyarrow"), peer("pyarrow.parquet")
    name, bar = "duckdb over our columns vs on parquet", 1.5
    if duckdb is None or arrow is None or parquet is None:
        return [Claim(name, None, bar, "x")]
    reader, path = RolloutZarrStoreReader(store), folder / "candidates.parquet"
    parquet.write_table(arrow_table(reader, "candidates", _QUERIED, decode=False), path)
    con = duckdb.connect()
    seconds = best(
        {
            "duckdb, ours as Arrow": lambda: _query(
                duckdb_relation(reader, "candidates", _QUERIED, decode=False, connection=con)
            ),
            "duckdb, ours as numpy": lambda: _query_columns(
                con, duckdb_columns(reader, "candidates", _QUERIED)
            ),
            "duckdb on parquet": lambda: _query(con.read_parquet(str(path))),
        },
        repeats=3 * repeats,
        clock=time.perf_counter,
    )
    for run, spent in seconds.items():
        print(f"  {run:36} {spent * 1e3:10.2f} ms  for {len(_QUERIES)} queries")
    gained = seconds["duckdb on parquet"] / seconds["duckdb, ours as Arrow"]
    return [Claim(name, gained, bar, "x")]


def _query(relation: Any) -> None:
    for query in _QUERIES:
        relation.query("candidates", query).fetchnumpy()


def _query_columns(con: Any, candidates: dict[str, Any]) -> None:
    """duckdb finds the columns by the name they have here."""
    for query in _QUERIES:
        con.execute(query).fetchnumpy()

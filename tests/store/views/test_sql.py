"""SQL over a store and a collection: the same values as the columns, in words, and no way to anything else."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rollbook.contracts.reasons import decode_invalid_reason, decode_position_id
from rollbook.errors import ConfigurationError
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import TABLES
from tests.store.test_collection import write_store


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("sql")
    return [write_store(place, "one", 4, seed=1), write_store(place, "two", 3, seed=2)]


@pytest.fixture(scope="module")
def reader(paths: list[Path]) -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(paths[0])


def test_rows_are_grouped_by_words(reader: RolloutZarrStoreReader) -> None:
    rows = reader.sql(
        """select position_id, count(*) as n, avg(target_root_gain) as gain
        from candidates group by position_id order by position_id"""
    ).to_pylist()
    positions = list(map(decode_position_id, reader.array("candidates/position_id").tolist()))
    gains = reader.array("candidates/target_root_gain").astype(np.float64)
    assert {row["position_id"]: row["n"] for row in rows} == Counter(positions)
    for row in rows:
        own = gains[[position == row["position_id"] for position in positions]]
        assert row["gain"] == pytest.approx(np.nanmean(own))


def test_tables_are_joined_and_filtered_by_parameters(reader: RolloutZarrStoreReader) -> None:
    query = """select c.candidate_row_id from candidates c join rollouts using (rollout_row_id)
        where policy_id = ? and primary_invalid_reason <> 'VALID' order by 1"""
    policy = reader.words("policy")[0]
    found = reader.sql(query, [policy])["candidate_row_id"].to_pylist()
    reasons = reader.array("candidates/primary_invalid_reason").tolist()
    chains = reader.array("candidates/rollout_row_id")
    policies = reader.array("rollouts/policy_id")[chains]
    assert found == [
        row
        for row, reason in enumerate(reasons)
        if policies[row] == 0 and decode_invalid_reason(reason) != "VALID"
    ]
    named = query.replace("?", "$policy")
    assert reader.sql(named, {"policy": policy})["candidate_row_id"].to_pylist() == found


def test_without_decoding_codes_are_numbers(reader: RolloutZarrStoreReader) -> None:
    found = reader.sql("select position_id, target_rri from candidates", decode=False)
    stored = reader.table("candidates", ("position_id", "target_rri"))
    for name, values in stored.items():
        assert np.array_equal(found[name].to_numpy(), values, equal_nan=values.dtype.kind == "f")


def test_every_table_can_be_counted(reader: RolloutZarrStoreReader) -> None:
    for table in TABLES:
        if reader.column_names(table):
            rows = len(reader.array(f"{table}/{reader.column_names(table)[0]}"))
            (counted,) = reader.sql(f"select count(*) as n from {table}").to_pylist()
            assert counted == {"n": rows}
    tables = {row["name"] for row in reader.sql("show tables").to_pylist()}
    assert tables == {table for table in TABLES if reader.column_names(table)}


def test_a_collection_is_queried_as_one(paths: list[Path]) -> None:
    many = RolloutCollection(paths)
    query = """select p.rollout_id, count(*) as n, max(c.candidate_row_id) as last
        from candidates c join rollouts p on p.rollout_row_id = c.rollout_row_id group by all"""
    found = {row["rollout_id"]: (row["n"], row["last"]) for row in many.sql(query).to_pylist()}
    expected = {}
    for store, first in zip(many.stores, many.offsets("candidates").tolist(), strict=False):
        for row in store.sql(query).to_pylist():
            expected[row["rollout_id"]] = (row["n"], row["last"] + first)
    assert found == expected
    assert len(found) == many.num_rollouts


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select nope from candidates", 'Referenced column "nope" not found'),
        ("select * from candidate", 'Did you mean "candidates"'),
        ("selec", "syntax error"),
        ("select count(*) from steps where step_index > ?", "parameter"),
        ("", "not nothing"),
        ("select 1; select 2", "not SELECT, SELECT"),
        ("create table t as select 1", "not CREATE"),
        ("drop view candidates", "not DROP"),
        ("set enable_external_access = true", "not SET"),
    ],
)
def test_a_query_that_cannot_be_says_why(
    reader: RolloutZarrStoreReader, query: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        reader.sql(query)


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('{file}')",
        "select * from '{file}'",
        "select * from read_csv('{file}')",
        "select * from glob('{folder}/*')",
        "copy (select 1) to '{folder}/written.csv'",
        "attach '{folder}/new.db'",
        "install httpfs",
        "export database '{folder}/all'",
        "select * from secret_of_the_caller",
    ],
)
def test_a_query_reaches_neither_files_nor_variables(
    reader: RolloutZarrStoreReader, tmp_path: Path, query: str
) -> None:
    secret_of_the_caller = reader.to_arrow("rollouts", ("rollout_row_id",))
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    with pytest.raises(ConfigurationError):
        reader.sql(query.format(file=file, folder=tmp_path))
    assert os.listdir(tmp_path) == ["secret.csv"]
    assert secret_of_the_caller.num_rows == reader.num_rollouts

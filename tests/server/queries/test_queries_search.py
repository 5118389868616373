"""Episodes are found by everything that is known of them, page by page, and an index is what they are read from."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.base import PGDialect

from rollbook.errors import InvalidNumber, InvalidValue
from rollbook.server.db import statements, tables
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.queries import EpisodeFilter, Scope
from rollbook.server.queries import search as queries_search
from rollbook.server.queries.episode_values import checked_episode
from rollbook.server.queries.search_terms import terms_of
from tests.server.tenants import Organisation, new_organisation

START_US = 1_700_000_000_000_000


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def names(
    org: Organisation, cursor: str | None = None, limit: int = 50, **wanted: Any
) -> list[str]:
    page = org.read(lambda scope: scope.episodes(EpisodeFilter(**wanted), cursor, limit))
    return [episode.name or "" for episode in page.episodes]


def add(org: Organisation, name: str, at: int = 0, **values: Any) -> str:
    made = org.at(START_US + at, lambda scope: scope.create_episode({"name": name, **values}))
    return made.id


both_ways = pytest.mark.parametrize("enough", [1, 10**6], ids=["side by side", "one leads"])


def merge_from(monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    monkeypatch.setattr(
        queries_search, "_ENOUGH_TO_MERGE", dict.fromkeys(("sqlite", "postgresql"), enough)
    )


# ------------------------------------------------------------------------------------------ filters


def test_the_newest_come_first(org: Organisation) -> None:
    for number, name in enumerate("bca"):
        add(org, name, at=number)
    assert names(org) == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("column", "value", "other"),
    [
        ("policy_version", "v1", "v2"),
        ("env_version", "v1", "v10"),
        ("git_sha", "abc", "ab"),
        ("seed", 3, 30),
        ("robot", "arm", "Arm"),
        ("source", "sim", "real"),
    ],
)
def test_a_column_is_found_by_its_exact_value(
    org: Organisation, column: str, value: Any, other: Any
) -> None:
    add(org, "wanted", **{column: value})
    add(org, "another", **{column: other})
    add(org, "without")
    assert names(org, **{column: value}) == ["wanted"]


def test_a_status_is_found_and_archived_ones_only_when_asked_for(org: Organisation) -> None:
    ids = {
        name: add(org, name, at=number) for number, name in enumerate(("rec", "ok", "bad", "old"))
    }
    org.write(lambda scope: scope.finalize_episode(ids["ok"], {"status": "ready"}))
    org.write(lambda scope: scope.finalize_episode(ids["bad"], {"status": "failed"}))
    org.write(lambda scope: scope.archive_episode(ids["old"]))
    for status, found in (
        ("recording", "rec"),
        ("ready", "ok"),
        ("failed", "bad"),
        ("archived", "old"),
    ):
        assert names(org, status=status) == [found]
    assert names(org) == ["bad", "ok", "rec"]
    assert names(org, with_archived=True) == ["old", "bad", "ok", "rec"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("kitchen", ["Kitchen RUN 7"]),
        ("RUN", ["Kitchen RUN 7", "overrun"]),
        ("%", ["100% done"]),
        ("_", ["snake_case"]),
        ("STRASSE", ["Straße"]),
        ("é", ["CAFÉ"]),
        ("nothing", []),
        ("", ["Kitchen RUN 7", "overrun", "100% done", "snake_case", "Straße", "CAFÉ", ""]),
    ],
)
def test_a_name_is_found_by_any_part_of_it(
    org: Organisation, wanted: str, found: list[str]
) -> None:
    every = ("Kitchen RUN 7", "overrun", "100% done", "snake_case", "Straße", "CAFÉ")
    for number, name in enumerate(every):
        add(org, name, at=-number)
    org.at(START_US - 99, lambda scope: scope.create_episode({}))
    assert names(org, name=wanted) == found


def test_all_tags_have_to_be_there(org: Organisation) -> None:
    add(org, "both", tags=["night", "arm"])
    add(org, "one", tags=["night"])
    assert set(names(org, tags=("night",))) == {"both", "one"}
    assert names(org, tags=("night", "arm")) == ["both"]
    assert names(org, tags=("nigh",)) == []


def test_tags_and_metadata_that_change_are_found_as_they_are_now(org: Organisation) -> None:
    episode_id = add(org, "it", tags=["raw", "kept"], metadata={"a": 1, "b": {"c": "x"}})
    org.write(lambda scope: scope.tag_episode(episode_id, ["kept", "checked"]))
    org.write(
        lambda scope: scope.finalize_episode(
            episode_id, {"status": "ready", "metadata": {"a": 2, "n": {"m": 5}}}
        )
    )
    assert names(org, tags=("raw",)) == names(org, metadata={"a": 1}) == []
    for wanted in ({"a": 2}, {"b.c": "x"}, {"n.m": 5}):
        assert names(org, metadata=wanted) == ["it"]
    assert names(org, tags=("kept", "checked")) == ["it"]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("task.name", "pick", "text"),
        ("task.name", '"pick"', "text"),
        ("task.tries", "3", "number"),
        ("task.tries", 3, "number"),
        ("task.tries", 3.0, "number"),
        ("task.tries", "3.0", "number"),
        ("task.tries", "3e0", "number"),
        ("version", '"1.10"', "version text"),
        ("version", "1.1", "version number"),
        ("version", 1.1, "version number"),
        ("ok", "true", "truth"),
        ("ok", True, "truth"),
        ("ok", "null", "null"),
        ("ok", None, "null"),
        ("dotted.key", "x", "dotted"),
        ("deep.a.b.c.d", "-0.5", "deep"),
        ("long", "y" * 5000, "long"),
        ("quoted", '"', "quote"),
        ("robotrace.__type", "robotrace.Battery", "typed"),
    ],
)
def test_metadata_is_found_by_path_and_value(
    org: Organisation, path: str, value: Any, found: str
) -> None:
    for name, metadata in {
        "text": {"task": {"name": "pick"}},
        "number": {"task": {"tries": 3}},
        "version text": {"version": "1.10"},
        "version number": {"version": 1.1},
        "truth": {"ok": True},
        "null": {"ok": None},
        "dotted": {"dotted.key": "x"},
        "deep": {"deep": {"a": {"b": {"c": {"d": -0.5}}}}},
        "long": {"long": "y" * 5000},
        "longer": {"long": "y" * 5001},
        "quote": {"quoted": '"'},
        "typed": {"robotrace": {"__type": "robotrace.Battery", "percent": 50}},
        "array": {"task": {"name": ["pick"]}, "ok": [True]},
        "empty": {},
    }.items():
        add(org, name, metadata=metadata)
    assert names(org, metadata={path: value}) == [found]


def test_a_text_and_the_number_it_spells_are_both_found_in_order(org: Organisation) -> None:
    for number in range(6):
        add(org, str(number), at=number, metadata={"n": 7 if number % 2 else "7"})
    assert names(org, metadata={"n": "7"}) == list("543210")
    assert names(org, metadata={"n": 7}) == list("531")
    page = org.read(lambda scope: scope.episodes(EpisodeFilter(metadata={"n": "7"}), None, 4))
    assert names(org, page.next_cursor, 4, metadata={"n": "7"}) == list("10")


def test_a_time_begins_with_its_first_moment_and_ends_before_its_last(org: Organisation) -> None:
    for number in range(5):
        add(org, str(number), at=number)
    assert names(org, created_after_us=START_US + 1, created_before_us=START_US + 4) == list("321")


@both_ways
def test_everything_together(
    org: Organisation, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    merge_from(monkeypatch, enough)
    chance = random.Random(1)
    rows = []
    for number in range(60):
        values: dict[str, Any] = {
            "policy_version": chance.choice("ab"),
            "robot": chance.choice("xy"),
            "seed": chance.randrange(3),
            "tags": chance.sample(["t", "u", "v"], chance.randrange(3)),
            "metadata": {"k": chance.randrange(3), "o": {"p": chance.choice("mn")}},
        }
        add(org, str(number), at=number, **values)
        rows.append((str(number), values))
    for _ in range(40):
        policy, robot, tag = chance.choice("ab"), chance.choice("xy"), chance.choice("tuv")
        k, p, seed = chance.randrange(3), chance.choice("mn"), chance.randrange(3)
        wanted: dict[str, Any] = {"policy_version": policy, "robot": robot}
        wanted.update(
            chance.choice([{"tags": (tag,)}, {"metadata": {"k": k, "o.p": p}}, {"seed": seed}])
        )
        expected = [
            name
            for name, values in reversed(rows)
            if values["policy_version"] == policy
            and values["robot"] == robot
            and set(wanted.get("tags", ())) <= set(values["tags"])
            and wanted.get("seed", values["seed"]) == values["seed"]
            and ("metadata" not in wanted or values["metadata"] == {"k": k, "o": {"p": p}})
        ]
        assert names(org, **wanted) == expected


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
def test_a_text_that_cannot_be_stored_finds_nothing(org: Organisation, text: str) -> None:
    add(org, "it")
    for wanted in ({"robot": text}, {"name": text}, {"tags": (text,)}, {"metadata": {text: text}}):
        assert names(org, **wanted) == []


@pytest.mark.parametrize(
    "wanted", [{"status": "lost"}, {"source": "dream"}, {"tags": tuple(map(str, range(21)))}]
)
def test_a_filter_that_cannot_be_meant_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        EpisodeFilter(**wanted)


@pytest.mark.parametrize("moment", [-1, 2**63, 1.5, "now"])
def test_a_moment_that_cannot_be_is_refused(moment: Any) -> None:
    with pytest.raises(InvalidNumber):
        EpisodeFilter(created_after_us=moment)


# -------------------------------------------------------------------------------------------- pages


def all_pages(org: Organisation, limit: int, **wanted: Any) -> Iterator[list[str]]:
    cursor: str | None = None
    while True:
        page = org.read(
            lambda scope, cursor=cursor: scope.episodes(EpisodeFilter(**wanted), cursor, limit)  # type: ignore[misc]
        )
        yield [episode.name or "" for episode in page.episodes]
        cursor = page.next_cursor
        if cursor is None:
            return


@pytest.mark.parametrize("limit", [1, 3, 7, 8])
@pytest.mark.parametrize("wanted", [{}, {"policy_version": "p"}, {"tags": ("t",)}, {"name": "r"}])
def test_pages_show_each_episode_once_also_those_of_one_moment(
    org: Organisation, limit: int, wanted: dict[str, Any]
) -> None:
    every = [f"r{number}" for number in range(7)]
    for number, name in enumerate(every):
        add(org, name, at=number // 3, policy_version="p", tags=["t"])
    add(org, "r-archived", tags=["t"], policy_version="p")
    archived = org.read(lambda scope: scope.episodes(EpisodeFilter(name="archived"))).episodes[0].id
    org.write(lambda scope: scope.archive_episode(archived))
    pages = list(all_pages(org, limit, **wanted))
    assert sorted(name for page in pages for name in page) == every
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert pages[-1] != [] or len(pages) == 1


def test_new_episodes_do_not_move_the_pages_that_follow(org: Organisation) -> None:
    for number in range(4):
        add(org, str(number), at=number)
    first = org.read(lambda scope: scope.episodes(limit=2))
    add(org, "new", at=99)
    assert [episode.name for episode in first.episodes] == ["3", "2"]
    assert names(org, first.next_cursor, 2) == ["1", "0"]


def test_a_cursor_serves_only_the_search_it_came_from(org: Organisation) -> None:
    for number in range(3):
        add(org, str(number), at=number, robot="r")
    page = org.read(lambda scope: scope.episodes(EpisodeFilter(robot="r"), None, 1))
    assert names(org, page.next_cursor, 1, robot="r") == ["1"]
    for other in ({}, {"robot": "s"}, {"policy_version": "r"}, {"robot": "r", "tags": ("r",)}):
        with pytest.raises(InvalidValue, match="next_cursor"):
            names(org, page.next_cursor, 1, **other)


def forged(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "garbage",
        "%%%",
        "é",
        "\x00",
        "A" * 100_000,
        forged(),
        forged(1, "id"),
        forged("1", "id", EpisodeFilter().fingerprint),
        forged(1, 2, EpisodeFilter().fingerprint),
        forged(-1, "id", EpisodeFilter().fingerprint),
        forged(2**63, "id", EpisodeFilter().fingerprint),
        forged(1, "\x00", EpisodeFilter().fingerprint),
        base64.urlsafe_b64encode(b"[" * 300).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    ],
    ids=lambda cursor: cursor[:20].encode("unicode_escape").decode() or "empty",
)
def test_a_cursor_of_another_make_is_refused(org: Organisation, cursor: str) -> None:
    with pytest.raises(InvalidValue, match="next_cursor"):
        names(org, cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001, 2.5, True])
def test_a_page_has_a_size_within_reason(org: Organisation, limit: Any) -> None:
    with pytest.raises(InvalidNumber, match="limit"):
        names(org, limit=limit)


# ------------------------------------------------------------------------------------------ indexes

MANY = 2000


@pytest.fixture(scope="module")
def crowd(shared_database: Database) -> Organisation:
    """Enough that a database would rather not read them all, and one of a kind among them."""
    org = new_organisation(shared_database)

    rows, terms = [], []
    for number in range(MANY):
        rare = number == MANY // 2
        column = "rare" if rare else f"v{number % 3}"
        values = dict.fromkeys(
            ("name", "policy_version", "env_version", "git_sha", "robot"), column
        )
        seed, source = (99, "replay") if rare else (number % 3, "sim")
        more = {"seed": seed, "source": source, "metadata": {"m": column, "all": 1}}
        row = checked_episode({**values, **more, "tags": [column]})
        when = {"org_id": org.org_id, "created_at_us": START_US + number}
        rows.append({**row, **when, "updated_at_us": 1})
        for term in terms_of(row["metadata"], row["tags"]):
            terms.append({**when, "episode_id": row["id"], "term": term})

    def record(scope: Scope) -> None:
        statements.insert(scope._connection, tables.episodes, rows)
        statements.insert(scope._connection, tables.episode_terms, terms)

    org.write(record)
    if shared_database.kind == "postgresql":
        shared_database.write_now(
            Tenant(), lambda connection: connection.exec_driver_sql("ANALYZE")
        )
    return org


def plans_of(org: Organisation, wanted: EpisodeFilter, *, generic: bool = False) -> list[str]:
    """What the database says it does for each query of a search. `generic`: whatever the values are, as PostgreSQL
    plans a statement that it has run a few times."""

    def explain(scope: Scope) -> list[str]:
        plans: list[str] = []
        run = scope._run

        def explained(query: Any, limit: int) -> Any:
            kwargs = {"literal_binds": not generic, "render_postcompile": True}
            how = "EXPLAIN " if scope._is_postgres else "EXPLAIN QUERY PLAN "
            dialect = scope._connection.dialect
            if generic:
                how = "EXPLAIN (GENERIC_PLAN) "
                dialect = PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
            text = str(query.limit(limit).compile(dialect=dialect, compile_kwargs=kwargs))
            rows = scope._connection.exec_driver_sql(how + text.replace("%", "%%"))
            plans.append("\n".join(str(row[-1]) for row in rows))
            return run(query, limit)

        scope._run = explained  # type: ignore[method-assign]
        scope.episodes(wanted)
        return plans

    return org.read(explain)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({}, "ix_episodes_org_id_created_at_us_id_status_name_search"),
        ({"name": "rare"}, "ix_episodes_org_id_created_at_us_id_status_name_search"),
        ({"policy_version": "rare"}, "ix_episodes_org_id_policy_version_created_at_us_id"),
        ({"env_version": "rare"}, "ix_episodes_org_id_env_version_created_at_us_id"),
        ({"git_sha": "rare"}, "ix_episodes_org_id_git_sha_created_at_us_id"),
        ({"seed": 99}, "ix_episodes_org_id_seed_created_at_us_id"),
        ({"robot": "rare"}, "ix_episodes_org_id_robot_created_at_us_id"),
        ({"source": "replay"}, "ix_episodes_org_id_source_created_at_us_id"),
        ({"policy_version": "v1", "robot": "rare"}, "ix_episodes_org_id_robot_created_at_us_id"),
        (
            {"policy_version": "v1", "seed": 99, "source": "sim"},
            "ix_episodes_org_id_seed_created_at_us_id",
        ),
        ({"tags": ("rare",)}, "episode_terms"),
        ({"metadata": {"m": "rare"}}, "episode_terms"),
        ({"metadata": {"all": 1}, "tags": ("rare",)}, "episode_terms"),
        ({"metadata": {"all": 1}, "robot": "rare"}, "ix_episodes_org_id_robot_created_at_us_id"),
    ],
    ids=str,
)
def test_a_search_reads_an_index_and_not_the_table(
    crowd: Organisation, wanted: dict[str, Any], index: str
) -> None:
    for plan in plans_of(crowd, EpisodeFilter(**wanted)):
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "SCAN" not in plan, plan


@pytest.mark.parametrize(
    "wanted",
    [{}, {"policy_version": "v1"}, {"source": "sim"}, {"tags": ("v1",)}, {"metadata": {"all": 1}}],
    ids=str,
)
def test_what_many_have_is_read_from_the_newest_on_without_sorting(
    crowd: Organisation, wanted: dict[str, Any]
) -> None:
    for plan in plans_of(crowd, EpisodeFilter(**wanted)):
        assert "Sort" not in plan, plan
        assert "TEMP B-TREE" not in plan, plan


def test_the_rarest_leads(crowd: Organisation) -> None:
    def leader(scope: Scope) -> object:
        wanted = EpisodeFilter(policy_version="v1", robot="rare", metadata={"all": 1})
        leads, counts = scope._counted(queries_search._leads(wanted), wanted)
        return leads[counts.index(min(counts))]

    assert crowd.read(leader) == queries_search._Lead(column="robot", value="rare")


@both_ways
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"policy_version": "v1", "robot": "v1"}, 1),
        ({"policy_version": "v1", "tags": ("v1",), "metadata": {"all": "1"}}, 1),
        ({"source": "sim", "metadata": {"m": "v2"}, "name": "V2", "with_archived": True}, 2),
        ({"tags": ("v1",), "metadata": {"m": "v2"}}, None),
        ({"source": "sim", "tags": ("v0",), "created_before_us": START_US + 9}, 0),
    ],
)
def test_what_many_have_is_found_together_page_by_page(
    crowd: Organisation,
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, Any],
    expected: int | None,
    enough: int,
) -> None:
    merge_from(monkeypatch, enough)
    until = 9 if "created_before_us" in wanted else MANY
    numbers = [
        number
        for number in reversed(range(until))
        if number % 3 == expected and number != MANY // 2
    ]
    filters, cursor, found = EpisodeFilter(**wanted), None, []
    while True:
        page = crowd.read(partial(Scope.episodes, filters=filters, cursor=cursor, limit=200))
        found += [each.created_at_us - START_US for each in page.episodes]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == numbers


@pytest.mark.parametrize("generic", [False, True], ids=["these values", "any values"])
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (
            {"policy_version": "v1", "metadata": {"all": 1}},
            "ix_episodes_org_id_policy_version_created_at_us_id",
        ),
        ({"tags": ("v1",)}, "pk_episode_terms"),
        ({"tags": ("v1",), "metadata": {"all": 1}, "name": "v1"}, "pk_episode_terms"),
        ({"tags": ("v1",), "source": "sim", "with_archived": True}, "pk_episode_terms"),
    ],
    ids=str,
)
def test_postgres_looks_up_other_filters_for_the_episodes_of_the_leading_one(
    crowd: Organisation, wanted: dict[str, Any], index: str, generic: bool
) -> None:
    """A join could begin with the list of another filter, which can be the longest."""
    if crowd.database.kind != "postgresql":
        pytest.skip("the plans of PostgreSQL")
    for plan in plans_of(crowd, EpisodeFilter(**wanted), generic=generic):
        assert "Join" not in plan, plan
        assert "Nested Loop" not in plan, plan
        assert "Sort" not in plan, plan
        walked = re.findall(r"Scan Backward using (\w+)", plan)
        assert walked == [index], plan


@pytest.mark.parametrize("generic", [False, True], ids=["these values", "any values"])
@pytest.mark.parametrize(
    ("wanted", "lists"),
    [
        ({"policy_version": "v1", "tags": ("v1",), "status": "recording"}, 3),
        ({"policy_version": "v1", "robot": "v1", "with_archived": True}, 2),
        ({"tags": ("v1",), "metadata": {"m": "v2", "all": "1"}}, 3),
        ({"tags": ("v1",), "name": "v1"}, 2),
    ],
    ids=str,
)
def test_postgres_merges_lists_in_their_order(
    crowd: Organisation,
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, Any],
    lists: int,
    generic: bool,
) -> None:
    """No list is read twice, nor sorted, so a search takes at most as long as reading each list once."""
    if crowd.database.kind != "postgresql":
        pytest.skip("the plans of PostgreSQL")
    merge_from(monkeypatch, 1)
    for plan in plans_of(crowd, EpisodeFilter(**wanted), generic=generic):
        assert plan.count("Merge Join") == lists - 1, plan
        assert plan.count("Index Only Scan Backward") == lists, plan
        for other in ("Nested Loop", "Hash", "Sort", "Seq Scan"):
            assert other not in plan, plan


@both_ways
def test_an_episode_with_both_readings_of_a_value_is_found_once(
    org: Organisation, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    merge_from(monkeypatch, enough)
    for number, metadata in enumerate(({"a.b": "7", "a": {"b": 7}}, {"a.b": "7"}, {"a.b": 8})):
        add(org, str(number), at=number, metadata=metadata, robot="r")
    assert names(org, metadata={"a.b": "7"}, robot="r") == ["1", "0"]
    assert list(all_pages(org, 1, metadata={"a.b": "7"}, robot="r")) == [["1"], ["0"]]


@both_ways
def test_whoever_sees_only_their_own_finds_only_their_own(
    org: Organisation, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    merge_from(monkeypatch, enough)
    add(org, "of somebody else", tags=["t", "u"])
    wanted = EpisodeFilter(tags=("t", "u"), with_archived=True)

    def found(scope: Scope) -> int:
        own = Scope(scope._connection, org.org_id, recorded_by="key:another")
        return len(own.episodes(wanted).episodes)

    assert org.read(found) == 0

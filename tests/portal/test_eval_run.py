"""The page of an eval run: what a lead reads on it, for every way a run can end."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape

import pytest

from rollbook.portal.charts.pair_dots import MOST_DRAWN, drawn_places
from rollbook.report.run_report import RunReport
from tests.portal.runs_world import (
    EVIL,
    TASKS,
    Plan,
    RunsWorld,
    baselines,
    finished,
    results,
    runs_world,
    send,
)
from tests.server.campaigns import campaigner
from tests.server.people import House, Person

PAIR = re.compile(r'/pairs/([^"?/]+)"')


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> RunsWorld:
    return runs_world(campaigner(sqlite_house.server), pairs=40)


@pytest.fixture(scope="module")
def owner(world: RunsWorld) -> Iterator[Person]:
    person = world.team.owner()
    yield person
    person.close()


def shown(owner: Person, world: RunsWorld, kind: str, query: str = "") -> str:
    answer = owner.get(f"{world.path(kind)}{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def words(page: str) -> str:
    """What a reader sees."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def part(page: str, heading: str) -> str:
    """From one heading to the next."""
    after = page.partition(f"<h2>{heading}</h2>")[2]
    assert after, heading
    return after.partition("<h2>")[0]


def rows(page: str) -> list[str]:
    """The baselines of the table, in its order."""
    table = page.partition("data-rows")[2]
    return [*dict.fromkeys(PAIR.findall(table))]


def summary(world: RunsWorld, kind: str) -> dict[str, object]:
    found: dict[str, object] = world.team.get(f"/api/eval-runs/{world.ids[kind]}")["summary"]
    return found


# --------------------------------------------------------------------------------------- the decision


@pytest.mark.parametrize(
    ("kind", "decided"),
    [("ship", "ship"), ("underpowered", "hold"), ("regression", "regress"), ("store", "hold")],
)
def test_the_sentence_of_the_decision_comes_first(
    world: RunsWorld, owner: Person, kind: str, decided: str
) -> None:
    page = shown(owner, world, kind)
    sentence: str = world.team.get(f"/api/eval-runs/{world.ids[kind]}")["summary"]["decision"][
        "sentence"
    ]
    said = words(page.partition('class="say')[2].partition("</p>")[0]).partition(">")[2].strip()
    assert said.replace(" ,", ",").replace(" ;", ";").lower() == sentence.partition(": ")[2].lower()
    assert f'<section class="decision {decided}"' in page


def test_a_hold_says_what_would_change_it(world: RunsWorld, owner: Person) -> None:
    page = words(shown(owner, world, "underpowered"))
    assert "fresh pairs is needed to tell." in page
    assert "--baselines fresh:" in page
    assert "How many more pairs" in page
    # crashes count in the decision, and the curve would not know of them
    assert "How many more pairs" not in words(shown(owner, world, "crashes"))
    assert "Take it further" not in words(shown(owner, world, "regression"))


def test_every_reason_to_hold_stands_in_the_list_of_what_the_gate_asked(
    world: RunsWorld, owner: Person
) -> None:
    for kind in world.ids:
        run = world.team.get(f"/api/eval-runs/{world.ids[kind]}")
        if run["summary"] is None:
            continue
        asked = words(part(shown(owner, world, kind), "What the gate asked")).lower()
        for finding in run["summary"]["decision"]["findings"]:
            assert finding["text"].lower() in asked, (kind, finding)


def test_what_failed_comes_before_what_was_met(world: RunsWorld, owner: Person) -> None:
    states = re.findall(r'<li class="(\w+)">', shown(owner, world, "regression"))
    assert states[0] == "failed"
    assert states == sorted(states, key=["failed", "open", "met", "unused"].index)


def test_nothing_is_called_met_that_was_not_measured(world: RunsWorld, owner: Person) -> None:
    asked = part(shown(owner, world, "not measured"), "What the gate asked")
    met = " ".join(words(each) for each in asked.split("<li ") if each.startswith('class="met"'))
    for claim in ("better", "pairs", "worse", "Measured"):
        assert claim not in met.replace("no failed pair", ""), met


def test_without_a_success_pairs_are_better_or_worse_and_none_is_a_lost_success(
    world: RunsWorld, owner: Person
) -> None:
    page = shown(owner, world, "store")
    assert re.search(r">Worse \d+<", page)
    assert "success lost." not in words(page)
    assert "filld" not in part(page, "Every pair").partition("legend")[0]


def test_a_difference_has_a_colour_only_if_it_was_shown(world: RunsWorld, owner: Person) -> None:
    deltas = {
        kind: re.findall(r'<div class="delta([^"]*)">', shown(owner, world, kind))
        for kind in ("ship", "underpowered", "regression", "not measured")
    }
    assert " better" in deltas["ship"]
    assert deltas["underpowered"] == [""] * 4
    assert " worse" in deltas["regression"]
    assert "not measured" in words(part(shown(owner, world, "not measured"), "Success"))


def test_a_later_run_on_the_same_baselines_says_so(world: RunsWorld, owner: Person) -> None:
    assert "2nd run on these baselines; corrected level" in words(shown(owner, world, "again"))


def test_a_cancelled_run_has_no_decision(world: RunsWorld, owner: Person) -> None:
    page = words(shown(owner, world, "cancelled"))
    assert "The run was cancelled; there is no decision." in page
    assert "What the gate asked" not in page


def test_a_summary_of_another_form_is_shown_as_unreadable(world: RunsWorld, owner: Person) -> None:
    """What another release may have written."""
    import sqlite3

    run_id = finished(
        world.team, baselines(world.team, 26), Plan(seed=21), candidate="from-another-release"
    )
    path = world.team.server.data_dir / "rollbook.db"
    with sqlite3.connect(path, timeout=30) as database:
        database.execute("UPDATE eval_runs SET summary = '[1]' WHERE id = ?", (run_id,))
    database.close()
    for address in (f"/portal/evals/{run_id}", "/portal/evals"):
        answer = owner.get(address)
        assert answer.status_code == 200
        assert "this release cannot read" in answer.text
    world.team.http.delete(f"/api/eval-runs/{run_id}")


# ------------------------------------------------------------------------------------------ the pairs


def test_the_worst_change_comes_first_and_any_column_sorts(world: RunsWorld, owner: Person) -> None:
    found = world.team.results(world.ids["ship"], limit=500)
    gain = {
        each["baseline_episode_id"]: each["metrics"]["reward_total_candidate"]
        - each["metrics"]["reward_total_baseline"]
        for each in found
    }
    worst = sorted(gain, key=gain.__getitem__)
    assert rows(shown(owner, world, "ship")) == worst[:25]
    assert rows(shown(owner, world, "ship", "?sort=-change")) == worst[::-1][:25]
    assert rows(shown(owner, world, "ship", "?sort=number&page=2")) == [
        each["baseline_episode_id"] for each in found[25:50]
    ]
    assert 'aria-sort="ascending"' in shown(owner, world, "ship")


def test_filters_count_and_show_pairs_that_were_lost_won_or_failed(
    world: RunsWorld, owner: Person
) -> None:
    page = shown(owner, world, "crashes", "?show=failed")
    assert "Failed 4" in page
    assert len(rows(page)) == 4
    said = words(page)
    assert "ValueError: the policy returned 6 joints, expected 7" in said
    assert "at step 12" in said  # the rest of the error, on demand
    assert "infrastructure: the baseline could not be read" in said
    for kind in (
        "ship",
        "crashes",
    ):  # as many as the decision counts: a broken infrastructure lost nothing
        lost = summary(world, kind)["success_rate"]["losses"]  # type: ignore[index]
        assert f"Lost {lost}" in shown(owner, world, kind)
        assert len(rows(shown(owner, world, kind, "?show=lost"))) == lost


def test_pages_of_pairs_go_on_to_the_last_one(world: RunsWorld, owner: Person) -> None:
    seen: list[str] = []
    query = "?sort=number"
    while query:
        page = shown(owner, world, "ship", query)
        seen += rows(page)
        following = re.search(r'rel="next" href="[^"]*(\?[^"#]+)', page)
        query = unescape(following[1]) if following else ""
    assert len(seen) == len(set(seen)) == 80
    assert rows(shown(owner, world, "ship", "?sort=number&page=999")) == seen[-5:]


@pytest.mark.parametrize(
    "query", ["metric=speed", "show=best", "sort=--change", "page=0", "page=-1", "page=x", "page=²"]
)
def test_what_cannot_be_read_in_the_address_is_named(
    world: RunsWorld, owner: Person, query: str
) -> None:
    answer = owner.get(f"{world.path('ship')}?{query}")
    assert answer.status_code == 400
    assert f"{query.partition('=')[0]}: expected" in answer.text


@pytest.mark.parametrize("metric", ["success", "reward_total", "collision_count", "time_to_goal_s"])
def test_every_outcome_can_be_drawn_and_every_pair_is_a_link(
    world: RunsWorld, owner: Person, metric: str
) -> None:
    drawn = part(shown(owner, world, "ship", f"?metric={metric}"), "Every pair")
    both = [
        each
        for each in world.team.results(world.ids["ship"], limit=500)
        if None
        not in (each["metrics"][f"{metric}_baseline"], each["metrics"][f"{metric}_candidate"])
    ]
    assert len(set(PAIR.findall(drawn))) == len(both)
    assert 'role="img"' not in drawn  # it would hide the links


def test_an_outcome_that_no_pair_has_is_not_drawn(world: RunsWorld, owner: Person) -> None:
    page = shown(owner, world, "not measured", "?metric=reward_total")
    assert "No pair has reward on both sides" in page


def test_of_many_pairs_the_worst_and_the_best_are_always_drawn() -> None:
    places = drawn_places(10_000)
    assert len(places) == len(set(places)) == MOST_DRAWN
    assert places == sorted(places)
    assert places[:100] == [*range(100)]
    assert places[-50:] == [*range(9_950, 10_000)]


def test_slices_are_exploratory_unless_the_gate_names_them(world: RunsWorld, owner: Person) -> None:
    page = part(shown(owner, world, "ship"), "Success by task")
    assert "exploratory" in page
    assert all(task in unescape(page) for task in TASKS)


def test_slices_without_enough_pairs_are_one_sentence_and_columns_without_a_value_are_left_out(
    world: RunsWorld, owner: Person
) -> None:
    ids = [each for name in "abc" for each in baselines(world.team, 2, task=name, success=None)]
    gate = {
        "cluster": "none",
        "rules": [{"metric": "reward_total", "role": "primary"}],
        "reward_range": [0, 12],
    }
    run_id = world.team.run(ids, "thin", gate=gate)
    for number, each in enumerate(ids):
        metrics = {
            "reward_total_baseline": 1.0,
            "reward_total_candidate": 2.0 + number,
            "evidence": {"reward_total": "counterfactual"},
        }
        world.team.result(run_id, each, None, metrics=metrics)
    world.team.finalize(run_id)
    page = owner.get(f"/portal/evals/{run_id}").text
    assert "Reward by task: 3 slices, none with enough pairs for an interval." in words(page)
    table = words(page.partition("data-rows")[2].partition("</thead>")[0])
    assert "Reward, baseline" in table
    assert "Success" not in table
    assert "Action distance" not in table
    world.team.http.delete(f"/api/eval-runs/{run_id}")


def test_what_the_counterfactual_said_of_a_closed_loop_is_one_sentence_beside_the_decision(
    world: RunsWorld, owner: Person
) -> None:
    ids = baselines(world.team, 12, success=None)
    rule = {"metric": "reward_total", "role": "primary"}
    run_id = world.team.run(
        ids, "both", gate={"cluster": "none", "rules": [rule], "reward_range": [0, 12]}
    )
    for number, each in enumerate(ids):
        metrics = {
            "reward_total_baseline": 1.0,
            "reward_total_candidate": 2.0 + number / 10,
            "counterfactual": {"chosen_total": 3.0 + number / 10},
            "evidence": {"reward_total": "closed_loop"},
        }
        world.team.result(run_id, each, None, metrics=metrics)
    world.team.finalize(run_id)
    page = owner.get(f"/portal/evals/{run_id}").text
    said = words(page.partition('aria-label="Decision"')[2].partition("</section>")[0])
    assert "Counterfactual: +2.55 in the recorded states of 12 pairs, 1 more than closed" in said
    assert said.count("Counterfactual") == 1
    assert said.count("the closed loop decides.") == 1
    world.team.http.delete(f"/api/eval-runs/{run_id}")


def test_pairs_that_were_replayed_again_and_baselines_that_were_deleted_are_marked(
    world: RunsWorld, owner: Person
) -> None:
    ids = baselines(world.team, 3)
    run_id = world.team.run(ids, "tried-again")
    world.team.result(run_id, ids[0], False)
    for each in ids:
        world.team.result(run_id, each, True)
    world.team.finalize(run_id)
    assert world.team.http.delete(f"/api/episodes/{ids[2]}").is_success
    page = owner.get(f"/portal/evals/{run_id}").text
    first = page.partition("data-rows")[2].partition("<tbody>")[2].partition("</tr>")[0]
    assert "2 attempts" in first
    assert "retried" in first
    said = words(page)
    assert "1 pair had an earlier result that says something else" in said
    assert "1 baseline deleted since" in said
    assert len(rows(page)) == 2
    world.team.http.delete(f"/api/eval-runs/{run_id}")


# ------------------------------------------------------------------------------------------- hostile


def test_whatever_others_wrote_is_text_and_stays_in_its_place(
    world: RunsWorld, owner: Person
) -> None:
    for address in ("", "?metric=success", "?show=failed", "/report"):
        page = owner.get(f"{world.path('hostile')}{address}").text
        assert "<svg onload" not in page, address
        assert "<script>alert" not in page, address
    page = shown(owner, world, "hostile", "?show=failed")
    assert EVIL in unescape(page)
    assert "style=" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.S)


def test_values_that_are_no_outcomes_do_not_break_the_page(world: RunsWorld, owner: Person) -> None:
    ids = baselines(world.team, 3)
    run_id = world.team.run(ids, "odd")
    odd = {
        "success_candidate": "yes",
        "reward_total_candidate": 1e308,
        "action_l2_distance": "far",
        "actions": {"top": [{"step": "x"}, 7, {"step": 1, "distance": None}]},
        "evidence": {"success": 3},
        "repro": [],
    }
    for each in ids:
        world.team.result(run_id, each, None, metrics=odd)
    world.team.finalize(run_id)
    assert owner.get(f"/portal/evals/{run_id}").status_code == 200
    assert owner.get(f"/portal/evals/{run_id}/export.csv").status_code == 200
    assert owner.get(f"/portal/evals/{run_id}/report").status_code == 200
    world.team.http.delete(f"/api/eval-runs/{run_id}")


# ------------------------------------------------------------------------------------------- progress


def test_a_run_under_way_shows_progress_and_no_verdict(world: RunsWorld, owner: Person) -> None:
    page = shown(owner, world, "running")
    said = words(page)
    assert "8 of 20 pairs measured, 1 failed." in said
    assert "There is no decision before the end." in said
    assert "ValueError: no" in said
    assert "What the gate asked" not in page
    assert owner.get(f"{world.path('running')}/report").status_code == 409
    now = owner.get(f"{world.path('running')}/progress").json()
    assert (now["done"], now["total"], now["failed"], now["ended"]) == (8, 20, 1, False)
    assert owner.get(f"{world.path('ship')}/progress").json()["ended"] is True


# -------------------------------------------------------------------------------------------- exports


def test_the_csv_has_every_pair_and_no_formula(world: RunsWorld, owner: Person) -> None:
    ids = baselines(world.team, 2, task="=HYPERLINK(1)")
    run_id = world.team.run(ids, "formula")
    sent = results(ids, Plan())
    sent[1] = {
        "baseline_episode_id": ids[1],
        "status": "failed",
        "metrics": {},
        "error": "@SUM(1+1)*cmd|' /C calc'!A0",
    }
    send(world.team, run_id, sent)
    world.team.finalize(run_id)
    answer = owner.get(f"/portal/evals/{run_id}/export.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    table = [*csv.DictReader(io.StringIO(answer.text))]
    assert [each["baseline_episode_id"] for each in table] == ids
    assert table[0]["label"] == "'=HYPERLINK(1)"
    assert table[1]["error"].startswith("'@SUM")
    assert float(table[0]["reward_total_candidate"]) == sent[0]["metrics"]["reward_total_candidate"]
    world.team.http.delete(f"/api/eval-runs/{run_id}")


def test_the_json_is_what_the_command_line_reads(world: RunsWorld, owner: Person) -> None:
    answer = owner.get(f"{world.path('crashes')}/export.json")
    assert "attachment" in answer.headers["content-disposition"]
    report = RunReport.from_json(answer.content, "export.json")
    assert report.run_id == world.ids["crashes"]
    assert len(report.results) == report.total == 30
    assert report.sentence.startswith("Hold: ")
    assert json.loads(answer.text)["gate"]["n_min"] == 25


def test_the_report_loads_nothing_and_runs_nothing(world: RunsWorld, owner: Person) -> None:
    answer = owner.get(f"{world.path('ship')}/report")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "unsafe" not in policy
    assert "style=" not in answer.text
    assert "Replay of pick-act-v4" in answer.text

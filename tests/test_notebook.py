"""What objects show of themselves in a notebook, and the bar below a cell."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.wire.episodes import ArtifactRecord, EpisodeRecord
from rollbook.evals import StoreBaselines, create_run, replay_store, rollup_store
from rollbook.generate.sources.reader import SourceStore
from rollbook.learned import open_training_run
from rollbook.notebook import bar_html, card, in_notebook, shown_progress, table
from rollbook.store import RolloutCollection, RolloutZarrStoreReader, open_collection
from tests.evals.small_stores import small_store
from tests.generate.tiny_source import tiny_source
from tests.learned.small_runs import small_run
from tests.store.shards.small_campaigns import campaign
from tests.store.test_collection import write_store

MARKUP = re.compile(r"<[^>]*>")


def shown_text(html: str) -> str:
    return unescape(MARKUP.sub(" ", html))


@given(st.text(), st.text(), st.text())
def test_a_card_shows_every_text_as_it_is_and_never_as_markup(
    title: str, name: str, value: str
) -> None:
    html = card(title, [(name, value)], table((name,), [(value,)], caption=f"a{title}"))
    plain = card("", [("", "")], table(("",), [("",)], caption="a"))
    assert MARKUP.findall(html) == MARKUP.findall(plain)
    assert shown_text(html).count(value) >= 2


def test_a_card_leaves_out_facts_that_are_not_known() -> None:
    assert "robot" not in card("Episode", [("robot", None), ("id", "e1")])


def test_numbers_are_short_and_what_is_not_known_is_a_dash() -> None:
    text = shown_text(table(("a", "b", "c", "d"), [(1234567, 0.123456, None, True)]))
    assert text.split() == ["a", "b", "c", "d", "1,234,567", "0.123", "–", "yes"]


def test_a_store_shows_its_counts_and_the_mean_gain_of_every_policy() -> None:
    reader = RolloutZarrStoreReader(small_store())
    text = shown_text(reader._repr_html_())
    assert f"{reader.num_rollouts} rollouts, {reader.num_steps} steps" in text
    assert reader.store_manifest.payload["content_sha256"] in text
    policies = np.array(reader.decoded("rollouts", "policy_id"))
    gains = reader.array("rollouts/final_cumulative_target_root_gain")
    for policy in set(policies.tolist()):
        own = gains[policies == policy]
        mean = own[np.isfinite(own)].astype(np.float64).mean()
        assert re.search(rf"{policy}\s+{len(own)}\s+\S+\s+{mean:.3g}\b", text)


def test_a_collection_shows_its_stores_and_the_policies_of_all(tmp_path: Path) -> None:
    stores = [write_store(tmp_path, "one"), write_store(tmp_path, "two", count=6)]
    together = RolloutCollection(stores)
    text = shown_text(together._repr_html_())
    assert f"{together.num_rollouts} rollouts" in text
    for store, each in zip(stores, together.stores, strict=True):
        assert re.search(rf"{re.escape(str(store))}\s+{each.num_rollouts}\b", text)


def test_a_listed_collection_is_shown_without_opening_its_stores(tmp_path: Path) -> None:
    made = campaign(tmp_path / "campaign", ((0, 1), (2,))).build()
    made.merge()
    listed = open_collection(made.folder)
    for shard in made.shards:
        shutil.rmtree(shard)
    assert f"{listed.num_rollouts} rollouts" in shown_text(listed._repr_html_())


def test_a_source_store_shows_its_splits() -> None:
    source = SourceStore.open(tiny_source())
    text = shown_text(source._repr_html_())
    assert source.manifest_digest in text
    for split in {entry.split for entry in source.index}:
        assert re.search(rf"{split}\s+\d+\s+{len(source.indices(split))}\b", text)


class Highest:
    """Chooses by the first feature."""

    def act_batch(self, observations: Any, context: Any) -> Any:
        features = next(each for each in observations.values() if each.ndim == 3)
        return {"/choice/score": features[..., 0]}


def test_a_rollup_shows_its_sentence_and_the_interval_of_the_difference() -> None:
    baselines = StoreBaselines(small_store())
    found = rollup_store(baselines, replay_store(baselines, Highest(), isolation="thread"))
    text = shown_text(found._repr_html_())
    assert found.decision.sentence in text
    assert found.reward_mean.paired_delta is not None
    assert re.search(r"reward\s.*counterfactual", text, re.DOTALL)


def test_a_run_and_an_episode_show_who_made_them() -> None:
    run = create_run(
        candidate_policy_version="<script>v2", baseline_episode_ids=["a", "b"], dry_run=True
    )
    html = run._repr_html_()
    assert "<script>" not in html
    assert "<script>v2" in shown_text(html)
    episode = EpisodeRecord(
        id="e1",
        status="ready",
        robot="arm",
        artifacts=[ArtifactRecord(kind="video", size=12345, sha256="ab" * 32)],
    )
    text = shown_text(episode._repr_html_())
    assert "arm" in text
    assert re.search(rf"video\s+12,345\s+{'ab' * 32}", text)


def test_a_training_run_shows_its_data_and_its_heads(tmp_path: Path) -> None:
    folder = open_training_run(small_run(tmp_path / "run"))
    text = shown_text(folder._repr_html_())
    assert folder.revision.revision_id in text
    assert folder.run.digest in text
    assert "1 chains, 2 states, 1 scenes" in text
    assert re.search(r"moves left\s.*\b1\s+–\s+–.*\b2\s+–", text, re.DOTALL)


# --------------------------------------------------------------------------------------------- bar


def test_outside_of_a_notebook_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    with shown_progress("working") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_callers_own_function_is_called_in_the_place_of_the_bar() -> None:
    seen: list[tuple[int, int]] = []
    with shown_progress("working", lambda done, total: seen.append((done, total))) as progress:
        progress(1, 2)
    assert seen == [(1, 2)]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e6))
def test_the_bar_is_never_longer_than_its_frame(done: int, total: int, seconds: float) -> None:
    width = re.search(r"width:([\d.]+)%", bar_html("x", done, total, seconds))
    assert width is not None
    assert 0 <= float(width[1]) <= 100


CELL = """
import time
from rollbook.notebook import shown_progress
def work(seconds, fails=False):
    began = time.monotonic()
    with shown_progress("counting <sheep>") as progress:
        while (spent := time.monotonic() - began) < seconds:
            progress(min(int(10 * spent / seconds), 9), 10)
        if fails:
            raise ValueError("no more")
        progress(10, 10)
"""


@pytest.mark.slow
def test_a_long_call_shows_a_bar_below_its_cell_and_a_short_one_shows_nothing() -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [CELL, "work(1)", "work(0.1)", "try:\n    work(1, True)\nexcept ValueError: pass"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    shown = [[dict(each.data) for each in cell.outputs] for cell in book.cells]
    assert [len(each) for each in shown] == [0, 1, 0, 1]
    assert shown[1][0]["text/plain"] == "counting <sheep>: 10 of 10"
    assert "counting &lt;sheep&gt;: 10 of 10" in shown[1][0]["text/html"]
    assert "stopped at 9 of 10" in shown[3][0]["text/html"]

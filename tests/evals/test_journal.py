"""The journal: what is in it can be taken up by the next runner, and by nobody else meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.errors import StorageError
from rollbook.evals.journal import AbandonedJournals, FinishedReplay, Journal, remove_journals
from tests.watched_files import WatchedFiles


def row(name: str, status: str = "complete", data: bytes = b"npz") -> FinishedReplay:
    files = {"actions": data, "sensors": data * 2} if status == "complete" else {}
    result = EvalResult(name, None, status, {"step_count": 3})  # type: ignore[arg-type]
    return FinishedReplay(result, files=files, fps=10.0)  # type: ignore[arg-type]


def left_behind(folder: Path) -> list[FinishedReplay]:
    left = AbandonedJournals(folder)
    left.close()
    return left.rows


def interrupted(folder: Path) -> frozenset[str]:
    left = AbandonedJournals(folder)
    left.close()
    return left.interrupted


def test_rows_that_were_not_delivered_are_found_with_their_artifacts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    first, second, third = row("a"), row("b"), row("c", "failed")
    journal.keep([first])
    journal.keep([second, third])
    journal.created({"b": "replay-of-b"})
    journal.delivered([first])
    journal.close()
    found, failed = left_behind(tmp_path / "run")
    assert (failed.id, failed.result.status) == ("c", "failed")  # it is a result like any other
    assert (found.id, found.result.candidate_episode_id) == ("b", "replay-of-b")
    assert (found.result.metrics, found.fps) == ({"step_count": 3}, 10.0)


def test_what_is_kept_survives_a_power_cut(tmp_path: Path) -> None:
    """When `keep` has returned: the folder, the line of each row, and the file with its artifacts."""
    folder = tmp_path / "runs" / "run"
    with WatchedFiles(tmp_path) as watched:
        journal = Journal(folder)
        journal.keep([row("a"), row("b")])
        assert watched.is_durable(tmp_path / "runs")
        journal.keep([row("c", "failed")])
        assert watched.is_durable(tmp_path / "runs")
        journal.close()
    assert watched.named_before_sync == []


def test_the_artifacts_are_on_disk_before_the_line_that_names_them(tmp_path: Path) -> None:
    """Otherwise a power cut in between leaves a row whose artifacts are lost."""

    def complete(watched: WatchedFiles) -> None:
        for lines in tmp_path.glob("*.jsonl"):
            durable = watched.after_power_cut(lines)
            for line in (durable if isinstance(durable, bytes) else b"").splitlines():
                for name, *_ in json.loads(line)["row"]["pieces"].values():
                    assert watched.after_power_cut(tmp_path / name) == b"npznpznpz"

    with WatchedFiles(tmp_path, at_each_step=complete):
        journal = Journal(tmp_path)
        journal.keep([row("a")])
        journal.close()


def test_artifacts_lie_where_the_row_says(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    rows = [row("a", data=b"first"), row("b", data=b"second")]
    journal.keep(rows)
    for each, expected in zip(rows, (b"first", b"second"), strict=True):
        piece = each.pieces["sensors"]
        stored = (tmp_path / piece.file).read_bytes()
        assert stored[piece.start : piece.start + piece.size] == expected * 2
    journal.close()


def test_half_a_line_is_what_was_never_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.keep([row("a")])
    journal.close()
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"row":{"baseline_epi')
    assert [each.id for each in left_behind(tmp_path)] == ["a"]


def test_what_is_no_line_hides_no_other_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.keep([row("a")])
    journal.started("b")
    journal.close()
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(b'{"row":{"baseline_epi\n' + path.read_bytes())
    assert [each.id for each in left_behind(tmp_path)] == ["a"]
    assert interrupted(tmp_path) == {"b"}


def test_a_row_whose_artifacts_are_gone_is_done_again_and_counts_as_interrupted(
    tmp_path: Path,
) -> None:
    """A policy could remove the artifacts of what it lost."""
    journal = Journal(tmp_path)
    journal.started("a")
    journal.keep([row("a")])
    journal.close()
    assert interrupted(tmp_path) == set()
    next(tmp_path.glob("*.batch")).unlink()
    assert left_behind(tmp_path) == []
    assert interrupted(tmp_path) == {"a"}


def test_the_journal_of_a_living_runner_is_left_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.keep([row("a")])
    assert left_behind(tmp_path) == []
    remove_journals(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    journal.close()
    assert len(left_behind(tmp_path)) == 1
    remove_journals(tmp_path)
    assert not tmp_path.exists()


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="journal="):
        Journal(tmp_path / "file" / "run")

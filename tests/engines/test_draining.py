"""A run that is told to stop takes no more items and loses none that it has begun."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from rollbook.engines import LATER, Done, Parallel, TaskFailure, run_tasks
from tests.engines.test_in_order import wait_until

PARALLEL: tuple[Parallel, ...] = ("inline", "thread", "process")


def announced(folder: str) -> Callable[[int], int]:
    """Each task leaves a file when it begins. Item 0 then waits until it may end, and an odd item fails."""

    def work(item: int) -> int:
        Path(folder, f"{item}-{os.urandom(4).hex()}").touch()
        if item == 0:
            wait_until(Path(folder, "may-end").exists)
        if item % 2:
            raise ValueError(f"{item} is odd")
        return item

    return work


def begun(folder: Path) -> list[int]:
    return sorted(int(each.name.partition("-")[0]) for each in folder.glob("[0-9]*-*"))


@pytest.mark.parametrize("parallel", PARALLEL)
def test_nothing_is_taken_after_the_caller_has_seen_enough(
    parallel: Parallel, tmp_path: Path
) -> None:
    """The caller decides with a result in its hands, before the next item is taken."""
    seen: list[Done[int, int]] = []
    for done in run_tasks(
        partial(announced, str(tmp_path)), range(2, 90), parallel=parallel, stop=lambda: bool(seen)
    ):
        seen.append(done)
    assert [done.item for done in seen] == begun(tmp_path) == [2]


@pytest.mark.parametrize("parallel", ["thread", "process"])
@pytest.mark.parametrize("in_order", [False, True])
def test_what_runs_when_a_run_is_stopped_goes_on_to_its_end(
    parallel: Parallel, in_order: bool, tmp_path: Path
) -> None:
    def stop() -> bool:
        if 0 not in begun(tmp_path):  # the other worker may have begun earlier
            return False
        (tmp_path / "may-end").touch()
        return True

    results = run_tasks(
        partial(announced, str(tmp_path)),
        count(0, 2),
        parallel=parallel,
        workers=2,
        in_order=in_order,
        stop=stop,
    )
    values = {done.item: done.value for done in results}
    assert sorted(values) == begun(tmp_path)
    assert values == {item: item for item in values}


def test_a_run_that_is_stopped_from_the_beginning_takes_nothing() -> None:
    items = iter([1, 2])
    start = partial(announced, "nowhere")
    assert list(run_tasks(start, items, parallel="inline", stop=lambda: True)) == []
    assert next(items) == 1


@pytest.mark.parametrize("in_order", [False, True])
def test_an_item_that_waits_for_its_next_attempt_comes_back_with_its_failure(
    in_order: bool, tmp_path: Path
) -> None:
    results = run_tasks(
        partial(announced, str(tmp_path)),
        [1, 3],
        parallel="inline",
        retries=9,
        in_order=in_order,
        stop=lambda: len(begun(tmp_path)) == 3,
    )
    (done,) = results
    assert (done.item, str(done.failure), done.attempts) == (1, "ValueError: 1 is odd", 3)
    assert begun(tmp_path) == [1, 1, 1]


def test_retries_are_told_before_they_begin_and_remembered_to_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, str, int]] = []

    def tell(item: int, failure: TaskFailure) -> None:
        told.append((item, str(failure), len(begun(tmp_path))))

    (done,) = run_tasks(
        partial(announced, str(tmp_path)), [1], parallel="inline", retries=2, on_retry=tell
    )
    assert told == [(1, "ValueError: 1 is odd", 1), (1, "ValueError: 1 is odd", 2)]
    assert [str(each) for each in done.earlier_failures] == ["ValueError: 1 is odd"] * 2
    assert (done.attempts, str(done.failure)) == (3, "ValueError: 1 is odd")


@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("in_order", [False, True])
def test_the_next_item_can_depend_on_results_that_are_not_there_yet(
    parallel: Parallel, in_order: bool, tmp_path: Path
) -> None:
    seen: list[int] = []

    def items() -> Iterator[int]:
        yield 2
        yield 4
        while len(seen) < 2:
            yield LATER
        yield sum(seen)

    results = run_tasks(
        partial(announced, str(tmp_path)), items(), parallel=parallel, workers=3, in_order=in_order
    )
    for done in results:
        seen.append(done.item)
    assert sorted(seen) == [2, 4, 6]


def test_a_run_whose_next_item_is_awaited_can_be_stopped(tmp_path: Path) -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        while True:
            asked.append(0)
            yield LATER

    start = partial(announced, str(tmp_path))
    assert not list(run_tasks(start, items(), stop=lambda: len(asked) == 3))

"""Passwords: kept as argon2id, compared in threads, in a line that does not grow without end."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from rollbook.server.accounts import passwords
from rollbook.server.accounts.passwords import hashed, is_password
from rollbook.server.http.responses import Problem

WORDS = "four unrelated words here"


def test_a_password_is_kept_as_argon2id_with_a_salt_of_its_own() -> None:
    async def twice() -> tuple[str, str]:
        return await hashed(WORDS), await hashed(WORDS)

    one, other = asyncio.run(twice())
    assert one.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert one != other
    assert WORDS not in one


@pytest.mark.parametrize(
    ("tried", "right"),
    [
        (WORDS, True),
        (WORDS.upper(), False),
        (WORDS + " ", False),
        (WORDS[:-1], False),
        ("", False),
        ("\ud800", False),
        ("x" * 100_000, False),
    ],
)
def test_only_the_password_itself_is_the_password(tried: str, right: bool) -> None:
    async def compare() -> bool:
        return await is_password(tried, await hashed(WORDS))

    assert asyncio.run(compare()) is right


def test_letters_count_however_a_keyboard_composes_them() -> None:
    async def compare() -> bool:
        return await is_password("cafe\u0301 au lait, encore", await hashed("café au lait, encore"))

    assert asyncio.run(compare())


@pytest.mark.parametrize("stored", [None, "", "nonsense", "$argon2id$v=19$m=1,t=1,p=1$x$y"])
def test_nothing_is_the_password_of_an_account_that_has_none(stored: str | None) -> None:
    assert asyncio.run(is_password(WORDS, stored)) is False


def test_a_crowd_waits_in_line_and_one_that_is_too_long_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passwords, "_MOST_WAITING", 4)

    async def crowd() -> list[object]:
        tries = (is_password(WORDS, None) for _ in range(10))
        return list(await asyncio.gather(*tries, return_exceptions=True))

    found = asyncio.run(crowd())
    turned_away = [each for each in found if isinstance(each, Problem)]
    assert found.count(False) == 4
    assert len(turned_away) == 6
    assert {each.status for each in turned_away} == {503}
    assert {each.headers["Retry-After"] for each in turned_away} == {"5"}
    assert asyncio.run(is_password(WORDS, None)) is False, "the line is empty again"


def test_others_go_on_while_a_password_is_compared() -> None:
    async def meanwhile() -> int:
        comparing = asyncio.ensure_future(is_password(WORDS, None))
        turns = 0
        while not comparing.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(meanwhile()) > 10


@pytest.mark.slow
def test_an_account_that_is_not_there_takes_as_long() -> None:
    async def compare() -> dict[str, list[float]]:
        stored = await hashed(WORDS)
        times: dict[str, list[float]] = {"there": [], "not there": []}
        for _ in range(25):
            for name, each in (("there", stored), ("not there", None)):
                began = time.perf_counter()
                await is_password("wrong", each)
                times[name].append(time.perf_counter() - began)
        return times

    medians = [statistics.median(each) for each in asyncio.run(compare()).values()]
    assert max(medians) / min(medians) < 1.3

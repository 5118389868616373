"""Errors are one tree, drawn at the top of its file; each names what is involved and survives a process border."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from rollbook import errors
from rollbook.errors import UnsupportedVersion


def subclasses(cls: type[errors.RollbookError]) -> list[type[errors.RollbookError]]:
    below = [each for sub in cls.__subclasses__() for each in subclasses(sub)]
    return [cls, *below]


ALL = subclasses(errors.RollbookError)


def example(cls: type[errors.RollbookError]) -> errors.RollbookError:
    return cls(
        **{field.name: 3 if field.type == "int" else "x" for field in dataclasses.fields(cls)}
    )


def test_the_drawing_shows_every_class() -> None:
    drawing = errors.__doc__ or ""
    assert [cls.__name__ for cls in ALL if cls.__name__ not in drawing] == []


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in ALL]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_can_be_shown_and_pickled(cls: type[errors.RollbookError]) -> None:
    error = example(cls)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert again.fields == error.fields
    assert str(again) == str(error) != ""
    assert error.as_dict()["code"] == cls.code


def test_a_huge_id_does_not_flood_the_message_but_is_kept() -> None:
    error = errors.EmptyTrainerBatch(batch_id="x" * 1_000_000)
    assert len(str(error)) < 500
    assert len(error.batch_id) == 1_000_000


def test_only_what_passes_by_itself_is_worth_a_retry() -> None:
    retryable = {cls.__name__ for cls in ALL if cls.retryable}
    assert retryable == {
        *("LeaseHeld", "TransportError", "RateLimitError", "ServerError", "DatabaseUnavailable"),
        "BlobStoreUnavailable",
    }


@pytest.mark.parametrize(
    ("found", "current", "later"),
    [
        (2, 1, True),
        ("1.10-core", "1.9-core", True),
        ("2.0-core", "1.0-core", True),
        ("0.9", "1.0", False),
        (1, 2, False),
        (None, "1.0", False),
        ("nonsense", 1, False),
    ],
)
def test_a_newer_version_needs_a_later_release(found: object, current: object, later: bool) -> None:
    told = str(UnsupportedVersion.of("x.zarr", found, current, "write it again"))
    assert ("needs a later release of rollbook" in told) is later
    assert ("write it again" in told) is not later
    assert repr(found) in told

"""Errors of Python about what an episode holds, as errors of Rollbook: files that cannot be read, text that is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollbook.errors import InvalidValue, RollbookError
from rollbook.files import unreadable


@contextmanager
def file_errors(otherwise: str) -> Iterator[None]:
    """`otherwise` is the path in the message where the system names none."""
    try:
        yield
    except RollbookError:
        raise
    except OSError as error:
        raise unreadable(error.filename or otherwise, error) from error


@contextmanager
def text_errors() -> Iterator[None]:
    """For a block that writes names and metadata. JSON can hold half characters, which no file can."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidValue(
            record="episode",
            field="text",
            value=ascii(error.object)[:200],
            expected="Unicode characters",
        ) from error

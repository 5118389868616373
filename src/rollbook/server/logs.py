"""Logs: one JSON object per line, with the id of its request.

A URL can be a secret: signed URLs and sign-in links are. So a request is logged by its route, `/blobs/{token}`, and
never by its path, query or headers.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import traceback
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from rollbook.errors import ConfigurationError

LEVELS = ("debug", "info", "warning", "error")
_STANDARD_ERROR = 2
_PROCESS = secrets.token_hex(6)
_numbers = itertools.count(1)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
_NOISY = ("httpx", "httpcore", "botocore", "boto3", "urllib3", "alembic")
"""Libraries that log the URLs of requests, including signatures."""
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class Log(Protocol):
    """Writes an event and its values."""

    def debug(self, event: str, **values: Any) -> Any: ...
    def info(self, event: str, **values: Any) -> Any: ...
    def warning(self, event: str, **values: Any) -> Any: ...
    def error(self, event: str, **values: Any) -> Any: ...


def set_up_logs(level: str) -> Log:
    if level not in LEVELS:
        message = f"log-level: {level!r} is not one of {', '.join(LEVELS)}"
        raise ConfigurationError(message=message)
    number = logging.getLevelNamesMapping()[level.upper()]
    log = _Lines(number)
    _catch_others(log, number)
    return log


def request_id_of(sent: str | None) -> str:
    """The id that the client sent, when it is safe to log; else a new one."""
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent
    return f"{_PROCESS}-{next(_numbers):x}"


def bind_request(request_id: str) -> None:
    """Adds the id to every line that is logged for this request."""
    _request_id.set(request_id)


def frames_of(error: BaseException) -> list[str]:
    """Where the error happened, without the values of variables."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]


class _Lines:
    """Writes whole lines to standard error. A log that cannot be written, on a full disk, must not fail the request."""

    def __init__(self, least: int) -> None:
        self._least = least

    def debug(self, event: str, **values: Any) -> None:
        self.tell(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:
        self.tell(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        self.tell(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        self.tell(logging.ERROR, event, values)

    def tell(self, level: int, event: str, values: dict[str, Any]) -> None:
        if level < self._least:
            return
        request_id = _request_id.get()
        line = {
            **({} if request_id is None else {"request_id": request_id}),
            **values,
            "event": event,
            "level": logging.getLevelName(level).lower(),
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        left = msgspec.json.encode(line, enc_hook=str) + b"\n"
        with suppress(OSError):
            while left:
                left = left[os.write(_STANDARD_ERROR, left) :]


class _Passed(logging.Handler):
    """Writes the log records of other libraries in our form."""

    def __init__(self, log: _Lines) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        values: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            values["error"] = type(record.exc_info[1]).__name__
            values["frames"] = frames_of(record.exc_info[1])
        self._log.tell(record.levelno, record.getMessage(), values)


def _catch_others(log: _Lines, level: int) -> None:
    root = logging.getLogger()
    root.handlers = [_Passed(log)]
    root.setLevel(max(level, logging.INFO))
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)

"""A server that ends when it was asked to, whatever hangs: requests, the database, S3 or a disk."""

from __future__ import annotations

import logging
import os
import threading
from types import FrameType

import uvicorn

_CLOSING_S = 5.0


def request_grace_s(grace_s: float) -> float:
    """What running requests get of the grace period. The rest is for closing the database and the blob store."""
    return max(0.0, grace_s - min(_CLOSING_S, max(1.0, grace_s / 2)))


class PunctualServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self._grace_s = grace_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            timer = threading.Timer(max(1.0, self._grace_s), self._end)
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)

    def _end(self) -> None:
        logging.getLogger("rollbook").error("ended_late: something did not close in time")
        os._exit(1)

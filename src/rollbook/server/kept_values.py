"""KeptValues: values that are costly to read again, up to a number of bytes. The one that was unused for the longest
time goes first. Threads may use it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class KeptValues:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: Hashable) -> Any | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[1]

    def keep(self, key: Hashable, value: Any, size: int) -> None:
        """A value larger than everything that may be kept is not kept."""
        if size > self._most_bytes:
            return
        with self._lock:
            self._bytes += size - self._values.pop(key, (0, None))[0]
            self._values[key] = (size, value)
            while self._bytes > self._most_bytes:
                _, (gone, _) = self._values.popitem(last=False)
                self._bytes -= gone

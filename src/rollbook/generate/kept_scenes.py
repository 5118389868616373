"""KeptScenes: prepared scenes that stay in memory, up to a budget of bytes. All environments of a process share one.

Preparing a scene takes as long as about twenty steps in it, so an environment that visits its rows again and again
must not prepare them again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from rollbook.generate.config_checks import invalid_setting
from rollbook.generate.prepared_scene import PreparedScene

DEFAULT_BUDGET_BYTES = 2 * 1024**3
"""Enough for about 80 procedural flats of 100 000 triangles: one takes 25 MB."""


class KeptScenes:
    """The least recently used scenes are dropped when the scenes together exceed the budget.

    The last used scene is kept even if it alone is larger. An episode that still runs in a dropped scene holds on to
    it until it ends. Several threads may use one object.
    """

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._scenes: OrderedDict[Hashable, PreparedScene] = OrderedDict()
        self._lock = Lock()
        self._budget_bytes = DEFAULT_BUDGET_BYTES
        self.budget_bytes = budget_bytes

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    @budget_bytes.setter
    def budget_bytes(self, value: int) -> None:
        if value < 0:
            raise invalid_setting("scene_budget_bytes", value, "a number of bytes, 0 or more")
        self._budget_bytes = value
        self.fit()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(scene.nbytes for scene in self._scenes.values())

    def __len__(self) -> int:
        return len(self._scenes)

    def scene(self, key: Hashable, prepare: Callable[[], PreparedScene]) -> PreparedScene:
        """The scene with this key, now the last used one. `prepare` makes it if it is not kept."""
        with self._lock:
            found = self._scenes.get(key)
            if found is None:
                found = self._scenes[key] = prepare()
            self._scenes.move_to_end(key)
            return found

    def fit(self) -> None:
        """Drops scenes until the rest fits. Call it after the last used scene has grown."""
        with self._lock:
            total = sum(scene.nbytes for scene in self._scenes.values())
            while total > self._budget_bytes and len(self._scenes) > 1:
                _, dropped = self._scenes.popitem(last=False)
                total -= dropped.nbytes

    def clear(self) -> None:
        with self._lock:
            self._scenes.clear()


SCENES = KeptScenes()
"""The scenes of this process."""

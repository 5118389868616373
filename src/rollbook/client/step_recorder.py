"""StepRecorder: the steps and frames of an episode that is being recorded, in a folder of their own."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.client.frame_log import FrameLog
from rollbook.client.step_files import STEPS_FOLDER, FinishedSteps, finish_steps
from rollbook.client.step_log import StepLog
from rollbook.files import write_errors


class StepRecorder:
    def __init__(self, journal: Path | None, fps: float | None) -> None:
        """Without the journal of a spool the folder is temporary, and gone with the program."""
        if journal is None:
            self.folder = Path(tempfile.mkdtemp(prefix="rollbook-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        else:
            self.folder = journal / STEPS_FOLDER
            with write_errors(self.folder):
                self.folder.mkdir(mode=0o700)
        self._fps = fps
        self._steps = StepLog(self.folder, fps)
        self._frames: FrameLog | None = None
        self._lock = threading.Lock()

    def add_step(self, given: Mapping[str, Any], t: float | None, t_ns: int | None) -> None:
        self._steps.add(given, t, t_ns)

    def add_frame(self, image: Any, camera: str | None, t: float | None, t_ns: int | None) -> None:
        with self._lock:
            if self._frames is None:
                self._frames = FrameLog(self.folder, self._fps)
        self._frames.add(image, camera, t, t_ns)

    def finish(self) -> FinishedSteps:
        if self._frames is not None:
            self._frames.close()
        return finish_steps(self.folder)

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

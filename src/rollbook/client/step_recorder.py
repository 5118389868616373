"""StepRecorder: the steps and frames of an episode that is being recorded, in a folder of their own."""

from __future__ import annotations

import os
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
from rollbook.errors import ConfigurationError, StorageError
from rollbook.files import write_errors


class StepRecorder:
    """Belongs to the process that made it. One that is forked from it would write over its steps."""

    def __init__(self, journal: Path | None, fps: float | None) -> None:
        """Without the journal of a spool the folder is temporary, and gone with the program."""
        self._process = os.getpid()
        if journal is None:
            self.folder = Path(tempfile.mkdtemp(prefix="rollbook-"))
            weakref.finalize(self, _remove, self.folder, self._process)
        else:
            self.folder = journal / STEPS_FOLDER
            with write_errors(self.folder):
                self.folder.mkdir(mode=0o700)
        self._fps = fps
        self._steps = StepLog(self.folder, fps)
        self._frames: FrameLog | None = None
        self._lock = threading.Lock()

    def add_step(self, given: Mapping[str, Any], t: float | None, t_ns: int | None) -> None:
        self._check_process()
        self._steps.add(given, t, t_ns)

    def add_frame(self, image: Any, camera: str | None, t: float | None, t_ns: int | None) -> None:
        self._check_process()
        with self._lock:
            if self._frames is None:
                self._frames = FrameLog(self.folder, self._fps)
        self._frames.add(image, camera, t, t_ns)

    def finish(self) -> FinishedSteps:
        self._check_process()
        if self._frames is not None:
            self._frames.close()
        finished = finish_steps(self.folder)
        self._check_complete("steps", self._steps.rows, finished.steps or 0)
        frames = 0 if self._frames is None else self._frames.frames
        self._check_complete("frames", frames, frames if "video" in finished.files else 0)
        return finished

    def discard(self) -> None:
        _remove(self.folder, self._process)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            message = (
                f"the episode belongs to process {self._process}, from which this one was forked; "
                "start an episode of its own in each process"
            )
            raise ConfigurationError(message=message)

    def _check_complete(self, what: str, logged: int, there: int) -> None:
        """The folder may have been emptied, for example by whatever cleans the folder of temporary files."""
        if there < logged:
            detail = f"{logged} {what} were logged and {there} are there: files were removed or cut"
            raise StorageError(path=str(self.folder), detail=detail)


def _remove(folder: Path, process: int) -> None:
    """A forked process runs this too when it ends, but the folder is not its own."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)

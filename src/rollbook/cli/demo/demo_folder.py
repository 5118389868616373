"""DemoFolder: where everything of a demo lies, and a note of what each thing was made of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from rollbook import __version__
from rollbook.client.credentials import ENV_HOME
from rollbook.digest import digest_of
from rollbook.errors import StorageError, TargetExists
from rollbook.files import make_folders, write_bytes, write_errors

_NOTES = "demo.json"
_VERSION = "rollbook-demo-v1"


class DemoFolder:
    """What a demo before this one made of the same things is used again.

    DEMO/
      demo.json        what each thing was made of
      sources.toml     the config of the flats        rollouts.toml   the config of the rollouts
      sources/         the flats                      campaigns/      shards of the rollouts
      train.zarr       rollouts to learn from         held-out.zarr   rollouts in other flats
      run/             what was trained
      server/          episodes and decisions         home/           the key of the server
    """

    def __init__(self, path: Path) -> None:
        """The folder may be new, empty, or that of a demo before: anything else stays untouched."""
        self.path = path.absolute()
        with write_errors(self.path):
            make_folders(self.path)
        if not (self / _NOTES).exists():
            if any(self.path.iterdir()):
                detail = "the folder is not empty, and no demo made it; name another one"
                raise TargetExists(path=str(self.path), detail=detail)
            self._write_notes({})
        self._notes = self._read_notes()
        for name in ("sources.toml", "rollouts.toml"):
            text = files(__package__).joinpath(name).read_bytes()
            write_bytes(self.path / name, text, replace=True)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def _read_notes(self) -> dict[str, dict[str, Any]]:
        path = self / _NOTES
        try:
            read = json.loads(path.read_bytes())
            if read["version"] != _VERSION or not isinstance(read["made"], dict):
                raise ValueError("it is of another version")
        except (OSError, ValueError, KeyError, TypeError) as error:
            detail = (
                f"not the notes of a demo ({error}); remove {self.path}, or name another folder"
            )
            raise StorageError(path=str(path), detail=detail) from error
        made: dict[str, dict[str, Any]] = read["made"]
        return made

    def made(self, name: str, made_of: object) -> dict[str, Any] | None:
        """What was noted about a thing, if it was made of the same; else None."""
        noted = self._notes.get(name)
        return None if noted is None or noted.get("key") != _key(made_of) else noted["about"]

    def note(self, name: str, made_of: object, about: Mapping[str, Any] | None = None) -> None:
        """Call it when the thing is complete."""
        self._notes[name] = {"key": _key(made_of), "about": dict(about or {})}
        self._write_notes(self._notes)

    def _write_notes(self, made: dict[str, Any]) -> None:
        text = json.dumps({"version": _VERSION, "made": made}, indent=1)
        write_bytes(self / _NOTES, text.encode(), replace=True)

    @contextmanager
    def own_home(self) -> Iterator[None]:
        """The key and the journals of the demo stay in its folder."""
        before = os.environ.get(ENV_HOME)
        os.environ[ENV_HOME] = str(self / "home")
        try:
            yield
        finally:
            if before is None:
                del os.environ[ENV_HOME]
            else:
                os.environ[ENV_HOME] = before


def _key(made_of: object) -> str:
    return digest_of(_VERSION, [__version__, json.dumps(made_of, sort_keys=True)])

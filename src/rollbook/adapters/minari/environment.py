"""RecordedEnvironment: what a Minari dataset says about its environment, in the form that a replay compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rollbook.adapters.extras import library
from rollbook.adapters.steps.json_file import parse_object
from rollbook.contracts.environment_description import (
    DESCRIPTION_KEY,
    TRUNCATED_BY_KEY,
    EnvironmentDescription,
    truncated_by,
)
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import InvalidValue

_LONGEST_SPEC = 16_384


@dataclass(frozen=True, slots=True)
class RecordedEnvironment:
    id: str
    spec: Mapping[str, Any] | None
    """None where it is too long, or cannot be kept as JSON."""
    description: EnvironmentDescription | None
    """None where the class of the environment is not known on this machine."""

    @classmethod
    def of(cls, env_spec: object, place: str) -> RecordedEnvironment | None:
        """None where the dataset names no environment. `place` names the file in errors."""
        if not isinstance(env_spec, str):
            return None
        stated = parse_object(env_spec, f"{place} (env_spec)")
        name = str(stated.get("id") or "")
        if not name:
            return None
        try:
            kept = plain_metadata(stated) if len(env_spec) <= _LONGEST_SPEC else None
        except InvalidValue:
            kept = None
        class_name = _class_name(name, stated.get("entry_point"))
        described = (
            None if class_name is None else EnvironmentDescription.of_spec(stated, class_name)
        )
        return cls(name, kept, described)

    def metadata(self, steps: int, truncated: bool) -> dict[str, Any]:
        """The keys that the Gymnasium adapter writes."""
        found: dict[str, Any] = {"gymnasium_env_id": self.id}
        if self.spec is not None:
            found["gymnasium_spec"] = dict(self.spec)
        if self.description is not None:
            found[DESCRIPTION_KEY] = self.description.to_json()
            if truncated:
                found[TRUNCATED_BY_KEY] = truncated_by(steps, self.description.max_steps)
        return found


def _class_name(name: str, entry_point: object) -> str | None:
    """The name of the class, where this machine knows the environment under the same id and entry point.

    An entry point may be a function that makes an environment of another class. So it is looked up; a module that
    only the dataset names is never loaded.
    """
    registered = library("gymnasium").registry.get(name)
    if registered is None or not isinstance(entry_point, str):
        return None
    if registered.entry_point != entry_point or ":" not in entry_point:
        return None
    module, _, attribute = entry_point.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception:  # noqa: BLE001 - the module of an environment may fail in any way, for want of a simulator
        return None
    return found.__name__ if isinstance(found, type) else None

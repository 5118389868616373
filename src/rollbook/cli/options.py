"""Options of a command as one object: a dataclass declares each option once, with its default and its help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., Any])
_NAME = "options"


def with_options(kind: type[Any]) -> Callable[[Command], Command]:
    """Gives a command one option for every field of the dataclass `kind`.

    The command has a parameter `options`, which receives an object of `kind`.
    """
    names = [field.name for field in dataclasses.fields(kind)]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> Any:
            options = kind(**{name: given.pop(name) for name in names})
            return command(**given, **{_NAME: options})

        run.__signature__ = _flat_signature(command, kind)  # type: ignore[attr-defined]
        run.__annotations__ = {
            each.name: each.annotation for each in inspect.signature(run).parameters.values()
        }
        return run  # type: ignore[return-value]

    return decorate


def _flat_signature(command: Callable[..., Any], kind: type[Any]) -> inspect.Signature:
    """The signature of the command with the fields of `kind` in the place of `options`."""
    own, hints = (get_type_hints(each, include_extras=True) for each in (command, kind))
    flat: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        if each.name != _NAME:
            flat.append(each.replace(kind=each.KEYWORD_ONLY, annotation=own[each.name]))
            continue
        for field in dataclasses.fields(kind):
            given = field.default is not dataclasses.MISSING
            default = field.default if given else inspect.Parameter.empty
            flat.append(
                each.replace(name=field.name, default=default, annotation=hints[field.name])
            )
    keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in flat]
    return inspect.Signature(keyword_only)

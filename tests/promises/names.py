"""Names that users write: of modules, their callables with parameters, errors, commands and settings.

Names may be added, and optional parameters at the end of a call. None may go, move, or change its default.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.promises.inner import command_tree, environment_names, server_settings

MODULES = (
    "rollbook.adapters.gymnasium",
    "rollbook.adapters.lerobot",
    "rollbook.client",
    "rollbook.contracts",
    "rollbook.evals",
    "rollbook.evals.verify",
    "rollbook.rollouts",
    "rollbook.train",
)
_PLAIN = (bool, int, float, str, bytes, type(None))
_BUILT_IN = {name for kind in (Exception, dict, str, int) for name in dir(kind)}


def public_names() -> dict[str, Any]:
    return {
        "modules": {name: _module(name) for name in MODULES},
        "errors": _errors(),
        "commands": dict(command_tree()),
        "settings": server_settings(),
        "environment": environment_names(),
    }


def _module(name: str) -> dict[str, Any]:
    module = importlib.import_module(name)
    public = getattr(module, "__all__", None) or [
        each
        for each, value in vars(module).items()
        if not each.startswith("_") and getattr(value, "__module__", None) == name
    ]
    return {each: _described(getattr(module, each)) for each in sorted(public)}


def _described(value: Any) -> Any:
    if typing.get_origin(value) is typing.Literal:
        return f"one of {sorted(typing.get_args(value))}"
    if typing.get_origin(value) is not None:
        return "a type"
    if inspect.isclass(value):
        return _class(value)
    if callable(value) and hasattr(value, "__name__"):
        return _parameters(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    return f"a {type(value).__name__}"


def _class(kind: type) -> dict[str, Any]:
    if issubclass(kind, enum.Enum):
        return {"values": {each.name: each.value for each in kind}}
    described: dict[str, Any] = {}
    if (call := _parameters(kind)) != ["core"]:  # only a client makes these
        described["call"] = call
    members = {
        name: _member(inspect.getattr_static(kind, name, None), getattr(kind, name, None))
        for name in sorted({*dir(kind)} - {*_fields(kind)})  # fields stand in the call
        if not name.startswith("_") and name not in _BUILT_IN
    }
    return described | ({"members": members} if members else {})


def _fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return ()


def _member(static: Any, value: Any) -> Any:
    if isinstance(static, classmethod | staticmethod) or inspect.isfunction(value):
        return _parameters(value)
    return "value"


def _parameters(value: Any) -> list[str]:
    try:
        given = inspect.signature(value)
    except ValueError:
        return ["…"]
    return [_parameter(each) for each in given.parameters.values()]


def _parameter(each: inspect.Parameter) -> str:
    """As it is written: with its stars, and with its default where that can be written down."""
    mark: dict[Any, str] = {
        each.VAR_POSITIONAL: "*",
        each.VAR_KEYWORD: "**",
        each.KEYWORD_ONLY: "keyword ",
    }
    named: str = mark.get(each.kind, "") + each.name
    if each.default is each.empty:
        return named
    return f"{named}={_default(each.default)}"


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value):
        return repr(value)
    return repr(value) if isinstance(value, _PLAIN) else "…"


def _errors() -> dict[str, Any]:
    """The tree of all errors, with their codes and fields."""
    module = importlib.import_module("rollbook.errors")
    return {
        name: {
            "kinds": [each.__name__ for each in kind.__mro__[1:-1]],
            "code": getattr(kind, "code", None),
            "fields": list(_fields(kind)),
        }
        for name, kind in sorted(vars(module).items())
        if inspect.isclass(kind) and issubclass(kind, BaseException)
    }


# ---------------------------------------------------------------------------------------- comparing


def problems(recorded: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [
        *(f"- {line}" for line in _compare("", recorded["modules"], found["modules"])),
        *(f"- error {line}" for line in _compare_errors(recorded["errors"], found["errors"])),
        *(f"- {line}" for line in _compare_commands(recorded["commands"], found["commands"])),
        *(f"- setting {line}" for line in _compare("", recorded["settings"], found["settings"])),
        *(
            f"- environment variable {name} is not known any more"
            for name in recorded["environment"]
            if name not in found["environment"]
        ),
    ]


def _compare(place: str, was: Any, now: Any) -> Iterator[str]:
    """What was recorded of names has to be there; lists are parameters."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name, each in was.items():
            if name not in now:
                yield f"{place}{name} is not there any more"
            else:
                yield from _compare(f"{place}{name} ", each, now[name])
    elif isinstance(was, list) and isinstance(now, list):
        yield from _compare_parameters(place, was, now)
    elif was != now:
        yield f"{place}is {now!r}, was {was!r}"


def _compare_parameters(place: str, was: list[str], now: list[str]) -> Iterator[str]:
    """Those by place stay where they are; those by keyword may stand in any order; new ones are optional."""
    by_place, kept = (
        [each for each in some if " " not in each.split("=")[0]] for some in (was, now)
    )
    positional = [each for each in kept if not each.startswith("*")]
    recorded = [each for each in by_place if not each.startswith("*")]
    if positional[: len(recorded)] != recorded:
        yield f"{place}takes ({', '.join(now)}), took ({', '.join(was)})"
        return
    for each in was:
        if each not in now:
            yield f"{place}does not take {each!r} any more; it takes ({', '.join(now)})"
    for each in now:
        if each not in was and "=" not in each and not each.startswith("*"):
            yield f"{place}cannot be called without {each!r}, which is new"


def _compare_errors(was: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name, each in was.items():
        if name not in now:
            yield f"{name} is not there any more"
            continue
        missing = [kind for kind in each["kinds"] if kind not in now[name]["kinds"]]
        if missing:
            yield f"{name} is no {', '.join(missing)} any more"
        for word in ("code", "fields"):
            if each[word] != now[name][word]:
                yield f"{name}: {word} is {now[name][word]!r}, was {each[word]!r}"


def _compare_commands(was: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for command, parameters in was.items():
        if command not in now:
            yield f"`{command}` is not there any more"
            continue
        yield from _compare(f"`{command}` ", parameters, now[command])
        for name in now[command].keys() - parameters.keys():
            if now[command][name].get("required"):
                yield f"`{command}` cannot be called without {name}, which is new"
        arguments = [name for name in now[command] if not name.startswith("-")]
        before = [name for name in parameters if not name.startswith("-")]
        if arguments[: len(before)] != before:
            yield f"`{command}` takes {arguments}, took {before}"

"""The fields of a config class as rows of a table: key, values, default, and what its docstring says."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Any
    """The type without None and without annotations."""
    default: Any
    """`NO_DEFAULT` where the key has to be given."""
    about: str


NO_DEFAULT = object()


def fields_of(config: type[Any]) -> Iterator[Field]:
    """In the order in which they are declared."""
    hints, about = get_type_hints(config), _docstrings(config)
    for name, default in _defaults(config):
        yield Field(name, _bare(hints[name]), default, about.get(name, ""))


def is_config(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    )


def item_of(kind: Any) -> Any:
    """The type of the items of a list, or None."""
    arguments = get_args(kind)
    is_list = get_origin(kind) in (tuple, list) and arguments[1:] in ((), (Ellipsis,))
    return _bare(arguments[0]) if is_list else None


def values_in_words(kind: Any) -> str:
    """What may be written for a key of this type."""
    if get_origin(kind) in (Union, types.UnionType):
        return "path" if Path in get_args(kind) or str in get_args(kind) else "table"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    item = item_of(kind)
    if item is not None:
        return f"list of {_many(values_in_words(item))}"
    if get_origin(kind) is tuple:
        parts = [values_in_words(_bare(each)) for each in get_args(kind)]
        same = len(set(parts)) == 1
        return f"list of {len(parts)} {_many(parts[0])}" if same else f"[{', '.join(parts)}]"
    if get_origin(kind) is dict:
        return "table"
    return _WORDS.get(kind, "table")


def _many(words: str) -> str:
    return f"{words}s" if words in _WORDS.values() else words


def _bare(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        given = [each for each in get_args(hint) if each not in (type(None), msgspec.UnsetType)]
        return _bare(given[0]) if len(given) == 1 else Union[tuple(given)]  # noqa: UP007
    return hint


def _defaults(config: type[Any]) -> Iterator[tuple[str, Any]]:
    if issubclass(config, msgspec.Struct):
        for struct_field in msgspec.structs.fields(config):
            yield struct_field.name, _default(struct_field, msgspec.NODEFAULT)
    else:
        for dataclass_field in dataclasses.fields(config):
            yield dataclass_field.name, _default(dataclass_field, dataclasses.MISSING)


def _default(field: Any, missing: object) -> Any:
    if field.default is not missing:
        return field.default
    return NO_DEFAULT if field.default_factory is missing else field.default_factory()


def _docstrings(config: type[Any]) -> dict[str, str]:
    """The string below each field. Python does not keep it, so it is read from the source."""
    found: dict[str, str] = {}
    for each in reversed(config.__mro__):
        if each.__module__.startswith("rollbook."):
            found |= _docstrings_in(each)
    return found


def _docstrings_in(config: type[Any]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return dict(_texts_below(tree.body))


def _texts_below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Every name that is declared, with the string on the line after it."""
    for declared, below in pairwise(body):
        target: ast.expr | None = None
        if isinstance(declared, ast.AnnAssign):
            target = declared.target
        elif isinstance(declared, ast.Assign):
            target = declared.targets[0]
        text = below.value if isinstance(below, ast.Expr) else None
        if (
            isinstance(target, ast.Name)
            and isinstance(text, ast.Constant)
            and isinstance(text.value, str)
        ):
            yield target.id, " ".join(text.value.split())


def constants_of(module: types.ModuleType) -> Iterator[tuple[str, Any, str]]:
    """Name, value and meaning of everything that a module declares with a string below it, in order."""
    for name, about in _texts_below(ast.parse(inspect.getsource(module)).body):
        yield name, getattr(module, name), about

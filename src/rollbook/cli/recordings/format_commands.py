"""FormatCommands: a group with one command for each format. The commands are made when the group is first used, because
the options of a format are the fields of its importer or exporter, and loading all of them takes time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from rollbook.adapters.formats import Format
from rollbook.errors import ConfigurationError

_NOTHING = "none"
"""The word that stands for an empty list."""


class FormatCommands(TyperGroup):
    """A subclass says which formats there are, and makes the command of one."""

    formats: ClassVar[Mapping[str, Format]]
    _made: MutableMapping[str, Any] | None

    def command_of(self, kind: str, each: Format) -> Callable[..., None]:
        raise NotImplementedError

    @property
    def commands(self) -> MutableMapping[str, Any]:
        if self._made is None:
            made = typer.Typer(rich_markup_mode=None)
            made.callback()(lambda: None)  # so that one command alone is still a group
            for kind, each in self.formats.items():
                made.command(kind)(self.command_of(kind, each))
            group: Any = typer.main.get_command(made)
            self._made = dict(group.commands)
        return self._made

    @commands.setter
    def commands(self, given: MutableMapping[str, Any]) -> None:
        self._made = None


def options_class(kind: type[Any], common: type[Any]) -> type[Any]:
    """The options that all formats have, and the fields of one importer or exporter."""
    hints = get_type_hints(kind)
    taken = {each.name for each in dataclasses.fields(common)}
    options = []
    for each in dataclasses.fields(kind):
        assert each.name not in taken, f"{kind.__name__}.{each.name} is an option of all formats"
        is_list = _is_list(hints[each.name])
        flag = each.name.removesuffix("s") if is_list else each.name
        said = str(each.metadata.get("help", ""))
        if is_list:
            said = f"{said} May be repeated; `{_NOTHING}` for none at all."
        dashed = f"--{flag.replace('_', '-')}"
        if hints[each.name] is bool:
            dashed = f"{dashed}/--no-{dashed[2:]}"
        shown: Any = list[str] | None if is_list else hints[each.name]
        annotation: Any = Annotated[shown, typer.Option(dashed, help=said)]
        options.append((each.name, annotation, dataclasses.field(default=each.default)))
    name = f"{kind.__name__}Options"
    return dataclasses.make_dataclass(name, options, bases=(common,), frozen=True, kw_only=True)


def made_with(kind: type[Any], options: Any) -> Any:
    """The importer or exporter with these options."""
    values = {each.name: getattr(options, each.name) for each in dataclasses.fields(kind)}
    for name, value in values.items():
        if isinstance(value, list):
            if _NOTHING in value and len(value) > 1:
                message = f"--{name.removesuffix('s')} {_NOTHING} does not go together with others"
                raise ConfigurationError(message=message)
            values[name] = () if value == [_NOTHING] else tuple(value)
    return kind(**values)


def _is_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_is_list(each) for each in get_args(hint) if each is not NoneType)
    return get_origin(hint) is tuple

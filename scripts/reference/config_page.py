"""docs/reference/config.md: every key of every TOML file that a command reads."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec

from rollbook.client.credentials import Profile
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.sources.import_config import ImportConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig
from scripts.reference.fields import (
    NO_DEFAULT,
    Field,
    fields_of,
    is_config,
    item_of,
    values_in_words,
)
from scripts.reference.markdown import table

_HEAD = """# Config files

This page is made from the code by `make reference`; a test compares the two. A key that is not listed here is refused,
and the error names the keys that look like it. *Required* keys have no default. Relative paths count from the folder of
the file.

| file | read by |
|---|---|
| [generation](#generation) | `rollbook generate run`, `preview`, `compare`, `rollbook campaign plan`: `--config` |
| [source make](#source-make) | `rollbook source make --config` |
| [source import](#source-import) | `rollbook source import --config` |
| [credentials](#credentials) | every command and program that talks to a server; written by `rollbook login` |
| gate | `rollbook replay run --gate-file`, `rollbook gates lock`: see [gate](gate.md) |

`rollbook serve` reads no file: its settings are options, environment variables and `--set NAME=VALUE`
([list](http-api.md#settings)).
"""
_PAGES: tuple[tuple[str, str, type[Any]], ...] = (
    (
        "Generation",
        "All settings of a generation run or a campaign. Only `[source]` and `[store]` are required; the options "
        "`--source`, `--split` and `--out` replace their values. Everything but `threads`, `workers`, `[campaign]` "
        "and paths determines the result. [examples/generate/](../../examples/generate/) has complete files.",
        RolloutDatasetWriterConfig,
    ),
    (
        "Source make",
        "Flats that are made from a seed. The difficulty gives the defaults of `[scene]` and `[variety]`; those "
        "shown are of no difficulty.",
        MakeSourcesConfig,
    ),
    (
        "Source import",
        "Meshes and walks of your own: [how to](../guides/own-mesh.md).",
        ImportConfig,
    ),
)


def config_page() -> str:
    parts = [_HEAD]
    told: dict[type[Any], str] = {}
    for title, about, config in _PAGES:
        parts += [f"## {title}\n\n{about}\n", *sections(config, told=told)]
    parts.append(
        "## Credentials\n\n`$ROLLBOOK_HOME/credentials` (`~/.rollbook/credentials`): one table for each login profile, "
        "`[default]` first. Only its owner can read the file.\n"
    )
    parts.append(keys(fields_of(Profile)) + "\n")
    return "\n".join(parts)


def sections(
    config: type[Any],
    place: str = "",
    is_list: bool = False,
    told: dict[type[Any], str] | None = None,
) -> Iterator[str]:
    """The table of a config, then the tables of the configs inside it. `told` has those that the page has already."""
    told = {} if told is None else told
    given = list(fields_of(config))
    inner = [(each, item_of(each.kind)) for each in given if _is_table(each)]
    plain = [each for each in given if not _is_table(each)]
    if place:
        brackets = f"[[{place}]]" if is_list else f"[{place}]"
        about = " ".join((config.__doc__ or "").split())
        if config in told:
            yield f"### `{brackets}`\n\nThe keys of `{told[config]}` above.\n"
            return
        told[config] = brackets
        # msgspec writes a signature where a class has no docstring
        has_text = about and not about.startswith(f"{config.__name__}(")
        yield f"### `{brackets}`\n\n{about}\n" if has_text else f"### `{brackets}`\n"
    if plain:
        yield keys(plain) + "\n"
    for each, item in inner:
        name = f"{place}.{each.name}" if place else each.name
        yield from sections(item or each.kind, name, item is not None, told)


def _is_table(field: Field) -> bool:
    return is_config(field.kind) or is_config(item_of(field.kind))


def keys(fields: Any) -> str:
    rows = (
        (f"`{each.name}`", values_in_words(each.kind), shown(each.default), each.about)
        for each in fields
    )
    return table(("key", "values", "default", "meaning"), rows)


def shown(default: Any) -> str:
    if default is NO_DEFAULT:
        return "*required*"
    if default is None or default is msgspec.UNSET:
        return "none"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    plain = msgspec.to_builtins(default)
    if plain in ("", [], ()):
        return "empty"
    return f"`{msgspec.json.encode(plain).decode().strip(chr(34))}`"

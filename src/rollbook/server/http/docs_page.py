"""The API as a page for people, made from the OpenAPI document. It loads nothing from other hosts."""

from __future__ import annotations

import html
from base64 import b64encode
from hashlib import sha256
from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Any]"

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #ddd}
section{margin:1.5rem 0}
h3{font:600 1rem ui-monospace,monospace;overflow-wrap:anywhere}
code,pre{font:.9rem ui-monospace,monospace;background:#f4f4f4;border-radius:4px;padding:.1rem .3rem}
table{border-collapse:collapse;width:100%}
td{border-top:1px solid #eee;padding:.3rem .6rem .3rem 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}code,pre{background:#2a2a2a}td,h2{border-color:#333}}
"""


def own_style_policy(style: str) -> str:
    """The policy of a page that has this style sheet inside: nothing else is loaded, and nothing runs."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'"
    )


PAGE_HEADERS = {"Content-Security-Policy": own_style_policy(_STYLE)}


def page(made: Json) -> str:
    info = made["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{_text(info['title'])} API</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(info['title'])} API <small>{_text(info['version'])}</small></h1>",
        f"<p>{_text(info['description'])} The same for programs: <a href='/api/openapi.json'>openapi.json</a>.</p>",
        *(_operation(path, method, about) for path, method, about in _operations(made)),
        "<h2>Shapes</h2>",
        *(_shape(name, schema) for name, schema in sorted(made["components"]["schemas"].items())),
        "</body></html>",
    ]
    return "\n".join(parts)


def _operations(made: Json) -> list[tuple[str, str, Json]]:
    return [
        (path, method, about)
        for path, methods in made["paths"].items()
        for method, about in methods.items()
    ]


def _operation(path: str, method: str, about: Json) -> str:
    rows = [
        (f"{each['in']} <code>{_text(each['name'])}</code>", _text(each.get("description", "")))
        for each in about.get("parameters", ())
    ]
    if "requestBody" in about:
        rows.append(("body", _schema_of(about["requestBody"])))
    for status, answer in sorted(about["responses"].items()):
        rows.append((_text(status), f"{_text(answer.get('description', ''))} {_schema_of(answer)}"))
    return (
        f"<section><h3>{method.upper()} {_text(path)}</h3><p>{_text(about.get('summary', ''))}</p>"
        f"<table>{''.join(f'<tr><td>{left}</td><td>{right}</td></tr>' for left, right in rows)}</table></section>"
    )


def _schema_of(described: Json) -> str:
    schema: Json = next(
        (each.get("schema", {}) for each in described.get("content", {}).values()), {}
    )
    return _type(schema) if schema else ""


def _shape(name: str, schema: Json) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{_text(field)}</code></td><td>{_type(about)}"
        f"{'' if field in required else ', optional'}</td></tr>"
        for field, about in schema.get("properties", {}).items()
    )
    anchor = _text(name)
    return (
        f"<section id='{anchor}'><h3>{anchor}</h3><p>{_text(schema.get('description', ''))}</p>"
        f"<table>{rows}</table></section>"
    )


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = _text(schema["$ref"].rsplit("/", 1)[-1])
        return f"<a href='#{name}'>{name}</a>"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "enum" in schema:
        return " | ".join(f"<code>{_text(each)}</code>" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = ", ".join(f"{_text(key)} {_text(schema[key])}" for key in _BOUNDS if key in schema)
    return f"{_text(schema.get('type', 'anything'))}{f' ({bounds})' if bounds else ''}"


_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "pattern", "format")


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)

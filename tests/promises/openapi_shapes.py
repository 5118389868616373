"""The OpenAPI document without its words: paths, parameters, and the fields and types of what is sent and answered.

A shape may be described more closely than it was recorded, and fields may be added to answers; none may go, change its
type, or become required in a request. What a shape is called does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_WORDS = ("description", "title", "summary", "tags", "default", "discriminator")
_NAMES = ("properties", "schemas", "headers", "paths")
"""Below these, keys are names and not words of OpenAPI."""
_BELOW = {"properties", "items", "required", "additionalProperties"}


def bare(document: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = _without_words(
        {"paths": document["paths"], "schemas": document["components"]["schemas"]}
    )
    kept["paths"] = {
        path: {method: _operation(each) for method, each in methods.items()}
        for path, methods in kept["paths"].items()
    }
    refusal = kept["paths"]["/api/episodes"]["get"]["gives"]["401"]
    for methods in kept["paths"].values():
        _refusals(methods, refusal)
    kept["refusal"] = refusal
    return {"ways in": _without_words(document["components"]["securitySchemes"], True), **kept}


def _operation(described: Any) -> dict[str, Any]:
    """Without the layers around every schema."""
    return {
        "id": described["operationId"],
        "ways in": ["+".join(sorted(way)) for way in described.get("security", ())],
        "parameters": described.get("parameters", []),
        "takes": _content(described.get("requestBody")),
        "gives": {code: _content(each) for code, each in described["responses"].items()},
    }


def _refusals(methods: dict[str, Any], refusal: Any) -> None:
    """Nearly all errors have one shape: their codes are enough."""
    for each in methods.values():
        gives = each["gives"]
        each["refuses"] = [code for code, shape in gives.items() if shape == refusal]
        each["gives"] = {code: shape for code, shape in gives.items() if shape != refusal}


def _without_words(value: Any, names: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_words(below, key in _NAMES and not names)
            for key, below in sorted(value.items())
            if names or key not in _WORDS
        }
    if isinstance(value, list):
        return [_without_words(each) for each in value]
    if isinstance(value, str):
        return value.removeprefix("#/components/schemas/")
    return value


def routes(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    ]


def problems(recorded: dict[str, Any], found: dict[str, Any]) -> list[str]:
    changed = [
        f"- the way in {name!r} is {found['ways in'].get(name)}, was {way}"
        for name, way in recorded["ways in"].items()
        if found["ways in"].get(name) != way
    ]
    return changed + [
        f"- {method} {path}: {problem}"
        for method, path in routes(recorded)
        for problem in _route_problems(recorded, found, method, path)
    ]


def _route_problems(recorded: Any, found: Any, method: str, path: str) -> Iterator[str]:
    was = recorded["paths"][path][method.lower()]
    now = found["paths"].get(path, {}).get(method.lower())
    if now is None:
        yield "there is no such route"
        return
    yield from _parameters(was, now)
    for word in ("id", "ways in"):
        if was[word] != now[word]:
            yield f"{word} is {now[word]}, was {was[word]}"
    shapes = Shapes(recorded, found)
    yield from shapes.compare("refusal", recorded["refusal"], found["refusal"], request=False)
    for code in was["refuses"]:
        if code not in now["refuses"]:
            yield f"refuses with no {code} any more"
    yield from shapes.compare("request", was["takes"], now["takes"], request=True)
    for status, answer in was["gives"].items():
        if status not in now["gives"]:
            yield f"answers no {status} any more"
            continue
        yield from shapes.compare(f"answer {status}", answer, now["gives"][status], request=False)


def _parameters(was: Any, now: Any) -> Iterator[str]:
    before = {(each["in"], each["name"]): each for each in was["parameters"]}
    after = {(each["in"], each["name"]): each for each in now["parameters"]}
    for name, each in before.items():
        if after.get(name) != each:
            yield f"parameter {name[1]} is {after.get(name)}, was {each}"
    for name in after.keys() - before.keys():
        if after[name].get("required"):
            yield f"parameter {name[1]} is new and required"


def _content(value: Any) -> Any:
    if not value:
        return None
    content = value.get("content", {})
    return content.get("application/json", {}).get("schema") if content else None


class Shapes:
    """Compares two schemas, each with the definitions of its own document."""

    def __init__(self, recorded: Any, found: Any) -> None:
        self._was, self._now = recorded["schemas"], found["schemas"]

    def compare(self, place: str, was: Any, now: Any, request: bool) -> Iterator[str]:
        was, now = _resolved(was, self._was), _resolved(now, self._now)
        if was == now or was in (None, {}, {"type": "object"}):
            return
        if now is None:
            yield f"{place} has no shape any more"
            return
        if "anyOf" in was or "anyOf" in now:
            yield from self._choices(place, was, now, request)
            return
        for word in sorted({*was, *now} - _BELOW):
            if was.get(word) != now.get(word):
                yield f"{place}: {word} is {now.get(word)!r}, was {was.get(word)!r}"
        yield from self._required(place, was, now, request)
        for name, each in was.get("properties", {}).items():
            if name not in now.get("properties", {}):
                yield f"{place}.{name} is not there any more"
                continue
            yield from self.compare(f"{place}.{name}", each, now["properties"][name], request)
        for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(was.get(word), dict):
                yield from self.compare(f"{place}{mark}", was[word], now.get(word), request)

    def _required(self, place: str, was: Any, now: Any, request: bool) -> Iterator[str]:
        before, after = set(was.get("required", ())), set(now.get("required", ()))
        for name in sorted(after - before if request else before - after):
            yield f"{place}.{name} is {'required now' if request else 'not always there any more'}"

    def _choices(self, place: str, was: Any, now: Any, request: bool) -> Iterator[str]:
        """Each way that was recorded has to be there: plain types as they are, and one object for another."""
        before, after = was.get("anyOf", [was]), now.get("anyOf", [now])
        if len(before) != len(after):
            yield f"{place} is one of {len(after)} kinds, was of {len(before)}"
            return
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from self.compare(f"{place}|{number}", one, other, request)


def _resolved(schema: Any, definitions: Any) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = definitions[schema["$ref"]]
    return schema

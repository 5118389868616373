"""OpenAPI: every route says what it takes and gives, and the document and its page are made from that.

A route of ours hands the request to its function as it is. FastAPI lists it like any other, but neither parses nor
checks on the way: msgspec does both, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from rollbook import __version__
from rollbook.server.docs_page import PAGE_HEADERS, page
from rollbook.server.responses import json_bytes
from rollbook.server.wire import ErrorAnswer

Handler: TypeAlias = "Callable[[Request], Coroutine[Any, Any, Response]]"
Json: TypeAlias = "dict[str, Any]"

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request is wrong; `error` says where.",
    401: "The API key is missing, wrong or revoked: one answer for every cause.",
    403: "Known, and not allowed: a quota, a role, a signature.",
    404: "There is no such thing, or it is somebody else's: one answer for both.",
    408: "The body took too long to arrive.",
    409: "Not in the state it is in.",
    413: "Too large.",
    415: "The body is not `application/json`.",
    429: "Too many requests; wait `Retry-After` seconds.",
    503: "The database or the blob store does not answer; try again after `Retry-After` seconds.",
}


class LeanRoute(APIRoute):
    shapes: tuple[type, ...] = ()
    """Of its body and its answers, for the document."""

    def get_route_handler(self) -> Handler:
        handler: Handler = self.endpoint
        return handler


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    summary: str,
    gives: type | None,
    takes: type | None = None,
    status: int = 200,
    errors: Sequence[int] = (),
    parameters: Sequence[Json] = (),
    answers: Mapping[int | str, Json] | None = None,
    open_to_all: bool = False,
    tag: str = "episodes",
) -> LeanRoute:
    """`gives` is the shape of the answer under `status`; `answers` describes others that have no such shape."""
    responses: dict[int | str, Json] = {
        code: _error(code) for code in _possible(takes, errors, open_to_all)
    }
    if gives is not None:
        responses[status] = {"description": summary, "content": _content(gives)}
    responses.update(answers or {})
    extra: Json = {"parameters": [*_path_parameters(path), *parameters]}
    if takes is not None:
        extra["requestBody"] = {"required": True, "content": _content(takes)}
    if not open_to_all:
        extra["security"] = [{"key": []}, {"key_header": []}, {"robotrace_key_header": []}]
    made = LeanRoute(
        path,
        handler,
        methods=[method],
        name=handler.__name__,
        operation_id=handler.__name__,
        summary=summary,
        status_code=status,
        response_model=None,
        response_class=Response,
        responses=responses,
        openapi_extra=extra,
        tags=[tag],
    )
    made.shapes = tuple(shape for shape in (takes, gives, ErrorAnswer) if shape is not None)
    return made


def query(name: str, schema: Json, about: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": about}


def header(name: str, schema: Json, about: str) -> Json:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": about}


def _possible(takes: type | None, errors: Sequence[int], open_to_all: bool) -> list[int]:
    always = () if open_to_all else (401, 429, 503)
    with_body = (400, 408, 413, 415) if takes is not None else ()
    return sorted({*always, *with_body, *errors})


def _error(status: int) -> Json:
    described: Json = {"description": _ERRORS[status], "content": _content(ErrorAnswer)}
    if status in (429, 503):
        described["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return described


def _content(shape: type) -> Json:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=shape.__name__)}}}


def _path_parameters(path: str) -> list[Json]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]


# ------------------------------------------------------------------------------------ the document


def document(app: FastAPI) -> Json:
    made = get_openapi(
        title="Rollbook",
        version=__version__,
        description="Episodes of robots: record, find, read back. JSON in, JSON out; errors are `{error, code}`.",
        routes=app.routes,
    )
    ours = {shape for each in app.routes if isinstance(each, LeanRoute) for shape in each.shapes}
    _, shapes = msgspec.json.schema_components(tuple(ours), ref_template=_REFERENCE)
    components = made.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **shapes}
    components["securitySchemes"] = {
        **components.get("securitySchemes", {}),
        "key": {"type": "http", "scheme": "bearer"},
        "key_header": {"type": "apiKey", "in": "header", "name": "X-Rollbook-Key"},
        "robotrace_key_header": {"type": "apiKey", "in": "header", "name": "X-RoboTrace-Key"},
    }
    return made


def document_routes(app: FastAPI) -> list[LeanRoute]:
    """Both are made when they are first asked for: most processes never are."""
    made: dict[str, bytes] = {}

    async def openapi(_request: Request) -> Response:
        if "json" not in made:
            made["json"] = json_bytes(document(app))
        return Response(made["json"], media_type="application/json")

    async def docs(_request: Request) -> Response:
        if "page" not in made:
            made["page"] = page(document(app)).encode()
        return Response(made["page"], media_type="text/html", headers=PAGE_HEADERS)

    return [
        LeanRoute(path, handler, methods=["GET"], include_in_schema=False, response_model=None)
        for path, handler in (("/api/openapi.json", openapi), ("/api/docs", docs))
    ]

"""OpenAPI: every route declares what it takes and gives; the document and its page are made from that.

A route passes the request to its function unchanged; msgspec decodes and checks it there, much faster than FastAPI
would. FastAPI only writes the document, and is loaded when somebody first asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rollbook import __version__
from rollbook.contracts.wire.errors import ErrorAnswer
from rollbook.server.http.docs_page import PAGE_HEADERS, page
from rollbook.server.http.requests import TURN
from rollbook.server.http.responses import json_bytes

Handler: TypeAlias = "Callable[[Request], Coroutine[Any, Any, Response]]"
Json: TypeAlias = "dict[str, Any]"

SESSION_COOKIE = "rollbook_session"
_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request is invalid; `error` names the place.",
    401: "The API key is missing, wrong or revoked. The answer is the same for every cause.",
    403: "The caller is known, but a quota, a role or a signature does not allow this.",
    404: "The id does not exist, or belongs to another organisation. The answer is the same.",
    408: "The body took too long to arrive.",
    409: "The state of the resource does not allow this request; `error` says why.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    429: "Too many requests; wait `Retry-After` seconds.",
    503: "The database or the blob store does not answer; try again after `Retry-After` seconds.",
}


class LeanRoute(Route):
    def __init__(
        self,
        path: str,
        handler: Handler,
        *,
        methods: Sequence[str],
        name: str | None = None,
        described: Json | None = None,
        shapes: tuple[type, ...] = (),
    ) -> None:
        """`described`: the arguments for FastAPI's document; None leaves the route out. `shapes`: the types of its body
        and answers."""
        super().__init__(path, handler, name=name, include_in_schema=described is not None)
        self.methods = set(methods)  # without the HEAD that Starlette adds
        self.described = described
        self.shapes = shapes
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application answers errors."""
        scope["route"] = self
        try:
            response: Response = await self.endpoint(Request(scope, receive, send))
        finally:
            if TURN in scope:
                scope[TURN].release()
        await response(scope, receive, send)


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
    """`gives` is the type of the answer with `status`; `answers` describes answers without such a type."""
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
        extra["security"] = _security_of(method)
    described: Json = {
        "operation_id": handler.__name__,
        "summary": summary,
        "status_code": status,
        "responses": responses,
        "openapi_extra": extra,
        "tags": [tag],
    }
    shapes = tuple(shape for shape in (takes, gives, ErrorAnswer) if shape is not None)
    return LeanRoute(
        path,
        handler,
        methods=[method],
        name=handler.__name__,
        described=described,
        shapes=shapes,
    )


def _security_of(method: str) -> list[Json]:
    """By key, or by the cookie of a person; a change by cookie also needs the CSRF token."""
    changes = () if method == "GET" else ("csrf_token",)
    ways = (("key",), ("key_header",), ("robotrace_key_header",), ("session", *changes))
    return [{scheme: [] for scheme in way} for way in ways]


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


def document(app: Starlette) -> Json:
    from fastapi.openapi.utils import get_openapi
    from fastapi.routing import APIRoute

    ours = [each for each in app.routes if isinstance(each, LeanRoute)]
    made = get_openapi(
        title="Rollbook",
        version=__version__,
        description="Record, find and read episodes of robots. Messages are JSON; errors are `{error, code}`.",
        routes=[
            APIRoute(
                each.path,
                each.endpoint,
                methods=each.methods,
                name=each.name,
                response_model=None,
                response_class=Response,
                **each.described,
            )
            for each in ours
            if each.described is not None
        ],
    )
    _, shapes = msgspec.json.schema_components(
        {shape for each in ours for shape in each.shapes}, ref_template=_REFERENCE
    )
    components = made.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **shapes}
    components["securitySchemes"] = {
        **components.get("securitySchemes", {}),
        "key": {"type": "http", "scheme": "bearer"},
        "key_header": {"type": "apiKey", "in": "header", "name": "X-Rollbook-Key"},
        "robotrace_key_header": {"type": "apiKey", "in": "header", "name": "X-RoboTrace-Key"},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": SESSION_COOKIE,
            "description": (
                "The cookie that /api/sign-in sets. Over https its name begins with `__Host-`, "
                "or with `__Secure-` where the server is below a path."
            ),
        },
        "csrf_token": {
            "type": "apiKey",
            "in": "header",
            "name": "X-CSRF-Token",
            "description": "The token that /api/sign-in returns. Sent with the cookie and this server's `Origin`.",
        },
    }
    return made


def document_routes(app: Starlette) -> list[LeanRoute]:
    """Both are made at the first request: most processes never get one."""
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
        LeanRoute(path, handler, methods=["GET"])
        for path, handler in (("/api/openapi.json", openapi), ("/api/docs", docs))
    ]

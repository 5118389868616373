"""The stylesheet, the ES modules and the icon.

Their address contains a digest of them all, so a browser keeps them for ever and still sees every new release. The
stylesheet is one file for the browser; here it is a file per part, joined in the order of their names.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from rollbook.digest import digest_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem

STYLE = "rollbook.css"
_FOLDER = Path(__file__).with_name("static")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    packed: bytes
    media_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    contents = {
        path.name: path.read_bytes()
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _TYPES and path.is_file()
    }
    parts = sorted((_FOLDER / "style").glob("*.css"))
    contents[STYLE] = b"\n".join(part.read_bytes() for part in parts)
    return {
        name: StaticFile(content, gzip.compress(content, 9, mtime=0), _TYPES[Path(name).suffix])
        for name, content in contents.items()
    }


@cache
def static_digest() -> str:
    whole = {name: file.content for name, file in static_files().items()}
    return digest_of("rollbook.portal-static", whole)[:12]


def static_path(name: str) -> str:
    """The path of a static file, without the prefix of the server."""
    if name not in static_files():
        raise KeyError(name)
    return f"/static/{static_digest()}/{name}"


async def static_file(request: Request) -> Response:
    """The digest in the path is not compared: after an upgrade an open page still loads what it asks for."""
    file = static_files().get(request.path_params["name"])
    if file is None:
        raise Problem(404, "not_found", "there is no such file")
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, 200, {**_HEADERS, "Content-Encoding": "gzip"}, file.media_type)
    return Response(file.content, 200, _HEADERS, file.media_type)


async def favicon(request: Request) -> Response:
    """Browsers ask for it where a page names no icon: the report, the documentation of the API, a file."""
    icon = static_files()["icon.svg"]
    return Response(
        icon.content, 200, {**_HEADERS, "Cache-Control": "public, max-age=86400"}, icon.media_type
    )


routes: tuple[LeanRoute, ...] = (
    LeanRoute("/favicon.ico", favicon, methods=["GET", "HEAD"], name="favicon"),
    LeanRoute("/static/{digest}/{name}", static_file, methods=["GET", "HEAD"], name="static_file"),
)

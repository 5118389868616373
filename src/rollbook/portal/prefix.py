"""The path prefix: a server may be reached below a path, such as `--public-url https://host/rollbook`.

A proxy either passes the prefix on or removes it. Both arrive at the same routes, and every link, form and redirect
that we write begins with the prefix.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send


def prefix_of(public_url: str | None) -> str:
    """Empty for a server at the root of its host."""
    return "" if public_url is None else urlsplit(public_url).path.rstrip("/")


class PathPrefix:
    """Gives every request the prefix as its `root_path`, which the router takes off again."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if path != self._prefix and not path.startswith(f"{self._prefix}/"):
                path = f"{self._prefix}{path}"
            if path == self._prefix:
                path = f"{path}/"
            scope["root_path"], scope["path"] = self._prefix, path
        await self._app(scope, receive, send)


def local_url(request: Request, path: str) -> str:
    """A path of ours as the browser has to ask for it."""
    root: str = request.scope.get("root_path", "")
    return f"{root}{path}"


def path_within(request: Request) -> str:
    """The path that was asked for, without the prefix."""
    root: str = request.scope.get("root_path", "")
    return request.url.path.removeprefix(root) or "/"

"""Transcripts: requests as they are sent and answers as they come, character for character, with placeholders."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.promises.placeholders import Placeholders

_PASSED_OVER = frozenset(
    ("content-length", "content-type", "date", "server", "x-request-id", "transfer-encoding")
)
_USUAL = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Written down only where they differ or are missing."""
_LONGEST_SHOWN = 1500
_SECRETS = (
    *("api_key", "csrf_token", "device_code", "key_id", "next_cursor", "secret", "token"),
    *("upload_id",),
)


@dataclass
class Transcript:
    base_url: str
    placeholders: Placeholders = field(default_factory=Placeholders)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.base_url, timeout=60, verify=False)

    def title(self, text: str) -> None:
        self.lines += ["", f"# {text}"]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        content: bytes | None = None,
        http: httpx.Client | None = None,
        shown: bool = True,
    ) -> Any:
        """Sends it and writes down both sides. Gives what the answer says, or its text."""
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        data = content
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            sent.setdefault("Content-Type", "application/json")
        speaking = http or self.http
        answer = speaking.request(method, path, headers=sent, content=data)
        for value in speaking.cookies.values():
            self.placeholders.name(value, "session")
        said = _parsed(answer)
        self._learn(said)
        if shown:
            self._write(method, path, data, answer)
        return said

    def _learn(self, said: Any) -> None:
        """Values that are drawn at random and look like nothing in particular."""
        if isinstance(said, dict):
            for name, value in said.items():
                if name in _SECRETS and isinstance(value, str):
                    self.placeholders.name(value, name)
                if name in ("url", "verification_uri_complete") and "token=" in str(value):
                    self.placeholders.name(str(value).partition("token=")[2], "token")
                self._learn(value)
        elif isinstance(said, list):
            for each in said:
                self._learn(each)

    def _write(self, method: str, path: str, data: bytes | None, answer: httpx.Response) -> None:
        self.lines += ["", f"{method} {path}"]
        if data:
            self.lines.append(_readable(data, _LONGEST_SHOWN))
        kind = answer.headers.get("content-type", "without a body")
        self.lines.append(f"→ {answer.status_code} {kind}")
        for name in sorted({*answer.headers, *_USUAL} - _PASSED_OVER):
            value = answer.headers.get(name)
            if value is None or value != _USUAL.get(name):
                self.lines.append(f"  {name}: {'(missing)' if value is None else value}")
        if answer.content:
            self.lines.append(_readable(answer.content))

    def note(self, text: str) -> None:
        self.lines.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.placeholders.hide(line) for line in self.lines).lstrip("\n") + "\n"

    def close(self) -> None:
        self.http.close()


def _readable(data: bytes, longest: int | None = None) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes)"
    return text if longest is None or len(text) <= longest else f"({len(data)} bytes)"


def _parsed(answer: httpx.Response) -> Any:
    if "json" in answer.headers.get("content-type", ""):
        return answer.json()
    return answer.text

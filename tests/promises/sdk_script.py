"""What the SDK sends: every request of its verbs, taken where httpx hands it to the network.

Requests of one call may overtake each other, so they are written down sorted, and ids are not told apart. How many
results or episodes travel together depends on how fast each was made, so those of a batch are written one by one.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from rollbook import evals
from rollbook.client import Client, EpisodeOutcome
from rollbook.evals import verify
from tests.promises.inner import RunningServer, new_organisation
from tests.promises.placeholders import Placeholders

_HEADERS = ("content-type", "accept", "user-agent", "range")
_NAMED = ("authorization", "idempotency-key", "content-length")
_SHORT_ID = re.compile(r"· [0-9a-f]{8}\b")
_BATCHES = {
    "/api/episodes/artifacts": "artifacts",
    "/api/episodes/lookup": "ids",
    "/api/ingest/episodes": "episodes",
    "/api/ingest/episodes/finalize": "episodes",
    "/results": "results",
}


class Listener:
    def __init__(self) -> None:
        self._hidden = Placeholders(numbered=False)
        self._heard: list[str] = []
        self._lock = threading.Lock()
        self.lines: list[str] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        send = httpx.HTTPTransport.handle_request

        def heard(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            request.read()
            with self._lock:
                self._heard += self._written(request)
            return send(transport, request)

        httpx.HTTPTransport.handle_request = heard  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            httpx.HTTPTransport.handle_request = send  # type: ignore[method-assign]

    def said(self, title: str, call: Callable[[], Any], batches: bool = False) -> Any:
        self._heard.clear()
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            came = call()
        self.lines += ["", f"# {title}", *sorted(set(self._heard) if batches else self._heard)]
        return came

    def _written(self, request: httpx.Request) -> list[str]:
        headers = [
            f"{name}: {request.headers[name]}" for name in _HEADERS if name in request.headers
        ]
        headers += [f"{name}: …" for name in _NAMED if name in request.headers]
        first = f"{request.method} {request.url.raw_path.decode()}"
        head = self._hidden.hide(f"{first}\n  {'; '.join(headers)}")
        bodies = _bodies(request) if request.content else [""]
        return [
            f"{head}\n  {self._hidden.hide(_SHORT_ID.sub('· <id>', each))}".rstrip()
            for each in bodies
        ]


def _bodies(request: httpx.Request) -> list[str]:
    """The text as it is sent; of a batch, that of each of its members."""
    content = request.content
    if not content.startswith(b"{"):
        return [f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}"]
    for path, name in _BATCHES.items():
        if request.url.path.endswith(path):
            members = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
            each = msgspec.json.decode(members.pop(name), type=list[msgspec.Raw])
            others = "".join(f", {key}: {bytes(value).decode()}" for key, value in members.items())
            return [f"one of {name}: {bytes(one).decode()}{others}" for one in each]
    return [content.decode()]


def sdk_requests(server: RunningServer, folder: Path) -> str:
    access = new_organisation(server)
    listener = Listener()
    options: dict[str, Any] = {"verbose": False, "cache": folder / "cache"}
    with (
        listener.listening(),
        Client(api_key=access.api_key, base_url=server.base_url, **options) as client,
    ):
        first, second = _recording(listener, client, folder)
        _reading(listener, client, first, second)
        _replaying(listener, client, [first, second])
        _verifying(listener, client, first)
    return "\n".join(listener.lines).lstrip("\n") + "\n"


def _moves(start: float) -> dict[str, Any]:
    position = start + np.arange(8, dtype=np.float32).reshape(4, 2) / 4
    return {
        "sensors": {"/arm/position": position},
        "actions": {"/arm/command": position},
        "t_ns": np.arange(4, dtype=np.int64) * 100_000_000,
    }


def _recording(listener: Listener, client: Client, folder: Path) -> tuple[str, str]:
    made = listener.said(
        "log_episode, with arrays",
        lambda: client.log_episode(
            name="one",
            source="sim",
            robot="arm-3",
            policy_version="v3",
            env_version="bench",
            git_sha="0123abc",
            seed=7,
            fps=10.0,
            duration_s=0.5,
            metadata={"outcome": EpisodeOutcome(success=True, reward_total=1.5), "n": np.int64(3)},
            tags=["night"],
            **_moves(1.0),
        ),
    )
    plain = listener.said("log_episode, with nothing", lambda: client.log_episode())
    listener.said("delete_episode", lambda: client.delete_episode(str(plain.id)))
    begun = listener.said(
        "start_episode", lambda: client.start_episode(name="two", artifacts=("sensors", "actions"))
    )
    moves = _moves(2.0)
    for kind in ("sensors", "actions"):
        upload = partial(begun.upload, kind, moves[kind], t_ns=moves["t_ns"])
        listener.said(f"upload of {kind}", upload)
    listener.said(
        "finalize",
        lambda: begun.finalize(duration_s=0.5, fps=10.0, metadata={"success": False}),
    )
    video = folder / "video.mp4"
    video.write_bytes(b"\0\0\0\x08ftyp")
    listener.said(
        "log_episode of one that failed, with a file",
        lambda: client.log_episode(video=video, status="failed", failure_time_s=0.25),
    )
    return str(made.id), str(begun.id)


def _reading(listener: Listener, client: Client, first: str, second: str) -> None:
    listener.said("episodes", lambda: list(client.episodes()))
    listener.said(
        "episodes, with every filter",
        lambda: list(
            client.episodes(
                policy_version="v3",
                env_version="bench",
                git_sha="0123abc",
                seed=7,
                status="ready",
                source="sim",
                robot="arm-3",
                name="one",
                tag="night",
                metadata={"outcome.success": True},
                since="2020-01-01T00:00:00Z",
                until="2100-01-01T00:00:00Z",
                with_archived=True,
                limit=1,
            )
        ),
    )
    episode = listener.said("episode", lambda: client.episode(first))
    listener.said("sensors of an episode", lambda: episode.sensors())
    listener.said("archive_episode", lambda: client.archive_episode(second))
    listener.said("restore_episode", lambda: client.restore_episode(second))


def _follow(observation: Any) -> Any:
    return {"/arm/command": observation["/arm/position"] + np.array([3, 4], np.float32)}


def _replaying(listener: Listener, client: Client, ids: list[str]) -> None:
    gate = {"n_min": 2, "evidence": ["asserted"]}
    run = listener.said(
        "evals.create_run",
        lambda: evals.create_run(
            candidate_policy_version="v4",
            baseline_episode_ids=ids,
            baseline_policy_version="v3",
            name="nightly",
            metadata={"why": "because"},
            gate=gate,
            client=client,
        ),
    )
    listener.said(
        "evals.run_against", lambda: evals.run_against(run, policy_callable=_follow), batches=True
    )
    listener.said("evals.open_run", lambda: evals.open_run(run.id, client=client))
    listener.said("evals.complete_run", lambda: evals.complete_run(run, metadata={"took": 1}))
    other = evals.create_run(candidate_policy_version="v5", baseline_episode_ids=ids, client=client)
    listener.said("evals.cancel_run", lambda: evals.cancel_run(other))


def _verifying(listener: Listener, client: Client, first: str) -> None:
    scenario = listener.said(
        "verify.promote",
        lambda: verify.promote(
            baseline_episode_id=first,
            name="glass door",
            description="It ran into it.",
            severity="critical",
            client=client,
        ),
    )["scenario_id"]
    version: dict[str, Any] = {"candidate_policy_version": "v6", "client": client}
    listener.said("verify.check_gate", lambda: verify.check_gate(**version))
    listener.said(
        "verify.record_result",
        lambda: verify.record_result(
            scenario_id=scenario, status="fail", metrics={"success_candidate": False}, **version
        ),
    )
    listener.said(
        "verify.run_check",
        lambda: verify.run_check(policy_callable=_follow, **version),
        batches=True,
    )

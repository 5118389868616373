"""Stores a recording on a running server as the SDK would: NPZ files, uploaded and finalized."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.npz import write_npz
from tests.server.people import Person


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    out = io.BytesIO()
    write_npz(out, arrays)
    return out.getvalue()


def stored_episode(
    person: Person,
    files: Mapping[str, bytes],
    *,
    status: str = "ready",
    create: Mapping[str, Any] | None = None,
    **final: Any,
) -> str:
    """`files`: bytes by the kind of artifact."""
    wanted = {"request_uploads": list(files), **(create or {})}
    made = person.call("POST", "/api/ingest/episode", json=wanted).json()
    for each in made["upload_urls"]:
        headers = {"Content-Type": "application/octet-stream"}
        sent = httpx.put(each["url"], content=files[each["kind"]], headers=headers)
        assert sent.status_code in (200, 201, 204), sent.text
    path = f"/api/ingest/episode/{made['episode_id']}/finalize"
    done = person.call("POST", path, json={"status": status, **final})
    assert done.status_code == 200, done.text
    episode_id: str = made["episode_id"]
    return episode_id


def read_body(body: bytes) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """The head of an answer, and [channel, column, 2]."""
    (length,) = struct.unpack_from("<I", body)
    assert length % 4 == 0
    head = json.loads(body[4 : 4 + length])
    data = np.frombuffer(body[4 + length :], "<f4")
    shape = (len(head["channels"]) if head["columns"] else 0, head["columns"], 2)
    return head, data.reshape(shape)


def tracks(
    person: Person, episode_id: str, **query: Any
) -> tuple[dict[str, Any], NDArray[np.float32]]:
    answer = person.get(f"/portal/episodes/{episode_id}/tracks", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    return read_body(answer.content)

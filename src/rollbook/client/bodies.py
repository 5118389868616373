"""The bodies that create and finalize an episode. All arguments are checked here, before anything is created."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rollbook.client.artifact_files import checked_kind
from rollbook.client.uploads import Uploaded
from rollbook.contracts.episode import (
    EPISODE_SOURCES,
    FINAL_STATUSES,
    LONGEST_NAME,
    LONGEST_ROBOT,
    ArtifactKind,
    EpisodeSource,
    FinalStatus,
)
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import ConfigurationError

_LONGEST = {"name": LONGEST_NAME, "robot": LONGEST_ROBOT}
_log = logging.getLogger("rollbook.client")


def create_body(
    *,
    source: EpisodeSource,
    artifacts: Iterable[ArtifactKind],
    texts: Mapping[str, str | None],
    seed: int | None,
    fps: float | None,
    metadata: Mapping[str, Any] | None,
    tags: Sequence[str] | None,
    policy_revision: PolicyRevision | None = None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "source": _one_of("source", source, EPISODE_SOURCES),
        "request_uploads": list(dict.fromkeys(checked_kind(kind) for kind in artifacts)),
    }
    body |= {name: _text(name, value) for name, value in texts.items() if value is not None}
    if seed is not None:
        body["seed"] = _whole("seed", seed)
    if fps is not None:
        body["fps"] = _number("fps", fps)
    if metadata is not None:
        body["metadata"] = plain_metadata(metadata)
    if tags is not None:
        body["tags"] = _tags(tags)
    if policy_revision is not None:
        body["policy_revision"] = revision_body("policy_revision", policy_revision)
    trace = current_trace()
    if trace is not None:
        body["otel"] = trace
    return body


def revision_body(argument: str, revision: object) -> dict[str, Any]:
    if not isinstance(revision, PolicyRevision):
        message = f"{argument}= has to be a PolicyRevision, not {type(revision).__name__}"
        raise ConfigurationError(message=message)
    body: dict[str, Any] = msgspec.to_builtins(revision)
    return body


def finalize_body(
    *,
    status: FinalStatus,
    duration_s: float | None = None,
    fps: float | None = None,
    failure_time_s: float | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    body: dict[str, Any] = {"status": _one_of("status", status, FINAL_STATUSES)}
    if failure_time_s is not None and status != "failed":
        message = "failure_time_s= says when a run failed; pass status='failed' with it"
        raise ConfigurationError(message=message)
    numbers = {"duration_s": duration_s, "fps": fps, "failure_time_s": failure_time_s}
    body |= {name: _number(name, value) for name, value in numbers.items() if value is not None}
    if metadata is not None:
        body["metadata"] = plain_metadata(metadata)
    return body


def with_artifacts(
    body: Mapping[str, Any], uploaded: Mapping[ArtifactKind, Uploaded], bytes_total: int | None
) -> dict[str, Any]:
    """Adds size and SHA-256 of each artifact. The server compares them with what it stored."""
    complete = dict(body)
    if uploaded:
        complete["artifacts"] = {kind: each.as_dict() for kind, each in uploaded.items()}
    total = sum(each.size for each in uploaded.values()) if bytes_total is None else bytes_total
    if total:
        complete["bytes_total"] = _whole("bytes_total", total)
    return complete


def _one_of(argument: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ConfigurationError(
            message=f"{argument}={value!r}; it has to be one of {', '.join(known)}"
        )
    return value


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        message = f"{argument}= has to be text, not {type(value).__name__}"
        raise ConfigurationError(message=message)
    longest = _LONGEST.get(argument)
    if longest is not None and len(value) > longest:
        message = f"{argument}= has {len(value)} characters; at most {longest} are allowed"
        raise ConfigurationError(message=message)
    return value


def _whole(argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigurationError(message=f"{argument}={value!r}; it has to be a whole number")
    return int(value)


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigurationError(message=f"{argument}={value!r}; it has to be a number")
    if not 0 <= value < math.inf:
        message = f"{argument}={value}; it has to be finite and at least 0"
        raise ConfigurationError(message=message)
    return float(value)


def _tags(tags: object) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, Sequence | set | frozenset):
        raise ConfigurationError(message="tags= has to be a list of texts, such as ['night']")
    return [_text("tags", tag) for tag in tags]


def current_trace() -> dict[str, str] | None:
    """The OpenTelemetry span that the program is in; None outside of any span.

    OpenTelemetry is never imported here: a program that has a span has imported it.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        span = trace.get_current_span().get_span_context()
        if not span.is_valid:
            return None
        trace_id, span_id = f"{span.trace_id:032x}", f"{span.span_id:016x}"
        flags = int(span.trace_flags) & 0xFF
    except Exception:  # noqa: BLE001 - an episode is recorded whatever the tracer does
        _log.debug("the current trace could not be read", exc_info=True)
        return None
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "traceparent": f"00-{trace_id}-{span_id}-{flags:02x}",
    }

"""Traces: an episode that is recorded inside a span can be found from it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager

import pytest
from opentelemetry import trace

from rollbook.client.bodies import current_trace
from tests.client.conftest import MakeClient
from tests.client.faulty_server import FaultyServer


def span(trace_id: int, span_id: int, flags: int = 1) -> AbstractContextManager[trace.Span]:
    context = trace.SpanContext(trace_id, span_id, False, trace.TraceFlags(flags))
    return trace.use_span(trace.NonRecordingSpan(context))


def test_the_current_span_goes_with_the_episode(wire: FaultyServer, client_of: MakeClient) -> None:
    client = client_of(wire)
    with span(0xABC, 0xDEF):
        logged = client.log_episode(metadata={"a": 1})
    trace_id, span_id = f"{0xABC:032x}", f"{0xDEF:016x}"
    assert wire.asked("POST")[0].json["otel"] == {
        "trace_id": trace_id,
        "span_id": span_id,
        "traceparent": f"00-{trace_id}-{span_id}-01",
    }
    assert wire.episodes[logged.id or ""]["metadata"]["otel"]["span_id"] == span_id


@pytest.mark.parametrize(("flags", "shown"), [(0, "00"), (1, "01"), (0x1FF, "ff")])
def test_the_flags_of_a_trace_are_kept(flags: int, shown: str) -> None:
    with span(1, 2, flags):
        found = current_trace()
    assert found is not None
    assert found["traceparent"].endswith(f"-{shown}")


def test_outside_of_any_span_nothing_is_sent(wire: FaultyServer, client_of: MakeClient) -> None:
    client_of(wire).log_episode()
    with span(0, 0):
        client_of(wire).log_episode()
    assert ["otel" in each.json for each in wire.asked("POST") if b"source" in each.body] == [
        False,
        False,
    ]


def test_a_broken_tracer_does_not_keep_an_episode_from_being_recorded(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    class Broken(trace.NonRecordingSpan):
        def get_span_context(self) -> trace.SpanContext:
            raise RuntimeError("broken")

    with trace.use_span(Broken(trace.INVALID_SPAN_CONTEXT)):
        assert client_of(wire).log_episode().status == "ready"


def test_opentelemetry_is_never_imported_for_it() -> None:
    program = (
        "import sys; from rollbook.client.bodies import current_trace; assert current_trace() is None\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

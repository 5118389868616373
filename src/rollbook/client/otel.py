"""The trace an episode belongs to, when the program is traced with OpenTelemetry."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("rollbook.client")


def current_trace() -> dict[str, str] | None:
    """None outside of any span. OpenTelemetry is never imported: a program that has a span has imported it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        span = trace.get_current_span().get_span_context()
        if not span.is_valid:
            return None
        trace_id, span_id = f"{span.trace_id:032x}", f"{span.span_id:016x}"
        flags = int(span.trace_flags) & 0xFF
    except Exception:  # noqa: BLE001 - whatever a tracer does, an episode is recorded
        _log.debug("the current trace could not be read", exc_info=True)
        return None
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "traceparent": f"00-{trace_id}-{span_id}-{flags:02x}",
    }

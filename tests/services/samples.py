"""Sample OTLP JSON documents to send to servers in tests."""

from __future__ import annotations

import secrets
import time
from typing import Any


def trace_id() -> str:
    """Return a new random trace id."""
    return secrets.token_hex(16)


def trace(trace_id: str, milliseconds: int, service: str = "sample") -> dict[str, Any]:
    """Return a trace of a failed server span of the given duration with one child."""
    start = time.time_ns()
    common = {"traceId": trace_id, "startTimeUnixNano": str(start)}
    end = str(start + milliseconds * 1_000_000)
    root = {
        "spanId": "00000000000000a1",
        "name": "root",
        "kind": 2,
        "endTimeUnixNano": end,
        "attributes": [
            {"key": "text", "value": {"stringValue": ""}},
            {"key": "count", "value": {"intValue": "9007199254740993"}},
            {"key": "flag", "value": {"boolValue": False}},
            {"key": "ratio", "value": {"doubleValue": 0.25}},
            {"key": "reasons", "value": {"arrayValue": {"values": [{"stringValue": "stop"}]}}},
        ],
        "events": [{"name": "first token", "timeUnixNano": str(start + 5)}],
        "links": [{"traceId": "1" * 32, "spanId": "2" * 16}],
        "status": {"code": 2, "message": "too long"},
    }
    child = {
        "spanId": "00000000000000a2",
        "parentSpanId": root["spanId"],
        "name": "child",
        "kind": 1,
        "endTimeUnixNano": end,
    }
    resource = [{"key": "service.name", "value": {"stringValue": service}}]
    scope = {
        "scope": {"name": "sample scope", "version": "1.2"},
        "spans": [common | root, common | child],
    }
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}

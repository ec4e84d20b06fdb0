"""A real vLLM's own spans, rewritten, say what our spans of the same requests say."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.analysis import requests_of
from otel_llm.servers.native import rewritten, summary_of
from otel_llm.timeline import Phase
from tests.conformance.test_vllm_jaeger import MS, backend, engine, single, traces
from tests.servers.native.spans import record

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
__all__ = ["backend", "engine", "traces"]


def test_rewritten_spans_agree_with_ours(traces: Any) -> None:
    """Queue, prefill, decode, tokens and outcome, each within a millisecond."""
    assert len(single(traces)) == 30
    for _, ours, native in single(traces):
        mine, its = ours["attributes"], summary_of(record(native))
        for phase in (Phase.QUEUE, Phase.PREFILL):
            name = semconv.phase_us(phase)
            assert its[name] == pytest.approx(mine[name], abs=MS)
        decode = mine["otel_llm.decode_us"] + mine.get("otel_llm.first_token_us", 0)
        assert its["otel_llm.decode_us"] == pytest.approx(decode, abs=MS)
        for name in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.OUTCOME):
            assert its[name] == mine[name]


def test_both_together_are_one_request(traces: Any) -> None:
    """The engine's span is the innermost side of the request that our span begins."""
    for call, spans, native in traces:
        if call.outcome == "ok":
            found = requests_of(rewritten(record(each) for each in (*spans, *native)))
            assert (len(found.requests), found.invalid, found.incomplete) == (1, 0, 0)
            (request,) = found.requests
            assert [each.side.value for each in request.sides] == ["server", "engine"]
            assert {"queue", "prefill", "decode"} <= set(request.durations)

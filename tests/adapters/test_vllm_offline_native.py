"""`LLM` with vLLM's own tracing: its spans are below ours, and nothing is written twice."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.adapters.vllm import describe
from otel_llm.emit import batch as emit_batch
from otel_llm.testing import CapturedTelemetry, ManualClock
from otel_llm.timeline import Phase
from tests.adapters.conftest import instrument
from tests.fakes import vllm, vllm_offline, vllm_state
from tests.fakes.vllm import SamplingParams
from tests.fakes.vllm_offline import BAD, LLM

REQUEST = "text_completion tiny"
NATIVE = SimpleNamespace(otlp_traces_endpoint="http://localhost:4317")
Sent = list[vllm_state.EngineCoreRequest]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The messages to the engine, in order; each shows its headers once it was sent."""
    found: Sent = []
    original = vllm_state.OutputProcessor.add_request

    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        found.append(request)
        original(self, request, *args, **kwargs)

    monkeypatch.setattr(vllm_state.OutputProcessor, "add_request", add_request)
    return found


@pytest.fixture
def llm(
    monkeypatch: pytest.MonkeyPatch, sent: Sent, captured: CapturedTelemetry, clock: ManualClock
) -> LLM:
    """A patched `LLM` that traces natively."""
    assert sent == []
    vllm_offline.installed(monkeypatch)
    instrument(captured)
    made = LLM("org/tiny", clock=clock)
    made.llm_engine.vllm_config = vllm_state.configuration(observability_config=NATIVE)
    return made


@pytest.fixture
def phases_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A vLLM that writes phase spans."""
    describe.installed_makes_phase_spans.cache_clear()
    monkeypatch.setattr(describe, "makes_phase_spans", lambda: True)
    yield
    describe.installed_makes_phase_spans.cache_clear()


def parents(sent: Sent) -> list[str]:
    """The span that each message names, empty for none."""
    headers = [getattr(each, "trace_headers", None) or {} for each in sent]
    return [each["traceparent"].split("-")[2] if each else "" for each in headers]


def spans(captured: CapturedTelemetry, name: str = REQUEST) -> list[str]:
    """The ids of the spans of that name."""
    return [f"{each.context.span_id:016x}" for each in captured.spans if each.name == name]


class TestParents:
    """What the engine is told."""

    def test_each_request_has_its_own(
        self, captured: CapturedTelemetry, llm: LLM, sent: Sent
    ) -> None:
        """The request span of its prompt, in the batch's trace."""
        llm.generate(["a", "b"])
        assert parents(sent) == spans(captured)
        assert len(set(spans(captured))) == 2
        assert captured.tree()[0].startswith("batch ")

    def test_several_answers(self, captured: CapturedTelemetry, llm: LLM, sent: Sent) -> None:
        """All sequences of a prompt are below its one span."""
        llm.generate(["a"], SamplingParams(n=3))
        assert parents(sent) == spans(captured) * 3

    def test_many_prompts(
        self,
        captured: CapturedTelemetry,
        llm: LLM,
        sent: Sent,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Those without a span of their own are below the batch."""
        monkeypatch.setattr(emit_batch, "MOST_SPANS", 1)
        llm.generate(["a", "b"])
        assert parents(sent) == [*spans(captured), *spans(captured, "batch text_completion tiny")]

    def test_headers_that_were_there(
        self, captured: CapturedTelemetry, llm: LLM, sent: Sent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others than ours stay."""
        monkeypatch.setattr(
            vllm_state.EngineCoreRequest, "trace_headers", {"x-mine": "1"}, raising=False
        )
        llm.generate(["a"])
        (found,) = (getattr(each, "trace_headers", {}) for each in sent)
        assert found["x-mine"] == "1"
        assert parents(sent) == spans(captured)

    def test_no_native_tracing(self, llm: LLM, sent: Sent) -> None:
        """Then the engine is told nothing."""
        llm.llm_engine.vllm_config = vllm_state.configuration()
        llm.generate(["a"])
        assert parents(sent) == [""]

    def test_a_batch_that_fails(self, captured: CapturedTelemetry, llm: LLM) -> None:
        """The span that was opened is ended."""
        with pytest.raises(vllm.VLLMValidationError):
            llm.generate(["a", BAD])
        (found,) = (each for each in captured.spans if each.name == REQUEST)
        assert (found.attributes or {})[semconv.OUTCOME] == "cancelled"


class TestPhaseSpans:
    """A newer vLLM may write them."""

    @pytest.mark.usefixtures("phases_of_its_own")
    def test_step_back(self, captured: CapturedTelemetry, llm: LLM) -> None:
        """Ours would be doubles; the summary stays."""
        llm.generate(["a"])
        assert [each.name for each in captured.spans if each.name.startswith("llm.")] == []
        found = next(each for each in captured.spans if each.name == REQUEST)
        assert semconv.phase_us(Phase.QUEUE) in (found.attributes or {})

    @pytest.mark.usefixtures("phases_of_its_own")
    def test_only_if_it_traces(self, captured: CapturedTelemetry, llm: LLM) -> None:
        """A vLLM that could, and was not asked to, writes none."""
        llm.llm_engine.vllm_config = vllm_state.configuration()
        llm.generate(["a"])
        assert "llm.queue" in [each.name for each in captured.spans]

    def test_only_if_it_can(self, captured: CapturedTelemetry, llm: LLM) -> None:
        """A vLLM of today writes one span."""
        describe.installed_makes_phase_spans.cache_clear()
        llm.generate(["a"])
        assert "llm.queue" in [each.name for each in captured.spans]

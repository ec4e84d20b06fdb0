"""Calls that another instrumentation traces, too: one span, by whoever made it first.

The other is stood in for by spans and context as it makes them; the real packages are in
`tests/conformance/test_clients_beside.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
import wrapt
from opentelemetry import context as context_api
from opentelemetry.instrumentation.utils import suppress_instrumentation

import otel_llm
from otel_llm import semconv
from otel_llm.clients.beside import INFERENCE
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import STREAMED, WHOLE, client, requests
from tests.clients.fixtures import Ask
from tests.fakes.openai_server import OpenAIServer, failing, stream, whole

Serve = Callable[..., OpenAIServer]
THEIRS: list[dict[str, Any]] = [
    {semconv.OPERATION: "chat"},
    {semconv.OPERATION: "text_completion"},
    {semconv.OPENINFERENCE_KIND: "LLM"},
    {semconv.LLM_REQUEST_TYPE: "chat"},
]


@contextmanager
def their_span(captured: CapturedTelemetry, attributes: dict[str, Any]) -> Iterator[Any]:
    """Another library's span is current."""
    tracer = captured.tracer_provider.get_tracer("their.instrumentation")
    with tracer.start_as_current_span("theirs", attributes=attributes) as span:
        yield span


@contextmanager
def value(key: str, given: object) -> Iterator[None]:
    """A value is in the current context."""
    token = context_api.attach(context_api.set_value(key, given))
    try:
        yield
    finally:
        context_api.detach(token)


@pytest.mark.parametrize("attributes", THEIRS)
def test_joined(captured: CapturedTelemetry, ask: Ask, attributes: dict[str, Any]) -> None:
    """Our summary is on their span, our phases below it; names and tokens stay theirs."""
    with their_span(captured, attributes) as span:
        list(ask(stream(5)))
    (joined,) = requests(captured)
    assert joined.context == span.get_span_context()
    assert {semconv.TTFT_US, semconv.E2E_US, semconv.OUTCOME} <= set(joined.attributes)
    assert semconv.OUTPUT_TOKENS not in joined.attributes
    assert captured.tree()[:2] == ["theirs", "  llm.first_token"]


def test_joined_metrics(captured: CapturedTelemetry, ask: Ask) -> None:
    """The conventions' metrics stay theirs; those of phases are ours."""
    with their_span(captured, THEIRS[0]):
        list(ask(stream(5)))
    assert captured.points("gen_ai.client.token.usage") == []
    assert captured.points("gen_ai.client.operation.duration") == []
    assert captured.points(semconv.PHASE_DURATION)


def test_joined_and_failed(captured: CapturedTelemetry, ask: Ask) -> None:
    """A call that fails: the outcome is ours, the status theirs."""
    with their_span(captured, THEIRS[0]), pytest.raises(openai.InternalServerError):
        ask(failing(500))
    (joined,) = requests(captured)
    assert joined.attributes[semconv.OUTCOME] == "error"


def test_sent_in_their_name(captured: CapturedTelemetry, serve: Serve) -> None:
    """The one `traceparent` names their span."""
    server = serve(whole())
    with client(server) as using, their_span(captured, THEIRS[0]) as span:
        using.chat.completions.create(**WHOLE)
    (sent,) = server.last.headers["traceparent"]
    assert f"{span.get_span_context().span_id:016x}" in sent


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool"])
def test_an_agents_span_is_no_call(captured: CapturedTelemetry, ask: Ask, operation: str) -> None:
    """Below an agent's or a tool's span the call has its own."""
    with their_span(captured, {semconv.OPERATION: operation}) as span:
        list(ask(stream()))
    (own,) = requests(captured)
    assert (own.name, own.parent) == ("chat tiny", span.get_span_context())


def test_own(captured: CapturedTelemetry, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_LLM_BESIDE=own`: a span of ours below theirs."""
    reconfigured(captured, monkeypatch, "own")
    with their_span(captured, THEIRS[0]):
        list(ask(stream()))
    (own,) = requests(captured)
    assert own.name == "chat tiny"
    assert captured.tree()[:2] == ["theirs", "  chat tiny"]


def test_off(captured: CapturedTelemetry, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_LLM_BESIDE=off`: the very object, and nothing written."""
    reconfigured(captured, monkeypatch, "off")
    with their_span(captured, THEIRS[0]):
        opened = ask(stream())
        assert type(opened) is openai.Stream
        list(opened)
    assert requests(captured) == []


def reconfigured(captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, beside: str) -> None:
    """Instrumented again under that setting."""
    otel_llm.uninstrument()
    monkeypatch.setenv("OTEL_LLM_BESIDE", beside)
    otel_llm.instrument(engines=["openai"], **captured.providers)


@pytest.mark.parametrize("key", [INFERENCE, "suppress_language_model_instrumentation"])
def test_traced_on_a_span_that_cannot_be_found(
    captured: CapturedTelemetry, ask: Ask, key: str
) -> None:
    """Another library says that it traces the call: left alone."""
    with value(key, True):
        opened = ask(stream())
    assert type(opened) is openai.Stream
    list(opened)
    assert captured.spans == []


def test_suppressed(captured: CapturedTelemetry, serve: Serve) -> None:
    """`suppress_instrumentation` of OpenTelemetry: no span, no metric, no header."""
    server = serve(stream())
    with client(server) as using, suppress_instrumentation():
        opened = using.chat.completions.create(**STREAMED)
        assert type(opened) is openai.Stream
        list(opened)
    assert captured.spans == []
    assert captured.points("gen_ai.client.operation.duration") == []
    assert "traceparent" not in server.last.headers


def test_a_wrapper_that_was_there_first(
    captured: CapturedTelemetry, serve: Serve, request: pytest.FixtureRequest
) -> None:
    """One that has the unpatched function is joined all the same, and again after a restart."""
    otel_llm.uninstrument()

    def traced(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        with their_span(captured, THEIRS[2]):
            return wrapped(*args, **kwargs)

    wrapper = wrapt.FunctionWrapper(openai.OpenAI.request, traced)
    openai.OpenAI.request = wrapper  # type: ignore[method-assign, assignment]
    request.addfinalizer(lambda: delattr(openai.OpenAI, "request"))
    for _ in range(2):
        otel_llm.instrument(engines=["openai"], **captured.providers)
        with client(serve(whole())) as using:
            using.chat.completions.create(**WHOLE)
        otel_llm.uninstrument()
    assert [each.name for each in requests(captured)] == ["theirs", "theirs"]
    with client(serve(whole())) as using:
        using.chat.completions.create(**WHOLE)
    assert len(requests(captured)) == 2


def test_an_iterator_around_the_streams(captured: CapturedTelemetry, ask: Ask) -> None:
    """One that another library puts in place of the stream's is what is read, once."""
    opened = ask(stream(5))
    inner, seen = opened._iterator, []

    def around() -> Iterator[Any]:
        for item in inner:
            seen.append(item)
            yield item

    opened._iterator = around()
    assert list(opened) == seen
    assert len(seen) == 8
    (span,) = requests(captured)
    assert span.attributes[semconv.OUTCOME] == "ok"

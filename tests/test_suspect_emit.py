"""What emission, servers, adapters and set-up still get wrong; each with the reason it is wrong.

Every test here fails today. When a fault is mended, its test moves to the file of its part.
"""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry import baggage
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind

import otel_llm
from otel_llm import ConfigurationError, config, semconv
from otel_llm.adapters.patching import Patches
from otel_llm.config import RUNTIME, Settings
from otel_llm.emit.content import without_binaries
from otel_llm.emit.live import current_request
from otel_llm.emit.settings import EmitSettings
from otel_llm.export import SafeSpanExporter
from otel_llm.instrumentors import VllmInstrumentor
from otel_llm.propagation.identity import parse_keys
from otel_llm.servers.asgi import ServerSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.emit.builders import Spy, attached, complete, opened, written
from tests.fakes import vllm
from tests.fakes.asgi import CHAT, Connection, chunk, replies, start
from tests.fakes.vllm import AsyncLLM, Plan, RequestOutput, SamplingParams
from tests.servers.builders import ANSWER, PARENT, REQUEST, SERVER, outcome, serve
from tests.tracing.builders import NAME, request
from tests.tracing.builders import outcome as ended


def suspect(reason: str) -> pytest.MarkDecorator:
    """The test fails, and why."""
    return pytest.mark.xfail(strict=True, reason=reason)


class Reason(Enum):
    """Finish reasons of a client library."""

    STOP = "stop"


class Encoding(SpanExporter):
    """What a receiver gets of the real encoder."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(encode_spans(spans).ByteSize())
        self.names.extend(span.name for span in spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is open."""


def finished(limits: SpanLimits | None = None, **spans: dict[str, Any]) -> list[ReadableSpan]:
    """Spans by their names, with these attributes."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for name, attributes in spans.items():
        provider.get_tracer("app").start_span(name, attributes=attributes).end()
    return list(memory.get_finished_spans())


@pytest.fixture
def in_force(captured: CapturedTelemetry) -> CapturedTelemetry:
    """Telemetry in memory, in force for `trace_request`."""
    config.RUNTIME.telemetry = captured.telemetry
    return captured


class TestCollector:
    """A request that is freed by the garbage collector."""

    @suspect("LiveRequest.__del__ records metrics where the collector runs, maybe under their lock")
    def test_while_a_metric_is_recorded(self) -> None:
        """The collector may run inside the SDK's lock, which is not reentrant: a deadlock."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(COLLECTED)],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stdout.strip() == "served"


COLLECTED = """
    import gc, os, threading
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from otel_llm.emit.request import RequestInfo
    from otel_llm.emit.telemetry import Telemetry
    from otel_llm.timeline import Side

    class Bounds(list):
        # The SDK looks for a value's bucket with its lock held; any allocation there may collect.
        def __len__(self):
            gc.collect()
            return super().__len__()

    def serve():
        live = telemetry.start(info, Side.SERVER)
        live.recorder.ending(end_record=True)
        live.finish()

    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    telemetry = Telemetry(None, meters)
    info = RequestInfo("chat", "demo", "tiny")
    serve()
    for each in gc.get_objects():
        if type(each).__name__ == "_ExplicitBucketHistogramAggregation":
            each._boundaries = Bounds(each._boundaries)
    lost = telemetry.start(info, Side.SERVER)
    lost.annotate({"itself": lost})
    del lost
    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    worker.join(2)
    print("hangs" if worker.is_alive() else "served", flush=True)
    os._exit(0)
"""


class TestTraceRequest:
    """`trace_request`."""

    @suspect("tracing.__exit__ takes a block that ends for a stream that ended")
    def test_a_break_within_the_block(self, in_force: CapturedTelemetry) -> None:
        """The reader left the stream, so the request was abandoned and not answered."""
        with request() as r:
            for _ in r.stream(iter("abc")):
                break
        assert ended(in_force) == ("abandoned", None, True)

    @suspect("tracing.__exit__ takes a block that ends for a stream that ended")
    async def test_a_close_within_the_block(self, in_force: CapturedTelemetry) -> None:
        """The same with an async stream that is closed by its reader."""

        async def items() -> AsyncIterator[str]:
            for item in "abc":
                yield item

        async with request() as r:
            stream = r.stream(items())
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
        assert ended(in_force)[0] == "abandoned"

    @suspect("a wrapper that was never started does not reach its finally, and closes nothing")
    def test_a_stream_that_is_closed_unread(self, in_force: CapturedTelemetry) -> None:
        """Closing the stream closes the one below: a connection is leaked otherwise."""

        class Source:
            """A client's stream."""

            closed = 0

            def __iter__(self) -> Iterator[str]:
                return iter("abc")

            def close(self) -> None:
                self.closed += 1

        source = Source()
        with request() as r:
            stream = r.stream(source)
        stream.close()  # type: ignore[attr-defined]
        assert source.closed == 1

    @suspect("tracing.finish_reason uses str() where an enum has a value")
    def test_a_finish_reason_that_is_an_enum(self, in_force: CapturedTelemetry) -> None:
        """An enum becomes its text."""
        with request() as r:
            r.finish_reason(Reason.STOP)  # type: ignore[arg-type]
        assert in_force.span(NAME).attributes[semconv.FINISH_REASONS] == ("stop",)

    @suspect("tracing.finish_reason uses str() on None")
    def test_an_unknown_finish_reason(self, in_force: CapturedTelemetry) -> None:
        """Unknown is absent, never the text `None`."""
        with request() as r:
            r.finish_reason(None)  # type: ignore[arg-type]
        assert semconv.FINISH_REASONS not in in_force.span(NAME).attributes

    @suspect("telemetry._start_attributes writes any model that is not None")
    def test_an_empty_model(self, in_force: CapturedTelemetry) -> None:
        """Nor is it an empty text."""
        with request(model=""):
            pass
        assert semconv.REQUEST_MODEL not in in_force.spans[0].attributes

    @pytest.mark.parametrize("field", ["model", "reason", "finish"])
    @suspect("model, error type and finish reasons are written without clean_text")
    def test_half_an_emoji(self, in_force: CapturedTelemetry, field: str) -> None:
        """An exporter that is not ours loses the attribute or, for a name, the whole batch."""
        with request(model="cut \ud83e" if field == "model" else "tiny") as r:
            if field == "reason":
                r.reject("cut \ud83e")
            if field == "finish":
                r.finish_reason("cut \ud83e")
        texts = [f"{each.name} {value}" for each in in_force.spans for value in _texts(each)]
        assert not [text for text in texts if "\ud83e" in text]

    @pytest.mark.parametrize("value", [{"x": float("nan")}, {("a", 1): 2}])
    @suspect("values.as_json raises, and with it goes the whole summary")
    def test_structure_that_is_no_json(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch, value: Any
    ) -> None:
        """One odd attribute costs itself and nothing else."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        with request() as r:
            r.set({"app.structure": value})
        assert in_force.span(NAME).attributes.get(semconv.OUTCOME) == "ok"

    @suspect("api.trace_request reads identity keys from a carrier only")
    def test_identity_from_the_current_context(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server that extracted the baggage itself has it in its context."""
        monkeypatch.setenv("OTEL_LLM_CONTEXT_KEYS", "tenant")
        with attached(baggage.set_baggage("tenant", "acme", Context())), request():
            pass
        assert in_force.span(NAME).attributes.get("otel_llm.tenant") == "acme"

    @suspect("api.trace_request does not look at trust_remote")
    def test_an_untrusted_carrier(
        self, in_force: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At a public edge the caller's trace is linked, whoever reads the headers."""
        monkeypatch.setenv("OTEL_LLM_TRUST_REMOTE", "false")
        with request(side="server", carrier={"traceparent": PARENT}):
            pass
        assert (in_force.span(NAME).parent, len(in_force.span(NAME).links)) == (None, 1)


class TestServers:
    """The ASGI middleware."""

    @pytest.mark.parametrize("messages", [[], [start(), chunk(b"{")]], ids=["nothing", "half"])
    @suspect("a plain reply needs no end; asgi.serve does not note that it never came")
    async def test_a_plain_reply_without_an_end(
        self, captured: CapturedTelemetry, messages: list[Any]
    ) -> None:
        """The server answers 500 or cuts the connection; that is no success."""
        await serve(replies(*messages), captured)
        assert outcome(captured)[0] == "error"

    @suspect("asgi._first_delivered calls bytes' methods on a memoryview, outside of any guard")
    async def test_a_chunk_that_is_a_memoryview(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """Starlette sends them; the application must not see an error of ours."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            await send(start(kind="text/event-stream"))
            live.recorder.lane().stamps.append(clock.monotonic_ns())
            await send(chunk(memoryview(b"data: x\n\n")))  # type: ignore[arg-type]
            await send(chunk(more=False))

        connection = await serve(app, captured)
        assert len(connection.sent) == 3

    @suspect("asgi._first_delivered looks at the first byte of a chunk only")
    async def test_a_comment_and_data_in_one_chunk(
        self, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """A chunk that begins with a comment may hold the first token."""

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            live = current_request()
            assert live is not None
            lane = live.recorder.lane()
            await send(start(kind="text/event-stream"))
            lane.stamps.append(clock.monotonic_ns())
            for data in (b": ping\n\ndata: one\n\n", b"data: two\n\n"):
                clock.advance(0.010)
                await send(chunk(data))
            lane.stamps.append(clock.monotonic_ns())
            await send(chunk(more=False))

        await serve(app, captured)
        assert captured.span(REQUEST).attributes["otel_llm.first_token_us"] == 10_000

    @suspect("FastAPI extracts the parent from the headers again, and makes a second SERVER span")
    async def test_around_an_application_with_fastapis_own_tracing(
        self, captured: CapturedTelemetry
    ) -> None:
        """Exactly one, also where the middleware is wrapped around everything."""
        app = FastAPI(
            telemetry={
                "auto_configure": False,
                "tracing": True,
                "metrics": False,
                "logs": False,
                "tracer_provider": captured.tracer_provider,
            }
        )

        @app.post(CHAT)
        async def chat(_body: dict[str, Any]) -> dict[str, Any]:
            return {}

        await serve(app, captured, headers={"traceparent": PARENT})
        kinds = [each.kind for each in captured.spans]
        assert kinds.count(SpanKind.SERVER) == 1

    @suspect("asgi._http_attributes leaves out who the request belongs to")
    async def test_a_sampler_that_decides_by_tenant(self) -> None:
        """Our SERVER span is the root: children follow its decision, so it must know the tenant."""
        spy = Spy()
        settings = ServerSettings(context_keys=parse_keys("tenant=header:x-tenant"))
        await serve(
            ANSWER, captured_telemetry(sampler=spy), settings=settings, headers={"x-tenant": "acme"}
        )
        assert dict(spy.seen)[SERVER].get("otel_llm.tenant") == "acme"

    @suspect("api.InferenceMiddleware knows the environment's trust_remote only")
    async def test_trust_that_was_given_to_instrument(self, captured: CapturedTelemetry) -> None:
        """Whoever says `instrument(trust_remote=False)` means every server of the process."""
        otel_llm.instrument(engines=[], trust_remote=False, **captured.providers)
        await Connection().serve(
            otel_llm.InferenceMiddleware(ANSWER), headers={"traceparent": PARENT}
        )
        assert captured.span(SERVER).parent is None

    @suspect("nothing is logged when a caller's flag makes all spans vanish")
    async def test_an_unsampled_caller_is_explained(self, caplog: pytest.LogCaptureFixture) -> None:
        """One debug line says why there are no spans (D-PRO-01)."""
        caplog.set_level(logging.DEBUG, "otel_llm")
        captured = captured_telemetry(sampler=ParentBased(ALWAYS_ON))
        await serve(ANSWER, captured, headers={"traceparent": PARENT[:-1] + "0"})
        assert [each for each in caplog.records if "sampled" in each.getMessage()]


class TestVllm:
    """The vLLM adapter."""

    @pytest.fixture
    def engine(
        self, monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry, clock: ManualClock
    ) -> AsyncLLM:
        """A patched engine."""
        fresh = vllm.installed(monkeypatch)
        otel_llm.instrument(**captured.providers)
        return fresh(clock)

    @suspect("tokens are summed over calls: a beam search calls the engine for every token")
    async def test_a_beam_search(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Its prompt is one prompt, however many calls: vLLM's own usage says 7, not 84."""
        engine.plan = Plan(tokens=1)
        live = opened(captured)
        with attached(live.context):
            for step in range(3):
                for beam in range(4):
                    name = f"r0-abc-beam-{beam}-{step}"
                    async for _ in engine.generate("hi", SamplingParams(), name):
                        pass
        live.finish()
        assert written(captured).get(semconv.INPUT_TOKENS) in {7, None}

    @pytest.mark.parametrize("n", [1, 2])
    @suspect("VllmCall.keep and VllmCall.stamps take outputs[0], the former outside of any guard")
    async def test_an_output_without_sequences(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        monkeypatch: pytest.MonkeyPatch,
        n: int,
    ) -> None:
        """Whatever the engine yields goes through, and the rest is still written."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        odd = RequestOutput("r", [1], [], False, metrics=vllm.RequestStateStats())
        engine._shown = lambda *_given: [odd]  # type: ignore[method-assign]
        live, taken = opened(captured), 0
        with attached(live.context), suppress(IndexError):
            async for _ in engine.generate("hi", SamplingParams(n=n), "r"):
                taken += 1
        live.finish()
        assert (taken, semconv.OUTCOME in written(captured)) == (4, True)

    @suspect("a middleware that was added goes on with the telemetry that it was given")
    async def test_a_server_that_runs_while_we_are_switched_off(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """After `uninstrument` no further span is written."""
        app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False})
        app.state.engine_client = engine
        app.post(CHAT)(_answer)
        app.middleware_stack = app.build_middleware_stack()
        otel_llm.uninstrument()
        await Connection().serve(app)
        assert captured.spans == []


class TestPatches:
    """Replacing functions."""

    @suspect("functools.wraps copies the mark onto somebody else's wrapper")
    def test_again_below_somebody_elses_wrapper(self) -> None:
        """On, wrapped by others, off, on: the second time nothing would be traced."""
        library = type("Library", (), {"greet": lambda _self: "hello"})

        def make(original: Any) -> Any:
            return lambda self: f"{original(self)}!"

        patches = Patches("one")
        patches.replace(library, "greet", make)
        ours = library.greet  # type: ignore[attr-defined]

        @functools.wraps(ours)
        def theirs(self: Any) -> Any:
            return ours(self)

        library.greet = theirs  # type: ignore[attr-defined]
        patches.undo()
        assert Patches("one").replace(library, "greet", make)


class TestSetUp:
    """Switching on."""

    @suspect("config.instrument sets the telemetry before it looks at the engines")
    def test_after_a_mistake(self, captured: CapturedTelemetry) -> None:
        """A call that raised has changed nothing, so that the next one counts."""
        with suppress(otel_llm.OtelLLMError):
            otel_llm.instrument(engines=["vlm"], **captured_telemetry().providers)
        otel_llm.instrument(engines=[], **captured.providers)
        with otel_llm.trace_request("chat", provider="demo"):
            pass
        assert captured.tree() == ["chat"]

    @suspect(
        "VllmInstrumentor lets errors out, and opentelemetry-instrument gives up on all others"
    )
    def test_wrong_settings_of_the_instrumentor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Loaded by an entry point, wrong values are logged and the library stays off."""
        monkeypatch.setenv("OTEL_LLM_SEMCONV", "2.0")
        VllmInstrumentor().instrument()
        assert RUNTIME.telemetry is None

    @pytest.mark.parametrize("value", ["1", "maybe"])
    @suspect("the specification knows `true` alone; anything else is false, with a warning")
    def test_the_sdks_switch(self, value: str) -> None:
        """The same variable must not mean two things in one process, nor stop it."""
        assert not Settings.from_environment({"OTEL_SDK_DISABLED": value}).disabled

    @suspect("the error says nothing of the variable that the name came from")
    def test_a_wrong_engine_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever reads the message must find the place."""
        monkeypatch.setenv("OTEL_LLM_ENGINES", "vlm")
        with pytest.raises((ConfigurationError, otel_llm.OtelLLMError), match="OTEL_LLM_ENGINES"):
            otel_llm.instrument()


class TestContent:
    """Content, where capture is on."""

    @suspect("content._described knows no length of a text: the Responses API's images")
    def test_an_image_as_a_text(self) -> None:
        """Its length is not zero."""
        part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        assert "0 characters" not in json.dumps(without_binaries(part)).replace("26 c", "c")

    @suspect("content.without_binaries does not know base64 without `data:`: /v1/messages")
    def test_an_image_of_the_messages_api(self) -> None:
        """Images are described on every route that we trace."""
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA" * 50_000}
        assert len(str(without_binaries({"type": "image", "source": source}))) < 1000

    @suspect("content.content_attributes does not describe a content that is one text")
    def test_an_image_alone(self, clock: ManualClock) -> None:
        """Nor is one that is the whole input of an embedding."""
        captured = captured_telemetry(EmitSettings(capture_content=True), clock=clock)
        live = opened(captured)
        live.content(semconv.INPUT_MESSAGES, "data:image/png;base64," + "A" * 10_000)
        complete(live)
        assert len(written(captured)[semconv.INPUT_MESSAGES]) < 100


class TestExport:
    """`SafeSpanExporter`."""

    @suspect("one span above the limit is sent as it is")
    def test_one_span_above_the_limit(self) -> None:
        """No request is larger than the limit, or a receiver refuses it for good."""
        inner = Encoding()
        texts = {f"text{number}": "x" * 100_000 for number in range(60)}
        SafeSpanExporter(inner).export(finished(large=texts, small={}))
        assert max(inner.sizes) <= 3_500_000

    @suspect("export._mended makes a span that knows nothing of what was dropped")
    def test_what_was_dropped_is_still_told(self) -> None:
        """Mending does not hide that the SDK's own limits were hit."""
        limits = SpanLimits(max_span_attributes=1)
        (given,) = finished(limits, span={"a": 1, "text": "cut \ud83e"})
        kept: list[ReadableSpan] = []

        class Keeping(Encoding):
            """Keeps the spans themselves."""

            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                kept.extend(spans)
                return SpanExportResult.SUCCESS

        SafeSpanExporter(Keeping()).export([given])
        assert (given.dropped_attributes, kept[0].dropped_attributes) == (1, 1)


async def _answer(_body: dict[str, Any]) -> dict[str, Any]:
    return {}


def _texts(span: ReadableSpan) -> Iterator[str]:
    for value in (span.attributes or {}).values():
        yield from [value] if isinstance(value, str) else map(str, _items(value))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else ()

"""Field cases of kind EXP: exemplars, attribute types, large content, broken text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Status, StatusCode

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.request import request_parameters
from otel_llm.emit.settings import EmitSettings
from otel_llm.export import SafeSpanExporter
from otel_llm.export.encode import LARGEST_REQUEST, encoded
from otel_llm.semconv import V1_41
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.emit.builders import NAME, complete, generated, opened
from tests.fakes.asgi import Connection, body, chunk, replies, start

DATA = Path(__file__).parent / "data"
MIB = 1024 * 1024
TEXT = "\u96ea" * 20_000
IMAGE = "data:image/png;base64," + "A" * 6_000_000
HISTOGRAMS = (semconv.SERVER_DURATION, semconv.SERVER_TTFT, semconv.SERVER_TPOT)


class Encoding(SpanExporter):
    """Encodes for OTLP as the real exporter does, and keeps what a receiver would get."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.spans: list[Any] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.take(encode_spans(spans))
        return SpanExportResult.SUCCESS

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep what is in one request."""
        self.sizes.append(request.ByteSize())
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def shutdown(self) -> None:
        """Nothing is open."""


def spans(*attributes: dict[str, Any], resource: Resource | None = None) -> list[ReadableSpan]:
    """One finished span for each set of attributes."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("app")
    for each in attributes:
        tracer.start_span("span", attributes=each).end()
    return list(memory.get_finished_spans())


class Way:
    """A way to a receiver: the exporter that wraps others, or our own encoder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, made: Sequence[ReadableSpan], limit: int = LARGEST_REQUEST) -> Encoding:
        """What arrives of spans with requests of at most *limit* bytes."""
        inner = Encoding()
        if self.name == "wrapper":
            result = SafeSpanExporter(inner, largest_request=limit).export(made)
            assert SpanExportResult.SUCCESS is result
        else:
            for request in encoded(made, largest_request=limit):
                inner.take(ExportTraceServiceRequest.FromString(request.body))
        return inner

    def exported(self, limit: int, *attributes: dict[str, Any]) -> Encoding:
        """What arrives of spans with these attributes."""
        resource = Resource.create({"service.name": "demo", "service.instance.id": "a" * 36})
        return self.send(spans(*attributes, resource=resource), limit)


@pytest.fixture(scope="module", params=["wrapper", "encoder"])
def way(request: pytest.FixtureRequest) -> Way:
    """Every way."""
    return Way(request.param)


@pytest.fixture(scope="module")
def batch(way: Way) -> Encoding:
    """The batch of D-EXP-04, exported with the default limits."""
    texts = [{"gen_ai.input.messages": TEXT}] * 199
    return way.exported(LARGEST_REQUEST, *texts, {"gen_ai.input.messages": IMAGE})


class TestExemplars:
    """D-EXP-02: every exemplar leads to the request span of its call."""

    @pytest.mark.parametrize("streamed", [True, False])
    def test_ids(self, captured: CapturedTelemetry, clock: ManualClock, streamed: bool) -> None:
        """Streamed, the recording happens in another task."""

        async def end(live: Any) -> None:
            complete(live)

        async def scenario() -> None:
            live = generated(opened(captured), clock)
            live.recorder.streaming = streamed
            await asyncio.create_task(end(live))

        asyncio.run(scenario())
        context = captured.span(NAME).context
        for name in HISTOGRAMS:
            (point,) = captured.points(name)
            assert [(context.trace_id, context.span_id)] == [
                (each.trace_id, each.span_id) for each in point.exemplars
            ]

    def test_unsampled(self, clock: ManualClock) -> None:
        """No exemplar leads to a trace that was not exported."""
        captured = captured_telemetry(sampler=ALWAYS_OFF, clock=clock)
        complete(generated(opened(captured), clock))
        points = [captured.points(name)[0] for name in HISTOGRAMS]
        assert [(each.count, each.exemplars) for each in points] == [(1, ())] * 3


class NotGiven:
    """The sentinel of a client library."""


class Reason(Enum):
    """Finish reasons of a client library."""

    STOP = "stop"


class TestTypes:
    """D-EXP-03: values of types that attributes cannot have."""

    @pytest.fixture
    def case(self) -> Any:
        """Request and response, with the sentinel in place."""
        case = json.loads((DATA / "D-EXP-03.json").read_text())
        case["request"]["top_p"] = NotGiven()
        return case

    @pytest.fixture
    def written(
        self, case: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> dict[str, Any]:
        """What one call leaves on its span; the SDK has had nothing to complain of."""
        captured = captured_telemetry(EmitSettings(capture_content=True), clock=clock)
        config.RUNTIME.telemetry = captured.telemetry
        request, response = case["request"], case["response"]
        usage, (choice,) = response["usage"], response["choices"]
        parameters = request_parameters(request, V1_41)
        with otel_llm.trace_request(
            "chat", model=request["model"], provider="demo", attributes={**request, **parameters}
        ) as r:
            r.usage(input_tokens=usage["prompt_tokens"], output_tokens=usage["completion_tokens"])
            r.set({"gen_ai.response.id": response["id"], "gen_ai.response.model": None})
            r.set({"app.finish": Reason.STOP, "app.message": choice["message"]})
            assert r._live is not None
            r._live.content(semconv.INPUT_MESSAGES, request["messages"])
        assert caplog.records == []
        return dict(captured.span("chat demo-7b").attributes)

    def test_missing_values_and_sentinels_are_absent(self, written: dict[str, Any]) -> None:
        """None, the client's sentinel, an id and a model that the response does not name."""
        absent = {semconv.TEMPERATURE, semconv.TOP_P, "temperature", "top_p"}
        absent |= {"gen_ai.response.id", "gen_ai.response.model"}
        assert not absent & set(written)

    def test_numbers_keep_their_type(self, written: dict[str, Any]) -> None:
        """Counts are integers whatever the response writes; a whole seed is an integer."""
        names = (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.SEED)
        assert [(12, int), (5, int), (7, int)] == [
            (written[name], type(written[name])) for name in names
        ]

    def test_lists_lose_their_gaps(self, written: dict[str, Any]) -> None:
        """`None` is no stop sequence."""
        assert written[semconv.STOP_SEQUENCES] == ("END",)

    def test_enums_become_text(self, written: dict[str, Any]) -> None:
        """Their value, not their name."""
        assert written["app.finish"] == "stop"

    def test_structured_content_is_json(self, written: dict[str, Any]) -> None:
        """One string, with the image described."""
        (message,) = json.loads(written[semconv.INPUT_MESSAGES])
        assert message["content"][0] == {"type": "text", "text": "What is this?"}
        assert "AAAA" not in written[semconv.INPUT_MESSAGES]
        assert json.loads(written["app.message"]) == {"role": "assistant", "content": None}

    async def test_the_same_body_at_a_server(
        self, case: Any, caplog: pytest.LogCaptureFixture, captured: CapturedTelemetry
    ) -> None:
        """As it comes over the wire, with a text for the sentinel."""
        case["request"]["top_p"] = "<sentinel:NOT_GIVEN>"
        app = replies(start(), chunk(b"{}", more=False))
        connection = Connection(body(json.dumps(case["request"]).encode()))
        await connection.serve(InferenceMiddleware(app, captured.telemetry))
        found = captured.span("chat demo-7b").attributes
        assert found[semconv.SEED] == 7
        unknown_or_content = {semconv.TEMPERATURE, semconv.TOP_P, semconv.STOP_SEQUENCES}
        assert not unknown_or_content & set(found)
        assert caplog.records == []


class TestLargeContent:
    """D-EXP-04: 199 spans of 60 kB, and one with an image of 6 MB."""

    def test_everything_arrives(self, batch: Encoding) -> None:
        """All 200 spans, the neighbours unchanged."""
        assert len(batch.spans) == 200
        texts = [each.attributes[0].value.string_value for each in batch.spans]
        assert texts.count(TEXT) == 199

    def test_no_request_is_too_large(self, batch: Encoding) -> None:
        """Measured on what the real encoder makes."""
        assert max(batch.sizes) <= LARGEST_REQUEST < 4 * MIB
        assert len(batch.sizes) >= 4

    def test_the_large_one_is_cut(self, batch: Encoding) -> None:
        """With its original length beside it."""
        (image,) = [each for each in batch.spans if len(each.attributes) == 2]
        found = {each.key: each.value for each in image.attributes}
        kept = found["gen_ai.input.messages"].string_value
        assert len(kept) < 200_000
        assert IMAGE.startswith(kept)
        assert len(IMAGE) == found["otel_llm.content.length.input.messages"].int_value

    @pytest.mark.parametrize("limit", [70_000, 200_000, MIB])
    def test_any_limit_above_the_largest_span(self, way: Way, limit: int) -> None:
        """Requests keep below it, however many they are."""
        inner = way.exported(limit, *[{"text": TEXT, "n": 1}] * 20)
        assert (len(inner.spans), max(inner.sizes) <= limit) == (20, True)

    def test_cut_at_a_character(self, way: Way) -> None:
        """Three and four byte characters stay whole around the limit."""
        for text in ("\u96ea" * 200_000, "\U0001f98a" * 200_000, "a" + "\U0001f98a" * 200_000):
            (span,) = way.exported(MIB, {"text": text}).spans
            kept = next(each for each in span.attributes if each.key == "text").value.string_value
            assert text[: len(kept)] == kept

    def test_images_are_described(self, clock: ManualClock) -> None:
        """Content that we capture holds no image, so that the text beside it is whole."""
        captured = captured_telemetry(EmitSettings(capture_content=True), clock=clock)
        live = opened(captured)
        image = {"type": "image_url", "image_url": {"url": IMAGE}}
        live.content(semconv.INPUT_MESSAGES, [{"type": "text", "text": "look"}, image])
        complete(live)
        written = captured.span(NAME).attributes[semconv.INPUT_MESSAGES]
        assert json.loads(written)[1]["image_url"] == "<image_url, 6000022 characters>"

    def test_off_by_default(self, captured: CapturedTelemetry) -> None:
        """Without the switch there is nothing to cut."""
        live = opened(captured)
        live.content(semconv.INPUT_MESSAGES, TEXT)
        complete(live)
        assert semconv.INPUT_MESSAGES not in captured.span(NAME).attributes

    def test_one_span_above_the_limit(self, way: Way) -> None:
        """Many long texts on one span are cut until it fits; its neighbour arrives whole."""
        texts = {f"text{number}": "x" * 100_000 for number in range(60)}
        inner = way.exported(LARGEST_REQUEST, texts, {"text": "small"})
        assert (len(inner.spans), max(inner.sizes) <= LARGEST_REQUEST) == (2, True)
        cut = {each.key: each.value for each in inner.spans[0].attributes}
        assert cut["otel_llm.content.length.text0"].int_value == 100_000

    @pytest.mark.parametrize(
        "value", [[0.5] * 4096, [1] * 4096, ["a"] * 4096, [True] * 4096, ["\u96ea"] * 2048]
    )
    def test_lists_count_too(self, way: Way, value: Any) -> None:
        """Embeddings and token ids take room in a request."""
        inner = way.exported(100_000, *[{"list": value}] * 10)
        assert (len(inner.spans), max(inner.sizes) <= 100_000) == (10, True)


class TestBrokenText:
    """D-EXP-05: one span with half emoji among nine clean ones."""

    VALUES = json.loads((DATA / "D-EXP-05.json").read_text())["values"]
    MENDED = ("cut \ufffd here", "tail \ufffd", "whole \U0001f98a ok", "plain")

    def broken(self) -> ReadableSpan:
        """Half emoji in every place that holds text."""
        memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(memory))
        cut, tail, whole, plain = self.VALUES
        span = provider.get_tracer("app").start_span(cut)
        span.set_attributes({"texts": self.VALUES, f"key {tail}": tail, "whole": whole})
        span.add_event(tail, {f"key {cut}": cut, "plain": plain})
        span.set_status(Status(StatusCode.ERROR, cut))
        span.end()
        return memory.get_finished_spans()[0]

    def test_all_ten_arrive(self, way: Way) -> None:
        """The clean ones as they were."""
        clean = spans(*[{"text": "clean"}] * 9)
        found = way.send([*clean[:5], self.broken(), *clean[5:]]).spans
        assert [self.MENDED[0]] + ["span"] * 9 == sorted(each.name for each in found)

    def test_only_bad_code_points_are_replaced(self, way: Way) -> None:
        """In values, keys, event names and status descriptions; whole emoji stay."""
        (found,) = way.send([self.broken()]).spans
        attributes = {each.key: each.value for each in found.attributes}
        texts = [each.string_value for each in attributes["texts"].array_value.values]
        assert list(self.MENDED) == texts
        assert self.MENDED[1] == attributes[f"key {self.MENDED[1]}"].string_value
        (event,) = found.events
        assert (self.MENDED[1], f"key {self.MENDED[0]}") == (event.name, event.attributes[0].key)
        assert self.MENDED[0] == found.status.message

    def test_a_mended_span_is_otherwise_the_same(self, way: Way) -> None:
        """Ids, times, kind and scope."""
        given = self.broken()
        (found,) = way.send([given]).spans
        assert given.context.span_id.to_bytes(8, "big") == found.span_id
        assert (given.start_time, given.end_time) == (
            found.start_time_unix_nano,
            found.end_time_unix_nano,
        )

    def test_a_clean_span_is_not_touched(self) -> None:
        """It is handed on itself."""
        (given,) = spans({"text": "clean \U0001f98a"})
        assert [given] == Keeping.exported(given)

    @pytest.mark.parametrize("value", VALUES)
    def test_our_own_spans_are_clean_for_any_exporter(
        self, captured: CapturedTelemetry, value: str
    ) -> None:
        """What we write ourselves needs no mending, whoever exports it."""
        live = opened(captured)
        live.annotate({"text": value, f"key {value}": [value]})
        complete(live)
        assert len(encode_spans(captured.spans).SerializeToString()) > 0

    def test_invalid_bytes_in_a_header(self, captured: CapturedTelemetry) -> None:
        """A header that is no UTF-8 neither breaks the request nor its span."""
        connection = Connection()
        app = InferenceMiddleware(replies(start(), chunk(more=False)), captured.telemetry)
        asyncio.run(connection.serve(app, headers={"traceparent": "\xff\xfe", "x-t": "\xed\xa0"}))
        assert len(encode_spans(captured.spans).SerializeToString()) > 0


class Keeping(SpanExporter):
    """Keeps the spans themselves."""

    def __init__(self) -> None:
        self.kept: list[ReadableSpan] = []

    @classmethod
    def exported(cls, *given: ReadableSpan) -> list[ReadableSpan]:
        """What becomes of these spans."""
        inner = cls()
        SafeSpanExporter(inner).export(given)
        return inner.kept

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.kept.extend(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is open."""


class TestSafeExporter:
    """What it hands through."""

    def test_failure(self) -> None:
        """One request of several that fails is a failure of the whole."""

        class Second(Encoding):
            """Refuses the second request."""

            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                super().export(spans)
                refused = len(self.sizes) == 2
                return SpanExportResult.FAILURE if refused else SpanExportResult.SUCCESS

        inner = Second()
        exporter = SafeSpanExporter(inner, largest_request=400)
        made = spans(*[{"text": "x" * 200}] * 3)
        assert SpanExportResult.FAILURE is exporter.export(made)
        assert len(inner.spans) == 3

    def test_nothing(self) -> None:
        """No spans, no request."""
        inner = Encoding()
        assert SpanExportResult.SUCCESS is SafeSpanExporter(inner).export([])
        assert inner.sizes == []

    def test_flush_and_shutdown(self) -> None:
        """They reach the exporter behind it."""
        inner = InMemorySpanExporter()
        exporter = SafeSpanExporter(inner)
        assert exporter.force_flush(1)
        exporter.shutdown()
        assert SpanExportResult.FAILURE is inner.export([])

    def test_what_was_dropped_is_still_told(self) -> None:
        """Mending does not hide that the SDK's own limits were hit."""
        memory = InMemorySpanExporter()
        limits = SpanLimits(max_span_attributes=1, max_events=1, max_links=1)
        provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
        provider.add_span_processor(SimpleSpanProcessor(memory))
        span = provider.get_tracer("app").start_span("span", attributes={"a": 1, "b": "\ud83e"})
        for each in ("one", "two"):
            span.add_event(each)
            span.add_link(span.get_span_context())
        span.end()
        (given,) = memory.get_finished_spans()
        (mended,) = Keeping.exported(given)
        assert mended.attributes["b"] == "\ufffd"
        assert [
            (each.dropped_attributes, each.dropped_events, each.dropped_links)
            for each in (given, mended)
        ] == [(1, 1, 1)] * 2

"""Streams, and every way to leave them."""

from __future__ import annotations

import inspect
import json
import time

import pytest
from huggingface_hub import InferenceClient
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_llm import config, semconv
from otel_llm.emit.telemetry import Telemetry
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.adapters.huggingface.builders import (
    STREAMS,
    Stream,
    after,
    closing,
    instrument,
    named,
    outcome,
    request,
    requests,
    traceparents,
)
from tests.fakes import tgi
from tests.fakes.tgi import TgiServer


class TestStream:
    """Streams, and every way to leave them."""

    @pytest.mark.parametrize("open_stream", STREAMS.values(), ids=STREAMS)
    def test_read_to_the_end(
        self,
        captured: CapturedTelemetry,
        server: TgiServer,
        client: InferenceClient,
        open_stream: Stream,
    ) -> None:
        """The same items as without us, in a generator of the same name, and the span is ended."""
        items = open_stream(client)
        assert inspect.isgenerator(items)
        assert items.__name__.startswith("_stream_")
        assert traceparents(server) == 1  # so it was sent
        read = list(items)
        config.uninstrument()
        assert list(open_stream(client)) == read
        assert outcome(captured) == ("ok", None)
        assert {"otel_llm.ttft_us", "otel_llm.decode_us"} <= set(request(captured))

    def test_what_a_chat_says_of_itself(
        self, captured: CapturedTelemetry, client: InferenceClient
    ) -> None:
        """Keep-alive comments are no chunks; counts and the finish reason come from the server."""
        assert len(list(STREAMS["chat"](client))) == 5
        found = request(captured)
        assert (
            found[semconv.INPUT_TOKENS],
            found[semconv.OUTPUT_TOKENS],
            found[semconv.FINISH_REASONS],
        ) == (9, 3, ("stop",))
        assert {"otel_llm.queue_us", "otel_llm.prefill_us"}.isdisjoint(found)

    def test_first_token(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """The time to the first token begins with the call, which sends the request."""
        server.answers = [after(tgi.chat_stream(gap=0.1), 0.1)]
        called = time.perf_counter()
        items = STREAMS["chat"](client)
        next(items)
        waited = time.perf_counter() - called
        list(items)
        assert 0.2 <= request(captured)["otel_llm.ttft_us"] / 1e6 <= waited
        assert request(captured)["otel_llm.decode_us"] >= 150_000

    @pytest.mark.parametrize("read", [0, 1, 2])
    @pytest.mark.parametrize("how", ["drop", "close"])
    def test_left(
        self,
        captured: CapturedTelemetry,
        server: TgiServer,
        client: InferenceClient,
        read: int,
        how: str,
    ) -> None:
        """Never read, or left in the middle."""
        server.answers = [tgi.streamed(*tgi.events(["a"] * 200))]
        items = STREAMS["text"](client)
        for _ in range(read):
            next(items)
        assert requests(captured) == []
        if how == "close":
            items.close()
        else:
            del items
        assert outcome(captured) == ("abandoned", None)
        assert request(captured)[semconv.INCOMPLETE] is True

    def test_a_loop_that_is_left(
        self, captured: CapturedTelemetry, client: InferenceClient
    ) -> None:
        """The loop holds the only reference."""
        for _ in STREAMS["chat"](client):
            break
        assert outcome(captured) == ("abandoned", None)

    def test_left_after_its_end(self, captured: CapturedTelemetry, client: InferenceClient) -> None:
        """A reader that stops at the finish reason has had everything."""
        for item in STREAMS["chat"](client):
            if item.choices and item.choices[0].finish_reason:
                break
        assert outcome(captured) == ("ok", None)

    def test_cut(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """A stream that ends too soon is no success, although the library does not mind."""
        server.answers = [tgi.streamed(*tgi.events()[:2])]
        assert list(STREAMS["text"](client)) == ["Blue", " sky"]
        assert outcome(captured) == ("error", "incomplete_stream")

    def test_a_broken_connection(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """What the library raises ends the request, while the exception is held."""
        server.answers = [tgi.streamed(*tgi.events()[:2], 0.01, cut=True)]
        with pytest.raises(Exception, match=r".") as caught:
            list(STREAMS["text"](client))
        assert outcome(captured) == ("error", named(caught.value))

    def test_nothing_in_time(self, captured: CapturedTelemetry, server: TgiServer) -> None:
        """A stream that says nothing for too long."""
        server.answers = [tgi.streamed(*tgi.events()[:1], 0.5)]
        with closing(InferenceClient(server.root, timeout=0.1)) as client:
            items = STREAMS["text"](client)
            with pytest.raises(Exception, match=r"[Tt]imed? ?out"):
                list(items)
        assert outcome(captured)[0] == "error"
        assert "otel_llm.ttft_us" in request(captured)

    def test_what_is_no_json(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """The library fails on it; so has the request."""
        server.answers = [tgi.streamed(*tgi.events()[:1], b"data:{nonsense\n\n")]
        with pytest.raises(json.JSONDecodeError):
            list(STREAMS["text"](client))
        assert outcome(captured) == ("error", "json.decoder.JSONDecodeError")
        assert request(captured)[semconv.MALFORMED_RECORDS] == 1

    def test_unsampled(self, server: TgiServer, client: InferenceClient) -> None:
        """With nothing to be written the library's own generator is handed out."""
        unsampled = captured_telemetry(sampler=ALWAYS_OFF)
        instrument(Telemetry(unsampled.tracer_provider, NoOpMeterProvider()))
        items = STREAMS["chat"](client)
        assert items.gi_code.co_name == "_stream_chat_completion_response"
        assert len(list(items)) == 5
        assert server.last.headers["traceparent"][0].endswith(("-00", "-02"))

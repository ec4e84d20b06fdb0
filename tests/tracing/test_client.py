"""`trace_request` in a client of one's own: `headers`, `response` and `stream`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from otel_llm import instrument, semconv, trace_request
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.tracing import TracedRequest
from tests.fakes.openai_server import SSE, USAGE, completion, stream
from tests.tracing.builders import NAME, outcome, request

BODY = b"".join(each for each in stream().pieces if isinstance(each, bytes))
OWN = "00-11111111111111111111111111111111-2222222222222222-01"


def client() -> TracedRequest:
    """A request of a client."""
    return request(side="client")


def answered(body: bytes = BODY, status: int = 200, kind: str = SSE) -> httpx.Response:
    """A response that is read piece by piece, without a socket."""
    pieces = httpx.ByteStream(body)
    return httpx.Response(status, headers={"content-type": kind}, stream=pieces)


def attributes(captured: CapturedTelemetry) -> Any:
    """What is on the request span."""
    return captured.span(NAME).attributes


class TestHeaders:
    """The headers of the HTTP request."""

    def test_the_trace(self, in_force: CapturedTelemetry) -> None:
        """They name the span of the request."""
        with client() as r:
            headers = r.headers()
        ids = in_force.span(NAME).get_span_context()
        expected = f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{int(ids.trace_flags):02x}"
        assert headers == {"traceparent": expected}

    def test_the_applications_stay(self, in_force: CapturedTelemetry) -> None:
        """What was given is there as it was, and is not changed itself."""
        given = {"Authorization": "secret", "Traceparent": OWN}
        with client() as r:
            assert r.headers(given) == {"Authorization": "secret", "Traceparent": OWN}
        assert list(given) == ["Authorization", "Traceparent"]

    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are those that were given."""
        monkeypatch.setenv("OTEL_LLM_DISABLED", "1")
        instrument(engines=[])
        with client() as r:
            assert r.headers({"a": "b"}) == {"a": "b"}


class TestResponse:
    """A response that is watched."""

    def test_facts(self, in_force: CapturedTelemetry) -> None:
        """Tokens, reasons, names: without a word from the application."""
        with client() as r:
            assert list(r.response(answered()).iter_bytes()) == [BODY]
        found = attributes(in_force)
        assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (7, 5)
        assert found[semconv.FINISH_REASONS] == ("stop",)
        assert found[semconv.RESPONSE_ID] == "chatcmpl-1"
        assert outcome(in_force) == ("ok", None, False)

    def test_the_applications_own_usage(self, in_force: CapturedTelemetry) -> None:
        """What the application says before is not lost where the reply says nothing."""
        body = BODY.replace(b'"usage"', b'"other"')
        with client() as r:
            r.usage(input_tokens=3)
            list(r.response(answered(body)).iter_bytes())
        assert attributes(in_force)[semconv.INPUT_TOKENS] == 3

    def test_the_block_ends_the_request(
        self, in_force: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """What follows the body inside the block is part of it."""
        with client() as r:
            list(r.response(answered()).iter_bytes())
            clock.advance(2.0)
        assert attributes(in_force)[semconv.E2E_US] == 2_000_000

    def test_dropped_while_it_is_held(self, in_force: CapturedTelemetry) -> None:
        """The end of the response ends the request, also where `r` lives on."""
        with client() as r:
            r.response(answered())
        gc.collect()
        assert outcome(in_force) == ("abandoned", None, True)
        assert r is not None

    def test_read_in_time(self, in_force: CapturedTelemetry) -> None:
        """A response that was read already is read at once, and stays the library's own."""
        response = httpx.Response(200, json=completion())
        with client() as r:
            assert type(r.response(response)) is httpx.Response
        assert attributes(in_force)[semconv.OUTPUT_TOKENS] == USAGE["completion_tokens"]

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a": 1}', b"<html>"])
    def test_bodies_that_say_nothing(self, in_force: CapturedTelemetry, body: bytes) -> None:
        """Any other JSON, or none: no error of the request, and none of ours."""
        response = httpx.Response(200, content=body, headers={"content-type": "application/json"})
        with client() as r:
            r.response(response)
        assert outcome(in_force) == ("ok", None, False)

    @pytest.mark.parametrize("thing", [None, 1, "text", object(), {"status": 200}])
    def test_no_response(
        self, in_force: CapturedTelemetry, thing: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is none is handed back, and the block ends the request."""
        monkeypatch.delenv("OTEL_LLM_STRICT")
        with client() as r:
            assert r.response(thing) is thing
        assert outcome(in_force) == ("ok", None, False)

    def test_after_the_end(self, in_force: CapturedTelemetry) -> None:
        """After the block nothing is watched any more."""
        with client() as r:
            pass
        assert type(r.response(answered())) is httpx.Response

    def test_sampled_out_and_unmeasured(self) -> None:
        """Nothing is written: the response is left alone."""
        captured = captured_telemetry(sampler=ALWAYS_OFF)
        instrument(
            engines=[],
            tracer_provider=captured.tracer_provider,
            meter_provider=NoOpMeterProvider(),
        )
        with client() as r:
            assert type(r.response(answered())) is httpx.Response
        assert not captured.spans

    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is left alone."""
        monkeypatch.setenv("OTEL_LLM_DISABLED", "1")
        instrument(engines=[])
        with client() as r:
            assert type(r.response(answered())) is httpx.Response

    @pytest.mark.parametrize(
        ("status", "expected"), [(400, "rejected"), (503, "rejected"), (502, "error")]
    )
    def test_error_status(self, in_force: CapturedTelemetry, status: int, expected: str) -> None:
        """An error that the application deals with is the request's all the same."""
        body = b'{"error": {"type": "secret message", "code": 1}}'
        with client() as r:
            r.response(answered(body, status, "application/json")).read()
        assert outcome(in_force)[:2] == (expected, str(status))
        assert in_force.span(NAME).status.status_code is StatusCode.ERROR

    def test_an_error_in_a_good_reply(self, in_force: CapturedTelemetry) -> None:
        """An error object inside HTTP 200."""
        body = b'{"error": {"type": "server_error", "message": "secret"}}'
        with client() as r:
            r.response(answered(body, 200, "application/json")).read()
        assert outcome(in_force)[:2] == ("error", "server_error")

    def test_two_responses(self, in_force: CapturedTelemetry) -> None:
        """Both have to end before the request does."""
        with client() as r:
            first, second = r.response(answered()), r.response(answered())
        list(first.iter_bytes())
        assert not in_force.spans
        list(second.iter_bytes())
        assert outcome(in_force)[0] == "ok"

    def test_an_error_before_the_answer(self, in_force: CapturedTelemetry) -> None:
        """Nobody has answered."""
        with pytest.raises(httpx.ConnectError), client():
            raise httpx.ConnectError("secret")
        assert outcome(in_force)[:2] == ("error", "httpx.ConnectError")


class TestStream:
    """Items that another library gives."""

    def test_times(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """First and last item are first and last token; gaps are those of chunks."""

        def items() -> Iterator[str]:
            for _ in range(5):
                clock.advance(0.1)
                yield "token"

        with client() as r:
            assert len(list(r.stream(items()))) == 5
        found = attributes(in_force)
        assert found[semconv.TTFT_US] == 100_000
        assert found[semconv.phase_us("decode")] == 400_000
        assert found[semconv.CHUNK_GAP_P50_US] == 100_000
        assert semconv.ITL_P50_US not in found

    def test_a_slow_reader(self, in_force: CapturedTelemetry, clock: ManualClock) -> None:
        """Its time is told apart."""
        with client() as r:
            for _ in r.stream(iter("abc")):
                clock.advance(0.5)
        assert attributes(in_force)[semconv.CONSUMER_STALL_US] == 1_500_000

    def test_tokens(self, in_force: CapturedTelemetry) -> None:
        """Counted as the application says, and never by themselves."""
        with client() as r:
            list(r.stream(["ab", "c"], tokens=len))
        assert attributes(in_force)[semconv.OUTPUT_TOKENS] == 3

    async def test_dropped(self, in_force: CapturedTelemetry) -> None:
        """An asynchronous stream that is dropped ends the request before the loop gets to it."""

        async def items() -> AsyncIterator[int]:
            for each in range(9):
                yield each

        async with client() as r:
            async for _ in r.stream(items()):
                break
        assert outcome(in_force) == ("abandoned", None, True)
        await asyncio.sleep(0)


def test_a_plain_block_of_a_client(in_force: CapturedTelemetry, clock: ManualClock) -> None:
    """Without a response or stream, what the application says is all there is."""
    with trace_request("chat", model="tiny", provider="demo", side="client") as r:
        clock.advance(1.0)
        r.usage(input_tokens=2, output_tokens=3)
    found = attributes(in_force)
    assert (found[semconv.SIDE], found[semconv.E2E_US]) == ("client", 1_000_000)
    assert outcome(in_force) == ("ok", None, False)

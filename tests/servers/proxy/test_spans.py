"""What the spans of a request through the proxy say."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from otel_llm import semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.propagation.identity import parse_keys
from otel_llm.servers.asgi import ServerSettings
from otel_llm.servers.proxy.settings import Limits, ProxyEngine
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.servers.builders import PARENT, SPAN_ID, TRACE_ID
from tests.servers.proxy.builders import (
    ASKED,
    CHAT,
    DONE,
    JSON,
    LAST,
    SSE,
    Handler,
    Wire,
    ask,
    event,
    head,
    plain,
    proxied,
    request,
    upstream,
)
from tests.services import record

RECORDINGS = Path(record.__file__).parent / "recordings"
SERVER, REQUEST = f"POST {CHAT}", "chat tiny"
USAGE = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 2}, "choices": [{"index": 0}]}'


def streaming(*chunks: bytes, gap_s: float = 0.0, headers: Any = SSE) -> Handler:
    """An upstream that answers every request with these chunks."""

    async def handler(wire: Wire) -> None:
        while await wire.asked():
            await wire.send(head(headers=headers))
            for each in chunks:
                await wire.chunks(each)
                await asyncio.sleep(gap_s)
            await wire.send(b"0\r\n\r\n")

    return handler


def answering(answer: bytes) -> Handler:
    """An upstream that answers every request with these bytes."""

    async def handler(wire: Wire) -> None:
        while await wire.asked():
            await wire.send(answer)

    return handler


async def summary(
    handler: Handler, captured: CapturedTelemetry, sent: bytes | None = None, **settings: Any
) -> Mapping[str, Any]:
    """Attributes of the last request span after one request."""
    async with upstream(handler) as address, proxied(address, captured, **settings) as proxy:
        answer = await ask(proxy.address, sent or request())
        assert answer.whole
    return [s.attributes or {} for s in captured.spans if semconv.SIDE in (s.attributes or {})][-1]


def sources(found: Mapping[str, Any]) -> dict[str, str]:
    """How each phase is known."""
    return dict(each.split("=") for each in found[semconv.SOURCES].split(";"))


async def test_one_server_span_and_one_request_span(captured: CapturedTelemetry) -> None:
    """500 chunks make no more than the phases, below SERVER and INTERNAL, in the caller's trace."""
    handler = streaming(*[event()] * 500, LAST, DONE)
    await summary(handler, captured, request(traceparent=PARENT))
    server, asked = captured.span(SERVER), captured.span(REQUEST)
    assert (server.kind, asked.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert (server.context.trace_id, server.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert server.context.span_id == asked.parent.span_id
    assert asked.attributes[semconv.SIDE] == "proxy"
    assert {each.name for each in captured.spans} - {SERVER, REQUEST} == {
        "llm.preprocess", "llm.prefill", "llm.first_token", "llm.decode", "llm.delivery",
    }  # fmt: skip
    assert len(captured.spans) == 7


async def test_context_goes_upstream(captured: CapturedTelemetry) -> None:
    """The upstream sees the request span as its parent; state and baggage of the caller stay."""
    seen: dict[str, str] = {}

    async def handler(wire: Wire) -> None:
        await wire.asked()
        seen.update(wire.headers)
        await wire.send(plain(b"{}"))

    sent = request(traceparent=PARENT, tracestate="a=1", baggage="user=a b;p=1,k=v")
    await summary(handler, captured, sent)
    context = captured.span(REQUEST).context
    assert f"00-{TRACE_ID:032x}-{context.span_id:016x}-01" == seen["traceparent"]
    assert (seen["tracestate"], seen["baggage"]) == ("a=1", "user=a b;p=1,k=v")


async def test_a_stranger_is_linked(captured: CapturedTelemetry) -> None:
    """Without trust there is a new trace, linked to the caller's, and no baggage upstream."""
    seen: dict[str, str] = {}

    async def handler(wire: Wire) -> None:
        await wire.asked()
        seen.update(wire.headers)
        await wire.send(plain(b"{}"))

    sent = request(traceparent=PARENT, baggage="user=a")
    await summary(handler, captured, sent, server=ServerSettings(trust_remote=False))
    server = captured.span(SERVER)
    assert server.parent is None
    assert [each.context.trace_id for each in server.links] == [TRACE_ID]
    assert server.context.trace_id != TRACE_ID
    assert "baggage" not in seen


async def test_who_asked(captured: CapturedTelemetry) -> None:
    """Allow-listed headers name the tenant on both spans."""
    server = ServerSettings(context_keys=parse_keys("tenant=header:x-tenant"))
    await summary(streaming(event(), DONE), captured, request(x_tenant="acme"), server=server)
    for name in (SERVER, REQUEST):
        assert captured.span(name).attributes[semconv.TENANT] == "acme"


async def test_the_engine_is_recognised(captured: CapturedTelemetry) -> None:
    """With `auto` the provider is unknown at first, and then what the first answer has shown."""
    handler = answering(plain(b'{"model": "tiny", "response": "x", "done": true}'))
    async with upstream(handler) as address, proxied(address, captured) as proxy:
        for _ in range(2):
            await ask(proxy.address, request({"model": "tiny"}, "/api/chat"))
    found = [s.attributes for s in captured.spans if semconv.SIDE in s.attributes]
    assert [each[semconv.PROVIDER] for each in found] == ["unknown", "ollama"]
    assert [each[semconv.ENGINE_NAME] for each in found] == ["ollama"] * 2


async def test_the_engine_is_given(captured: CapturedTelemetry) -> None:
    """A named engine is the provider of the first request as well."""
    found = await summary(streaming(event(), DONE), captured, engine=ProxyEngine.SGLANG)
    assert found[semconv.PROVIDER] == "sglang"


async def test_a_lone_request_is_all_prefill(captured: CapturedTelemetry) -> None:
    """Where the engine tells nothing, a request that met no other has waited for none."""
    found = await summary(streaming(event(), event(), LAST, DONE, gap_s=0.01), captured)
    assert (found[semconv.phase_us("queue")], sources(found)["queue"]) == (0, "estimated")
    assert sources(found)["prefill"] == "estimated"
    assert found[semconv.UNACCOUNTED_US] == 0


async def test_a_request_that_met_another_has_queued(captured: CapturedTelemetry) -> None:
    """What it waited beyond the prefill of a lone one of its size is queue."""
    turn = asyncio.Lock()

    async def handler(wire: Wire) -> None:
        while await wire.asked():
            async with turn:
                await asyncio.sleep(0.1)
                await wire.send(head())
                await wire.chunks(event(), LAST, DONE)
            await wire.send(b"0\r\n\r\n")

    async with upstream(handler) as address, proxied(address, captured) as proxy:
        await ask(proxy.address, request())
        await asyncio.gather(*(ask(proxy.address, request()) for _ in range(2)))
    found = [s.attributes for s in captured.spans if semconv.SIDE in s.attributes][1:]
    queued = sorted(each[semconv.phase_us("queue")] / 1e6 for each in found)
    assert queued[0] == pytest.approx(0, abs=0.03)
    assert queued[1] == pytest.approx(0.1, abs=0.03)


async def test_nothing_is_guessed_of_a_cloud(captured: CapturedTelemetry) -> None:
    """Most requests of a cloud are not seen here, so that nothing is known of its queue."""
    found = await summary(streaming(event(), LAST, DONE), captured, engine=ProxyEngine.OPENAI)
    assert semconv.phase_us("queue") not in found


RECORDED = {
    "vllm-0.32.0/chat_stream_metrics": {"queue": "reported", "prefill": "reported"},
    "ollama-0.34.0/chat_stream": {"load": "reported", "queue": "estimated"},
    "llama-cpp-10760/chat_stream": {"queue": "estimated"},
}


@pytest.mark.parametrize("name", RECORDED)
async def test_phases_that_an_engine_tells(captured: CapturedTelemetry, name: str) -> None:
    """Durations in bodies give phases, and say that the engine said so; a residual is estimated."""
    path = RECORDINGS / f"{name}.json"
    asked = json.loads(path.read_text())["request"]
    body = path.with_suffix(".body").read_bytes()
    kind = "application/x-ndjson" if name.startswith("ollama") else "text/event-stream"
    pieces = [each + b"\n" for each in body.split(b"\n") if each]
    if kind == "text/event-stream":
        pieces = [each + b"\n" for each in pieces]

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await asyncio.sleep(0.3)
        await wire.send(head(headers=(("content-type", kind),)))
        for each in pieces:
            await asyncio.sleep(0.05)
            await wire.chunks(each)
        await wire.send(b"0\r\n\r\n")

    found = await summary(handler, captured, request(asked["body"], asked["path"]))
    assert found[semconv.OUTCOME] == "ok"
    assert RECORDED[name].items() <= sources(found).items()


async def test_what_tgi_tells_of_a_whole_answer(captured: CapturedTelemetry) -> None:
    """Its headers give queue and validation, and both phases of inference together."""
    headers = (
        *JSON,
        ("x-compute-type", "gpu"),
        ("x-total-time", "204"),
        ("x-validation-time", "1"),
        ("x-queue-time", "4"),
        ("x-inference-time", "16"),
    )

    async def handler(wire: Wire) -> None:
        await wire.asked()
        await asyncio.sleep(0.2)
        await wire.send(plain(b'{"generated_text": "x"}', headers=headers))

    found = await summary(handler, captured, request({"inputs": "hi"}, "/generate"))
    assert (found[semconv.phase_us("queue")], sources(found)["queue"]) == (4_000, "reported")
    assert found[semconv.REPORTED_INFERENCE_US] == 16_000


@pytest.mark.parametrize(("encoding", "read"), [("gzip", True), ("br", False), ("deflate", True)])
async def test_a_compressed_answer(captured: CapturedTelemetry, encoding: str, read: bool) -> None:
    """What can be unpacked is read; of anything else only the end is known."""
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "br": bytes}[encoding](USAGE)
    headers = (*JSON, ("content-encoding", encoding))
    found = await summary(answering(plain(packed, headers=headers)), captured)
    assert found[semconv.OUTCOME] == "ok"
    assert (2 if read else None) == found.get(semconv.OUTPUT_TOKENS)


async def test_a_compressed_stream(captured: CapturedTelemetry) -> None:
    """A stream that is unpacked piece by piece gives its first token."""
    packed = gzip.compress(event() + LAST + DONE)
    handler = streaming(packed[:20], packed[20:], headers=(*SSE, ("content-encoding", "gzip")))
    found = await summary(handler, captured)
    assert found[semconv.OUTCOME] == "ok"
    assert semconv.TTFT_US in found


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_large_answer_is_not_read(captured: CapturedTelemetry, compressed: bool) -> None:
    """Beyond the limit an answer is passed, and has only its end."""
    body = USAGE[:-1] + b', "more": "' + b"x" * 5_000 + b'"}'
    headers = (*JSON, ("content-encoding", "gzip")) if compressed else JSON
    handler = streaming(gzip.compress(body) if compressed else body, headers=headers)
    limits = Limits(inspected_bytes=1_000, grace_s=1)
    found = await summary(handler, captured, limits=limits)
    assert (found[semconv.OUTCOME], found.get(semconv.OUTPUT_TOKENS)) == ("ok", None)
    assert semconv.MALFORMED_RECORDS not in found


async def test_parameters_by_an_engines_own_names(captured: CapturedTelemetry) -> None:
    """TGI and Ollama keep parameters in an object; they are the same attributes."""
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 7, "temperature": 0.5}}
    found = await summary(answering(plain(b"{}")), captured, request(body, "/generate"))
    assert (found[semconv.MAX_TOKENS], found[semconv.TEMPERATURE]) == (7, 0.5)


async def test_content_is_written_only_when_switched_on() -> None:
    """Prompt and answer are on the span with the switch, and nowhere without."""
    handler = streaming(event("SECRET"), LAST, DONE)
    body = {**ASKED, "messages": [{"role": "user", "content": "SECRET"}], "stop": ["SECRET"]}
    on = captured_telemetry(EmitSettings(capture_content=True))
    found = await summary(handler, on, request(body))
    assert "SECRET" in found[semconv.INPUT_MESSAGES]
    assert "SECRET" in found[semconv.OUTPUT_MESSAGES]
    off = captured_telemetry()
    await summary(handler, off, request(body, authorization="SECRET", x_api_key="SECRET"))
    assert "SECRET" not in " ".join(each.to_json() for each in off.spans)


async def test_without_telemetry_requests_pass() -> None:
    """A proxy that is switched off passes everything, headers and all."""
    seen: list[dict[str, str]] = []

    async def handler(wire: Wire) -> None:
        await wire.asked()
        seen.append(wire.headers)
        await wire.send(plain(b"{}"))

    captured = captured_telemetry()
    async with upstream(handler) as address, proxied(address, captured) as proxy:
        proxy.app._telemetry = lambda: None
        answer = await ask(proxy.address, request())
    assert (answer.status, captured.spans) == (200, [])
    assert "traceparent" not in seen[0]

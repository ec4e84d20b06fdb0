"""Nothing of a request's content is in the bytes that leave, nor in our log records.

A mark is put wherever a prompt, a key or a name of a person may be: bodies, headers, addresses,
exceptions. The requests that reach an OTLP receiver are searched as they are and unpacked.

Written on purpose, and so without a mark: what identifies and is no content. That is the model's
and the adapter's name, `tracestate` (which W3C defines to be passed on), the reason given to
`reject`, the class of an exception, and the path of an inference route with its prefix.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import Compression, OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import otel_llm
from otel_llm import InferenceMiddleware, config, semconv, trace_request
from otel_llm.emit.live import current_request
from otel_llm.emit.objectives import parse_objectives
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.telemetry import Telemetry
from otel_llm.export.http import HttpSpanExporter
from otel_llm.testing import ManualClock
from tests.fakes import vllm
from tests.fakes.asgi import CHAT, App, Connection, Message, body, chunk, replies, start
from tests.fakes.otlp import Receiver, receiving

MARK = "leakmark"
MODEL, ANSWER = "plain-model", "plain-answer"


def marked(where: str) -> str:
    """A text that must not leave."""
    return f"LeakMark-{where}"


HEADERS = {
    "authorization": f"Bearer {marked('bearer')}",
    "x-api-key": marked("key"),
    "cookie": f"session={marked('cookie')}",
    "traceparent": f"00-{marked('traceparent')}-01",
    "baggage": f"user={marked('baggage')},{marked('baggage-key')}=1",
    "user-agent": marked("agent"),
    "host": f"{marked('host')}.example",
    "x-request-id": marked("request-id"),
    marked("header-name").lower(): "1",
}
BESIDES = {
    "tools": [{"type": "function", "function": {"name": marked("tool"), "parameters": {}}}],
    "tool_choice": marked("choice"),
    "user": marked("user"),
    "metadata": {marked("metadata-key"): marked("metadata")},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": marked("schema"), "schema": {"title": marked("title")}},
    },
    "temperature": marked("temperature"),
    "max_tokens": marked("max-tokens"),
    "n": marked("n"),
    "priority": [marked("priority")],
    marked("unknown-key"): marked("unknown"),
}
CONTENT = {
    "messages": [
        {"role": "system", "content": marked("system")},
        {"role": marked("role"), "content": marked("prompt"), "name": marked("name")},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": marked("arguments")}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"https://cdn/{marked('image')}.png"}},
                {"type": "file", "file": {"filename": marked("file")}},
                {"type": marked("part"), "text": marked("text")},
            ],
        },
    ],
}
STOP = {"stop": [marked("stop"), "x"]}


@dataclass
class Wire:
    """Telemetry that leaves over HTTP, and the bytes that left."""

    telemetry: Telemetry
    tracers: TracerProvider
    meters: MeterProvider
    receiver: Receiver
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, app: App, incoming: list[Message], **scope: Any) -> None:
        """One request through the middleware; what the application raises ends here."""
        served = InferenceMiddleware(app, provider="demo", telemetry=self.telemetry)
        with suppress(RuntimeError, vllm.VLLMError):
            await Connection(incoming).serve(served, **({"headers": HEADERS} | scope))

    def left(self) -> bytes:
        """Everything that has left so far, in small letters."""
        assert self.tracers.force_flush()
        assert self.meters.force_flush()
        return b"\n".join(self.bodies).lower()


@pytest.fixture(params=["none", "gzip"])
def wired(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Wire]]:
    """Makes a `Wire` with these settings; errors of telemetry are logged, as in production."""
    monkeypatch.setenv("OTEL_LLM_STRICT", "0")
    made: list[Wire] = []
    with receiving() as receiver:

        def make(**settings: Any) -> Wire:
            wire = _wire(receiver, request.param, EmitSettings(**settings))
            made.append(wire)
            return wire

        yield make
        for wire in made:
            wire.tracers.shutdown()
            wire.meters.shutdown()


def _wire(receiver: Receiver, compression: str, settings: EmitSettings) -> Wire:
    environ = {"OTEL_EXPORTER_OTLP_COMPRESSION": compression}
    tracers = TracerProvider(shutdown_on_exit=False)
    exporter = HttpSpanExporter(f"{receiver.url}/v1/traces", environ)
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{receiver.url}/v1/metrics", compression=Compression(compression))
    )
    meters = MeterProvider([reader], shutdown_on_exit=False)
    telemetry = Telemetry(tracers, meters, settings)
    config.RUNTIME.telemetry = telemetry
    wire = Wire(telemetry, tracers, meters, receiver)
    take = receiver.take

    def keep(path: str, raw: bytes, headers: dict[str, str]) -> bool:
        packed = raw[:2] == b"\x1f\x8b"
        assert packed == (compression == "gzip")
        plain = gzip.decompress(raw) if packed else raw
        wire.bodies += [raw, plain]
        return take(path, plain, headers)

    receiver.take = keep  # type: ignore[method-assign]
    return wire


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """What we have logged, as handlers write it; searched after every test."""
    caplog.set_level(logging.DEBUG)

    def text() -> str:
        ours = [each for each in caplog.records if each.name.startswith("otel_llm")]
        return "\n".join(logging.Formatter().format(each) for each in ours).lower()

    yield text
    assert MARK not in text()


def asked(**more: Any) -> list[Message]:
    """A chat request, all of it marked but for its model."""
    given = {"model": MODEL, **CONTENT, **BESIDES, **STOP, **more}
    return body(json.dumps(given).encode())


async def fails(_scope: Any, receive: Any, _send: Any) -> None:
    """An application that fails with a message, a cause and a note."""
    await receive()
    _fail()


def _fail() -> None:
    error = RuntimeError(marked("exception"))
    error.add_note(marked("note"))
    raise error from ValueError(marked("cause"))


async def calls(scope: Any, receive: Any, send: Any) -> None:
    """An application that calls another model, which fails, and then answers."""
    with suppress(RuntimeError):
        async with trace_request(
            "chat", model=MODEL, provider="demo", side="client", carrier=scope["headers"]
        ) as r:
            r.usage(input_tokens=marked("count"))  # type: ignore[arg-type]
            assert [each async for each in r.stream(_pieces(), tokens=_miscounted)]
            _fail()
    await refuses(500)(scope, receive, send)


async def _pieces() -> Any:
    yield marked("piece")


def _miscounted(piece: str) -> int:
    raise ValueError(piece)


def refuses(status: int) -> App:
    """An application that refuses, and says why."""
    reply: Message = start(status)
    reply["headers"].append((b"x-reason", marked("reason").encode()))
    return replies(reply, chunk(json.dumps({"error": marked("error")}).encode(), more=False))


async def generates(_scope: Any, receive: Any, send: Any) -> None:
    """An application whose engine answers."""
    await receive()
    live = current_request()
    assert live is not None
    live.recorder.lane().stamps.append(live.recorder.clock.monotonic_ns())
    live.answer(generates, [{"role": "assistant", "content": marked("answer")}])
    live.recorder.finish_reasons = ("stop",)
    await send(start(kind="text/event-stream"))
    await send(chunk(f"data: {marked('answer')}\n\n".encode()))
    await send(chunk(f"event: error\ndata: {marked('event')}\n\n".encode(), more=False))


APPS = {
    "answers": replies(start(), chunk(marked("answer").encode(), more=False)),
    "generates": generates,
    "fails": fails,
    "calls": calls,
    "refuses": refuses(400),
    "breaks": refuses(500),
}


class TestContentOff:
    """By default."""

    @pytest.mark.parametrize("app", APPS.values(), ids=APPS)
    @pytest.mark.parametrize("stream", [True, False, marked("stream")])
    async def test_no_mark_leaves(self, wired: Callable[..., Wire], app: App, stream: Any) -> None:
        """Whatever the application does; and the search would find it."""
        wire = wired(slo=parse_objectives("ttft=1ns,ok"))
        await wire.serve(app, asked(stream=stream), query_string=f"key={marked('query')}".encode())
        left = wire.left()
        assert {"/v1/traces", "/v1/metrics"} == set(wire.receiver.paths)
        assert MODEL.encode() in left
        assert MARK.encode() not in left

    async def test_uploads(self, wired: Callable[..., Wire]) -> None:
        """The names of files and what is in them."""
        wire = wired()
        name = f'content-disposition: form-data; name="file"; filename="{marked("file")}.wav"'
        parts = body(f"--x\r\n{name}\r\n\r\n{marked('audio')}\r\n--x--".encode())
        headers = HEADERS | {"content-type": "multipart/form-data; boundary=x"}
        await wire.serve(APPS["answers"], parts, path="/v1/audio/transcriptions", headers=headers)
        left = wire.left()
        assert b"transcription" in left
        assert MARK.encode() not in left

    @pytest.mark.parametrize("tail", [f"/{marked('tail')}", f"%20{marked('tail')}"])
    async def test_other_paths(self, wired: Callable[..., Wire], tail: str) -> None:
        """A path that is no inference route is not ours to tell of."""
        wire = wired()
        await wire.serve(APPS["answers"], asked(), path=CHAT + tail)
        assert MARK.encode() not in wire.left()

    async def test_strangers_headers(self, wired: Callable[..., Wire]) -> None:
        """Likewise when a new trace is started and linked."""
        config.RUNTIME.trust(False)
        wire = wired()
        await wire.serve(APPS["answers"], asked())
        assert MARK.encode() not in wire.left()

    async def test_what_the_application_gives_is_written(self, wired: Callable[..., Wire]) -> None:
        """It decides itself; this is the way to be found out by the tests above."""
        wire = wired(metric_attributes=("customer.plan",))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            otel_llm.annotate({"customer.plan": marked("plan")})
            otel_llm.event("checked", {"text": marked("text")})
            await APPS["answers"](scope, receive, send)

        await wire.serve(app, asked())
        left = wire.left()
        assert left.count(marked("plan").lower().encode()) > 1  # the span and the metrics
        assert marked("text").lower().encode() in left


class TestVllm:
    """Through the adapter of an engine, whose request ids hold what a client sent."""

    @pytest.fixture
    def engine(
        self, wired: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., App]:
        """Makes an application on a patched engine; *plan* is how the engine treats requests."""
        fresh = vllm.installed(monkeypatch)
        otel_llm.instrument()

        def make(params: Any, **plan: Any) -> App:
            engine = fresh(ManualClock())
            engine.plan = vllm.Plan(**plan)
            return _serving(engine, params)

        return make

    @pytest.mark.parametrize(
        "params", [vllm.SamplingParams(), vllm.SamplingParams(n=2), vllm.PoolingParams()]
    )
    @pytest.mark.parametrize(
        "plan",
        [
            {},
            {"finish_reason": "abort"},
            {"fail_at": 0, "error": vllm.VLLMValidationError(marked("refusal"))},
            {"fail_at": 0, "error": RuntimeError(marked("failure"))},
        ],
    )
    async def test_no_mark_leaves(
        self,
        wired: Callable[..., Wire],
        engine: Callable[..., App],
        params: Any,
        plan: dict[str, Any],
    ) -> None:
        """Of an id that a client chose only a hash, on spans and on metrics."""
        wire = wired(metric_attributes=(semconv.REQUEST_ID,))
        await wire.serve(engine(params, **plan), asked(stream=True))
        left = wire.left()
        assert left.count(b"sha256:") > 1
        assert MARK.encode() not in left


def _serving(engine: Any, params: Any) -> App:
    """VLLM's own way: the client's id behind a prefix, and its headers handed on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        call = engine.encode if isinstance(params, vllm.PoolingParams) else engine.generate
        outputs = call(
            marked("prompt"),
            params,
            f"chatcmpl-{headers['x-request-id']}",
            trace_headers=headers,
        )
        await send(start(kind="text/event-stream"))
        async for _ in outputs:
            await send(chunk(f"data: {marked('answer')}\n\n".encode()))
        await send(chunk(b"data: [DONE]\n\n", more=False))

    return app


def redacted(_attribute: str, content: object) -> object:
    """A user's hook: every mark is taken out."""
    return json.loads(re.sub(f"(?i){MARK}[\\w-]*", "[gone]", json.dumps(content)))


class TestContentOn:
    """When somebody wants prompts and answers."""

    async def test_redaction_comes_first(self, wired: Callable[..., Wire]) -> None:
        """What the hook takes out never leaves, and what it leaves is written."""
        wire = wired(capture_content=True, redact=redacted)
        await wire.serve(generates, asked(stream=True, stop=None))
        left = wire.left()
        for attribute in (b"gen_ai.input.messages", b"gen_ai.output.messages"):
            assert attribute in left
        assert b"[gone]" in left
        assert MARK.encode() not in left

    async def test_stop_sequences(self, wired: Callable[..., Wire]) -> None:
        """They may quote the prompt, so they are content too."""
        wire = wired(capture_content=True, redact=redacted)
        await wire.serve(generates, asked(stream=True))
        assert MARK.encode() not in wire.left()

    @pytest.mark.parametrize("app", [fails, refuses(400), calls], ids=["fails", "refuses", "calls"])
    async def test_only_prompts_and_answers(self, wired: Callable[..., Wire], app: App) -> None:
        """Headers, exceptions, error bodies and other fields are not what was asked for."""
        wire = wired(capture_content=True)
        await wire.serve(app, asked(messages=[{"role": "user", "content": "wanted"}], stop=None))
        left = wire.left()
        assert b"wanted" in left
        assert MARK.encode() not in left

    async def test_a_hook_that_fails(
        self, wired: Callable[..., Wire], logged: Callable[[], str]
    ) -> None:
        """Nothing is written, and its message is not logged."""

        def failing(_attribute: str, content: object) -> object:
            raise ValueError(content)

        wire = wired(capture_content=True, redact=failing)
        await wire.serve(generates, asked(stream=True, stop=None))
        assert MARK.encode() not in wire.left()
        assert "telemetry failed in emit.content" in logged()


class TestLogs:
    """Our own log records; every test of this file looks at them."""

    async def test_telemetry_that_fails(
        self, wired: Callable[..., Wire], logged: Callable[[], str]
    ) -> None:
        """The place and the class, without the message."""
        wire = wired()
        await wire.serve(calls, asked())
        assert "telemetry failed in trace_request.tokens (valueerror)" in logged()
        assert MARK.encode() not in wire.left()

    def test_a_receiver_that_is_not_there(self, logged: Callable[[], str]) -> None:
        """Its address may hold a key, and so may the headers."""
        url = f"http://{marked('user')}:{marked('password')}@127.0.0.1:9/v1/traces"
        environ = {
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={marked('key')}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1",
        }
        exporter = HttpSpanExporter(f"{url}?key={marked('query')}", environ)
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(exporter))
        tracers.get_tracer("demo").start_span(marked("span")).end()
        tracers.shutdown()
        assert "127.0.0.1:9/v1/traces" in logged()

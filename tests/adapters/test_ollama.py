"""Ollama's client against a server on loopback: what is asked, what is told, what is seen of it."""

from __future__ import annotations

import base64
import inspect
import json
from typing import Any

import ollama
import pytest
from opentelemetry import trace
from pydantic import BaseModel

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.adapters.ollama_fixtures import (  # noqa: F401 - fixtures among them
    ASKED,
    Client,
    Serve,
    captured_fixture,
    case,
    client_fixture,
    last_of,
    serve_fixture,
)
from tests.clients.builders import attributes, outcomes, request
from tests.fakes.ollama_server import (
    EMBEDDED,
    base,
    chat,
    generated,
    item,
    message,
    whole,
)


class TestWhatIsSeen:
    """The request span of each operation."""

    def test_chat(self, captured: CapturedTelemetry, client: Client) -> None:
        """A whole answer: names, tokens and the finish reason."""
        reply = client(whole()).chat(**ASKED)
        assert reply.message.content == "a token"
        expected = {
            semconv.OPERATION: "chat",
            semconv.PROVIDER: "ollama",
            semconv.REQUEST_MODEL: "tiny",
            semconv.RESPONSE_MODEL: "tiny",
            semconv.INPUT_TOKENS: 7,
            semconv.OUTPUT_TOKENS: 5,
            semconv.FINISH_REASONS: ("stop",),
            semconv.OUTCOME: "ok",
            semconv.SERVER_ADDRESS: "127.0.0.1",
        }
        found = attributes(captured)
        assert expected == {name: found.get(name) for name in expected}
        assert (request(captured).name, request(captured).kind.name) == ("chat tiny", "CLIENT")

    def test_streamed_chat(self, captured: CapturedTelemetry, client: Client) -> None:
        """The same facts from the last line of a stream."""
        stream = client(chat()).chat(**ASKED, stream=True)
        assert inspect.isgenerator(stream)
        assert "".join(each.message.content or "" for each in stream) == " token" * 5
        found = attributes(captured)
        assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (7, 5)
        assert (found[semconv.OUTCOME], found[semconv.REQUEST_STREAM]) == ("ok", True)

    async def test_async_chat(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A whole answer of the asynchronous client."""
        async with ollama.AsyncClient(base(serve(whole()))) as made:
            assert (await made.chat(**ASKED)).message.content == "a token"
        assert (attributes(captured)[semconv.OUTPUT_TOKENS], outcomes(captured)) == (5, ["ok"])

    async def test_async_streamed_chat(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A stream of the asynchronous client is an async generator, as it was."""
        async with ollama.AsyncClient(base(serve(chat()))) as made:
            stream = await made.chat(**ASKED, stream=True)
            assert inspect.isasyncgen(stream)
            assert len([each async for each in stream]) == 6
        assert (attributes(captured)[semconv.OUTPUT_TOKENS], outcomes(captured)) == (5, ["ok"])

    @pytest.mark.parametrize("streamed", [False, True])
    def test_generate(self, captured: CapturedTelemetry, client: Client, streamed: bool) -> None:
        """An answer to a prompt, which is no chat."""
        one = item(response="a b", done=True, done_reason="length", eval_count=2)
        answer = generated("a", " b", eval_count=2, done_reason="length") if streamed else None
        reply = client(answer or whole(one)).generate("tiny", "secret", stream=streamed)
        text = "".join(each.response for each in reply) if streamed else reply.response  # type: ignore[union-attr]
        assert text == "a b"
        found = attributes(captured)
        assert (found[semconv.OPERATION], found[semconv.OUTPUT_TOKENS]) == ("text_completion", 2)
        assert found[semconv.FINISH_REASONS] == ("length",)

    def test_embed(self, captured: CapturedTelemetry, client: Client) -> None:
        """Embeddings have input tokens and no times of tokens."""
        body = {"model": "tiny", "embeddings": [[0.1, 0.2]], **EMBEDDED}
        assert client(whole(body)).embed("tiny", ["a", "b"]).embeddings == [[0.1, 0.2]]
        found = attributes(captured)
        assert (found[semconv.OPERATION], found[semconv.INPUT_TOKENS]) == ("embeddings", 4)
        assert found[semconv.OUTCOME] == "ok"
        assert not {semconv.TTFT_US, semconv.TPOT_US, semconv.OUTPUT_TOKENS} & set(found)

    async def test_old_embeddings(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """The older way to one embedding."""
        async with ollama.AsyncClient(base(serve(whole({"embedding": [0.5]})))) as made:
            assert (await made.embeddings("tiny", "a")).embedding == [0.5]
        assert request(captured).name == "embeddings tiny"
        assert outcomes(captured) == ["ok"]

    def test_other_routes_are_left_alone(self, captured: CapturedTelemetry, client: Client) -> None:
        """What is no inference is not traced."""
        client(whole({"model_info": {}})).show("tiny")
        assert not captured.spans

    def test_module_functions(
        self, captured: CapturedTelemetry, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`ollama.chat`, and one that was imported before the library was switched on."""
        config.uninstrument()
        from ollama import chat as imported

        otel_llm.instrument(engines=["ollama"], **captured.providers)
        config.RUNTIME.telemetry = captured.telemetry
        default = ollama._client
        with ollama.Client(base(serve(whole(), chat()))) as made:
            monkeypatch.setattr(imported.__self__, "_client", made._client)  # type: ignore[attr-defined]
            imported(**ASKED)
            assert len(list(ollama.chat(**ASKED, stream=True))) == 6
        assert default is not None
        assert outcomes(captured) == ["ok", "ok"]

    def test_switched_off_again(self, captured: CapturedTelemetry, client: Client) -> None:
        """After `uninstrument` nothing is written, and the class has its own function back."""
        made = client(whole())
        config.uninstrument()
        made.chat(**ASKED)
        assert not captured.spans
        assert not hasattr(ollama.Client._request, "__wrapped__")


class TestWhatWasAsked:
    """What is told of the request."""

    def test_options(self, captured: CapturedTelemetry, client: Client) -> None:
        """Options have the names that other APIs give them."""
        options = {"num_predict": 9, "temperature": 0.5, "top_k": 3, "seed": 4, "stop": ["."]}
        client(whole()).chat(**ASKED, options=options, keep_alive="5m")
        found = attributes(captured)
        names = (semconv.MAX_TOKENS, semconv.TEMPERATURE, semconv.TOP_K, semconv.SEED)
        assert [found[name] for name in names] == [9, 0.5, 3, 4]
        assert semconv.STOP_SEQUENCES not in found  # they may quote the prompt

    def test_no_limit_is_no_limit(self, captured: CapturedTelemetry, client: Client) -> None:
        """A negative `num_predict` means without end, and is no count."""
        client(whole()).chat(**ASKED, options={"num_predict": -1})
        assert semconv.MAX_TOKENS not in attributes(captured)

    def test_images_of_messages(self, captured: CapturedTelemetry, client: Client) -> None:
        """They are counted; what is in them is not told."""
        image = base64.b64encode(b"secret image").decode()
        two = {"role": "user", "content": "what?", "images": [image, image]}
        client(whole()).chat("tiny", [two, {**two, "images": [image]}])
        assert attributes(captured)[semconv.INPUT_IMAGES] == 3

    def test_images_of_a_prompt(self, captured: CapturedTelemetry, client: Client) -> None:
        """Beside a prompt, too."""
        image = base64.b64encode(b"secret image").decode()
        reply = item(response="cat", done=True, done_reason="stop")
        client(whole(reply)).generate("tiny", "what?", images=[image])
        assert attributes(captured)[semconv.INPUT_IMAGES] == 1

    def test_no_images(self, captured: CapturedTelemetry, client: Client) -> None:
        """Without any, there is no such attribute."""
        client(whole()).chat(**ASKED)
        assert semconv.INPUT_IMAGES not in attributes(captured)

    @pytest.mark.parametrize("form", ["json", {"type": "object"}])
    def test_format(self, captured: CapturedTelemetry, client: Client, form: Any) -> None:
        """JSON was asked for, with a schema or without."""
        client(whole()).chat(**ASKED, format=form)
        assert attributes(captured)[semconv.OUTPUT_TYPE] == "json"

    def test_the_body_is_the_librarys(self, serve: Serve, captured: CapturedTelemetry) -> None:
        """The same bytes are sent with and without us."""
        server = serve(whole())
        with ollama.Client(base(server)) as made:
            made.chat(**ASKED, options={"num_predict": 9}, think=True)
            config.uninstrument()
            made.chat(**ASKED, options={"num_predict": 9}, think=True)
        first, second = (each.body for each in server.asked)
        assert first == second

    @pytest.mark.parametrize("streamed", [False, True])
    def test_traceparent(self, captured: CapturedTelemetry, serve: Serve, streamed: bool) -> None:
        """Sent once, and it names the span of the call."""
        server = serve(chat() if streamed else whole())
        with ollama.Client(base(server)) as made:
            list(made.chat(**ASKED, stream=streamed))
        ids = request(captured).get_span_context()
        expected = f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{int(ids.trace_flags):02x}"
        assert [expected] == server.last.headers["traceparent"]

    def test_the_applications_own_traceparent(
        self, captured: CapturedTelemetry, serve: Serve
    ) -> None:
        """What the application has set on its client stays."""
        own = "00-11111111111111111111111111111111-2222222222222222-01"
        server = serve(whole())
        with ollama.Client(base(server), headers={"Traceparent": own}) as made:
            made.chat(**ASKED)
        assert [own] == server.last.headers["traceparent"]

    @pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "messages"])
    def test_content_if_it_is_wanted(self, serve: Serve, prompt: bool) -> None:
        """The prompt, that there was an image, and the answer, for a chat and for a prompt."""
        captured = captured_telemetry(EmitSettings(capture_content=True))
        config.RUNTIME.telemetry = captured.telemetry
        image = base64.b64encode(b"secret image").decode()
        asked = {"role": "user", "content": "why?", "images": [image]}
        with ollama.Client(base(serve(generated("so") if prompt else chat(1)))) as made:
            if prompt:
                list(made.generate("tiny", "why?", images=[image], stream=True))
            else:
                list(made.chat("tiny", [asked], stream=True))
        found = attributes(captured)
        parts = [{"type": "text", "content": "why?"}, {"type": "image"}]
        assert json.loads(found[semconv.INPUT_MESSAGES]) == [{"role": "user", "parts": parts}]
        (answer,) = json.loads(found[semconv.OUTPUT_MESSAGES])
        assert answer["parts"] == [{"type": "text", "content": "so" if prompt else " token"}]

    def test_nothing_secret_is_told(self, captured: CapturedTelemetry, client: Client) -> None:
        """Neither the prompt nor the answer is on any span."""
        list(client(chat()).chat(**ASKED, stream=True))
        told = json.dumps([dict(each.attributes or {}) for each in captured.spans])
        assert "secret" not in told
        assert " token" not in told


class TestLaziness:
    """A stream sends its request when it is first read, and not before."""

    def test_sent_by_the_first_read(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """Nothing is sent by the call; the time until the read is not the server's."""
        import time

        server = serve(chat(first=0.02))
        with ollama.Client(base(server)) as made:
            stream = made.chat(**ASKED, stream=True)
            time.sleep(0.15)
            assert not server.asked
            list(stream)
        found = attributes(captured)
        assert found[semconv.TTFT_US] < 100_000
        assert found[semconv.phase_us("e2e")] >= 150_000
        assert semconv.phase_us("retry") not in found

    def test_the_request_is_sent_within_the_span(
        self, captured: CapturedTelemetry, serve: Serve
    ) -> None:
        """What traces the HTTP library below sees our span, and the reader its own."""
        server, seen = serve(chat()), []
        hooks = {"request": [lambda _: seen.append(trace.get_current_span())]}
        with ollama.Client(base(server), event_hooks=hooks) as made:
            current = [trace.get_current_span() for _ in made.chat(**ASKED, stream=True)]
        assert [request(captured).get_span_context()] == [each.get_span_context() for each in seen]
        assert {trace.INVALID_SPAN} == set(current)

    async def test_async_the_request_is_sent_within_the_span(
        self, captured: CapturedTelemetry, serve: Serve
    ) -> None:
        """The same, asynchronous."""
        server, seen = serve(chat()), []

        async def hook(_: object) -> None:
            seen.append(trace.get_current_span())

        async with ollama.AsyncClient(base(server), event_hooks={"request": [hook]}) as made:
            stream = await made.chat(**ASKED, stream=True)
            current = [trace.get_current_span() async for _ in stream]
        assert [request(captured).get_span_context()] == [each.get_span_context() for each in seen]
        assert {trace.INVALID_SPAN} == set(current)

    def test_tools_of_a_loop(self, captured: CapturedTelemetry, client: Client) -> None:
        """Two turns of a chat with a tool are two spans."""
        called = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
        first = item(message=message(tool_calls=[called]), done=True, done_reason="stop")

        def weather(city: str) -> str:
            """The weather of a *city*."""
            return city

        made = client(whole(first), whole())
        reply = made.chat(**ASKED, tools=[weather])
        assert (reply.message.tool_calls or [])[0].function.name == "weather"
        made.chat("tiny", [*ASKED["messages"], reply.message, {"role": "tool", "content": "rain"}])
        assert outcomes(captured) == ["ok", "ok"]


class _Sub(ollama.Client):
    """A client of the application's own."""

    def chat(self, *args: Any, **kwargs: Any) -> Any:
        return super().chat(*args, **kwargs)


def test_a_subclass(captured: CapturedTelemetry, serve: Serve) -> None:
    """One span, and not one for each class."""
    with _Sub(base(serve(whole()))) as made:
        made.chat(**ASKED)
    assert outcomes(captured) == ["ok"]


def test_objects_are_the_librarys(captured: CapturedTelemetry, client: Client) -> None:
    """Replies and pieces of a stream are what they were."""
    made = client(whole(), chat())
    assert type(made.chat(**ASKED)) is ollama.ChatResponse
    pieces = list(made.chat(**ASKED, stream=True))
    assert {type(each) for each in pieces} == {ollama.ChatResponse}
    assert issubclass(ollama.ChatResponse, BaseModel)

"""Field cases through the library, and who is asked."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from huggingface_hub import InferenceClient

from otel_llm import semconv
from otel_llm.adapters.huggingface import _target
from otel_llm.testing import CapturedTelemetry
from tests.adapters.huggingface.builders import (
    MESSAGES,
    STREAMS,
    after,
    outcome,
    request,
    requests,
    tokens,
)
from tests.fakes import openai_server, tgi
from tests.fakes.tgi import TgiServer


class TestCases:
    """Field cases, through the library."""

    def test_times_in_headers(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """D-TIM-05 a: a known zero is written, and no time per token is taken from a header."""
        server.answers = [after(tgi.exchange("a"))]
        client.text_generation("secret", details=True)
        found = request(captured)
        assert (
            found["otel_llm.queue_us"],
            found[semconv.REPORTED_INFERENCE_US],
            found[semconv.INPUT_TOKENS],
            found[semconv.OUTPUT_TOKENS],
        ) == (0, 202_000, 9, 3)
        assert {"otel_llm.tpot_us", "otel_llm.preprocess_us"}.isdisjoint(found)

    def test_a_body_without_details(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """D-TIM-05 b: the text is in a list, and the counts come from the headers."""
        server.answers = [after(tgi.exchange("b"))]
        assert client.text_generation("secret") == " we see rain"
        found = request(captured)
        assert tokens(captured) == (9, 3)
        assert found["otel_llm.queue_us"] == 1_000

    @pytest.mark.parametrize(
        ("name", "expected", "ttft"),
        [
            ("D-END-04-a.sse", ("rejected", "validation"), False),
            ("D-END-04-b.sse", ("error", "overloaded"), True),
        ],
    )
    def test_an_error_in_the_stream(
        self,
        captured: CapturedTelemetry,
        server: TgiServer,
        client: InferenceClient,
        name: str,
        expected: tuple[str, str],
        ttft: bool,
    ) -> None:
        """D-END-04: its type is the server's, and the span is ended while the exception is held."""
        server.answers = [tgi.case(name)]
        with pytest.raises(Exception, match=r"limit|load"):
            list(STREAMS["text"](client))
        assert expected == outcome(captured)
        assert ttft == ("otel_llm.ttft_us" in request(captured))

    @pytest.mark.parametrize("captured", ["content"], indirect=True)
    @pytest.mark.parametrize("space", [b"", b" "])
    def test_no_space_after_the_colon(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient, space: bytes
    ) -> None:
        """D-FRM-04: three tokens, the text without the special one, complete without `[DONE]`."""
        (body,) = tgi.case("D-FRM-04.sse").pieces
        assert isinstance(body, bytes)
        server.answers = [tgi.streamed(body.replace(b"data:", b"data:" + space))]
        assert list(STREAMS["text"](client)) == ["Blue", " sky", "</s>"]
        (span,) = requests(captured)
        found = span.attributes
        assert found[semconv.OUTCOME] == "ok"
        assert (found[semconv.OUTPUT_TOKENS], found[semconv.FINISH_REASONS]) == (3, ("eos_token",))
        assert _said(found[semconv.INPUT_MESSAGES]) == "secret"
        assert _said(found[semconv.OUTPUT_MESSAGES]) == "Blue sky"


def _said(messages: str) -> Any:
    return json.loads(messages)[0]["parts"][0]["content"]


class _Asked(NamedTuple):
    """What the library sends."""

    url: str
    model: str


class TestTarget:
    """Who is asked."""

    def test_another_server(self, captured: CapturedTelemetry) -> None:
        """With the base URL of a vLLM its own reply tells the engine."""
        body = openai_server.completion() | {"system_fingerprint": "vllm-0.32.0-abc"}
        with tgi.serving(openai_server.whole(body)) as server:
            InferenceClient(base_url=server.url).chat_completion(MESSAGES, model="tiny")
        found = request(captured)
        assert (found[semconv.ENGINE_NAME], found[semconv.INPUT_TOKENS]) == ("vllm", 7)
        assert server.server_address[1] == found[semconv.SERVER_PORT]

    @pytest.mark.parametrize(
        ("url", "provider"),
        [
            ("https://router.huggingface.co/v1/chat/completions", "hugging_face"),
            ("https://api.groq.com/openai/v1/chat/completions", "groq"),
            ("https://tgi.example.com/v1/chat/completions", "hugging_face"),
        ],
    )
    def test_providers(self, url: str, provider: str) -> None:
        """A known cloud is named; behind the router's address an engine goes by its model."""
        models = [_Asked(url, model) for model in ("a", "b")]
        targets = [_target("chat", each, {"model": each.model}) for each in models]
        assert {provider} == {each.provider for each in targets}
        assert targets[0].server_port == 443
        assert ("router" in url) == (targets[0].base_url != targets[1].base_url)

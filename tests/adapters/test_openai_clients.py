"""The OpenAI client library: operations, kinds of clients, and being switched off."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

import otel_llm
from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import (
    STREAMED,
    WHOLE,
    attributes,
    client,
    outcomes,
    request,
    requests,
)
from tests.clients.fixtures import (  # noqa: F401 - fixtures
    aask_fixture,
    ask_fixture,
    captured_fixture,
    made_fixture,
    serve_fixture,
)
from tests.fakes.openai_server import (
    OpenAIServer,
    stream,
    whole,
)

Ask = Callable[..., Any]
Serve = Callable[..., OpenAIServer]
EMBEDDINGS = {
    "object": "list",
    "model": "tiny",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}],
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}


def test_embeddings(captured: CapturedTelemetry, made: Ask) -> None:
    """An operation without tokens that come one by one."""
    made(whole(EMBEDDINGS)).embeddings.create(
        model="tiny", input="hi", encoding_format="float", dimensions=2
    )
    found = attributes(captured)
    assert (found[semconv.OPERATION], found[semconv.INPUT_TOKENS]) == ("embeddings", 3)
    assert request(captured).name == "embeddings tiny"


def test_moderations_are_left_alone(captured: CapturedTelemetry, made: Ask) -> None:
    """No inference of a language model."""
    using = made(whole({"id": "m", "model": "tiny", "results": []}))
    using.moderations.create(input="hi")
    assert captured.spans == []


def test_post(captured: CapturedTelemetry, made: Ask) -> None:
    """The low-level method with a type of one's own."""
    reply = made(whole()).post("/chat/completions", body=WHOLE, cast_to=httpx2.Response)
    assert json.loads(reply.read())["model"] == "tiny"
    found = attributes(captured)
    assert (found[semconv.OUTCOME], found[semconv.OUTPUT_TOKENS]) == ("ok", 5)


def test_extra_body(captured: CapturedTelemetry, made: Ask) -> None:
    """Parameters that only `extra_body` can carry."""
    made(whole()).chat.completions.create(**WHOLE, extra_body={"top_k": 3})
    assert attributes(captured)["gen_ai.request.top_k"] == 3


def test_azure(captured: CapturedTelemetry, serve: Serve) -> None:
    """Azure's client, whose path holds the deployment."""
    server = serve(whole())
    with openai.AzureOpenAI(
        azure_endpoint=server.url.removesuffix("/v1"), api_key="secret", api_version="2026-01-01"
    ) as using:
        using.chat.completions.create(**WHOLE)
    assert "/openai/deployments/tiny/chat/completions" in server.last.path
    assert attributes(captured)[semconv.PROVIDER] == "azure.ai.openai"


def test_the_module_as_a_client(
    captured: CapturedTelemetry, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`openai.chat.completions` without a client."""
    server = serve(whole())
    monkeypatch.setattr(openai, "base_url", server.url)
    monkeypatch.setattr(openai, "api_key", "secret")
    monkeypatch.setattr(openai, "_client", None)
    try:
        openai.chat.completions.create(**WHOLE)
    finally:
        openai._client.close()  # type: ignore[attr-defined]
        openai._reset_client()  # type: ignore[attr-defined]
    assert outcomes(captured) == ["ok"]


@pytest.mark.parametrize("copy", ["with_options", "copy"])
def test_copies_of_clients(captured: CapturedTelemetry, made: Ask, copy: str) -> None:
    """A copy with other options is a client like any other."""
    using = getattr(made(whole()), copy)(timeout=3)
    using.chat.completions.create(**WHOLE)
    assert outcomes(captured) == ["ok"]


def test_a_custom_http_client(captured: CapturedTelemetry, serve: Serve) -> None:
    """The application's own HTTP client is used as it is."""
    server = serve(stream())
    with httpx2.Client() as http, client(server, http_client=http) as using:
        list(using.chat.completions.create(**STREAMED))
    assert outcomes(captured) == ["ok"]
    assert len(server.last.headers["traceparent"]) == 1


def test_a_subclass_with_its_own_request(captured: CapturedTelemetry, serve: Serve) -> None:
    """A client class that overrides `request` and calls its base: one span."""

    class Mine(openai.OpenAI):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            return super().request(*args, **kwargs)

    server = serve(stream())
    with Mine(base_url=server.url, api_key="secret") as using:
        list(using.chat.completions.create(**STREAMED))
    assert outcomes(captured) == ["ok"]
    assert len(server.last.headers["traceparent"]) == 1


def test_a_subclass_that_answers_itself(captured: CapturedTelemetry, made: Ask) -> None:
    """A call within a call: the answer of one client asks another, and both are requests."""
    inner = made(whole())

    class Outer(openai.OpenAI):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            inner.chat.completions.create(**WHOLE)
            return super().request(*args, **kwargs)

    with Outer(base_url=inner.base_url, api_key="secret") as using:
        using.chat.completions.create(**WHOLE)
    assert outcomes(captured) == ["ok", "ok"]


def test_uninstrumented(captured: CapturedTelemetry, ask: Ask, made: Ask) -> None:
    """An open stream's span ends there and then, it can be read on, and no more is traced."""
    opened = ask(stream(5))
    otel_llm.uninstrument()
    assert outcomes(captured) == ["abandoned"]
    assert len(list(opened)) == 8
    made(whole()).chat.completions.create(**WHOLE)
    assert len(requests(captured)) == 1


def test_metrics(captured: CapturedTelemetry, ask: Ask) -> None:
    """The conventions' histograms, once."""
    list(ask(stream(5)))
    (duration,) = captured.points("gen_ai.client.operation.duration")
    tokens = captured.points("gen_ai.client.token.usage")
    assert duration.count == 1
    assert {7.0, 5.0} == {each.sum for each in tokens}

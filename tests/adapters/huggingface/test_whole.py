"""Replies in one piece, what is sent, and who is asked."""

from __future__ import annotations

import pytest
from huggingface_hub import InferenceClient
from opentelemetry.trace import StatusCode

from otel_llm import config, semconv
from otel_llm.testing import CapturedTelemetry
from tests.adapters.huggingface.builders import (
    MESSAGES,
    STREAMS,
    after,
    closing,
    named,
    outcome,
    request,
    requests,
    tokens,
    traced,
)
from tests.fakes import tgi
from tests.fakes.tgi import TgiServer


class TestWhole:
    """Replies in one piece."""

    def test_chat(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """The reply's usage, the phases of its headers, and what the library was asked for."""
        server.answers = [after(tgi.plain(tgi.completion()))]
        reply = client.chat_completion(MESSAGES, model="acme", max_tokens=7, temperature=0.5)
        assert reply.choices[0].message.content == "Blue sky"
        found = request(captured)
        assert requests(captured)[0].name == "chat acme"
        assert (
            found[semconv.RESPONSE_MODEL],
            found[semconv.MAX_TOKENS],
            found[semconv.TEMPERATURE],
        ) == ("acme/tiny", 7, 0.5)
        assert tokens(captured) == (9, 3)
        assert (found["otel_llm.preprocess_us"], found["otel_llm.queue_us"]) == (1_000, 40_000)
        assert found[semconv.REPORTED_INFERENCE_US] == 160_000
        assert outcome(captured) == ("ok", None)
        assert traced(server, captured)

    def test_the_engine_is_known_from_its_first_reply(
        self, captured: CapturedTelemetry, client: InferenceClient
    ) -> None:
        """Until then a chat's provider is what the client says."""
        client.chat_completion(MESSAGES)
        client.chat_completion(MESSAGES)
        assert [each.attributes[semconv.PROVIDER] for each in requests(captured)] == [
            "hugging_face",
            "tgi",
        ]

    def test_no_model_is_made_up(
        self, captured: CapturedTelemetry, client: InferenceClient
    ) -> None:
        """The library fills in a name that nobody has given."""
        client.chat_completion(MESSAGES)
        assert semconv.REQUEST_MODEL not in request(captured)

    def test_text(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """Parameters have the names of the conventions, and the adapter is told."""
        assert client.text_generation("secret", max_new_tokens=5, adapter_id="fr") == "Blue sky"
        found = request(captured)
        assert (
            found[semconv.OPERATION],
            found[semconv.PROVIDER],
            found[semconv.MAX_TOKENS],
            found[semconv.LORA],
        ) == ("text_completion", "tgi", 5, "fr")
        assert traced(server, captured)

    def test_embeddings(self, captured: CapturedTelemetry, server: TgiServer) -> None:
        """Vectors are passed on, and no phase is made of another server's headers."""
        with closing(InferenceClient(f"{server.root}/embed")) as client:
            assert client.feature_extraction(["secret", "b"]).shape == (2, 2)
        assert request(captured)[semconv.OPERATION] == "embeddings"
        assert "otel_llm.queue_us" not in request(captured)

    def test_other_tasks_are_left_alone(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """They are no calls of a language model."""
        server.answers = [tgi.plain([{"label": "a", "score": 1.0}])]
        client.text_classification("secret")
        assert "traceparent" not in server.last.headers
        assert requests(captured) == []

    @pytest.mark.parametrize("status", [422, 424, 429, 500, 503])
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_refusal(
        self,
        captured: CapturedTelemetry,
        server: TgiServer,
        client: InferenceClient,
        status: int,
        stream: bool,
    ) -> None:
        """The exception is the library's; the status is on the span, and nothing of its text."""
        server.answers = [tgi.failing(status, "validation")]
        with pytest.raises(Exception, match="secret"):
            client.text_generation("secret", stream=stream)
        assert status == request(captured)[semconv.HTTP_STATUS]
        assert ("error" if status == 500 else "rejected", str(status)) == outcome(captured)
        assert {"otel_llm.ttft_us", "otel_llm.queue_us"}.isdisjoint(request(captured))
        assert StatusCode.ERROR is requests(captured)[0].status.status_code

    def test_nobody_there(self, captured: CapturedTelemetry) -> None:
        """A connection that is refused."""
        with tgi.serving() as gone:
            pass
        client = InferenceClient(gone.root)
        with pytest.raises(Exception, match=r".") as caught:
            client.chat_completion(MESSAGES)
        assert outcome(captured) == ("error", named(caught.value))

    def test_no_reply_in_time(self, captured: CapturedTelemetry, server: TgiServer) -> None:
        """The library gives up."""
        server.answers = [after(tgi.plain({}), 0.5)]
        client = InferenceClient(server.root, timeout=0.05)
        with closing(client), pytest.raises(Exception, match=r".") as caught:
            client.chat_completion(MESSAGES)
        assert outcome(captured) == ("error", named(caught.value))


class TestHeaders:
    """What is sent."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_the_applications_own_is_kept(
        self, captured: CapturedTelemetry, server: TgiServer, stream: bool
    ) -> None:
        """A `traceparent` that was given goes out alone, and the client's headers stay."""
        given = {"Traceparent": f"00-{1:032x}-{2:016x}-01"}
        with closing(InferenceClient(server.root, headers=given)) as client:
            list(client.chat_completion(MESSAGES, stream=stream))
            assert given == client.headers
        assert [given["Traceparent"]] == server.last.headers["traceparent"]

    def test_nothing_stays_behind(
        self, captured: CapturedTelemetry, server: TgiServer, client: InferenceClient
    ) -> None:
        """Each request carries its own span."""
        for _ in range(2):
            client.chat_completion(MESSAGES)
            assert traced(server, captured)
        assert not client.headers


def test_undone(captured: CapturedTelemetry, server: TgiServer, client: InferenceClient) -> None:
    """The library's own functions are back."""
    config.uninstrument()
    assert not hasattr(InferenceClient._inner_post, "__wrapped__")
    assert len(list(STREAMS["chat"](client))) == 5
    assert "traceparent" not in server.last.headers

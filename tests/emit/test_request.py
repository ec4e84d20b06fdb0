"""What a request body says of the request: parameters under the conventions' names."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.emit.request import RequestInfo, request_id, request_parameters
from otel_llm.semconv import GENAI_MAIN, V1_41
from otel_llm.testing import CapturedTelemetry
from otel_llm.timeline import Side
from tests.emit.builders import complete, opened, written


def parameters(**body: Any) -> dict[str, Any]:
    return request_parameters(body, V1_41)


class TestSpanName:
    """`{operation} {model}`."""

    def test_with_a_model(self) -> None:
        """Operation and model."""
        assert RequestInfo("chat", "demo", "tiny").span_name == "chat tiny"

    def test_without_a_model(self) -> None:
        """The operation alone, without a trailing space."""
        assert RequestInfo("chat", "demo").span_name == "chat"


class TestParameters:
    """Each parameter by its attribute, with the conventions' type."""

    @pytest.mark.parametrize(
        ("key", "value", "attribute", "expected"),
        [
            ("max_tokens", 16, semconv.MAX_TOKENS, 16),
            ("max_completion_tokens", 17, semconv.MAX_TOKENS, 17),
            ("max_output_tokens", 18, semconv.MAX_TOKENS, 18),
            ("temperature", 0, semconv.TEMPERATURE, 0.0),
            ("top_p", 0.9, semconv.TOP_P, 0.9),
            ("top_k", 40, semconv.TOP_K, 40.0),
            ("seed", 7.0, semconv.SEED, 7),
            ("frequency_penalty", -1, semconv.FREQUENCY_PENALTY, -1.0),
            ("presence_penalty", 0.5, semconv.PRESENCE_PENALTY, 0.5),
            ("stop", "END", semconv.STOP_SEQUENCES, ("END",)),
            ("stop", ["END", None], semconv.STOP_SEQUENCES, ("END",)),
            ("priority", -2, semconv.PRIORITY, -2),
            ("n", 3, semconv.CHOICE_COUNT, 3),
            ("stream", True, semconv.REQUEST_STREAM, True),
            ("response_format", {"type": "json_schema"}, semconv.OUTPUT_TYPE, "json"),
            ("response_format", {"type": "text"}, semconv.OUTPUT_TYPE, "text"),
        ],
    )
    def test_written(self, key: str, value: Any, attribute: str, expected: Any) -> None:
        """One parameter is one attribute of the right type."""
        found = parameters(**{key: value})
        assert {attribute: expected} == found
        assert type(expected) is type(found[attribute])

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("max_tokens", -1),
            ("temperature", None),
            ("temperature", "<sentinel:NOT_GIVEN>"),
            ("temperature", float("nan")),
            ("top_k", -1),
            ("seed", 7.5),
            ("stop", [None]),
            ("n", 1),
            ("n", True),
            ("stream", False),
            ("stream", "true"),
            ("response_format", {"type": "grammar"}),
            ("response_format", "json"),
            ("response_format", {"type": ["json"]}),
        ],
    )
    def test_left_out(self, key: str, value: Any) -> None:
        """Defaults, sentinels and wrong types leave no attribute."""
        assert parameters(**{key: value}) == {}

    def test_top_k_is_an_integer_in_the_newer_vocabulary(self) -> None:
        """The two vocabularies differ in its type."""
        found = request_parameters({"top_k": 40}, GENAI_MAIN)
        assert (40, int) == (found[semconv.TOP_K], type(found[semconv.TOP_K]))


HEX, UUID = "b03c1c1a3fd8d376", "0193a1f2-7c1e-7b3a-9d2e-0123456789ab"


class TestRequestId:
    """`otel_llm.request.id`, which a client may have chosen."""

    @pytest.mark.parametrize("side", [Side.SERVER, Side.PROXY])
    @pytest.mark.parametrize(
        "given",
        [
            HEX,
            f"chatcmpl-{HEX}",
            f"cmpl-{HEX * 2}-0",
            f"resp_{HEX}_12",
            f"generative-scoring-{UUID.upper()}",
            f"chatcmpl-{HEX}-{HEX}-beam-0",
            f"embd-{UUID}-prompt-3",
        ],
    )
    def test_made_by_a_machine(self, side: Side, given: str) -> None:
        """Written as it is."""
        assert given == request_id(given, side)

    @pytest.mark.parametrize("side", [Side.SERVER, Side.PROXY])
    @pytest.mark.parametrize(
        "given",
        [
            "chatcmpl-jane.doe@example.com",
            f"chatcmpl-jane-{HEX}",
            f"{HEX}-jane",
            f"{HEX}\n",
            "chatcmpl-sk-proj-AbC123",
            "chatcmpl-",
            HEX + "0",
            HEX * 1000,
            "übung",
        ],
    )
    def test_anything_else(self, side: Side, given: str) -> None:
        """Nothing of it is written, and the same one is known again."""
        found = request_id(given, side)
        assert found is not None
        assert found.startswith("sha256:")
        assert len(found) == len("sha256:") + 16
        assert found == request_id(given, side) != request_id(f"{given}x", side)

    def test_the_hash(self) -> None:
        """Whoever has the id can make it."""
        expected = hashlib.sha256(b"chatcmpl-jane").hexdigest()[:16]
        assert f"sha256:{expected}" == request_id("chatcmpl-jane", Side.SERVER)

    @pytest.mark.parametrize("side", [Side.ENGINE, Side.CLIENT])
    def test_an_id_of_this_process(self, side: Side) -> None:
        """The application has chosen it; cut to 256 characters."""
        assert request_id("x" * 300, side) == "x" * 256

    @pytest.mark.parametrize("given", [None, "", 7])
    def test_no_id(self, given: object) -> None:
        """Absent."""
        assert request_id(given, Side.SERVER) is None

    def test_half_an_emoji(self) -> None:
        """Does not stop the request from being written."""
        assert str(request_id("\ud83d", Side.SERVER)).startswith("sha256:")

    @pytest.mark.parametrize(
        ("side", "expected"),
        [(Side.SERVER, "sha256:72a90ea3da8b5dd0"), (Side.ENGINE, "order-17")],
    )
    def test_on_the_span(self, captured: CapturedTelemetry, side: Side, expected: str) -> None:
        """Whoever gives it."""
        live = opened(captured, side)
        live.annotate({semconv.REQUEST_ID: "order-17"})
        complete(live)
        assert expected == written(captured)[semconv.REQUEST_ID]

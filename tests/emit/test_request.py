"""What a request body says of the request: parameters under the conventions' names."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.emit.request import RequestInfo, request_parameters
from otel_llm.semconv import GENAI_MAIN, V1_41


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

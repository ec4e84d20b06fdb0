"""Prompts in the conventions' form."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm.emit.content import as_messages
from otel_llm.emit.request import request_parameters
from otel_llm.semconv import CHOICE_COUNT, INPUT_AUDIO, INPUT_IMAGES, V1_41

TEXT = {"type": "text", "content": "hi"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hi", [{"role": "user", "parts": [TEXT]}]),
        (["hi", "hi"], [{"role": "user", "parts": [TEXT]}] * 2),
        ([{"role": "system", "content": "hi"}], [{"role": "system", "parts": [TEXT]}]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]}],
            [{"role": "user", "parts": [TEXT, {"type": "image"}]}],
        ),
        ([{"role": "assistant", "content": None}], [{"role": "assistant", "parts": []}]),
        ([[1, 2]], [[1, 2]]),
        (7, 7),
    ],
)
def test_roles_and_parts(given: Any, expected: Any) -> None:
    """Texts become parts; what has no role stays as it is."""
    assert expected == as_messages(given)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "one"}, None),
        ({"prompt": ["one"]}, None),
        ({"prompt": ["one", "two"]}, 2),
        ({"prompt": ["one", "two"], "n": 3}, 6),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1], [2]]}, 2),
        ({"n": 3}, 3),
        ({"n": 1}, None),
    ],
)
def test_number_of_answers(body: dict[str, Any], expected: int | None) -> None:
    """Each of several prompts has its answers; a list of token ids is one prompt."""
    assert expected == request_parameters(body, V1_41).get(CHOICE_COUNT)


def test_images_and_audio_are_counted() -> None:
    """Parts of every message, in the shapes of chat and responses; none is absent."""
    image, audio = {"type": "image_url"}, {"type": "input_audio"}
    messages = [
        {"role": "user", "content": [image, audio, image]},
        {"role": "user", "content": "x"},
    ]
    found = request_parameters({"messages": messages}, V1_41)
    assert (found[INPUT_IMAGES], found[INPUT_AUDIO]) == (2, 1)
    responses = {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}
    found = request_parameters(responses, V1_41)
    assert (found[INPUT_IMAGES], INPUT_AUDIO in found) == (1, False)

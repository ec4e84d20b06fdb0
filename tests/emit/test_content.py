"""Prompts and answers: off by default, redacted, cut, and without binaries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_llm import guard, semconv
from otel_llm.emit.content import content_attributes, without_binaries
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import captured_telemetry
from tests.emit.builders import complete, opened, written

INPUT = semconv.INPUT_MESSAGES
LENGTH = "otel_llm.content.length.input.messages"
FOX = "\U0001f98a"


def shown(content: object, **settings: Any) -> dict[str, Any]:
    """What is written of *content* with capture switched on."""
    return content_attributes(INPUT, content, EmitSettings(capture_content=True, **settings))


class TestSwitch:
    """Content is written only on request."""

    def test_off_by_default(self) -> None:
        """Nothing of it leaves the process, not even its length."""
        assert content_attributes(INPUT, "secret", EmitSettings()) == {}

    def test_no_content_no_attribute(self) -> None:
        """None is not written as text."""
        assert shown(None) == {}

    def test_off_is_off_on_a_span(self) -> None:
        """Neither the prompt nor a trace of it is on the span."""
        captured = captured_telemetry()
        live = opened(captured)
        live.content(INPUT, "secret")
        complete(live)
        assert "secret" not in str(written(captured))

    def test_on_a_span(self) -> None:
        """Switched on, it is one attribute."""
        captured = captured_telemetry(EmitSettings(capture_content=True))
        live = opened(captured)
        live.content(INPUT, [{"role": "user", "content": "hello"}])
        complete(live)
        assert json.loads(written(captured)[INPUT]) == [{"role": "user", "content": "hello"}]


class TestLimit:
    """Long content is cut where a character ends, and says how long it was."""

    @pytest.mark.parametrize("text", ["abcde", "caf\u00e9s", f"abcd{FOX}", FOX * 5, ""])
    def test_up_to_the_limit_it_is_whole(self, text: str) -> None:
        """Five characters fit a limit of five, however many bytes they take."""
        assert {INPUT: text} == shown(text, content_limit=5)

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ("abcdef", "abcde"),
            (f"abcd{FOX}f", f"abcd{FOX}"),
            (FOX * 6, FOX * 5),
            ("\u96ea" * 6, "\u96ea" * 5),
        ],
    )
    def test_beyond_it_is_cut(self, text: str, kept: str) -> None:
        """No half characters, and the length before the cut beside it."""
        assert {INPUT: kept, LENGTH: 6} == shown(text, content_limit=5)

    def test_lone_surrogates_count_as_they_are_written(self) -> None:
        """Half an emoji at the cut is mended like any other."""
        assert shown("abcd\ud83eX", content_limit=5) == {INPUT: "abcd\ufffd", LENGTH: 6}


class TestRedaction:
    """The hook decides what may be written."""

    def test_sees_the_attribute_and_the_structure(self) -> None:
        """It is asked with the attribute's name and the content as it was given."""
        seen: list[tuple[str, object]] = []
        shown(["prompt"], redact=lambda name, content: seen.append((name, content)))
        assert seen == [(INPUT, ["prompt"])]

    def test_its_answer_is_written(self) -> None:
        """The original is not."""
        assert shown("secret", redact=lambda _name, _content: "***") == {INPUT: "***"}

    def test_none_hides_everything(self) -> None:
        """Nothing is written, no length either."""
        assert shown("secret", redact=lambda _name, _content: None) == {}

    def test_the_limit_holds_for_its_answer(self) -> None:
        """Length and cut are those of what may be written."""
        found = shown("secret", redact=lambda _name, _content: "*" * 9, content_limit=5)
        assert found == {INPUT: "*****", LENGTH: 9}

    def test_when_it_fails_nothing_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hook that breaks must not let the prompt through, nor stop the request."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        captured = captured_telemetry(
            EmitSettings(capture_content=True, redact=lambda _n, _c: 1 / 0)
        )
        live = opened(captured)
        live.content(INPUT, "secret")
        complete(live)
        assert "secret" not in str(written(captured))
        assert guard.failures["emit.content"] == 1


class TestBinaries:
    """Images, audio and files are described, never copied."""

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            (
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": "<image_url, 26 characters>"},
            ),
            (
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                {"type": "input_audio", "input_audio": "<input_audio, 8 characters>"},
            ),
            (
                {"image_url": "data:image/png;base64,AAAA"},
                {"image_url": "<image_url, 26 characters>"},
            ),
            ({"source": "data:image/png;base64,AAAA"}, {"source": "<image/png, 26 characters>"}),
            ({"raw": b"12345"}, {"raw": "<5 bytes>"}),
        ],
    )
    def test_described(self, part: dict[str, Any], expected: dict[str, Any]) -> None:
        """What kind it is and how long, in place of the content."""
        assert [expected] == without_binaries([part])

    @pytest.mark.parametrize("content", ["data: is a word", {"text": "hi"}, [1, None, True], 2.5])
    def test_everything_else_stays(self, content: object) -> None:
        """Text that merely begins alike, numbers and structure are kept."""
        assert content == without_binaries(content)

    def test_a_large_image_does_not_use_up_the_limit(self) -> None:
        """The text beside it is whole."""
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90_000}}
        found = shown([{"type": "text", "text": "What is this?"}, image])
        assert LENGTH not in found
        assert "What is this?" in found[INPUT]

    def test_an_image_of_the_messages_api(self) -> None:
        """Images are described on every route that we trace."""
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA" * 50_000}
        assert len(str(without_binaries({"type": "image", "source": source}))) < 1000

    def test_an_image_alone(self) -> None:
        """Also where it is the whole input, as for an embedding."""
        found = shown("data:image/png;base64," + "A" * 10_000)
        assert found == {INPUT: "<image/png, 10022 characters>"}

    @pytest.mark.parametrize("content", [[float("nan")], {("a", 1): 2}])
    def test_what_cannot_be_written(self, content: object) -> None:
        """No attribute, and no error."""
        assert shown(content) == {}


class TestTexts:
    """A tuple of texts, such as stop sequences, is written as texts and not as one JSON text."""

    def test_each_is_cut(self) -> None:
        """To the limit, as any content."""
        assert shown(("END", "abcdefg"), content_limit=5) == {INPUT: ("END", "abcde")}

    def test_redacted(self) -> None:
        """The hook sees them all, and may give a list back."""
        found = shown(("END", "secret"), redact=lambda _name, texts: [texts[0], "[gone]"])
        assert found == {INPUT: ("END", "[gone]")}

    @pytest.mark.parametrize("answer", [None, [], 7, ()])
    def test_redacted_to_nothing(self, answer: object) -> None:
        """No attribute."""
        assert shown(("secret",), redact=lambda _name, _texts: answer) == {}

"""A real vLLM server that writes down what it hears: uploads, streams, several clips."""

from __future__ import annotations

import io
import math
import struct
import wave
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.serving import Running, running
from tests.services import vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
RATE = 16_000
FIELDS = {"model": "tiny", "language": "en", "max_completion_tokens": 12}
PHASES = ["llm.preprocess", "llm.queue", "llm.prefill", "llm.decode", "llm.delivery"]


def recording(seconds: float) -> bytes:
    """A tone that swells, as a WAV file at the model's own rate."""
    samples = (9000 * math.sin(n / 11) * math.sin(n / 3001) for n in range(int(RATE * seconds)))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(b"".join(struct.pack("<h", int(each)) for each in samples))
    return file.getvalue()


SHORT = recording(2)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model that hears clips of five seconds."""
    model = vllm.speech_model()
    yield from running(
        tmp_path_factory, f"--model={model}", "--max-model-len=448", also=[vllm.SOUND]
    )


@pytest.mark.parametrize(
    ("path", "operation"), [(TRANSCRIPTIONS, "transcription"), (TRANSLATIONS, "translation")]
)
def test_a_recording(hearing: Running, path: str, operation: str) -> None:
    """All phases and tokens; the model is the engine's, since nobody reads the upload first."""
    found = hearing.uploaded(path, SHORT, FIELDS)
    assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
    assert found["children"] == PHASES
    assert found["otel_llm.unaccounted_us"] == 0
    assert found["otel_llm.sources"].count("reported") == 3
    assert (found["gen_ai.operation.name"], found["otel_llm.input.audio"]) == (operation, 1)
    assert (found["span"].name, found["gen_ai.request.model"]) == (f"{operation} tiny", "tiny")
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (4, 12)


def test_a_stream(hearing: Running) -> None:
    """The way of the first token to the client, and gaps."""
    long = {"stream": "true", "max_completion_tokens": 200}  # a busy server merges outputs
    found = hearing.uploaded(TRANSCRIPTIONS, SHORT, {**FIELDS, **long})
    assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
    assert found["children"] == [*PHASES[:3], "llm.first_token", *PHASES[3:]]
    assert 0 < found["otel_llm.ttft_us"] < found["otel_llm.e2e_us"]
    assert found["otel_llm.itl_p50_us"] > 0
    assert found["otel_llm.unaccounted_us"] == 0


def test_a_language_that_the_model_must_find(hearing: Running) -> None:
    """The question to the model is preparation: its token is no part of the answer."""
    asked = {key: value for key, value in FIELDS.items() if key != "language"}
    found = hearing.uploaded(TRANSCRIPTIONS, SHORT, asked)
    assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
    assert found["children"] == PHASES
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (4, 12)
    assert found["gen_ai.response.finish_reasons"] == ["length"]


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_long_recording(hearing: Running, stream: str) -> None:
    """Three clips are one request."""
    found = hearing.uploaded(TRANSCRIPTIONS, recording(12), {**FIELDS, "stream": stream})
    assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
    assert found["otel_llm.input.audio"] == 1
    assert found["gen_ai.usage.output_tokens"] == 36
    assert found["gen_ai.response.finish_reasons"] == ["length"] * 3


@pytest.mark.parametrize(
    ("file", "changed", "status"),
    [(SHORT, {"model": "nope"}, 404), (b"no sound", {}, 400), (SHORT, {"language": "xx"}, 400)],
)
def test_refused(hearing: Running, file: bytes, changed: dict[str, Any], status: int) -> None:
    """Before the engine: no model is known, and nothing was heard."""
    found = hearing.uploaded(TRANSCRIPTIONS, file, {**FIELDS, **changed})
    assert (found["http"], found["otel_llm.outcome"]) == (status, "rejected")
    assert found["otel_llm.ended_in"] == "preprocess"
    assert "gen_ai.request.model" not in found


def test_nothing_was_logged(hearing: Running) -> None:
    """No hook failed."""
    assert "telemetry failed" not in hearing.server.log.read_text()

"""The lines and bodies of Ollama's own answers."""

from __future__ import annotations

from typing import Any

from otel_llm.clock import Clock
from otel_llm.simulator.serving.app import Call, Refused
from otel_llm.simulator.serving.generation import Generation
from otel_llm.simulator.serving.go import GO_JSON, go_json, rfc3339
from otel_llm.simulator.serving.tokens import tokenize

NDJSON = "application/x-ndjson"
DETAILS: dict[str, Any] = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "2.81M",
    "quantization_level": "F16",
}
"""What is told of the model."""
EMBEDDING = {"embedding_length": 256}


class Lines:
    """The lines of one answer: of a chat, or of a completion if its prompt is given."""

    def __init__(self, clock: Clock, model: str, prompt: list[int] | None) -> None:
        self._clock = clock
        self._model = model
        self._prompt = prompt

    def said(self, text: str) -> dict[str, Any]:
        """A line with words."""
        return {**self._head(text), "done": False}

    def end(self, call: Call, generation: Generation, text: str) -> dict[str, Any]:
        """The last line, or the whole answer."""
        sequence = generation.sequences[0]
        line = {**self._head(text), "done": True, "done_reason": sequence.finished}
        if self._prompt is not None:
            ids = [*self._prompt, *tokenize(sequence.text)]
            line["context"] = [each % 32_000 for each in ids]
        return line | times_of(call, generation, self._clock.monotonic_ns())

    def _head(self, text: str) -> dict[str, Any]:
        head = {"model": self._model, "created_at": rfc3339(self._clock.wall_ns())}
        if self._prompt is not None:
            return {**head, "response": text}
        return {**head, "message": {"role": "assistant", "content": text}}


def times_of(call: Call, generation: Generation, now_ns: int) -> dict[str, int]:
    """What Ollama says of its times, nanoseconds; those of its runner are whole microseconds.

    Waiting for a free place in the batch is in none of them but the total.
    """
    truth = generation.truth.engine[0]
    scheduled, first = truth.scheduled_ns or 0, truth.first_token_ns or 0
    last = truth.last_token_ns or 0
    return {
        "total_duration": max(1, now_ns - call.truth.received_ns),
        "load_duration": max(1, truth.load_ns),
        "prompt_eval_count": generation.input_tokens,
        "prompt_eval_cached_count": truth.cached_tokens,
        "prompt_eval_duration": max(1, round((first - scheduled) / 1e3)) * 1000,
        "eval_count": generation.output_tokens,
        "eval_duration": max(1, round((last - first) / 1e3)) * 1000,
    }


async def stream(call: Call, generation: Generation, lines: Lines) -> None:
    """Send the lines of one answer."""
    started = False
    async for piece in generation:
        if not started:
            started = True
            await call.exchange.start(200, (("content-type", NDJSON),))
        if piece.text:
            await call.exchange.write(go_json(lines.said(piece.text)) + b"\n")
    await call.exchange.write(go_json(lines.end(call, generation, "")) + b"\n")
    await call.exchange.write(b"", last=True)


def error(status: int, kind: str, text: str) -> Refused:
    """A request that is answered with an error."""
    return Refused(status, kind, go_json({"error": text}), GO_JSON)


def too_long(tokens: int, longest: int) -> Refused:
    """What llama.cpp says, in what Ollama makes of it; sent as a stream for no good reason."""
    text = too_long_text(tokens, longest)
    body = go_json({"error": text})
    return Refused(400, "validation", body, "application/json", sized=False)


def too_long_text(tokens: int, longest: int) -> str:
    """What llama.cpp answers to Ollama."""
    message = (
        f"request ({tokens} tokens) exceeds the available context size ({longest} tokens), "
        "try increasing it"
    )
    error = {
        "code": 400,
        "message": message,
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": longest,
    }
    return go_json({"error": error}).decode()

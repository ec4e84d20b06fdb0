"""Ollama's OpenAI routes; they say nothing of times."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from otel_llm.simulator.engine import PromptTooLong, QueueFull
from otel_llm.simulator.serving.app import Call, Refused
from otel_llm.simulator.serving.generation import EngineFailedError, Generation
from otel_llm.simulator.serving.go import GO_JSON, go_json, json_error
from otel_llm.simulator.serving.ollama_lines import too_long_text
from otel_llm.simulator.serving.openai import Wanted, chat_prompt, text_prompts

if TYPE_CHECKING:
    from otel_llm.simulator.serving.ollama import OllamaApp

JSON = "application/json"
_NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class OpenAIRoutes:
    """The handlers of `/v1/`."""

    def __init__(self, app: OllamaApp) -> None:
        self._app = app

    async def chat(self, call: Call) -> None:
        """`/v1/chat/completions`."""
        body = await self._body(call)
        if not body.get("messages"):
            text = "[] is too short - 'messages'"
            raise _error(400, "validation", text, "invalid_request_error", GO_JSON)
        await self._answer(call, Wanted.of(body), chat_prompt(body), _Chat(self._app, call))

    async def completions(self, call: Call) -> None:
        """`/v1/completions`."""
        body = await self._body(call)
        prompts = text_prompts(body.get("prompt"))
        prompt = prompts[0] if prompts else [0]
        await self._answer(call, Wanted.of(body), prompt, _Text(self._app, call))

    async def models(self, call: Call) -> None:
        """`/v1/models`."""
        app = self._app
        created = app.clock.wall_ns() // 1_000_000_000
        model = {"id": app.tag, "object": "model", "created": created, "owned_by": "library"}
        body = go_json({"object": "list", "data": [model]}) + b"\n"
        await app.reply(call, body, JSON)

    async def _body(self, call: Call) -> dict[str, Any]:
        try:
            body = await self._app.read(call)
        except ValueError as error:
            text = "EOF" if not call.raw else json_error(call.raw, error)
            raise _error(400, "validation", text, "invalid_request_error", GO_JSON) from None
        if not isinstance(body, dict):
            text = "json: cannot unmarshal the request"
            raise _error(400, "validation", text, "invalid_request_error", GO_JSON)
        if not self._app.names(body.get("model")):
            text = f"model '{body.get('model', '')}' not found"
            raise _error(404, "unknown_model", text, "not_found_error")
        return body

    async def _answer(
        self, call: Call, wanted: Wanted, prompt: list[int], bodies: _Chat | _Text
    ) -> None:
        call.truth.streaming = wanted.stream
        generation = self._submit(call, prompt, wanted)
        try:
            if wanted.stream:
                await _stream(call, generation, bodies, wanted)
            else:
                await generation.wait()
                await self._app.reply(call, go_json(bodies.whole(generation)) + b"\n", JSON)
        except EngineFailedError:
            if call.exchange.status is not None:
                raise
            raise _error(500, "engine", "runner has terminated", "api_error") from None

    def _submit(self, call: Call, prompt: list[int], wanted: Wanted) -> Generation:
        limit = wanted.max_tokens if (wanted.max_tokens or 0) > 0 else None
        try:
            return self._app.begin(call, prompt, limit)
        except QueueFull:
            text = "server busy, please try again.  maximum pending requests exceeded"
            raise _error(503, "overloaded", text, "api_error") from None
        except PromptTooLong:
            text = too_long_text(len(prompt), self._app.engine.config.longest)
            raise _error(400, "validation", text, "invalid_request_error") from None


class _Bodies:
    """What all bodies of one answer have."""

    prefix: str

    def __init__(self, app: OllamaApp, call: Call) -> None:
        number = Random(f"{app.config.seed}-{call.number}").randrange(1000)  # noqa: S311
        self._id = f"{self.prefix}-{number}"
        self._model = app.config.model
        self._clock = app.clock

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields."""
        created = self._clock.wall_ns() // 1_000_000_000
        return {"id": self._id, "object": kind, "created": created}

    @property
    def named(self) -> dict[str, Any]:
        """The model, and by whom it is served."""
        return {"model": self._model, "system_fingerprint": "fp_ollama"}


class _Chat(_Bodies):
    prefix = "chatcmpl"

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        sequence = generation.sequences[0]
        message = {"role": "assistant", "content": sequence.text}
        choice = {"index": 0, "message": message, "finish_reason": sequence.finished}
        head = {**self.head("chat.completion"), **self.named}
        return {**head, "choices": [choice], "usage": _usage(generation)}

    def piece(self, text: str, *, first: bool, wanted: Wanted) -> dict[str, Any]:  # noqa: ARG002
        """A chunk with words."""
        role = {"role": "assistant"} if first else {}
        return self._chunk([{"index": 0, "delta": {**role, "content": text}, **_GOES_ON}])

    def end(self, generation: Generation, wanted: Wanted) -> dict[str, Any]:  # noqa: ARG002
        """The chunk with the reason of the end."""
        reason = generation.sequences[0].finished
        return self._chunk([{"index": 0, "delta": {}, "finish_reason": reason}])

    def usage(self, generation: Generation) -> dict[str, Any]:
        """The chunk with the token counts."""
        return {**self._chunk([]), "usage": _usage(generation)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self.head("chat.completion.chunk"), **self.named, "choices": choices}


_GOES_ON = {"finish_reason": None}


class _Text(_Bodies):
    prefix = "cmpl"

    def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        sequence = generation.sequences[0]
        choice = {"text": sequence.text, "index": 0, "finish_reason": sequence.finished}
        head = {**self.head("text_completion"), **self.named}
        return {**head, "choices": [choice], "usage": _usage(generation)}

    def piece(self, text: str, *, first: bool, wanted: Wanted) -> dict[str, Any]:  # noqa: ARG002
        """A chunk with words, and with empty token counts if the true ones are asked for."""
        return self._chunk([{"text": text, "index": 0, **_GOES_ON}], wanted)

    def end(self, generation: Generation, wanted: Wanted) -> dict[str, Any]:
        """The chunk with the reason of the end."""
        reason = generation.sequences[0].finished
        return self._chunk([{"text": "", "index": 0, "finish_reason": reason}], wanted)

    def usage(self, generation: Generation) -> dict[str, Any]:
        """The chunk with the token counts."""
        return {**self._chunk([], Wanted()), "usage": _usage(generation)}

    def _chunk(self, choices: list[dict[str, Any]], wanted: Wanted) -> dict[str, Any]:
        usage = {"usage": _NO_USAGE} if wanted.usage else {}
        return {**self.head("text_completion"), "choices": choices, **self.named, **usage}


async def _stream(
    call: Call, generation: Generation, bodies: _Chat | _Text, wanted: Wanted
) -> None:
    first = True
    async for piece in generation:
        if first:
            await call.exchange.start(200, (("content-type", "text/event-stream"),))
        if piece.text:
            chunk = bodies.piece(piece.text, first=first, wanted=wanted)
            await call.exchange.write(_event(chunk))
        first = False
    await call.exchange.write(_event(bodies.end(generation, wanted)))
    if wanted.usage:
        await call.exchange.write(_event(bodies.usage(generation)))
    await call.exchange.write(b"data: [DONE]\n\n")
    await call.exchange.write(b"", last=True)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % go_json(body)


def _usage(generation: Generation) -> dict[str, Any]:
    given, made = generation.input_tokens, generation.output_tokens
    return {
        "prompt_tokens": given,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        "completion_tokens": made,
        "total_tokens": given + made,
    }


def _error(status: int, kind: str, text: str, type_: str, content_type: str = JSON) -> Refused:
    error = {"message": text, "type": type_, "param": None, "code": None}
    end = b"\n" if content_type == JSON else b""
    return Refused(status, kind, go_json({"error": error}) + end, content_type)

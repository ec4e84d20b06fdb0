"""A TGI server without a TGI: its routes, headers and events as the last release has them.

No running one was at hand; what is sent follows its published source. Times are told in headers of
plain replies only, whole milliseconds; a stream is sent before they are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from otel_llm.clock import SYSTEM_CLOCK, Clock
from otel_llm.simulator.engine import Engine, PromptTooLong, QueueFull
from otel_llm.simulator.serving.app import (
    Body,
    Call,
    Handler,
    Refused,
    ServingApp,
    ServingConfig,
    hexadecimal,
)
from otel_llm.simulator.serving.generation import EngineFailedError, Generation
from otel_llm.simulator.serving.http import compact
from otel_llm.simulator.serving.openai import Wanted, chat_prompt
from otel_llm.simulator.serving.tgi_bodies import (
    DEFAULT_TOKENS,
    JSON,
    TEXT,
    Asked,
    asked_of,
    details,
    error,
    event,
    marked,
    times_of,
    token,
    unreadable,
    usage,
)

VERSION = "3.3.7"
SSE = "text/event-stream"
KEEP_ALIVE_S = 15.0
_VARY = "origin, access-control-request-method, access-control-request-headers"
_CORS = (("vary", _VARY), ("access-control-allow-origin", "*"))


class TgiApp(ServingApp):
    """`/generate`, `/generate_stream`, `/`, `/v1/chat/completions`, `/info` and the small ones.

    Args:
        engine: The engine.
        config: How the server is started; `max_open` is TGI's `--max-concurrent-requests`.
        clock: Where all instants are read.
    """

    dialect: ClassVar[str] = "tgi"

    def __init__(
        self, engine: Engine, config: ServingConfig | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(engine, config, clock=clock)
        self.fingerprint = f"{VERSION}-sha-{hexadecimal(VERSION, 8)}"

    def handlers(self) -> dict[str, dict[str, Handler]]:
        """By path and method, what answers a request."""
        return {
            "/": {"POST": self._compatible},
            "/generate": {"POST": self._generate},
            "/generate_stream": {"POST": self._generate_stream},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/models": {"GET": self._models},
            "/info": {"GET": self._info},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health},
        }

    async def refuse(self, call: Call, refused: Refused) -> None:
        """Answer with an error."""
        allow = (("allow", ",".join(refused.allowed)),) if refused.allowed else ()
        kind = (("content-type", refused.content_type),) if refused.content_type else ()
        length = ("content-length", str(len(refused.body)))
        await call.exchange.reply(refused.status, (*kind, *allow, length, *_CORS), refused.body)

    def not_found(self) -> Refused:
        """The answer to an unknown path."""
        return Refused(404, "not_found", b"", "")

    def wrong_method(self, allowed: Sequence[str]) -> Refused:
        """The answer to a known path with another method."""
        return Refused(405, "method", b"", "", tuple(allowed))

    def too_large(self) -> Refused:
        """The answer to a body that is too large."""
        text = b"Failed to buffer the request body: length limit exceeded"
        return Refused(413, "too_large", text, TEXT)

    def overloaded(self) -> Refused:
        """The answer when no further request is taken."""
        return error(429, "overloaded", "Model is overloaded")

    def broken(self) -> Refused:
        """The answer when the engine has broken down."""
        return error(424, "generation", "Request failed during generation: Server error", "engine")

    async def _generate(self, call: Call) -> None:
        body = await self._body(call, "inputs")
        await self._plain(call, asked_of(body))

    async def _generate_stream(self, call: Call) -> None:
        body = await self._body(call, "inputs")
        await self._stream(call, asked_of(body))

    async def _compatible(self, call: Call) -> None:
        """As the older API: one answer in a list, or a stream."""
        body = await self._body(call, "inputs")
        if body.get("stream") is True:
            await self._stream(call, asked_of(body))
        else:
            await self._plain(call, asked_of(body), listed=True)

    async def _body(self, call: Call, needed: str) -> Body:
        try:
            body = await self.read(call)
        except ValueError as found:
            raise unreadable(found) from None
        if not isinstance(body, dict) or needed not in body:
            text = (
                "Failed to deserialize the JSON body into the target type: missing field "
                f"`{needed}` at line 1 column {len(call.raw)}"
            )
            raise Refused(422, "validation", text.encode(), TEXT)
        return body

    def _begin(self, call: Call, asked: Asked) -> Generation:
        longest = self.engine.config.longest
        given = len(asked.prompt)
        if given + asked.max_new_tokens > longest:
            text = (
                f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {longest}."
                f" Given: {given} `inputs` tokens and {asked.max_new_tokens} `max_new_tokens`"
            )
            raise error(422, "validation", text)
        try:
            return self.generate(call, [asked.prompt], max_tokens=asked.max_new_tokens)
        except QueueFull:
            raise self.overloaded() from None
        except PromptTooLong as found:
            raise error(422, "validation", f"Input validation error: {found}") from None

    async def _whole(self, call: Call, asked: Asked) -> tuple[Generation, list[tuple[str, str]]]:
        """Generate everything; the headers with its times come with it."""
        generation = self._begin(call, asked)
        await generation.wait()
        return generation, times_of(call, generation, asked, self.clock.monotonic_ns())

    async def _plain(self, call: Call, asked: Asked, *, listed: bool = False) -> None:
        generation, times = await self._whole(call, asked)
        sequence = generation.sequences[0]
        answer: dict[str, Any] = {"generated_text": sequence.text}
        if asked.details:
            words = enumerate(marked(sequence.texts, sequence.finished))
            tokens = [token(text, index) for index, text in words]
            answer["details"] = {**details(generation), "prefill": [], "tokens": tokens}
        await self._reply(call, [answer] if listed else answer, times)

    async def _stream(self, call: Call, asked: Asked) -> None:
        """One event for each token; a request that is refused is told so in a stream, too."""
        call.truth.streaming = True
        await self._start(call, asked)
        try:
            generation = self._begin(call, asked)
            index = 0
            while await self._ready(call, generation):
                piece = generation.take()
                words = marked(piece.words, piece.finished)
                for place, word in enumerate(words):
                    index += 1
                    last = piece.finished is not None and place == len(words) - 1
                    item = {
                        "index": index,
                        "token": token(word, index),
                        "generated_text": generation.sequences[0].text if last else None,
                        "details": self._streamed_details(generation, asked) if last else None,
                    }
                    await call.exchange.write(event(item))
        except Refused as refused:
            self._tell_refused(call, refused)
            await call.exchange.write(b"data:%b\n\n" % refused.body)
        except EngineFailedError:
            call.truth.outcome, call.truth.error = "error", "engine"
            await call.exchange.write(b"data:%b\n\n" % self.broken().body)
        await call.exchange.write(b"", last=True)

    def _streamed_details(self, generation: Generation, asked: Asked) -> dict[str, Any] | None:
        if not asked.details:
            return None
        return {**details(generation), "input_length": generation.input_tokens}

    def _tell_refused(self, call: Call, refused: Refused) -> None:
        """A refusal inside a stream, whose status was 200 already."""
        call.truth.outcome, call.truth.error = "rejected", refused.kind
        call.traced.reject(refused.kind)

    async def _start(self, call: Call, asked: Asked) -> None:
        headers = (
            ("content-type", SSE),
            ("cache-control", "no-cache"),
            ("x-compute-type", "gpu"),
            ("x-compute-characters", str(asked.characters)),
            ("x-accel-buffering", "no"),
            *_CORS,
        )
        await call.exchange.start(200, headers)

    async def _ready(self, call: Call, generation: Generation) -> bool:
        """Wait for the next piece, and say that we are still there when it takes long."""
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    return await generation.ready()
            except TimeoutError:
                await call.exchange.write(b":\n\n")

    async def _chat(self, call: Call) -> None:
        body = await self._body(call, "messages")
        wanted = Wanted.of(body)
        prompt = chat_prompt(body)
        characters = len(str(body["messages"]))
        asked = Asked(
            prompt, characters, _positive(wanted.max_tokens) or DEFAULT_TOKENS, details=True
        )
        if wanted.stream:
            await self._chat_stream(call, asked, wanted)
            return
        generation, times = await self._whole(call, asked)
        sequence = generation.sequences[0]
        message = {"role": "assistant", "content": sequence.text}
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = sequence.finished
        head = self._head("chat.completion")
        answer = {**head, "choices": [choice], "usage": usage(generation)}
        await self._reply(call, answer, times)

    async def _chat_stream(self, call: Call, asked: Asked, wanted: Wanted) -> None:
        """One event for each token; of a refusal nothing is said but the end."""
        call.truth.streaming = True
        await self._start(call, asked)
        try:
            generation = self._begin(call, asked)
            while await self._ready(call, generation):
                piece = generation.take()
                for place, word in enumerate(piece.words):
                    last = place == len(piece.words) - 1
                    reason = piece.finished if last else None
                    await call.exchange.write(event(self._chunk(word, reason)))
            if wanted.usage:
                head = self._head("chat.completion.chunk")
                chunk = {**head, "choices": [], "usage": usage(generation)}
                await call.exchange.write(event(chunk))
        except Refused as refused:
            self._tell_refused(call, refused)
        except EngineFailedError:
            call.truth.outcome, call.truth.error = "error", "engine"
        await call.exchange.write(b"data: [DONE]\n\n")
        await call.exchange.write(b"", last=True)

    def _chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice], "usage": None}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "object": kind,
            "id": "",
            "created": self.clock.wall_ns() // 1_000_000_000,
            "model": self.config.model,
            "system_fingerprint": self.fingerprint,
        }

    async def _models(self, call: Call) -> None:
        name = self.config.model
        model = {"id": name, "object": "model", "created": 0, "owned_by": name}
        await self._reply(call, {"object": "list", "data": [model]})

    async def _info(self, call: Call) -> None:
        engine = self.engine.config
        info = {
            "model_id": self.config.model,
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": self.config.max_open,
            "max_best_of": 2,
            "max_stop_sequences": 4,
            "max_input_tokens": engine.longest - 1,
            "max_total_tokens": engine.longest,
            "validation_workers": 2,
            "max_client_batch_size": 4,
            "router": "text-generation-router",
            "version": VERSION,
            "sha": None,
            "docker_label": self.fingerprint.removeprefix(f"{VERSION}-"),
        }
        await self._reply(call, info)

    async def _health(self, call: Call) -> None:
        await call.exchange.reply(200, (("content-length", "0"), *_CORS), b"")

    async def _reply(
        self, call: Call, answer: object, times: Sequence[tuple[str, str]] = ()
    ) -> None:
        body = compact(answer)
        length = ("content-length", str(len(body)))
        await call.exchange.reply(200, (("content-type", JSON), *times, length, *_CORS), body)


def _positive(limit: int | None) -> int | None:
    return limit if limit is not None and limit > 0 else None

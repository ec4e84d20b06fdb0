"""A vLLM server without a vLLM: its OpenAI routes as version 0.32 answers them, and `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from otel_llm.clock import SYSTEM_CLOCK, Clock
from otel_llm.simulator.engine import Engine, PromptTooLong, Step
from otel_llm.simulator.serving.app import (
    Body,
    Call,
    Handler,
    Refused,
    ServingApp,
    ServingConfig,
    hexadecimal,
)
from otel_llm.simulator.serving.generation import Generation
from otel_llm.simulator.serving.http import compact
from otel_llm.simulator.serving.metrics import CONTENT_TYPE, Histograms, exposition
from otel_llm.simulator.serving.openai import Wanted, chat_prompt, text_prompts
from otel_llm.simulator.serving.vllm_bodies import ChatBodies, TextBodies, metrics_of, usage_of

VERSION = "0.32.0"
JSON = "application/json"
VARY = ("vary", "Origin")


class VllmApp(ServingApp):
    """`/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/metrics` and the small ones.

    Args:
        engine: The engine.
        config: How the server is started.
        clock: Where all instants are read.
        per_request_metrics: As vLLM's `--enable-per-request-metrics`.
        prompt_tokens_details: As vLLM's `--enable-prompt-tokens-details`.
    """

    dialect: ClassVar[str] = "vllm"
    merges: ClassVar[bool] = True

    def __init__(
        self,
        engine: Engine,
        config: ServingConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        per_request_metrics: bool = False,
        prompt_tokens_details: bool = False,
    ) -> None:
        super().__init__(engine, config, clock=clock)
        self.per_request_metrics = per_request_metrics
        self.prompt_tokens_details = prompt_tokens_details
        self.fingerprint = f"vllm-{VERSION}-{hexadecimal(self.config.model, 8)}"
        self.histograms = Histograms(engine.config.longest, clock.wall_ns() / 1e9)
        self.rejections = 0

    def handlers(self) -> dict[str, dict[str, Handler]]:
        """By path and method, what answers a request."""
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completions},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
        }

    def step_begun(self, step: Step) -> None:
        """A step of the engine has begun."""
        self.histograms.step(step)

    async def refuse(self, call: Call, refused: Refused) -> None:
        """Answer with an error."""
        allow = [("allow", ", ".join(refused.allowed))] if refused.allowed else []
        await self._reply(call, refused.status, refused.body, refused.content_type, allow)

    def not_found(self) -> Refused:
        """The answer to an unknown path."""
        return Refused(404, "not_found", compact({"detail": "Not Found"}), JSON)

    def wrong_method(self, allowed: Sequence[str]) -> Refused:
        """The answer to a known path with another method."""
        body = compact({"detail": "Method Not Allowed"})
        return Refused(405, "method", body, JSON, tuple(allowed))

    def too_large(self) -> Refused:
        """The answer to a body that is too large."""
        return Refused(413, "too_large", compact({"detail": "Request Entity Too Large"}), JSON)

    def overloaded(self) -> Refused:
        """The answer when no further request is taken."""
        self.rejections += 1
        text = (
            "The engine is currently busy and cannot accept new requests. "
            "Please try again later or on a different instance."
        )
        return _error(503, "overloaded", text, "Service Unavailable")

    def broken(self) -> Refused:
        """The answer when the engine has broken down."""
        return _error(500, "engine", "EngineCore encountered an issue.", "InternalServerError")

    async def _chat(self, call: Call) -> None:
        body = await self._body(call)
        if "messages" not in body:
            raise _invalid("missing", "body.messages", "Field required", body)
        wanted = self._wanted(call, body)
        generation = self._generate(call, [chat_prompt(body)], wanted)
        await self._answer(call, wanted, generation, ChatBodies(self._head(call, "chatcmpl")))

    async def _completions(self, call: Call) -> None:
        body = await self._body(call)
        wanted = self._wanted(call, body)
        prompts = text_prompts(body.get("prompt"))
        if not prompts:
            text = "Either prompt or prompt_embeds must be provided and non-empty."
            raise _bad(text, "prompt")
        generation = self._generate(call, prompts, wanted)
        await self._answer(call, wanted, generation, TextBodies(self._head(call, "cmpl")))

    async def _body(self, call: Call) -> Body:
        try:
            body = await self.read(call)
        except json.JSONDecodeError as error:
            more = {"ctx": {"error": error.msg}}
            place = f"body.{error.pos}"
            raise _invalid("json_invalid", place, "JSON decode error", {}, **more) from None
        except ValueError:
            text = "There was an error parsing the body"
            raise _error(400, "validation", text, "Bad Request") from None
        if not isinstance(body, dict):
            text = "Input should be a valid dictionary or object to extract fields from"
            raise _invalid("model_attributes_type", "body", text, body)
        return body

    def _wanted(self, call: Call, body: Body) -> Wanted:
        model = body.get("model")
        if model is not None and model != self.config.model:
            text = f"The model `{model}` does not exist. Valid aliases: {self.config.model}."
            raise _error(404, "unknown_model", text, "NotFoundError", "model")
        wanted = Wanted.of(body)
        longest = self.engine.config.longest
        if wanted.max_tokens is not None and wanted.max_tokens < 1:
            text = f"max_tokens must be at least 1, got {wanted.max_tokens}."
            raise _bad(text, "max_tokens", wanted.max_tokens)
        if wanted.max_tokens is not None and wanted.max_tokens > longest:
            text = (
                f"max_tokens={wanted.max_tokens} cannot be greater than max_model_len={longest}. "
                "Please request fewer output tokens."
            )
            raise _bad(text, "max_tokens", wanted.max_tokens)
        call.truth.streaming = wanted.stream
        return wanted

    def _generate(self, call: Call, prompts: Sequence[list[int]], wanted: Wanted) -> Generation:
        try:
            return self.generate(
                call,
                prompts,
                max_tokens=wanted.max_tokens,
                n=wanted.n,
                priority=wanted.priority,
            )
        except PromptTooLong:
            longest = self.engine.config.longest
            text = (
                f"This model's maximum context length is {longest} tokens. However, your prompt "
                f"contains at least {longest + 1} input tokens, which exceeds this limit even "
                "without any output tokens. Please reduce the length of the input prompt."
            )
            raise _bad(text, "input_tokens", longest + 1) from None

    def _head(self, call: Call, kind: str) -> dict[str, Any]:
        seed = f"{self.config.seed}-{call.number}"
        name = call.exchange.headers.get("x-request-id") or hexadecimal(seed, 16)
        return {
            "id": f"{kind}-{name}",
            "created": self.clock.wall_ns() // 1_000_000_000,
            "model": self.config.model,
        }

    async def _answer(
        self, call: Call, wanted: Wanted, generation: Generation, bodies: ChatBodies | TextBodies
    ) -> None:
        try:
            if wanted.stream:
                await self._stream(call, wanted, generation, bodies)
            else:
                await generation.wait()
                usage = usage_of(generation, details=self.prompt_tokens_details)
                body = bodies.whole(generation, self.fingerprint, usage, self._measured(generation))
                await self._reply(call, 200, compact(body))
        finally:
            self.histograms.request(call.truth, wanted)

    def _measured(self, generation: Generation) -> dict[str, Any] | None:
        alone = len(generation.sequences) == 1
        return metrics_of(generation) if self.per_request_metrics and alone else None

    async def _stream(
        self, call: Call, wanted: Wanted, generation: Generation, bodies: ChatBodies | TextBodies
    ) -> None:
        headers = (("content-type", "text/event-stream; charset=utf-8"), VARY)
        started = False
        async for piece in generation:
            if not started:
                started = True
                await call.exchange.start(200, headers)
                for body in bodies.first(generation, wanted):
                    await call.exchange.write(_event(body))
            body = bodies.piece(piece, generation, wanted)
            if not (wanted.usage or generation.open):
                body["system_fingerprint"] = self.fingerprint
            await call.exchange.write(_event(body))
        if wanted.usage:
            details = self.prompt_tokens_details
            body = bodies.last(generation, self.fingerprint, details=details)
            if (measured := self._measured(generation)) is not None:
                body["metrics"] = {k: v for k, v in measured.items() if v is not None}
            await call.exchange.write(_event(body))
        await call.exchange.write(b"data: [DONE]\n\n")
        await call.exchange.write(b"", last=True)

    async def _models(self, call: Call) -> None:
        seed = self.config.model
        permission = {
            "id": f"modelperm-{hexadecimal(seed, 16)}",
            "object": "model_permission",
            "created": self.clock.wall_ns() // 1_000_000_000,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.config.model,
            "object": "model",
            "created": permission["created"],
            "owned_by": "vllm",
            "root": self.config.model,
            "parent": None,
            "max_model_len": self.engine.config.longest,
            "permission": [permission],
        }
        await self._reply(call, 200, compact({"object": "list", "data": [model]}))

    async def _empty(self, call: Call) -> None:
        await call.exchange.reply(200, (("content-length", "0"), VARY), b"")

    async def _version(self, call: Call) -> None:
        await self._reply(call, 200, compact({"version": VERSION}))

    async def _metrics(self, call: Call) -> None:
        text = exposition(self.engine, self.config.model, self.histograms, self.rejections)
        await self._reply(call, 200, text.encode(), CONTENT_TYPE)

    async def _reply(
        self,
        call: Call,
        status: int,
        body: bytes,
        content_type: str = JSON,
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        length = str(len(body))
        headers = (*more, ("content-length", length), ("content-type", content_type), VARY)
        await call.exchange.reply(status, headers, body)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % compact(body)


def _error(status: int, kind: str, text: str, type_: str, parameter: str | None = None) -> Refused:
    error = {"message": text, "type": type_, "param": parameter, "code": status}
    return Refused(status, kind, compact({"error": error}), JSON)


def _bad(text: str, parameter: str, value: object = None) -> Refused:
    """A request whose fields have values that cannot be."""
    told = f"parameter={parameter}" + ("" if value is None else f", value={value}")
    return _error(400, "validation", f"{text} ({told})", "BadRequestError", parameter)


def _invalid(type_: str, place: str, text: str, given: object, **more: object) -> Refused:
    """A body that has not the form it should have."""
    size = f" of {len(given)} items" if isinstance(given, dict | list) else ""
    told = {"type": type_, "loc": place, "msg": text, "input": f"<{type(given).__name__}{size}>"}
    message = f"1 validation error:\n  {told | more}"
    return _error(400, "validation", message, "Bad Request", place)

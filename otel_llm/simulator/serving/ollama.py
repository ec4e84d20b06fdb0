"""An Ollama server without an Ollama: its own routes and the OpenAI ones as version 0.34 has them.

The model is loaded by the first request, and again after it was unloaded or not used for long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from otel_llm.clock import SYSTEM_CLOCK, Clock
from otel_llm.simulator.engine import Engine, PromptTooLong
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
from otel_llm.simulator.serving.go import GO_JSON, go_json, json_error, rfc3339, wrong_type
from otel_llm.simulator.serving.ollama_lines import (
    DETAILS,
    EMBEDDING,
    Lines,
    error,
    stream,
    too_long,
)
from otel_llm.simulator.serving.tokens import chat_tokens, tokenize

VERSION = "0.34.0"
TEXT = "text/plain; charset=utf-8"
KEEP_ALIVE_S = 300.0
_SECOND = 1_000_000_000


class OllamaApp(ServingApp):
    """`/api/generate`, `/api/chat`, what is told of models, and the OpenAI routes.

    Args:
        engine: The engine.
        config: How the server is started.
        clock: Where all instants are read.
        load_s: How long loading the model takes, seconds.
        loaded: Whether it is loaded at first.
    """

    dialect: ClassVar[str] = "ollama"

    def __init__(
        self,
        engine: Engine,
        config: ServingConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        load_s: float = 2.0,
        loaded: bool = False,
    ) -> None:
        super().__init__(engine, config, clock=clock)
        self._load_ns = round(load_s / self.config.speed * _SECOND)
        self._made_ns = clock.wall_ns()
        self._keep_ns = round(KEEP_ALIVE_S * _SECOND)
        self._kept_until_ns = clock.monotonic_ns() + self._keep_ns if loaded else -1

    def handlers(self) -> dict[str, dict[str, Handler]]:
        """By path and method, what answers a request."""
        from otel_llm.simulator.serving.ollama_openai import OpenAIRoutes  # it knows this class

        openai = OpenAIRoutes(self)
        return {
            "/": {"GET": self._root, "HEAD": self._root},
            "/api/generate": {"POST": self._generate},
            "/api/chat": {"POST": self._chat},
            "/api/tags": {"GET": self._tags},
            "/api/ps": {"GET": self._ps},
            "/api/show": {"POST": self._show},
            "/api/version": {"GET": self._version},
            "/v1/chat/completions": {"POST": openai.chat},
            "/v1/completions": {"POST": openai.completions},
            "/v1/models": {"GET": openai.models},
        }

    async def refuse(self, call: Call, refused: Refused) -> None:
        """Answer with an error."""
        allow = (("allow", ", ".join(refused.allowed)),) if refused.allowed else ()
        headers = [*allow, ("content-type", refused.content_type)]
        if refused.sized:
            headers.append(("content-length", str(len(refused.body))))
        await call.exchange.reply(refused.status, headers, refused.body)

    def not_found(self) -> Refused:
        """The answer to an unknown path."""
        return Refused(404, "not_found", b"404 page not found", "text/plain")

    def wrong_method(self, allowed: Sequence[str]) -> Refused:
        """The answer to a known path with another method."""
        body = b"405 method not allowed"
        return Refused(405, "method", body, "text/plain", tuple(allowed))

    def too_large(self) -> Refused:
        """The answer to a body that is too large."""
        return error(413, "too_large", "http: request body too large")

    def overloaded(self) -> Refused:
        """The answer when no further request is taken."""
        text = "server busy, please try again.  maximum pending requests exceeded"
        return error(503, "overloaded", text)

    def broken(self) -> Refused:
        """The answer when the engine has broken down."""
        return error(500, "engine", "llama runner process has terminated")

    async def read_object(self, call: Call, struct: str) -> Body:
        """The JSON object in a request for a model that is there; *struct* is how Go calls it."""
        body = await self._object(call, struct)
        if not self.names(body.get("model")):
            raise error(404, "unknown_model", f"model '{body.get('model', '')}' not found")
        return body

    async def _object(self, call: Call, struct: str, *, counts: bool = True) -> Body:
        try:
            body = await self.read(call, counts=counts)
        except ValueError as found:
            if not call.raw:
                raise error(400, "validation", "missing request body") from None
            raise error(400, "validation", json_error(call.raw, found)) from None
        if not isinstance(body, dict):
            raise error(400, "validation", wrong_type(body, f"value of type api.{struct}"))
        if not isinstance(body.get("model", ""), str):
            field = f"struct field {struct}.model of type string"
            raise error(400, "validation", wrong_type(body["model"], field))
        return body

    def names(self, model: object) -> bool:
        """Whether *model* is the one that is served."""
        return model in (self.config.model, self.tag)

    @property
    def tag(self) -> str:
        """The model's name with its version."""
        name = self.config.model
        return name if ":" in name else f"{name}:latest"

    async def _generate(self, call: Call) -> None:
        body = await self.read_object(call, "GenerateRequest")
        prompt = body.get("prompt")
        if not prompt:
            await self._load_only(call, body, {"response": ""})
            return
        tokens = tokenize(str(prompt))
        await self._answer(call, body, tokens, Lines(self.clock, body["model"], tokens))

    async def _chat(self, call: Call) -> None:
        body = await self.read_object(call, "ChatRequest")
        if not body.get("messages"):
            await self._load_only(call, body, {"message": {"role": "assistant", "content": ""}})
            return
        tokens = chat_tokens(body["messages"])
        await self._answer(call, body, tokens, Lines(self.clock, body["model"], None))

    async def _load_only(self, call: Call, body: Body, said: dict[str, Any]) -> None:
        """A request without a question loads the model, or unloads it."""
        unload = body.get("keep_alive") in (0, "0", "0s")
        if unload:
            self._kept_until_ns = -1
        else:
            self._load()
            self._keep(body)
        head = {"model": body["model"], "created_at": rfc3339(self.clock.wall_ns()), **said}
        reason = "unload" if unload else "load"
        await self.reply(call, go_json({**head, "done": True, "done_reason": reason}))

    def begin(self, call: Call, prompt: list[int], limit: int | None) -> Generation:
        """Hand a request to the engine, which loads its model first if it is not there.

        Raises:
            QueueFull, PromptTooLong: As the engine.
        """
        self._load()
        return self.generate(call, [prompt], max_tokens=limit)

    def _begin(self, call: Call, body: Body, prompt: list[int]) -> Generation:
        options = body.get("options")
        wanted = options.get("num_predict") if isinstance(options, Mapping) else None
        limit = wanted if type(wanted) is int and wanted > 0 else None
        longest = self.engine.config.longest
        if body.get("truncate") is not False and len(prompt) >= longest:
            prompt = prompt[-(longest // 2 or 1) :]
        try:
            return self.begin(call, prompt, limit)
        except PromptTooLong:
            raise too_long(len(prompt), longest) from None

    def _load(self) -> None:
        now_ns = self.clock.monotonic_ns()
        if now_ns > self._kept_until_ns and not self.driver.busy:
            self.engine.conditions.load(now_ns, now_ns + self._load_ns)
        self._kept_until_ns = max(now_ns + self._load_ns, now_ns + self._keep_ns)

    def _keep(self, body: Body) -> None:
        """How long the model stays after a request: `keep_alive` in seconds, below 0 for ever."""
        seconds = body.get("keep_alive")
        if isinstance(seconds, int | float):
            kept_s = float(seconds) if seconds >= 0 else 1e9
            self._kept_until_ns = self.clock.monotonic_ns() + round(kept_s * _SECOND)

    async def _answer(self, call: Call, body: Body, prompt: list[int], lines: Lines) -> None:
        call.truth.streaming = body.get("stream") is not False
        generation = self._begin(call, body, prompt)
        if call.truth.streaming:
            await stream(call, generation, lines)
        else:
            await generation.wait()
            text = generation.sequences[0].text
            await self.reply(call, go_json(lines.end(call, generation, text)))
        self._keep(body)

    async def reply(self, call: Call, body: bytes, content_type: str = GO_JSON) -> None:
        """Send a whole answer."""
        headers = (("content-type", content_type), ("content-length", str(len(body))))
        await call.exchange.reply(200, headers, body)

    async def _root(self, call: Call) -> None:
        await self.reply(call, b"Ollama is running", TEXT)

    async def _version(self, call: Call) -> None:
        await self.reply(call, go_json({"version": VERSION}))

    def _described(self) -> dict[str, Any]:
        digest = hexadecimal(self.config.model, 64)
        return {"name": self.tag, "model": self.tag, "size": 5_642_517, "digest": digest}

    async def _tags(self, call: Call) -> None:
        about = self._described()
        digest = about.pop("digest")
        size = about.pop("size")
        details = {**DETAILS, "context_length": self.engine.config.longest, **EMBEDDING}
        about |= {"modified_at": rfc3339(self._made_ns), "size": size, "digest": digest}
        about |= {"details": details, "capabilities": ["completion"]}
        await self.reply(call, go_json({"models": [about]}))

    async def _ps(self, call: Call) -> None:
        left_ns = self._kept_until_ns - self.clock.monotonic_ns()
        running = {
            **self._described(),
            "details": DETAILS,
            "expires_at": rfc3339(self.clock.wall_ns() + left_ns),
            "size_vram": 0,
            "context_length": self.engine.config.longest,
        }
        await self.reply(call, go_json({"models": [running] if left_ns > 0 else []}))

    async def _show(self, call: Call) -> None:
        body = await self._object(call, "ShowRequest", counts=False)
        if not self.names(body.get("model")):
            name = str(body.get("model", ""))
            full = name if ":" in name else f"{name}:latest"
            raise error(404, "unknown_model", f"model '{full}' not found")
        shown = {
            "modelfile": f"FROM {self.tag}\n",
            "template": "{{ .Prompt }}",
            "details": DETAILS,
            "model_info": {"llama.context_length": self.engine.config.longest},
            "capabilities": ["completion"],
            "modified_at": rfc3339(self._made_ns),
        }
        await self.reply(call, go_json(shown))

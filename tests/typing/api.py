"""Code as users write it; mypy must accept all of it, and nothing runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import otel_llm
from otel_llm import Mark, Outcome, Part, Phase, Side, TracedRequest, trace_request


def tokens() -> Iterator[str]:
    """A synchronous engine."""
    yield "a"


async def tokens_later() -> AsyncIterator[str]:
    """An asynchronous engine."""
    yield "a"


def use() -> None:
    """Synchronous use."""
    otel_llm.configure(endpoint="http://localhost:4318", service_name="gateway")
    otel_llm.configure(prometheus=9464, logs=True, slo={"ttft": "500ms", "ok": True})
    otel_llm.instrument(engines=["vllm"], trust_remote=False, slo="tpot=40ms", vllm_stats=False)
    otel_llm.annotate({"app.order": 7})
    otel_llm.event("paid", {"amount": 3.5})
    with trace_request("chat", model="m", provider="mine", side="server") as request:
        request.mark(Mark.QUEUED)
        request.output(n_tokens=3)
        request.usage(input_tokens=7, output_tokens=3, cached_tokens=None)
        request.reported(Phase.PREFILL, 0.25)
        request.part(Part.PREFILL_CHUNKS, 2)
        request.finish_reason("stop")
        request.set({"app.plan": "gold"})
        request.event("found", {"documents": 3})
        with request.active():
            pass
        text: str = "".join(request.stream(tokens()))
        print(text)
    otel_llm.uninstrument()


async def use_later() -> None:
    """Asynchronous use."""
    async with trace_request("chat", model=None, provider="mine", side=Side.ENGINE) as request:
        async for piece in request.stream(tokens_later(), tokens=len):
            print(piece.upper())


def outcome_of(request: TracedRequest) -> Outcome:
    """Words are enums."""
    request.reject("quota")
    return Outcome.REJECTED

"""The bodies and headers of TGI's answers, and what its requests want."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from otel_llm.simulator.serving.app import Body, Call, Refused
from otel_llm.simulator.serving.generation import Generation
from otel_llm.simulator.serving.http import compact
from otel_llm.simulator.serving.tokens import tokenize

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
DEFAULT_TOKENS = 100
"""Tokens generated if a request sets no limit."""
END = "</s>"


class Asked(NamedTuple):
    """What a request wants."""

    prompt: list[int]
    characters: int
    max_new_tokens: int
    details: bool = False


def times_of(
    call: Call, generation: Generation, asked: Asked, now_ns: int
) -> list[tuple[str, str]]:
    """The headers of a plain reply: whole milliseconds, cut off, and once seconds."""
    truth = generation.truth.engine[0]
    scheduled_ns = truth.scheduled_ns or 0
    total_ns = now_ns - call.truth.received_ns
    inference_ns = now_ns - scheduled_ns
    tokens = generation.output_tokens
    return [
        ("x-compute-type", "gpu"),
        ("x-compute-time", f"{total_ns / 1e9:.9f}".rstrip("0").rstrip(".")),
        ("x-compute-characters", str(asked.characters)),
        ("x-total-time", _milliseconds(total_ns)),
        ("x-validation-time", _milliseconds(truth.queued_ns - call.truth.received_ns)),
        ("x-queue-time", _milliseconds(scheduled_ns - truth.queued_ns)),
        ("x-inference-time", _milliseconds(inference_ns)),
        ("x-time-per-token", _milliseconds(inference_ns // tokens)),
        ("x-prompt-tokens", str(generation.input_tokens)),
        ("x-generated-tokens", str(tokens)),
    ]


def _milliseconds(ns: int) -> str:
    return str(ns // 1_000_000)


def asked_of(body: Body) -> Asked:
    """What a request on TGI's own routes wants."""
    text = str(body["inputs"])
    given = body.get("parameters")
    parameters = given if isinstance(given, Mapping) else {}
    limit = parameters.get("max_new_tokens")
    return Asked(
        tokenize(text) or [0],
        len(text),
        limit if type(limit) is int and limit > 0 else DEFAULT_TOKENS,
        parameters.get("details") is True,
    )


def marked(words: Sequence[str], finished: str | None) -> list[str]:
    """The words, of which the last is the mark of the end if the model has set one."""
    return [*words[:-1], END] if finished == "stop" else list(words)


def token(text: str, index: int) -> dict[str, Any]:
    """One token as TGI tells of it."""
    number = crc32(text.encode()) % 32_000
    logprob = -round(Random(f"{number}-{index}").random() * 3, 7)  # noqa: S311
    return {"id": number, "text": text, "logprob": logprob, "special": text == END}


def details(generation: Generation) -> dict[str, Any]:
    """How an answer ended."""
    reason = generation.sequences[0].finished
    return {
        "finish_reason": "eos_token" if reason == "stop" else reason,
        "generated_tokens": generation.output_tokens,
        "seed": None,
    }


def usage(generation: Generation) -> dict[str, int]:
    """Token counts as OpenAI has them."""
    given, made = generation.input_tokens, generation.output_tokens
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def event(item: object) -> bytes:
    """One server-sent event, without the space."""
    return b"data:%b\n\n" % compact(item)


def error(status: int, type_: str, text: str, kind: str | None = None) -> Refused:
    """A request that is answered with an error; *kind* is the truth's word if it is another."""
    return Refused(status, kind or type_, compact({"error": text, "error_type": type_}), JSON)


def unreadable(found: ValueError) -> Refused:
    """The answer to bytes that are no JSON."""
    place = "line 1 column 0"
    if isinstance(found, json.JSONDecodeError):
        place = f"line {found.lineno} column {found.colno}"
    text = f"Failed to parse the request body as JSON: expected value at {place}"
    return Refused(400, "validation", text.encode(), TEXT)

"""The JSON bodies of vLLM's answers: fields and their order are those of version 0.32."""

from __future__ import annotations

from typing import Any

from otel_llm.simulator.serving.generation import Generation, Piece
from otel_llm.simulator.serving.openai import Wanted

_NO_TRANSFER = {"kv_transfer_params": None, "ec_transfer_params": None}
_NO_PROMPT = {"prompt_token_ids": None, "prompt_text": None}


class ChatBodies:
    """Of `/v1/chat/completions`."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head

    def whole(
        self,
        generation: Generation,
        fingerprint: str,
        usage: dict[str, Any],
        metrics: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": each.index,
                "message": _message(each.text),
                "logprobs": None,
                "finish_reason": each.finished,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for each in generation.sequences
        ]
        if usage["prompt_tokens_details"]:
            usage["prompt_tokens_details"]["created_cache_tokens"] = 0
        return {
            **_titled(self._head, "chat.completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": fingerprint,
            "usage": usage,
            "prompt_logprobs": None,
            **_NO_PROMPT,
            **_NO_TRANSFER,
            "metrics": _spoken(metrics),
        }

    def first(self, generation: Generation, wanted: Wanted) -> list[dict[str, Any]]:
        """The chunks before the first token's, which name the role of each choice."""
        usage = _usage_so_far(generation, 0) if wanted.usage_each else {}
        return [
            {
                **_titled(self._head, "chat.completion.chunk"),
                "choices": [_delta(each.index, {"role": "assistant", "content": ""})],
                **usage,
                **_NO_PROMPT,
            }
            for each in generation.sequences
        ]

    def piece(self, piece: Piece, generation: Generation, wanted: Wanted) -> dict[str, Any]:
        """A chunk with words."""
        choice = _delta(piece.index, {"content": piece.text}, piece.finished)
        if piece.finished is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = None
        usage = _usage_so_far(generation) if wanted.usage_each else {}
        return {**_titled(self._head, "chat.completion.chunk"), "choices": [choice], **usage}

    def last(self, generation: Generation, fingerprint: str, *, details: bool) -> dict[str, Any]:
        """The chunk with the token counts."""
        usage = _final_usage(generation, details=details)
        if details:
            usage["prompt_tokens_details"]["created_cache_tokens"] = 0
        return {
            **_titled(self._head, "chat.completion.chunk"),
            "choices": [],
            "usage": usage,
            "system_fingerprint": fingerprint,
        }


class TextBodies:
    """Of `/v1/completions`."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head

    def whole(
        self,
        generation: Generation,
        fingerprint: str,
        usage: dict[str, Any],
        metrics: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": each.index,
                "text": each.text,
                "logprobs": None,
                "finish_reason": each.finished,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for each in generation.sequences
        ]
        return {
            **_titled(self._head, "text_completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": fingerprint,
            "usage": usage,
            **_NO_TRANSFER,
            "metrics": _spoken(metrics),
        }

    def first(self, _generation: Generation, _wanted: Wanted) -> list[dict[str, Any]]:
        """There is nothing before the first token."""
        return []

    def piece(self, piece: Piece, generation: Generation, wanted: Wanted) -> dict[str, Any]:
        """A chunk with words."""
        choice = {
            "index": piece.index,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": piece.finished,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        usage = _usage_so_far(generation) if wanted.usage_each else {}
        return {**_titled(self._head, "text_completion"), "choices": [choice], **usage}

    def last(self, generation: Generation, fingerprint: str, *, details: bool) -> dict[str, Any]:
        """The chunk with the token counts."""
        return {
            **_titled(self._head, "text_completion"),
            "choices": [],
            "usage": _final_usage(generation, details=details),
            "system_fingerprint": fingerprint,
        }


def usage_of(generation: Generation, *, details: bool) -> dict[str, Any]:
    """The token counts of an answer in one piece."""
    cached = {
        "cached_tokens": generation.cached_tokens,
        "created_cache_tokens": None,
        "multimodal_tokens": None,
    }
    return {
        **_counts(generation, generation.output_tokens),
        "prompt_tokens_details": cached if details else None,
        "completion_tokens_details": None,
    }


def metrics_of(generation: Generation) -> dict[str, Any]:
    """What vLLM says of its times, milliseconds; without the queue up to the first token."""
    truth = generation.truth.engine[0]
    queued, scheduled = truth.queued_ns, truth.scheduled_ns or 0
    first, last = truth.first_token_ns or 0, truth.last_token_ns or 0
    tokens = generation.output_tokens
    return {
        "time_to_first_token_ms": (first - scheduled) / 1e6,
        "generation_time_ms": (last - first) / 1e6,
        "queue_time_ms": (scheduled - queued) / 1e6,
        "mean_itl_ms": (last - first) / 1e6 / (tokens - 1) if tokens > 1 else None,
        "tokens_per_second": tokens / ((last - scheduled) / 1e9) if last > scheduled else None,
    }


def _spoken(metrics: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if metrics is None else {**metrics, "speculative_decoding": None}


def _titled(head: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": head["id"], "object": kind, "created": head["created"], "model": head["model"]}


def _message(text: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }


def _delta(index: int, delta: dict[str, Any], finished: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finished}


def _counts(generation: Generation, output: int) -> dict[str, Any]:
    given = generation.input_tokens
    return {"prompt_tokens": given, "total_tokens": given + output, "completion_tokens": output}


def _usage_so_far(generation: Generation, output: int | None = None) -> dict[str, Any]:
    tokens = generation.output_tokens if output is None else output
    return {"usage": {**_counts(generation, tokens), "completion_tokens_details": None}}


def _final_usage(generation: Generation, *, details: bool) -> dict[str, Any]:
    counts = _counts(generation, generation.output_tokens)
    cached = {"prompt_tokens_details": {"cached_tokens": generation.cached_tokens}}
    return {**counts, **(cached if details else {})}

"""Which engine answered, what it says of its times, and which cloud a host is."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.replies import Reply, engine_of_models, provider_of, read_headers
from otel_llm.timeline import Phase
from tests.replies.builders import read, reply_of

MS = 1_000_000


def answer(choice: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A chat completion with one choice."""
    choices = [{"index": 0, "message": {"content": "a"}, **(choice or {})}]
    return {"object": "chat.completion", "choices": choices, **fields}


@pytest.mark.parametrize(
    ("item", "engine"),
    [
        (answer(system_fingerprint="vllm-0.32.0-217fc20a"), "vllm"),
        (answer({"stop_reason": None}), "vllm"),
        (answer(metrics={"queue_time_ms": 1.0}), "vllm"),
        (answer({"matched_stop": None}), "sglang"),
        (answer(meta_info={"id": "r"}), "sglang"),
        (answer({"meta_info": {"id": "r"}}), "sglang"),
        (answer({"stop_reason": None, "disaggregated_params": None}), "tensorrt_llm"),
        (answer(system_fingerprint="b6123-79c1160b0"), "llama_cpp"),
        (answer(timings={"prompt_ms": 1.0}), "llama_cpp"),
        (answer(system_fingerprint="fp_ollama"), "ollama"),
        (answer(system_fingerprint="3.3.7-native"), "tgi"),
        (answer(system_fingerprint="2.1.1-dev0-sha-4dfdb48"), "tgi"),
        (answer(system_fingerprint="3.0.1-sha-bb9095a-rocm"), "tgi"),
        (answer(nvext={"timing": {}}), "dynamo"),
        (answer({"stop_reason": None}, nvext={"worker_id": {}}), "dynamo"),
        (answer(system_fingerprint="fp_44709d6fcb"), None),
        (answer(metrics=None, timings=None), None),
        (answer(metrics={"other": 1}, timings={}, meta_info=[]), None),
    ],
)
def test_a_body_shows_its_engine(item: object, engine: str | None) -> None:
    """Fingerprints, objects with timings and peculiar keys of choices tell engines apart."""
    assert engine == read(item).server_engine


def test_a_surer_sign_wins() -> None:
    """A key that several engines have yields to a fingerprint, whichever came first."""
    signs = [answer({"stop_reason": None}), answer(system_fingerprint="b6123-79c1160b0")]
    engines = {reply_of(order).server_engine for order in (signs, signs[::-1])}
    assert engines == {"llama_cpp"}


@pytest.mark.parametrize(
    ("owner", "engine"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("lmdeploy", "lmdeploy"),
        ("llamacpp", "llama_cpp"),
        ("library", "ollama"),
        ("tensorrt_llm", "tensorrt_llm"),
        ("openai", None),
        (None, None),
    ],
)
def test_a_list_of_models_shows_its_engine(owner: object, engine: str | None) -> None:
    """Servers say in it who owns their models."""
    assert engine == engine_of_models({"object": "list", "data": [{"owned_by": owner}]})


@pytest.mark.parametrize("models", [None, [], {}, {"data": 3}, {"data": [None, {"owned_by": []}]}])
def test_other_lists_show_none(models: object) -> None:
    """What is no list of models shows nothing."""
    assert engine_of_models(models) is None


class TestTimes:
    """What engines say of their times inside OpenAI's formats."""

    def test_vllm(self) -> None:
        """Milliseconds become nanoseconds; drafted and accepted tokens are counted."""
        drafts = {"num_draft_tokens": 9, "num_accepted_draft_tokens": 4}
        times = {"queue_time_ms": 0.5, "time_to_first_token_ms": 2, "generation_time_ms": 3}
        reply = read(answer(metrics={**times, "speculative_decoding": drafts}))
        expected = {Phase.QUEUE: MS // 2, Phase.PREFILL: 2 * MS, Phase.DECODE: 3 * MS}
        assert expected == reply.reported
        assert reply.attributes == {semconv.DRAFT_TOKENS: 9, semconv.ACCEPTED_TOKENS: 4}

    def test_llama_cpp(self) -> None:
        """Its counts stand in where there is no usage: cached and evaluated are the input."""
        timings = {
            "cache_n": 5,
            "prompt_n": 7,
            "prompt_ms": 2.5,
            "predicted_n": 4,
            "predicted_ms": 8,
            "draft_n": 6,
            "draft_n_accepted": 2,
        }
        reply = read(answer(timings=timings))
        assert reply.reported == {Phase.PREFILL: 2_500_000, Phase.DECODE: 8 * MS}
        assert reply.usage == {"input": 12, "output": 4, "cached": 5}
        assert reply.attributes == {semconv.DRAFT_TOKENS: 6, semconv.ACCEPTED_TOKENS: 2}

    def test_counts_of_timings_yield(self) -> None:
        """Timings that run along do not replace the usage, whichever came last."""
        usage = answer(usage={"prompt_tokens": 12, "completion_tokens": 9})
        timed = answer(timings={"predicted_n": 8, "predicted_ms": 1})
        assert reply_of([timed, usage, timed]).usage["output"] == 9

    def test_dynamo(self) -> None:
        """Decode is what its front end's total leaves after the first token."""
        timing = {
            "request_received_ms": 1764460800000,
            "prefill_wait_time_ms": 2.0,
            "prefill_time_ms": 10.0,
            "ttft_ms": 12.5,
            "total_time_ms": 100.5,
        }
        reply = read(answer(nvext={"timing": timing}))
        expected = {Phase.QUEUE: 2 * MS, Phase.PREFILL: 10 * MS, Phase.DECODE: 88 * MS}
        assert (expected, None) == (reply.reported, reply.reported_total_ns)

    def test_dynamo_without_a_first_token(self) -> None:
        """A total alone is no phase."""
        assert read(answer(nvext={"timing": {"total_time_ms": 100.5}})).reported == {}

    @pytest.mark.parametrize(
        "raw",
        [-1, -0.5, float("nan"), float("inf"), True, "3", None, [], {}, 10**400, 1e18],
    )
    def test_absurd_values(self, raw: object) -> None:
        """What is no duration is left out."""
        reply = reply_of(
            [
                answer(metrics={"queue_time_ms": raw, "generation_time_ms": raw}),
                answer(timings={"prompt_ms": raw}),
                answer(nvext={"timing": {"prefill_time_ms": raw, "ttft_ms": raw}}),
                {"meta_info": {"queue_time": raw, "forward_entry_time": raw}},
                {"done": True, "total_duration": raw, "load_duration": raw},
            ]
        )
        assert (reply.reported, reply.reported_total_ns) == ({}, None)


class TestHeaders:
    """What engines and gateways say in headers."""

    def _reply(self, headers: object) -> Reply:
        reply = Reply()
        read_headers(reply, headers)
        return reply

    def test_tgi(self) -> None:
        """Names may be in any case; the validation is the engine's preprocessing."""
        headers = {
            "X-Compute-Type": "1-a10g",
            "X-Validation-Time": "3",
            "X-Queue-Time": "5",
            "X-Inference-Time": "202",
            "X-Time-Per-Token": "67",
        }
        reply = self._reply(headers)
        assert reply.server_engine == "tgi"
        assert reply.reported == {Phase.PREPROCESS: 3 * MS, Phase.QUEUE: 5 * MS}
        assert reply.attributes == {semconv.REPORTED_INFERENCE_US: 202_000}

    def test_counts_of_tgi_yield(self) -> None:
        """Counts of the body stand, though the headers were read later."""
        reply = read({"generated_text": "a", "details": {"generated_tokens": 3}})
        read_headers(reply, {"x-generated-tokens": "4", "x-prompt-tokens": "9"})
        assert reply.usage == {"input": 9, "output": 3}

    def test_tgi_of_embeddings(self) -> None:
        """The embeddings server has the same headers, and is another."""
        headers = {"x-compute-type": "gpu", "x-tokenization-time": "1", "x-queue-time": "5"}
        reply = self._reply(headers)
        assert (reply.server_engine, reply.reported) == (None, {})

    def test_llama_cpp(self) -> None:
        """It is the only one that says its name."""
        assert self._reply({"Server": "llama.cpp"}).server_engine == "llama_cpp"

    def test_litellm(self) -> None:
        """A gateway is no engine; what it adds to the time is an attribute."""
        reply = self._reply(
            {
                "x-litellm-call-id": "c",
                "x-litellm-overhead-duration-ms": "12.5",
                "x-litellm-response-duration-ms": "800",
            }
        )
        assert (reply.gateway, reply.server_engine, reply.reported) == ("litellm", None, {})
        assert reply.attributes == {semconv.GATEWAY_OVERHEAD_US: 12_500}

    @pytest.mark.parametrize("text", ["", "n/a", "nan", "inf", "-3"])
    def test_an_overhead_that_is_none(self, text: str) -> None:
        """A text that is no duration is left out."""
        assert self._reply({"x-litellm-overhead-duration-ms": text}).attributes == {}

    @pytest.mark.parametrize("headers", [None, 3, [], {1: 2}, {b"server": b"llama.cpp"}])
    def test_no_headers(self, headers: object) -> None:
        """What is no headers says nothing."""
        reply = self._reply(headers)
        assert (reply.server_engine, reply.gateway, reply.attributes) == (None, None, {})

    def test_hostile_headers(self) -> None:
        """Headers that cannot be read are none."""

        class Hostile(dict[str, str]):
            def items(self) -> Any:
                raise RuntimeError

        assert self._reply(Hostile(server="llama.cpp")).server_engine is None


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1/", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://name.openai.azure.com/openai/deployments/x", "azure.ai.openai"),
        ("https://name.services.ai.azure.com/models", "azure.ai.inference"),
        ("https://models.inference.ai.azure.com", "azure.ai.inference"),
        ("https://api.anthropic.com", "anthropic"),
        ("https://api.cohere.com/compatibility/v1", "cohere"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.x.ai/v1", "x_ai"),
        ("https://api.mistral.ai/v1", "mistral_ai"),
        ("https://api.perplexity.ai", "perplexity"),
        ("https://api.moonshot.cn/v1", "moonshot_ai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gcp.gemini"),
        ("https://us-central1-aiplatform.googleapis.com/v1", "gcp.vertex_ai"),
        ("https://aiplatform.googleapis.com/v1", "gcp.vertex_ai"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", "aws.bedrock"),
        ("https://us-south.ml.cloud.ibm.com", "ibm.watsonx.ai"),
        ("HTTPS://API.OpenAI.com:443/v1", "openai"),
        ("https://api.openai.com./v1", "openai"),
        ("http://localhost:8000/v1", None),
        ("https://api.openai.com.example.org/v1", None),
        ("https://myapi.openai.com.evil/", None),
        ("https://notapi.x.ai.example", None),
        ("https://fakeapi.groq.com", None),
        ("api.openai.com", None),
        ("http://[bad", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_clouds(url: object, provider: str | None) -> None:
    """A known cloud has its name in the conventions; any other host has none."""
    assert provider == provider_of(url)

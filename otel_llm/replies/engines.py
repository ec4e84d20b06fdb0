"""Which engine answered, and what it says of its own times: one row per engine.

A row holds every sign by which an engine is known. Its name goes into `otel_llm.engine.name`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from otel_llm import semconv
from otel_llm.emit.values import as_number
from otel_llm.replies.fields import MS, field, has, listed, nanoseconds, plain, word
from otel_llm.replies.llama_cpp import read_timings
from otel_llm.replies.reply import Certainty, Reply
from otel_llm.replies.sglang import read_meta
from otel_llm.replies.tgi import take_headers
from otel_llm.timeline import Phase


class Engine(NamedTuple):
    """One engine and its signs.

    `body` is a field of its replies that `read` takes times from (False: the field is another's);
    `choice` a key that its choices have, null or not; `fingerprint` the form of its
    `system_fingerprint`; `owned_by` what its `/v1/models` says; `header` and `server` a header
    that it sends, and what its `Server` header says.
    """

    name: str
    body: str | None = None
    read: Callable[[Reply, object], bool] | None = None
    choice: str | None = None
    fingerprint: str | None = None
    owned_by: str | None = None
    header: str | None = None
    server: str | None = None


def _read_vllm(reply: Reply, metrics: object) -> bool:
    """Read `metrics` of vLLM, whose time to first token is that of prefill alone."""
    times = {
        Phase.QUEUE: nanoseconds(field(metrics, "queue_time_ms"), MS),
        Phase.PREFILL: nanoseconds(field(metrics, "time_to_first_token_ms"), MS),
        Phase.DECODE: nanoseconds(field(metrics, "generation_time_ms"), MS),
    }
    for phase, duration in times.items():
        reply.took(phase, duration)
    drafts = field(metrics, "speculative_decoding")
    reply.noted(semconv.DRAFT_TOKENS, field(drafts, "num_draft_tokens"))
    reply.noted(semconv.ACCEPTED_TOKENS, field(drafts, "num_accepted_draft_tokens"))
    return any(duration is not None for duration in times.values())


def _read_dynamo(reply: Reply, extension: object) -> bool:
    """Read `nvext` of Dynamo: what its front end timed on its one clock."""
    timing = field(extension, "timing")
    reply.took(Phase.QUEUE, nanoseconds(field(timing, "prefill_wait_time_ms"), MS))
    reply.took(Phase.PREFILL, nanoseconds(field(timing, "prefill_time_ms"), MS))
    first, total = as_number(field(timing, "ttft_ms")), as_number(field(timing, "total_time_ms"))
    if first is not None and total is not None:
        reply.took(Phase.DECODE, nanoseconds(total - first, MS))
    return True


ENGINES = (
    Engine("dynamo", body="nvext", read=_read_dynamo),
    Engine("sglang", body="meta_info", read=read_meta, choice="matched_stop", owned_by="sglang"),
    # Before vLLM, whose `stop_reason` its choices have, too.
    Engine("tensorrt_llm", choice="disaggregated_params", owned_by="tensorrt_llm"),
    Engine(
        "vllm",
        body="metrics",
        read=_read_vllm,
        choice="stop_reason",
        fingerprint=r"vllm-.+",
        owned_by="vllm",
    ),
    Engine(
        "llama_cpp",
        body="timings",
        read=read_timings,
        fingerprint=r"b[0-9]+-[0-9a-f]{6,}",
        owned_by="llamacpp",
        server="llama.cpp",
    ),
    Engine("ollama", fingerprint=r"fp_ollama", owned_by="library"),
    Engine(
        "tgi",
        fingerprint=r"[0-9]+\.[0-9]+\.[0-9]+(-dev[0-9]+)?-(native|sha-[0-9a-f]{7,}.*)",
        header="x-compute-type",
    ),
    Engine("lmdeploy", owned_by="lmdeploy"),
)


_BODIES = {engine.body: engine for engine in ENGINES if engine.body and engine.read}
_CHOICES = {engine.choice: engine for engine in ENGINES if engine.choice}


def read_body(reply: Reply, item: object) -> None:
    """Look for signs of an engine in an item, and take its times from it."""
    first = plain(next(iter(listed(item, "choices")), None))
    for name, engine in _BODIES.items():
        found = field(item, name)
        found = field(first, name) if found is None else found
        if found is not None and engine.read is not None and engine.read(reply, found):
            reply.recognised(engine.name, Certainty.BODY)
    if reply.fingerprint is not None and (by := _by_fingerprint(reply.fingerprint)) is not None:
        reply.recognised(by, Certainty.FINGERPRINT)
    if first is not None:
        for name, engine in _CHOICES.items():
            if has(first, name):
                reply.recognised(engine.name, Certainty.CHOICE)


@functools.lru_cache(maxsize=256)
def _by_fingerprint(fingerprint: str) -> str | None:
    known = (e for e in ENGINES if e.fingerprint and re.fullmatch(e.fingerprint, fingerprint))
    return next((engine.name for engine in known), None)


def read_headers(reply: Reply, headers: object) -> None:
    """Look for signs of an engine or a gateway in a reply's headers, and take times from them."""
    found = _lower(headers)
    if "x-tokenization-time" in found:
        return  # TGI's sister for embeddings has these headers, but other phases
    for engine in ENGINES:
        named = engine.server is not None and found.get("server", "").lower() == engine.server
        if named or (engine.header is not None and engine.header in found):
            reply.recognised(engine.name, Certainty.HEADER)
    if reply.server_engine == "tgi":
        take_headers(reply, found)
    if any(name.startswith("x-litellm-") for name in found):
        reply.gateway = "litellm"
        overhead = _milliseconds(found.get("x-litellm-overhead-duration-ms", ""))
        if overhead is not None:
            reply.noted(semconv.GATEWAY_OVERHEAD_US, round(overhead / 1000))


def _lower(headers: object) -> dict[str, str]:
    """Headers by their names in lower case; texts only."""
    try:
        pairs = list(headers.items()) if isinstance(headers, Mapping) else []
    except Exception:  # noqa: BLE001 - an object of anybody's
        return {}
    return {k.lower(): v for k, v in pairs if isinstance(k, str) and isinstance(v, str)}


def _milliseconds(text: str) -> int | None:
    try:
        return nanoseconds(float(text), MS)
    except ValueError:
        return None


def engine_of_models(models: object) -> str | None:
    """The engine whose `/v1/models` this is, or None."""
    owners = {word(each, "owned_by") for each in listed(models, "data")}
    return next((each.name for each in ENGINES if each.owned_by in owners), None)


_PROVIDERS = (
    ("api.openai.com", "openai"),
    ("openai.azure.com", "azure.ai.openai"),
    ("cognitiveservices.azure.com", "azure.ai.openai"),
    ("services.ai.azure.com", "azure.ai.inference"),
    ("models.ai.azure.com", "azure.ai.inference"),
    ("inference.ai.azure.com", "azure.ai.inference"),
    ("api.anthropic.com", "anthropic"),
    ("api.cohere.ai", "cohere"),
    ("api.cohere.com", "cohere"),
    ("api.deepseek.com", "deepseek"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("api.groq.com", "groq"),
    ("ml.cloud.ibm.com", "ibm.watsonx.ai"),
    ("api.mistral.ai", "mistral_ai"),
    ("api.moonshot.ai", "moonshot_ai"),
    ("api.moonshot.cn", "moonshot_ai"),
    ("api.perplexity.ai", "perplexity"),
    ("api.x.ai", "x_ai"),
)
_BEDROCK = re.compile(r"bedrock-runtime(-fips)?\.[a-z0-9-]+\.amazonaws\.com(\.cn)?")
_VERTEX = re.compile(r"[a-z0-9-]+-aiplatform\.googleapis\.com")


def provider_of(base_url: object) -> str | None:
    """`gen_ai.provider.name` for the address of a known cloud, or None.

    Names are those of the GenAI conventions.
    """
    try:
        return _provider_of(str(base_url))
    except Exception:  # noqa: BLE001 - an address of anybody's
        return None


@functools.lru_cache(maxsize=256)
def _provider_of(base_url: str) -> str | None:
    host = (urlsplit(base_url).hostname or "").rstrip(".")
    if _BEDROCK.fullmatch(host):
        return "aws.bedrock"
    if _VERTEX.fullmatch(host):
        return "gcp.vertex_ai"
    known = (name for end, name in _PROVIDERS if host == end or host.endswith(f".{end}"))
    return next(known, None)

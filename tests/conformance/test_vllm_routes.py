"""Real vLLM servers: the routes that generate nothing, and options that change a request's life."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.services
from tests.conformance.serving import Running, running
from tests.services import vllm, web
from tests.services.command import run

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
LORA_SCRIPT = Path(tests.services.__file__).with_name("tiny_lora.py")
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def pooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of embeddings; metrics in its own `/metrics`, ids on its log records."""
    yield from running(
        tmp_path_factory,
        "--runner=pooling",
        OTEL_LLM_PROMETHEUS="true",
        OTEL_LLM_LOGS="true",
        OTEL_LLM_SLO="e2e=60s,ok",
    )


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Speculative decoding, priorities, native tracing, and two API servers."""
    yield from running(
        tmp_path_factory,
        "--scheduling-policy=priority",
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 3, '
        '"prompt_lookup_max": 3, "prompt_lookup_min": 1}',
        "--per-request-spec-decode-metrics=summary",
        "--otlp-traces-endpoint=@/v1/traces",
        "--api-server-count=2",
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
    )


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose user wants no statistics, with an adapter, and a plugin in its engine."""
    adapter = tmp_path_factory.mktemp("lora") / "mine"
    run([vllm.python(), "-P", LORA_SCRIPT, vllm.model(), adapter])
    yield from running(
        tmp_path_factory,
        "--disable-log-stats",
        "--enable-lora",
        f"--lora-modules=mine={adapter}",
        "--max-lora-rank=8",
        also=[HERE / "engine_child"],
        OTEL_METRICS_EXPORTER="otlp",
    )


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server behind the command that sets providers up for whatever it starts."""
    yield from running(
        tmp_path_factory,
        also=[f"opentelemetry-{name}==0.66b2" for name in ("instrumentation", "distro")],
        launcher=["opentelemetry-instrument", "--service_name", "wrapped"],
        OTEL_TRACES_EXPORTER="otlp",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_LOGS_EXPORTER="none",
    )


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two engines behind one API server, which shares requests out unless they name a rank."""
    yield from running(tmp_path_factory, "--data-parallel-size=2")


QUERY = {"model": "tiny", "query": "q", "documents": ["one", "two"]}
PAIRS = {"model": "tiny", "text_1": "q", "text_2": ["one", "two"]}


class TestPooling:
    """Embeddings and what is made of them."""

    @pytest.mark.parametrize(
        ("path", "operation", "body"),
        [
            ("/v1/embeddings", "embeddings", {"model": "tiny", "input": ["a b", "c"]}),
            ("/pooling", "pooling", {"model": "tiny", "input": "a b"}),
            ("/v1/score", "score", PAIRS),
            ("/score", "score", PAIRS),
            ("/v1/rerank", "rerank", QUERY),
            ("/v2/rerank", "rerank", QUERY),
            ("/rerank", "rerank", QUERY),
        ],
    )
    def test_a_route(
        self, pooling: Running, path: str, operation: str, body: dict[str, Any]
    ) -> None:
        """One request span, with queue and prefill and no phases of tokens."""
        found = pooling.asked(path, body)
        assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
        assert found["gen_ai.operation.name"] == operation
        assert set(found["children"]) == {
            "llm.preprocess",
            "llm.queue",
            "llm.prefill",
            "llm.delivery",
        }
        assert found["otel_llm.unaccounted_us"] == 0
        assert found["gen_ai.usage.input_tokens"] > 0
        assert not {"otel_llm.ttft_us", "otel_llm.tpot_us", "otel_llm.decode_us"} & set(found)

    def test_refused(self, pooling: Running) -> None:
        """A model that is not served."""
        found = pooling.asked("/v1/embeddings", {"model": "nope", "input": "a"})
        assert (found["http"], found["otel_llm.outcome"]) == (404, "rejected")


class TestPrometheus:
    """Our metrics beside vLLM's own."""

    def test_in_the_same_scrape(self, pooling: Running) -> None:
        """`/metrics` shows both; objectives are counted."""
        pooling.asked("/pooling", {"model": "tiny", "input": "a b"})
        text = pooling.server.metrics_text()
        assert "\nvllm:" in text
        assert "gen_ai_server_request_duration_seconds_bucket" in text
        assert "otel_llm_slo_requests_total{" in text
        assert 'phase="prefill"' in text

    def test_exemplars(self, pooling: Running) -> None:
        """With the slash, and asked for OpenMetrics, they lead to request spans."""
        found = pooling.asked("/pooling", {"model": "tiny", "input": "c d"})
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        text = web.request(f"{pooling.server.url}/metrics/", headers=accept).body.decode()
        assert f'span_id="{found["span"].span_id.hex()}"' in text


def chat(**more: Any) -> dict[str, Any]:
    """A chat request."""
    message = {"role": "user", "content": "a b a b a b a b a b"}
    return {"model": "tiny", "messages": [message], "max_tokens": 24, "ignore_eos": True, **more}


class TestGenerating:
    """Options of the engine that leave traces in a request."""

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/messages", {k: v for k, v in chat().items() if k != "ignore_eos"}),
            ("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 8}),
            ("/v1/chat/completions/batch", {**chat(), "messages": [chat()["messages"]] * 2}),
        ],
    )
    def test_a_route(self, generating: Running, path: str, body: dict[str, Any]) -> None:
        """All phases."""
        found = generating.asked(path, body)
        assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
        assert {"llm.queue", "llm.prefill", "llm.decode"} <= set(found["children"])
        assert found["otel_llm.unaccounted_us"] == 0

    def test_speculative_decoding(self, generating: Running) -> None:
        """How many tokens were drafted, and how many of them were right."""
        found = generating.asked("/v1/chat/completions", chat(max_tokens=60))
        drafted = found["otel_llm.spec_decode.draft_tokens"]
        assert 0 <= found["otel_llm.spec_decode.accepted_tokens"] <= drafted
        assert drafted > 0

    def test_priority(self, generating: Running) -> None:
        """As the request asked."""
        found = generating.asked("/v1/chat/completions", chat(priority=3))
        assert found["otel_llm.request.priority"] == 3

    def test_structured_output(self, generating: Running) -> None:
        """The grammar's wait is inside the queue; the kind of output is named."""
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        found = generating.asked("/v1/chat/completions", chat(response_format=wanted))
        assert (found["gen_ai.output.type"], found["otel_llm.outcome"]) == ("json", "ok")

    def test_native_spans_are_children(self, generating: Running) -> None:
        """VLLM's own span lies below ours, in the caller's trace, and nothing is doubled."""
        found = generating.asked("/v1/chat/completions", chat(), traceparent=PARENT)
        deadline = time.monotonic() + 15
        native: list[Any] = []
        while not native and time.monotonic() < deadline:
            time.sleep(0.1)
            spans = generating.receiver.spans
            native = [s for s in spans if s.parent_span_id == found["span"].span_id]
            native = [s for s in native if s.name == "llm_request"]
        assert len(native) == 1
        assert native[0].trace_id == found["span"].trace_id == bytes.fromhex("a" * 32)

    def test_one_of_several_prompts_is_refused(self, generating: Running) -> None:
        """Before any of them reached the engine: one request, and no part of it was admitted."""
        body = {"model": "tiny", "prompt": ["fine", "word " * 5000], "max_tokens": 4}
        found = generating.asked("/v1/completions", body)
        assert (found["http"], found["otel_llm.outcome"]) == (400, "rejected")
        assert found["otel_llm.ended_in"] == "preprocess"
        assert not {"otel_llm.queue_us", "gen_ai.usage.output_tokens"} & set(found)

    def test_ids_differ_between_servers(self, generating: Running) -> None:
        """Two API servers, each with generators of its own."""
        ids = [span.span_id for span in generating.receiver.spans]
        assert len(set(ids)) == len(ids)

    def test_the_replica(self, generating: Running) -> None:
        """Its state is on the span as integers."""
        names = ("running", "waiting", "kv_cache_percent")
        for _ in range(30):  # a server is told of some steps only
            found = generating.asked("/v1/chat/completions", chat())
            if "otel_llm.finished.running" in found:
                assert all(type(found[f"otel_llm.finished.{name}"]) is int for name in names)
                return
        raise AssertionError("no server knows the state of the replica")


class TestSilent:
    """`--disable-log-stats` is the user's word."""

    def test_observed_only(self, silent: Running) -> None:
        """What we see ourselves; queue and prefill are one unknown."""
        found = silent.asked("/v1/chat/completions", chat(stream=True, max_tokens=200))
        assert found["otel_llm.outcome"] == "ok"
        assert "otel_llm.queue_us" not in found
        assert "otel_llm.prefill_us" not in found
        assert found["otel_llm.unaccounted_us"] > 0
        sources = found["otel_llm.sources"]
        assert "reported" not in sources
        assert "decode=observed" in sources

    def test_an_adapter(self, silent: Running) -> None:
        """Its name is on the span."""
        found = silent.asked("/v1/chat/completions", chat() | {"model": "mine"})
        assert (found["http"], found["otel_llm.lora"]) == (200, "mine")

    def test_the_engine_process(self, silent: Running) -> None:
        """What a plugin traced in vLLM's engine process has arrived, spans and metrics."""
        assert [s for s in silent.receiver.spans if s.name == "chat inside"]
        ours = ("engine-core", "gen_ai.server.request.duration")
        assert ours in silent.receiver.metrics_by_service


class TestInstrumented:
    """`opentelemetry-instrument` in front of the server."""

    def test_once_and_by_its_providers(self, instrumented: Running) -> None:
        """One SERVER and one request span, under the name that was given to the command."""
        before = len(instrumented.receiver.spans)
        found = instrumented.asked("/v1/chat/completions", chat())
        assert found["otel_llm.outcome"] == "ok"
        assert {"llm.queue", "llm.prefill", "llm.decode"} <= set(found["children"])
        names = [span.name for span in instrumented.receiver.spans[before:]]
        assert names.count("chat tiny") == 1
        assert names.count("POST /v1/chat/completions") == 1
        assert instrumented.receiver.resource["service.name"] == "wrapped"


class TestParallel:
    """`--data-parallel-size=2`."""

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_rank_that_was_asked_for(self, parallel: Running, rank: int) -> None:
        """It is on the span, with the state of that replica and everything else."""
        for _ in range(2):  # of a replica that has done nothing yet no state is known
            found = parallel.asked(
                "/v1/chat/completions", chat(), **{"X-data-parallel-rank": str(rank)}
            )
            assert (found["http"], found["otel_llm.outcome"]) == (200, "ok")
            assert found["otel_llm.replica"] == rank
            assert {"llm.queue", "llm.prefill", "llm.decode"} <= set(found["children"])
            assert found["otel_llm.unaccounted_us"] == 0
        assert found["otel_llm.queued.running"] >= 0
        assert found["otel_llm.finished.kv_cache_percent"] >= 0

    def test_a_rank_that_vllm_chose(self, parallel: Running) -> None:
        """It does not say which, and nothing is guessed; the phases are there."""
        found = parallel.asked("/v1/chat/completions", chat(stream=True))
        assert found["otel_llm.outcome"] == "ok"
        assert {"llm.queue", "llm.prefill", "llm.decode"} <= set(found["children"])
        assert found["otel_llm.unaccounted_us"] == 0
        assert not {"otel_llm.replica", "otel_llm.finished.running"} & set(found)

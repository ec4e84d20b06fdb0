"""Real vLLM servers: the routes that generate nothing, and options that change a request's life."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tests.services
from tests.benchmarks.report import ROOT
from tests.fakes.otlp import Receiver, receiving
from tests.services import vllm, web
from tests.services.command import run

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
LORA_SCRIPT = Path(tests.services.__file__).with_name("tiny_lora.py")
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Running:
    """A server and what it has exported."""

    def __init__(self, server: vllm.Vllm, receiver: Receiver) -> None:
        self.server = server
        self.receiver = receiver

    def asked(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Send one request; gives the attributes of its request span and its phase spans."""
        before = len(self.receiver.spans)
        reply = web.request(f"{self.server.url}{path}", body, headers=headers)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            fresh = self.receiver.spans[before:]
            if any(span.name == f"POST {path}" for span in fresh):
                return {"http": reply.status, **_summary(fresh)}
            time.sleep(0.05)
        raise AssertionError(f"no span of {path}")


def _summary(spans: list[Any]) -> dict[str, Any]:
    (request,) = (s for s in spans if any(a.key == "otel_llm.outcome" for a in s.attributes))
    found = {each.key: _plain(each.value) for each in request.attributes}
    children = [s.name for s in spans if s.parent_span_id == request.span_id]
    return {**found, "children": children, "span": request}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)


def running(
    factory: pytest.TempPathFactory,
    *args: str,
    also: Sequence[Path | str] = (),
    launcher: Sequence[str] = (),
    **environ: str,
) -> Iterator[Running]:
    """A vLLM server with our plugin and these arguments; `@` stands for the receiver's address.

    *also* are other distributions to install beside ours; *launcher* is one of their commands.
    """
    work = factory.mktemp("vllm")
    for each in also:
        vllm.overlay(each, work / "overlay")
    with (
        receiving() as receiver,
        vllm.Vllm.start(
            work,
            overlay=vllm.overlay(ROOT, work / "overlay"),
            args=[each.replace("@", receiver.url) for each in args],
            launcher=[work / "overlay/bin" / launcher[0], *launcher[1:]] if launcher else (),
            env=vllm.exporting(receiver.url, **environ),
        ) as server,
    ):
        yield Running(server, receiver)


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

    def test_ids_differ_between_servers(self, generating: Running) -> None:
        """Two API servers, each with generators of its own."""
        ids = [span.span_id for span in generating.receiver.spans]
        assert len(set(ids)) == len(ids)

    def test_the_replica(self, generating: Running) -> None:
        """Its state is on the span as integers."""
        names = ("running", "waiting", "kv_cache_percent")
        for _ in range(6):  # a server is told of some steps only
            found = generating.asked("/v1/chat/completions", chat())
            if "otel_llm.finished.running" in found:
                assert all(type(found[f"otel_llm.finished.{name}"]) is int for name in names)
                return
        raise AssertionError("no server knows the state of the replica")


class TestSilent:
    """`--disable-log-stats` is the user's word."""

    def test_observed_only(self, silent: Running) -> None:
        """What we see ourselves; queue and prefill are one unknown."""
        found = silent.asked("/v1/chat/completions", chat(stream=True))
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
        assert "gen_ai.server.request.duration" in silent.receiver.metrics


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

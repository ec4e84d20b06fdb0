"""`configure` with Prometheus, log correlation, objectives and phase spans, as users call it."""

from __future__ import annotations

import logging
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

import otel_llm
from otel_llm.config import Settings
from otel_llm.errors import ConfigurationError
from otel_llm.providers import providers
from tests.fakes.otlp import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An OTLP receiver, and everything ended afterwards."""
    with receiving() as found:
        yield found
        otel_llm.uninstrument()


def configured(receiver: Receiver, **given: Any) -> None:
    """Set up for the receiver."""
    otel_llm.configure(endpoint=receiver.url, engines=[], **given)


def one_request() -> None:
    """A request with a phase of each length."""
    with otel_llm.trace_request("chat", model="tiny", provider="demo", side="server") as request:
        request.mark(otel_llm.Mark.QUEUED)
        request.mark(otel_llm.Mark.SCHEDULED)
        list(request.stream(["a", "b"]))


def test_metrics_in_the_registry_of_the_process(receiver: Receiver) -> None:
    """As vLLM's `/metrics` shows it; gone after `uninstrument`."""
    configured(receiver, prometheus=True, metrics=False)
    one_request()
    assert b"gen_ai_server_request_duration_seconds_count" in generate_latest(REGISTRY)
    otel_llm.uninstrument()
    assert b"gen_ai_server_request_duration" not in generate_latest(REGISTRY)
    assert receiver.metrics == set()


def test_an_endpoint_for_prometheus(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable, at an address; nothing shows in the process's own registry."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    monkeypatch.setenv("OTEL_LLM_PROMETHEUS", f"127.0.0.1:{port}")
    configured(receiver)
    one_request()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"otel_llm_phase_duration_seconds_count" in answer.read()
    assert b"otel_llm_phase_duration" not in generate_latest(REGISTRY)


def test_ids_on_log_records(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """Until `uninstrument`."""
    configured(receiver, logs=True)
    request = otel_llm.trace_request("chat", provider="demo")
    with request, request.active():
        logging.getLogger("app").warning("inside")
    otel_llm.uninstrument()
    logging.getLogger("app").warning("after")
    inside, after = caplog.records
    assert len(inside.__dict__["trace_id"]) == 32
    assert "trace_id" not in after.__dict__


def test_objectives_and_facts(receiver: Receiver) -> None:
    """By arguments."""
    configured(receiver, slo={"e2e": "1ns"}, metric_attributes=["plan"])
    with otel_llm.trace_request("chat", provider="demo") as request:
        request.set({"plan": "gold"})
    otel_llm.uninstrument()
    (span,) = receiver.spans
    (missed,) = (a.value for a in span.attributes if a.key == "otel_llm.slo.missed")
    assert [each.string_value for each in missed.array_value.values] == ["e2e"]
    assert "otel_llm.slo.requests" in receiver.metrics


def test_phase_spans(receiver: Receiver) -> None:
    """Written whole for our own provider."""
    configured(receiver)
    one_request()
    otel_llm.uninstrument()
    check_phases(receiver)


def check_phases(receiver: Receiver) -> None:
    """The receiver has one request and its phases, each once, within it."""
    (request,) = (span for span in receiver.spans if span.name == "chat tiny")
    phases = [span for span in receiver.spans if span.name.startswith("llm.")]
    assert {"llm.preprocess", "llm.prefill"} <= {span.name for span in phases}
    for each in phases:
        assert each.parent_span_id == request.span_id
        assert each.trace_id == request.trace_id
        assert request.start_time_unix_nano // 1000 <= each.start_time_unix_nano // 1000
        assert each.start_time_unix_nano < each.end_time_unix_nano
        assert [a.key for a in each.attributes] == ["otel_llm.phase.source"]
    assert len({each.span_id for each in phases}) == len(phases)


GLOBAL = """
import sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import SpanProcessor
import otel_llm

class Starts(SpanProcessor):
    def on_start(self, span, parent_context=None):
        print(span.name)

otel_llm.configure(endpoint=sys.argv[1], engines=[], set_global=True)
trace.get_tracer_provider().add_span_processor(Starts())
from tests.production.test_configure import one_request
one_request()
otel_llm.uninstrument()
trace.get_tracer("app").start_span("later").end()
metrics.get_meter("app").create_counter("later").add(1)
"""


def test_providers_for_everybody(receiver: Receiver) -> None:
    """Phases are started like all spans, for others' processors; `uninstrument` ends nothing."""
    command = [sys.executable, "-W", "error", "-c", GLOBAL, receiver.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    check_phases(receiver)
    assert sorted(span.name for span in receiver.spans) == sorted(done.stdout.split("\n")[:-1])
    assert "later" in {span.name for span in receiver.spans} & receiver.metrics


def test_nothing_for_spans_that_are_not_sampled(receiver: Receiver) -> None:
    """No phase span comes from a request without one."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    configured(receiver, head=ALWAYS_OFF)
    one_request()
    otel_llm.uninstrument()
    assert receiver.spans == []
    assert "gen_ai.server.request.duration" in receiver.metrics


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("OTEL_LLM_PROMETHEUS", "", "prometheus", False),
        ("OTEL_LLM_PROMETHEUS", "true", "prometheus", True),
        ("OTEL_LLM_PROMETHEUS", "1", "prometheus", "1"),
        ("OTEL_LLM_PROMETHEUS", "9464", "prometheus", "9464"),
        ("OTEL_LLM_PROMETHEUS", "0.0.0.0:9464", "prometheus", "0.0.0.0:9464"),
        ("OTEL_LLM_LOGS", "on", "logs", True),
        ("OTEL_LLM_VLLM_STATS", "false", "vllm_stats", False),
    ],
)
def test_variables(name: str, value: str, field: str, expected: object) -> None:
    """Switches, and addresses."""
    assert getattr(Settings.from_environment({name: value}), field) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_LLM_SLO", "ttft=soon"), ("OTEL_LLM_SLO", "speed=1s"), ("OTEL_LLM_LOGS", "maybe")],
)
def test_wrong_variables(name: str, value: str) -> None:
    """Named in the error."""
    with pytest.raises(ConfigurationError, match=name):
        Settings.from_environment({name: value})


def test_a_wrong_address() -> None:
    """Told, not tried."""
    with pytest.raises(ConfigurationError, match="port"):
        providers(metrics=False, prometheus="nowhere", environ={"OTEL_TRACES_EXPORTER": "none"})

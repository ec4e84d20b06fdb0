"""`configure`: providers that export by OTLP, from arguments and the standard variables."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_llm
from otel_llm import ConfigurationError, MissingDependencyError
from otel_llm.config import RUNTIME
from otel_llm.export.http import HttpSpanExporter
from otel_llm.providers import providers
from tests.fakes.otlp import Receiver, receiving

REPO = Path(__file__).parents[1]
CONFIGURE = """
    import otel_llm
    otel_llm.configure({arguments})
    with otel_llm.trace_request("chat", model="tiny", provider="demo") as r:
        r.usage(input_tokens=7)
    {after}
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An OTLP receiver."""
    with receiving() as found:
        yield found


def configured(arguments: str = "", after: str = "", **environ: str) -> str:
    """Run a process that calls `configure`, traces a request and exits; gives its error output."""
    script = textwrap.dedent(CONFIGURE.format(arguments=arguments, after=after))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        cwd=REPO,
    )
    return done.stderr


def target(**given: Any) -> Any:
    """The exporter behind a tracer provider that was made with *given*."""
    made = providers(metrics=False, **given).tracer
    (processor,) = made._active_span_processor._span_processors  # type: ignore[attr-defined]
    exporter = processor.exporter
    made.shutdown()
    return getattr(exporter, "_inner", exporter)


class TestExport:
    """A whole process, to a receiver over HTTP."""

    def test_spans_and_metrics_arrive(self, receiver: Receiver) -> None:
        """Without any flush of the user's: the exit of the process is enough."""
        configured(f"endpoint={receiver.url!r}, service_name='gateway'")
        (span,) = receiver.spans
        attributes = {each.key: each.value for each in span.attributes}
        assert (
            span.name,
            attributes["gen_ai.usage.input_tokens"].int_value,
        ) == ("chat tiny", 7)
        assert "gen_ai.server.request.duration" in receiver.metrics
        assert receiver.resource["service.name"] == "gateway"

    def test_an_open_request_arrives_too(self, receiver: Receiver) -> None:
        """A process that exits in the middle of a request exports it as abandoned."""
        after = "open = otel_llm.trace_request('chat', provider='demo').__enter__()"
        configured(f"endpoint={receiver.url!r}, metrics=False", after)
        outcomes = [
            each.value.string_value
            for span in receiver.spans
            for each in span.attributes
            if each.key == "otel_llm.outcome"
        ]
        assert outcomes == ["ok", "abandoned"]
        assert set() == receiver.metrics

    def test_standard_variables(self, receiver: Receiver) -> None:
        """Endpoint, headers, service name and resource from the environment."""
        configured(
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_EXPORTER_OTLP_HEADERS="x-key=1",
            OTEL_SERVICE_NAME="from-env",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
            OTEL_METRICS_EXPORTER="none",
        )
        assert (
            receiver.resource["service.name"],
            receiver.resource["deployment.environment.name"],
        ) == ("from-env", "test")
        assert {"1"} == {each.get("x-key") for each in receiver.headers}
        assert set() == receiver.metrics

    def test_a_receiver_that_is_not_there(self) -> None:
        """The process ends by itself, with its own result."""
        configured("endpoint='http://127.0.0.1:9', metrics=False", OTEL_EXPORTER_OTLP_TIMEOUT="1")


class TestGlobals:
    """Global providers."""

    @pytest.mark.parametrize(
        ("wanted", "expected"), [(False, "ProxyTracerProvider"), (True, "TracerProvider")]
    )
    def test_only_on_request(self, wanted: bool, expected: str) -> None:
        """They are made global if, and only if, that was asked for."""
        after = (
            "from opentelemetry import trace; import sys; "
            "print(type(trace.get_tracer_provider()).__name__, file=sys.stderr)"
        )
        arguments = f"endpoint='http://127.0.0.1:9', metrics=False, set_global={wanted}"
        output = configured(arguments, after, OTEL_TRACES_EXPORTER="none")
        assert output.strip() == expected


class TestTargets:
    """Which exporter, and to where."""

    @pytest.mark.parametrize(
        ("given", "environ", "expected"),
        [
            ({"endpoint": "http://a:1"}, {}, "http://a:1/v1/traces"),
            ({"endpoint": "http://a:1/"}, {}, "http://a:1/v1/traces"),
            ({"endpoint": "https://a/base"}, {}, "https://a/base/v1/traces"),
            ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:2"}, "http://b:2/v1/traces"),
            ({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:3/x"}, "http://c:3/x"),
            ({}, {}, "http://localhost:4318/v1/traces"),
            (
                {"endpoint": "http://a:1"},
                {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:3/x"},
                "http://a:1/v1/traces",
            ),
        ],
    )
    def test_http(
        self,
        monkeypatch: pytest.MonkeyPatch,
        given: dict[str, str],
        environ: dict[str, str],
        expected: str,
    ) -> None:
        """A base URL gets the signal's path, a signal's own URL is taken as it is."""
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert expected == target(**given).url

    @pytest.mark.parametrize(
        "environ",
        [
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
        ],
    )
    def test_grpc(self, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
        """By the standard variables."""
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        exporter = target(endpoint="http://localhost:4317").own._make()
        assert ".grpc." in type(exporter).__module__
        exporter.shutdown()

    def test_the_argument_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over the environment's protocol."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        assert isinstance(target(protocol="http/protobuf"), HttpSpanExporter)

    @pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://x", "4318"])
    def test_no_url(self, endpoint: str) -> None:
        """A mistake that would otherwise show as silence."""
        with pytest.raises(ConfigurationError, match="it must be one such as"):
            otel_llm.configure(endpoint=endpoint)
        assert RUNTIME.telemetry is None

    @pytest.mark.parametrize(
        "name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
    )
    def test_broken_headers(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        """Told by the variable's name; the text, which may be a key, is shown nowhere."""
        monkeypatch.setenv(name, "authorization: Bearer sk-secret")
        with pytest.raises(ConfigurationError, match=name) as caught:
            otel_llm.configure(engines=[])
        assert "sk-secret" not in str(caught.value) + caplog.text

    @pytest.mark.parametrize("protocol", ["http/json", "http", "GRPC"])
    def test_an_unknown_protocol(self, protocol: str) -> None:
        """Told with what is accepted."""
        with pytest.raises(ConfigurationError, match="must be http/protobuf or grpc"):
            otel_llm.configure(protocol=protocol)

    @pytest.mark.parametrize(
        ("environ", "path"),
        [
            ({}, "/v1/metrics"),
            ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "{url}/v1/metrics?own"}, "/v1/metrics?own"),
        ],
    )
    def test_metrics(
        self,
        monkeypatch: pytest.MonkeyPatch,
        receiver: Receiver,
        environ: dict[str, str],
        path: str,
    ) -> None:
        """They have an address of their own."""
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        for name, value in environ.items():
            monkeypatch.setenv(name, value.format(url=receiver.url))
        meters = providers().meter
        meters.get_meter("app").create_counter("sold").add(1)
        meters.shutdown()  # type: ignore[attr-defined]
        assert ({"sold"}, [path]) == (receiver.metrics, receiver.paths)

    def test_no_traces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`OTEL_TRACES_EXPORTER=none` leaves a provider that exports nothing."""
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        both = providers(metrics=False)
        made, meters = both.tracer, both.meter
        assert made._active_span_processor._span_processors == ()  # type: ignore[attr-defined]
        assert isinstance(meters, NoOpMeterProvider)

    def test_head_sampler(self) -> None:
        """The one that was given."""
        made = providers(metrics=False, head=ALWAYS_OFF).tracer
        assert ALWAYS_OFF is made.sampler
        made.shutdown()

    def test_resource(self) -> None:
        """Name and further attributes."""
        made = providers(metrics=False, service_name="a", resource={"k": "v"}).tracer
        found = made.resource.attributes
        assert (found["service.name"], found["k"]) == ("a", "v")
        made.shutdown()


class TestSwitches:
    """When nothing is to be done."""

    @pytest.mark.parametrize("name", ["OTEL_LLM_DISABLED", "OTEL_SDK_DISABLED"])
    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """No provider, no thread, no patch."""
        monkeypatch.setenv(name, "true")
        otel_llm.configure()
        assert (RUNTIME.telemetry, RUNTIME.patches) == (None, {})

    def test_twice(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """The second call says that it changes nothing."""
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        otel_llm.configure(metrics=False, engines=[])
        first = RUNTIME.telemetry
        otel_llm.configure(endpoint="http://other:1")
        assert first is RUNTIME.telemetry
        assert "changes nothing" in caplog.text

    def test_global_providers_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In this process too."""
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        before = trace.get_tracer_provider(), metrics.get_meter_provider()
        otel_llm.configure(metrics=False, engines=[])
        assert before == (trace.get_tracer_provider(), metrics.get_meter_provider())


class TestMissing:
    """Packages that are not installed."""

    @pytest.mark.parametrize(
        ("module", "protocol", "message"),
        [
            ("opentelemetry.sdk.trace", None, r"opentelemetry-sdk .*'otel-llm\[otlp\]'"),
            (
                "requests",
                None,
                r"requests .*'otel-llm\[otlp\]'",
            ),
            (
                "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
                "grpc",
                r"opentelemetry-exporter-otlp-proto-grpc .*'otel-llm\[otlp-grpc\]'",
            ),
        ],
    )
    def test_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, module: str, protocol: str | None, message: str
    ) -> None:
        """Package and command."""
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError, match=message):
            otel_llm.configure(protocol=protocol, metrics=False)
        assert RUNTIME.telemetry is None

    def test_captured_telemetry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The test helper too."""
        from otel_llm.testing import captured_telemetry

        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
        with pytest.raises(MissingDependencyError, match="opentelemetry-sdk"):
            captured_telemetry()

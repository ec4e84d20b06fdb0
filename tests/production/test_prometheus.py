"""Metrics in a Prometheus scrape."""

from __future__ import annotations

import http.client
import logging
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, set_span_in_context
from prometheus_client import REGISTRY, CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parsed_text

from otel_llm import ConfigurationError, prometheus
from otel_llm.emit.telemetry import Telemetry
from otel_llm.prometheus import MetricsServer, prometheus_reader, serve
from otel_llm.scrape import MOST_AT_ONCE
from otel_llm.testing import CapturedTelemetry, ManualClock
from tests.emit.builders import complete, generated, opened

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Provider = tuple[CollectorRegistry, MeterProvider]


def made(registry: CollectorRegistry, **arguments: Any) -> MeterProvider:
    """A meter provider whose metrics show in *registry*."""
    resource = Resource({"service.name": "llm", "process.pid": 7})
    readers = [prometheus_reader(registry)]
    return MeterProvider(readers, resource, shutdown_on_exit=False, **arguments)


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A registry and a provider that shows in it."""
    registry = CollectorRegistry()
    meters = made(registry)
    yield registry, meters
    meters.shutdown()


@pytest.fixture
def span() -> Span:
    """A sampled span."""
    return TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s")


def families(registry: CollectorRegistry) -> dict[str, Any]:
    """What an OpenMetrics scrape holds."""
    text = as_openmetrics(registry).decode()
    return {each.name: each for each in text_string_to_metric_families(text)}


def series(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Values of a family's samples by name and own labels."""
    return {
        each.name
        + str({k: v for k, v in each.labels.items() if not k.startswith("otel_scope")}): each.value
        for each in families(registry)[name].samples
    }


def exemplars(registry: CollectorRegistry, name: str) -> dict[str, tuple[dict[str, str], float]]:
    """Labels and value of the exemplar of each bucket that has one."""
    samples = families(registry)[name].samples
    with_one = [each for each in samples if each.exemplar]
    return {s.labels.get("le", ""): (s.exemplar.labels, s.exemplar.value) for s in with_one}


class TestNames:
    """How metrics are called there."""

    @pytest.mark.parametrize(
        ("name", "unit", "expected"),
        [
            ("gen_ai.server.request.duration", "s", "gen_ai_server_request_duration_seconds"),
            ("a.seconds", "s", "a_seconds"),
            ("gen_ai.client.token.usage", "{token}", "gen_ai_client_token_usage"),
            ("kv.free", "By", "kv_free_bytes"),
            ("a-.b/c", "1", "a_b_c"),
            ("rate", "By/s", "rate_bytes_per_second"),
            ("rate", "{token}/s", "rate_per_second"),
            ("odd", "furlong", "odd_furlong"),
        ],
    )
    def test_histogram(self, name: str, unit: str, expected: str, provider: Provider) -> None:
        """Dots become underscores, and the unit's word ends the name."""
        registry, meters = provider
        meters.get_meter("m").create_histogram(name, unit).record(1)
        found = families(registry)
        assert expected in found
        assert found[expected].type == "histogram"

    @pytest.mark.parametrize("name", ["a.requests", "a.requests.total"])
    def test_counter(self, name: str, provider: Provider) -> None:
        """It ends in `_total`, once."""
        registry, meters = provider
        meters.get_meter("m").create_counter(name, "{request}").add(3)
        assert series(registry, "a_requests") == {"a_requests_total{}": 3}

    def test_gauges(self, provider: Provider) -> None:
        """What goes up and down is a gauge."""
        registry, meters = provider
        meters.get_meter("m").create_up_down_counter("waiting").add(-2)
        meters.get_meter("m").create_gauge("free", "%").set(0.5)
        found = families(registry)
        assert [found["waiting"].type, found["waiting"].samples[0].value] == ["gauge", -2]
        assert [s.value for s in found["free_percent"].samples] == [0.5]

    def test_buckets(self, provider: Provider) -> None:
        """Counts up to each bound, then all; sum and count beside them."""
        registry, meters = provider
        bounds = [0.5, 1, 5]
        histogram = meters.get_meter("m").create_histogram(
            "h", explicit_bucket_boundaries_advisory=bounds
        )
        for value in (0.1, 1, 9):
            histogram.record(value)
        assert series(registry, "h") == {
            "h_bucket{'le': '0.5'}": 1,
            "h_bucket{'le': '1.0'}": 2,
            "h_bucket{'le': '5.0'}": 2,
            "h_bucket{'le': '+Inf'}": 3,
            "h_count{}": 3,
            "h_sum{}": 10.1,
        }

    def test_labels(self, provider: Provider) -> None:
        """Attributes by their changed names; other kinds as JSON; what becomes one is joined."""
        registry, meters = provider
        attributes: dict[str, Any] = {"a.b": "x", "a-b": "y", "n": 7, "on": True, "1st": 'q"\n'}
        meters.get_meter("m").create_counter("c").add(1, attributes)
        (sample,) = families(registry)["c"].samples
        del sample.labels["otel_scope_name"]
        assert sample.labels == {"a_b": "y;x", "n": "7", "on": "true", "_st": 'q"\n'}

    def test_scope(self, provider: Provider) -> None:
        """Who made the metric is said on each series, and cannot be faked by an attribute."""
        registry, meters = provider
        meter = meters.get_meter("m", "1.2", "https://schema", {"kind": "x"})
        meter.create_counter("c").add(1, {"otel_scope_name": "fake"})
        (sample,) = families(registry)["c"].samples
        assert sample.labels == {
            "otel_scope_name": "m",
            "otel_scope_version": "1.2",
            "otel_scope_schema_url": "https://schema",
            "otel_scope_kind": "x",
        }

    def test_target(self, provider: Provider) -> None:
        """The resource is `target_info`."""
        registry, meters = provider
        meters.get_meter("m").create_counter("c").add(1)
        assert series(registry, "target") == {
            "target_info{'process_pid': '7', 'service_name': 'llm'}": 1
        }

    def test_target_of_the_registry(self) -> None:
        """There is one at most; the registry's own stays."""
        registry = CollectorRegistry(target_info={"env": "prod"})
        meters = made(registry)
        meters.get_meter("m").create_counter("c").add(1)
        assert series(registry, "target") == {"target_info{'env': 'prod'}": 1}
        meters.shutdown()

    def test_plain_text(self, provider: Provider) -> None:
        """The old format reads the same, without exemplars."""
        registry, meters = provider
        meters.get_meter("m").create_histogram("h", "s").record(1)
        names = {each.name for each in parsed_text(generate_latest(registry).decode())}
        assert {"h_seconds", "target_info"} <= names


class TestClashes:
    """What Prometheus would refuse the whole scrape for."""

    def test_scopes_share_a_name(self, provider: Provider) -> None:
        """One family with the series of both."""
        registry, meters = provider
        for scope in ("m", "n"):
            meters.get_meter(scope).create_counter("c").add(1)
        assert [s.labels["otel_scope_name"] for s in families(registry)["c"].samples] == ["m", "n"]

    def test_kinds_share_a_name(self, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
        """The first stays, and the log names the other, once."""
        registry, meters = provider
        meters.get_meter("m").create_counter("clash.kind").add(1)
        meters.get_meter("n").create_up_down_counter("clash.kind").add(5)
        assert series(registry, "clash_kind") == {"clash_kind_total{}": 1}
        families(registry)
        assert [m for m in caplog.messages if "clash_kind" in m] == [
            "metric clash_kind is left out of the Prometheus scrape: the name is taken by a counter"
        ]

    @pytest.mark.parametrize("attribute", ["n", "le"])
    def test_series_become_one(self, attribute: str, provider: Provider) -> None:
        """Of two that differ in nothing that is left, the first stays."""
        registry, meters = provider
        histogram = meters.get_meter("m").create_histogram("h")
        for value in (1, "1"):
            histogram.record(1, {attribute: value})
        assert generate_latest(registry).decode().count("\nh_count{") == 1

    def test_exponential_histograms(self, caplog: pytest.LogCaptureFixture) -> None:
        """Left out, and said so."""
        registry = CollectorRegistry()
        view = View(instrument_name="exp", aggregation=ExponentialBucketHistogramAggregation())
        meters = made(registry, views=[view])
        meters.get_meter("m").create_histogram("exp").record(1)
        assert list(families(registry)) == ["target"]
        assert "metric exp is left out" in caplog.text
        meters.shutdown()


class TestExemplars:
    """From a bucket to a trace."""

    def test_trace_and_span(self, provider: Provider, span: Span) -> None:
        """Each bucket shows a measurement that fell into it, with its ids and its time."""
        registry, meters = provider
        histogram = meters.get_meter("m").create_histogram(
            "h", explicit_bucket_boundaries_advisory=[1, 5]
        )
        for value in (0.5, 0.7, 9):
            histogram.record(value, context=set_span_in_context(span))
        context = span.get_span_context()
        labels = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        assert exemplars(registry, "h") == {"1.0": (labels, 0.7), "+Inf": (labels, 9)}
        assert all(s.exemplar.timestamp for s in families(registry)["h"].samples if s.exemplar)

    def test_counter(self, provider: Provider, span: Span) -> None:
        """Counters have one too."""
        registry, meters = provider
        counter = meters.get_meter("m").create_counter("c")
        counter.add(3, context=set_span_in_context(span))
        assert exemplars(registry, "c")[""][1] == 3

    def test_it_stays(self, provider: Provider, span: Span) -> None:
        """A second Prometheus that scrapes sees it as well; a newer one replaces it."""
        registry, meters = provider
        histogram = meters.get_meter("m").create_histogram("h")
        histogram.record(3, context=set_span_in_context(span))
        first = exemplars(registry, "h")
        assert first == exemplars(registry, "h")
        histogram.record(2, context=set_span_in_context(span))
        assert [value for _, value in exemplars(registry, "h").values()] == [2]

    @pytest.mark.parametrize(("length", "kept"), [(62, True), (63, False)])
    def test_not_too_long(self, length: int, kept: bool, span: Span) -> None:
        """Attributes that a view took away are shown while all fit into 128 characters."""
        registry = CollectorRegistry()
        meters = made(registry, views=[View(instrument_name="h", attribute_keys=set())])
        histogram = meters.get_meter("m").create_histogram("h")
        histogram.record(1, {"a.b": "x" * length}, set_span_in_context(span))
        ((labels, _),) = exemplars(registry, "h").values()
        assert ("a_b" in labels) is kept
        assert {"trace_id", "span_id"} <= set(labels)
        meters.shutdown()

    def test_without_a_trace(self) -> None:
        """Measurements outside a span are no examples, even if the SDK keeps them."""
        registry = CollectorRegistry()
        meters = made(registry, exemplar_filter=AlwaysOnExemplarFilter())
        meters.get_meter("m").create_histogram("h").record(1)
        assert exemplars(registry, "h") == {}
        meters.shutdown()

    def test_of_a_request(
        self, provider: Provider, captured: CapturedTelemetry, clock: ManualClock
    ) -> None:
        """A request's histograms point at its request span."""
        registry, meters = provider
        telemetry = Telemetry(captured.tracer_provider, meters, clock=clock)
        captured_with_it = CapturedTelemetry(
            telemetry, captured.tracer_provider, meters, captured._exporter, captured._reader
        )
        complete(generated(opened(captured_with_it), clock))
        found = families(registry)
        assert "otel_llm_phase_duration_seconds" in found
        ((labels, _),) = exemplars(registry, "gen_ai_server_request_duration_seconds").values()
        request = next(each for each in captured.spans if not each.name.startswith("llm."))
        assert request.context is not None
        assert labels["span_id"] == f"{request.context.span_id:016x}"


class TestRegistry:
    """Joining the process's own metrics."""

    def test_beside_others(self) -> None:
        """The default registry shows ours until the provider is shut down."""
        meters = MeterProvider([prometheus_reader()], shutdown_on_exit=False)
        meters.get_meter("m").create_counter("joined").add(1)
        text = generate_latest(REGISTRY).decode()
        assert {"joined_total", "python_info"} <= {line.split("{")[0] for line in text.splitlines()}
        meters.shutdown()
        assert "joined_total" not in generate_latest(REGISTRY).decode()

    def test_one_reader(self) -> None:
        """A second one there is refused while the first is alive."""
        registry = CollectorRegistry()
        first = made(registry)
        with pytest.raises(ConfigurationError, match="shut that provider down first"):
            prometheus_reader(registry)
        first.shutdown()
        made(registry).shutdown()

    def test_a_failure_of_ours(self, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
        """It costs our metrics, never those of others."""
        registry, meters = provider
        Gauge("others", "d", registry=registry).set(1)
        meters.get_meter("m").create_counter("c").add(1)
        monkeypatch.setattr(prometheus, "_of_scope", None)
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        assert list(families(registry)) == ["others"]

    @pytest.mark.parametrize("own", [True, False])
    def test_several_processes(
        self, own: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A multiprocess /metrics does not show us, which is said; a registry of one's own does."""
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
        prometheus_reader(CollectorRegistry() if own else None).shutdown()
        assert ("PROMETHEUS_MULTIPROC_DIR is set" in caplog.text) is not own

    @pytest.mark.parametrize("module", ["prometheus", "scrape"])
    def test_without_the_package(self, module: str) -> None:
        """The error says what to install."""
        script = (
            "import sys; sys.modules['prometheus_client'] = None\n"
            f"try: import otel_llm.{module}\n"
            "except ImportError as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert "pip install 'otel-llm[prometheus]'" in done.stdout


@pytest.fixture
def server(provider: Provider) -> Iterator[MetricsServer]:
    """The provider's registry over HTTP, with one counter."""
    registry, meters = provider
    meters.get_meter("m").create_counter("c").add(1)
    server = serve(0, registry)
    yield server
    server.close()


def ask(
    server: MetricsServer, method: str = "GET", path: str = "/metrics", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer."""
    connection = http.client.HTTPConnection(*server.address, timeout=5)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


class TestEndpoint:
    """Our own HTTP endpoint."""

    def test_openmetrics(self, server: MetricsServer) -> None:
        """To a client that accepts it."""
        status, headers, body = ask(server, accept=f"{OPENMETRICS};q=0.8,text/plain;q=0.5")
        assert (status, headers["content-type"].split(";")[0]) == (
            200,
            OPENMETRICS.split(";", maxsplit=1)[0],
        )
        assert "c" in {each.name for each in text_string_to_metric_families(body.decode())}

    @pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=x"])
    def test_plain_text(self, accept: str, server: MetricsServer) -> None:
        """To all others."""
        status, headers, body = ask(server, accept=accept)
        assert (status, headers["content-type"][:25]) == (200, "text/plain; version=0.0.4")
        assert b"c_total{" in body

    def test_compressed(self, server: MetricsServer) -> None:
        """If the client accepts it."""
        _, headers, body = ask(server, accept_encoding="gzip")
        assert (headers["content-encoding"], body[:2]) == ("gzip", b"\x1f\x8b")

    def test_head(self, server: MetricsServer) -> None:
        """The same headers, and no body."""
        _, of_get, _ = ask(server)
        with socket.create_connection(server.address, 5) as connection:
            connection.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.0 200 ")
        assert answer.endswith(b"\r\n\r\n")
        assert f"content-length: {of_get['content-length']}".encode() in answer

    @pytest.mark.parametrize(
        ("method", "path", "expected"),
        [("GET", "/", 404), ("GET", "/etc/passwd", 404), ("POST", "/metrics", 405)],
    )
    def test_nothing_else(
        self, method: str, path: str, expected: int, server: MetricsServer
    ) -> None:
        """One path, two methods; and Python's version is not told."""
        status, headers, _ = ask(server, method, path)
        assert (status, headers["server"]) == (expected, "otel_llm")

    def test_not_too_many(self, server: MetricsServer) -> None:
        """Idle connections take all places; one more is closed; a place that is free serves."""
        idle = [socket.create_connection(server.address, 5) for _ in range(MOST_AT_ONCE)]
        with pytest.raises(OSError, match=r".*"):
            ask(server)
        for each in idle:
            each.close()
        for _ in range(100):
            try:
                status, _, _ = ask(server)
            except OSError:
                continue
            break
        assert status == 200

    def test_a_broken_collector(
        self, provider: Provider, server: MetricsServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The client gets 500, and the log the kind of the error but not its message."""

        class Broken:
            def collect(self) -> Any:
                raise RuntimeError("secret")

        provider[0].register(Broken())
        assert ask(server)[0] == 500
        assert caplog.messages == ["metrics could not be collected (RuntimeError)"]

    @pytest.mark.parametrize("address", [0, "0", ":0", "127.0.0.1:0", "localhost:0", "[::1]:0"])
    def test_addresses(self, address: str | int) -> None:
        """A port alone listens on loopback only."""
        if "::1" in str(address) and not socket.has_ipv6:
            pytest.skip("no IPv6")
        server = serve(address, CollectorRegistry())
        assert ask(server)[0] == 200
        assert server.address[0] in {"127.0.0.1", "localhost", "::1"}
        server.close()
        server.close()

    @pytest.mark.parametrize("address", ["", "host", "host:", "70000", "a:b:1", "http://a:1", "-1"])
    def test_wrong_addresses(self, address: str) -> None:
        """Told before anything listens."""
        with pytest.raises(ConfigurationError, match="is no address"):
            serve(address)

    def test_a_port_that_is_taken(self, server: MetricsServer) -> None:
        """Told with the reason."""
        with pytest.raises(ConfigurationError, match=r"cannot be served on .* in use"):
            serve(server.address[1])

    def test_quiet(self, server: MetricsServer, caplog: pytest.LogCaptureFixture) -> None:
        """Scrapes are not logged."""
        caplog.set_level(logging.DEBUG)
        ask(server)
        assert caplog.messages == []


class TestFork:
    """A child's own scrape."""

    def test_a_child_begins_at_zero(self) -> None:
        """What its parent has counted is told by the parent alone, exemplars too."""
        script = """
        import otel_llm, os, time
        from prometheus_client import REGISTRY
        otel_llm.configure(prometheus=True, metrics=False, engines=[])
        def serve(seconds):
            with otel_llm.trace_request("chat", provider="p", side="server"):
                time.sleep(seconds)
        def told():
            name = "gen_ai_server_request_duration_seconds"
            found = [each for each in REGISTRY.collect() if each.name == name]
            samples = [sample for each in found for sample in each.samples]
            counts = [each.value for each in samples if each.name.endswith("_count")]
            return counts, len({e.exemplar.labels["span_id"] for e in samples if e.exemplar})
        serve(0); serve(0.1)
        before = told()
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            assert told() == before
            print(before[0])
        else:
            assert told() == ([], 0)
            serve(0)
            print(*told(), flush=True)
            os._exit(0)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        )
        assert done.stdout.splitlines() == ["[1] 1", "[2]"], done.stderr

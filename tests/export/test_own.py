"""Official exporters in forked processes: OTLP over gRPC, and HTTP with a credential provider."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

import otel_llm
from otel_llm.errors import ConfigurationError
from tests.export.processes import points, run, spans_by_pid
from tests.export.rpc import receiving_rpcs
from tests.export.test_processes import TRACE
from tests.fakes.otlp import Receiver, receiving

DURATION = "gen_ai.server.request.duration"
SETUP = (
    TRACE
    + """
def processor():
    import otel_llm.config
    return otel_llm.config.RUNTIME.telemetry.tracer.span_processor._span_processors[0]
def serve():
    with otel_llm.trace_request("chat", provider="p", side="server"):
        pass
"""
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver over gRPC."""
    with receiving_rpcs() as found:
        yield found


class TestSpans:
    """By gRPC."""

    def test_a_channel_of_its_own(self, receiver: Receiver) -> None:
        """A child makes one at its first export, and the parent's goes on."""
        script = """
        otel_llm.configure(endpoint=url, protocol="grpc", metrics=False)
        trace()
        assert processor().force_flush()
        own = processor().exporter._inner.own
        before = own._exporter
        forked = [os.fork() for _ in range(2)] if os.fork() else [0]
        for _ in range(20):
            trace()
            assert processor().force_flush()
        assert (own._exporter is before) is all(forked)
        for _ in range(2 if all(forked) else 0):
            os.wait()
        """
        run(script, receiver, SETUP)
        assert sorted(spans_by_pid(receiver).values()) == [20, 20, 20, 20, 21]

    def test_nothing_is_made_before_it_is_needed(self, receiver: Receiver) -> None:
        """A parent that has exported nothing may fork even where gRPC's own hooks are off."""
        script = """
        otel_llm.configure(endpoint=url, protocol="grpc")
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        trace()
        """
        run(script, receiver, SETUP, GRPC_ENABLE_FORK_SUPPORT="0")
        assert sorted(spans_by_pid(receiver).values()) == [1, 1]

    def test_in_the_middle_of_an_export(self) -> None:
        """The fork breaks it off, after a while; both processes export what comes later."""
        script = """
        otel_llm.configure(endpoint=url, protocol="grpc", metrics=False)
        trace()
        processor().hurry()
        while not processor()._exporting:
            time.sleep(0.01)
        time.sleep(0.3)
        started = time.monotonic()
        child = os.fork()
        taken_s = time.monotonic() - started
        trace()
        assert processor().force_flush(5000)
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print(taken_s, processor().lost["export_failed"])
        """
        with receiving_rpcs(hanging=True) as receiver:
            taken_s, lost = run(script, receiver, SETUP).split()
        assert 0.4 < float(taken_s) < 8
        assert lost == "1"
        assert sorted(spans_by_pid(receiver).values()) == [1, 1]

    def test_forks_among_exports(self, receiver: Receiver) -> None:
        """They wait for the call that is under way, and nothing is lost."""
        script = """
        import threading
        otel_llm.configure(endpoint=url, protocol="grpc", metrics=False)
        def export():
            while not over:
                trace()
                assert processor().force_flush()
        trace()  # what is imported late is imported now: a child waits for ever for an import
        over = []
        thread = threading.Thread(target=export)
        thread.start()
        for _ in range(5):
            if os.fork() == 0:
                trace()
                assert processor().force_flush()
                os._exit(0)
        assert [0] * 5 == [os.wait()[1] for _ in range(5)]
        over.append(True)
        thread.join()
        assert sum(processor().lost.values()) == 0
        """
        run(script, receiver, SETUP)
        assert sorted(spans_by_pid(receiver).values())[:5] == [1, 1, 1, 1, 1]

    def test_an_end_is_an_end(self, receiver: Receiver) -> None:
        """After a shutdown nothing is made anew."""
        script = """
        otel_llm.configure(endpoint=url, protocol="grpc", metrics=False)
        exporter = processor().exporter._inner
        exporter.shutdown()
        print(exporter.export([]).name, exporter.own._exporter)
        """
        assert run(script, receiver, SETUP).split() == ["FAILURE", "None"]


class TestMetrics:
    """By gRPC."""

    def test_each_process_counts_its_own(self, receiver: Receiver) -> None:
        """The child begins at zero, by a channel of its own."""
        script = """
        otel_llm.configure(endpoint=url, protocol="grpc")
        from otel_llm.config import RUNTIME
        for _ in range(5): serve()
        meters = RUNTIME.closing[0].__self__
        meters.force_flush()
        for number in (1, 2):
            if os.fork() == 0:
                for _ in range(number): serve()
                break
        else:
            os.wait(); os.wait()
        """
        run(script, receiver, SETUP)
        assert sorted(point.count for _, point in points(receiver, DURATION)) == [1, 2, 5]

    def test_temporality(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        """The standard variable holds before an exporter is made."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
        otel_llm.configure(endpoint=receiver.url, protocol="grpc", engines=[])
        with otel_llm.trace_request("chat", provider="p", side="server"):
            pass
        otel_llm.uninstrument()
        temporalities = {
            metric.histogram.aggregation_temporality
            for request in receiver._metrics
            for metric in request.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == DURATION
        }
        assert temporalities == {1}


@pytest.mark.parametrize("signal", ["", "TRACES_", "METRICS_"])
def test_wrong_compression(monkeypatch: pytest.MonkeyPatch, signal: str) -> None:
    """Told when it is set up, and not at the first export."""
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}COMPRESSION", "brotli")
    with pytest.raises(ConfigurationError, match=f"{signal}COMPRESSION is 'brotli'"):
        otel_llm.configure(protocol="grpc", engines=[])


def test_credentials_from_a_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A child asks the plugin for a session of its own; the parent asks when it is set up."""
    (tmp_path / "keys.py").write_text(
        "import os, requests\n"
        "def session():\n"
        "    print('asked by', os.getpid())\n"
        "    made = requests.Session()\n"
        "    made.headers['x-by'] = str(os.getpid())\n"
        "    return made\n"
    )
    about = tmp_path / "keys-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: keys\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[opentelemetry_otlp_credential_provider]\nkeys = keys:session\n"
    )
    script = """
    otel_llm.configure(endpoint=url, metrics=False)
    print("set up")
    for _ in range(10):
        trace()
        assert processor().force_flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    for _ in range(10):
        trace()
        assert processor().force_flush()
    """
    environ = {
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "keys",
        "PYTHONPATH": str(tmp_path),
    }
    monkeypatch.setattr(BaseHTTPRequestHandler, "protocol_version", "HTTP/1.1")
    with receiving() as receiver:
        run(script, receiver, SETUP, **environ)
        counts = spans_by_pid(receiver)
        assert sorted(counts.values()) == [10, 20]
        asked = [headers["x-by"] for headers in receiver.headers]
        assert counts == {pid: asked.count(str(pid)) for pid in counts}

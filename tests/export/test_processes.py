"""Forks, spawned processes and pre-loading servers: spans and metrics of every process arrive."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.export.processes import REPO, points, run, spans_by_pid
from tests.fakes.collectors import hanging
from tests.fakes.otlp import Receiver, receiving

TRACE = """
def trace():
    pid = os.getpid()
    with otel_llm.trace_request("chat", model="m", provider="p", attributes={"pid": pid}):
        pass
"""
METERS = """
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from otel_llm.export.metrics import ForkedMetricReader
from otel_llm.export.own import OwnMetricExporter, PerProcess
make = lambda: OTLPMetricExporter(endpoint=url + "/v1/metrics", timeout=9)
reader = ForkedMetricReader(OwnMetricExporter(PerProcess(make, native=False)))
meters = MeterProvider([reader])
sold = meters.get_meter("shop").create_counter("sold")
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that keeps connections open, so that a shared one would show."""
    monkeypatch.setattr(BaseHTTPRequestHandler, "protocol_version", "HTTP/1.1")
    with receiving() as found:
        yield found


class TestFork:
    """`os.fork`."""

    def test_with_an_open_queue(self, receiver: Receiver) -> None:
        """What is queued is the parent's and arrives once; the child's arrives from the child."""
        script = """
        otel_llm.configure(endpoint=url, metrics=False)
        trace()
        if os.fork() == 0:
            trace(); trace()
        else:
            os.wait()
            trace()
        """
        run(script, receiver, TRACE)
        assert sorted(spans_by_pid(receiver).values()) == [2, 2]

    def test_with_an_open_connection(self, receiver: Receiver) -> None:
        """The child does not write into the connection of its parent."""
        script = """
        otel_llm.configure(endpoint=url, metrics=False)
        import otel_llm.config
        processor = otel_llm.config.RUNTIME.telemetry.tracer.span_processor._span_processors[0]
        trace()
        assert processor.force_flush()
        before = processor.exporter._session
        if os.fork() == 0:
            assert processor.exporter._session is not before
        for _ in range(20):
            trace()
            assert processor.force_flush()
        """
        run(script, receiver, TRACE)
        assert sorted(spans_by_pid(receiver).values()) == [20, 21]

    def test_in_the_middle_of_an_export(self) -> None:
        """The child neither waits for it nor counts its spans."""
        script = """
        from opentelemetry.sdk.trace import TracerProvider
        from otel_llm.export.batch import BatchProcessor
        from otel_llm.export.http import HttpSpanExporter
        processor = BatchProcessor(HttpSpanExporter(url, {}), {}, shutdown_timeout_s=1)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("app")
        tracer.start_span("parent").end()
        processor.hurry()
        while not processor._exporting:
            time.sleep(0.01)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            sys.exit()
        started = time.monotonic()
        tracer.start_span("child").end()
        processor.shutdown()
        print(time.monotonic() - started, sum(processor.lost.values()))
        """
        with hanging() as url:
            taken_s, lost = run(script, url).split()
        assert float(taken_s) < 8
        assert lost == "1"

    def test_an_open_span(self, receiver: Receiver) -> None:
        """One that was begun before the fork and ends in the child is exported there."""
        script = """
        from opentelemetry.sdk.trace import TracerProvider
        from otel_llm.export.batch import BatchProcessor
        from otel_llm.export.http import HttpSpanExporter
        provider = TracerProvider()
        provider.add_span_processor(BatchProcessor(HttpSpanExporter(url + "/v1/traces", {}), {}))
        span = provider.get_tracer("app").start_span("whole")
        if os.fork() == 0:
            span.set_attribute("pid", os.getpid())
            span.end()
        else:
            os.wait()
        """
        run(script, receiver)
        assert len(spans_by_pid(receiver)) == 1


class TestMultiprocessing:
    """Its children skip `atexit`."""

    @pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
    def test_children(self, receiver: Receiver, tmp_path: Path, method: str) -> None:
        """Every way of starting them: forked with everything set up, or set up in the child."""
        module = tmp_path / "work.py"
        module.write_text(
            "import multiprocessing, os, sys, otel_llm\n"
            + TRACE
            + "def work():\n"
            + f"    otel_llm.configure(endpoint={receiver.url!r}, metrics=False)\n"
            + "    for _ in range(10):\n        trace()\n"
        )
        script = f"""
        import work
        context = multiprocessing.get_context({method!r})
        if {method!r} == "fork":
            otel_llm.configure(endpoint=url, metrics=False)
            work.trace()
        children = [context.Process(target=work.work) for _ in range(2)]
        for child in children: child.start()
        for child in children: child.join()
        """
        run(script, receiver, PYTHONPATH=str(tmp_path))
        counts = sorted(spans_by_pid(receiver).values())
        assert counts == ([1, 10, 10] if method == "fork" else [10, 10])

    @pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
    def test_children_without_a_span(self, receiver: Receiver, tmp_path: Path, method: str) -> None:
        """What they have counted arrives too."""
        (tmp_path / "work.py").write_text(
            "import multiprocessing, os, sys, otel_llm\n"
            + TRACE
            + "def work():\n"
            + f"    otel_llm.configure(endpoint={receiver.url!r})\n"
            + "    trace()\n"
        )
        script = f"""
        import work
        if {method!r} == "fork":
            otel_llm.configure(endpoint=url)
        child = multiprocessing.get_context({method!r}).Process(target=work.work)
        child.start()
        child.join()
        """
        environ = {"PYTHONPATH": str(tmp_path), "OTEL_TRACES_EXPORTER": "none"}
        run(script, receiver, **environ)
        seen = points(receiver, "gen_ai.server.request.duration")
        assert [point.count for _, point in seen] == [1]

    def test_one_that_was_set_up_by_its_main_module(
        self, receiver: Receiver, tmp_path: Path
    ) -> None:
        """Imported before a child forgets whatever was to be done at its end."""
        main = tmp_path / "main.py"
        main.write_text(
            "import multiprocessing, os, otel_llm\n"
            f"otel_llm.configure(endpoint={receiver.url!r})\n"
            + TRACE
            + "if __name__ == '__main__':\n"
            + "    child = multiprocessing.get_context('forkserver').Process(target=trace)\n"
            + "    child.start()\n"
            + "    child.join()\n"
        )
        run(
            f"import runpy; runpy.run_path({str(main)!r}, run_name='__main__')",
            receiver,
            OTEL_TRACES_EXPORTER="none",
        )
        assert len(points(receiver, "gen_ai.server.request.duration")) == 1


class TestMetrics:
    """The metric reader in children."""

    def test_each_process_counts_its_own(self, receiver: Receiver) -> None:
        """The child begins at zero, under its own instance id, over its own connection."""
        script = """
        sold.add(5)
        meters.force_flush()
        for number in (1, 2):
            if os.fork() == 0:
                sold.add(number)
                break
        else:
            os.wait(); os.wait()
        """
        run(script, receiver, METERS)
        assert sorted(point.as_int for _, point in points(receiver, "sold")) == [1, 2, 5]

    def test_a_fork_in_the_middle_of_an_export(self) -> None:
        """The lock of the parent's export does not hold the child up, nor does its exit."""
        script = """
        import threading
        sold.add(5)
        threading.Thread(target=meters.force_flush, daemon=True).start()
        held = reader._export_lock
        while not held.locked():
            time.sleep(0.01)
        if child := os.fork():
            os.waitpid(child, 0)
            os._exit(0)
        sold.add(1)
        started = time.monotonic()
        meters.shutdown()
        print(time.monotonic() - started, reader._export_lock is not held)
        """
        with hanging() as url:
            taken_s, own_lock = run(script, url, METERS).split()
        assert 1.5 < float(taken_s) < 8
        assert own_lock == "True"

    def test_both_in_time(self) -> None:
        """An exit waits five seconds for spans and metrics together."""
        script = """
        from otel_llm.providers import providers
        tracers = providers(endpoint=url, metrics=False).tracer
        reader._spans = tracers._active_span_processor._span_processors[0]
        tracers.get_tracer("app").start_span("a").end()
        sold.add(1)
        started = time.monotonic()
        meters.shutdown()
        tracers.shutdown()
        print(time.monotonic() - started)
        """
        with hanging() as url:
            assert 4.5 < float(run(script, url, METERS)) < 5.3


APP = """
import os, otel_llm
otel_llm.configure(endpoint={url!r})
pid = os.getpid()
def trace():
    pid = os.getpid()
    with otel_llm.trace_request("chat", model="m", provider="p", attributes={{"pid": pid}}):
        pass
    return str(pid).encode()
trace()
def wsgi(environ, start_response):
    start_response("200 OK", [("content-type", "text/plain"), ("connection", "close")])
    return [trace()]
async def asgi(scope, receive, send):
    assert scope["type"] == "http"
    head = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({{"type": "http.response.start", "status": 200, "headers": head}})
    await send({{"type": "http.response.body", "body": trace()}})
"""


class TestGunicorn:
    """`--preload`: set up in the master, served by forked workers."""

    @pytest.mark.parametrize(
        ("app", "worker"),
        [("app:wsgi", "sync"), ("app:asgi", "tests.export.uvicorn_worker.Worker")],
    )
    def test_each_worker(self, receiver: Receiver, tmp_path: Path, app: str, worker: str) -> None:
        """Spans and metrics of both workers arrive, those of the master too."""
        (tmp_path / "app.py").write_text(APP.format(url=receiver.url))
        with _gunicorn(tmp_path, app, worker) as url:
            served = _requests(url)
        counts = spans_by_pid(receiver)
        master = set(counts) - set(served)
        assert len(master) == 1
        assert {**served, **dict.fromkeys(master, 1)} == counts
        seen = points(receiver, "gen_ai.server.request.duration")
        assert len(seen) == 3


def _requests(url: str) -> dict[int, int]:
    """Ask until both workers have answered; how often each did."""
    served: dict[int, int] = {}
    end = time.monotonic() + 20
    while len(served) < 2 or sum(served.values()) < 20:
        assert time.monotonic() < end
        with urllib.request.urlopen(url, timeout=5) as answer:
            pid = int(answer.read())
        served[pid] = served.get(pid, 0) + 1
    return served


class _gunicorn:  # noqa: N801 - reads as a statement
    """The server with two workers, stopped in good order at the end."""

    def __init__(self, folder: Path, app: str, worker: str) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = found.getsockname()[1]
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
        command += ["--bind", f"127.0.0.1:{self._port}", "--worker-class", worker]
        command += ["--pythonpath", str(folder), "--no-control-socket", app]
        environ = {**os.environ, "PYTHONPATH": str(REPO)}
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=self._log, stderr=self._log
        )

    def __enter__(self) -> str:
        url = f"http://127.0.0.1:{self._port}/"
        end = time.monotonic() + 15
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                assert time.monotonic() < end, self._said()
                assert self._process.poll() is None, self._said()
                time.sleep(0.05)
            else:
                return url

    def __exit__(self, *_error: Any) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()

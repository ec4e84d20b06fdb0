"""Field case D-EXP-01: workers that were forked, in each way there is."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tests.export.processes import run, spans_by_pid
from tests.fakes.otlp import Receiver, receiving

WORK = """
import ctypes

def set_up():
    otel_llm.configure(endpoint=url)

def call(calls):
    for _ in range(calls):
        pid = os.getpid()
        with otel_llm.trace_request("chat", model="m", provider="p", attributes={"pid": pid}) as r:
            r.output(1)

def in_children(fork, work):
    children = []
    for _ in range(4):
        child = fork()
        if child == 0:
            work()
            sys.exit()
        children.append(child)
    return all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
PRE_LOADED = """
set_up()
call(1)
assert in_children(os.fork, lambda: call(10))
call(1)
"""
MULTIPROCESSING = """
set_up()
call(1)
fork = multiprocessing.get_context("fork")
children = [fork.Process(target=call, args=(10,)) for _ in range(4)]
for child in children: child.start()
for child in children: child.join()
assert [0] * 4 == [child.exitcode for child in children]
call(1)
"""
WITHOUT_HOOKS = """
from opentelemetry.sdk.trace import TracerProvider
from otel_llm.export.batch import BatchProcessor
from otel_llm.export.http import HttpSpanExporter
from otel_llm.export.ids import ProcessIdGenerator
provider = TracerProvider(id_generator=ProcessIdGenerator())
provider.add_span_processor(BatchProcessor(HttpSpanExporter(url + "/v1/traces", {}), {}))
otel_llm.instrument(engines=[], tracer_provider=provider)
call(1)
provider.force_flush()
time.sleep(0.3)  # such a fork hangs in CPython itself while another thread waits for its lock
assert in_children(ctypes.PyDLL(None).fork, lambda: call(10))
call(1)
"""
AFTER_THE_FORK = """
def work():
    set_up()
    call(10)
assert in_children(os.fork, work)
set_up()
call(2)
"""
VARIANTS = {
    "pre-loaded": PRE_LOADED,
    "multiprocessing": MULTIPROCESSING,
    "a fork without hooks": WITHOUT_HOOKS,
    "set up after the fork": AFTER_THE_FORK,
}
GREENLETS = """
from gevent import monkey
monkey.patch_all()
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that keeps connections open."""
    monkeypatch.setattr(BaseHTTPRequestHandler, "protocol_version", "HTTP/1.1")
    with receiving() as found:
        yield found


def check(receiver: Receiver) -> None:
    """40 of 40 spans of four workers and the parent's own, with ids that are all different."""
    requests = [span for span in receiver.spans if not span.name.startswith("llm.")]
    assert sorted(spans_by_pid(receiver).values()) == [2, 10, 10, 10, 10]
    assert len({span.trace_id for span in requests}) == 42
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_span_of_every_worker(receiver: Receiver, variant: str) -> None:
    """Four workers with ten calls each; nothing hangs, and the parent still exports."""
    run(VARIANTS[variant], receiver, WORK)
    check(receiver)


@pytest.mark.parametrize("variant", ["pre-loaded", "set up after the fork"])
def test_with_greenlets_for_threads(receiver: Receiver, variant: str) -> None:
    """The same where the exporting thread is a greenlet, and the application ends it.

    Since Python 3.12 gevent cannot connect any more when the interpreter ends. Not for a fork
    without hooks: gevent's own loop is then shared with the parent.
    """
    pytest.importorskip("gevent")
    ending = "otel_llm.uninstrument()\n"
    work = WORK.replace("            sys.exit()", f"            {ending}            sys.exit()")
    run(VARIANTS[variant] + ending, receiver, GREENLETS + work)
    check(receiver)


def test_a_seed_of_the_application(receiver: Receiver) -> None:
    """Workers that all seed the global source of chance have ids of their own."""
    script = WITHOUT_HOOKS.replace("lambda: call(10)", "seeded")
    run(f"import random\ndef seeded():\n    random.seed(0)\n    call(10)\n{script}", receiver, WORK)
    check(receiver)

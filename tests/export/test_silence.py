"""An endpoint in the environment, and nobody who exports to it."""

from __future__ import annotations

from tests.export.processes import run

SETUP = """
import logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")
"""
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def test_told_once() -> None:
    """By the variable's name, with what to do."""
    script = "otel_llm.instrument(engines=[]); otel_llm.instrument(engines=[])"
    (line,) = run(script, "", SETUP, **ENDPOINT).splitlines()
    assert line.startswith("OTEL_EXPORTER_OTLP_ENDPOINT is set, but instrument() makes no exporter")
    assert "otel_llm.configure()" in line


def test_nothing_is_asked_for() -> None:
    """Without an endpoint nothing is amiss."""
    assert run("otel_llm.instrument(engines=[])", "", SETUP) == ""


def test_somebody_exports() -> None:
    """A provider that is given, or that is everybody's, is enough."""
    script = """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    provider = TracerProvider()
    otel_llm.instrument(engines=[], tracer_provider=provider)
    otel_llm.uninstrument()
    trace.set_tracer_provider(provider)
    otel_llm.instrument(engines=[])
    """
    assert run(script, "", SETUP, **ENDPOINT) == ""


def test_configured() -> None:
    """`configure` exports by itself."""
    script = "otel_llm.configure(engines=[], metrics=False); otel_llm.instrument(engines=[])"
    assert run(script, "", SETUP, **ENDPOINT) == ""

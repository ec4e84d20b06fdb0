"""Settings from the environment, and switching on and off."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry import metrics, trace

import otel_llm
from otel_llm import ConfigurationError, UnsupportedEngineError, config
from otel_llm.adapters.registry import ENGINES
from otel_llm.config import RUNTIME, Settings
from otel_llm.emit.settings import EmitSettings
from otel_llm.instrumentors import VllmInstrumentor, vllm_plugin
from otel_llm.propagation.identity import IdentityKey
from otel_llm.semconv import GENAI_MAIN
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.fakes import vllm
from tests.fakes.asgi import Connection
from tests.servers.builders import ANSWER, PARENT, SERVER

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
FLAGS = [
    ("OTEL_LLM_DISABLED", "disabled"),
    ("OTEL_LLM_TRUST_REMOTE", "trust_remote"),
    ("OTEL_LLM_PHASE_SPANS", "phase_spans"),
    ("OTEL_LLM_LATENCY_ALIASES", "latency_aliases"),
    (CAPTURE, "capture_content"),
]


def setting(field: str, **environ: str) -> Any:
    """One setting as the environment has it."""
    found = Settings.from_environment(environ)
    return getattr(found if hasattr(found, field) else found.emit, field)


class TestEnvironment:
    """Every variable, right and wrong."""

    def test_defaults(self) -> None:
        """An empty environment is the default, and so is one of empty variables."""
        names = [name for name, _ in FLAGS] + ["OTEL_LLM_ENGINES", "OTEL_LLM_CONTEXT_KEYS"]
        names += ["OTEL_LLM_SEMCONV", "OTEL_LLM_CONTENT_LIMIT"]
        expected = Settings(emit=EmitSettings())
        assert [expected] * 2 == [
            Settings.from_environment(environ) for environ in ({}, dict.fromkeys(names, " "))
        ]
        assert (
            expected.disabled,
            expected.engines,
            expected.trust_remote,
        ) == (False, None, True)

    @pytest.mark.parametrize(("name", "field"), FLAGS)
    @pytest.mark.parametrize("value", ["1", "true", "TRUE", " Yes ", "on"])
    def test_flags_on(self, name: str, field: str, value: str) -> None:
        """Every way to say yes."""
        assert setting(field, **{name: value}) is True

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("true", True), (" TRUE", True), ("false", False), ("1", False), ("maybe", False)],
    )
    def test_the_sdks_switch(self, value: str, expected: bool) -> None:
        """Where the SDK is off, so are we; the specification knows `true` alone."""
        assert expected is setting("disabled", OTEL_SDK_DISABLED=value)

    @pytest.mark.parametrize(("name", "field"), FLAGS)
    @pytest.mark.parametrize("value", ["0", "false", "False ", "no", "OFF"])
    def test_flags_off(self, name: str, field: str, value: str) -> None:
        """Every way to say no."""
        assert setting(field, **{name: value}) is False

    @pytest.mark.parametrize(
        ("name", "value"),
        [(name, "maybe") for name, _ in FLAGS]
        + [(name, "2") for name, _ in FLAGS]
        + [("OTEL_LLM_SEMCONV", "1.40"), ("OTEL_LLM_CONTEXT_KEYS", "Tenant")]
        + [("OTEL_LLM_CONTENT_LIMIT", value) for value in ("0", "-1", "1.5", "many", "9" * 30)],
    )
    def test_wrong_values(self, name: str, value: str) -> None:
        """The message names the variable."""
        with pytest.raises(ConfigurationError, match=name):
            Settings.from_environment({name: value})

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("vllm", ("vllm",)), (" vllm ,,", ("vllm",)), (" , ", None)],
    )
    def test_engines(self, text: str, expected: object) -> None:
        """Names separated by commas; none named is all."""
        assert expected == setting("engines", OTEL_LLM_ENGINES=text)

    def test_context_keys(self) -> None:
        """As the identity module reads them."""
        expected = (IdentityKey("tenant", "header", "x-tenant"),)
        assert expected == setting("context_keys", OTEL_LLM_CONTEXT_KEYS="tenant=header:X-Tenant")

    def test_vocabulary(self) -> None:
        """By its name."""
        assert GENAI_MAIN is setting("vocabulary", OTEL_LLM_SEMCONV=" genai-main ")

    def test_content_limit(self) -> None:
        """Characters."""
        assert setting("content_limit", OTEL_LLM_CONTENT_LIMIT=" 100 ") == 100

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("SPAN_ONLY", True), ("span_only", True), ("NO_CONTENT", False)],
    )
    def test_capture_modes(self, value: str, expected: bool) -> None:
        """The modes of OpenTelemetry's own GenAI packages."""
        assert expected is setting("capture_content", **{CAPTURE: value})

    @pytest.mark.parametrize(
        ("value", "expected"), [("SPAN_AND_EVENT", True), ("EVENT_ONLY", False)]
    )
    def test_events_are_not_written(
        self, value: str, expected: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whoever asks for events is told, and gets what there is on spans."""
        assert expected is setting("capture_content", **{CAPTURE: value})
        assert "not as events" in caplog.text

    def test_the_process_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Read when nothing else is given."""
        monkeypatch.setenv("OTEL_LLM_DISABLED", "1")
        assert Settings.from_environment().disabled


class TestInstrument:
    """Switching on."""

    def test_the_given_providers(self, captured: CapturedTelemetry) -> None:
        """Spans and metrics go there, and nowhere else."""
        otel_llm.instrument(engines=[], **captured.providers)
        with otel_llm.trace_request("chat", model="tiny", provider="demo"):
            pass
        assert captured.tree() == ["chat tiny"]
        assert len(captured.points("gen_ai.server.request.duration")) == 1

    def test_global_providers_stay(self, captured: CapturedTelemetry) -> None:
        """They are neither set nor replaced."""
        before = trace.get_tracer_provider(), metrics.get_meter_provider()
        otel_llm.instrument(**captured.providers)
        assert before == (trace.get_tracer_provider(), metrics.get_meter_provider())

    def test_twice(self, captured: CapturedTelemetry) -> None:
        """The second call changes nothing."""
        otel_llm.instrument(engines=[], **captured.providers)
        first = RUNTIME.telemetry
        other = captured_telemetry()
        otel_llm.instrument(engines=[], **other.providers)
        assert first is RUNTIME.telemetry

    def test_arguments_win_over_the_environment(
        self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is said in code is meant."""
        monkeypatch.setenv(CAPTURE, "true")
        otel_llm.instrument(engines=[], capture_content=False, redact=_hidden, **captured.providers)
        assert RUNTIME.telemetry is not None
        settings = RUNTIME.telemetry.settings
        assert (False, _hidden) == (settings.capture_content, settings.redact)

    def test_the_environment_holds_otherwise(
        self, captured: CapturedTelemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is not said in code is read from there."""
        monkeypatch.setenv(CAPTURE, "true")
        otel_llm.instrument(engines=[], **captured.providers)
        assert RUNTIME.telemetry is not None
        assert RUNTIME.telemetry.settings.capture_content

    def test_a_wrong_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is switched on."""
        monkeypatch.setenv("OTEL_LLM_SEMCONV", "2.0")
        with pytest.raises(ConfigurationError, match="OTEL_LLM_SEMCONV"):
            otel_llm.instrument()
        assert (RUNTIME.telemetry, RUNTIME.patches) == (None, {})

    def test_an_unknown_engine(self) -> None:
        """Told by name."""
        with pytest.raises(UnsupportedEngineError, match="unknown engine 'vlm'"):
            otel_llm.instrument(engines=["vlm"])

    @pytest.mark.parametrize(
        ("engines", "environment", "expected"),
        [
            (None, None, list(ENGINES)),
            (["vllm"], None, ["vllm"]),
            (None, "vllm", ["vllm"]),
            ([], None, []),
            ([], "vllm", []),
        ],
    )
    def test_engines(
        self,
        monkeypatch: pytest.MonkeyPatch,
        engines: list[str] | None,
        environment: str | None,
        expected: list[str],
    ) -> None:
        """All, or those named in the argument, or those in the environment."""
        if environment is not None:
            monkeypatch.setenv("OTEL_LLM_ENGINES", environment)
        otel_llm.instrument(engines=engines)
        assert expected == list(RUNTIME.patches)

    @pytest.mark.parametrize("name", ["OTEL_LLM_DISABLED", "OTEL_SDK_DISABLED"])
    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Nothing is patched, no telemetry is made."""
        monkeypatch.setenv(name, "true")
        otel_llm.instrument()
        assert (RUNTIME.telemetry, RUNTIME.patches) == (None, {})

    def test_after_a_mistake(self, captured: CapturedTelemetry) -> None:
        """A call that raised has changed nothing, so that the next one counts."""
        with suppress(otel_llm.OtelLLMError):
            otel_llm.instrument(engines=["vlm"], **captured_telemetry().providers)
        otel_llm.instrument(engines=[], **captured.providers)
        with otel_llm.trace_request("chat", provider="demo"):
            pass
        assert captured.tree() == ["chat"]

    @pytest.mark.parametrize("first", ["middleware", "instrument"])
    async def test_trust_holds_for_every_server(
        self, captured: CapturedTelemetry, first: str
    ) -> None:
        """Whoever says it once means all middleware of the process, made before or after."""
        early = otel_llm.InferenceMiddleware(ANSWER)
        otel_llm.instrument(engines=[], trust_remote=False, **captured.providers)
        app = early if first == "middleware" else otel_llm.InferenceMiddleware(ANSWER)
        await Connection().serve(app, headers={"traceparent": PARENT})
        assert captured.span(SERVER).parent is None


class TestUninstrument:
    """Switching off."""

    def test_everything(self, captured: CapturedTelemetry) -> None:
        """Functions and telemetry."""
        otel_llm.instrument(**captured.providers)
        otel_llm.uninstrument()
        assert (RUNTIME.telemetry, RUNTIME.patches) == (None, {})

    def test_one_engine(self, captured: CapturedTelemetry) -> None:
        """By its name; an unknown one is no mistake here."""
        otel_llm.instrument(engines=["vllm", "openai"], **captured.providers)
        otel_llm.uninstrument(["openai", "nobody"])
        assert list(RUNTIME.patches) == ["vllm"]
        otel_llm.uninstrument(["vllm"])
        assert RUNTIME.patches == {}

    def test_without_instrument(self) -> None:
        """Nothing to do."""
        otel_llm.uninstrument()
        assert RUNTIME.patches == {}

    def test_and_on_again(self, captured: CapturedTelemetry) -> None:
        """With other providers."""
        otel_llm.instrument(engines=[], **captured_telemetry().providers)
        otel_llm.uninstrument()
        otel_llm.instrument(engines=[], **captured.providers)
        with otel_llm.trace_request("chat", provider="demo"):
            pass
        assert captured.tree() == ["chat"]


class TestPlugin:
    """VLLM's entry point: no code of the user's runs."""

    def test_patches_and_makes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Providers wait until a server starts."""
        engine = vllm.installed(monkeypatch)
        original = vars(engine)["generate"]
        vllm_plugin()
        vllm_plugin()
        assert original is vars(engine)["generate"].__wrapped__
        assert RUNTIME.telemetry is None

    @pytest.mark.parametrize(
        ("name", "value"),
        [("OTEL_LLM_DISABLED", "1"), ("OTEL_SDK_DISABLED", "true")],
    )
    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
        """By the environment, without a word."""
        monkeypatch.setenv(name, value)
        vllm_plugin()
        assert RUNTIME.patches == {}

    def test_wrong_settings(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It stays off and says why in one line; the server starts."""
        monkeypatch.setenv("OTEL_LLM_SEMCONV", "2.0")
        vllm_plugin()
        assert RUNTIME.patches == {}
        (record,) = caplog.records
        assert (record.levelno, record.name) == (logging.ERROR, "otel_llm")
        assert "OTEL_LLM_SEMCONV" in record.getMessage()

    @pytest.fixture
    def app(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], FastAPI]:
        """A server of vLLM's that starts when it is called for."""
        vllm.installed(monkeypatch)

        def started() -> FastAPI:
            app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False})
            app.state.engine_client = object()
            app.build_middleware_stack()
            return app

        return started

    def test_global_providers_by_default(self, app: Callable[[], FastAPI]) -> None:
        """Without an endpoint, telemetry goes where the process sends its own."""
        vllm_plugin()
        assert RUNTIME.telemetry is None
        app()
        assert RUNTIME.telemetry is not None
        assert isinstance(RUNTIME.telemetry.tracer, trace.ProxyTracer)

    @pytest.mark.parametrize(
        ("environ", "name"),
        [
            ({}, "vllm"),
            ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
            ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}, "mine"),
        ],
    )
    def test_providers_for_an_endpoint(
        self,
        app: Callable[[], FastAPI],
        monkeypatch: pytest.MonkeyPatch,
        environ: dict[str, str],
        name: str,
    ) -> None:
        """Made when the server starts, under the service's own name if it has one."""
        exports = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
        for key, value in (exports | endpoint | environ).items():
            monkeypatch.setenv(key, value)
        vllm_plugin()
        app()
        assert RUNTIME.telemetry is not None
        resource = RUNTIME.telemetry.tracer.resource  # type: ignore[attr-defined]
        assert name == resource.attributes["service.name"]

    def test_an_endpoint_that_vllm_sets_later(
        self, app: Callable[[], FastAPI], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The address of vLLM's own exporter is none that the user gave us."""
        vllm_plugin()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4317")
        app()
        assert RUNTIME.telemetry is not None
        assert isinstance(RUNTIME.telemetry.tracer, trace.ProxyTracer)

    def test_settings_that_went_wrong_since(
        self,
        app: Callable[[], FastAPI],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The server starts without us, and one line says why."""
        vllm_plugin()
        monkeypatch.setenv("OTEL_LLM_SEMCONV", "2.0")
        assert app().user_middleware == []
        assert "OTEL_LLM_SEMCONV" in caplog.text


class TestInstrumentor:
    """OpenTelemetry's entry point."""

    def test_on_and_off(self, captured: CapturedTelemetry) -> None:
        """VLLM alone, with the providers that it is given."""
        instrumentor = VllmInstrumentor()
        instrumentor.instrument(skip_dep_check=True, **captured.providers)
        assert list(RUNTIME.patches) == ["vllm"]
        instrumentor.uninstrument()
        assert RUNTIME.patches == {}

    @pytest.mark.parametrize(
        ("engines", "patched"), [("vllm", ["vllm"]), ("", ["vllm"]), ("x", [])]
    )
    def test_engines_that_are_wanted(
        self,
        captured: CapturedTelemetry,
        monkeypatch: pytest.MonkeyPatch,
        engines: str,
        patched: list[str],
    ) -> None:
        """The variable limits it too, as it limits the plugin."""
        monkeypatch.setenv("OTEL_LLM_ENGINES", engines)
        VllmInstrumentor().instrument(**captured.providers)
        assert patched == list(RUNTIME.patches)

    def test_dependencies(self) -> None:
        """None by name, since vLLM's distribution has several."""
        assert not VllmInstrumentor().instrumentation_dependencies()

    def test_wrong_settings(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Logged, since raising would stop the loader before all other instrumentations."""
        monkeypatch.setenv("OTEL_LLM_SEMCONV", "2.0")
        VllmInstrumentor().instrument()
        assert (RUNTIME.telemetry, RUNTIME.patches) == (None, {})
        assert "OTEL_LLM_SEMCONV" in caplog.text


class TestRuntime:
    """What is in force."""

    def test_without_set_up(self) -> None:
        """Telemetry on the global providers, made once."""
        assert RUNTIME.current() is RUNTIME.current()

    def test_settings_are_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not for every request; until they are forgotten."""
        before = RUNTIME.settings
        monkeypatch.setenv("OTEL_LLM_DISABLED", "1")
        assert before is RUNTIME.settings
        config.RUNTIME.reset()
        assert RUNTIME.settings.disabled


def _hidden(_attribute: str, _content: object) -> object:
    return None

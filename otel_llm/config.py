"""Settings from arguments and environment, and the process-wide state they produce.

Arguments win over `OTEL_*`, which win over `OTEL_LLM_*`. Wrong values raise
`ConfigurationError` from `instrument` and `configure`; in a process where the library was loaded
by an entry point they are logged and the library stays off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import ENGINES, Engine, Host, engine
from otel_llm.emit.objectives import parse_objectives
from otel_llm.emit.settings import Beside, EmitSettings, Redact, attribute_names
from otel_llm.emit.telemetry import Telemetry
from otel_llm.emit.values import Value
from otel_llm.errors import ConfigurationError
from otel_llm.guard import guard
from otel_llm.host.settings import HostSettings
from otel_llm.propagation.identity import IdentityKey, parse_keys
from otel_llm.semconv import VOCABULARIES
from otel_llm.servers.asgi import ServerSettings
from otel_llm.variables import choice, flag, number, switch_or_text

if TYPE_CHECKING:
    from otel_llm.host.watch import Watcher
    from otel_llm.providers import Providers

_log = logging.getLogger("otel_llm")
Slo = Mapping[str, object] | str
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES = {"span_only": True, "span_and_event": True, "event_only": False, "no_content": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the environment says; see `docs/configuration.md` for each variable."""

    disabled: bool = False
    engines: tuple[str, ...] | None = None
    trust_remote: bool = True
    vllm_stats: bool = True
    prometheus: bool | str = False
    logs: bool = False
    beside: Beside = Beside.JOIN
    host: HostSettings = field(default_factory=HostSettings)
    context_keys: tuple[IdentityKey, ...] = ()
    emit: EmitSettings = field(default_factory=EmitSettings)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables; raises `ConfigurationError` that names the variable at fault."""
        env = os.environ if environ is None else environ
        names = [name.strip() for name in env.get("OTEL_LLM_ENGINES", "").split(",")]
        return cls(
            disabled=flag(env, "OTEL_LLM_DISABLED", default=False)
            or env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true",
            engines=_known(name for name in names if name),
            trust_remote=flag(env, "OTEL_LLM_TRUST_REMOTE", default=True),
            vllm_stats=flag(env, "OTEL_LLM_VLLM_STATS", default=True),
            prometheus=switch_or_text(env, "OTEL_LLM_PROMETHEUS"),
            logs=flag(env, "OTEL_LLM_LOGS", default=False),
            beside=Beside(choice(env, "OTEL_LLM_BESIDE", Beside, Beside.JOIN)),
            host=HostSettings.from_environment(env),
            context_keys=parse_keys(env.get("OTEL_LLM_CONTEXT_KEYS", "")),
            emit=_emit_settings(env),
        )


def _known(names: Iterable[str]) -> tuple[str, ...] | None:
    """The engines that `OTEL_LLM_ENGINES` names; those of other versions are passed over."""
    found = tuple(names)
    for name in found:
        if name not in ENGINES:
            known = ", ".join(sorted(ENGINES))
            _log.warning("OTEL_LLM_ENGINES names %r, which is unknown; known are: %s", name, known)
    return tuple(name for name in found if name in ENGINES) if found else None


def _emit_settings(env: Mapping[str, str]) -> EmitSettings:
    name = env.get("OTEL_LLM_SEMCONV", "1.41").strip() or "1.41"
    if name not in VOCABULARIES:
        known = ", ".join(VOCABULARIES)
        raise ConfigurationError(f"OTEL_LLM_SEMCONV is {name!r}; it must be one of: {known}")
    return EmitSettings(
        vocabulary=VOCABULARIES[name],
        phase_spans=flag(env, "OTEL_LLM_PHASE_SPANS", default=True),
        latency_aliases=flag(env, "OTEL_LLM_LATENCY_ALIASES", default=False),
        chunk_metrics=flag(env, "OTEL_LLM_CHUNK_METRICS", default=False),
        capture_content=_captures(env),
        content_limit=number(env, "OTEL_LLM_CONTENT_LIMIT", default=32_768),
        slo=parse_objectives(env.get("OTEL_LLM_SLO", ""), "OTEL_LLM_SLO"),
        metric_attributes=attribute_names(env.get("OTEL_LLM_METRIC_ATTRIBUTES", "")),
    )


def _captures(env: Mapping[str, str]) -> bool:
    value = env.get(CAPTURE, "").strip().lower()
    if "event" in value:
        _log.warning("%s is %s; content is written on spans only, not as events", CAPTURE, value)
    if value in _CAPTURES:
        return _CAPTURES[value]
    return flag({CAPTURE: value}, CAPTURE, default=False)


class Runtime:
    """What is switched on in this process."""

    def __init__(self) -> None:
        self.telemetry: Telemetry | None = None
        """What was set up; while nothing is, the global providers serve (`current`)."""
        self._implicit: Telemetry | None = None
        self.patches: dict[str, Patches] = {}
        self.engine: dict[str, Value] = {}
        """What adapters say of the engine of this process: attributes of our own resource."""
        self.asked = False
        """Whether `instrument` was called in code."""
        self.failed = False
        """Whether a set-up without code went wrong."""
        self.closing: list[Callable[[], object]] = []
        """What ends the threads and servers that `configure` has started."""
        self._vllm_stats: bool | None = None
        self._settings: Settings | None = None
        self._server: ServerSettings | None = None

    @property
    def settings(self) -> Settings:
        """The environment's settings, read once."""
        if self._settings is None:
            self._settings = Settings.from_environment()
        return self._settings

    @property
    def server(self) -> ServerSettings:
        """How servers of this process treat requests that arrive."""
        if self._server is None:
            settings = self.settings
            self._server = ServerSettings(
                trust_remote=settings.trust_remote, context_keys=settings.context_keys
            )
        return self._server

    @property
    def vllm_stats(self) -> bool:
        """Whether statistics may be switched on that nobody has spoken about."""
        return self.settings.vllm_stats if self._vllm_stats is None else self._vllm_stats

    @vllm_stats.setter
    def vllm_stats(self, wanted: bool) -> None:
        self._vllm_stats = wanted

    def trust(self, remote: bool) -> None:
        """Join incoming traces from now on, or link them."""
        self._server = replace(self.server, trust_remote=remote)

    def watch(self, host: HostSettings) -> Watcher | None:
        """What looks at the machine around requests, if *host* switches it on; `reset` ends it."""
        if host == HostSettings():
            return None
        from otel_llm.host.watch import Watcher

        found = Watcher(host)
        self.closing.append(found.close)
        return found

    def use(
        self, made: Providers, emit: EmitSettings, *, logs: bool, host: HostSettings | None = None
    ) -> Telemetry:
        """Take over providers that were made for this process.

        With *logs*, log records are stamped; without *host* the environment's is used.
        """
        if logs:
            from otel_llm.logs import correlate

            self.closing.append(correlate())
        self.telemetry = Telemetry(
            made.tracer,
            made.meter,
            emit,
            finished_spans=made.finished_spans,
            histograms=made.histograms,
            around=self.watch(host or self.settings.host),
        )
        self.closing += made.closing
        return self.telemetry

    def reset(self) -> None:
        """End what `configure` has started; forget telemetry and settings. Patches stay."""
        ended, self.telemetry, self._implicit = self.telemetry, None, None
        if ended is not None:
            with guard("config.finish_open"):
                ended.finish_open()  # their spans can still be exported
        closing, self.closing = self.closing, []
        for close in closing:
            with guard("config.close"):
                close()
        self._settings = None
        self._server = None
        self._vllm_stats = None
        self.asked = self.failed = False
        self.engine.clear()

    def current(self) -> Telemetry:
        """The telemetry in force, made on the global providers when nothing was set up."""
        if self.telemetry is not None:
            return self.telemetry
        if self._implicit is None:
            settings = self.settings
            self._implicit = Telemetry(settings=settings.emit, around=self.watch(settings.host))
        return self._implicit


RUNTIME = Runtime()


def instrument(
    *,
    engines: Iterable[str] | None = None,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    capture_content: bool | None = None,
    redact: Redact | None = None,
    vllm_stats: bool | None = None,
    trust_remote: bool | None = None,
    slo: Slo | None = None,
    metric_attributes: Iterable[str] | None = None,
) -> None:
    """Instrument the engines that are installed; calling it again changes nothing.

    Args:
        engines: Names of engines; all by default, or those in `OTEL_LLM_ENGINES`.
        tracer_provider: Where spans go; the global provider by default. Never replaced.
        meter_provider: Where metrics go; the global provider by default. Never replaced.
        capture_content: Write prompts and answers; off unless the environment says so.
        redact: Called with attribute name and content before content is written.
        vllm_stats: Switch vLLM's statistics on (default) where its user has passed nothing.
        trust_remote: Join incoming traces (default) or, if False, start new ones linked to them.
        slo: Objectives that every request is judged by, `{"ttft": "500ms", "tpot": "40ms"}`.
        metric_attributes: Attributes of requests that are put on their metrics too.

    Raises:
        ConfigurationError: A setting or environment variable is wrong.
        UnsupportedEngineError: An engine named in *engines* is unknown.
    """
    settings = Settings.from_environment()
    if settings.disabled:
        return
    emit = emit_settings(
        settings,
        capture_content=capture_content,
        redact=redact,
        slo=slo,
        metric_attributes=metric_attributes,
    )
    rows = rows_of(engines if engines is not None else settings.engines)
    chosen = (tracer_provider, meter_provider) != (None, None) or emit != settings.emit
    if RUNTIME.telemetry is None and chosen:
        around = RUNTIME.watch(settings.host)
        RUNTIME.telemetry = Telemetry(tracer_provider, meter_provider, emit, around=around)
    if trust_remote is not None:
        RUNTIME.trust(trust_remote)
    if vllm_stats is not None:
        RUNTIME.vllm_stats = vllm_stats
    if RUNTIME.telemetry is None:
        from otel_llm.providers import warn_of_silence

        warn_of_silence()
    RUNTIME.asked = True
    install(rows, host(RUNTIME.current))


def emit_settings(
    settings: Settings,
    *,
    capture_content: bool | None,
    redact: Redact | None,
    slo: Slo | None,
    metric_attributes: Iterable[str] | None,
) -> EmitSettings:
    """What the environment says, with every argument that was given in its place."""
    given: dict[str, Any] = {
        "capture_content": capture_content,
        "redact": redact,
        "slo": None if slo is None else parse_objectives(slo, "slo"),
        "metric_attributes": None
        if metric_attributes is None
        else attribute_names(metric_attributes),
    }
    return replace(settings.emit, **{k: value for k, value in given.items() if value is not None})


def host(telemetry: Callable[[], Telemetry | None]) -> Host:
    """What adapters are given in this process."""
    return Host(
        telemetry=telemetry,
        server=lambda: RUNTIME.server,
        vllm_stats=lambda: RUNTIME.vllm_stats,
        beside=lambda: RUNTIME.settings.beside,
        engine=RUNTIME.engine,
    )


def rows_of(names: Iterable[str] | None) -> list[Engine]:
    """The registry's rows of *names*, or all; raises `UnsupportedEngineError`."""
    return list(ENGINES.values()) if names is None else [engine(name) for name in names]


def install(rows: Iterable[Engine], host: Host) -> None:
    """Apply the adapters of *rows* that are not applied yet."""
    for row in rows:
        if row.name not in RUNTIME.patches:
            RUNTIME.patches[row.name] = row.adapter().install(host)


def uninstrument(engines: Iterable[str] | None = None) -> None:
    """Give every patched function back; with *engines*, only those of the engines named."""
    for name in list(RUNTIME.patches) if engines is None else list(engines):
        patches = RUNTIME.patches.pop(name, None)
        if patches is not None:
            patches.undo()
    if not RUNTIME.patches:
        RUNTIME.reset()

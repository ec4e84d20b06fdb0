"""Whether the environment's variables say what their writer meant."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from otel_llm.config import CAPTURE, Settings
from otel_llm.doctor.finding import Finding, error, info, ok, warning
from otel_llm.doctor.network import targets
from otel_llm.errors import ConfigurationError
from otel_llm.host.settings import GPU, HostSettings
from otel_llm.propagation.headers import header_fields

if TYPE_CHECKING:
    from otel_llm.doctor.environment import Environment

_PACKAGE = Path(__file__).parents[1]
_FOR_TESTS = "OTEL_LLM_TEST_"
LITTLE = 0.1
"""Below this share of traces the sampler is worth a warning."""
_SAMPLER, _ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_SIGNALS = ("", "TRACES_", "METRICS_")
_WHOLE_NUMBERS = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
)
_NVML = {"nvidia-ml-py", "nvidia-ml-py3", "pynvml"}
_COMPRESSIONS = {"none", "gzip", "deflate"}


def check(environment: Environment) -> Iterator[Finding]:
    """Settings of otel_llm, then those of OpenTelemetry."""
    env = environment.variables
    found = [
        *_settings(env),
        *_unknown(env),
        *_targets(env),
        *_values(env),
        *_sampler(env),
        *_gpu(environment),
        *_notes(env),
    ]
    yield from found or [ok("config.fine", "every variable can be read")]


def _settings(env: Mapping[str, str]) -> Iterator[Finding]:
    """What `Settings` makes of the variables; each wrong one is told, not the first alone."""
    left = dict(env)
    with _heard() as messages:
        while True:
            messages.clear()
            try:
                settings = Settings.from_environment(left)
            except ConfigurationError as wrong:
                yield _invalid(str(wrong))
                if left.pop(re.split(r"[\s:]", str(wrong))[0], None) is None:
                    return
            else:
                break
    for message in messages:
        yield warning("config.ignored", message, "That part has no effect.", "Correct it.")
    if settings.disabled:
        yield warning(
            "config.disabled",
            "OTEL_LLM_DISABLED or OTEL_SDK_DISABLED is true",
            "Everything is switched off.",
            "Unset it.",
        )
    if not settings.vllm_stats:
        yield warning(
            "config.no-statistics",
            "OTEL_LLM_VLLM_STATS is false",
            "An offline LLM then keeps no statistics, and its requests have no queue, prefill and "
            "decode. Servers keep theirs.",
            "Unset it, or pass disable_log_stats=False to LLM.",
        )


def _invalid(message: str) -> Finding:
    return error(
        "config.invalid",
        message,
        "instrument() and configure() raise; the vLLM plugin logs it and stays off.",
        "Correct it; docs/configuration.md lists what is accepted.",
    )


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Messages that the library logs meanwhile; a logger with a handler prints nothing itself."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("otel_llm")
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


@cache
def known_variables() -> frozenset[str]:
    """Every `OTEL_LLM_*` variable that the package's source names, so that no list gets old."""
    return frozenset(
        name
        for path in _PACKAGE.rglob("*.py")
        for name in re.findall(r"OTEL_LLM_[A-Z0-9_]*[A-Z0-9]", path.read_text("utf-8"))
    )


def _unknown(env: Mapping[str, str]) -> Iterator[Finding]:
    known = known_variables()
    for name in sorted(env):
        if name.startswith("OTEL_LLM_") and not name.startswith(_FOR_TESTS) and name not in known:
            close = get_close_matches(name, known, n=1)
            yield warning(
                "config.unknown",
                f"{name} is no variable of otel_llm",
                "It has no effect.",
                f"Did you mean {close[0]}?" if close else "Unset it.",
            )


def _targets(env: Mapping[str, str]) -> Iterator[Finding]:
    for signal in ("traces", "metrics"):
        try:
            targets(env, signals=(signal,))
        except ConfigurationError as wrong:
            yield _invalid(str(wrong))


def _values(env: Mapping[str, str]) -> Iterator[Finding]:
    """OpenTelemetry's own variables; the values of headers are never shown."""
    for name in _WHOLE_NUMBERS:
        value = env.get(name, "").strip()
        if value and not (value.isascii() and value.isdigit()):
            yield _wrong(f"{name} is {value!r}", "It must be a whole number, 0 or above.")
    for signal in _SIGNALS:
        own = f"OTEL_EXPORTER_OTLP_{signal}"
        if not _is_positive(timeout := env.get(f"{own}TIMEOUT", "").strip()):
            yield _wrong(f"{own}TIMEOUT is {timeout!r}", "It must be seconds above 0.")
        compression = env.get(f"{own}COMPRESSION", "").strip()
        if compression and compression.lower() not in _COMPRESSIONS:
            accepted = ", ".join(sorted(_COMPRESSIONS))
            yield _wrong(f"{own}COMPRESSION is {compression!r}", f"It must be one of {accepted}.")
    if header_fields(env.get("OTEL_RESOURCE_ATTRIBUTES", "")) is None:
        yield _wrong(
            "OTEL_RESOURCE_ATTRIBUTES has an entry that is not key=value",
            "Write key=value,key=value, with values percent-encoded.",
        )


def _wrong(what: str, remedy: str) -> Finding:
    return warning("config.value", what, "OpenTelemetry ignores it or fails at start-up.", remedy)


def _is_positive(text: str) -> bool:
    """Whether *text* is empty or a number of seconds."""
    try:
        return not text or 0 < float(text) < math.inf
    except ValueError:
        return False


def _sampler(env: Mapping[str, str]) -> Iterator[Finding]:
    name = env.get(_SAMPLER, "").strip().lower().removeprefix("parentbased_")
    if name == "always_off":
        share = 0.0
    elif name == "traceidratio":
        text = env.get(_ARGUMENT, "").strip() or "1"
        try:
            share = float(text)
        except ValueError:
            share = math.nan
        if not 0 <= share <= 1:
            yield _wrong(f"{_ARGUMENT} is {text!r}", "It must be a number from 0 to 1.")
            return
    else:
        return
    if share < 1:
        yield (warning if share < LITTLE else info)(
            "config.sampler",
            f"{_SAMPLER} keeps {share:.4g} of new traces",
            "A head sampler does not know which requests will be slow, and loses most of them. "
            "Metrics count every request all the same.",
            "Keep all here, and let a collector choose by latency (tail sampling).",
        )


def _gpu(environment: Environment) -> Iterator[Finding]:
    wanted = HostSettings()
    with suppress(ConfigurationError):  # told by `_settings`
        wanted = HostSettings.from_environment(environment.variables)
    if wanted.gpu and not _NVML & environment.distributions.keys():
        yield warning(
            "config.gpu",
            f"{GPU} is on, and nvidia-ml-py is not installed",
            "No GPU is looked at.",
            "pip install 'otel-llm[gpu]'",
        )


def _notes(env: Mapping[str, str]) -> Iterator[Finding]:
    with _heard():
        try:
            captures = Settings.from_environment({CAPTURE: env.get(CAPTURE, "")})
        except ConfigurationError:  # told by `_settings`
            captures = Settings()
    if captures.emit.capture_content:
        yield info(
            "config.content",
            "prompts and answers are written on spans",
            "Whoever can read the traces can read them.",
            f"Unset {CAPTURE}, or pass redact= to instrument().",
        )
    if env.get("OTEL_LLM_STRICT", "").strip().lower() in {"1", "true", "yes", "on"}:
        yield warning(
            "config.strict",
            "OTEL_LLM_STRICT is on",
            "It is for tests: an error of telemetry fails the request.",
            "Unset it.",
        )

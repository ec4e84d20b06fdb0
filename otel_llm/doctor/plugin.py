"""Whether vLLM will load otel_llm, and who else writes spans of the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from otel_llm.doctor.finding import Finding, error, info, ok, warning
from otel_llm.doctor.installation import OURS

if TYPE_CHECKING:
    from otel_llm.doctor.environment import Environment

GROUP, NAME = "vllm.general_plugins", "otel_llm"
ALLOWED = "VLLM_PLUGINS"
_SAME_REQUESTS = ("opentelemetry-instrumentation-vllm", "openinference-instrumentation-vllm")
_HTTP_SERVERS = (
    "opentelemetry-instrumentation-fastapi",
    "opentelemetry-instrumentation-asgi",
    "opentelemetry-instrumentation-starlette",
)
_CLIENTS = (
    "openinference-instrumentation-",
    "opentelemetry-instrumentation-genai-",
    "opentelemetry-instrumentation-openai",
    "opentelemetry-instrumentation-ollama",
    "opentelemetry-instrumentation-anthropic",
    "opentelemetry-instrumentation-langchain",
    "opentelemetry-instrumentation-llamaindex",
    "opentelemetry-instrumentation-transformers",
)


def check(environment: Environment) -> Iterator[Finding]:
    """The plugin, then other instrumentation."""
    if environment.vllm is not None and OURS in environment.distributions:
        yield _plugin(environment)
    yield from _doubles(environment)
    yield from _beside(environment)


def _plugin(environment: Environment) -> Finding:
    if (GROUP, NAME) not in environment.entry_points:
        return error(
            "plugin.invisible",
            f"otel_llm has no entry point in {GROUP}",
            "vLLM does not load it; the installation is older or broken.",
            "Install otel-llm again.",
        )
    allowed = environment.variables.get(ALLOWED)
    if allowed is None or NAME in allowed.split(","):
        return ok("plugin.loaded", "vLLM will load the plugin in each of its processes")
    blank = NAME in (each.strip() for each in allowed.split(","))
    return error(
        "plugin.not-allowed",
        f"{ALLOWED} does not name {NAME}" + (" (blanks count)" if blank else ""),
        "It is a list of the only plugins that vLLM may load, without blanks.",
        f"Add {NAME} to {ALLOWED}, or unset it.",
    )


def _doubles(environment: Environment) -> Iterator[Finding]:
    for name in _SAME_REQUESTS:
        if name in environment.distributions:
            yield warning(
                "twice.vllm",
                f"{name} is installed",
                "If it is switched on, every request has two spans.",
                "Uninstall it, or name it in OTEL_PYTHON_DISABLED_INSTRUMENTATIONS.",
            )


def _beside(environment: Environment) -> Iterator[Finding]:
    servers = [name for name in _HTTP_SERVERS if name in environment.distributions]
    if servers:
        yield info(
            "twice.http-server",
            f"{', '.join(servers)} installed",
            "This is fine: its SERVER span is used, ours is the request span below it.",
        )
    clients = [
        name
        for name in sorted(environment.distributions)
        if name.startswith(_CLIENTS) and name not in _SAME_REQUESTS
    ]
    if clients:
        yield info(
            "twice.clients",
            f"client instrumentation: {', '.join(clients)}",
            "This is fine: its CLIENT spans become parents of the server's spans.",
        )
    if "tracing" in environment.fastapi:
        yield info(
            "twice.fastapi",
            "this FastAPI traces by itself",
            "This is fine: its SERVER span is used, ours is the request span below it.",
        )

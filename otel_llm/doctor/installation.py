"""What is installed, and whether it fits together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from otel_llm.adapters.registry import ENGINES
from otel_llm.doctor.finding import Finding, error, info, ok, warning

if TYPE_CHECKING:
    from otel_llm.doctor.environment import Environment

OURS = "otel-llm"
_FIRST, _LAST = (3, 11), (3, 14)
_OLDEST_API = (1, 30)
_RELEASED_TOGETHER = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-proto",
    "opentelemetry-exporter-otlp",
    "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
)


def check(environment: Environment) -> Iterator[Finding]:
    """Python, otel_llm, OpenTelemetry and vLLM."""
    yield from _python(environment)
    yield from _ours(environment)
    yield from _opentelemetry(environment)
    yield from _vllm(environment)


def _python(environment: Environment) -> Iterator[Finding]:
    version = ".".join(map(str, environment.python))
    if _FIRST <= environment.python[:2] <= _LAST:
        yield ok("install.python", f"Python {version}")
    else:
        yield warning(
            "install.python-unsupported",
            f"Python {version}",
            "otel_llm is made for Python 3.11 to 3.14.",
            "Use one of these.",
        )


def _ours(environment: Environment) -> Iterator[Finding]:
    version = environment.distributions.get(OURS)
    if version is not None:
        yield ok("install.otel-llm", f"otel_llm {version}")
    else:
        yield error(
            "install.otel-llm-missing",
            "otel_llm is not installed in this environment",
            "An entry point makes vLLM load it, and only an installed package has one.",
            "Run pip install 'otel-llm[vllm]' with the Python that runs vLLM.",
        )


def _opentelemetry(environment: Environment) -> Iterator[Finding]:
    found = {
        name: environment.distributions[name]
        for name in _RELEASED_TOGETHER
        if name in environment.distributions
    }
    api = found.get("opentelemetry-api")
    if api is not None and _numbers(api) < _OLDEST_API:
        yield error(
            "install.api-too-old",
            f"opentelemetry-api {api}",
            "otel_llm needs 1.30 or newer.",
            "Run pip install -U opentelemetry-api opentelemetry-sdk.",
        )
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in found.items())
        yield warning(
            "install.versions-differ",
            f"OpenTelemetry packages of several releases: {listed}",
            "They are released together and require each other in one version.",
            "Run pip check, and bring them to one version.",
        )
    elif api is not None:
        names = ", ".join(name.removeprefix("opentelemetry-") for name in found)
        yield ok("install.opentelemetry", f"OpenTelemetry {api}: {names}")
    if "opentelemetry-sdk" not in found:
        yield error(
            "install.no-sdk",
            "opentelemetry-sdk is not installed",
            "Without it nothing is recorded or exported.",
            "Run pip install 'otel-llm[otlp]'.",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split(".")[:2] if each.isdecimal())


def _vllm(environment: Environment) -> Iterator[Finding]:
    found = [
        f"{name} {environment.distributions[name]}"
        for name in ENGINES["vllm"].distributions
        if name in environment.distributions
    ]
    if len(found) > 1:
        yield warning(
            "install.several-vllm",
            f"several distributions of vLLM: {', '.join(found)}",
            "They overwrite each other's files.",
            "Uninstall all of them, and install one.",
        )
    elif found and environment.vllm is not None:
        yield ok("install.vllm", found[0])
    elif environment.vllm is not None:
        yield info(
            "install.vllm-unknown",
            "vLLM of an unknown version",
            "There is a package `vllm` and no distribution that otel_llm knows.",
        )
    else:
        yield info(
            "install.no-vllm",
            "no vLLM in this environment",
            "What is said about vLLM holds for the environment that has it.",
            "Run the doctor there, or give that Python with --python PATH.",
        )

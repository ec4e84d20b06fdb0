"""Sizes and names."""

from __future__ import annotations

import ast
from statistics import median

import pytest

from tests.architecture.source import Module, body_lines, functions, modules

LONGEST_FILE = 350
LONGEST_FUNCTION = 60
MEDIAN_FUNCTION = 8


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_files_and_functions_are_short(module: Module) -> None:
    """A file has at most 350 lines, a function at most 60."""
    assert len(module.text.splitlines()) <= LONGEST_FILE
    too_long = [each.name for each in functions(module) if body_lines(each) > LONGEST_FUNCTION]
    assert too_long == []


def test_the_median_function_is_short() -> None:
    """Half of all functions have at most eight lines."""
    lengths = [body_lines(each) for module in modules() for each in functions(module)]
    assert median(lengths) <= MEDIAN_FUNCTION


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_names_of_telemetry_are_written_once(module: Module) -> None:
    """No `gen_ai.` or `otel_llm.` attribute name stands outside `semconv.py`."""
    if module.name == "otel_llm.semconv":
        return
    docstrings = {
        id(node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    literals = [
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and node.value.startswith(("gen_ai.", "otel_llm.", "llm."))
    ]
    known = {each.name for each in modules()}
    assert [each for each in literals if each not in known and each != "otel_llm."] == []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_clocks_are_read_in_one_place(module: Module) -> None:
    """Nobody but `clock.py` imports `time`."""
    names = [name for name, _ in module.imports()]
    assert module.name == "otel_llm.clock" or "time" not in names

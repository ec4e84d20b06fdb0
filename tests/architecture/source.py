"""The package's source as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "otel_llm"


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The first name below the package: a layer is made of parts."""
        return self.name.split(".")[1] if "." in self.name else "__init__"

    def imports(self) -> Iterator[tuple[str, bool]]:
        """Every module imported, and whether that is at the top level."""
        top = {id(node) for node in _unconditional(self.tree)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, id(node) in top
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module, id(node) in top
                if node.module == "otel_llm":
                    yield from ((f"otel_llm.{alias.name}", id(node) in top) for alias in node.names)


def _unconditional(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of the module's body, without what only type checkers see."""
    return (node for node in tree.body if not isinstance(node, ast.If))


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        found.append(Module(name, path, text, ast.parse(text)))
    return tuple(found)


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    return (
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body without its docstring."""
    body = function.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1

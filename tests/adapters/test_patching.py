"""Replacing functions of libraries and giving them back, whoever else replaced them."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from otel_llm import guard
from otel_llm.adapters.patching import Patches


class Base:
    """A class of a library."""

    def greet(self) -> str:
        return "base"


@pytest.fixture
def library() -> type[Base]:
    """A fresh copy of the class, with the function as its own."""
    return type("Base", (), {"greet": Base.greet})


@pytest.fixture
def patches() -> Patches:
    """Nothing replaced yet."""
    return Patches("one")


def loud(patches: Patches) -> Callable[[Any], Any]:
    """A replacement that adds a mark while its patches are active."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def greet(self: Any) -> str:
            text: str = original(self)
            return f"{text}!" if patches.active else text

        return greet

    return make


class TestReplace:
    """One attribute of one owner."""

    def test_replaced(self, patches: Patches, library: type[Base]) -> None:
        """Callers get the replacement."""
        assert patches.replace(library, "greet", loud(patches))
        assert library().greet() == "base!"

    def test_once(self, patches: Patches, library: type[Base]) -> None:
        """A second time there is nothing to do, for whoever asks under that name."""
        patches.replace(library, "greet", loud(patches))
        assert not patches.replace(library, "greet", loud(patches))
        assert not Patches("one").replace(library, "greet", loud(patches))
        assert library().greet() == "base!"

    def test_by_several_adapters(self, patches: Patches, library: type[Base]) -> None:
        """Two engines may both need the same function of a web framework."""
        other = Patches("other")
        patches.replace(library, "greet", loud(patches))
        assert other.replace(library, "greet", loud(other))
        assert library().greet() == "base!!"
        other.undo()
        assert library().greet() == "base!"

    def test_missing(self, patches: Patches, library: type[Base]) -> None:
        """A version of a library without the function is left alone."""
        assert not patches.replace(library, "farewell", loud(patches))
        assert not hasattr(library, "farewell")

    def test_an_inherited_function_stays_where_it_is(
        self, patches: Patches, library: type[Base]
    ) -> None:
        """Base and subclass are never both wrapped for one call."""
        derived = type("Derived", (library,), {})
        patches.replace(library, "greet", loud(patches))
        assert not patches.replace(derived, "greet", loud(patches))
        assert derived().greet() == "base!"

    def test_a_module(self, patches: Patches) -> None:
        """Functions of modules are replaced in the same way."""
        module = ModuleType("library")
        module.greet = lambda _self: "module"  # type: ignore[attr-defined]
        patches.replace(module, "greet", loud(patches))
        assert module.greet(None) == "module!"


class TestUndo:
    """Giving everything back."""

    def test_the_original_itself(self, patches: Patches, library: type[Base]) -> None:
        """Not an equal one."""
        original = vars(library)["greet"]
        patches.replace(library, "greet", loud(patches))
        patches.undo()
        assert original is vars(library)["greet"]

    def test_a_reference_that_was_kept_is_inert(
        self, patches: Patches, library: type[Base]
    ) -> None:
        """It works on and does nothing of ours."""
        patches.replace(library, "greet", loud(patches))
        kept = library().greet
        patches.undo()
        assert kept() == "base"

    def test_somebody_elses_wrapper_stays(self, patches: Patches, library: type[Base]) -> None:
        """What was put over ours since is not torn out; ours below it is inert."""
        patches.replace(library, "greet", loud(patches))
        ours = library.greet

        def theirs(self: Any) -> str:
            return f"<{ours(self)}>"

        library.greet = theirs  # type: ignore[method-assign]
        patches.undo()
        assert (theirs, "<base>") == (vars(library)["greet"], library().greet())

    def test_twice(self, patches: Patches, library: type[Base]) -> None:
        """Nothing is left to give back."""
        patches.replace(library, "greet", loud(patches))
        patches.undo()
        library.greet = lambda _self: "new"  # type: ignore[method-assign]
        patches.undo()
        assert library().greet() == "new"

    def test_and_again(self, library: type[Base]) -> None:
        """After undoing, the same function can be replaced again."""
        for _ in range(2):
            patches = Patches("one")
            assert patches.replace(library, "greet", loud(patches))
            assert library().greet() == "base!"
            patches.undo()

    def test_several_levels(self, patches: Patches, library: type[Base]) -> None:
        """A subclass that has a function of its own and calls the base's."""

        def greet(self: Any) -> str:
            return f"derived {library.greet(self)}"

        derived = type("Derived", (library,), {"greet": greet})
        for owner in (library, derived):
            patches.replace(owner, "greet", loud(patches))
        assert derived().greet() == "derived base!!"
        patches.undo()
        assert derived().greet() == "derived base"

    def test_again_below_somebody_elses_wrapper(self, library: type[Base]) -> None:
        """A wrapper that copied our mark along with the function's name is not ours."""
        first, second = Patches("one"), Patches("one")
        first.replace(library, "greet", loud(first))
        ours = library.greet

        @functools.wraps(ours)
        def theirs(self: Any) -> str:
            return f"<{ours(self)}>"

        library.greet = theirs  # type: ignore[method-assign]
        first.undo()
        assert second.replace(library, "greet", loud(second))
        assert library().greet() == "<base>!"


class TestWhenImported:
    """Modules that are there, and modules that come later."""

    @pytest.fixture
    def name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> str:
        """A module that can be imported and is not."""
        name = f"library_of_{request.node.name}"
        (tmp_path / f"{name}.py").write_text("value = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return name

    def test_now_if_it_is_loaded(self, patches: Patches, name: str) -> None:
        """At once."""
        seen: list[Any] = []
        module = importlib.import_module(name)
        patches.when_imported(name, seen.append)
        assert [module] == seen

    def test_later_if_it_is_not(self, patches: Patches, name: str) -> None:
        """When it is imported, and not by us."""
        seen: list[Any] = []
        patches.when_imported(name, seen.append)
        assert (len(seen), name in sys.modules) == (0, False)
        assert importlib.import_module(name) in seen

    def test_not_after_undo(self, patches: Patches, name: str) -> None:
        """An import that comes too late changes nothing."""
        seen: list[Any] = []
        patches.when_imported(name, seen.append)
        patches.undo()
        importlib.import_module(name)
        assert seen == []

    def test_a_patch_that_fails(
        self, patches: Patches, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A library of another shape can be imported all the same."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        patches.when_imported(name, lambda module: module.no_such_class)
        assert importlib.import_module(name).value == 1
        assert guard.failures[f"patch.{name}"] == 1


def test_again_after_somebody_has_put_it_back() -> None:
    """What is found is ours but does nothing any more: the original below it is replaced."""

    class Owner:
        def call(self) -> str:
            return "original"

    def made(original: Any) -> Any:
        return lambda self: f"ours({original(self)})"

    first = Patches("again")
    assert first.replace(Owner, "call", made)
    theirs = Owner.call
    Owner.call = lambda self: "theirs"  # type: ignore[method-assign]
    first.undo()
    Owner.call = theirs  # type: ignore[method-assign]
    assert Patches("again").replace(Owner, "call", made)
    assert Owner().call() == "ours(original)"

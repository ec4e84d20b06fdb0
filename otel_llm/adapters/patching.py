"""Replacing functions of libraries, and giving them back.

A replacement that somebody kept a reference to (a bound method, a subclass attribute) goes on
working after `undo` and does nothing of ours: it asks `Patches.active` on every call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import wrapt

from otel_llm.guard import guard

_MARK = "__otel_llm_patch_"


@dataclass(slots=True)
class _Replaced:
    owner: Any
    name: str
    original: Any
    replacement: Any


class _Mark(NamedTuple):
    """What a replacement carries, to be known again."""

    by: Patches
    original: Any
    replacement: Any


class Patches:
    """The replacements of one adapter, told apart from those of others by *name*."""

    def __init__(self, name: str) -> None:
        self.active = True
        self._mark = f"{_MARK}{name}"
        self._replaced: list[_Replaced] = []

    def when_imported(self, module: str, patch: Callable[[Any], None]) -> None:
        """Run *patch* on *module* now if it is loaded, else when it is imported."""

        def apply(loaded: Any) -> None:
            if self.active:
                with guard(f"patch.{module}"):
                    patch(loaded)

        loaded = sys.modules.get(module)
        if loaded is not None:
            apply(loaded)
        else:
            wrapt.register_post_import_hook(apply, module)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """Replace `owner.name` by `make(original)`, once; False if it is missing or done already.

        Only an attribute that *owner* itself defines is replaced, so that a class and its
        subclass are never both wrapped for one call.
        """
        original = vars(owner).get(name)
        while (earlier := getattr(original, self._mark, None)) is not None:
            if earlier.replacement is not original:
                break  # copied onto another function by `functools.wraps`
            if earlier.by.active:
                return False
            original = earlier.original  # ours, inert: somebody's wrapper has put it back
        if original is None:
            return False
        replacement = make(original)
        setattr(replacement, self._mark, _Mark(self, original, replacement))
        setattr(owner, name, replacement)
        self._replaced.append(_Replaced(owner, name, original, replacement))
        return True

    def undo(self) -> None:
        """Give every function back; one that others have wrapped since stays, inert."""
        self.active = False
        for each in reversed(self._replaced):
            if vars(each.owner).get(each.name) is each.replacement:
                setattr(each.owner, each.name, each.original)
        self._replaced.clear()

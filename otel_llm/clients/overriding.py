"""Objects of libraries whose methods are overridden one by one, in place.

The object gets a subclass of its own class, made on the spot, that passes for it: identity, type
checks, attributes and pickling stay. What the methods need is kept on the object, so that nothing
keeps it alive that did not before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

STATE = "_otel_llm_state"


def override(target: Any, state: object, make: Callable[[type], dict[str, Any]]) -> None:
    """Give *target* the attributes that *make* returns for its class; `state(self)` is *state*.

    Raises:
        TypeError: The object's class has a layout that no subclass can share.
    """
    kind = type(target)
    target.__class__ = _subclass(kind, make)  # type: ignore[arg-type]
    setattr(target, STATE, state)


def is_overridden(target: Any) -> bool:
    """Whether *target* was given to `override` before."""
    return STATE in getattr(target, "__dict__", ())


def state(target: Any) -> Any:
    """What was given to `override`."""
    return vars(target)[STATE]


@functools.lru_cache(maxsize=128)
def _subclass(kind: type, make: Callable[[type], dict[str, Any]]) -> type:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = cast("Any", kind).__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        function, arguments, *rest = reduced
        if function.__name__ == "__newobj__":  # pickle insists on the class that the object has
            return object.__new__, (kind,), *rest
        return function, tuple(kind if each is type(self) else each for each in arguments), *rest

    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": reduce_ex,
    }
    return type(kind.__name__, (kind,), {**names, **make(kind)})

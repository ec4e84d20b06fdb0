"""The middleware of vLLM's server, however the server was started."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import replace
from typing import Any

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import ENGINES, Host
from otel_llm.adapters.vllm import describe
from otel_llm.emit.telemetry import Telemetry
from otel_llm.guard import guard
from otel_llm.servers.asgi import InferenceMiddleware, InsideMiddleware, ServerSettings

PROVIDER = "vllm"
_ROUTES = "vllm.entrypoints."
_log = logging.getLogger("otel_llm")
_GIVES_TIMES = (0, 11, 1)
_UNNUMBERED = (0, 2)
"""Builds from a checkout without tags are called 0.0.0 or 0.1 whatever they hold."""


class _Switch:
    """What was switched on last, and whether it still is.

    An application puts its middleware together once, and keeps it when instrumentation is
    switched off and on again.
    """

    on: tuple[Patches, Host] | None = None

    @classmethod
    def telemetry(cls) -> Telemetry | None:
        """The telemetry in force now; None if there is none."""
        if cls.on is None or not cls.on[0].active:
            return None
        return cls.on[1].telemetry()


def patch(fastapi: Any, patches: Patches, host: Host) -> None:
    """See every FastAPI application before its middleware is put together.

    One that has served a request while nothing was instrumented stays as it is.
    """
    _Switch.on = patches, host

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def build_middleware_stack(app: Any) -> Any:
            if patches.active:
                with guard("vllm.middleware"):
                    _add_middleware(app, host)
            return original(app)

        return build_middleware_stack

    patches.replace(fastapi, "build_middleware_stack", make)


def _add_middleware(app: Any, host: Host) -> None:
    """Wrap an application that serves a vLLM engine; other FastAPI applications are left alone."""
    from starlette.middleware import Middleware

    if not _serves_vllm(app) or any(_is_ours(each.cls) for each in app.user_middleware):
        return
    made = host.telemetry()  # makes the providers, before the first request
    if made is None:
        return

    @functools.lru_cache(maxsize=1)
    def traced(told: Telemetry) -> bool:
        """Tell it what the application's state says; gives whether vLLM traces."""
        with guard("vllm.server_state"):
            told.instruments.know(_served_names(app))
            if _traces_natively(app):
                if describe.makes_phase_spans():
                    told.step_back()
                return True
        return False

    if _in_state(app):
        traced(made)  # else at the first request

    def settings() -> ServerSettings:
        found = _Switch.telemetry()
        return _settings(host.server(), inject=found is not None and traced(found))

    ours = Middleware(InferenceMiddleware, telemetry=_Switch.telemetry, settings=settings)
    app.user_middleware.insert(0, ours)
    _warn_if_too_old(ENGINES["vllm"].installed_version())


@functools.lru_cache(maxsize=2)
def _settings(server: ServerSettings, *, inject: bool) -> ServerSettings:
    """How vLLM's server treats requests; asked by each of them."""
    return replace(server, provider=PROVIDER, inject=inject)


def _warn_if_too_old(version: str | None) -> None:
    """Say that times will be missing, if that is certain; of a dev version it never is."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if found is None or "dev" in found.string:
        return
    if _UNNUMBERED <= tuple(int(each or 0) for each in found.groups()) < _GIVES_TIMES:
        _log.warning(
            "vLLM %s is older than %s and gives no times: requests have their outer spans, but "
            "queue, prefill and whatever else the engine alone knows are missing",
            version,
            ".".join(map(str, _GIVES_TIMES)),
        )


def _is_ours(middleware: Any) -> bool:
    ours = (InferenceMiddleware, InsideMiddleware)
    return isinstance(middleware, type) and issubclass(middleware, ours)


def _serves_vllm(app: Any) -> bool:
    """By what its state holds, or by its routes: an older vLLM builds the stack before either."""
    return _in_state(app) or any(
        str(getattr(getattr(route, "endpoint", None), "__module__", "")).startswith(_ROUTES)
        for route in app.routes
    )


def _in_state(app: Any) -> bool:
    """Whether an application's state holds an engine, or the arguments of vLLM's server."""
    return _engine(app) is not None or hasattr(_arguments(app), "served_model_name")


def _engine(app: Any) -> Any:
    return getattr(app.state, "engine_client", None)


def _arguments(app: Any) -> Any:
    return getattr(app.state, "args", None)


def _served_names(app: Any) -> list[str]:
    """The names under which vLLM serves its model, as far as is known."""
    names = getattr(_arguments(app), "served_model_name", None) or describe.model_of(_engine(app))
    return [names] if isinstance(names, str) else [str(each) for each in names or ()]


def _traces_natively(app: Any) -> bool:
    """Whether vLLM writes `llm_request` spans of its own, which shall be children of ours."""
    told = getattr(_arguments(app), "otlp_traces_endpoint", None) is not None
    return told or describe.traces_natively(_engine(app))

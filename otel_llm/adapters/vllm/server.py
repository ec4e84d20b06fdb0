"""The middleware of vLLM's server, however the server was started."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from otel_llm.adapters.patching import Patches
from otel_llm.adapters.registry import Host
from otel_llm.adapters.vllm.describe import makes_phase_spans
from otel_llm.emit.telemetry import Telemetry
from otel_llm.guard import guard
from otel_llm.servers.asgi import InferenceMiddleware, InsideMiddleware, ServerSettings

PROVIDER = "vllm"


def patch(fastapi: Any, patches: Patches, host: Host) -> None:
    """See every FastAPI application before its middleware is put together."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def build_middleware_stack(app: Any) -> Any:
            if patches.active:
                with guard("vllm.middleware"):
                    _add_middleware(app, host, patches)
            return original(app)

        return build_middleware_stack

    patches.replace(fastapi, "build_middleware_stack", make)


def _add_middleware(app: Any, host: Host, patches: Patches) -> None:
    """Wrap an application that serves a vLLM engine; other FastAPI applications are left alone."""
    from starlette.middleware import Middleware

    if not _serves_vllm(app) or any(_is_ours(each.cls) for each in app.user_middleware):
        return
    made = host.telemetry()  # makes the providers, before the first request
    if made is None:
        return
    made.instruments.know(_served_names(app))

    def telemetry() -> Telemetry | None:
        return host.telemetry() if patches.active else None

    inject = _traces_natively(app)
    if inject and makes_phase_spans():
        made.step_back()

    def settings() -> ServerSettings:
        return replace(host.server(), provider=PROVIDER, inject=inject)

    ours = Middleware(InferenceMiddleware, telemetry=telemetry, settings=settings)
    app.user_middleware.insert(0, ours)


def _is_ours(middleware: Any) -> bool:
    ours = (InferenceMiddleware, InsideMiddleware)
    return isinstance(middleware, type) and issubclass(middleware, ours)


def _serves_vllm(app: Any) -> bool:
    """By the engine in the application's state, or its arguments where the stack is built early."""
    state = app.state
    return (
        getattr(state, "engine_client", None) is not None
        or getattr(getattr(state, "args", None), "served_model_name", _MISSING) is not _MISSING
    )


_MISSING = object()


def _served_names(app: Any) -> list[str]:
    """The names under which vLLM serves its model, as far as its arguments tell."""
    names = getattr(getattr(app.state, "args", None), "served_model_name", None)
    return [names] if isinstance(names, str) else [str(each) for each in names or ()]


def _traces_natively(app: Any) -> bool:
    """Whether vLLM writes `llm_request` spans of its own, which shall be children of ours."""
    args = getattr(app.state, "args", None)
    return getattr(args, "otlp_traces_endpoint", None) is not None

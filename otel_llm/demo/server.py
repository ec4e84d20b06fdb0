"""The simulated engine behind an instrumented server: `python -m otel_llm.demo.server`.

Arguments are the plan and the address to export to. It listens on a free port of 127.0.0.1 and
prints `ready PORT` when it does.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import MutableMapping
from typing import Any

import otel_llm
from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.demo.plan import Plan
from otel_llm.simulator.conditions import Conditions
from otel_llm.simulator.engine import Engine
from otel_llm.simulator.faults import Setup
from otel_llm.simulator.misbehaviour import App, Receive, Send
from otel_llm.simulator.serving import DIALECTS, ServingConfig

READY = "ready"
KEEP_ALIVE_S = 60
"""Longer than any pause in the load, so that no connection closes under a request."""


class Run:
    """The time of the run; it begins with the first request.

    Args:
        setup: What befalls the engine.
        conditions: Where it is written down once the run has begun.
    """

    def __init__(self, setup: Setup, conditions: Conditions) -> None:
        self._setup = setup
        self._conditions = conditions
        self._start_ns: int | None = None

    def now_s(self) -> float:
        """Seconds since the run began."""
        start_ns = self._start_ns
        return 0.0 if start_ns is None else (SYSTEM_CLOCK.monotonic_ns() - start_ns) / 1e9

    def begins_with(self, app: App) -> App:
        """*app*, whose first POST request begins the run."""

        async def serve(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            if self._start_ns is None and scope.get("method") == "POST":
                self._begin(SYSTEM_CLOCK.monotonic_ns())
            await app(scope, receive, send)

        return serve

    def _begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        for each in self._setup.ailments:
            each.befall(self._conditions, start_ns)
        for at_s in self._setup.flushes_s:
            self._conditions.flush_cache(start_ns + round(at_s * 1e9))


def application(plan: Plan) -> App:
    """The simulated engine in its dialect, its faults, and the middleware round both."""
    setup, conditions = plan.setup(), Conditions()
    engine = Engine(setup.engine, seed=plan.seed, conditions=conditions)
    served = DIALECTS[plan.dialect](engine, ServingConfig(model=plan.model, seed=plan.seed))
    run = Run(setup, conditions)
    app = run.begins_with(setup.server.wrap(served, run.now_s, plan.seed))
    return otel_llm.InferenceMiddleware(app, provider=plan.dialect)


def main(plan: Plan, endpoint: str) -> None:
    """Serve until told to end; what is still to be exported then is."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for each in sockets or ():
                sys.stdout.write(f"{READY} {each.getsockname()[1]}\n")
            sys.stdout.flush()

    otel_llm.configure(endpoint=endpoint, service_name=f"simulated-{plan.dialect}", engines=[])
    config = uvicorn.Config(
        application(plan),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        Server(config).run(sockets=[listening])
    otel_llm.uninstrument()


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]), sys.argv[2])
